"""Small files in the publishers' layouts."""

from __future__ import annotations

import bz2
import csv
import gzip
import json
import pickle
import struct
from pathlib import Path

import numpy as np
import numpy.typing as npt
from PIL import Image
from scipy.io import savemat

Bytes = npt.NDArray[np.uint8]
CIFAR10 = ["airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"]


def noise(seed: int, *shape: int) -> Bytes:
    return np.random.default_rng(seed).integers(0, 256, shape, np.uint8)


def idx(array: Bytes) -> bytes:
    return bytes((0, 0, 8, array.ndim)) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()


def write_idx_pair(
    folder: Path, stem: str, images: Bytes, labels: Bytes, *, gz: bool = True, dot: str = "-"
) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for kind, ndim, array in (("images", 3, images), ("labels", 1, labels)):
        data = idx(array)
        name = f"{stem}-{kind}{dot}idx{ndim}-ubyte"
        (folder / (f"{name}.gz" if gz else name)).write_bytes(gzip.compress(data) if gz else data)


def write_mnist(folder: Path, n: int = 20, *, gz: bool = True, dot: str = "-") -> tuple[Bytes, Bytes]:
    images, labels = noise(1, n, 28, 28), np.arange(n, dtype=np.uint8) % 10
    write_idx_pair(folder, "train", images, labels, gz=gz, dot=dot)
    write_idx_pair(folder, "t10k", images[:10], labels[:10], gz=gz, dot=dot)
    return images, labels


def write_emnist(folder: Path, part: str, upright: Bytes, labels: Bytes) -> None:
    """EMNIST's files hold every image transposed."""
    for which in ("train", "test"):
        write_idx_pair(folder, f"emnist-{part}-{which}", upright.transpose(0, 2, 1), labels)


def python2_pickle(value: object) -> bytes:
    """Pickle protocol 2 as Python 2 and numpy 1 wrote it: byte strings, and arrays through `numpy.core`."""

    def put(value: object) -> bytes:
        if isinstance(value, dict):
            return b"}(" + b"".join(put(part) for pair in value.items() for part in pair) + b"u"
        if isinstance(value, list):
            return b"](" + b"".join(map(put, value)) + b"e"
        if isinstance(value, str):
            return put(value.encode())
        if isinstance(value, bytes):
            return b"T" + struct.pack("<i", len(value)) + value
        if isinstance(value, int):
            return b"J" + struct.pack("<i", value)
        assert isinstance(value, np.ndarray)
        rebuild = (
            b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\n"
            + put(0)
            + b"\x85"
            + put(b"b")
            + b"\x87R"
        )
        dtype = b"cnumpy\ndtype\n" + put(b"u1") + put(0) + put(1) + b"\x87R"
        dtype += b"(" + put(3) + put(b"|") + b"NNN" + put(-1) + put(-1) + put(0) + b"tb"
        shape = b"(" + b"".join(put(int(n)) for n in value.shape) + b"t"
        return rebuild + b"(" + put(1) + shape + dtype + b"\x89" + put(value.tobytes()) + b"tb"

    return b"\x80\x02" + put(value) + b"."


def write_cifar10(folder: Path, version: str = "bin", n: int = 4) -> tuple[Bytes, Bytes]:
    """Five training batches of n records and a test batch; returns the training arrays."""
    folder.mkdir(parents=True, exist_ok=True)
    images, labels = noise(2, 5 * n, 3072), (np.arange(5 * n) % 10).astype(np.uint8)
    batches = [(f"data_batch_{i + 1}", slice(i * n, (i + 1) * n)) for i in range(5)]
    for name, part in [*batches, ("test_batch", slice(0, 2))]:
        x, y = images[part], labels[part]
        if version == "bin":
            (folder / f"{name}.bin").write_bytes(np.concatenate([y[:, None], x], axis=1).tobytes())
            continue
        batch = {"batch_label": name, "labels": y.tolist(), "data": x, "filenames": [f"{i}.png" for i in y]}
        old = version == "python2"
        (folder / name).write_bytes(python2_pickle(batch) if old else pickle.dumps(batch, protocol=4))
    return images.reshape(-1, 3, 32, 32), labels


