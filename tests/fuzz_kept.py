"""Files that hetero keeps or hands to others, for the fuzzer: some sound ones of each, and what reads them.

In: nothing. Out: `Format`s, which `tests.fuzz_formats` lists beside the files of others. A damaged file counts as
absent where the page of its reader says so.
"""

from __future__ import annotations

import io
import json
import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from hetero.floor import settings

__all__ = ["KEPT", "Format"]


@dataclass(frozen=True, slots=True)
class Format:
    """One kind of file.

    Attributes
    ----------
    name, file
        Of the format, and of the file in its folder.
    seeds
        Gives sound files.
    read
        Reads one, given its path, and uses what was read.
    form
        How a structural mutation takes it apart: 'json', 'yaml', 'lines' of JSON, 'table' or 'bytes'.
    exits
        The exit codes of its refusals.
    """

    name: str
    file: str
    seeds: Callable[[], list[bytes]]
    read: Callable[[Path], object]
    form: str
    exits: tuple[int, ...] = (3,)


def _json(*documents: Any) -> list[bytes]:
    return [json.dumps(document, indent=1).encode() for document in documents]


def _node_file() -> list[bytes]:
    from hetero.engines.ray.node import Node

    return _json(asdict(Node("127.0.0.1:6379", "127.0.0.1", "ab" * 32, "", 4242, "/tmp/hetero-abcn", "127.0.0.1:1", 9)))


def _node(path: Path) -> None:
    from hetero.engines.ray.node import read_node

    found = read_node(path)
    assert found.pid > 0 <= found.job_server_pid
    assert Path(found.folder).is_absolute()
    assert Path(found.folder).name.startswith("hetero-")


def _descriptors() -> list[bytes]:
    about = {"name": "night", "pid": 7, "host": "h", "began": "2026-11-22T04:13:50+00:00"}
    return _json({**about, "socket": "/tmp/hetero-x1/run", "token": "00" * 16})


def _descriptor(path: Path) -> None:
    from hetero.session.run_server import OpenRun, answers, read_descriptor

    about = read_descriptor(path)
    answers(about["socket"])
    OpenRun(about["name"], about["pid"], about["host"], about["began"], "", about["socket"], about["token"]).as_dict()


def _probes() -> list[bytes]:
    from hetero.backends.base import Found
    from hetero.backends.probe import found_to
    from hetero.backends.registry import load
    from hetero.model.device import Device, DeviceType
    from hetero.session.disk_cache import backend_key

    gpu = Device("h0/cuda:0", "cuda", DeviceType("GPU"), "torch", silicon=("h0/cuda0",))
    found = [found_to(Found(gpu, "torch")), found_to(Found(None, "torch", "no driver", "install one"))]
    return _json({"null": {"key": backend_key(load("null")), "at_s": 1.0, "answered": True, "found": found}})


def _read_probes(kept: dict[str, Any]) -> None:
    from hetero.session.fleet import _remembered, choose

    for found in _remembered(kept, ["null"], "").values():
        choose(found)


def _read_rest(kept: dict[str, Any]) -> None:
    from hetero.batch.size_history import _entry
    from hetero.plan.batch.size_tuning import Sizes
    from hetero.session.fleet_speed import _speed
    from hetero.session.hosts import _are_links

    for value in kept.values():
        speed = _speed(value)
        assert speed is None or speed.flop_per_s > 0.0
        sizes = _entry(value)
        Sizes(None, sizes["limit"] or 8, [(size, seconds) for size, seconds in sizes["points"]])
        assert not _are_links(value) or len(value) == 2


def _at_home(read: Callable[[dict[str, Any]], None]) -> Callable[[Path], None]:
    """Return what reads a file of HETERO_HOME and uses what it holds."""

    def reader(path: Path) -> None:
        from hetero.session.disk_cache import DiskCache

        with settings.replaced({"HETERO_HOME": str(path.parent)}):
            read(DiskCache(path.name).read())

    return reader


def _manifests() -> list[bytes]:
    bad = [{"item": 4, "file": "a.csv", "row": 4, "reason": "x"}]
    note = {
        "part": 0,
        "file": "part-00000.jsonl",
        "begin": 0,
        "end": 9,
        "rows": 8,
        "bytes": 7,
        "sha256": "",
        "bad": bad,
    }
    return _json({"job": "k", "source": "s", "rows": 8, "bad": 1, "parts": [note, {**note, "file": "", "part": 1}]})


def _manifest(path: Path) -> None:
    from hetero.batch.base import Job
    from hetero.batch.sinks import JsonLinesSink

    beside = path.parent.parent / f"{path.parent.name}.kept"
    beside.write_text("not of this run")
    try:
        sink = JsonLinesSink(path.parent)
        sink.bad()
        sink.open(Job("k", 1, 9, "s"), "resume")
        sink.open(Job("k", 1, 9, "s"), "overwrite")
        assert beside.exists(), "a file of another folder is gone"
    finally:
        beside.unlink(missing_ok=True)
        for each in path.parent.glob("_unfinished/*"):
            each.unlink()
        if (path.parent / "_unfinished").is_dir():
            (path.parent / "_unfinished").rmdir()
        path.write_bytes(b"")


