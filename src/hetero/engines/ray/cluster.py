"""The Ray cluster that this process uses: one of its own on loopback, or one that it was told to join.

In: an address. Out: hosts, and Ray initialised; how fast arrays go to a host and back. It never joins a cluster that it
was not told to join.
"""

from __future__ import annotations

import importlib
import os
import secrets
import shutil
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import psutil

from hetero.engines.ray.address import ask_cluster, check_address, is_loopback, knock
from hetero.engines.ray.node import LEAST_STORE_BYTES, RAYS, folder_for_ray, this_node
from hetero.floor import settings
from hetero.floor.clock import monotonic_s
from hetero.floor.errors import EngineError, HeteroError
from hetero.floor.private import user_id
from hetero.model.topology import Link

__all__ = ["LEAST_STORE_BYTES", "OWN_HOST", "Cluster", "Host", "HostCall", "measure_links"]

OWN_HOST = "h0"
LOOPBACK = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}
_PREFIX = "hetero-ray-"
_INSTALL = "pip install 'hetero-core[ray]'"


class Host(NamedTuple):
    """One host of a cluster.

    Attributes
    ----------
    name
        'h0' for the program's own.
    node_id
        Ray's, another one each time that the host joins.
    address
        On which the others reach it.
    """

    name: str
    node_id: str
    address: str


class Cluster:
    """One initialised Ray; made by `Cluster.open`, given back by `close`.

    Attributes
    ----------
    address
        As it was asked for.
    store_bytes
        Bytes of the object store on this host.
    certificates
        Folder of the cluster's certificates on this host, '' where it has none.
    """

    _held: Cluster | None = None
    _lock = threading.RLock()

    def __init__(self, address: str, folder: Path | None, cleanup: ExitStack | None) -> None:
        self.address = address
        self.store_bytes = 0
        self.certificates = ""
        self._users = 0
        self._folder = folder
        self._cleanup = cleanup
        self._names: dict[str, str] = {}

    @classmethod
    def open(cls, address: str, store_bytes: int) -> Cluster:
        """Return the cluster of an address; Contexts of one process share it.

        Parameters
        ----------
        address
            'local', 'auto' or 'host:port'.
        store_bytes
            Of the object store where a new cluster is started, at least `LEAST_STORE_BYTES`.

        Raises
        ------
        EngineError
            Nobody answers there, it is no Ray, or another version; Ray is not installed, or used otherwise.
        BadValueError
            The address is none.
        """
        check_address(address)
        with cls._lock:
            held = cls._held
            if held is None:
                held = cls._held = _started(address, store_bytes)
            elif held.address != address:
                raise EngineError(
                    f"this program already uses the Ray cluster {held.address!r}, and asks for {address!r}",
                    remedy="close the Context that uses the other one first",
                )
            held._users += 1
            return held

    def close(self) -> None:
        """Leave the cluster with the last user; one of our own ends, and leaves nothing behind."""
        with Cluster._lock:
            self._users -= 1
            if self._users or Cluster._held is not self:
                return
            Cluster._held = None
            if self._cleanup is None:
                return
            import ray

            ray.shutdown()
            self._cleanup.close()
            _read_again()
            if self._folder is not None:
                shutil.rmtree(self._folder, ignore_errors=True)

    def hosts(self) -> tuple[Host, ...]:
        """Return the hosts that are there now, the program's own first; a host keeps its name when it returns."""
        import ray

        own = ray.get_runtime_context().get_node_id()
        alive = [node for node in ray.nodes() if node["Alive"]]
        alive.sort(key=lambda node: (node["NodeID"] != own, node["NodeManagerAddress"], node["NodeID"]))
        return tuple([Host(self._name(node), node["NodeID"], node["NodeManagerAddress"]) for node in alive])

    def host(self, name: str) -> Host | None:
        """Return one host, None when it is not there now."""
        return next((host for host in self.hosts() if host.name == name), None)

    def addresses(self) -> dict[str, str]:
        """Return the address of every host that was there at some time, by name."""
        return {name: address for address, name in self._names.items()}

    def ask(
        self, hosts: Sequence[Host], function: Callable[..., object], arguments: tuple[object, ...], timeout_s: float
    ) -> list[tuple[Host, Any]]:
        """Call a function on each host, all at once; return each its answer, or the HeteroError that it raised.

        An answer that does not come in time, or in any other way does not come, is an EngineError.
        """
        begun = [self.begin(host, function, arguments) for host in hosts]
        deadline_s = monotonic_s() + timeout_s
        return [(one.host, one.answer(max(0.0, deadline_s - monotonic_s()))) for one in begun]

    def begin(self, host: Host, function: Callable[..., object], arguments: tuple[object, ...]) -> HostCall:
        """Start a function on a host, and do not wait for it."""
        import ray
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        place = NodeAffinitySchedulingStrategy(host.node_id, soft=False)
        begun = ray.remote(num_cpus=0, max_retries=0)(function).options(scheduling_strategy=place)
        return HostCall(host, begun.remote(*arguments))

    def _name(self, node: Mapping[str, str]) -> str:
        return self._names.setdefault(node["NodeManagerAddress"], f"h{len(self._names)}")


