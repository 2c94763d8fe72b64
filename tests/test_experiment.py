"""Experiment files: how settings are read, checked and written out."""

from __future__ import annotations

import copy
import tomllib

import numpy as np
import pytest
import tomli_w
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from unskew import Budget, Trial, UserError
from unskew.experiment import Experiment, MethodSpec, assign, prepare
from unskew.methods import METHODS


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("5", 5),
        ("-3", -3),
        ("1_000", 1000),
        ("0.1", 0.1),
        ("1e-5", 1e-5),
        ("true", True),
        ("all", "all"),
        ("dirichlet:0.05,cap=false", "dirichlet:0.05,cap=false"),
        ("csv:a b.csv,label=kind", "csv:a b.csv,label=kind"),
        ('"5"', "5"),
        ("'fedavg'", "fedavg"),
        ("[64, 32]", [64, 32]),
        ("[]", []),
        ("{ mu = 0.1 }", {"mu": 0.1}),
        ("", ""),
        ("a=b", "a=b"),
        (".5", ".5"),
    ],
)
def test_a_value_is_read_as_toml_and_else_as_text(text, value):
    assigned = assign({}, [f"key={text}"])["key"]
    assert assigned == value
    assert type(assigned) is type(value)


@settings(max_examples=50)
@given(
    path=st.lists(st.text("abcdefgh_", min_size=1), min_size=1, max_size=4),
    value=st.one_of(st.integers(), st.booleans(), st.floats(allow_nan=False), st.text(max_size=10)),
)
def test_any_toml_value_can_be_put_anywhere(path, value):
    literal = tomli_w.dumps({"x": value}).removeprefix("x = ").removesuffix("\n")
    found = assign({}, [f"{'.'.join(path)}={literal}"])
    for part in path:
        found = found[part]
    assert found == value
    assert type(found) is type(value)


def test_assignments_go_into_what_is_there_and_the_last_one_wins():
    before = {"budget": {"rounds": 1, "lr": 0.1}, "seed": 1}
    kept = copy.deepcopy(before)
    after = assign(before, ["budget.rounds=2", "budget.rounds=3", "skew.recipe=iid"])
    assert after == {"budget": {"rounds": 3, "lr": 0.1}, "seed": 1, "skew": {"recipe": "iid"}}
    assert before == kept


def test_a_value_cannot_be_used_as_a_table():
    with pytest.raises(UserError, match=r"'seed\.x' is not a setting: seed is a value, not a table\."):
        assign({"seed": 1}, ["seed.x=2"])


@pytest.mark.parametrize(
    ("given_settings", "sentence"),
    [
        ({"bugdet": {}}, "bugdet is not a setting: did you mean 'budget'?"),
        ({"lr": 0.1}, "lr is not a setting: did you mean 'budget.lr'?"),
        ({"budget": {"round": 5}}, "budget.round is not a setting: did you mean 'rounds'?"),
        ({"data": {"augmentation": ""}}, "data.augmentation is not a setting: did you mean 'augment'?"),
        ({"skew": {"client": 3}}, "skew.client is not a setting: did you mean 'clients'?"),
        (
            {"skew": {"colour": 3}},
            "skew.colour is not a setting: choose one of recipe, clients, seed, sha256.",
        ),
        ({"evaluation": {"evry": 3}}, "evaluation.evry is not a setting: did you mean 'every'?"),
        ({"budget": {"rounds": 0, "lr": 0}}, "budget.rounds is 0 but should be at least 1."),
        ({"budget": {"rounds": 2.5}}, "budget.rounds is 2.5 but should be a whole number."),
        ({"budget": {"rounds": True}}, "budget.rounds is 'true' but should be a whole number."),
        ({"budget": {"lr": True}}, "budget.lr is 'true' but should be a number."),
        ({"budget": {"lr": float("inf")}}, "budget.lr is inf but should be a finite number."),
        ({"budget": {"weight_decay": -0.5}}, "budget.weight_decay is -0.5 but should be at least 0."),
        ({"budget": {"cohort": 1.5}}, "budget.cohort is 1.5 but should be 'all' or a whole number."),
        ({"budget": {"cohort": True}}, "budget.cohort is 'true' but should be 'all' or a whole number."),
        ({"skew": {"seed": "x"}}, "skew.seed is 'x' but should be a whole number."),
        ({"budget": [1]}, "budget is [1] but should be a table: set its keys, such as budget.rounds."),
        ({"engine": 5}, "engine is 5 but should be text."),
        ({"seed": None}, "seed is None but should be a whole number."),
    ],
)
def test_what_is_wrong_in_a_file_is_said_with_its_place(given_settings, sentence):
    with pytest.raises(UserError) as error:
        Experiment(**given_settings)
    assert str(error.value) == sentence


