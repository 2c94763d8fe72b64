"""The distance that a client's local steps cover under a constant gradient."""

from __future__ import annotations


def distance(lrs: list[float], momentum: float) -> float:
    """Return how far steps of heavy-ball SGD at these learning rates go under a constant unit gradient."""
    velocity = distance = 0.0
    for lr in lrs:
        velocity = momentum * velocity + 1
        distance += lr * velocity
    return distance


def effective_steps(steps: int, momentum: float, pull: float = 0.0) -> float:
    """Return how far `steps` steps of heavy-ball SGD go under a constant unit gradient, in units of the
    learning rate. Without momentum this is the number of steps. `pull` is lr times the weight mu of a
    proximal term that draws back to the start."""
    if not pull:
        return (steps - momentum * (1 - momentum**steps) / (1 - momentum)) / (1 - momentum)
    velocity = distance = 0.0
    for _ in range(steps):
        velocity = momentum * velocity + 1 - pull * distance
        distance += velocity
    return distance
