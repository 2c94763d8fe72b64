"""Checkpoints: what training has come to, on disk."""

from unskew.checkpoints.period import Period
from unskew.checkpoints.stages import Checkpoints

__all__ = ["Checkpoints", "Period"]
