"""A round chosen without the test set, and training that stops when none gets better."""

import json
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import unskew as package
from federations import flat, split
from unskew import (
    Budget,
    Checkpoints,
    Evaluation,
    Stop,
    Trial,
    UserError,
    engines,
    federate,
    methods,
    metrics,
)
from unskew.data.validation import hold_out, validation_split
from unskew.engines.cuda.graphs import Graphs
from unskew.experiment import Experiment, load_data, prepare, read
from unskew.metrics import Assessment
from unskew.program import Program
from unskew.report.read import read_run
from unskew.result import BestRound, Round
from unskew.runs import RunFolder
from unskew.testing import hard_trial, normed_model

pytestmark = pytest.mark.usefixtures("no_workers")

UNSTEADY = (
    "--dataset", "digits", "--skew", "dirichlet:0.05", "--clients", "4", "--rounds", "10", "--epochs", "1",
    "--lr", "0.3", "--model", "logistic", "--engine", "loop", "--quiet", "--validation", "0.15",
)  # fmt: skip
"""A run whose rounds go up and down."""
LAST = 9


@pytest.fixture(scope="module")
def unsteady(digits) -> Trial:
    whole = federate(digits, "dirichlet:0.1", clients=4, seed=1)
    some = split(digits, *(rows[::4] for rows in whole.partition.indices))
    partition = hold_out(some.partition, digits, 0.2, seed=1)
    federation = replace(some, partition=partition, validation=validation_split(digits, partition))
    budget = Budget(rounds=LAST, epochs=1, lr=0.3, batch_size=16)
    return Trial(federation, "logistic", budget=budget, engine="loop")


def by_round(result, of=metrics.accuracy) -> dict[int, float]:
    return {r.number: of(r.validation.confusion) for r in result.rounds if r.validation is not None}


def test_the_model_is_that_of_the_best_round_on_validation(unsteady):
    result = package.train(unsteady)
    scores = by_round(result)
    best = max(scores, key=scores.get)  # the first of several
    assert 1 < best < LAST
    assert result.validation.round == result.validation.line == best
    assert result.validation.stopped is None
    assert result.validation.value == scores[best]
    assert result.validation.samples == len(unsteady.federation.validation)
    short = package.train(replace(unsteady, budget=unsteady.budget.model_copy(update={"rounds": best})))
    assert torch.equal(flat(result.weights), flat(short.state.server.weights))
    assert not torch.equal(flat(result.weights), flat(result.state.server.weights))
    chosen = result.rounds[best - 1].test
    assert result.final is chosen
    assert result.accuracy["best_by_validation"] == metrics.accuracy(chosen.confusion)
    assert result.accuracy["last"] == metrics.accuracy(result.rounds[-1].test.confusion)
    tests = [metrics.accuracy(r.test.confusion) for r in result.rounds]
    assert result.accuracy["best_by_test"] == max(tests) >= result.accuracy["best_by_validation"]


def test_nothing_else_depends_on_validation(unsteady):
    """Validation samples are not trained on; the rest is as if these samples had never been there."""
    without = replace(unsteady, federation=replace(unsteady.federation, validation=None))
    one, other = package.train(unsteady), package.train(without)
    assert [r.train_loss for r in one.rounds] == [r.train_loss for r in other.rounds]
    assert other.validation is None
    assert "best_by_validation" not in other.accuracy
    assert torch.equal(flat(other.weights), flat(one.state.server.weights))  # the last round's


@pytest.mark.parametrize("metric", ["accuracy", "macro-f1", "balanced-accuracy", "worst-class", "loss"])
def test_rounds_are_chosen_by_any_metric(unsteady, metric):
    result = package.train(replace(unsteady, stop=Stop(metric=metric)))
    values = [
        {
            "accuracy": metrics.accuracy(r.validation.confusion),
            "macro-f1": metrics.macro_f1(r.validation.confusion),
            "balanced-accuracy": metrics.balanced_accuracy(r.validation.confusion),
            "worst-class": np.nanmin(metrics.class_accuracy(r.validation.confusion)),
            "loss": r.validation.loss,
        }[metric]
        for r in result.rounds
    ]
    best = min(values) if metric == "loss" else max(values)
    assert result.validation.round == 1 + values.index(best)
    assert result.validation.value == best
    assert len(result.rounds) == LAST  # nothing said when to stop


def told(number: int, right: float) -> Round:
    confusion = np.array([[round(1000 * right), 1000 - round(1000 * right)], [0, 0]])
    nothing = np.zeros((2, 2))
    found = Assessment(confusion, math.nan if right < 0 else 1 - right, nothing, nothing)
    return Round(number, 0.1, [], [], 0.0, 0.0, found, validation=found)


