"""Checkpoints: the state of training on disk, so that a run that was stopped resumes with the same bits."""

from unskew.checkpoints.period import Period
from unskew.checkpoints.stages import Checkpoints

__all__ = ["Checkpoints", "Period"]
