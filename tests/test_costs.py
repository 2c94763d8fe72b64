"""What a run costs, against what it really does: forward passes counted in the model, bytes by hand."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from federations import split, task
from pools import on_every_engine
from unskew import Budget, Dataset, Method, Trial, federate, methods, metrics, train
from unskew.data.dataset import Split
from unskew.engines import start
from unskew.experiment import MethodSpec, method_table
from unskew.method import Tally, Work
from unskew.methods import METHODS
from unskew.methods.assemble import assemble
from unskew.program import Program
from unskew.types import Server

pytestmark = pytest.mark.usefixtures("no_workers")

TEST = 99.0
"""What the first feature of every test sample is, and of no training sample."""

PASSES_ASIDE = 5
"""Of each of PKD's experts: it is tested once, on one sample of its training data, and before that two
modules are tried on a batch of twice that sample, to see whether they can read it."""

seen: Counter[str] = Counter()


class Counted(nn.Module):
    """Counts the samples that go through it, by what for."""

    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Linear(6, 12), nn.Linear(12, 4)

    def forward(self, x):
        if len(x) and x[0, 0] != TEST:
            seen["trained" if torch.is_grad_enabled() else "frozen"] += len(x)
        return self.head(self.body(x).relu())


@pytest.fixture(scope="module")
def federation():
    generator = torch.Generator().manual_seed(0)

    def cloud(samples):
        labels = torch.arange(samples) % 4
        return Split(torch.randn(samples, 6, generator=generator) + labels[:, None], labels)

    test = cloud(8)
    test.inputs[:, 0] = TEST
    dataset = Dataset("clouds", cloud(60), test, tuple("abcd"))
    return split(dataset, range(25), range(25, 40), range(40, 58), [])


MADE = {name: card() for name, card in METHODS.items()}
UNTOLD = [name for name, made in MADE.items() if isinstance(made, Program) and made.work is None]
"""Methods whose stages differ."""

VARIANTS = [
    "focal:classwise=true", "fedmr:mu2=1.0", "scaffold:option=I", "moon:buffer=3", "fedsam:rho=0.0",
    "mofedsam:rho=0.0", "fedgf:c=0.0", "fedgf:c=0.0,rho=0.0", "balancefl:p=0.0",
    "balancefl:prob=official,p=0.0",
    "fedcurv:samples=7,batch_size=3", "fedcodl:student_init=own", "logit-adjustment:prior=global",
]  # fmt: skip

TOGETHER = [
    "fedvls+fedsam",  # the teacher is asked at both points of a step
    "fedntd+moon",  # and once for all who want it
    "fedlc+scaffold:option=I", "fpl+fedvls", "fedlmd+fedprox+fedavgm",
]  # fmt: skip


def assembled(name: str):
    return assemble(MethodSpec(**method_table(name)).parts())[0]


@pytest.mark.parametrize("name", [name for name in METHODS if name not in UNTOLD] + VARIANTS + TOGETHER)
def test_the_passes_that_are_told_are_those_that_are_made(federation, name):
    method = assembled(name)
    samples, rounds = 58, 2
    for epochs in (1, 2):
        budget = Budget(rounds=rounds, epochs=epochs, batch_size=5, lr=0.01)
        trial = Trial(federation, Counted, budget, engine="loop")
        seen.clear()
        result = train(trial, method)
        told = method.work_in(trial).passes(epochs)
        assert seen["trained"] == pytest.approx(samples * rounds * epochs * told.trained)
        assert seen["frozen"] == pytest.approx(samples * rounds * (epochs * told.frozen + told.once))
        whole = metrics.forward_passes(told, epochs) * samples * rounds
        assert seen.total() == pytest.approx(whole)
        assert result.cost == pytest.approx(rounds * metrics.round_cost(told, epochs))


def test_which_methods_have_stages_that_differ():
    assert {"ccvr", "fedconcat", "pkd"} <= set(UNTOLD)


@pytest.mark.parametrize("name", [*UNTOLD, "pkd+fedprox"])
def test_of_methods_in_stages_no_passes_are_told(federation, name):
    assert assembled(name).work_in(Trial(federation, Counted)) is None


def test_of_ones_own_method_is_known_what_it_says(federation):
    """Nothing, where it changes what clients compute and does not say how much that is."""
    trial = Trial(federation, Counted, Budget(rounds=2, epochs=1, lr=0.01), engine="loop")

    def term(view):
        return view.teacher.logits.mean() * 0

    assert train(trial, Method()).cost == 2
    assert train(trial, Method(server=Server(combine=lambda state, updates: updates.mean))).cost == 2
    for base in (Method(), methods.ccvr(), methods.pkd(groups="0/1", expert_rounds=1)):
        silent, telling = Method(terms=(term,)), Method(terms=(term,), work=Work(teacher=True))
        assert train(trial, base + silent).cost is None
        assert train(trial, base + silent + methods.fedprox()).cost is None
        assert train(trial, base + telling).cost > train(trial, base + methods.fedprox()).cost
    assert train(trial, Method(terms=(term,), work=Work(teacher=True))).cost == pytest.approx(2 * (1 + 1 / 3))


@pytest.mark.parametrize("name", ["centralised", "local-only", "centralised+fedntd", "local-only+fedsam"])
def test_controls_under_part_of_the_clients_do_more_than_a_round(federation, name):
    """Of four clients two are in a cohort, so that all of them are twice a round's work."""
    half, whole = (
        train(Trial(federation, Counted, Budget(rounds=2, epochs=3, cohort=cohort)), assembled(name)).cost
        for cohort in (2, "all")
    )
    assert half == pytest.approx(2 * whole)


