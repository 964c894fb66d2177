"""Adapters on a language model: two unequal devices train them together, and only their gradients travel."""

from pathlib import Path
from tempfile import mkdtemp

import torch
from peft import LoraConfig, get_peft_model
from transformers import GPT2Config, GPT2LMHeadModel

import hetero

VOCABULARY, LENGTH = 64, 16


def make_model() -> torch.nn.Module:
    """Make a small GPT-2 with random weights, and adapters on its attention; a real one is loaded in its place."""
    torch.manual_seed(0)
    size = {"vocab_size": VOCABULARY, "n_positions": LENGTH, "n_embd": 64, "n_layer": 2, "n_head": 4}
    base = GPT2LMHeadModel(GPT2Config(**size, use_cache=False, bos_token_id=None, eos_token_id=None))
    adapters = LoraConfig(r=4, lora_alpha=16, lora_dropout=0.1, target_modules=["c_attn"], fan_in_fan_out=True)
    return get_peft_model(base, adapters)


def next_token_loss(output, targets: torch.Tensor) -> torch.Tensor:
    """Return one loss a sample, as the Trainer needs it to weight samples exactly."""
    each = torch.nn.functional.cross_entropy(output.logits.transpose(1, 2), targets, reduction="none")
    return each.mean(1)


first = torch.randint(0, VOCABULARY, (256, 1))
tokens = (first + 5 * torch.arange(LENGTH + 1)) % VOCABULARY

model = make_model()
trainer = hetero.Trainer(
    model,
    next_token_loss,
    lambda parameters: torch.optim.AdamW(parameters, lr=2e-2),
    (tokens[:, :-1], tokens[:, 1:]),
    global_batch=64,
    devices="1xcpu,1xcpu*0.5",
)
with trainer:
    for report in trainer.fit(8):
        print(f"epoch {report.epoch}: loss {report.loss:.2f}, shares {report.shares}")

file = trainer.save(Path(mkdtemp()) / "adapters.safetensors")
trained = sum(p.nbytes for p in model.parameters() if p.requires_grad)
print(f"trained: {trained:,} of {sum(p.nbytes for p in model.parameters()):,} bytes")
print(f"saved: {file.stat().st_size:,} bytes")

again = make_model()
hetero.train.load_parameters(again, file)
with torch.no_grad():
    same = torch.equal(again.eval()(tokens[:1, :-1]).logits, model.eval()(tokens[:1, :-1]).logits)
print("loaded into another copy of the base model, it answers the same:", same)
