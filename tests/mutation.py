"""`make mutation`: small changes of the code that decides, each of which some pure test must notice.

In: the files and tests of `SUBJECTS`. Out: the kill rate of each subject and the mutants that survived.
It must not write to a source file: a mutant is compiled in a fork, whose functions get its code.

Notes
-----
mutmut's mutators say what is changed. Its own runner works here, and needs 0.2 s of processor time and more for each of
475 mutants of a file of 350 lines: far from five minutes for all subjects. cosmic-ray starts a process for each. Here a
mutant is compiled in a fork of one process that has collected all tests, and run against the tests that execute its
line, until one fails. Which those are, a fork a test file finds out by probes in the code. Each fork has temporary
folders of its own: two that make the same one fail, whatever the mutant. What runs out of time or memory is killed too.
Texts are left alone: `tests/golden` compares messages.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import functools
import gc
import importlib
import os
import pickle
import random
import resource
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby, islice
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any, NamedTuple

import hypothesis
import libcst as cst
import pytest
import yaml
from _pytest.runner import runtestprotocol
from libcst.metadata import MetadataWrapper, PositionProvider
from mutmut.mutation import mutators

from hetero.plan.replanning.replan import warm_up
from tests.needs import PROJECT

SOURCE = PROJECT / "src" / "hetero"
EQUIVALENT = PROJECT / "tests" / "equivalent_mutants.yaml"
LEAST_FRAC = 0.85


class Subject(NamedTuple):
    """What is mutated, below src/hetero, and the pure tests that must notice, below tests."""

    files: tuple[str, ...]
    tests: tuple[str, ...]


_CORE_TESTS = (
    "core",
    "core_checks",
    "core_machine",
    "core_parts",
    "core_regressions",
    "quarantine",
    "leases",
    "fleet",
    "eligible",
    "cost",
    "policies",
)
_SIM_TESTS = ("decisions", "ahead", "failures", "lookahead", "sim_leases", "nested", "planned")
_OWN_LOOP = ("leaving", "loss_graph", "loss_terms", "parameter_rows", "process_states", "whole_draws")

SUBJECTS: dict[str, Subject] = {
    "core": Subject(
        ("core/*.py",),
        (*(f"pure/test_{name}.py" for name in _CORE_TESTS), *(f"sim/test_{name}.py" for name in _SIM_TESTS)),
    ),
    "policies": Subject(
        ("plan/policies/*.py",),
        ("pure/test_policies.py", "pure/test_policy_rules.py", "sim/test_decisions.py", "sim/test_planned.py"),
    ),
    "shares": Subject(
        ("plan/training/shares.py", "train/share_planner.py"), ("pure/test_shares.py", "pure/test_share_planner.py")
    ),
    "committing": Subject(("batch/committing.py", "batch/sinks.py"), ("pure/test_batch_committing.py",)),
    "checkpoints": Subject(("stores/checkpoints.py", "train/checkpoints.py"), ("pure/test_checkpoints.py",)),
    "gradients": Subject(("train/gradients.py",), ("pure/test_buckets.py", "pure/test_gradients.py")),
    "own loop": Subject(
        tuple(f"train/launch/{name}.py" for name in _OWN_LOOP),
        tuple(f"backend/test_train_{name}.py" for name in _OWN_LOOP),
    ),
    "local engine": Subject(
        ("engines/shared/in_flight.py", "engines/shared/items.py", "engines/shared/memory_pool.py"),
        ("pure/test_pool.py", "pure/test_output_leases.py", "pure/test_exactly_once.py"),
    ),
}

_SECONDS_OF_TESTS = 4.0
"""Processor time of tests for one mutant, as measured while their lines are noted; the quickest tests come first."""
_SLOWEST_TEST_S = 1.0
"""A test that takes more judges no mutant."""
_DEADLINE_S = 60.0
_FILE_DEADLINE_S = 280.0
_HITS = "__hits__"
_MEMORY_BYTES = 4 << 30


class Mutant(NamedTuple):
    """One change of one file.

    Attributes
    ----------
    path : of the file
    line : where it begins
    begin, end : offsets of the text that is replaced
    before, after : that text and the new one
    function : the function it lies in, '' outside of functions
    """

    path: Path
    line: int
    begin: int
    end: int
    before: str
    after: str
    function: str

    def applied(self, source: str) -> str:
        """Return the file with the change."""
        return source[: self.begin] + self.after + source[self.end :]

    def __str__(self) -> str:
        where = f"{self.path.relative_to(SOURCE)}:{self.line}"
        return f"{where} {self.function}: {_one_line(self.before)}  ->  {_one_line(self.after)}"


def _one_line(text: str) -> str:
    return " ".join(text.split())


# --- what is changed -----------------------------------------------------------------------------------------


def _negated(node: cst.If | cst.While) -> Iterator[cst.CSTNode]:
    """Turn a condition round; of what mutmut leaves alone, this is what decides most."""
    test = node.test.with_changes(lpar=[cst.LeftParen()], rpar=[cst.RightParen()])
    yield node.with_changes(test=cst.UnaryOperation(cst.Not(), test))


def _without_call(node: cst.Expr) -> Iterator[cst.CSTNode]:
    """Leave out a call whose value nobody takes."""
    if isinstance(node.value, cst.Call):
        yield cst.Pass()


_MUTATORS: tuple[tuple[Any, Any], ...] = (
    (cst.BaseNumber, mutators.operator_number),
    (cst.Name, mutators.operator_name),
    (cst.AugAssign, mutators.operator_augmented_assignment),
    (cst.UnaryOperation, mutators.operator_remove_unary_ops),
    (cst.Call, mutators.operator_symmetric_string_methods_swap),
    (cst.IfExp, mutators.operator_if_exp),
    ((cst.BinaryOperation, cst.BooleanOperation, cst.ComparisonTarget, cst.AugAssign), mutators.operator_swap_op),
    ((cst.Is, cst.IsNot, cst.In, cst.NotIn, cst.Break, cst.Continue), mutators.operator_keywords),
    ((cst.If, cst.While), _negated),
    (cst.Expr, _without_call),
)
_LEFT_ALONE = (
    cst.Annotation, cst.Decorator, cst.Raise, cst.Assert, cst.FormattedString, cst.Import, cst.ImportFrom, cst.Param,
)  # fmt: skip
"""Nothing in these is changed: types, messages, defaults, and what is true unless the code is wrong already.