@pytest.mark.parametrize(
    ("stop", "values", "chosen", "stopped"),
    [
        (Stop(), [0.1, 0.5, 0.5, 0.2], 2, None),  # of equal ones the first
        (Stop(patience=2), [0.1, 0.5, 0.4, 0.3, 0.9], 2, 4),
        (Stop(patience=3), [0.1, 0.5, 0.4, 0.3, 0.9], 5, None),
        (Stop(patience=1), [0.5, 0.5], 1, 2),
        (Stop(patience=2, min_delta=0.1), [0.1, 0.5, 0.55, 0.59, 0.9], 4, 4),  # better, but not by enough
        (Stop(patience=2, metric="loss"), [0.1, 0.5, 0.4, 0.3], 2, 4),
    ],
)
def test_patience_counts_rounds_since_the_last_better_one(stop, values, chosen, stopped):
    choice, ended = BestRound(stop), None
    for number, value in enumerate(values, 1):
        choice.add(told(number, value))
        if choice.over:
            ended = number
            break
    assert (choice.round, ended) == (chosen, stopped)


def test_patience_counts_rounds_also_where_not_all_are_validated():
    choice = BestRound(Stop(patience=4))
    for number, value in ((2, 0.5), (4, 0.4), (5, None), (6, 0.4)):
        round = told(number, value or 0.0)
        choice.add(round if value is not None else replace(round, validation=None))
        assert choice.over == (number == 6)
    assert choice.round == 2


def test_a_round_that_is_not_a_number_is_never_chosen():
    choice = BestRound(Stop(metric="loss", patience=3))
    for number, loss in enumerate((math.nan, 0.5, math.nan), 1):
        given = told(number, 0.5)
        assert not choice.over
        choice.add(replace(given, validation=replace(given.validation, loss=loss)))
    assert choice.round == 2
    never = BestRound(Stop(metric="loss", patience=2))
    for number in (1, 2, 3):
        given = told(number, 0.5)
        never.add(replace(given, validation=replace(given.validation, loss=math.nan)))
    assert never.over
    assert never.round is None


@pytest.fixture(scope="module")
def stopped(unsteady):
    trial = replace(unsteady, stop=Stop(patience=2, metric="macro-f1"))
    return trial, package.train(trial)


def test_training_stops_when_no_round_is_better(unsteady, stopped):
    _trial, result = stopped
    scores, whole = by_round(result, metrics.macro_f1), package.train(unsteady)
    last = len(result.rounds)
    assert 3 <= last < LAST
    assert result.validation.stopped == last == result.validation.round + 2
    assert result.validation.round == max(scores, key=scores.get)
    assert [r.train_loss for r in result.rounds] == [r.train_loss for r in whole.rounds[:last]]
    assert result.state.round == last
    assert result.cost == last  # in rounds of FedAvg
    assert result.forgetting == metrics.forgetting(
        [metrics.class_accuracy(r.test.confusion) for r in result.rounds[: result.validation.round]]
    )


@pytest.mark.parametrize("engine", ["pool", "graphs"])
def test_every_engine_stops_at_the_same_round_with_the_same_bits(stopped, engine, monkeypatch):
    """The graphs engine has begun another round by then."""
    monkeypatch.setitem(engines.ENGINES, "graphs", engines.EngineType(Graphs))
    trial, result = stopped
    other = package.train(replace(trial, engine=engine, workers=2))
    assert len(other.rounds) == len(result.rounds)
    assert other.validation.round == result.validation.round
    assert torch.equal(flat(other.weights), flat(result.weights))
    assert torch.equal(flat(other.state.server.weights), flat(result.state.server.weights))
    assert other.scores == result.scores
    for mine, theirs in zip(other.rounds, result.rounds, strict=True):
        assert mine.train_loss == theirs.train_loss
        assert mine.validation.loss == theirs.validation.loss


def test_what_is_wrong_with_a_round_that_is_dropped_does_not_matter(stopped, monkeypatch):
    """An engine that runs ahead has begun it, the loop never does."""
    trial, result = stopped
    last = len(result.rounds)

    class Ahead(Graphs):
        def fit(self, method, sent, shared, jobs, upcoming=()):
            jobs = list(jobs)
            if jobs[0].task.round == last:
                raise RuntimeError("no round should begin here")
            return super().fit(method, sent, shared, jobs, upcoming)

    monkeypatch.setitem(engines.ENGINES, "graphs", engines.EngineType(Ahead))
    other = package.train(replace(trial, engine="graphs"))
    assert len(other.rounds) == last
    assert torch.equal(flat(other.weights), flat(result.weights))


