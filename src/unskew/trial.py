"""The conditions of a run, the same for every method that is compared under them."""

from __future__ import annotations

import copy
import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from fractions import Fraction
from functools import cached_property, lru_cache, partial
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

import torch
from pydantic import AfterValidator, Field, PlainSerializer
from torch import Tensor, nn

from unskew import metrics, models, record
from unskew.attacks import Attack
from unskew.client_tensors import machine_memory
from unskew.data.augment import Augment
from unskew.data.federation import Federation
from unskew.errors import UserError, unknown, whole_number
from unskew.notation import items
from unskew.parts.architecture import DescribedModel
from unskew.parts.optimizers import OptimizerChoice
from unskew.parts.schedules import Schedule
from unskew.randomness import Purpose, draw_seed, seed_torch
from unskew.record import NetworkRecord
from unskew.spec import Spec
from unskew.types import Optimizer, Tensors, Weights
from unskew.user_code import split_name

MOST_THREADS = 256
"""More make no sum faster, and where the system refuses to make them, the process ends without a word."""


def _whole(number: float) -> float:
    """A whole number as such, however it was written."""
    return int(number) if number == int(number) else number


class _Decay(Spec):
    lr_decay: float = Field(gt=0, le=1)


class Budget(Spec):
    """How much every method may train."""

    rounds: int = Field(default=20, ge=1)
    cohort: Literal["all"] | int = "all"
    """Clients that take part in a round."""
    epochs: (
        Annotated[
            float, Field(gt=0, le=1e9), AfterValidator(_whole), PlainSerializer(_whole, return_type=Any)
        ]
        | None
    ) = 5
    """Passes of a client over its data in a round; None where `steps` are given. Of a part of a pass, so many
    of its batches, rounded up."""
    steps: int | None = Field(default=None, ge=1)
    """Local steps of every client in a round, whatever it holds, in the place of epochs: pass follows pass,
    each freshly shuffled and with the smaller batch at its end, until so many steps are taken."""
    batch_size: int = Field(default=32, ge=1)
    lr: float = Field(default=0.01, gt=0, le=1e30)
    schedule: str = "constant"
    """How the learning rate changes over the rounds: see `unskew.parts.schedules.Schedule`. `lr_decay=0.99`
    is another way to write exponential:0.99."""
    optimizer: str = "sgd"
    """By which rule clients move: see `unskew.parts.optimizers.OptimizerChoice`."""
    optimizer_state: Literal["fresh", "kept"] = "fresh"
    """A client's momentum, or moments, at the start of its round: none, or what it had at the end of its
    last, as in the released baselines of FedVLS (for study: it meets new weights)."""
    momentum: float | None = Field(default=0.9, ge=0, lt=1)
    """The momentum of SGD; None for other optimisers."""
    weight_decay: float = Field(default=1e-5, ge=0, le=1e30)

    def __init__(self, **values: Any) -> None:
        if "lr_decay" in values:
            if "schedule" in values:
                raise UserError("schedule and lr_decay are both given: lr_decay is exponential, keep one.")
            decay = _Decay(lr_decay=values.pop("lr_decay")).lr_decay
            values["schedule"] = "constant" if decay == 1 else f"exponential:{decay!r}"
        if values.get("steps") is not None:
            if values.setdefault("epochs", None) is not None:
                raise UserError("steps and epochs are both given: a round has so many of one, keep one.")
        elif "epochs" in values and values["epochs"] is None:
            raise UserError("epochs is None but there are no steps: give one of them.")
        for name, kind in (("schedule", Schedule), ("optimizer", OptimizerChoice)):
            if isinstance(values.get(name), str):
                values[name] = str(kind.parse(values[name]))
        if str(values.get("optimizer", "sgd")) != "sgd" and values.setdefault("momentum", None) is not None:
            raise UserError("momentum is of the optimizer sgd: leave it out, adam and adamw have betas.")
        if str(values.get("optimizer", "sgd")) == "sgd" and values.get("momentum", 0.9) is None:
            values["momentum"] = 0.0
        super().__init__(**values)
        if self.cohort != "all" and self.cohort < 1:
            raise UserError(f"cohort is {self.cohort} but should be at least 1, or 'all'.")
        plan = Schedule.parse(self.schedule)
        if plan.final > self.lr:
            raise UserError(f"schedule cosine final is {plan.final:g} but should be at most lr, {self.lr:g}.")
        if plan.warmup >= self.rounds and plan.warmup:
            raise UserError(
                f"schedule {plan.kind} warmup is {plan.warmup} but should be less than the {self.rounds} "
                "rounds: lower it."
            )

    def lr_at(self, round: int) -> float:
        """The learning rate of a round, counted from 0."""
        return Schedule.parse(self.schedule).lr_at(round, self.lr, self.rounds)

    def local_optimizer(self, lr: float | Tensor, *, fused: bool = False) -> Optimizer:
        """The rule by which clients move; `fused`: in the form of a GPU's kernels."""
        choice = OptimizerChoice.parse(self.optimizer)
        return choice.rule(lr, momentum=self.momentum or 0.0, weight_decay=self.weight_decay, fused=fused)

    def batch_sizes(self, samples: int, *, drop_single: bool = False) -> list[int]:
        """The sizes of the batches of one pass. `drop_single` leaves out a trailing batch of one sample after
        full ones, from which BatchNorm could take no statistics."""
        full, rest = divmod(samples, self.batch_size)
        left_out = drop_single and rest == 1 and full
        return [self.batch_size] * full + ([rest] if rest and not left_out else [])

    def steps_in(self, batches: int) -> int:
        """The local steps of a client whose pass over its data has so many batches."""
        if self.steps is not None:
            return self.steps if batches else 0
        return _steps_in(self.epochs, batches)

    def passed(self, samples: int, *, drop_single: bool = False) -> int:
        """How many samples a client that holds so many passes through in a round, counted once per epoch."""
        sizes = self.batch_sizes(samples, drop_single=drop_single)
        whole, rest = divmod(self.steps_in(len(sizes)), max(1, len(sizes)))
        return whole * sum(sizes) + sum(sizes[:rest])