Class bodies are left alone too, since they are evaluated once, and `strict=` of `zip`, which is an assertion.
"""


class _Visitor(cst.CSTVisitor):
    METADATA_DEPENDENCIES = (PositionProvider,)

    def __init__(self, path: Path, source: str, module: cst.Module) -> None:
        super().__init__()
        self._path, self._source, self._module = path, source, module
        starts = [0]
        for line in source.splitlines(keepends=True):
            starts.append(starts[-1] + len(line))
        self._starts = starts
        self._inside: list[cst.FunctionDef | cst.ClassDef] = []
        self.found: list[Mutant] = []

    def on_visit(self, node: cst.CSTNode) -> bool:
        if isinstance(node, _LEFT_ALONE) or (
            isinstance(node, cst.Arg) and node.keyword and node.keyword.value == "strict"
        ):
            return False
        if isinstance(node, cst.FunctionDef | cst.ClassDef):
            self._inside.append(node)
        in_class = bool(self._inside) and isinstance(self._inside[-1], cst.ClassDef)
        for kind, mutator in _MUTATORS:
            if isinstance(node, kind) and not in_class:
                for new in mutator(node):
                    self._note(node, new)
        return True

    def on_leave(self, node: cst.CSTNode) -> None:
        if isinstance(node, cst.FunctionDef | cst.ClassDef):
            self._inside.pop()

    def _note(self, node: cst.CSTNode, new: cst.CSTNode) -> None:
        if isinstance(node, cst.If | cst.While):  # only the condition, so that the text is short
            node, new = node.test, new.test  # type: ignore[attr-defined]
        place = self.get_metadata(PositionProvider, node)
        begin = self._starts[place.start.line - 1] + place.start.column
        end = self._starts[place.end.line - 1] + place.end.column
        if type(new) is type(node) and getattr(new, "lpar", ()):  # their place leaves out parentheses of their own
            new = new.with_changes(lpar=[], rpar=[])
        text, before = self._module.code_for_node(new).strip(), self._source[begin:end]
        function = ".".join(each.name.value for each in self._inside)
        self.found.append(Mutant(self._path, place.start.line, begin, end, before, text, function))


def mutants(path: Path) -> list[Mutant]:
    """Return every change of a file, in the order of the text."""
    source = path.read_text(encoding="utf-8")
    wrapper = MetadataWrapper(cst.parse_module(source))
    visitor = _Visitor(path, source, wrapper.module)
    wrapper.visit(visitor)
    return list(dict.fromkeys(visitor.found))


def _changes_code(mutant: Mutant) -> bool:
    """Return whether a change compiles, and to something else than the file without it."""
    source = mutant.path.read_text(encoding="utf-8")
    try:
        return _codes(compile(mutant.applied(source), "", "exec")) != _plain(mutant.path)
    except SyntaxError:
        return False


@functools.cache
def _plain(path: Path) -> dict[tuple[str, int], CodeType]:
    return _codes(compile(path.read_text(encoding="utf-8"), "", "exec"))


def _codes(code: CodeType) -> dict[tuple[str, int], CodeType]:
    """Return the code of each function of a module, by its name and its number among those of that name."""
    found: dict[tuple[str, int], CodeType] = {}
    counts: Counter[str] = Counter()

    def collect(outer: CodeType) -> None:
        for const in outer.co_consts:
            if isinstance(const, CodeType):
                found[const.co_qualname, counts[const.co_qualname]] = const
                counts[const.co_qualname] += 1
                collect(const)

    collect(code)
    return found


# --- the tests -----------------------------------------------------------------------------------------------


class Covered(NamedTuple):
    """What the tests do without any change.

    Attributes
    ----------
    seconds : processor time of each test, by its number
    tests : of each file and line, the numbers of the tests that execute it
    failed : tests that fail without any change
    """

    seconds: dict[int, float]
    tests: dict[tuple[str, int], set[int]]
    failed: list[str]


def _run(item: pytest.Item, following: pytest.Item | None) -> bool:
    """Return whether a test passes, or is skipped."""
    return not any(report.failed for report in runtestprotocol(item, log=False, nextitem=following))


class _Probed:
    """Has each statement of a function note that it is executed, for far less than it costs to trace lines.

    Attributes
    ----------
    lines : the file and the lines of each statement, by the number of its probe
    """

    def __init__(self) -> None:
        self.lines: list[tuple[str, range]] = []
        self.path = ""

    def code_of(self, path: Path) -> CodeType:
        """Return a file's code with the probes."""
        self.path = str(path)
        tree = ast.parse(path.read_bytes())
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                self._probe(node)
        return compile(ast.fix_missing_locations(tree), self.path, "exec", dont_inherit=True)

    def _probe(self, node: ast.AST) -> None:
        for field in ("body", "orelse", "finalbody", "handlers", "cases"):
            inner = getattr(node, field, None)
            if not isinstance(inner, list):
                continue
            for each in inner:
                if not isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                    self._probe(each)
            if field in ("body", "orelse", "finalbody"):
                setattr(node, field, [new for each in inner for new in (self._note(each), each)])

    def _note(self, statement: ast.stmt) -> ast.stmt:
        body = getattr(statement, "body", None) or getattr(statement, "cases", None)
        last = statement.end_lineno or statement.lineno
        if isinstance(body, list):
            last = max(statement.lineno, getattr(body[0], "lineno", getattr(body[0], "pattern", statement).lineno) - 1)
        self.lines.append((self.path, range(statement.lineno, last + 1)))
        note = ast.parse(f"{_HITS}[{len(self.lines) - 1}] = 1").body[0]
        return ast.copy_location(note, statement)


