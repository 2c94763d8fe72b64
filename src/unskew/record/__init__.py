"""The files of a run folder, each declared once: runs write them and reports read them through these classes.
Needs no PyTorch.

A field that has a default here is left out of its file if it has that value, and NaN and infinity are written
as null. Accuracies are fractions.

The suffix Record tells a class from one of another module: a `RoundRecord` is a line of a file, a `Round` of
`unskew.result` the round itself."""

from unskew.record.base import BY_CLASS, ByClass, Groups, Json, Number, TrafficRecord
from unskew.record.environment import Environment, Failure, Machine
from unskew.record.faults import FAULTS_SHOWN, ClientStage, Fault, FaultKind, fault_notes
from unskew.record.formats import (
    COMPARE,
    ENVIRONMENT,
    EXPERIMENT,
    FAILURE,
    MODEL,
    PARTITION,
    PLAN,
    PROBE,
    ROUND,
    SUMMARY,
    TUNED,
    DamagedError,
    Format,
    plain,
    to_json,
)
from unskew.record.model import ClientModel, FixedHead, ModelFile, ModelInputs, NetworkRecord, TuningRecord
from unskew.record.partial import (
    BestTrial,
    BudgetRecord,
    Compare,
    Divided,
    ExperimentRecord,
    Named,
    PartitionRecord,
    RunPlace,
    SkewRecord,
    TrialRecord,
    Tuned,
)
from unskew.record.plan import SAME_FOR_ALL, FailedRun, Plan, Planned, is_tunable
from unskew.record.probes import Client, Drift, EffectRecord, ProbeRecord, StagesRecord
from unskew.record.rounds import RoundRecord, TestedRound, Validated
from unskew.record.sites import MOST_SITES, SiteRecord, SiteSpread, SitesRecord
from unskew.record.summary import (
    Accuracy,
    PassesRecord,
    Probabilities,
    Summary,
    SweepTime,
    TallyRecord,
    Time,
    ValidationRecord,
)

__all__ = [
    "BY_CLASS",
    "COMPARE",
    "ENVIRONMENT",
    "EXPERIMENT",
    "FAILURE",
    "FAULTS_SHOWN",
    "MODEL",
    "MOST_SITES",
    "PARTITION",
    "PLAN",
    "PROBE",
    "ROUND",
    "SAME_FOR_ALL",
    "SUMMARY",
    "TUNED",
    "Accuracy",
    "BestTrial",
    "BudgetRecord",
    "ByClass",
    "Client",
    "ClientModel",
    "ClientStage",
    "Compare",
    "DamagedError",
    "Divided",
    "Drift",
    "EffectRecord",
    "Environment",
    "ExperimentRecord",
    "FailedRun",
    "Failure",
    "Fault",
    "FaultKind",
    "FixedHead",
    "Format",
    "Groups",
    "Json",
    "Machine",
    "ModelFile",
    "ModelInputs",
    "Named",
    "NetworkRecord",
    "Number",
    "PartitionRecord",
    "PassesRecord",
    "Plan",
    "Planned",
    "Probabilities",
    "ProbeRecord",
    "RoundRecord",
    "RunPlace",
    "SiteRecord",
    "SiteSpread",
    "SitesRecord",
    "SkewRecord",
    "StagesRecord",
    "Summary",
    "SweepTime",
    "TallyRecord",
    "TestedRound",
    "Time",
    "TrafficRecord",
    "TrialRecord",
    "Tuned",
    "TuningRecord",
    "Validated",
    "ValidationRecord",
    "fault_notes",
    "is_tunable",
    "plain",
    "to_json",
]
