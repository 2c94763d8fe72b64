"""Partitions made by other software: PFLlib, FL-bench, NIID-Bench (and FedML), flwr-datasets.

Pickled files are read without running any code: only plain containers, numbers and NumPy arrays are
accepted."""

from __future__ import annotations

import hashlib
import importlib
import re
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Mapping, Sequence, Sized
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from unskew.data.dataset import Dataset, Split
from unskew.data.images import channel_stats
from unskew.data.manifest import load
from unskew.data.partition import Ints, Partition, integers, partition_of
from unskew.data.plain_data import json_content, npy_content, npz_content, open_regular, pickle_content
from unskew.errors import UserError
from unskew.notation import path_of

Pixels = npt.NDArray[np.uint8]
SampleArray = Pixels | npt.NDArray[np.float32]
Lists = Sequence[npt.ArrayLike]


@dataclass(frozen=True)
class Import:
    """A partition in a file or folder; `kind` is a name in IMPORTERS."""

    kind: str
    path: str

    def __post_init__(self) -> None:
        if not self.path:
            raise UserError(f"{self.kind} needs a path: write {self.kind}:PATH.")

    @property
    def recipe(self) -> str:
        return f"{self.kind}:{self.path}"

    def load(self, dataset: Dataset, clients: int = 0) -> Partition:
        """Load the partition, which must have this number of clients (0: any number)."""
        partition = IMPORTERS[self.kind](path_of(self.path), dataset)
        if clients not in (0, partition.clients):
            raise UserError(
                f"{self.path} divides among {partition.clients} clients, but {clients} are asked for: ask "
                f"for {partition.clients}."
            )
        return partition


def flwr(path: Path, dataset: Dataset) -> Partition:
    """Read a JSON file {partition id: [indices]} into the training split; see also `flwr_partition`."""
    return partition_of(_lists(json_content(path), path), dataset, recipe=f"flwr:{path}")


class FlwrPartitioner(Protocol):
    """The part of a partitioner of flwr-datasets that is used here."""

    dataset: object

    def is_dataset_assigned(self) -> bool: ...
    def load_partition(self, partition_id: int) -> Mapping[str, Iterable[int]]: ...
    @property
    def num_partitions(self) -> int: ...


def flwr_partition(
    partitioner: FlwrPartitioner, dataset: Dataset, label: str = "label", owner: str = "owner"
) -> Partition:
    """Divide the training split by a partitioner of flwr-datasets that has no dataset yet. It is given a
    table with the columns `label` (its `partition_by`) and, if owners are known, `owner`."""
    if partitioner.is_dataset_assigned():
        raise UserError(
            "this flwr partitioner has its data already: give a new one, which divides the dataset here."
        )
    try:
        datasets = importlib.import_module("datasets")
    except ImportError:
        raise UserError(
            "flwr partitioners need the package flwr-datasets: pip install flwr-datasets."
        ) from None
    columns = {"unskew_index": list(range(len(dataset.train))), label: dataset.train.labels.tolist()}
    if dataset.train.owners is not None:
        columns[owner] = dataset.train.owners.tolist()
    partitioner.dataset = datasets.Dataset.from_dict(columns)
    parts = [list(partitioner.load_partition(k)["unskew_index"]) for k in range(partitioner.num_partitions)]
    kind = type(partitioner).__name__
    note = f"Made by the {kind} of flwr-datasets: save it, and the skew file:PATH makes it again."
    return partition_of(parts, dataset, recipe=f"flwr:{kind}", notes=(note,))


def niidbench(path: Path, dataset: Dataset) -> Partition:
    """Read a net_dataidx_map, {client: indices}, as .json, .npy, .npz, .pkl, or as the .txt file that FedML
    reads."""
    readers: dict[str, Callable[[Path], object]] = {
        ".json": json_content,
        ".npy": npy_content,
        ".npz": npz_content,
        ".pkl": pickle_content,
        ".pickle": pickle_content,
        ".txt": _fedml,
    }
    if path.suffix.lower() not in readers:
        raise UserError(f"{path} is none of {', '.join(readers)}: save the net_dataidx_map as one of these.")
    return partition_of(_lists(readers[path.suffix.lower()](path), path), dataset, recipe=f"niidbench:{path}")


def flbench(path: Path, dataset: Dataset) -> Partition:
    """Read the clients' training samples from FL-bench's partition.pkl.

    FL-bench numbers the training and then the test split as one. So its clients also hold samples of the
    official test split. These cannot be trained on here and are left out; `flbench_dataset` keeps FL-bench's
    own split instead."""
    n = len(dataset.train)
    parts = [mine[0] for mine in _read_flbench(path, dataset)]
    foreign = sum(int((mine >= n).sum()) for mine in parts)
    kept = [mine[mine < n] for mine in parts]
    return partition_of(kept, dataset, recipe=f"flbench:{path}", notes=_left_out(foreign, "FL-bench"))


