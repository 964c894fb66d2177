"""Groups of real processes add up, and none of them hangs when one dies, freezes, leaves or disagrees."""

from __future__ import annotations

import functools
import json
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import psutil
import pytest

from hetero.comm import shared_memory
from hetero.comm.errors import DisagreementError, GroupBrokenError
from hetero.comm.group import Group, shared_row
from hetero.comm.mesh import Mesh
from hetero.comm.rendezvous import check_address, open_rendezvous
from hetero.errors import BadValueError
from hetero.testing import check_group
from tests.engine.members import Members, members

torch = pytest.importorskip("torch")

_OWN = ("ring", "tree", "pipelined_tree")


@pytest.fixture(scope="module")
def team() -> Iterator[Members]:
    with members(4) as four:
        yield four


@pytest.mark.parametrize("algorithm", ["library", *_OWN, "auto"])
def test_a_group_passes_the_conformance_kit(team: Members, algorithm: str) -> None:
    team.form()
    assert team.run(functools.partial(check_group, algorithms=(algorithm,))) == [None] * 4


def _half_precision(group: Group, algorithm: str) -> list[Any]:
    rows = [torch.full((9000,), group.rank + 0.5, dtype=kind) for kind in (torch.bfloat16, torch.float16)]
    for row in rows:
        group.all_reduce(row, algorithm=algorithm)
    return [row[-1].item() for row in rows]


@pytest.mark.parametrize("algorithm", ["library", "ring", "pipelined_tree"])
def test_half_precision_tensors_are_summed(team: Members, algorithm: str) -> None:
    team.form()
    assert team.run(functools.partial(_half_precision, algorithm=algorithm)) == [[8.0, 8.0]] * 4


def test_in_a_group_of_one_every_collective_is_done_at_once() -> None:
    check_group(Group(0, 1), ("auto", "ring", "pipelined_tree"))


def _many_under_way(group: Group, seed: int) -> list[str]:
    """Sum rows of many sizes, several at a time, some more than shared memory holds; returns what went wrong."""
    rng = np.random.default_rng(seed)
    wrong, under_way = [], []
    for number in range(60):
        length = int(rng.choice([1, 3, 1000, 100_001, 1_000_003, 4_000_000]))
        row = np.full(length, group.rank + number, np.float64)
        under_way.append((group.start_all_reduce(row), row, 6.0 + 4 * number))
        if rng.random() < 0.5:
            for _ in range(int(rng.integers(1, len(under_way) + 1))):
                work, done, total = under_way.pop(0)
                work.wait()
                wrong += [] if (done == total).all() else [f"{done[0]} is not {total}"]
    for work, done, total in reversed(under_way):
        work.wait()
        wrong += [] if (done == total).all() else [f"{done[0]} is not {total}"]
    return wrong


@pytest.mark.parametrize("seed", [1, 2])
def test_sums_under_way_do_not_spoil_each_other(team: Members, seed: int) -> None:
    team.form()
    assert team.run(functools.partial(_many_under_way, seed=seed)) == [[]] * 4


def _range(row: memoryview) -> tuple[float, float]:
    numbers = np.frombuffer(row)
    return float(numbers.min()), float(numbers.max())


def _rows_side_by_side(group: Group, seed: int) -> list[str]:
    """Read each other's rows, up to three at a time, beside ordinary sums; returns what went wrong."""
    rng = np.random.default_rng(seed)
    wrong, under_way, total = [], [], float(sum(range(group.world_size)))
    for number in range(60):
        length = int(rng.choice([1, 1000, 100_001, 300_003]))
        row = shared_row(group, np.empty(length))
        assert row is not None
        np.frombuffer(row.mine)[:] = group.rank + 10 * number
        row.send()
        under_way.append((row, number, bool(rng.random() < 0.5)))
        while under_way and (len(under_way) == 3 or rng.random() < 0.4):
            first, filled, is_summed = under_way.pop(0)
            found = [_range(each) for each in first.meet()]
            if is_summed:
                found = [_range(first.total())]
            first.release()
            want = [(rank + 10.0 * filled,) * 2 for rank in range(group.world_size)]
            if is_summed:
                want = [(total + group.world_size * 10.0 * filled,) * 2]
            wrong += [] if found == want else [f"{found} is not {want}"]
        if not under_way:
            beside = np.full(100, float(group.rank))
            group.all_reduce(beside)
            wrong += [] if (beside == total).all() else ["a sum beside rows"]
    return wrong


