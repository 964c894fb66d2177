"""Options as one flat set of keywords, for tests that are given some of many."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from hetero.batch.options import BatchLimits, BatchOptions
from hetero.train.values import CHECKPOINT_KEYS, CheckpointOptions, DataOptions, TrainOptions


def trainer_options(**flat: Any) -> dict[str, Any]:
    """Return keywords of the Trainer, with those that belong together in their options."""
    steps, reading = taken(flat, TrainOptions), taken(flat, DataOptions)
    kept = {name: flat.pop(key) for key, name in CHECKPOINT_KEYS.items() if key in flat}
    kept = {name: value for name, value in kept.items() if value is not None}
    if steps.keys() - {"global_batch"}:
        flat["options"] = TrainOptions(**steps)
    else:
        flat |= steps
    if reading:
        flat["data_options"] = DataOptions(**reading)
    if kept:
        flat["checkpoint"] = CheckpointOptions(**kept)
    return flat


def batch_options(**flat: Any) -> dict[str, Any]:
    """Return keywords of `map_batches`, with those that belong together in their options."""
    done, limited = taken(flat, BatchOptions), taken(flat, BatchLimits)
    if done:
        flat["options"] = BatchOptions(**done)
    if limited:
        flat["limits"] = BatchLimits(**limited)
    return flat


def taken(flat: dict[str, Any], options: Any) -> dict[str, Any]:
    return {each.name: flat.pop(each.name) for each in fields(options) if each.name in flat}
