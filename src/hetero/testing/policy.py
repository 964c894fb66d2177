"""The conformance kit of policies: whoever writes one finds out here whether the core can rely on it.

In: a policy or the name of one. Out: nothing, or an AssertionError of one sentence that says what is wrong.
It must not judge how good a placement is, nor how fast: that is a benchmark.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Sequence
from copy import deepcopy
from dataclasses import fields

import numpy as np

from hetero.floor.errors import did_you_mean
from hetero.model.device import Device, DeviceType
from hetero.plan.policies.base import Floats, Memory, Policy, Proposal, ReadyTask, Traits, View, Waiting, traits
from hetero.plan.policies.registry import get, misnamed, unaskable
from hetero.testing import guide_step

__all__ = ["check_policy"]

_STEPS = 40
_LARGE = 10_000
_ABSENT = object()


def check_policy(policy: Policy | str, seed: int = 0) -> None:
    """Check what the core relies on in a policy.

    It is deterministic and keeps nothing to itself; it leaves the view, the tasks and its memory as they were;
    it proposes only tasks that it was shown, each once, for ready devices that can run them; it makes
    progress: a task that exactly one idle device can run is proposed for it, if not at once; it takes fleets of any
    size, from none to 10,000 devices; and it keeps to what it declares of itself, see `Traits`.

    Parameters
    ----------
    policy
        A policy, or a name that the registry knows.
    seed
        Of the fleets and tasks that it is shown.

    Raises
    ------
    AssertionError
        One sentence: the step of "Add a policy" in CONTRIBUTING.md, the policy, and what it did that it must not.

    Examples
    --------
    >>> check_policy("eft")
    """
    with guide_step("4 (register it)"):
        made = get(policy) if isinstance(policy, str) else policy
    with guide_step("1 (name, propose)"):
        name = _check_name(made, policy)
    kept = _kept(made)
    with guide_step("2 (pure, and as declared)"):
        for devices in (1, 2, 5):
            first = _story(made, seed, devices)
            again = _same(_story(made, seed, devices), first)
            assert again, f"{name} answered the same calls differently the second time: it keeps a state of its own"
        _check_traits(made, seed)
        _check_nothing_kept(made, kept)
    with guide_step("3 (work on the columns)"):
        _check_nothing_to_do(made)
        _check_progress(made)
        large = _Fleet(np.random.default_rng(seed), _LARGE)
        _asked(made, large.view(64), large.tasks(64), None)


def _check_name(policy: Policy, given: Policy | str) -> str:
    why = misnamed(policy, given if isinstance(given, str) else getattr(policy, "name", ""))
    why = why or unaskable(policy)
    assert not why, why
    return policy.name


class _Fleet:
    """Random fleets, tasks and queues."""

    def __init__(self, rng: np.random.Generator, count: int) -> None:
        self._rng = rng
        self.devices = tuple(
            Device(f"h0/null:{index}", "null", DeviceType("NULL"), "null", index, name=f"kind {index % 3}")
            for index in range(count)
        )
        self._next = 1
        self._now_s = 0.0

    def tasks(self, count: int) -> list[ReadyTask]:
        """Return new tasks; some devices cannot run some of them, some have inputs to wait for."""
        made = []
        for _ in range(count):
            seconds = self._rng.uniform(0.001, 10.0, len(self.devices))
            seconds[self._rng.random(len(self.devices)) < 0.2] = np.inf
            arrive = self._rng.uniform(0.0, 1.0, len(self.devices)) if self._rng.random() < 0.5 else None
            made.append(ReadyTask(self._next, seconds, arrive, f"f{self._next % 4}|"))
            self._next += 1
        return made

    def view(self, backlog: int) -> View:
        """Return a fleet in a random state, with some tasks waiting at its devices."""
        count, rng = len(self.devices), self._rng
        self._now_s += float(rng.uniform(0.0, 2.0))
        queued = rng.integers(0, 3, count)
        waiting = tuple(
            Waiting(task._replace(seconds=_able(task.seconds, home)), home)
            for task, home in zip(self.tasks(4), rng.integers(0, count, 4).tolist(), strict=True)
        )
        return View(
            now_s=self._now_s,
            devices=self.devices,
            ready=rng.random(count) < 0.8,
            available_s=self._now_s + np.where(queued > 0, rng.uniform(0.0, 5.0, count), 0.0),
            queued=queued,
            room=np.maximum(2 - queued, 0),
            busy_frac=np.where(rng.random(count) < 0.3, rng.random(count), 0.0),
            backlog=backlog,
            waiting=waiting,
        )


def _able(seconds: Floats, device: int) -> Floats:
    able = seconds.copy()
    able[device] = 1.0
    return able


def _story(policy: Policy, seed: int, devices: int) -> list[object]:
    """Return the answers to a number of calls, each checked."""
    fleet, memory = _Fleet(np.random.default_rng(seed), devices), None
    told: list[object] = []
    for step in range(_STEPS):
        shown = fleet.tasks(step % 7)
        proposals, memory = _asked(policy, fleet.view(len(shown) * (1 + step % 3)), shown, memory)
        told.append((list(proposals), memory))
    return told


def _asked(policy: Policy, view: View, ready: Sequence[ReadyTask], memory: Memory) -> tuple[Sequence[Proposal], Memory]:
    """Ask twice; check the answer, and that nothing was changed."""
    before = deepcopy((view, list(ready), memory), {id(view.devices): view.devices})
    first = policy.propose(view, ready, memory)
    for what, old, new in zip(("view", "tasks", "memory"), before, (view, list(ready), memory), strict=True):
        assert _same(old, new), f"{policy.name} changed the {what} that it was handed: it must be pure"
    second = policy.propose(view, ready, memory)
    again = _same(list(first[0]), list(second[0])) and _same(first[1], second[1])
    assert again, f"{policy.name} answered the same call in two ways: it must be deterministic"
    _check_proposals(policy.name, view, ready, first[0])
    if traits(policy).lazy_sends:
        _check_laziness(policy.name, view, ready, first[0])
    return first


def _check_proposals(name: str, view: View, ready: Sequence[ReadyTask], proposals: Sequence[Proposal]) -> None:
    shown = {task.id: task for task in (*ready, *(entry.task for entry in view.waiting))}
    seen: set[int] = set()
    for task, device in proposals:
        assert task in shown, f"{name} proposed task {task}, which it was not shown"
        assert task not in seen, f"{name} proposed task {task} twice in one call"
        assert 0 <= device < len(view.devices), f"{name} proposed device {device} of {len(view.devices)}"
        assert view.ready[device], f"{name} proposed task {task} for {view.devices[device].id}, which is not ready"
        assert np.isfinite(shown[task].seconds[device]), (
            f"{name} proposed task {task} for {view.devices[device].id}, which cannot run it"
        )
        seen.add(task)


def _check_laziness(name: str, view: View, ready: Sequence[ReadyTask], proposals: Sequence[Proposal]) -> None:
    room, own = view.room.copy(), {task.id for task in ready}
    for task, device in proposals:
        assert task in own, f"{name} declares lazy_sends and moves task {task}, which waits at a device"
        room[device] -= 1
        assert room[device] >= 0, (
            f"{name} declares lazy_sends and proposes {view.devices[device].id}, which has no room"
        )


def _kept(policy: Policy) -> dict[str, object]:
    """Return what a policy and its class hold, by name, as bytes where they can be pickled."""
    return {name: _frozen(value) for name, value in _attributes(policy)}


def _attributes(policy: Policy) -> Iterator[tuple[str, object]]:
    for kind in reversed(type(policy).__mro__):
        slots = kind.__dict__.get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            yield name, getattr(policy, name, None)
        yield from ((name, value) for name, value in vars(kind).items() if not name.startswith("__"))
    yield from getattr(policy, "__dict__", {}).items()


def _frozen(value: object) -> object:
    try:
        return pickle.dumps(value)
    except Exception:  # noqa: BLE001  what cannot be pickled is compared as the object that it is
        return value


def _check_nothing_kept(policy: Policy, before: dict[str, object]) -> None:
    after = _kept(policy)
    for name in {**before, **after}:
        assert before.get(name, _ABSENT) == after.get(name, _ABSENT), (
            f"{policy.name} changes {name} on self when it is asked: what it must remember goes in and out as memory"
        )


def _check_traits(policy: Policy, seed: int) -> None:
    known = [field.name for field in fields(Traits)]
    for name, value in _attributes(policy):
        near = did_you_mean(name, known) if isinstance(value, bool) and name not in known else ""
        assert not near, f"{policy.name} declares {name} = {value}, which nothing reads{near}"
    for field in fields(Traits):
        declared = getattr(policy, field.name, False)
        assert isinstance(declared, bool), f"{policy.name} declares {field.name} = {declared!r}: it is True or False"
    if not traits(policy).lone_to_fastest:
        return
    rng = np.random.default_rng(seed)
    for number in range(1, 9):
        seconds = rng.uniform(0.001, 10.0, number)
        proposals, memory = _asked(policy, _idle(number), (ReadyTask(number, seconds, None, "f|"),), None)
        fastest = [(number, int(seconds.argmin()))]
        assert list(map(tuple, proposals)) == fastest, (
            f"{policy.name} declares lone_to_fastest and proposes {proposals}"
        )
        assert memory is None, f"{policy.name} declares lone_to_fastest and remembers {memory!r}"


def _check_nothing_to_do(policy: Policy) -> None:
    for devices in (0, 3):
        proposals, _ = _asked(policy, _idle(devices), (), None)
        assert not proposals, f"{policy.name} proposed a task when there was none"
        nowhere = ReadyTask(1, np.full(devices, np.inf), None, "f|")
        proposals, _ = _asked(policy, _idle(devices), (nowhere,), None)
        assert not proposals, f"{policy.name} proposed a task that no device can run"


def _check_progress(policy: Policy) -> None:
    """One task, one idle device that can run it: it has to be proposed within a few rounds."""
    for able in range(4):
        memory: Memory = None
        task = ReadyTask(7, np.where(np.arange(4) == able, 1.0, np.inf), None, "f|")
        for turn in range(16):
            proposals, memory = _asked(policy, _idle(4, float(turn)), (task,), memory)
            if proposals:
                break
        else:
            raise AssertionError(f"{policy.name} never proposed, in 16 calls, a task that only the idle device can run")


def _idle(count: int, now_s: float = 0.0) -> View:
    return View(
        now_s=now_s,
        devices=_Fleet(np.random.default_rng(0), count).devices,
        ready=np.ones(count, dtype=np.bool_),
        available_s=np.full(count, now_s),
        queued=np.zeros(count, dtype=np.int64),
        room=np.ones(count, dtype=np.int64),
        busy_frac=np.zeros(count),
        backlog=1,
    )


def _same(one: object, other: object) -> bool:
    """Compare values in which arrays may be nested."""
    if isinstance(one, np.ndarray):
        return isinstance(other, np.ndarray) and np.array_equal(one, other)
    if isinstance(one, View) and isinstance(other, View):
        return all(_same(getattr(one, name), getattr(other, name)) for name in View.__slots__)
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        return len(one) == len(other) and all(_same(a, b) for a, b in zip(one, other, strict=True))
    return bool(one == other)
