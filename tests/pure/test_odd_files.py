"""Names that are no file to be read or written are refused in one line, and nothing is waited for or replaced."""

from __future__ import annotations

import os
import shlex
import stat
import sys
import threading
from pathlib import Path

import pytest
import yaml

from hetero.cli import main, profiler
from hetero.cli.options import as_setting
from hetero.drive.trace import TraceWriter
from hetero.engines.ray.certificates import make_certificates
from hetero.engines.ray.job_package import JobProgram
from hetero.floor import files
from hetero.floor.documents import read_text
from hetero.floor.errors import BadValueError, FileError, GraphError
from hetero.floor.files import local_path, output_file, output_folder, output_picture, output_stream
from hetero.graphs.files import checked_output, write_text

ODD = (".", "..", "/", "", "folder", "folder/", "pipe", "~nobody-of-this-name/x", "x" * 300)
UNSEEN = ("two\nlines", "esc\x1b[31m", "non\udcffutf", "quo'te\"")
GRAPH = """{"format": "hetero-graph/1", "tasks": [{"id": "a", "seconds": {"d0": 1}}], "devices": [{"id": "d0"}]}"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "here" / "folder").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setattr(files, "PIPE_S", 0.05)
    os.mkfifo("pipe")
    return tmp_path / "here"


def told(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, *words: str) -> tuple[int, str]:
    """Run a command line here; its exit code and what it says on standard error."""
    monkeypatch.setattr(sys, "argv", list(words))
    with pytest.raises(SystemExit) as ended:
        (profiler if words[0] == "hetero-profiler" else main).entry()
    return int(ended.value.code or 0), capsys.readouterr().err


@pytest.mark.parametrize("name", [*ODD, *UNSEEN])
@pytest.mark.parametrize(
    "command",
    [
        *(("hetero-profiler", word) for word in ("html", "summary", "gantt", "chrome", "png")),
        ("hetero", "graph", "plan"),
        ("hetero", "graph", "simulate"),
        ("hetero", "graph", "whatif"),
        ("hetero", "config", "check"),
        ("hetero", "graph", "convert"),
        ("hetero", "train"),
        ("hetero", "calibrate", "--measurements"),
        ("hetero", "devices", "--config"),
        ("hetero", "topo", "--topology"),
        ("hetero", "tune"),
        ("hetero", "run"),
        ("hetero", "plan", "choose", "Llama-3.1-8B", "--prices"),
    ],
)
def test_what_is_no_file_to_read_is_refused_in_one_line(
    command: tuple[str, ...], name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    code, wrong = told(capsys, monkeypatch, *command, name)
    assert code in (1, 2, 3)
    assert "Traceback" not in wrong
    assert wrong.count("\n") == 1 or "Usage" in wrong, wrong


@pytest.mark.parametrize("name", ODD)
def test_what_is_no_file_to_write_is_refused_and_stays_as_it_was(name: str, folder: Path) -> None:
    before = sorted(path.name for path in folder.iterdir())
    for write in (lambda: output_file(name, "out"), lambda: write_text(Path(name), "text"), lambda: TraceWriter(name)):
        with pytest.raises((BadValueError, GraphError)):
            write()
    assert sorted(path.name for path in folder.iterdir()) == before
    assert stat.S_ISFIFO(Path("pipe").stat().st_mode)


def test_a_device_is_not_replaced_by_a_file(folder: Path) -> None:
    device = folder / "null"
    try:
        os.mknod(device, stat.S_IFCHR | 0o666, os.makedev(1, 3))
    except PermissionError:
        pytest.skip("only root can make a device")
    with pytest.raises(GraphError, match="is no file that can be replaced"):
        write_text(device, "text")
    assert stat.S_ISCHR(device.lstat().st_mode)
    assert output_stream(device, "out") == device


def test_a_pipe_that_somebody_reads_is_written_to() -> None:
    with pytest.raises(BadValueError, match="is a pipe that nobody reads"):
        output_stream("pipe", "out")
    reading = os.open("pipe", os.O_RDONLY | os.O_NONBLOCK)
    assert output_stream("pipe", "out") == Path("pipe")
    os.close(reading)


def test_a_pipe_that_is_written_to_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "PIPE_S", 60.0)
    writing = threading.Thread(target=lambda: Path("pipe").write_text("said"))
    writing.start()
    assert read_text("pipe") == "said"
    writing.join()
    monkeypatch.setattr(files, "PIPE_S", 0.05)
    with pytest.raises(FileError, match=r"nothing was written into this pipe for 0.05 s"):
        read_text("pipe")


@pytest.mark.parametrize("address", ["file:///tmp/x", "s3://bucket/key", "File:///x", "s3a:///x"])
def test_an_address_is_named_as_it_was_given(address: str) -> None:
    with pytest.raises(BadValueError, match=f"out: {address} is no path of this host"):
        local_path(address, "out")
    if not address.startswith("s3a"):
        with pytest.raises(BadValueError, match=f"out: {address} is no path of this host"):
            local_path(Path(address), "out")


@pytest.mark.parametrize("script", ["-dash.py", "spa ce.py", "quo'te.py", "--help"])
def test_a_script_of_any_name_is_what_a_job_runs(script: str) -> None:
    words = shlex.split(JobProgram(script, ("-x", "a b")).command("python"))
    assert words[-4:] == ["--", script, "-x", "a b"]


@pytest.mark.parametrize(
    "name", ["new\nline", "esc\x1b[31m\x07", "non\udcffutf", "quo'te\"", " spa ce ", "\u202egnp", "#x: y"]
)
def test_a_path_of_any_name_is_the_value_of_its_option(name: str) -> None:
    assert yaml.safe_load(as_setting("trace", name).partition("=")[2]) == name


@pytest.mark.parametrize("name", [*ODD, "loop", "gone/x", "pipe/x"])
def test_certificates_and_pictures_are_refused_in_one_line_where_they_cannot_be_written(name: str) -> None:
    os.symlink("loop", "loop")
    if name not in (".", "..", "", "folder", "folder/", "gone/x", "/"):
        with pytest.raises(BadValueError, match=r"cannot be made|no such user"):
            make_certificates(Path(name), ["10.0.0.1"])
    if name not in ("gone/x",):
        with pytest.raises(BadValueError) as caught:
            output_picture(name, "png")
        assert str(caught.value).count("png") == 1


def test_a_picture_is_written_under_the_very_name_that_was_given(folder: Path) -> None:
    assert output_picture("plain", "png") == (Path("plain"), "png")
    assert output_picture("a.SVG", "png") == (Path("a.SVG"), "svg")
    assert output_picture("/dev/null", "png") == (Path("/dev/null"), "png")


def test_an_output_in_a_folder_where_nothing_can_be_written_is_refused_before_the_work(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(GraphError, match="there is no folder gone"):
        checked_output(Path("gone/x"))
    assert output_file("gone/x", "out") == Path("gone/x")  # folders are made where a model is saved
    monkeypatch.setattr(os, "access", lambda *_: False)  # as on a disk that is mounted for reading
    with pytest.raises(BadValueError, match=r"would lie in \S+here, and nothing can be written there"):
        output_file("gone/x", "out")


@pytest.mark.parametrize(
    "name", ["pipe", "pipe/x", "loop", "x" * 300, "~nobody-of-this-name/x", "s3://bucket/key", "a\0b"]
)
def test_a_folder_that_cannot_be_made_is_refused_in_one_line(name: str) -> None:
    os.symlink("loop", "loop")
    with pytest.raises(BadValueError, match=r"^output: .*(no folder|cannot be made|no such user|no path of this host)"):
        output_folder(name, "output")
    assert output_folder("new/folder", "output").is_dir()
    Path("two\nlines").touch()
    with pytest.raises(BadValueError, match=r"^output: two\\nlines is no folder"):
        output_folder("two\nlines", "output")


def test_a_folder_in_which_nothing_can_be_written_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "access", lambda *_: False)  # as on a disk that is mounted for reading
    with pytest.raises(BadValueError, match="output: nothing can be written in folder"):
        output_folder("folder", "output")


@pytest.mark.parametrize("words", [("--set", "output=pipe"), ("--set", "output=taken"), ("--set", "output=s3://b/k")])
def test_training_does_not_begin_where_its_output_cannot_be_written(
    words: tuple[str, ...], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("taken").touch()
    Path("r.yaml").write_text("model: mnist\n")
    code, wrong = told(capsys, monkeypatch, "hetero", "train", "r.yaml", *words)
    assert (code, wrong.count("\n")) == (2, 1), wrong
    assert "output: " in wrong


def test_the_address_of_a_model_is_not_taken_for_a_name(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    code, wrong = told(capsys, monkeypatch, "hetero", "plan", "choose", "s3://b/k")
    assert (code, wrong.count("\n")) == (2, 1), wrong
    assert "'s3://b/k' is no path of this host" in wrong


def test_models_and_scripts_that_are_pipes_or_endless_are_refused(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for words in (("run", "pipe"), ("run", "/dev/zero"), ("run", "folder"), ("plan", "llm", "x" * 300)):
        code, wrong = told(capsys, monkeypatch, "hetero", *words)
        assert code in (2, 3)
        assert wrong.count("\n") == 1, wrong
