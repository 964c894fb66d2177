"""A configuration: YAML, a dict, settings and arguments in; one frozen value out.

In: what the user wrote, wherever. Out: `Config` in SI units, or one ConfigError that lists every mistake.
It must not look for devices: whether a fleet is here is asked in `fleet`.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hetero.floor import settings
from hetero.floor.documents import read_text
from hetero.floor.errors import ConfigError, did_you_mean
from hetero.floor.logs import warn_once
from hetero.floor.script_runs import typed_options
from hetero.floor.units import shown
from hetero.session.config_yaml import Tree, copied, lay_over, lay_value, read_yaml, tree_of

if TYPE_CHECKING:
    from hetero.session.config_schema import DeviceKeys, Root
    from hetero.session.fleet_build import DeviceEntry

__all__ = ["Communication", "Config", "command_line", "load", "parse", "read_file"]

Source = str | Path | Mapping[str, object]
_log = logging.getLogger("hetero")


class _CommandLine:
    """What `hetero run` was told for the Contexts of a program, so that none of it is lost without a word."""

    def __init__(self) -> None:
        self.options = typed_options()
        self.heard = False
        self._told: set[str] = set()

    def unheard(self) -> str:
        """Return the options that no Context asked for, as they were typed; '' where one did."""
        return "" if self.heard else ", ".join(self.options.values())

    def beaten(self, key: str, by: str) -> None:
        """Warn, once, that a program's own words win over an option or a setting of that key."""
        option = self.options.get(key, "HETERO_SET")
        if key not in self._told:
            self._told.add(key)
            _log.warning("%s of the program wins over %s, which has no effect there", by, option)


command_line = _CommandLine()


@dataclass(frozen=True, slots=True)
class Communication:
    """How the members of a group task talk.

    Attributes
    ----------
    protocol
        'auto', 'shared_memory', 'tcp', 'rdma' or 'nccl'.
    buffer_size_bytes
        Bytes; a message is cut into pieces of at most this size.
    """

    protocol: str = "auto"
    buffer_size_bytes: int = 4_000_000


@dataclass(frozen=True, slots=True)
class Config:
    """A checked configuration; what was not given is None.

    Attributes
    ----------
    source
        The file, or what stands for it in messages; '' when there is none.
    devices
        The wanted fleet, None for every sound device of this host.
    spec
        The wanted fleet where it was written in one line, '' where it was not.
    communication
        How group tasks talk.
    engine, policy, isolation
        Words.
    address
        Of the Ray cluster: 'local', 'auto' or 'host:port'.
    memory_pool_size_bytes
        Bytes of the pool that arrays travel through.
    trace
        File that the trace is written to.
    name
        Name of the run, under which checkpoints are found again.
    timeout_s
        Seconds; limit of every task that has none of its own.
    profile
        What profiles the tasks, 'torch' or None.
    tag_output
        True puts device and task in front of each line that a task prints.
    metrics
        Address and port at which Prometheus may ask, None for nowhere.
    """

    source: str = ""
    devices: tuple[DeviceEntry, ...] | None = None
    communication: Communication = field(default_factory=Communication)
    engine: str | None = None
    address: str | None = None
    policy: str | None = None
    isolation: str | None = None
    memory_pool_size_bytes: int | None = None
    trace: Path | None = None
    name: str | None = None
    timeout_s: float | None = None
    profile: str | None = None
    tag_output: bool = False
    metrics: tuple[str, int] | None = None
    spec: str = ""


def load(
    source: Source | Config | None = None, *, set: Sequence[str] | Mapping[str, object] = (), **arguments: object
) -> Config:
    """Collect everything that says how a run should be.

    Parameters
    ----------
    source
        A YAML file, a dict of the same form, or None for the file that HETERO_CONFIG names.
    set
        Settings laid over it, 'key.path=value' each, or a mapping of paths to values.
    **arguments
        Keys of the configuration given as keyword arguments of `Context`; None means not given.

    Returns
    -------
    Config
        Later in this list wins: HETERO_ENGINE, HETERO_DEVICES and HETERO_TRACE; the source; HETERO_SET;
        `set`; the arguments.

    Raises
    ------
    ConfigError
        Something is wrong; the message has a line for each mistake, with its place.

    Examples
    --------
    >>> load({"communication": {"protocol": "TCP"}}, set=["policy=eft"]).communication.protocol
    'tcp'
    """
    command_line.heard = True
    for line in settings.misspelt():
        warn_once(line)
    _tell_beaten(source, set, arguments)
    if isinstance(source, Config):
        if not set and all(value is None for value in arguments.values()):
            return source
        raise ConfigError(
            "a Config takes no further settings", remedy="give the file or the dict that it was made from"
        )
    tree = _tree(source)
    for setting in settings.overrides():
        lay_over(tree, setting)
    _lay_all(tree, set)
    if isinstance(tree.value, dict):
        _put(tree, arguments)
        _put_defaults(tree)
    return parse(tree)[0]


