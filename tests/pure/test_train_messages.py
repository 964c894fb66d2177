"""Messages between the lead of a training run and its members."""

from __future__ import annotations

import pickle
from typing import Any, cast

import pytest

from hetero.comm.lines import Line
from hetero.floor.errors import HeteroError
from hetero.train import messages as msg

WORDS: dict[type[msg.Message], str] = {
    msg.MemberReady: "ready", msg.PassesHalved: "halved", msg.StopTraining: "stop", msg.GroupBroken: "broken",
    msg.EpochAwaited: "waits", msg.LeftOut: "left",
}  # fmt: skip


class Wire:
    """Stands for a line: keeps what is sent as bytes."""

    def __init__(self) -> None:
        self.sent: list[bytes] = []

    def send(self, *message: object) -> None:
        self.sent.append(pickle.dumps(message, protocol=5))


def sent(message: msg.Message) -> bytes:
    wire = Wire()
    msg.send_message(cast(Line, wire), message)
    return wire.sent[0]


@pytest.mark.parametrize("kind", msg.KINDS, ids=lambda kind: kind.__name__)
def test_a_message_arrives_as_what_it_was(kind: type[Any]) -> None:
    message = kind(*range(len(kind._fields)))
    found = msg.read_message(pickle.loads(sent(message)))
    assert type(found) is kind
    assert found == message


@pytest.mark.parametrize("kind", WORDS, ids=lambda kind: kind.__name__)
def test_a_message_is_no_longer_on_the_line_than_a_word_and_its_values(kind: type[Any]) -> None:
    message = kind(*range(len(kind._fields)))
    assert len(sent(message)) <= len(pickle.dumps((WORDS[kind], *message), protocol=5))


@pytest.mark.parametrize("came", [(99,), (0,), (0, "cpu:0", "more"), ("here", "cpu:0")])
def test_what_is_no_message_is_refused_in_one_line(came: tuple[object, ...]) -> None:
    with pytest.raises(HeteroError, match="cannot be read"):
        msg.read_message(came)


def test_every_message_is_in_the_list_of_names() -> None:
    assert {kind.__name__ for kind in msg.KINDS} <= set(msg.__all__)
