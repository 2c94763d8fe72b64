"""Clients that are drawn when they are needed are the same clients, however many there are."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

import unskew
from unskew.data import federate, load
from unskew.data.drawn import DrawnSplit
from unskew.errors import UserError

STORED, DRAWN = "synthetic:1,1,clients=12,cap=200", "synthetic:1,1,clients=12,cap=200,drawn=true"


def trained(federation, engine="loop", method=None, **options):
    budget = unskew.Budget(rounds=3, cohort=4, epochs=2)
    trial = unskew.Trial(federation, "logistic", budget, engine=engine, workers=2, **options)
    return unskew.train(trial, method)


def assert_same(one, other) -> None:
    for name, value in one.weights.params.items():
        assert torch.equal(value, other.weights.params[name])
    assert np.array_equal(one.final.confusion, other.final.confusion)


@pytest.mark.parametrize("more", ["", ",iid=true"])
def test_a_drawn_client_is_the_stored_one(more):
    stored = federate(load(STORED + more), "natural", clients=0, seed=0)
    drawn = federate(load(DRAWN + more), "natural", clients=12, seed=0)
    assert torch.equal(drawn.dataset.test.inputs, stored.dataset.test.inputs)
    assert torch.equal(drawn.dataset.test.labels, stored.dataset.test.labels)
    assert torch.equal(drawn.sizes, stored.sizes)
    assert torch.equal(drawn.counts, stored.counts)
    assert drawn.population == stored.population
    for client in (7, 0, 11):
        inputs, labels = drawn.dataset.train.take(drawn.indices(client))
        assert torch.equal(inputs, stored.dataset.train.inputs[stored.indices(client)])
        assert torch.equal(labels, stored.labels(client))
        assert torch.equal(drawn.labels(client), labels)


def test_rows_of_several_clients_come_in_their_order():
    stored, drawn = load(STORED).train, load(DRAWN).train
    rows = torch.from_numpy(np.random.default_rng(0).permutation(len(stored)))[:400]
    assert len(drawn) == len(stored)
    for one, other in zip(drawn.take(rows), stored.take(rows), strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("engine", ["loop", "pool"])
def test_training_on_drawn_clients_gives_the_bits_of_stored_ones(engine):
    stored = federate(load(STORED), "natural", clients=0, seed=0)
    drawn = federate(load(DRAWN), "natural", clients=0, seed=0)
    method = unskew.methods.fedcurv(samples=60, batch_size=20)
    assert_same(trained(stored, "loop", method), trained(drawn, engine, method))


def test_a_client_does_not_depend_on_how_many_there_are():
    few, many = (load(f"synthetic:0.5,1,clients={n},cap=100,drawn=true").train for n in (1500, 1_000_000))
    for client in (1400, 3):
        for one, other in zip(few.of_client(client), many.of_client(client), strict=True):
            assert torch.equal(one, other)


def test_a_million_clients_train_and_only_those_that_are_needed_are_drawn(monkeypatch, tmp_path):
    drawn = []
    plain = DrawnSplit.of_client
    monkeypatch.setattr(
        DrawnSplit, "of_client", lambda self, client: (drawn.append(client), plain(self, client))[1]
    )
    dataset = load("synthetic:1,1,clients=1000000,cap=60,drawn=true")
    federation = federate(dataset, "natural", clients=0, seed=0)
    assert federation.clients == 1_000_000
    assert drawn == []
    result = trained(federation, method=unskew.methods.scaffold())
    seen = {client for round in result.rounds for client in round.cohort}
    assert set(drawn) <= seen
    assert set(result.state.memories) == seen
    assert max(seen) > 1000  # whose labels nobody knew before
    assert "of the first 1,000 of 1,000,000" in result.notes[0]
    federation.save(tmp_path / "partition.json")
    assert (tmp_path / "partition.json").stat().st_size < 100_000
    told = json.loads((tmp_path / "partition.json").read_text())
    assert told["indices"] is None
    assert told["dataset"]["name"] == "synthetic:1,1,clients=1000000,seed=0,cap=60,drawn=true"
    again = federate(dataset, f"file:{tmp_path / 'partition.json'}", clients=0, seed=0)
    assert torch.equal(again.sizes, federation.sizes)


@pytest.mark.parametrize(
    ("skew", "clients", "sentence"),
    [
        ("dirichlet:0.1", 12, "drawn when they are needed, each with its own samples: use --skew natural"),
        ("natural", 5, "5 clients are asked for, but .* draws 12: write clients=5 in its name"),
    ],
)
def test_drawn_clients_cannot_be_divided_otherwise(skew, clients, sentence):
    with pytest.raises(UserError, match=sentence):
        federate(load(DRAWN), skew, clients=clients, seed=0)


@pytest.mark.parametrize("method", ["centralised", "fedconcat"])
def test_what_needs_all_data_says_so(method):
    federation = federate(load(DRAWN), "natural", clients=0, seed=0)
    with pytest.raises(UserError, match="drawn client by client and never whole"):
        trained(federation, method=getattr(unskew.methods, method)())


def test_mixed_clients_cannot_be_drawn_alone():
    with pytest.raises(UserError, match="leave out mixed or drawn"):
        load("synthetic:1,1,mixed=true,drawn=true")
