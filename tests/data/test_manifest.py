"""Partitions as values and as files."""

from __future__ import annotations

import hashlib
import json
import math
import struct
from pathlib import Path

import numpy as np
import pytest
import torch

from unskew.data.dataset import Dataset, Split
from unskew.data.federation import federate
from unskew.data.manifest import load, save
from unskew.data.partition import cite, partition_of
from unskew.errors import UserError


def toy(name: str = "toy", shift: float = 0.0, n: int = 60) -> Dataset:
    labels = torch.arange(n) % 3
    inputs = torch.arange(n, dtype=torch.float32)[:, None] + shift
    return Dataset(name, Split(inputs, labels), Split(inputs[:3], labels[:3]), ("a", "b", "c"))


class TestPartition:
    def test_fields_a_report_needs(self) -> None:
        made = partition_of([[0, 3, 6], [1, 2], [], [4]], toy(n=9), recipe="by hand")
        assert made.clients == 4
        assert made.sizes.tolist() == [3, 2, 0, 1]
        assert made.counts.tolist() == [[3, 0, 0], [0, 1, 1], [0, 0, 0], [0, 1, 0]]
        assert made.vacant.tolist() == [2, 1, 3, 2]
        assert made.entropy.tolist() == pytest.approx([0.0, math.log(2), 0.0, 0.0])
        assert made.dropped == 3
        assert all(mine.dtype == np.int64 for mine in made.indices)

    def test_index_hash_is_what_it_says(self) -> None:
        made = partition_of([[5, 1], [], [3]], toy(), recipe="by hand")
        numbers = struct.pack("<7q", 3, 2, 5, 1, 0, 1, 3)
        assert made.index_sha256 == hashlib.sha256(numbers).hexdigest()

    def test_index_hash_tells_clients_apart(self) -> None:
        one, other = (partition_of(parts, toy(), recipe="") for parts in ([[0, 1], [2]], [[0], [1, 2]]))
        assert one.index_sha256 != other.index_sha256

    @pytest.mark.parametrize(
        ("indices", "message"),
        [
            ([[0, 1], [1]], "gives sample 1 to client 0 and to client 1"),
            ([[0, 0]], "gives client 0 a sample twice"),
            (
                [[0], [60]],
                "gives client 1 the index 60, but the training split of 'toy' has the indices 0..59",
            ),
            ([[-1]], "the index -1"),
            ([[0.5]], "no flat list of integers for client 0"),
            ([[[0]]], "no flat list of integers for client 0"),
            ([], "names no client"),
        ],
    )
    def test_indices_are_checked(self, indices: list[list[int]], message: str) -> None:
        with pytest.raises(UserError) as error:
            partition_of(indices, toy(), recipe="r")
        assert message in str(error.value)


