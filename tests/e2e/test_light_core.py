"""Commands without an optional package, with little memory, or with a pool that no host has: one line that helps."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from tests.needs import PROJECT

BLOCK = """
import importlib.machinery as machinery, os
absent = set(os.environ.get("ABSENT", "").split(","))
real = machinery.PathFinder.find_spec
def find(cls, name, path=None, target=None):
    return None if name.partition(".")[0] in absent else real(name, path, target)
machinery.PathFinder.find_spec = classmethod(find)
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("light")
    (folder / "sitecustomize.py").write_text(BLOCK)
    (folder / "prices.yaml").write_text("RTX-4090: 0.4\n")
    (folder / "script.py").write_text("print(1)\n")
    return folder


def _run(folder: Path, command: str, absent: str = "", limit: int | None = None) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": path, "ABSENT": absent, "HETERO_HOME": str(folder / "home")}
    environment["TEAM_KEY"] = "0" * 64
    bound = None if limit is None else lambda: resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    line = [sys.executable, "-m", "hetero", *command.replace("EXAMPLES", str(PROJECT / "examples")).split()]
    return subprocess.run(
        line, cwd=folder, env=environment, capture_output=True, text=True, timeout=300, check=False, preexec_fn=bound
    )


@pytest.mark.parametrize(
    ("absent", "command", "extra"),
    [
        ("scipy", "plan llm Llama-3.1-8B --devices 1xRTX-4090,1xRTX-3060", "plan"),
        (
            "scipy",
            "plan choose Llama-3.1-8B --devices 2xRTX-4090 --prices prices.yaml --stream 512/128@2",
            "plan",
        ),
        ("torch", "train EXAMPLES/mnist.yaml", "train"),
        ("torch", "infer a.safetensors a.npy", "train"),
        ("torch", "compress a.safetensors", "train"),
        ("torch", "calibrate", "torch"),
        ("optuna", "tune EXAMPLES/tune.yaml", "tune"),
        ("matplotlib", "topo --output a.png", "plot"),
        ("ray", "cluster start --head", "ray"),
        ("pyarrow", "anonymise a.yaml a.csv b.csv", "batch"),
        ("cryptography", "data encrypt --key-env TEAM_KEY prices.yaml b.enc", "encrypt"),
        ("obstore", "doctor storage s3://bucket", "batch"),
    ],
)
def test_a_command_without_its_package_names_the_extra_and_exits_2(
    folder: Path, absent: str, command: str, extra: str
) -> None:
    done = _run(folder, command, absent)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stderr
    assert absent in done.stderr
    assert f"pip install 'hetero-core[{extra}]'" in done.stderr


def test_too_little_memory_to_start_is_told_in_one_line(folder: Path) -> None:
    done = _run(folder, "devices", limit=150_000_000)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == (
        "hetero: this process may have 150 MB of memory, which is too little to start;"
        " allow 250 MB or more (ulimit -v)\n"
    )


def test_a_pool_that_no_host_has_is_refused_in_words() -> None:
    import hetero
    from hetero.floor.errors import EngineError

    with pytest.raises(EngineError, match=r"900 PB of shared memory cannot be had.*smaller memory_pool_size"):
        hetero.Context(devices="1xcpu", memory_pool_size="900PB")


def test_a_source_tree_that_is_not_installed_runs_and_doctor_tells(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(
        "from importlib import metadata\n"
        "real = metadata.Distribution.from_name\n"
        "def find(name):\n"
        "    if name == 'hetero-core':\n"
        "        raise metadata.PackageNotFoundError(name)\n"
        "    return real(name)\n"
        "metadata.Distribution.from_name = staticmethod(find)\n"
    )
    (tmp_path / "script.py").write_text(
        "import hetero\nwith hetero.Context(devices='1xcpu', trace='run.jsonl') as ctx: print(ctx.run(abs, -3))\n"
    )
    ran = _run(tmp_path, "run script.py")
    assert (ran.returncode, ran.stdout) == (0, "3\n"), ran.stderr
    told = _run(tmp_path, "doctor")
    assert "Traceback" not in told.stderr
    assert "runs from a source tree that is not installed" in " ".join(told.stdout.split())
    assert _run(tmp_path, "--version").stdout == "hetero unknown\n"
