"""A task whose worker dies resumes at its last checkpoint: the first attempt kills itself on purpose."""

import os
import signal

import hetero


@hetero.task
def count_to(end: int) -> tuple[int, int]:
    """Add up the numbers below `end`; give the sum and where the last attempt began."""
    loop = hetero.tasks.resumable(range(end), every=10, state=0)
    begin = None
    for number in loop:
        begin = number if begin is None else begin
        if number == 57 and begin == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        loop.state += number
    return loop.state, begin


with hetero.Context(devices="1xcpu") as ctx:
    total, begin = ctx.run(count_to, 100)
    print(f"sum {total}; the attempt that ended began at {begin}")
