"""A run as Prometheus sees it: counters, gauges and histograms on a port of this machine.

In: an open Context. Out: the text format of Prometheus, worked out when somebody asks.
It must not cost a run more than a look at each record, and listens on the loopback unless told otherwise.
"""

from __future__ import annotations

import logging
import socket
import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, TypeVar

from hetero.floor.errors import BadValueError
from hetero.floor.extras import need
from hetero.floor.listening import Listening, Verdict
from hetero.model.annotations import TrainingEpoch, TrainingStep
from hetero.model.events import TaskFailed, TaskFinished
from hetero.session.config_schema import MOST_PORT

if TYPE_CHECKING:
    from prometheus_client.core import Metric

    from hetero.session.context import Context
    from hetero.session.snapshot import Snapshot

__all__ = ["MetricsServer", "configured_metrics", "metrics_server"]

_log = logging.getLogger("hetero")

_BACKLOG = 128
_LONGEST_REQUEST = 1 << 14
_HEAD_END = b"\r\n\r\n"
_TASK_BUCKETS_S = (1e-4, 1e-3, 0.01, 0.1, 1.0, 10.0, 60.0, 600.0, 3600.0)
_STEP_BUCKETS_S = (1e-3, 3e-3, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0)


class MetricsServer:
    """Serves the metrics of one Context until it is closed; a `with` block closes it.

    Attributes
    ----------
    url, port
        Where.
    """

    def __init__(self, ctx: Context, address: str, port: int) -> None:
        from prometheus_client import CollectorRegistry

        self._registry = CollectorRegistry()
        self._registry.register(_Now(ctx))
        seen = _Seen(self._registry)
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        try:
            listener = socket.create_server((address, port), family=family, backlog=_BACKLOG)
        except OSError as error:
            problem = f"metrics cannot be served at {address}:{port}: {error.strerror or error}"
            raise BadValueError(problem, remedy="give another port, or port=0 for any free one") from error
        self.port: int = listener.getsockname()[1]
        self._listening = Listening(listener, self._answer, _LONGEST_REQUEST)
        self.url = f"http://{f'[{address}]' if ':' in address else address}:{self.port}/metrics"
        ctx.driver.listen(seen)

    def close(self) -> None:
        """Stop; safe to call twice."""
        self._listening.close()

    def _answer(self, said: bytes, _: str) -> Verdict:
        """Answer an HTTP request as soon as its head is whole; close connections that are too slow or send too much."""
        from prometheus_client.exposition import choose_encoder

        if _HEAD_END not in said:
            return None
        request, *lines = said.partition(_HEAD_END)[0].decode("latin-1").split("\r\n")
        if not request.startswith(("GET ", "HEAD ")):
            return _reply("405 Method Not Allowed", "text/plain", b"only GET is answered\n")
        headers = {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        encode, kind = choose_encoder(headers.get("accept", ""))
        return _reply("200 OK", kind, encode(self._registry), body=request.startswith("GET"))

    def __enter__(self) -> MetricsServer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _reply(status: str, kind: str, text: bytes, body: bool = True) -> bytes:
    head = f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {len(text)}\r\nConnection: close\r\n\r\n"
    return head.encode() + (text if body else b"")


def metrics_server(ctx: Context, port: int = 0, address: str = "127.0.0.1") -> MetricsServer:
    """Serve the metrics of a run to Prometheus.

    Parameters
    ----------
    ctx
        An open Context; of a training run `trainer.context`.
    port
        0 for any free one.
    address
        Of the interface that it listens at; other machines can reach it at '0.0.0.0', without a password.

    Raises
    ------
    BadValueError
        The port is taken or no port, the Context is closed, or prometheus_client is not installed.

    Examples
    --------
    >>> import hetero, urllib.request
    >>> with hetero.Context(devices="1xcpu", isolation="thread") as ctx, hetero.inspect.metrics_server(ctx) as server:
    ...     _ = ctx.run(sum, [1, 2])
    ...     text = urllib.request.urlopen(server.url).read().decode()
    >>> "hetero_tasks_finished_total 1.0" in text
    True
    """
    need("prometheus_client", "a server of metrics")
    if isinstance(port, bool) or not isinstance(port, int) or not 0 <= port <= MOST_PORT:
        raise BadValueError(f"port={port!r} is no port", remedy=f"give a whole number from 0 to {MOST_PORT}")
    if ctx.closed:
        raise BadValueError("this Context is closed", remedy="serve the metrics of an open one")
    return MetricsServer(ctx, address, port)


def configured_metrics(ctx: Context) -> MetricsServer | None:
    """Serve the metrics of a new Context where its configuration says so; it is closed where that is not possible.

    Raises
    ------
    BadValueError
        As `metrics_server`.
    """
    if ctx.config.metrics is None:
        return None
    address, port = ctx.config.metrics
    try:
        server = metrics_server(ctx, port, address)
    except BaseException:
        ctx.close(wait=False)
        raise
    _log.info("metrics for Prometheus: %s", server.url)
    return server


class _Now:
    """What a snapshot tells, taken when Prometheus asks; of a Context that is closed only that it is."""

    def __init__(self, ctx: Context) -> None:
        self._ctx = weakref.ref(ctx)

    def describe(self) -> Iterable[object]:
        """Return nothing: names are known when the first answer is made."""
        return ()

    def collect(self) -> Iterator[object]:
        """Yield the families of one moment."""
        from prometheus_client.core import GaugeMetricFamily

        from hetero.session.snapshot import snapshot

        ctx = self._ctx()
        is_open = ctx is not None and not ctx.closed
        yield GaugeMetricFamily("hetero_run_open", "1 while the Context is open", value=float(is_open))
        if ctx is not None and is_open:
            now = snapshot(ctx)
            yield from _run(now)
            yield from _devices(now)
            yield from _data(now)


def _run(now: Snapshot) -> Iterator[object]:
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

    yield GaugeMetricFamily("hetero_run_age_seconds", "Time since the Context was opened", value=now.at_s)
    tasks = now.tasks
    gauge = GaugeMetricFamily("hetero_tasks_open", "Tasks that are not over, by state", labels=["state"])
    for state in ("waiting", "ready", "placed", "running"):
        gauge.add_metric([state], getattr(tasks, state))
    yield gauge
    for name, words, count in (
        ("submitted", "Tasks that were handed in", tasks.submitted),
        ("finished", "Tasks whose results counted", tasks.finished),
        ("failed", "Tasks that failed for good", tasks.failed),
        ("retried", "Attempts that were made again", tasks.retried),
    ):
        yield CounterMetricFamily(f"hetero_tasks_{name}", words, value=count)


def _devices(now: Snapshot) -> Iterator[object]:
    columns = (
        ("gauge", "up", "1 while its worker takes tasks", lambda one: float(one.phase == "ready")),
        ("gauge", "queued_tasks", "Tasks placed on it that have not begun", lambda one: one.queued),
        ("counter", "finished_tasks", "Tasks that it finished", lambda one: one.finished),
        ("counter", "busy_seconds", "Time in tasks that are finished", lambda one: one.busy_s),
        ("counter", "worker_cpu_seconds", "Processor time of its worker", lambda one: one.cpu_s),
        ("gauge", "worker_memory_bytes", "Memory that its worker holds", lambda one: one.held_bytes),
        ("gauge", "memory_used_bytes", "Memory in use, as the device tells", lambda one: one.status.used_bytes),
        ("gauge", "utilisation_ratio", "Share in use, as it tells", lambda one: one.status.utilisation_frac),
        ("gauge", "temperature_celsius", "As the device tells", lambda one: one.status.temperature_c),
        ("gauge", "power_watts", "As the device tells", lambda one: one.status.power_w),
    )
    for kind, name, words, value in columns:
        family = _family(kind, f"hetero_device_{name}", words, ["device", "kind"])
        for one in now.devices:
            if (figure := value(one)) is not None:
                family.add_metric([one.id, one.kind], figure)
        yield family


def _data(now: Snapshot) -> Iterator[object]:
    used = _family("gauge", "hetero_node_used_bytes", "Data items on a memory node", ["node"])
    size = _family("gauge", "hetero_node_capacity_bytes", "Room for data items, where it is bounded", ["node"])
    for node in now.nodes:
        used.add_metric([node.id], node.used_bytes)
        if node.capacity_bytes:
            size.add_metric([node.id], node.capacity_bytes)
    moved = _family("counter", "hetero_link_moved_bytes", "Bytes copied between memory nodes", ["src", "dst"])
    copies = _family("counter", "hetero_link_transfers", "Copies between memory nodes", ["src", "dst"])
    for link in now.links:
        moved.add_metric([link.src, link.dst], link.moved_bytes)
        copies.add_metric([link.src, link.dst], link.transfers)
    yield from (used, size, moved, copies)


def _family(kind: str, name: str, words: str, labels: list[str]) -> Metric:
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

    return (CounterMetricFamily if kind == "counter" else GaugeMetricFamily)(name, words, labels=labels)


M = TypeVar("M")


class _Seen:
    """What is counted as it happens: how long attempts take, and how training goes."""

    def __init__(self, registry: object) -> None:
        from prometheus_client import Counter, Gauge, Histogram

        def made(kind: Callable[..., M], name: str, words: str, *labels: str, **more: object) -> M:
            return kind(f"hetero_{name}", words, labels, registry=registry, **more)

        self._tasks = made(
            Histogram,
            "attempt_duration_seconds",
            "How long attempts took",
            "device",
            "outcome",
            buckets=_TASK_BUCKETS_S,
        )
        self._steps = made(
            Histogram, "training_step_duration_seconds", "Of told steps, a few a second", buckets=_STEP_BUCKETS_S
        )
        self._step = made(Gauge, "training_step", "Steps that are done")
        self._loss = made(Gauge, "training_loss", "Mean over the samples of the last told step")
        self._share = made(Gauge, "training_share_samples", "Samples of the last told step", "device")
        self._busy = made(Gauge, "training_busy_seconds", "Time of its passes in the last told step", "device")
        self._samples = made(Counter, "training_samples", "Samples trained on, at the shares of told steps", "device")
        self._speed = made(Gauge, "training_epoch_samples_per_second", "In the last epoch")
        self._last_step = 0

    def write(self, record: tuple[object, ...]) -> None:
        """Count one record."""
        fact = record[1] if type(record) is tuple else record
        if type(fact) is TaskFinished:
            self._tasks.labels(fact.device, "done").observe(fact.seconds)
        elif type(fact) is TaskFailed:
            self._tasks.labels(fact.device, "failed").observe(fact.seconds)
        elif type(fact) is TrainingStep:
            self._trained(fact)
        elif type(fact) is TrainingEpoch:
            self._speed.set(fact.samples_per_s)

    def _trained(self, step: TrainingStep) -> None:
        self._steps.observe(step.seconds)
        self._step.set(step.step)
        self._loss.set(step.loss)
        since = max(step.step - self._last_step, 0)
        self._last_step = step.step
        for device, samples, busy_s in zip(step.devices, step.samples, step.busy_s, strict=True):
            self._share.labels(device).set(samples)
            self._busy.labels(device).set(busy_s)
            self._samples.labels(device).inc(since * samples)
