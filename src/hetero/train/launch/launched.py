"""A process of `hetero launch`: what the script's models, optimizers, loaders and losses become among several.

In: what the launching program told, the script's calls. Out: the same calls for the parts that do the work: the
processes, the batches and the gradients. It must not own the loop, nor know how processes are started.
"""

from __future__ import annotations

import atexit
import math
import os
import pickle
import random
import sys
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import NoReturn

import numpy as np
import torch
import torch._functorch.config as functorch_config
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.utils.data import DataLoader
from torch.utils.hooks import RemovableHandle

from hetero.backends.cpu import hold_threads
from hetero.floor import clock
from hetero.floor.errors import BadValueError
from hetero.floor.own_memory import keep_freed_memory
from hetero.train.launch import fleet, global_norm
from hetero.train.launch import script_mistakes as mistakes
from hetero.train.launch.host_processes import LaunchedProcess
from hetero.train.launch.process_group import ProcessGroup
from hetero.train.launch.recovery import Recovery, T
from hetero.train.launch.reducer import Reducer
from hetero.train.launch.shared_batches import SharedBatches, StepClock
from hetero.train.launch.shared_loader import Batch, SharedLoader, map_tensors, moved_to, samples_in
from hetero.train.launch.step_phases import StepPhases
from hetero.train.launch.step_records import record_steps
from hetero.train.launch.summed_values import SummedValues
from hetero.train.launch.whole_draws import Rows

__all__ = ["Member"]

_autograd_backward = torch.autograd.backward
_CLOSE = {torch.float32: 1e-3, torch.float64: 1e-3}
_ROUGH = 3e-2
_COMPARED_EVERY = 64
_END = object()