@lru_cache(maxsize=1024)
def _steps_in(epochs: float, batches: int) -> int:
    """Counted by the decimal digits of `epochs`: in binary 0.1 is not exactly a tenth."""
    return math.ceil(Fraction(str(epochs)) * batches)


class Evaluation(Spec):
    """When and how the global model is tested and validated."""

    every: int = Field(default=1, ge=1)
    """Test, and validate, after every so many rounds; the last round always is."""
    batch_size: int = Field(default=500, ge=1)

    def due(self, round: int, rounds: int) -> bool:
        """Whether the model is to be tested after a round, counted from 1."""
        return round % self.every == 0 or round == rounds


StopMetric = Literal["accuracy", "macro-f1", "balanced-accuracy", "worst-class", "loss"]
"""What rounds are chosen by, on the validation samples; of `loss`, less is better."""


class Stop(Spec):
    """How a round is chosen on the validation samples, and when training stops because none gets better."""

    patience: int | None = Field(default=None, ge=1)
    """Stop after so many rounds without a better one; None: never."""
    metric: StopMetric = "accuracy"
    min_delta: float = Field(default=0.0, ge=0)
    """How much better a round has to be for patience to begin anew. The best round is chosen without it."""

    @classmethod
    def parse(cls, text: str) -> Stop:
        """Read `none`, or `patience=20,metric=macro-f1,min_delta=0.001`, of which each may be left out."""
        if text.strip() in ("", "none"):
            return cls()
        values: dict[str, Any] = {}
        for item in items(text):
            if item.key not in cls.model_fields or item.key in values:
                raise UserError(
                    f"stop is '{text}' but should be such as patience=20,metric=macro-f1,min_delta=0.001, or "
                    "none."
                )
            values[item.key] = item.value
        try:
            return cls(**values)
        except UserError as error:
            raise UserError(f"stop.{error}") from None

    def __str__(self) -> str:
        if self == Stop():
            return "none"
        options = self.model_dump(exclude_none=True)
        return ",".join(f"{key}={value}" for key, value in options.items())

    def score(self, confusion: metrics.Counts, loss: float) -> float:
        """How good a model is by the metric, from its confusion matrix and its loss: more is better."""
        if self.metric == "loss":
            return -loss
        return float(METRICS[self.metric](confusion))


METRICS: dict[str, Callable[[metrics.Counts], float]] = {
    "accuracy": metrics.accuracy,
    "macro-f1": metrics.macro_f1,
    "balanced-accuracy": metrics.balanced_accuracy,
    "worst-class": lambda confusion: metrics.max_mean_min(metrics.class_accuracy(confusion))["min"],
}


class Probe(Spec):
    """How often the clients' own models are looked at: what a round did to each, which costs a test each."""

    every: int = Field(default=0, ge=0)
    """Probe every so many rounds, and the last one; 0: never."""

    def due(self, round: int, rounds: int) -> bool:
        """Whether a round, counted from 1, is to be probed."""
        return bool(self.every) and (round % self.every == 0 or round == rounds)


