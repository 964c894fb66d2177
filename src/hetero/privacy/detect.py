"""Columns that tell of people, found by their names and by the patterns and check digits of their values.

In: a table, of which the first rows are looked at. Out: a recipe to begin with, which holds no value of the table.
"""

from __future__ import annotations

import ipaddress
import json
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa

from hetero.privacy.classes import coded
from hetero.privacy.tables import InputTables

__all__ = ["PATTERNS", "Suggestion", "recipe_of", "suggested"]

_ROWS = 20_000
_MOST_VALUES = 2_000
_MOST = 0.8
_SOME = 0.02
_UNIQUE = 0.9

_EMAIL = re.compile(r"[^@\s]+@[^@\s]+\.[A-Za-z]{2,}")
_IBAN = re.compile(r"[A-Z]{2}\d{2}[A-Z0-9]{11,30}")
_CARD = re.compile(r"\d{13,19}")
_PHONE = re.compile(r"(?:\+|00)[\d\s()./-]{7,20}|\(?\d{2,5}\)?[\s./-][\d\s./-]{5,15}")
_DATE = re.compile(r"\d{4}-\d{2}-\d{2}(?:[T ].*)?")
_NUMBER = re.compile(r"-?\d+(?:\.\d+)?")
_PARTING = str.maketrans("", "", " -")


def _is_email(text: str) -> bool:
    return _EMAIL.fullmatch(text) is not None


