"""The grammar of the command line: every command has its place, and names of the last version still lead there."""

from __future__ import annotations

import shlex
import subprocess
import sys
from collections.abc import Iterator, Mapping

import pytest
import typer
from typer.testing import CliRunner

from hetero.cli.grammar import COMMANDS, REPORT
from hetero.cli.lazy import CommandEntry, GroupEntry
from hetero.cli.main import app
from hetero.cli.profiler import app as profiler
from hetero.errors import BadValueError

GROUP = typer.main.get_command(app)


def walk(
    entries: Mapping[str, CommandEntry | GroupEntry], words: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], CommandEntry]]:
    """Yield every command with the words that lead to it."""
    for name, entry in entries.items():
        if isinstance(entry, GroupEntry):
            yield from walk(entry.commands, (*words, name))
        else:
            yield (*words, name), entry


EVERY = dict(walk(COMMANDS))


@pytest.mark.parametrize("words", EVERY, ids=" ".join)
def test_a_command_is_where_the_table_says_and_begins_its_help_alike(words: tuple[str, ...]) -> None:
    command = GROUP
    for word in words:
        command = command.commands[word]  # type: ignore[attr-defined]
    assert command.name == words[-1]
    assert " ".join(str(command.help).split("\n\n")[0].split()) == EVERY[words].help


def test_the_grammar_has_the_groups_that_the_guide_names() -> None:
    groups = {name: set(entry.commands) for name, entry in COMMANDS.items() if isinstance(entry, GroupEntry)}
    assert groups["graph"] == {"plan", "simulate", "whatif", "show", "convert", "check", "schema"}
    assert groups["plan"] == {"fit", "speed", "choose", "llm", "training", "tasks", "accuracy"}
    assert groups["cluster"] == {"start", "stop", "certificates", "submit", "jobs", "logs", "cancel", "serve"}
    assert groups["data"] == {"encrypt", "decrypt", "rekey", "verify"}
    assert groups["catalog"] == {"list", "show", "compare"}
    single = {name for name, entry in COMMANDS.items() if isinstance(entry, CommandEntry)}
    assert single == {
        *("run", "devices", "doctor", "doctor storage", "demo", "top"),
        *("launch", "train", "train check", "tune", "compress", "infer", "batch", "topo", "calibrate"),
        *("anonymise", "anonymise detect"),
    }


def test_the_profiler_is_the_group_of_reports() -> None:
    assert COMMANDS["report"] is REPORT
    assert list(typer.main.get_command(profiler).commands) == list(REPORT.commands)  # type: ignore[attr-defined]


