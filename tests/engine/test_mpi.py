"""A group over MPI does what other groups do."""

from __future__ import annotations

import subprocess
import sys

from tests.needs import PROJECT, mpiexec, need

_PROGRAM = """
from hetero.comm.mpi import MpiGroup
from hetero.testing import check_group

group = MpiGroup()
check_group(group, ("auto", "library"))
assert group.waited_s > 0.0
print("rank", group.rank, "of", group.world_size)
"""


def test_four_ranks_pass_the_conformance_kit() -> None:
    need("mpi")
    command = [mpiexec(), "-n", "4", sys.executable, "-c", _PROGRAM]
    done = subprocess.run(command, capture_output=True, text=True, timeout=250, cwd=PROJECT, check=False)
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.split("rank")[1:]) != []
    assert done.stdout.count("of 4") == 4


_BAD_VALUES = """
import numpy as np
from hetero.comm.mpi import MpiGroup
from hetero.errors import BadValueError

group = MpiGroup()
for call in (
    lambda: group.all_reduce(np.ones(3), algorithm="ring"),
    lambda: group.broadcast(np.ones(3), 3),
):
    try:
        call()
    except BadValueError as error:
        print(error)
"""


def test_bad_values_are_told() -> None:
    need("mpi")
    command = [sys.executable, "-c", _BAD_VALUES]
    done = subprocess.run(command, capture_output=True, text=True, timeout=250, cwd=PROJECT, check=False)
    assert "'ring' is none of MPI's" in done.stdout, done.stderr
    assert "there is no rank 3" in done.stdout
