"""A Ray cluster of two nodes on this machine gives the results of the loop."""

import gc
import importlib.util
import json
import os
import signal
import subprocess
import sys
import threading
from dataclasses import replace
from weakref import WeakValueDictionary

import numpy as np
import pytest
import torch
from torch import nn

from clusters import free_port, has, running, until
from unskew import Budget, Evaluation, Method, Stop, Trial, UserError, federate, load, methods, train
from unskew.data.federation import holding_of
from unskew.engines import Failed, Job, Task, start
from unskew.engines.ray.engine import RemoteJob
from unskew.engines.ray.fleet import RayWorker
from unskew.engines.ray.payload import pack, pack_code
from unskew.method import plain_loss
from unskew.methods.assemble import assemble
from unskew.rounds import initial_state, run_round, sample_cohort
from unskew.types import Memory

needs_ray = pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="Ray is not installed")
# Ray opens sockets and log files that it leaves to the end of the process.
pytestmark = pytest.mark.filterwarnings(
    "ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"
)

BUDGET = Budget(rounds=2, epochs=1, lr=0.05)


@pytest.fixture(scope="module")
def cluster():
    """Yield the address of a cluster of three CPUs on two nodes, which ask for a token."""
    with running(["--num-cpus=2"], ["--num-cpus=1"], token=64 * "7", CPU=3) as address:
        yield address


@pytest.fixture
def trial(skewed) -> Trial:
    return Trial(skewed, "mlp", budget=BUDGET, evaluation=Evaluation(batch_size=100), engine="ray", workers=2)


@pytest.fixture(scope="module")
def fleet(cluster, skewed):
    """Return an engine whose workers the engines of the tests share, after it has started them."""
    engine = start(Trial(skewed, "mlp", engine="ray", workers=2))
    engine.fit(Method(), engine.initial, {}, [job(skewed, 0), job(skewed, 1)])
    return engine


def job(federation, client: int) -> Job:
    """Return the job of a client's first round, on all its samples."""
    return Job(Task(client, 0, federation.holding(client)))


def assert_same(trial: Trial, method) -> None:
    there, here = train(trial, method), train(replace(trial, engine="loop"), method)
    for kind in ("params", "buffers"):
        mine, other = getattr(there.weights, kind), getattr(here.weights, kind)
        assert list(mine) == list(other)
        assert all(torch.equal(mine[name], other[name]) for name in mine)
    for mine, other in zip(there.rounds, here.rounds, strict=True):
        assert (mine.cohort, mine.trained, mine.train_loss) == (other.cohort, other.trained, other.train_loss)
        assert mine.test.loss == other.test.loss
        for name in ("confusion", "mean_probability", "mean_features"):
            assert (getattr(mine.test, name) == getattr(other.test, name)).all()
        assert np.array_equal(mine.test.answers, other.test.answers)


@needs_ray
def test_clients_drawn_when_they_are_needed_are_drawn_there(fleet, trial):
    data = load("synthetic:1,1,clients=3000,cap=60,drawn=true")
    federation = federate(data, "natural", clients=0, seed=0)
    budget = BUDGET.model_copy(update={"cohort": 4})
    assert_same(replace(trial, federation=federation, model="logistic", budget=budget), methods.scaffold())


@needs_ray
@pytest.mark.parametrize("name", ["fedavg", "fedsam", "moon", "scaffold", "fedvls", "fedgela", "fedconcat"])
def test_the_same_bits_as_the_loop(name, trial, fleet):
    assert_same(trial, assemble({name: {}})[0])


@needs_ray
def test_what_validates_is_tested_there_too(trial, fleet, digits):
    federation = federate(digits, "dirichlet:0.3", clients=3, seed=1, validation=0.15)
    assert len(federation.validation) > trial.evaluation.batch_size  # several batches, for several workers
    there = replace(trial, federation=federation, model="logistic", stop=Stop(metric="loss"))
    mine, other = (train(each) for each in (there, replace(there, engine="loop")))
    assert [r.validation.loss for r in mine.rounds] == [r.validation.loss for r in other.rounds]
    assert mine.validation.round == other.validation.round
    assert mine.scores == other.scores


class Normed(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.norm = nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4)
        self.drop, self.head = nn.Dropout(0.2), nn.Linear(4, 10)

    def forward(self, x):
        return self.head(self.drop(self.norm(self.conv(x)).relu().mean(dim=(2, 3))))


