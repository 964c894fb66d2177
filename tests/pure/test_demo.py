from __future__ import annotations

import io
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from hetero.demo.jobs import Checked, Cholesky, Diffusion, trsm
from hetero.demo.run import (
    DemoPrinter,
    DemoResult,
    DeviceResult,
    JobResult,
    _trace_path,
    made_unequal,
    precision,
    read_field,
    synthetic_field,
    usable,
)
from hetero.floor.errors import BadValueError, NothingFitsError
from hetero.model.device import Device, DeviceType

NO_COPY = np.asarray


def here(task: Any, *args: Any) -> Any:
    """Run a task here and now, in place of submitting it."""
    return task(*args)


def device(label: str, index: int = 0, **facts: Any) -> Device:
    return Device(f"h0/{label}:{index}", label, DeviceType("CPU"), label, index, **facts)


@pytest.mark.parametrize(("size", "tile"), [(64, 64), (128, 32), (192, 16), (130, 65)])
def test_the_tiled_factorisation_is_that_of_scipy(size: int, tile: int) -> None:
    job = Cholesky(size, tile)
    checked = job.check(job.start(job.place(NO_COPY), here))
    assert checked.against == "scipy.linalg.cholesky"
    assert checked.ok, checked


@pytest.mark.parametrize(("strips", "steps", "rounds"), [(1, 4, 2), (2, 1, 3), (4, 8, 2), (8, 8, 1)])
def test_the_strips_diffuse_as_the_whole_field_does(strips: int, steps: int, rounds: int) -> None:
    job = Diffusion(synthetic_field(64), strips, steps, rounds)
    checked = job.check(job.start(job.place(NO_COPY), here))
    assert checked.against == "scipy.ndimage.convolve"
    assert checked.ok, checked


def test_a_wrong_tile_is_noticed() -> None:
    job = Cholesky(128, 32)
    parts = job.start(job.place(NO_COPY), here)
    parts[4] = parts[4] + 1e-9
    assert not job.check(parts).ok


def test_the_work_of_the_tiles_adds_up_to_a_third_of_the_cube() -> None:
    assert Cholesky(3072, 32).work == pytest.approx(3072**3 / 3, rel=0.04)


def test_the_tasks_are_those_of_a_right_looking_factorisation() -> None:
    counts: Counter[str] = Counter()

    def count(task: Any, *args: Any) -> str:
        counts[task.name] += 1
        return task.name

    job = Cholesky(384, 32)
    job.start(job.place(NO_COPY), count)
    assert counts == {"potrf": 12, "trsm": 66, "syrk": 66, "gemm": 220}


@pytest.mark.parametrize("size", [1, 64, 65, 200])
def test_triangles_are_solved_at_any_size(size: int, rng: np.random.Generator) -> None:
    lower = np.tril(rng.random((size, size))) + size * np.eye(size)
    a = rng.random((size, size))
    np.testing.assert_allclose(trsm(lower, a) @ lower.T, a, atol=1e-12)


def test_equal_devices_are_made_unequal_and_said_to_be() -> None:
    fleet, (note,) = made_unequal([device("cpu", index, cores=2) for index in range(3)])
    assert fleet == "1xcpu/2cores,1xcpu/2cores,1xcpu/2cores*0.25"
    assert note == "all devices of this host are equal, so cpu:2 is slowed down on purpose, to 0.25 of its speed"
    assert made_unequal([device("cpu"), device("cuda")]) == (None, ())
    assert "nothing to share" in made_unequal([device("cpu")])[1][0]


def test_devices_that_cannot_run_the_tasks_are_left_out_and_named() -> None:
    able, notes = usable([device("cpu"), device("null", simulated=True), device("opencl")])
    assert [each.short for each in able] == ["cpu:0"]
    assert notes == ("null:0 is left out: it computes nothing", "opencl:0 is left out: it takes kernels only")
    with pytest.raises(NothingFitsError, match="null:0 is left out"):
        usable([device("null", simulated=True)])


def test_numbers_are_as_wide_as_every_device_has_them() -> None:
    assert precision([device("cpu"), device("cuda")]) == "float64"
    assert precision([device("cpu"), device("mps")]) == "float32"


def test_the_figures_follow_from_the_measured_seconds() -> None:
    rows = (DeviceResult("cpu:0", "", 2.0, 50.0, 3, 1.0), DeviceResult("cpu:1", "", 8.0, 12.5, 1, 1.0))
    job = JobResult("a", "a job", "FLOP", 100.0, 4, 2.0, 0, rows, Checked("numpy", 0.0, 1e-9))
    assert (job.speed, job.share_frac, job.best.device, job.gain) == (50.0, 0.8, "cpu:0", 1.0)


def test_a_device_that_ran_nothing_together_is_told_to_be_left_out() -> None:
    rows = (DeviceResult("cpu:0", "", 2.0, 50.0, 4, 1.0), DeviceResult("cpu:1", "", 80.0, 1.25, 0, 0.0))
    job = JobResult("a", "a job", "FLOP", 100.0, 4, 2.0, 0, rows, Checked("numpy", 0.0, 1e-9))
    console = Console(file=io.StringIO(), width=200)
    DemoPrinter(console=console).results(DemoResult((job,), (), Path("t")))
    assert isinstance(console.file, io.StringIO)
    text = console.file.getvalue()
    assert "cpu:1: it would take 1.33 min alone against 2 s on cpu:0" in text
    assert text.count("left out") == 1


def test_without_a_home_the_trace_goes_to_a_temporary_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("HETERO_HOME", str(tmp_path / "file" / "home"))
    path = _trace_path(None)
    assert path.parent.is_dir()
    path.parent.rmdir()


def test_a_field_is_read_and_enlarged_by_repeating_cells(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.arange(6.0).reshape(1, 2, 3))
    field = read_field(tmp_path / "a.npy", 6)
    np.testing.assert_array_equal(field, np.kron(np.arange(6.0).reshape(2, 3), np.ones((3, 2))))


def test_a_netcdf_file_is_read_with_its_scale(tmp_path: Path) -> None:
    from scipy.io import netcdf_file

    with netcdf_file(tmp_path / "a.nc", "w") as file:
        for name, length in (("month", 2), ("y", 4), ("x", 4)):
            file.createDimension(name, length)
        wind = file.createVariable("u", "i2", ("month", "y", "x"))
        wind.scale_factor, wind.add_offset = 0.5, 10.0
        wind[:] = np.arange(32).reshape(2, 4, 4)
    np.testing.assert_array_equal(read_field(tmp_path / "a.nc", 4), np.arange(16).reshape(4, 4) * 0.5 + 10.0)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("absent.npy", None, "No such file"),
        ("a.npy", b"", "cannot be read"),
        ("a.npy", b"hello", "cannot be read"),
        ("a.nc", b"CDF\x01", "cannot be read"),
        ("a.nc", b"hello", "cannot be read"),
        ("a.tif", b"", "its name ends in '.tif'"),
    ],
)
def test_a_field_that_cannot_be_read_is_one_line(
    tmp_path: Path, name: str, content: bytes | None, message: str
) -> None:
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(BadValueError) as caught:
        read_field(tmp_path / name, 8)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_field_with_gaps_is_refused(tmp_path: Path) -> None:
    for array in (np.full((2, 2), np.nan), np.zeros(4), np.zeros((0, 4)), np.array([["a"]])):
        np.save(tmp_path / "a.npy", array)
        with pytest.raises(BadValueError, match="give a"):
            read_field(tmp_path / "a.npy", 8)
