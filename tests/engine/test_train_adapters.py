"""Adapters train as whole models do, and nothing but they travels and is kept."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import hetero
from hetero.errors import BadValueError, HeteroError

torch = pytest.importorskip("torch")
nn = torch.nn

from hetero.train.replica import ModelReplica  # noqa: E402
from hetero.train.state import load_state, pack  # noqa: E402
from tests.flat_options import trainer_options  # noqa: E402

WORDS, LENGTH, BATCH = 64, 12, 32


@pytest.fixture(scope="module")
def fleet() -> Iterator[hetero.Context]:
    with hetero.Context(devices="1xcpu,1xcpu*0.6", history=False) as ctx:
        yield ctx


def transformer(seed: int = 0) -> Any:
    """Make a small language model of random weights, with adapters of peft's that drop out."""
    from peft import LoraConfig, get_peft_model
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(seed)
    size = {"vocab_size": WORDS, "n_positions": LENGTH, "n_embd": 32, "n_layer": 2, "n_head": 2}
    base = GPT2LMHeadModel(GPT2Config(**size, use_cache=False, bos_token_id=None, eos_token_id=None))
    adapters = LoraConfig(r=2, lora_dropout=0.2, target_modules=["c_attn"], fan_in_fan_out=True)
    return get_peft_model(base, adapters).double()


def next_word(output: Any, targets: Any) -> Any:
    return nn.functional.cross_entropy(output.logits.transpose(1, 2), targets, reduction="none").mean(1)


def sentences() -> Any:
    first = torch.randint(0, WORDS, (2 * BATCH, 1), generator=torch.Generator().manual_seed(1))
    words = (first + 5 * torch.arange(LENGTH + 1)) % WORDS
    return words[:, :-1], words[:, 1:]


def trainer(model: Any, fleet: Any, shares: dict[str, int], **options: Any) -> hetero.Trainer:
    def adamw(parameters: Any) -> Any:
        return torch.optim.AdamW(parameters, lr=1e-2)

    return hetero.Trainer(
        model,
        next_word,
        adamw,
        sentences(),
        devices=fleet,
        **trainer_options(global_batch=BATCH, shares=shares, **options),
    )


def trained_bytes(model: Any) -> int:
    return sum(parameter.nbytes for parameter in model.parameters() if parameter.requires_grad)


def distance(one: Any, other: Any) -> float:
    pairs = zip(one.parameters(), other.parameters(), strict=True)
    return max(float((a - b).detach().abs().max()) for a, b in pairs)


@pytest.mark.servers
@pytest.mark.slow
def test_adapters_of_a_transformer_train_exactly_and_they_alone_travel_and_are_kept(fleet: Any, tmp_path: Path) -> None:
    one, other = transformer(), transformer()
    first = trainer(one, fleet, {"cpu:0": 20, "cpu:1": 12}, checkpoint=tmp_path / "kept")
    first.fit(1)
    trainer(other, fleet, {"cpu:0": 5, "cpu:1": 27}).fit(1)
    assert distance(one, transformer()) > 1e-3
    assert distance(one, other) < 1e-12

    small, whole = trained_bytes(one), sum(parameter.nbytes for parameter in one.parameters())
    assert ModelReplica(first._parts(), first.options, "cpu", 3).gradients.nbytes < 1.5 * small < 0.1 * whole
    states = [path.stat().st_size for path in (tmp_path / "kept").rglob("*") if path.is_file()]
    assert max(states) < 8 * small < whole

    file = first.save(tmp_path / "adapters.safetensors")
    assert file.stat().st_size < 2 * small
    again = transformer()
    hetero.train.load_parameters(again, file)
    assert distance(again, one) == 0.0
    with pytest.raises(HeteroError, match="parameters that are not trained are not those"):
        hetero.train.load_parameters(transformer(seed=1), file)

    resumed = trainer(transformer(), fleet, {"cpu:0": 20, "cpu:1": 12}, checkpoint=tmp_path / "kept")
    assert resumed.resume() == 1
    assert distance(resumed.model, one) == 0.0


def frozen(seed: int = 0) -> Any:
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(8, 64), nn.Tanh(), nn.Linear(64, 2))
    model[0].requires_grad_(False)
    return model


def test_a_state_has_what_is_trained_and_knows_the_rest_again() -> None:
    model = frozen()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    state = pack(model, optimizer, [3])
    other = frozen()
    other[2].weight.data.zero_()
    assert load_state(state, other, None).numbers == [3]
    assert distance(model, other) == 0.0
    assert len(state) < 4 * trained_bytes(model)
    with pytest.raises(HeteroError, match="give the same base model"):
        load_state(state, frozen(seed=1), None)


def test_a_base_that_was_changed_after_its_checksum_is_not_taken_for_the_old_one() -> None:
    model = frozen()
    state = pack(model, torch.optim.SGD(model.parameters()), [0])
    with torch.no_grad():
        model[0].weight[0, 0] += 1.0
    with pytest.raises(HeteroError, match="give the same base model"):
        load_state(state, model, None)


def test_a_state_of_other_layers_is_refused_by_name() -> None:
    model = frozen()
    state = pack(model, torch.optim.SGD(model.parameters()), [0])
    more = nn.Sequential(*model, nn.Linear(2, 2))
    with pytest.raises(HeteroError, match=r"missing or unexpected: 3\.bias, 3\.weight"):
        load_state(state, more, None)


def test_a_model_without_adapters_is_saved_whole_unless_one_says_otherwise(fleet: Any, tmp_path: Path) -> None:
    model = frozen()
    pair = torch.randn(8, 8), torch.zeros(8, dtype=torch.int64)
    run = hetero.Trainer(
        model, nn.CrossEntropyLoss(), torch.optim.SGD(model.parameters(), lr=0.1), pair, global_batch=8, devices=fleet
    )
    whole, part = run.save(tmp_path / "whole"), run.save(tmp_path / "part", trained_only=True)
    assert part.stat().st_size < whole.stat().st_size
    for file in (whole, part):
        other = frozen()
        other[2].weight.data.zero_()
        hetero.train.load_parameters(other, file)
        assert distance(model, other) == 0.0
    with pytest.raises(BadValueError, match="belongs to another model"):
        hetero.train.load_parameters(nn.Linear(2, 2), whole)