@needs_ray
@pytest.mark.parametrize("kind", [Normed, lambda: Normed(), Normed()], ids=["class", "function", "object"])
def test_models_and_clients_state_travel(kind, trial, fleet):
    kept = BUDGET.model_copy(update={"optimizer_state": "kept"})
    assert_same(replace(trial, model=kind, statistics="local", budget=kept), methods.moon())


class HalfFrozen(nn.Module):
    """A network whose first layer is never trained, and drawn anew in every process."""

    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Linear(64, 32), nn.Linear(32, 10)
        with torch.no_grad():
            self.body.weight.normal_(generator=torch.Generator().manual_seed(os.getpid()))
        self.body.requires_grad_(False)

    def forward(self, x):
        return self.head(self.body(x.flatten(1)).relu())


@needs_ray
def test_frozen_parameters_are_those_of_this_process(trial, fleet):
    assert_same(replace(trial, model=HalfFrozen), Method())


@needs_ray
def test_a_client_trains_on_the_samples_of_its_job(trial, fleet):
    """Give it others than those that it holds in the federation."""
    federation = trial.federation
    rows = federation.partition.indices[0]
    jobs = [Job(Task(0, 0, holding_of(federation.dataset, mine))) for mine in (rows, rows[::2])]
    there, here = (
        engine.fit(Method(), engine.initial, {}, jobs)
        for engine in (start(trial), start(replace(trial, engine="loop")))
    )
    assert [fit.samples for fit in there] == [len(rows), len(rows[::2])]
    for mine, other in zip(there, here, strict=True):
        assert all(torch.equal(mine.weights.params[name], v) for name, v in other.weights.params.items())


def test_samples_that_workers_have_are_not_sent(digits):
    federation = federate(digits, "iid", clients=2, seed=1)
    assert len(federation.holding(0)) > 700
    payload = pack([RemoteJob.of(job(federation, 0), federation)])
    assert len(payload.body) + sum(array.nbytes for array in payload.arrays) < 1000


@needs_ray
def test_a_method_in_a_file_travels_with_what_it_imports(trial, fleet, tmp_path, monkeypatch):
    (tmp_path / "aside_of_mine.py").write_text("def half(value):\n    return value / 2\n")
    (tmp_path / "mine_alone.py").write_text(
        "import torch\n"
        "import aside_of_mine\n"
        "from unskew import Method\n\n"
        "SCALE = torch.tensor(0.5)\n\n\n"
        "def mine_alone(*, mu: float = 0.2) -> Method:\n"
        "    def small(view):\n"
        "        return aside_of_mine.half(mu) * SCALE * view.out.logits.square().mean()\n\n"
        "    return Method(terms=(small,))\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    assert_same(trial, assemble({str(tmp_path / "mine_alone.py"): {}})[0])


@needs_ray
def test_what_is_installed_in_a_folder_of_its_own_goes_by_name(tmp_path, monkeypatch):
    """Use a folder such as that of pip install --target, where Ray itself may be."""
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "aside.py").write_text("def said(value):\n    return 'in the code'\n")
    said = importlib.import_module("aside").said
    assert b"in the code" in pack_code(said, "method").body
    (tmp_path / "aside-1.0.dist-info").mkdir()
    assert b"in the code" not in pack_code(said, "method").body


def where(scope, end):
    import ray

    return {}, {"node": torch.tensor(int(ray.get_runtime_context().get_node_id()[:8], 16))}


@needs_ray
def test_clients_train_on_both_nodes(trial, fleet):
    engine = start(trial)
    fits = []
    while len({int(fit.reported["node"]) for fit in fits}) < 2:  # the second worker may still be starting
        jobs = [job(trial.federation, client) for client in range(5)]
        fits = engine.fit(Method(memory=Memory(update=where)), engine.initial, {}, jobs)


@needs_ray
def test_a_job_whose_worker_dies_is_done_by_another(trial, fleet, tmp_path):
    mark = tmp_path / "died"

    def once(view):
        if not mark.exists():
            mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return view.out.logits.square().mean()

    def never(view):
        return view.out.logits.square().mean()

    there = train(trial, Method(terms=(once,)))
    here = train(replace(trial, engine="loop"), Method(terms=(never,)))
    assert mark.exists()
    assert all(torch.equal(there.weights.params[name], value) for name, value in here.weights.params.items())


