"""Laws that every method keeps, and `check_method`, which checks that yours does."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from tempfile import TemporaryDirectory

import numpy as np
import torch
from torch import Tensor, nn

from unskew import engines
from unskew.checkpoints import Checkpoints
from unskew.data.dataset import Dataset, Split
from unskew.data.federation import Federation
from unskew.data.partition import partition_of
from unskew.data.validation import hold_out, validation_split
from unskew.engines.job import Fit, completed
from unskew.errors import UserError
from unskew.method import Method
from unskew.method_checks import quoted_name
from unskew.program import Program
from unskew.result import Result, Round
from unskew.rounds import initial_state, model_to_send, run_round
from unskew.train import train
from unskew.trial import Budget, Statistics, Trial
from unskew.types import Objective, Params, Updates, View, Weights

HARD_COUNTS = (
    (6, 5, 4, 5),  # no class vacant
    (7, 6, 5, 0),  # one vacant
    (0, 0, 9, 0),  # all but one vacant
    (0, 1, 0, 0),  # one sample
    (0, 0, 0, 0),  # no sample
    (12, 0, 1, 3),
)
"""Clients that break careless methods: label counts over four classes."""


def check_method(
    method: Method | Program | Callable[[], Method | Program],
    *,
    draws: bool = False,
    engine: str = "loop",
    device: str = "cpu",
    statistics: Statistics = "average",
) -> None:
    """Raise an AssertionError that names the first law broken by a method, or by the method that a
    constructor makes.

    `draws` says that it draws random numbers. These depend on the number of the client, so clients cannot be
    renumbered then. `statistics` is the policy for BatchNorm statistics, for a method that does not allow
    them to be averaged.

    For every method:

    - weights stay finite on hard clients, also with two classes and under BatchNorm;
    - the same trial, in which validation chooses the round, gives the same bits, also if it was stopped and
      resumed.

    For methods that are not programs also:

    - every term depends on the model for some client;
    - clients do not see each other, and nothing received is changed in place;
    - statistics move once per step, and buffers do not move parameters;
    - what is kept and reported are named tensors;
    - renumbering the clients or the classes renumbers the result;
    - clients without data change nothing.
    """
    if not isinstance(method, Method | Program):
        method = method()
    make = partial(hard_trial, batch_size=8, engine=engine, device=device, statistics=statistics)
    plain, normed = train(make(), method), train(make(normed_model, validation=0.3), method)
    _law("weights stay finite on hard clients", _finite(plain))
    two = [counts[:2] for counts in HARD_COUNTS]
    _law("weights stay finite with two classes", _finite(train(make(counts=two), method)))
    _law("weights stay finite under BatchNorm", _finite(normed))
    _check_again(method, make(normed_model, validation=0.3), normed)
    if isinstance(method, Program):
        return
    trial = make(normed_model)
    if method.terms:
        _check_terms(method, trial)
    started = engines.start(trial)
    fits = _check_clients(method, trial, started)
    _check_buffers(method, started.initial, fits[:2])
    _check_numbers(method, make, draws)


class _StoppedError(UserError):
    """Ends a training after a round or within one. Any other error would count as the client's."""


def _check_terms(method: Method, trial: Trial) -> None:
    """Refuse a term that is a constant for all clients. It may be one for some of them."""
    seen = [False] * len(method.terms)

    def watched(n: int, term: Objective) -> Objective:
        def watching(view: View) -> Tensor:
            value = term(view)
            seen[n] |= value.requires_grad
            if all(seen):
                raise _StoppedError
            return value

        return watching

    terms = tuple(watched(n, term) for n, term in enumerate(method.terms))
    with suppress(_StoppedError):
        train(replace(trial, engine="loop"), replace(method, terms=terms))
    for n, (term, depends) in enumerate(zip(method.terms, seen, strict=True)):
        _law(f"terms[{n}]{quoted_name(term)} depends on the model", depends)


