"""Frameworks that own the loop, under `hetero launch`: the numbers of the same script on one device, or one line."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from hetero.errors import HeteroError
from tests.docs.markdown import blocks
from tests.needs import PROJECT

pytest.importorskip("torch")

PATIENCE_S = 280.0
HERE = Path(__file__).parent
PROGRAMS = {block.mark.split()[1]: block.text for block in blocks(PROJECT / "docs" / "frameworks.md") if block.mark}


def started(home: Path, script: Path, *args: str, options: tuple[str, ...] = (), alone: bool = False) -> str:
    """Return what a script prints, under `hetero launch` on two unequal devices or alone."""
    launch = ["-m", "hetero", "launch", "--devices", "1xcpu,1xcpu*0.5", *options]
    environment = {
        **os.environ, "HETERO_HOME": str(home), "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false",
        "HF_HUB_OFFLINE": "1", "PYTHONHASHSEED": "0",
    }  # fmt: skip
    found = subprocess.run(
        [sys.executable, *([] if alone else launch), str(script), *args],
        cwd=home, env=environment, capture_output=True, text=True, timeout=PATIENCE_S, check=False,
    )  # fmt: skip
    assert found.returncode == 0, found.stderr[-4000:]
    return found.stdout


def documented(folder: Path, *names: str) -> list[str]:
    """Write programs of the guide into a folder; return their paths."""
    for name in names:
        (folder / name).write_text(PROGRAMS[name])
    return [str(folder / name) for name in names]


def same_numbers(found: str, wanted: str, rough: tuple[str, ...] = (), close: tuple[str, ...] = ()) -> None:
    """Compare what two runs print, word by word.

    Lines that begin with a word of `rough` are in single precision; before those of `close` an optimizer has divided by
    small gradients.
    """
    lines, likes = ([x.split() for x in text.splitlines() if x and x[0] not in "{%'"] for text in (found, wanted))
    assert [line[0] for line in lines] == [line[0] for line in likes]
    assert lines
    for line, like in zip(lines, likes, strict=True):
        numbers = [[float(word) for word in words if word[-1].isdigit()] for words in (line[1:], like[1:])]
        rel = 1e-5 if like[0].startswith(rough) else 1e-10 if like[0].startswith(close) else 1e-12
        assert numbers[0] == pytest.approx(numbers[1], rel=rel, abs=1e-12), like[0]


@pytest.mark.servers
def test_trainers_and_accelerators_print_what_one_device_prints(tmp_path: Path) -> None:
    for name in ("transformers", "accelerate", "peft", "trl"):
        pytest.importorskip(name)
    script, guide = HERE / "launched_huggingface.py", documented(tmp_path, "trainer.py", "accelerated.py")
    loops = (
        "a_loop_of_accelerate", "accumulated_evaluated_and_resumed", "grouped_by_length_and_smoothed",
        "adapters_of_a_language_model", "supervised_finetuning", "batches_that_the_processes_read_apart",
        "a_stream_of_sentences", *guide,
    )  # fmt: skip
    found = started(tmp_path, script, *loops, options=("--check-steps", "1000"))
    wanted = started(tmp_path, script, *loops, alone=True)
    same_numbers(found, wanted, rough=("log-", "loss", "adapters", "tuned"))
    files = [sorted(p.name for p in (tmp_path / kind / "resumed" / "checkpoint-6").iterdir()) for kind in KINDS]
    assert files[0] == files[1]


KINDS = ("launched", "alone")


@pytest.mark.servers
def test_lightning_and_fabric_print_what_one_device_prints(tmp_path: Path) -> None:
    pytest.importorskip("lightning")
    script = HERE / "launched_lightning.py"
    loops = (
        "a_trainer_of_lightning",
        "numbers_that_are_logged_and_kept",
        "a_loop_of_fabric",
        *documented(tmp_path, "lit.py"),
    )
    found = started(tmp_path, script, *loops, options=("--check-steps", "1000"))
    wanted = started(tmp_path, script, *loops, alone=True)
    same_numbers(found, wanted, rough=("loss",), close=("trained", "resumed"))
    assert sorted(p.name for p in (tmp_path / "launched" / "kept").iterdir()) == sorted(
        p.name for p in (tmp_path / "alone" / "kept").iterdir()
    )


@pytest.mark.servers
def test_models_of_keras_print_what_one_device_prints(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KERAS_BACKEND", "torch")
    pytest.importorskip("keras")
    script, guide = HERE / "launched_keras.py", documented(tmp_path, "digits.py")
    loops = "a_model_with_penalties_and_weights", "sequences_with_a_mask", "what_is_refused", *guide
    for kind in KINDS:
        (tmp_path / kind).mkdir()
    found = started(tmp_path, script, *loops, options=("--check-steps", "1000"))
    wanted = started(tmp_path, script, *loops, alone=True)
    refused = [line for line in found.splitlines() if line.startswith("refused")]
    for line, words in zip(refused, KERAS_REFUSES, strict=True):
        assert words in line
    rest = "\n".join(line for line in found.splitlines() if not line.startswith("refused"))
    same_numbers(rest, wanted, rough=("loss",))
    best = [(tmp_path / kind / "best.weights.h5").stat().st_size for kind in KINDS]
    assert best[0] == best[1]


@pytest.mark.servers
def test_gradients_of_jax_are_those_of_one_device(tmp_path: Path) -> None:
    for name in ("jax", "optax"):
        pytest.importorskip(name)
    script, guide = HERE / "launched_jax.py", documented(tmp_path, "fitted.py")
    loops = "a_mean_with_more_than_its_value", "a_sum", "a_mean_over_labels_that_count", "what_is_refused", *guide
    found = started(tmp_path, script, *loops, options=("--check-steps", "1000"))
    wanted = started(tmp_path, script, *loops, alone=True)
    refused = [line for line in found.splitlines() if line.startswith("refused")]
    said = "inside of jax.jit", "there is no batch", "shape (6,)", "a whole number (", "as the mean of its parts"
    for line, words in zip(refused, said, strict=True):
        assert words in line
    same_numbers("\n".join(line for line in found.splitlines() if line not in refused), wanted, rough=("loss",))


@pytest.mark.servers
def test_a_function_of_jax_that_mixes_samples_is_refused_by_name(tmp_path: Path) -> None:
    pytest.importorskip("jax")
    with pytest.raises(
        AssertionError, match=r"the gradients of \S+, \['first'\]\['w'\] .* differ from those of one dev"
    ):
        started(tmp_path, HERE / "launched_jax.py", "mixed")


@pytest.mark.servers
@pytest.mark.slow
def test_a_function_of_jax_that_mixes_samples_later_is_refused_by_its_call(tmp_path: Path) -> None:
    pytest.importorskip("jax")
    with pytest.raises(AssertionError, match=r"do not add up to the batch in call 4 of loss: the gradients of "):
        started(tmp_path, HERE / "launched_jax.py", "mixed_late")


def test_batches_of_several_sizes_in_one_step_are_refused() -> None:
    torch = pytest.importorskip("torch")
    pytest.importorskip("lightning")
    from hetero.train.frameworks.lightning_strategies import _refuse_several

    one, other = (torch.ones(16, 2), torch.ones(16)), (torch.ones(8, 2), torch.ones(8))
    for batch in (one, list(one), {"a": one, "b": one}, {"a": torch.ones(16), "b": torch.ones(3)}):
        _refuse_several(batch)
    with pytest.raises(HeteroError, match="training_step gets batches of 8 and 16 samples at once"):
        _refuse_several({"a": one, "b": other})


KERAS_REFUSES = [
    "BatchNormalization 'norm' normalises by the statistics of its own rows; take LayerNormalization",
    "'heavy' adds a loss of its own rows",
    "Own has a train_step of its own, which cannot be divided",
    "compile(jit_compile=True): a compiled step cannot be divided",
    "BackupAndRestore would back up in each process",
]


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"auto_find_batch_size": True}, "auto_find_batch_size cannot be had under hetero launch"),
        ({"optim": "lomo"}, "optim='lomo', which updates weights within backward"),
        ({"optim": "galore_adamw_layerwise"}, "updates weights within backward"),
        ({"is_model_parallel": True}, "load it without device_map"),
        ({"distributed": "FSDP"}, "the Accelerator is set to FSDP"),
    ],
)
def test_a_trainer_that_cannot_be_divided_is_refused_by_name(settings: dict[str, Any], words: str) -> None:
    from hetero.train.frameworks import huggingface

    arguments = SimpleNamespace(auto_find_batch_size=False, optim="adamw_torch")
    vars(arguments).update({name: value for name, value in settings.items() if name in vars(arguments)})
    kind = SimpleNamespace(value=settings.get("distributed", "NO"))
    trainer = SimpleNamespace(
        args=arguments,
        accelerator=SimpleNamespace(distributed_type=kind),
        is_model_parallel=settings.get("is_model_parallel", False),
    )
    with pytest.raises(HeteroError, match=words):
        huggingface._refuse_settings(trainer)


def test_a_trainer_of_pairs_is_refused_by_name() -> None:
    from hetero.train.frameworks import huggingface

    kind = type("RewardTrainer", (SimpleNamespace,), {"__module__": "trl.trainer.reward_trainer"})
    accelerator = SimpleNamespace(distributed_type=SimpleNamespace(value="NO"))
    arguments = SimpleNamespace(auto_find_batch_size=False, optim="adamw_torch")
    with pytest.raises(HeteroError, match="RewardTrainer, whose batches have what was rejected in rows of their own"):
        huggingface._refuse_settings(kind(args=arguments, accelerator=accelerator, is_model_parallel=False))


def test_a_batch_with_other_rows_than_samples_is_refused_by_name() -> None:
    import torch

    from hetero.train.frameworks import huggingface

    batch = {"input_ids": torch.ones(4, 7), "position_ids": torch.ones(1, 7), "labels": torch.ones(4)}
    huggingface._refuse_uneven(batch)
    with pytest.raises(HeteroError, match="'pixel_values' has 9 rows in a batch of 4 samples"):
        huggingface._refuse_uneven({"pixel_values": torch.ones(9, 7), **batch})


def test_a_strategy_refuses_what_it_cannot_give_by_name() -> None:
    lightning = pytest.importorskip("lightning")
    import torch

    import hetero

    hetero.train.init()
    strategy = lightning.Fabric(strategy="hetero", accelerator="cpu").strategy
    assert strategy.all_gather(torch.ones(2, 3)).shape == (2, 3)
    assert strategy.all_reduce(torch.ones(2), reduce_op="mean").tolist() == [1.0, 1.0]
    strategy.is_cut = True
    with pytest.raises(HeteroError, match="num_nodes=2: hetero launch takes one host"):
        strategy.num_nodes = 2
    with pytest.raises(HeteroError, match="sync_grads=True"):
        strategy.all_gather(torch.ones(2), sync_grads=True)
    with pytest.raises(HeteroError, match=r"'max' of a tensor of shape \(2,\) is not offered"):
        strategy.all_reduce(torch.ones(2), reduce_op="max")


def test_nothing_of_a_framework_is_imported_before_it_is_used() -> None:
    names = "transformers", "accelerate", "lightning", "keras", "jax"
    program = f"import sys, hetero, hetero.train; hetero.train.init(); print([n for n in {names} if n in sys.modules])"
    found = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=PATIENCE_S, check=True
    )
    assert found.stdout.strip() == "[]"
