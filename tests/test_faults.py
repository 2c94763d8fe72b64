"""A bad update cannot ruin the model: whatever a client does, the run is the one without it."""

from __future__ import annotations

import json
import math
import os
import re
import signal
from dataclasses import replace

import pytest
import torch
from torch import nn

from federations import flat
from unskew import Budget, Checkpoints, Faults, Method, Trial, UserError, engines, train
from unskew.engines.cpu.pool import available
from unskew.engines.cuda.graphs import Graphs
from unskew.faults import DivergedError
from unskew.method import plain_loss
from unskew.methods import METHODS
from unskew.rounds import initial_state, run_round, sample_cohort
from unskew.types import Memory, Server

pytestmark = pytest.mark.usefixtures("no_workers")

ENGINES = ["loop", "graphs", pytest.param("pool", marks=pytest.mark.skipif(not available(), reason="Linux"))]
BAD = 3
BUDGET = Budget(rounds=3, epochs=1, batch_size=64, lr=0.05, lr_decay=0.5)


@pytest.fixture(autouse=True)
def graphs_on_cpu(monkeypatch):
    monkeypatch.setitem(engines.ENGINES, "graphs", engines.EngineType(Graphs))


@pytest.fixture
def trial(skewed) -> Trial:
    assert len(skewed.holding(BAD)) > 64
    return Trial(skewed, "logistic", budget=BUDGET, device="cpu", engine="loop", workers=2)


def misbehaving(trial: Trial, how, rounds=(0, 1, 2)) -> Method:
    """A method by which one client does something after its last step in some rounds."""
    counts, rates = trial.federation.counts[BAD], [trial.budget.lr_at(round) for round in rounds]

    def update(scope, end):
        bad = torch.equal(scope.counts.cpu(), counts) and end.lr in rates
        kept, reported = {"odd/kept": torch.ones(2)}, {"odd/sent": torch.ones(2)}
        if bad:
            how(end.weights.params, kept, reported)
        return kept, reported

    return Method(memory=Memory(update=update))


def nan_weight(params, kept, reported):
    next(iter(params.values())).view(-1)[-1] = math.nan


def infinite_weight(params, kept, reported):
    next(iter(params.values())).view(-1)[0] = -math.inf


def nan_kept(params, kept, reported):
    kept["odd/kept"][0] = math.nan


def nan_reported(params, kept, reported):
    reported["odd/sent"][1] = math.inf


def other_report(params, kept, reported):
    reported["odd/sent"] = torch.ones(3)


def shape(params, kept, reported):
    name = next(iter(params))
    params[name] = params[name][:1].clone()


def dtype(params, kept, reported):
    name = next(iter(params))
    params[name] = params[name].double()


def name_too_many(params, kept, reported):
    params["another"] = torch.ones(1)


def name_missing(params, kept, reported):
    del params[next(iter(params))]


def far_away(params, kept, reported):
    next(iter(params.values())).mul_(1e6)


def stumbles(params, kept, reported):
    raise ZeroDivisionError("a mistake in the method")


def no_memory(params, kept, reported):
    raise MemoryError


def no_gpu_memory(params, kept, reported):
    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB")


def no_cpu_memory(params, kept, reported):
    torch.empty(2**60, dtype=torch.uint8)


FAULTS = {
    "nan weight": (nan_weight, "train", "holds NaN or infinite values"),
    "infinite weight": (infinite_weight, "train", "of its model holds NaN or infinite values"),
    "nan kept": (nan_kept, "update", "'odd/kept' of what it keeps holds NaN"),
    "infinite report": (nan_reported, "update", "'odd/sent' of what it reports holds NaN"),
    "other report": (other_report, "update", "what it reports differs in 'odd/sent' from others"),
    "shape": (shape, "update", r"has shape \[1, 64\] and should have \[10, 64\]"),
    "dtype": (dtype, "update", "is of torch.float64 and should be of torch.float32"),
    "name too many": (name_too_many, "update", "has 'another', which the one it received has not"),
    "name missing": (name_missing, "update", "lacks"),
    "norm": (far_away, "train", r"its update has norm .*, above faults.max_norm 50"),
    "raises": (stumbles, "update", "^ZeroDivisionError: a mistake in the method$"),
    "memory": (no_memory, "update", "^it ran out of memory: lower the batch size"),
    "GPU memory": (no_gpu_memory, "update", "^it ran out of memory"),
    "CPU memory": (no_cpu_memory, "update", "^it ran out of memory"),
}


