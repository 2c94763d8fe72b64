"""Losses and class-wise results for an app on Flower that there is already.

`loss` goes into the training loop of a ClientApp, `class_counts` into its evaluation, `classwise` into any
strategy of the ServerApp. The first two need PyTorch alone.
"""

from unskew.flower.evaluation import class_counts, classwise
from unskew.flower.objective import ClientLoss, loss

__all__ = ["ClientLoss", "class_counts", "classwise", "loss"]
