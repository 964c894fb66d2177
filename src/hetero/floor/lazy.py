"""Lazy namespaces: modules whose public names are imported from elsewhere on first use.

In: a table of modules and the names that each defines. Out: what the module needs as `__getattr__`, `__dir__` and
`__all__`. It must not import anything that `import hetero` would not need: that import is on the way of every command.

Such a module lists its names twice: in the table, and as `from x import y as y` under `if TYPE_CHECKING`, where type
checkers and editors look. tests/docs/test_public_names.py compares both.
"""

from __future__ import annotations

import sys

TYPE_CHECKING = False  # the import of typing would cost more than everything else here
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

__all__ = ["lazy_names"]


def lazy_names(
    module: str, places: Mapping[str, Sequence[str]], moved: Mapping[str, str] | None = None
) -> tuple[Callable[[str], object], Callable[[], list[str]], list[str]]:
    """Return `__getattr__`, `__dir__` and `__all__` of a module whose names are imported on first use.

    Parameters
    ----------
    module
        Name of the module, its `__name__`.
    places
        Names by the module that defines them; those that stand under `module` itself are modules in it.
    moved
        Old names, each with its new place in full; using one warns.

    Examples
    --------
    >>> from hetero.floor.lazy import lazy_names
    >>> get, listed, names = lazy_names("hetero", {"hetero.floor.units": ["parse_bytes"], "hetero": ["errors"]})
    >>> names
    ['errors', 'parse_bytes']
    >>> get("parse_bytes")("2kB")
    2000
    """
    place_of = {name: place for place, names in places.items() for name in names}
    public = sorted(place_of)

    def get(name: str) -> object:
        if place_of.get(name) == module:
            return _imported(f"{module}.{name}")
        if name in place_of:
            value = getattr(_imported(place_of[name]), name)
            setattr(sys.modules[module], name, value)
            return value
        if moved and name in moved:
            return _moved(module, name, moved[name])
        raise MissingNameError(module, name, {known: known for known in public} | dict(moved or {}))

    def listed() -> list[str]:
        return sorted([*(name for name in vars(sys.modules[module]) if name.startswith("__")), *public])

    return get, listed, public


class MissingNameError(AttributeError):
    """A module has no such name; a similar one is looked for when the message is read.

    Examples
    --------
    >>> from hetero.floor.lazy import MissingNameError
    >>> str(MissingNameError("hetero", "Contxt", {"Context": "Context", "rank": "hetero.collectives.rank"}))
    "hetero has no 'Contxt'; did you mean 'Context'?"
    """

    def __init__(self, module: str, name: str, known: Mapping[str, str]) -> None:
        super().__init__(module, name, known)

    def __str__(self) -> str:
        import difflib

        module, name, known = self.args
        close = difflib.get_close_matches(name, known, n=1)
        return f"{module} has no {name!r}" + (f"; did you mean {known[close[0]]!r}?" if close else "")


def _imported(module: str) -> object:
    from importlib import import_module

    return import_module(module)


def _moved(module: str, name: str, place: str) -> object:
    from warnings import warn

    words = f"{module}.{name} is now {place}; the old name goes in the next version"
    warn(words, DeprecationWarning, stacklevel=4 if module == "hetero" else 3)  # over its own `__getattr__`, too
    holder, _, own = place.rpartition(".")
    return getattr(_imported(holder), own)
