"""The files of a run folder, each declared once: runs write them and reports read them through these classes.
Needs no PyTorch.

In the files, a field that has a default here is left out where it has that value, and what is NaN or infinite
is null. Accuracies are fractions.

The suffix Record tells a class from one of another module: a `RoundRecord` is a line of a file, a `Round` of
`unskew.result` the round itself.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import MISSING, dataclass, field, fields, is_dataclass
from functools import cached_property
from typing import (
    Annotated,
    Any,
    Generic,
    Literal,
    NotRequired,  # pydantic takes typing's own from Python 3.12 on alone
    TypeVar,
)

from pydantic import (
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    Tag,
    TypeAdapter,
    ValidationError,
    with_config,
)
from typing_extensions import TypedDict

Json = None | bool | int | float | str | list["Json"] | dict[str, "Json"]
Number = float | None
"""None where it does not exist, or is not finite."""
ByClass = list[Number]

BY_CLASS = (
    "class_accuracy", "prediction_share", "local_class_accuracy", "before", "after", "aggregated",
    "confusion", "misclassification_share", "feature_distances", "train", "test",
)  # fmt: skip
"""Fields whose values have an entry for every class."""

_DECLARED = with_config(ConfigDict(extra="forbid", strict=True))
_MORE = with_config(ConfigDict(extra="allow", strict=True))


@_DECLARED
@dataclass(frozen=True)
class Groups:
    """Accuracy on the clients' classes of each kind."""

    majority: Number
    minority: Number
    vacant: Number


@_DECLARED
@dataclass(frozen=True)
class TrafficRecord:
    """Bytes between the server and all clients."""

    up: int
    down: int


ClientStage = Literal["prepare", "train", "update"]
"""Where a client's round can fail: before its first step, in its steps, or after the last."""

FaultKind = Literal["not finite", "form", "norm", "memory", "lost", "error"]
"""What was wrong with a client's answer: it holds NaN or infinite values; names, shapes or types are others
than those it was sent; the update is larger than allowed. Or why there was none: memory ran out, the process
or the machine ended, code raised an error."""


@_DECLARED
@dataclass(frozen=True)
class Fault:
    """Why a round continued without one of its clients."""

    client: int
    stage: ClientStage
    kind: FaultKind
    reason: str
    """In words that fit into a sentence."""


@_DECLARED
@dataclass(frozen=True, kw_only=True)
class Validated:
    """A model on the validation set."""

    accuracy: Number
    macro_f1: Number
    balanced_accuracy: Number
    worst_class_accuracy: Number
    loss: Number


@_DECLARED
@dataclass(frozen=True, kw_only=True)
class RoundRecord:
    """A line of rounds.jsonl, of a round that was not tested."""

    round: Annotated[int, Field(ge=1)]
    """Counted from 1."""
    lr: float
    cohort: list[int]
    trained: list[int]
    """The clients of the cohort that took at least one step and whose updates were used."""
    samples: int
    """How many samples those passed through in training, counted once per epoch."""
    train_loss: Number
    seconds: float
    traffic: TrafficRecord
    tallies: dict[str, int]
    """What the method counted, by name."""
    faults: list[Fault] | None = None
    """The clients of the cohort that were left out; None where there are none."""


MOST_SITES = 100
"""Sites whose numbers stand one by one in a round's record and in summary.json. Of more, a round has the
spread alone, summary.json the lowest ones, and sites.jsonl all of them."""


@_DECLARED
@dataclass(frozen=True, kw_only=True)
class SiteSpread:
    """How equally a model serves the sites that it was trained on, each on its own test samples."""

    sites: int
    """How many there are."""
    mean: Number
    """Over sites, each counted once."""
    worst: Number
    worst_site: str
    best: Number
    std: Number
    """Over sites."""
    q10: Number
    median: Number
    q90: Number
    unseen: Number = None
    """Mean over sites that no client trained on; None where there are none."""
    accuracy: dict[str, Number] | None = None
    """The accuracy on every site; None where there are more than `MOST_SITES`."""