class Faults(Spec):
    """What becomes of a client that sends no update, or one that cannot be used: with NaN or infinite values,
    with other names, shapes or types than it was sent, or too large."""

    on_fault: Literal["stop-at-errors", "skip", "stop"] = "stop-at-errors"
    """skip: the round continues without the client. stop: the run stops. stop-at-errors: it stops where code
    raises an error, as a mistake in a method does, and otherwise continues."""
    min_clients: int = Field(default=1, ge=0)
    """With fewer usable updates than this, a round with a fault stops the run; 0: it needs none."""
    max_norm: float = Field(default=0.0, ge=0)
    """The largest norm that an update may have; 0: any."""


Statistics = Literal["average", "local", "batch"]
"""What becomes of BatchNorm statistics. average: the server averages them with the clients' weights.
local: they stay with their client, and the global model is tested on the statistics of the test batch.
batch: there are none, and every forward pass normalises by its own batch."""


Precision = Literal["fp32", "tf32", "bf16"]
"""fp32: full. tf32: matrix products and convolutions on a GPU round their inputs to 10 bits, also in losses
and at the server. bf16: models' passes under autocast; weights, optimiser and losses stay in float32."""
PrecisionOrAuto = Literal["auto", Precision]


Teacher = Literal["running", "batch"]
"""What the BatchNorms of a teacher normalise by: its own running statistics, or those of the client's batch,
as in the released FedVLS, which leaves its teacher in training mode."""


COPIES_IN_TRAINING = 4
"""The least number of copies of a model in training: the initial one, the received one, the one that is
trained, its gradient."""


