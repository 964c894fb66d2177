"""Options of a Context, for programs that open one and for whatever opens one by itself.

In: what the user wrote. Out: a frozen value, and a Context. Fields that a configuration has too are named as its keys.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from hetero.floor.deprecation import Moved
from hetero.floor.errors import BadValueError
from hetero.floor.options import check_fields, options_argument
from hetero.session.requests import refuse_coroutine

if TYPE_CHECKING:
    from hetero.session.config import Config
    from hetero.session.context import Context

__all__ = ["OPENING", "ContextOptions", "Fleet", "devices_or_context", "lent_or_opened"]

Fleet: TypeAlias = str | Sequence[object] | None
"""A fleet as users write it: '2xcpu,cuda:0', a list of devices, or None for every sound device of the host."""

_OWN = ("config", "set", "history", "progress", "initializer", "initargs")


@dataclass(frozen=True, slots=True)
class ContextOptions:
    """How a Context is opened, but for its devices.

    Attributes
    ----------
    config, engine, address, policy, isolation, memory_pool_size, name, trace, set
        As for `hetero.Context`.
    profile
        'torch' puts the operators that torch ran in each task into the trace; the times of such a run are not kept
        for others. None for the configuration's.
    tag_output
        True puts device and task in front of each line that a task prints; None for the configuration's.
    history
        False neither reads nor writes the times measured in other runs; None for what suits whoever opens it.
    progress
        True shows the tasks done on each device, as they are done; None as HETERO_PROGRESS says, and where that is
        not set only under `hetero run`.
    initializer, initargs
        Called as `initializer(*initargs)` by each worker before its first task, also after a restart; what it puts
        into `hetero.tasks.worker_state()` is there for the worker's tasks. A device whose initializer raises at its
        first start is not used, and tasks that find no other fail with what it raised; where it raises at a restart,
        the worker is started again until it succeeds.

    Raises
    ------
    BadValueError
        A field is of a wrong type, or `initargs` has no effect.

    Examples
    --------
    >>> with ContextOptions(engine="inline", initializer=list).open("1xcpu") as ctx:
    ...     ctx.run(sum, [1, 2, 3])
    6
    """

    config: str | Path | Mapping[str, object] | Config | None = None
    engine: str | None = None
    address: str | None = None
    policy: str | None = None
    isolation: str | None = None
    memory_pool_size: str | int | None = None
    name: str | None = None
    trace: str | Path | None = None
    set: Sequence[str] | Mapping[str, object] = ()
    profile: str | None = None
    tag_output: bool | None = None
    history: bool | None = None
    progress: bool | None = None
    initializer: Callable[..., object] | None = None
    initargs: tuple[object, ...] = ()

    def __post_init__(self) -> None:
        check_fields(self)
        if self.initializer is None and self.initargs != ():
            raise BadValueError(
                f"initargs={self.initargs!r} has no effect without initializer=",
                remedy="give the function too, or leave it out",
            )
        refuse_coroutine(self.initializer)

    def overlaid(self, **keywords: object) -> ContextOptions:
        """Return these options with the keywords that were given, which are those that are neither None nor ().

        Raises
        ------
        BadValueError
            These options say the same thing already.

        Examples
        --------
        >>> ContextOptions(name="night").overlaid(engine="inline", name=None).name
        'night'
        """
        given = {name: value for name, value in keywords.items() if value is not None and value != ()}
        usual = {each.name: each.default for each in fields(self)}
        for name in given:
            if getattr(self, name) != usual[name]:
                raise BadValueError(
                    f"Context was given both {name}= and options=ContextOptions({name}=…)", remedy=f"leave {name}= out"
                )
        return replace(self, **given) if given else self  # type: ignore[arg-type]

    @property
    def keys(self) -> dict[str, object]:
        """What stands under keys of the configuration too, by key; None where that decides."""
        return {each.name: getattr(self, each.name) for each in fields(self) if each.name not in _OWN}

    def open(self, devices: Fleet = None, *, history: bool = True) -> Context:
        """Open a Context.

        Parameters
        ----------
        devices
            The fleet, as `hetero.Context` takes it.
        history
            Used where these options leave it open.

        Examples
        --------
        >>> with ContextOptions(engine="inline").open("1xcpu") as ctx:
        ...     ctx.run(abs, -1)
        1
        """
        from hetero.session.context import Context

        return Context(
            devices=devices, options=replace(self, history=history if self.history is None else self.history)
        )


def lent_or_opened(
    devices: Fleet | Context, options: ContextOptions | None = None, *, history: bool = True
) -> AbstractContextManager[Context]:
    """Return the Context that was lent, which stays open, or a new one, which is closed at the end of the block.

    Raises
    ------
    BadValueError
        Options are given for a Context that is open.
    """
    fleet, lent = devices_or_context(devices, options)
    return nullcontext(lent) if lent is not None else (options or ContextOptions()).open(fleet, history=history)


def devices_or_context(devices: Fleet | Context, options: ContextOptions | None = None) -> tuple[Fleet, Context | None]:
    """Return the fleet of a Context that is to be opened, or the Context that is open.

    Raises
    ------
    BadValueError
        Options are given for a Context that is open, or are of another class.
    """
    from hetero.session.context import Context

    options_argument("context", options, ContextOptions)
    if not isinstance(devices, Context):
        return devices, None
    if options is not None:
        raise BadValueError(
            "context= has no effect where devices= is an open Context", remedy="give it where that Context is opened"
        )
    return None, devices


OPENING = Moved("context", ContextOptions, {name: name for name in ("config", "set", "trace")})
"""Former keywords of functions that open a Context for themselves."""
