"""A member: the loop that a worker runs while a model is trained, from the first probe to the last step.

In: what to train, a line to the program. Out: the trained state from the first member, None from the others.
It must not decide alone: every member computes the same plan from the same numbers.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

from hetero.comm.errors import GroupBrokenError
from hetero.comm.group import Group, open_rendezvous
from hetero.comm.lines import Line
from hetero.drive.frame import Frame, current, enter
from hetero.floor import clock
from hetero.model.device import Device
from hetero.plan.shares import Plan, StepModel, apportion
from hetero.train.checkpoints import TrainingCheckpoints
from hetero.train.job import Job
from hetero.train.probing import probe, torch_place
from hetero.train.sharing import Sharing
from hetero.train.values import EpochReport, Totals, TrainingError

__all__ = ["train_member"]

_LEAST_DEADLINE_S = 5.0
_DEADLINE_STEPS = 20.0
_TELL_S = 0.2
_END_S = 10.0
_EVALUATE_AT_ONCE = 256


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
        thread.join(_END_S)
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
        self.throttle = Throttle(frame.device.throttle_frac)
        self.place = torch_place(frame.device)
        self.replica = Replica(job.parts, job.options, self.place, len(job.names) + 1)
        if job.state is not None:
            self.replica.adopt(job.state)
        self.group = Group(0, 1)
        self.sharing: Sharing
        self.team: tuple[str, ...] = ()
        self.rank = 0
        self.generation = 0
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
        model = probe(self.job, self.place, self.data, self.throttle)
        try:
            while self.replica.step < self.job.steps:
                model = self._take_part(model)
        except _LeftError:
            return None
        except _StopError:
            pass
        finally:
            self.group.close()
        return self.replica.state() if self.team[:1] == (self.device.short,) else None

    def _take_part(self, model: StepModel) -> StepModel:
        models = self._form(model)
        try:
            comm_s = self._measure_comm()
            self.sharing = Sharing(self.options, self.team, models, comm_s, self.job.costs)
            models = self.sharing.models
            self._adopt_plan(self.sharing.plan)
            while self.replica.step < self.job.steps and not self._step():
                pass
        except GroupBrokenError:
            self.group.abort()
        if self.replica.step < self.job.steps:
            self.group.close()
        return models[self.rank]

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

    def _form(self, model: StepModel) -> list[StepModel]:
        """Form a group with whoever is ready; gives what is known of each member."""
        self.line.send("ready", self.replica.step, model)
        rank, team, models, source, behind, generation, outsiders = self._await("form")
        self.rank, self.team, self.generation = rank, team, generation
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
        return list(models)

    def _catch_up(self, source: int) -> None:
        """Take over the state of the member that is furthest."""
        import pickle

        import torch

        mine = pickle.dumps((self.replica.state(), self.totals)) if self.rank == source else b""
        length = torch.tensor([len(mine)], dtype=torch.int64)
        self.group.broadcast(length, source)
        content = torch.zeros(int(length), dtype=torch.uint8)
        if mine:
            content.copy_(torch.frombuffer(bytearray(mine), dtype=torch.uint8))
        self.group.broadcast(content, source)
        if not mine:
            state, self.totals = pickle.loads(content.numpy().tobytes())
            self.replica.adopt(state)

    def _measure_comm(self) -> list[float]:
        """Measure what an exchange of gradients costs, the same figure on every member."""
        import torch

        size = len(self.team)
        if size == 1:
            return [0.0, 0.0]
        row = torch.zeros(max(1, self.replica.gradients.nbytes // 4), dtype=torch.float32)
        best_s = float("inf")
        for _ in range(4):
            self.group.all_reduce(torch.zeros(1))
            begun_s = clock.monotonic_s()
            self.group.all_reduce(row)
            best_s = min(best_s, clock.monotonic_s() - begun_s)
        worst = torch.tensor([best_s], dtype=torch.float64)
        self.group.all_reduce(worst, "max")
        return [0.0, 0.0, *(float(worst) * (count - 1) / (size - 1) for count in range(2, size + 1))]

    # --- shares --------------------------------------------------------------------------------------------

    def _adopt_plan(self, plan: Plan) -> None:
        """Go by a new plan; devices that it leaves out leave, and the others form a group without them."""
        self.group.deadline_s = max(_LEAST_DEADLINE_S, _DEADLINE_STEPS * plan.step_s)
        if len(plan.members) == len(self.team):
            if self.rank == 0:
                self.line.send("plan", self.sharing.shares(self.job.names))
            return
        if not plan.shares[self.rank]:
            self.line.send("left", plan.reasons[self.rank], self.sharing.speeds()[self.device.short])
            raise _LeftError
        raise GroupBrokenError("some devices are left out from here on")

    # --- a step --------------------------------------------------------------------------------------------

    def _step(self) -> bool:
        """Do one step; True when a new group is to form."""
        begun_s = clock.monotonic_s()
        replica, rank = self.replica, self.rank
        ids = self._ids()
        counts = self.sharing.counts(ids)
        begin = sum(counts[:rank])
        mine = ids[begin : begin + counts[rank]]
        with self.throttle as busy:
            done = replica.compute(self.data, mine, len(ids), self.group)
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
        self._keep()
        epoch_over = replica.step % self._steps_an_epoch() == 0
        if epoch_over:
            self._end_epoch()
        better = self.sharing.learn(more[1:], ids, counts)
        if better is not None:
            self._adopt_plan(better)
        return bool(more[0])

    def _keep(self) -> None:
        """Write a checkpoint where one is due; the first member does."""
        job, step = self.job, self.replica.step
        if job.checkpoint and self.rank == 0 and (step % job.checkpoint_every == 0 or step == job.steps):
            facts = {"seed": self.options.seed, "global_batch": self.options.global_batch, "samples": len(self.data)}
            TrainingCheckpoints(job.checkpoint, job.keep).write(step, self.replica.state(), facts)

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
        for name, speed in self.sharing.speeds().items():
            sums.speeds[name] = sums.speeds.get(name, 0.0) + speed

    def _tell(self, total: Any) -> None:
        if self.rank == 0 and clock.monotonic_s() - self.told_s > _TELL_S:
            self.told_s = clock.monotonic_s()
            self.line.send("step", self.replica.step, self._mean(total))

    def _mean(self, total: Any) -> float:
        divisor = total.weight if self.replica.loss.divides else total.samples
        return total.loss / divisor if divisor else 0.0

    def _end_epoch(self) -> None:
        """Test, tell the program, and do what it says; all members wait for its answer."""
        try:
            tested = self._test() if self.test is not None else None
            if self.rank == 0:
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
        shares = apportion(self.sharing.plan.shares, len(self.test))
        begin = sum(shares[: self.rank])
        with self.throttle:
            mine = self.replica.evaluate(self.test, range(begin, begin + shares[self.rank]), _EVALUATE_AT_ONCE)
        row = torch.tensor(mine.header, dtype=torch.float64)
        usual_s, self.group.deadline_s = self.group.deadline_s, self._test_deadline_s(shares)
        try:
            self.group.all_reduce(row)
        finally:
            self.group.deadline_s = usual_s
        return Parts(*row.tolist())

    def _test_deadline_s(self, shares: Sequence[int]) -> float:
        unit = self.options.unit
        models = self.sharing.models
        slowest_s = max(model.seconds(share / unit) for model, share in zip(models, shares, strict=True))
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
            shares=self.sharing.shares(self.job.names),
            speeds=self.outsiders | speeds,
            test_loss=None if tested is None else self._mean(tested),
            test_accuracy=None if tested is None or not tested.classes else tested.right / tested.classes,
        )