def _check_again(method: Method | Program, trial: Trial, whole: Result) -> None:
    """Check a run that is stopped in the second round, after everything was kept that is needed by then, and
    resumed."""

    def stop(round: Round) -> None:
        if round.number == 2:
            raise _StoppedError

    with TemporaryDirectory() as folder:
        with suppress(_StoppedError):
            first = Checkpoints(folder, trial, "law", every="every=1")
            train(trial, method, on_round=stop, keeper=first)
        first.wait()
        rest = train(trial, method, keeper=Checkpoints(folder, trial, "law", every="never"))
    if not _same_bits(whole, rest):
        _law("the same trial gives the same bits", _same_bits(whole, train(trial, method)))
        _law("a resumed run gives the same bits", False)


def _same_bits(one: Result, other: Result) -> bool:
    """Say whether the chosen model, the last state and the tests of all rounds are the same, bit for bit."""
    mine, theirs = one.state.server, other.state.server
    same = _same(one.weights.params, other.weights.params)
    same &= _same(one.weights.buffers, other.weights.buffers)
    same &= _same(mine.weights.params, theirs.weights.params)
    same &= _same(mine.weights.buffers, theirs.weights.buffers)
    return same and _tests_of(one) == _tests_of(other)


def _tests_of(result: Result) -> list[list[list[int]] | None]:
    return [None if round.test is None else round.test.confusion.tolist() for round in result.rounds]


def _law(sentence: str, holds: bool) -> None:
    if not holds:
        raise AssertionError(f"a law is broken: {sentence}")


def _check_clients(method: Method, trial: Trial, engine: engines.Engine) -> list[Fit]:
    """Check the clients in the second round, when they and the server have something to remember. Return the
    fits of the clients that hold samples."""
    state, _ = run_round(trial, method, engine, initial_state(method, engine.initial))
    shared = method.server.share(state.server)
    anchor = model_to_send(method, state.server)
    held = [client for client, counts in enumerate(HARD_COUNTS) if sum(counts)]
    tasks = [engines.Task(client, 1, trial.federation.holding(client)) for client in held]
    jobs = [engines.Job(task, state.memories.get(task.client, {})) for task in tasks]
    before = [_copies(shared), _copies(anchor.params), _copies(anchor.buffers)]
    before += [_copies(job.memory) for job in jobs]
    fits = completed(engine.fit(method, anchor, shared, jobs))
    after = [shared, anchor.params, anchor.buffers, *(job.memory for job in jobs)]
    _law("nothing received is changed in place", all(map(_same, before, after)))
    backwards = completed(engine.fit(method, anchor, shared, jobs[::-1]))[::-1]
    for one, other in zip(fits, backwards, strict=True):
        same = _same(one.weights.params, other.weights.params) and _same(one.memory, other.memory)
        _law("clients do not see each other", same and _same(one.reported, other.reported))
    for job, fit in zip(jobs, fits, strict=True):
        tracked = [value for name, value in fit.weights.buffers.items() if name.endswith("tracked")]
        start = [value for name, value in anchor.buffers.items() if name.endswith("tracked")]
        # A single sample is normalised by the running statistics, which then stand still.
        moved = 0 if sum(HARD_COUNTS[job.task.client]) == 1 else fit.steps
        _law(
            "statistics move once per step", all(b - a == moved for a, b in zip(start, tracked, strict=True))
        )
        for kind in (fit.memory, fit.reported):
            named = all(isinstance(value, torch.Tensor) for value in kind.values())
            _law("what is kept and reported are named tensors", named)
    return fits


def _check_buffers(method: Method, initial: Weights, fits: list[Fit]) -> None:
    """Check an update of two clients whose parameters stood still and whose buffers jumped, and who report
    zeros of the shapes in `fits`."""
    state, device = initial_state(method, initial), next(iter(initial.params.values())).device
    updates = Updates(
        holders=2,
        weight=torch.tensor([0.5, 0.5], dtype=torch.float64, device=device),
        delta={name: torch.zeros_like(torch.stack([value] * 2)) for name, value in initial.params.items()},
        buffers={name: torch.stack([value + 1000] * 2) for name, value in initial.buffers.items()},
        steps=torch.tensor([1, 1], device=device),
        lr=0.1,
        momentum=0.0,
        reported={
            name: torch.zeros_like(torch.stack([fit.reported[name] for fit in fits]))
            for name in fits[0].reported
        },
    )
    params, _ = method.server.move(state.server, method.server.combine(state.server, updates))
    still = all(torch.allclose(value, initial.params[name], atol=1e-7) for name, value in params.items())
    _law("buffers do not move parameters", still)


