"""The recipes for clusters can be read by those who shall run them."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
import yaml

from tests.needs import PROJECT

DEPLOY = PROJECT / "deploy"


@pytest.mark.parametrize("script", sorted(DEPLOY.glob("*.sh")), ids=lambda path: path.name)
def test_a_script_has_no_mistake_of_syntax(script: Path) -> None:
    done = subprocess.run(["bash", "-n", str(script)], capture_output=True, text=True, timeout=250, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_the_cluster_file_gives_every_container_the_token_and_no_dashboard() -> None:
    spec = yaml.safe_load((DEPLOY / "kuberay.yaml").read_text(encoding="utf-8"))["spec"]
    groups = [spec["headGroupSpec"], *spec["workerGroupSpecs"]]
    for group in groups:
        (container,) = group["template"]["spec"]["containers"]
        given = {variable["name"]: variable for variable in container["env"]}
        assert given["RAY_AUTH_MODE"]["value"] == "token"
        assert "secretKeyRef" in given["RAY_AUTH_TOKEN"]["valueFrom"]
    assert spec["headGroupSpec"]["rayStartParams"]["include-dashboard"] == "false"


def test_every_recipe_is_told_of_and_uses_options_that_exist() -> None:
    page = (PROJECT / "docs" / "hosts.md").read_text(encoding="utf-8")
    command = (PROJECT / "src" / "hetero" / "cli" / "cluster.py").read_text(encoding="utf-8")
    for path in sorted(DEPLOY.iterdir()):
        assert f"(../deploy/{path.name})" in page
        used = re.findall(r"hetero cluster \w+[^|\n]*", path.read_text(encoding="utf-8"))
        for option in re.findall(r"--([a-z-]+)", " ".join(used)):
            assert f'"--{option}"' in command or re.search(rf"\b{option.replace('-', '_')}: Annotated", command), option
