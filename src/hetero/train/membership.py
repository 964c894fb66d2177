"""Membership: a member's ties to the program and to the others, from its first word to the last.

In: a line to the program, the words on it. Out: groups that form, a state that is level with the furthest member's.
It must not compute a step.
"""

from __future__ import annotations

import hmac
import pickle
from collections import deque
from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import TYPE_CHECKING

from hetero.comm.errors import GroupBrokenError
from hetero.comm.group import Group, open_rendezvous
from hetero.comm.lines import Line
from hetero.comm.rendezvous import LOOPBACK
from hetero.floor import clock, own_memory
from hetero.plan.training.shares import StepModel
from hetero.train import messages as msg
from hetero.train.checkpoints import TrainingCheckpoints, run_facts
from hetero.train.job import TrainingJob
from hetero.train.sample_log import SampleLog
from hetero.train.values import StepReport, Totals, TrainingError

if TYPE_CHECKING:
    from hetero.train.data import Samples
    from hetero.train.replica import ModelReplica

__all__ = ["Membership", "StopError"]

_FORM_DEADLINE_S = 5.0
_LEAST_DEADLINE_S = 1.0
_DEADLINE_STEPS = 20.0
_FADE = 0.95
_LEAST_PATIENCE_S = 0.5
_PATIENCE_STEPS = 5.0
_MOST_DOUBLINGS = 6
_KEEP_S = 10.0
_SLOW_DISK_BYTES_PER_S = 10e6
_STATE_PER_GRADIENT = 4
_SIGNATURE_BYTES = 32
_MOST_UNTOLD = 10_000


class StopError(Exception):
    """The program wants no more."""