@pytest.mark.parametrize("seed", [1, 2])
def test_rows_that_lie_side_by_side_are_overwritten_by_nobody_who_is_ahead(team: Members, seed: int) -> None:
    team.form()
    assert team.run(functools.partial(_rows_side_by_side, seed=seed)) == [[]] * 4


def test_a_member_may_leave_when_it_has_read_all_rows_while_others_still_read() -> None:
    store, meeting = open_rendezvous("rows", 2)
    has_left = threading.Event()

    def member(rank: int) -> list[float]:
        group = Group(rank, 2, meeting, store if rank == 0 else None)
        rows = [shared_row(group, np.empty(1000)) for _ in range(4)]
        for row in rows:
            assert row is not None
            np.frombuffer(row.mine)[:] = rank + 1.0
            row.send()
        assert rank == 0 or has_left.wait(60.0)
        found = []
        for row in rows:
            assert row is not None
            found.append(float(sum(np.frombuffer(each)[-1] for each in row.meet())))
            row.release()
        group.close()
        has_left.set()
        return found

    with ThreadPoolExecutor(2) as threads:
        assert list(threads.map(member, range(2))) == [[3.0] * 4] * 2


def _without_shared_memory(group: Group) -> tuple[list[float], bool]:
    if group.rank == 2:
        shared_memory.open_shared = lambda path, nbytes: None
    row = np.ones(1000)
    group.all_reduce(row)
    return sorted(set(row.tolist())), group._shared is None


def test_where_one_member_cannot_reach_the_shared_memory_all_do_without() -> None:
    with members(3) as three:
        three.form()
        assert three.run(_without_shared_memory) == [([3.0], True)] * 3


def _is_broken_after(group: Group, absent: int, algorithm: str) -> float:
    """Take part in a sum that one member never joins; returns how long it took until that was told."""
    if group.rank == absent:
        time.sleep(2.0)
        return 0.0
    begun_s = time.monotonic()
    under_way = [group.start_all_reduce(torch.zeros(300_000), algorithm=algorithm) for _ in range(3)]
    try:
        for work in under_way:
            work.wait()
    except GroupBrokenError:
        return time.monotonic() - begun_s
    raise AssertionError("a sum without one of the members")


@pytest.mark.parametrize("algorithm", ["library", "pipelined_tree", "auto"])
def test_when_a_member_dies_everyone_is_told_long_before_the_deadline(algorithm: str) -> None:
    with members(4) as team:
        team.form()
        assert team.run(functools.partial(_half_precision, algorithm=algorithm)) == [[8.0, 8.0]] * 4
        team.start(functools.partial(_is_broken_after, absent=3, algorithm=algorithm))
        time.sleep(0.2)
        team.signal(3, signal.SIGKILL)
        assert max(team.hear(rank) for rank in range(3)) < 15.0


@pytest.mark.parametrize("algorithm", ["library", "pipelined_tree", "auto"])
def test_a_frozen_member_is_given_up_at_the_deadline(team: Members, algorithm: str) -> None:
    team.form(deadline_s=0.7)
    assert team.run(functools.partial(_half_precision, algorithm=algorithm)) == [[8.0, 8.0]] * 4
    team.start(functools.partial(_is_broken_after, absent=3, algorithm=algorithm))
    team.signal(3, signal.SIGSTOP)
    try:
        waited_s = [team.hear(rank) for rank in range(3)]
    finally:
        team.signal(3, signal.SIGCONT)
    assert 0.3 < max(waited_s) < 15.0
    team.hear(3)