class HostCall:
    """A function that runs on a host; made by `Cluster.begin`."""

    def __init__(self, host: Host, ref: object) -> None:
        self.host = host
        self._ref = ref

    @property
    def is_over(self) -> bool:
        """Return whether it has returned, or failed."""
        import ray

        return bool(ray.wait([self._ref], timeout=0)[0])

    def answer(self, timeout_s: float) -> object:
        """Wait for what it returns; a HeteroError that it raised, or that nothing came in time, is returned, too."""
        return _answer(self.host, self._ref, timeout_s)

    def cancel(self) -> None:
        """End it with the process that it runs in."""
        import ray

        ray.cancel(self._ref, force=True)


def _answer(host: Host, ref: object, timeout_s: float) -> object:
    import ray

    try:
        return ray.get(ref, timeout=timeout_s)
    except ray.exceptions.GetTimeoutError:
        problem, remedy = f"does not answer after {timeout_s:.0f} s", "see whether it is overloaded"
    except ray.exceptions.RayError as error:
        cause = getattr(error, "cause", None)
        if isinstance(cause, HeteroError):
            return cause
        problem, remedy = f"cannot be used: {_first_line(cause or error)}", "see its log"
        if "No module named 'hetero'" in str(error):
            problem, remedy = "has no hetero", "install the same version of hetero-core there"
    return EngineError(f"host {host.name} ({host.address}) {problem}", remedy=remedy)


def _started(address: str, store_bytes: int) -> Cluster:
    given: dict[str, str | None] = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}
    given["RAY_ADDRESS"] = None
    if address == "local":
        given |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
    cleanup = ExitStack()
    cleanup.enter_context(settings.replaced(given))
    try:
        ray = _imported()
        _read_again()
        if ray.is_initialized():
            return _of_the_program(address, cleanup)
        return _own(ray, store_bytes, cleanup) if address == "local" else _joined(ray, address, cleanup)
    except BaseException:
        cleanup.close()
        raise


def _imported() -> Any:
    try:
        import ray
    except ImportError as error:
        raise EngineError(f"engine ray needs Ray, which is not installed ({error})", remedy=_INSTALL) from error
    return ray


def _read_again() -> None:
    """Make Ray read its variables again, which it does only once, when it is imported."""
    raylet = importlib.import_module("ray._raylet")
    raylet.Config.initialize("")
    raylet.AuthenticationTokenLoader.instance().reset_cache()


def _of_the_program(address: str, cleanup: ExitStack) -> Cluster:
    """Use the Ray that the program itself initialised, and never end it."""
    if address == "local":
        raise EngineError(
            "this program has initialised Ray itself, so hetero cannot start one of its own",
            remedy="use address: auto to run on the program's cluster, or leave ray.init to hetero",
        )
    cleanup.close()
    return _measured(Cluster(address, None, None))


@contextmanager
def _on_loopback() -> Iterator[None]:
    """Keep Ray on 127.0.0.1: else it takes another address of this host, and listens on all of them.

    Ray reads the switch once, when it is imported, which the program may have done before.
    """
    import ray._private.ray_constants as constants

    before, constants.ENABLE_RAY_CLUSTER = constants.ENABLE_RAY_CLUSTER, False
    try:
        with settings.replaced(LOOPBACK):
            yield
    finally:
        constants.ENABLE_RAY_CLUSTER = before


def _own(ray: ModuleType, store_bytes: int, cleanup: ExitStack) -> Cluster:
    _remove_left_behind()
    folder = folder_for_ray(f"{_PREFIX}{os.getpid()}-")
    cleanup.enter_context(_on_loopback())
    try:
        ray.init(
            address="local", _temp_dir=str(folder / RAYS), _node_ip_address="127.0.0.1", include_dashboard=False,
            num_cpus=0, num_gpus=0, object_store_memory=max(store_bytes, LEAST_STORE_BYTES), configure_logging=False,
        )  # fmt: skip
    except Exception as error:
        shutil.rmtree(folder, ignore_errors=True)
        raise EngineError(
            f"Ray cannot be started on this host: {_first_line(error)}",
            remedy=f"see that {tempfile.gettempdir()} has room and that no limit on processes or files is reached",
        ) from error
    return _measured(Cluster("local", folder, cleanup))


