"""Sites with data of their own: tests at the sites, faults, memory and resumed runs."""

import shutil
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch

pytest.importorskip("flwr", reason="Flower has an environment of its own: make test-flower")

from flwr.app import ArrayRecord, ConfigRecord
from flwr.serverapp.strategy import FedAvg
from grids import InProcessGrid
from PIL import Image
from test_flower_methods import config_of, federated
from torch import nn

import unskew
from simulations import assert_same, simulated
from unskew import flower
from unskew.errors import UserError
from unskew.flower.form import form_of
from unskew.flower.records import from_record, to_record
from unskew.flower.run_config import read_config, settings_in
from unskew.flower.server import serve
from unskew.flower.settings import settings_of

HEART = {
    "data.name": "heart-disease",
    "skew.recipe": "natural",
    "skew.clients": "auto",
    "model.name": "mlp-small",
    "budget.rounds": 2,
    "budget.cohort": "all",
    "federation.test": "sites",
}
HOSPITALS = [{"partition-id": number} for number in range(4)]


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    """Return Flower's home. The working directory is no repository, so that runs do not look up its state."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FLWR_HOME", str(tmp_path / "flwr"))
    return tmp_path / "flwr"


def test_a_test_at_the_sites_counts_what_one_in_one_place_counts(tmp_path):
    run, _ = federated(config_of(tmp_path, settings=HEART), HOSPITALS)
    result = simulated(config_of(tmp_path, settings=HEART))
    assert_same(run, result)
    told, mine = run.summary.sites, result.sites
    assert [site.name for site in told.each] == [site.name for site in mine]
    for site, own in zip(told.each, mine, strict=True):
        assert site.accuracy == pytest.approx(own.accuracy)
        assert site.answered == [[i, j, own.confusion[i, j]] for i, j in np.argwhere(own.confusion).tolist()]
        assert (site.held, site.vacant) == (None, None)  # label counts stay there
    assert run.summary.loss == pytest.approx(result.final.loss)
    assert run.summary.groups.vacant is None
    assert "Label counts stay with the clients" in run.summary.notes[0]


def test_a_node_with_a_gpu_agrees_with_a_server_without(monkeypatch):
    """And trains in the same precision as nodes without one, unless another is asked for."""
    federation = unskew.federate(unskew.load("digits"), "iid", clients=2, seed=1)
    told = [settings_of("fedavg", "mlp-small", **more) for more in ({}, {"precision": "bf16"})]
    agreed = [each.agreement(each.server_trial(federation, 2)) for each in told]
    monkeypatch.setattr(unskew.Trial, "pick_device", lambda _: torch.device("cuda"))
    for each, theirs in zip(told, agreed, strict=True):
        each.check_agreement(theirs, each.node_trial(federation, 2))
    assert [each.trial(federation).pick_precision() for each in told] == ["fp32", "bf16"]


def test_label_counts_are_shared_where_that_is_asked_for(tmp_path):
    config = config_of(tmp_path, settings=HEART | {"federation.label_counts": "share"})
    run, _ = federated(config, HOSPITALS)
    result = simulated(config)
    assert run.counts.tolist() == result.counts.tolist()
    assert run.summary.groups.majority == pytest.approx(result.groups["majority"])
    kept, _ = federated(
        config | {"federation.label_counts": "keep", "federation.out": str(tmp_path / "2")}, HOSPITALS
    )
    assert kept.counts.shape == (0, 2)


def test_pages_and_tables_take_a_run_without_label_counts(tmp_path, capsys):
    from typer.testing import CliRunner

    from unskew.cli import app as cli

    run, _ = federated(config_of(tmp_path, settings=HEART), HOSPITALS)
    ran = CliRunner().invoke(cli, ["table", str(run.path)])
    assert ran.exit_code == 0, ran.output
    assert "fedavg" in ran.output


def test_what_a_bad_client_sends_is_left_out_and_named(tmp_path):
    def not_finite(client):
        def change(message, reply):
            name = f"fit/{client}"
            if name in reply.content.array_records:
                tensors = from_record(reply.content.array_records[name])
                first = next(iter(tensors))
                reply.content[name] = to_record(tensors | {first: torch.full_like(tensors[first], torch.nan)})
            return reply

        return change

    run, _ = federated(config_of(tmp_path), change=not_finite(2))
    rounds = [line for line in run.rounds if 2 in line.cohort]
    assert rounds
    for line in rounds:
        assert 2 not in line.trained
        assert [(fault.client, fault.kind) for fault in line.faults] == [(2, "not finite")]
    assert any("client 2" in note for note in run.summary.notes)


@pytest.mark.parametrize(
    ("spoil", "kind", "reason"),
    [
        (lambda c: c.pop("numbers/2"), "form", "its answer cannot be read"),
        (lambda c: c["numbers/2"].update(samples=10**9), "form", "it says that it has 1000000000 samples"),
        (lambda c: c["numbers/2"].update(steps=0), "form", "it says that it took 0 steps"),
        (lambda c: c["fit/2"].pop(next(iter(c["fit/2"]))), "form", "its model lacks"),
        (
            lambda c: c.update(
                {"fit/2": to_record({k: v[..., None] for k, v in from_record(c["fit/2"]).items()})}
            ),
            "form",
            "shape",
        ),
    ],
    ids=["no numbers", "too many samples", "no steps", "a tensor less", "other shapes"],
)
def test_answers_that_are_none_are_left_out(spoil, kind, reason, tmp_path):
    def change(message, reply):
        if "fit/2" in reply.content.array_records:
            spoil(reply.content)
        return reply

    run, _ = federated(
        config_of(tmp_path, settings={"budget.cohort": "all", "budget.rounds": 1}), change=change
    )
    (fault,) = run.rounds[0].faults
    assert (fault.client, fault.kind) == (2, kind)
    assert reason in fault.reason
    assert run.rounds[0].trained == [0, 1, 3]


def test_a_node_that_is_away_is_waited_for_by_nobody_and_comes_back_with_its_memory(tmp_path):
    config = config_of(tmp_path, "scaffold", {"budget.cohort": "all", "budget.rounds": 4})
    grid = InProcessGrid(flower.client_app(), [{"partition-id": n} for n in range(4)], config)
    whole = dict(grid.nodes)

    def change(message, reply):
        round = int(message.metadata.group_id)
        if message.metadata.message_type == "train" and message.metadata.dst_node_id == 103:
            if round == 1:
                grid.nodes.pop(102, None)
            if round == 2:  # it comes back as another node, as one without a key does
                grid.nodes[202] = whole[102]
        return reply

    grid.change = change
    experiment, spec = read_config(config)
    run = serve(grid, experiment, spec, settings_in(experiment))
    assert [line.trained for line in run.rounds] == [[0, 1, 2, 3], [0, 1, 3], [0, 1, 2, 3], [0, 1, 2, 3]]
    (fault,) = run.rounds[1].faults
    assert (fault.client, fault.kind, fault.reason) == (2, "lost", "its node is not there")


def test_a_node_keeps_its_label_counts_whatever_is_asked_for(tmp_path):
    settings = HEART | {"federation.label_counts": "share", "federation.wait": 0.1}
    nodes = [*HOSPITALS[:3], HOSPITALS[3] | {"label_counts": "never"}]
    with pytest.raises(UserError, match="this node keeps its label counts"):
        federated(config_of(tmp_path, settings=settings), nodes)


def test_the_node_of_a_client_has_its_place_when_it_is_back(tmp_path):
    config = config_of(tmp_path, settings={"budget.cohort": "all", "budget.rounds": 4})
    grid = InProcessGrid(flower.client_app(), [{"partition-id": n} for n in range(4)], config)
    whole, trained_at = dict(grid.nodes), {}

    def change(message, reply):
        if message.metadata.message_type == "train":
            round, node = int(message.metadata.group_id), message.metadata.dst_node_id
            trained_at.setdefault(round, set()).add(node)
            if node == 103 and round == 1:
                grid.nodes.pop(100)
                grid.nodes[666] = whole[100]  # another, by the same name and with as many samples
            if node == 103 and round == 2:
                grid.nodes[100] = whole[100]
        return reply

    grid.change = change
    experiment, spec = read_config(config)
    serve(grid, experiment, spec, settings_in(experiment))
    assert trained_at == {
        1: {100, 101, 102, 103},
        2: {666, 101, 102, 103},
        3: {100, 101, 102, 103},
        4: {100, 101, 102, 103},
    }


def test_what_clients_keep_is_for_their_node_alone(tmp_path, home):
    def kill(message, reply):
        if message.metadata.group_id == "2":
            raise KilledError
        return reply

    with pytest.raises(KilledError):
        federated(config_of(tmp_path, "scaffold"), change=kill)
    (run,) = (home / "unskew").iterdir()
    assert run.stat().st_mode & 0o777 == 0o700
    assert list(run.rglob("*.tensors"))


class KilledError(BaseException):
    """The server has ended at once."""


FOUR_ROUNDS = {"budget.rounds": 4}


@cache
def simulated_by(method):
    """Wherever a run is killed, the simulation is the same."""
    return simulated(config_of(Path(), settings=FOUR_ROUNDS | {"method": method}))


@pytest.mark.parametrize("method", ["fedavg", "scaffold", "moon", "pkd:warmup=1,expert_rounds=1,groups=3/8"])
@pytest.mark.parametrize("at", [2, 6, 9])
def test_a_killed_server_goes_on_with_the_same_bits(method, at, tmp_path):
    config, messages = config_of(tmp_path, settings=FOUR_ROUNDS | {"method": method}), 0

    def kill(message, reply):
        nonlocal messages
        messages += message.metadata.message_type == "train"
        if messages == at:
            raise KilledError
        return reply

    with pytest.raises(KilledError):
        federated(config, change=kill)
    run, _ = federated(config)
    assert_same(run, simulated_by(method))


def test_other_settings_at_a_node_are_refused_by_name(tmp_path):
    config = config_of(tmp_path)
    grid = InProcessGrid(
        flower.client_app(), [{"partition-id": n} for n in range(4)], config | {"budget.lr": 0.5}
    )
    experiment, spec = read_config(config)
    with pytest.raises(UserError, match=r"the server trains with budget .* and this node with"):
        serve(grid, experiment, spec, settings_in(experiment))


def test_nodes_that_do_not_come_are_told(tmp_path):
    with pytest.raises(UserError, match=r"the run needs 4 clients and 2 are there after 0\.1 s"):
        federated(
            config_of(tmp_path, settings={"federation.wait": 0.1}),
            [{"partition-id": n, "num-partitions": 4} for n in range(2)],
        )


def test_a_node_that_is_only_slow_now_is_told_of_by_what_it_has_said(tmp_path, monkeypatch):
    monkeypatch.setattr("unskew.flower.link.AGAIN", 0.0)
    config = config_of(tmp_path, settings={"federation.wait": 1.5})
    grid = InProcessGrid(flower.client_app(), [{"data": "csv:nowhere.csv,label=kind"}], config)
    answers = []

    def pull(names):
        """Let every message after the first be without an answer."""
        found = InProcessGrid.pull_messages(grid, names)
        answers.extend(found)
        return found if len(answers) == 1 else []

    monkeypatch.setattr(grid, "pull_messages", pull)
    experiment, spec = read_config(config)
    with pytest.raises(
        UserError, match=r"0 are there after 1\.5 s \(one node: its data cannot be loaded, its"
    ):
        serve(grid, experiment, spec, settings_in(experiment))


def test_data_that_the_server_cannot_load_are_named_before_nodes_are_waited_for(tmp_path):
    with pytest.raises(UserError, match="unknown dataset 'digitz': did you mean 'digits'"):
        federated(config_of(tmp_path, settings={"data.name": "digitz", "federation.wait": 2.0}))


@pytest.mark.parametrize(
    "settings",
    [
        {"method": "pkd:warmup=1,expert_rounds=5,groups=3/8", "budget.optimizer_state": "kept"},
        {"method": "pkd:warmup=1,expert_rounds=2,groups=3/8;1/2", "model.freeze": "body", "budget.lr": 0.3},
    ],
    ids=["what the warm-up kept", "experts with frozen parts"],
)
def test_stages_find_what_stages_before_have_left(settings, tmp_path):
    config = config_of(tmp_path, settings={"budget.rounds": 3, "budget.cohort": "all"} | settings)
    run, _ = federated(config)
    assert_same(run, simulated(config))


def test_a_stage_of_another_attempt_is_not_taken_for_this_ones(tmp_path):
    config = config_of(tmp_path, settings={"budget.rounds": 3, "method": "pkd:warmup=1,expert_rounds=1"})
    messages = 0

    def spoiled_then_killed(message, reply):
        nonlocal messages
        messages += message.metadata.message_type == "train"
        if messages == 9:
            raise KilledError
        if "fit/2" in reply.content.array_records:
            reply.content.pop("numbers/2")
        return reply

    with pytest.raises(KilledError):
        federated(config, change=spoiled_then_killed)
    shutil.rmtree(tmp_path / "run")
    run, _ = federated(config)
    assert_same(run, simulated(config))


def test_no_client_is_told_what_others_hold(tmp_path):
    config = config_of(tmp_path, settings={"method": "pkd:warmup=1,expert_rounds=1,groups=3/8"})
    _, grid = federated(config)
    sent = [
        name for message in grid.sent for name in message.content.array_records if name.startswith("result/")
    ]
    assert "result/weak groups" in sent
    assert not any("samples" in name for name in sent)
    (groups,) = {
        tuple(message.content["result/weak groups"])
        for message in grid.sent
        if "result/weak groups" in message.content.array_records
    }
    assert groups == ("members",)


def test_a_site_without_tests_is_named_and_what_is_wrong_with_data_stays_there(tmp_path, caplog):
    sites = own_app(tmp_path)
    config = {
        "data.name": "sites",
        "model.name": "mlp-small",
        "budget.rounds": 2,
        "federation.nodes": 3,
        "federation.out": str(tmp_path / "run"),
    }
    grid = InProcessGrid(flower.client_app(tmp_path), list(sites.values()), config)

    def silent(message, reply):
        if message.metadata.message_type == "evaluate":
            reply.content.pop("totals/1", None)
        return reply

    grid.change = silent
    experiment, spec = read_config(config)
    run = serve(grid, experiment, spec, settings_in(experiment))
    assert sum(map(sum, run.summary.confusion)) == 24
    assert any("2 tests went without 'south'" in note for note in run.summary.notes)

    (tmp_path / "west.csv").write_text("x,y,colour,kind\n1,Mrs Smith,red,a\n")
    config |= {"federation.out": str(tmp_path / "other"), "federation.wait": 0.1, "seed": 2}
    grid = InProcessGrid(flower.client_app(tmp_path), list(sites.values()), config)
    experiment, spec = read_config(config)
    with pytest.raises(UserError, match="its data cannot be loaded, its own log says why") as told:
        serve(grid, experiment, spec, settings_in(experiment))
    assert "Smith" not in str(told.value)


@pytest.mark.parametrize(
    ("config", "sentence"),
    [
        ({"federation": 3}, "federation is 3 but should be settings"),
        ({"federation.nodes": 0}, "federation.nodes is 0"),
        ({"federation.test": "both"}, "federation.test is 'both'"),
        ({"checkpoint": "every=5"}, "leave it out, it is every=1"),
    ],
)
def test_settings_of_a_federation_are_checked(config, sentence):
    with pytest.raises(UserError, match=sentence):
        read_config(config)


# Data of one's own


def own_app(folder, rows=60):
    """Three sites with CSV files, of which none has all classes, and the form that they share."""
    generator = np.random.default_rng(0)
    held = {"north": "ab", "south": "bc", "west": "ca"}
    for site, classes in held.items():
        lines = ["x,y,colour,kind"]
        for _ in range(rows):
            kind = generator.choice(list(classes))
            x, y = generator.normal("abc".index(kind), 0.3, 2)
            lines.append(f"{x:.3f},{y:.3f},{generator.choice(['red', 'blue'])},{kind}")
        (folder / f"{site}.csv").write_text("\n".join(lines))
    sample = folder / "sample.csv"
    sample.write_text(
        "x,y,colour,kind\n0,0,red,a\n1,1,blue,b\n2,2,red,c\n0,1,blue,a\n1,2,red,b\n2,1,blue,c\n"
    )
    (folder / "form.json").write_text(form_of(unskew.load(f"csv:{sample},label=kind")))
    return {site: {"data": f"csv:{folder / site}.csv,label=kind"} for site in held}


def test_sites_with_their_own_files(tmp_path):
    sites = own_app(tmp_path)
    config = {
        "method": "fedvls",
        "data.name": "three-sites",
        "model.name": "mlp-small",
        "budget.rounds": 3,
        "budget.lr": 0.1,
        "federation.nodes": 3,
        "federation.out": str(tmp_path / "run"),
    }
    grid = InProcessGrid(flower.client_app(tmp_path), list(sites.values()), config)
    experiment, spec = read_config(config)
    run = serve(grid, experiment, spec, settings_in(experiment))
    assert run.names == ("north", "south", "west")
    assert run.classes == ("a", "b", "c")
    assert sum(map(sum, run.summary.confusion)) == 36  # a fifth of each class of each site
    model = unskew.load_model(run.path)
    assert model.classes == ("a", "b", "c")
    assert set(model.predict([{"x": 0, "y": 0, "colour": "red"}])) <= {"a", "b", "c"}


def test_a_class_that_nobody_else_has_is_named(tmp_path):
    sites = own_app(tmp_path)
    (tmp_path / "west.csv").write_text("x,y,colour,kind\n1,2,red,z\n")
    config = {"data.name": "sites", "model.name": "mlp-small", "federation.nodes": 3, "federation.wait": 0.1}
    grid = InProcessGrid(flower.client_app(tmp_path), list(sites.values()), config)
    experiment, spec = read_config(config)
    with pytest.raises(UserError, match="2 are there"):
        serve(grid, experiment, spec, settings_in(experiment))


@pytest.mark.parametrize(
    ("node", "sentence"),
    [
        (
            {"partition-id": 0},
            "names no data: start it with --node-config 'data=\"csv:PATH,label=COLUMN\"'.\n",
        ),
        (
            {"data": "csv:west.csv,label=kind,missing=column"},
            "missing is given for west.csv, whose columns are",
        ),
        ({"data": "csv:west.csv,label=kind"}, "row 2, column 'x': put a number there.\n"),
    ],
    ids=["no data", "an option of the form", "a word for a number"],
)
def test_a_site_is_told_what_is_wrong_with_its_data(node, sentence, tmp_path, caplog):
    own_app(tmp_path)
    (tmp_path / "west.csv").write_text("x,y,colour,kind\nseven,1,red,a\n")
    config = {"data.name": "sites", "model.name": "mlp-small", "federation.nodes": 1, "federation.wait": 0.1}
    grid = InProcessGrid(flower.client_app(tmp_path), [node], config)
    experiment, spec = read_config(config)
    with pytest.raises(UserError, match="its data cannot be loaded, its own log says why"):
        serve(grid, experiment, spec, settings_in(experiment))
    assert sentence in caplog.text


def test_folders_of_images_and_functions_are_data_too(tmp_path):
    generator = np.random.default_rng(0)
    for site, classes in {"north": "ab", "south": "bc", "sample": "abc"}.items():
        for kind in classes:
            (tmp_path / site / kind).mkdir(parents=True)
            for number in range(10):
                pixels = generator.integers(0, 60, (8, 8)) + 90 * "abc".index(kind)
                Image.fromarray(pixels.astype(np.uint8)).save(tmp_path / site / kind / f"{number}.png")
    (tmp_path / "form.json").write_text(form_of(unskew.load(f"folder:{tmp_path / 'sample'}")))
    (tmp_path / "west.py").write_text(
        "import numpy as np, unskew\n\n\ndef load():\n"
        "    x = np.repeat(np.uint8([0, 90, 180]), 10)[:, None, None] * np.ones((8, 8), np.uint8)\n"
        "    return unskew.data.from_arrays(x, np.arange(30) // 10, classes=('a', 'b', 'c'))\n"
    )
    config = {
        "data.name": "shades",
        "model.name": "mlp-small",
        "budget.rounds": 2,
        "federation.nodes": 2,
        "federation.out": str(tmp_path / "run"),
    }
    nodes = [{"data": f"folder:{tmp_path / site}"} for site in ("north", "south")]
    grid = InProcessGrid(flower.client_app(tmp_path), nodes, config)
    experiment, spec = read_config(config)
    run = serve(grid, experiment, spec, settings_in(experiment))
    assert (run.names, run.classes) == (("north", "south"), ("a", "b", "c"))
    functions = [{"data": f"{tmp_path / 'west.py'}:load", "site": name} for name in ("east", "west")]
    config |= {"federation.out": str(tmp_path / "other")}
    grid = InProcessGrid(flower.client_app(), functions, config)
    experiment, spec = read_config(config)
    run = serve(grid, experiment, spec, settings_in(experiment))
    assert [site.samples for site in run.summary.sites.each] == [24, 24]
    config |= {"federation.out": str(tmp_path / "mixed")}
    grid = InProcessGrid(flower.client_app(tmp_path), [nodes[0], functions[1]], config)
    experiment, spec = read_config(config)
    run = serve(grid, experiment, spec, settings_in(experiment))
    assert run.names == ("north", "west")


# An app of one's own


class Net(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Flatten(), nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, 10))


def made():
    return Net()


SETTINGS = {"model": made, "budget": unskew.Budget(epochs=1, lr=0.05), "seed": 3}


def own_client(method):
    from flwr.clientapp import ClientApp

    app = ClientApp()
    federation = unskew.federate(unskew.load("digits"), "part:0.2+dirichlet:0.3", clients=2, seed=1)

    def answer(message, context):
        client = context.node_config["partition-id"]
        x, y = federation.dataset.train.take(federation.indices(client))
        data = unskew.data.from_arrays(x, y, classes=federation.dataset.classes, test_fraction=0.2)
        return flower.train(message, context, data, method=method, **SETTINGS)

    for kind in (app.train, app.evaluate, app.query):
        kind()(answer)
    return app


@pytest.mark.parametrize("method", ["fedvls", "scaffold", "ccvr"])
def test_a_method_in_an_app_of_ones_own(method, tmp_path):
    grid = InProcessGrid(own_client(method), [{"partition-id": 0, "num-partitions": 2}, {"partition-id": 1}])
    strategy = flower.strategy(method, **SETTINGS)
    torch.manual_seed(0)
    begin = ArrayRecord(made().state_dict())
    seen = {}

    def central(round, arrays):
        seen[round] = arrays

    result = strategy.start(grid, begin, num_rounds=2, evaluate_fn=central)
    assert result.evaluate_metrics_clientapp.keys() == {1, 2}
    assert len(result.evaluate_metrics_clientapp[2]["class-accuracy"]) == 10
    assert set(result.arrays) == set(begin) == set(seen[2])
    assert seen.keys() == {0, 1, 2}
    moved = result.arrays.to_torch_state_dict()
    assert not torch.equal(moved["1.weight"], begin.to_torch_state_dict()["1.weight"])
    assert strategy.result.final.confusion.sum() == sum(
        result.evaluate_metrics_clientapp[2]["class-examples"]
    )


def test_a_condition_that_there_is_not_is_refused_before_the_run():
    with pytest.raises(UserError, match="unknown condition 'budgets': did you mean 'budget'"):
        flower.strategy("fedavg", model=made, budgets=unskew.Budget())


def test_a_strategy_of_flower_takes_methods_that_change_the_client_alone():
    grid = InProcessGrid(own_client("fedlc"), [{"partition-id": 0}, {"partition-id": 1}])
    strategy = FedAvg(fraction_evaluate=0.0)
    messages = list(strategy.configure_train(1, ArrayRecord(made().state_dict()), ConfigRecord(), grid))
    replies = list(grid.pull_messages(grid.push_messages(messages)))
    arrays, metrics = strategy.aggregate_train(1, replies)
    assert metrics["train-loss"] > 0
    assert arrays.keys() == made().state_dict().keys()


@pytest.mark.parametrize(
    ("method", "why"), [("scaffold", "has a server of its own"), ("moon", "keep or report")]
)
def test_a_strategy_of_flower_refuses_other_methods(method, why):
    grid = InProcessGrid(own_client(method), [{"partition-id": 0}, {"partition-id": 1}])
    messages = list(FedAvg().configure_train(1, ArrayRecord(made().state_dict()), ConfigRecord(), grid))
    (reply, *_) = grid.pull_messages(grid.push_messages(messages))
    assert reply.has_error()
    assert why in reply.error.reason