def _tell_beaten(
    source: Source | Config | None, set: Sequence[str] | Mapping[str, object], arguments: Mapping[str, object]
) -> None:
    """Warn of options of `hetero run`, and of settings of HETERO_SET, that this program's own words replace."""
    if source is not None and "config" in command_line.options:
        name = source.source or "a Config" if isinstance(source, Config) else source
        command_line.beaten("config", f"Context({'{...}' if isinstance(name, Mapping) else shown(str(name))})")
    laid = settings.overrides()
    if not laid:
        return
    given = {key: f"Context({key}={shown(value)})" for key, value in arguments.items() if value is not None}
    lines = set if isinstance(set, Mapping) else [set] if isinstance(set, str) else set
    given |= {str(line).partition("=")[0].strip(): f"Context(set={shown(line)})" for line in lines}
    whole = isinstance(source, Config)
    for path in dict.fromkeys(setting.partition("=")[0].strip() for setting in laid):
        by = "a Config" if whole else given.get(path, given.get(path.partition(".")[0], ""))
        if by:
            command_line.beaten(path, by)


def parse(tree: Tree) -> tuple[Config, dict[str, object]]:
    """Check a tree.

    Returns
    -------
    tuple
        The configuration, and its normal form: the keys as users write them, amounts in bytes, bytes/s and s.

    Raises
    ------
    ConfigError
        Its `mistakes` are listed in the order of the lines.
    """
    from hetero.session.config_schema import check, normal_form

    root = check(tree)
    return _config(root, tree), normal_form(root)


def read_file(path: str | Path) -> Tree:
    """Read a YAML file as a tree.

    Raises
    ------
    ConfigError
        There is no such file, it cannot be read, or it is not YAML.
    """
    try:
        text = read_text(path, ConfigError)
    except ConfigError as error:
        beside = _beside(Path(path)) if isinstance(error.__cause__, FileNotFoundError) else ""
        raise ConfigError(error.problem, remedy=f"{error.remedy}{beside}") from error.__cause__
    return read_yaml(text, str(path))


def _beside(path: Path) -> str:
    """Return '; did you mean …?' when a YAML file of a similar name lies in the same folder."""
    folder = path.expanduser().parent
    files = sorted(folder.glob("*.y*ml")) if folder.is_dir() else []
    alike = [file.name for file in files if did_you_mean(path.stem, [file.stem])]
    return did_you_mean(path.name, alike)


def _tree(source: Source | None) -> Tree:
    if source is None:
        source = settings.default_config()
    match source:
        case None:
            return Tree({}, {}, "")
        case str() | Path():
            return read_file(source)
        case Mapping():
            return tree_of(source, "Context(config={...})")
    raise ConfigError(
        f"{shown(source)} is not a configuration", remedy="give the path of a YAML file, or a dict of the same form"
    )


def _lay_all(tree: Tree, given: Sequence[str] | Mapping[str, object]) -> None:
    if isinstance(given, Mapping):
        for path, value in given.items():
            lay_value(tree, str(path), value, f"Context(set={{{path!r}: ...}})")
        return
    for setting in [given] if isinstance(given, str) else given:
        lay_over(tree, str(setting))


def _put(tree: Tree, arguments: Mapping[str, object]) -> None:
    for key, value in arguments.items():
        if value is not None:
            tree.value[key] = str(value) if isinstance(value, Path) else copied(value, f"Context({key}=...)")
            for known in [known for known in tree.places if known[:1] == (key,)]:
                del tree.places[known]
            tree.places[(key,)] = f"Context({key}={shown(value)})"


def _put_defaults(tree: Tree) -> None:
    switches = {"engine": "HETERO_ENGINE", "devices": "HETERO_DEVICES", "trace": "HETERO_TRACE"}
    for key, switch in switches.items():
        text = settings.read(switch)
        if text and tree.value.get(key) is None:
            tree.value[key] = text
            tree.places[(key,)] = switch


def _config(root: Root, tree: Tree) -> Config:
    return Config(
        source=tree.name,
        devices=None if root.devices is None else _entries(root, tree),
        communication=_communication(root),
        engine=root.engine,
        address=root.address,
        policy=root.policy,
        isolation=root.isolation,
        memory_pool_size_bytes=root.memory_pool_size,
        trace=None if root.trace is None else Path(root.trace).expanduser(),
        name=root.name,
        timeout_s=root.timeout,
        profile=root.profile,
        tag_output=bool(root.tag_output),
        metrics=None if root.metrics is None else (root.metrics.address, root.metrics.port),
        spec=root.spec,
    )


def _communication(root: Root) -> Communication:
    talk, usual = root.communication, Communication()
    if talk is None:
        return usual
    return Communication(talk.protocol or usual.protocol, talk.buffer_size or usual.buffer_size_bytes)


def _entries(root: Root, tree: Tree) -> tuple[DeviceEntry, ...]:
    entries = enumerate(root.devices or ())
    return tuple(_entry(keys, root.isolation, tree.place(("devices", index))) for index, keys in entries)


def _entry(keys: DeviceKeys, isolation: str | None, where: str) -> DeviceEntry:
    from hetero.session.fleet_build import DeviceEntry

    link = keys.link
    given: dict[str, Any] = {
        "id": keys.id,
        "cores": keys.cores,
        "memory_limit_bytes": keys.memory_limit,
        "throttle_frac": keys.throttle,
        "optional": keys.optional,
        "isolation": keys.isolation or isolation,
        "python": keys.python,
        "link_bytes_per_s": link and link.bandwidth,
        "link_latency_s": link and link.latency,
        "backend": keys.backend,
    }
    return DeviceEntry(type=keys.type, where=where, **{key: value for key, value in given.items() if value is not None})
