"""The few types everything else is written in."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal, NamedTuple, Protocol

import torch
from torch import Tensor

Params = dict[str, Tensor]
"""The trainable tensors of a model, by name."""

Tensors = dict[str, Tensor]
"""Named tensors that cross a boundary: what a client keeps or reports, what a server keeps or broadcasts.
Flat on purpose: the same dictionary goes unchanged into a checkpoint file or over the network."""


@dataclass(frozen=True)
class Weights:
    """A model's state: its trainable tensors, and its buffers, such as BatchNorm statistics. The two are
    never mixed: buffers enter no norm, no server optimiser, no control variate. Frozen parameters are in
    neither: they are the same at the server and at every client, so they are neither sent nor stored."""

    params: Params
    buffers: Tensors

    def scratch(self) -> Weights:
        """Return these parameters with a copy of the buffers, for a pass that must not change them."""
        return Weights(self.params, {name: value.clone() for name, value in self.buffers.items()})

    def with_frozen(self, frozen: Tensors) -> Weights:
        """Return the whole model: the frozen parameters are added to the buffers."""
        return Weights(self.params, {**frozen, **self.buffers})

    def clone(self) -> Weights:
        return Weights(
            {name: value.detach().clone() for name, value in self.params.items()},
            {name: value.detach().clone() for name, value in self.buffers.items()},
        )


class Out(NamedTuple):
    """What a model returns: the input of its last linear layer [B, d], and its logits [B, C]."""

    features: Tensor
    logits: Tensor


@dataclass(frozen=True)
class Inputs:
    """What one sample looks like to a model, before normalisation."""

    kind: Literal["image", "table", "text"]
    shape: tuple[int, ...]
    """image: (channels, height, width); table: (features,); text: (tokens,)."""
    vocabulary: int = 0
    """text only: token ids are 0 .. vocabulary-1, and 0 is padding."""


@dataclass(frozen=True)
class Scope:
    """What is constant for one client during one round."""

    anchor: Weights
    """The model that the client starts from: the one that the server sent, but with the client's own buffers
    if clients keep theirs."""
    counts: Tensor
    """This client's label counts, int64 [C]."""
    memory: Tensors
    """What this client kept from the last round it took part in, and what it prepared for this one."""
    shared: Tensors
    """What the server broadcast in addition to the model."""


class ExtraPasses(Protocol):
    """Forward passes of models other than the one being trained: evaluation mode, no gradient."""

    def frozen(self, weights: Weights, inputs: Tensor, /) -> Out: ...

    def classify(self, params: Params, features: Tensor, /) -> Tensor:
        """Apply the model's last linear layer to features, with gradient."""


class View:
    """One batch of one client, as an objective sees it."""

    def __init__(
        self,
        scope: Scope,
        inputs: Tensor,
        labels: Tensor,
        params: Params,
        out: Out,
        passes: ExtraPasses,
        tallies: Tensors | None = None,
        levels: tuple[Tensor, ...] = (),
    ) -> None:
        self.scope = scope
        self.inputs = inputs
        self.labels = labels
        self.params = params
        self.out = out
        """Features and logits of the model being trained."""
        self.levels = levels
        """Where the method asks for them: what the stem and the stages of the model being trained make of the
        batch, averaged over the image, [B, d] each. Empty if the model has no such stages."""
        self._passes = passes
        self._tallies = tallies or {}
        self._teacher: Out | None = None

    @property
    def teacher(self) -> Out:
        """The anchor's outputs on this batch. Computed only if asked for, and once."""
        if self._teacher is None:
            self._teacher = self.forward(self.scope.anchor)
        return self._teacher

    def forward(self, weights: Weights) -> Out:
        """Compute another model's outputs on this batch: evaluation mode, its own buffers, no gradient."""
        return self._passes.frozen(weights, self.inputs)

    def classify(self, features: Tensor) -> Tensor:
        """Compute the logits of other features than the batch's own, by the head that is being trained."""
        return self._passes.classify(self.params, features)

    def within(self, scope: Scope) -> View:
        """Return this batch as a client with this scope sees it."""
        return View(scope, self.inputs, self.labels, self.params, self.out, self._passes, levels=self.levels)

    def tally(self, name: str, amount: Tensor) -> None:
        """Add to one of the method's tallies of the client's round. Nothing is counted outside of ordinary
        steps, such as at the second point of a step that evaluates the gradient at two."""
        if name in self._tallies:
            self._tallies[name].add_(amount)


Objective = Callable[[View], Tensor]
"""What a client minimises: makes one scalar of a batch. Nothing else changes."""


class Look(Protocol):
    """A pass of some model over a client's own data: evaluation mode, without augmentation, in order unless
    it is to be shuffled. With `grad` the views' parameters can be differentiated."""

    def __call__(
        self,
        weights: Weights,
        /,
        *,
        grad: bool = False,
        batch_size: int | None = None,
        shuffle: bool = False,
    ) -> Iterator[View]: ...