def write_cifar100(folder: Path, version: str = "bin", n: int = 100) -> tuple[Bytes, Bytes, Bytes]:
    """Returns the training images, fine and coarse labels."""
    folder.mkdir(parents=True, exist_ok=True)
    images, fine = noise(3, n, 3072), np.arange(n, dtype=np.uint8) % 100
    coarse = (fine % 20).astype(np.uint8)
    for name, part in (("train", slice(0, n)), ("test", slice(0, 3))):
        x, f, c = images[part], fine[part], coarse[part]
        if version == "bin":
            record = np.concatenate([c[:, None], f[:, None], x], axis=1)
            (folder / f"{name}.bin").write_bytes(record.tobytes())
        else:
            batch = {"data": x, "fine_labels": f.tolist(), "coarse_labels": c.tolist(), "filenames": []}
            (folder / name).write_bytes(python2_pickle(batch))
    return images.reshape(-1, 3, 32, 32), fine, coarse


def write_mat(path: Path, labels: list[int], seed: int = 4) -> Bytes:
    """SVHN's layout; returns the images as [n, 3, 32, 32]."""
    path.parent.mkdir(parents=True, exist_ok=True)
    images = noise(seed, len(labels), 3, 32, 32)
    y = np.array(labels, np.uint8)[:, None]
    savemat(path, {"X": images.transpose(2, 3, 1, 0), "y": y}, do_compression=True)
    return images


def write_image(path: Path, pixels: Bytes) -> None:
    """pixels: [H, W] or [H, W, 3]."""
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path)


TINY = {"n02": "goldfish, Carassius auratus", "n01": "crane", "n03": "crane, derrick"}


def write_tiny_imagenet(folder: Path, *, rearranged: bool = False) -> None:
    """Three classes; image i of class c is filled with the value 40 c + i, which JPEG keeps nearly."""
    rows = []
    for c, wnid in enumerate(sorted(TINY)):
        for i in range(2):
            flat = np.full((64, 64, 3), 40 * c + i, np.uint8)
            write_image(folder / "train" / wnid / "images" / f"{wnid}_{i}.JPEG", flat)
        name = f"val_{2 - c}.JPEG"
        rows.append(f"{name}\t{wnid}\t0\t0\t62\t62")
        flat = np.full((64, 64), 40 * c + 9, np.uint8)  # some of the published images are grey
        write_image(folder / "val" / (f"{wnid}/{name}" if rearranged else f"images/{name}"), flat)
    if not rearranged:
        (folder / "val" / "val_annotations.txt").write_text("\n".join(rows) + "\n")
    (folder / "words.txt").write_text("".join(f"{wnid}\t{words}\n" for wnid, words in TINY.items()))


def write_cinic10(folder: Path) -> None:
    for part, base in (("train", 0), ("valid", 100), ("test", 200)):
        for c, name in enumerate(CIFAR10):
            write_image(folder / part / name / f"{c}.png", np.full((32, 32, 3), base + c, np.uint8))


def leaf_user(n: int, labels: list[int], seed: int) -> dict[str, list[object]]:
    images = noise(seed, n, 784) / 255
    return {"x": images.tolist(), "y": [labels[i % len(labels)] for i in range(n)]}


def write_leaf(path: Path, users: dict[str, dict[str, list[object]]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    sizes = [len(data["y"]) for data in users.values()]
    path.write_text(json.dumps({"users": list(users), "num_samples": sizes, "user_data": users}))


def write_usps_libsvm(folder: Path) -> Bytes:
    """Returns the pixels that the values stand for, [n, 16, 16]."""
    folder.mkdir(parents=True, exist_ok=True)
    pixels = noise(5, 10, 256)
    values = pixels / 255 * 2 - 1
    values[0, 7] = 0  # not written: LIBSVM leaves zeros out
    lines = [
        " ".join([str(i + 1), *(f"{j + 1}:{v:.6f}" for j, v in enumerate(row) if v != 0)])
        for i, row in enumerate(values)
    ]
    pixels[0, 7] = 128
    for name in ("usps.bz2", "usps.t.bz2"):
        (folder / name).write_bytes(bz2.compress("\n".join([*lines, ""]).encode()))
    return pixels.reshape(-1, 16, 16)


def write_ag_news(folder: Path, train: list[tuple[int, str, str]], test: list[tuple[int, str, str]]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, rows in (("train", train), ("test", test)):
        with (folder / f"{name}.csv").open("w", newline="") as file:
            csv.writer(file, quoting=csv.QUOTE_ALL, lineterminator="\n").writerows(rows)
