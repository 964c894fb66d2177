"""Change sound files of every format at random, and look that hetero reads each or refuses it in one clean line.

    python -m tests.fuzz --inputs 100000

In: a number of inputs and a seed. Out: a line a format; each input that did anything else is kept in a folder, and the
exit status is 1. Time and memory of each input are bounded. The same seed makes the same inputs.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import gzip
import json
import random
import resource
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from hetero.floor.errors import HeteroError
from hetero.floor.text import has_control
from tests.fuzz_formats import FORMATS, Format

__all__ = ["Found", "fuzz", "mutated"]

MOST_SECONDS = 20.0
"""Processor time of one input; the largest takes a second, so this is a hang."""

MOST_BYTES = 2_000_000_000
"""Address space that one input may add."""

MOST_MESSAGE = 2000
"""Characters of a message."""

_WORDS = (
    None, True, False, 0, -1, 1, 2.5, -0.0, 1e308, -1e308, 10**18, 10**39, 10**400, 2**63, "", " ", "x", "x" * 5000,
    [], {}, [[]], [None], {"a": 1}, {"": {}}, "nan", "inf", "-inf", "1e999", "9" * 5000, "null", "\x1b[31mred\x1b[0m",
    "\x9b1m", "\u202egnp.exe", "a\nb", "a\rb", "\x00", "\ud800", "🧨", "[red]x[/red]", "[/]", "<script>", "../../etc",
    "/dev/null", "2026-13-99", "1_000", "0x10", "٣", "²", "GB", "8GBB", "900PB", "h0/cpu:0", float("nan"), float("inf"),
    ["a", "a"], [{"id": {"a": 1}}], {"id": ["x"]},
)  # fmt: skip
_BITS = (
    b"\x00", b"\xff", b"\xfe\xff", b"\xef\xbb\xbf", b"\x1b[2J", b"\xe2\x80\xae", b"\n", b"\r", b"\t", b'"', b"'", b"{",
    b"}", b"[", b"]", b",", b":", b"-", b"#", b"&a ", b"*a", b"!!python/object:os.system ", b"<<: ", b"? ", b"|\n",
    b"NaN", b"-Infinity", b"1e999", b"9" * 50, b"null", b"true", b"\\ud800", b"0", b"-1", b"1e-400", b";", b"->",
    b"\xff\xff\xff\xff\xff\xff\xff\x7f",
)  # fmt: skip


@dataclass(slots=True)
class Found:
    """What became of the inputs.

    Attributes
    ----------
    read, refused
        Number of inputs by format.
    broken
        One line for each input that was neither, with the file that shows it.
    """

    read: Counter[str] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)
    broken: list[str] = field(default_factory=list)


class _TooLongError(BaseException):
    """An input took more processor time than it may."""


def fuzz(inputs: int, seed: int, kept: Path, formats: tuple[Format, ...] = FORMATS) -> Found:
    """Read so many mutated inputs, the formats in turn; keep those that break something.

    Parameters
    ----------
    inputs, seed
        How many, and of which chance.
    kept
        Folder for inputs that break something.
    """
    found = Found()
    seeds = {one.name: one.seeds() for one in formats}
    with tempfile.TemporaryDirectory(prefix="hetero-fuzz-") as folder, _bounded():
        for number in range(inputs):
            one = formats[number % len(formats)]
            chance = random.Random(f"{seed} {number}")
            data = mutated(chance.choice(seeds[one.name]), one.form, chance)
            path = Path(folder) / one.file
            path.write_bytes(data)
            problem = _outcome(one, path, found)
            if problem:
                keep = kept / f"{number}-{one.file}"
                keep.write_bytes(data)
                found.broken.append(f"{one.name}, input {number} of seed {seed}: {problem} ({keep})")
            for each in Path(folder).iterdir():
                each.unlink()
    return found


def _outcome(one: Format, path: Path, found: Found) -> str:
    """Read one input; return '' or what is wrong."""
    signal.setitimer(signal.ITIMER_PROF, MOST_SECONDS)
    try:
        one.read(path)
    except HeteroError as error:
        found.refused[one.name] += 1
        return _unclean(error, one.exits)
    except _TooLongError:
        return f"takes more than {MOST_SECONDS:g} s"
    except BaseException as error:  # noqa: BLE001  whatever it is, it is what this looks for
        last = traceback.extract_tb(error.__traceback__)[-1]
        return f"{type(error).__name__}: {str(error)[:100]!r} at {last.filename}:{last.lineno}"
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0.0)
    found.read[one.name] += 1
    return ""


def _unclean(error: HeteroError, exits: tuple[int, ...]) -> str:
    """Return what is wrong with the words of a refusal, '' where nothing is."""
    for text in map(str, getattr(error, "mistakes", ()) or [error]):
        if has_control(text):
            return f"a message with control characters: {text[:200]!r}"
        if not text or len(text) > MOST_MESSAGE:
            return f"a message of {len(text)} characters: {text[:200]!r}"
    if error.exit_code not in exits:
        return f"exit code {error.exit_code}: {str(error)[:200]!r}"
    return ""


@contextlib.contextmanager
def _bounded() -> Iterator[None]:
    """Bound memory, and let a timer of processor time end an input."""

    def too_long(*_: object) -> None:
        raise _TooLongError

    limits = resource.getrlimit(resource.RLIMIT_AS)
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    before = signal.signal(signal.SIGPROF, too_long)
    resource.setrlimit(resource.RLIMIT_AS, (used + MOST_BYTES, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, limits)
        signal.signal(signal.SIGPROF, before)


# mutations


def mutated(data: bytes, form: str, chance: random.Random) -> bytes:
    """Change a file: its structure where it has one, its bytes, or how it is encoded."""
    if form != "bytes" and chance.random() < 0.65:
        change: Callable[[bytes, random.Random], bytes] = _STRUCTURAL[form]
        data = change(data, chance)
    if form == "bytes" or chance.random() < 0.35:
        for _ in range(chance.randint(1, 4)):
            data = _with_other_bytes(data, chance)
    return _encoded(data, chance) if chance.random() < 0.06 else data


def _with_other_bytes(data: bytes, chance: random.Random) -> bytes:
    at = chance.randrange(len(data) + 1)
    match chance.randrange(8):
        case 0:
            return data[:at] + chance.choice(_BITS) + data[at:]
        case 1:
            return data[:at] + data[at + chance.randint(1, 20) :]
        case 2:
            return data[:at] + bytes([chance.randrange(256)]) + data[at + 1 :]
        case 3:
            word = chance.choice(_BITS)
            return data[:at] + word + data[at + len(word) :]
        case 4:
            return data[:at] + data[max(0, at - chance.randint(1, 80)) :]
        case 5:
            return (
                data[:at] + chance.choice((b"[", b"{", b'{"a":', b"- ", b"(")) * chance.choice((40, 2000)) + data[at:]
            )
        case 6:
            lines = data.split(b"\n")
            chance.shuffle(lines)
            return b"\n".join(lines)
        case _:
            return data[:at]


def _encoded(data: bytes, chance: random.Random) -> bytes:
    text = data.decode("utf-8", "replace")
    match chance.randrange(6):
        case 0:
            return text.encode("utf-16", "replace")
        case 1:
            return b"\xef\xbb\xbf" + data
        case 2:
            return ("é" + text).encode("latin-1", "replace")
        case 3:
            return gzip.compress(data, 1)
        case 4:
            return gzip.compress(data, 1)[:-9]
        case _:
            return data.replace(b"a", b"\0", 1)


def _places(document: Any) -> list[tuple[Any, Any]]:
    """Return every (container, key or index) of a document."""
    found, waiting = [], [document]
    while waiting:
        here = waiting.pop()
        rows = list(here) if isinstance(here, dict) else range(len(here)) if isinstance(here, list) else ()
        for key in rows:
            found.append((here, key))
            waiting.append(here[key])
    return found


def _changed(document: Any, chance: random.Random) -> Any:
    for _ in range(chance.choice((1, 1, 1, 2, 4))):
        places = _places(document)
        if not places:
            return chance.choice(_WORDS)
        here, key = chance.choice(places)
        match chance.randrange(9):
            case 0 | 1 | 2:
                here[key] = copy.deepcopy(chance.choice(_WORDS))
            case 3:
                del here[key]
            case 4:
                here[key] = _nested(here[key], chance)
            case 5 if isinstance(here, dict):
                here[str(chance.choice(_WORDS))[:50]] = here.pop(key)
            case 6:
                other, place = chance.choice(places)
                with contextlib.suppress(LookupError):
                    here[key] = copy.deepcopy(other[place])
            case 7 if isinstance(here, list):
                here.insert(key, copy.deepcopy(here[key]))
            case _:
                here[key] = [here[key]]
    return document


def _nested(value: Any, chance: random.Random) -> Any:
    for _ in range(chance.choice((3, 20, 70, 300))):
        value = [value] if chance.random() < 0.5 else {"a": value}
    return value


def _as_json(document: Any) -> bytes:
    return json.dumps(document, indent=1, default=str).encode("utf-8", "surrogatepass")


def _structural_json(data: bytes, chance: random.Random) -> bytes:
    with contextlib.suppress(RecursionError):
        text = _as_json(_changed(json.loads(data), chance))
        if chance.random() < 0.1:  # a key that is there twice
            lines = text.split(b"\n")
            keys = [at for at, line in enumerate(lines) if b'": ' in line and line.endswith(b",")]
            if keys:
                at = chance.choice(keys)
                lines.insert(at, lines[at])
            text = b"\n".join(lines)
        return text
    return data


def _structural_yaml(data: bytes, chance: random.Random) -> bytes:
    with contextlib.suppress(RecursionError, yaml.YAMLError, ValueError):
        document = _changed(yaml.safe_load(data), chance)
        if chance.random() < 0.3:
            return _as_json(document)
        flow = chance.choice((True, False, None))
        text: str = yaml.safe_dump(document, default_flow_style=flow, allow_unicode=chance.random() < 0.5)
        return text.encode("utf-8", "surrogatepass")
    return data


def _structural_lines(data: bytes, chance: random.Random) -> bytes:
    lines = data.split(b"\n")
    for _ in range(chance.choice((1, 1, 2, 5))):
        at = 0 if chance.random() < 0.3 else chance.randrange(len(lines))
        with contextlib.suppress(ValueError, RecursionError):
            lines[at] = json.dumps(_changed(json.loads(lines[at]), chance)).encode("utf-8", "surrogatepass")
    return b"\n".join(lines)


def _structural_table(data: bytes, chance: random.Random) -> bytes:
    mark = max((b",", b"\t", b" "), key=data.count)
    rows = [line.split(mark) for line in data.split(b"\n")]
    for _ in range(chance.choice((1, 1, 2, 5))):
        row = chance.choice(rows)
        at = chance.randrange(len(row))
        word = str(chance.choice(_WORDS)).encode("utf-8", "surrogatepass")
        match chance.randrange(4):
            case 0:
                row.insert(at, word)
            case 1 if len(row) > 1:
                del row[at]
            case _:
                row[at] = word
    return b"\n".join(mark.join(row) for row in rows)


_STRUCTURAL = {
    "json": _structural_json, "yaml": _structural_yaml, "lines": _structural_lines, "table": _structural_table,
}  # fmt: skip


def main() -> int:
    """Run as a command."""
    parser = argparse.ArgumentParser(description=str(__doc__).split("\n", 1)[0])
    parser.add_argument("--inputs", type=int, default=5000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default="", help="a word in the names of the formats")
    parser.add_argument("--keep", type=Path, default=Path(tempfile.gettempdir()) / "hetero-fuzz-broken")
    given = parser.parse_args()
    given.keep.mkdir(parents=True, exist_ok=True)
    formats = tuple(one for one in FORMATS if given.only in one.name)
    began = time.process_time()
    found = fuzz(given.inputs, given.seed, given.keep, formats)
    for one in formats:
        print(f"{one.name}: {found.read[one.name]:,} read, {found.refused[one.name]:,} refused")
    for line in found.broken:
        print(f"BROKEN {line}")
    print(f"{given.inputs:,} inputs, {len(found.broken)} broken, {time.process_time() - began:.0f} s of processor time")
    return 1 if found.broken else 0


if __name__ == "__main__":
    sys.exit(main())