def test_help_imports_no_command() -> None:
    code = (
        "import sys\nfrom hetero.cli.main import entry\nsys.argv = ['hetero', '--help']\n"
        "try:\n    entry()\nexcept SystemExit:\n    pass\n"
        "print([name for name in sys.modules if name.startswith('hetero.cli.')])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=250, check=True)
    names = ("old_names", "lazy", "grammar", "output", "main")
    assert done.stdout.splitlines()[-1] == str([f"hetero.cli.{name}" for name in names])
    assert all(f"\n  {name} " in done.stdout for name in COMMANDS)


def test_a_misspelt_command_gets_the_one_that_was_meant() -> None:
    command = [sys.executable, "-m", "hetero", "devces"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=250, check=False)
    assert done.returncode == 2
    assert "Did you mean 'devices'?" in done.stderr


OLD_COMMANDS = [
    ("search r.yaml", "search", "tune"),
    ("schedule g.json --seed 1", "schedule", "graph plan"),
    ("schedule g.json --check p.json", "schedule", "graph check"),
    ("schedule --check=p.json g.json --json", "schedule", "graph check"),
    ("simulate g.json --noise 0.1", "simulate", "graph simulate"),
    ("simulate --hosts 1x1xH100-SXM --tasks 2", "simulate", "plan tasks"),
    ("whatif g.json --add x", "whatif", "graph whatif"),
    ("node start --head", "node start", "cluster start"),
    ("node stop", "node stop", "cluster stop"),
    ("node certs folder --host a", "node certs", "cluster certificates"),
    ("submit s.py --fast", "submit", "cluster submit"),
    ("jobs ls --json", "jobs ls", "cluster jobs"),
    ("jobs logs j --follow", "jobs logs", "cluster logs"),
    ("jobs cancel j", "jobs cancel", "cluster cancel"),
    ("jobs serve", "jobs serve", "cluster serve"),
    ("plan --workload W --batch 4", "plan --workload", "plan choose"),
    ("plan --prompt 5 --workload=W", "plan --workload", "plan choose"),
    ("plan --accuracy a.csv b.csv", "plan --accuracy", "plan accuracy"),
]


@pytest.mark.parametrize(("line", "old", "new"), OLD_COMMANDS, ids=[line for line, *_ in OLD_COMMANDS])
def test_a_command_of_the_last_version_leads_to_its_place_and_is_warned_of(
    line: str, old: str, new: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    reached: list[str] = []

    def note(self: typer.core.TyperCommand, ctx: typer.Context) -> None:
        reached.append(ctx.command_path)

    monkeypatch.setattr(typer.core.TyperCommand, "invoke", note)
    result = CliRunner().invoke(app, line.split(), prog_name="hetero")
    assert result.exit_code == 0, result.output
    assert reached == [f"hetero {new}"]
    warned = f"hetero: 'hetero {old}' is now 'hetero {new}'; the old name is taken by this version, and not by the next"
    assert result.stderr.splitlines() == [warned]


def test_no_old_name_is_shown() -> None:
    shown = CliRunner().invoke(app, ["--help"]).output
    assert [line for line, old, _ in OLD_COMMANDS if f"\n  {old.split()[0]} " in shown and old[:4] != "plan"] == []


def test_a_report_of_the_last_version_is_a_page_of_html() -> None:
    result = CliRunner().invoke(profiler, ["report", "--help"], prog_name="hetero-profiler")
    assert result.exit_code == 0
    assert "Usage: hetero-profiler html" in result.stdout
    assert "'hetero-profiler report' is now 'hetero-profiler html'" in result.stderr


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("topo --together rack", "--together has no effect without --group"),
        ("topo --between a b --group 2", "--group has no effect with --between"),
        ("topo --gpu H100-SXM", "--gpu has no effect without --topology"),
        ("catalog list --models --vendor NVIDIA", "--vendor has no effect with --models"),
        ("graph plan a.json --iterations 5 --budget 2s", "--budget has no effect with --iterations"),
        ("top --once --interval 2", "--interval has no effect with --once"),
    ],
)
def test_an_option_that_this_form_of_a_command_does_not_read_is_refused(words: str, told: str) -> None:
    result = CliRunner().invoke(app, words.split())
    assert isinstance(result.exception, BadValueError), result.output
    assert str(result.exception).startswith(told)
    assert str(result.exception).endswith("leave it out")


@pytest.mark.parametrize(
    "words",
    [
        "plan tasks --hosts 1x1xH100-SXM --fail gpu0@1s",
        "graph simulate a.json --tasks 5",
        "graph check a.json b.json --seed 1",
        "plan accuracy a.csv --batch 4",
        "plan --batch 4 fit Llama-3.1-8B",
    ],
)
def test_an_option_of_another_command_is_unknown(words: str) -> None:
    result = CliRunner().invoke(app, words.split())
    assert result.exit_code == 2
    assert "No such option" in result.output


OLD_OPTIONS = [
    ("graph plan", "g --out p --model free --policy heft", "g --output p --transfer-model free --planner heft"),
    ("graph simulate", "g --fleet 4 --model free", "g --devices 4 --transfer-model free"),
    ("graph convert", "g --fleet 4 --out=p", "g --devices 4 --output p"),
    (
        "plan fit",
        "m --device A --count 2 --optimiser sgd --engine vllm",
        "m --devices 2xA --optimizer sgd --framework vllm",
    ),
    ("plan fit", "m --device A", "m --devices A"),
    ("plan speed", "m --device A --device B --count 4 --engine vllm", "m --devices 4xA,4xB --framework vllm"),
    ("plan choose", "w --fleet here --tokens 5 --engine vllm", "w --devices here --context 5 --framework vllm"),
    (
        "plan choose",
        "w --catalog --apart a --apart b --apart-by rack",
        "w --devices catalog --apart a@rack --apart b@rack",
    ),
    ("plan llm", "m --fleet here --tokens 5 --engine vllm", "m --devices here --context 5 --framework vllm"),
    (
        "plan training",
        "--samples 9 --node 1 --node 2 --batch 3 --link 1Gb/s",
        "--samples 9 --samples-per-s 1 --samples-per-s 2 --global-batch 3 --network 1Gb/s",
    ),
    ("plan tasks", "--hosts h --data 1MB --link 1Gb/s", "--hosts h --input-bytes 1MB --network 1Gb/s"),
    ("catalog compare", "a b --png c.png", "a b --output c.png"),
    ("topo", "--from a --from b --within rack --png c", "--topology a --topology b --together rack --output c"),
    ("calibrate", "--from a.csv", "--measurements a.csv"),
    ("cluster start", "--head --memory 1GB", "--head --object-store-memory 1GB"),
    ("compress", "m --quantise int8", "m --quantize int8"),
    ("batch", "r --out f", "r --output f"),
    ("report html", "t --price cuda=2", "t --prices cuda=2"),
    ("report summary", "t --price cuda=2 --price cpu=1", "t --prices cuda=2 --prices cpu=1"),
    ("report run", "--price cuda=2 s.py --fast", "--prices cuda=2 s.py --fast"),
]


