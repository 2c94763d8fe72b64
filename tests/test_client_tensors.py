"""What clients keep beyond memory comes back bit for bit, or with a sentence that says it is damaged."""

from __future__ import annotations

import gc
import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

import unskew
from unskew.client_tensors import ClientStore, ClientTensors, segments
from unskew.errors import UserError

pytestmark = pytest.mark.usefixtures("no_workers")

CPU = torch.device("cpu")


def some(seed: int, size: int = 50) -> dict[str, torch.Tensor]:
    """Tensors of several types and layouts."""
    numbers = torch.Generator().manual_seed(seed)
    image = torch.randn(2, 3, 4, 5, generator=numbers)
    return {
        "plain": torch.randn(size, 7, generator=numbers),
        "channels_last": image.to(memory_format=torch.channels_last),
        "transposed": torch.randn(6, 4, generator=numbers).T,
        "part": torch.randn(100, generator=numbers)[3:9],
        "repeated": torch.randn(1, generator=numbers).expand(4),
        "half": torch.randn(5, generator=numbers).bfloat16(),
        "number": torch.tensor(seed),
        "flag": torch.tensor([True, False]),
        "none": torch.zeros(0, 3),
        "odd": torch.tensor([float("nan"), -0.0, float("inf")]),
    }


def assert_same(one, other) -> None:
    assert list(one) == list(other)
    for name, value in one.items():
        there = other[name]
        assert value.dtype == there.dtype
        assert value.shape == there.shape
        here, now = (each.contiguous().view(-1).view(torch.uint8) for each in (value, there))
        assert torch.equal(here, now)


@pytest.mark.parametrize("limit", [None, 3000, 0])
def test_what_is_kept_comes_back_in_every_tier(tmp_path, limit):
    kept = {client: some(client) for client in range(5)}
    mapping = ClientStore(CPU, limit=limit, folder=tmp_path).empty().updated(kept)
    memory = ClientStore(CPU, limit=None).empty().updated(kept)
    assert list(mapping) == list(range(5))
    assert 7 not in mapping
    assert mapping.get(7) is None
    assert bool(list(tmp_path.iterdir())) == (limit is not None)
    for client in kept:
        assert_same(kept[client], mapping[client])
        for name, value in mapping[client].items():  # so that kernels sum in the same order
            assert value.stride() == memory[client][name].stride()
            assert value.data_ptr() % 64 == memory[client][name].data_ptr() % 64 == 0
    assert mapping[0]["channels_last"].is_contiguous(memory_format=torch.channels_last)
    assert mapping[0]["transposed"].stride() == kept[0]["transposed"].stride()


def test_an_older_value_stays_as_it_was(tmp_path, monkeypatch):
    monkeypatch.setattr(segments, "SEGMENT_BYTES", 20_000)
    mapping, older = ClientStore(CPU, limit=0, folder=tmp_path).empty(), {}
    for round in range(30):
        mapping = mapping.updated({client: some(100 * round + client) for client in (round % 3, 3)})
        if round in (5, 17):
            older[round] = mapping
    for round, there in older.items():
        assert int(there[3]["number"]) == 100 * round + 3
        assert_same(some(100 * round + 3), there[3])
    assert int(mapping[3]["number"]) == 2903


def test_files_do_not_grow_with_the_rounds(tmp_path, monkeypatch):
    monkeypatch.setattr(segments, "SEGMENT_BYTES", 30_000)
    mapping = ClientStore(CPU, limit=0, folder=tmp_path).empty().updated({k: some(k) for k in range(10)})
    alive = sum(path.stat().st_size for path in tmp_path.iterdir())
    for round in range(200):
        mapping = mapping.updated({round * 7 % 9: some(round)})  # client 9 never again
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) < 4 * alive
    assert_same(some(9), mapping[9])


def test_a_store_is_opened_again_from_its_index(tmp_path, monkeypatch):
    monkeypatch.setattr(segments, "SEGMENT_BYTES", 20_000)
    mapping = ClientStore(CPU, limit=6000, folder=tmp_path).empty().updated({k: some(k) for k in range(4)})
    mapping.sync()
    index = json.loads(json.dumps(mapping.index()))
    later = mapping
    for round in range(50):  # training goes on, and what the index tells of is copied or replaced
        later = later.updated({1: some(1000 + round), 2: some(2000 + round)})
    again = ClientStore(CPU, limit=0, folder=tmp_path).open(index)
    for client in range(4):
        assert_same(some(client), again[client])
    del mapping, later
    gc.collect()
    before = len(list(tmp_path.iterdir()))
    again.store.remove_unused()
    assert len(list(tmp_path.iterdir())) < before
    assert_same(some(3), again.updated({0: some(77)})[3])


def test_only_what_is_new_is_written(tmp_path):
    mapping = ClientStore(CPU, limit=None, folder=tmp_path).empty().updated({k: some(k) for k in range(50)})
    mapping.sync()
    first = sum(path.stat().st_size for path in tmp_path.iterdir())
    after = mapping.updated({3: some(99)})
    after.sync()
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) - first < first / 25
    assert {key for key, place in after.index().items() if mapping.index()[key] != place} == {"3"}


def test_damage_is_noticed(tmp_path):
    mapping = ClientStore(CPU, limit=0, folder=tmp_path).empty().updated({k: some(k) for k in range(3)})
    mapping.sync()
    index = mapping.index()
    (file,) = tmp_path.iterdir()
    whole = file.read_bytes()
    at = index["1"][1] + index["1"][2] // 2
    file.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
    assert_same(some(0), mapping[0])
    with pytest.raises(UserError, match=r"what client 1 keeps is damaged in .*clients-0.bin \(its checksum"):
        mapping[1]
    file.write_bytes(whole[:at])
    with pytest.raises(UserError, match=r"client 2 keeps is damaged in .*too short"):
        mapping[2]
    with pytest.raises(UserError, match="too short"):
        ClientStore(CPU, limit=0, folder=tmp_path).open(index)
    file.unlink()
    with pytest.raises(UserError, match=r"cannot be read from .*clients-0.bin \(No such file"):
        ClientStore(CPU, limit=0, folder=tmp_path).open(index)


