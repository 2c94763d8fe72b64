"""FedConcat: one encoder per kind of client, concatenated.

Diao, Li, He. Exploiting Label Skews in Federated Learning with Model Concatenation. AAAI 2024.

Clients with like labels are averaged among themselves, so that averaging meets little skew. The clusters'
encoders are then frozen and put side by side, and all clients together train a new last layer on the
features of all of them.

    1. k-means of the label shares n_kc / n_k, into `clusters` clusters
    2. FedAvg (or what it is put together with) inside each cluster, for encoder_rounds rounds
    3. z(x) = W [h_1(x); ...; h_K(x)] + b, with W and b by FedAvg over all clients: `batches` mini-batches a
       round at each client, and a uniform average

The model is K times as large as the other methods', so its figures do not compare with theirs at equal size.
During stage 2 the sum of the clusters' logits is tested, which is z with their last layers side by side.

Deviations:
- Both stages share the budget's rounds. "auto" gives half of them to stage 2, at most the released 50; the
  released stage 3 has 1000. The learning rate decays over both.
- In stage 3 `batches` takes the place of the budget's epochs: a client draws batches * batch_size of its
  samples without replacement, or takes all where it has fewer. batches=0 keeps the epochs.
- Frozen encoders always give the same features, so these are computed once, in evaluation mode and without
  augmentation. The released code leaves the encoders in training mode, where BatchNorm statistics drift, and
  has all clusters share tensors in the first round.
- BatchNorm statistics that stay with their clients cannot be put side by side: under that policy the
  concatenation normalises by the batch.
- clusters is 2, one of the two numbers (2 and 4) in FedVLS's comparison; the released default is 5, with many
  more rounds for the last layer. Fewer are made where clients have fewer different label shares.
- capacity=1.2, released for CIFAR-100 and Tiny-ImageNet, allows at most 1.2 N/K clients in a cluster:
  clients go where the sum of their squared distances to the k-means centres is least. 0 sets no limit.
- head="concatenated", released for the same two, starts stage 3 from the clusters' last layers side by side
  with the sum of their biases.
- epsilon > 0 adds Laplace noise of scale 1/epsilon to the counts a client sends. FedConcat-ID, which infers
  the labels from the clients' models, is not included.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import Literal, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from unskew import engines
from unskew.data.augment import Augment
from unskew.data.dataset import Dataset
from unskew.data.federation import Federation
from unskew.data.manifest import partition_of
from unskew.errors import require, unknown
from unskew.method import Method
from unskew.metrics import Assessment, Traffic
from unskew.parts.heads import Head, find_head
from unskew.parts.servers import equal_mean
from unskew.probe import merge
from unskew.randomness import Purpose, stream
from unskew.train import OnRound, Program, Result, Round, State, begin, divergence, step
from unskew.trial import Trial
from unskew.types import Out, Params, Server, ServerState, Updates, Weights

Start = Literal["random", "concatenated"]


def fedconcat(
    *,
    clusters: int = 2,
    encoder_rounds: int | Literal["auto"] = "auto",
    batches: int = 3,
    head: Start = "random",
    capacity: float = 0.0,
    epsilon: float = 0.0,
) -> Program:
    """Train one encoder per cluster of clients with like labels, then one last layer on all encoders."""
    require(clusters >= 1, f"clusters is {clusters} but should be 1 or more.")
    require(
        encoder_rounds == "auto" or encoder_rounds >= 1,
        f"encoder_rounds is {encoder_rounds} but should be 1 or more, or 'auto'.",
    )
    require(batches >= 0, f"batches is {batches} but should be 0 or more.")
    require(
        capacity == 0 or capacity >= 1, f"capacity is {capacity} but should be 0 (no limit), or 1 or more."
    )
    require(epsilon >= 0, f"epsilon is {epsilon} but should be 0 (no noise) or more.")
    if head not in get_args(Start):
        raise unknown("head", head, get_args(Start))

    def run(trial: Trial, base: Method, on_round: OnRound) -> Result:
        began = time.perf_counter()
        federation, rounds = trial.federation, trial.budget.rounds
        for_head = base + Method(server=Server(combine=_uniform))
        last = _encoder_rounds(encoder_rounds, rounds, head)
        kinds = cluster(trial, clusters, capacity, epsilon)
        K = int(kinds.max(initial=0)) + 1
        whole = replace(
            trial,
            model=partial(concatenation, trial, K),  # a partial, because an engine may send it elsewhere
            norm=None,
            model_options={},
            statistics="average" if trial.statistics == "average" else "batch",
            augment=Augment(),
        )
        engine = engines.start(whole)
        told: list[Round] = []

        def tell(round: Round) -> None:
            told.append(round)
            on_round(round)

        weights = train_encoders(trial, engine, base, kinds, last, tell)
        if last < rounds:
            if head == "random":
                weights = replace(weights, params=engine.initial.params)
            weights = train_head(whole, engine, for_head, weights, last, batches, tell)
        encoders = sum(value.nbytes for value in weights.buffers.values()) if last < rounds else 0
        return Result(
            weights=weights,
            rounds=told,
            beside=Traffic(up=federation.counts.nbytes, down=federation.clients * encoders),
            classes=federation.dataset.classes,
            counts=federation.counts.numpy(),
            seconds=time.perf_counter() - began,
            state=State(rounds, ServerState(weights, {})),
            notes=(*federation.partition.notes, *base.notes, *_notes(kinds, clusters, last, weights)),
        )

    return Program(run)


class Concatenation(nn.Module):
    """Networks that are not trained any more, side by side, and one last layer on the features of all."""

    def __init__(self, nets: Sequence[nn.Module], features: int, classes: int) -> None:
        super().__init__()
        self.nets = nn.ModuleList(nets).requires_grad_(False)
        self.head = nn.Linear(features, classes)

    def forward(self, x: Tensor) -> Out:
        features = torch.cat([net(x).features for net in self.nets], dim=1)
        return Out(features, self.head(features))


def concatenation(trial: Trial, nets: int) -> Concatenation:
    """As many of the trial's models side by side, under a fresh last layer."""
    models = [trial.build() for _ in range(nets)]
    classes = len(trial.federation.dataset.classes)
    return Concatenation(models, nets * find_head(models[0], classes).features, classes)


