"""Rounds chosen by validation on a GPU, where the next round has begun before the choice is known."""

from dataclasses import replace

import pytest
import torch

from federations import flat
from unskew import Budget, Checkpoints, Stop, Trial, methods, train
from unskew.data.validation import hold_out, validation_split
from unskew.testing import hard_trial, normed_model

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")


class StoppedError(Exception):
    pass


MADE = {
    "fedavg": methods.fedavg,
    "scaffold": methods.scaffold,
    "ccvr": methods.ccvr,
    "pkd": lambda: methods.pkd(warmup=1, expert_rounds=2, groups="0/1,2/3"),
    "local-only": methods.local_only,
    "fedconcat": lambda: methods.fedconcat(clusters=2, encoder_rounds=2),
}


def validated(images, model, **more) -> Trial:
    partition = hold_out(images.partition, images.dataset, 0.2, seed=1)
    held = validation_split(images.dataset, partition)
    federation = replace(images, partition=partition, validation=held)
    budget = Budget(rounds=8, epochs=1, batch_size=16, lr=0.05)
    return Trial(federation, model, budget=budget, device="cuda", stop=Stop(patience=2), **more)


def assert_same(one, other) -> None:
    assert torch.equal(flat(one.weights), flat(other.weights))
    assert one.validation.round == other.validation.round
    assert one.validation.value == other.validation.value
    assert len(one.rounds) == len(other.rounds)
    for mine, theirs in zip(one.rounds, other.rounds, strict=True):
        assert (mine.test.confusion == theirs.test.confusion).all()
        assert (mine.validation.confusion == theirs.validation.confusion).all()


@pytest.mark.parametrize("name", MADE)
def test_graphs_chooses_and_stops_as_the_loop(name):
    trial = hard_trial(normed_model, device="cuda", validation=0.3)
    budget = trial.budget.model_copy(update={"rounds": 6})
    trial = replace(trial, budget=budget, stop=Stop(patience=2))
    one, other = (train(replace(trial, engine=engine), MADE[name]()) for engine in ("loop", "graphs"))
    assert len(one.rounds) == len(other.rounds)
    assert one.validation.round == other.validation.round
    assert torch.allclose(flat(one.weights), flat(other.weights), rtol=1e-5, atol=1e-6)
    assert other.scores.auc == pytest.approx(one.scores.auc, abs=1e-3)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("name", MADE)
def test_a_run_goes_on_with_the_same_choice(images, tmp_path, name, precision):
    trial = validated(images, "cnn", engine="graphs", precision=precision)
    trial = replace(trial, client_files=tmp_path / "clients")
    whole = train(trial, MADE[name]())
    assert_same(whole, train(trial, MADE[name]()))

    def stop(round):
        if round.number == 2:
            raise StoppedError

    first = Checkpoints(tmp_path / "kept", trial, "it", every="every=1")
    with pytest.raises(StoppedError):
        train(trial, MADE[name](), on_round=stop, keeper=first)
    first.wait()
    assert_same(whole, train(trial, MADE[name](), keeper=Checkpoints(tmp_path / "kept", trial, "it")))


@pytest.mark.filterwarnings("ignore")  # of the compiler, about itself
def test_a_compiled_test_validates_too(images):
    """Run so many tests that compiling them may save time."""
    trial = validated(images, "cnn", engine="graphs", fast=True)
    result = train(replace(trial, stop=Stop()), methods.fedavg())
    assert all(r.validation.confusion.sum() == result.validation.samples for r in result.rounds)
