"""The environment switches."""

from __future__ import annotations

from pathlib import Path

import pytest

from hetero.floor import settings
from hetero.floor.errors import BadValueError


@pytest.mark.parametrize(
    ("switch", "text"), [("HETERO_DEBUG", "5"), ("HETERO_DEBUG", "yes"), ("HETERO_CHECK", "2"), ("HETERO_SEED", "-1")]
)
def test_a_switch_out_of_range_names_itself_and_the_range(
    switch: str, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(switch, text)
    read = {"HETERO_DEBUG": settings.debug_level, "HETERO_CHECK": settings.check_level, "HETERO_SEED": settings.seed}
    with pytest.raises(BadValueError, match=f"{switch}='{text}' is not a whole number from 0 to"):
        read[switch]()


def test_a_switch_that_is_blank_has_its_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HETERO_SEED", "  ")
    assert settings.seed() == 0


def test_settings_laid_over_are_split_as_a_shell_would(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HETERO_SET", "policy=eft 'trace=a b.jsonl'")
    assert settings.overrides() == ("policy=eft", "trace=a b.jsonl")


def test_an_open_quotation_mark_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HETERO_SET", "name='x")
    with pytest.raises(BadValueError, match="HETERO_SET"):
        settings.overrides()


def test_a_user_without_a_home_gets_one_where_nothing_can_be_written(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(_: object) -> object:
        raise KeyError("uid not found")

    monkeypatch.delenv("HOME", raising=False)
    monkeypatch.delenv("HETERO_HOME", raising=False)
    monkeypatch.setattr("pwd.getpwuid", unknown)
    with pytest.raises(OSError, match="Not a directory"):
        settings.home().mkdir(parents=True)
    monkeypatch.setenv("HETERO_HOME", "~/x")
    with pytest.raises(BadValueError, match="this user has no home folder; write the path in full"):
        settings.home()


def test_a_home_below_that_of_a_user_that_there_is_not_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HETERO_HOME", "~nobody-of-this-name/x")
    with pytest.raises(BadValueError, match="there is no such user; write the path in full"):
        settings.home()


def test_paths_are_paths_or_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HETERO_CONFIG", raising=False)
    assert settings.default_config() is None
    monkeypatch.setenv("HETERO_CONFIG", "~/c.yaml")
    assert settings.default_config() == Path.home() / "c.yaml"


def test_only_a_registered_switch_can_be_set() -> None:
    with pytest.raises(KeyError):
        settings.switch_on("HETERO_NONSENSE", "1")
