"""Hypothesis drives the core with raw events; after each of them every invariant holds."""

from __future__ import annotations

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, invariant, rule

from hetero.core.invariants import check
from hetero.core.machine import Machine, Rules
from hetero.core.state import DevicePhase
from hetero.drive.sim import Costs, Program, SimTask, simulate
from hetero.drive.sim_faults import Faults
from hetero.model.commands import (
    Cancel,
    Command,
    Commit,
    Fail,
    Recommit,
    Run,
    RunGroup,
    Split,
    StartWorker,
    Transfer,
    Withdraw,
)
from hetero.model.device import HOST_NODE, Device, DeviceType
from hetero.model.events import (
    CancelRequested,
    DeviceAdded,
    DeviceLost,
    DeviceReady,
    Event,
    ItemPut,
    ItemReleased,
    LeaseAsked,
    LeaseRefused,
    LeaseReleased,
    LeaseRenewed,
    TaskFailed,
    TaskFinished,
    TaskSubmitted,
    TaskWithdrawn,
    TimerFired,
    TransferFailed,
    TransferFinished,
    UtilisationReported,
)
from hetero.model.leases import LeaseRequest
from hetero.model.tasks import Failure, Near, Request, Task
from hetero.model.topology import Link, MemoryNode, Topology
from hetero.plan.performance.cost_model import CostModel
from hetero.plan.policies.registry import OURS, get

CPUS = [Device(f"h0/cpu:{i}", "cpu", DeviceType("CPU"), "cpu", i) for i in range(2)]
GPUS = [Device(f"h0/cuda:{i}", "cuda", DeviceType("GPU"), "null", i, memory_node=f"h0/cuda:{i}") for i in range(2)]
FAR = [Device("h1/cpu:0", "cpu", DeviceType("CPU"), "cpu", memory_node="h1/cpu:0")]
FLEET = [*CPUS, *GPUS, *FAR]
NODES = [device.memory_node for device in (*GPUS, *FAR)]
LINKS = [link for node in NODES for link in (Link(HOST_NODE, node, 1e-3, 1e6), Link(node, HOST_NODE, 1e-3, 1e6))]
TOPOLOGY = Topology(tuple(MemoryNode(node, 1_000) for node in NODES), tuple(LINKS))
ITEMS = {10_001: 300, 10_002: 500, 10_003: 900}

REQUESTS = [
    Request(),
    Request(priority=3),
    Request(devices=2),
    Request(devices=3, timeout_s=0.5),
    Request(exclusive=True),
    Request(on=("gpu",)),
    Request(timeout_s=0.2, retries=1),
    Request(workload="blue"),
    Request(apart=(Near("device", workload="blue"),)),
    Request(splittable=True, retries=2),
    Request(memory_bytes=400),
    Request(lease=1),
    Request(lease=2, priority=1),
]

WISHES = [
    LeaseRequest(),
    LeaseRequest(count=2, lease_s=0.3),
    LeaseRequest(exclusive=True, timeout_s=0.5, workload="blue"),
    LeaseRequest(compute_frac=0.5, priority=1, apart=("blue",)),
]

Attempt = tuple[int, int, str]