@pytest.mark.parametrize(
    "place", [None, [], [0, 0, 10], ["../x", 0, 1, ""], [0, -1, 5, ""], [0, 0, 5, 7], [True, 0, 5, ""]]
)
def test_an_index_that_makes_no_sense_is_refused(tmp_path, place):
    ClientStore(CPU, limit=0, folder=tmp_path).empty().updated({0: some(0)}).sync()
    with pytest.raises(UserError, match="damaged"):
        ClientStore(CPU, limit=0, folder=tmp_path).open({"0": place})


def test_a_full_disk_is_said_in_a_sentence():
    folder = Path("/dev/full/clients")
    with pytest.raises(UserError, match=r"cannot be written to /dev/full/clients \(.*\): make room there"):
        ClientStore(CPU, limit=0, folder=folder).empty().updated({0: some(0)})


def test_files_without_a_folder_leave_nothing_behind(tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    open_before = len(list(Path("/proc/self/fd").iterdir()))
    mapping = ClientStore(CPU, limit=0).empty().updated({0: some(0)})
    assert_same(some(0), mapping[0])
    assert list(tmp_path.iterdir()) == []
    del mapping
    gc.collect()
    assert len(list(Path("/proc/self/fd").iterdir())) == open_before


def test_nothing_kept_needs_no_store():
    assert dict(ClientTensors()) == {}
    assert ClientTensors().index() == {}
    kept = ClientTensors().updated({1: {"a": torch.ones(2)}})
    assert kept[1]["a"].tolist() == [1, 1]


@pytest.fixture(scope="module")
def federation():
    return unskew.federate(unskew.load("digits"), "dirichlet:0.3", clients=8, seed=0)


@pytest.mark.parametrize("engine", ["loop", "pool"])
@pytest.mark.parametrize("method", ["scaffold", "moon", "fedcurv"])
def test_training_from_disk_gives_the_same_bits(federation, tmp_path, engine, method):
    budget = unskew.Budget(
        rounds=4, cohort=3, epochs=1, optimizer_state="kept" if method == "moon" else "fresh"
    )

    def trained(**where):
        trial = unskew.Trial(
            federation,
            "mlp",
            budget,
            engine=engine,
            workers=2,
            evaluation=unskew.Evaluation(every=4),
            **where,
        )
        return unskew.train(trial, getattr(unskew.methods, method)())

    disk = trained(client_memory=0, client_files=tmp_path / "clients")
    memory = trained(client_memory=1)
    assert list((tmp_path / "clients").iterdir())
    assert disk.state.memories.store.used["host"] == 0
    for name, value in memory.weights.params.items():
        assert torch.equal(value, disk.weights.params[name])
    assert list(memory.state.memories) == list(disk.state.memories)
    for client, kept in memory.state.memories.items():
        assert_same(kept, disk.state.memories[client])


def test_a_run_leaves_the_model_and_not_what_its_clients_kept(unskew, tmp_path):
    small = ["run", "--method", "scaffold", "--rounds", "2", "--epochs", "1", "--json", "--quiet"]
    results = [
        json.loads(unskew(*small, "--out", name, "--set", f"client_memory={limit}").out)
        for name, limit in (("disk", 0), ("memory", 1))
    ]
    assert results[0]["weights_sha256"] == results[1]["weights_sha256"]
    assert results[0]["identity"] == results[1]["identity"]
    assert not (tmp_path / "disk" / "clients").exists()


def test_a_run_from_the_command_line_draws_its_clients(unskew, tmp_path):
    data = "synthetic:1,1,clients=100000,cap=60,drawn=true"
    small = ["--rounds", "2", "--epochs", "1", "--cohort", "5", "--probe", "1", "--quiet", "--json"]
    result = json.loads(unskew("run", "--dataset", data, "--skew", "natural", *small, "--out", "drawn").out)
    assert result["clients"] == 100_000
    assert "of the first 1,000 of 100,000" in result["notes"][0]
    assert unskew("report", "drawn", "--out", "page.html").code == 0
    assert "100000 clients, 5 per round" in (tmp_path / "page.html").read_text()
    assert unskew("figure", "predictions", "drawn", "--out", "answers.png").code == 0
    answer = unskew("figure", "updates", "drawn", "--out", "updates.png")
    assert answer.code == 2
    assert "clients were drawn when they were needed" in answer.err
    assert (
        "99900 more clients: drawn when they are needed"
        in unskew("skew", "--dataset", data, "--skew", "natural").out
    )


def test_another_thread_writes_while_training_goes_on(tmp_path, monkeypatch):
    monkeypatch.setattr(segments, "SEGMENT_BYTES", 20_000)
    store = ClientStore(CPU, limit=30_000, folder=tmp_path)
    mappings = [store.empty().updated({k: some(k) for k in range(12)})]
    with ThreadPoolExecutor(1) as other:
        for round in range(1, 25):
            synced = other.submit(mappings[-1].sync)
            mappings.append(mappings[-1].updated({round * 5 % 12: some(100 + round), 0: some(200 + round)}))
            synced.result()
            if round > 3:
                mappings.pop(0)
    for mapping in mappings[:-1]:
        again = ClientStore(CPU, limit=0, folder=tmp_path).open(mapping.index())
        for client, kept in mapping.items():
            assert_same(kept, again[client])
