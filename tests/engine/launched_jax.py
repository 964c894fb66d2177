"""Programs for JAX and optax, for tests/engine/test_frameworks.py; each prints its numbers."""

from __future__ import annotations

import runpy
import sys
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

import hetero

fleet = hetero.train.init()
DRAW = np.random.default_rng(5)
INPUTS, TARGETS = DRAW.normal(size=(70, 6)), DRAW.integers(-1, 3, size=70)


def told(name: str, *values: Any) -> None:
    fleet.print(name, *(repr(float(value)) for value in values))


def parameters() -> dict[str, Any]:
    keys = jax.random.split(jax.random.key(1), 2)
    return {
        "first": {"w": jax.random.normal(keys[0], (6, 16)), "b": jnp.zeros(16)},
        "last": {"w": jax.random.normal(keys[1], (16, 3)), "b": jnp.zeros(3)},
    }


def predicted(params: Any, inputs: Any) -> Any:
    hidden = jax.nn.relu(inputs @ params["first"]["w"] + params["first"]["b"])
    return hidden @ params["last"]["w"] + params["last"]["b"]


def size(params: Any) -> float:
    return float(sum((p * jnp.arange(1.0, p.size + 1).reshape(p.shape)).sum() for p in jax.tree.leaves(params)))


def entropy(params: Any, inputs: Any, targets: Any) -> Any:
    return optax.softmax_cross_entropy_with_integer_labels(predicted(params, inputs), jnp.maximum(targets, 0))


def trained(step: Any, name: str, batch: Any) -> None:
    params, rule = parameters(), optax.chain(optax.clip_by_global_norm(0.5), optax.adamw(0.02))
    state, order = rule.init(params), np.random.default_rng(3)
    for epoch in range(2):
        total = 0.0
        for rows in np.array_split(order.permutation(70), [16, 32, 48, 64, 69]):
            value, gradients = step(params, *batch(rows))
            value, right = value if isinstance(value, tuple) else (value, jnp.zeros(1))
            updates, state = rule.update(gradients, state, params)
            params = optax.apply_updates(params, updates)
            total += float(value)
            told(f"{name}-step", value, *(jnp.sum(each) for each in jax.tree.leaves(right)), len(rows))
        told(name, epoch, total, size(params))


def a_mean_with_more_than_its_value() -> None:
    def loss(params: Any, key: Any, inputs: Any, targets: Any) -> Any:
        out = predicted(params, inputs)
        each = entropy(params, inputs, targets)
        return each.mean() + 0.01 * size_of(params), {"right": out.argmax(-1) == targets, "mean": out.mean()}

    def size_of(params: Any) -> Any:
        return sum(jnp.square(each).sum() for each in jax.tree.leaves(params))

    step = hetero.jax.value_and_grad(jax.jit(loss), has_aux=True)
    key = jax.random.PRNGKey(0)
    trained(step, "mean", lambda rows: (key, jnp.asarray(INPUTS[rows]), TARGETS[rows]))


def a_sum() -> None:
    step = hetero.jax.value_and_grad(jax.jit(lambda *args: entropy(*args).sum()), reduction="sum")
    trained(step, "sum", lambda rows: (INPUTS[rows], TARGETS[rows]))


def a_mean_over_labels_that_count() -> None:
    def loss(params: Any, batch: Any) -> Any:
        counts = batch["targets"] >= 0
        return (entropy(params, **batch) * counts).sum() / jnp.maximum(counts.sum(), 1)

    step = hetero.jax.value_and_grad(loss, weight=lambda params, batch: (batch["targets"] >= 0).sum())
    trained(step, "masked", lambda rows: ({"inputs": INPUTS[rows], "targets": TARGETS[rows]},))


def what_is_refused() -> None:
    def tried(name: str, call: Any) -> None:
        try:
            call()
        except hetero.errors.HeteroError as error:
            fleet.print("refused", name, error)

    params, step = parameters(), hetero.jax.value_and_grad(lambda *args: entropy(*args).mean())
    tried("jit", lambda: jax.jit(step)(params, INPUTS[:8], TARGETS[:8]))
    tried("batch", lambda: fleet.world_size > 1 and hetero.jax.value_and_grad(size)(params))
    aux = hetero.jax.value_and_grad(lambda p, x, y: (entropy(p, x, y).mean(), x.sum(0)), has_aux=True)
    tried("aux", lambda: aux(params, INPUTS[:8], TARGETS[:8]))
    for name, made in {"count": lambda x: (x > 0).sum(), "most": jnp.max, "words": lambda x: ("a", 3, True)}.items():
        aux = hetero.jax.value_and_grad(lambda p, x, y, made=made: (entropy(p, x, y).mean(), made(x)), has_aux=True)
        tried(name, lambda aux=aux: aux(params, INPUTS[:8], TARGETS[:8]))


def mixed_late() -> None:
    """The second function of a script, and what begins in its fourth call."""

    def loss(p: Any, x: Any, y: Any, number: int) -> Any:
        return entropy(p, x - x.mean(0) if number > 2 else x, y).mean()

    first, second = (hetero.jax.value_and_grad(each) for each in (lambda *args: entropy(*args).mean(), loss))
    for _ in range(4):
        first(parameters(), INPUTS[:8], TARGETS[:8])
    for number in range(4):
        second(parameters(), INPUTS[:8], TARGETS[:8], number)


def mixed() -> None:
    step = hetero.jax.value_and_grad(lambda p, x, y: entropy(p, x - x.mean(0), y).mean())
    step(parameters(), INPUTS[:8], TARGETS[:8])


def main() -> None:
    for name in sys.argv[1:]:
        jax.config.update("jax_enable_x64", not name.endswith(".py"))
        if name.endswith(".py"):
            runpy.run_path(name)
        else:
            globals()[name]()


if __name__ == "__main__":
    main()
