"""How long, how fast and by which rule clients train."""

import tomllib
from dataclasses import replace

import pytest
import torch
from torch.nn.functional import cross_entropy
from torch.optim import lr_scheduler

import unskew
from federations import flat, split
from unskew import Budget, Method, Trial, UserError
from unskew.data.augment import normalise
from unskew.engines.plan import epochs
from unskew.methods import METHODS
from unskew.parts.optimizers import AdamSettings, adam, fused_adam
from unskew.program import StoredStage
from unskew.testing import hard_trial
from unskew.types import Memory

pytestmark = pytest.mark.usefixtures("no_workers")


@pytest.fixture(scope="module")
def sites(digits):
    """Of very different size, and one without data."""
    return split(digits, range(300), range(300, 310), [], range(310, 343))


# Steps and parts of epochs


def test_every_client_takes_the_steps_and_methods_see_how_many(sites):
    seen = []

    def update(scope, end):
        seen.append((int(scope.counts.sum()), end.steps))
        return {}, {}

    trial = Trial(sites, "logistic", Budget(rounds=1, steps=7, batch_size=32), engine="loop")
    result = unskew.train(trial, Method(memory=Memory(update=update)))
    assert seen == [(300, 7), (10, 7), (33, 7)]
    assert result.rounds[0].samples == 7 * 32 + 7 * 10 + (3 * 33 + 32)


def test_steps_that_come_to_whole_epochs_are_these(digits):
    federation = split(digits, range(64), range(64, 120))
    runs = [
        unskew.train(Trial(federation, "mlp-small", Budget(rounds=2, batch_size=32, **length)))
        for length in ({"steps": 4}, {"epochs": 2}, {"epochs": 2.0})
    ]
    assert torch.equal(flat(runs[0].weights), flat(runs[1].weights))
    assert torch.equal(flat(runs[1].weights), flat(runs[2].weights))
    assert [round.samples for round in runs[0].rounds] == [240, 240]


def test_clients_with_the_same_steps_are_averaged_by_fednova_as_they_are(sites):
    trial = Trial(sites, "logistic", Budget(rounds=2, steps=5))
    one, other = (unskew.train(trial, METHODS[name]()) for name in ("fednova", "fedavg"))
    assert torch.allclose(flat(one.weights), flat(other.weights), atol=1e-6)
    unequal = Trial(sites, "logistic", Budget(rounds=2, epochs=1.5))
    one, other = (unskew.train(unequal, METHODS[name]()) for name in ("fednova", "fedavg"))
    assert not torch.allclose(flat(one.weights), flat(other.weights), atol=1e-4)


@pytest.mark.parametrize("length", [{"steps": 6}, {"epochs": 0.5}])
def test_a_cost_is_counted_in_rounds_of_fedavg_under_the_same_budget(sites, length):
    trial = Trial(sites, "logistic", Budget(rounds=3, **length), engine="loop")
    assert unskew.train(trial).cost == pytest.approx(3)
    assert unskew.train(trial, METHODS["fedlmd"]()).cost == pytest.approx(3 * 4 / 3)  # a teacher
    passes = unskew.train(trial).rounds[0].samples / 343  # of a sample, on average over clients
    scaffold = unskew.train(trial, METHODS["scaffold"](option="I"))  # and one more, with a gradient
    assert scaffold.cost == pytest.approx(3 * (1 + 1 / passes))


# Schedules


def rates(budget):
    return [budget.lr_at(t) for t in range(budget.rounds)]


def torch_rates(rounds, make):
    optimizer = torch.optim.SGD([torch.zeros(1)], lr=0.1)
    schedule, found = make(optimizer), []
    for _ in range(rounds):
        found.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        schedule.step()
    return found


