"""Small random worlds in which everything may happen that the core decides on, drawn from a seed.

In: a seed. Out: what a run of some ten tasks decides, in about 20 ms. Between them a hundred seeds meet nearly every
branch of the core, which makes them judges of a changed decision; what is right the other tests say.
"""

from __future__ import annotations

import random
from dataclasses import replace
from math import inf
from typing import TypeVar

from hetero.core.machine import Rules
from hetero.drive.sim import Costs, Program, SimHooks, SimLease, SimResult, SimTask, simulate
from hetero.drive.sim_faults import Faults, Loss, Slowdown
from hetero.model.device import HOST_NODE, Device, DeviceType
from hetero.model.leases import LeaseRequest
from hetero.model.tasks import Near, Request, Task
from hetero.model.topology import Link, MemoryNode, Topology
from hetero.plan.performance.cost_model import CostModel
from hetero.plan.policies.registry import OURS
from tests.sim.worlds import known

T = TypeVar("T")
NAMES = {"tiny": 1e-4, "small": 3e-3, "large": 0.05, "huge": 0.6}
ITEMS = tuple((1_000_000 + number, 60_000 * (number + 1)) for number in range(4))
POLICIES = ("eft", "eft", "eft", *OURS)
WORDS = ("gpu", "cpu", "cuda", "h0/cuda:0", "h1/cpu:0", "opencl", "cuda:1")


