"""What a configuration may say, key by key, and the wording of every mistake in it.

In: a tree of plain values. Out: checked values in SI units, or all mistakes at once.
It must not open files or look for devices; only this module imports pydantic.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cache
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, Self

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    PrivateAttr,
    ValidationError,
    ValidationInfo,
    field_validator,
)

from hetero.backends import registry as backends
from hetero.floor.errors import BadValueError, ConfigError, HeteroError, did_you_mean
from hetero.floor.units import parse_bandwidth, parse_bytes, parse_seconds, shown
from hetero.model.device import TYPE_WORDS
from hetero.plan.policies import registry as policies
from hetero.session.config_yaml import Key, Tree
from hetero.session.fleet_build import parse_spec, refuse_cores

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails

__all__ = [
    "ENGINES",
    "ISOLATIONS",
    "MOST_PORT",
    "PROFILERS",
    "PROTOCOLS",
    "DeviceKeys",
    "Mistake",
    "MistakesError",
    "Root",
    "backend_words",
    "check",
    "device_words",
    "normal_form",
    "policy_words",
]

ENGINES = ("local", "inline", "ray")
ISOLATIONS = ("process", "thread")
PROFILERS = ("torch",)
MOST_PORT = 65_535
PROTOCOLS = ("auto", "shared_memory", "tcp", "rdma", "nccl")


@cache
def policy_words() -> tuple[str, ...]:
    """Return the names of the policies that are installed."""
    return policies.names()


def backend_words() -> tuple[str, ...]:
    """Return the names of the back ends that are installed."""
    return backends.names()


@cache
def device_words() -> tuple[str, ...]:
    """Return the words that name devices: broad types, kinds, then the labels of back ends."""
    broad = TYPE_WORDS[: TYPE_WORDS.index("null")]
    others = sorted(set(backends.device_words()) - set(broad), key=lambda word: ("-" in word, word))
    return (*broad, *others)


class Mistake(NamedTuple):
    """One thing that is wrong in a configuration.

    Attributes
    ----------
    place
        'file:line', or what stands for it.
    key
        The path as `--set` takes it, '' for the whole.
    problem
        The value that was given and what is allowed.
    remedy
        What to do, '' where that is plain.
    """

    place: str
    key: str
    problem: str
    remedy: str = ""

    def __str__(self) -> str:
        key = "" if f"{self.key}=" in self.place else self.key
        parts = (self.place, key, f"{self.problem}; {self.remedy}" if self.remedy else self.problem)
        return ": ".join(part for part in parts if part)


def one_of(what: str, allowed: Callable[[], Iterable[str]]) -> Callable[[object], str]:
    """Create a check for a word, without regard to case."""

    def check_word(given: object) -> str:
        words = tuple(allowed())
        word = given.strip().casefold().replace("-", "_").replace(" ", "_") if isinstance(given, str) else ""
        known = {other.casefold().replace("-", "_"): other for other in words}
        if word in known:
            return known[word]
        raise BadValueError(
            f"{shown(given)} is not {what}{did_you_mean(word, known)}", remedy=f"allowed: {', '.join(words)}"
        )

    return check_word


def _whole(least: int, what: str) -> Callable[[object], int]:
    def check_whole(given: object) -> int:
        if isinstance(given, bool) or not isinstance(given, int) or not least <= given < 2**31:
            raise BadValueError(f"{shown(given)} is not {what}", remedy=f"give a whole number, {least} or more")
        return given

    return check_whole


def _bytes_from(least_bytes: int, least: str) -> Callable[[object], int]:
    def check_bytes(given: object) -> int:
        amount_bytes = parse_bytes(given)
        if amount_bytes < least_bytes:
            raise BadValueError(f"{shown(given)} is too little", remedy=f"at least {least}")
        return amount_bytes

    return check_bytes


def _fraction(given: object) -> float:
    if isinstance(given, bool) or not isinstance(given, int | float) or not 0 < given <= 1:
        raise BadValueError(
            f"{shown(given)} is not a share of a device's speed", remedy="give a number above 0, at most 1, like 0.25"
        )
    return float(given)


def _port(given: object) -> int:
    if isinstance(given, bool) or not isinstance(given, int) or not 0 <= given <= MOST_PORT:
        raise BadValueError(f"{shown(given)} is no port", remedy=f"give a whole number from 0 to {MOST_PORT}")
    return given


def _truth(given: object) -> bool:
    if not isinstance(given, bool):
        raise BadValueError(f"{shown(given)} is neither true nor false", remedy="write true or false")
    return given


def _text(given: object) -> str:
    if isinstance(given, bool) or not isinstance(given, str | int | float) or not str(given).strip():
        raise BadValueError(f"{shown(given)} is not text", remedy="give a word or a path")
    return str(given).strip()


def _run_name(given: object) -> str:
    text = _text(given)
    if not all(sign.isalnum() or sign in "._-" for sign in text) or len(text) > 100 or text.startswith("."):
        raise BadValueError(
            f"{shown(text)} cannot name a run", remedy="use at most 100 letters, digits, '.', '_' and '-'"
        )
    return text


def _address(given: object) -> str:
    from hetero.engines.ray.address import check_address

    text = _text(given)
    check_address(text)
    return text


def _device_id(given: object) -> int | str:
    return _text(given) if isinstance(given, str) else _whole(0, "the number or the id of a device")(given)


def _positive(parse: Callable[[object], float]) -> Callable[[object], float]:
    def check_positive(given: object) -> float:
        value = parse(given)
        if value <= 0:
            raise BadValueError(f"{shown(given)} is too little", remedy="give more than zero")
        return value

    return check_positive


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", arbitrary_types_allowed=True)


class LinkKeys(_Strict):
    """Keys of an emulated link."""

    bandwidth: Annotated[float | None, BeforeValidator(_positive(parse_bandwidth))] = None
    latency: Annotated[float | None, BeforeValidator(parse_seconds)] = None


class DeviceKeys(_Strict):
    """Keys of one entry of `devices`."""

    type: Annotated[str, BeforeValidator(one_of("a device type", device_words))]
    id: Annotated[int | str | None, BeforeValidator(_device_id)] = None
    memory_limit: Annotated[int | None, BeforeValidator(_bytes_from(1, "1B"))] = None
    cores: Annotated[int | None, BeforeValidator(_whole(1, "a number of cores"))] = None
    optional: Annotated[bool | None, BeforeValidator(_truth)] = None
    throttle: Annotated[float | None, BeforeValidator(_fraction)] = None
    isolation: Annotated[str | None, BeforeValidator(one_of("an isolation", lambda: ISOLATIONS))] = None
    python: Annotated[str | None, BeforeValidator(_text)] = None
    link: LinkKeys | None = None
    backend: Annotated[str | None, BeforeValidator(one_of("a back end", backend_words))] = None

    @field_validator("cores", "isolation", "python")
    @classmethod
    def _of_use(cls, given: Any, info: ValidationInfo) -> object:
        """Refuse what devices of that type have no use for."""
        word, field = info.data.get("type", ""), info.field_name
        if field == "cores":
            refuse_cores(word, given)
        elif word == "null" and given not in (None, "thread"):
            raise BadValueError(
                f"{field}={shown(given)} has no effect on null devices, which are threads of this process",
                remedy=f"leave {field} out",
            )
        return given


class CommunicationKeys(_Strict):
    """Keys of `communication`."""

    protocol: Annotated[str | None, BeforeValidator(one_of("a protocol", lambda: PROTOCOLS))] = None
    buffer_size: Annotated[int | None, BeforeValidator(_bytes_from(1000, "1KB"))] = None


class MetricsKeys(_Strict):
    """Keys of `metrics`."""

    port: Annotated[int, BeforeValidator(_port)] = 0
    address: Annotated[str, BeforeValidator(_text)] = "127.0.0.1"


class Root(_Strict):
    """Keys of a configuration."""

    devices: list[DeviceKeys] | None = None
    communication: CommunicationKeys | None = None
    engine: Annotated[str | None, BeforeValidator(one_of("an engine", lambda: ENGINES))] = None
    address: Annotated[str | None, BeforeValidator(_address)] = None
    policy: Annotated[str | None, BeforeValidator(one_of("a policy", policy_words))] = None
    isolation: Annotated[str | None, BeforeValidator(one_of("an isolation", lambda: ISOLATIONS))] = None
    memory_pool_size: Annotated[int | None, BeforeValidator(_bytes_from(1_000_000, "1MB"))] = None
    trace: Annotated[str | None, BeforeValidator(_text)] = None
    profile: Annotated[str | None, BeforeValidator(one_of("a profiler", lambda: PROFILERS))] = None
    tag_output: Annotated[bool | None, BeforeValidator(_truth)] = None
    metrics: MetricsKeys | None = None
    name: Annotated[str | None, BeforeValidator(_run_name)] = None
    timeout: Annotated[float | None, BeforeValidator(_positive(parse_seconds))] = None

    _spec: str = PrivateAttr("")

    @property
    def spec(self) -> str:
        """The fleet where it was written in one line, '' where it was not."""
        return self._spec

    def with_spec(self, spec: str) -> Self:
        """Keep a fleet that was written in one line."""
        self._spec = spec
        return self


class MistakesError(ConfigError):
    """Everything that is wrong in one configuration, a line each."""

    mistakes: tuple[Mistake, ...] = ()

    @classmethod
    def of(cls, mistakes: Iterable[Mistake]) -> MistakesError:
        """Make the error that lists these mistakes."""
        listed = tuple(mistakes)
        error = cls("\n".join(map(str, listed)))
        error.mistakes = listed
        return error


def check(tree: Tree) -> Root:
    """Check a tree; returns the checked values.

    Raises
    ------
    MistakesError
        Every mistake, in the order of the places.
    """
    value = without_blanks(tree.value)
    if not isinstance(value, dict):
        remedy = "write 'key: value' lines, as in 'engine: local'"
        raise MistakesError.of(
            [Mistake(tree.place(()), "", f"{shown(value)} is not a mapping of keys to values", remedy)]
        )
    line = _one_line(value.get("devices"))
    if line is not None:
        del value["devices"]
    found = [] if line is None else _wrong_line(tree, line)
    root = None
    try:
        root = Root.model_validate(value)
    except ValidationError as error:
        found += [_mistake(tree, detail) for detail in error.errors(include_url=False)]
    if root is None or found:
        raise MistakesError.of(sorted(dict.fromkeys(found), key=_by_line))
    return root.with_spec(line or "")


def _one_line(devices: object) -> Any:
    """Return a fleet that is one line of text, a list of such texts, or empty; None where it is written in full."""
    if isinstance(devices, list) and devices and all(isinstance(device, str) for device in devices):
        return ",".join(devices)
    return devices if devices == [] or isinstance(devices, str) else None


def _wrong_line(tree: Tree, line: object) -> list[Mistake]:
    """Return what is wrong with a fleet that is written in one line, or is empty."""
    try:
        if not isinstance(line, str):
            remedy = "name a device, or leave the key out to take every sound device of this host"
            raise BadValueError("an empty fleet runs nothing", remedy=remedy)
        parse_spec(line, device_words())
    except BadValueError as error:
        return [Mistake(tree.place(("devices",)), "devices", error.problem, error.remedy)]
    return []


def normal_form(root: Root) -> dict[str, object]:
    """Return the checked values under their keys: amounts in bytes, bytes/s and seconds."""
    return ({"devices": root.spec} if root.spec else {}) | root.model_dump(exclude_none=True)


def without_blanks(value: object) -> object:
    """Drop keys that have no value: a key left blank is a key not given."""
    if isinstance(value, dict):
        return {key: without_blanks(child) for key, child in value.items() if child is not None}
    if isinstance(value, list):
        return [without_blanks(child) for child in value]
    return value


def _by_line(mistake: Mistake) -> tuple[str, int, str]:
    name, _, line = mistake.place.rpartition(":")
    return (name, int(line), mistake.key) if line.isdigit() else (mistake.place, 0, mistake.key)


def _mistake(tree: Tree, detail: ErrorDetails) -> Mistake:
    key: Key = detail["loc"]
    place = tree.place(key)
    problem, remedy = _worded(key, detail, place)
    return Mistake(place, ".".join(map(str, key)), problem, remedy)


def _worded(key: Key, detail: ErrorDetails, place: str) -> tuple[str, str]:
    cause = detail.get("ctx", {}).get("error")
    if isinstance(cause, HeteroError):
        return cause.problem, cause.remedy
    match detail["type"]:
        case "extra_forbidden":
            allowed = _keys_beside(key)
            return f"there is no such key{did_you_mean(key[-1], allowed)}", f"allowed keys: {', '.join(allowed)}"
        case "missing":
            return "this key is missing", "every device has a type, as in 'type: CPU'"
        case "list_type":
            if key[-1:] == ("devices",):
                return f"{shown(detail['input'])} is no fleet", _fleets(detail["input"], place)
            return f"{shown(detail['input'])} is not a list", "begin each entry with '- '"
        case "model_type" if len(key) == 2 and key[0] == "devices":
            return f"{shown(detail['input'])} is no device", _fleets(detail["input"], place)
        case "model_type":
            return (
                f"{shown(detail['input'])} is not a mapping of keys to values",
                f"allowed keys: {', '.join(_keys_of(key))}",
            )
    return f"{shown(detail['input'])}: {detail['msg']}", ""


def _fleets(given: object, place: str) -> str:
    """Return how a fleet is written there, in the form that was probably meant first."""
    if not place.startswith("Context("):
        return "begin each entry with '- ', as in '- type: cpu', or write 'devices: 2xcpu,cuda:0'"
    count = given if isinstance(given, int) and not isinstance(given, bool) and given > 0 else 0
    meant = f"'{count}xcpu' for {count} devices of one core, or " if count else ""
    return (
        f"write {meant}a text like '2xcpu,cuda:0', a list of such texts, "
        "or a list of dicts like [{'type': 'cpu', 'cores': 2}]"
    )


def _keys_of(key: Key) -> tuple[str, ...]:
    match key:
        case ("devices", int(), "link"):
            model: type[_Strict] = LinkKeys
        case ("devices", int()):
            model = DeviceKeys
        case ("communication",):
            model = CommunicationKeys
        case ("metrics",):
            model = MetricsKeys
        case _:
            model = Root
    return tuple(model.model_fields)


def _keys_beside(key: Key) -> tuple[str, ...]:
    return _keys_of(key[:-1])
