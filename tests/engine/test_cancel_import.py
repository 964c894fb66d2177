"""A task that is cancelled while it imports: no half of a module stays behind in its worker."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import CancelledError
from pathlib import Path

import pytest

import hetero

PACKAGE = """
import pathlib, time
import slow_to_import.part
pathlib.Path({flag!r}).touch()
time.sleep({seconds})
whole = slow_to_import.part.here
"""


def importing(folder: Path) -> Callable[[], bool]:
    def run() -> bool:
        import sys

        sys.path[:0] = [str(folder)]
        import slow_to_import  # type: ignore[import-not-found]

        time.sleep(0.2)
        whole: bool = slow_to_import.whole
        return whole

    return run


@pytest.mark.parametrize("seconds", [0.1, 30.0])
def test_a_task_that_is_cancelled_in_an_import_leaves_no_half_of_a_module(tmp_path: Path, seconds: float) -> None:
    flag, module = tmp_path / "flag", tmp_path / "slow_to_import" / "__init__.py"
    module.parent.mkdir()
    module.with_name("part.py").write_text("here = True")
    module.write_text(PACKAGE.format(flag=str(flag), seconds=seconds))
    with hetero.Context(devices="1xcpu", history=False) as ctx:
        first = ctx.submit(importing(tmp_path))
        while not flag.exists():
            time.sleep(0.01)
        first.cancel()
        module.write_text(PACKAGE.format(flag=str(flag), seconds=0.0))
        assert ctx.submit(importing(tmp_path)).result(30)
        with pytest.raises(CancelledError):
            first.result(30)