@dataclass(frozen=True)
class Trial:
    """A federation, a model and a budget: all a run needs beside the method."""

    federation: Federation
    model: str | nn.Module | Callable[[], nn.Module]
    """A name of `unskew.models.MODELS`, your own module (its weights are the initial ones), or a function
    that makes one (called under the trial's seed)."""
    budget: Budget = Budget()
    evaluation: Evaluation = Evaluation()
    seed: int = 1
    norm: str | None = None
    """Normalisation of a named model: batch, group, ws, group+ws or none; None for the published one."""
    model_options: Mapping[str, Any] = field(default_factory=dict)
    """Options of a named model, such as features, or hidden of the perceptrons."""
    init: str | Path | Mapping[str, Tensor] | models.TrainedWeights | None = None
    """Trained weights to start from: a file, a run's folder, or tensors by name. What has the name and shape
    of a tensor of the model takes its place; `notes` says what did not."""
    tuning: models.Tuning = models.Tuning()
    """Which parameters are trained: all, some of them, or LoRA's adapters. Only these are sent."""
    statistics: Statistics = "average"
    teacher: Teacher = "running"
    augment: Augment = Augment()
    engine: str = "auto"
    """How clients are run: a name of `unskew.engines.ENGINES`, or the fastest there is for the device."""
    device: str = "auto"
    threads: int = 1
    """CPU threads of the numeric work. Part of the trial, because it changes the order of sums."""
    workers: int = 0
    """How many clients an engine may run side by side; 0: as many as suit the machine. No result depends on
    it."""
    trace: bool = True
    """Whether engine `pool` may trace a client's step and replay it without Python. No result depends on
    it."""
    precision: PrecisionOrAuto = "auto"
    """How exactly numbers are computed; auto: tf32 on a GPU, fp32 on a CPU."""
    fast: bool = False
    """Whether a GPU may take its fastest kernels: steps compiled as a whole, and of cuDNN's kernels those
    that win a race. Last bits then differ from run to run."""
    probe: Probe = Probe()
    faults: Faults = Faults()
    client_memory: float | None = None
    """How many GB of what clients keep between rounds may stay in memory; the rest goes to disk. None: a part
    of the machine's. No result depends on it."""
    client_files: Path | None = None
    """The folder for that rest; None: files without a name, which go with the process."""
    attack: Attack = Attack()
    """What some clients do instead of what they are asked to."""
    stop: Stop = Stop()
    """By which metric a round is chosen on the federation's validation samples, and when training stops."""

    def __post_init__(self) -> None:
        if not isinstance(self.federation, Federation):
            raise UserError("a trial needs a federation: make one with unskew.federate(dataset, skew, ...).")
        if isinstance(self.model, str) and self.model not in models.MODELS:
            raise unknown("model", self.model, models.MODELS)
        if self.init is not None:
            object.__setattr__(self, "init", models.TrainedWeights.of(self.init))
        for name, least in (("seed", 0), ("threads", 1), ("workers", 0)):
            whole_number(name, getattr(self, name), least)
        if self.threads > MOST_THREADS:
            raise UserError(f"threads is {self.threads} but should be at most {MOST_THREADS}.")
        if self.precision not in get_args(PrecisionOrAuto):
            raise unknown("precision", str(self.precision), get_args(PrecisionOrAuto))
        if self.client_memory is not None and not 0 <= self.client_memory < math.inf:
            raise UserError(f"client_memory is {self.client_memory} but should be 0 or more GB.")
        if self.budget.cohort != "all" and self.budget.cohort > self.federation.clients:
            raise UserError(
                f"budget.cohort is {self.budget.cohort} but there are {self.federation.clients} clients: "
                "lower the cohort or raise the number of clients."
            )
        if self.stop != Stop() and self.federation.validation is None:
            raise UserError(
                f"stop is '{self.stop}', but there is nothing to validate on: give validation=0.1, or leave "
                "it out."
            )
        self.augment.check(self.federation.dataset.inputs)
        if self.attack.kind == "label-flip" and self.federation.dataset.train.drawn:
            raise UserError("label-flip needs data that is there: clients that are drawn keep their labels.")

    @property
    def notes(self) -> tuple[str, ...]:
        """What a reader of its results should know of the conditions."""
        attack = self.attack.notes(self.seed, self.federation.clients)
        return (*self.federation.partition.notes, *self.start_notes, *attack)

    @cached_property
    def start_notes(self) -> tuple[str, ...]:
        """What the model starts from, and which part of it is trained, where that is not all of it."""
        if self.init is None and not self.tuning:
            return ()
        module, matched = self._made()
        notes = [] if matched is None else [matched.note()]
        if self.tuning:
            trained, every = models.count_parameters(module), sum(p.numel() for p in module.parameters())
            notes.append(f"{trained:,} of the model's {every:,} parameters are trained and sent.")
        return tuple(notes)

    def with_model(self, model: nn.Module | Callable[[], nn.Module]) -> Trial:
        """The trial with another model, which is taken as it is: what was asked of the first, such as options
        or weights to start from, is no longer."""
        return replace(self, model=model, norm=None, model_options={}, init=None, tuning=models.Tuning())

    def counts_of(self, client: int, counts: Tensor) -> Tensor:
        """A client's label counts as it claims them: true, unless an attack says otherwise."""
        return self.attack.counts(self.seed, self.federation.clients, client, counts)

    def sent_of(self, weights: Weights) -> Tensors:
        """What of a model the server and the clients send each other: its parameters, and its buffers where
        they are averaged. Elsewhere clients keep their own, or all have the same for good."""
        return weights.params | weights.buffers if self.statistics == "average" else weights.params

    @property
    def keeps_buffers(self) -> bool:
        """Whether every client keeps its own buffers instead of sending them."""
        return self.statistics == "local"

    @property
    def cohort(self) -> int:
        """How many clients take part in a round."""
        return self.federation.clients if self.budget.cohort == "all" else self.budget.cohort

    @cached_property
    def epochs(self) -> float:
        """How often a round passes a client's sample through the model, on average over all samples: the
        budget's epochs, or what its steps come to."""
        if self.budget.steps is None and isinstance(self.budget.epochs, int):
            return self.budget.epochs
        return self.passed(self.federation.sizes) / max(1, self.federation.population.samples)

    def passed(self, sizes: Tensor) -> float:
        """How many samples clients that hold so many each pass through in a round, all of them together."""
        if self.budget.steps is None and isinstance(self.budget.epochs, int):
            return self.budget.epochs * int(sizes.sum())
        clients = Counter[int](sizes.tolist())
        each = {held: self.budget.passed(held, drop_single=self._normed) for held in clients}
        return sum(each[held] * times for held, times in clients.items())

    @cached_property
    def _normed(self) -> bool:
        return bool(models.moving_norms(self.build()))

    @property
    def network(self) -> NetworkRecord:
        """What the model is made of."""
        options = dict(self.model_options)
        if isinstance(self.model, str):
            known = models.MODELS[self.model]
            options = {name: options.get(name, value) for name, value in known.defaults.items()}
            network = NetworkRecord(name=self.model, norm=self.norm or known.norms[0], options=options)
        elif isinstance(self.model, DescribedModel):
            network = self.model.network
        else:
            network = _own_network(self.model, options)
        if self.tuning:
            network = replace(network, tuning=record.TuningRecord(**asdict(self.tuning)))
        return replace(network, statistics=self.statistics, precision=self.pick_precision())

    def build(self, *, adapted: bool = True) -> nn.Module:
        """The model with its initial weights: the same for every method under this trial. `adapted` says that
        it returns features and logits, as all of MODELS do."""
        module, _ = self._made()
        if adapted and not isinstance(self.model, str):
            module = models.adapt(module, len(self.federation.dataset.classes))
        if not any(value.requires_grad for value in module.parameters()):
            raise UserError("the model has nothing to train: give it a parameter that requires a gradient.")
        if self.statistics == "batch":
            models.batch_statistics(module)
        return module

    def _made(self) -> tuple[nn.Module, models.Matched | None]:
        """The model, and what of the weights to start from it has taken."""
        dataset = self.federation.dataset
        classes = len(dataset.classes)
        with torch.random.fork_rng(devices=[]):
            if isinstance(self.model, str):
                options = {"norm": self.norm, **self.model_options}
                make = partial(models.build, self.model, dataset.inputs, classes, **options)
                _check_memory(self.model, make)
            gpu = torch.cuda.is_available()  # a model of one's own may draw there
            seed_torch(draw_seed(self.seed, Purpose.INITIAL_WEIGHTS), torch.device("cuda" if gpu else "cpu"))
            if isinstance(self.model, str):
                with _float32():
                    module: nn.Module = make()
            else:  # a function may return a module that its caller goes on using
                module = _copy(self.model if isinstance(self.model, nn.Module) else self.model())
            self.tuning.apply(module, classes)
        if self.init is None:
            return module, None
        assert isinstance(self.init, models.TrainedWeights)  # read when the trial was made
        return module, self.init.load_into(module)

    def pick_device(self) -> torch.device:
        wanted = self.device
        if wanted == "auto":
            wanted = "cuda" if torch.cuda.is_available() else "cpu"
        try:
            device = torch.device(wanted)
        except RuntimeError:
            raise UserError(f"unknown device '{wanted}': choose auto, cpu, cuda or cuda:N.") from None
        if device.type == "cuda" and not torch.cuda.is_available():
            raise UserError(f"device '{wanted}' is not there: PyTorch sees no GPU, use --device cpu.")
        if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
            raise UserError(
                f"device '{wanted}' is not there: PyTorch sees {torch.cuda.device_count()} GPU(s)."
            )
        if device.type not in ("cpu", "cuda") or wanted.startswith("cpu:"):
            raise UserError(f"device '{wanted}' is not supported: choose auto, cpu, cuda or cuda:N.")
        return device

    def pick_precision(self) -> Precision:
        """The trial's precision on its device."""
        if self.precision != "auto":
            return self.precision
        return "tf32" if self.pick_device().type == "cuda" else "fp32"