@_DECLARED
@dataclass(frozen=True, kw_only=True)
class SiteRecord:
    """A model on the test samples of one site."""

    name: str
    client: int | None
    """The client that holds its training samples; None where none or several do."""
    train: list[int]
    """Training samples of each class."""
    test: list[int]
    """Test samples of each class."""
    accuracy: Number
    balanced_accuracy: Number
    class_accuracy: ByClass
    worst_class: int | None
    """By its number."""
    held: Number
    """Mean accuracy of the classes that it has in training."""
    vacant: Number
    """Mean accuracy of those that it lacks in training, where it has test samples of them."""
    answered: list[list[int]]
    """Its confusion matrix without the zeros: [class, answer, number of test samples]."""
    samples: int | None = None
    """Training samples in all, where the site does not tell of which classes they are: `train` is 0 then."""

    @property
    def trained_on(self) -> int:
        """How many training samples it has."""
        return sum(self.train) if self.samples is None else self.samples

    def lacks(self, classes: Sequence[str]) -> list[str]:
        """The classes that it has no training sample of, as far as it tells."""
        if self.samples is not None:
            return []
        return [name for name, n in zip(classes, self.train, strict=True) if not n]


@_DECLARED
@dataclass(frozen=True, kw_only=True)
class SitesRecord:
    """The final model at the sites."""

    spread: SiteSpread
    each: list[SiteRecord]
    """Where there are more than `MOST_SITES`, those with the lowest accuracy."""


@_DECLARED
@dataclass(frozen=True, kw_only=True)
class TestedRound(RoundRecord):
    """A line of rounds.jsonl, of a round that was tested."""

    __test__ = False  # no test of pytest's

    accuracy: Number
    loss: Number
    class_accuracy: ByClass
    balanced_accuracy: Number
    max_class: Number
    min_class: Number
    discrepancy: Number
    worst_class: int
    """By its number."""
    groups: Groups
    prediction_share: ByClass
    distance_to_uniform: Number
    domains: dict[str, Number] | None = None
    """Accuracy on each dataset, where several were joined."""
    sites: SiteSpread | None = None
    """Accuracy at the sites, where test samples have owners."""
    macro_f1: Number = None
    validation: Validated | None = None
    """Where there is a validation set."""


@_DECLARED
@dataclass(frozen=True)
class StagesRecord:
    """Accuracy before a local update, after it and after aggregation."""

    before: Number
    after: Number
    aggregated: Number
    drop: Number
    """What the update cost."""


@_DECLARED
@dataclass(frozen=True)
class EffectRecord:
    """What a round did to the clients' classes of each kind; None where there are none."""

    majority: StagesRecord | None
    minority: StagesRecord | None
    vacant: StagesRecord | None


@_DECLARED
@dataclass(frozen=True, kw_only=True)
class Client:
    """One client of a probed round."""

    client: int
    before: ByClass
    after: ByClass
    aggregated: ByClass
    groups: EffectRecord
    in_local: Number
    out_local: Number
    deviation: Number


@_DECLARED
@dataclass(frozen=True)
class Drift:
    """Drift diversity, by what moves are measured from."""

    received: Number
    aggregated: Number


@_DECLARED
@dataclass(frozen=True, kw_only=True)
class ProbeRecord:
    """A line of probes.jsonl."""

    round: Annotated[int, Field(ge=1)]
    seconds: float
    clients: list[Client]
    groups: EffectRecord
    local_class_accuracy: ByClass
    drift: Drift


@_DECLARED
@dataclass(frozen=True)
class TallyRecord:
    """Something that a method counted in the steps of its clients."""

    of: str
    """What was counted, in words."""
    share: list[Number]
    """By round: of the samples that clients passed through; None in rounds that did not count."""


@_DECLARED
@dataclass(frozen=True)
class Accuracy:
    """Accuracy on the test set, over the rounds that were tested."""

    last: Number
    best_by_test: Number
    """The accuracy in the round that was best on the test set itself."""
    mean_last_10: Number
    best_by_validation: Number = None
    """The accuracy in the round that validation chose; None without a validation set."""

    @property
    def final(self) -> Number:
        """The accuracy of the run's model: the one that validation chose, or else the last."""
        return self.last if self.best_by_validation is None else self.best_by_validation


@_DECLARED
@dataclass(frozen=True)
class Probabilities:
    """How good a model's probabilities are on the test set."""

    auc: Number
    calibration_error: Number
    brier: Number
    log_loss: Number


@_DECLARED
@dataclass(frozen=True, kw_only=True)
class ValidationRecord(Validated):
    """Which round validation chose, and how good the run's model is there."""

    metric: str
    """What rounds were chosen by."""
    value: Number
    """The value of the metric for the run's model."""
    round: int
    """The chosen one."""
    line: int
    """The round whose line in rounds.jsonl is of the run's model: the chosen one, or the last of a method
    that changes the model after it."""
    stopped: int | None
    """The round after which training stopped early; None where all were done."""
    samples: int
    """How many validate."""