class TestFile:
    def test_round_trip(self, tmp_path: Path) -> None:
        dataset, path = toy(), tmp_path / "p.json"
        made = federate(dataset, "dirichlet:0.1,min_size=8,max_tries=1", 6, 3)
        made.save(path)
        back = federate(dataset, f"file:{path}", 6, 99)
        assert back.partition.index_sha256 == made.partition.index_sha256
        assert back.partition.counts.tolist() == made.partition.counts.tolist()
        assert back.partition.seed == 3
        assert back.partition.tries == made.partition.tries
        assert back.partition.dropped == made.partition.dropped
        assert back.partition.recipe == f"file:{path}"
        assert back.partition.notes == (
            f"Made by {made.partition.recipe} with seed 3.",
            *made.partition.notes,
        )

    def test_saving_what_was_loaded_keeps_its_origin(self, tmp_path: Path) -> None:
        dataset, first, second = toy(), tmp_path / "1.json", tmp_path / "2.json"
        federate(dataset, "iid", 4, 1).save(first)
        federate(dataset, f"file:{first}", 4, 1).save(second)
        assert load(second, dataset).notes == ("Made by iid:truncate=false with seed 1.",)

    def test_content(self, tmp_path: Path) -> None:
        dataset, path = toy(), tmp_path / "p.json"
        made = federate(dataset, "shards:2", 3, 5)
        made.save(path)
        content = json.loads(path.read_text())
        assert content["recipe"] == "shards:2,variant=clean"
        assert content["seed"] == 5
        assert content["clients"] == 3
        assert content["dataset"]["sha256"] == dataset.sha256
        assert content["dataset"]["name"] == "toy"
        assert (content["dataset"]["train"], content["dataset"]["test"]) == (60, 3)
        assert content["index_sha256"] == made.partition.index_sha256
        assert content["counts"] == made.partition.counts.tolist()
        assert content["indices"] == [mine.tolist() for mine in made.partition.indices]
        assert content["unskew"]
        assert [file.name for file in tmp_path.iterdir()] == ["p.json"]

    def test_unknown_seed(self, tmp_path: Path) -> None:
        made = partition_of([[1], [2]], toy(), recipe="flwr:x.json")
        save(made, toy(), tmp_path / "p.json")
        assert load(tmp_path / "p.json", toy()).seed is None

    def test_another_dataset_of_the_same_name(self, tmp_path: Path) -> None:
        federate(toy(), "iid", 4, 1).save(tmp_path / "p.json")
        with pytest.raises(
            UserError, match=r"divides 'toy' \(60 training samples, 3 classes, sha256 .*load the"
        ):
            load(tmp_path / "p.json", toy(shift=1.0))
        with pytest.raises(UserError, match=r"but this is 'other' \(90 training samples"):
            load(tmp_path / "p.json", toy("other", n=90))

    def test_another_number_of_clients(self, tmp_path: Path) -> None:
        federate(toy(), "iid", 4, 1).save(tmp_path / "p.json")
        with pytest.raises(UserError, match="divides among 4 clients, but 5 are asked for"):
            federate(toy(), f"file:{tmp_path / 'p.json'}", 5, 1)
        assert federate(toy(), f"file:{tmp_path / 'p.json'}", 0, 1).clients == 4

    @pytest.mark.parametrize("key", ["recipe", "seed", "counts", "indices", "notes", "index_sha256"])
    def test_an_edited_file_is_refused(self, tmp_path: Path, key: str) -> None:
        path = tmp_path / "p.json"
        federate(toy(), "iid", 4, 1).save(path)
        content = json.loads(path.read_text())
        edits = {
            "recipe": "iid",
            "seed": 2,
            "counts": content["counts"][::-1],
            "indices": content["indices"][::-1],
            "notes": ["perfect"],
            "index_sha256": "0" * 64,
        }
        path.write_text(json.dumps(content | {key: edits[key]}))
        with pytest.raises(UserError, match="was edited after it was saved"):
            load(path, toy())

    def test_broken_files(self, tmp_path: Path) -> None:
        path = tmp_path / "p.json"
        with pytest.raises(UserError, match="there is no partition file"):
            load(path, toy())
        federate(toy(), "iid", 4, 1).save(path)
        whole = path.read_text()
        for text, message in [
            (whole[: len(whole) // 2], "is not a whole partition file"),
            ("", "is not a whole partition file"),
            ("[]", "is not a partition file of this version"),
            (
                whole.replace("unskew-partition-1", "unskew-partition-9"),
                "is not a partition file of this version",
            ),
            (whole.replace('"seed": 1', '"seed": "one"'), "is not a partition file of this version"),
        ]:
            path.write_text(text)
            with pytest.raises(UserError) as error:
                load(path, toy())
            assert message in str(error.value)
        path.write_bytes(b"\xff\xfe\xff")
        with pytest.raises(UserError, match="cannot be read"):
            load(path, toy())

    def test_folders_are_made_and_a_place_that_cannot_be_written_is_said(self, tmp_path: Path) -> None:
        federate(toy(), "iid", 4, 1).save(tmp_path / "new" / "p.json")
        assert (tmp_path / "new" / "p.json").exists()
        with pytest.raises(UserError, match="cannot be saved"):
            federate(toy(), "iid", 4, 1).save(tmp_path / "new" / "p.json" / "inside.json")

    def test_a_failed_save_leaves_the_old_file(self, tmp_path: Path) -> None:
        (tmp_path / "p.json").mkdir()
        with pytest.raises(UserError, match="cannot be saved"):
            federate(toy(), "iid", 4, 1).save(tmp_path / "p.json")
        assert [file.name for file in tmp_path.iterdir()] == ["p.json"]

    def test_cite(self) -> None:
        made = federate(toy(), "iid", 4, 1)
        assert made.cite() == (
            f"iid:truncate=false seed 1 on toy (sha256 {toy().sha256[:12]}…): "
            f"partition {made.partition.index_sha256[:12]}…"
        )
        assert "seed" not in cite(partition_of([[1]], toy(), recipe="flwr:x.json"), toy())
