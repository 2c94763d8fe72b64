"""FedConcat: one encoder per kind of client, concatenated.

Diao, Li, He. Exploiting Label Skews in Federated Learning with Model Concatenation. AAAI 2024.

Clients with like labels are averaged among themselves, so that averaging meets little skew. The clusters'
encoders are then frozen and put side by side, and all clients together train a new last layer on the
features of all of them.

    1. k-means of the label shares n_kc / n_k, into `clusters` clusters
    2. FedAvg (or what it is combined with) inside each cluster, for encoder_rounds rounds
    3. z(x) = W [h_1(x); ...; h_K(x)] + b, with W and b by FedAvg over all clients: `batches` mini-batches a
       round at each client, and a uniform average

The model is K times as large as the other methods', so its figures do not compare with theirs at equal size.
During stage 2 the sum of the clusters' logits is tested, which is z with their last layers side by side.
Validation chooses a round of stage 3, and may stop it; of stage 2 only where that is all there is.

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
  clients go where the sum of their squared distances to the k-means centres is least. 0 sets no limit. The
  released rule moves the furthest clients of a full cluster, one by one, to the nearest one not full, and
  takes new centres, 100 times: a greedy form, whose clusters may be others.
- head="concatenated", released for the same two, starts stage 3 from the clusters' last layers side by side
  with the sum of their biases.
- epsilon > 0 adds Laplace noise of scale 1/epsilon to the counts a client sends. FedConcat-ID, which infers
  the labels from the clients' models, is not included.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from unskew.data.augment import Augment
from unskew.data.dataset import Split
from unskew.data.federation import Federation, holding_of
from unskew.data.partition import partition_of
from unskew.engines.job import Task
from unskew.errors import require, unknown
from unskew.faults import require_enough
from unskew.method import Method
from unskew.methods.card import card
from unskew.metrics import Assessment, Traffic
from unskew.parts.architecture import Concatenation, side_by_side
from unskew.parts.clusters import cluster_shares
from unskew.parts.heads import find_head
from unskew.parts.servers import combine_equally
from unskew.probe import merge
from unskew.program import Program, Run
from unskew.randomness import Purpose, stream
from unskew.record import NetworkRecord
from unskew.result import Result, Round, Stage, State
from unskew.rounds import initial_state, rounds_cost, run_round, sample_cohort
from unskew.trial import Stop, Trial
from unskew.types import Look, Scope, Server, ServerState, Tensors, Weights

HeadStart = Literal["random", "concatenated"]


@card(
    "fedconcat",
    passes="one of every cluster's encoder over the data",
    memory="every cluster's encoder",
    traffic="every cluster's encoder down once; then the last layer alone; C numbers up once",
    sends="its label counts, with noise where epsilon is given",
)
def fedconcat(
    *,
    clusters: int = 2,
    encoder_rounds: int | Literal["auto"] = "auto",
    batches: int = 3,
    head: HeadStart = "random",
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
    if head not in get_args(HeadStart):
        raise unknown("head", head, get_args(HeadStart))

    def run(run: Run) -> Result:
        trial, rounds = run.trial, run.trial.budget.rounds
        trial.federation.dataset.train.whole()  # the last layer trains on the features of all of it
        head_method = run.base + Method(server=Server(combine=combine_equally))
        stage_rounds = _encoder_rounds(encoder_rounds, rounds, head)
        answers = run.ask("label counts", partial(label_counts, epsilon))
        cluster_of = cluster(trial, answers, clusters, capacity)
        K = int(cluster_of.max(initial=0)) + 1
        concat_trial = replace(
            trial.with_model(ConcatModel(trial, K)),
            statistics="average" if trial.statistics == "average" else "batch",
            augment=Augment(),
        )
        encoders = train_encoders(run, concat_trial, cluster_of, stage_rounds)
        weights = encoders.best or concatenated(run, concat_trial, encoders)
        all_rounds = list(encoders.rounds)
        if stage_rounds < rounds:
            if head == "random":
                weights = replace(weights, params=run.engine(concat_trial).initial.params)
            head_stage = train_head(run, concat_trial, head_method, weights, stage_rounds, batches)
            weights = head_stage.best or with_head(head_method, weights, head_stage)
            all_rounds += head_stage.rounds
        state = State(ServerState(weights, {}, all_rounds[-1].number))
        scores = run.engine(concat_trial).probability_scores(weights)
        notes = list(_notes(cluster_of, clusters, stage_rounds))
        return run.result(weights, state, all_rounds, trial=concat_trial, notes=notes, scores=scores)

    why = "its last layer is trained on features that all clients' data are turned into in one place"
    return Program(run, one_place=why)


@dataclass(frozen=True)
class ConcatModel:
    """Makes `nets` of the trial's models side by side, with a fresh last layer on all of them."""

    trial: Trial
    nets: int

    @property
    def network(self) -> NetworkRecord:
        return replace(self.trial.network, side_by_side=self.nets)

    def __call__(self) -> Concatenation:
        classes = len(self.trial.federation.dataset.classes)
        return Concatenation.of([self.trial.build() for _ in range(self.nets)], classes)