def _check_numbers(method: Method, make: Callable[..., Trial], draws: bool) -> None:
    """Check that renumbering clients or classes, and leaving out empty clients, changes nothing else. Batches
    are full, so that the batch order, which depends on the client's number, has no effect. Empty clients come
    last, so that without them the others keep their numbers."""
    new = torch.tensor([2, 0, 3, 1])  # the new number of each class
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(0)
        first, second = nn.Linear(5, 4), nn.Linear(5, 4)
        second.weight[new] = first.weight
        second.bias[new] = first.bias
    holders = [counts for counts in HARD_COUNTS if sum(counts)]
    empty = [(0, 0, 0, 0)] * 7
    plain = make(lambda: first, counts=[*holders, *empty], full_batch=True)
    dataset, indices = plain.federation.dataset, plain.federation.partition.indices
    one = train(plain, method).weights.params

    def close(other: Params, rtol: float = 1e-3, atol: float = 1e-4) -> bool:
        return all(torch.allclose(one[name], other[name], rtol=rtol, atol=atol) for name in one)

    if not draws:
        moved = [indices[client] for client in (3, 8, 1, 0, 9, 5, 10, 2, 6, 4, 7, 11)]
        federation = Federation(dataset, partition_of(moved, dataset, recipe="laws"))
        other = train(replace(plain, federation=federation), method).weights.params
        _law("renumbering the clients changes nothing", close(other))
    renamed = replace(
        dataset,
        train=replace(dataset.train, labels=new[dataset.train.labels]),
        test=replace(dataset.test, labels=new[dataset.test.labels]),
    )
    federation = Federation(renamed, partition_of(indices, renamed, recipe="laws"))
    other = train(replace(plain, federation=federation, model=lambda: second), method).weights.params
    back = {name: value[new] for name, value in other.items()}
    _law("renumbering the classes renumbers the result", close(back))
    other = train(make(lambda: first, counts=holders, full_batch=True), method).weights.params
    _law("clients without data change nothing", close(other, rtol=1e-4, atol=1e-6))


def hard_trial(
    model: Callable[[], nn.Module] | str = "logistic",
    *,
    counts: Sequence[Sequence[int]] = HARD_COUNTS,
    batch_size: int = 4,
    full_batch: bool = False,
    engine: str = "loop",
    device: str = "cpu",
    statistics: Statistics = "average",
    validation: float | None = None,
) -> Trial:
    """Make a trial with clients that break careless methods, on Gaussian clouds in five dimensions, one per
    class. `validation` is the share of each client's samples that is held out for validation."""
    rng = np.random.default_rng(0)
    C = len(counts[0])
    labels = np.repeat(np.tile(np.arange(C), len(counts)), np.ravel(counts))
    holder = np.repeat(np.arange(len(counts)), np.sum(counts, axis=1))
    centres = rng.normal(size=(C, 5))
    test_labels = np.tile(np.arange(C), 5)

    def cloud(labels: np.ndarray) -> torch.Tensor:
        return torch.from_numpy(centres[labels] + 0.5 * rng.normal(size=(len(labels), 5))).float()

    dataset = Dataset(
        "laws",
        Split(cloud(labels), torch.from_numpy(labels)),
        Split(cloud(test_labels), torch.from_numpy(test_labels)),
        tuple(f"class {c}" for c in range(C)),
    )
    clients = [np.flatnonzero(holder == client) for client in range(len(counts))]
    budget = Budget(
        rounds=3, epochs=1 if full_batch else 2, batch_size=100 if full_batch else batch_size, lr=0.05
    )
    partition = partition_of(clients, dataset, recipe="laws")
    if validation is not None:
        partition = hold_out(partition, dataset, validation, seed=1)
    federation = Federation(dataset, partition, validation_split(dataset, partition))
    return Trial(federation, model, budget=budget, engine=engine, device=device, statistics=statistics)


def normed_model() -> nn.Module:
    """Make a small model with BatchNorm for four classes."""
    return nn.Sequential(nn.Linear(5, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 4))


def _finite(result: Result) -> bool:
    return all(bool(value.isfinite().all()) for value in result.weights.params.values())


def _copies(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name: value.clone() for name, value in tensors.items()}


def _same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(value, other[name]) for name, value in one.items())
