"""Partitions made by other software, in the files that it writes."""

from __future__ import annotations

import json
import os
import pickle
from collections import OrderedDict, defaultdict
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch

from unskew.data.dataset import Dataset, Split
from unskew.data.federation import federate
from unskew.data.importers import flbench_dataset, flwr_partition, pfllib_dataset
from unskew.data.pickles import unpickle
from unskew.errors import UserError

# What DirichletPartitioner(4, "label", 0.5, min_partition_size=5) of flwr-datasets 0.6.1 makes of the labels
# 0, 1, 2, 3, 0, 1, … of 60 samples.
FLWR = {
    "0": [12, 8, 2, 6, 4, 0],
    "1": [19, 28, 14, 24, 10, 27, 16, 1, 11, 7, 35, 23, 36, 15, 39, 32, 20, 3, 31, 5],
    "2": [26, 42, 13, 22, 18, 40, 29, 50, 21, 38, 25, 34, 43, 30, 46, 9, 17, 33],
    "3": [45, 57, 47, 41, 48, 53, 44, 37, 55, 52, 59, 56, 58, 51, 49, 54],
}
MAP = {0: [5, 1, 9], 1: [2], 2: [0, 7]}


def images(train: int = 60, test: int = 20, classes: int = 4) -> Dataset:
    rng = np.random.RandomState(0)
    pixels = torch.from_numpy(rng.randint(0, 256, (train + test, 1, 4, 4), dtype=np.uint8))
    labels = torch.arange(train + test) % classes
    names = tuple(map(str, range(classes)))
    return Dataset("toy", Split(pixels[:train], labels[:train]), Split(pixels[train:], labels[train:]), names)


def held(skew: str, dataset: Dataset | None = None) -> list[list[int]]:
    made = federate(dataset or images(), skew, 0, 1).partition
    assert made.seed is None
    return [mine.tolist() for mine in made.indices]


class TestFlwr:
    def test_json(self, tmp_path: Path) -> None:
        path = tmp_path / "flwr.json"
        path.write_text(json.dumps(FLWR))
        made = federate(images(), f"flwr:{path}", 4, 1).partition
        assert [mine.tolist() for mine in made.indices] == list(FLWR.values())
        assert made.counts.tolist() == [[4, 0, 2, 0], [6, 2, 2, 10], [1, 7, 9, 1], [4, 6, 2, 4]]
        assert made.recipe == f"flwr:{path}"

    def test_clients_are_in_the_order_of_their_numbers(self, tmp_path: Path) -> None:
        path = tmp_path / "flwr.json"
        path.write_text(json.dumps({str(k): [k] for k in (10, 2, 0, 1)}))
        assert held(f"flwr:{path}") == [[0], [1], [2], [10]]

    def test_bad_files(self, tmp_path: Path) -> None:
        path = tmp_path / "flwr.json"
        for text, message in [
            ("{", "not valid JSON"),
            ('"x"', "does not hold {client: [indices]}"),
            ('{"anna": [1]}', "clients that are not numbered"),
            ('{"0": [1], "1": [1]}', "gives sample 1 to client 0 and to client 1"),
            ('{"0": [1.5]}', "no flat list of integers"),
            ('{"0": [100]}', "has the indices 0..59"),
        ]:
            path.write_text(text)
            with pytest.raises(UserError) as error:
                held(f"flwr:{path}")
            assert message in str(error.value)
        with pytest.raises(UserError, match="cannot be read: No such file"):
            held(f"flwr:{tmp_path / 'none.json'}")

    @pytest.mark.filterwarnings("ignore")
    def test_partitioner_objects(self) -> None:
        partitioners = pytest.importorskip("flwr_datasets.partitioner")
        partitioner = partitioners.DirichletPartitioner(4, "label", 0.5, min_partition_size=5)
        made = flwr_partition(partitioner, images())
        assert sorted(np.concatenate(made.indices).tolist()) == list(range(60))
        with pytest.raises(UserError, match="has its data already"):
            flwr_partition(partitioner, images())

    def test_partitioner_without_the_package(self, monkeypatch: pytest.MonkeyPatch) -> None:
        class Unassigned:
            dataset: object = None
            num_partitions = 1

            def is_dataset_assigned(self) -> bool:
                return False

            def load_partition(self, partition_id: int) -> dict[str, list[int]]:
                raise AssertionError

        monkeypatch.setitem(__import__("sys").modules, "datasets", None)
        with pytest.raises(UserError, match="pip install flwr-datasets"):
            flwr_partition(Unassigned(), images())


