"""The user's own data as a Dataset."""

from __future__ import annotations

import csv
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image
from torch import Tensor

from unskew.data.bounded import DAMAGED, TooLargeError, check_regular, read_npz
from unskew.data.dataset import Dataset, Split
from unskew.data.images import channel_stats, list_images, pixels, read_images
from unskew.errors import UserError, unknown

Array = npt.NDArray[Any]
Layout = Literal["chw", "hwc"]


def from_arrays(
    x: Array | Tensor,
    y: Array | Tensor | Sequence[int] | Sequence[str],
    x_test: Array | Tensor | None = None,
    y_test: Array | Tensor | Sequence[int] | Sequence[str] | None = None,
    *,
    name: str = "arrays",
    classes: Sequence[str] | None = None,
    layout: Layout | None = None,
    test_fraction: float = 0.2,
    seed: int = 0,
) -> Dataset:
    """Arrays or tensors as a dataset.

    x: images [n, H, W], [n, H, W, channels] or [n, channels, H, W] of whole numbers 0..255 or of floats in
    0..1;
       or a table [n, features] of any numbers, which becomes float32.
    layout: "hwc" or "chw", needed only where neither axis, or both, could be the 1 or 3 channels.
    y: class numbers 0..C-1, or names, which become numbers in alphabetical order.
    classes: their names; without them every class number up to the largest must occur.
    Without x_test, y_test a stratified `test_fraction` of each class is cut off, drawn with `seed`.
    Mean and std of images are those of the training split.
    """
    if (x_test is None) != (y_test is None):
        raise UserError(f"'{name}' has only one of x_test and y_test: give both or none.")
    inputs = [to_inputs(x, name, layout)]
    given = [to_array(y)]
    if x_test is not None and y_test is not None:
        inputs.append(to_inputs(x_test, name, layout))
        given.append(to_array(y_test))
    labels, names = to_labels(given, name, classes)
    if len(inputs[0]) != len(labels[0]):
        raise UserError(f"'{name}' has {len(inputs[0])} samples but {len(labels[0])} labels: give one each.")
    if len(inputs) == 1:
        train, test = stratified(labels[0], test_fraction, seed)
        inputs = [inputs[0][train], inputs[0][test]]
        labels = [labels[0][train], labels[0][test]]
    splits = [Split(torch.from_numpy(a), torch.from_numpy(b)) for a, b in zip(inputs, labels, strict=True)]
    mean, std = channel_stats(inputs[0]) if inputs[0].dtype == np.uint8 and len(inputs[0]) else ((), ())
    return Dataset(name, splits[0], splits[1], names, mean, std)


def from_npz(
    path: Path, *, layout: Layout | None = None, test_fraction: float = 0.2, seed: int = 0
) -> Dataset:
    """An .npz file with x_train, y_train, x_test, y_test, or with x, y; see `from_arrays`."""
    path = Path(path)
    try:
        check_regular(path)
        arrays = read_npz(path)
    except FileNotFoundError:
        raise UserError(f"{path} does not exist: give the path of an .npz file.") from None
    except UserError:
        raise
    except TooLargeError as error:
        raise UserError(f"{path} {error}: give a smaller one.") from None
    except DAMAGED as error:
        raise UserError(
            f"{path} is not a readable .npz file of plain arrays: write it with numpy.savez."
        ) from error
    for keys in (("x_train", "y_train", "x_test", "y_test"), ("x", "y")):
        if all(key in arrays for key in keys):
            values = [arrays[key] for key in keys]
            return from_arrays(*values, name=path.stem, layout=layout, test_fraction=test_fraction, seed=seed)
    raise UserError(
        f"{path} holds {', '.join(sorted(arrays)) or 'nothing'}: name its arrays x_train, y_train, x_test, "
        f"y_test, or x, y."
    )


