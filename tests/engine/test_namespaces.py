"""Groups whose members are behind links of their own, in network namespaces."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator

import pytest

from benchmarks.all_reduce import Team, team
from examples.netns import fleet_of_namespaces
from hetero.errors import BadValueError
from tests.needs import need

pytestmark = pytest.mark.servers

_NBYTES = 1_000_000
_HEADERS = 1.15
_SENT_AGAIN = 1.3
"""A queue that overflows in front of the slow link drops packets."""
_FAST, _SLOW = 200e6, 20e6

_TALK = """
import socket, sys
with socket.create_server((sys.argv[1], 5000)) as server:
    print("listening", flush=True)
    connection = server.accept()[0]
    print(sum(len(piece) for piece in iter(lambda: connection.recv(65536), b"")))
"""
_CALL = "import socket, sys; socket.create_connection((sys.argv[1], 5000)).sendall(bytes(300_000))"


@pytest.fixture(scope="module")
def unequal() -> Iterator[Team]:
    need("netns")
    pytest.importorskip("torch")
    with team([_FAST, _FAST, _SLOW], _NBYTES) as members:
        yield members


def test_hosts_see_each_other_their_bytes_are_counted_and_nothing_is_left() -> None:
    need("netns")
    with fleet_of_namespaces([1e8, 1e8]) as fleet:
        names = [host.name for host in fleet.hosts]
        address = fleet.hosts[0].address
        server = fleet.popen(0, [sys.executable, "-c", _TALK, address], stdout=subprocess.PIPE, text=True)
        assert server.stdout is not None
        assert server.stdout.readline() == "listening\n"
        assert fleet.popen(1, [sys.executable, "-c", _CALL, address]).wait(30) == 0
        assert server.communicate(timeout=30)[0] == "300000\n"
        server_end, client_end = fleet.counters()
        assert 300_000 < client_end.sent_bytes < 330_000
        assert 300_000 < server_end.received_bytes < 330_000
    left = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, timeout=30, check=True).stdout
    assert not any(name in left for name in names)


@pytest.mark.parametrize("speeds", [[], [0.0], [1e8] * 201])
def test_speeds_that_are_none_are_told(speeds: list[float]) -> None:
    with pytest.raises(BadValueError, match="give 1 to 200 speeds above 0"), fleet_of_namespaces(speeds):
        pass


_WAITS = """
import json, sys, numpy as np
from hetero.comm.errors import GroupBrokenError
from hetero.comm.group import Group

class Meeting:
    library = "none"

    def exchange(self, word, mine, deadline_s):
        print(mine.hex(), flush=True)
        return [bytes.fromhex(each) for each in json.loads(input())]

rank = int(sys.argv[1])
group = Group(rank, 2, Meeting(), None, 600.0, address=sys.argv[2], beyond_loopback=True)
group.all_reduce(np.ones(2))
print("summed", flush=True)
if rank:
    input()
try:
    group.all_reduce(np.ones(2))
except GroupBrokenError as error:
    print(error)
"""


def test_a_member_that_is_cut_off_is_missed_long_before_the_deadline() -> None:
    need("netns")
    with fleet_of_namespaces([1e8, 1e8]) as fleet:
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        words = [[sys.executable, "-c", _WAITS, str(rank), host.address] for rank, host in enumerate(fleet.hosts)]
        members = [fleet.popen(rank, each, **pipes) for rank, each in enumerate(words)]
        told = json.dumps([member.stdout.readline().strip() for member in members])
        for member in members:
            print(told, file=member.stdin, flush=True)
        assert [member.stdout.readline() for member in members] == ["summed\n"] * 2
        fleet.connect(1, up=False)
        said, _ = members[0].communicate(timeout=120)
        assert said.startswith("rank 1 is gone"), said
        members[1].kill()
        members[1].communicate()


@pytest.mark.slow
def test_a_ring_sends_its_bound_over_every_link(unequal: Team) -> None:
    unequal.sum_s("ring")
    for sent_bytes in unequal.sent_bytes["ring"]:
        assert 4 / 3 * _NBYTES <= sent_bytes < 4 / 3 * _HEADERS * _SENT_AGAIN * _NBYTES


@pytest.mark.slow
def test_auto_sends_the_row_but_once_over_the_slow_link(unequal: Team) -> None:
    unequal.sum_s("auto")
    assert _NBYTES <= unequal.sent_bytes["auto"][2] < _HEADERS * _NBYTES
    assert sum(unequal.sent_bytes["auto"]) < 4 * _HEADERS * _SENT_AGAIN * _NBYTES


@pytest.mark.slow
def test_the_library_takes_part_on_an_address_that_was_given(unequal: Team) -> None:
    unequal.sum_s("library")
    assert min(unequal.sent_bytes["library"]) >= 4 / 3 * _NBYTES