class TestNiidBench:
    def write(self, path: Path) -> None:
        arrays = {k: np.array(v) for k, v in MAP.items()}
        match path.suffix:
            case ".json":
                path.write_text(json.dumps(MAP))
            case ".pkl":
                path.write_bytes(pickle.dumps(arrays))
            case ".npy":
                np.save(path, np.array(arrays), allow_pickle=True)
            case ".npz":
                np.savez(path, **{str(k): v for k, v in arrays.items()})
            case ".txt":  # as in FedML's data_preprocessing folders
                lines = [f"{k}: [\n{', '.join(map(str, v))}\n]" for k, v in MAP.items()]
                path.write_text("{\n" + "\n".join(lines) + "\n}\n")

    @pytest.mark.parametrize("suffix", [".json", ".pkl", ".npy", ".npz", ".txt"])
    def test_formats(self, tmp_path: Path, suffix: str) -> None:
        path = tmp_path / f"net_dataidx_map{suffix}"
        self.write(path)
        assert held(f"niidbench:{path}") == list(MAP.values())

    @pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
    @pytest.mark.parametrize(
        "content",
        [
            MAP,
            OrderedDict(MAP),
            defaultdict(list, MAP),
            {k: np.array(v, dtype=np.int32) for k, v in MAP.items()},
            {np.int64(k): [np.int64(i) for i in v] for k, v in MAP.items()},
            list(MAP.values()),
        ],
        ids=["dict", "ordered", "default", "arrays", "scalars", "lists"],
    )
    def test_pickles_of_every_protocol(self, tmp_path: Path, content: object, protocol: int) -> None:
        path = tmp_path / "map.pkl"
        path.write_bytes(pickle.dumps(content, protocol))
        assert held(f"niidbench:{path}") == list(MAP.values())

    def test_pickles_from_numpy_1(self, tmp_path: Path) -> None:
        path = tmp_path / "map.pkl"
        written = pickle.dumps({0: np.array([4, 2])}, 2)
        path.write_bytes(written.replace(b"numpy._core.multiarray", b"numpy.core.multiarray"))
        assert held(f"niidbench:{path}") == [[4, 2]]

    def test_pickles_run_no_code(self, tmp_path: Path) -> None:
        class Hostile:
            def __reduce__(self) -> tuple[object, tuple[str]]:
                return os.mkdir, (str(tmp_path / "made"),)

        for name, write in [
            ("map.pkl", lambda path: path.write_bytes(pickle.dumps({0: Hostile()}))),
            ("map.npy", lambda path: np.save(path, np.array({0: Hostile()}), allow_pickle=True)),
            ("map.npz", lambda path: np.savez(path, data=np.array({0: Hostile()}))),
        ]:
            write(tmp_path / name)
            with pytest.raises(UserError, match="is refused: it asks for"):
                held(f"niidbench:{tmp_path / name}")
        assert not (tmp_path / "made").exists()

    @pytest.mark.parametrize(
        "state",
        [
            (1, (3,), np.dtype(np.int64), False, b"12345678"),
            (1, (-1,), np.dtype(np.int64), False, b""),
            (1, (1 << 62, 4), np.dtype(np.int64), False, b""),
            (1, (1,), np.dtype(object), False, b"12345678"),
            (1, (1,), np.dtype(np.int64), False, [7]),
            (1, (1,), np.dtype([("a", np.int64)]), False, b"12345678"),
            (1, (1,), np.dtype("M8[s]"), False, b"12345678"),
        ],
    )
    def test_an_array_whose_state_does_not_fit_is_refused(
        self, tmp_path: Path, state: tuple[object, ...]
    ) -> None:
        class Claims:
            def __reduce__(self) -> tuple[object, ...]:
                rebuild, arguments, _ = np.zeros(1).__reduce__()
                return rebuild, arguments, state

        path = tmp_path / "map.pkl"
        path.write_bytes(pickle.dumps({0: Claims()}, 2))
        with pytest.raises(UserError, match="is not a readable pickle"):
            held(f"niidbench:{path}")

    @pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
    def test_arrays_of_every_layout_come_as_they_were(self, tmp_path: Path, protocol: int) -> None:
        path = tmp_path / "map.pkl"
        rectangle = np.array([[4, 2], [1, 5]], dtype=">i4")
        for rows in (rectangle, rectangle.T, np.array([[True], [False]]), np.array(2.5), np.zeros((0, 3))):
            path.write_bytes(pickle.dumps(rows, protocol))
            with path.open("rb") as file:
                read = unpickle(file, path)
            assert isinstance(read, np.ndarray)
            assert read.tolist() == rows.tolist()
            trusted = pickle.loads(path.read_bytes())
            assert (read.dtype, read.shape) == (trusted.dtype, trusted.shape)

    @pytest.mark.parametrize("suffix", [".pkl", ".npy", ".npz", ".txt", ".json"])
    def test_truncated_files(self, tmp_path: Path, suffix: str) -> None:
        path = tmp_path / f"map{suffix}"
        self.write(path)
        path.write_bytes(path.read_bytes()[:-20])
        with pytest.raises(UserError):
            held(f"niidbench:{path}")

    def test_unknown_format(self, tmp_path: Path) -> None:
        with pytest.raises(UserError, match=r"none of \.json, \.npy"):
            held(f"niidbench:{tmp_path / 'map.csv'}")


