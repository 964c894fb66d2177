"""Programs for `transformers.Trainer` and `accelerate`, for tests/engine/test_frameworks.py; each prints numbers."""

from __future__ import annotations

import os
import runpy
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from accelerate import Accelerator
from torch import nn
from torch.nn import functional as F  # noqa: N812  torch's own word
from torch.utils.data import DataLoader, TensorDataset
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainerCallback, TrainingArguments

import hetero

fleet = hetero.train.init()
FOLDER = Path(os.environ["HETERO_HOME"]) / ("launched" if fleet.world_size > 1 else "alone")
CONFIG = BertConfig(
    vocab_size=40, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16, num_labels=3,
    max_position_embeddings=24,
)  # fmt: skip


def told(name: str, *values: Any) -> None:
    fleet.print(name, *(repr(float(value)) for value in values))


def size(model: nn.Module) -> float:
    return float(sum((p.detach() * torch.arange(1.0, p.numel() + 1).view(p.shape)).sum() for p in model.parameters()))


class Sentences(torch.utils.data.Dataset[dict[str, Any]]):
    """Sentences of different lengths, which a collator pads to the longest."""

    def __init__(self, samples: int) -> None:
        draw = np.random.default_rng(3)
        self._rows = [draw.integers(1, 40, size=draw.integers(4, 20)).tolist() for _ in range(samples)]

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"input_ids": self._rows[index], "labels": sum(self._rows[index]) % 3}


def padded(samples: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
    longest = max(len(each["input_ids"]) for each in samples)
    ids = torch.tensor([each["input_ids"] + [0] * (longest - len(each["input_ids"])) for each in samples])
    return {
        "input_ids": ids,
        "attention_mask": (ids > 0).long(),
        "labels": torch.tensor([s["labels"] for s in samples]),
    }


def metrics(given: Any) -> dict[str, float]:
    return {"accuracy": float((given.predictions.argmax(-1) == given.label_ids).mean()), "sum": given.predictions.sum()}


class Told(TrainerCallback):
    """Prints what is logged."""

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, float], **_: Any) -> None:
        kept = {name: value for name, value in logs.items() if "runtime" not in name and "per_second" not in name}
        told(f"log-{'-'.join(kept)}", *kept.values())


def trainer(name: str, **options: Any) -> Trainer:
    torch.manual_seed(1)
    model = BertForSequenceClassification(CONFIG).double()
    options = {"per_device_train_batch_size": 6, "max_steps": 6, "learning_rate": 0.01, **options}
    arguments = TrainingArguments(
        str(FOLDER / name), logging_steps=1, disable_tqdm=True, report_to=[], use_cpu=True, **options
    )
    made = Trainer(model, arguments, padded, Sentences(40), Sentences(13), compute_metrics=metrics, callbacks=[Told()])
    return fleet.prepare(made)


def accumulated_evaluated_and_resumed() -> None:
    options: dict[str, Any] = {
        "gradient_accumulation_steps": 2, "max_grad_norm": 0.1, "eval_strategy": "steps", "eval_steps": 3,
        "save_strategy": "steps", "save_steps": 3, "load_best_model_at_end": True, "metric_for_best_model": "loss",
        "lr_scheduler_type": "cosine", "warmup_steps": 2, "save_total_limit": 2,
    }  # fmt: skip
    made = trainer("resumed", **options)
    made.train()
    told("best", size(made.model), made.state.best_metric)
    again = trainer("resumed", **{**options, "max_steps": 8})
    again.train(resume_from_checkpoint=str(FOLDER / "resumed" / "checkpoint-3"))
    told("resumed", size(again.model), again.state.global_step)
    told("predicted", np.abs(again.predict(Sentences(7)).predictions).sum())
    again.save_model(str(FOLDER / "last"))


def grouped_by_length_and_smoothed() -> None:
    made = trainer(
        "grouped",
        train_sampling_strategy="group_by_length",
        label_smoothing_factor=0.1,
        include_num_input_tokens_seen="all",
    )
    made.train()
    told("grouped", size(made.model), made.state.num_input_tokens_seen, made.state.total_flos)


class Stream(torch.utils.data.IterableDataset[dict[str, Any]]):
    """Sentences of which nobody knows how many there are."""

    def __iter__(self) -> Iterator[dict[str, Any]]:
        rows = Sentences(40)
        return (rows[number] for number in range(40))


def a_stream_of_sentences() -> None:
    made = trainer("stream", gradient_accumulation_steps=2)
    made.train_dataset = Stream()
    made.train()
    told("stream", size(made.model))


