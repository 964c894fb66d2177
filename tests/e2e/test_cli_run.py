"""`hetero run` and `hetero demo` with real fleets: choices reach the program, exit codes tell how it ended."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

ENOUGH_S = 100
FLEET = "1xcpu,1xcpu*0.5"
SILENT = {"HETERO_PROGRESS": "0"}  # else a slow machine has time to tell how far it is


@pytest.fixture
def script(tmp_path: Path) -> Any:
    def write(text: str) -> str:
        path = tmp_path / "program.py"
        path.write_text(f"import hetero\nctx = hetero.Context()\n{text}\n")
        return str(path)

    return write


def hetero(*words: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "hetero", *words],
        capture_output=True,
        text=True,
        timeout=ENOUGH_S,
        check=False,
        cwd=cwd,
        env={**os.environ, "COLUMNS": "80", **SILENT},
    )


@pytest.mark.parametrize("engine", ["inline", "local"])
def test_the_fleet_the_engine_and_the_policy_of_the_command_line_are_used(engine: str, script: Any) -> None:
    path = script(
        "print([d.throttle_frac for d in ctx.devices], ctx.config.engine, ctx.config.policy, ctx.run(sum, [1, 2]))"
    )
    done = hetero("run", "--devices", FLEET, "--engine", engine, "--policy", "round_robin", path)
    assert (done.returncode, done.stdout) == (0, f"[1.0, 0.5] {engine} round_robin 3\n"), done.stderr


def test_the_trace_is_written_where_the_command_line_says(script: Any, tmp_path: Path) -> None:
    path = script("ctx.run(sum, [1, 2]); ctx.close()")
    done = hetero("run", "--devices", "1xcpu", "--trace", "run.jsonl", path, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert json.loads((tmp_path / "run.jsonl").read_text().splitlines()[0])["format"] == "hetero-trace"


@pytest.mark.parametrize(
    ("options", "text", "said"),
    [
        (
            ["--devices", "2xcpu"],
            "hetero.Context(devices='1xcpu')",
            "Context(devices='1xcpu') of the program wins over",
        ),
        (["--engine", "inline"], "hetero.Context(set=['engine=local'])", "wins over --engine inline"),
        (["--trace", "a.jsonl"], "hetero.Context(trace='b.jsonl')", "wins over --trace a.jsonl"),
        (["--set", "policy=eft"], "hetero.Context(policy='heft_la')", "wins over --set policy=eft"),
        (["--config", "a.yaml"], "hetero.Context({'engine': 'inline'})", "wins over --config a.yaml"),
        (
            ["--devices", "1xcpu", "--trace", "a"],
            "",
            "opened no hetero.Context itself, so these had no effect on it: --devices 1xcpu",
        ),
    ],
)
def test_no_option_of_the_command_line_is_ignored_without_a_word(
    options: list[str], text: str, said: str, tmp_path: Path
) -> None:
    (tmp_path / "a.yaml").write_text("engine: inline\n")
    (tmp_path / "program.py").write_text(
        f"import hetero\ntry:\n    {text or 'pass'}\nexcept hetero.errors.HeteroError: pass\n"
    )
    done = hetero("run", *options, "program.py", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, "")
    assert done.stderr.count(said) == 1, done.stderr


def test_options_that_are_used_are_not_spoken_of(script: Any) -> None:
    done = hetero("run", "--devices", "1xnull", "--engine", "inline", script("ctx.close()"))
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    ("text", "code", "said"),
    [
        ("def f():\n    return 1 / 0\nctx.run(f)", 1, "ZeroDivisionError: division by zero"),
        (
            "ctx.run(hetero.task(timeout=0.2)(__import__('time').sleep), 50)",
            1,
            "hetero: sleep ran longer than its limit",
        ),
        ("hetero.task(memry=1)(len)", 2, "hetero: 'memry' is no option of a task; did you mean 'memory'?"),
        ("hetero.Context({'engine': 'locl'})", 3, "hetero: Context(config={...}): engine: 'locl' is not an engine"),
        ("ctx.run(hetero.task(on='tpu')(len), [])", 4, "hetero: no device can run len: h0/cpu:0:"),
    ],
)
def test_a_program_that_fails_exits_with_the_code_of_its_mistake(text: str, code: int, said: str, script: Any) -> None:
    done = hetero("run", "--devices", "1xcpu", script(text))
    assert done.returncode == code
    assert said in done.stderr
    assert done.stderr.startswith("hetero: ") == said.startswith("hetero: ")


PRINTS = """import os, sys
def typed(n: int = 3, t: "int" = 4): pass
print(typed.__annotations__, type(__builtins__).__name__)
os.chdir("/")
print(__file__, sys.argv, type(__loader__).__name__, __spec__, sys.path[0], sys.stdout.errors, sys.stderr.errors)
os.write(1, b"|"); print(os.fsdecode(b"\\xe9.txt"), "\u2014"); sys.stdout.flush()
sys.exit(open(__file__).readline() == "")
"""


@pytest.mark.parametrize("encoding", ["", "utf-8:strict", "ascii", "latin-1:surrogateescape"])
def test_a_script_has_the_path_and_the_streams_that_python_gives_it(encoding: str, tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PRINTS)
    environment = {**os.environ, "PYTHONIOENCODING": encoding, "LC_ALL": "C.UTF-8"}
    plain, ours = (
        subprocess.run(
            [sys.executable, *words, "./program.py", "x"],
            cwd=tmp_path, env=environment, capture_output=True, timeout=ENOUGH_S, check=False,
        )
        for words in ((), ("-m", "hetero", "run"))
    )  # fmt: skip
    assert (ours.returncode, ours.stdout, ours.stderr) == (plain.returncode, plain.stdout, plain.stderr)
    assert b"program.py" in plain.stdout


ENDS = [
    "print('before')\n1 / 0\n",
    "class Stop(BaseException): pass\ntry:\n    {}[0]\nexcept KeyError:\n    raise Stop('own')\n",
    "import sys\ndef hook(*_): raise ValueError('hook')\nsys.excepthook = hook\n1 / 0\n",
    "import sys\nsys.excepthook = None\n1 / 0\n",
    "import sys\ndel sys.excepthook\n1 / 0\n",
    "import atexit, sys\natexit.register(lambda: print(sys.last_type, sys.last_value))\n1 / 0\n",
    "import warnings\nwarnings.warn('w', stacklevel=2)\nraise OSError\n",
    "import inspect, traceback\ntraceback.print_stack()\nprint(len(inspect.stack()), dir())\n{}[1]\n",
    "def deep(n): return n and deep(n - 1)\nprint(deep(990))\ndeep(99999)\n",
    "class End:\n    def __del__(self): print('gone')\n"
    "import atexit\natexit.register(print, 'exit')\nend = End()\nend.x\n",
    "import os, sys, subprocess\nprint(sorted(os.environ), sys.flags, sys.path, sys.argv, sys.warnoptions)\n"
    "subprocess.run([sys.executable, '-c', 'import os; print(sorted(os.environ))'])\nraise KeyboardInterrupt\n",
    "print('\0')\n",
    "# coding: nonsense\n",
    "x = '\u00e9'\nimport sys; sys.exit('last words')\n",
    "def f(:\n",
    "import os, signal\nprint('killed', flush=True)\nos.kill(os.getpid(), signal.SIGTERM)\n",
    "import hetero\nprint(hetero.errors)\nraise ValueError(3)\n",
]


def both(folder: Path, *words: str, flags: tuple[str, ...] = ()) -> list[tuple[int, bytes]]:
    """Return exit status and output of a program under Python, and under `hetero run`."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    done = [
        subprocess.run(
            [sys.executable, *flags, *way, *words],
            cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            timeout=ENOUGH_S, check=False,
        )
        for way in ((), ("-m", "hetero", "run"))
    ]  # fmt: skip
    return [(each.returncode, each.stdout) for each in done]