def without(trial: Trial, method, rounds=(0, 1, 2)):
    """What comes of it when a client takes no part in some rounds: the last state, and the rounds."""
    trial = replace(trial, engine="loop")
    engine = engines.start(trial)

    def sampler(trial, round):
        return [task for task in sample_cohort(trial, round) if round not in rounds or task.client != BAD]

    state, told = initial_state(method, engine.initial), []
    while state.round < trial.budget.rounds:
        state, round = run_round(trial, method, engine, state, sampler=sampler)
        told.append(round)
    return state, told


def assert_same(result, state, rounds) -> None:
    """To the last bit: model, server, clients' memories, and what every round found."""
    assert torch.equal(flat(result.state.server.weights), flat(state.server.weights))
    for mine, other in (
        (result.state.server.memory, state.server.memory),
        *((result.state.memories.get(client, {}), kept) for client, kept in state.memories.items()),
    ):
        assert all(torch.equal(value, mine[name]) for name, value in other.items())
    for mine, other in zip(result.rounds, rounds, strict=True):
        assert (mine.trained, mine.train_loss, mine.samples) == (
            other.trained, other.train_loss, other.samples
        )  # fmt: skip
        assert mine.traffic.up == other.traffic.up
        assert (mine.test.confusion == other.test.confusion).all()


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("name", FAULTS)
def test_a_run_with_a_bad_client_is_the_run_without_it(trial, name, engine):
    how, stage, reason = FAULTS[name]
    method = misbehaving(trial, how)
    told = []
    result = train(
        replace(trial, engine=engine, faults=Faults(on_fault="skip", max_norm=50)),
        method,
        on_round=told.append,
    )
    assert_same(result, *without(trial, misbehaving(trial, how)))
    assert [round.number for round in told] == [1, 2, 3]
    for round in told:
        assert BAD in round.cohort
        [fault] = round.faults
        assert (fault.client, fault.stage) == (BAD, stage)
        assert re.search(reason, fault.reason), fault.reason
    assert BAD not in result.state.memories


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("name", ["scaffold", "fednova", "fedadam", "fedexp", "feddyn", "moon"])
def test_every_server_sees_the_clients_that_count(trial, name, engine):
    """One round in the middle, so that the client has a memory, which stays."""
    trial = replace(trial, budget=BUDGET.model_copy(update={"rounds": 3}))
    method = METHODS[name]() + misbehaving(trial, nan_weight, rounds=[1])
    result = train(replace(trial, engine=engine), method)
    state, rounds = without(trial, method, rounds=[1])
    assert_same(result, state, rounds)
    assert [len(round.faults) for round in result.rounds] == [0, 1, 0]
    assert result.rounds[1].traffic.down == result.rounds[0].traffic.down
    assert result.rounds[1].traffic.up < result.rounds[0].traffic.up
    assert any(f"client {BAD} in round 2, stage 'train' ('" in note for note in result.notes)


@pytest.mark.parametrize("engine", ENGINES)
def test_a_loss_that_is_infinite_is_a_fault_whatever_its_gradient(trial, engine):
    counts = trial.federation.counts[BAD]

    def loss(view):
        return plain_loss(view) + torch.where((view.scope.counts == counts).all(), math.inf, 0.0)

    result = train(replace(trial, engine=engine), Method(loss=loss))
    assert_same(result, *without(trial, Method()))
    assert result.rounds[0].faults[0].reason == "its loss holds NaN or infinite values"


@pytest.mark.parametrize("engine", ENGINES)
def test_kept_optimisers_and_statistics_stay_as_they_were(trial, engine):
    kept = BUDGET.model_copy(update={"optimizer_state": "kept"})
    layers = nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(144, 10)
    trial = replace(trial, model=nn.Sequential(*layers), statistics="local", budget=kept)
    method = misbehaving(trial, nan_weight, rounds=[1])
    result = train(replace(trial, engine=engine), method)
    state, rounds = without(trial, method, rounds=[1])
    assert_same(result, state, rounds)
    for mine, other in ((result.state.optimizers, state.optimizers), (result.state.buffers, state.buffers)):
        for client, tensors in other.items():
            assert all(torch.equal(value, mine[client][name]) for name, value in tensors.items())


