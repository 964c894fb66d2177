"""A member: the loop that a worker runs while a model is trained, from the first probe to the last step.

In: what to train, a line to the program. Out: the trained state from the first member, None from the others.
It must not decide alone: every member computes the same plan from the same numbers.
"""

from __future__ import annotations

import functools
import gc
import threading
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

from hetero.backends.registry import torch_place
from hetero.backends.torch import is_out_of_memory
from hetero.comm.errors import GroupBrokenError, LineClosedError
from hetero.comm.lines import Line
from hetero.drive.annotations import record_collective
from hetero.drive.frame import Frame, current, enter
from hetero.drive.profiling import TorchProfile
from hetero.floor import clock
from hetero.floor.errors import HeteroError, OutOfDeviceMemoryError
from hetero.floor.own_memory import freed_memory_kept
from hetero.model.annotations import TrainingStep
from hetero.model.device import Device
from hetero.plan.training.shares import SharePlan, StepModel, apportion
from hetero.train import messages as msg
from hetero.train.job import TrainingJob
from hetero.train.membership import Membership, StopError
from hetero.train.memory import KeptPasses, PassLimit
from hetero.train.probe import probe
from hetero.train.share_planner import SharePlanner
from hetero.train.values import EpochReport, StepReport, Totals, TrainingError

if TYPE_CHECKING:
    from hetero.train.replica import ModelReplica, Parts

__all__ = ["PROFILED", "StepProfile", "train_member"]

_LEAST_TEST_DEADLINE_S = 5.0
_DEADLINE_STEPS = 20.0
_TELL_S = 0.2
_END_S = 10.0
_EVALUATE_AT_ONCE = 256
_TRIED = 8

SETTLED = 2
"""Steps of a member that are not profiled: the first ones are slow."""
PROFILED = 3
"""Steps that are."""


class StepProfile:
    """Counts the steps of a member and profiles some of them, where its frame asks for that.

    Parameters
    ----------
    frame
        Of the member's task.
    """

    def __init__(self, frame: Frame) -> None:
        self._left = SETTLED + PROFILED if frame.profile else 0
        self._profile = TorchProfile(frame)

    def begin(self) -> None:
        """Record that a step begins."""
        if self._left == PROFILED:
            self._profile.__enter__()

    def end(self) -> None:
        """Record that a step has ended."""
        if self._left:
            self._left -= 1
            if not self._left:
                self.close()

    def close(self) -> None:
        """Stop, also in the middle of the steps."""
        self._left = 0
        self._profile.__exit__()


def train_member(job: TrainingJob, data: object, test: object) -> bytes | None:
    """Take part in a training run until it is over; runs as one task of the worker.

    Returns
    -------
    bytes or None
        The trained state from the first member.
    """
    from hetero.train.compatibility import in_process

    frame = current()
    assert frame is not None
    outcome: list[Any] = []
    line = Line.dial(job.address)

    def work() -> None:
        try:
            enter(frame)
            with frame.backend.activate(), freed_memory_kept(), in_process(job.process):
                outcome.append(_Member(job, data, test, line, frame).run())
        except BaseException as error:  # noqa: BLE001  it is raised again where the task ends
            outcome.append(error)

    thread = threading.Thread(target=work, name="hetero-train", daemon=True)
    with freed_memory_kept():
        thread.start()
        try:
            thread.join()
        finally:
            with suppress(LineClosedError):
                msg.send_message(line, msg.MemberEnded())
            line.close()
            thread.join(_END_S)
    if isinstance(outcome[0], BaseException):
        raise outcome[0]
    state: bytes | None = outcome[0]
    return state


train_member.profiles_itself = True  # type: ignore[attr-defined]


@functools.cache
def _spare_what_is_there() -> None:
    """Exempt what a process holds after training from garbage collection: with torch, 60 ms of each."""
    gc.freeze()


class _KnownMember(NamedTuple):
    """What a member knows after a run, and need not find out again where nothing but the trained state was changed.

    Attributes
    ----------
    number
        Of the job, see `TrainingJob.settled`.
    model, link_s
        As `MemberReady` has them.
    whole, most
        Of the passes, see `PassLimit`.
    channels_last
        Whether convolutions work with channels last.
    shapes
        Of batches, that were tried.
    """

    number: int
    model: StepModel
    link_s: float
    whole: str
    most: float
    channels_last: bool
    shapes: tuple[object, ...]