class Member(fleet.TrainingFleet):
    """One of several processes that `hetero launch` has started."""

    def __init__(self, told: LaunchedProcess) -> None:
        super().__init__()
        begun_s = clock.monotonic_s()
        self._processes = ProcessGroup(told)
        self.rank, self.devices, self.device = told.rank, told.devices, self._processes.device
        if self.device.type == "cpu":
            hold_threads(told.cores, torch.get_num_threads, torch.set_num_threads)
            keep_freed_memory()
        else:
            getattr(torch, self.device.type).set_device(self.device)
        self._options = told.options
        step_clock = StepClock(self._processes, told.throttle_frac)
        if told.options.trace and not told.checks:
            step_clock = StepPhases(self._processes, told.throttle_frac, begun_s)
        self._clock = step_clock
        self._summed = SummedValues(self)
        self._batches = SharedBatches(self._processes, told.options, step_clock, self._summed)
        self._reducer = Reducer(self._processes, self._batches, told.options, step_clock)
        self._recovery = Recovery(self._processes, self._batches, self._reducer, self._summed)
        self._at_step: weakref.WeakKeyDictionary[Optimizer, tuple[int, int]] = weakref.WeakKeyDictionary()
        self._hooks: list[RemovableHandle] = []
        self._processes.when_checking.append(self._checks_from_here)
        self._share_generators()
        if self.world_size > 1:
            self._take_over()
        atexit.register(self._processes.close)
        if isinstance(step_clock, StepPhases):
            atexit.register(step_clock.finish)
            self._processes.when_alone.append(step_clock.alone)
            if self._processes.is_alone:
                step_clock.alone()
        if told.options.record:
            record_steps(told.options.record, self)

    def _checks_from_here(self) -> None:
        """Go on in a process that was forked to compute whole batches."""
        self.rank, self._pid = self._processes.rank, os.getpid()

    @property
    def _is_first_here(self) -> bool:
        return self._processes.is_first_here

    def _share_generators(self) -> None:
        """Set in all processes the first one's random numbers."""
        state = pickle.dumps((torch.get_rng_state(), np.random.get_state(), random.getstate()))
        torchs, numpys, pythons = pickle.loads(self._processes.from_first(state))
        torch.set_rng_state(torchs)
        np.random.set_state(numpys)
        random.setstate(pythons)
        if self.device.type != "cpu":
            getattr(torch, self.device.type).manual_seed(torch.initial_seed())

    # --- what stands in for torch's own --------------------------------------------------------------------

    def _take_over(self) -> None:
        """Replace what a loop calls by what knows of the other processes."""
        functorch_config.donated_buffer = False  # a backward pass may go through a compiled graph twice
        torch.Tensor.backward = _launched_backward
        torch.autograd.backward = _launched_autograd_backward
        self._batches.draws.install()
        global_norm.install(self._batches.group_for, self._batches.group_now)
        self._hooks.append(register_optimizer_step_pre_hook(self._about_to_step))
        self._processes.when_alone.append(self._hand_back)
        enter = torch.autocast.__enter__

        def entered(context: torch.autocast) -> object:
            self._reducer.first_steps.rough |= bool(context._enabled)
            return enter(context)

        torch.autocast.__enter__ = entered

    def _hand_back(self) -> None:
        """Put back torch's own: alone the loop goes on as without hetero."""
        torch.Tensor.backward = fleet.backward
        torch.autograd.backward = _autograd_backward
        self._batches.draws.uninstall()
        self._batches.draws.rows = None
        global_norm.uninstall()
        for hook in self._hooks:
            hook.remove()

    # --- what is prepared ----------------------------------------------------------------------------------

    def _prepared_model(self, model: torch.nn.Module) -> torch.nn.Module:
        found = super()._prepared_model(model)
        if not self._processes.is_alone:
            names = [name for name, _ in found.named_parameters()]
            self._reducer.manage(type(model).__name__, names, list(found.parameters()))
            self._level(found)
            self._recovery.models.append(found)
            self._reducer.models.append(found)
            self._hooks.append(found.register_forward_pre_hook(_InModel(self._batches), with_kwargs=True))
        return found

    def _level(self, model: torch.nn.Module) -> None:
        """Set in all processes the main one's weights."""
        with self._processes.ended_together(), torch.no_grad():
            for tensor in (*model.parameters(), *model.buffers()):
                host = tensor.detach().to("cpu").contiguous()
                if host.numel() and not host.is_complex():
                    sent = host.view(torch.uint8) if host.dim() else host.reshape(1).view(torch.uint8)
                    self._processes.all.broadcast(sent.numpy(), 0)
                    if not self.is_main:
                        tensor.copy_(host)

    def _prepared_optimizer(self, optimizer: Optimizer) -> Optimizer:
        if self._processes.is_alone or optimizer in self._reducer.steps:
            return optimizer
        if isinstance(optimizer, torch.optim.SparseAdam):
            self._processes.end_with(
                BadValueError(
                    "SparseAdam needs sparse gradients, and those of several processes travel dense",
                    remedy="take torch.optim.Adam, and Embedding without sparse=True",
                )
            )
        every = [each for group in optimizer.param_groups for each in group["params"]]
        own = [each for each in every if id(each) not in self._reducer.known]
        if own:
            self._reducer.manage(type(optimizer).__name__, [f"parameter {number}" for number in range(len(own))], own)
        self._reducer.add(optimizer)
        self._hooks.append(optimizer.register_step_pre_hook(self._with_whole_losses))
        self._hooks.append(optimizer.register_step_post_hook(lambda one, args, options: self._reducer.stepped(one)))
        return optimizer

    def _about_to_step(self, optimizer: Optimizer, *_: object) -> None:
        mistakes.raise_if(mistakes.unprepared(optimizer, self._reducer.known))
        mistakes.raise_if(mistakes.held_back(optimizer) if self._reducer.holds_back(optimizer) else None)
        now = (self._reducer.exchanges, self._batches.handed_out)
        before = self._at_step.get(optimizer, (0, 0))
        if now[0] == before[0] and now[1] > before[1]:
            mistakes.raise_if(mistakes.without_backward(optimizer))
        self._at_step[optimizer] = now

    def _with_whole_losses(self, _: Optimizer, args: tuple[Batch, ...], options: dict[str, Batch]) -> Batch:
        """Wrap the closure of an optimizer to return the loss of the whole batch: decisions rest on it."""
        places = [(args[1:], 0)] if len(args) > 1 else []
        closure = places[0][0][0] if places else options.get("closure")
        if closure is None:
            return None

        def whole() -> object:
            found = closure()
            if self._reducer.loss is None or not isinstance(found, Tensor):
                return found
            return found.detach().clone().fill_(self._reducer.loss)

        return ((args[0], whole, *args[2:]), options) if places else (args, {**options, "closure": whole})

    def _prepared_loader(self, loader: DataLoader[Batch]) -> Batch:
        self._batches.has_loader = True
        if self._processes.is_alone:
            return _TimedLoader(loader, self, self._clock)
        group = self._processes.all
        table = np.zeros((group.world_size, 2))
        table[group.rank] = mistakes.loader_numbers(loader)
        with self._processes.ended_together():
            group.all_reduce(table)
        mistakes.raise_if(mistakes.loaders_differ([*self.devices, "the check"][: len(table)], table.tolist()))
        return self._batches.shares_of(SharedLoader(loader, self._batches))

    # --- what frameworks ask ---------------------------------------------------------------------------------

    def _prepared_framework(self, given: Batch) -> Batch:
        from hetero.train.frameworks.huggingface import joined

        return joined(given, self) if self.world_size > 1 else given

    def undivided(self, batch: Batch) -> Batch:
        """Return a batch that all processes compute whole, as in an evaluation."""
        self._batches.is_divided = False
        self._batches.between_batches()
        return batch if self.device.type == "cpu" else moved_to(self.device, batch)

    @property
    def rows(self) -> Rows:
        """Which rows of the current batch this process has."""
        return self._batches.rows

    @property
    def parts(self) -> int:
        """Into how many parts a batch is cut, 1 where this process computes all of it."""
        return 1 if self._processes.checks else len(self._processes.members)

    def whole_value(self, value: Tensor) -> Tensor:
        """Return what a number of the own rows, as a loss before `backward`, is for the whole batch."""
        return self.whole_and_mean(value)[0]

    def whole_and_mean(self, value: Tensor) -> tuple[Tensor, float]:
        """Return what a number is for the whole batch, and what the parts make of it, the same where they are close.

        In the first steps the whole batch is computed; what the number means, as a sum or a mean, is learned from it.
        """
        if self._processes.is_alone or not self._batches.is_divided:
            return value.detach(), float(value.detach())
        own, mean, close = float(value.detach()), math.nan, _CLOSE.get(value.dtype, _ROUGH)
        whole = self._of_check(own)
        for way, count in self._reducer.counts_for(value).items():
            row = torch.tensor([own * (count or float(not self._batches.has_none)), count], dtype=torch.float64)
            if not self._processes.checks:
                with self._processes.ended_together():
                    self._processes.all_reduce(row)
            mean = float(row[0]) / (float(row[1]) or 1.0)
            if whole is None:
                return torch.full_like(value.detach(), mean), mean
            if math.isclose(mean, whole, rel_tol=close, abs_tol=close * abs(own)):
                mean = whole
                self._reducer.learn_way(value, way)
                break
        return torch.full_like(value.detach(), whole), mean

    def _of_check(self, number: float) -> float | None:
        """Return the number of the process that computes whole batches; None where there is none any more."""
        if not self._processes.has_check:
            return None
        row = torch.tensor([number if self._processes.checks else 0.0], dtype=torch.float64)
        with self._processes.ended_together():
            self._processes.all.all_reduce(row)
        return float(row[0])

    def prepare_function(self, label: str, names: Sequence[str], parameters: Sequence[Tensor]) -> None:
        """Reduce gradients that JAX has computed, by a function whose calls are compared by `compares_again`."""
        self._processes.has_threads = True
        if not self._processes.is_alone:
            self._reducer.manage(label, names, parameters, compares=False)

    def compares_again(self, number: int) -> bool:
        """Return whether this process compares a call with one device, as it can: the first ones, then ever fewer."""
        options = self._options
        if self._processes.is_alone or self._processes.has_check or not self.is_main or not options.strict:
            return False
        few = number <= options.check_steps or not number & (number - 1) or not number % _COMPARED_EVERY
        return bool(options.check_steps) and few

    def end_with(self, error: BadValueError) -> NoReturn:
        """End all processes with an error."""
        self._processes.end_with(error)

    def set_loss(self, value: float) -> None:
        """Set what the loss of the last backward pass is for the whole batch."""
        if self._reducer.loss is not None:
            self._reducer.loss = value

    def between_batches(self) -> None:
        """Record that what is drawn until the next batch is for all of it."""
        self._batches.between_batches()

    def is_same(self, number: int) -> bool:
        """Return whether all processes give the same number."""
        group = self._processes.all
        table = np.zeros(group.world_size, dtype=np.int64)
        table[group.rank] = number
        with self._processes.ended_together():
            group.all_reduce(table)
        return bool((table == table[0]).all())

    @property
    def loss(self) -> float | None:
        """Return that of the whole batch, in the last backward pass; None where it is not known."""
        return None if self._processes.is_alone else self._reducer.loss

    @property
    def is_rough(self) -> bool:
        """Return whether numbers are those of different kinds of device, or computed in half precision."""
        return self._reducer.first_steps.rough

    def end(self) -> NoReturn:
        """End this process, as all others do in the same place, without what the script does at its end."""
        self.wait()
        self._processes.leave()

    def keep_all(self) -> None:
        """Leave no device out: the script may sum up what each has counted, in a way that is not seen."""
        self._summed.is_certain = False

    def note(self, words: str) -> None:
        """Print a line for people, once."""
        self._processes.note(words)

    # --- the loop ------------------------------------------------------------------------------------------

    @property
    def is_main(self) -> bool:
        """See `TrainingFleet.is_main`."""
        return self._processes.is_first

    def step(self, function: Callable[..., T], *batch: Batch) -> T:
        """See `TrainingFleet.step`."""
        self._check_own()
        return self._recovery.step(function, batch)

    @property
    def is_within_backward(self) -> bool:
        """Return whether a backward pass is on its way."""
        return self._reducer.is_within

    @property
    def global_batch(self) -> int:
        """See `TrainingFleet.global_batch`."""
        return self._batches.rows.whole if self._batches.is_divided else 0

    def backward(self, loss: Tensor, weight: float | None = None, **kwargs: Batch) -> None:
        """See `TrainingFleet.backward`."""
        self._check_own()
        if self._processes.is_alone or self._reducer.is_within:  # checkpoints of activations go backwards on their way
            fleet.backward(loss, **kwargs)
        else:
            self._reducer.backward(loss, weight, kwargs)

    def split(self, *batch: Batch, dim: int = 0) -> Batch:
        """See `TrainingFleet.split`."""
        self._check_own()
        found = batch[0] if len(batch) == 1 else batch
        return found if self.world_size == 1 else self._batches.split(found, dim)

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """See `TrainingFleet.no_sync`."""
        self._check_own()
        with self._reducer.no_sync():
            yield

    def gather(self, rows: Batch) -> Batch:
        """See `TrainingFleet.gather`."""
        self._summed.called()
        return self.gathered(rows)

    def gathered(self, rows: Batch) -> Batch:
        """Return the rows of all processes, of which nothing is kept that a process counts by itself."""
        self._check_own()
        if self._processes.checks or self._processes.is_alone:
            return super().gather(rows)
        with self._processes.ended_together():
            found = map_tensors(self._gathered, rows)
        self._processes.commit()
        return found

    def _gathered(self, rows: Tensor) -> Tensor:
        own = torch.as_tensor(rows).detach().to("cpu")
        counts = np.zeros(self.world_size, dtype=np.int64)
        counts[self.rank] = 0 if self._batches.has_copy and len(own) == 1 else len(own)
        self._processes.members_group.all_reduce(counts)
        begin = int(counts[: self.rank].sum())
        sent = own.to(torch.float64 if own.is_floating_point() else torch.int64)
        whole = torch.zeros((int(counts.sum()), *own.shape[1:]), dtype=sent.dtype)
        whole[begin : begin + int(counts[self.rank])] = sent[: int(counts[self.rank])]
        self._processes.members_group.all_reduce(whole)
        found = whole.to(own.dtype)
        return found.to(rows.device) if isinstance(rows, Tensor) else found.numpy()

    def sum(self, value: object) -> Tensor:
        """See `TrainingFleet.sum`."""
        self._check_own()
        given = torch.as_tensor(value).detach()
        self._reducer.exchanges += 1
        self._summed.called()
        if self._processes.checks or self._processes.is_alone:
            return given
        row = given.to("cpu", torch.float64 if given.is_floating_point() else torch.int64, copy=True).reshape(-1)
        with self._processes.ended_together():
            self._processes.members_group.all_reduce(row)
        self._processes.commit()
        return row.reshape(given.shape).to(given.device, given.dtype)

    def broadcast(self, value: Batch) -> Batch:
        """See `TrainingFleet.broadcast`."""
        self._check_own()
        sent = np.frombuffer(pickle.dumps(value) if self.is_main else b"", dtype=np.uint8).copy()
        size = np.array([len(sent)])
        with self._processes.ended_together():
            self._processes.all.broadcast(size, 0)
            sent = sent if self.is_main else np.zeros(size[0], dtype=np.uint8)
            self._processes.all.broadcast(sent, 0)
        self._processes.commit()
        return value if self.is_main else pickle.loads(sent.tobytes())

    def wait(self) -> None:
        """See `TrainingFleet.wait`."""
        self._check_own()
        if not self._processes.is_alone:
            with self._processes.ended_together():
                self._processes.all.all_reduce(np.zeros(1))
            self._processes.commit()