def test_a_server_that_fails_at_bad_values_gets_none_on_an_engine_that_works_ahead(trial):
    """Neither in their round, nor in the next, which has begun when they are known."""

    def combine(state, updates):
        if not all(bool(value.isfinite().all()) for value in updates.delta.values()):
            raise ArithmeticError("a server that looks")
        return updates.mean

    method = misbehaving(trial, nan_weight, rounds=[1]) + Method(server=Server(combine=combine))
    result = train(replace(trial, engine="graphs"), method)
    assert_same(result, *without(trial, method, rounds=[1]))

    def prepare(scope, look):
        if not all(bool(value.isfinite().all()) for value in scope.anchor.params.values()):
            raise ArithmeticError("a client that looks")
        return {}

    method = misbehaving(trial, nan_weight, rounds=[1]) + Method(memory=Memory(prepare=prepare))
    result = train(replace(trial, engine="graphs"), method)
    assert_same(result, *without(trial, method, rounds=[1]))


# Processes


@pytest.mark.skipif(not available(), reason="the pool engine needs Linux")
@pytest.mark.parametrize("times", [1, 2])
def test_a_client_whose_process_dies_is_tried_again_alone_and_then_left_out(trial, tmp_path, times):
    def die(params, kept, reported):
        with (tmp_path / "deaths").open("a") as file:
            file.write("x")
        if len((tmp_path / "deaths").read_text()) <= times:
            os.kill(os.getpid(), signal.SIGKILL)

    trial = replace(trial, budget=BUDGET.model_copy(update={"rounds": 2}))
    method = misbehaving(trial, die, rounds=[0])
    result = train(replace(trial, engine="pool"), method)
    assert_same(result, *without(trial, misbehaving(trial, stumbles, []), rounds=[0] if times == 2 else []))
    told = [fault for round in result.rounds for fault in round.faults]
    assert len(told) == times - 1
    for fault in told:
        assert (fault.client, fault.kind) == (BAD, "lost")
        assert "a worker process was ended by SIGKILL twice" in fault.reason


# Rules


def test_a_mistake_in_a_method_stops_the_run_and_other_faults_do_not(trial):
    with pytest.raises(ZeroDivisionError) as raised:
        train(trial, misbehaving(trial, stumbles))
    assert f"Client {BAD} failed in round 1, stage 'update'." in raised.value.__notes__
    assert train(trial, misbehaving(trial, no_memory)).rounds[0].faults[0].kind == "memory"


@pytest.mark.parametrize("engine", ["loop", "graphs"])
@pytest.mark.parametrize("how", [nan_weight, shape, no_memory])
def test_on_fault_stop_stops_at_any(trial, how, engine):
    told = []
    with pytest.raises(UserError, match=rf"^round 2 stopped at client {BAD}, stage .*on_fault=stop asks"):
        train(
            replace(trial, engine=engine, faults=Faults(on_fault="stop")),
            misbehaving(trial, how, [1]),
            on_round=told.append,
        )
    assert [round.number for round in told] == [1]


def test_a_checkpoint_after_a_fault_can_be_gone_on_from(trial, tmp_path):
    """Faults of the rounds before come back with it."""
    method, said = misbehaving(trial, nan_weight, rounds=(0,)), []
    checkpoints = Checkpoints(tmp_path, trial, "it", every="every=1")
    whole = train(trial, method, keeper=checkpoints)
    checkpoints.wait()
    again = Checkpoints(tmp_path, trial, "it", say=said.append)
    assert [round.faults for round in again.find("training").stage.rounds] == [
        round.faults for round in whole.rounds
    ]
    assert len(whole.rounds[0].faults) == 1
    assert not said


