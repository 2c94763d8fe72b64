"""unskew: federated learning when clients' labels are skewed."""

from unskew import data, losses, methods, metrics, models
from unskew.data import Dataset, Federation, federate, load
from unskew.data.augment import Augment
from unskew.errors import UserError
from unskew.method import Method
from unskew.program import Program
from unskew.train import Result, Round, train
from unskew.trial import Budget, Evaluation, Probe, Trial

__all__ = [
    "Augment",
    "Budget",
    "Dataset",
    "Evaluation",
    "Federation",
    "Method",
    "Probe",
    "Program",
    "Result",
    "Round",
    "Trial",
    "UserError",
    "data",
    "federate",
    "load",
    "losses",
    "methods",
    "metrics",
    "models",
    "train",
]