def parsed(monkeypatch: pytest.MonkeyPatch, line: str) -> tuple[dict[str, object], list[str]]:
    found: list[dict[str, object]] = []
    monkeypatch.setattr(typer.core.TyperCommand, "invoke", lambda self, ctx: found.append(ctx.params))
    result = CliRunner().invoke(app, line.split())
    assert result.exit_code == 0, result.output + repr(result.exception)
    return found[0], result.stderr.splitlines()


@pytest.mark.parametrize(("command", "before", "after"), OLD_OPTIONS, ids=[" ".join(row[:2]) for row in OLD_OPTIONS])
def test_an_option_of_the_last_version_means_what_its_new_name_means(
    command: str, before: str, after: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    old, warned = parsed(monkeypatch, f"{command} {before}")
    new, silent = parsed(monkeypatch, f"{command} {after}")
    assert old == new
    assert silent == []
    typed = {word.partition("=")[0] for word in before.split() if word.startswith("--")}
    renamed = typed - {word for word in after.split() if word.startswith("--")}
    assert len(warned) == 1
    quoted = [word for names in warned[0].removeprefix("hetero: ").split("', '") for word in names.split("' is now '")]
    assert {name for names in quoted[::2] for name in names.strip("'").split()} == renamed
    assert warned[0].endswith(" taken by this version, and not by the next")
    follows = shlex.split(" ".join(names.partition("'; the old")[0] for names in quoted[1::2]))
    kept = [word for word in after.split() if word in follows]
    assert [word for word in follows if word not in after.split()] == []
    assert {word for word in kept if word.startswith("--")} >= {
        word for word in after.split() if word.startswith("--") and word not in before.split()
    }


def test_several_old_names_of_one_line_are_one_line_of_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    _, warned = parsed(monkeypatch, "schedule g --policy heft --model free")
    assert warned == [
        "hetero: 'hetero schedule' is now 'hetero graph plan', '--model' is now '--transfer-model free', '--policy' is"
        " now '--planner heft'; the old names are taken by this version, and not by the next"
    ]
    _, warned = parsed(monkeypatch, "plan fit m --device RTX-4090 --count 2")
    assert "'--device --count' is now '--devices 2xRTX-4090'; the old name is taken" in warned[0]
    assert CliRunner().invoke(app, ["node", "certs", "--help"], prog_name="hetero").stderr.count("is now") == 1


def test_every_old_option_is_tried() -> None:
    tried = {(command, word.partition("=")[0]) for command, before, _ in OLD_OPTIONS for word in before.split()}
    assert {(" ".join(words), old) for words, entry in EVERY.items() for old in entry.old_options} <= tried


def test_no_old_option_is_shown_or_proposed() -> None:
    for words, entry in EVERY.items():
        shown = CliRunner().invoke(app, [*words, "--help"]).output
        assert [old for old in entry.old_options if f" {old} " in shown or f"{old}," in shown] == []


def test_an_option_under_both_names_is_refused() -> None:
    result = CliRunner().invoke(app, ["graph", "plan", "g.json", "--out", "a", "--output", "b"])
    assert isinstance(result.exception, BadValueError)
    assert str(result.exception) == "--out is the old name of --output, and both are given; leave --out out"
