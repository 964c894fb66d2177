"""Lines between a program and its members: in order, and between hosts behind certificates."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path
from threading import Thread

import pytest

from hetero.comm.errors import LineClosedError
from hetero.comm.lines import Address, Line, LineServer
from hetero.engines.ray.certificates import make_certificates

PATIENCE_S = 60.0


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("certificates")
    make_certificates(folder, ["127.0.0.1"])
    return str(folder)


@pytest.fixture
def hub(certificates: str) -> Iterator[LineServer]:
    with LineServer("127.0.0.1", certificates) as made:
        yield made


def dialled(hub: LineServer, address: Address, *message: object) -> list[Line | LineClosedError]:
    """Dial in from a thread and say something, while the hub hears; return the line, or why there is none."""
    found: list[Line | LineClosedError] = []

    def dial() -> None:
        try:
            line = Line.dial(address)
            line.send(*message)
            found.append(line)
        except LineClosedError as error:
            found.append(error)

    thread = Thread(target=dial)
    thread.start()
    while thread.is_alive():
        hub.poll(0.05)
    return found


def test_values_larger_than_a_record_arrive_whole_and_in_order_behind_certificates(hub: LineServer) -> None:
    (line,) = dialled(hub, hub.address, "here")
    assert isinstance(line, Line)
    large = bytes(range(256)) * 4000
    speaking = Thread(target=lambda: [line.send(number, large) for number in range(3)])
    speaking.start()
    heard: list[tuple[object, ...]] = []
    while len(heard) < 3:
        heard += [message for _, message in hub.poll(PATIENCE_S) if message is not None and message[0] != "here"]
    speaking.join(PATIENCE_S)
    assert heard == [(0, large), (1, large), (2, large)]
    line.close()


def test_a_member_does_not_show_the_key_to_who_has_another_authoritys_certificate(
    hub: LineServer, tmp_path: Path
) -> None:
    make_certificates(tmp_path / "foreign", ["127.0.0.1"])
    authority = (tmp_path / "foreign" / "ca.crt").read_text()
    (error,) = dialled(hub, hub.address._replace(authority=authority), "here")
    assert isinstance(error, LineClosedError)


def test_neither_key_nor_words_can_be_read_on_the_way(hub: LineServer) -> None:
    seen = bytearray()
    with socket.create_server(("127.0.0.1", 0)) as relay:

        def pass_on() -> None:
            member, _ = relay.accept()
            with member, socket.create_connection((hub.address.host, hub.address.port)) as program:
                member.settimeout(0.05)
                program.settimeout(0.05)
                while copied(member, program) and copied(program, member):
                    pass

        def copied(source: socket.socket, to: socket.socket) -> bool:
            try:
                chunk = source.recv(1 << 16)
            except TimeoutError:
                return True
            seen.extend(chunk)
            to.sendall(chunk)
            return bool(chunk)

        between = Thread(target=pass_on)
        between.start()
        (line,) = dialled(hub, hub.address._replace(port=relay.getsockname()[1]), "a word in clear")
        assert isinstance(line, Line)
        line.close()
        between.join(PATIENCE_S)
    assert len(seen) > 500
    assert hub.address.key.encode() not in seen
    assert b"a word in clear" not in seen
