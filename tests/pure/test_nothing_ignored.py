"""What a user writes is used or refused by name: a table of words that would otherwise be taken in silence."""

from __future__ import annotations

import logging
from dataclasses import fields, is_dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

import hetero
from hetero.advise.match import MatchLimits
from hetero.batch.options import BatchLimits, BatchOptions
from hetero.errors import BadValueError, ConfigError, HeteroError
from hetero.floor import settings
from hetero.model.workload import Sharding
from hetero.session import config
from hetero.session.options import ContextOptions, lent_or_opened
from hetero.train.values import CheckpointOptions, DataOptions, TrainOptions


def f(x: int) -> int:
    return x + 1


class Handed:
    """What looks like the future of a task."""

    task_id = 3


def refused(call: Any, *words: str) -> None:
    with pytest.raises(HeteroError) as caught:
        call()
    message = str(caught.value)
    assert "\n" not in message
    assert [word for word in words if word not in message] == []


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"on": "cpu:+1"}, ["'cpu:+1'", "'cpu:1'"]),
        ({"on": "cpu: 1"}, ["without sign or leading zeros"]),
        ({"on": "cpu:01"}, ["without sign or leading zeros"]),
        ({"on": "cpu:\uff11"}, ["fits no device"]),
        ({"not_on": "cpu:x"}, ["not_on='cpu:x'", "fits no device"]),
        ({"not_on": "h0/cpu"}, ["kind:index"]),
        ({"not_on": "cudda"}, ["did you mean 'cuda'?"]),
        ({"on": []}, ["names no device", "leave on= out"]),
        ({"on": {"gpu": 1}}, ["a word or a list"]),
        ({"on": b"cpu"}, ["b'cpu'"]),
        ({"near": ""}, ["says not to what"]),
        ({"near": "host"}, ["near=('host', future)"]),
        ({"apart": "link:nvlink"}, ["apart=('link:nvlink', future)"]),
        ({"near": ("link:nvlnk", Handed())}, ["did you mean 'nvlink'?", "link:pcie"]),
        ({"apart": ("link:", Handed())}, ["names no kind of link"]),
        ({"near": [" w"]}, ["without blanks"]),
        ({"near": {Handed()}}, ["or a list of them"]),
        ({"workload": " night"}, ["workload=' night'", "without blanks"]),
        ({"workload": "a\x1b[2J"}, ["workload="]),
        ({"name": 3}, ["name=3"]),
        ({"name": ""}, ["function's own name"]),
    ],
)
def test_an_option_of_a_task_that_could_not_be_honoured_is_refused(options: dict[str, Any], words: list[str]) -> None:
    refused(lambda: hetero.task(f, **options), *words)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"not_on": "bogus"}, ["not_on='bogus' names no kind", "known: cpu, cuda"]),
        ({"not_on": ["torch-cp"]}, ["did you mean 'torch-cpu'?"]),
        ({"not_on": "cdua:1"}, ["'cdua:1'", "did you mean 'cuda'?"]),
        ({"not_on": "h0/cdua:1"}, ["did you mean 'cuda'?"]),
        ({"on": ["cpu", "bogus"]}, ["on='bogus'", "known: cpu"]),
    ],
)
def test_a_word_that_names_no_device_is_refused_where_a_task_is_handed_in(
    options: dict[str, Any], words: list[str]
) -> None:
    with hetero.Context(devices="1xcpu", engine="inline", history=False) as ctx:
        refused(lambda: ctx.submit(hetero.task(f, **options), 1), *words)
        assert ctx.run(hetero.task(f, not_on=["vulkan", "torch-cpu", "torch", "cuda:7", "h1/cuda:0"]), 1) == 2


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"not_on": "bogus"}, ["not_on='bogus' names no kind"]),
        ({"on": "nul"}, ["did you mean 'null'?"]),
        ({"count": 1.5}, ["count=1.5", "whole number"]),
        ({"exclusive": "no"}, ["exclusive='no'", "True or False"]),
        ({"workload": 3}, ["workload=3"]),
        ({"apart": ["x", 3]}, ["apart=3"]),
        ({"priority": "high"}, ["priority='high'"]),
    ],
)
def test_an_option_of_a_lease_that_could_not_be_honoured_is_refused(options: dict[str, Any], words: list[str]) -> None:
    pool = hetero.cluster.Pool("2xnull")
    refused(lambda: pool.lease(**options), *words)
    pool.lease(not_on="cuda", count=1).release()


