from __future__ import annotations

import socket
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

import hetero
from hetero.drive.trace import read_trace
from hetero.floor.errors import BadValueError, ConfigError
from hetero.model.annotations import TrainingEpoch, TrainingStep

WAIT_S = 90.0
Figures = dict[tuple[str, tuple[tuple[str, str], ...]], float]


@pytest.fixture
def ctx() -> Iterator[hetero.Context]:
    pytest.importorskip("prometheus_client")
    with hetero.Context(devices="1xcpu,1xcpu*0.5", isolation="thread") as ctx:
        yield ctx


def scraped(server: object) -> Figures:
    """Read the metrics with the official parser; the text has one kind and one help line for each family."""
    from prometheus_client.parser import text_string_to_metric_families

    with urllib.request.urlopen(server.url, timeout=250) as answer:  # type: ignore[attr-defined]
        text = answer.read().decode()
    found: Figures = {}
    for family in text_string_to_metric_families(text):
        assert family.documentation, family.name
        assert family.type in ("counter", "gauge", "histogram"), family.name
        for sample in family.samples:
            key = (sample.name, tuple(sorted(sample.labels.items())))
            assert key not in found
            found[key] = sample.value
    return found


def test_tasks_and_devices_are_counted_as_they_ran(ctx: hetero.Context) -> None:
    def broken(_: int) -> None:
        raise ValueError

    with hetero.inspect.metrics_server(ctx) as server:
        ctx.gather([ctx.submit(abs, -number) for number in range(20)])
        assert isinstance(ctx.submit(broken, 1).exception(), ValueError)
        deadline_s = time.monotonic() + WAIT_S
        while (
            any(each.phase != "ready" for each in hetero.inspect.snapshot(ctx).devices)
            and time.monotonic() < deadline_s
        ):
            time.sleep(0.02)
        found = scraped(server)
    assert found["hetero_tasks_submitted_total", ()] == 21
    assert found["hetero_tasks_finished_total", ()] == 20
    assert found["hetero_tasks_failed_total", ()] == 1
    assert found["hetero_run_open", ()] == 1
    ids = [device.id for device in ctx.devices]
    assert [found["hetero_device_up", (("device", each), ("kind", "cpu"))] for each in ids] == [1, 1]
    counted = [value for (name, _), value in found.items() if name == "hetero_attempt_duration_seconds_count"]
    assert sum(counted) == 21
    assert sum(value for (name, _), value in found.items() if name == "hetero_device_finished_tasks_total") == 20


def test_every_name_of_a_quantity_has_a_unit(ctx: hetero.Context) -> None:
    units = ("seconds", "bytes", "ratio", "celsius", "watts", "samples", "tasks", "transfers", "second")
    counts = ("run_open", "tasks_open", "device_up", "training_step", "training_loss")
    with hetero.inspect.metrics_server(ctx) as server:
        names = {name.removeprefix("hetero_") for name, _ in scraped(server)}
    for name in names:
        plain = name.removesuffix("_total").removesuffix("_created").removesuffix("_count").removesuffix("_sum")
        assert plain.removesuffix("_bucket").endswith(units) or plain in counts or plain.startswith("tasks_"), name


def test_training_is_told_by_device(ctx: hetero.Context) -> None:
    with hetero.inspect.metrics_server(ctx) as server:
        for step in (1, 5):
            ctx.driver.record(TrainingStep(0.1, step, 0.5, 0.02, 0.001, ("cpu:0", "cpu:1"), (96, 32), (0.01, 0.02)))
        speeds = (("cpu:0", "cpu:1"), (96, 32), (1e3, 5e2))
        ctx.driver.record(TrainingEpoch(1.0, 1, 5, 0.5, 0.5, 0.1, 6400.0, *speeds, 0.5, 0.5))
        found = scraped(server)
    first = (("device", "cpu:0"),)
    assert found["hetero_training_samples_total", first] == 5 * 96
    assert found["hetero_training_share_samples", first] == 96
    assert found["hetero_training_step_duration_seconds_count", ()] == 2
    assert found["hetero_training_loss", ()] == 0.5
    assert found["hetero_training_epoch_samples_per_second", ()] == 6400