class Membership:
    """What a member is to the others.

    Parameters
    ----------
    job
        What is trained.
    device
        Of this member.
    replica
        Whose state is kept level.
    data
        What is trained on.
    line
        To the program.

    Attributes
    ----------
    group, team, rank, generation
        The group that this member is in.
    steps
        Done in all when the job is over.
    totals
        Of this epoch.
    outsiders
        Samples/s of devices that were left out.
    schedulers
        States of the program's schedulers, for checkpoints.
    untold
        Steps that the program may not have heard of.
    """

    replica: ModelReplica

    def __init__(self, job: TrainingJob, device: str, data: Samples, line: Line) -> None:
        self.job = job
        self.name = device
        self.samples = data.an_epoch(job.options.global_batch)
        self._in_log = len(data)
        self.line = line
        self._address = job.hosts.get(device, LOOPBACK)
        self._far = self._address not in (LOOPBACK, job.address.host)
        send = self._send_logged if self._far else None
        self.log = SampleLog(job.sample_log, job.run, device, send)
        self.group = Group(0, 1)
        self.team: tuple[str, ...] = ()
        self.rank = 0
        self.generation = 0
        self.steps = job.steps
        self.schedulers: Mapping[str, object] = {}
        self.totals = Totals() if job.totals is None else replace(job.totals, speeds=dict(job.totals.speeds))
        self.outsiders: dict[str, float] = {}
        self.regroup_asked = False
        self.untold: deque[StepReport] = deque(maxlen=_MOST_UNTOLD)
        self._heard = 0
        self._link_s = -1.0
        self._slowest_s = 0.0
        self._forms_without_step = 0
        self._keeping_s = 0.0

    # --- the line ------------------------------------------------------------------------------------------

    def introduce(self) -> float:
        """Announce this member and wait to be admitted; returns the most samples that a pass of it may have."""
        self.send(msg.MemberArrived(self.name))
        return self.wait_for(msg.MeasureSpeed).most

    def send(self, message: msg.Message) -> None:
        """Send the lead a message; raises LineClosedError when the program is gone."""
        msg.send_message(self.line, message)

    def _send_logged(self, line: bytes) -> None:
        self.send(msg.SamplesLogged(line))

    def tell_steps(self) -> None:
        """Report the steps that the program may not have heard of."""
        if self.untold:
            self.send(msg.StepsTold([*self.untold]))
            self.untold.clear()

    def tell_pass(self, samples: int) -> None:
        """Record that a pass is larger than all before, and where the system counts those that it kills for memory."""
        self.send(msg.PassGrown(samples, own_memory.memory_kills_file()))

    def dial_again(self) -> None:
        """Return to the program after the line was cut.

        Raises
        ------
        LineClosedError
            The program is gone, or has ended this member.
        """
        self.group.abort()
        self.line.dial_again()
        self.introduce()

    def wait_for(self, kind: type[msg.Kind]) -> msg.Kind:
        """Wait for a message of the program's.

        Raises
        ------
        StopError
            The program wants no more.
        GroupBrokenError
            A member of the group is gone.
        LineClosedError
            The program is gone.
        """
        while True:
            came = self.line.receive()
            assert came is not None
            message = msg.read_message(came)
            if isinstance(message, kind):
                return message
            self._apply(message, may_break=kind is not msg.Formation)

    def told_to_regroup(self) -> bool:
        """Return whether somebody waits to join; raises as `wait_for` does."""
        for came in self.line.waiting():
            self._apply(msg.read_message(came), may_break=True)
        return self.regroup_asked

    def _apply(self, message: msg.Message, *, may_break: bool) -> None:
        if isinstance(message, msg.StopTraining):
            raise StopError
        if isinstance(message, msg.GroupBroken) and message.generation == self.generation and may_break:
            raise GroupBrokenError("a member of the group is gone")
        self.regroup_asked |= isinstance(message, msg.Regroup)

    def leave(self) -> None:
        """Leave the group; whoever waits in it is freed."""
        self.group.close()
        self.log.close()

    # --- a group comes together ----------------------------------------------------------------------------

    def form(self, model: StepModel) -> tuple[list[StepModel], list[float]]:
        """Form a group with whoever is ready.

        Returns
        -------
        tuple
            What is known of each member; s that an exchange of gradients takes, by the number of members.

        Raises
        ------
        GroupBrokenError
            It did not come about.
        """
        self.group.close()
        self.tell_steps()
        self.send(msg.MemberReady(self.replica.step, model, self._link_s, self._patience_s()))
        formation = self.wait_for(msg.Formation)
        self.rank, self.team, self.generation = formation.rank, formation.team, formation.generation
        self.outsiders, self.steps = dict(formation.outsiders), formation.steps
        self.schedulers = formation.schedulers
        self.regroup_asked = False
        self._forms_without_step += 1
        self.group = self._meet()
        self._get_level(formation)
        self.log.begins(self.generation, self.replica.step, self.name, self._in_log, self.job.options.global_batch)
        self._link_s = formation.link_s if formation.link_s >= 0.0 else self._measure_link()
        return list(formation.models), [0.0, *(max(0.0, self._link_s) * others for others in range(len(self.team)))]

    def _meet(self) -> Group:
        size = len(self.team)
        store = rendezvous = None
        if size > 1 and self.rank == 0:
            prefix = f"generation-{self.generation}"
            store, rendezvous = open_rendezvous(prefix, size, self._address, beyond_loopback=True)
            self.send(msg.RendezvousOpened(self.generation, rendezvous))
        elif size > 1:
            rendezvous = self.wait_for(msg.MeetAt).rendezvous
        from hetero.train.reduction_groups import join

        return join(self.rank, self.team, rendezvous, store, _FORM_DEADLINE_S, self.job.sum_on, self._address)

    def _get_level(self, formation: msg.Formation) -> None:
        """Take over the state of the member that is furthest, or of the checkpoint where nobody is left."""
        if formation.saved is not None:
            self.replica.adopt(formation.saved.state)
            self.totals = formation.saved.totals
        if formation.behind and len(self.team) > 1:
            self._catch_up(formation.source)
        self.take_written(formation.written)
        self.replica.take_values(formation.values)
        self._heard = formation.heard
        if self.replica.step <= self._heard and not self.replica.step % self.steps_an_epoch:
            self.totals = Totals()

    def take_written(self, state: bytes | None) -> None:
        """Take over what callbacks wrote, and give the others time to."""
        if state is not None:
            self.replica.adopt(state)
            self._keeping_s = self.keeping_s()
            self._set_deadline()

    def _catch_up(self, source: int) -> None:
        import torch

        mine = self._signed(pickle.dumps((self.replica.state(), self.totals))) if self.rank == source else b""
        length = torch.tensor([len(mine)], dtype=torch.int64)
        self.group.broadcast(length, source)
        content = torch.zeros(int(length), dtype=torch.uint8)
        if mine:
            content.copy_(torch.frombuffer(bytearray(mine), dtype=torch.uint8))
        self.group.broadcast(content, source)
        if not mine:
            came = content.numpy().tobytes()
            if not hmac.compare_digest(came, self._signed(came[_SIGNATURE_BYTES:])):
                raise TrainingError("what came as the state of the furthest member is not from this run")
            state, self.totals = pickle.loads(memoryview(came)[_SIGNATURE_BYTES:])
            self.replica.adopt(state)

    def _signed(self, content: bytes) -> bytes:
        """Put a signature before what goes over connections that nothing else protects."""
        return hmac.digest(self.job.address.key.encode(), content, "sha256") + content

    def _measure_link(self) -> float:
        """Measure what an exchange of gradients costs for each further member, the same figure on all; -1 alone."""
        import torch

        others = len(self.team) - 1
        if not others:
            return -1.0
        row = torch.zeros(max(1, self.replica.gradients.nbytes // 4), dtype=torch.float32)
        best_s = float("inf")
        for _ in range(4):
            self.group.all_reduce(torch.zeros(1, dtype=torch.float32))
            begun_s = clock.monotonic_s()
            self.group.all_reduce(row)
            best_s = min(best_s, clock.monotonic_s() - begun_s)
        worst = torch.tensor([best_s], dtype=torch.float64)
        self.group.all_reduce(worst, "max")
        return float(worst) / others

    # --- how long to wait for the others -------------------------------------------------------------------

    def expect(self, step_s: float) -> None:
        """Set the deadline of the next exchange by how long a step takes, s."""
        self._slowest_s = max(step_s, _FADE * self._slowest_s)
        self._set_deadline()

    def stepped(self, step_s: float) -> None:
        """Record that a step was done, and how long it took, s."""
        self._forms_without_step = 0
        self._keeping_s = 0.0
        self.expect(step_s)

    def _set_deadline(self) -> None:
        self.group.deadline_s = (
            self._slack * max(_LEAST_DEADLINE_S, _DEADLINE_STEPS * self._slowest_s) + self._keeping_s
        )

    @property
    def _slack(self) -> float:
        """Grows while groups break before their first step, so that a step of unforeseen length can be done."""
        return 2.0 ** min(_MOST_DOUBLINGS, max(0, self._forms_without_step - 1))

    def _patience_s(self) -> float:
        """Return how long the others may take to answer once the group is broken, s."""
        return self._slack * max(_LEAST_PATIENCE_S, _PATIENCE_STEPS * self._slowest_s)

    # --- what is kept --------------------------------------------------------------------------------------

    @property
    def steps_an_epoch(self) -> int:
        """Steps of an epoch."""
        return -(-self.samples // self.job.options.global_batch)

    @property
    def owes_report(self) -> bool:
        """Return whether an epoch is over whose report the program has not had."""
        step = self.replica.step
        return step > self._heard and not step % self.steps_an_epoch and self.totals.steps > 0

    def keeping_s(self) -> float:
        """Return how long the first member may take to hand its state to somebody slow, s."""
        return _KEEP_S + _STATE_PER_GRADIENT * self.replica.gradients.nbytes / _SLOW_DISK_BYTES_PER_S

    def keep(self) -> None:
        """Write a checkpoint where one is due; the first member does, and the others give it time."""
        job, step = self.job, self.replica.step
        if not job.checkpoint or (step % job.checkpoint_every and step != self.steps):
            return
        self._keeping_s = self.keeping_s()
        self._set_deadline()
        if self.rank == 0:
            facts = {
                **run_facts(job.options, self.samples),
                "totals": asdict(self.totals),
                "schedulers": dict(self.schedulers),
            }
            state, begun_s = self.replica.state(), clock.monotonic_s()
            if self._far:
                self.send(msg.CheckpointSent(step, state, facts))
                return
            TrainingCheckpoints(job.checkpoint, job.keep).write(step, state, facts)
            self.send(msg.CheckpointStored(step, len(state), clock.monotonic_s() - begun_s))