class _TimedLoader(fleet.PlacedLoader):
    """A loader of one process from the beginning, of which a clock is told when it reads."""

    def __init__(self, loader: DataLoader[Batch], member: Member, step_clock: StepClock) -> None:
        super().__init__(loader, member)
        self._clock = step_clock

    def __iter__(self) -> Iterator[Batch]:
        return self._timed(super().__iter__())

    def _timed(self, batches: Iterator[Batch]) -> Iterator[Batch]:
        while True:
            self._clock.script_ends()
            batch = next(batches, _END)
            if batch is _END:
                return
            self._clock.handed(samples_in(batch) or 0)
            yield batch


class _InModel:
    """A hook of prepared models, whose copies and files have it not."""

    def __init__(self, batches: SharedBatches) -> None:
        self._batches = batches

    def __call__(self, model: torch.nn.Module, args: Batch, options: Batch) -> None:
        if torch.compiler.is_compiling():  # a guard on what changes with each batch would compile the model anew
            return
        self._batches.in_model(model, args, options)

    def __deepcopy__(self, memo: object) -> Callable[..., None]:
        return nullcontext().__exit__

    def __reduce__(self) -> tuple[object, ...]:
        return getattr, (nullcontext(), "__exit__")


def _launched_backward(
    self: Tensor,
    gradient: object = None,
    retain_graph: object = None,
    create_graph: bool = False,
    inputs: object = None,
) -> None:
    options = {"gradient": gradient, "retain_graph": retain_graph, "create_graph": create_graph, "inputs": inputs}
    fleet.init().backward(self, None, **options)


def _launched_autograd_backward(
    tensors: Tensor | Sequence[Tensor],
    grad_tensors: Tensor | Sequence[Tensor] | None = None,
    retain_graph: bool | None = None,
    create_graph: bool = False,
    grad_variables: Tensor | Sequence[Tensor] | None = None,
    inputs: Tensor | Sequence[Tensor] | None = None,
) -> None:
    """Stand in for `torch.autograd.backward`, by which torch's own method of tensors goes, too."""
    member = fleet.init()
    if sys._getframe(1).f_code is fleet.backward.__code__ or (isinstance(member, Member) and member.is_within_backward):
        _autograd_backward(tensors, grad_tensors, retain_graph, create_graph, grad_variables, inputs)
        return
    first, *others = [tensors] if isinstance(tensors, Tensor) else list(tensors)
    given = grad_tensors if grad_tensors is not None else grad_variables
    if given is not None and others:
        raise BadValueError(
            "torch.autograd.backward was given several tensors with gradients of their own",
            remedy="call backward(gradient) of each",
        )
    gradient = given if given is None or isinstance(given, Tensor) else next(iter(given))
    sum(others, first).backward(gradient, retain_graph, create_graph, inputs)