class TestFlBench:
    def write(self, folder: Path, clients: Sequence[dict[str, object]]) -> Path:
        path = folder / "partition.pkl"
        number = list(range(len(clients)))
        separation = {"train": number, "val": number, "test": number, "total": len(clients)}
        path.write_bytes(pickle.dumps({"separation": separation, "data_indices": list(clients)}))
        return path

    def client(self, train: list[int], test: list[int]) -> dict[str, object]:
        return {"train": np.array(train), "val": np.array([], dtype=np.int64), "test": np.array(test)}

    def test_training_samples_only(self, tmp_path: Path) -> None:
        path = self.write(tmp_path, [self.client([3, 61, 1], [5, 62]), self.client([70, 0], [2])])
        made = federate(images(), f"flbench:{path}", 2, 1).partition
        assert [mine.tolist() for mine in made.indices] == [[3, 1], [0]]
        assert made.notes == ("Left out 2 samples of the official test split that FL-bench trains on.",)

    def test_older_files_without_validation(self, tmp_path: Path) -> None:
        assert held(f"flbench:{self.write(tmp_path, [{'train': [1, 2], 'test': []}])}") == [[1, 2]]

    def test_as_a_dataset(self, tmp_path: Path) -> None:
        base = images()
        path = self.write(tmp_path, [self.client([3, 61, 1], [5, 62]), self.client([70, 0], [2])])
        own = flbench_dataset(path, base)
        both = torch.cat([base.train.inputs, base.test.inputs])
        assert torch.equal(own.train.inputs, both[[3, 61, 1, 70, 0]])
        assert torch.equal(own.test.inputs, both[[5, 62, 2]])
        assert own.test.owners is not None
        assert own.test.owners.tolist() == [0, 0, 1]
        assert federate(own, "natural", 2, 1).sizes.tolist() == [3, 2]

    def test_another_dataset(self, tmp_path: Path) -> None:
        path = self.write(tmp_path, [self.client([3, 80], [])])
        with pytest.raises(UserError, match=r"outside 0\.\.79"):
            held(f"flbench:{path}")

    def test_another_pickle(self, tmp_path: Path) -> None:
        path = tmp_path / "partition.pkl"
        path.write_bytes(pickle.dumps({"data_indices": [[1, 2]]}))
        with pytest.raises(UserError, match=r"is not a partition\.pkl of FL-bench"):
            held(f"flbench:{path}")