def batches_that_the_processes_read_apart() -> None:
    made = trainer("apart")
    if fleet.rank:
        made.train_dataset = torch.utils.data.Subset(made.train_dataset, range(39, -1, -1))
    made.train()
    told("apart", size(made.model))


def a_loop_of_accelerate() -> None:
    torch.manual_seed(1)
    accelerator = fleet.prepare(Accelerator(gradient_accumulation_steps=3, cpu=True))
    model = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Dropout(0.3), nn.Linear(16, 3)).double()
    optimizer = torch.optim.AdamW(model.parameters(), 0.02)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)
    data = TensorDataset(torch.randn(70, 6).double(), torch.randint(0, 3, (70,)))
    train, held = DataLoader(data, 16, shuffle=True), DataLoader(data, 9)
    model, optimizer, train, held, schedule = accelerator.prepare(model, optimizer, train, held, schedule)
    for epoch in range(3):
        model.train()
        total = right = 0.0
        for inputs, targets in train:
            with accelerator.accumulate(model):
                out = model(inputs)
                loss = F.cross_entropy(out, targets)
                accelerator.backward(loss)
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), 0.1)
                optimizer.step()
                schedule.step()
                optimizer.zero_grad()
            total += loss.item()
            right += float((accelerator.gather(out).argmax(-1) == accelerator.gather(targets)).sum())
        model.eval()
        losses, kept = [], []
        for inputs, targets in held:
            with torch.no_grad():
                out = model(inputs)
            losses.append(accelerator.gather_for_metrics(F.cross_entropy(out, targets).repeat(9)))
            kept.append(accelerator.gather_for_metrics((out, targets))[0])
        told("accelerate", total, right, torch.cat(losses).mean(), torch.cat(kept).abs().sum(), len(torch.cat(kept)))
        if epoch == 0:
            accelerator.save_state(str(FOLDER / "state"))
    told("trained", size(model), schedule.get_last_lr()[0])
    accelerator.load_state(str(FOLDER / "state"))
    told("loaded", size(model), torch.rand(()))


def adapters_of_a_language_model() -> None:
    from peft import LoraConfig, get_peft_model
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=40, hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2
    )
    torch.manual_seed(1)
    lora = LoraConfig(r=2, lora_dropout=0.2, target_modules=["q_proj", "v_proj"], init_lora_weights="gaussian")
    model = get_peft_model(LlamaForCausalLM(config), lora).double()

    def collated(samples: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
        batch = padded(samples)
        return {**batch, "labels": batch["input_ids"].masked_fill(batch["input_ids"] == 0, -100)}

    arguments = TrainingArguments(
        str(FOLDER / "adapters"), logging_steps=1, disable_tqdm=True, report_to=[], use_cpu=True, max_steps=5,
        per_device_train_batch_size=6, gradient_accumulation_steps=2, eval_strategy="steps", eval_steps=3,
    )  # fmt: skip
    made = fleet.prepare(Trainer(model, arguments, collated, Sentences(40), Sentences(13), callbacks=[Told()]))
    made.train()
    told("adapters", size(model))


def supervised_finetuning() -> None:
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
    from trl import SFTConfig, SFTTrainer

    words = {word: number for number, word in enumerate(["<pad>", "<eos>", "<unk>", *(f"w{n}" for n in range(30))])}
    split = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    split.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=split, pad_token="<pad>", eos_token="<eos>", unk_token="<unk>")
    import datasets

    rows = [{"text": " ".join(f"w{n % 30}" for n in each["input_ids"])} for each in Sentences(30)]
    torch.manual_seed(1)
    model = LlamaForCausalLM(
        LlamaConfig(vocab_size=33, hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2)
    ).double()
    arguments = SFTConfig(
        str(FOLDER / "tuned"), logging_steps=1, disable_tqdm=True, report_to=[], use_cpu=True, max_steps=4,
        per_device_train_batch_size=6, bf16=False, gradient_checkpointing=False,
    )  # fmt: skip
    data = datasets.Dataset.from_list(rows)
    made = fleet.prepare(
        SFTTrainer(model, arguments, train_dataset=data, processing_class=tokenizer, callbacks=[Told()])
    )
    made.train()
    told("tuned", size(model))


def main() -> None:
    for name in sys.argv[1:]:
        torch.manual_seed(7)
        if name.endswith(".py"):
            runpy.run_path(name)
        else:
            globals()[name]()


if __name__ == "__main__":
    main()