def _joined(ray: ModuleType, address: str, cleanup: ExitStack) -> Cluster:
    node = this_node()
    ours = node if node is not None and address in ("auto", node.address) else None
    if ours is not None:
        cleanup.enter_context(settings.replaced(ours.variables))
        _read_again()
    found = ours.address if ours else _found_here() if address == "auto" else address
    knock(found, Path(ours.certificates, "ca.crt") if ours and ours.certificates else None)
    if is_loopback(found):
        cleanup.enter_context(_on_loopback())
    ask_cluster(found)
    try:
        ray.init(address=found, configure_logging=False, **({"_node_ip_address": ours.host} if ours else {}))
    except Exception as error:
        with suppress(Exception):
            ray.shutdown()
        raise EngineError(
            f"the Ray cluster at {address} cannot be joined: {_first_line(error)}",
            remedy="make this host part of it first: 'hetero cluster start --join ADDRESS'",
        ) from error
    joined = Cluster(address, None, cleanup)
    joined.certificates = ours.certificates if ours else ""
    return _measured(joined)


def _found_here() -> str:
    """Return the address of the one cluster that runs on this host."""
    from ray._private.services import find_gcs_addresses

    found = sorted(find_gcs_addresses())
    if len(found) == 1:
        return str(found[0])
    problem = f"several Ray clusters run on this host ({', '.join(found)})" if found else "no Ray cluster runs here"
    raise EngineError(f"address auto: {problem}", remedy="give the address that 'hetero cluster start --head' printed")


def _measured(cluster: Cluster) -> Cluster:
    import ray

    own = ray.get_runtime_context().get_node_id()
    resources: dict[str, float] = next((node["Resources"] for node in ray.nodes() if node["NodeID"] == own), {})
    cluster.store_bytes = int(resources.get("object_store_memory", 0))
    cluster.hosts()
    return cluster


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__


def _remove_left_behind() -> None:
    """Remove the folders of clusters whose program was killed."""
    for folder in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        pid = folder.name.removeprefix(_PREFIX).partition("-")[0]
        if pid.isdecimal() and not psutil.pid_exists(int(pid)) and folder.lstat().st_uid == user_id():
            shutil.rmtree(folder, ignore_errors=True)


_MEASURED_BYTES = 8_000_000
_TRIPS = 5
_PATIENCE_S = 60.0


class _Mirror:
    """The actor at the other end."""

    def touch(self, *parts: object) -> None:
        """Do nothing: the parts are on this host now."""

    def array(self) -> object:
        """Return an array."""
        import numpy as np

        return np.ones(_MEASURED_BYTES, np.uint8)


def measure_links(host: Host) -> tuple[Link, Link]:
    """Measure the links from this host's main memory to another's, and back.

    Raises
    ------
    EngineError
        The host does not answer.
    """
    import numpy as np
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    place = NodeAffinitySchedulingStrategy(host.node_id, soft=False)
    mirror = ray.remote(num_cpus=0, max_restarts=0)(_Mirror).options(scheduling_strategy=place).remote()
    try:
        ray.get(mirror.touch.remote(), timeout=_PATIENCE_S)
        trip_s = min([_seconds(mirror.touch.remote()) for _ in range(_TRIPS)])
        there_s = _seconds(mirror.touch.remote(ray.put(np.ones(_MEASURED_BYTES, np.uint8))))
        array = mirror.array.remote()
        ray.wait([array], timeout=_PATIENCE_S, fetch_local=False)
        back_s = _seconds(array)
    except ray.exceptions.RayError as error:
        raise EngineError(
            f"host {host.name} ({host.address}) does not answer", remedy="see whether it is overloaded"
        ) from error
    finally:
        ray.kill(mirror, no_restart=True)
    here, far = f"{OWN_HOST}/ram", f"{host.name}/ram"
    rates = [_MEASURED_BYTES / max(seconds - trip_s / 2, 1e-6) for seconds in (there_s, back_s)]
    return (
        Link(here, far, trip_s / 2, rates[0], kind="network"),
        Link(far, here, trip_s / 2, rates[1], kind="network"),
    )


def _seconds(ref: object) -> float:
    import ray

    begin_s = monotonic_s()
    ray.get(ref, timeout=_PATIENCE_S)
    return monotonic_s() - begin_s
