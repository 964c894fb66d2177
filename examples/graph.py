"""Futures as arguments make a task graph: a sum of products, combined where the parts lie."""

import numpy as np

import hetero


@hetero.task
def product(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    """Multiply two blocks."""
    return left @ right


@hetero.task
def add(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """Add two blocks."""
    return one + other


rng = np.random.default_rng(0)
left, right = rng.random((2, 600, 600))
with hetero.Context(devices="2xcpu") as ctx:
    cuts = [slice(begin, begin + 150) for begin in range(0, 600, 150)]
    parts = [ctx.submit(product, left[:, cut], right[cut, :]) for cut in cuts]
    total = ctx.reduce(add, parts)
    norm = ctx.submit(np.linalg.norm, total)
    print("sum of", len(parts), "products; norm", round(norm.result(), 6))
    print("equal to NumPy's:", np.allclose(total.result(), left @ right))
