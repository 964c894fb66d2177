"""The simulated engine: workers that take virtual time, links that are shared, and what goes wrong with them.

In: the commands that a real engine gets. Out: the events that it would tell, put into the simulation's queue.
It must not look at the core, and it knows no time but the simulation's.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from math import exp
from typing import NamedTuple

from hetero.drive.sim_faults import Dice, Faults
from hetero.drive.sim_values import SimTask
from hetero.model.commands import Cancel, Discard, Free, Launch, Run, RunGroup, StartWorker, Transfer, Withdraw
from hetero.model.device import HOST_NODE, Device
from hetero.model.events import (
    DeviceLost,
    DeviceReady,
    Event,
    TaskFailed,
    TaskFinished,
    TaskResumed,
    TaskSuspended,
    TaskWithdrawn,
    TransferFailed,
    TransferFinished,
)
from hetero.model.tasks import Failure, FailureKind, Task
from hetero.model.topology import Link, Topology

__all__ = ["Costs", "SimEngine", "Truth"]

STARTS = 3
"""How often running a worker may fail to start before its device is lost for good."""

Truth = Callable[[Task, Device], float]
"""How long a task really takes on a device, s."""


class Costs(NamedTuple):
    """What things cost in a simulated run.

    Attributes
    ----------
    noise
        Standard deviation of the logarithm of run times; 0 for none.
    launch_s
        Seconds of a worker's time per attempt, beyond the truth.
    start_s
        Seconds until a worker that is started takes tasks.
    starts_s
        The same by device id, where devices differ; those that are not named take `start_s`.
    notice_s
        Seconds until the loss of a worker is noticed.
    shared
        True when transfers over one link or bus follow one another; else each has it alone.
    tick_s
        Seconds between two times at which the core hears what happened; 0 tells it everything at once.
    """

    noise: float = 0.0
    launch_s: float = 0.0
    start_s: float = 0.0
    notice_s: float = 0.001
    shared: bool = True
    tick_s: float = 0.0
    starts_s: Mapping[str, float] = {}


class _Group:
    """The members of one group attempt; once one failed, the others wait until they are stopped."""

    __slots__ = ("failed",)

    def __init__(self) -> None:
        self.failed = False


class _SimAttempt(NamedTuple):
    task: int
    attempt: int
    group: _Group | None
    rank: int = 0
    over: int = 0


class _Open(NamedTuple):
    """What an attempt that nests others has left: whom it waits for, s of work, s of its time so far."""

    attempt: _SimAttempt
    waits: set[int]
    left_s: float
    began_s: float
    took_s: float


class _Worker:
    """One device's worker. `life` grows with every start and loss, so that what was due for an old one is void."""

    __slots__ = (
        "began_s", "busy_s", "current", "device", "factor", "failed_starts", "gone", "hangs", "life", "open", "queue",
        "stack", "started_s", "took_s", "turn", "up",
    )  # fmt: skip

    def __init__(self, device: Device) -> None:
        self.device = device
        self.queue: deque[_SimAttempt] = deque()
        self.current: _SimAttempt | None = None
        self.stack: list[_Open] = []
        self.open: dict[tuple[int, int], set[int]] = {}
        self.began_s = self.took_s = 0.0
        self.started_s = 0.0
        self.busy_s = 0.0
        self.factor = 1.0
        self.failed_starts = 0
        self.life = 0
        self.turn = 0
        self.up = False
        self.gone = False
        self.hangs = False