# Stage 1


def cluster(trial: Trial, clusters: int, capacity: float, epsilon: float) -> NDArray[np.int64]:
    """Which cluster each client belongs to, [N]: numbers from 0 without gaps, -1 for clients without data."""
    counts = trial.federation.counts.numpy()
    draws = stream(trial.seed, Purpose.SERVER, 0)
    sent = counts + draws.laplace(scale=1 / epsilon, size=counts.shape) if epsilon else counts
    sent = np.maximum(sent, 0)
    shares = (sent / np.maximum(sent.sum(axis=1, keepdims=True), 1e-9)).round(6)
    some = counts.sum(axis=1) > 0
    kinds = np.full(len(counts), -1)
    if some.any():
        kinds[some] = _like_shares(shares[some], clusters, capacity, int(draws.integers(2**32)))
    return kinds


def _like_shares(shares: NDArray[np.float64], clusters: int, capacity: float, seed: int) -> NDArray[np.int64]:
    K = min(clusters, len(np.unique(shares, axis=0)))
    # Here and not above: the two take as long to import as PyTorch, and no other method needs them.
    from scipy.optimize import linear_sum_assignment
    from sklearn.cluster import KMeans

    means = KMeans(K, n_init=10, random_state=seed).fit(shares)
    kinds = means.labels_
    if capacity:
        room = math.ceil(capacity * len(shares) / K)
        places = np.repeat(means.transform(shares) ** 2, room, axis=1)
        kinds = linear_sum_assignment(places)[1] // room
    numbered: NDArray[np.int64] = np.unique(kinds, return_inverse=True)[1]
    return numbered


# Stage 2


def train_encoders(
    trial: Trial,
    whole: engines.Engine,
    method: Method,
    kinds: NDArray[np.int64],
    rounds: int,
    tell: OnRound,
) -> Weights:
    """Every cluster for itself, all of them round by round. Their models side by side are tested and
    returned."""
    never = trial.budget.rounds + 1
    trials = [
        replace(
            trial,
            federation=only_clients(trial.federation, kinds == kind),
            evaluation=trial.evaluation.model_copy(update={"every": never}),  # only side by side
        )
        for kind in range(int(kinds.max(initial=0)) + 1)
    ]
    each = [engines.start(mine) for mine in trials]
    states = [begin(method, engine.initial) for engine in each]
    head = find_head(trial.build(), len(trial.federation.dataset.classes))
    for done in range(1, rounds + 1):
        steps = [
            step(mine, method, engine, state)
            for mine, engine, state in zip(trials, each, states, strict=True)
        ]
        states = [state for state, _ in steps]
        weights = side_by_side([method.server.serve(state.server) for state in states], head, whole.initial)
        due = done % trial.evaluation.every == 0 or done == trial.budget.rounds
        test = whole.assess(weights) if due else None
        tell(_one_round([round for _, round in steps], trial.federation, test))
    return weights


def only_clients(federation: Federation, members: NDArray[np.bool_]) -> Federation:
    """The same clients under the same numbers, of which only the members hold data."""
    old = federation.partition
    indices = tuple(mine if in_ else mine[:0] for mine, in_ in zip(old.indices, members, strict=True))
    return Federation(federation.dataset, replace(old, indices=indices, counts=old.counts * members[:, None]))


def side_by_side(models: Sequence[Weights], head: Head, like: Weights) -> Weights:
    """Models with this head as one concatenation, whose logits are the sum of theirs."""
    each = [model.params | model.buffers for model in models]
    nets = {f"nets.{kind}.{name}": value for kind, net in enumerate(each) for name, value in net.items()}
    bias = torch.zeros_like(like.params["head.bias"])
    if head.bias is not None:
        bias = torch.stack([net[head.bias] for net in each]).sum(dim=0)
    weight = torch.cat([net[head.weight] for net in each], dim=1)
    return Weights({"head.weight": weight, "head.bias": bias}, {name: nets[name] for name in like.buffers})