def flbench_dataset(path: Path, dataset: Dataset) -> Dataset:
    """Make the dataset as FL-bench splits it. The clients are the owners (divide it by `natural`) of their
    training samples; their validation and test samples together are the test split."""
    inputs = torch.cat([dataset.train.inputs, dataset.test.inputs])
    labels = torch.cat([dataset.train.labels, dataset.test.labels])
    splits = []
    for parts in zip(*_read_flbench(path, dataset), strict=True):
        chosen, owners = torch.from_numpy(np.concatenate(parts)), _owners(parts)
        splits.append(Split(inputs[chosen], labels[chosen], owners))
    train, test = splits
    name = f"{dataset.name}-flbench"
    return Dataset(name, train, test, dataset.classes, dataset.mean, dataset.std, dataset.vocabulary)


def _left_out(samples: int, software: str) -> tuple[str, ...]:
    if not samples:
        return ()
    return (f"Left out {samples:,} samples of the official test split that {software} trains on.",)


def _owners(parts: Sequence[Sized]) -> Tensor:
    return torch.repeat_interleave(torch.arange(len(parts)), torch.tensor([len(mine) for mine in parts]))


def _read_flbench(path: Path, dataset: Dataset) -> list[tuple[Ints, Ints]]:
    """Read for each client its training samples, and its validation and test samples together, numbered over
    both splits."""
    content = pickle_content(path)
    clients = content.get("data_indices") if isinstance(content, dict) else None
    if not isinstance(clients, list) or not all(
        isinstance(mine, dict) and "train" in mine for mine in clients
    ):
        raise UserError(
            f"{path} is not a partition.pkl of FL-bench: it has no data_indices with train lists."
        )
    total = len(dataset.train) + len(dataset.test)

    seen = 0

    def indices(values: npt.ArrayLike, client: int) -> Ints:
        nonlocal seen
        array = integers(values, f"flbench:{path}", client)
        seen += len(array)
        if seen > total:
            raise UserError(f"{path} names more than the {total} samples of '{dataset.name}': make it again.")
        if array.size and (array.min() < 0 or array.max() >= total):
            raise UserError(
                f"{path} has indices outside 0..{total - 1}, which number the training and test samples of "
                f"'{dataset.name}': use the dataset that was divided."
            )
        return array

    found = []
    for number, mine in enumerate(clients):
        train, val, test = (indices(mine.get(key, []), number) for key in ("train", "val", "test"))
        found.append((train, np.concatenate([val, test])))
    return found


def pfllib(path: Path, dataset: Dataset) -> Partition:
    """Read a folder of PFLlib (train/0.npz, train/1.npz, …).

    PFLlib stores pixels and no indices, so every sample is looked up in the dataset by its pixels and label.
    It mixes the official training and test splits. Test samples cannot be trained on here and are left out;
    `pfllib_dataset` keeps PFLlib's own split instead."""
    found, missing, foreign = [], 0, 0
    train, test = _by_content(dataset.train), _by_content(dataset.test)
    for inputs, labels in _read_pfllib(path, "train"):
        mine = []
        for key in _content(inputs, labels):
            if train[key]:
                mine.append(train[key].popleft())
            elif test[key]:
                test[key].popleft()
                foreign += 1
            else:
                missing += 1
        found.append(mine)
    if missing:
        raise UserError(
            f"{missing:,} samples in {path} are not in '{dataset.name}': load the dataset they were taken "
            "from, or use unskew.data.importers.pfllib_dataset(folder) as the dataset with the skew natural."
        )
    return partition_of(found, dataset, recipe=f"pfllib:{path}", notes=_left_out(foreign, "PFLlib"))


def pfllib_dataset(path: Path, name: str = "pfllib") -> Dataset:
    """Make a dataset of the samples in a folder of PFLlib, in PFLlib's split, with its clients as owners:
    divide it by `natural`."""
    splits, largest = [], 0
    for part in ("train", "test"):
        clients = _read_pfllib(path, part)
        inputs = torch.cat([torch.from_numpy(inputs) for inputs, _ in clients])
        labels = torch.cat([torch.from_numpy(labels) for _, labels in clients])
        largest = max(largest, int(labels.max()))
        splits.append(Split(inputs, labels, _owners([labels for _, labels in clients])))
    train, test = splits
    mean, std = channel_stats(train.inputs.numpy()) if train.inputs.dtype == torch.uint8 else ((), ())
    return Dataset(name, train, test, tuple(map(str, range(largest + 1))), mean, std)


