"""CIFAR-10 and CIFAR-100, binary and Python versions."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt

from unskew.data.dataset import Dataset, Split
from unskew.data.pickles import unpickle
from unskew.data.sources.files import check_labels, damaged, find_file, read, to_split

PIXELS = 3 * 32 * 32


def words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


CIFAR10 = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
CIFAR100 = words(
    """apple aquarium_fish baby bear beaver bed bee beetle bicycle bottle bowl boy bridge bus butterfly
    camel can castle caterpillar cattle chair chimpanzee clock cloud cockroach couch crab crocodile cup
    dinosaur dolphin elephant flatfish forest fox girl hamster house kangaroo keyboard lamp lawn_mower
    leopard lion lizard lobster man maple_tree motorcycle mountain mouse mushroom oak_tree orange orchid
    otter palm_tree pear pickup_truck pine_tree plain plate poppy porcupine possum rabbit raccoon ray road
    rocket rose sea seal shark shrew skunk skyscraper snail snake spider squirrel streetcar sunflower
    sweet_pepper table tank telephone television tiger tractor train trout tulip turtle wardrobe whale
    willow_tree wolf woman worm"""
)
CIFAR100_COARSE = words(
    """aquatic_mammals fish flowers food_containers fruit_and_vegetables household_electrical_devices
    household_furniture insects large_carnivores large_man-made_outdoor_things large_natural_outdoor_scenes
    large_omnivores_and_herbivores medium_mammals non-insect_invertebrates people reptiles small_mammals trees
    vehicles_1 vehicles_2"""
)
TRAIN10 = tuple(f"data_batch_{i}" for i in range(1, 6))


def cifar10(folder: Path) -> Dataset:
    train, test = (
        read_batches(folder, names, label_byte=0, label_bytes=1, key="labels", classes=10)
        for names in (TRAIN10, ("test_batch",))
    )
    # Computed over the 50,000 training images; also what FedNTD and FedLMD use.
    return Dataset("cifar10", train, test, CIFAR10, (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616))


def cifar100(folder: Path, *, labels: Literal["fine", "coarse"] = "fine") -> Dataset:
    """Read CIFAR-100. labels: the 100 classes, or the 20 superclasses."""
    classes = CIFAR100 if labels == "fine" else CIFAR100_COARSE
    train, test = (
        read_batches(
            folder,
            (name,),
            label_byte=1 if labels == "fine" else 0,
            label_bytes=2,
            key=f"{labels}_labels",
            classes=len(classes),
        )
        for name in ("train", "test")
    )
    name = "cifar100" if labels == "fine" else "cifar100:coarse"
    # Of the 50,000 training images, as FedNTD and FedLMD print them.
    return Dataset(name, train, test, classes, (0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762))


def read_batches(
    folder: Path, names: tuple[str, ...], *, label_byte: int, label_bytes: int, key: str, classes: int
) -> Split:
    """Read the files of one split, NAME.bin in the binary version and NAME in the Python one."""
    images: list[npt.NDArray[np.uint8]] = []
    labels: list[npt.NDArray[np.int64]] = []
    for name in names:
        path = find_file(folder, f"{name}.bin", name)
        if path.suffix == ".bin":
            records = read_binary(path, label_bytes)
            images.append(records[:, label_bytes:])
            labels.append(check_labels(records[:, label_byte], classes, path))
        else:
            x, y = read_pickle(path, key)
            images.append(x)
            labels.append(check_labels(y, classes, path))
    joined = np.concatenate(images)
    return to_split(joined.reshape(-1, 3, 32, 32), np.concatenate(labels))


def read_binary(path: Path, label_bytes: int) -> npt.NDArray[np.uint8]:
    record = label_bytes + PIXELS
    data = np.frombuffer(read(path), np.uint8)
    if len(data) % record:
        raise damaged(path, f"has {len(data)} bytes, not a multiple of {record}")
    return data.reshape(-1, record)


def read_pickle(path: Path, key: str) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]:
    """Read a batch of the Python version: a dictionary with `data` [n, 3072] and labels under `key`."""
    batch = unpickle(io.BytesIO(read(path)), path)
    if not isinstance(batch, dict):
        raise damaged(path, "does not hold a CIFAR batch")
    data, labels = (batch.get(k.encode(), batch.get(k)) for k in ("data", key))  # Python 2 wrote bytes
    if (
        not isinstance(data, np.ndarray)
        or data.dtype != np.uint8
        or not isinstance(labels, list)
        or data.shape != (len(labels), PIXELS)
        or not all(isinstance(label, int) and 0 <= label < 256 for label in labels)
    ):
        raise damaged(path, f"does not hold 'data' [n, {PIXELS}] and as many '{key}'")
    return np.asarray(data), np.array(labels, np.int64)