class TestPfllib:
    CLIENTS = ([4, 61, 7], [0, 1, 2, 3])
    TESTS = ([8, 62], [9])

    def write(self, folder: Path, dataset: Dataset, scale: str = "pfllib") -> Path:
        """Write files as PFLlib does: splits merged, pixels as (x/255 - 0.5)/0.5, a dictionary per file."""
        pixels = torch.cat([dataset.train.inputs, dataset.test.inputs]).float()
        scaled = {
            "pfllib": (pixels / 255 - 0.5) / 0.5,
            "unit": pixels / 255,
            "raw": pixels,
            "odd": pixels / 3,
        }[scale]
        labels = torch.cat([dataset.train.labels, dataset.test.labels]).numpy()
        for part, clients in (("train", self.CLIENTS), ("test", self.TESTS)):
            (folder / part).mkdir()
            for k, mine in enumerate(clients):
                with (folder / part / f"{k}.npz").open("wb") as file:
                    np.savez_compressed(file, data=np.array({"x": scaled.numpy()[mine], "y": labels[mine]}))
        return folder

    @pytest.mark.parametrize("scale", ["pfllib", "unit", "raw"])
    def test_samples_are_found_by_their_pixels(self, tmp_path: Path, scale: str) -> None:
        folder = self.write(tmp_path, images(), scale)
        made = federate(images(), f"pfllib:{folder}", 2, 1).partition
        assert [mine.tolist() for mine in made.indices] == [[4, 7], [0, 1, 2, 3]]
        assert made.notes == ("Left out 1 samples of the official test split that PFLlib trains on.",)

    def test_equal_images_are_given_out_once_each(self, tmp_path: Path) -> None:
        dataset = images()
        dataset.train.inputs[:12] = 0
        folder = self.write(tmp_path, dataset)
        made = federate(dataset, f"pfllib:{folder}", 2, 1).partition
        assert made.sizes.tolist() == [2, 4]
        assert made.counts.tolist() == [[1, 0, 0, 1], [1, 1, 1, 1]]

    def test_other_pixels(self, tmp_path: Path) -> None:
        folder = self.write(tmp_path, images())
        other = images()
        other.train.inputs[0] ^= 1
        with pytest.raises(UserError, match=r"1 samples in .* are not in 'toy': .*pfllib_dataset\(folder\)"):
            federate(other, f"pfllib:{folder}", 2, 1)

    def test_as_a_dataset(self, tmp_path: Path) -> None:
        base = images()
        own = pfllib_dataset(self.write(tmp_path, base))
        both = torch.cat([base.train.inputs, base.test.inputs])
        assert torch.equal(own.train.inputs, both[[4, 61, 7, 0, 1, 2, 3]])
        assert torch.equal(own.test.inputs, both[[8, 62, 9]])
        assert own.classes == ("0", "1", "2", "3")
        assert federate(own, "natural", 2, 1).sizes.tolist() == [3, 4]

    def test_bad_folders(self, tmp_path: Path) -> None:
        with pytest.raises(UserError, match="is no folder of PFLlib"):
            held(f"pfllib:{tmp_path}")
        folder = self.write(tmp_path, images(), "odd")
        with pytest.raises(UserError, match="values are no pixels/255"):
            held(f"pfllib:{folder}")
        np.savez(folder / "train" / "0.npz", data=np.array({"x": 1}))
        with pytest.raises(UserError, match="does not hold x and y"):
            held(f"pfllib:{folder}")
        (folder / "train" / "0.npz").unlink()
        with pytest.raises(UserError, match="is no folder of PFLlib"):
            held(f"pfllib:{folder}")
