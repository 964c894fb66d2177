"""On a host with an NVIDIA GPU: what ran on no GPU before the first of these was found there.

They skip where torch finds none, with that reason; `HETERO_REQUIRE=cuda` makes the absence a failure.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import hetero
from hetero.train.values import TrainOptions
from tests.needs import need

torch = pytest.importorskip("torch")
GPU = "cuda:0"


@pytest.fixture(scope="module", autouse=True)
def gpu() -> None:
    need("cuda")


@pytest.fixture(scope="module")
def ctx(gpu: None) -> Iterator[hetero.Context]:
    with hetero.Context(devices=f"{GPU},1xcpu", history=False) as context:
        yield context


@hetero.task
def product(a: Any, b: Any) -> Any:
    xp = hetero.tasks.namespace()
    return xp.asarray(a) @ xp.asarray(b)


def beyond_the_end() -> float:
    values = torch.zeros(4, device="cuda")[torch.tensor([10**6], device="cuda")]
    torch.cuda.synchronize()
    return float(values)


def test_a_chain_over_both_memories_changes_no_value(ctx: hetero.Context) -> None:
    values = np.random.default_rng(0).random((300, 300))
    chain: Any = ctx.put(values)
    for number in range(6):
        chain = ctx.submit(product.options(on="cuda" if number % 2 else "cpu"), chain, np.eye(300))
    np.testing.assert_array_equal(chain.result(), values)


def test_a_kernel_that_breaks_the_device_fails_its_task_alone(ctx: hetero.Context) -> None:
    bad, good = hetero.task(beyond_the_end, on="cuda"), product.options(on="cuda")
    futures = [ctx.submit(good, np.eye(3), np.eye(3)) if n % 5 else ctx.submit(bad) for n in range(15)]
    for number, found in enumerate(ctx.gather(futures, return_exceptions=True)):
        if number % 5:
            np.testing.assert_array_equal(found, np.eye(3))
        else:
            assert isinstance(found, RuntimeError), found


def test_a_plain_function_gets_large_and_small_arrays_alike(gpu: None) -> None:
    with hetero.Context(devices=GPU, history=False) as ctx, ctx.executor() as pool:
        for count in (3, 200_000):
            values = np.arange(count, dtype=np.float64)
            assert ctx.run(np.sum, values) == pool.submit(np.sum, values).result(60) == values.sum()


def test_plain_torch_code_works_in_a_task_and_makes_its_tensors_on_the_gpu(ctx: hetero.Context) -> None:
    def sampled() -> tuple[int, str]:
        from torch.utils.data import DataLoader, TensorDataset

        loader = DataLoader(TensorDataset(torch.zeros(10, 2, device="cpu")), shuffle=True, batch_size=2)
        return len(list(loader)), str(torch.zeros(2).device)

    assert ctx.run(hetero.task(sampled, on="cuda")) == (5, "cuda:0")


def network() -> Any:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(20, 64), torch.nn.ReLU(), torch.nn.Dropout(0.2), torch.nn.Linear(64, 5))


@pytest.mark.parametrize("devices", [GPU, f"{GPU},1xcpu"])
@pytest.mark.parametrize("there", ["cpu", "cuda"])
def test_training_gives_the_weights_of_a_cpu(devices: str, there: str) -> None:
    generator = torch.Generator().manual_seed(1)
    data = torch.randn(512, 20, generator=generator), torch.randint(0, 5, (512,), generator=generator)
    weights = {}
    for fleet, place in (("1xcpu", "cpu"), (devices, there)):
        model = network().to(place)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
        shares = "equal" if "," in fleet else "auto"
        with hetero.Trainer(
            model,
            torch.nn.CrossEntropyLoss(),
            optimizer,
            data,
            options=TrainOptions(64, shares=shares, seed=3),
            devices=fleet,
        ) as trainer:
            trainer.fit(2)
        weights[fleet] = torch.cat([parameter.detach().cpu().flatten() for parameter in model.parameters()])
        assert next(model.parameters()).device.type == place
    torch.testing.assert_close(weights[devices], weights["1xcpu"], rtol=1e-3, atol=1e-5)


def test_a_split_over_both_gives_what_the_whole_gives(ctx: hetero.Context) -> None:
    model, inputs = network().eval(), torch.randn(32, 20)
    with hetero.Context(devices=f"{GPU},1xtorch-cpu", history=False) as fleet:
        place = [("cuda:0", 3), ("torch-cpu:0", 1)]
        with hetero.train.split(model, fleet, inputs[:8], place=place) as parts:
            torch.testing.assert_close(parts(inputs), model(inputs), rtol=1e-4, atol=1e-5)


def test_bulk_work_on_both_gives_what_the_cpu_gives(gpu: None) -> None:
    model, records = network().eval(), np.random.default_rng(0).random((3000, 20), dtype=np.float32)
    found = hetero.batch.map_batches(model, records, devices=f"{GPU},torch-cpu").value
    with torch.no_grad():
        np.testing.assert_allclose(np.asarray(found), model(torch.from_numpy(records)).numpy(), rtol=1e-3, atol=1e-5)
