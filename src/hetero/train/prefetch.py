"""Reading ahead: processes beside a member read and augment what it will train on, while it computes.

In: samples, which of them the next steps need. Out: batches, the same ones that the member would have read itself.
It must not run further ahead than a step a process and one more, which is read while the next is computed; a batch that
nobody read ahead is read here.
"""

from __future__ import annotations

import logging
import os
import pickle
import subprocess
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from pathlib import Path
from typing import Any

import cloudpickle
import torch

import hetero
from hetero.engines.local.child_process import LOOK_S, Pulse
from hetero.floor import clock, platform
from hetero.train.data import Samples

__all__ = ["PrefetchingSamples"]

_log = logging.getLogger("hetero")

_LOOKS_STEPS = 4
_WORTH_FRAC = 0.05
_STARTS_S = 5.0
_END_S = 2.0

_Piece = tuple[int, ...]
_Batches = dict[_Piece, object]


class PrefetchingSamples:
    """Samples of a member, of which the next steps' are read ahead.

    Parameters
    ----------
    samples
        With how many processes are to read, None to decide by what reading takes.
    seed
        Of the run.

    Attributes
    ----------
    waited_s
        Seconds that the member spent on reading, or on waiting for it.

    Notes
    -----
    Where nobody said how many, one process is started when reading takes more than a twentieth of a step, and what
    is left of the run is worth more than the 5 s that a start may take.
    """

    def __init__(self, samples: Samples, seed: int) -> None:
        self.samples = samples
        self.seed = seed
        self.waited_s = 0.0
        self._readers: list[_ReaderProcess] = []
        self._under_way: dict[int, Future[_Batches]] = {}
        self._there: _Batches = {}
        self._looks: list[tuple[float, float]] = []
        self._begun_s = clock.monotonic_s()
        self._decided = samples.readers is not None or not samples.one_by_one
        if samples.one_by_one:
            self._start(samples.readers or 0)

    def __len__(self) -> int:
        return len(self.samples)

    def batch(self, ids: Sequence[int], seed: int, step: int) -> object:
        """Return some samples of a step, as `Samples.batch` does."""
        begun_s = clock.monotonic_s()
        if step in self._under_way:
            self._receive(step)
        found = self._there.pop(tuple(ids), None) if self._there else None
        found = self.samples.batch(ids, seed, step) if found is None else found
        self.waited_s += clock.monotonic_s() - begun_s
        return found

    def look_ahead(self, step: int, steps: int, pieces: Callable[[int], Sequence[Sequence[int]]]) -> None:
        """Request the samples of the next steps; call it once a step.

        Parameters
        ----------
        step, steps
            The one that is being done, and how many the run has.
        pieces
            Of a step, the ids of each pass.
        """
        if not self.samples.one_by_one:
            return
        self._there.clear()
        for late in [known for known in self._under_way if known <= step]:
            self._under_way.pop(late).cancel()
        if not self._decided:
            self._decide(steps - step)
        for further in range(1, 2 + len(self._readers) if self._readers else 1):
            reader = self._readers[(step + further) % len(self._readers)]
            if step + further < steps and step + further not in self._under_way and reader.is_up:
                wanted = tuple(tuple(piece) for piece in pieces(step + further))
                self._under_way[step + further] = reader.read(wanted, self.seed, step + further)

    def close(self) -> None:
        """End the processes."""
        for reader in self._readers:
            reader.close()
        self._readers = []
        self._under_way.clear()

    def _start(self, count: int) -> None:
        self._readers = [_ReaderProcess(self.samples) for _ in range(count)]

    def _decide(self, steps_left: int) -> None:
        """Start a process once a few steps have shown that it is worth it."""
        now_s = clock.monotonic_s()
        self._looks.append((self.waited_s, now_s - self._begun_s))
        self.waited_s, self._begun_s = 0.0, now_s
        if len(self._looks) != _LOOKS_STEPS:
            return
        self._decided = True
        read_s, step_s = (sum(part) / (_LOOKS_STEPS - 1) for part in zip(*self._looks[1:], strict=True))
        if read_s > _WORTH_FRAC * step_s and read_s * steps_left > _STARTS_S:
            self._start(1)

    def _receive(self, step: int) -> None:
        """Take in what was read for a step; what a process could not read is read here."""
        try:
            self._there |= self._awaited(self._under_way.pop(step))
        except (OSError, EOFError):
            _log.warning("a process that read ahead has ended; from here on the device reads by itself")
            self.close()

    def _awaited(self, batches: Future[_Batches]) -> _Batches:
        while not wait([batches], LOOK_S).done:
            for reader in self._readers:
                reader.end_if_frozen()
        return batches.result()


class _ReaderProcess:
    """One process that reads, and the thread that talks to it."""

    def __init__(self, samples: Samples) -> None:
        root = str(Path(hetero.__file__).parent.parent)
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "hetero.train.prefetch_worker", str(os.getpid())],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=platform.child_environment(root, platform.environment()),
        )
        self._ends = False
        self._pulse = Pulse()
        self._thread = ThreadPoolExecutor(1, "hetero-read")
        self._greeting = self._thread.submit(self._greet, samples)

    @property
    def is_up(self) -> bool:
        """Return whether it is ready to read."""
        return self._greeting.done() and self._greeting.exception() is None

    def read(self, pieces: Sequence[_Piece], seed: int, step: int) -> Future[_Batches]:
        """Request some batches; return them by their ids."""
        return self._thread.submit(self._exchange, pieces, seed, step)

    def end_if_frozen(self) -> None:
        """Check whether the process was stopped, and end it after as many checks as a worker's: then nobody waits."""
        state, cpu_s = platform.process_state(self._process.pid), clock.process_cpu_s(self._process.pid)
        if self._pulse.frozen(state, cpu_s, received=False, answers=False):
            self._process.kill()

    def close(self) -> None:
        """End the process; nobody waits for what it was reading."""
        self._ends = True
        self._thread.shutdown(wait=False, cancel_futures=True)
        self._process.kill()
        self._process.wait(_END_S)
        self._thread.shutdown()
        for end in (self._process.stdin, self._process.stdout):
            assert end is not None
            with suppress(OSError):  # what was on its way to it
                end.close()

    def _greet(self, samples: Samples) -> None:
        try:
            self._send((sys.path, cloudpickle.dumps(samples)))
            self._receive()
        except Exception as error:
            if self._ends:
                return
            _log.warning("nothing is read ahead, the device reads by itself: %s", error)
            raise

    def _exchange(self, pieces: Sequence[_Piece], seed: int, step: int) -> _Batches:
        self._send((pieces, seed, step))
        batches = [_as_tensors(batch) for batch in self._receive()]
        return dict(zip(pieces, batches, strict=True))

    def _send(self, message: object) -> None:
        assert self._process.stdin is not None
        pickle.dump(message, self._process.stdin, pickle.HIGHEST_PROTOCOL)
        self._process.stdin.flush()

    def _receive(self) -> Any:
        assert self._process.stdout is not None
        answer, error = pickle.load(self._process.stdout)
        if error is not None:
            raise error
        return answer


def _as_tensors(value: Any) -> object:
    """Turn what `reader.as_plain` made back."""
    kind, content = value
    if kind == "tensor":
        return torch.from_numpy(content)
    if kind in ("tuple", "list"):
        return (tuple if kind == "tuple" else list)(_as_tensors(part) for part in content)
    if kind == "dict":
        return {name: _as_tensors(part) for name, part in content.items()}
    return content