class InterruptedError(Exception):
    pass


IN_STAGES = {
    "fedavg": methods.fedavg,
    "ccvr": lambda: methods.ccvr(samples=20),
    "local-only": methods.local_only,
    "fedconcat": lambda: methods.fedconcat(clusters=2, encoder_rounds=1),
    "fedconcat-encoders": lambda: methods.fedconcat(clusters=2, encoder_rounds=6, head="concatenated"),
    "pkd": lambda: methods.pkd(warmup=1, expert_rounds=1, groups="0/1"),
}


@pytest.mark.parametrize("name", IN_STAGES)
def test_a_run_that_was_interrupted_chooses_and_stops_as_the_whole_one(name, tmp_path):
    trial = hard_trial(normed_model, validation=0.3)
    budget = trial.budget.model_copy(update={"rounds": 6})
    trial = replace(trial, budget=budget, stop=Stop(patience=2))
    whole = package.train(trial, IN_STAGES[name]())
    assert whole.validation.round <= len(whole.rounds) <= 6
    numbers = [r.number for r in whole.rounds]
    for last in dict.fromkeys((2, numbers[-1])):  # in between, and when it has just stopped

        def interrupt(round, last=last):
            if round.number == last:
                raise InterruptedError

        folder = tmp_path / str(last)
        first = Checkpoints(folder, trial, name, every="every=1")
        with pytest.raises(InterruptedError):
            package.train(trial, IN_STAGES[name](), on_round=interrupt, keeper=first)
        first.wait()
        again = list[int]()
        rest = package.train(
            trial,
            IN_STAGES[name](),
            on_round=lambda round: again.append(round.number),  # noqa: B023
            keeper=Checkpoints(folder, trial, name, every="every=1"),
        )
        assert again == numbers
        assert torch.equal(flat(rest.weights), flat(whole.weights))
        assert rest.validation.round == whole.validation.round
        assert rest.validation.value == whole.validation.value
        assert (rest.final.confusion == whole.final.confusion).all()
        assert (rest.cost, rest.scores) == (whole.cost, whole.scores)


def test_a_run_that_was_kept_when_it_had_just_stopped_does_not_go_on(stopped, tmp_path):
    trial, whole = stopped
    last = len(whole.rounds)
    first = Checkpoints(tmp_path, trial, "it", every="every=1")
    keep = first.after_round

    def after_round(name, stage):
        keep(name, stage)
        if len(stage.rounds) == last:
            raise InterruptedError

    first.after_round = after_round
    with pytest.raises(InterruptedError):
        package.train(trial, keeper=first)
    first.wait()
    rest = package.train(trial, keeper=Checkpoints(tmp_path, trial, "it"))
    assert len(rest.rounds) == last
    assert torch.equal(flat(rest.weights), flat(whole.weights))


def test_checkpoints_of_other_validation_are_not_used(unsteady, tmp_path):
    first = Checkpoints(tmp_path, unsteady, "it", every="every=1")
    package.train(unsteady, keeper=first)
    first.wait()
    other = replace(unsteady, stop=Stop(metric="loss"))
    said: list[str] = []
    Checkpoints(tmp_path, other, "it", say=said.append)
    assert said
    assert all("another experiment" in each for each in said)


def test_a_method_that_serves_another_model_is_validated_by_it(unsteady):
    """The correction is in the model of every round, so that it is what validation sees."""
    plain, post_hoc = package.train(unsteady), package.train(unsteady, methods.logit_adjustment_post_hoc())
    assert by_round(plain) != by_round(post_hoc)
    at = post_hoc.validation.round
    assert (post_hoc.final.confusion == post_hoc.rounds[at - 1].test.confusion).all()


def test_ccvr_calibrates_the_chosen_round(unsteady):
    plain, result = package.train(unsteady), package.train(unsteady, methods.ccvr())
    assert result.validation.round == plain.validation.round < LAST
    assert result.validation.line == LAST
    untouched = package.train(unsteady, methods.ccvr(epochs=0))
    assert torch.equal(flat(untouched.weights), flat(plain.weights))
    assert result.final is result.rounds[-1].test
    assert result.validation.assessment is result.rounds[-1].validation
    before = metrics.accuracy(plain.final.confusion)
    assert any(f"accuracy {before:.4f} before calibration" in note for note in result.notes)


def test_stages_before_the_last_are_not_chosen_from(unsteady):
    pkd = package.train(unsteady, methods.pkd(warmup=6, expert_rounds=1, groups="0/1"))
    scores = {number: value for number, value in by_round(pkd).items() if number > 6}
    assert pkd.validation.round == max(scores, key=scores.get)


