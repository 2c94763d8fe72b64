"""The conditions of a run, the same for every method that is compared under them."""

from unskew.trial.budget import Budget
from unskew.trial.modes import Precision, PrecisionOrAuto, Statistics, Teacher
from unskew.trial.rules import METRICS, Evaluation, Faults, Probe, Stop, StopMetric
from unskew.trial.trial import MOST_THREADS, Trial, find_device, weights_of

__all__ = [
    "METRICS",
    "MOST_THREADS",
    "Budget",
    "Evaluation",
    "Faults",
    "Precision",
    "PrecisionOrAuto",
    "Probe",
    "Statistics",
    "Stop",
    "StopMetric",
    "Teacher",
    "Trial",
    "find_device",
    "weights_of",
]
