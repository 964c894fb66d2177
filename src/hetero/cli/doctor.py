"""`hetero doctor`: what is missing on this host, and how to get it; `hetero doctor storage`: what a store keeps.

In: nothing, or the address of a store. Out: findings on the interpreter, packages, drivers and limits of this host,
each with what to do about it, as a table or one JSON document. It imports no framework and opens no device.
"""

from __future__ import annotations

import os
import platform
import re
import shutil
import sys
import tempfile
from collections.abc import Iterable, Iterator
from importlib import metadata
from pathlib import Path
from typing import Annotated, Literal, NamedTuple, TypeAlias

import typer

from hetero.cli.output import console, print_json
from hetero.floor import settings
from hetero.floor.errors import FileError, HistoryError
from hetero.floor.extras import own_version, version_of
from hetero.floor.listening import is_public
from hetero.floor.text import single_line
from hetero.floor.units import format_bytes

__all__ = ["PUBLIC", "Finding", "doctor", "findings", "storage"]

_MARKS = {"ok": ("✓", "green"), "poor": ("!", "yellow"), "missing": ("–", "dim")}


def doctor(json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False) -> None:
    """Show what is missing on this host, and how to get it."""
    found = findings()
    if json:
        print_json({"findings": [finding._asdict() for finding in found]})
    else:
        _print(found)


def storage(
    place: Annotated[str, typer.Argument(metavar="URL", help="s3://bucket/folder, gs://, az://, or a folder.")],
    json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
) -> None:
    """Try what a store keeps: conditional writes, signatures, listings, uploads that die, renames."""
    from hetero.stores.guarantees import probe_storage

    rows = probe_storage(place)
    if json:
        print_json({"storage": place, "guarantees": [row._asdict() for row in rows]})
        return
    states: dict[bool | None, FindingState] = {True: "ok", False: "poor", None: "missing"}
    found = tuple(Finding(place, row.name, states[row.holds], row.seen, row.instead) for row in rows)
    _print_tables(found, max(len(row.name) for row in rows))


def _print(found: tuple[Finding, ...]) -> None:
    _print_tables(found)
    console().print(_summary(found), style="bold")


def _print_tables(found: tuple[Finding, ...], name_width: int = 16) -> None:
    from rich.table import Table
    from rich.text import Text

    out = console()
    for group in dict.fromkeys(finding.group for finding in found):
        table = Table(
            title=group, title_justify="left", title_style="bold", box=None, show_header=False, pad_edge=False
        )
        table.add_column(width=1)
        table.add_column(width=name_width)
        table.add_column(overflow="fold")
        for finding in found:
            if finding.group == group:
                remedy = f"\n→ {single_line(finding.remedy)}" if finding.remedy else ""
                told = Text.assemble(single_line(finding.found), (remedy, "dim"))
                table.add_row(Text(*_MARKS[finding.state]), single_line(finding.name), told)
        out.print(table)
        out.print()


def _summary(found: tuple[Finding, ...]) -> str:
    missing = sum(finding.state == "missing" for finding in found)
    poor = sum(finding.state == "poor" for finding in found)
    if not missing and not poor:
        return "Nothing is missing."
    return f"{missing} missing, {poor} in need of attention. What your program does not use does not matter."


_DISTRIBUTION = "hetero-core"
_EXTRAS_OF_USERS = ("torch", "jax", "opencl", "vulkan", "nvidia", "joblib")
_ROOMY_BYTES = 1_000_000_000
_PAGE = 4096

FindingState: TypeAlias = Literal["ok", "poor", "missing"]
"""What was found: as it should be; works, but will bite; not there."""


class Finding(NamedTuple):
    """One thing that was looked at.

    Attributes
    ----------
    group
        Heading under which it stands.
    name
        What was looked at.
    state
        'ok', 'poor' (works, but will bite) or 'missing'.
    found
        What is there.
    remedy
        What to do, '' where nothing is to be done.
    """

    group: str
    name: str
    state: FindingState
    found: str
    remedy: str = ""


def findings() -> tuple[Finding, ...]:
    """Inspect everything."""
    return (*_python(), *_packages(), *_extensions(), *_drivers(), *_limits(), *_places(), *_network(), *_missed())


