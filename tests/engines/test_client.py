"""A client's training depends on its number and its samples, and on nothing else of the federation."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from federations import flat, split
from unskew import Budget, Method, Trial, engines
from unskew.data.dataset import Split
from unskew.engines.job import completed
from unskew.methods import METHODS
from unskew.rounds import initial_state, run_round

BUDGET = Budget(rounds=2, epochs=2, batch_size=16, lr=0.05)


@pytest.mark.parametrize("name", ["fedavg", "fedvls", "scaffold", "moon", "fedcurv", "balancefl"])
def test_a_site_with_its_own_data_alone_trains_as_in_the_simulation(skewed, name):
    """Compare second rounds, which have a trained model, tensors of the server and a memory of the client."""
    method = METHODS[name]()
    trial = Trial(skewed, "mlp-small", budget=BUDGET, engine="loop", device="cpu")
    engine = engines.start(trial)
    state, _ = run_round(trial, method, engine, initial_state(method, engine.initial))
    shared, client = method.server.share(state.server), int(skewed.sizes.argmax())
    job = engines.Job(engines.Task(client, 1, skewed.holding(client)), state.memories.get(client, {}))
    [simulated] = completed(engine.fit(method, state.server.weights, shared, [job]))

    dataset, mine = skewed.dataset, skewed.indices(client)
    own = replace(dataset, train=Split(dataset.train.inputs[mine], dataset.train.labels[mine]))
    site = split(own, range(len(mine)))
    there = engines.start(replace(trial, federation=site))
    [trained] = completed(
        there.fit(
            method,
            state.server.weights,
            shared,
            [replace(job, task=engines.Task(client, 1, site.holding(0)))],
        )
    )
    assert torch.equal(flat(trained.weights), flat(simulated.weights))
    for one, other in ((trained.memory, simulated.memory), (trained.reported, simulated.reported)):
        assert one.keys() == other.keys()
        assert all(torch.equal(value, other[key]) for key, value in one.items())


def test_the_place_of_a_client_among_others_changes_nothing(skewed):
    trial = Trial(skewed, "logistic", budget=BUDGET, engine="loop", device="cpu")
    engine = engines.start(trial)
    jobs = [engines.Job(engines.Task(k, 0, skewed.holding(k))) for k in range(skewed.clients)]
    one, other = (completed(engine.fit(Method(), engine.initial, {}, each)) for each in (jobs, jobs[::-1]))
    for mine, theirs in zip(one, other[::-1], strict=True):
        assert torch.equal(flat(mine.weights), flat(theirs.weights))


def test_a_client_s_number_is_the_key_of_its_random_numbers(skewed):
    trial = Trial(skewed, "logistic", budget=BUDGET, engine="loop", device="cpu")
    engine = engines.start(trial)
    jobs = [engines.Job(engines.Task(number, 0, skewed.holding(0))) for number in (0, 0, 7)]
    first, again, other = completed(engine.fit(Method(), engine.initial, {}, jobs))
    assert torch.equal(flat(first.weights), flat(again.weights))
    assert not torch.equal(flat(first.weights), flat(other.weights))


def test_a_client_may_train_on_a_part_of_its_samples(skewed):
    trial = Trial(skewed, "logistic", budget=BUDGET, engine="loop", device="cpu")
    rows = skewed.holding(0).rows[::2]
    labels = skewed.dataset.train.labels[torch.from_numpy(rows)].numpy()
    part = engines.Task(
        0,
        0,
        replace(skewed.holding(0), rows=rows, counts=torch.from_numpy(np.bincount(labels, minlength=10))),
    )
    for name in ("loop", "pool"):
        engine = engines.start(replace(trial, engine=name, workers=2))
        fits = completed(engine.fit(Method(), engine.initial, {}, [engines.Job(part)] * 2))
        assert [fit.samples for fit in fits] == [len(rows)] * 2
        engine.close()