@cache
def _layers() -> Any:
    from torch import nn

    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8))
    for part in (model[0], model[2]):
        nn.init.constant_(part.weight, 0.0)
        part.weight.data[0, 0] = 1.0
    return model


@cache
def _models() -> list[bytes]:
    from safetensors.torch import save

    from hetero.compression import files
    from hetero.train.saving import _ALIASES

    tensors = {name: each for name, each in _layers().state_dict().items() if name != "2.bias"}
    return [save(tensors, {_ALIASES: '{"2.bias": "0.bias"}'}), files.pack(_layers(), {})]


def _trained(path: Path) -> None:
    import copy

    from hetero.compression.files import load_parameters
    from hetero.train.saving import read_model

    read_model(path)
    load_parameters(copy.deepcopy(_layers()), path)


def _array_files() -> list[bytes]:
    def saved(array: Any) -> bytes:
        file = io.BytesIO()
        np.save(file, array)
        return file.getvalue()

    return [saved(np.zeros((2, 28, 28), np.uint8)), saved(np.ones((28, 28)))]


def _array(path: Path) -> None:
    from hetero.batch.sources import NpySource
    from hetero.recipes.saved_models import read_pictures

    read_pictures(path)
    source = NpySource(path)
    assert len(source.identity()) > 0
    from hetero.demo.run import read_field

    if np.load(path, mmap_mode="r").ndim == 3:
        read_field(path, 4)


def _pictures() -> list[bytes]:
    from PIL import Image

    made = []
    for form in ("PNG", "JPEG", "BMP", "GIF", "TIFF"):
        file = io.BytesIO()
        Image.new("L", (28, 28), 7).save(file, form)
        made.append(file.getvalue())
    return made


def _picture(path: Path) -> None:
    from hetero.recipes.saved_models import read_pictures

    with warnings.catch_warnings():  # Pillow tells of odd tags
        warnings.simplefilter("ignore")
        assert read_pictures(path).shape[1:] == (1, 28, 28)


def _grids() -> list[bytes]:
    from scipy.io import netcdf_file

    file = io.BytesIO()
    with netcdf_file(file, "w") as grid:
        grid.createDimension("x", 3)
        grid.createDimension("y", 4)
        grid.createVariable("t", "f4", ("x", "y"))[:] = np.arange(12.0).reshape(3, 4)
        grid.flush()
        data = file.getvalue()
    return [data]


def _grid(path: Path) -> None:
    from hetero.demo.run import read_field

    read_field(path, 4)


def _checkpoint_manifests() -> list[bytes]:
    totals = {"samples": 3.0, "loss": 0.5, "steps": 2, "speeds": {"h0/cpu:0": 1.0}}
    return _json({"step": 2, "sha256": "00", "bytes": 5, "seed": 1, "global_batch": 8, "totals": totals})


def _checkpoint_manifest(path: Path) -> None:
    from hetero.train.checkpoints import facts_of
    from hetero.train.values import Totals

    Totals(**facts_of(path.read_bytes(), "the manifest").get("totals", {}))


_ABOUT = {"objective": "f", "goal": "least", "space": {"lr": "0.1 to 1"}}


def _study(path: Path) -> None:
    from hetero.tune.study import _about_of, _difference

    _difference(_about_of(path.read_text("utf-8", "replace"), "a study"), _ABOUT)


_REST = (
    {"k": [1e9, 1e9, None, None], "l": [1e9, 1e9, 1e9, 1e9]},
    {"k": {"points": [[8, 0.5], [16, 0.7]], "limit": 64}},
    {"h0 h1": [[0.0005, 1.25e8], [0.0005, 1.25e8]]},
)

KEPT = (
    Format("node", "node.json", _node_file, _node, "json"),
    Format("open run", "night-7-1.json", _descriptors, _descriptor, "json"),
    Format("probes", "probes.json", _probes, _at_home(_read_probes), "json"),
    Format("learned speeds", "speeds.json", lambda: _json(*_REST), _at_home(_read_rest), "json"),
    Format("batch manifest", "manifest.json", _manifests, _manifest, "json", (2, 3)),
    Format("trained model", "model.safetensors", _models, _trained, "bytes", (2,)),
    Format("array", "a.npy", _array_files, _array, "bytes", (2,)),
    Format("picture", "a.png", _pictures, _picture, "bytes", (2,)),
    Format("grid", "a.nc", _grids, _grid, "bytes", (2,)),
    Format("checkpoint manifest", "manifest", _checkpoint_manifests, _checkpoint_manifest, "json", (1,)),
    Format("study", "study.json", lambda: _json(_ABOUT), _study, "json"),
)