# Stage 1


def label_counts(epsilon: float, scope: Scope, look: Look) -> Tensors:
    """Return what a client sends of its labels: their counts, with Laplace noise if epsilon is above 0."""
    counts = scope.counts
    if not epsilon or not counts.sum():
        return {"counts": counts}
    noise = torch.distributions.Laplace(torch.zeros(len(counts), dtype=torch.float64), 1 / epsilon).sample()
    return {"counts": counts + noise.to(counts.device)}


def cluster(trial: Trial, answers: Sequence[Tensors], clusters: int, capacity: float) -> NDArray[np.int64]:
    """Return the cluster of each client, [N], by the counts that clients sent. Clusters are numbered from 0
    without gaps; -1 stands for clients without data."""
    counts = np.stack([answer["counts"].cpu().numpy() for answer in answers]).clip(min=0)
    has_data = counts.any(axis=1)
    shares = (counts / np.maximum(counts.sum(axis=1, keepdims=True), 1e-9)).round(6)
    cluster_of = np.full(len(counts), -1)
    if has_data.any():
        seed = int(stream(trial.seed, Purpose.SERVER, 0).integers(2**32))
        cluster_of[has_data] = cluster_shares(shares[has_data], clusters, capacity, seed)
    return cluster_of


# Stage 2


def train_encoders(run: Run, concat_trial: Trial, cluster_of: NDArray[np.int64], rounds: int) -> Stage:
    """Train every cluster for itself, all of them round by round, and test their models side by side."""
    trial, method = run.trial, run.base
    never = trial.budget.rounds + 1
    cluster_trials = [
        replace(
            trial,
            federation=only_clients(trial.federation, cluster_of == number),
            evaluation=trial.evaluation.model_copy(update={"every": never}),  # the models are tested together
            faults=trial.faults.model_copy(update={"min_clients": 0}),  # see require_enough below
            stop=Stop(),
        )
        for number in range(int(cluster_of.max(initial=0)) + 1)
    ]
    cluster_engines = [run.engine(cluster_trial) for cluster_trial in cluster_trials]

    def first() -> Stage:
        return Stage(tuple(initial_state(method, engine.initial) for engine in cluster_engines))

    def advance(stage: Stage) -> Stage:
        done = len(stage.rounds) + 1
        steps = [
            run_round(cluster_trial, method, engine, state)
            for cluster_trial, engine, state in zip(
                cluster_trials, cluster_engines, stage.states, strict=True
            )
        ]
        stage = replace(stage, states=tuple(state for state, _ in steps))
        due = trial.evaluation.due(done, trial.budget.rounds)
        test = validation = None
        if due:
            model = concatenated(run, concat_trial, stage)
            test = run.engine(concat_trial).evaluate(model).result()
            if trial.federation.validation is not None:
                validation = run.engine(concat_trial).evaluate(model, "validation").result()
        round = _one_round([part for _, part in steps], trial.federation, test, validation)
        require_enough(trial.faults, done - 1, len(round.trained), round.faults)
        return replace(stage, rounds=(*stage.rounds, round), cost=rounds_cost(trial, method, done))

    only_stage = rounds == trial.budget.rounds
    model = partial(concatenated, run, concat_trial) if only_stage else None
    return run.repeat("encoders", first, advance, rounds=rounds, model=model)