class World:
    """One world; `run` is what happens in it."""

    def __init__(self, seed: int) -> None:
        self.seed, self.chance = seed, random.Random(seed)
        self.fleet = self._fleet()
        self.words = (*WORDS, *(word for device in self.fleet for word in (device.id, device.kind, device.kind)))
        self.rules = Rules(
            restarts=self._one_of(0, 1, 4), restart_s=self._one_of(0.01, 0.1), restart_max_s=self._one_of(0.05, 0.4),
            steady_s=self._one_of(0.2, 30.0), stall_s=self._one_of(0.05, 0.5, 5.0),
            stall_factor=self._one_of(2.0, 20.0),
            sweep_s=self._one_of(0.02, 0.3), recheck_s=self._one_of(0.01, 0.05), stuck_s=self._one_of(0.1, 1.0),
        )  # fmt: skip

    def _one_of(self, *values: T) -> T:
        return self.chance.choice(values)

    def _fleet(self) -> list[Device]:
        gpu, cpu = DeviceType("GPU"), DeviceType("CPU")
        cpus = [
            Device(f"h0/cpu:{i}", "cpu", cpu, "cpu", i, cores=self._one_of(1, 1, 4), silicon=self._one_of((), ("s0",)))
            for i in range(self.chance.randint(1, 3))
        ]
        own = self.chance.random() < 0.6
        gpus = [
            Device(
                f"h0/cuda:{i}", "cuda", gpu, "null", i, memory_node=f"h0/cuda:{i}" if own else HOST_NODE, rack="r0",
                memory_bytes=self._one_of(None, 700_000), throttle_frac=self._one_of(1.0, 1.0, 0.5),
            )
            for i in range(self.chance.randint(0, 2))
        ]  # fmt: skip
        far = [
            Device(f"h1/cpu:{i}", "cpu", cpu, "cpu", i, rack="r1", memory_node=f"h1/cpu:{i}" if own else HOST_NODE)
            for i in range(2)
        ]
        kernels = [Device("h0/opencl:0", "opencl", gpu, "null", rack="r0")]
        found = [*cpus, *gpus, *(far if self.chance.random() < 0.4 else []), *(kernels * self._one_of(0, 0, 1))]
        self.chance.shuffle(found)
        return found

    def _topology(self) -> Topology:
        nodes = sorted({device.memory_node for device in self.fleet} - {HOST_NODE})
        links = []
        for node in nodes:
            kind = "pcie" if node.startswith("h0") else "network"
            rate = self._one_of(2e6, 5e7, 1e9)
            links += [Link(HOST_NODE, node, 1e-5, rate, kind, kind), Link(node, HOST_NODE, 1e-5, rate, kind, kind)]
        if "h0/cuda:1" in nodes:
            links.append(Link("h0/cuda:0", "h0/cuda:1", 1e-5, 5e8, "", "nvlink"))
        return Topology(tuple(MemoryNode(node, self._one_of(500_000, 1_200_000, 1 << 30)) for node in nodes), (*links,))

    def _request(self, number: int) -> Request:
        recent = max(1, number - self.chance.randint(1, 5))
        which = {
            "priority": lambda: {"priority": self.chance.randint(-2, 3)},
            "on": lambda: {"on": (self._one_of(*self.words),)},
            "not on": lambda: {"not_on": (self._one_of(*self.words),)},
            "kernels": lambda: {"implemented": self._one_of(("cuda", "opencl"), ("cpu", "cuda"))},
            "group": lambda: {"devices": self.chance.randint(2, 3), "timeout_s": self._one_of(0.0, 0.0, 0.5)},
            "memory": lambda: {"memory_bytes": self._one_of(100_000, 400_000, 900_000)},
            "cores": lambda: {"min_cores": self._one_of(2, 4)},
            "near": lambda: {"near": (Near(self._one_of("device", "host", "rack", "link:nvlink"), task=recent),)},
            "apart": lambda: {"apart": (Near(self._one_of("device", "host", "rack"), workload="blue"),)},
            "blue": lambda: {"workload": "blue"},
            "exclusive": lambda: {"exclusive": True},
            "limited": lambda: {"timeout_s": self._one_of(0.01, 0.3)},
            "split": lambda: {"splittable": True},
        }
        given: dict[str, object] = {}
        if self.chance.random() < 0.45:
            given = which[self._one_of(*which)]()
            if self.chance.random() < 0.2:
                given |= which[self._one_of(*which)]()
        given |= {"retries": self._one_of(0, 1, 3), "crashes": self._one_of(0, 2, 3, 3)}
        return Request(**given)  # type: ignore[arg-type]

    def _tasks(self, count: int, first: int = 1) -> list[SimTask]:
        found: list[SimTask] = []
        sized: list[int] = []
        at_s, gap_s = 0.0, self._one_of(0.0, 1e-4, 0.01)
        for number in range(first, first + count):
            request, name = self._request(number), self._one_of("tiny", *NAMES)
            after = {max(first, number - self.chance.randint(1, 6)) for _ in range(self._one_of(0, 0, 1, 2))} - {number}
            inputs = {self._one_of(*(sized[-3:] or [0])) for _ in range(self._one_of(0, 1, 2))} - {0}
            if self.chance.random() < 0.2:
                inputs.add(self._one_of(*ITEMS)[0])
            nbytes = self._one_of(0, 50_000, 250_000) if request.devices == 1 else 0
            if nbytes:
                sized.append(number)
            sized = [item for item in sized if item > number - 4]  # what is older may have been released
            size = self._one_of(1.0, 4.0, 64.0)
            parents = after | {item for item in inputs if item < ITEMS[0][0]}
            task = Task(number, name, f"{name}|", size, (*sorted(inputs),), (*sorted(parents),), request)
            nests = not request.exclusive and request.devices == 1 and self.chance.random() < 0.2
            found.append(SimTask(task, at_s, nbytes, self._nested() if nests else ()))
            at_s += gap_s * self.chance.random() + 0.3 * (self.chance.random() < 0.03)
        return found

    def _nested(self, depth: int = 2) -> tuple[SimTask, ...]:
        found = []
        for _ in range(self.chance.randint(1, 3)):
            request = self._one_of(Request(), Request(on=(self._one_of(*self.words),)), Request(priority=1))
            inner = self._nested(depth - 1) if depth and self.chance.random() < 0.3 else ()
            found.append(SimTask(Task(1, "tiny", "tiny|", 1.0, (), (), request), nested=inner))
        return tuple(found)

    def _leases(self) -> list[SimLease]:
        found = []
        for number in range(1, self._one_of(0, 0, 1, 3) + 1):
            wish = LeaseRequest(
                on=self._one_of((), (), (self._one_of(*self.words),)), count=self._one_of(1, 1, 2),
                compute_frac=self._one_of(1.0, 0.5), exclusive=self._one_of(False, True),
                together=self._one_of("", "", "host", "rack"), workload=self._one_of("", "blue"),
                apart=self._one_of((), ("blue",)), timeout_s=self._one_of(0.0, 0.2), lease_s=self._one_of(0.0, 0.3),
                priority=self._one_of(0, 1), memory_bytes=self._one_of(0, 0, 100_000),
            )  # fmt: skip
            work = [leased(entry, number) for entry in self._tasks(self._one_of(0, 4), 1000 * number)]
            held_s = inf if wish.lease_s and self.chance.random() < 0.5 else self._one_of(0.05, 0.5)
            found.append(SimLease(number, wish, self._one_of(0.0, 0.1), work, held_s))
        return found

    def _faults(self, measured: bool) -> Faults:
        bad = self._one_of(0.0, 0.0, 0.02, 0.15)
        names = self._one_of(frozenset[str](), frozenset[str](), frozenset({"small"}))
        victim = self._one_of(*self.fleet).id
        calm = Faults(
            slowdowns=self._one_of((), (Slowdown(0.1, victim, 8.0), Slowdown(0.4, victim, 1.0))),
            utilisation_every_s=self._one_of(0.0, 0.05),
            absent=self._one_of((), (("large", "cuda"),), (("small", "cpu"),)),
            losses=self._one_of((), (), (Loss(0.15, victim),)),
        )
        if not bad:
            return calm
        return replace(
            calm, crash=bad, hang=bad / 4 if measured else 0.0, exception=bad, out_of_memory=bad / 2, transfer=bad,
            start=bad,
            duplicate=bad, late=0.5, cancel=bad, kill_every_s=self._one_of(0.0, 0.2), permanent=self._one_of(0.0, 0.5),
            back_s=self._one_of(0.05, 0.3), poison_names=names,
        )  # fmt: skip

    def seconds(self, task: Task, device: Device) -> float:
        """Return speeds of GPUs that are quick at what is large only."""
        quick = {"cuda": 5.0 if task.name in ("large", "huge") else 0.7, "opencl": 2.0}.get(device.kind, 1.0)
        return NAMES[task.name] * (1.0 + task.size / 32.0) / (quick * device.throttle_frac)

    def run(self, hooks: SimHooks) -> SimResult:
        """Simulate the world to its end, its invariants checked now and then."""
        leases = self._leases()
        rows = self._tasks(self.chance.randint(3, 30))
        measured = self.chance.random() < 0.4
        cost = known(self.fleet, self.seconds, *NAMES) if measured else CostModel()
        costs = Costs(
            noise=self._one_of(0.0, 0.3), start_s=self._one_of(0.0, 0.02), notice_s=self._one_of(1e-4, 0.01),
            tick_s=self._one_of(0.0, 0.0, 1e-3), shared=self._one_of(True, False),
        )  # fmt: skip
        work = Program(rows, ITEMS, self._one_of(0, 25), self._one_of(True, False), leases)
        return simulate(
            work, self.fleet, self.seconds, policy=self._one_of(*POLICIES), cost=cost, topology=self._topology(),
            seed=self.seed, costs=costs, faults=self._faults(measured), rules=self.rules, check_every=10, hooks=hooks,
        )  # fmt: skip


def leased(entry: SimTask, lease: int) -> SimTask:
    """Return a task as one of a lease, and so what it nests."""
    task, nested = entry.task, tuple(leased(each, lease) for each in entry.nested)
    return entry._replace(task=task._replace(request=replace(task.request, lease=lease)), nested=nested)
