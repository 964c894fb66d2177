"""Two devices of different speed share a list of tasks; nobody says how much each of them gets."""

from collections import Counter

import numpy as np

import hetero


@hetero.task
def factorise(matrix: np.ndarray) -> str:
    """Do some linear algebra and tell where."""
    np.linalg.svd(matrix)
    return hetero.get_current_device().short


matrices = np.random.default_rng(0).random((60, 200, 200))
with hetero.Context(devices="1xcpu,1xcpu*0.25") as ctx:
    where = Counter(ctx.gather([ctx.submit(factorise, matrix) for matrix in matrices]))
    for device in ctx.devices:
        print(f"{device.short}, throttled to {device.throttle_frac:g}: {where[device.short]} of {len(matrices)} tasks")
    print(ctx.explain(factorise, matrices[0]))