def concatenated(run: Run, concat_trial: Trial, encoders: Stage) -> Weights:
    """Put the clusters' models side by side, as one."""
    engine = run.engine(concat_trial)
    head = find_head(run.trial.build(), len(run.trial.federation.dataset.classes))
    head.check_plain()
    models = [run.base.server.serve(state.server) for state in encoders.states]
    frozen = run.engine().frozen
    return side_by_side(
        [model.with_frozen(frozen) for model in models], head, engine.initial.with_frozen(engine.frozen)
    )


def only_clients(federation: Federation, members: NDArray[np.bool_]) -> Federation:
    """Return a federation of the same clients under the same numbers in which only the members have data."""
    old = federation.partition
    indices = tuple(mine if in_ else mine[:0] for mine, in_ in zip(old.indices, members, strict=True))
    return Federation(federation.dataset, replace(old, indices=indices, counts=old.counts * members[:, None]))


def _one_round(
    parts: Sequence[Round],
    federation: Federation,
    test: Assessment | None,
    validation: Assessment | None,
) -> Round:
    """Return the clusters' rounds as one."""
    samples = [int(federation.sizes[part.trained].sum()) for part in parts]
    losses = [part.train_loss * n for part, n in zip(parts, samples, strict=True) if n]
    probes = [part.probe for part in parts if part.probe is not None]
    return replace(
        parts[0],
        trained=sorted(client for part in parts for client in part.trained),
        train_loss=sum(losses) / sum(samples) if losses else math.nan,
        seconds=sum(part.seconds for part in parts),
        test=test,
        validation=validation,
        # Every client is in every cluster's round, without data in all but one, but it receives one model.
        faults=tuple(fault for part in parts for fault in part.faults),
        traffic=Traffic(up=sum(part.traffic.up for part in parts), down=parts[0].traffic.down),
        samples=sum(part.samples for part in parts),
        tallies={
            name: sum(part.tallies.get(name, 0) for part in parts) for part in parts for name in part.tallies
        },
        probe=merge(probes, len(federation.dataset.classes)) if probes else None,
    )


# Stage 3


def train_head(
    run: Run, concat_trial: Trial, method: Method, weights: Weights, done: int, batches: int
) -> Stage:
    """Train the last layer alone in the rounds that are left, on the encoders' features, which stay the same.
    The computation for one layer is not counted."""
    budget = concat_trial.budget
    head_trial = replace(
        concat_trial,
        federation=features_of(run, concat_trial, weights),
        model="logistic",
        statistics="average",
        budget=budget.model_copy(update={"epochs": 1, "steps": None}) if batches else budget,
    )

    def sampler(trial: Trial, round: int) -> list[Task]:
        tasks = sample_cohort(trial, round)
        return (
            [draw_samples(trial, task, batches * budget.batch_size) for task in tasks] if batches else tasks
        )

    def first() -> Stage:
        return Stage((initial_state(method, Weights(weights.params, {}), round=done),))

    def advance(stage: Stage) -> Stage:
        state, round = run_round(head_trial, method, run.engine(head_trial), stage.states[0], sampler=sampler)
        return replace(stage, states=(state,), rounds=(*stage.rounds, round))

    model = partial(with_head, method, weights)
    return run.repeat("last layer", first, advance, rounds=budget.rounds - done, model=model)


def with_head(method: Method, weights: Weights, stage: Stage) -> Weights:
    """Return the concatenation with the last layer that this stage has trained so far."""
    return Weights(method.server.serve(stage.states[0].server).params, weights.buffers)


