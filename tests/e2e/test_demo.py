from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from hetero.demo import run
from hetero.drive.trace import read_trace, summary
from hetero.floor.errors import BadValueError, NothingFitsError

UNEQUAL = "1xcpu,1xcpu*0.5"


@pytest.mark.usefixtures("no_leaks")
def test_the_demonstration_computes_what_scipy_does_on_two_unequal_devices(tmp_path: Path) -> None:
    found = run(devices=UNEQUAL, size=384, trace=tmp_path / "a.gz", quiet=True)
    assert found.ok
    assert [(job.tasks, sum(each.tasks for each in job.devices)) for job in found.jobs] == [(364, 364), (64, 64)]
    assert [job.checked.against for job in found.jobs] == ["scipy.linalg.cholesky", "scipy.ndimage.convolve"]
    assert json.loads(json.dumps(found.as_dict()))["ok"] is True


def test_the_trace_of_the_demonstration_holds_every_task_of_every_run(tmp_path: Path) -> None:
    found = run(devices=UNEQUAL, size=384, trace=tmp_path / "a", quiet=True)
    trace = read_trace(found.trace)
    assert not trace.torn
    assert [device.throttle_frac for device in trace.devices()] == [1.0, 0.5]
    counted = summary(found.trace)
    assert counted.failed == 0
    assert counted.functions["gemm"] == counted.functions["gemm on cpu:0 alone"] == 220
    assert set(counted.busy_s) == {"h0/cpu:0", "h0/cpu:1"}


def test_a_simulated_device_is_left_out_and_named(tmp_path: Path) -> None:
    found = run(devices="1xcpu,1xnull", size=384, trace=tmp_path / "a", quiet=True)
    assert found.ok
    assert [each.device for each in found.jobs[0].devices] == ["cpu:0"]
    assert found.notes == ("null:0 is left out: it computes nothing",)
    with pytest.raises(NothingFitsError):
        run(devices="2xnull", size=384, trace=tmp_path / "b", quiet=True)


def test_a_field_of_the_users_is_what_diffuses(tmp_path: Path) -> None:
    np.save(tmp_path / "wind.npy", np.random.default_rng(0).random((50, 70)))
    options = {"devices": UNEQUAL, "size": 384, "trace": tmp_path / "a", "quiet": True}
    found = run(field=tmp_path / "wind.npy", **options)  # type: ignore[arg-type]
    assert found.ok
    assert found.jobs[1].title.startswith("diffusion of the field in wind.npy, 128 × 128")


@pytest.mark.parametrize("size", [0, 192, 400, -384, 384.0, True, 10**9])
def test_a_size_that_cannot_be_cut_into_tiles_is_refused(size: int) -> None:
    with pytest.raises(BadValueError, match="is not a multiple of 192 from 384 to 24576; use 4608, or less"):
        run(devices=UNEQUAL, size=size, quiet=True)


def test_away_from_a_terminal_the_demonstration_prints_plain_lines(tmp_path: Path) -> None:
    program = f"from hetero.demo import run; run(devices={UNEQUAL!r}, size=384, trace={str(tmp_path / 'a')!r})"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=250, check=True)
    assert "\x1b" not in done.stdout
    assert "… Cholesky factorisation: cpu:1 alone\n" in done.stdout
    for word in ("tasks", "makespan", "of the sum of the devices' speeds", "best alone", "moved", "right", "trace: "):
        assert word in done.stdout
    assert done.stderr == ""
