"""`make mutation`: small changes of the code that decides, each of which some pure test must notice.

In: the files and tests of `SUBJECTS`. Out: the kill rate of each subject and the mutants that survived.
It must not write to a source file: a mutant is compiled in a fork, whose functions get its code.

Notes
-----
mutmut's mutators say what is changed. Its own runner works here, and needs 0.2 s of processor time and more for each of
475 mutants of a file of 350 lines: far from five minutes for all subjects. cosmic-ray starts a process for each. Here a
mutant is compiled in a fork of one process that has collected all tests, and run against the tests that execute its
line, until one fails. What runs out of time or memory is killed too. Texts are left alone:
`tests/golden` compares messages.
"""

from __future__ import annotations

import argparse
import contextlib
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
from pathlib import Path
from types import CodeType, FunctionType
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

SUBJECTS: dict[str, Subject] = {
    "core": Subject(
        ("core/*.py",),
        (*(f"pure/test_{name}.py" for name in _CORE_TESTS), *(f"sim/test_{name}.py" for name in _SIM_TESTS)),
    ),
    "policies": Subject(
        ("plan/policies/*.py",), ("pure/test_policies.py", "pure/test_policy_rules.py", "sim/test_decisions.py")
    ),
    "shares": Subject(
        ("plan/training/shares.py", "train/share_planner.py"), ("pure/test_shares.py", "pure/test_share_planner.py")
    ),
    "committing": Subject(("batch/committing.py", "batch/sinks.py"), ("pure/test_batch_committing.py",)),
    "checkpoints": Subject(("stores/checkpoints.py", "train/checkpoints.py"), ("pure/test_checkpoints.py",)),
    "gradients": Subject(("train/gradients.py",), ("pure/test_buckets.py", "pure/test_gradients.py")),
    "local engine": Subject(
        ("engines/shared/in_flight.py", "engines/shared/items.py", "engines/shared/memory_pool.py"),
        ("pure/test_pool.py", "pure/test_output_leases.py", "pure/test_exactly_once.py"),
    ),
}

_SECONDS_OF_TESTS = 4.0
"""Processor time of tests for one mutant, as measured while their lines are noted; the quickest tests come first."""
_SLOWEST_TEST_S = 2.0
"""A test that takes more judges no mutant."""
_DEADLINE_S = 60.0
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
    """Return every change of a file that changes what it compiles to, in the order of the text."""
    source = path.read_text(encoding="utf-8")
    wrapper = MetadataWrapper(cst.parse_module(source))
    visitor = _Visitor(path, source, wrapper.module)
    wrapper.visit(visitor)
    plain = compile(source, str(path), "exec")
    found = []
    for mutant in dict.fromkeys(visitor.found):
        with contextlib.suppress(SyntaxError):
            if _codes(compile(mutant.applied(source), str(path), "exec")) != _codes(plain):
                found.append(mutant)
    return found


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


def _cover(item: pytest.Item, paths: Sequence[Path], out: Path) -> int:
    """Write down whether one test passes, its processor time and the lines that it executes; to be called in a fork."""
    import coverage

    _limited(_SLOWEST_TEST_S)
    cover = coverage.Coverage(data_file=None, include=[str(path) for path in paths], config_file=False)
    cover.start()
    begin_s = time.process_time()
    passed = _run(item, None)
    seconds = time.process_time() - begin_s
    cover.stop()
    data = cover.get_data()
    out.write_bytes(pickle.dumps((passed, seconds, {path: data.lines(path) for path in data.measured_files()})))
    return 0


# --- forks ---------------------------------------------------------------------------------------------------


class Forks:
    """Runs functions in forks, two at a time."""

    def __init__(self, most: int = 2) -> None:
        self._most = most
        self._running: dict[int, tuple[Any, float]] = {}
        self.ends: dict[Any, int] = {}

    def start(self, key: Any, function: Any, *args: Any) -> None:
        """Run a function in a fork as soon as there is room; its number is the exit status."""
        while len(self._running) >= self._most:
            self._reap()
        sys.stdout.flush()
        pid = os.fork()
        if not pid:
            self._live(function, args)
        self._running[pid] = (key, time.monotonic() + _DEADLINE_S)

    def _live(self, function: Any, args: Any) -> None:
        status = 99
        try:
            os.setsid()
            with open(os.devnull, "r+b") as nothing:
                for stream in (0, 1, 2):
                    os.dup2(nothing.fileno(), stream)
            status = int(function(*args))
        except BaseException:  # noqa: BLE001  whatever a mutant raises, the fork ends here
            status = 98
        finally:
            os._exit(status)

    def _reap(self) -> None:
        for pid, (key, end_s) in list(self._running.items()):
            done, status = os.waitpid(pid, os.WNOHANG)
            if not done and time.monotonic() > end_s:
                os.killpg(pid, signal.SIGKILL)
                done, status = os.waitpid(pid, 0)
            if done:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(pid, signal.SIGKILL)  # whatever a mutant's test left behind
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
    whole = int(seconds) + 2
    resource.setrlimit(resource.RLIMIT_CPU, (whole, whole))
    resource.setrlimit(resource.RLIMIT_DATA, (_MEMORY_BYTES, _MEMORY_BYTES))


