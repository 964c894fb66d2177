"""A task that takes two devices at once: its members are placed together and talk to each other."""

import numpy as np

import hetero


@hetero.task(devices=2)
def halves(values: np.ndarray) -> float:
    """Sum one half each; the second member sends its sum to the first."""
    mine = float(np.array_split(values, hetero.collectives.world_size())[hetero.collectives.rank()].sum())
    if hetero.collectives.rank() == 1:
        hetero.collectives.send(mine, to=0)
        return mine
    return mine + float(hetero.collectives.recv(from_=1))


with hetero.Context(devices="2xcpu") as ctx:
    print("sum by two members:", ctx.run(halves, np.arange(1001.0)))