def test_a_program_of_ones_own_chooses_in_its_last_stage(unsteady):
    def run(run):
        first = run.train("first", run.base, until=4)
        second = run.train("second", run.base, start=first.state)
        return run.result(second.weights, second.state, [*first.rounds, *second.rounds])

    result, plain = package.train(unsteady, Program(run)), package.train(unsteady)
    scores = {number: value for number, value in by_round(plain).items() if number > 4}
    assert result.validation.round == max(scores, key=scores.get)
    assert [r.train_loss for r in result.rounds] == [r.train_loss for r in plain.rounds]


def test_untested_rounds_are_not_validated_and_never_chosen(unsteady):
    result = package.train(replace(unsteady, evaluation=Evaluation(every=5), stop=Stop(patience=5)))
    assert [r.number for r in result.rounds if r.validation] == [
        r.number for r in result.rounds if r.test is not None
    ]
    assert result.validation.round in (5, LAST)


def test_probabilities_are_scored_on_the_test_set(unsteady):
    result = package.train(unsteady)
    test = unsteady.federation.dataset.test
    weight, bias = (result.weights.params[name] for name in ("head.weight", "head.bias"))
    dataset = unsteady.federation.dataset
    mean, std = torch.tensor(dataset.mean), torch.tensor(dataset.std)
    x = ((test.inputs / 255 - mean.view(1, -1, 1, 1)) / std.view(1, -1, 1, 1)).flatten(1)
    probabilities = (x @ weight.T + bias).double().softmax(1).numpy()
    expected = metrics.probability_scores(probabilities, test.labels.numpy())
    assert result.scores.auc == pytest.approx(expected.auc, abs=1e-4)
    assert result.scores.brier == pytest.approx(expected.brier, rel=1e-3)
    assert result.scores.calibration_error == pytest.approx(expected.calibration_error, rel=0.02)
    assert result.scores.log_loss == pytest.approx(result.final.loss, rel=1e-3)


@pytest.mark.parametrize(
    "text", ["patience=0", "metric=f2", "patience", "20", "patience=2,patience=3", "x=1"]
)
def test_a_rule_that_cannot_be_read_is_told(text):
    with pytest.raises(UserError, match=r"^stop"):
        Stop.parse(text)


def test_stopping_needs_something_to_validate_on(skewed):
    with pytest.raises(UserError, match=r"there is nothing to validate on: give validation=0\.1"):
        Trial(skewed, "logistic", stop=Stop(patience=3))
    assert Stop.parse(str(Stop(patience=3, metric="loss", min_delta=0.1))) == Stop(
        patience=3, metric="loss", min_delta=0.1
    )


# From the command line


STOPPING = (*UNSTEADY, "--stop", "patience=2,metric=macro-f1")


def test_a_run_tells_what_it_chose(unskew, tmp_path):
    folder = tmp_path / "run"
    answer = unskew("run", *STOPPING, "--out", str(folder))
    assert answer.code == 0
    summary = json.loads((folder / "summary.json").read_text())
    lines = [json.loads(line) for line in (folder / "rounds.jsonl").read_text().splitlines()]
    found = summary["validation"]
    assert summary["rounds"] == len(lines) == found["stopped"] == found["round"] + 2 < 10
    chosen = lines[found["round"] - 1]
    assert chosen["validation"]["macro_f1"] == found["value"] == found["macro_f1"]
    assert max(line["validation"]["macro_f1"] for line in lines) == found["value"]
    assert summary["accuracy"]["best_by_validation"] == chosen["accuracy"]
    assert summary["accuracy"]["best_by_test"] == max(line["accuracy"] for line in lines)
    assert summary["class_accuracy"] == chosen["class_accuracy"]
    assert summary["macro_f1"] == chosen["macro_f1"]
    assert set(summary["probabilities"]) == {"auc", "calibration_error", "brier", "log_loss"}
    assert f"chosen by validation: round {found['round']} (macro-f1" in answer.out
    assert f"stopped after round {found['stopped']}" in answer.out
    assert "best by validation %" in answer.out
    assert "best by test" in answer.out
    for title in ("macro-F1", "balanced acc.", "AUC", "calibration err.", "Brier", "log-loss"):
        assert title in answer.out
    run = read_run(folder)
    assert run.finished
    assert run.final.round == found["round"]
    # The saved model is that of the chosen round.
    spec = Experiment(**read(folder / "experiment.toml"))
    again = package.train(prepare(spec, load_data(spec)).trial)
    saved = load_file(folder / "model.safetensors")
    assert all(torch.equal(value, saved[name]) for name, value in again.weights.params.items())