@needs_ray
def test_one_sentence_for_each_failure(trial, fleet):
    lock = threading.Lock()
    for loss, sentence in (
        (lambda view: view.out.logits, r"^the method's loss has shape \[\d+, 10\]: let it return one number"),
        (lambda view: lock.locked(), "^the method cannot be sent to another machine .*lock"),
    ):
        with pytest.raises(UserError, match=sentence):
            train(trial, Method(loss=loss))
    with pytest.raises(UserError, match="offers 5 CPU: add one that does, or lower the trial's threads"):
        train(replace(trial, threads=5))
    assert_same(trial, Method())  # and the workers are as good as before


def nan_weights(params, kept, reported):
    next(iter(params.values()))[0] = float("nan")


def infinite_report(params, kept, reported):
    reported["odd/sent"] *= float("inf")


def other_shape(params, kept, reported):
    name = next(iter(params))
    params[name] = params[name][:1].clone()


def no_memory(params, kept, reported):
    raise MemoryError


def dies(params, kept, reported):
    os.kill(os.getpid(), signal.SIGKILL)


@needs_ray
@pytest.mark.parametrize(
    ("how", "kind"),
    [
        (nan_weights, "not finite"),
        (infinite_report, "not finite"),
        (other_shape, "form"),
        (no_memory, "memory"),
        (dies, "lost"),
    ],
)
def test_a_bad_client_is_left_out(how, kind, trial, fleet):
    """Check that the others train as in the loop without that client."""
    bad, counts = 3, trial.federation.counts[3]
    trial = replace(trial, budget=BUDGET.model_copy(update={"rounds": 1}))

    def update(scope, end):
        kept, reported = {}, {"odd/sent": torch.ones(1)}
        if torch.equal(scope.counts, counts):
            how(end.weights.params, kept, reported)
        return kept, reported

    there = train(trial, methods.scaffold() + Method(memory=Memory(update=update)))
    [fault] = there.rounds[0].faults
    assert (fault.client, fault.kind) == (bad, kind)
    if how is dies:
        assert fault.reason.startswith("a worker of the Ray cluster died 3 times at the same work")
    here, method = replace(trial, engine="loop"), methods.scaffold()
    engine = start(here)

    def sampler(trial, round):
        return [task for task in sample_cohort(trial, round) if task.client != bad]

    state, _ = run_round(here, method, engine, initial_state(method, engine.initial), sampler=sampler)
    mine = there.state.server
    assert all(torch.equal(mine.weights.params[k], v) for k, v in state.server.weights.params.items())
    assert all(torch.equal(mine.memory[k], v) for k, v in state.server.memory.items())


@needs_ray
def test_of_several_clients_in_one_worker_the_one_that_kills_it_is_left_out(trial, fleet, monkeypatch):
    """Send several clients to one worker at once, as to a worker with a GPU."""

    def loss(view):
        if torch.equal(view.scope.counts, counts):
            os._exit(1)
        return view.out.logits.square().mean()

    counts, engine = trial.federation.counts[3], start(trial)
    monkeypatch.setattr(engine, "_cuda", True)
    monkeypatch.setattr("unskew.engines.ray.fleet.ATTEMPTS", 1)  # a worker takes seconds to start
    outcomes = engine.fit(Method(loss=loss), engine.initial, {}, [job(trial.federation, k) for k in range(5)])
    assert [isinstance(outcome, Failed) for outcome in outcomes] == [False] * 3 + [True, False]


class UnsendableError(Exception):
    def __init__(self, one, other):
        super().__init__(f"{one} and {other}")


@needs_ray
@pytest.mark.parametrize(
    ("raised", "arrives", "message"),
    [
        (lambda: KeyError("no such thing"), KeyError, "no such thing"),
        (lambda: UnsendableError("this", "that"), RuntimeError, "UnsendableError: this and that"),
    ],
    ids=["sendable", "unsendable"],
)
def test_a_mistake_in_a_method_is_shown_where_it_is(raised, arrives, message, trial, fleet, tmp_path):
    tries, counts = tmp_path / "tries", trial.federation.counts[3]

    def wrong(view):
        if torch.equal(view.scope.counts, counts):
            with tries.open("a") as file:
                file.write("once\n")
            raise raised()
        return view.out.logits.square().mean()

    with pytest.raises(arrives, match=message) as caught:
        train(trial, Method(loss=wrong))
    trace, place = caught.value.__notes__
    assert "in wrong\n" in trace
    assert place == "Client 3 failed in round 1, stage 'train'."
    assert tries.read_text() == "once\n"