class Probes:
    """What notes the statements that a test executes.

    Attributes
    ----------
    lines : the file and the lines of each statement, by the number of its probe
    hits : 1 for each statement that was executed
    """

    def __init__(self, paths: Sequence[Path], functions: Sequence[FunctionType]) -> None:
        probed = _Probed()
        self._codes = [(path, new) for path in paths for new in [probed.code_of(path)]]
        self.lines = probed.lines
        self.hits = bytearray(len(self.lines))
        self._functions = functions

    def install(self) -> None:
        """Put the probes into the functions that are there; to be called in a fork."""
        for path, code in self._codes:
            live = [each for each in self._functions if each.__code__.co_filename == str(path)]
            _replace(live, _codes(compile(path.read_bytes(), str(path), "exec")), _codes(code))
            setattr(_module(path), _HITS, self.hits)


def _cover(items: Sequence[pytest.Item], probes: Probes, out: Path) -> int:
    """Run the tests of a file; write down of each whether it passes, its processor time and the statements it executes.

    To be called in a fork, which ends within a test that is too slow: the caller goes on with the next one.
    """
    told: list[tuple[bool, float, bytes]] = []

    def end(*_: object) -> None:
        out.write_bytes(pickle.dumps(told))
        os._exit(0)

    probes.install()
    signal.signal(signal.SIGPROF, end)
    for item, following in zip(items, [*items[1:], None], strict=True):
        probes.hits[:] = bytes(len(probes.hits))
        signal.setitimer(signal.ITIMER_PROF, _SLOWEST_TEST_S)
        begin_s = time.process_time()
        passed = _run(item, following)
        told.append((passed, time.process_time() - begin_s, bytes(probes.hits)))
    signal.setitimer(signal.ITIMER_PROF, 0)
    end()
    return 0


