"""Checkpoints of training: states with a manifest, whole or absent, the newest few kept.

In: states as bytes. Out: the newest that is complete and belongs to this run. It must not know models.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from hetero.floor.documents import parse_json, record_of
from hetero.floor.errors import BadValueError, HeteroError
from hetero.floor.units import shown
from hetero.stores.base import Store
from hetero.stores.objects import open_store
from hetero.train.values import Totals, TrainOptions

__all__ = ["Checkpoint", "TrainingCheckpoints", "run_facts"]

_STATE, _MANIFEST = "state", "manifest"


class Checkpoint(NamedTuple):
    """One complete checkpoint, and what was wrong with newer ones."""

    step: int
    state: bytes
    facts: dict[str, Any]
    damaged: tuple[str, ...] = ()


class TrainingCheckpoints:
    """The checkpoints of one run, in a folder of its own.

    Parameters
    ----------
    folder
        Or URL of an object store; made when first written to.
    keep
        The newest so many stay.

    Notes
    -----
    The state is written first, the manifest with its checksum last: a checkpoint without a manifest does not exist.

    Examples
    --------
    >>> import tempfile
    >>> kept = TrainingCheckpoints(tempfile.mkdtemp(), keep=2)
    >>> for step in (10, 20, 30):
    ...     kept.write(step, b"state", {"seed": 1})
    >>> kept.steps(), kept.newest().step
    ((20, 30), 30)
    """

    def __init__(self, folder: Path | str, keep: int = 3, store: Store | None = None) -> None:
        self.store = store or open_store(folder)
        self.keep = keep

    def write(self, step: int, state: bytes, facts: dict[str, Any]) -> None:
        """Keep a state and drop the oldest ones beyond `keep`."""
        manifest = {"step": step, "sha256": hashlib.sha256(state).hexdigest(), "bytes": len(state), **facts}
        self.store.put(_key(step, _STATE), state)
        self.store.put(_key(step, _MANIFEST), json.dumps(manifest).encode())
        for old in [other for other in self.steps() if other <= step][: -self.keep]:
            self.store.delete(_key(old, _MANIFEST))
            self.store.delete(_key(old, _STATE))

    def steps(self) -> tuple[int, ...]:
        """Return the steps that have a manifest, oldest first."""
        found = [key.split("/")[0] for key in self.store.list("step-") if key.endswith(f"/{_MANIFEST}")]
        return tuple(sorted(int(name.removeprefix("step-")) for name in found))

    def newest(self) -> Checkpoint | None:
        """Return the newest checkpoint that is complete, None where there is none; damaged ones are passed over."""
        damaged: list[str] = []
        for step in reversed(self.steps()):
            try:
                state, facts = self.read(step)
            except (HeteroError, ValueError) as error:
                damaged.append(f"the checkpoint of step {step} is passed over: {error}")
            else:
                return Checkpoint(step, state, facts, tuple(damaged))
        if damaged:
            raise HeteroError("; ".join(damaged), remedy="begin anew, or restore the folder")
        return None

    def newest_of(self, run: Mapping[str, object]) -> Checkpoint | None:
        """Return the newest checkpoint, which must have these facts.

        Parameters
        ----------
        run
            What `run_facts` gives of the run that is to go on.

        Raises
        ------
        BadValueError
            It is of another run.
        HeteroError
            All are damaged.
        """
        found = self.newest()
        for name, value in run.items() if found is not None else ():
            if found is not None and found.facts.get(name) != value:
                raise BadValueError(
                    f"the checkpoint of step {found.step} has {name} {found.facts.get(name)}, and this run {value}",
                    remedy="give the same, or another folder",
                )
        return found

    def refuse_to_overtake(self, step: int) -> None:
        """Refuse to train from a step on where complete checkpoints of later steps would be taken for this run's.

        Raises
        ------
        BadValueError
            There is such a checkpoint.
        """
        if not any(other > step for other in self.steps()):
            return
        try:
            found = self.newest()
        except HeteroError:
            return
        if found is not None and found.step > step:
            raise BadValueError(
                f"there is a checkpoint of step {found.step} already, and this run stands at step {step}",
                remedy="resume (trainer.resume(), --resume), or give another folder",
            )

    def read(self, step: int) -> tuple[bytes, dict[str, Any]]:
        """Return the state and the facts of one checkpoint.

        Raises
        ------
        HeteroError
            It is not complete.
        """
        manifest, state = self.store.get(_key(step, _MANIFEST)), self.store.get(_key(step, _STATE))
        if manifest is None or state is None:
            raise HeteroError("its state is absent")
        facts = facts_of(manifest, f"the manifest of step {step}")
        if facts["sha256"] != hashlib.sha256(state).hexdigest():
            raise HeteroError("its state does not match its manifest")
        return state, facts


def facts_of(manifest: bytes, place: str) -> dict[str, object]:
    """Read a manifest; one from elsewhere may lack the sums of its epoch.

    Raises
    ------
    HeteroError
        It is damaged, or what it has are no sums.
    """
    found = parse_json(manifest.decode("utf-8", "replace"), place, HeteroError)
    facts = record_of(found, {"sha256": str}, place, HeteroError)
    totals = facts.get("totals", {})
    kinds: dict[str, Any] = {name: dict if name == "speeds" else (int, float) for name in Totals.__slots__}
    if not isinstance(totals, dict) or any(not isinstance(each, kinds.get(name, ())) for name, each in totals.items()):
        raise HeteroError(f"{place}: {shown(totals)} are no sums of an epoch", remedy="use another checkpoint")
    return facts


def run_facts(options: TrainOptions, samples: int) -> dict[str, object]:
    """Return what two runs must share for one to go on where the other stopped.

    Parameters
    ----------
    samples
        Of the data.
    """
    names = ("seed", "global_batch", "shuffle", "exact", "clip_norm", "clip_value", "ema_decay")
    return {**{name: getattr(options, name) for name in names}, "samples": samples}


def _key(step: int, part: str) -> str:
    return f"step-{step:012d}/{part}"