@needs_ray
def test_workers_that_die_at_their_start_are_given_up_each_time(trial, fleet, tmp_path, monkeypatch):
    starts, about = tmp_path / "starts", RayWorker().about()

    class Dying:
        def about(self):
            with starts.open("a") as file:
                file.write("one\n")
            if len(starts.read_text().splitlines()) < 10:  # so that who tries for ever comes to an end
                os._exit(1)
            return about

        def call(self, function, sent, value):
            return function(sent, value)

    monkeypatch.setattr("unskew.engines.ray.fleet._fleets", WeakValueDictionary())  # none has started yet
    monkeypatch.setattr("unskew.engines.ray.fleet.RayWorker", Dying)
    engine = start(replace(trial, workers=1))
    for _ in range(2):
        with pytest.raises(UserError, match=r"^a worker of the Ray cluster died 3 times at its start"):
            engine.fit(Method(), engine.initial, {}, [job(trial.federation, 0)])


@needs_ray
def test_cells_of_a_paper_run_side_by_side_with_the_same_numbers(unskew, fleet):
    ask = [
        "reproduce",
        "fedlc:table4",
        "--cell",
        "synthetic:0,0/fedavg synthetic:0,0/fedlc",
        "--seeds",
        "1,2",
    ]
    ask += ["--rounds", "1", "--fraction", "0.02", "--workers", "2", "--quiet", "--json"]
    found = []
    for engine in ("loop", "ray"):
        answer = unskew(*ask, "--engine", engine, "--out", f"by-{engine}")
        assert answer.code == 0, answer.err
        cells = json.loads(answer.out.splitlines()[-1])["cells"]
        found.append([(cell["cell"], cell["seeds"], cell["measures"]) for cell in cells])
    assert found[0] == found[1]
    assert [seeds for _, seeds, _ in found[1]] == [[1, 2], [1, 2]]


@needs_ray
def test_compare_writes_the_same_folders_side_by_side(unskew, fleet, tmp_path):
    (tmp_path / "kind.py").write_text(
        "from unskew import Method\n\n\ndef kind() -> Method:\n"
        "    return Method(terms=(lambda view: view.out.logits.square().mean(),))\n"
    )
    settings = ["--rounds", "2", "--epochs", "1", "--clients", "4", "--seeds", "1,2", "--quiet", "--json"]
    settings += ["--set", "workers=2", "--set", "probe.every=2"]
    answers = {
        engine: unskew(
            "compare", "fedavg", "moon", "kind.py", *settings, "--engine", engine, "--out", f"by-{engine}"
        )
        for engine in ("loop", "ray")
    }
    for engine, answer in answers.items():
        assert answer.code == 0, answer.err
        last_line = answer.out.splitlines()[-1]  # on a busy machine Ray has something to say before
        assert json.loads(last_line) == json.loads((tmp_path / f"by-{engine}/compare.json").read_text())

    def files(engine):
        found = {}
        for path in sorted((tmp_path / f"by-{engine}").rglob("*")):
            if path.is_file() and path.name not in ("environment.json", "compare.json", "plan.json"):
                lines = path.read_bytes().replace(f"by-{engine}".encode(), b"").splitlines()
                if path.suffix == ".jsonl":
                    lines = [{**json.loads(line), "seconds": 0} for line in lines]
                name = path.relative_to(tmp_path / f"by-{engine}")
                found[name] = [line for line in lines if isinstance(line, dict) or b'seconds"' not in line]
                if path.name == "summary.json":
                    written = json.loads(path.read_text().replace(f"by-{engine}", ""))
                    found[name] = {
                        key: written[key] for key in written.keys() - {"seconds", "probe_seconds", "time"}
                    }
        return found

    assert len(files("ray")) == 7 * 6  # seven files of six runs
    assert files("ray") == files("loop")
    ran = json.loads((tmp_path / "by-ray/fedavg-seed1/environment.json").read_text())
    assert ran["command"][:2] == ["unskew", "compare"]


