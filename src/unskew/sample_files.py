"""Samples in files and folders, as a trained model reads them."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor

from unskew.data.arrays import npz_arrays
from unskew.data.bounded import check_regular
from unskew.data.images import SUFFIXES, has_size, list_images, read_images
from unskew.data.names import shortened
from unskew.data.tables import read_like, read_texts
from unskew.errors import UserError
from unskew.trained_model import TrainedModel

READ_AT_ONCE = 1024
"""Images that are read at once: those of a large folder do not all fit into memory."""
TEXT = "text"
"""The column of texts in a table that lacks those of the training data."""


@dataclass(frozen=True, eq=False)
class NamedSamples:
    """Some samples of a file or folder, as the model's `core` reads them, and their names."""

    names: list[str]
    inputs: Tensor


@dataclass(eq=False)
class SampleReader:
    """Reads samples part by part."""

    called: str
    """The word for what names a sample: row, file or sample."""
    parts: Iterator[NamedSamples]
    notes: list[str] = field(default_factory=list)
    """Sentences about the samples. They are complete when all parts have been read."""


def read_samples(model: TrainedModel, path: Path) -> SampleReader:
    """Return a reader of the samples in a file or folder, which has to be of a kind that the model reads."""
    if not path.exists():
        raise UserError(f"{path} does not exist: give the path of a file or folder.")
    kind, suffix = model.model_file.inputs.kind, path.suffix.lower()
    if not path.is_dir():
        check_regular(path)
        if suffix == ".npz":
            return _arrays(model, path)
    if kind == "image" and (path.is_dir() or suffix in SUFFIXES):
        return _images(model, path)
    if kind == "table" and not path.is_dir():
        return _table(model, path)
    if kind == "text" and not path.is_dir():
        return _texts(model, path)
    wanted = {
        "image": "images: give a folder of them, an image or an .npz file",
        "table": "tables: give a .csv, .parquet or .npz file",
        "text": "texts: give a .txt file with a text in each line, a .csv or .parquet file",
    }
    what = "a folder" if path.is_dir() else "a file"
    raise UserError(f"{path} is {what}, and the model reads {wanted[kind]}.")


def _images(model: TrainedModel, path: Path) -> SampleReader:
    channels, height, width = model.model_file.inputs.shape
    if channels not in (1, 3):
        raise UserError(f"the model reads images of {channels} channels: give an .npz file with such ones.")
    files = list_images(path) if path.is_dir() else [path]
    if not files:
        raise UserError(f"{path} holds no images: give another folder.")

    def read() -> Iterator[NamedSamples]:
        resized = 0
        for start in range(0, len(files), READ_AT_ONCE):
            part = files[start : start + READ_AT_ONCE]
            resized += sum(not has_size(file, (width, height)) for file in part)
            images = read_images(part, channels, (width, height))
            names = [file.relative_to(path).as_posix() if path.is_dir() else file.name for file in part]
            yield NamedSamples(names, torch.from_numpy(images))
        if resized:
            reader.notes.append(
                f"{resized} of {len(files)} images were resized to {width}x{height}, the size that the model "
                "reads."
            )

    reader = SampleReader("file", read())
    return reader


def _arrays(model: TrainedModel, path: Path) -> SampleReader:
    arrays = npz_arrays(path)
    name = next((each for each in ("x", "x_test", *arrays) if each in arrays), "")
    if not name or (name not in ("x", "x_test") and len(arrays) > 1):
        raise UserError(f"{path} holds {shortened(sorted(arrays)) or 'nothing'}: name its samples x.")
    if arrays[name].ndim < 2 or not len(arrays[name]):
        raise UserError(f"{path} has '{name}' of shape {list(arrays[name].shape)}: give [n, ...] samples.")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)
            inputs = model.preprocess(arrays[name])
    except UserError as error:
        raise UserError(f"{path}: {error}") from None
    return SampleReader("sample", iter([NamedSamples([str(at) for at in range(len(inputs))], inputs)]))


def _table(model: TrainedModel, path: Path) -> SampleReader:
    columns = model.columns
    if columns is None:
        raise UserError(
            f"the model was trained on arrays, whose columns have no names: give {path.name} as an .npz file "
            "with x."
        )
    table = read_like(path, columns, site=model.site)
    notes, rows = [], table.rows
    used = {*columns.names, *([columns.site] if rows.sites is not None else [])}
    if unused := [name for name in table.header if name not in used]:
        which = "columns" if len(unused) > 1 else "column"
        notes.append(f"the model does not read the {which} {shortened(unused)}.")
    notes += [
        f"'{column.name}' has a category that no training row had in {sum(strange.values())} of {len(rows)} "
        f"rows ({shortened(strange)}): there all its features are 0."
        for column in columns
        if (strange := column.unseen(rows))
    ]
    if columns.scale == "site" and model.site is None:
        others = {site for site in rows.sites or [""] if site not in columns.sites}
        if others:
            named = f"of {shortened(sorted(others))}" if rows.sites is not None else "that name no site"
            notes.append(f"rows {named} are scaled by themselves: what is said of one depends on the others.")
    samples = NamedSamples([str(line) for line in rows.lines], model.features_of(rows))
    return SampleReader("row", iter([samples]), notes)


def _texts(model: TrainedModel, path: Path) -> SampleReader:
    if model.words is None:
        raise UserError("the model was trained on token ids, whose words are not known: give an .npz file.")
    if path.suffix.lower() == ".txt":
        try:
            texts = path.read_text(encoding="utf-8").removesuffix("\n").split("\n")
        except (OSError, UnicodeDecodeError):
            raise UserError(f"{path} is not text: write it as UTF-8.") from None
        if texts == [""]:
            raise UserError(f"{path} is empty: give it a text in each line.")
        rows = [str(at) for at in range(1, len(texts) + 1)]
    else:
        texts, lines = read_texts(path, model.words.columns, TEXT)
        rows = [str(line) for line in lines]
    return SampleReader("row", iter([NamedSamples(rows, model.preprocess(texts))]))
