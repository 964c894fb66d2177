"""The tree of exceptions."""

from __future__ import annotations

import pickle

import pytest

from hetero.floor import errors
from hetero.floor.errors import HeteroError, RemoteTracebackError, did_you_mean

KINDS = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, HeteroError)]


@pytest.mark.parametrize("kind", KINDS)
def test_an_error_crosses_processes_whole(kind: type[HeteroError]) -> None:
    there = pickle.loads(pickle.dumps(kind("a went wrong", remedy="do b")))
    assert (type(there), str(there), there.remedy) == (kind, "a went wrong; do b", "do b")


@pytest.mark.parametrize("kind", KINDS)
def test_every_error_has_an_exit_code_that_the_help_names(kind: type[HeteroError]) -> None:
    assert kind.exit_code in (1, 2, 3, 4)


def test_errors_are_caught_by_the_builtin_that_people_expect() -> None:
    assert issubclass(errors.BadValueError, ValueError)
    assert issubclass(errors.TaskTimeoutError, TimeoutError)
    assert issubclass(errors.OutOfDeviceMemoryError, MemoryError)
    assert issubclass(errors.SerialisationError, TypeError)


def test_a_word_unlike_all_others_gets_no_suggestion() -> None:
    assert did_you_mean("qqqq", ["eft", "least_loaded"]) == ""
    assert did_you_mean(7, ["eft"]) == ""


def test_a_remote_traceback_shows_its_text() -> None:
    assert "line 3" in str(RemoteTracebackError("line 3"))