@needs_ray
def test_a_cell_whose_worker_dies_goes_on_from_its_checkpoint(unskew, fleet, tmp_path):
    begun = tmp_path / "begun"
    (tmp_path / "mortal.py").write_text(
        "import os, pathlib, signal\n"
        "from unskew.method import Memory, Method\n\n\n"
        "def prepare(scope, look):\n"
        f"    begun = pathlib.Path({str(begun)!r})\n"
        "    if begun.exists():\n"
        "        rounds = begun.read_bytes() + b'.'\n"
        "        begun.write_bytes(rounds)\n"
        "        if len(rounds) == 5:\n"
        "            os.kill(os.getpid(), signal.SIGKILL)\n"
        "    return {}\n\n\n"
        "def mortal() -> Method:\n"
        "    return Method(memory=Memory(prepare=prepare))\n"
    )
    flags = ["--rounds", "6", "--epochs", "1", "--clients", "1", "--quiet", "--checkpoint", "every=1"]
    whole = unskew("compare", "mortal.py", *flags, "--engine", "loop", "--out", "whole")
    assert whole.code == 0, whole.err
    begun.touch()
    killed = unskew("compare", "mortal.py", *flags, "--engine", "ray", "--set", "workers=2", "--out", "out")
    assert killed.code == 0, killed.err
    assert len(begun.read_bytes()) in (7, 8)  # the fifth again, and the fourth if it was being written
    model = "mortal.py-seed1/model.safetensors"
    assert (tmp_path / "out" / model).read_bytes() == (tmp_path / "whole" / model).read_bytes()
    assert not (tmp_path / "out/mortal.py-seed1/checkpoints").exists()


@needs_ray
def test_a_cell_that_fails_says_why(unskew, fleet, tmp_path):
    (tmp_path / "flat.py").write_text(
        "from unskew import Method\n\n\ndef flat() -> Method:\n"
        "    return Method(loss=lambda view: view.out.logits)\n"
    )
    flags = ["--rounds", "1", "--engine", "ray", "--quiet", "--set", "workers=2", "--out", "out"]
    answer = unskew("compare", "fedavg", "flat.py", *flags)
    assert answer.code == 2
    assert "the method's loss has shape" in answer.err
    assert answer.err.count("\n") == 1
    found = json.loads((tmp_path / "out/compare.json").read_text())
    assert [run["method"] for run in found["runs"]] == ["fedavg"]
    assert [run["method"] for run in found["failed"]] == ["flat.py"]
    assert (tmp_path / "out/flat.py-seed1/error.json").exists()


@needs_ray
def test_a_search_is_the_same_side_by_side(unskew, fleet, tmp_path):
    pytest.importorskip("optuna")
    command = ["tune", "fedprox", "--over", "mu=0.01..1:log", "fedavg", "--over", "budget.lr=0.01..0.1"]
    command += ["--trials", "2", "--rounds", "1", "--epochs", "1", "--clients", "2", "--quiet"]
    for engine in ("loop", "ray"):
        answer = unskew(*command, "--engine", engine, "--set", "workers=2", "--out", engine)
        assert answer.code == 0, answer.err
    assert (tmp_path / "loop/trials.jsonl").read_bytes() == (tmp_path / "ray/trials.jsonl").read_bytes()


@needs_ray
def test_a_method_that_cannot_be_sent_does_not_stop_the_others(unskew, fleet, tmp_path):
    (tmp_path / "locked.py").write_text(
        "import threading\nfrom unskew import Method\n\n"
        "def locked() -> Method:\n"
        "    lock = threading.Lock()\n"
        "    return Method(loss=lambda view: view.out.logits.mean() if lock else view.out.logits.sum())\n"
    )
    flags = ["--rounds", "1", "--epochs", "1", "--engine", "ray", "--set", "workers=2", "--out", "out"]
    answer = unskew("compare", "fedavg", "locked.py", *flags)
    assert answer.code == 2
    assert "1 of 2 runs failed" in answer.err
    found = json.loads((tmp_path / "out/compare.json").read_text())
    assert [run["method"] for run in found["runs"]] == ["fedavg"]
    assert [run["method"] for run in found["failed"]] == ["locked.py"]
    failed = json.loads((tmp_path / "out/locked.py-seed1/error.json").read_text())
    assert "cannot be sent to another machine" in failed["error"]