@pytest.mark.parametrize(
    ("devices", "words"),
    [
        ("cpu:01", ["'01' is no index", "kind:1"]),
        ("cpu:+1", ["'+1' is no index"]),
        ("cpu: 1", ["'cpu: 1' is no entry of a fleet"]),
        ("cpu:\uff11", ["is no index"]),
        ("02xcpu", ["asks for '02'"]),
        ("\uff12xcpu", ["asks for '\uff12'"]),
        ("2xcpu/04cores", ["asks for '04'"]),
        ("cpu*0.5_0", ["throttles to '0.5_0'"]),
        ("cpu*.", ["throttles to '.'"]),
        ("cuda/4cores", ["cores=4 is for devices on the CPU", "leave the cores out"]),
        (2, ["2 is no fleet", "'2xcpu' for 2 devices", "list of such texts", "list of dicts"]),
        (True, ["True is no fleet", "2xcpu,cuda:0"]),
        ({"cpu": 2}, ["is no fleet", "list of dicts"]),
        (["cpu", {"type": "cpu"}], ["'cpu' is no device", "list of dicts"]),
        ([{"type": "gpu", "cores": 2}], ["devices.0.cores", "leave the cores out for gpu"]),
        ([{"type": "opencl", "cores": 2, "optional": True}], ["is for devices on the CPU"]),
        ([{"type": "null", "isolation": "process"}], ["no effect on null devices", "leave isolation out"]),
        ([{"type": "null", "python": "python3"}], ["no effect on null devices"]),
        ([{"type": "null", "id": "cpu:0"}], ["null:0"]),
        ([{"type": "null", "id": "01"}], ["null:0"]),
        ([{"type": "cpu", "python": "python3", "isolation": "thread"}], ["no effect on a worker that is a thread"]),
    ],
)
def test_a_fleet_that_would_be_read_as_another_is_refused(devices: Any, words: list[str]) -> None:
    def open_it() -> None:
        hetero.Context(devices=devices, engine="inline", history=False).close()

    with pytest.raises((ConfigError, BadValueError)) as caught:
        open_it()
    message = str(caught.value)
    assert [word for word in words if word not in message] == []


def test_a_fleet_of_texts_is_a_tuple_or_a_list() -> None:
    assert config.load(devices=("cpu", "1xcpu*1e-1")).spec == "cpu,1xcpu*1e-1"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"initargs": (1,)}, ["initargs=(1,)", "without initializer="]),
        ({"initargs": 1, "initializer": print}, ["initargs=1", "give a tuple"]),
        ({"initializer": 1}, ["initializer=1 is not allowed", "give a function"]),
        ({"history": "no"}, ["history='no'", "True or False"]),
        ({"progress": "no"}, ["progress='no'", "True or False"]),
    ],
)
def test_an_argument_of_a_context_without_effect_is_refused(options: dict[str, Any], words: list[str]) -> None:
    refused(lambda: hetero.Context(devices="1xcpu", engine="inline", **options), *words)


def public_options() -> list[type]:
    """Return every class of options that users can reach."""
    spaces = [import_module(f"hetero.{space}") for space in hetero._NAMESPACES]
    found = {
        made
        for made in (getattr(space, name) for space in spaces for name in space.__all__)
        if isinstance(made, type) and is_dataclass(made) and made.__name__.endswith(("Options", "Limits"))
    }
    return sorted({*found, MatchLimits}, key=lambda made: made.__name__)


