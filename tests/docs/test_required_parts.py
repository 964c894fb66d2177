"""What HETERO_REQUIRE names is there, whether or not another test asks for it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.needs import PROJECT, absent, required


def test_every_required_part_is_present() -> None:
    troubles = [trouble for trouble in map(absent, required()) if trouble]
    assert not troubles, "\n".join(troubles)


def _collect(require: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/docs/test_required_parts.py"]
    return subprocess.run(
        [*command, "-k", "present"],
        cwd=PROJECT,
        env={**os.environ, "HETERO_REQUIRE": require, "HETERO_TEST_DATA": "absent-folder"},
        capture_output=True,
        text=True,
        timeout=250,
        check=False,
    )


@pytest.mark.slow
def test_a_misspelt_requirement_is_refused() -> None:
    done = _collect("opnecl")
    assert done.returncode == pytest.ExitCode.USAGE_ERROR
    assert "HETERO_REQUIRE names opnecl" in done.stdout + done.stderr


@pytest.mark.slow
def test_an_absent_part_that_is_required_fails_with_one_line() -> None:
    done = _collect("data")
    assert done.returncode == pytest.ExitCode.TESTS_FAILED
    assert "needs the test data" in done.stdout
    assert "Traceback" not in done.stdout


@pytest.mark.slow
@pytest.mark.parametrize(("ci", "code"), [("true", pytest.ExitCode.TESTS_FAILED), ("", pytest.ExitCode.OK)])
def test_a_package_that_is_absent_in_continuous_integration_passes_nothing_over(
    ci: str, code: pytest.ExitCode, tmp_path: Path
) -> None:
    (tmp_path / "test_it.py").write_text(
        "import pytest\n\n\ndef test_it():\n    pytest.importorskip('no_such_package')\n"
    )
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "tests.conftest", str(tmp_path)]
    env = {**os.environ, "CI": ci, "PYTHONPATH": os.pathsep.join([str(PROJECT), os.environ.get("PYTHONPATH", "")])}
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=250, check=False)
    assert done.returncode == code, done.stdout + done.stderr
    assert ("continuous integration lacks no_such_package" in done.stdout) is bool(ci)
