"""The form of the data, which is the same at the server and at every site: classes and inputs."""

from __future__ import annotations

import json
from typing import Any

import torch

from unskew.data.columns import Columns
from unskew.data.dataset import Dataset, Split
from unskew.data.words import Words
from unskew.errors import UserError
from unskew.types import Inputs

VERSION = 1


def form_of(dataset: Dataset) -> str:
    """Return the classes and inputs of a dataset as JSON, without its samples. For a table it includes how
    columns become numbers, and for texts the words and their numbers."""
    inputs = dataset.inputs
    return json.dumps(
        {
            "version": VERSION,
            "classes": list(dataset.classes),
            "kind": inputs.kind,
            "shape": list(inputs.shape),
            "vocabulary": inputs.vocabulary,
            "mean": list(dataset.mean),
            "std": list(dataset.std),
            "columns": None if dataset.columns is None else dataset.columns.to_json(),
            "words": None if dataset.words is None else dataset.words.to_json(),
        },
        sort_keys=True,
    )


def dataset_of_form(text: str, name: str) -> Dataset:
    """Return a dataset of a form, with one sample of zeros for training and testing."""
    try:
        form: dict[str, Any] = json.loads(text)
        if form["version"] != VERSION:
            raise UserError(
                f"the form of the data is of version {form['version']!r}, and this unskew reads {VERSION}: "
                "use the same unskew at the server and at every site."
            )
        inputs = Inputs(form["kind"], tuple(form["shape"]), form["vocabulary"])
        kind = {"image": torch.uint8, "table": torch.float32, "text": torch.int32}[inputs.kind]
        one = Split(torch.zeros(1, *inputs.shape, dtype=kind), torch.zeros(1, dtype=torch.int64))
        return Dataset(
            name=name,
            train=one,
            test=one,
            classes=tuple(form["classes"]),
            mean=tuple(form["mean"]),
            std=tuple(form["std"]),
            vocabulary=inputs.vocabulary,
            columns=None if form["columns"] is None else Columns.from_json(form["columns"]),
            words=None if form["words"] is None else Words.from_json(form["words"]),
        )
    except UserError:
        raise
    except (ValueError, KeyError, TypeError, AttributeError, RuntimeError, RecursionError) as error:
        raise UserError(f"the form of the data cannot be read ({error}): write it again.") from None