def _one_round(parts: Sequence[Round], federation: Federation, test: Assessment | None) -> Round:
    """The clusters' rounds as one."""
    samples = [int(federation.sizes[part.trained].sum()) for part in parts]
    losses = [part.train_loss * n for part, n in zip(parts, samples, strict=True) if n]
    probes = [part.probe for part in parts if part.probe is not None]
    return replace(
        parts[0],
        trained=sorted(client for part in parts for client in part.trained),
        train_loss=sum(losses) / sum(samples) if losses else math.nan,
        seconds=sum(part.seconds for part in parts),
        test=test,
        # A client takes part in every cluster's round, in all but one without data: it gets one model.
        traffic=Traffic(up=sum(part.traffic.up for part in parts), down=parts[0].traffic.down),
        probe=merge(probes, len(federation.dataset.classes)) if probes else None,
    )


# Stage 3


def train_head(
    whole: Trial,
    engine: engines.Engine,
    method: Method,
    weights: Weights,
    done: int,
    batches: int,
    tell: OnRound,
) -> Weights:
    """The rounds that are left, for the last layer alone: on the encoders' features, which stay the same."""
    budget = whole.budget
    heads = replace(
        whole,
        federation=Federation(features_of(whole, engine, weights), whole.federation.partition),
        model="logistic",
        statistics="average",
        budget=budget.model_copy(update={"epochs": 1}) if batches else budget,
    )
    engine = engines.start(heads)
    state = begin(method, Weights(weights.params, {}), round=done)
    for name, value in state.server.memory.items():
        if name.endswith("/round"):  # a method that counts rounds counts those of the encoders too
            state.server.memory[name] = torch.full_like(value, done)
    while state.round < budget.rounds:
        if batches:
            drawn = draw_samples(heads, state.round, batches * budget.batch_size)
            engine = engines.start(replace(heads, federation=drawn))
        state, round = step(heads, method, engine, state)
        tell(round)
    return Weights(method.server.serve(state.server).params, weights.buffers)


def features_of(whole: Trial, engine: engines.Engine, weights: Weights) -> Dataset:
    """The dataset as the concatenation sees it."""
    dataset = whole.federation.dataset
    train = _table(whole.federation, engine, weights)
    # The test split, as one client's data. In random order, for models that normalise by the batch.
    order = stream(whole.seed, Purpose.BATCH_ORDER).permutation(len(dataset.test))
    swapped = replace(dataset, train=dataset.test)
    held = Federation(swapped, partition_of([order], swapped, recipe="test split"))
    everyone = whole.budget.model_copy(update={"cohort": "all"})
    reader = engines.start(replace(whole, federation=held, budget=everyone))
    test = _table(held, reader, weights)
    return replace(
        dataset,
        name=f"features of {dataset.name}",
        train=replace(dataset.train, inputs=train),
        test=replace(dataset.test, inputs=test),
        mean=(),
        std=(),
        vocabulary=0,
    )


def _table(federation: Federation, engine: engines.Engine, weights: Weights) -> Tensor:
    """The features of the training samples that clients hold, each in its row. What is not finite, of a model
    that diverged, becomes 0."""
    head = weights.params["head.weight"]
    table = torch.zeros(len(federation.dataset.train), head.shape[1], device=head.device)
    for client in range(federation.clients):
        features = [view.out.features for view in engine.look(client, weights)]
        if features:
            table[federation.indices(client).to(head.device)] = torch.cat(features).nan_to_num(0.0, 0.0, 0.0)
    return table


def draw_samples(trial: Trial, round: int, samples: int) -> Federation:
    """Up to so many of each client's samples, without replacement; its label counts stay those of all."""
    partition = trial.federation.partition
    indices = tuple(
        mine[stream(trial.seed, Purpose.BATCH_ORDER, round, client).permutation(len(mine))[:samples]]
        for client, mine in enumerate(partition.indices)
    )
    return Federation(trial.federation.dataset, replace(partition, indices=indices))


def _uniform(state: ServerState, updates: Updates) -> Params:
    return equal_mean(updates)


def _encoder_rounds(wanted: int | Literal["auto"], rounds: int, head: Start) -> int:
    if wanted == "auto":
        return max(1, min(50, rounds // 2))
    most = rounds if head == "concatenated" else rounds - 1  # a random head needs rounds of its own
    require(
        wanted <= most,
        f"fedconcat's encoder_rounds of {wanted} leaves none of the budget's {rounds} for its new last "
        "layer: lower it, or train longer.",
    )
    return wanted


def _notes(kinds: NDArray[np.int64], clusters: int, encoder_rounds: int, weights: Weights) -> Iterable[str]:
    sizes = np.bincount(kinds[kinds >= 0], minlength=1).tolist()
    yield (
        f"FedConcat: clusters of {', '.join(map(str, sizes))} clients, {encoder_rounds} rounds for the "
        f"encoders; its model holds {len(sizes)} of them, the other methods' one."
    )
    if len(sizes) < clusters:
        yield f"FedConcat made {len(sizes)} of {clusters} clusters: there are no more different label shares."
    yield from divergence(weights)