class CoreMachine(RuleBasedStateMachine):
    """Plays the engine, the user and the clock, in any order."""

    attempts = Bundle("attempts")
    past = Bundle("past")
    transfers = Bundle("transfers")

    @initialize(policy=st.sampled_from(sorted(OURS)), devices=st.integers(1, len(FLEET)))
    def begin(self, policy: str, devices: int) -> None:
        rules = Rules(stall_s=0.5, stall_factor=5.0, sweep_s=0.3)
        self.machine = Machine(get(policy), CostModel(), TOPOLOGY, rules)
        self.fleet = FLEET[:devices]
        self.now_s = 0.0
        self.tasks = 0
        self.leases = 0
        self.nbytes: dict[int, int] = dict(ITEMS)
        self.out: dict[Attempt, None] = {}
        self.stopped: set[Attempt] = set()
        self.moving: dict[tuple[int, str, str], int] = {}
        self.down: dict[str, None] = {}
        self.splits: dict[int, Task] = {}
        self.commits: set[int] = set()
        self.failures: set[int] = set()
        self.known: dict[int, Task] = {}
        for device in self.fleet:
            self.tell(DeviceAdded(0.0, device))
        for item, nbytes in ITEMS.items():
            self.tell(ItemPut(0.0, item, nbytes, HOST_NODE))
        for device in self.fleet:
            self.tell(DeviceReady(0.0, device.id))

    def tell(self, event: Event) -> None:
        for command in self.machine.handle(event):
            self.obey(command)

    def obey(self, command: Command) -> None:
        if isinstance(command, Run):
            assert self.machine.fleet.by_id[command.device].phase is DevicePhase.READY
            self.out.update({(launch.task, launch.attempt, command.device): None for launch in command.launches})
        elif isinstance(command, RunGroup):
            self.out.update({(command.launch.task, command.launch.attempt, name): None for name in command.devices})
        elif isinstance(command, Cancel):
            self.stopped.add((command.task, command.attempt, command.device))
        elif isinstance(command, Transfer):
            assert (command.item, command.src, command.dst) not in self.moving
            self.moving[command.item, command.src, command.dst] = command.nbytes
        elif isinstance(command, Commit):
            assert command.task not in self.commits | self.failures
            self.commits.add(command.task)
        elif isinstance(command, Recommit):
            assert command.task in self.commits
        elif isinstance(command, Fail):
            assert command.task not in self.failures
            if command.task not in self.commits:
                self.failures.add(command.task)
        elif isinstance(command, Split):
            self.splits[command.task] = self.known[command.task]
        elif isinstance(command, StartWorker):
            self.down[command.device] = None
        else:
            assert not isinstance(command, Withdraw) or command.device in self.machine.fleet.by_id

    def one(self, data: st.DataObject, choices: dict[object, object]) -> object:
        return data.draw(st.sampled_from(list(choices)))

    # the user

    @rule(
        data=st.data(), request=st.sampled_from(REQUESTS), name=st.sampled_from("fg"), size=st.sampled_from((1.0, 64.0))
    )
    def submit(self, data: st.DataObject, request: Request, name: str, size: float) -> None:
        self.tasks += 1
        recent = list(range(max(1, self.tasks - 6), self.tasks))
        after = data.draw(st.lists(st.sampled_from(recent), max_size=2, unique=True)) if recent else []
        items = [item for item in self.nbytes if item in self.machine.replicas.items or item in self.machine.tasks]
        inputs = data.draw(st.lists(st.sampled_from(items), max_size=2, unique=True)) if items else []
        if data.draw(st.integers(0, 9)) == 0 and recent:
            request = Request(near=(Near(data.draw(st.sampled_from(("device", "host"))), task=recent[0]),))
        parents = (*after, *(item for item in inputs if item < 10_000))
        task = Task(self.tasks, name, f"{name}|{size}", size, tuple(inputs), parents, request)
        self.known[task.id] = task
        self.tell(TaskSubmitted(self.now_s, task))

    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        if self.machine.tasks:
            self.tell(CancelRequested(self.now_s, data.draw(st.sampled_from(list(self.machine.tasks)))))

    @rule(wish=st.sampled_from(WISHES))
    def lease(self, wish: LeaseRequest) -> None:
        self.leases += 1
        self.tell(LeaseAsked(self.now_s, self.leases, wish))

    @rule(number=st.integers(1, 4), made=st.sampled_from((LeaseReleased, LeaseRenewed)))
    def give_back(self, number: int, made: type[LeaseReleased] | type[LeaseRenewed]) -> None:
        self.tell(made(self.now_s, number))

    @rule(data=st.data(), number=st.integers(1, 4))
    def refuse(self, data: st.DataObject, number: int) -> None:
        device = data.draw(st.sampled_from(self.fleet)).id
        self.tell(LeaseRefused(self.now_s, number, device, "it could not be prepared"))

    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        read = {item for state in self.machine.tasks.values() for item in state.task.inputs}
        free = [item for item in self.machine.replicas.items if item not in read and item in self.nbytes]
        if free:
            item = data.draw(st.sampled_from(free))
            del self.nbytes[item]
            self.tell(ItemReleased(self.now_s, item))

    @rule(data=st.data())
    def split(self, data: st.DataObject) -> None:
        if not self.splits:
            return
        whole = self.splits.pop(data.draw(st.sampled_from(list(self.splits))))
        if whole.id not in self.machine.tasks:
            return
        self.tasks += 1
        part = whole._replace(id=self.tasks, after=(), size=whole.size / 2)
        self.known[part.id] = part
        self.tell(TaskSubmitted(self.now_s, part))
        self.tell(TaskSubmitted(self.now_s, whole._replace(after=(part.id,), inputs=(), size=0.0)))

    # the engine

    def over(self, attempt: Attempt) -> None:
        self.out.pop(attempt, None)
        self.stopped.discard(attempt)

    @rule(
        target=past,
        data=st.data(),
        seconds=st.sampled_from((1e-5, 1e-3, 0.1)),
        nbytes=st.sampled_from((0, 0, 200, 700)),
    )
    def finish(self, data: st.DataObject, seconds: float, nbytes: int) -> TaskFinished | None:
        if not self.out:
            return None
        task, attempt, device = choice = data.draw(st.sampled_from(list(self.out)))
        self.over(choice)
        node = self.machine.fleet.by_id[device].device.memory_node if nbytes else HOST_NODE
        event = TaskFinished(self.now_s, task, attempt, device, self.now_s - seconds, seconds, nbytes, node)
        self.tell(event)
        if nbytes and task in self.commits:
            self.nbytes[task] = nbytes
        return event

    @rule(
        target=past,
        data=st.data(),
        kind=st.sampled_from(("exception", "out_of_memory", "missing_package", "unserialisable", "crash")),
    )
    def fail(self, data: st.DataObject, kind: str) -> TaskFailed | None:
        if not self.out or (kind == "missing_package" and data.draw(st.integers(0, 9))):
            return None
        task, attempt, device = choice = data.draw(st.sampled_from(list(self.out)))
        failure = Failure("cancelled" if choice in self.stopped else kind, "it failed")  # type: ignore[arg-type]
        self.over(choice)
        event = TaskFailed(self.now_s, task, attempt, device, self.now_s, 0.0, failure)
        self.tell(event)
        return event

    @rule(target=past, data=st.data())
    def withdraw(self, data: st.DataObject) -> TaskWithdrawn | None:
        if not self.out:
            return None
        task, attempt, device = choice = data.draw(st.sampled_from(list(self.out)))
        if self.known[task].request.devices > 1 or self.known[task].request.exclusive:
            return None
        self.over(choice)
        event = TaskWithdrawn(self.now_s, task, attempt, device)
        self.tell(event)
        return event

    @rule(event=past)
    def tell_again(self, event: Event | None) -> None:
        if event is not None:
            self.tell(event._replace(at_s=self.now_s))

    @rule(data=st.data(), permanent=st.sampled_from((False, False, False, True)))
    def lose(self, data: st.DataObject, permanent: bool) -> None:
        device = data.draw(st.sampled_from(self.fleet))
        for attempt in [attempt for attempt in self.out if attempt[2] == device.id]:
            self.over(attempt)
        if device.memory_node != HOST_NODE:
            self.moving = {key: n for key, n in self.moving.items() if device.memory_node not in key}
        self.down.pop(device.id, None)
        self.tell(DeviceLost(self.now_s, device.id, "it died", permanent))

    @rule(data=st.data())
    def come_back(self, data: st.DataObject) -> None:
        gone = [d for d in self.fleet if self.machine.fleet.by_id[d.id].phase is DevicePhase.GONE]
        if self.down:
            device = data.draw(st.sampled_from(list(self.down)))
            del self.down[device]
            self.tell(DeviceReady(self.now_s, device))
        elif gone:
            device = data.draw(st.sampled_from(gone)).id
            self.tell(DeviceAdded(self.now_s, self.machine.fleet.by_id[device].device))
            self.down[device] = None

    @rule(data=st.data(), fails=st.sampled_from((False, False, False, True)))
    def copy(self, data: st.DataObject, fails: bool) -> None:
        if not self.moving:
            return
        item, src, dst = key = data.draw(st.sampled_from(list(self.moving)))
        nbytes = self.moving.pop(key)
        if fails:
            self.tell(TransferFailed(self.now_s, item, src, dst, "the link failed"))
        else:
            self.tell(TransferFinished(self.now_s, item, src, dst, nbytes, self.now_s, 0.0))

    @rule(data=st.data(), busy_frac=st.floats(0.0, 1.0))
    def report(self, data: st.DataObject, busy_frac: float) -> None:
        self.tell(UtilisationReported(self.now_s, data.draw(st.sampled_from(self.fleet)).id, busy_frac))

    # the clock

    @rule(step_s=st.sampled_from((1e-4, 0.05, 0.4, 5.0)))
    def wait(self, step_s: float) -> None:
        self.now_s += step_s
        if self.machine.timer_s <= self.now_s:
            self.tell(TimerFired(self.now_s))

    @invariant()
    def every_invariant_holds(self) -> None:
        if hasattr(self, "machine"):
            check(self.machine)