def from_torch(
    train: torch.utils.data.Dataset[Any],
    test: torch.utils.data.Dataset[Any] | None = None,
    *,
    name: str = "torch",
    classes: Sequence[str] | None = None,
    test_fraction: float = 0.2,
    seed: int = 0,
) -> Dataset:
    """Map-style torch datasets of (image or row, class number), read once.

    Images are Pillow images, arrays, or tensors [channels, H, W] in 0..1 (what ToTensor gives: leave out
    Normalize and random augmentation, which unskew does itself). Rows are one-dimensional."""
    layout, x, y = read_torch(train, name)
    x_test = y_test = None
    if test is not None:
        _, x_test, y_test = read_torch(test, name)
    return from_arrays(
        x,
        y,
        x_test,
        y_test,
        name=name,
        classes=classes,
        layout=layout,
        test_fraction=test_fraction,
        seed=seed,
    )


def read_torch(dataset: torch.utils.data.Dataset[Any], name: str) -> tuple[Layout | None, Array, Array]:
    if not hasattr(dataset, "__len__"):
        raise UserError(f"'{name}' has no length: give a map-style torch dataset.")
    rows: list[Array] = []
    labels: list[int] = []
    layout: Layout | None = None
    for i in range(len(dataset)):
        try:
            sample, label = dataset[i]
            labels.append(int(label))
        except (TypeError, ValueError) as error:
            raise UserError(f"sample {i} of '{name}' is not a pair of input and class number.") from error
        if isinstance(sample, Image.Image):
            layout, row = "chw", pixels(sample)
        elif isinstance(sample, Tensor):
            layout, row = "chw", sample.detach().cpu().numpy()
        else:
            row = np.asarray(sample)
        if rows and row.shape != rows[0].shape:
            raise UserError(
                f"sample {i} of '{name}' has shape {row.shape} but sample 0 {rows[0].shape}: make them alike."
            )
        rows.append(row)
    if not rows:
        raise UserError(f"'{name}' is empty: at least one sample is needed.")
    return layout, np.stack(rows), np.array(labels)


def from_folder(
    path: Path,
    *,
    size: int | None = None,
    channels: int | None = None,
    test_fraction: float = 0.2,
    seed: int = 0,
) -> Dataset:
    """Images in train/CLASS/ and test/CLASS/, or in CLASS/ (or train/CLASS/ alone), from which a stratified
    `test_fraction` is cut. Classes are the folders' names in alphabetical order.

    size: resize every image to size x size; without it all must have one size.
    channels: 1 makes all grey, 3 all RGB; without it all must be grey or all colour. Transparency is
    dropped."""
    path = Path(path)
    if not path.is_dir():
        raise UserError(f"{path} is not a folder: give one with a folder of images per class.")
    if channels not in (None, 1, 3) or (size is not None and size < 1):
        raise UserError("channels is 1 or 3, and size at least 1: give such values or leave them out.")
    parts = [path / "train" if (path / "train").is_dir() else path]
    if parts[0] != path and (path / "test").is_dir():
        parts.append(path / "test")
    classes = class_folders(parts[0])
    if len(parts) == 2 and (extra := sorted(set(class_folders(parts[1])) - set(classes))):
        raise UserError(f"{parts[1] / extra[0]} has no counterpart in {parts[0]}: add training images of it.")
    arrays: list[Array] = []
    for part in parts:
        files, labels = [], []
        for label, name in enumerate(classes):
            images = list_images(part / name) if (part / name).is_dir() else []
            if not images and part == parts[0]:
                raise UserError(f"{part / name} holds no images: add some or remove the folder.")
            files += images
            labels += [label] * len(images)
        if not files:
            raise UserError(f"{part} holds no images: add some or remove the folder.")
        arrays += [read_images(files, channels, size), np.array(labels)]
    return from_arrays(
        *arrays,
        name=path.resolve().name,
        classes=classes,
        layout="chw",
        test_fraction=test_fraction,
        seed=seed,
    )


def class_folders(path: Path) -> list[str]:
    found = sorted(p.name for p in path.iterdir() if p.is_dir() and not p.name.startswith("."))
    if not found:
        raise UserError(f"{path} has no folders: give one with a folder of images per class.")
    return found