def test_every_field_of_every_options_class_refuses_what_its_annotation_does_not_allow() -> None:
    needed = {"TrainOptions": {"global_batch": 8}, "CheckpointOptions": {"folder": "runs"}}
    assert [made.__name__ for made in public_options()] == [
        "BatchLimits", "BatchOptions", "CheckpointOptions", "ContextOptions", "DataOptions", "MatchLimits",
        "TrainOptions",
    ]  # fmt: skip
    for made in public_options():
        usual = needed.get(made.__name__, {})
        made(**usual)
        for each in fields(made):
            if (made.__name__, each.name) == ("ContextOptions", "config"):
                continue  # read and checked as the Context is opened
            with pytest.raises(BadValueError, match=rf"^{each.name}=<tests.* is not allowed; give "):
                made(**{**usual, each.name: Handed()})


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: BatchLimits(watts=3), ["watts=3", "give a dict from texts to numbers or None"]),
        (lambda: BatchOptions(cost=5), ["cost=5", "a function"]),
        (lambda: BatchOptions(part=True), ["part=True", "a whole number"]),
        (lambda: TrainOptions(8, recompute=7), ["recompute=7", "a text or a list of texts"]),
        (lambda: TrainOptions(8, recompute=["a", 7]), ["recompute=['a', 7]"]),
        (lambda: TrainOptions(8, shares={"cpu:0": "3"}), ["shares={'cpu:0': '3'}", "to whole numbers"]),
        (lambda: TrainOptions(8, shares={0: 3}), ["shares={0: 3}", "from texts"]),
        (lambda: DataOptions(cost="abc"), ["cost='abc'", "a list of numbers"]),
        (lambda: DataOptions(readers=-1), ["readers=-1", "0 or more"]),
        (lambda: MatchLimits(needs="fp8"), ["needs='fp8'", "a tuple of texts"]),
        (lambda: hetero.Context(config=3, engine="inline"), ["3"]),
    ],
)
def test_a_field_of_a_wrong_type_is_refused_by_name(call: Any, words: list[str]) -> None:
    refused(call, *words)


def test_what_a_field_allows_is_taken() -> None:
    assert BatchLimits(memory=1e9, timeout="2s", watts={"cpu": 65}).checked().memory_bytes == 10**9
    assert DataOptions(cost=iter([1.0])).readers is None
    assert TrainOptions(8, recompute=["a"], shares={"cpu:0": 8}).recompute == ("a",)
    assert CheckpointOptions(Path("x")).keep == 3
    assert ContextOptions(initializer=print, initargs=[1], set={"policy": "eft"}).history is None


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda given: hetero.Context(options=given), ["options=", "ContextOptions"]),
        (lambda given: hetero.batch.map_batches(len, [1], options=given), ["options=", "BatchOptions"]),
        (lambda given: hetero.batch.map_batches(len, [1], limits=given), ["limits=", "BatchLimits"]),
        (lambda given: hetero.plan.match("Llama-3.1-8B", limits=given), ["limits=", "MatchLimits"]),
        (lambda given: lent_or_opened("1xcpu", given), ["context=", "ContextOptions"]),
    ],
)
def test_an_argument_for_options_refuses_another_class(call: Any, words: list[str]) -> None:
    refused(lambda: call({"ordered": False}), f"{words[0]}{{'ordered': False}} is no {words[1]}", "(ordered=…)")
    refused(lambda: call(Handed()), f"is no {words[1]}", f"write {words[0]}{words[1]}(…)")
    refused(lambda: call({}), f"{words[0]}{{}} is no {words[1]}")
    refused(lambda: call(Sharding()), f"is no {words[1]}")


def test_a_keyword_and_the_same_field_of_the_options_exclude_one_another() -> None:
    for given in ({"engine": "inline"}, {"name": "night"}, {"history": True}, {"set": ["policy=eft"]}):
        word = next(iter(given))
        refused(
            lambda given=given: hetero.Context(devices="1xcpu", options=ContextOptions(**given), **given),
            f"both {word}= and options=ContextOptions({word}=…)", f"leave {word}= out",
        )  # fmt: skip
    with hetero.Context(devices="1xcpu", engine="inline", options=ContextOptions(history=False)) as ctx:
        assert ctx.engine == "inline"


