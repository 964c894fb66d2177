"""A process that reads samples ahead: its entry point, and how batches are written for the way back.

In: samples, then ids of batches, from its standard input. Out: the batches, to its standard output.
It must not print there: what the user's code prints goes to standard error.
"""

from __future__ import annotations

import os
import pickle
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, BinaryIO

if TYPE_CHECKING:
    from hetero.train.data import Samples

__all__ = ["as_plain", "main"]


def main() -> None:
    """Read what is asked for until nobody asks any more."""
    out = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    asked = sys.stdin.buffer
    sys.path[:], content = pickle.load(asked)
    from hetero.floor import platform

    if not platform.die_with_parent(int(sys.argv[1])):
        return
    platform.bind_to_cpus(range(os.cpu_count() or 1))  # the device computes on its own CPUs meanwhile
    import torch

    torch.set_num_threads(1)
    samples = pickle.loads(content)
    with suppress(EOFError, BrokenPipeError):
        _reply(out, None)
        while True:
            pieces, seed, step = pickle.load(asked)
            _reply(out, *_read(samples, pieces, seed, step))


def _read(
    samples: Samples, pieces: Sequence[Sequence[int]], seed: int, step: int
) -> tuple[list[object] | None, Exception | None]:
    try:
        return [as_plain(samples.batch(piece, seed, step)) for piece in pieces], None
    except Exception as error:  # noqa: BLE001  it is raised again where the batch is needed
        return None, error


def _reply(out: BinaryIO, answer: object, error: Exception | None = None) -> None:
    import cloudpickle

    out.write(cloudpickle.dumps((answer, error)))
    out.flush()


def as_plain(value: Any) -> tuple[str, object]:
    """Write a batch with arrays in the place of tensors, which pickle as plain bytes.

    Examples
    --------
    >>> as_plain([1])
    ('list', [('other', 1)])
    """
    import torch

    if torch.is_tensor(value) and value.dtype != torch.bfloat16 and type(value) is torch.Tensor:
        return "tensor", value.detach().cpu().numpy()
    if type(value) in (tuple, list):
        return type(value).__name__, [as_plain(part) for part in value]
    if type(value) is dict:
        return "dict", {name: as_plain(part) for name, part in value.items()}
    return "other", value


if __name__ == "__main__":
    main()