@_DECLARED
@dataclass(frozen=True)
class PassesRecord:
    """Forward passes for each of a client's samples."""

    trained: float
    frozen: float
    once: float


@_DECLARED
@dataclass(frozen=True)
class Time:
    """Where the seconds of a run went. The parts add up to the total."""

    total: float
    start: dict[str, float]
    """Before training, by part: imports, data, partition and the rest. Runs of one compare share theirs,
    which stands in compare.json."""
    first_round: float
    """With the start of the engine and all that is done once."""
    rounds: float
    """All others."""
    end: float
    """After the last round."""


@_DECLARED
@dataclass(frozen=True)
class SweepTime:
    """Where the seconds of a compare went. The parts add up to the total."""

    total: float
    start: dict[str, float]
    """Before the first run, by part."""
    runs: float
    """The runs, from the beginning of the first to the end of the last."""
    end: float
    """After it."""


@_DECLARED
@dataclass(frozen=True, kw_only=True)
class Summary:
    """summary.json, and what `--json` prints."""

    identity: str
    """The hash of the experiment: see `Experiment.identity`."""
    method: str
    hyperparameters: dict[str, Any]
    dataset: str
    skew: str
    clients: int
    seed: int
    partition_seed: int
    rounds: int
    accuracy: Accuracy
    balanced_accuracy: Number
    loss: Number
    classes: list[str]
    class_accuracy: ByClass
    groups: Groups
    worst_class: int
    worst_class_accuracy: Number
    discrepancy: Number
    forgetting: Number
    confusion: list[list[int]]
    misclassification_share: list[ByClass]
    mean_probability: list[ByClass]
    feature_distances: list[ByClass]
    notes: list[str]
    seconds: float
    probe_seconds: Number
    traffic: TrafficRecord
    passes: PassesRecord | None
    cost: Number
    tallies: dict[str, TallyRecord]
    weights_sha256: str
    time: Time
    run_dir: str
    domains: dict[str, Number] | None = None
    sites: SitesRecord | None = None
    macro_f1: Number = None
    probabilities: Probabilities | None = None
    """None where the method's model cannot be asked."""
    validation: ValidationRecord | None = None
    """Where there is a validation set: the run's model is then that of the round they chose."""


@_DECLARED
@dataclass(frozen=True)
class FixedHead:
    """A last layer that is never trained, and how the features before it are normalised."""

    normalise: Literal["batch", "l2", "none"]
    length: float
    """The length of every feature vector, where they are normalised by l2."""


@_DECLARED
@dataclass(frozen=True)
class ClientModel:
    """The client that one of several models belongs to."""

    client: int
    name: str
    """Such as the site's; empty where clients have no names."""


@_DECLARED
@dataclass(frozen=True, kw_only=True)
class TuningRecord:
    """Which part of a model was trained, as `unskew.models.Tuning`: adapters are parts of it since."""

    freeze: tuple[str, ...] = ()
    train_only: tuple[str, ...] = ()
    lora: Annotated[int, Field(ge=0)] = 0
    lora_alpha: float = 0.0
    lora_layers: tuple[str, ...] = ()


@_DECLARED
@dataclass(frozen=True, kw_only=True)
class NetworkRecord:
    """What a model is made of: all it takes to build it again but its weights."""

    name: str
    """A name of `unskew.models.MODELS`; of one's own model the file and the class, or its name in Python."""
    own: bool = False
    """Whether it is built by one's own code, which is run only where somebody asks for it."""
    norm: str | None = None
    options: dict[str, Any] = field(default_factory=dict)
    statistics: Literal["average", "local", "batch"] = "average"
    """What becomes of BatchNorm statistics: with local and batch every batch is normalised by its own."""
    precision: Literal["fp32", "tf32", "bf16"] = "fp32"
    tuning: TuningRecord | None = None
    """None: all of it was trained."""
    fixed_head: FixedHead | None = None
    """What a method has put in the place of the last layer."""
    side_by_side: Annotated[int, Field(ge=1)] | None = None
    """How many such networks stand side by side, under one last layer."""
    clients: list[ClientModel] | None = None
    """The clients whose models these are, where there are several, stacked in every tensor."""


@_DECLARED
@dataclass(frozen=True, kw_only=True)
class ModelInputs:
    """What one sample looks like to a model before it is normalised."""

    kind: Literal["image", "table", "text"]
    shape: list[Annotated[int, Field(ge=1)]]
    """image: channels, height, width; table: features; text: tokens."""
    vocabulary: Annotated[int, Field(ge=0)] = 0
    """text only: how many token ids there are."""