# --- forks ---------------------------------------------------------------------------------------------------


class Forks:
    """Runs functions in forks, two at a time."""

    def __init__(self, config: pytest.Config, folder: Path, most: int = 2) -> None:
        self._config, self._folder, self._most = config, folder, most
        self._running: dict[int, tuple[Any, float]] = {}
        self.ends: dict[Any, int] = {}

    def start(self, key: Any, function: Any, *args: Any, within_s: float = _DEADLINE_S) -> None:
        """Run a function in a fork as soon as there is room; its number is the exit status."""
        while len(self._running) >= self._most:
            self._reap()
        sys.stdout.flush()
        pid = os.fork()
        if not pid:
            self._live(function, args)
        self._running[pid] = (key, time.monotonic() + within_s)

    def _live(self, function: Any, args: Any) -> None:
        status = 99
        try:
            os.setsid()
            with open(os.devnull, "r+b") as nothing:
                for stream in (0, 1, 2):
                    os.dup2(nothing.fileno(), stream)
            self._own_folder()
            status = int(function(*args))
        except BaseException:  # noqa: BLE001  whatever a mutant raises, the fork ends here
            status = 98
        finally:
            os._exit(status)

    def _own_folder(self) -> None:
        """Have pytest make its temporary folders where no other fork does: two that make the same one fail."""
        factory = self._config._tmp_path_factory  # type: ignore[attr-defined]
        factory._given_basetemp, factory._basetemp = self._folder / f"fork-{os.getpid()}", None

    def _reap(self) -> None:
        for pid, (key, end_s) in list(self._running.items()):
            done, status = os.waitpid(pid, os.WNOHANG)
            if not done and time.monotonic() > end_s:
                os.killpg(pid, signal.SIGKILL)
                done, status = os.waitpid(pid, 0)
            if done:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(pid, signal.SIGKILL)  # whatever a mutant's test left behind
                shutil.rmtree(self._folder / f"fork-{pid}", ignore_errors=True)
                del self._running[pid]
                self.ends[key] = os.waitstatus_to_exitcode(status)
        time.sleep(0.002)

    def finish(self) -> dict[Any, int]:
        """Wait for all; return how each ended."""
        while self._running:
            self._reap()
        return self.ends


def _limited(seconds: float) -> None:
    """Bound what a mutant may take: an endless loop ends by a signal."""
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    resource.setrlimit(resource.RLIMIT_DATA, (_MEMORY_BYTES, _MEMORY_BYTES))


def _killed(mutant: Mutant, live: Sequence[FunctionType], items: Sequence[pytest.Item], seconds: float) -> bool:
    """Return whether a test fails with the change; to be called in a fork."""
    _limited(3 * seconds + 1)
    _apply(mutant, live)
    pairs = zip(items, [*items[1:], items[-1]], strict=True)
    return any(not _run(item, following) for item, following in pairs)


def _apply(mutant: Mutant, live: Sequence[FunctionType]) -> None:
    """Put the changed code into the functions that are there."""
    source = mutant.path.read_text(encoding="utf-8")
    changed = compile(mutant.applied(source), str(mutant.path), "exec")
    _replace(live, _codes(compile(source, str(mutant.path), "exec")), _codes(changed))
    if not mutant.function:
        _set_constants(mutant.path, changed)


def _replace(
    live: Sequence[FunctionType], before: dict[tuple[str, int], CodeType], after: dict[tuple[str, int], CodeType]
) -> None:
    """Replace the code of functions, where it differs."""
    new = {_name(code): after[key] for key, code in before.items() if code != after.get(key, code)}
    for function in live:
        if _name(function.__code__) in new:
            function.__code__ = new[_name(function.__code__)]


def _module(path: Path) -> ModuleType:
    return next(module for module in sys.modules.values() if getattr(module, "__file__", None) == str(path))


def _name(code: CodeType) -> tuple[str, int]:
    return code.co_qualname, code.co_firstlineno


