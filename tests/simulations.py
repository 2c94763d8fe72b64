"""Compares runs across the nodes of a federation with the same experiment on the loop engine here."""

import torch
from safetensors.torch import load_file

from unskew import engines
from unskew.experiment import load_data, prepare
from unskew.flower.run_config import read_config
from unskew.rounds import initial_state, run_round, sample_cohort
from unskew.train import train


def _prepared(config):
    experiment, _ = read_config(config)
    experiment = experiment.model_copy(update={"engine": "loop"})
    return prepare(experiment, load_data(experiment))


def simulated(config):
    """Return the result of a run config on the loop engine."""
    prepared = _prepared(config)
    return train(prepared.trial, prepared.method)


def simulated_without(config, client, rounds):
    """Return the weights and rounds of a run config if a client takes no part in some rounds."""
    prepared = _prepared(config)
    trial, method = prepared.trial, prepared.method
    engine = engines.start(trial)

    def sampler(trial, round):
        every = sample_cohort(trial, round)
        return [task for task in every if task.client != client or round + 1 not in rounds]

    state, rounds_done = initial_state(method, engine.initial), []
    while state.round < trial.budget.rounds:
        state, round = run_round(trial, method, engine, state, sampler=sampler)
        rounds_done.append(round)
    return state.server.weights, rounds_done


def assert_same(run, result):
    """Assert that a run and the result of a simulation are the same, to the last bit."""
    assert_same_weights(run, result.weights)
    assert run.summary.confusion == result.final.confusion.tolist()
    for line, round in zip(run.rounds, result.rounds, strict=True):
        assert (line.trained, line.train_loss) == (round.trained, round.train_loss)
        assert (line.traffic.up, line.traffic.down) == (round.traffic.up, round.traffic.down)


def assert_same_weights(run, weights):
    """Assert that the model of a run has these weights, to the last bit."""
    trained = load_file(run.path / "model.safetensors")
    mine = weights.params | weights.buffers
    assert trained.keys() == mine.keys()
    for name, value in mine.items():
        assert torch.equal(trained[name], value), name