@needs_ray
def test_an_engine_that_is_gone_holds_no_cpu(trial, fleet, monkeypatch):
    until(lambda: has("CPU", "available_resources") == 1)
    monkeypatch.setattr("unskew.engines.ray.fleet._fleets", WeakValueDictionary())  # it has its own workers
    engine = start(replace(trial, workers=0))  # as many as the cluster has, of which one client needs one
    engine.fit(Method(), engine.initial, {}, [job(trial.federation, 0)])
    until(lambda: has("CPU", "available_resources") == 0)
    del engine
    gc.collect()
    until(lambda: has("CPU", "available_resources") == 1)


@needs_ray
def test_a_run_that_is_interrupted_holds_no_cpu(fleet, tmp_path):
    until(lambda: has("CPU", "available_resources") == 1)
    command = ["run", "--rounds", "100000", "--engine", "ray", "--set", "workers=1", "--out", "out"]
    started = subprocess.Popen(
        [sys.executable, "-m", "unskew", *command], cwd=tmp_path, text=True, stderr=subprocess.PIPE
    )
    rounds = tmp_path / "out" / "rounds.jsonl"
    until(lambda: started.poll() is not None or (rounds.exists() and rounds.read_text().count("\n") > 1))
    started.send_signal(signal.SIGINT)
    _, err = started.communicate(timeout=120)
    assert started.returncode == 130
    assert err.splitlines()[-1].endswith("; resume with: unskew resume out")
    until(lambda: has("CPU", "available_resources") == 1)


@needs_ray
def test_engines_that_may_have_more_or_fewer_workers_share_them(trial, fleet, tmp_path):
    """Check that no engine waits for a CPU that another one holds and does not use."""
    path = tmp_path / "who"

    def loss(view):
        with path.open("a") as file:
            file.write(f"{os.getpid()}\n")
        return plain_loss(view)

    few, more = (start(replace(trial, workers=workers)) for workers in (1, 3))
    jobs = [job(trial.federation, client) for client in range(3)]
    few.fit(Method(loss=loss), few.initial, {}, jobs)
    assert len(set(path.read_text().split())) == 1  # although there are two workers
    done = more.fit(Method(), more.initial, {}, jobs)
    assert not any(isinstance(each, Failed) for each in done)
    until(lambda: has("CPU", "available_resources") == 0)  # one was added


@needs_ray
def test_idle_workers_go_where_others_need_their_cpus(trial, fleet):
    """Train with two threads, which need two CPUs of a machine that workers of one thread hold."""
    wide = start(replace(trial, threads=2, workers=1))
    for engine in (wide, fleet):
        done = engine.fit(Method(), engine.initial, {}, [job(trial.federation, 0)])
        assert not isinstance(done[0], Failed)


@needs_ray
def test_a_cluster_asks_who_has_no_token(cluster, tmp_path):
    run = subprocess.run(
        [sys.executable, "-m", "unskew", "run", "--rounds", "1", "--engine", "ray", "--quiet"],
        cwd=tmp_path,
        env={**os.environ, "RAY_AUTH_MODE": "disabled", "RAY_NUM_REDIS_GET_RETRIES": "2"},
        capture_output=True,
        text=True,
    )
    assert run.returncode == 2
    assert "asks for a token: set RAY_AUTH_MODE=token" in run.stderr.splitlines()[-1]
    assert "Traceback" not in run.stderr


@needs_ray
def test_where_no_cluster_answers(unskew, monkeypatch, tmp_path):
    import ray

    ray.shutdown()
    for address, sentence in (
        (f"127.0.0.1:{free_port()}", "engine 'ray' finds no Ray cluster at RAY_ADDRESS 127.0.0.1:"),
        ("ray://127.0.0.1:10001", "should be HOST:PORT of a cluster's first machine"),
    ):
        monkeypatch.setenv("RAY_ADDRESS", address)
        answer = unskew("compare", "fedavg", "--engine", "ray")
        assert answer.code == 2
        assert sentence in answer.err
        assert answer.err.count("\n") == 1
    assert not list(tmp_path.iterdir())


def test_without_ray_installed(unskew, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    answer = unskew("run", "--engine", "ray")
    assert answer.code == 2
    assert answer.err == "unskew: engine 'ray' needs Ray: install it with pip install 'unskew[ray]'.\n"
