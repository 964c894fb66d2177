"""A member: the loop that a worker runs while a model is trained, from the first probe to the last step.

In: what to train, a line to the program. Out: the trained state from the first member, None from the others.
It must not decide alone: every member computes the same plan from the same numbers.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from hetero.comm.errors import GroupBrokenError
from hetero.comm.group import Group, open_rendezvous
from hetero.comm.lines import Address, Line
from hetero.drive.frame import Frame, current, enter
from hetero.floor import clock
from hetero.floor.errors import HeteroError
from hetero.model.device import Device
from hetero.plan import shares as planning
from hetero.plan.shares import Plan, StepModel
from hetero.train.values import EpochReport, Options, Totals, TrainingError

__all__ = ["Job", "train_member"]

_LEAST_DEADLINE_S = 5.0
_DEADLINE_STEPS = 20.0
_PROBE_BUDGET_S = 0.25
_TELL_S = 0.2
_EVALUATE_AT_ONCE = 256


@dataclass(frozen=True, slots=True)
class Job:
    """What is to be trained, as it travels to the members.

    Attributes
    ----------
    parts : pickled (model, loss, optimizer)
    options : of the run
    steps : steps done in all when the job is over
    names : the devices of the run, in the order of share tables and reports
    address : of the program's hub
    state : where to begin, None at the beginning
    costs : cost of each sample, mean 1; None where all cost the same
    number : of this job in its program, so that its time is not taken for another's
    """

    parts: bytes
    options: Options
    steps: int
    names: tuple[str, ...]
    address: Address
    state: bytes | None = None
    costs: Any = None
    number: int = 0


def train_member(job: Job, data: Any, test: Any) -> bytes | None:
    """Take part in a training run until it is over; runs as one task of the worker.

    Returns
    -------
    bytes or None
        The trained state from the first member.
    """
    frame = current()
    assert frame is not None
    outcome: list[Any] = []
    line = Line.dial(job.address)

    def work() -> None:
        try:
            enter(frame)
            with frame.backend.activate():
                outcome.append(_Member(job, data, test, line, frame).run())
        except BaseException as error:  # noqa: BLE001  it is raised again where the task ends
            outcome.append(error)

    thread = threading.Thread(target=work, name="hetero-train", daemon=True)
    thread.start()
    try:
        thread.join()
    finally:
        line.close()
    if isinstance(outcome[0], BaseException):
        raise outcome[0]
    state: bytes | None = outcome[0]
    return state


class _StopError(Exception):
    """The program wants no more."""


class _LeftError(Exception):
    """The device is left out from here on."""


class _Member:
    def __init__(self, job: Job, data: Any, test: Any, line: Line, frame: Frame) -> None:
        from hetero.train.data import Samples
        from hetero.train.replica import Replica, Throttle

        self.job = job
        self.options = job.options
        self.data: Samples = data
        self.test: Samples | None = test
        self.line = line
        self.device: Device = frame.device
        self.place = torch_place(frame.device)
        self.throttle = Throttle(frame.device.throttle_frac)
        self.replica = Replica(job.parts, job.options, self.place, len(job.names) + 1)
        if job.state is not None:
            self.replica.adopt(job.state)
        self.group = Group(0, 1)
        self.plan: Plan
        self.planned_steps = 0
        self.models: list[StepModel] = []
        self.team: tuple[str, ...] = ()
        self.generation = 0
        self.comm_s: list[float] = []
        self.totals = Totals()
        self.epoch_order: tuple[int, list[int]] = (-1, [])
        self.regroup_asked = False
        self.told_s = 0.0
        self.after_s = 0.0
        self.outsiders: dict[str, float] = {}

    # --- the whole -----------------------------------------------------------------------------------------

    def run(self) -> bytes | None:
        """Take part until the last step."""
        self.line.send("here", self.device.short)
        self._await("probe")
        model = self._probe()
        try:
            while self.replica.step < self.job.steps:
                model = self._take_part(model)
        except _LeftError:
            return None
        except _StopError:
            pass
        first = self.group.rank == 0 and self.team[:1] == (self.device.short,)
        self.group.close()
        return self.replica.state() if first else None

    def _take_part(self, model: StepModel) -> StepModel:
        self._form(model)
        try:
            self._measure_comm()
            self._first_plan()
            while self.replica.step < self.job.steps and not self._step():
                pass
        except GroupBrokenError:
            self.group.abort()
        if self.replica.step < self.job.steps:
            self.group.close()
        return self.models[self.team.index(self.device.short)]

    def _await(self, word: str) -> tuple[Any, ...]:
        while True:
            message = self.line.receive()
            assert message is not None
            if message[0] == "stop":
                raise _StopError
            if message[0] == "broken" and message[1] == self.generation and word != "form":
                raise GroupBrokenError("a member of the group is gone")
            if message[0] == word:
                return message[1:]

    # --- a group comes together ----------------------------------------------------------------------------

    def _form(self, model: StepModel) -> None:
        self.line.send("ready", self.replica.step, model)
        rank, team, models, source, behind, generation, outsiders = self._await("form")
        self.generation = generation
        self.team, self.models = team, list(models)
        self.outsiders = dict(outsiders)
        self.regroup_asked = False
        store = rendezvous = None
        if len(team) > 1:
            if rank == 0:
                store, rendezvous = open_rendezvous(f"generation-{generation}", len(team))
                self.line.send("rendezvous", generation, rendezvous)
            else:
                (rendezvous,) = self._await("rendezvous")
        self.group = Group(rank, len(team), rendezvous, store, _LEAST_DEADLINE_S)
        if behind:
            self._catch_up(source)

    def _catch_up(self, source: int) -> None:
        """Take over the state of the member that is furthest."""
        import pickle

        import torch

        mine = pickle.dumps((self.replica.state(), self.totals)) if self.group.rank == source else b""
        length = torch.tensor([len(mine)], dtype=torch.int64)
        self.group.broadcast(length, source)
        content = torch.zeros(int(length), dtype=torch.uint8)
        if mine:
            content.copy_(torch.frombuffer(bytearray(mine), dtype=torch.uint8))
        self.group.broadcast(content, source)
        if not mine:
            state, self.totals = pickle.loads(content.numpy().tobytes())
            self.replica.adopt(state)

    def _measure_comm(self) -> None:
        """Measure what an exchange of gradients costs, the same figure on every member."""
        import torch

        size = len(self.team)
        self.comm_s = [0.0] * (size + 1)
        if size == 1:
            return
        row = torch.zeros(max(1, self.replica.gradients.nbytes // 4), dtype=torch.float32)
        best_s = float("inf")
        for _ in range(4):
            self.group.all_reduce(torch.zeros(1))
            begun_s = clock.monotonic_s()
            self.group.all_reduce(row)
            best_s = min(best_s, clock.monotonic_s() - begun_s)
        worst = torch.tensor([best_s], dtype=torch.float64)
        self.group.all_reduce(worst, "max")
        self.comm_s = [0.0, 0.0, *(float(worst) * (count - 1) / (size - 1) for count in range(2, size + 1))]

    # --- shares --------------------------------------------------------------------------------------------

    @property
    def _units(self) -> int:
        """What the global batch consists of: samples, or fixed micro-batches."""
        return -(-self.options.global_batch // self.options.unit)

    def _first_plan(self) -> None:
        self._adopt_plan(self._planned())

    def _planned(self) -> Plan:
        wanted = self.options.shares
        if wanted == "auto":
            return planning.make_plan(self.models, self._units, self.comm_s)
        if wanted == "proportional":
            return planning.proportional_plan(self.models, self._units)
        weights = [1.0] * len(self.team) if isinstance(wanted, str) else [float(wanted[name]) for name in self.team]
        return planning.fixed_plan(self.models, planning.apportion(weights, self._units), self.comm_s)

    def _adopt_plan(self, plan: Plan) -> None:
        """Share by a new plan; devices that it leaves out leave, and the others form a group without them."""
        self.plan, self.planned_steps = plan, 0
        self.group.deadline_s = max(_LEAST_DEADLINE_S, _DEADLINE_STEPS * plan.step_s)
        if len(plan.members) == len(self.team):
            if self.group.rank == 0:
                self.line.send("plan", self._shares())
            return
        mine = self.team.index(self.device.short)
        if not plan.shares[mine]:
            self.line.send("left", plan.reasons[mine], self.models[mine].speed(self._units) * self.options.unit)
            self.group.close()
            raise _LeftError
        raise GroupBrokenError("some devices are left out from here on")

    def _counts(self, ids: Sequence[int]) -> tuple[int, ...]:
        """Give the samples of each member in this step."""
        unit, shares = self.options.unit, self.plan.shares
        if self.job.costs is not None and unit == 1:
            return planning.cut([float(self.job.costs[sample]) for sample in ids], shares)
        units = -(-len(ids) // unit)
        if units != self._units:
            shares = planning.apportion(shares, units)
        ends = [min(len(ids), unit * sum(shares[: end + 1])) for end in range(len(shares))]
        return tuple(end - begin for begin, end in pairwise([0, *ends]))

    def _load_of(self, ids: Sequence[int]) -> float:
        if self.job.costs is not None and self.options.unit == 1:
            return float(sum(self.job.costs[sample] for sample in ids))
        return len(ids) / self.options.unit

    def _learn(self, seconds: Sequence[float], ids: Sequence[int], counts: Sequence[int]) -> bool:
        """Take in the members' busy seconds; tells whether the plan changed."""
        begin = 0
        for rank, count in enumerate(counts):
            load = self._load_of(ids[begin : begin + count])
            begin += count
            self.models[rank] = self.models[rank].observed(load, seconds[rank])
        if self.options.shares != "auto":
            return False
        self.planned_steps += 1
        better = planning.replanned(self.plan, self.models, self._units, self.comm_s, self.planned_steps)
        if better is None:
            return False
        self._adopt_plan(better)
        return True

    # --- a step --------------------------------------------------------------------------------------------

    def _step(self) -> bool:
        """Do one step; True when a new group is to form."""
        begun_s = clock.monotonic_s()
        replica, rank = self.replica, self.group.rank
        ids = self._ids()
        counts = self._counts(ids)
        begin = sum(counts[:rank])
        mine = ids[begin : begin + counts[rank]]
        with self.throttle as busy:
            done = replica.compute(self.data, mine, len(ids))
        seconds = [0.0] * len(self.job.names)
        seconds[rank] = busy.seconds + self.after_s
        total, more = replica.reduce(self.group, done, [float(self._told_to_regroup()), *seconds])
        if total.samples != len(ids):
            raise TrainingError(
                f"{total.samples:g} samples took part in step {replica.step} instead of {len(ids)}",
                remedy="this is a mistake of hetero's: please report it",
            )
        if total.bad and self.options.on_nan == "stop":
            self.line.send("not a number", replica.step, replica.bad_samples(self.data, mine))
        with self.throttle as busy:
            replica.apply(total, len(ids))
        self.after_s = busy.seconds
        replica.step += 1
        self._add_up(total, clock.monotonic_s() - begun_s)
        self._tell(total)
        epoch_over = replica.step % self._steps_an_epoch() == 0
        if epoch_over:
            self._end_epoch()
        self._learn(more[1:], ids, counts)
        return bool(more[0])

    def _steps_an_epoch(self) -> int:
        return -(-len(self.data) // self.options.global_batch)

    def _ids(self) -> list[int]:
        from hetero.train.data import order

        epoch, step = divmod(self.replica.step, self._steps_an_epoch())
        if self.epoch_order[0] != epoch:
            self.epoch_order = (epoch, order(len(self.data), self.options.seed, epoch, self.options.shuffle))
        begin = step * self.options.global_batch
        return self.epoch_order[1][begin : begin + self.options.global_batch]

    def _told_to_regroup(self) -> bool:
        for message in self.line.waiting():
            if message[0] == "stop":
                raise _StopError
            if message == ("broken", self.generation):
                raise GroupBrokenError("a member of the group is gone")
            self.regroup_asked |= message[0] == "regroup"
        return self.regroup_asked

    # --- telling -------------------------------------------------------------------------------------------

    def _add_up(self, total: Any, seconds: float) -> None:
        sums = self.totals
        sums.samples += total.samples
        sums.weight += total.weight
        sums.loss += total.loss
        sums.right += total.right
        sums.classes += total.classes
        sums.seconds += seconds
        sums.steps += 1
        for name, model in zip(self.team, self.models, strict=True):
            speed = model.speed(self._units) * self.options.unit
            sums.speeds[name] = sums.speeds.get(name, 0.0) + speed

    def _tell(self, total: Any) -> None:
        if self.group.rank == 0 and clock.monotonic_s() - self.told_s > _TELL_S:
            self.told_s = clock.monotonic_s()
            self.line.send("step", self.replica.step, self._mean(total))

    def _mean(self, total: Any) -> float:
        divisor = total.weight if self.replica.loss.divides else total.samples
        return total.loss / divisor if divisor else 0.0

    def _end_epoch(self) -> None:
        """Test, tell the program, and do what it says; all members wait for its answer."""
        try:
            tested = self._test() if self.test is not None else None
            if self.group.rank == 0:
                self.line.send("epoch", self._report(tested))
            else:
                self.line.send("waits")
            (wants_stop,) = self._await("go")
        finally:
            self.totals = Totals()
        if wants_stop:
            raise _StopError

    def _test(self) -> Any:
        import torch

        from hetero.train.replica import Parts

        assert self.test is not None
        shares = planning.apportion(self.plan.shares, len(self.test))
        begin = sum(shares[: self.group.rank])
        with self.throttle:
            mine = self.replica.evaluate(self.test, range(begin, begin + shares[self.group.rank]), _EVALUATE_AT_ONCE)
        row = torch.tensor(mine.header, dtype=torch.float64)
        usual_s, self.group.deadline_s = self.group.deadline_s, self._test_deadline_s(shares)
        try:
            self.group.all_reduce(row)
        finally:
            self.group.deadline_s = usual_s
        return Parts(*row.tolist())

    def _test_deadline_s(self, shares: Sequence[int]) -> float:
        unit = self.options.unit
        slowest_s = max(model.seconds(share / unit) for model, share in zip(self.models, shares, strict=True))
        return max(_LEAST_DEADLINE_S, _DEADLINE_STEPS * slowest_s)

    def _report(self, tested: Any) -> EpochReport:
        sums = self.totals
        speeds = {name: speed / sums.steps for name, speed in sums.speeds.items()}
        return EpochReport(
            epoch=self.replica.step // self._steps_an_epoch(),
            step=self.replica.step,
            loss=self._mean(sums),
            accuracy=sums.right / sums.classes if sums.classes else None,
            seconds=sums.seconds,
            samples_per_s=sums.samples / sums.seconds,
            shares=self._shares(),
            speeds=self.outsiders | speeds,
            test_loss=None if tested is None else self._mean(tested),
            test_accuracy=None if tested is None or not tested.classes else tested.right / tested.classes,
        )

    def _shares(self) -> dict[str, int]:
        """Give the samples of a whole step by device."""
        options = self.options
        shares = [
            min(options.global_batch, options.unit * sum(self.plan.shares[: end + 1])) for end in range(len(self.team))
        ]
        own = [end - begin for begin, end in pairwise([0, *shares])]
        return dict.fromkeys(self.job.names, 0) | dict(zip(self.team, own, strict=True))

    # --- probing -------------------------------------------------------------------------------------------

    def _probe(self) -> StepModel:
        """Measure two points of t = a + b·n on a copy of the model, and refuse what cannot be keyed."""
        import torch

        from hetero.train.replica import Replica, refuse_unkeyed

        copy = Replica(self.job.parts, self.options, self.place, 0)
        unit, most = self.options.unit, min(self.options.global_batch, len(self.data))
        few = max(1, min(self._units // 16, most // unit // 2))
        before = torch.get_rng_state()
        self._timed(copy, few)
        few_s = min(self._timed(copy, few) for _ in range(2))
        affordable = int(few * _PROBE_BUDGET_S / max(few_s, 1e-9))
        many = max(1, min(self._units // 2, affordable, most // unit))
        if many <= few:
            many = min(2 * few, max(1, most // unit))
        many_s = min(self._timed(copy, many) for _ in range(2))
        refuse_unkeyed(before, "the model")
        if many <= few:
            return StepModel(0.0, few_s / few)
        return planning.fit_step(few, few_s, many, many_s)

    def _timed(self, copy: Any, units: int) -> float:
        ids = range(min(len(self.data), units * self.options.unit))
        with self.throttle as busy:
            done = copy.compute(self.data, list(ids), self.options.global_batch)
            copy.reduce(Group(0, 1), done, [])
            if not done.bad:
                copy.apply(done, len(ids))
        return busy.seconds


def torch_place(device: Device) -> str:
    """Give torch's name of a device.

    Raises
    ------
    HeteroError
        torch cannot use it.
    """
    if device.kind == "cpu":
        return "cpu"
    if device.kind in ("cuda", "rocm"):
        return f"cuda:{device.index}"
    if device.kind in ("xpu", "npu", "hpu"):
        return f"{device.kind}:{device.index}"
    if device.kind == "mps":
        return "mps"
    raise HeteroError(f"torch cannot train on {device.id}", remedy="name CPUs and GPUs that torch knows")