def test_a_trainer_feeds_its_metrics() -> None:
    pytest.importorskip("prometheus_client")
    torch = pytest.importorskip("torch")
    data = torch.randn(64, 4), torch.zeros(64, dtype=torch.long)
    model = torch.nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with (
        hetero.Trainer(
            model, torch.nn.CrossEntropyLoss(), optimizer, data, global_batch=16, devices="1xcpu"
        ) as trainer,
        hetero.inspect.metrics_server(trainer.context) as server,
    ):
        trainer.fit(2)
        found = scraped(server)
    assert found["hetero_training_step", ()] >= 1
    assert found["hetero_training_share_samples", (("device", "cpu:0"),)] == 16


def test_metrics_are_served_on_the_loopback_only(ctx: hetero.Context) -> None:
    with hetero.inspect.metrics_server(ctx) as server:
        assert server.url == f"http://127.0.0.1:{server.port}/metrics"


def test_a_closed_run_is_told_as_closed() -> None:
    pytest.importorskip("prometheus_client")
    with hetero.Context(devices="1xcpu", isolation="thread") as ctx:
        server = hetero.inspect.metrics_server(ctx)
    with server:
        assert scraped(server)["hetero_run_open", ()] == 0
    with pytest.raises(BadValueError, match="this Context is closed"):
        hetero.inspect.metrics_server(ctx)


@pytest.mark.parametrize("port", [-1, 65_536, True, "80"])
def test_what_is_no_port_is_refused(ctx: hetero.Context, port: object) -> None:
    with pytest.raises(BadValueError, match="is no port; give a whole number from 0 to 65535"):
        hetero.inspect.metrics_server(ctx, port=port)  # type: ignore[arg-type]


def test_a_port_that_is_taken_is_told(ctx: hetero.Context) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        with pytest.raises(BadValueError, match="metrics cannot be served at 127"):
            hetero.inspect.metrics_server(ctx, port=other.getsockname()[1])


def test_a_configuration_says_where_prometheus_may_ask() -> None:
    pytest.importorskip("prometheus_client")
    config = {"devices": "1xcpu", "isolation": "thread", "metrics": {"address": "127.0.0.1", "port": 0}}
    with hetero.Context(config=config, history=False) as ctx:
        ctx.run(sum, [1, 2])
        server = ctx._metrics
        assert server is not None
        assert "hetero_tasks_finished_total 1.0" in urllib.request.urlopen(server.url, timeout=250).read().decode()
    with pytest.raises(OSError, match="refused"):
        urllib.request.urlopen(server.url, timeout=250)


def test_a_port_that_is_taken_closes_the_context_and_is_told(tmp_path: Path) -> None:
    pytest.importorskip("prometheus_client")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        config = {"devices": "1xcpu", "isolation": "thread", "metrics": {"port": port}}
        with pytest.raises(BadValueError, match=rf"metrics cannot be served at 127.0.0.1:{port}"):
            hetero.Context(config=config, history=False, trace=tmp_path / "run.trace.jsonl")
    assert not read_trace(tmp_path / "run.trace.jsonl").torn


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"port": 70000}, "metrics.port: 70000 is no port; give a whole number from 0 to 65535"),
        ({"porto": 1}, "metrics.porto: there is no such key; did you mean 'port'?"),
        (9464, "9464 is not a mapping of keys to values; allowed keys: port, address"),
    ],
)
def test_a_wrong_place_for_metrics_is_told(given: object, told: str) -> None:
    with pytest.raises(ConfigError) as error:
        hetero.Context(config={"devices": "1xcpu", "metrics": given})
    assert told in str(error.value)