def _python() -> Iterator[Finding]:
    yield Finding("Python", "python", "ok", f"{platform.python_version()} ({sys.executable})")
    version, remedy = own_version(), "which packages it can use is not known: pip install -e FOLDER-OF-THE-CHECKOUT"
    installed = version != "unknown"
    told = version if installed else "runs from a source tree that is not installed"
    yield Finding("Python", "hetero", "ok" if installed else "missing", told, "" if installed else remedy)
    compiler = next((path for path in map(shutil.which, ("cc", "gcc", "clang")) if path), "")
    remedy = "" if compiler else "packages that come as source, and torch.compile, need one: apt install gcc"
    yield Finding("Python", "C compiler", "ok" if compiler else "missing", compiler or "none on the PATH", remedy)


def _packages() -> Iterator[Finding]:
    for extra in _EXTRAS_OF_USERS:
        for package in _needed_by(extra):
            version = version_of(package)
            remedy = "" if version else f"pip install {package}"
            yield Finding("Packages", package, "ok" if version else "missing", version or "not installed", remedy)


def _needed_by(extra: str) -> Iterable[str]:
    try:
        lines = metadata.requires(_DISTRIBUTION) or ()
    except metadata.PackageNotFoundError:
        return
    for line in lines:
        wanted, _, condition = line.partition(";")
        if re.search(rf"extra == ['\"]{extra}['\"]", condition):
            yield re.split(r"[\s<>=!~\[(]", wanted.strip())[0]


def _extensions() -> Iterator[Finding]:
    """Return the back ends and policies that other packages bring, and what keeps each from being used."""
    from hetero.backends import registry as backends
    from hetero.plan.policies import registry as policies

    group, remedy = "Other packages", "repair or uninstall the package that brings it"
    troubles = {found.reason.partition(": ")[0]: found.reason for found in backends.broken()}
    for entry in metadata.entry_points(group=backends.GROUP):
        why = troubles.get(f"entry point {entry.name!r} = {entry.value!r}", "").partition(": ")[2]
        absent = () if why else backends.load(entry.name).missing()
        found = why or (f"needs {', '.join(absent)}" if absent else f"back end of {entry.value}")
        help_ = backends.load(entry.name).remedy if absent else remedy
        state: FindingState = "missing" if why or absent else "ok"
        yield Finding(group, entry.name, state, found, help_ if state == "missing" else "")
    for entry in metadata.entry_points(group=policies.GROUP):
        why = policies.why_unusable(entry)
        wrong = why or policies.misnamed(policies.get(entry.name), entry.name)
        state = "missing" if why else "poor" if wrong else "ok"
        yield Finding(group, entry.name, state, wrong or f"policy of {entry.value}", remedy if wrong else "")


def _drivers() -> Iterator[Finding]:
    yield _listed(
        "OpenCL drivers", "*.icd", ["/etc/OpenCL/vendors"], "apt install pocl-opencl-icd (any CPU), or the maker's"
    )
    folders = ["/usr/share/vulkan/icd.d", "/etc/vulkan/icd.d"]
    yield _listed("Vulkan drivers", "*.json", folders, "apt install mesa-vulkan-drivers, or the maker's")
    yield _library("NVIDIA driver", "libnvidia-ml.so.1", "only where there is an NVIDIA GPU: install its driver")


def _listed(name: str, pattern: str, folders: list[str], remedy: str) -> Finding:
    found = sorted(path.stem.partition("_icd")[0] for folder in folders for path in Path(folder).glob(pattern))
    if found:
        return Finding("Drivers", name, "ok", ", ".join(found))
    return Finding("Drivers", name, "missing", f"none in {' or '.join(folders)}", remedy)


def _library(name: str, file: str, remedy: str) -> Finding:
    import ctypes

    try:
        ctypes.CDLL(file)
    except OSError:
        return Finding("Drivers", name, "missing", f"no {file}", remedy)
    return Finding("Drivers", name, "ok", file)


def _limits() -> Iterator[Finding]:
    yield Finding("Limits", "CPUs", "ok", _cpus())
    yield Finding("Limits", "memory", "ok", _memory())
    yield _open_files()


def _cpus() -> str:
    usable, all_of_them = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 0, os.cpu_count() or 0
    quota = _cgroup("cpu.max").split()
    share = f", limited to {int(quota[0]) / int(quota[1]):g} by its cgroup" if quota and quota[0].isdigit() else ""
    return f"{usable or all_of_them} of {all_of_them}{share}"


