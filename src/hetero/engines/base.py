"""The interface of an engine, and the calls that it executes.

In: commands with the calls that belong to them. Out: events, through `report`.
An engine executes what the core decided, keeps the bytes of data items, and never chooses a device.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from hetero.floor.clock import Clock, TaskClock, Times
from hetero.model.annotations import TaskNote
from hetero.model.commands import Cancel, Discard, Free, Launch, StartWorker, Transfer, Withdraw
from hetero.model.device import Device
from hetero.model.events import Event
from hetero.model.tasks import Failure, FailureKind, Request, Task

if TYPE_CHECKING:
    from hetero.engines.shared.worker_setup import WorkerSetup

__all__ = [
    "Annotate",
    "Asked",
    "Call",
    "Channel",
    "Ended",
    "Engine",
    "EngineOrder",
    "Function",
    "ItemRef",
    "Log",
    "Nest",
    "NodeUsage",
    "Outcome",
    "Reach",
    "Report",
    "ReportParts",
    "Runner",
    "Spread",
    "Submitter",
    "TaskClock",
    "WorkerEntry",
]

Report = Callable[[Sequence[Event]], None]
"""How an engine tells events, from whichever of its threads learned them."""

Annotate = Callable[[Sequence[TaskNote]], None]
"""How an engine tells what attempts noted of their inside, from whichever of its threads learned it."""

Log = Callable[[Sequence[dict[str, object]]], None]
"""How an engine hands on the log records of tasks, from whichever of its threads learned them."""
ReportParts = Callable[[int, int, str, float, Times], None]
"""How an engine tells of what the time of an attempt consists: task, attempt, device, when it began, its times."""

EngineOrder = Withdraw | Cancel | Transfer | Free | StartWorker | Discard
"""The commands that come without a call."""


class ItemRef(NamedTuple):
    """Stands in a call's arguments for the value of a data item."""

    item: int


@dataclass(slots=True)
class Function:
    """A user's function with its implementations.

    Attributes
    ----------
    key
        Unique per version of the function: module, name and a digest of the code.
    name
        For people.
    default
        The plain Python function, None when there are implementations only.
    implementations
        Function or kernel per device word.
    blob
        All of this pickled once, empty until an engine needs it.
    """

    key: str
    name: str
    default: Callable[..., object] | None
    implementations: Mapping[str, object] = field(default_factory=dict)
    blob: bytes = b""


class Nest(NamedTuple):
    """How a nested task came to be, which names the checkpoints and seeds of those that it nests itself.

    Attributes
    ----------
    path, kept_path
        How its ancestors came to submit it, by their numbers and by what they compute.
    root_key
        The key of the outermost of them.
    depth
        How many tasks it is nested in.
    spreads
        False where the tasks that it submits run at once in its worker.
    above
        The task that waits and on top of which it may run: the one that submitted it, or another; 0 for none.
    """

    path: str = ""
    kept_path: str = ""
    root_key: str = ""
    depth: int = 0
    spreads: bool = True
    above: int = 0


class Asked(NamedTuple):
    """A nested task as its parent asks for it; what each part is stands in `hetero.model.tasks.Task`."""

    name: str
    signature: str
    size: float
    request: Request


class Ended(NamedTuple):
    """How a nested task ended.

    Attributes
    ----------
    task
        Its id.
    seconds
        Seconds that it, and those that it submitted, took of their devices.
    load
        Gives the value, None where it failed.
    failure
        Why it failed, None where it did not.
    """

    task: int
    seconds: float
    load: Callable[[], object] | None
    failure: Failure | None


class Spread(Protocol):
    """How a running task has others run on any device of the fleet; made by the worker, used in its main thread.

    Attributes
    ----------
    devices
        The fleet.
    out
        How many tasks of this worker's were handed in and have not ended, as far as is known here.
    waits
        How often a task of this worker has waited for others.
    """

    devices: tuple[Device, ...]
    waits: int

    @property
    def out(self) -> int: ...  # noqa: D102

    def submit(
        self,
        function: Function,
        asked: Asked,
        call: tuple[object, object],
        refs: tuple[int, ...],
        nest: tuple[str, Nest],
        ended: Callable[[Ended], None],
    ) -> int:
        """Submit a task; return its number in this worker, by which an `ItemRef` in a call may name its result."""
        ...

    def wait(self, done: Callable[[], bool], timeout_s: float | None, number: int = 0) -> bool:
        """Release the device until a condition holds, which the end of one task (0: any) meets; False on timeout."""
        ...

    def poll(self) -> None:
        """Take in what has come, without waiting."""
        ...

    def is_deadly(self, mark: int) -> bool:
        """Return whether a class has ended a worker in which it ran at once."""
        ...

    def at_once(self, mark: int) -> int:
        """Note the class of which a task runs at once from now on, 0 for none; return the one before."""
        ...

    def cancel(self, number: int) -> None:
        """Stop a task; nobody is told of its end."""
        ...

    def release(self, number: int) -> None:
        """Record that nobody wants a result any more; may be called by the garbage collector."""
        ...