def _killed(mutant: Mutant, live: Sequence[FunctionType], items: Sequence[pytest.Item], seconds: float) -> bool:
    """Return whether a test fails with the change; to be called in a fork."""
    _limited(5 * seconds)
    _apply(mutant, live)
    pairs = zip(items, [*items[1:], items[-1]], strict=True)
    return any(not _run(item, following) for item, following in pairs)


def _apply(mutant: Mutant, live: Sequence[FunctionType]) -> None:
    """Put the changed code into the functions that are there."""
    source = mutant.path.read_text(encoding="utf-8")
    changed = compile(mutant.applied(source), str(mutant.path), "exec")
    before, after = _codes(compile(source, str(mutant.path), "exec")), _codes(changed)
    new = {_name(code): after[key] for key, code in before.items() if code != after.get(key, code)}
    for function in live:
        if _name(function.__code__) in new:
            function.__code__ = new[_name(function.__code__)]
    if not mutant.function:
        _set_constants(mutant.path, changed)


def _name(code: CodeType) -> tuple[str, int]:
    return code.co_qualname, code.co_firstlineno


def _set_constants(path: Path, changed: CodeType) -> None:
    """Set a constant of a module to its changed value wherever it was imported to."""
    home = next(module for module in sys.modules.values() if getattr(module, "__file__", None) == str(path))
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
        forks, found = Forks(), Covered({}, defaultdict(set), [])
        for number, item in enumerate(items):
            forks.start(number, _cover, item, paths, self.folder / f"covered-{number}")
        for number, end in forks.finish().items():
            if end:  # too slow
                continue
            passed, found.seconds[number], lines = pickle.loads((self.folder / f"covered-{number}").read_bytes())
            if not passed:
                found.failed.append(items[number].nodeid)
            for path, executed in lines.items():
                for line in executed if found.seconds[number] <= _SLOWEST_TEST_S else ():
                    found.tests[path, line].add(number)
        return found

    def _judge(self, name: str, paths: Sequence[Path], items: Sequence[pytest.Item], covered: Covered) -> None:
        chosen = [mutant for path in paths for mutant in _sample(path, self.options)]
        forks = Forks()
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
        killed, of = self.rates[name]
        print(f"{name}: {killed} of {of} mutants killed, {killed / max(1, of):.1%}", flush=True)


def _chosen(mutant: Mutant, covered: Covered) -> list[int]:
    """Return the tests that execute a mutant's line: the quickest for half of the time, then those that do most."""
    if mutant.function:
        able: Iterable[int] = covered.tests.get((str(mutant.path), mutant.line), ())
    else:
        able = set().union(*(tests for (path, _), tests in covered.tests.items() if path == str(mutant.path)))
    seconds = covered.seconds
    quickest = sorted(able, key=lambda each: (seconds[each], each))
    chosen = dict.fromkeys(quickest[:1])
    for limit_s, numbers in ((_SECONDS_OF_TESTS / 2, quickest), (_SECONDS_OF_TESTS, quickest[::-1])):
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


def _sample(path: Path, options: argparse.Namespace) -> list[Mutant]:
    """Return the mutants of a file that are judged: all, or a seeded choice."""
    left_out = _equivalent()
    name = str(path.relative_to(SOURCE))
    able = [
        mutant
        for mutant in mutants(path)
        if (name, mutant.function, _one_line(mutant.before), _one_line(mutant.after)) not in left_out
    ]
    if options.all or len(able) <= options.per_file:
        return able
    return sorted(random.Random(f"{options.seed} {name}").sample(able, options.per_file), key=lambda each: each.begin)


def main() -> int:
    """Judge the mutants that the command line names."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("subjects", nargs="*", metavar="SUBJECT", help=f"of {', '.join(SUBJECTS)}; all of them if none")
    parser.add_argument("--all", action="store_true", help="every mutant, not a sample")
    parser.add_argument("--per-file", type=int, default=25, help="mutants of a file that are judged (25)")
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