def from_csv(
    path: Path,
    *,
    label: str,
    test: Path | None = None,
    standardise: bool = True,
    test_fraction: float = 0.2,
    seed: int = 0,
) -> Dataset:
    """A table with a header row: column `label` holds the classes (any text), all others numbers.

    Classes are the label's values, sorted as numbers where all are whole numbers, else as text.
    test: another file with the same columns; without it a stratified `test_fraction` is cut off.
    standardise: subtract each column's training mean and divide by its training std (constant columns
    become 0)."""
    path = Path(path)
    tables = [read_table(path, label)]
    if test is not None:
        tables.append(read_table(Path(test), label))
        if tables[1][0] != tables[0][0]:
            raise UserError(f"{test} and {path} have different columns: make them alike, in the same order.")
    values = {text for _, _, texts in tables for text in texts}
    whole = all(len(text) < 20 and text.removeprefix("-").isdecimal() for text in values)
    names = sorted(values, key=lambda text: (int(text), text)) if whole else sorted(values)
    number = {text: i for i, text in enumerate(names)}
    rows = [x for _, x, _ in tables]
    labels = [np.array([number[text] for text in texts], np.int64) for _, _, texts in tables]
    if len(rows) == 1:
        train, cut = stratified(labels[0], test_fraction, seed)
        rows, labels = [rows[0][train], rows[0][cut]], [labels[0][train], labels[0][cut]]
    if standardise and len(rows[0]):
        mean, std = rows[0].mean(axis=0), rows[0].std(axis=0)
        rows = [(x - mean) / np.where(std > 0, std, 1) for x in rows]
    return from_arrays(rows[0], labels[0], rows[1], labels[1], name=path.stem, classes=names)


def read_table(path: Path, label: str) -> tuple[list[str], npt.NDArray[np.float64], list[str]]:
    """The names of the feature columns, their values and the label column's texts."""
    features: list[list[float]] = []
    labels: list[str] = []
    try:
        check_regular(path)
        with path.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.reader(file, strict=True)
            header = [name.strip() for name in next(reader, [])]
            if not any(header):
                raise UserError(f"{path} is empty: give it a header and rows.")
            if label not in header:
                raise unknown(f"column of {path}", label, header)
            if len(header) < 2 or len(set(header)) < len(header):
                raise UserError(
                    f"{path} needs a label column, feature columns and no name twice in its header."
                )
            at = header.index(label)
            for number, cells in enumerate(reader, 2):
                if not cells:
                    continue  # a blank line
                if len(cells) != len(header):
                    raise UserError(
                        f"{path} has {len(cells)} cells in row {number} but {len(header)} columns: mend it."
                    )
                labels.append(cells.pop(at).strip())
                if not labels[-1]:
                    raise UserError(
                        f"{path} has no label in row {number}, column '{label}': fill or remove it."
                    )
                features.append([to_number(cell) for cell in cells])
                if not all(map(math.isfinite, features[-1])):
                    bad = next(i for i, value in enumerate(features[-1]) if not math.isfinite(value))
                    column = (header[:at] + header[at + 1 :])[bad]
                    raise UserError(
                        f"{path} has '{cells[bad]}' in row {number}, column '{column}': put a number there."
                    )
    except FileNotFoundError:
        raise UserError(f"{path} does not exist: give the path of a .csv file.") from None
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise UserError(
            f"{path} cannot be read as comma-separated UTF-8 text, save it as such: {error}."
        ) from error
    if not labels:
        raise UserError(f"{path} has no rows below its header: add some.")
    return header[:at] + header[at + 1 :], np.array(features), labels


def to_number(cell: str) -> float:
    try:
        return float(cell)
    except ValueError:
        return math.nan


def stratified(labels: npt.NDArray[np.int64], fraction: float, seed: int) -> tuple[Array, Array]:
    """Indices of a training and a test split, in order. Each class gives round(fraction · n_c) test
    samples, but at least one and never its last one."""
    if not 0 < fraction < 1:
        raise UserError(f"test_fraction is {fraction}: give a value between 0 and 1.")
    if seed < 0:
        raise UserError(f"seed is {seed}: give 0 or more.")
    rng = np.random.default_rng(seed)
    is_test = np.zeros(len(labels), np.bool_)
    for c in np.unique(labels):
        members = np.flatnonzero(labels == c)
        n = min(max(round(fraction * len(members)), 1), len(members) - 1)
        is_test[rng.permutation(members)[:n]] = True
    return np.flatnonzero(~is_test), np.flatnonzero(is_test)


