"""Programs for Lightning's Trainer and Fabric, for tests/engine/test_frameworks.py; each prints its numbers."""

from __future__ import annotations

import os
import runpy
import sys
from pathlib import Path
from typing import Any

import lightning as L  # noqa: N812  Lightning's own word
import torch
import torchmetrics
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import nn
from torch.nn import functional as F  # noqa: N812  torch's own word
from torch.utils.data import DataLoader, TensorDataset

import hetero

fleet = hetero.train.init()
FOLDER = Path(os.environ["HETERO_HOME"]) / ("launched" if fleet.world_size > 1 else "alone")


def told(name: str, *values: Any) -> None:
    fleet.print(name, *(repr(float(value)) for value in values))


def size(model: nn.Module) -> float:
    return float(sum((p.detach() * torch.arange(1.0, p.numel() + 1).view(p.shape)).sum() for p in model.parameters()))


def data() -> TensorDataset:
    return TensorDataset(torch.randn(70, 6).double(), torch.randint(-1, 3, (70,)))


class Classifier(L.LightningModule):
    """Dropout, batch norm, labels that do not count, a metric and numbers that are logged."""

    def __init__(self) -> None:
        super().__init__()
        self.model = nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.3), nn.Linear(16, 3))
        self.right = torchmetrics.Accuracy(task="multiclass", num_classes=3, ignore_index=-1)

    def training_step(self, batch: Any, _: int) -> Any:
        inputs, targets = batch
        out = self.model(inputs)
        loss = F.cross_entropy(out, targets, ignore_index=-1)
        self.log("loss", loss, on_step=True, on_epoch=True)
        self.log("mean", out.detach().mean(), on_step=False, on_epoch=True)
        self.log("sum", out.pow(2).sum(), reduce_fx="sum", on_step=False, on_epoch=True)
        self.right(out, targets)
        self.log("right", self.right, on_step=True, on_epoch=True)
        told("gathered", self.all_gather(out).sum(), len(self.all_gather(targets)))
        return loss

    def on_train_batch_end(self, outputs: Any, batch: Any, _: int) -> None:
        told("step", outputs["loss"], len(batch[0]), self.trainer.callback_metrics["loss_step"])

    def on_train_epoch_end(self) -> None:
        told("epoch", *(self.trainer.callback_metrics[name] for name in ("loss_epoch", "mean", "sum", "right_epoch")))

    def validation_step(self, batch: Any, _: int) -> None:
        self.log("held", F.cross_entropy(self.model(batch[0]), batch[1], ignore_index=-1))

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.AdamW(self.model.parameters(), 0.02)
        return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)]


def a_trainer_of_lightning() -> None:
    module, train, held = Classifier(), data(), data()
    loaders = DataLoader(train, 16, shuffle=True), DataLoader(held, 16)
    options: dict[str, Any] = {
        "strategy": "hetero", "accelerator": "cpu", "precision": "64-true", "accumulate_grad_batches": 2,
        "gradient_clip_val": 0.1, "logger": False, "enable_progress_bar": False, "default_root_dir": FOLDER,
        "enable_model_summary": False,
    }  # fmt: skip
    kept = ModelCheckpoint(dirpath=FOLDER / "kept", monitor="held", save_last=True)
    trainer = L.Trainer(max_epochs=2, callbacks=[kept], **options)
    trainer.fit(module, *loaders)
    told("trained", size(module), trainer.callback_metrics["held"], kept.best_model_score)
    again = L.Trainer(max_epochs=3, enable_checkpointing=False, **options)
    again.fit(module, *loaders, ckpt_path=str(FOLDER / "kept" / "last.ckpt"))
    told("resumed", size(module), again.global_step, again.validate(module, loaders[1], verbose=False)[0]["held"])


class Numbers(L.LightningModule):
    """Numbers of Python, a loss that is kept, one that a number divides and one with a penalty."""

    def __init__(self, penalty: float) -> None:
        super().__init__()
        self.model, self.penalty, self.kept = nn.Linear(6, 3).double(), penalty, []

    def training_step(self, batch: Any, _: int) -> Any:
        out, targets = self.model(batch[0]), batch[1].clamp(min=0)
        loss = F.cross_entropy(out, targets, reduction="sum") / targets.numel()
        self.log("right", float((out.argmax(1) == targets).sum()), reduce_fx="sum", on_step=True, on_epoch=True)
        self.log("item", out.mean().item(), on_step=True, on_epoch=True)
        self.log("loss", loss, on_step=True, on_epoch=True)
        if self.penalty:
            loss = F.cross_entropy(out, targets) + self.penalty * sum(p.pow(2).sum() for p in self.parameters())
        self.kept.append(loss)
        return loss

    def on_train_epoch_end(self) -> None:
        metrics = self.trainer.callback_metrics
        told("numbers", *(metrics[f"{name}_epoch"] for name in ("right", "item", "loss")), metrics["loss_step"])
        told("kept", sum(float(each) for each in self.kept))

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), 0.1)


def numbers_that_are_logged_and_kept() -> None:
    for penalty in (0.0, 0.01):
        module, options = (
            Numbers(penalty),
            {"logger": False, "enable_progress_bar": False, "enable_checkpointing": False},
        )
        trainer = L.Trainer(strategy="hetero", accelerator="cpu", max_epochs=2, enable_model_summary=False, **options)
        trainer.fit(module, DataLoader(data(), 16))
        told("trained", size(module))


def a_loop_of_fabric() -> None:
    fabric = L.Fabric(strategy="hetero", accelerator="cpu")
    model = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Dropout(0.3), nn.Linear(16, 3)).double()
    optimizer = torch.optim.AdamW(model.parameters(), 0.02)
    loader, held = fabric.setup_dataloaders(DataLoader(data(), 16, shuffle=True), DataLoader(data(), 9))
    model, optimizer = fabric.setup(model, optimizer)
    for _ in range(2):
        model.train()
        total = right = 0.0
        for inputs, targets in loader:
            optimizer.zero_grad()
            out = model(inputs)
            loss = F.cross_entropy(out, targets, ignore_index=-1)
            early = fabric.all_reduce(loss)
            fabric.backward(loss)
            fabric.clip_gradients(model, optimizer, max_norm=0.1)
            optimizer.step()
            total += loss.item()
            told("fabric-step", early, loss, fabric.all_reduce(loss))
            right += float(fabric.all_reduce((out.argmax(-1) == targets).sum(), reduce_op="sum"))
        model.eval()
        with torch.no_grad():
            told("held", sum(F.cross_entropy(model(x), y, ignore_index=-1).item() for x, y in held))
        told("fabric", total, right, size(model))
    fabric.save(FOLDER / "fabric.pt", {"model": model, "optimizer": optimizer})
    fabric.barrier()
    fabric.load(FOLDER / "fabric.pt", {"model": model, "optimizer": optimizer})
    told("loaded", size(model), fabric.broadcast(fabric.global_rank))


def main() -> None:
    for name in sys.argv[1:]:
        torch.manual_seed(7)
        if name.endswith(".py"):
            runpy.run_path(name)
        else:
            globals()[name]()


if __name__ == "__main__":
    main()
