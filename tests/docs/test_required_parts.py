"""What HETERO_REQUIRE names is there, whether or not another test asks for it."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from hetero.floor import settings
from tests.needs import PROJECT, absent


def test_every_required_part_is_present() -> None:
    troubles = [trouble for trouble in map(absent, settings.required()) if trouble]
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


def test_a_misspelt_requirement_is_refused() -> None:
    done = _collect("opnecl")
    assert done.returncode == pytest.ExitCode.USAGE_ERROR
    assert "HETERO_REQUIRE names opnecl" in done.stdout + done.stderr


def test_an_absent_part_that_is_required_fails_with_one_line() -> None:
    done = _collect("data")
    assert done.returncode == pytest.ExitCode.TESTS_FAILED
    assert "needs the test data" in done.stdout
    assert "Traceback" not in done.stdout
