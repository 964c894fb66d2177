"""The command line as people and programs use it: what it prints where, and its exit codes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

Done = subprocess.CompletedProcess[str]
ENOUGH_S = 120


def hetero(*words: str, cwd: Path | None = None, given: str = "", **switches: str) -> Done:
    """Run the command in a process of its own."""
    return subprocess.run(
        [sys.executable, "-m", "hetero", *words],
        input=given,
        capture_output=True,
        text=True,
        timeout=ENOUGH_S,
        check=False,
        cwd=cwd,
        env={**os.environ, "COLUMNS": "80", **switches},
    )


def document(done: Done) -> Any:
    """Return the one JSON document that standard output must hold."""
    return json.loads(done.stdout)


@pytest.fixture
def script(tmp_path: Path) -> Any:
    def write(text: str) -> str:
        path = tmp_path / "program.py"
        path.write_text(text)
        return str(path)

    return write


def test_help_names_every_command_and_every_exit_code() -> None:
    done = hetero("--help")
    assert done.returncode == 0
    for word in ("devices", "run", "demo", "doctor", "config", "130 interrupted"):
        assert word in done.stdout


def test_the_version_is_that_of_the_package() -> None:
    from importlib.metadata import version

    assert hetero("--version").stdout == f"hetero {version('hetero-core')}\n"


@pytest.mark.parametrize("words", [(), ("devics",), ("devices", "--jsn"), ("config", "check"), ("run",)])
def test_wrong_usage_exits_2_and_says_nothing_on_standard_output(words: tuple[str, ...]) -> None:
    done = hetero(*words)
    assert done.returncode == 2
    assert "Usage: hetero" in done.stderr + done.stdout
    assert "Traceback" not in done.stderr


def test_a_misspelt_command_is_suggested() -> None:
    assert "Did you mean 'devices'?" in hetero("devics").stderr


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_offers_the_commands(shell: str) -> None:
    done = hetero(
        _HETERO_COMPLETE=f"complete_{shell}",
        COMP_WORDS="hetero ",
        COMP_CWORD="1",
        _TYPER_COMPLETE_ARGS="hetero ",
        _TYPER_COMPLETE_FISH_ACTION="get-args",
    )
    assert {"devices", "run", "demo", "doctor", "config"} <= set(
        done.stdout.replace('"', " ").replace(":", " ").split()
    )


def test_a_sound_configuration_is_printed_in_its_normal_form(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("communication: {protocol: TCP, buffer_size: 64 mb}\nengine: INLINE\n")
    done = hetero("config", "check", "a.yaml", "--set", "timeout=90", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "communication:\n  protocol: tcp\n  buffer_size: 64MB\nengine: inline\ntimeout: 1.5min\n"


def test_the_normal_form_is_its_own_normal_form(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(
        "devices: [{type: CUDA, memory_limit: 1234567, link: {bandwidth: 100Mb/s, latency: 3us}}]\n"
        "memory_pool_size: 3GiB\n"
    )
    once = hetero("config", "check", "a.yaml", cwd=tmp_path).stdout
    (tmp_path / "b.yaml").write_text(once)
    assert hetero("config", "check", "b.yaml", cwd=tmp_path).stdout == once


def test_every_mistake_of_a_configuration_is_a_line_and_the_exit_code_is_3(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("engine: locl\npolicy: eftt\n")
    done = hetero("config", "check", "a.yaml", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (3, "")
    first, second = done.stderr.splitlines()
    assert first.startswith("hetero: a.yaml:1: engine: 'locl' is not an engine; did you mean 'local'?")
    assert second.startswith("hetero: a.yaml:2: policy: 'eftt' is not a policy")


def test_the_check_as_json_is_one_document_also_when_the_file_is_wrong(tmp_path: Path) -> None:
    (tmp_path / "good.yaml").write_text("memory_pool_size: 2GB\n")
    (tmp_path / "bad.yaml").write_text("engine: locl\n")
    good = hetero("config", "check", "good.yaml", "--json", cwd=tmp_path)
    assert document(good) == {"valid": True, "configuration": {"memory_pool_size": 2_000_000_000}}
    bad = hetero("config", "check", "bad.yaml", "--json", cwd=tmp_path)
    assert (bad.returncode, bad.stderr) == (3, "")
    assert document(bad)["mistakes"][0]["place"] == "bad.yaml:1"
    gone = hetero("config", "check", "gone.yaml", "--json", cwd=tmp_path)
    assert "No such file" in document(gone)["mistakes"][0]["problem"]


def test_a_protocol_that_is_not_here_is_told_when_asked(tmp_path: Path) -> None:
    if list(Path("/sys/class/infiniband").glob("*")):
        pytest.skip("this host has an RDMA adapter")
    (tmp_path / "a.yaml").write_text("communication: {protocol: rdma}\n")
    assert hetero("config", "check", "a.yaml", cwd=tmp_path).returncode == 0
    done = hetero("config", "check", "a.yaml", "--here", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (3, "")
    assert "'rdma' is not available" in done.stderr


def test_doctor_as_json_looks_at_everything(tmp_path: Path) -> None:
    found = document(hetero("doctor", "--json", HETERO_HOME=str(tmp_path / "home")))["findings"]
    names = {finding["name"] for finding in found}
    assert {
        "python",
        "torch",
        "OpenCL drivers",
        "NVIDIA driver",
        "open files",
        "/dev/shm",
        "HETERO_HOME",
    } <= names
    assert {finding["state"] for finding in found} <= {"ok", "poor", "missing"}
    assert all(finding["remedy"] for finding in found if finding["state"] != "ok")


def test_doctor_fits_eighty_columns() -> None:
    done = hetero("doctor")
    assert done.returncode == 0
    assert max(map(len, done.stdout.splitlines())) <= 80


def test_a_home_that_cannot_be_made_is_found(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    found = document(hetero("doctor", "--json", HETERO_HOME=str(tmp_path / "file" / "home")))["findings"]
    assert [finding["state"] for finding in found if finding["name"] == "HETERO_HOME"] == ["missing"]


def test_a_home_on_a_disk_that_takes_no_byte_is_not_told_by_its_room(tmp_path: Path) -> None:
    words = 'ulimit -f 0; exec "$0" -m hetero doctor --json'
    done = subprocess.run(
        ["sh", "-c", words, sys.executable],
        capture_output=True,
        text=True,
        timeout=ENOUGH_S,
        check=False,
        env={**os.environ, "HETERO_HOME": str(tmp_path / "home")},
    )
    (home,) = [finding for finding in document(done)["findings"] if finding["name"] == "HETERO_HOME"]
    assert home["state"] == "missing"
    assert home["found"] == f"{tmp_path / 'home'} cannot be written to: File too large"
    assert home["remedy"] == "set HETERO_HOME to a folder that you may write to"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("host", "state"), [("8.8.8.8", "poor"), ("10.0.0.7", "ok")])
def test_doctor_tells_of_a_node_at_a_public_address(host: str, state: str, tmp_path: Path) -> None:
    node = {"address": f"{host}:1", "host": host, "token": "", "certificates": "", "pid": 1}
    (tmp_path / "node.json").write_text(
        json.dumps({**node, "folder": "/tmp/hetero-x", "jobs": "", "job_server_pid": 0})
    )
    found = document(hetero("doctor", "--json", HETERO_HOME=str(tmp_path)))["findings"]
    (told,) = [finding for finding in found if finding["group"] == "Network"]
    assert told["state"] == state
    assert ("is a public address" in told["found"]) is (state == "poor")


def test_a_node_does_not_start_on_every_interface() -> None:
    done = hetero("cluster", "start", "--head", "--host", "0.0.0.0")
    assert done.returncode == 2
    assert "is every interface of this host" in done.stderr


def test_a_script_is_the_main_module_with_its_own_arguments_and_folder(script: Any, tmp_path: Path) -> None:
    (tmp_path / "beside.py").write_text("WORD = 'found'\n")
    path = script(
        "import sys, beside\nNUMBER = 7\n"
        "print(__name__, __file__, sys.argv[1:], beside.WORD, sys.modules['__main__'].NUMBER)\n"
    )
    done = hetero("run", path, "--policy", "x", "-q")
    assert done.stdout == f"__main__ {path} ['--policy', 'x', '-q'] found 7\n"


@pytest.mark.parametrize(
    ("text", "code"),
    [("pass", 0), ("import sys; sys.exit(7)", 7), ("import sys; sys.exit('no')", 1), ("1 / 0", 1), ("def f(:", 1)],
)
def test_a_script_ends_with_its_own_exit_code(text: str, code: int, script: Any) -> None:
    assert hetero("run", script(text)).returncode == code


def test_an_exception_of_the_script_is_told_as_python_tells_it(script: Any) -> None:
    path = script("def f():\n    1 / 0\nf()\n")
    ours, pythons = (
        hetero("run", path),
        subprocess.run([sys.executable, path], capture_output=True, text=True, check=False),
    )
    assert ours.stderr == pythons.stderr
    wrong = script("def f(:\n")
    assert (
        hetero("run", wrong).stderr
        == subprocess.run([sys.executable, wrong], capture_output=True, text=True, check=False).stderr
    )


@pytest.mark.parametrize(
    ("kind", "code"), [("BadValueError", 2), ("ConfigError", 3), ("NothingFitsError", 4), ("TaskLostError", 1)]
)
def test_a_mistake_in_a_script_is_one_line_and_its_exit_code(kind: str, code: int, script: Any) -> None:
    path = script(f"from hetero.floor.errors import {kind}\nraise {kind}('a is wrong', remedy='do b')\n")
    done = hetero("run", path)
    assert (done.returncode, done.stderr) == (code, f"hetero: a is wrong; do b\nhetero: raised in {path}, line 2\n")


def test_the_traceback_of_a_mistake_is_shown_when_debugging(script: Any) -> None:
    path = script("from hetero.floor.errors import BadValueError\nraise BadValueError('a is wrong')\n")
    stderr = hetero("run", path, HETERO_DEBUG="1").stderr
    assert "Traceback" in stderr
    assert stderr.endswith(f"hetero: a is wrong\nhetero: raised in {path}, line 2\n")


def test_a_script_from_standard_input_runs() -> None:
    assert hetero("run", "-", "a", given="import sys; print(__name__, sys.argv)").stdout == "__main__ ['-', 'a']\n"


def test_what_a_script_leaves_for_the_end_of_the_program_still_works(script: Any) -> None:
    text = "import atexit\nWORD = 'late'\natexit.register(lambda: print(WORD, __import__('__main__').WORD))\n"
    assert hetero("run", script(text)).stdout == "late late\n"


def test_an_interrupted_script_dies_of_it_and_says_where(script: Any) -> None:
    path = script("import time\nprint('up', flush=True)\ntime.sleep(50)\n")
    with subprocess.Popen(
        [sys.executable, "-m", "hetero", "run", path], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "up\n"
        time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        _, stderr = process.communicate(timeout=ENOUGH_S)
    assert process.returncode == -signal.SIGINT
    assert stderr.startswith("Traceback")
    assert stderr.endswith("    time.sleep(50)\nKeyboardInterrupt\n")


def test_the_options_of_run_reach_the_script_as_defaults(script: Any, tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("engine: local\npolicy: eft\nname: from-file\n")
    path = script(
        "from hetero.session.config import load\nc = load(policy='least_loaded')\n"
        "print(c.engine, c.policy, c.name, c.trace)\n"
    )
    done = hetero(
        "run",
        "--config",
        "a.yaml",
        "--engine",
        "inline",
        "--set",
        "name=by-hand",
        "--trace",
        "t x.jsonl",
        path,
        cwd=tmp_path,
    )
    assert done.stdout == f"inline least_loaded by-hand {tmp_path / 't x.jsonl'}\n", done.stderr


def test_a_wrong_option_of_run_is_told_before_the_script_starts(script: Any) -> None:
    done = hetero("run", "--engine", "inlin", script("print('started')"))
    assert (done.returncode, done.stdout) == (3, "")
    assert done.stderr.startswith("hetero: --set engine=inlin: 'inlin' is not an engine; did you mean 'inline'?")


def test_a_script_that_is_not_there_is_wrong_usage(tmp_path: Path) -> None:
    done = hetero("run", "gone.py", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (
        2,
        "hetero: gone.py cannot be read: No such file or directory; check the path\n",
    )


def test_a_reader_that_leaves_early_sees_no_traceback() -> None:
    done = subprocess.run(
        f"{sys.executable} -m hetero doctor --json | head -1",
        shell=True,
        capture_output=True,
        text=True,
        timeout=ENOUGH_S,
        check=False,
    )
    assert "Traceback" not in done.stderr


def test_a_switch_out_of_range_is_one_line_in_every_command() -> None:
    for words in (("devices",), ("doctor",), ("config", "check", "none.yaml")):
        done = hetero(*words, HETERO_DEBUG="9")
        assert done.returncode == 2
        assert done.stderr == "hetero: HETERO_DEBUG='9' is not a whole number from 0 to 4; set HETERO_DEBUG=0\n"
