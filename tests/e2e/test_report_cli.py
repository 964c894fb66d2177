from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import hetero

with hetero.Context(devices="1xcpu,1xcpu*0.5") as ctx:
    one = ctx.submit(hetero.task(sum, on="cpu:0"), range(1000))
    futures = [ctx.submit(lambda value, number: value + number, one, number) for number in range(20)]
    print(sum(ctx.gather(futures)))
"""


TWO = ("two.trace.jsonl.gz", "two-2.trace.jsonl.gz")


def profiler(*words: str, cwd: Path, code: int = 0) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "hetero.cli.profiler", *words]
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=250, check=False)
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr
    return done


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("traces")
    (path / "program.py").write_text(PROGRAM, encoding="utf-8")
    for name in ("a", "b"):
        command = [sys.executable, "-m", "hetero", "run", "--trace", f"{name}.trace.jsonl.gz", "program.py"]
        subprocess.run(command, cwd=path, check=True, timeout=250, capture_output=True)
    return path


def test_the_account_of_a_live_run_adds_up(folder: Path) -> None:
    found = json.loads(profiler("summary", "--json", "a.trace.jsonl.gz", cwd=folder).stdout)
    assert (found["tasks"], found["failed"], found["problems"]) == (21, 0, [])
    for device in found["devices"]:
        assert sum(device["seconds"].values()) == pytest.approx(found["span_s"], rel=1e-5)
    assert 0.0 < found["best"]["seconds"] <= found["span_s"]


def test_every_form_of_a_report_is_written_and_named(folder: Path) -> None:
    trace = "a.trace.jsonl.gz"
    assert profiler("html", trace, cwd=folder).stdout == "a.report.html\n"
    assert "21 tasks ran on" in (folder / "a.report.html").read_text(encoding="utf-8")
    assert profiler("chrome", trace, cwd=folder).stdout == "a.chrome.json\n"
    slices = [each for each in json.loads((folder / "a.chrome.json").read_text())["traceEvents"] if each["ph"] == "X"]
    assert len(slices) == 21
    assert profiler("png", trace, "-o", "a.svg", cwd=folder).stdout == "a.svg\n"
    assert "<svg" in (folder / "a.svg").read_text(encoding="utf-8")
    lines = profiler("gantt", trace, "--width", "70", cwd=folder).stdout.splitlines()
    assert lines[0].startswith("cpu:0")
    assert max(map(len, lines)) <= 70
    assert "21 tasks ran on" in profiler("summary", trace, "--prices", "cpu=1", cwd=folder).stdout


def test_two_runs_are_compared(folder: Path) -> None:
    text = profiler("compare", "a.trace.jsonl.gz", "b.trace.jsonl.gz", cwd=folder).stdout
    assert text.startswith("A took ")
    found = json.loads(profiler("compare", "--json", "a.trace.jsonl.gz", "b.trace.jsonl.gz", cwd=folder).stdout)
    assert "sum" in {each["function"] for each in found["changes"]}


def test_a_program_that_knows_nothing_of_it_is_profiled(folder: Path) -> None:
    done = profiler("run", "-o", "own.html", "program.py", cwd=folder)
    assert "21 tasks ran on" in (folder / "own.html").read_text(encoding="utf-8")
    assert done.stdout.splitlines() == ["9990190", "own.html"]


def test_a_program_with_several_contexts_has_a_report_of_each(folder: Path) -> None:
    (folder / "several.py").write_text(
        "import hetero\n"
        "with hetero.Context(devices='1xcpu', isolation='thread') as one:\n"
        "    with hetero.Context(devices='1xcpu', isolation='thread') as two:\n"
        "        one.gather([one.submit(abs, -1), two.submit(abs, -2), two.submit(abs, -3)])\n",
        encoding="utf-8",
    )
    done = profiler("run", "several.py", cwd=folder)
    assert done.stdout.splitlines() == ["several.report.html", "several-2.report.html"]
    assert "1 task ran on" in (folder / "several.report.html").read_text(encoding="utf-8")
    assert "2 tasks ran on" in (folder / "several-2.report.html").read_text(encoding="utf-8")


def test_two_contexts_that_are_open_together_do_not_write_one_trace(folder: Path) -> None:
    program = (
        PROGRAM + "    with hetero.Context(devices='1xcpu', isolation='thread') as two:\n        two.run(abs, -1)\n"
    )
    (folder / "two.py").write_text(program, encoding="utf-8")
    command = [sys.executable, "-m", "hetero", "run", "--trace", "two.trace.jsonl.gz", "two.py"]
    subprocess.run(command, cwd=folder, check=True, timeout=250, capture_output=True)
    found = [json.loads(profiler("summary", "--json", name, cwd=folder).stdout) for name in TWO]
    assert [each["tasks"] for each in found] == [21, 1]
    assert [each["problems"] for each in found] == [[], []]


def test_a_program_without_a_context_has_no_report_and_keeps_its_exit_code(folder: Path) -> None:
    (folder / "plain.py").write_text("raise SystemExit(7)", encoding="utf-8")
    done = profiler("run", "plain.py", cwd=folder, code=7)
    assert done.stderr == "hetero-profiler: plain.py opened no hetero.Context, so there is no report\n"


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (("html", "absent"), 3, "hetero: absent cannot be read: No such file or directory; check the path\n"),
        (("summary", "program.py"), 3, "hetero: program.py:1: not the head of a trace; give a file that hetero wrote"),
        (("png", "a.trace.jsonl.gz", "-o", "a.gif"), 2, "hetero: a.gif is no picture that can be written; end its"),
        (("html", "a.trace.jsonl.gz", "-o", "no/a.html"), 2, "hetero: no/a.html cannot be written: No such file"),
        (("summary", "a.trace.jsonl.gz", "--prices", "x"), 2, "hetero: 'x' is not a price; write it like 'cuda=2.5'"),
        (("summary", "a.trace.jsonl.gz", "--prices", "cpux=1"), 2, "hetero: no device of the run goes by 'cpux', for"),
        (("html", "a.trace.jsonl.gz", "--only", "sun"), 2, "hetero: no task of the run is named 'sun'; did you mean"),
    ],
)
def test_a_mistake_is_told_in_one_line(folder: Path, words: tuple[str, ...], code: int, message: str) -> None:
    done = profiler(*words, cwd=folder, code=code)
    assert done.stderr.startswith(message)
    assert done.stderr.count("\n") == 1
    assert done.stdout == ""
