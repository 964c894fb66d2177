"""Rewrite the table of claims in benchmarks/README.md from the results; `--check` only says whether it is true.

In: benchmarks/results/*.json. Out: one row a claim. It must not round a missed figure into a met one.
"""

from __future__ import annotations

import ast
import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.common import RESULTS, number

FOLDER = Path(__file__).resolve().parent
BEGIN, END = "<!-- claims -->", "<!-- end of claims -->"
HELPERS = ("__init__", "common", "rivals", "summary", "work")


def _title(file: Path) -> str:
    text = ast.get_docstring(ast.parse(file.read_text(encoding="utf-8"))) or ""
    return text.partition("\n")[0].rstrip(".")


def _rows(file: Path) -> list[str]:
    link = f"[{file.stem}]({file.name})"
    path = RESULTS / f"{file.stem}.json"
    if not path.exists():
        return [f"| {link} | {_title(file)} | | | not measured yet | |"]
    result = json.loads(path.read_text(encoding="utf-8"))
    rows = []
    for claim in result["claims"]:
        value = f"{number(claim['value'])} {claim['unit']}".rstrip()
        aim = f"{claim['aim']}"
        shown = f"**{value}**, {claim['verdict']}" if claim["verdict"] else value
        rows.append(f"| {link} | {claim['what']} | {claim['rival'] or '—'} | {aim} | {shown} | {result['date']} |")
    return rows


def table() -> str:
    """Return the table as Markdown, one row a claim."""
    files = sorted(file for file in FOLDER.glob("*.py") if file.stem not in HELPERS)
    head = ["| file | what is measured | rival | aim | last measured | on |", "|---|---|---|---|---|---|"]
    return "\n".join(head + [row for file in files for row in _rows(file)])


def rewritten(text: str) -> str:
    """Return the README's text with the table of now between its two marks."""
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{table()}\n{END}{after}"


def main() -> int:
    """Rewrite the table, or check it."""
    readme = FOLDER / "README.md"
    text = readme.read_text(encoding="utf-8")
    if "--check" in sys.argv[1:]:
        return int(rewritten(text) != text)
    readme.write_text(rewritten(text), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
