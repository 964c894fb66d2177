"""The guides of CONTRIBUTING.md hold: the package that they show works from outside, and the kits name the step."""

from __future__ import annotations

import ast
import json
import math
import os
import re
import subprocess
import sys
import tomllib
from dataclasses import replace
from functools import cache
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

from hetero.backends import registry
from hetero.backends.base import Found
from hetero.backends.cpu import CpuBackend
from hetero.cli import doctor
from hetero.model.device import KINDS, Device, DeviceKind, DeviceType
from hetero.model.tasks import Request
from hetero.plan.policies.base import Proposal
from hetero.testing import check_backend, check_policy
from tests.docs.markdown import blocks
from tests.needs import PROJECT

pytestmark = pytest.mark.slow

_PROGRAM = """
import json, sys
import numpy as np
import hetero
from hetero.testing import check_backend, check_policy

check_backend("dpu")
check_policy("dpu_first")

def where(_=0):
    return hetero.get_current_device().id

@hetero.task
def twice(x):
    return 2 * x

@twice.implementation("dpu")
def twice_on_dpu(x):
    return 2 * x, "dpu"

def refused(call):
    try:
        call()
    except hetero.errors.HeteroError as error:
        return str(error)
    return "nothing was refused"

found = {}
with hetero.Context(config="fleet.yaml", trace="run.trace") as ctx:
    found["fleet"] = [(device.id, device.kind, device.type) for device in ctx.devices]
    found["on a type"] = ctx.submit(hetero.task(where, on="DPU")).result()
    found["policy"] = ctx.submit(hetero.task(where)).result()
    found["on an id"] = ctx.submit(hetero.task(where, on="cpu:0")).result()
    found["not on"] = ctx.submit(hetero.task(where, not_on="dpu")).result()
    found["implementation"] = ctx.submit(twice.options(on="dpu"), 4).result()
    found["array"] = ctx.submit(hetero.task(lambda a: a @ a, on="dpu"), np.eye(3)).result().tolist()
    with ctx.lease(on="dpu") as lease:
        found["lease"] = [device.id for device in lease.devices]
    done = ctx.map_batches(lambda part: [2 * one for one in part], list(range(40)), batch={"dpu": 4, "cpu": 4})
    found["batch"] = sum(done.value)
    found["namespace"] = refused(lambda: ctx.submit(hetero.task(lambda: hetero.tasks.namespace(), on="dpu")).result())
with hetero.Context(devices="1xcpu,2xdpu*0.5") as ctx:
    found["line"] = [(device.id, device.throttle_frac) for device in ctx.devices]
found["cores"] = refused(lambda: hetero.Context(devices="dpu/2cores"))
found["typo"] = refused(lambda: hetero.task(where, on="dpuu"))
json.dump(found, sys.stdout)
"""
_FLEET = """devices:
- type: DPU
  id: 1
- type: CPU
  cores: 1
policy: dpu_first
"""


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, str]]:
    """Install the package that CONTRIBUTING.md shows into a folder; return it and the environment that has it."""
    folder = tmp_path_factory.mktemp("outside")
    shown = {block.mark: block.text for block in blocks(PROJECT / "CONTRIBUTING.md") if block.mark}
    project = tomllib.loads(shown["pyproject.toml"])["project"]
    for name in ("acme_dpu.py", "acme_policy.py"):
        (folder / name).write_text(shown[name], encoding="utf-8")
    info = folder / f"acme_dpu-{project['version']}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n")
    groups = project["entry-points"].items()
    lines = [f"[{group}]\n" + "".join(f"{name} = {what}\n" for name, what in given.items()) for group, given in groups]
    (info / "entry_points.txt").write_text("\n".join(lines))
    (folder / "fleet.yaml").write_text(_FLEET)
    (folder / "program.py").write_text(_PROGRAM)
    paths = [str(folder), str(PROJECT / "src"), os.environ.get("PYTHONPATH", "")]
    env = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, paths)), "HETERO_HOME": str(folder / "home")}
    return folder, env