@_DECLARED
@dataclass(frozen=True, kw_only=True)
class ModelFile:
    """What model.json and the metadata of model.safetensors hold: all it takes to use the model."""

    version: Literal[1]
    """The version of this format."""
    network: NetworkRecord
    inputs: ModelInputs
    classes: list[str]
    mean: list[float]
    """By channel, of pixels divided by 255; empty: they are not normalised."""
    std: list[Annotated[float, Field(gt=0)]]
    columns: dict[str, Any] | None = None
    """How the columns of a table become features: `unskew.data.columns.Columns`."""
    words: dict[str, Any] | None = None
    """How texts become token ids: `unskew.data.words.Words`."""
    method: str
    dataset: str
    seed: int | None = None
    """None where it is kept from those who have the model, as with differential privacy."""
    round: int
    """The round after which the model was this, counted from 1."""
    identity: str | None = None
    """The hash of the experiment (`Experiment.identity`); None where the seed is, which it could reveal."""


@_DECLARED
@dataclass(frozen=True, kw_only=True)
class Machine:
    """Where and when something began."""

    started: str
    command: list[str]
    device: str
    device_name: str
    cores: int | None
    platform: str
    python: str
    versions: dict[str, str]
    unskew_commit: str | None
    working_directory_commit: str | None


@_DECLARED
@dataclass(frozen=True, kw_only=True)
class Environment(Machine):
    """What environment.json holds: where a run ran, and which."""

    identity: str
    """The hash of the experiment (`Experiment.identity`), here too for runs that do not end."""
    changed: dict[str, dict[str, Any]] | None = None
    """The hyperparameters that do not have their defaults, by the parts of the method: the method's label is
    made of them. None where these are not known."""


@_DECLARED
@dataclass(frozen=True, kw_only=True)
class Failure:
    """error.json: why a run ended before its last round."""

    error: str
    """In one line."""
    notes: list[str]
    """Where it happened, such as the client, the round and the stage; a sentence each."""
    traceback: str

    @property
    def sentence(self) -> str:
        """The error and where it happened."""
        return " ".join(
            [self.error if self.error.endswith((".", "!", "?")) else f"{self.error}.", *self.notes]
        )


@_DECLARED
@dataclass(frozen=True)
class FailedRun:
    """A run of a compare that has failed, as compare.json lists it."""

    method: str
    seed: int
    identity: str
    run_dir: str
    error: str


@_DECLARED
@dataclass(frozen=True)
class Planned:
    """A run that a compare is going to make."""

    folder: str
    """Its name in the compare's folder."""
    identity: str
    method: str = ""
    """The method as it was typed."""
    experiment: dict[str, Any] = field(default_factory=dict)
    """The experiment as experiment.toml will have it."""
    condition: str = ""
    """What its setting is called, where there are several."""


@_DECLARED
@dataclass(frozen=True)
class Plan:
    """plan.json: what a compare is going to run."""

    runs: list[Planned]
    rounds: int
    """How many rounds each run has."""
    reference: str | None = None
    """The method that the others are to be compared with, where it was asked for."""


# What is declared elsewhere, or holds more than reports rely on: other keys may stand beside these.


@_MORE
class Named(TypedDict):
    name: str


@_MORE
class SkewRecord(TypedDict):
    recipe: str
    clients: NotRequired[int]


@_MORE
class BudgetRecord(TypedDict):
    rounds: int
    cohort: int | Literal["all"]


@_MORE
class ExperimentRecord(TypedDict):
    """What reports rely on in experiment.toml."""

    seed: int
    data: Named
    skew: SkewRecord
    model: Named
    method: Named
    budget: BudgetRecord


@_MORE
class Divided(TypedDict):
    classes: list[str]
    samples: NotRequired[str]


@_MORE
class PartitionRecord(TypedDict):
    """What reports rely on in partition.json."""

    dataset: Divided
    counts: list[list[int]]
    names: NotRequired[list[str]]


@_MORE
class RunPlace(TypedDict):
    run_dir: str


@_MORE
class TrialPlace(TypedDict):
    method: str
    trial: int
    folders: list[str]


def _from_one(value: object) -> object:
    """A trial as it is today, of a tune.json that counts it from 0, as older ones do."""
    if isinstance(value, dict) and "trial" not in value and isinstance(value.get("number"), int):
        return {**value, "trial": value["number"] + 1}
    return value