@pytest.mark.parametrize("given", [{"groups": "0/1,2/3"}, {"rule": "topm", "looks": 2}])
def test_what_pkd_computes_is_the_sum_of_its_stages(federation, given):
    """Passes of the main model, and of the experts, which train on their classes alone."""
    trial = Trial(federation, Counted, Budget(rounds=5, epochs=2, lr=0.01), engine="loop")
    seen.clear()
    result = train(trial, methods.pkd(warmup=2, expert_rounds=3, **given))
    assert "2 rounds of warm-up" in result.notes[-1]
    tests = 2 * PASSES_ASIDE
    assert result.cost == pytest.approx((3 * seen["trained"] + seen["frozen"] - tests) / (3 * 2 * 58))


@pytest.mark.parametrize("base", ["fedprox", "fedntd", "fedsam"])
def test_what_a_base_method_adds_to_pkd_is_told(federation, base):
    """In the warm-up and in the last stage; experts train as FedAvg."""
    trial = Trial(federation, Counted, Budget(rounds=3, epochs=1, lr=0.01), engine="loop")
    seen.clear()
    result = train(trial, methods.pkd(groups="0/1", expert_rounds=2, warmup=1) + METHODS[base]())
    tests = PASSES_ASIDE
    assert result.cost == pytest.approx((3 * seen["trained"] + seen["frozen"] - tests) / (3 * 58))


def test_what_ccvr_computes_is_one_pass_more(federation):
    trial = Trial(federation, Counted, Budget(rounds=2, epochs=3, lr=0.01), engine="loop")
    seen.clear()
    result = train(trial, methods.ccvr())
    assert result.cost == pytest.approx((3 * seen["trained"] + seen["frozen"]) / (3 * 3 * 58))


def test_what_fedconcat_computes_are_its_encoders_and_their_features(federation):
    """Its last layer is not counted. The features are a pass of every cluster's encoder over all data."""
    trial = Trial(federation, Counted, Budget(rounds=5, epochs=2, lr=0.01), engine="loop")
    seen.clear()
    result = train(trial, methods.fedconcat(clusters=2, encoder_rounds=3))
    assert seen["trained"] == 3 * 2 * 58
    assert seen["frozen"] == 2 * 58
    assert result.cost == pytest.approx(3 + 2 / (3 * 2))


def test_samples_that_activate_an_expert_are_counted(digits):
    """One full batch: the model that sees it is the one received, which is rebuilt here."""
    federation = split(digits, range(300), range(300, 500))
    budget = Budget(rounds=3, epochs=1, batch_size=1000, lr=0.2)
    trial = Trial(federation, "mlp-small", budget, engine="loop")
    make = lambda: methods.pkd(warmup=2, expert_rounds=1, groups="0/1/2/3/4,3/8,5/6")  # noqa: E731
    result = train(trial, make())
    before = train(replace(trial, budget=budget.model_copy(update={"rounds": 2}))).state.server.weights
    engine, expected = start(trial), 0
    for client in (0, 1):
        for view in engine.look(task(federation, client), before):
            for y, guess in zip(view.labels.tolist(), view.out.logits.argmax(1).tolist(), strict=True):
                expected += y != guess and any({y, guess} <= set(g) for g in [range(5), (3, 8), (5, 6)])
    assert [round.tallies for round in result.rounds] == [{}, {}, {"activated": expected}]
    assert expected > 0
    twice = train(trial, make() + methods.fedsam())  # looks at every batch twice, and counts it once
    assert twice.rounds[-1].tallies["activated"] <= 500
    pooled = train(replace(trial, engine="pool", workers=2), make())
    assert pooled.rounds[-1].tallies == result.rounds[-1].tallies


