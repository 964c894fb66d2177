"""The conformance kit of stores: what every store must keep, whoever kills it, damages it or cuts its power.

In: a function that opens the store. Out: nothing, or an AssertionError that says which promise was broken.
It must not know how a store keeps its bytes; for power cuts the store takes a recording disk.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import random
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO

import cloudpickle

from hetero.floor.clock import monotonic_s
from hetero.floor.errors import BadValueError, HeteroError
from hetero.stores.base import Store
from hetero.stores.files import Disk
from hetero.testing.power import RecordingDisk, cuts

__all__ = ["check_power_cuts", "check_store"]

_CHILD = "import sys, cloudpickle; call, args = cloudpickle.load(sys.stdin.buffer); call(*args)"
_BAD_KEYS = ("", "/", "a/", "/a", "a//b", "..", "a/../b", "a b", "a\n", "ä", "a\\b", "x" * 300)
_WRITERS = 4
_PUT_BYTES = 300_000
_CONTENDERS = 16


def check_store(
    make_store: Callable[[], Store], folder: Path | None = None, kills: int = 6, operations: int = 4_000
) -> None:
    """Check that a store keeps what its interface promises.

    Parameters
    ----------
    make_store
        Opens the store, always on the same place, which is empty at first; it is called again in child processes, so
        cloudpickle must be able to send it.
    folder
        Where the store keeps its files; given, they are damaged to see whether that is noticed.
    kills
        Times that a writing process is killed.
    operations
        Calls that 16 processes make at once on the same few keys and folders.

    Raises
    ------
    AssertionError
        A promise was broken.

    Examples
    --------
    >>> from functools import partial
    >>> from hetero.stores.files import FileStore
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     check_store(partial(FileStore, Path(folder)), Path(folder), kills=1, operations=160)
    """
    _check_values(make_store)
    _check_keys(make_store)
    _check_one_winner(make_store)
    _check_kills(make_store, kills)
    _check_contention(make_store, operations)
    if folder is not None:
        _check_damage(make_store, folder)


def check_power_cuts(make_store: Callable[[Path, Disk], Store]) -> int:
    """Check that no power cut, at any boundary between two file operations, loses what was written.

    Parameters
    ----------
    make_store
        Opens the store on a folder, with the disk that it must use for every change.

    Returns
    -------
    int
        the number of different states of the disk that were opened after a cut

    Notes
    -----
    A script of writes is recorded once. For each prefix of its file operations the disk is rebuilt as a power
    cut may leave it: content that was not waited for is empty, torn, zeroed or whole; names that were not
    waited for are there or not, in several combinations. Every key must then have the value of the last call
    that returned, or of the call that was under way.
    """
    with tempfile.TemporaryDirectory() as place:
        disk = RecordingDisk(Path(place))
        _write_script(make_store(Path(place), disk), disk)
    seen = 0
    for allowed, build in cuts(disk.log):
        seen += 1
        with tempfile.TemporaryDirectory() as place:
            build(Path(place))
            store = make_store(Path(place), Disk())
            for key, values in allowed.items():
                found = store.get(key)
                may = ", ".join(sorted(map(_short, values)))
                assert found in values, f"after a power cut {key!r} has {_short(found)}, allowed: {may}"
    return seen


def _write_script(store: Store, disk: RecordingDisk) -> None:
    for turn, key in itertools.product(range(3), ("a", "run/task/1", "run/task/2")):
        data = f"{turn} {key} ".encode() * 20
        disk.during(key, data, lambda key=key, data=data: store.put(key, data))  # type: ignore[misc]
    disk.during("once", b"first", lambda: store.put_if_absent("once", b"first"))
    disk.during("once", b"first", lambda: store.put_if_absent("once", b"second"))
    for key in ("run/task/1", "run/task/2", "once"):
        disk.during(key, None, lambda key=key: store.delete(key))  # type: ignore[misc]
    disk.during("run/task/2", b"again", lambda: store.put_if_absent("run/task/2", b"again"))


def _short(value: bytes | None) -> str:
    return "nothing" if value is None else f"{value[:12]!r}… ({len(value)} bytes)"


def _check_values(make_store: Callable[[], Store]) -> None:
    store = make_store()
    assert store.get("absent") is None, "a key that was never written has a value"
    assert store.list() == (), "an empty store lists keys"
    values = {"a": b"", "a/b": bytes(range(256)) * 9, "a/b/c": b"\n", "A-1_x.y": b"1", "b": b"2"}
    for key, data in values.items():
        store.put(key, b"before")
        store.put(key, data)
    for reader in (store, make_store()):
        assert {key: reader.get(key) for key in values} == values, "what was put does not come back"
        assert reader.list() == tuple(sorted(values)), "list() does not give all keys, sorted"
        assert reader.list("a/") == ("a/b", "a/b/c"), "list(prefix) does not give the keys that begin with it"
        assert reader.list("a") == ("a", "a/b", "a/b/c"), "a prefix may end inside a part"
        assert reader.list("zzz") == (), "list() of an unknown prefix gives keys"
    assert not store.put_if_absent("b", b"3"), "put_if_absent wrote over a value"
    assert store.get("b") == b"2", "put_if_absent changed a value"
    for key in values:
        store.delete(key)
        store.delete(key)
        assert store.get(key) is None, "a deleted key has a value"
    assert store.list() == (), "deleted keys are listed"
    assert store.put_if_absent("a/b", b"4"), "put_if_absent did not write where nothing was"
    store.delete("a/b")


def _check_keys(make_store: Callable[[], Store]) -> None:
    store = make_store()
    for key in _BAD_KEYS:
        for call in (lambda k: store.put(k, b""), store.get, store.delete, lambda k: store.put_if_absent(k, b"")):
            try:
                call(key)
            except BadValueError:
                continue
            raise AssertionError(f"the key {key!r} was accepted")


def _check_one_winner(make_store: Callable[[], Store]) -> None:
    keys = [f"race/{number}" for number in range(40)]
    with ExitStack() as stack:
        writers = [stack.enter_context(_child(_race, make_store, keys, me)) for me in range(_WRITERS)]
        for writer in writers:
            assert _out(writer).readline() == b"ready\n", "a writer did not start"
        for writer in writers:
            _into(writer).write(b"go\n")
            _into(writer).flush()
        won = [json.loads(_out(writer).readline()) for writer in writers]
    store = make_store()
    for key in keys:
        winners = [me for me in range(_WRITERS) if key in won[me]]
        assert len(winners) == 1, f"put_if_absent of {key!r} by {_WRITERS} processes had {len(winners)} winners"
        assert store.get(key) == _proof(key, winners[0]), f"{key!r} does not have the value of its winner"
        store.delete(key)


def _race(make_store: Callable[[], Store], keys: Sequence[str], me: int) -> None:
    store = make_store()
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    sys.stdin.buffer.readline()
    won = [key for key in keys if store.put_if_absent(key, _proof(key, me))]
    sys.stdout.write(json.dumps(won) + "\n")


def _proof(key: str, number: int) -> bytes:
    return hashlib.sha256(f"{key} {number}".encode()).digest() * (_PUT_BYTES // 32)


def _check_kills(make_store: Callable[[], Store], kills: int) -> None:
    last = -1
    for turn in range(kills):
        with _child(_put_forever, make_store, last + 1) as writer:
            last = _acknowledged(writer, 0.05 + 0.013 * turn, last)
        found = make_store().get("killed")
        assert found is not None, f"a killed writer left nothing of write {last}"
        number = int(found[:16])
        assert number >= last, f"write {last} was done, and after the kill there is write {number}"
        assert found[16:] == _proof("killed", number), f"after a kill write {number} has wrong bytes"
        last = number
    make_store().delete("killed")


def _put_forever(make_store: Callable[[], Store], first: int) -> None:
    store = make_store()
    for number in itertools.count(first):
        store.put("killed", b"%16d" % number + _proof("killed", number))
        sys.stdout.write(f"{number}\n")
        sys.stdout.flush()


def _acknowledged(writer: subprocess.Popen[bytes], run_s: float, last: int) -> int:
    """Kill the writer a while after its first write, and return the number of its last completed write."""
    first = _out(writer).readline()
    assert first, "a writer did not start"
    end_s = monotonic_s() + run_s
    lines = [first]
    while monotonic_s() < end_s:
        lines.append(_out(writer).readline())
    writer.kill()
    lines += _out(writer).readlines()
    return max(last, *(int(line) for line in lines if line.endswith(b"\n")))


def _check_contention(make_store: Callable[[], Store], operations: int) -> None:
    with ExitStack() as stack:
        each = -(-operations // _CONTENDERS)
        contenders = [stack.enter_context(_child(_contend, make_store, me, each)) for me in range(_CONTENDERS)]
        problems = [json.loads(_out(contender).readline() or '["it was killed"]') for contender in contenders]
    told = [f"process {me}: {problem}" for me, found in enumerate(problems) for problem in found]
    assert not told, f"{len(told)} of {operations} operations by {_CONTENDERS} processes failed: {'; '.join(told[:5])}"
    store = make_store()
    for key in store.list():
        store.delete(key)
    assert store.list() == (), "keys are left after each was deleted"


def _contend(make_store: Callable[[], Store], me: int, operations: int) -> None:
    """Write, read, list and delete keys of one's own and shared ones, in folders that all the others use too."""
    store, chance, problems = make_store(), random.Random(me), []
    own: dict[str, bytes] = {}
    for number in range(operations):
        folder = f"contended/{chance.randrange(16)}"
        try:
            problem = _own_step(store, own, f"{folder}/own-{me}", f"{me} {number}".encode(), chance.random())
            problem = problem or _shared_step(store, f"{folder}/shared", chance.random())
        except Exception as error:  # noqa: BLE001  whatever it is, it is a broken promise
            problem = f"{type(error).__name__}: {error}"
        if problem:
            problems.append(problem)
    sys.stdout.write(json.dumps(problems) + "\n")


