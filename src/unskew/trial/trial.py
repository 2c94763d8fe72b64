"""A federation, a model and a budget: all that a run needs in addition to the method."""

from __future__ import annotations

import copy
import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, get_args

import torch
from torch import Tensor, nn

from unskew import models, record
from unskew.attacks import Attack
from unskew.data.augment import Augment
from unskew.data.federation import Federation
from unskew.errors import UserError, unknown, whole_number
from unskew.machine import machine_memory
from unskew.parts.architecture import DescribedModel
from unskew.randomness import Purpose, draw_seed, seed_torch
from unskew.record import NetworkRecord
from unskew.trial.budget import Budget
from unskew.trial.modes import Precision, PrecisionOrAuto, Statistics, Teacher
from unskew.trial.rules import Evaluation, Faults, Probe, Stop
from unskew.types import Tensors, Weights
from unskew.user_code import split_name

MOST_THREADS = 256
"""More threads make no sum faster, and if the system refuses to make them, the process ends without a
message."""


COPIES_IN_TRAINING = 4
"""The least number of copies of a model in training: the initial one, the received one, the one that is
trained, its gradient."""


@dataclass(frozen=True)
class Trial:
    """A federation, a model and a budget: all a run needs in addition to the method."""

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
    """The folder for that rest; None: files without a name, which are removed when the process
    ends."""
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
        """What the model starts from, and which part of it is trained, if that is not all of it."""
        if self.init is None and not self.tuning:
            return ()
        module, matched = self._made()
        notes = [] if matched is None else [matched.note()]
        if self.tuning:
            trained, every = models.count_parameters(module), sum(p.numel() for p in module.parameters())
            notes.append(f"{trained:,} of the model's {every:,} parameters are trained and sent.")
        return tuple(notes)

    def with_model(self, model: nn.Module | Callable[[], nn.Module]) -> Trial:
        """Return the trial with another model, taken as it is: settings for the first one, such as options or
        initial weights, do not apply to it."""
        return replace(self, model=model, norm=None, model_options={}, init=None, tuning=models.Tuning())

    def counts_of(self, client: int, counts: Tensor) -> Tensor:
        """Return a client's label counts as it reports them: the true ones, unless an attack changes them."""
        return self.attack.counts(self.seed, self.federation.clients, client, counts)

    def sent_of(self, weights: Weights) -> Tensors:
        """Return the tensors of a model that the server and the clients send each other: the parameters, and
        the buffers if they are averaged. Otherwise every client keeps its own buffers, or there are none that
        change."""
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
        budget's epochs, or its steps converted to epochs."""
        if self.budget.steps is None and isinstance(self.budget.epochs, int):
            return self.budget.epochs
        return self.passed(self.federation.sizes) / max(1, self.federation.population.samples)

    def passed(self, sizes: Tensor) -> float:
        """Return how many samples clients of these sizes train on in a round, all of them together."""
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
        """Build the model with its initial weights, the same for every method under this trial. With
        `adapted` it returns features and logits, as all of MODELS do."""
        module, _ = self._made()
        if adapted and not isinstance(self.model, str):
            module = models.adapt(module, len(self.federation.dataset.classes))
        if not any(value.requires_grad for value in module.parameters()):
            raise UserError("the model has nothing to train: give it a parameter that requires a gradient.")
        if self.statistics == "batch":
            models.batch_statistics(module)
        return module

    def _made(self) -> tuple[nn.Module, models.Matched | None]:
        """Build the model, and match it with the weights to start from, if any."""
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
        return find_device(self.device)

    def pick_precision(self) -> Precision:
        """Return the precision to use on the trial's device."""
        if self.precision != "auto":
            return self.precision
        return "tf32" if self.pick_device().type == "cuda" else "fp32"


def find_device(name: str) -> torch.device:
    """Return the device of a name such as auto or cuda:1; a UserError if this machine does not have it."""
    wanted = ("cuda" if torch.cuda.is_available() else "cpu") if name == "auto" else name
    try:
        device = torch.device(wanted)
    except RuntimeError:
        raise UserError(f"unknown device '{wanted}': choose auto, cpu, cuda or cuda:N.") from None
    if device.type == "cuda" and not torch.cuda.is_available():
        raise UserError(f"device '{wanted}' is not there: PyTorch sees no GPU, use --device cpu.")
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise UserError(f"device '{wanted}' is not there: PyTorch sees {torch.cuda.device_count()} GPU(s).")
    if device.type not in ("cpu", "cuda") or wanted.startswith("cpu:"):
        raise UserError(f"device '{wanted}' is not supported: choose auto, cpu, cuda or cuda:N.")
    return device


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
    """Make float32 PyTorch's default type, as in the data."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float32)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def _own_network(model: nn.Module | Callable[[], nn.Module], options: dict[str, Any]) -> NetworkRecord:
    """Describe a network that the user's own code makes."""
    if isinstance(model, models.OwnModel):
        file, name = split_name(model.name)
        return NetworkRecord(name=f"{file.name}:{name}", own=True, options=models.stated_options(model))
    maker = type(model) if isinstance(model, nn.Module) else model
    return NetworkRecord(
        name=getattr(maker, "__qualname__", type(maker).__qualname__), own=True, options=options
    )


def _check_memory(name: str, make: Callable[[], nn.Module]) -> None:
    """Refuse a model that does not fit into memory before it is made."""
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
    """Return a module's trainable parameters and its buffers, except for those of frozen BatchNorms."""
    every = {name for name, _ in module.named_parameters(remove_duplicate=False)}
    unsent = every | models.frozen_tensors(module).keys()
    params = {name: value.detach() for name, value in module.named_parameters() if value.requires_grad}
    buffers = {name: value.detach() for name, value in module.state_dict().items() if name not in unsent}
    return Weights(params, buffers)
