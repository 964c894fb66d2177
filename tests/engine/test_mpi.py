"""A group over MPI does what other groups do."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

from hetero.errors import BadValueError
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
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, cwd=PROJECT, check=False)
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.split("rank")[1:]) != []
    assert done.stdout.count("of 4") == 4


def test_bad_values_are_told() -> None:
    need("mpi")
    from hetero.comm.mpi import MpiGroup

    group = MpiGroup()
    with pytest.raises(BadValueError, match="'ring' is none of MPI's"):
        group.all_reduce(np.ones(3), algorithm="ring")
    with pytest.raises(BadValueError, match="there is no rank 3"):
        group.broadcast(np.ones(3), 3)