def _set_constants(path: Path, changed: CodeType) -> None:
    """Set a constant of a module to its changed value wherever it was imported to."""
    home = _module(path)
    fresh: dict[str, Any] = dict(vars(home))
    exec(changed, fresh)
    plain = int | float | str | bool | tuple
    for name, old in list(vars(home).items()):
        if isinstance(old, plain) and fresh[name] != old:
            for module in list(sys.modules.values()):
                if vars(module).get(name) is old:
                    setattr(module, name, fresh[name])


# --- the whole -----------------------------------------------------------------------------------------------


class Run:
    """A plugin of pytest that has every mutant judged in place of running the tests once."""

    def __init__(self, options: argparse.Namespace, folder: Path) -> None:
        self.options, self.folder = options, folder
        self.rates: dict[str, tuple[int, int]] = {}
        self.functions: list[FunctionType] = []
        self.trouble = ""

    def pytest_configure(self) -> None:
        """Make hypothesis search but not shrink: that something fails is enough."""
        hypothesis.settings.register_profile(
            "mutation",
            hypothesis.settings.get_profile("hetero"),
            phases=[hypothesis.Phase.explicit, hypothesis.Phase.generate],
        )
        hypothesis.settings.load_profile("mutation")

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Judge all mutants."""
        if session.testsfailed:
            self.trouble = "the tests cannot be collected"
            return True
        subjects = {name: _paths(SUBJECTS[name].files) for name in self.options.subjects}
        for path in (path for paths in subjects.values() for path in paths):  # else a fork imports it unchanged
            importlib.import_module(".".join(path.relative_to(SOURCE.parent).with_suffix("").parts))
        warm_up()
        gc.collect()
        self.functions = [each for each in gc.get_objects() if isinstance(each, FunctionType)]
        gc.freeze()  # forks copy less
        covered = self._covered(session.items, [path for paths in subjects.values() for path in paths])
        if covered.failed:
            self.trouble = "fails without a change: " + ", ".join(covered.failed)
            return True
        for name, paths in subjects.items():
            self._judge(name, paths, session.items, covered)
        return True

    def _covered(self, items: Sequence[pytest.Item], paths: Sequence[Path]) -> Covered:
        found, probes = Covered({}, defaultdict(set), []), Probes(paths, self.functions)
        left = [list(numbers) for _, numbers in groupby(range(len(items)), lambda each: items[each].path)]
        while left:  # a round for each test that is too slow for its file to be gone through at once
            forks = Forks(items[0].config, self.folder)
            for numbers in left:
                out = self.folder / f"covered-{numbers[0]}"
                tests = [items[number] for number in numbers]
                forks.start(numbers[0], _cover, tests, probes, out, within_s=_FILE_DEADLINE_S)
            ends = forks.finish()
            left = [
                rest for numbers in left if (rest := self._gathered(numbers, ends[numbers[0]], items, probes, found))
            ]
        return found

    def _gathered(
        self, numbers: list[int], end: int, items: Sequence[pytest.Item], probes: Probes, found: Covered
    ) -> list[int]:
        """Take over what a fork wrote down; return the tests behind the one that it ended in."""
        out = self.folder / f"covered-{numbers[0]}"
        if end or not out.exists():
            found.failed.append(f"{items[numbers[0]].nodeid} or a test of its file behind it (ended with {end})")
            return []
        told = pickle.loads(out.read_bytes())
        for number, (passed, seconds, hits) in zip(numbers, told, strict=False):
            found.seconds[number] = seconds
            if not passed:
                found.failed.append(items[number].nodeid)
            for probe in (each for each, hit in enumerate(hits) if hit):
                path, lines = probes.lines[probe]
                for line in lines:
                    found.tests[path, line].add(number)
        return numbers[len(told) + 1 :]

    def _judge(self, name: str, paths: Sequence[Path], items: Sequence[pytest.Item], covered: Covered) -> None:
        chosen, of = _sample(paths, self.options)
        forks = Forks(items[0].config, self.folder)
        for mutant in chosen:
            tests = _chosen(mutant, covered)
            if not tests:
                forks.ends[mutant] = 0
                continue
            live = [each for each in self.functions if each.__code__.co_filename == str(mutant.path)]
            seconds = sum(covered.seconds[number] for number in tests)
            forks.start(mutant, _killed, mutant, live, [items[number] for number in tests], seconds)
        ends = forks.finish()
        survivors = [mutant for mutant in chosen if not ends[mutant]]
        self.rates[name] = (len(chosen) - len(survivors), len(chosen))
        for mutant in survivors:
            print(f"survived{'' if _chosen(mutant, covered) else ', no test comes there'}: {mutant}")
        killed, tried = self.rates[name]
        print(f"{name}: {killed} of {tried} mutants killed, {killed / max(1, tried):.1%}; there are {of}", flush=True)


def _chosen(mutant: Mutant, covered: Covered) -> list[int]:
    """Return the tests that execute a mutant's line: the quickest for most of the time, then those that do most."""
    if mutant.function:
        able: Iterable[int] = covered.tests.get((str(mutant.path), mutant.line), ())
    else:
        able = set().union(*(tests for (path, _), tests in covered.tests.items() if path == str(mutant.path)))
    seconds = covered.seconds
    quickest = sorted(able, key=lambda each: (seconds[each], each))
    chosen = dict.fromkeys(quickest[:1])
    for limit_s, numbers in ((0.75 * _SECONDS_OF_TESTS, quickest), (_SECONDS_OF_TESTS, quickest[::-1])):
        for number in numbers:
            if sum(seconds[each] for each in chosen) + seconds[number] <= limit_s:
                chosen[number] = None
    return list(chosen)