@pytest.mark.parametrize("engine", ["loop", "graphs"])
def test_too_few_updates_stop_the_run_after_the_rounds_before(trial, engine):
    clients = int((trial.federation.sizes > 0).sum())
    told = []
    sentence = (
        rf"^round 2 stopped with {clients - 1} usable updates?, fewer than faults.min_clients {clients}"
    )
    with pytest.raises(UserError, match=sentence + rf", because of client {BAD}, stage 'train' \('"):
        train(
            replace(trial, engine=engine, faults=Faults(min_clients=clients)),
            misbehaving(trial, nan_weight, [1]),
            on_round=told.append,
        )
    assert [round.number for round in told] == [1]


@pytest.mark.parametrize("engine", ENGINES)
def test_training_that_diverges_is_told_in_one_sentence(trial, engine):
    fast = BUDGET.model_copy(update={"lr": 1e30})
    with pytest.raises(UserError, match=r"^training diverged in round \d: .*; try a smaller lr\.$"):
        train(replace(trial, engine=engine, budget=fast))


def test_a_report_that_is_not_finite_is_not_called_diverged_training(trial):
    def report(scope, end):
        return {}, {"mine/x": torch.tensor(math.nan)}

    with pytest.raises(UserError, match=r"'mine/x' of what it reports holds NaN"):
        train(replace(trial, engine="loop"), Method(memory=Memory(update=report)))


def leave(*_):
    raise SystemExit(0)


LEAVING = {
    "prepare": Method(memory=Memory(prepare=leave)),
    "train": Method(loss=leave),
    "update": Method(memory=Memory(update=leave)),
}


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("stage", LEAVING)
def test_code_that_exits_fails_its_client_and_not_the_process(trial, engine, stage):
    with pytest.raises(RuntimeError, match=r"the code ended by SystemExit\(0\)") as raised:
        train(replace(trial, engine=engine), LEAVING[stage])
    assert f"Client 0 failed in round 1, stage '{stage}'." in raised.value.__notes__


@pytest.mark.parametrize("engine", ENGINES)
def test_a_client_whose_memory_cannot_begin_is_left_out(trial, engine):
    counts = trial.federation.counts[BAD]

    def begin(initial, own):
        if torch.equal(own.cpu(), counts):
            raise ZeroDivisionError("no such memory")
        return {"odd/kept": torch.ones(2)}

    method, trial = Method(memory=Memory(init=begin)), replace(trial, engine=engine)
    with pytest.raises(ZeroDivisionError) as raised:
        train(trial, method)
    assert f"Client {BAD} failed in round 1, stage 'prepare'." in raised.value.__notes__
    result = train(replace(trial, faults=Faults(on_fault="skip")), method)
    assert [fault.client for fault in result.rounds[0].faults] == [BAD]
    assert BAD not in result.rounds[0].trained


@pytest.mark.parametrize("engine", ENGINES)
def test_a_factor_of_the_learning_rate_fails_where_clients_prepare(trial, engine):
    with pytest.raises(ZeroDivisionError) as raised:
        train(replace(trial, engine=engine), Method(lr_factor=lambda share: 1 / 0))
    assert "Client 0 failed in round 1, stage 'prepare'." in raised.value.__notes__


@pytest.mark.parametrize("engine", ENGINES)
def test_a_method_that_is_not_finite_by_itself_is_told_from_training_that_diverges(trial, engine):
    def root(view):
        return (view.params["head.bias"] * view.scope.memory["mine/zero"]).sum().sqrt()

    def prepare(scope, look):
        return {"mine/zero": torch.zeros(())}

    method = Method(terms=(root,), memory=Memory(prepare=prepare))
    with pytest.raises(DivergedError) as raised:
        train(replace(trial, engine=engine), METHODS["fedprox"]() + method)
    assert str(raised.value).startswith("the gradient of the method's terms[1] ('root') is NaN or infinite")


def test_without_any_update_the_model_may_stay_as_it_was(trial):
    fast = BUDGET.model_copy(update={"lr": 1e30})
    result = train(replace(trial, budget=fast, faults=Faults(min_clients=0)))
    assert flat(result.weights).isfinite().all()
    assert result.rounds[-1].trained == []


# Methods in stages


def test_clients_alone_keep_their_models_through_a_bad_round(trial):
    method = METHODS["local-only"]() + misbehaving(trial, nan_weight, [1])
    result = train(trial, method)
    assert [len(round.faults) for round in result.rounds] == [0, 1, 0]
    assert flat(result.weights).isfinite().all()
    assert BAD not in result.rounds[1].trained


