"""Nothing in the project depends on, or tells of, the machine that it was written on."""

from __future__ import annotations

import re
import subprocess

import pytest

from tests.needs import PROJECT

_DEVELOPERS_FOLDER = re.compile(r"(?<![\w./~<-])/(?:root|home/\w+|Users/\w+|work|mnt)/[\w.-]+")
_REGISTRY = re.compile(
    r"(?:https?|file)://[^\s)>\"']*(?:/simple\b|/whl\b|artifactory|nexus|pypi|pythonhosted|/wheels?\b)"
    r"|(?:--(?:extra-)?index-url|--find-links|--trusted-host)[ =]\S*(?:://|\w\.\w)"
)
_SELF = "tests/docs/test_tracked_text.py"


def _tracked() -> list[str]:
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=PROJECT, capture_output=True, text=True, check=False)
    if listed.returncode != 0:
        pytest.skip("this is not a git checkout")
    return [name for name in listed.stdout.split("\0") if name and name != _SELF]


def _hits(pattern: re.Pattern[str]) -> list[str]:
    hits = []
    for name in _tracked():
        path = PROJECT / name
        if not path.is_file():
            continue
        for number, line in enumerate(path.read_text(encoding="utf-8", errors="ignore").splitlines(), 1):
            if found := pattern.search(line):
                hits.append(f"{name}:{number}: {found[0]}")
    return hits


def test_no_tracked_file_names_a_folder_of_a_developers_machine() -> None:
    assert _hits(_DEVELOPERS_FOLDER) == []


def test_no_tracked_file_names_a_package_registry() -> None:
    assert _hits(_REGISTRY) == []


@pytest.mark.parametrize(
    ("pattern", "line"),
    [
        (_DEVELOPERS_FOLDER, "cd /home/someone/hetero && make"),
        (_DEVELOPERS_FOLDER, "path = '/root/.cache'"),
        (_REGISTRY, "pip install torch --index-url https://packages.example.org/simple"),
        (_REGISTRY, "see https://packages.example.org/whl/cpu"),
    ],
)
def test_the_patterns_find_what_they_are_for(pattern: re.Pattern[str], line: str) -> None:
    assert pattern.search(line)
