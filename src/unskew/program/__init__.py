"""Methods in stages: a program trains, asks clients and trains again, by a few typed steps.

Every stage has a name, and its result is a value, as is its state after each of its rounds: a run that was
stopped resumes from the values that a `StageStore` has."""

from unskew.program.cost import PassCount
from unskew.program.program import Program
from unskew.program.run import MakeRun, Run, Trained
from unskew.program.stages import StageStore, StoredStage

__all__ = [
    "MakeRun",
    "PassCount",
    "Program",
    "Run",
    "StageStore",
    "StoredStage",
    "Trained",
]