def _memory() -> str:
    import psutil

    limit = _cgroup("memory.max")
    share = f", limited to {format_bytes(int(limit))} by its cgroup" if limit.isdigit() else ""
    memory = psutil.virtual_memory()
    return f"{format_bytes(memory.total)}, {format_bytes(memory.available)} available{share}"


def _cgroup(name: str) -> str:
    """Return a limit of this process's cgroup (version 2), '' where there is none."""
    try:
        lines = Path("/proc/self/cgroup").read_text().splitlines()
        path = next(line.partition("::")[2] for line in lines if line.startswith("0::"))
        return (Path("/sys/fs/cgroup") / path.lstrip("/") / name).read_text().strip()
    except (OSError, StopIteration):
        return ""


def _open_files() -> Finding:
    if sys.platform == "win32":
        return Finding("Limits", "open files", "ok", "no limit known on this system")
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    poor = soft < 1024
    remedy = f"ulimit -n {min(hard, 4096)}" if poor else ""
    return Finding("Limits", "open files", "poor" if poor else "ok", f"{soft}, at most {hard}", remedy)


def _places() -> Iterator[Finding]:
    shm = Path("/dev/shm")
    if shm.is_dir():
        yield _place("/dev/shm", shm, "arrays go through a file instead; docker run --shm-size=2g gives more")
    else:
        yield Finding("Places", "/dev/shm", "missing", "no such folder", "arrays go through a file instead")
    yield _place("HETERO_HOME", settings.home(), "set HETERO_HOME to a folder on a disk with room")


def _place(name: str, folder: Path, remedy: str) -> Finding:
    """Inspect a folder that hetero writes to: whether that is possible, which is tried, and how much room it has."""
    nearest = next(place for place in (folder, *folder.parents) if place.exists())
    where = "" if str(folder) == name else f" at {folder}"
    trouble = _why_not_written(nearest)
    if trouble:
        other = "set HETERO_HOME to a folder that you may write to" if where else remedy
        return Finding("Places", name, "missing", f"{folder} cannot be written to: {trouble}", other)
    usage = shutil.disk_usage(nearest)
    poor = usage.free < _ROOMY_BYTES
    found = f"{format_bytes(usage.free)} free of {format_bytes(usage.total)}{where}"
    return Finding("Places", name, "poor" if poor else "ok", found, remedy if poor else "")


def _why_not_written(folder: Path) -> str:
    """Write a small file into a new folder and take both away; return what was in the way, '' for nothing."""
    try:
        with tempfile.TemporaryDirectory(prefix=".hetero-doctor-", dir=folder) as made:
            (Path(made) / "file").write_bytes(bytes(_PAGE))
    except OSError as error:
        return error.strerror or str(error)
    return ""


PUBLIC = (
    "is a public address: members of group tasks and of training listen there without a password; use an address of a "
    "private network, or a firewall that lets in the other hosts only"
)


def _network() -> Iterator[Finding]:
    """Return where the node of this host listens; nothing where there is none."""
    from hetero.engines.ray.node import read_node

    try:
        host = read_node(settings.home() / "node.json").host
    except FileError:
        return
    poor = is_public(host)
    remedy = "hetero cluster stop; hetero cluster start --host an address of a private network" if poor else ""
    found = f"{host} {PUBLIC}" if poor else f"{host}, where members of groups listen"
    yield Finding("Network", "node", "poor" if poor else "ok", found, remedy)


def _missed() -> Iterator[Finding]:
    """Return which packages tasks of earlier runs found missing in the environment of a worker."""
    from hetero.stores.history import FILE, HistoryStore

    group, file = "Packages that tasks missed", settings.home() / FILE
    try:
        found = HistoryStore(file).absences() if file.is_file() else ()
    except HistoryError as error:
        yield Finding(group, FILE, "poor", error.problem, error.remedy)
        return
    for function, python, label, message, day in found:
        where = f"on {label} devices" + (f" of {python}" if python else "")
        remedy = f"install what provides it: {python or sys.executable} -m pip install ...; the next run tries again"
        yield Finding(group, function.rpartition(".")[2], "missing", f"{message}: not run {where} ({day})", remedy)