def _paths(patterns: Iterable[str]) -> list[Path]:
    return [path for pattern in patterns for path in sorted(SOURCE.glob(pattern)) if path.name != "__init__.py"]


def _equivalent() -> set[tuple[str, str, str, str]]:
    """Return the mutants that change nothing anybody can see, each listed with its reason."""
    rows = yaml.safe_load(EQUIVALENT.read_text(encoding="utf-8")) or []
    bare = [row for row in rows if not row.get("reason")]
    assert not bare, f"{EQUIVALENT.name}: no reason is given for {bare[0]}"
    return {(row["file"], row["function"], _one_line(row["before"]), _one_line(row["after"])) for row in rows}


def _sample(paths: Sequence[Path], options: argparse.Namespace) -> tuple[list[Mutant], int]:
    """Return the mutants of a subject that are judged, all or a seeded choice, and the number of those there are."""
    left_out = _equivalent()
    able = [
        mutant
        for path in paths
        for mutant in mutants(path)
        if (
            str(path.relative_to(SOURCE)),
            mutant.function,
            _one_line(mutant.before),
            _one_line(mutant.after),
        )
        not in left_out
    ]
    if not options.all:
        random.Random(options.seed).shuffle(able)
    chosen = list(islice(filter(_changes_code, able), None if options.all else options.sample))
    return sorted(chosen, key=lambda each: (each.path, each.begin)), len(able)


def main() -> int:
    """Judge the mutants that the command line names."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("subjects", nargs="*", metavar="SUBJECT", help=f"of {', '.join(SUBJECTS)}; all of them if none")
    parser.add_argument("--all", action="store_true", help="every mutant, not a sample")
    parser.add_argument("--sample", type=int, default=80, help="mutants of a subject that are judged (80)")
    parser.add_argument("--seed", type=int, default=1, help="of the sample")
    options = parser.parse_args()
    options.subjects = options.subjects or list(SUBJECTS)
    unknown = [name for name in options.subjects if name not in SUBJECTS]
    if unknown:
        parser.error(f"{unknown[0]!r} is no subject; known: {', '.join(SUBJECTS)}")
    begin_s = time.monotonic()
    folder = Path(tempfile.mkdtemp(prefix="hetero-mutation-"))
    run = Run(options, folder)
    try:
        os.chdir(PROJECT)
        arguments = [
            "-q",
            "-s",
            "-p",
            "no:cacheprovider",
            "-m",
            "not slow and not servers",
            f"--basetemp={folder / 'tests'}",
            "--disable-warnings",
        ]
        tests = [f"tests/{name}" for subject in options.subjects for name in SUBJECTS[subject].tests]
        status = pytest.main([*arguments, *dict.fromkeys(tests)], plugins=[run])
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    if run.trouble or not run.rates:
        print(run.trouble or f"pytest ended with {status}", file=sys.stderr)
        return 2
    low = [name for name, (killed, of) in run.rates.items() if killed < LEAST_FRAC * of]
    print(
        f"{time.monotonic() - begin_s:.0f} s; "
        + ", ".join(f"{n} {k / max(1, of):.0%}" for n, (k, of) in run.rates.items())
    )
    if low:
        print(f"under {LEAST_FRAC:.0%}: {', '.join(low)}", file=sys.stderr)
    return 1 if low else 0


if __name__ == "__main__":
    sys.exit(main())
