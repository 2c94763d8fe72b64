"""What a method makes its clients compute, keep and send, observed in a short training. It is for methods
whose card does not state it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from torch import Tensor, nn

from unskew.engines.job import Fit, Job, Outcome, Task
from unskew.engines.loop import Loop
from unskew.method import Method
from unskew.methods.card import NOT_STATED
from unskew.program import Program, Run, Trained
from unskew.testing import HARD_COUNTS, hard_trial
from unskew.trial import Trial
from unskew.types import ServerState, Tensors, Updates, Weights

ROUNDS = 3


@dataclass(frozen=True)
class Observed:
    """What clients did in a short training, in the words of a method's card."""

    passes: str
    memory: str
    traffic: str
    sends: str


def observe(method: Method | Program) -> Observed:
    """Train a few clients with four classes for three rounds, once with one epoch and once with two, and
    return what the method made them do. An error that its code raises is not caught."""
    one, two = (_watch(method, epochs) for epochs in (1, 2))
    each = [two.passes[kind] / two.samples - one.passes[kind] / one.samples for kind in ("train", "eval")]
    once = sum(one.passes.values()) / one.samples - sum(each)
    in_stages = isinstance(method, Program)  # its rounds differ from stage to stage
    sends = [*_words(two.sent, two.model), *["its number of local steps"] * two.uses_steps]
    return Observed(
        passes=NOT_STATED if in_stages else _passes(each[0] - 1, each[1], once),
        memory=", ".join(_words(two.kept, two.model)) or "none",
        traffic=_traffic(two),
        # If clients trained on moved data, what has left them cannot be seen.
        sends=NOT_STATED if two.other_federation else ", ".join(sends) or "nothing",
    )


@dataclass(eq=False)
class _Notes:
    """What was observed, over all clients and rounds."""

    passes: Counter[str] = field(default_factory=Counter)
    """How many samples went through the model while clients trained, by the model's mode."""
    training: bool = False
    """Whether clients are training now, so that passes through the model count."""
    samples: int = 0
    model: Tensors = field(default_factory=dict)
    kept: Tensors = field(default_factory=dict)
    shared: Tensors = field(default_factory=dict)
    sent: Tensors = field(default_factory=dict)
    uses_steps: bool = False
    """Whether the server used the number of steps that clients took."""
    other_federation: bool = False
    """Whether clients trained on a federation other than the trial's."""

    def count(self, module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        if self.training:
            self.passes["train" if module.training else "eval"] += len(inputs[0])


@dataclass(frozen=True)
class _WatchedUpdates(Updates):
    notes: _Notes = field(default_factory=_Notes)

    def __getattribute__(self, name: str) -> Any:
        if name == "steps":
            self.notes.uses_steps = True
        return super().__getattribute__(name)


class _WatchedLoop(Loop):
    def __init__(self, trial: Trial, notes: _Notes) -> None:
        super().__init__(trial)
        self.notes = notes
        notes.model = notes.model or self.initial.params

    def fit(
        self,
        method: Method,
        sent: Weights,
        shared: Tensors,
        jobs: Iterable[Job],
        upcoming: Sequence[Task] = (),
    ) -> list[Outcome]:
        self.notes.training = True
        try:
            outcomes = super().fit(method, sent, shared, jobs, upcoming)
        finally:
            self.notes.training = False
        self.notes.shared |= shared
        for outcome in outcomes:
            if isinstance(outcome, Fit):
                self.notes.samples += outcome.samples
                self.notes.kept |= outcome.memory
                self.notes.sent |= outcome.reported
        return outcomes


class _WatchedRun(Run):
    def __init__(self, trial: Trial, base: Method, notes: _Notes) -> None:
        super().__init__(trial, base)
        self.notes = notes

    def _start(self, trial: Trial) -> _WatchedLoop:
        self.notes.other_federation |= trial.federation is not self.trial.federation
        return _WatchedLoop(trial, self.notes)

    def train(self, name: str, method: Method, *args: Any, **options: Any) -> Trained:
        def revise(state: ServerState, updates: Updates) -> Updates:
            revised = method.server.revise(state, updates)
            return _WatchedUpdates(**vars(revised), notes=self.notes)

        watched = replace(method, server=replace(method.server, revise=revise))
        return super().train(name, watched, *args, **options)

    def ask(self, name: str, *args: Any, local: bool = False, **options: Any) -> tuple[Tensors, ...]:
        answers = super().ask(name, *args, local=local, **options)
        for answer in answers:
            if local:
                self.notes.kept |= answer
            else:
                self.notes.sent |= answer
        return answers


def _watch(method: Method | Program, epochs: int) -> _Notes:
    """Train with so many epochs per round, and return what was observed."""
    notes = _Notes()

    def model() -> nn.Module:
        made = nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, len(HARD_COUNTS[0])))
        # Not the method itself: a copy of the model would have notes of its own.
        made.register_forward_pre_hook(lambda module, inputs: notes.count(module, inputs))
        return made

    trial = hard_trial(model)
    budget = trial.budget.model_copy(update={"rounds": ROUNDS, "epochs": epochs, "steps": None})
    run = _WatchedRun(
        replace(trial, budget=budget), method.base if isinstance(method, Program) else method, notes
    )
    if isinstance(method, Program):
        method.run(run)
    else:
        run.train_all(method)
    return notes


def _passes(trained: float, frozen: float, once: float) -> str:
    """Describe the passes through the model in addition to those that a plain gradient step needs: `trained`
    and `frozen` per sample and epoch, with and without a gradient, and `once` per sample and round."""
    parts = [
        f"{number:.3g} {what}"
        for number, what in (
            (trained, "with a gradient for every sample and epoch"),
            (frozen, "for every sample and epoch"),
            (once, "for every sample and round"),
        )
        if abs(number) > 1e-6
    ]
    return " and ".join(parts) or "none"


def _traffic(notes: _Notes) -> str:
    ways = (("down", notes.shared), ("up", notes.sent))
    return "; ".join(f"{way}: {', '.join(_words(sent, notes.model))}" for way, sent in ways if sent) or "none"


def _words(tensors: Mapping[str, Tensor], model: Tensors) -> list[str]:
    """Describe tensors by name and shape. Those that exist for every tensor of the model are described
    together."""
    words = dict[str, None]()  # an ordered set
    for name, value in tensors.items():
        of = next((each for each in model if name.endswith(f"/{each}")), None)
        if of is not None and value.shape == model[of].shape:
            words[f"'{name.removesuffix(of)}...' for every tensor of the model"] = None
        else:
            words[f"'{name}' of {'one number' if not value.ndim else 'shape ' + str(list(value.shape))}"] = (
                None
            )
    return list(words)