@pytest.mark.parametrize("text", ENDS)
def test_a_program_ends_with_the_words_of_python_in_their_order(text: str, tmp_path: Path) -> None:
    (tmp_path / "program.py").write_bytes(text.replace("\u00e9", "\x80").encode("latin-1"))
    plain, ours = both(tmp_path, "program.py", "a", "-b")
    assert ours == plain
    assert plain[1]


@pytest.mark.parametrize("flags", [("-P",), ("-O", "-B"), ("-W", "error::UserWarning"), ("-Xutf8", "-us")])
def test_the_options_of_the_interpreter_are_those_of_the_script(flags: tuple[str, ...], tmp_path: Path) -> None:
    text = "import sys\nprint(sys.flags, sys.path, sys.warnoptions, sys.stdout.write_through)\nassert not sys.argv\n"
    (tmp_path / "program.py").write_text(text)
    plain, ours = both(tmp_path, "program.py", flags=flags)
    assert ours == plain


def test_a_folder_and_an_archive_run_as_under_python(tmp_path: Path) -> None:
    (tmp_path / "program").mkdir()
    (tmp_path / "empty").mkdir()
    (tmp_path / "program" / "beside.py").write_text("def f(): return 1 / 0\n")
    (tmp_path / "program" / "__main__.py").write_text(
        "import sys, beside\nprint(__name__, __package__, sys.path[0], sys.argv, flush=True)\nbeside.f()\n"
    )
    shutil.make_archive(str(tmp_path / "archive"), "zip", tmp_path / "program")
    for name in ("program", "archive.zip"):
        plain, ours = both(tmp_path, name, "x")
        assert ours == plain
        assert plain[0] == 1
    assert b"empty is a folder without a __main__.py" in both(tmp_path, "empty")[1][1]


