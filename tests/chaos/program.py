"""One seeded program with one seeded fault; exits with 0 when each value is right and each error is explained."""

from __future__ import annotations

import os
import random
import resource
import signal
import sys
import threading
import time
from pathlib import Path

FAULTS = ("none", "kill", "stop", "poison", "descriptors", "file size", "clock", "two programs", "read-only home")
EXPLAINED = {
    "poison": ("TaskLostError",),
    "kill": ("TaskLostError",),
    "stop": ("TaskLostError",),
    "descriptors": ("OSError", "NothingFitsError", "EngineError", "HeteroError"),
    "file size": ("OSError", "EngineError", "OutOfDeviceMemoryError", "HeteroError"),
}
PATIENCE_S = 100.0


def square(number: int) -> int:
    """Return a square."""
    return number * number


def total(*numbers: int) -> int:
    """Return a sum."""
    return sum(numbers)


def poison(number: int) -> int:
    """End the worker."""
    os.kill(os.getpid(), signal.SIGSEGV)
    return number


def nap(number: int) -> int:
    """Take a little while."""
    time.sleep(0.01)
    return number * number


def harm(ctx: object, word: int, chance: random.Random, ending: threading.Event) -> None:
    """Send a signal to random workers now and then."""
    for _ in range(3):
        if ending.wait(chance.uniform(0.05, 0.5)):
            return
        pids = list(ctx.driver.engine.pids().values())  # type: ignore[attr-defined]
        if pids:
            try:
                os.kill(chance.choice(pids), word)
            except ProcessLookupError:
                continue


def prepare(fault: str, folder: Path, chance: random.Random) -> None:
    """Bring about the faults of the surroundings."""
    os.environ["HETERO_HOME"] = str(folder)
    if fault == "descriptors":
        resource.setrlimit(
            resource.RLIMIT_NOFILE, (chance.randint(24, 48), resource.getrlimit(resource.RLIMIT_NOFILE)[1])
        )
    elif fault == "file size":
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, resource.RLIM_INFINITY))
    elif fault == "clock":
        real, step = time.time, chance.choice((-1e6, 1e6))
        time.time = lambda: real() + step
    elif fault == "read-only home":
        folder.chmod(0o500)
        if os.geteuid() == 0:
            os.environ["HETERO_HOME"] = "/proc/hetero"


def go(seed: int, fault: str, chance: random.Random) -> list[str]:
    """Run the program; return what is wrong."""
    import hetero

    isolation = "process" if fault in ("kill", "stop", "poison", "descriptors", "file size") else "thread"
    wrong: list[str] = []
    ending = threading.Event()
    with hetero.Context(devices=f"{chance.randint(1, 2)}xcpu", isolation=isolation) as ctx:
        if fault in ("kill", "stop"):
            word = signal.SIGKILL if fault == "kill" else signal.SIGSTOP
            threading.Thread(target=harm, args=(ctx, word, chance, ending), daemon=True).start()
        wanted: list[tuple[hetero.Future, int]] = []
        for index in range(chance.randint(5, 60)):
            draw = chance.random()
            if draw < 0.2 and len(wanted) > 2:
                parts = chance.sample(wanted, 2)
                wanted.append((ctx.submit(total, *[part[0] for part in parts]), sum(part[1] for part in parts)))
            else:
                bad = fault == "poison" and draw > 0.9
                wanted.append((ctx.submit(poison if bad else chance.choice((square, nap)), index), index * index))
        for future, value in wanted:
            error = future.exception(PATIENCE_S)
            if error is None and future.result() != value:
                wrong.append(f"{future.name} gave {future.result()} for {value}")
            elif error is not None and not {kind.__name__ for kind in type(error).__mro__} & set(
                EXPLAINED.get(fault, ())
            ):
                wrong.append(f"{fault} does not explain {type(error).__name__}: {error}")
        ending.set()
    return wrong


def main(seed: int, folder: Path) -> None:
    """Run one seed."""
    chance = random.Random(seed)
    fault = FAULTS[seed % len(FAULTS)]
    prepare(fault, folder, chance)
    other = os.fork() if fault == "two programs" else -1
    try:
        wrong = go(seed, fault, chance)
    except Exception as error:  # noqa: BLE001  whatever comes out is judged
        explained = {kind.__name__ for kind in type(error).__mro__} & set(EXPLAINED.get(fault, ()))
        wrong = [] if explained else [f"{fault} does not explain {type(error).__name__}: {error}"]
    if other > 0 and os.waitpid(other, 0)[1]:
        wrong.append("the other program on the same home failed")
    print(*wrong, sep="\n")
    sys.stdout.flush()
    os._exit(1 if wrong else 0) if other == 0 else sys.exit(bool(wrong))


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]))
