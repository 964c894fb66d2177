"""ResNet-50 over two devices, each of which is faster at one kind of layer: convolutions here, the classifier there."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

import hetero

Norm = Callable[[int], nn.Module]


class Bottleneck(nn.Module):
    """Three convolutions beside a shortcut: He and others 2016, Deep residual learning, figure 5."""

    def __init__(self, inputs: int, width: int, stride: int, norm: Norm) -> None:
        super().__init__()
        outputs = 4 * width
        self.conv1 = nn.Conv2d(inputs, width, 1, bias=False)
        self.norm1 = norm(width)
        self.conv2 = nn.Conv2d(width, width, 3, stride, padding=1, bias=False)
        self.norm2 = norm(width)
        self.conv3 = nn.Conv2d(width, outputs, 1, bias=False)
        self.norm3 = norm(outputs)
        self.relu = nn.ReLU()
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or inputs != outputs:
            self.shortcut = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), norm(outputs))

    def forward(self, x: Any) -> Any:
        """Add the shortcut to what the convolutions give."""
        y = self.relu(self.norm1(self.conv1(x)))
        y = self.relu(self.norm2(self.conv2(y)))
        return self.relu(self.norm3(self.conv3(y)) + self.shortcut(x))


class ResNet50(nn.Module):
    """The network of 50 layers with weights (He and others 2016, table 1), the stride on the 3×3 convolution.

    Parameters
    ----------
    classes : of the classifier
    norm : makes the normalisation of so many channels; batch normalisation depends on the micro-batch, so train with
        `lambda channels: nn.GroupNorm(32, channels)`
    """

    def __init__(self, classes: int = 1000, norm: Norm = nn.BatchNorm2d) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 64, 7, 2, padding=3, bias=False)
        self.norm1 = norm(64)
        self.relu = nn.ReLU()
        self.pool = nn.MaxPool2d(3, 2, padding=1)
        self.layer1 = self._blocks(64, 64, 3, 1, norm)
        self.layer2 = self._blocks(256, 128, 4, 2, norm)
        self.layer3 = self._blocks(512, 256, 6, 2, norm)
        self.layer4 = self._blocks(1024, 512, 3, 2, norm)
        self.average = nn.AdaptiveAvgPool2d(1)
        self.classifier = nn.Linear(2048, classes)

    @staticmethod
    def _blocks(inputs: int, width: int, count: int, stride: int, norm: Norm) -> nn.Sequential:
        first = Bottleneck(inputs, width, stride, norm)
        return nn.Sequential(first, *(Bottleneck(4 * width, width, 1, norm) for _ in range(1, count)))

    def forward(self, x: Any) -> Any:
        """Return the scores of the classes for pictures of shape (n, 3, height, width)."""
        x = self.pool(self.relu(self.norm1(self.conv1(x))))
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        return self.classifier(torch.flatten(self.average(x), 1))


def main() -> None:
    """Split the network over two devices of this host, and show what was predicted and measured."""
    torch.manual_seed(0)
    pictures = torch.randn(64, 3, 64, 64)
    slow = {"cpu:0": {"Linear": 0.02}, "cpu:1": {"Conv2d": 0.4}}
    with hetero.train.split(ResNet50(), "2xcpu", pictures[:8], slow=slow) as network:
        for _ in range(3):
            scores = network(pictures)
        print(network)
        print("scores of the first picture:", scores[0, :3])


if __name__ == "__main__":
    main()