class Submitter(Protocol):
    """The program's side of nested tasks, as an engine knows it."""

    def submit(self, parent: Launch, asked: Asked, call: Call, sink: Any) -> tuple[int, Event | None]:
        """Prepare a task that a running one submits; return its id, and what to tell, None where it was refused."""
        ...

    def release(self, item: int) -> None:
        """Record that nobody wants a result any more."""
        ...


@dataclass(slots=True)
class Call:
    """What a worker needs to execute one task.

    Attributes
    ----------
    function
        The function.
    args, kwargs
        The arguments; an `ItemRef` stands for a data item, also inside containers.
    refs
        Ids of the items that occur in the arguments.
    encoded
        The arguments as an engine's workers need them; set by `Engine.encode`, opaque to others.
    task_key
        Names the task's checkpoints, the same after a restart of the program; '' keeps none.
    keep
        Whatever must stay alive until the task ends (the futures among the arguments).
    nest
        How it came to be, and whether the tasks that it submits may run elsewhere.
    names
        By id of an item, the number that stands for it in the encoded arguments, where that is another.
    task
        What the core sees of it; set by the driver.
    """

    function: Function
    args: tuple[object, ...]
    kwargs: Mapping[str, object]
    refs: tuple[int, ...] = ()
    encoded: Any = None
    task_key: str = ""
    keep: tuple[object, ...] = ()
    nest: Nest = Nest(spreads=False)  # noqa: RUF009  it is a tuple
    names: Mapping[int, int] = field(default_factory=dict)
    task: Task | None = None


class Channel(Protocol):
    """How the members of one group task talk.

    Attributes
    ----------
    address
        On which members on other hosts reach this one's host, loopback where the engine has one host.
    """

    rank: int
    world_size: int
    address: str

    def send(self, value: object, rank: int) -> None:
        """Send a value to the member of this rank."""
        ...

    def recv(self, rank: int) -> Any:
        """Wait for the next value from the member of this rank; returns up when the group fails."""
        ...


class Outcome(NamedTuple):
    """What a runner gives back for one attempt that returned.

    Attributes
    ----------
    value
        The result; arrays of the device stay where they are when `resident` is True.
    seconds
        Seconds on the wall that the function took, throttling included; the engine measures the whole attempt.
    resident
        True when the value holds arrays that live on the device's own memory node.
    nbytes
        Bytes of those arrays.
    """

    value: object
    seconds: float
    resident: bool = False
    nbytes: int = 0


class Runner(Protocol):
    """Runs calls on one device, one at a time; made by a `WorkerEntry`.

    A user's exception passes through `run` as itself.

    Attributes
    ----------
    timing
        The engine's clock of the attempts, for functions that read something of their own before they run.
    spread
        How its tasks have others run anywhere, None where those they submit run at once; set by the engine.
    shares_memory
        True where the device's arrays may share the bytes of the host's arrays that they were made from.
    own
        Gives the next attempt a copy, where its result will lie, of an argument that it may change; None where it
        changes the argument itself, which nobody else sees; set by the engine.
    """

    timing: TaskClock | None
    spread: Spread | None
    own: Callable[[object], object] | None
    shares_memory: bool

    def initialize(self) -> None:
        """Call the initializer, where there is one; raises DeviceError when that fails."""
        ...

    def run(
        self,
        function: Function,
        args: tuple[object, ...],
        kwargs: Mapping[str, object],
        *,
        task: int,
        attempt: int,
        task_key: str = "",
        channel: Channel | None = None,
        nest: Nest = Nest(spreads=False),  # noqa: B008  it is a tuple
    ) -> Outcome:
        """Run one attempt with its items already in place of the references."""
        ...

    def notes(self, began_s: float) -> Sequence[TaskNote]:
        """Take what the last attempt told of its inside, also where it failed.

        Parameters
        ----------
        began_s
            Seconds of the run, or of the worker's clock, at which the attempt began.
        """
        ...

    def to_host(self, value: object) -> object:
        """Return a resident value with its arrays copied to NumPy arrays."""
        ...

    def to_device(self, value: object) -> object:
        """Return a value with its NumPy arrays copied to the device's memory node."""
        ...

    def classify(self, error: BaseException) -> FailureKind:
        """Return what kind of failure an exception is: 'exception', 'out_of_memory' or 'missing_package'."""
        ...

    def broken(self) -> str:
        """Return why the device answers nothing any more in this process, '' where it does."""
        ...

    def close(self) -> None:
        """Close the device."""
        ...