@pytest.mark.parametrize("name", ["ccvr", "fedconcat", "pkd"])
def test_stages_continue_without_a_bad_client(trial, name):
    method = METHODS[name]() + misbehaving(trial, nan_weight, [0])
    result = train(trial, method)
    assert flat(result.weights).isfinite().all()
    assert any(f"client {BAD} in round 1" in note for note in result.notes)


def test_an_answer_that_cannot_be_used_names_the_client(trial):
    from unskew.program import Program

    def query(scope, look):
        return {"share": scope.counts / (0 if torch.equal(scope.counts, trial.federation.counts[BAD]) else 1)}

    def short(scope, look):
        raise MemoryError

    def run_of(query):
        return Program(lambda run: run.ask("shares", query))

    with pytest.raises(
        UserError, match=rf"^client {BAD} answered stage 'shares' with NaN or infinite values"
    ):
        train(trial, run_of(query))
    with pytest.raises(UserError, match=r"^client 0 failed after round 0, stage 'ask': it ran out of memory"):
        train(trial, run_of(short))


# The command line


ODD = """
import math
from unskew import Method
from unskew.types import Memory


def odd(*, rounds: int = 1) -> Method:
    def update(scope, end):
        if end.lr < 0.06 * 0.5 ** (1 - rounds) and int(scope.counts.argmax()) == 0:
            next(iter(end.weights.params.values())).fill_(math.nan)
        return {}, {}

    return Method(memory=Memory(update=update))
"""


def test_faults_are_told_in_the_terminal_the_records_and_the_summary(unskew, tmp_path):
    (tmp_path / "odd.py").write_text(ODD)
    flags = ["--method", "odd.py", "--rounds", "4", "--lr", "0.05", "--set", "budget.epochs=1"]
    flags += ["--skew", "shards:1", "--out", "run", "--json"]
    answer = unskew("run", *flags, "--on-fault", "skip")
    assert answer.code == 0, answer.err
    lines = [json.loads(line) for line in (tmp_path / "run/rounds.jsonl").read_text().splitlines()]
    [fault] = lines[0]["faults"]
    assert fault.keys() == {"client", "stage", "kind", "reason"}
    assert fault["client"] not in lines[0]["trained"]
    assert f"note: round 1 continues without client {fault['client']}, stage 'train': '" in answer.err
    assert answer.err.count("continues without client") == 3
    assert "there are more such faults: the run's rounds.jsonl has them all." in answer.err
    [note] = [note for note in json.loads(answer.out)["notes"] if "continued without" in note]
    assert note.startswith(f"rounds continued without client {fault['client']} in round 1, stage 'train' (")
    assert note.endswith("; 1 more in rounds.jsonl.")
    assert unskew("report", "run", "--out", "page.html").code == 0
    assert "rounds continued without client" in (tmp_path / "page.html").read_text()


def test_a_run_that_stops_says_why_in_its_folder(unskew, tmp_path):
    (tmp_path / "odd.py").write_text(ODD)
    flags = ["--method", "odd.py", "--rounds", "2", "--lr", "0.05", "--skew", "shards:1", "--out", "run"]
    answer = unskew("run", *flags, "--quiet", "--set", "faults.min_clients=10")
    assert answer.code == 2
    assert answer.err.startswith(
        "unskew: round 1 stopped with 9 usable updates, fewer than faults.min_clients"
    )
    assert answer.err.count("\n") == 1
    assert "round 1 stopped" in json.loads((tmp_path / "run/error.json").read_text())["error"]


@pytest.mark.parametrize(
    ("setting", "sentence"),
    [
        ("faults.on_fault=ask", "faults.on_fault is 'ask' but should be 'stop-at-errors', 'skip' or 'stop'."),
        ("faults.min_clients=-1", "faults.min_clients is -1 but should be at least 0."),
        ("faults.min_clients=11", "faults.min_clients is 11 but a round has 10 clients: lower it."),
        ("faults.max_norm=-1", "faults.max_norm is -1 but should be at least 0."),
    ],
)
def test_settings_that_cannot_be(unskew, setting, sentence):
    answer = unskew("run", "--set", setting)
    assert (answer.code, answer.err) == (2, f"unskew: {sentence}\n")