def test_recorded_steps_count_as_ordinary_ones(digits, monkeypatch):
    pools = on_every_engine(monkeypatch)
    federation = federate(digits, "iid", 4, 1)
    trial = Trial(federation, "logistic", Budget(rounds=3, epochs=2, batch_size=32), engine="loop")
    make = lambda: methods.pkd(warmup=1, expert_rounds=1, groups="0/1/2/3/4/5/6/7/8/9")  # noqa: E731
    one, other = (train(replace(trial, engine=engine, workers=2), make()) for engine in ("loop", "pool"))
    counted = [round.tallies for round in one.rounds]
    assert counted == [round.tallies for round in other.rounds]
    assert all(line["activated"] > 0 for line in counted[1:])
    assert sum(pool.replayed for pool in pools) > 0


def test_a_run_of_pkd_tells_how_often_experts_are_asked(unskew):
    method = "pkd:warmup=2,expert_rounds=1,groups=0/1/2/3/4/5/6/7/8/9"
    answer = unskew(
        "run", "--method", method, "--rounds", "4", "--epochs", "2", "--out", "run", "--json", "--quiet"
    )
    assert answer.code == 0, answer.err
    summary = json.loads(answer.out.splitlines()[-1])
    with open("run/rounds.jsonl") as file:  # noqa: PTH123
        activated = [json.loads(line)["tallies"].get("activated") for line in file]
    assert activated[:2] == [None, None]
    expected = [None, None, *(n / (2 * 1442) for n in activated[2:])]
    assert summary["tallies"] == {"activated": {"of": "samples that ask an expert", "share": expected}}
    assert summary["passes"] is None
    assert summary["cost"] == pytest.approx(2 + 1 + 2 * (1 + 1 / 3))  # the expert sees all classes


# Bytes

MODEL = (6 * 12 + 12 + 12 * 4 + 4) * 4


def sent(federation, method=None, **settings):
    budget = Budget(rounds=2, epochs=1, lr=0.01)
    return train(
        Trial(federation, **{"model": Counted, "budget": budget, "engine": "loop", **settings}), method
    )


def test_fedavg_sends_the_model_to_all_and_back_from_those_that_trained(federation):
    result = sent(federation)
    assert [round.traffic for round in result.rounds] == [metrics.Traffic(up=3 * MODEL, down=4 * MODEL)] * 2
    assert result.traffic == metrics.Traffic(up=6 * MODEL, down=8 * MODEL)


@pytest.mark.parametrize(
    ("method", "up", "down"),
    [
        (methods.scaffold(), MODEL, MODEL),
        (methods.fedcurv(), 2 * MODEL, 2 * MODEL),
        (methods.mofedsam(), 0, MODEL),
        (methods.fedcm(), 0, MODEL),
        (methods.fedmoswa(), MODEL, MODEL),
        (methods.fedacg(), 0, 0),  # the model that looks ahead goes in the place of the other
        (methods.fedvls(), 0, 0),
        (methods.moon(), 0, 0),  # what a client keeps is not sent
        (methods.fednova(), 0, 0),
    ],
)
def test_what_a_method_adds(federation, method, up, down):
    last = sent(federation, method).rounds[-1].traffic
    assert last == metrics.Traffic(up=3 * (MODEL + up), down=4 * (MODEL + down))


def normed() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 12), nn.BatchNorm1d(12), nn.ReLU(), nn.Linear(12, 4))


@pytest.mark.parametrize(("statistics", "buffers"), [("average", 2 * 12 * 4 + 8), ("local", 0), ("batch", 0)])
def test_buffers_are_sent_where_they_are_averaged(federation, statistics, buffers):
    model = MODEL + 2 * 12 * 4 + buffers
    last = sent(federation, model=normed, statistics=statistics).rounds[-1].traffic
    assert last == metrics.Traffic(up=3 * model, down=4 * model)