def test_a_misspelt_switch_is_told(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setenv("HETERO_DEVICE", "2xcpu")
    monkeypatch.setenv("HETERO_FOREIGN_THING", "1")
    told = "HETERO_DEVICE is no switch of hetero and has no effect; did you mean 'HETERO_DEVICES'?"
    assert settings.misspelt() == (told,)
    with caplog.at_level(logging.WARNING, "hetero"):
        config.load({})
        config.load({})
    assert [record.getMessage() for record in caplog.records] == [told]


def test_a_number_of_a_switch_is_written_in_plain_digits(monkeypatch: pytest.MonkeyPatch) -> None:
    for text in ("\u00b2", "\u0661"):
        monkeypatch.setenv("HETERO_DEBUG", text)
        with pytest.raises(BadValueError, match="whole number"):
            settings.debug_level()


def test_names_of_the_last_version_work_in_python_and_warn() -> None:
    from hetero.advise.fit import does_it_fit
    from hetero.graphs.planning import plan_graph
    from hetero.model.graph import TaskGraph
    from hetero.model.topology import Topology
    from hetero.plan.sizing.footprint import Footprint

    with pytest.warns(DeprecationWarning, match=r"Workload\(engine=\) is deprecated: write framework="):
        work = hetero.plan.Workload("Llama-3.1-8B", engine="vllm", context=1024)
    assert work == hetero.plan.Workload("Llama-3.1-8B", framework="vllm", context=1024)
    with pytest.warns(DeprecationWarning, match="Workload.engine is now Workload.framework"):
        assert work.engine == "vllm"
    with pytest.warns(DeprecationWarning, match=r"does_it_fit\(optimiser=\) is deprecated: write optimizer="):
        assert does_it_fit("Llama-3.1-8B", "H100-SXM", job="lora", optimiser="sgd").work.optimizer == "sgd"
    with pytest.warns(DeprecationWarning, match=r"match\(fleet=\) is deprecated: write devices="):
        assert [one.device for one in hetero.plan.match("Llama-3.1-8B", fleet="H100-SXM")] == ["H100-SXM"]
    with pytest.warns(DeprecationWarning, match=r"training_time\(batch=\) is deprecated: write global_batch="):
        assert hetero.plan.training_time(100, [1.0], batch=10).steps == 10
    with pytest.warns(DeprecationWarning, match=r"plan_graph\(policy=\) is deprecated: write planner="):
        assert plan_graph(TaskGraph((), Topology(), (), ()), policy="heft").schedule.policy == "heft"
    with pytest.warns(DeprecationWarning, match="hetero.train.search is now hetero.train.tune") as warned:
        assert hetero.train.search is hetero.train.tune
    assert warned[0].filename == __file__
    pool = hetero.cluster.Pool("1xnull")
    with pytest.warns(DeprecationWarning, match="Pool.look is now Pool.get") as warned:
        assert pool.look(pool.ask(count=1).number).devices == ("h0/null:0",)
    assert warned[0].filename == __file__
    with pytest.warns(DeprecationWarning, match="hetero.graphs.faults is now hetero.graphs.violations") as warned:
        assert hetero.graphs.faults is hetero.graphs.violations
    assert warned[0].filename == __file__
    with pytest.warns(DeprecationWarning, match="Footprint.optimiser is now Footprint.optimizer"):
        assert Footprint(optimizer=3).optimiser == 3
    with pytest.warns(DeprecationWarning, match=r"map_batches\(out=\) is deprecated: write output="):
        refused(lambda: hetero.batch.map_batches(f, [1], out=3), "output=3 takes no results")
    refused(lambda: hetero.plan.Workload("T4", engine="vllm", framework="vllm"), "both engine= and framework=")


def test_keys_of_the_last_version_work_in_recipes_and_warn(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    from hetero.batch.recipe import read_batch_recipe
    from hetero.cli.plan import read_workload
    from hetero.recipes.tune import read_search

    (tmp_path / "job.yaml").write_text("function: os:getcwd\nsource: [1, 2]\nout: folder\n")
    assert read_batch_recipe(tmp_path / "job.yaml").keywords == {"output": "folder"}
    assert "the key 'out' is now 'output'" in caplog.text
    recipe = "{}:\n  trials: 3\nmodel: mnist\ntrain:\n  learning_rate: {{log: [1e-4, 1e-1]}}\n"
    for section in ("search", "tune"):
        (tmp_path / "r.yaml").write_text(recipe.format(section))
        assert read_search(tmp_path / "r.yaml", ["search.sampler=random"]).plan.trials == 3
    assert "'search' is now 'tune'" in caplog.text
    (tmp_path / "r.yaml").write_text(recipe.format("tune").replace("trials: 3", "goal: maximise"))
    assert read_search(tmp_path / "r.yaml").plan.goal == "maximize"
    assert "goal: 'maximise' is now 'maximize'" in caplog.text
    (tmp_path / "r.yaml").write_text(recipe.format("search").replace("trials", "trails"))
    with pytest.raises(ConfigError, match=r"r\.yaml:2: .*tune\.trails: there is no such key"):
        read_search(tmp_path / "r.yaml")
    (tmp_path / "w.yaml").write_text("model: Llama-3.1-8B\nengine: vllm\noptimiser: sgd\n")
    work, _, _ = read_workload(str(tmp_path / "w.yaml"), {})
    assert (work.framework, work.optimizer) == ("vllm", "sgd")