def _copy(module: nn.Module) -> nn.Module:
    try:
        return copy.deepcopy(module)
    except RuntimeError as error:
        if "deepcopy" not in str(error):
            raise
        raise UserError(
            "the model holds a tensor that was computed from others, which cannot be copied: use "
            "torch.nn.utils.parametrizations where it has torch.nn.utils.weight_norm."
        ) from error


@contextmanager
def _float32() -> Iterator[None]:
    """Make tensors of float32, whatever PyTorch's default is, as data are."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float32)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def _own_network(model: nn.Module | Callable[[], nn.Module], options: dict[str, Any]) -> NetworkRecord:
    """A network that is made by the user's own code."""
    if isinstance(model, models.OwnModel):
        file, name = split_name(model.name)
        return NetworkRecord(name=f"{file.name}:{name}", own=True, options=models.stated_options(model))
    maker = type(model) if isinstance(model, nn.Module) else model
    return NetworkRecord(
        name=getattr(maker, "__qualname__", type(maker).__qualname__), own=True, options=options
    )


def _check_memory(name: str, make: Callable[[], nn.Module]) -> None:
    """Refuse a model that no memory holds before it is made."""
    try:
        with torch.device("meta"):  # its shapes alone
            size: float = 4 * sum(value.numel() for value in make().parameters())
    except (RuntimeError, TypeError) as error:  # a number that is no size of a tensor
        if "overflow" not in str(error).lower():
            raise
        size = math.inf
    if COPIES_IN_TRAINING * size > machine_memory():
        raise UserError(f"model '{name}' is larger than the memory of this machine: choose a smaller one.")


def weights_of(module: nn.Module) -> Weights:
    """A module's trainable parameters, and its buffers but for those of frozen BatchNorms."""
    every = {name for name, _ in module.named_parameters(remove_duplicate=False)}
    unsent = every | models.frozen_tensors(module).keys()
    params = {name: value.detach() for name, value in module.named_parameters() if value.requires_grad}
    buffers = {name: value.detach() for name, value in module.state_dict().items() if name not in unsent}
    return Weights(params, buffers)