class SimEngine:
    """Carries out commands in virtual time.

    Parameters
    ----------
    fleet, truth, topology, costs, faults
        What is simulated.
    dice
        Draws every chance.
    at
        Puts a call into the simulation's queue, `delay_s` from now.
    post
        Hands an event to the core, now.
    now_s
        Gives the time.
    task_of
        Gives the task of an id, and the bytes of its result.
    nested
        What the attempts at a task submit, by its id.
    submit
        Hands that in for an attempt; gives the ids.

    Attributes
    ----------
    present
        The data items on each memory node.
    happened
        How often each fault happened.
    """

    def __init__(
        self,
        fleet: Sequence[Device],
        truth: Truth,
        topology: Topology,
        costs: Costs,
        faults: Faults,
        dice: Dice,
        *,
        at: Callable[[float, Callable[[], None]], None],
        post: Callable[[Event], None],
        now_s: Callable[[], float],
        task_of: Callable[[int], tuple[Task, int]],
        nested: Mapping[int, Sequence[SimTask]],
        submit: Callable[[int, int], tuple[int, ...]],
    ) -> None:
        self.workers = {device.id: _Worker(device) for device in fleet}
        self.present: dict[str, set[int]] = {device.memory_node: set() for device in fleet}
        self.present.setdefault(HOST_NODE, set())
        self.happened: Counter[str] = Counter()
        self.starts = 0
        self._truth, self._topology, self._costs, self._faults = truth, topology, costs, faults
        self._dice, self._at, self._post, self._now_s, self._task_of = dice, at, post, now_s, task_of
        self._nested, self._submit = nested, submit
        self._node_life: Counter[str] = Counter()
        self._link_free_s: dict[object, float] = {}
        self._results: dict[tuple[int, int], tuple[str, int]] = {}
        self._orders: dict[type, Callable[..., None]] = {
            Run: self._run,
            RunGroup: self._run_group,
            Withdraw: self._withdraw,
            Cancel: self._cancel,
            Transfer: self._transfer,
            Free: self._free,
            StartWorker: self._start_worker,
            Discard: self._discard,
        }

    def carry_out(self, command: object) -> None:
        """Carry out one command of the engine's."""
        self._orders[type(command)](command)

    # workers

    def start(self, name: str) -> None:
        """Start a worker that was not there."""
        worker = self.workers[name]
        worker.life += 1
        worker.failed_starts *= not worker.gone
        worker.up = worker.gone = False
        start_s = self._costs.starts_s.get(name, self._costs.start_s)
        self._at(start_s, partial(self._started, worker, worker.life))

    def _start_worker(self, command: StartWorker) -> None:
        worker = self.workers[command.device]
        if not worker.up and not worker.gone:
            self.start(command.device)

    def _started(self, worker: _Worker, life: int) -> None:
        if worker.life != life or worker.up:
            return
        if self._dice.happens(self._faults.start):
            self.happened["start"] += 1
            worker.failed_starts += 1
            worker.gone = worker.failed_starts >= STARTS
            self._post(DeviceLost(self._now_s(), worker.device.id, "its worker did not start", worker.gone, 0))
            return
        worker.up, worker.failed_starts = True, 0
        self.starts += 1
        self._post(DeviceReady(self._now_s(), worker.device.id))

    def lose(self, name: str, reason: str, *, permanent: bool = False) -> None:
        """Kill a worker with all that it holds; the core learns of it a little later."""
        worker = self.workers[name]
        life = worker.life = worker.life + 1
        was, worker.current = worker.current, None
        self._account(worker, was)
        worker.queue.clear()
        worker.stack.clear()
        worker.open.clear()
        worker.up, worker.gone = False, permanent
        node = worker.device.memory_node
        if node != HOST_NODE:
            self._node_life[node] += 1
            self.present[node].clear()
        if was is not None and was.group is not None:
            was.group.failed = True
        late = was is not None and was.group is None and self._dice.happens(self._faults.late)
        task = 0 if was is None else was.task
        self._at(self._costs.notice_s, partial(self._noticed, worker, life, reason, permanent, task))
        if late and was is not None:
            self.happened["late"] += 1
            self._at(2.0 * self._costs.notice_s, partial(self._finishes, worker, was, worker.started_s))

    def _noticed(self, worker: _Worker, life: int, reason: str, permanent: bool, task: int) -> None:
        if worker.life == life:
            self._post(DeviceLost(self._now_s(), worker.device.id, reason, permanent, task))

    def live(self) -> list[str]:
        """Return the devices whose workers take tasks, in order."""
        return [name for name, worker in self.workers.items() if worker.up]

    # attempts

    def _run(self, command: Run) -> None:
        worker = self.workers[command.device]
        if worker.up:
            worker.queue.extend(_SimAttempt(each.task, each.attempt, None, 0, each.over) for each in command.launches)
            self._next(worker)

    def _run_group(self, command: RunGroup) -> None:
        group = _Group()
        launch: Launch = command.launch
        for rank, name in enumerate(command.devices):
            worker = self.workers[name]
            if not worker.up:
                group.failed = True
                continue
            went_on = worker.current is not None and worker.current.task in self._nested
            free = worker.current is None or went_on
            assert free, f"{name} runs {worker.current} as group task {launch.task} comes"
            worker.queue.append(_SimAttempt(launch.task, launch.attempt, group, rank))
        for name in command.devices:
            self._next(self.workers[name])

    def _next(self, worker: _Worker) -> None:
        if worker.current is None and worker.stack and not worker.stack[-1].waits:
            self._resume(worker)
        if worker.stack and worker.current is None:
            self._hand_back(worker)
        if worker.current is not None or not worker.queue:
            return
        attempt = worker.current = worker.queue.popleft()
        if worker.stack and attempt.group is None:
            self.happened["strangers"] += worker.stack[-1].attempt.task not in self._above(attempt.task)
        worker.turn += 1
        worker.started_s = worker.began_s = self._now_s()
        worker.took_s = 0.0
        task, _ = self._task_of(attempt.task)
        self._inputs_are_there(worker, task)
        seconds = self._truth(task, worker.device) * worker.factor + self._costs.launch_s
        nests = attempt.task in self._nested
        if nests and not self._spreads(attempt, task):
            seconds, nests = seconds + self._nested_s(self._nested[attempt.task], worker), False
        if self._costs.noise:
            seconds *= exp(self._costs.noise * self._dice.normal())
        ends = self._ends(worker, task)
        worker.hangs = ends == "hang"
        if worker.hangs:
            self.happened["hang"] += 1
            return
        if ends == "crash":
            seconds *= self._dice.draw()
        if nests and not ends:
            self._at(0.0, partial(self._nest, worker, worker.life, worker.turn))
            self._at(seconds / 2, partial(self._wait, worker, worker.life, worker.turn, seconds / 2))
            return
        self._at(seconds, partial(self._end, worker, worker.life, worker.turn, ends))

    @staticmethod
    def _spreads(attempt: _SimAttempt, task: Task) -> bool:
        """Return whether what an attempt nests goes elsewhere, and it waits for that."""
        return attempt.group is None and not task.request.exclusive

    def _nested_s(self, nested: Sequence[SimTask], worker: _Worker) -> float:
        """Return how long nested tasks take that run at once in their parent's worker, s."""
        own_s = sum(self._truth(entry.task, worker.device) for entry in nested) * worker.factor
        return own_s + sum(self._nested_s(entry.nested, worker) for entry in nested)

    def _hand_back(self, worker: _Worker) -> None:
        """Hand back what was sent and may not run on top of the attempt that waits."""
        top = worker.stack[-1].attempt.task
        for attempt in list(worker.queue):
            over = attempt.over or (self._task_of(attempt.task)[0].parent or (0,))[0]
            if over != top and attempt.group is None:
                self._withdraw(Withdraw(worker.device.id, attempt.task, attempt.attempt))

    def _above(self, task: int) -> Iterator[int]:
        """Yield the tasks that a task is nested in."""
        while parent := self._task_of(task)[0].parent:
            task = parent[0]
            yield task

    def _nest(self, worker: _Worker, life: int, turn: int) -> None:
        """Submit what an attempt that has begun nests."""
        attempt = worker.current
        if worker.life == life and worker.turn == turn and attempt is not None:
            worker.open[attempt[:2]] = waits = set[int]()
            waits.update(self._submit(*attempt[:2]))

    def _wait(self, worker: _Worker, life: int, turn: int, left_s: float) -> None:
        """Suspend an attempt until what it submitted is over."""
        attempt = worker.current
        if worker.life != life or worker.turn != turn or attempt is None:
            return
        now_s, waits = self._now_s(), worker.open.pop(attempt[:2], set())
        if not waits:
            self._at(left_s, partial(self._end, worker, life, turn, ""))
            return
        self.happened["suspended"] += 1
        self._account(worker, attempt)
        took_s = worker.took_s + now_s - worker.started_s
        worker.stack.append(_Open(attempt, waits, left_s, worker.began_s, took_s))
        worker.current = None
        awaits = next(iter(waits)) if len(waits) == 1 else 0
        self._post(TaskSuspended(now_s, *attempt[:2], worker.device.id, now_s, awaits))
        self._next(worker)

    def _resume(self, worker: _Worker) -> None:
        """Resume the topmost attempt."""
        found = worker.stack.pop()
        worker.current, worker.began_s, worker.took_s = found.attempt, found.began_s, found.took_s
        worker.turn += 1
        now_s = worker.started_s = self._now_s()
        self._post(TaskResumed(now_s, *found.attempt[:2], worker.device.id, now_s))
        self._at(found.left_s, partial(self._end, worker, worker.life, worker.turn, ""))

    def answer(self, task: int, attempt: int, nested: int) -> None:
        """Notify an attempt, a little later, that a task which it submitted is over."""
        self._at(self._costs.notice_s, partial(self._answered, (task, attempt), nested))

    def _answered(self, which: tuple[int, int], nested: int) -> None:
        for worker in self.workers.values():
            worker.open.get(which, set()).discard(nested)
            for found in worker.stack:
                if found.attempt[:2] == which:
                    found.waits.discard(nested)
            self._next(worker)

    def _inputs_are_there(self, worker: _Worker, task: Task) -> None:
        node = worker.device.memory_node
        lacking = [item for item in task.inputs if self._is_data(item) and item not in self.present[node]]
        shared = task.request.devices > 1
        assert shared or not lacking, f"task {task.id} starts on {worker.device.id} without items {lacking}"

    def _is_data(self, item: int) -> bool:
        return any(item in items for items in self.present.values())

    def _ends(self, worker: _Worker, task: Task) -> str:
        """Draw how an attempt ends."""
        faults = self._faults
        if task.id in faults.poison or task.name in faults.poison_names:
            return "crash"
        if task.size > faults.out_of_memory_size:
            return "out_of_memory"
        if faults.absent and (task.signature.partition("|")[0], worker.device.label) in faults.absent:
            return "missing_package"
        return faults.outcome(self._dice.draw()) if faults.attempts_fail else ""

    def _end(self, worker: _Worker, life: int, turn: int, ends: str) -> None:
        attempt = worker.current
        if worker.life != life or worker.turn != turn or attempt is None:
            return
        if ends == "crash":
            self.happened["crash"] += 1
            self.lose(worker.device.id, "its worker died")
            return
        if attempt.group is not None and attempt.group.failed:
            return
        worker.current = None
        if ends:
            self.happened[ends] += 1
            self._fails(worker, attempt, ends, "it failed")  # type: ignore[arg-type]
        else:
            self._account(worker, attempt)
            self._finishes(worker, attempt, worker.began_s, worker.took_s + self._now_s() - worker.started_s)
        self._next(worker)

    def _finishes(self, worker: _Worker, attempt: _SimAttempt, started_s: float, took_s: float = -1.0) -> None:
        now_s = self._now_s()
        nbytes = 0 if attempt.rank else self._task_of(attempt.task)[1]
        node = worker.device.memory_node if nbytes else HOST_NODE
        if nbytes:
            self._results[attempt[:2]] = (node, self._node_life[node])
        seconds, name = now_s - started_s if took_s < 0.0 else took_s, worker.device.id
        self._post(TaskFinished(now_s, attempt.task, attempt.attempt, name, started_s, seconds, nbytes, node))

    def _fails(self, worker: _Worker, attempt: _SimAttempt, kind: FailureKind, message: str) -> None:
        self._account(worker, attempt)
        worker.open.pop(attempt[:2], None)
        self._failed(worker, attempt, worker.started_s, Failure(kind, message))

    def _failed(self, worker: _Worker, attempt: _SimAttempt, started_s: float, failure: Failure) -> None:
        if attempt.group is not None:
            attempt.group.failed = True
        now_s, name = self._now_s(), worker.device.id
        self._post(TaskFailed(now_s, attempt.task, attempt.attempt, name, started_s, now_s - started_s, failure))

    def _account(self, worker: _Worker, attempt: _SimAttempt | None) -> None:
        if attempt is not None:
            worker.busy_s += self._now_s() - worker.started_s

    def _withdraw(self, command: Withdraw) -> None:
        worker = self.workers[command.device]
        for attempt in worker.queue:
            if attempt[:2] == (command.task, command.attempt):
                worker.queue.remove(attempt)
                self.happened["withdrawn"] += 1
                self._post(TaskWithdrawn(self._now_s(), command.task, command.attempt, command.device))
                return

    def _cancel(self, command: Cancel) -> None:
        worker = self.workers[command.device]
        wanted = (command.task, command.attempt)
        current = worker.current
        if current is not None and current[:2] == wanted:
            self._stop(worker, current)
            return
        for found in worker.stack:
            if found.attempt[:2] == wanted:  # it ends once it is the topmost
                found.waits.clear()
                self._at(0.0, partial(self._next, worker))
                return
        for attempt in worker.queue:
            if attempt[:2] == wanted:
                worker.queue.remove(attempt)
                failure = Failure("cancelled", "it was stopped before it started")
                self._at(0.0, partial(self._failed, worker, attempt, self._now_s(), failure))
                return

    def _stop(self, worker: _Worker, attempt: _SimAttempt) -> None:
        self.happened["stopped"] += 1
        if worker.hangs or self._dice.happens(self._faults.replaced):
            self.lose(worker.device.id, "its worker was replaced")
            return
        worker.current = None
        self._fails(worker, attempt, "cancelled", "it was stopped")
        self._next(worker)

    def _discard(self, command: Discard) -> None:
        self.happened["discarded"] += 1
        self._results.pop((command.task, command.attempt), None)

    # data

    def put(self, item: int) -> None:
        """Keep a value of the user's on the host."""
        self.present[HOST_NODE].add(item)

    def commit(self, task: int, attempt: int) -> None:
        """Make the result of an attempt the data item of the task, unless its node was lost meanwhile."""
        node, life = self._results.pop((task, attempt), ("", 0))
        if node and life == self._node_life[node]:
            self.present[node].add(task)

    def _free(self, command: Free) -> None:
        self.present.setdefault(command.node, set()).discard(command.item)

    def _dead(self, node: str) -> bool:
        """Return whether a node's worker died, which the core may not know yet."""
        return node != HOST_NODE and not any(
            worker.up for worker in self.workers.values() if worker.device.memory_node == node
        )

    def _transfer(self, command: Transfer) -> None:
        if self._dead(command.src) or self._dead(command.dst):
            return
        now_s = begin_s = self._now_s()
        for link in self._topology.route(command.src, command.dst):
            begin_s = self._cross(link, command.nbytes, begin_s)
        lives = (self._node_life[command.src], self._node_life[command.dst])
        fails = self._dice.happens(self._faults.transfer)
        self._at(begin_s - now_s, partial(self._transferred, command, now_s, lives, fails))

    def _cross(self, link: Link, nbytes: int, begin_s: float) -> float:
        """Return when a transfer that is ready to cross a link at `begin_s` has done so."""
        if not self._costs.shared:
            return begin_s + link.seconds(nbytes)
        key: object = link.bus or (link.src, link.dst)
        end_s = max(begin_s, self._link_free_s.get(key, 0.0)) + link.seconds(nbytes)
        self._link_free_s[key] = end_s
        return end_s

    def _transferred(self, command: Transfer, started_s: float, lives: tuple[int, int], fails: bool) -> None:
        if lives != (self._node_life[command.src], self._node_life[command.dst]):
            return
        item, src, dst, nbytes = command
        now_s = self._now_s()
        if fails:
            self.happened["transfer"] += 1
            self._post(TransferFailed(now_s, item, src, dst, "the link failed"))
            return
        assert item in self.present[src], f"item {item} is to be copied from {src}, where it is not"
        self.present[dst].add(item)
        self._post(TransferFinished(now_s, item, src, dst, nbytes, started_s, now_s - started_s))