@pytest.mark.parametrize(
    ("text", "make"),
    [
        ("constant", lambda o: lr_scheduler.ConstantLR(o, 1.0)),
        ("exponential:0.9", lambda o: lr_scheduler.ExponentialLR(o, 0.9)),
        ("cosine:final=0.01", lambda o: lr_scheduler.CosineAnnealingLR(o, 12, eta_min=0.01)),
        ("step:at=4/9,factor=0.5", lambda o: lr_scheduler.MultiStepLR(o, [4, 9], 0.5)),
    ],
)
@pytest.mark.filterwarnings("ignore:Detected call of")
def test_schedules_are_those_of_pytorch(text, make):
    assert rates(Budget(rounds=12, lr=0.1, schedule=text)) == pytest.approx(torch_rates(12, make))


@pytest.mark.filterwarnings("ignore")
def test_a_warm_up_leads_to_the_schedule():
    def make(optimizer):
        up = lr_scheduler.LinearLR(optimizer, 1 / 4, 1.0, total_iters=3)
        return lr_scheduler.SequentialLR(optimizer, [up, lr_scheduler.CosineAnnealingLR(optimizer, 9)], [3])

    assert rates(Budget(rounds=12, lr=0.1, schedule="cosine:warmup=3")) == pytest.approx(
        torch_rates(12, make)
    )
    assert rates(Budget(rounds=5, lr=0.4, schedule="step:at=3,warmup=1")) == pytest.approx(
        [0.2, 0.4, 0.4, 0.04, 0.04]
    )


def test_a_decay_is_the_exponential_schedule():
    assert Budget(lr_decay=0.9) == Budget(schedule="exponential:0.9")
    assert Budget(lr_decay=1) == Budget()
    assert rates(Budget(rounds=50, lr=0.1, lr_decay=0.99)) == [0.1 * 0.99**t for t in range(50)]


def test_stages_share_one_schedule_and_experts_have_their_own(sites):
    class Watch:
        def __init__(self):
            self.rates = {}

        def find(self, name) -> StoredStage | None:
            return None

        def after_round(self, name, stage):
            pass

        def end(self, name, stage):
            self.rates[name] = [round.lr for round in stage.rounds]

    budget = Budget(rounds=4, epochs=1, lr=0.1, schedule="cosine")
    method, watch = METHODS["pkd"](warmup=2, expert_rounds=2, groups="0/1"), Watch()
    result = unskew.train(Trial(sites, "logistic", budget), method, keeper=watch)
    assert [round.lr for round in result.rounds] == rates(budget)
    assert watch.rates["distillation"] == rates(budget)[2:]
    assert watch.rates["expert 0/1"] == pytest.approx([0.1, 0.05])


# Optimisers


@pytest.mark.parametrize("kept", [False, True])
@pytest.mark.parametrize(("name", "make"), [("adam", torch.optim.Adam), ("adamw", torch.optim.AdamW)])
def test_adam_is_that_of_pytorch(digits, name, make, kept):
    settings = {"rounds": 3, "epochs": 2, "batch_size": 16, "lr": 0.01, "weight_decay": 0.1}
    state = "kept" if kept else "fresh"
    budget = Budget(**settings, optimizer=f"{name}:betas=0.8/0.99,eps=1e-6", optimizer_state=state)
    trial = Trial(split(digits, range(100)), "logistic", budget=budget)
    model = trial.build()
    x, y = normalise(digits.train.inputs[:100], digits.mean, digits.std), digits.train.labels[:100]

    def new():
        return make(model.parameters(), lr=0.01, betas=(0.8, 0.99), eps=1e-6, weight_decay=0.1)

    optimizer = new()
    for t in range(3):
        optimizer = optimizer if kept else new()
        for epoch in epochs(trial.seed, t, 0, 100, budget):
            for rows in torch.from_numpy(epoch.rows).split(epoch.sizes):
                optimizer.zero_grad()
                cross_entropy(model(x[rows]).logits, y[rows]).backward()
                optimizer.step()
    result = unskew.train(trial)
    for key, value in model.named_parameters():
        torch.testing.assert_close(result.weights.params[key], value.detach(), rtol=1e-4, atol=1e-5)
    assert [int(each["steps"]) for each in result.state.optimizers.values()] == [42] * kept


