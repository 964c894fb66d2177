"""People's units in, SI out, and back."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hetero.floor.errors import BadValueError
from hetero.floor.units import (
    exact,
    format_bytes,
    format_rate,
    format_seconds,
    parse_bandwidth,
    parse_bytes,
    parse_seconds,
    shown,
)


@pytest.mark.parametrize(
    ("text", "amount_bytes"),
    [
        ("8GB", 8_000_000_000),
        ("8GiB", 8 * 2**30),
        ("64 mb", 64_000_000),
        ("1.5KB", 1500),
        (" 7 B ", 7),
        ("1e3MB", 10**9),
    ],
)
def test_memory_is_read_in_decimal_and_binary_units(text: str, amount_bytes: int) -> None:
    assert parse_bytes(text) == amount_bytes


def test_a_bare_number_is_bytes_and_seconds_but_never_a_bandwidth() -> None:
    assert (parse_bytes(512), parse_seconds("3")) == (512, 3.0)
    with pytest.raises(BadValueError, match="25 has no unit"):
        parse_bandwidth(25)


def test_bits_and_bytes_a_second_differ_by_eight() -> None:
    assert parse_bandwidth("8Gb/s") * 8 == parse_bandwidth("8GB/s")


def test_a_unit_that_only_its_case_could_tell_apart_is_refused_not_guessed() -> None:
    with pytest.raises(BadValueError, match="no known unit"):
        parse_bandwidth("8gb/s")


@pytest.mark.parametrize("text", ["8GBB", "GB", "", "-1GB", "8 8GB", "1e999GB", "0x10", "8,5GB", "∞", "8GB/s"])
def test_a_wrong_amount_is_one_line_that_holds_the_value(text: str) -> None:
    with pytest.raises(BadValueError) as caught:
        parse_bytes(text)
    assert repr(text) in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("value", [True, None, [], {}, math.nan, math.inf, -1, 10**400, "9" * 5000])
def test_what_is_no_amount_at_all_is_refused(value: object) -> None:
    with pytest.raises(BadValueError):
        parse_bytes(value)


def outcome(parse: Callable[[object], float], value: object) -> str:
    try:
        amount = parse(value)
    except BadValueError as error:
        return str(error)
    return "read" if 0 <= amount < 2**63 else ""


@given(st.one_of(st.text(), st.integers(), st.floats(), st.none(), st.binary(), st.lists(st.integers())))
def test_whatever_is_given_is_read_or_refused_in_words(value: object) -> None:
    for parse in (parse_bytes, parse_bandwidth, parse_seconds):
        assert len(outcome(parse, value).splitlines()) == 1


@given(st.integers(0, 2**53))
def test_an_exact_amount_reads_back_as_itself(amount_bytes: int) -> None:
    assert parse_bytes(exact(amount_bytes, "B")) == amount_bytes


@given(st.floats(1e-9, 1e9))
def test_an_exact_duration_reads_back_as_itself(duration_s: float) -> None:
    assert parse_seconds(exact(duration_s, "s")) == duration_s


def test_quantities_are_written_with_three_digits() -> None:
    assert (format_bytes(8_589_934_592), format_rate(0, "B/s"), format_seconds(3600)) == ("8.59 GB", "0 B/s", "1 h")


def test_a_wrong_value_is_shown_on_one_short_line() -> None:
    assert shown("a\nb") == r"'a\nb'"
    assert len(shown(list(range(1000)))) == 60
    assert shown(10**5000) == "<int>"
