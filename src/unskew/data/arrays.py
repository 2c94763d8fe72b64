"""The user's own arrays, .npz files and torch datasets as a Dataset."""

from __future__ import annotations

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
from unskew.data.images import channel_stats, pixels
from unskew.errors import UserError, unknown
from unskew.notation import in_order

Array = npt.NDArray[Any]
ImageLayout = Literal["chw", "hwc"]


def from_arrays(
    x: Array | Tensor,
    y: Array | Tensor | Sequence[int] | Sequence[str],
    x_test: Array | Tensor | None = None,
    y_test: Array | Tensor | Sequence[int] | Sequence[str] | None = None,
    *,
    name: str = "arrays",
    classes: Sequence[str] | None = None,
    owners: Array | Tensor | Sequence[int] | Sequence[str] | None = None,
    owners_test: Array | Tensor | Sequence[int] | Sequence[str] | None = None,
    layout: ImageLayout | None = None,
    test_fraction: float = 0.2,
    seed: int = 0,
) -> Dataset:
    """Make a dataset of arrays or tensors.

    x: images [n, H, W], [n, H, W, channels] or [n, channels, H, W] of whole numbers 0..255 or of floats in
       0..1; or a table [n, features] of any numbers, which becomes float32.
    layout: "hwc" or "chw", needed only if neither axis, or both, could be the 1 or 3 channels.
    y: class numbers 0..C-1, or names, which become numbers in alphabetical order.
    classes: the names of the classes; without them every class number up to the largest must occur.
    owners: the owner of each sample (a site, a writer), as a number or name: the skew `natural` makes one
       client of each owner. owners_test: the same for x_test.

    Without x_test and y_test, `test_fraction` of the samples of each class and owner is drawn with `seed` and
    cut off for testing. Mean and std of images are those of the training split.
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
    if owners_test is not None and (owners is None or len(inputs) == 1):
        raise UserError(
            f"'{name}' has owners_test without owners and x_test: give all three, or leave it out."
        )
    owned_by = [None if each is None else owner_texts(to_array(each), name) for each in (owners, owners_test)]
    for mine, have, what in zip(owned_by, labels, ("owners", "owners_test"), strict=False):
        if mine is not None and len(mine) != len(have):
            raise UserError(f"'{name}' has {len(mine)} {what} for {len(have)} samples: give one each.")
    if len(inputs) == 1:
        groups = by_class_and_owner(labels[0], owned_by[0], len(names))
        train, test = stratified(groups, test_fraction, seed)
        inputs = [inputs[0][train], inputs[0][test]]
        labels = [labels[0][train], labels[0][test]]
        owned_by = [None if owned_by[0] is None else owned_by[0][part] for part in (train, test)]
    numbers, owner_names = number_owners(owned_by)
    splits = [
        Split(torch.from_numpy(a), torch.from_numpy(b), None if c is None else torch.from_numpy(c))
        for a, b, c in zip(inputs, labels, numbers, strict=True)
    ]
    mean, std = channel_stats(inputs[0]) if inputs[0].dtype == np.uint8 and len(inputs[0]) else ((), ())
    return Dataset(name, splits[0], splits[1], names, mean, std, owners=owner_names)


def owner_texts(owners: Array, name: str) -> Array:
    """Return the owner of every sample as a text; refuse a sample without one."""
    if owners.ndim != 1 or owners.dtype.kind not in "biuUO":
        raise UserError(
            f"'{name}' has owners of type {owners.dtype}: give a number or a name per sample, [n]."
        )
    for at, each in enumerate(owners.tolist()):
        if is_nothing(each):
            raise UserError(
                f"'{name}' has no owner for sample {at}, but {each!r}: name it, or remove the sample."
            )
    return np.array([str(each).strip() for each in owners.tolist()], np.str_)


def is_nothing(value: object) -> bool:
    """Say whether a value is missing rather than a name: None, NaN, or a text of blanks."""
    return value is None or value != value or (isinstance(value, str) and not value.strip())


def number_owners(
    splits: Sequence[Array | None], order: Sequence[str] = ()
) -> tuple[list[npt.NDArray[np.int64] | None], tuple[str, ...]]:
    """Return the owners of a training and a test split as numbers, and the owners' names.

    Owners of training samples come first, so that owners 0..k-1 all have some. Within each split, those in
    `order` come first, and the others follow by name."""
    known: dict[str, int] = {}
    for split in splits:
        found = set() if split is None else set(split.tolist())
        for each in [*(each for each in order if each in found), *in_order(found - set(order))]:
            known.setdefault(each, len(known))
    return [
        None if split is None else np.array([known[each] for each in split.tolist()], np.int64)
        for split in splits
    ], tuple(known)


def from_npz(
    path: Path, *, layout: ImageLayout | None = None, test_fraction: float = 0.2, seed: int = 0
) -> Dataset:
    """Make a dataset of an .npz file with x_train, y_train, x_test, y_test, or with x, y; see `from_arrays`.
    The file may have the owner of each sample: owners_train (or owners) and owners_test, or owners."""
    path = Path(path)
    arrays = npz_arrays(path)
    for keys in (("x_train", "y_train", "x_test", "y_test"), ("x", "y")):
        if all(key in arrays for key in keys):
            values = [arrays[key] for key in keys]
            owners = arrays.get("owners_train", arrays.get("owners"))
            return from_arrays(
                *values,
                name=path.stem,
                owners=owners,
                owners_test=arrays.get("owners_test"),
                layout=layout,
                test_fraction=test_fraction,
                seed=seed,
            )
    raise UserError(
        f"{path} holds {', '.join(sorted(arrays)) or 'nothing'}: name its arrays x_train, y_train, x_test, "
        f"y_test, or x, y."
    )


def npz_arrays(path: Path) -> dict[str, Array]:
    """Read the arrays of an .npz file by name; raise a UserError if it cannot be read."""
    try:
        check_regular(path)
        return read_npz(path)
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


def from_torch(
    train: torch.utils.data.Dataset[Any],
    test: torch.utils.data.Dataset[Any] | None = None,
    *,
    name: str = "torch",
    classes: Sequence[str] | None = None,
    owners: Array | Tensor | Sequence[int] | Sequence[str] | None = None,
    owners_test: Array | Tensor | Sequence[int] | Sequence[str] | None = None,
    test_fraction: float = 0.2,
    seed: int = 0,
) -> Dataset:
    """Make a dataset of map-style torch datasets of (image or row, class number), which are read once.

    Images are Pillow images, arrays, or tensors [channels, H, W] in 0..1 (as from ToTensor; leave out
    Normalize and random augmentation, which unskew does itself). Rows are one-dimensional.
    owners, owners_test: the owner of each sample of `train` and of `test`; see `from_arrays`."""
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
        owners=owners,
        owners_test=owners_test,
        layout=layout,
        test_fraction=test_fraction,
        seed=seed,
    )


def read_torch(dataset: torch.utils.data.Dataset[Any], name: str) -> tuple[ImageLayout | None, Array, Array]:
    """Read a torch dataset; return the layout of its images, if that is known, the inputs and the labels."""
    if not hasattr(dataset, "__len__"):
        raise UserError(f"'{name}' has no length: give a map-style torch dataset.")
    rows: list[Array] = []
    labels: list[int] = []
    layout: ImageLayout | None = None
    for i in range(len(dataset)):
        try:
            sample, label = dataset[i]
            labels.append(int(label))
            if labels[-1] != label:
                raise ValueError(label)
        except (TypeError, ValueError) as error:
            raise UserError(f"sample {i} of '{name}' is not a pair of input and class number.") from error
        if isinstance(sample, Image.Image):
            layout, row = "chw", pixels(sample)
        elif isinstance(sample, Tensor):
            layout, row = "chw", to_array(sample)
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


def by_class_and_owner(
    labels: npt.NDArray[np.int64], owners: Array | None, classes: int
) -> npt.NDArray[np.int64]:
    """Return the number of each sample's pair of class and owner; without owners, the labels
    themselves."""
    return labels if owners is None else labels + classes * np.unique(owners, return_inverse=True)[1]


def stratified(labels: npt.NDArray[np.int64], fraction: float, seed: int) -> tuple[Array, Array]:
    """Draw a test split; return the indices of the training and of the test samples, in order. Each class
    gives round(fraction · n_c) of its n_c samples for testing: at least one, but it always keeps one."""
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
    if isinstance(values, Tensor):
        values = values.detach().cpu()
        if values.dtype == torch.bfloat16:  # NumPy has no such type
            values = values.float()
        return values.numpy()
    try:
        if isinstance(values, list | tuple) and any(each is None or each != each for each in values):
            return np.array(values, object)  # among names, NumPy would turn None into the name 'None'
        return np.asarray(values)
    except ValueError:
        raise UserError("the samples are not all of one shape: give numbers of one shape.") from None


def to_inputs(x: Array | Tensor, name: str, layout: ImageLayout | None) -> Array:
    """Convert images to uint8 [n, channels, H, W], and tables to float32 [n, features]."""
    array = to_array(x)
    if array.dtype.kind not in "buif":
        raise UserError(f"'{name}' has inputs of type {array.dtype}: give numbers.")
    if array.ndim == 2:
        with np.errstate(over="ignore"):  # overflow gives infinite values, which Dataset reports
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


def guess_layout(shape: tuple[int, ...], name: str) -> ImageLayout:
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


def _whole_numbers(labels: Array) -> Array:
    """Convert an array of Python's whole numbers to int64; return any other array as it is."""
    whole = labels.dtype.kind == "O" and all(type(each) is int for each in labels.flat)
    return labels.astype(np.int64) if whole and labels.size else labels


def to_labels(
    given: list[Array], name: str, classes: Sequence[str] | None
) -> tuple[list[npt.NDArray[np.int64]], tuple[str, ...]]:
    """Convert arrays of labels to class numbers 0..C-1, int64; return them and the names of the classes."""
    given = [_whole_numbers(labels) for labels in given]
    for labels in given:
        if labels.ndim != 1:
            raise UserError(f"'{name}' has labels of shape {labels.shape}: give one class per sample, [n].")
        if labels.dtype.kind == "O" and any(map(is_nothing, labels)):
            bad = next(at for at, each in enumerate(labels) if is_nothing(each))
            raise UserError(
                f"'{name}' has no label for sample {bad}, but {labels[bad]}: name its class, or remove it."
            )
    if all(labels.dtype.kind in "UO" for labels in given):
        texts = [[str(value) for value in labels] for labels in given]
        names = tuple(classes) if classes is not None else tuple(in_order({t for ts in texts for t in ts}))
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