@pytest.mark.parametrize("decoupled", [False, True])
def test_the_fused_kernel_of_adam_does_the_same(decoupled):
    generator = torch.Generator().manual_seed(1)
    start = {"a": torch.randn(5, 3, generator=generator), "b": torch.randn((), generator=generator)}
    settings = AdamSettings(0.9, 0.999, 1e-8, 0.1, decoupled=decoupled)
    lr, ends = torch.tensor(0.01), []
    for rule in (adam(0.01, settings), adam(lr, settings), fused_adam(lr, settings)):
        params = {name: value.clone() for name, value in start.items()}
        state = rule.init(params)
        for n in range(5):
            gradient = {name: (n - 1.5) * value.sin() for name, value in start.items()}
            rule.step(lambda at, gradient=gradient: (torch.zeros(()), gradient), params, state)
        ends.append({**params, **state})
    for other in ends[1:]:
        torch.testing.assert_close(ends[0], other)


@pytest.mark.parametrize("name", ["scaffold", "fednova", "mofedsam", "feddyn", "fedcm", "fedmoswa"])
def test_methods_that_need_sgd_say_why(sites, name):
    trial = Trial(sites, "logistic", Budget(rounds=1, epochs=1, optimizer="adam"))
    with pytest.raises(UserError, match=r"needs budget\.optimizer=sgd, not adam, because"):
        unskew.train(trial, METHODS["fedprox"]() + METHODS[name]())
    with pytest.raises(UserError, match="needs budget"):
        unskew.train(trial, METHODS["local-only"]() + METHODS[name]())
    assert METHODS[name].needs_sgd


def test_other_methods_train_by_adam():
    adam = {"optimizer": "adam", "momentum": None, "lr": 0.001, "rounds": 2}
    budget = hard_trial().budget.model_copy(update=adam)
    for name in ("fedsam", "fedgf", "fedcurv", "fedexp", "fedvls", "ccvr", "fedconcat", "local-only"):
        assert not METHODS[name].needs_sgd
        result = unskew.train(replace(hard_trial(), budget=budget), METHODS[name]())
        assert bool(flat(result.weights).isfinite().all()), name


# On the command line


def test_flags_take_the_place_of_what_a_file_has(unskew, tmp_path):
    brief = ["--clients", "3", "--rounds", "2", "--quiet"]
    first = ["--steps", "3", "--optimizer", "adamw", "--schedule", "cosine", "--lr", "0.003"]
    assert unskew("run", *brief, *first, "--out", "one").code == 0
    told = tomllib.loads((tmp_path / "one/experiment.toml").read_text())["budget"]
    assert (told["steps"], told["schedule"]) == (3, "cosine:final=0.0")
    assert told["optimizer"] == "adamw:betas=0.9/0.999,eps=1e-08"
    assert not {"epochs", "momentum"} & told.keys()
    changes = ["--epochs", "0.5", "--optimizer", "sgd", "--set", "budget.lr_decay=0.5"]
    assert unskew("run", "one/experiment.toml", "--out", "two", "--quiet", *changes).code == 0
    told = tomllib.loads((tmp_path / "two/experiment.toml").read_text())["budget"]
    assert (told["epochs"], told["schedule"], told["momentum"]) == (0.5, "exponential:factor=0.5", 0.9)
    assert "steps" not in told
    assert "\nsteps 3, schedule cosine" in unskew("table", "one", "two").out  # another condition


def test_one_length_has_one_identity():
    from unskew.experiment import Experiment

    def identity(**budget):
        return Experiment(budget=budget).identity()

    assert identity(epochs=5) == identity(epochs=5.0) == identity(epochs="5") == identity()
    assert identity(lr_decay=0.9) == identity(schedule="exponential:factor=0.90")
    assert len({identity(), identity(steps=5), identity(schedule="cosine"), identity(optimizer="adam")}) == 4