class WithTable(nn.Module):
    """Has a buffer that is no BatchNorm's."""

    def __init__(self) -> None:
        super().__init__()
        self.table: torch.Tensor
        self.register_buffer("table", torch.ones(5, 6))
        self.head = nn.Linear(6, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(x * self.table[0])


@pytest.mark.parametrize(("statistics", "buffers"), [("average", 5 * 6 * 4), ("local", 0), ("batch", 0)])
def test_who_is_asked_is_sent_what_who_trains_is_sent(federation, statistics, buffers):
    result = sent(federation, methods.ccvr(), model=WithTable, statistics=statistics)
    model = (6 * 4 + 4) * 4 + buffers
    assert result.rounds[-1].traffic.down == result.extra_traffic.down == 4 * model


def half_frozen() -> nn.Module:
    model = Counted()
    model.body.requires_grad_(False)
    return model


def test_frozen_parameters_are_not_sent(federation):
    result = sent(federation, model=half_frozen)
    head = (12 * 4 + 4) * 4
    assert [round.traffic for round in result.rounds] == [metrics.Traffic(up=3 * head, down=4 * head)] * 2
    assert sent(federation, methods.ccvr(), model=half_frozen).extra_traffic.down == 4 * head
    concat = sent(federation, methods.fedconcat(clusters=2), model=half_frozen)
    assert concat.extra_traffic.down == 4 * (2 * head + (2 * 12 * 4 + 4) * 4)  # the heads, and one on both
    scaffold = sent(federation, methods.scaffold(), model=half_frozen).rounds[-1].traffic
    assert scaffold == metrics.Traffic(up=3 * 2 * head, down=4 * 2 * head)


def test_the_fixed_head_of_fedgela_is_not_sent(federation):
    body = (6 * 12 + 12) * 4
    last = sent(federation, methods.fedgela(normalise="none")).rounds[-1].traffic
    assert last == metrics.Traffic(up=3 * body, down=4 * body)


def test_stages_send_what_they_need(federation):
    assert sent(federation, methods.local_only()).traffic == metrics.Traffic(0, 0)
    assert sent(federation, methods.centralised()).traffic == metrics.Traffic(up=58 * (6 * 4 + 8), down=0)

    plain = sent(federation)
    moments = (8 + 12 * 8 + 12 * 12 * 8) * 3 * 4  # three clients with four classes each
    assert sent(federation, methods.ccvr()).extra_traffic == metrics.Traffic(up=moments, down=4 * MODEL)

    pkd = sent(federation, methods.pkd(warmup=1, expert_rounds=3, groups="0/1,2/3"))
    expert = MODEL - 2 * (12 + 1) * 4
    assert pkd.rounds[-1].traffic == plain.rounds[-1].traffic
    numbers = 4 * 2 * 8  # of four clients, the samples in two groups
    both = 2 * expert
    assert pkd.extra_traffic == metrics.Traffic(up=numbers + 3 * 3 * both, down=(3 * 4 + 4) * both)

    found = sent(federation, methods.pkd(warmup=1, expert_rounds=3, rule="explicit", theta=1.0))
    statistics = 4 * 4 * (4 + 2) * 8  # of four clients, for each class; no group is found
    assert found.extra_traffic == metrics.Traffic(up=statistics, down=4 * MODEL)

    own, both = (
        sent(federation, methods.fedconcat(clusters=2), statistics=policy) for policy in ("local", "average")
    )
    assert own.extra_traffic == both.extra_traffic  # the network has no statistics
    head = (2 * 12 * 4 + 4) * 4
    assert both.rounds[0].traffic == plain.rounds[0].traffic  # each client in one cluster
    assert both.rounds[1].traffic == metrics.Traffic(up=3 * head, down=4 * head)
    assert both.extra_traffic == metrics.Traffic(up=4 * 4 * 8, down=4 * (2 * MODEL + head))


def test_a_summary_adds_everything_up(unskew):
    answer = unskew(
        "run",
        "--method",
        "fedntd+fedsam",
        "--rounds",
        "3",
        "--epochs",
        "2",
        "--out",
        "run",
        "--json",
        "--quiet",
    )
    assert answer.code == 0, answer.err
    summary = json.loads(answer.out.splitlines()[-1])
    with open("run/rounds.jsonl") as file:  # noqa: PTH123
        rounds = [json.loads(line)["traffic"] for line in file]
    assert summary["traffic"] == {way: sum(line[way] for line in rounds) for way in ("up", "down")}
    assert summary["passes"] == {"trained": 2, "frozen": 2, "once": 0}
    assert summary["cost"] == pytest.approx(3 * (2 + 2 / 3))
    assert summary["probe_seconds"] is None
    assert summary["tallies"] == {}


def test_tallies_of_methods_put_together_are_all_kept(federation):
    def counting(name):
        def term(view):
            view.tally(name, torch.tensor(len(view.labels)))
            return view.out.logits.sum() * 0

        return Method(terms=(term,), tallies=(Tally(name, "samples"),))

    result = sent(federation, counting("first") + counting("second"))
    assert [round.tallies for round in result.rounds] == [{"first": 58, "second": 58}] * 2
    assert np.isfinite(result.rounds[-1].train_loss)
