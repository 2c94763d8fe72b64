"""A small network for digits of any size, to be used as --model examples/digit_net.py:DigitNet."""

from __future__ import annotations

from torch import Tensor, nn


class DigitNet(nn.Module):
    """Two convolutions and a hidden layer, on images that are first resized to 16×16."""

    def __init__(self, classes: int, hidden: int = 64) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.AdaptiveAvgPool2d(16),
            nn.Conv2d(1, 16, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(16, 32, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(512, hidden),
            nn.ReLU(),
        )
        self.head = nn.Linear(hidden, classes)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(self.body(x))
        return logits