def _read_pfllib(folder: Path, part: str) -> list[tuple[SampleArray, Ints]]:
    """Read the inputs and labels of every client, images as uint8 pixels."""
    files = sorted((folder / part).glob("*.npz"), key=lambda file: (len(file.stem), file.stem))
    if not files or [file.stem for file in files] != [str(k) for k in range(len(files))]:
        raise UserError(
            f"{folder} is no folder of PFLlib: {part}/0.npz, {part}/1.npz and so on are expected in it."
        )
    clients: list[tuple[SampleArray, Ints]] = []
    for file in files:
        content = npz_content(file)
        data = content.get("data", content) if isinstance(content, dict) else content
        data = data.item() if isinstance(data, np.ndarray) and data.ndim == 0 else data
        if not isinstance(data, dict) or not {"x", "y"} <= data.keys():
            raise UserError(f"{file} does not hold x and y as PFLlib's files do: make the folder anew.")
        inputs, labels = np.asarray(data["x"]), np.asarray(data["y"])
        if inputs.dtype.kind not in "fiu" or inputs.ndim not in (2, 4) or labels.shape != inputs.shape[:1]:
            raise UserError(
                f"{file} holds neither images [n, channels, height, width] nor tables [n, features]."
            )
        read = _pixels(inputs, file) if inputs.ndim == 4 else inputs.astype(np.float32)
        clients.append((read, labels.astype(np.int64)))
    return clients


def _pixels(images: npt.NDArray[np.number], file: Path) -> Pixels:
    """Convert images to uint8, from uint8, from 0..1, or from PFLlib's (pixel/255 - 0.5)/0.5."""
    if images.dtype == np.uint8:
        return images.astype(np.uint8)
    signed, scales = images.min(initial=0) < 0, [(255.0, 0.0), (1.0, 0.0)]
    for factor, offset in [(127.5, 127.5), *scales] if signed else [*scales, (127.5, 127.5)]:
        scaled = images.astype(np.float64) * factor + offset
        whole = np.rint(scaled)
        if np.array_equal(np.clip(whole, 0, 255), whole) and np.abs(scaled - whole).max(initial=0) < 0.01:
            return whole.astype(np.uint8)
    raise UserError(f"{file} holds images whose values are no pixels/255 and no (pixels/255 - 0.5)/0.5.")


def _content(inputs: SampleArray, labels: Ints) -> list[bytes]:
    """Return a hash of each sample: of its type, shape, values and label."""
    kind = f"{inputs.dtype}{inputs.shape[1:]}".encode()
    rows = np.ascontiguousarray(inputs).reshape(len(inputs), -1)
    return [
        hashlib.blake2b(
            kind + label.to_bytes(8, "little", signed=True) + row.tobytes(), digest_size=16
        ).digest()
        for row, label in zip(rows, labels.tolist(), strict=True)
    ]


def _by_content(split: Split) -> defaultdict[bytes, deque[int]]:
    """Map each content hash to its positions in the split: several, if samples occur several times."""
    found: defaultdict[bytes, deque[int]] = defaultdict(deque)
    for i, key in enumerate(_content(split.inputs.numpy(), split.labels.numpy())):
        found[key].append(i)
    return found


def _lists(content: object, path: Path) -> Lists:
    """Return one list of indices per client, from a mapping by client number or from a plain sequence."""
    if isinstance(content, np.ndarray) and content.ndim == 0:
        content = content.item()
    if isinstance(content, Mapping):
        try:
            return [content[key] for key in sorted(content, key=int)]
        except (TypeError, ValueError):
            raise UserError(
                f"{path} has clients that are not numbered: use 0, 1, 2 and so on as keys."
            ) from None
    if isinstance(content, list | tuple | np.ndarray):
        return list(content)
    raise UserError(f"{path} does not hold {{client: [indices]}}: save the map itself.")


def _fedml(path: Path) -> object:
    """Read {client: [indices]} as text, with any line breaks."""
    with open_regular(path) as file:
        text = file.read().decode("ascii", errors="replace")
    entry = re.compile(r"(\d+)\s*:\s*\[([\d\s,]*)\]")
    # A number of more than 18 digits is no index, and Python refuses one of thousands of digits.
    if re.search(r"\d{19}", text) or not re.fullmatch(r"[\s{},]*", entry.sub("", text)):
        raise UserError(
            f"{path} is not a net_dataidx_map of FedML: entries such as '0: [4, 7, 9]' are expected."
        )
    return {int(key): [int(i) for i in re.findall(r"\d+", items)] for key, items in entry.findall(text)}


IMPORTERS: Mapping[str, Callable[[Path, Dataset], Partition]] = {
    "file": load,
    "pfllib": pfllib,
    "flbench": flbench,
    "niidbench": niidbench,
    "flwr": flwr,
}