def _is_ip(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return "." in text or ":" in text


def _is_iban(text: str) -> bool:
    """Return whether a text is an IBAN: ISO 7064, MOD 97-10 over the letters as numbers from 10."""
    joined = text.translate(_PARTING).upper()
    if _IBAN.fullmatch(joined) is None:
        return False
    return int("".join(str(int(sign, 36)) for sign in joined[4:] + joined[:4])) % 97 == 1


def _is_card(text: str) -> bool:
    """Return whether a text is the number of a payment card: ISO/IEC 7812-1, annex B, the formula of Luhn."""
    joined = text.translate(_PARTING)
    if _CARD.fullmatch(joined) is None:
        return False
    digits = [int(sign) for sign in reversed(joined)]
    return (sum(digits[::2]) + sum(sum(divmod(2 * digit, 10)) for digit in digits[1::2])) % 10 == 0


def _is_phone(text: str) -> bool:
    """Return whether a text looks like a telephone number, which has 7 to 15 digits (ITU-T E.164)."""
    return _PHONE.fullmatch(text) is not None and 7 <= sum(map(str.isdigit, text)) <= 15 and not _DATE.fullmatch(text)


PATTERNS: Mapping[str, Callable[[str], bool]] = {
    "e-mail addresses": _is_email,
    "IP addresses": _is_ip,
    "IBANs": _is_iban,
    "card numbers": _is_card,
    "phone numbers": _is_phone,
}
"""What values are tested for, in this order."""

_WORDS: Mapping[str, tuple[str, ...]] = {
    "suppress": (
        *("name", "surname", "firstname", "lastname", "forename", "nombre", "apellido", "apellidos", "vorname"),
        *("nachname", "address", "street", "direccion", "comment", "comments", "note", "notes", "remark", "remarks"),
    ),
    "pseudonymise": (
        *("id", "uid", "uuid", "user", "username", "login", "customer", "patient", "client", "person", "account"),
        *("ssn", "passport", "dni", "nif", "email", "mail", "phone", "telephone", "mobile", "iban", "card", "ip"),
    ),
    "{dates: [month, year, decade]}": ("birth", "born", "dob", "birthday", "birthdate", "nacimiento", "geburtsdatum"),
    "{prefix: [3, 2, 1]}": ("zip", "zipcode", "postcode", "postal", "postalcode", "plz"),
    "{intervals: [5, 10, 20]}": ("age", "edad", "alter"),
    "generalise": (
        *("sex", "gender", "sexo", "geschlecht", "city", "town", "country", "region", "nationality", "race"),
        *("ethnicity", "marital", "religion", "occupation", "job", "profession", "education"),
    ),
}
"""What is suggested for columns with such words in their names."""


class Suggestion(NamedTuple):
    """What might become of a column, and why."""

    column: str
    rule: str
    why: str


def suggested(source: str | Path) -> list[Suggestion]:
    """Return what might become of each column of a table.

    Raises
    ------
    BadValueError
        There is no such table, or it cannot be read.
    """
    inputs = InputTables(source)
    parts: list[pa.Table] = []
    for piece in inputs.pieces():
        parts.append(piece.load().slice(0, _ROWS))
        if sum(map(len, parts)) >= _ROWS:
            break
    table = pa.concat_tables(parts)
    return [_suggested(name, table[name]) for name in table.column_names]


def _suggested(name: str, column: pa.ChunkedArray) -> Suggestion:
    kind = column.type.value_type if pa.types.is_dictionary(column.type) else column.type
    if pa.types.is_nested(kind) or pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        return Suggestion(name, "suppress", "values that are no text")
    found = coded(column).values
    texts = found.slice(0, _MOST_VALUES).to_pylist()
    words = set(re.findall(r"[a-z]+", re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower()))
    for what, test in PATTERNS.items() if texts else ():
        part = sum(map(test, texts)) / len(texts)
        if part >= _SOME:
            return Suggestion(name, "pseudonymise" if part >= _MOST else "suppress", f"{part:.0%} {what}")
    by_name = next((rule for rule, known in _WORDS.items() if words & set(known)), "")
    if by_name and _goes(by_name, texts):
        return Suggestion(name, by_name, "by its name")
    if texts and all(map(_DATE.fullmatch, texts)):
        return Suggestion(name, "{dates: [day, month, year]}", "dates")
    rows = len(column) - column.null_count
    if texts and len(found) >= _UNIQUE * rows and rows > 1 and not all(map(_NUMBER.fullmatch, texts)):
        return Suggestion(name, "suppress", "nearly every value is another one")
    return Suggestion(name, "suppress" if by_name else "keep", "by its name" if by_name else "nothing was found")


def _goes(rule: str, texts: Sequence[str]) -> bool:
    """Return whether values are of the kind that a rule takes."""
    pattern = _DATE if "dates" in rule else _NUMBER if "intervals" in rule else None
    return pattern is None or all(map(pattern.fullmatch, texts))


def recipe_of(suggestions: Sequence[Suggestion]) -> str:
    """Return suggestions as a recipe.

    Examples
    --------
    >>> print(recipe_of([Suggestion("age", "{intervals: [5, 10, 20]}", "by its name")]), end="")
    # Found by the names of the columns and by the first rows. Read each line before you use it.
    columns:
      age: {intervals: [5, 10, 20]}  # by its name
    require:
      k: 5
    """
    lines = ["# Found by the names of the columns and by the first rows. Read each line before you use it."]
    if any(each.rule == "pseudonymise" for each in suggestions):
        lines.append("key: {file: anonymise.key}  # (umask 077; openssl rand -hex 32 > anonymise.key)")
    lines.append("columns:")
    named = [(f"{_written(each.column)}: {each.rule}", each.why) for each in suggestions]
    width = max((len(text) for text, _ in named), default=0)
    lines += [f"  {text:{width}}  # {why}" for text, why in named]
    if any(each.rule == "generalise" or each.rule.startswith("{") for each in suggestions):
        lines += ["require:", "  k: 5"]
    return "\n".join(lines) + "\n"


def _written(name: str) -> str:
    """Return a column's name as YAML reads it back."""
    plain = re.fullmatch(r"[A-Za-z_][\w-]*", name, re.ASCII) and name.lower() not in (
        "null",
        "true",
        "false",
        "yes",
        "no",
        "on",
        "off",
        "y",
        "n",
    )
    return name if plain else json.dumps(name)