def features_of(run: Run, concat_trial: Trial, weights: Weights) -> Federation:
    """Return the federation with features of the concatenation in place of its data. Clients compute those of
    their data, which stay with them, and the server those of the test split and of the validation set."""
    dataset, federation = concat_trial.federation.dataset, concat_trial.federation
    head = weights.params["head.weight"]
    encoders = head.shape[1] // find_head(run.trial.build(), len(dataset.classes)).features
    train = torch.zeros(len(dataset.train), head.shape[1], device=head.device)
    sends = _sent_of(run, weights)
    answers = run.ask(
        "features", _features, weights, trial=concat_trial, local=True, models=encoders, sends=sends
    )
    for client, answer in enumerate(answers):
        if answer:
            train[federation.indices(client).to(head.device)] = answer["features"]
    of_features = replace(
        dataset,
        name=f"features of {dataset.name}",
        train=replace(dataset.train, inputs=train),
        test=_split_features(run, concat_trial, weights, dataset.test),
        mean=(),
        std=(),
        vocabulary=0,
    )
    held = federation.validation
    validation = None if held is None else _split_features(run, concat_trial, weights, held)
    return Federation(of_features, federation.partition, validation)


def _sent_of(run: Run, weights: Weights) -> Tensors:
    """Return the tensors of the concatenation that clients have to receive: the last layer, and of every
    encoder those that a round of the run's own model sends."""
    received = run.trial.sent_of(run.engine().initial).keys()
    encoders = {name: value for name, value in weights.buffers.items() if name.split(".", 2)[2] in received}
    return weights.params | encoders


def _split_features(run: Run, concat_trial: Trial, weights: Weights, split: Split) -> Split:
    """Return a split with the features of the concatenation as its inputs. It is read as one client's data,
    in random order, for models that normalise by the batch."""
    order = stream(concat_trial.seed, Purpose.BATCH_ORDER).permutation(len(split))
    swapped = replace(concat_trial.federation.dataset, train=replace(split, owners=None))
    held = Federation(swapped, partition_of([order], swapped, recipe="one split"))
    everyone = concat_trial.budget.model_copy(update={"cohort": "all"})
    reader = run.engine(replace(concat_trial, federation=held, budget=everyone, stop=Stop()))
    head = weights.params["head.weight"]
    features = torch.zeros(len(split), head.shape[1], device=head.device)
    views = reader.look(Task(0, 0, held.holding(0)), weights)
    features[held.indices(0).to(head.device)] = _finite([view.out.features for view in views])
    return replace(split, inputs=features)


def _features(scope: Scope, look: Look) -> Tensors:
    features = [view.out.features for view in look(scope.anchor)]
    return {"features": _finite(features)} if features else {}


def _finite(features: Sequence[Tensor]) -> Tensor:
    """Join features to one table. Values that are not finite, of a model that diverged, become 0."""
    return torch.cat(list(features)).nan_to_num(0.0, 0.0, 0.0)


def draw_samples(trial: Trial, task: Task, samples: int) -> Task:
    """Return the task with at most so many of the client's samples, drawn without replacement."""
    mine = task.holding.rows
    order = stream(trial.seed, Purpose.BATCH_ORDER, task.round, task.client).permutation(len(mine))
    return replace(task, holding=holding_of(trial.federation.dataset, mine[order[:samples]]))


def _encoder_rounds(wanted: int | Literal["auto"], rounds: int, head: HeadStart) -> int:
    if wanted == "auto":
        return max(1, min(50, rounds // 2))
    most = rounds if head == "concatenated" else rounds - 1  # a random head needs rounds of its own
    require(
        wanted <= most,
        f"fedconcat's encoder_rounds of {wanted} leaves none of the budget's {rounds} for its new last "
        "layer: lower it, or train longer.",
    )
    return wanted


def _notes(cluster_of: NDArray[np.int64], clusters: int, encoder_rounds: int) -> Iterable[str]:
    sizes = np.bincount(cluster_of[cluster_of >= 0], minlength=1).tolist()
    yield (
        f"FedConcat: clusters of {', '.join(map(str, sizes))} clients, {encoder_rounds} rounds for the "
        f"encoders; its model holds {len(sizes)} of them, the other methods' one."
    )
    if len(sizes) < clusters:
        yield f"FedConcat made {len(sizes)} of {clusters} clusters: there are no more different label shares."