def test_a_killed_run_stops_where_the_whole_one_did(unskew, tmp_path, monkeypatch):
    whole, broken, append = tmp_path / "whole", tmp_path / "broken", RunFolder.append
    assert unskew("run", *STOPPING, "--out", str(whole)).code == 0

    def die(self, round):
        if round.number == 3:
            raise KeyboardInterrupt
        return append(self, round)

    with monkeypatch.context() as patch:
        patch.setattr(RunFolder, "append", die)
        assert unskew("run", *STOPPING, "--checkpoint", "every=1", "--out", str(broken)).code == 130
    assert unskew("resume", str(broken), "--quiet").code == 0
    one, other = (json.loads((each / "summary.json").read_text()) for each in (whole, broken))
    for key in ("weights_sha256", "validation", "accuracy", "probabilities", "rounds", "confusion"):
        assert one[key] == other[key]
    assert (whole / "model.safetensors").read_bytes() == (broken / "model.safetensors").read_bytes()


def test_methods_that_stop_at_different_rounds_are_compared(unskew, tmp_path):
    out = tmp_path / "compare"
    ask = ("--stop", "patience=2", "--seeds", "1,2", "--out", str(out))
    answer = unskew("compare", "fedavg", "ccvr", *UNSTEADY, *ask, "--json")
    assert answer.code == 0
    whole = json.loads(answer.out.splitlines()[-1])
    runs = whole["runs"]
    assert len({run["rounds"] for run in runs}) > 1
    mine = [run["accuracy"]["best_by_validation"] for run in runs if run["method"] == "fedavg"]
    told = whole["methods"]["fedavg"]
    assert told["accuracy"]["best_by_validation"]["mean"] == pytest.approx(np.mean(mine))
    assert told["validation"]["mean"] == pytest.approx(
        np.mean([run["validation"]["value"] for run in runs if run["method"] == "fedavg"])
    )
    assert told["macro_f1"]["n"] == 2
    assert told["probabilities"]["auc"]["n"] == 2
    theirs = [run["accuracy"]["best_by_validation"] for run in runs if run["method"] == "ccvr"]
    assert whole["answer"]["differences"]["ccvr"]["accuracy"]["difference"] == pytest.approx(
        np.mean(theirs) - np.mean(mine)
    )
    table = unskew("table", str(out))
    assert "best by validation" in table.out
    assert "best by test" in table.out
    assert unskew("report", str(out), "--out", str(tmp_path / "page.html")).code == 0


@pytest.mark.parametrize(
    ("ask", "sentence"),
    [
        (("--stop", "patience=3"), "there is nothing to validate on"),
        (("--validation", "1.5"), "validation is 1.5 but should be a share"),
        (("--validation", "0.1", "--stop", "patience=3,metric=f1"), "stop.metric is 'f1' but should be"),
        (("--validation", "0.1", "--stop", "patience=few"), "stop.patience is 'few' but should be"),
        (("--validation", "csv:nothing.csv,label=y"), "was not read from a table"),
    ],
)
def test_mistakes_are_told_in_one_sentence(unskew, tmp_path, ask, sentence):
    answer = unskew("run", *UNSTEADY[:-2], *ask, "--out", str(tmp_path / "run"))
    assert answer.code == 2
    assert sentence in answer.err
    assert len(answer.err.strip().splitlines()) == 1
    assert not (tmp_path / "run").exists()


def test_a_file_validates_from_any_folder(unskew, tmp_path, monkeypatch):
    rng = np.random.default_rng(0)
    for name, n in (("train.csv", 80), ("val.csv", 20)):
        rows = [f"{label + rng.normal():.3f},{label}" for label in rng.integers(0, 3, n)]
        (tmp_path / name).write_text("\n".join(["x,kind", *rows]) + "\n")
    monkeypatch.chdir(tmp_path)
    ask = ("--skew", "iid", "--clients", "2", "--rounds", "2", "--epochs", "1", "--quiet")
    data = ("--dataset", "csv:train.csv,label=kind", "--validation", "csv:val.csv,label=kind")
    assert unskew("run", *ask, *data, "--out", "run").code == 0
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["validation"]["samples"] == 20
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert unskew("run", str(tmp_path / "run" / "experiment.toml"), "--quiet", "--out", "again").code == 0
    again = json.loads((tmp_path / "elsewhere" / "again" / "summary.json").read_text())
    assert again["weights_sha256"] == summary["weights_sha256"]
    assert again["identity"] == summary["identity"]