def test_options_for_a_program_that_cannot_take_them_are_told(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text("print(1)\n")
    done = hetero("run", "--devices", "1xcpu", "program.py", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, "1\n")
    assert done.stderr.count("--devices 1xcpu") == 1


def test_an_interrupted_program_says_where_and_leaves_no_worker(script: Any) -> None:
    path = script("ctx.run(sum, [1])\nprint('up', flush=True)\nctx.run(__import__('time').sleep, 50)")
    command = [sys.executable, "-m", "hetero", "run", "--devices", "1xcpu", path]
    env = {**os.environ, **SILENT}
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "up\n"
        workers = psutil.Process(process.pid).children(recursive=True)
        time.sleep(0.2)
        process.send_signal(signal.SIGINT)
        _, stderr = process.communicate(timeout=ENOUGH_S)
    assert process.returncode == -signal.SIGINT
    assert stderr.endswith("KeyboardInterrupt\n")
    assert f'File "{path}", line 5' in stderr
    assert workers
    gone, alive = psutil.wait_procs(workers, timeout=10)
    assert (len(gone), alive) == (len(workers), [])


def test_the_printed_program_runs_with_the_printed_configuration_where_all_of_it_is_optional(tmp_path: Path) -> None:
    (tmp_path / "hetero_config.yaml").write_text(
        "devices:\n- type: GPU\n  id: 0\n  memory_limit: 8GB\n  optional: true\n- type: CPU\n  cores: 1\n"
        "communication:\n  protocol: auto\n  buffer_size: 64MB\n"
    )
    (tmp_path / "program.py").write_text(
        "import hetero, numpy as np\n"
        "ctx = hetero.Context(config='hetero_config.yaml', memory_pool_size='2GB')\n"
        "@hetero.task\n"
        "def matrix_multiply(a, b):\n"
        "    device = hetero.get_current_device()\n"
        "    if device.type == 'GPU':\n"
        "        import cupy as cp\n"
        "        return cp.dot(cp.asarray(a), cp.asarray(b)).get()\n"
        "    return np.dot(a, b)\n"
        "result = ctx.run(matrix_multiply, np.ones((256, 256)), np.ones((256, 256)))\n"
        "print(result[0, 0], result.shape)\n"
    )
    done = hetero("run", "program.py", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, "256.0 (256, 256)\n"), done.stderr


def test_the_demo_as_json_is_one_document_and_right() -> None:
    done = hetero("demo", "--size", "384", "--devices", FLEET, "--set", "engine=inline", "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["ok"]
    assert len(found["jobs"]) == 2


def test_a_size_that_the_demo_cannot_cut_is_wrong_usage() -> None:
    done = hetero("demo", "--size", "100")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("hetero: size=100 is not a multiple of 192")