def test_a_stranger_without_the_key_is_hung_up_on() -> None:
    told: dict[int, bytes] = {}
    both = threading.Barrier(2)
    strangers: list[socket.socket] = []

    def form(rank: int) -> Mesh:
        def exchange(_: str, mine: bytes, deadline_s: float) -> list[bytes]:
            told[rank] = mine
            both.wait(deadline_s)
            if rank == 1:
                host, port, key = json.loads(told[0])
                strangers.append(socket.create_connection((host, port)))
                strangers[0].sendall(bytes(len(key) // 2 + 4))
            return [told[0], told[1]]

        return Mesh.form(rank, "127.0.0.1", exchange, 10.0)

    with ThreadPoolExecutor(2) as threads:
        meshes = list(threads.map(form, range(2)))
    assert [list(mesh.sockets) for mesh in meshes] == [[1], [0]]
    strangers[0].settimeout(10)
    assert strangers[0].recv(1) == b""
    for mesh in meshes:
        mesh.leave()
    strangers[0].close()


def _disagrees(group: Group, algorithm: str) -> None:
    shape = (4, 3) if group.rank == 2 else (4, 5)
    group.all_reduce(np.zeros(shape), algorithm=algorithm)


@pytest.mark.parametrize("algorithm", ["ring", "auto"])
def test_members_who_give_different_shapes_are_told_so(team: Members, algorithm: str) -> None:
    team.form()
    outcomes = team.run(functools.partial(_disagrees, algorithm=algorithm))
    assert any(isinstance(outcome, DisagreementError) for outcome in outcomes)
    assert all(isinstance(outcome, DisagreementError | GroupBrokenError) for outcome in outcomes)
    assert "all_reduce of 12 float64" in str([str(outcome) for outcome in outcomes])


def _one_leaves(group: Group, algorithm: str) -> Any:
    row = np.ones(100_000)
    group.all_reduce(row, algorithm=algorithm)
    if group.rank == 1:
        group.close()
        return row[0]
    time.sleep(0.2)
    try:
        group.all_reduce(row, algorithm=algorithm)
    except GroupBrokenError:
        return row[0]
    raise AssertionError("a sum without one of the members")


@pytest.mark.parametrize("algorithm", ["tree", "auto"])
def test_who_leaves_after_its_last_sum_spoils_no_sum_before(team: Members, algorithm: str) -> None:
    team.form()
    outcomes = team.run(functools.partial(_one_leaves, algorithm=algorithm))
    assert outcomes[1] == 4.0
    assert all(np.isfinite(outcome) for outcome in outcomes)


@pytest.mark.parametrize(
    ("call", "told"),
    [
        (lambda g: g.all_reduce(np.ones(3), op="som"), "'som' is no reduction; did you mean 'sum'"),
        (lambda g: g.all_reduce(np.ones(3), algorithm="rung"), "'rung' is none; did you mean 'ring'"),
        (lambda g: g.all_reduce([1.0, 2.0]), "a list cannot travel as it is"),
        (lambda g: g.all_reduce(np.ones((4, 4)).T[1:, 1:]), "contiguous"),
        (lambda g: g.all_reduce(np.array([object()])), "of numbers"),
        (lambda g: g.broadcast(np.ones(3), 1), "there is no rank 1; ranks go from 0 to 0"),
        (lambda g: g.all_gather(np.ones(3)), "it needs 1 rows, one a member"),
    ],
)
def test_bad_values_are_told(call: Any, told: str) -> None:
    with pytest.raises(BadValueError, match=told):
        call(Group(0, 1))


@pytest.mark.parametrize(
    ("address", "told"), [("10.1.2.3", "other hosts can reach 10.1.2.3"), ("here", "no IP address")]
)
def test_an_address_that_others_reach_must_be_asked_for(address: str, told: str) -> None:
    with pytest.raises(BadValueError, match=told):
        open_rendezvous("x", 2, address)
    with pytest.raises(BadValueError, match=told):
        Group(0, 2, address=address)


@pytest.mark.parametrize("address", ["0.0.0.0", "::", "224.0.0.1"])
def test_an_address_that_means_every_interface_is_refused(address: str) -> None:
    with pytest.raises(BadValueError, match="members would listen on all of them"):
        open_rendezvous("x", 2, address, beyond_loopback=True)
    with pytest.raises(BadValueError, match="members would listen on all of them"):
        Group(0, 2, address=address, beyond_loopback=True)


def test_a_public_address_is_told_of_once(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("WARNING", "hetero"):
        for address in ("8.8.8.8", "8.8.8.8", "10.0.0.7", "fd00::1"):
            assert check_address(address, beyond_loopback=True) == address
    (said,) = [record.getMessage() for record in caplog.records]
    assert said.startswith("8.8.8.8 is a public address, and members of a group listen there without a password")


def _listeners() -> set[tuple[str, int]]:
    return {tuple(one.laddr) for one in psutil.Process().net_connections("inet") if one.status == "LISTEN"}


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have one address on loopback")
@pytest.mark.parametrize("algorithm", ["library", "ring"])
def test_members_listen_on_their_address_and_on_no_other(algorithm: str) -> None:
    before = _listeners()
    store, rendezvous = open_rendezvous("bound", 2, "127.0.0.2")

    def form(rank: int) -> Group:
        group = Group(rank, 2, rendezvous, store if rank == 0 else None, address="127.0.0.2")
        row = np.ones(1000)
        group.all_reduce(row, algorithm=algorithm)
        assert (row == 2.0).all()
        return group

    with ThreadPoolExecutor(2) as threads:
        groups = list(threads.map(form, range(2)))
    found = _listeners() - before
    for group in groups:
        group.close()
    assert found
    assert {host for host, _ in found} == {"127.0.0.2"}