class WorkerEntry(Protocol):
    """How an engine comes by workers without importing the room above it.

    Attributes
    ----------
    module
        Module to start as `python -m MODULE` for a worker process.
    setup
        What a worker takes over from the program.
    """

    module: str
    setup: WorkerSetup

    def make(self, device: Device) -> Runner:
        """Open the device in this process; raises DeviceError when it cannot be opened."""
        ...


class NodeUsage(NamedTuple):
    """How full a memory node is.

    Attributes
    ----------
    capacity_bytes, used_bytes, peak_bytes
        Bytes.
    fragmentation_frac
        0..1; 1 - largest free block / free bytes.
    """

    capacity_bytes: int
    used_bytes: int
    peak_bytes: int
    fragmentation_frac: float


class Reach(NamedTuple):
    """How the program and its workers reach each other without the engine.

    Attributes
    ----------
    own
        Address of the program's host.
    workers
        Address of the host of each device, by id; empty where all are on the program's own.
    certificates
        Folder of the cluster's certificates on the program's host, '' where it has none.
    """

    own: str = "127.0.0.1"
    workers: Mapping[str, str] = {}
    certificates: str = ""


class Engine(ABC):
    """Executes commands on workers, one worker a device.

    Every method but `load` returns at once. None of them may call `report` from the calling thread:
    what follows from a command is told later, from the engine's own threads or from `pump`.

    Attributes
    ----------
    name
        The word by which users choose it.
    annotate
        Takes the annotations of attempts, which nobody needs; set before `start`.
    log
        Takes the log records of tasks in other processes; set before `start`.
    report_parts
        Takes of what the time of each attempt consists, likewise; before the event that ends the attempt.
    submitter
        Takes the tasks that running ones submit, likewise.
    """

    name: str
    annotate: Annotate = staticmethod(lambda notes: None)
    log: Log = staticmethod(lambda records: None)
    report_parts: ReportParts = staticmethod(lambda *_: None)
    submitter: Submitter | None = None

    @abstractmethod
    def start(self, devices: Sequence[Device], worker: WorkerEntry, clock: Clock, report: Report) -> None:
        """Start a worker for each device, without waiting: `DeviceReady` or `DeviceLost` tells how it went."""

    @property
    def copies_arguments(self) -> bool:
        """Return whether arguments travel as bytes to some worker, not as the program's own objects to all of them."""
        return True

    @abstractmethod
    def encode(self, call: Call) -> None:
        """Capture the arguments as they are now and set `call.encoded`, where workers need bytes.

        Raises
        ------
        SerialisationError
            The function or an argument cannot travel; nothing is kept.
        """

    @abstractmethod
    def run(self, device: str, launches: Sequence[tuple[Launch, Call]]) -> None:
        """Run these attempts on the device, one after the other in this order.

        Each is answered by one `TaskFinished`, `TaskFailed` or `TaskWithdrawn`, or by the device's `DeviceLost`.
        """

    @abstractmethod
    def run_group(self, devices: Sequence[str], launch: Launch, call: Call) -> None:
        """Run one attempt on all devices together; the position of a device is its rank.

        Every member answers for itself; the result that counts is that of rank 0.
        """

    @abstractmethod
    def submit(self, order: EngineOrder) -> None:
        """Carry out a command that has no call."""

    @abstractmethod
    def put(self, item: int, value: object) -> int:
        """Keep a value as a data item on the host's memory node, copied at once; return its bytes.

        Raises
        ------
        SerialisationError
            The value cannot travel.
        """

    def holds(self, item: int, value: object) -> bool:
        """Return whether a data item is this very array, unchanged since it was put; False where that is not known."""
        return False

    @abstractmethod
    def commit(self, task: int, attempt: int) -> None:
        """Make the result of this attempt the data item `task`; later results of the task are dropped."""

    @abstractmethod
    def load(self, item: int) -> Any:
        """Return the value of a data item, from wherever it is; may wait for a copy.

        Raises
        ------
        SerialisationError
            The value cannot be read here.
        DeviceLostError
            The only replica was lost.
        """

    @abstractmethod
    def forget(self, item: int) -> None:
        """Drop a data item everywhere: nobody will ask for it again. Unknown ids are fine."""

    @abstractmethod
    def usage(self) -> Mapping[str, NodeUsage]:
        """Return how full each memory node is."""

    def add(self, devices: Sequence[Device]) -> None:
        """Start a worker for each of some more devices, without waiting; only an engine of many hosts is asked to."""
        raise NotImplementedError(f"the fleet of the {self.name} engine stays as it is")

    def pids(self) -> Mapping[str, int]:
        """Return the process id of each device's worker, where it has a process of its own."""
        return {}

    def reach(self) -> Reach:
        """Return the addresses of hosts, for processes that talk to each other themselves."""
        return Reach()

    def pump(self) -> None:  # noqa: B027
        """Do work that waits for the caller's thread (the inline engine runs its tasks here)."""

    @abstractmethod
    def stop(self) -> None:
        """End every worker and give back every resource; safe to call twice."""