_settled: dict[str, _KnownMember] = {}
"""By device; this process may have several."""


class _LeftError(Exception):
    """The device is left out from here on."""


class _Member(Membership):
    def __init__(self, job: TrainingJob, data: Any, test: Any, line: Line, frame: Frame) -> None:
        from hetero.drive.throttle import Throttle
        from hetero.train.data import Samples
        from hetero.train.prefetch import PrefetchingSamples

        self.options = job.options
        self.data: Samples = data
        self.test: Samples | None = test
        self.frame = frame
        self.profile = StepProfile(frame)
        self.device: Device = frame.device
        self.throttle = Throttle(frame.device.throttle_frac)
        self.place = torch_place(frame.device)
        super().__init__(job, frame.device.short, data, line)
        self.kept_passes = KeptPasses(job.key, frame.device)
        self.passes = PassLimit(self.kept_passes.load(), tell=self.tell_pass, keep=self._keep_passes)
        self.sharing: SharePlanner
        self.ahead = PrefetchingSamples(data, job.options.seed)
        self._tried_shapes: tuple[object, ...] = ()
        self.told_s = self.steps_told_s = 0.0
        self.after_s = 0.0
        self.waited_s = 0.0

    # --- the whole -----------------------------------------------------------------------------------------

    def run(self) -> bytes | None:
        """Take part until the last step; returns the trained state if this is the first member then."""
        try:
            self.passes.most = min(self.passes.most, self.introduce())
            known = _settled.pop(self.device.id, None)
            channels_last = self._probed() if known is None or known.number != self.job.settled else self._knows(known)
            self.replica = self._made()
            self.replica.layout.channels_last = channels_last
            try:
                while not self._is_over():
                    pass
            finally:
                self._settle()
            return self.replica.state() if self.rank == 0 else None
        except (_LeftError, StopError):
            return None
        except (MemoryError, RuntimeError) as error:
            if isinstance(error, HeteroError) or not is_out_of_memory(error):
                raise
            raise OutOfDeviceMemoryError("memory ran out beside the passes") from None
        finally:
            self.profile.close()
            self.ahead.close()
            self.leave()

    def _probed(self) -> bool:
        """Find out what the device can do with this model, and whether it is exact; return the better layout."""
        self.passes.whole = self._verified()
        found = probe(self.job, self.device, self.data, self.throttle, self.passes, self._tell_speed)
        self.model = found.model
        gc.collect()  # of the probe's copy
        return found.channels_last

    def _knows(self, known: _KnownMember) -> bool:
        """Take over what an earlier run found out; return the better layout."""
        self.model, self._link_s, self._tried_shapes = known.model, known.link_s, known.shapes
        self.passes.whole, self.passes.most = known.whole, min(self.passes.most, known.most)
        self.throttle.restart()
        return known.channels_last

    def _settle(self) -> None:
        channels_last, shapes = self.replica.layout.channels_last, self._tried_shapes
        found = (self.model, self._link_s, self.passes.whole, self.passes.most, channels_last, shapes)
        _settled[self.device.id] = _KnownMember(self.job.settled, *found)

    def _verified(self, more: Sequence[int] = ()) -> str:
        """Try whether parts of a batch add up to it; returns why passes must stay whole, '' where they need not."""
        from hetero.train.additivity import trailing_shapes, verify

        cut = self.options.cuts(len(self.job.names))
        ids = self._ids(0)[: _TRIED if self.job.need is None else 2]
        if self.data.collate is not None and not more:
            self._tried_shapes = trailing_shapes(self.data.batch(ids, self.options.seed, 0))
        return verify(self.job.parts, self.options, self.place, self.data, ids, cut=cut, more=more)

    def _look_at(self, batch: object, ids: Sequence[int]) -> None:
        """Make the trial again when a pass first has a shape that was not tried: its samples may be padded."""
        from hetero.train.additivity import trailing_shapes
        from hetero.train.data import generators_kept

        if trailing_shapes(batch) == self._tried_shapes:
            return
        self.replica.on_batch = None
        with generators_kept():
            self.passes.whole = self._verified(ids) or self.passes.whole

    def _keep_passes(self, samples: int) -> None:
        """Record that passes are halved, here and for further runs."""
        self.kept_passes.keep(samples)
        self.send(msg.PassesHalved(samples))

    def _tell_speed(self, model: StepModel) -> None:
        self.send(msg.SpeedSeen(model))

    def _made(self) -> ModelReplica:
        """Make the replica that trains, once the memory of the probe's copy is free."""
        from hetero.train.replica import ModelReplica

        _spare_what_is_there()
        replica = ModelReplica(self.job.parts, self.options, self.place, 1 + 2 * len(self.job.names), self.passes)
        if self.job.state is not None:
            replica.adopt(self.job.state)
        replica.on_batch = None if self.data.collate is None else self._look_at
        return replica

    def _is_over(self) -> bool:
        """Take part in one group; True once the last step is done, and the first member's state has arrived."""
        try:
            self._take_part()
            if self.replica.step < self.steps:
                return False
            if self.rank:
                self.wait_for(msg.RunDone)
            return True
        except GroupBrokenError:
            self.group.abort()
        except LineClosedError:
            self.dial_again()
        return False

    def _take_part(self) -> None:
        models, comm_s = self.form(self.model)
        self.sharing = SharePlanner(self.options, self.team, models, comm_s, self.job.costs, self.job.on_host)
        self.throttle.restart()
        self.waited_s = comm_s[len(self.team)]
        try:
            self._adopt_plan(self.sharing.plan)
            if self.owes_report:
                self._end_epoch()
            while self.replica.step < self.steps and not self._step():
                pass
        finally:
            self.model = self.sharing.models[self.rank]

    # --- shares --------------------------------------------------------------------------------------------

    def _adopt_plan(self, plan: SharePlan) -> None:
        """Go by a new plan; devices that it leaves out leave, and the others form a group without them."""
        self.expect(plan.step_s)
        if len(plan.members) == len(self.team):
            if self.rank == 0:
                self.send(msg.PlanAdopted(self.sharing.shares(self.job.names)))
            return
        if not plan.shares[self.rank]:
            self.send(msg.LeftOut(plan.reasons[self.rank], self.sharing.speeds()[self.device.short]))
            raise _LeftError
        raise GroupBrokenError("some devices are left out from here on")

    # --- a step --------------------------------------------------------------------------------------------

    def _step(self) -> bool:
        """Do one step; True when a new group is to form."""
        self.profile.begin()
        begun_s = clock.monotonic_s()
        replica = self.replica
        ids = self._ids(replica.step)
        counts = self.sharing.counts(ids)
        mine = self._part(ids)
        with self.throttle as busy:
            done = replica.compute(self.ahead, mine, len(ids), self.group)
        spent, waits = self._only_mine(busy.seconds + self.after_s), self._only_mine(self.waited_s)
        self.log.computes(replica.step + 1, mine)
        self.ahead.look_ahead(replica.step, self.steps, lambda step: replica.pieces(self._part(self._ids(step))))
        computed_s = clock.monotonic_s()
        total, more = replica.reduce(self.group, done, [float(self.told_to_regroup()), *spent, *waits])
        applies_s = clock.monotonic_s()
        self.waited_s = applies_s - computed_s
        if len(self.team) > 1:
            group = self.group
            record_collective(self.frame, "exchange", group.carried_by, self.rank, len(self.team), 0, self.waited_s)
        if total.samples != len(ids):
            raise TrainingError(
                f"{total.samples:g} samples took part in step {replica.step} instead of {len(ids)}",
                remedy="this is a mistake of hetero's: please report it",
            )
        if total.bad and self.options.on_nan == "stop":
            self.send(msg.BadSamples(replica.step, replica.bad_samples(self.data, mine)))
        rates = replica.learning_rates
        replica.apply(total, len(ids))
        self.after_s = clock.monotonic_s() - applies_s
        replica.step += 1
        self.log.applied(replica.step)
        step_s = clock.monotonic_s() - begun_s
        self.profile.end()
        self.stepped(step_s)
        self._add_up(total, step_s)
        size, ranks = len(self.team), len(self.job.names)
        busy_s, waits_s = more[1 : 1 + size], more[1 + ranks :][:size]
        self._send_step(total, step_s, counts, busy_s, waits_s)
        if self.job.tells_steps:
            epoch, loss = -(-replica.step // self.steps_an_epoch), self._mean(total)
            shares = dict(zip(self.team, counts, strict=True))
            self._note_step(StepReport(epoch, replica.step, loss, rates, step_s, shares))
        if replica.step % self.steps_an_epoch:
            self.keep()
        else:
            replica.end_epoch()
            self._end_epoch()
        better = self.sharing.learn(busy_s, waits_s, ids, counts)
        if better is not None:
            self._adopt_plan(better)
        return bool(more[0])

    def _only_mine(self, value: float) -> list[float]:
        """Return a row with a place for every rank, in which only this one's is filled."""
        row = [0.0] * len(self.job.names)
        row[self.rank] = value
        return row

    def _ids(self, step: int) -> list[int]:
        epoch, within = divmod(step, self.steps_an_epoch)
        begin = within * self.options.global_batch
        ids = self.data.order(self.options, epoch)
        return ids[begin : begin + self.options.global_batch]

    def _part(self, ids: list[int]) -> list[int]:
        """Return this member's samples of a step, by the plan as it is."""
        counts = self.sharing.counts(ids)
        begin = sum(counts[: self.rank])
        return ids[begin : begin + counts[self.rank]]

    # --- reports -------------------------------------------------------------------------------------------

    def _add_up(self, total: Parts, seconds: float) -> None:
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

    def _send_step(
        self, total: Parts, step_s: float, counts: Sequence[int], busy_s: Sequence[float], waits_s: Sequence[float]
    ) -> None:
        if self.rank == 0 and clock.monotonic_s() - self.told_s > _TELL_S:
            self.told_s = clock.monotonic_s()
            mine = (tuple(self.team), tuple(counts), tuple(busy_s))
            report = TrainingStep(0.0, self.replica.step, self._mean(total), step_s, min(waits_s), *mine)
            self.send(msg.StepDone(report))

    def _note_step(self, report: StepReport) -> None:
        """Keep a step; the first member tells them, and any other does where the first one is lost."""
        self.untold.append(report)
        if self.rank == 0 and clock.monotonic_s() - self.steps_told_s > _TELL_S:
            self.steps_told_s = clock.monotonic_s()
            self.tell_steps()

    def _mean(self, total: Parts | Totals) -> float:
        divisor = total.weight if self.replica.loss.divides else total.samples
        return total.loss / divisor if divisor else 0.0

    def _end_epoch(self) -> None:
        """Test, tell the program, and do what it says; all members wait for its answer, and keep what it changed."""
        tested = self._test() if self.test is not None else None
        if self.rank == 0:
            self.tell_steps()
            self.send(msg.EpochDone(self._report(tested), self.replica.state() if self.job.shows else None))
        else:
            shown_s = self.keeping_s() if self.job.shows else 0.0
            self.send(msg.EpochAwaited(self.replica.step, self.group.deadline_s + shown_s))
        answer = self.wait_for(msg.AnswerToEpoch)
        self.steps, self.schedulers = answer.steps, answer.schedulers
        self.untold.clear()
        self.take_written(answer.written)
        self.replica.take_values(answer.values)
        self.totals = Totals()
        self.keep()

    def _test(self) -> Parts:
        import torch

        from hetero.train.replica import Parts

        assert self.test is not None
        shares = apportion(self.sharing.plan.shares, len(self.test))
        begin = sum(shares[: self.rank])
        with self.throttle:
            ids = range(begin, begin + shares[self.rank])
            passes: list[tuple[object, object]] | None = [] if self.job.measures else None
            mine = self.replica.evaluate(self.test, ids, self.passes.size(_EVALUATE_AT_ONCE), passes)
        if passes is not None:
            self.send(msg.TestOutputs(self.generation, self.rank, passes))
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
        return max(_LEAST_TEST_DEADLINE_S, _DEADLINE_STEPS * slowest_s)

    def _report(self, tested: Parts | None) -> EpochReport:
        sums = self.totals
        speeds = {name: speed / sums.steps for name, speed in sums.speeds.items()}
        return EpochReport(
            epoch=self.replica.step // self.steps_an_epoch,
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