def _own_step(store: Store, own: dict[str, bytes], key: str, data: bytes, chance: float) -> str:
    """Do one thing to a key that no other process writes; return what is wrong with it."""
    before = own.get(key)
    if chance < 0.2:
        store.put(key, data)
        own[key] = data
    elif chance < 0.3:
        if store.put_if_absent(key, data) != (before is None):
            return f"put_if_absent({key!r}) did not tell whether the key was there"
        own.setdefault(key, data)
    elif chance < 0.9:
        store.delete(key)
        own.pop(key, None)
    elif (key in store.list(key)) != (before is not None):
        return f"list() does not tell whether {key!r} is there"
    found = store.get(key)
    return "" if found == own.get(key) else f"{key!r} has {_short(found)}, not {_short(own.get(key))}"


def _shared_step(store: Store, key: str, chance: float) -> str:
    if chance < 0.05:
        store.put(key, _proof(key, 0)[:3200])
    elif chance < 0.1:
        store.put_if_absent(key, _proof(key, 0)[:3200])
    elif chance < 0.8:
        store.delete(key)
    found = store.get(key)
    return "" if found in (None, _proof(key, 0)[:3200]) else f"{key!r} has {_short(found)}, which nobody wrote"


def _check_damage(make_store: Callable[[], Store], folder: Path) -> None:
    store = make_store()
    store.put("damaged/1", bytes(1000))
    for path in sorted(each for each in folder.rglob("*") if each.is_file()):
        sound = path.read_bytes()
        for damaged in _damages(sound):
            path.write_bytes(damaged)
            try:
                found = make_store().get("damaged/1")
            except HeteroError:
                continue
            assert found == bytes(1000), f"damaged bytes in {path.name} were given as a value"
        path.write_bytes(sound)
    assert make_store().get("damaged/1") == bytes(1000), "a repaired store does not give its value"
    store.delete("damaged/1")


def _damages(sound: bytes) -> Iterator[bytes]:
    for at in range(0, len(sound), max(1, len(sound) // 60)):
        yield sound[:at] + bytes([sound[at] ^ 1]) + sound[at + 1 :]
        yield sound[:at]
    yield sound + b"\0"
    yield bytes(len(sound))


@contextmanager
def _child(call: Callable[..., None], *args: object) -> Iterator[subprocess.Popen[bytes]]:
    """Run a function in a Python process of its own, which is killed at the end of the block."""
    command = [sys.executable, "-c", _CHILD]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        try:
            cloudpickle.dump((call, args), _into(child))
            _into(child).flush()
            yield child
        finally:
            child.kill()


def _into(child: subprocess.Popen[bytes]) -> IO[bytes]:
    assert child.stdin is not None
    return child.stdin


def _out(child: subprocess.Popen[bytes]) -> IO[bytes]:
    assert child.stdout is not None
    return child.stdout
