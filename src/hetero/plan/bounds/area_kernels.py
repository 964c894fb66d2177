"""The inner loop of the area relaxation: what an hour of each class of devices is worth.

In: seconds a task and class. Out: prices. Compiled where numba is installed; import it inside functions.
"""

from __future__ import annotations

import numpy as np

from hetero.plan.compiled import njit
from hetero.plan.problem import Floats

__all__ = ["class_prices"]


@njit
def class_prices(seconds: Floats, counts: Floats, rounds: int) -> Floats:
    """Return prices l, sum of k_c * l_c = 1, near the maximum of the sum over tasks of min over c of l_c * w_ic.

    Each round sends every task to its cheapest class, and makes dearer what is loaded beyond the mean.
    """
    n, classes = seconds.shape
    prices = np.ones(classes) / counts.sum()
    best: Floats = prices.copy()
    best_value = -1.0
    load = np.empty(classes)
    for turn in range(rounds):
        load[:] = 0.0
        value = 0.0
        for i in range(n):
            cheapest, chosen = np.inf, 0
            for c in range(classes):
                if seconds[i, c] < np.inf and seconds[i, c] * prices[c] < cheapest:
                    cheapest, chosen = seconds[i, c] * prices[c], c
            load[chosen] += seconds[i, chosen] / counts[chosen]
            value += cheapest
        if value > best_value:
            best_value = value
            best[:] = prices
        if value <= 0.0:
            break
        step = 0.5 / (1.0 + 0.1 * turn)
        for c in range(classes):
            prices[c] *= 1.0 + step * min(1.0, load[c] / value - 1.0)
            prices[c] = max(prices[c], 1e-12)
        total = (prices * counts).sum()
        for c in range(classes):
            prices[c] /= total
    return best