@pytest.mark.parametrize(
    ("given_settings", "sentence"),
    [
        ({"model": {"wdith": 3}}, "unknown setting of model 'mlp-small' 'wdith'"),
        (
            {"model": {"name": "mlp", "hiden": [3]}},
            "unknown setting of model 'mlp' 'hiden': did you mean 'hidden'",
        ),
        ({"method": {"name": "fedprox", "nu": 1}}, "unknown hyperparameter of fedprox 'nu'"),
        ({"method": {"name": "fedprox", "mu": "much"}}, "mu of fedprox is 'much'"),
        ({"method": {"name": "fedprox", "mu": -1}}, "should be 0 or more"),
        ({"method": {"name": "fedavg", "mu": 1}}, "method 'fedavg' has no hyperparameters"),
    ],
)
def test_what_a_model_or_method_does_not_know_is_refused(digits, given_settings, sentence):
    with pytest.raises(UserError, match=sentence):
        prepare(Experiment(**given_settings), digits)


def test_numbers_may_come_as_text_and_from_numpy():
    assert Budget(rounds="5", lr="0.5", cohort="3") == Budget(rounds=5, lr=0.5, cohort=3)
    assert Budget(rounds=np.int64(5), lr=np.float64(0.5)) == Budget(rounds=5, lr=0.5)


def test_settings_cannot_be_changed_afterwards():
    with pytest.raises(ValueError, match="frozen"):
        Budget().rounds = 3


@pytest.mark.parametrize("name", METHODS)
def test_the_resolved_file_writes_every_default_and_reads_back_as_the_same_experiment(digits, name):
    asked = Experiment(method={"name": name}, skew={"clients": 3})
    resolved = prepare(asked, digits).experiment
    content = tomllib.loads(resolved.toml())
    for table, field in Experiment.model_fields.items():
        assert table in content
        for key in getattr(field.annotation, "model_fields", {}):
            if (table, key) in {("budget", "steps"), ("method", "sha256")}:  # it has epochs, and no file
                continue
            assert key in content[table]
            assert content[table][key] != "auto"
    assert content["method"] == {"name": name, **METHODS[name].options}
    again = Experiment(**content)
    assert again == resolved
    assert prepare(again, digits).experiment == resolved


def test_the_partition_keeps_its_own_seed(digits):
    follows = prepare(Experiment(seed=4), digits)
    assert follows.experiment.skew.seed == 4
    fixed = [prepare(Experiment(seed=seed, skew={"seed": 9}), digits) for seed in (1, 2)]
    hashes = [each.trial.federation.partition.index_sha256 for each in fixed]
    assert hashes[0] == hashes[1] != follows.trial.federation.partition.index_sha256


def test_hyperparameters_of_methods_put_together_stand_in_tables_of_their_own(digits):
    spec = MethodSpec(name="fedprox+fedavgm", fedprox={"mu": 0.5})
    resolved = prepare(Experiment(method=spec.model_dump()), digits).experiment
    content = tomllib.loads(resolved.toml())["method"]
    assert content["fedprox"] == {"mu": 0.5}
    assert content["fedavgm"] == METHODS["fedavgm"].options
    assert Experiment(**tomllib.loads(resolved.toml())) == resolved
    with pytest.raises(UserError, match=r"method\.mu does not say whose hyperparameter it is"):
        MethodSpec(name="fedprox+fedavgm", mu=0.5).parts()


def test_settings_of_engines_reach_the_trial(digits):
    given = Experiment.model_validate(assign({}, ["trace=false", "workers=3", "threads=2"]))
    prepared = prepare(given, digits)
    assert (prepared.trial.trace, prepared.trial.workers, prepared.trial.threads) == (False, 3, 2)
    assert prepared.experiment.trace is False
    assert Experiment().trace


@pytest.mark.parametrize(("device", "precision"), [("cpu", "fp32"), ("cuda", "tf32")])
def test_a_run_says_which_precision_it_took(device, precision, digits, monkeypatch):
    """Where none is asked for: full on a CPU, PyTorch's own for convolutions on a GPU."""
    monkeypatch.setattr(Trial, "pick_device", lambda _: torch.device(device))
    made = prepare(Experiment(engine="loop"), digits)
    assert (made.trial.pick_precision(), made.experiment.precision) == (precision, precision)
    assert made.trial.network.precision == precision
    asked = prepare(Experiment(engine="loop", precision="bf16"), digits)
    assert (asked.trial.pick_precision(), asked.experiment.precision) == ("bf16", "bf16")