def to_array(values: Array | Tensor | Sequence[int] | Sequence[str]) -> Array:
    return values.detach().cpu().numpy() if isinstance(values, Tensor) else np.asarray(values)


def to_inputs(x: Array | Tensor, name: str, layout: Layout | None) -> Array:
    """Images as uint8 [n, channels, H, W], tables as float32 [n, features]."""
    array = to_array(x)
    if array.dtype.kind not in "buif":
        raise UserError(f"'{name}' has inputs of type {array.dtype}: give numbers.")
    if array.ndim == 2:
        with np.errstate(over="ignore"):  # what overflows becomes infinite, which Dataset reports
            return np.ascontiguousarray(array, np.float32)
    if array.ndim not in (3, 4):
        raise UserError(
            f"'{name}' has inputs of shape {array.shape}: give [n, features], [n, H, W], [n, H, W, channels] "
            f"or [n, channels, H, W]."
        )
    if 0 in array.shape[1:]:
        raise UserError(f"'{name}' has images of shape {array.shape[1:]}, without a pixel: give others.")
    if array.ndim == 3:
        array = array[:, None]
    elif (layout or guess_layout(array.shape, name)) == "hwc":
        array = array.transpose(0, 3, 1, 2)
    return np.ascontiguousarray(to_bytes(array, name))


def guess_layout(shape: tuple[int, ...], name: str) -> Layout:
    first, last = shape[1] in (1, 3), shape[3] in (1, 3)
    if first == last:
        raise UserError(
            f"'{name}' has images of shape {shape[1:]}, and which axis is the channels is not plain: give "
            f"layout='chw' or 'hwc'."
        )
    return "chw" if first else "hwc"


def to_bytes(images: Array, name: str) -> npt.NDArray[np.uint8]:
    if images.dtype == np.uint8 or not images.size:
        return images.astype(np.uint8, copy=False)
    if images.dtype.kind == "f" and np.isnan(images).any():
        bad = int(np.isnan(images).reshape(len(images), -1).any(axis=1).argmax())
        raise UserError(f"'{name}' has a NaN in image {bad}: clean or remove that image.")
    low, high, top = images.min(), images.max(), 1 if images.dtype.kind in "fb" else 255
    if low < 0 or high > top:
        raise UserError(
            f"'{name}' has {images.dtype} images with values {low:g}..{high:g}: give whole numbers 0..255 "
            f"or floats in 0..1, not normalised."
        )
    return (np.rint(images * 255.0) if top == 1 else images).astype(np.uint8)


def to_labels(
    given: list[Array], name: str, classes: Sequence[str] | None
) -> tuple[list[npt.NDArray[np.int64]], tuple[str, ...]]:
    """Label arrays as int64 0..C-1, and the classes' names."""
    for labels in given:
        if labels.ndim != 1:
            raise UserError(f"'{name}' has labels of shape {labels.shape}: give one class per sample, [n].")
    if all(labels.dtype.kind in "UO" for labels in given):
        texts = [[str(value) for value in labels] for labels in given]
        names = tuple(classes) if classes is not None else tuple(sorted({t for ts in texts for t in ts}))
        number = {text: i for i, text in enumerate(names)}
        if strange := sorted({t for ts in texts for t in ts} - set(names)):
            raise unknown(f"class in '{name}'", strange[0], names)
        return [np.array([number[t] for t in ts], np.int64) for ts in texts], names
    if not all(labels.dtype.kind in "biu" for labels in given):
        kinds = " and ".join(str(labels.dtype) for labels in given)
        raise UserError(f"'{name}' has labels of type {kinds}: give whole numbers or names.")
    numbers = [labels.astype(np.int64) for labels in given]
    if classes is not None:
        return numbers, tuple(classes)
    present = np.unique(np.concatenate(numbers))
    if len(present) and present[0] >= 0 and len(present) != present[-1] + 1:
        gap = int(np.setdiff1d(np.arange(len(present)), present)[0])
        raise UserError(
            f"no sample of '{name}' has label {gap}: number the classes 0, 1, … or give `classes`."
        )
    return numbers, tuple(str(c) for c in range(len(present)))