class Gradient(Protocol):
    """Loss and gradient of the objective on the current batch, at any point. With `track=False` the
    BatchNorm statistics are left alone, so that a step may look twice at a batch and count it once."""

    def __call__(self, params: Params, /, *, track: bool = True) -> tuple[Tensor, Params]: ...


GradientTransform = Callable[[Gradient, Scope], Gradient]
"""Makes of the plain gradient function of a step another, such as one that is taken at a point uphill."""

Correction = Callable[[Scope], Params]
"""What is added to every gradient of a round, such as a control variate."""


@dataclass(frozen=True)
class Optimizer:
    """How a client moves. `step` moves `params` and `state` in place, so that both stay where a captured
    graph wants them, and returns the loss."""

    init: Callable[[Params], Tensors]
    step: Callable[[Gradient, Params, Tensors], Tensor]


@dataclass(frozen=True)
class End:
    """How a client's round ended."""

    weights: Weights
    steps: int
    lr: float
    momentum: float
    look: Look


def _empty(*_: object) -> Tensors:
    return {}


def _empty_pair(*_: object) -> tuple[Tensors, Tensors]:
    return {}, {}


@dataclass(frozen=True)
class Memory:
    """What a client keeps between its rounds: values that go in and come out. Names begin with the method's,
    so that methods can be combined."""

    init: Callable[[Weights, Tensor], Tensors] = _empty
    """Makes what the client keeps when it first takes part, from the run's initial model and its counts."""
    prepare: Callable[[Scope, Look], Tensors] = _empty
    """What the client computes from its data before it trains; it joins the scope's memory for this round."""
    update: Callable[[Scope, End], tuple[Tensors, Tensors]] = _empty_pair
    """Returns (kept, reported): what stays at the client, and what it sends to the server."""


NO_MEMORY = Memory()
"""The memory of a method whose clients keep nothing."""

Query = Callable[[Scope, Look], Tensors]
"""What a client is asked outside of training: from what it received and its own data to what it answers."""


@dataclass(frozen=True)
class Population:
    """What a server knows of the whole federation: two numbers, and no client's label counts."""

    holders: int
    """How many clients have any data."""
    samples: int
    """How many samples all of them have together."""


@dataclass(frozen=True)
class Updates:
    """What the cohort sent, one row per client that trained (axis 0 of every tensor)."""

    holders: int
    """How many clients of the federation have any data, whether they took part or not."""
    weight: Tensor
    """Share of the cohort's samples, float64 [m], sums to 1."""
    delta: Params
    """After minus before, which is the model that was sent, [m, ...] each."""
    buffers: Tensors
    steps: Tensor
    """Local steps taken, int64 [m]."""
    lr: float
    momentum: float
    reported: Tensors
    share: float = 1.0
    """The cohort's samples as a part of all clients' samples."""

    @property
    def mean(self) -> Params:
        """The weighted mean update."""
        return {
            name: torch.tensordot(self.weight.to(rows), rows, dims=1) for name, rows in self.delta.items()
        }


@dataclass(frozen=True)
class ServerState:
    """What a server has between two rounds."""

    weights: Weights
    """The server's own model, which it sends to the clients unless `Server.send` makes another of it."""
    memory: Tensors
    """What the method's server keeps in addition to the model."""
    round: int = 0
    """How many rounds were done."""


def _mean(state: ServerState, updates: Updates) -> Params:
    return updates.mean


def _add(state: ServerState, delta: Params) -> tuple[Params, Tensors]:
    return {name: value + delta[name] for name, value in state.weights.params.items()}, {}


def _own(state: ServerState) -> Weights:
    return state.weights


def _as_sent(state: ServerState, updates: Updates) -> Updates:
    return updates


@dataclass(frozen=True)
class Server:
    """How the server turns updates into the next model. It sets parameters only: how buffers are combined is
    one policy of the run, the same for every method but those that trust no single client."""

    combine: Callable[[ServerState, Updates], Params] = _mean
    """The cohort's one update."""
    move: Callable[[ServerState, Params], tuple[Params, Tensors]] = _add
    """Returns the next parameters, and what the server's memory then holds."""
    init: Callable[[Weights], Tensors] = _empty
    """The server's memory before the first round."""
    note: Callable[[ServerState, Weights, Updates], Tensors] = _empty
    """What else the memory holds after a round, from the state before it, the model after it, the updates."""
    share: Callable[[ServerState], Tensors] = _empty
    """What is broadcast in addition to the model."""
    send: Callable[[ServerState], Weights] = _own
    """The model that clients receive, if it is not the server's own. Their updates are measured from it;
    `combine` and `move` see these, and lead from the server's own model to its next."""
    serve: Callable[[ServerState], Weights] = _own
    """The model to evaluate, save and deploy, if it is not the server's own."""
    revise: Callable[[ServerState, Updates], Updates] = _as_sent
    """What the cohort sent as `combine` and `note` see it, such as with norms that are bounded. Those of
    combined methods follow each other in the order in which they are written."""
    buffers: Callable[[Tensors, Updates], Tensors] | None = None
    """Where the run averages buffers, what takes the mean's place: from the buffers before and the updates to
    the buffers after."""
