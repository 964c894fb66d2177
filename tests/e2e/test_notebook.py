"""A notebook as people write them: functions of cells, redefinition, await, an interrupted kernel, shown Contexts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError

from tests.e2e.test_public_face import CPU_ONLY, PROGRAM

CELLS = {
    "open": "import hetero, time, numpy as np, os, signal, threading\nctx = hetero.Context(devices='2xcpu')\nctx",
    "define": "def f(x):\n    return x + 1\nctx.run(f, 1)",
    "redefine": "def f(x):\n    return x + 100\nctx.run(f, 1)",
    "global": "n = 5\n@hetero.task\ndef g(x):\n    return f(x) + n\nctx.run(g, 0)",
    "other global": "n = 6\nctx.run(g, 0)",
    "helper": "def f(x):\n    return -x\nctx.run(g, 0)",
    "class": (
        "class Point:\n    def __init__(self, x):\n        self.x = x\nctx.run(lambda p: Point(p.x + 1), Point(1)).x"
    ),
    "await": "await ctx.submit(f, 3), await ctx.agather([ctx.submit(f, i) for i in range(3)])",
    "map": "list(ctx.map(f, range(4)))",
    "interrupt": (
        "going = ctx.submit(lambda: time.sleep(1) or 'went on')\n"
        "threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()\n"
        "try:\n    going.result()\nexcept KeyboardInterrupt:\n    print('interrupted')"
    ),
    "after": "going.result(), ctx.run(f, 1)",
    "future": "ctx.submit(f, 1)",
    "explain": "ctx.explain(f, 1)",
    "close": "ctx.close()\nctx",
}


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(text) for text in CELLS.values()])
    folder = tmp_path_factory.mktemp("notebook")
    executed(notebook, folder)
    return dict(zip(CELLS, [cell.outputs for cell in notebook.cells], strict=True))


def executed(notebook: Any, folder: Path) -> None:
    resources = {"metadata": {"path": str(folder)}}
    NotebookClient(notebook, timeout=250, kernel_name="python3", resources=resources).execute()


def text(outputs: Any) -> str:
    return "".join(
        str(output.get("text") or output.get("data", {}).get("text/plain", "")) for output in outputs
    ).strip()


def html(outputs: Any) -> str:
    return "".join(str(output.get("data", {}).get("text/html", "")) for output in outputs)


@pytest.mark.parametrize(
    ("cell", "expected"),
    [
        ("define", "2"),
        ("redefine", "101"),
        ("global", "105"),
        ("other global", "106"),
        ("helper", "6"),
        ("class", "2"),
        ("await", "(-3, [0, -1, -2])"),
        ("map", "[0, -1, -2, -3]"),
        ("interrupt", "interrupted"),
        ("after", "('went on', -1)"),
    ],
)
def test_a_cell_gives_what_it_should(shown: dict[str, Any], cell: str, expected: str) -> None:
    assert text(shown[cell]) == expected


def test_a_context_a_future_and_an_explanation_show_themselves_as_html(shown: dict[str, Any]) -> None:
    assert "h0/cpu:1" in html(shown["open"])
    assert "<b>" in html(shown["future"])
    assert "<table>" in html(shown["explain"])
    assert "closed" in html(shown["close"])


def test_the_program_of_the_readme_runs_in_a_cell(tmp_path: Path) -> None:
    (tmp_path / "hetero_config.yaml").write_text(CPU_ONLY)
    notebook = nbformat.v4.new_notebook(
        cells=[nbformat.v4.new_code_cell(PROGRAM), nbformat.v4.new_code_cell("result.shape")]
    )
    client = NotebookClient(
        notebook, timeout=250, kernel_name="python3", resources={"metadata": {"path": str(tmp_path)}}
    )
    client.execute()
    assert text(notebook.cells[1].outputs) == "(1024, 1024)"


def test_a_tasks_exception_ends_its_cell_as_itself(tmp_path: Path) -> None:
    cell = "import hetero\nctx = hetero.Context(devices='1xcpu')\nctx.run(lambda: 1 // 0)"
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell)])
    with pytest.raises(CellExecutionError, match="ZeroDivisionError"):
        executed(notebook, tmp_path)