def _run(package: tuple[Path, dict[str, str]], *command: str) -> str:
    folder, env = package
    done = subprocess.run(
        [sys.executable, *command], cwd=folder, env=env, capture_output=True, text=True, timeout=250, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def test_a_device_kind_and_a_policy_of_another_package_work_without_a_change_in_hetero(
    package: tuple[Path, dict[str, str]],
) -> None:
    found = json.loads(_run(package, "program.py"))
    assert found["fleet"] == [["h0/dpu:1", "dpu", "DPU"], ["h0/cpu:0", "cpu", "CPU"]]
    assert found["policy"] == found["on a type"] == "h0/dpu:1"
    assert found["on an id"] == found["not on"] == "h0/cpu:0"
    assert found["implementation"] == [8, "dpu"]
    assert found["array"] == np.eye(3).tolist()
    assert found["lease"] == ["h0/dpu:1"]
    assert found["batch"] == 2 * sum(range(40))
    assert found["line"] == [["h0/cpu:0", 1.0], ["h0/dpu:0", 0.5], ["h0/dpu:1", 0.5]]
    assert "h0/dpu:1 has no array namespace" in found["namespace"]
    assert "'dpu' is none" in found["cores"]
    assert "did you mean 'dpu'" in found["typo"]


def test_the_commands_know_a_device_kind_of_another_package(package: tuple[Path, dict[str, str]]) -> None:
    devices = json.loads(_run(package, "-m", "hetero", "devices", "--devices", "1xdpu", "--probe", "--json"))["devices"]
    (dpu,) = devices
    assert (dpu["kind"], dpu["type"], dpu["status"]) == ("dpu", "DPU", "ready")
    assert dpu["flop_per_s"] > 0
    assert dpu["bytes_per_s"] > 0
    findings = json.loads(_run(package, "-m", "hetero", "doctor", "--json"))["findings"]
    others = {(one["name"], one["state"]) for one in findings if one["group"] == "Other packages"}
    assert others == {("dpu", "ok"), ("dpu_first", "ok")}
    assert "type: dpu" in _run(package, "-m", "hetero", "config", "check", "fleet.yaml")


@pytest.mark.slow
def test_training_takes_a_device_kind_of_another_package_that_torch_computes_on(
    package: tuple[Path, dict[str, str]],
) -> None:
    (package[0] / "trains.py").write_text(
        "import torch, hetero\n"
        "from hetero.train.trainer import Trainer\n"
        "data = torch.utils.data.TensorDataset(torch.randn(64, 4), torch.randn(64, 1))\n"
        "model = torch.nn.Linear(4, 1)\n"
        "optimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n"
        "trainer = Trainer(model, torch.nn.MSELoss(), optimizer, data, global_batch=16, devices='1xcpu,1xdpu')\n"
        "print(trainer.fit()[0].shares)\n"
    )
    assert "dpu:0" in _run(package, "trains.py")


class _Dpu(CpuBackend):
    name: ClassVar[str] = "dpu"
    kinds: ClassVar[Any] = (DeviceKind("dpu", type="DPU", shares_memory=True),)
    labels: ClassVar[tuple[str, ...]] = ("dpu",)
    device_: ClassVar[Device] = Device(
        "h0/dpu:0", "dpu", DeviceType("DPU"), "dpu", name="DPU", silicon=("h0/dpu0",), cores=1
    )

    @classmethod
    def _probe(cls) -> list[Found]:
        return [Found(cls.device_, cls.name)]


class _NoWord(_Dpu):
    kinds: ClassVar[Any] = (DeviceKind("My DPU"),)


class _OddTorch(_Dpu):
    kinds: ClassVar[Any] = (DeviceKind("dpu", torch="dpu:{number}"),)


class _NoKinds(_Dpu):
    kinds: ClassVar[Any] = ()


class _Upper(_Dpu):
    kinds: ClassVar[Any] = (DeviceKind("DPU", type="DPU"),)


class _OwnCpu(_Dpu):
    kinds: ClassVar[Any] = (DeviceKind("cpu", type="CHIP", runs_python=False),)


class _OwnCuda(_Dpu):
    kinds: ClassVar[Any] = ("dpu", DeviceKind("cuda", torch="cuda:{index}", collectives="nccl"))


class _Second(_Dpu):
    name: ClassVar[str] = "second"
    kinds: ClassVar[Any] = (DeviceKind("dpu", type="DPU"),)


class _ByName(_Dpu):
    name: ClassVar[str] = "by_name"
    kinds: ClassVar[Any] = ("dpu", "cuda", KINDS["cpu"])


class _OtherKind(_Dpu):
    device_: ClassVar[Device] = replace(_Dpu.device_, kind="dqu")


class _Nameless(_Dpu):
    device_: ClassVar[Device] = replace(_Dpu.device_, name="")


class _Shares(_Dpu):
    kinds: ClassVar[Any] = (DeviceKind("dpu"),)


class _Closes(_Dpu):
    def _close(self) -> None:
        raise OSError("the driver is gone")


class _Raises(_Dpu):
    @classmethod
    def _probe(cls) -> Any:
        raise RuntimeError("boom")


class _Absent(_Dpu):
    @classmethod
    def _probe(cls) -> Any:
        return [Found(None, "dpu", "no DPU answers", "plug one in")]


class _NoRates(_Dpu):
    def _product(self, n: int) -> Any:
        return lambda: object() @ object()  # type: ignore[operator]


@pytest.mark.parametrize(
    ("backend", "sentence"),
    [
        (_NoWord, "step 3 (name, kinds, labels): dpu: kind 'My DPU' is no word in lower case"),
        (_OddTorch, "step 3 (name, kinds, labels): dpu: torch='dpu:{number}' of dpu is not like 'cuda:{index}'"),
        (_NoKinds, "step 3 (name, kinds, labels): dpu: kinds is a tuple of at least one"),
        (_Upper, "dpu: kind 'DPU' is no word in lower case"),
        (_OwnCpu, "dpu: it declares kind 'cpu' anew with type='CHIP', there 'CPU': hetero declares this kind; write"),
        (_OwnCuda, "dpu: it declares kind 'cuda' anew with float64=False, there True: hetero declares this kind"),
        (_OtherKind, "step 2 (_probe): h0/dpu:0: 'dqu' is not in kinds of dpu: dpu"),
        (_Nameless, "step 2 (_probe): h0/dpu:0: a device has a name"),
        (_Shares, "step 3 (the underscore methods): h0/dpu:0: a copy changes with the host's array"),
        (_Closes, "step 3 (the underscore methods): OSError: the driver is gone"),
        (_NoRates, "write _product and _stream, or arrays with @ and +"),
        (_Raises, "step 2 (_probe): RuntimeError: boom"),
        (_Absent, "step 2 (_probe): dpu: nothing was checked, no sound device was found: no DPU answers; give allow"),
        ("dppu", "step 4 (register it): BadValueError: 'dppu' is no back end"),
    ],
)
def test_the_kit_of_back_ends_names_the_step_of_the_guide(backend: Any, sentence: str) -> None:
    check_backend(_Dpu)
    with pytest.raises(AssertionError) as caught:
        check_backend(backend)
    assert sentence in str(caught.value)


def test_the_kit_passes_an_absent_device_where_that_is_allowed_and_a_probe_that_raises_never() -> None:
    check_backend(_Absent, allow_absent=True)
    with pytest.raises(AssertionError, match="boom"):
        check_backend(_Raises, allow_absent=True)


@pytest.mark.parametrize(
    ("classes", "why"),
    [
        (["_Dpu"], ""),
        (["_Dpu", "_ByName"], ""),
        (["_ByName", "_Dpu"], ""),
        (["_NoKinds"], "kinds is a tuple of at least one"),
        (["_Upper"], "kind 'DPU' is no word in lower case"),
        (["_OwnCpu"], "hetero declares this kind; write kinds = ('cpu',) to use it as it is, or take another name"),
        (["_Dpu", "_Second"], "with shares_memory=False, there True: back end 'dpu' declares this kind"),
    ],
)
def test_a_back_end_whose_kinds_are_wrong_is_refused_by_name_in_the_registry_and_in_doctor(
    monkeypatch: pytest.MonkeyPatch, classes: list[str], why: str
) -> None:
    points = tuple(EntryPoint(globals()[one].name, f"{__name__}:{one}", registry.GROUP) for one in classes)
    monkeypatch.setattr(registry, "loaded", cache(registry.loaded.__wrapped__))
    monkeypatch.setattr(registry, "kinds", cache(registry.kinds.__wrapped__))
    monkeypatch.setattr(registry, "entry_points", lambda group: points)
    monkeypatch.setattr("importlib.metadata.entry_points", lambda group: points if group == registry.GROUP else ())
    *sound, last = tuple(doctor._extensions())
    assert [one.state for one in sound] == ["ok"] * (len(classes) - 1)
    assert (last.state, why in last.found) == ("missing" if why else "ok", True)
    assert [why in found.reason and found.backend == last.name for found in registry.broken()] == [True] * bool(why)
    assert registry.kinds()["cpu"].type == "CPU"
    assert "dpu" not in registry.kinds() or registry.kinds()["dpu"] == _Dpu.kinds[0]


class _First:
    name = "first"

    def propose(self, view: Any, ready: Any, memory: Any) -> Any:
        return [Proposal(task.id, 0) for task in ready], memory


class _Silent(_First):
    def propose(self, view: Any, ready: Any, memory: Any) -> Any:
        return [], memory


class _Unnamed(_First):
    name = ""


@pytest.mark.parametrize(
    ("policy", "sentence"),
    [
        ("furst", "step 4 (register it): BadValueError: no policy is named 'furst'"),
        (_Unnamed(), "step 1 (name, propose): _Unnamed has no name"),
        (_First(), "step 2 (pure, and as declared): first proposed task"),
        (_Silent(), "step 3 (work on the columns): first never proposed"),
    ],
)
def test_the_kit_of_policies_names_the_step_of_the_guide(policy: Any, sentence: str) -> None:
    with pytest.raises(AssertionError) as caught:
        check_policy(policy)
    assert sentence in str(caught.value)


def test_a_kind_that_takes_kernels_is_shown_to_the_core_by_the_device_that_the_base_completes() -> None:
    from hetero.core.obstacles import obstacle

    class Kernels(_Dpu):
        kinds: ClassVar[Any] = (DeviceKind("dpu", runs_python=False),)

    (found,) = Kernels.probe()
    assert found.device is not None
    assert not found.device.runs_python
    assert obstacle(found.device, Request(), None) == "the task has no kernel for it"
    assert obstacle(found.device, Request(implemented=("plain Python", "dpu")), None) == ""
    assert "plain Python, cuda only" in obstacle(found.device, Request(implemented=("plain Python", "cuda")), None)
    (python,) = _Dpu.probe()
    assert python.device is not None
    assert obstacle(python.device, Request(implemented=("plain Python", "cuda")), None) == ""


class _Cores(_Dpu):
    kinds: ClassVar[Any] = (DeviceKind("dpu", type="DPU", is_host=True),)
    device_: ClassVar[Device] = replace(_Dpu.device_, cores=2, memory_bytes=1 << 30)


def test_a_kind_of_another_package_that_computes_on_the_host_is_treated_as_one() -> None:
    from hetero.splitting.measure import limit_bytes

    (found,) = _Cores.probe()
    assert found.device is not None
    assert (found.device.is_host, found.device.model_key) == (True, "dpu/DPUx2")
    assert limit_bytes(found.device) == math.inf
    (other,) = _Dpu.probe()
    assert other.device is not None
    assert (other.device.is_host, other.device.model_key) == (False, "dpu/DPU")
    assert limit_bytes(replace(other.device, memory_bytes=1 << 30)) == 1 << 30


def test_no_file_compares_the_kind_of_a_device_with_that_of_cpus() -> None:
    compared = re.compile(r"""(kind|word)\s*(==|!=)\s*["'](cpu|mps)["']|is_cpu""")
    found = {path.name for path in (PROJECT / "src").rglob("*.py") if compared.search(path.read_text(encoding="utf-8"))}
    assert found == {"registry.py", "values.py"}, "ask DeviceKind; the registry words kinds, the catalog knows Metal"


def test_every_built_in_back_end_finds_kinds_that_stand_in_the_one_table() -> None:
    for name in registry.names():
        assert set(registry.load(name).declared_kinds()) <= set(KINDS), name


_LISTS_OF_OTHERS = {
    "advise/llm.py": "what engines of language models run on",
    "advise/llm_words.py": "what llama.cpp calls its back ends",
    "backends/gpus.py": "the libraries of two drivers",
    "backends/jax.py": "what JAX finds",
    "backends/registry.py": "the built-in back ends",
    "backends/torch.py": "what torch finds",
    "batch/functions.py": "what ONNX Runtime calls its providers",
    "cli/doctor.py": "the extras of hetero's own package",
    "model/device.py": "broad types",
    "train/frameworks/lightning_strategies.py": "what Lightning calls its accelerators",
    "train/reduction_groups.py": "sums in two languages",
}


def _words(node: ast.AST) -> set[str]:
    listed = node.keys if isinstance(node, ast.Dict) else getattr(node, "elts", [])
    return {str(one.value) for one in listed if isinstance(one, ast.Constant)}


def test_no_other_file_lists_the_kinds_of_devices() -> None:
    """A list of two kinds or more is one that a kind of another package is missing from."""
    accelerators = set(KINDS) - {"cpu", "null"}
    lists = []
    for path in sorted((PROJECT / "src" / "hetero").rglob("*.py")):
        name = path.relative_to(PROJECT / "src" / "hetero").as_posix()
        text = path.read_text(encoding="utf-8")
        if sum(f'"{kind}"' in text for kind in accelerators) < 2:
            continue
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Tuple | ast.List | ast.Set | ast.Dict) and len(_words(node) & accelerators) > 1:
                lists.append((name, getattr(node, "lineno", 0)))
    assert [place for place in lists if place[0] not in _LISTS_OF_OTHERS] == []