CoreMachine.TestCase.settings = settings(
    max_examples=100, stateful_step_count=50, suppress_health_check=list(HealthCheck)
)
TestRawEvents = CoreMachine.TestCase


@st.composite
def programs(draw: st.DrawFn) -> Program:
    count = draw(st.integers(1, 40))
    tasks: list[SimTask] = []
    at_s = 0.0
    for number in range(1, count + 1):
        recent = st.integers(max(1, number - 8), number - 1)
        after = draw(st.lists(recent, max_size=3, unique=True)) if number > 1 else []
        inputs = [parent for parent in after if tasks[parent - 1].nbytes]
        if draw(st.integers(0, 4)) == 0:
            inputs.append(draw(st.sampled_from(list(ITEMS))))
        request = draw(st.sampled_from(REQUESTS))
        at_s += draw(st.sampled_from((0.0, 0.0, 0.01)))
        nbytes = draw(st.sampled_from((0, 0, 300))) if request.devices == 1 else 0
        task = Task(number, "f", f"f|{number % 3}", float(number % 3), tuple(inputs), tuple(after), request)
        tasks.append(SimTask(task, at_s, nbytes))
    return Program(tasks, list(ITEMS.items()), draw(st.sampled_from((0, 3))))


@settings(max_examples=80, suppress_health_check=list(HealthCheck))
@given(
    work=programs(),
    devices=st.integers(1, len(FLEET)),
    policy=st.sampled_from(sorted(OURS)),
    seed=st.integers(0, 1_000),
    bad=st.sampled_from((0.0, 0.02, 0.2)),
)
def test_any_program_on_any_fleet_under_any_policy_ends_with_every_task_over(
    work: Program, devices: int, policy: str, seed: int, bad: float
) -> None:
    fleet = FLEET[-devices:]
    faults = Faults(
        crash=bad, exception=bad, out_of_memory=bad, transfer=bad, start=bad, duplicate=bad, late=0.5, cancel=bad
    )
    done = simulate(
        work,
        fleet,
        lambda task, device: 0.01 * (1.0 + task.size) / (1.0 + FLEET.index(device)),
        policy=policy,
        topology=TOPOLOGY,
        seed=seed,
        costs=Costs(noise=0.2, start_s=0.01),
        faults=faults,
        check_every=1,
    )
    over = set(done.commits) | set(done.failures)
    assert over >= {entry.task.id for entry in work.tasks}
    if not bad:
        kinds = {failure.kind for failure in done.failures.values()}
        assert kinds <= {"nothing_fits"}
