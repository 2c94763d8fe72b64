"""An experiment as a file: every setting of a run, written out."""

from unskew.experiment.data import check_names, load_data, partition, write_validation
from unskew.experiment.files import read, refuse_code
from unskew.experiment.overrides import assign, method_table, put
from unskew.experiment.resolve import Prepared, Resolved, prepare
from unskew.experiment.settings import (
    DataSpec,
    Experiment,
    MethodSpec,
    ModelSpec,
    Patterns,
    SkewSpec,
    absolute_method,
    brief_skew,
)

__all__ = [
    "DataSpec",
    "Experiment",
    "MethodSpec",
    "ModelSpec",
    "Patterns",
    "Prepared",
    "Resolved",
    "SkewSpec",
    "absolute_method",
    "assign",
    "brief_skew",
    "check_names",
    "load_data",
    "method_table",
    "partition",
    "prepare",
    "put",
    "read",
    "refuse_code",
    "write_validation",
]