@_MORE
class BestTrial(TypedDict):
    method: str
    trial: int


@_MORE
class Tuned(TypedDict):
    """What reports rely on in tune.json."""

    winners: list[BestTrial]
    all: list[Annotated[TrialPlace, BeforeValidator(_from_one)]]


@_MORE
class Compare(TypedDict):
    """What reports rely on in compare.json."""

    runs: list[RunPlace]
    methods: dict[str, Any]


# Reading and writing

T = TypeVar("T")


class DamagedError(ValueError):
    """Why a text is not what it should be; begins with the field, where it is one field's fault."""


class Format(Generic[T]):
    """How values of a kind are read from their files."""

    def __init__(self, kind: Any, *, tagged: bool = False) -> None:
        self._kind, self._tagged = kind, tagged

    @cached_property
    def _adapter(self) -> TypeAdapter[T]:  # a run that only writes does without
        return TypeAdapter(self._kind)

    def parse(self, text: str) -> T:
        """Read a value from JSON."""
        try:
            return self._adapter.validate_json(text)
        except ValidationError as error:
            raise self._damaged(error) from None

    def check(self, value: object) -> T:
        """Check what JSON or TOML was read to already."""
        try:
            return self._adapter.validate_python(value)
        except ValidationError as error:
            raise self._damaged(error) from None

    def _damaged(self, error: ValidationError) -> DamagedError:
        first = error.errors(include_url=False)[0]
        place = ".".join(map(str, first["loc"][self._tagged :]))
        if first["type"] == "missing":
            return DamagedError(f"{place} is missing")
        if first["type"] == "unexpected_keyword_argument":
            return DamagedError(f"{place} is not a field that this version knows")
        return DamagedError(f"{place}: {first['msg']}" if place else first["msg"])


ROUND: Format[RoundRecord] = Format(
    Annotated[
        Annotated[RoundRecord, Tag("plain")] | Annotated[TestedRound, Tag("tested")],
        Discriminator(lambda line: "tested" if isinstance(line, dict) and "accuracy" in line else "plain"),
    ],
    tagged=True,
)
PROBE: Format[ProbeRecord] = Format(ProbeRecord)
SUMMARY: Format[Summary] = Format(Summary)
ENVIRONMENT: Format[Environment] = Format(Environment)
MODEL: Format[ModelFile] = Format(ModelFile)
FAILURE: Format[Failure] = Format(Failure)
PLAN: Format[Plan] = Format(Plan)
EXPERIMENT: Format[ExperimentRecord] = Format(ExperimentRecord)
PARTITION: Format[PartitionRecord] = Format(PartitionRecord)
COMPARE: Format[Compare] = Format(Compare)
TUNED: Format[Tuned] = Format(Tuned)


SAME_FOR_ALL = ("rounds", "cohort", "epochs", "steps")
"""Settings of the budget that methods which are compared are given alike."""


def is_tunable(setting: str) -> bool:
    """Whether a setting such as budget.lr may be another for each method that is compared."""
    table, _, name = setting.partition(".")
    return table == "budget" and name not in SAME_FOR_ALL


FAULTS_SHOWN = 3
"""How many faults of a run are named one by one, in its note and while it runs; the others are counted."""


def fault_notes(faults: Iterable[tuple[int, Fault]]) -> list[str]:
    """A note of the clients that were left out, each with the round, counted from 1; none where there are
    none. Of many, the first are named."""
    each = [
        f"client {fault.client} in round {round}, stage '{fault.stage}' ({fault.reason})"
        for round, fault in faults
    ]
    more = [f"{len(each) - FAULTS_SHOWN} more in rounds.jsonl"] if len(each) > FAULTS_SHOWN else []
    return [f"rounds continued without {'; '.join([*each[:FAULTS_SHOWN], *more])}."] if each else []


def to_json(value: Any, indent: int | None = 2) -> str:
    """Strict JSON: NaN and infinity become null. One line for a program is ASCII, whatever the terminal."""
    return json.dumps(plain(value), indent=indent, ensure_ascii=indent is None, allow_nan=False)


def plain(value: Any) -> Any:
    """A value of these classes, or one that holds some, as it stands in its file."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, list | tuple):
        return [plain(part) for part in value]
    if isinstance(value, dict):
        return {key: plain(part) for key, part in value.items()}
    if is_dataclass(value):
        values = ((each, getattr(value, each.name)) for each in fields(value))
        return {
            each.name: plain(part) for each, part in values if each.default is MISSING or part != each.default
        }
    return value
