"""A trained model that reads raw inputs. It has their preparation, as in training, and its classes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from unskew import notebook, record
from unskew.data.arrays import Array, to_array, to_bytes
from unskew.data.columns import CellValue, Columns, InputColumn, Rows, cell_of
from unskew.data.words import Words, tokenise
from unskew.errors import UserError
from unskew.types import Out

Raw = Tensor | Array | Sequence[str] | Sequence[Mapping[str, Any]]
"""Images, rows or texts before any preparation; see `TrainedModel.preprocess`."""


class Core(nn.Module):
    """The part of a model that computes with tensors only: it normalises samples of a dataset and passes them
    through the network."""

    def __init__(self, network: nn.Module, file: record.ModelFile, *, by_batch: bool) -> None:
        super().__init__()
        self.network = network
        self.by_batch = by_batch
        """Whether a batch is normalised by its own statistics, so that its samples are not independent."""
        self.bf16 = file.network.precision == "bf16"
        self.is_image = file.inputs.kind == "image"
        m, s = (torch.tensor(each, dtype=torch.float64).view(-1, 1, 1) for each in (file.mean, file.std))
        one, none = torch.tensor(1 / 255), torch.tensor(0.0)
        self.scale: Tensor
        self.offset: Tensor
        self.register_buffer("scale", (1 / (255 * s)).float() if file.mean else one, persistent=False)
        self.register_buffer("offset", (-m / s).float() if file.mean else none, persistent=False)

    def forward(self, samples: Tensor) -> Out:
        x = samples.float() * self.scale + self.offset if self.is_image else samples
        alone = self.by_batch and not _is_exporting() and len(x) == 1
        if alone:  # one sample has no variance, so it is normalised together with a copy
            x = torch.cat([x, x])
        with torch.autocast(x.device.type, torch.bfloat16) if self.bf16 else nullcontext():
            out = self.network(x)
        features, logits = out.features.float(), out.logits.float()
        return Out(features[:1], logits[:1]) if alone else Out(features, logits)


def _is_exporting() -> bool:
    """Say whether this code is traced for an export. PyTorch 2.6 says so for any other compilation too."""
    is_exporting = getattr(torch.compiler, "is_exporting", torch.compiler.is_compiling)
    return bool(is_exporting())


class TrainedModel(nn.Module):
    """A model that `unskew.load_model` returns. Called with raw inputs, it returns logits [n, classes]."""

    def __init__(
        self,
        core: Core,
        file: record.ModelFile,
        columns: Columns | None,
        words: Words | None,
        client: record.ClientModel | None = None,
        site: str | None = None,
    ) -> None:
        super().__init__()
        self.core = core
        self.model_file, self.columns, self.words, self.client = file, columns, words, client
        self.site = site
        """The site whose rows it reads, if each site has its own scale. None: the rows name their site."""
        self.classes = tuple(file.classes)
        self.eval()

    @property
    def method(self) -> str:
        """The method by which it was trained, in the notation of commands."""
        return self.model_file.method

    @property
    def round(self) -> int:
        """The round after which it was taken, counted from 1."""
        return self.model_file.round

    def __repr__(self) -> str:
        """Describe the model in one line."""
        file, whose = self.model_file, "" if self.client is None else f", client {self.client.client}"
        shape = "x".join(map(str, file.inputs.shape))
        return (
            f"TrainedModel({file.network.name!r} of {file.method!r}{whose}, round {file.round}, reads "
            f"{file.inputs.kind} {shape}, {len(self.classes)} classes)"
        )

    def _repr_html_(self) -> str:
        """Describe the model in a notebook."""
        file = self.model_file
        seed = "" if file.seed is None else f", seed {file.seed}"
        return notebook.facts(
            f"TrainedModel {file.network.name}",
            {
                "trained by": f"{file.method} on {file.dataset}{seed}, round {file.round}",
                "client": "" if self.client is None else str(self.client.client),
                "reads": f"{file.inputs.kind} {'x'.join(map(str, file.inputs.shape))}",
                "parameters": f"{sum(each.numel() for each in self.parameters()):,}",
                f"{len(self.classes):,} classes": notebook.some(self.classes),
            },
        )

    def forward(self, raw: Raw) -> Tensor:
        """Return the logits [n, classes] of raw inputs; see `preprocess`."""
        return self.out(raw).logits

    def probabilities(self, raw: Raw) -> Tensor:
        """Return the probability of every class, [n, classes]."""
        return self.out(raw).logits.softmax(dim=1)

    @torch.no_grad()
    def predict(self, raw: Raw) -> list[str]:
        """Return the name of the most probable class of each input."""
        return [self.classes[at] for at in self(raw).argmax(dim=1).tolist()]

    def out(self, raw: Raw) -> Out:
        """Return the features [n, d] and the logits [n, classes] of raw inputs."""
        samples = self.preprocess(raw)
        out: Out = self.core(samples.to(next(self.core.buffers()).device))
        return out

    def preprocess(self, raw: Raw) -> Tensor:
        """Turn raw inputs into samples like those of the training data, before normalisation by mean and std.

        images: [n, channels, H, W], [n, H, W, channels] or, with one channel, [n, H, W]; whole numbers 0..255
        or floats in 0..1, which become bytes as in training. Their size is that of the model's inputs.
        tables: dictionaries by column name, or an array [n, columns] of numbers in the order of
        `model.columns.names`, NaN for a missing value. They are filled, scaled and turned into features. A
        model that was trained on arrays takes its features as they are.
        texts: a list of texts, or token ids [n, tokens]."""
        match self.model_file.inputs.kind:
            case "image":
                return self._images(raw)
            case "table":
                return self._rows(raw)
            case _:
                return self._texts(raw)

    def _images(self, raw: Raw) -> Tensor:
        shape = tuple(self.model_file.inputs.shape)
        if isinstance(raw, Tensor) and raw.dtype == torch.uint8 and tuple(raw.shape[1:]) == shape:
            return raw
        array = _numbers(raw)
        channels, height, width = shape
        if array.shape[1:] != shape:
            if array.ndim == 4 and array.shape[1:] == (height, width, channels):
                array = array.transpose(0, 3, 1, 2)
            elif array.ndim == 3 and channels == 1 and array.shape[1:] == (height, width):
                array = array[:, None]
            else:
                raise UserError(
                    f"the images are of shape {list(array.shape)}, but the model reads [n, {channels}, "
                    f"{height}, {width}], [n, {height}, {width}, {channels}]"
                    f"{f' or [n, {height}, {width}]' * (channels == 1)}: give such ones."
                )
        return torch.from_numpy(np.ascontiguousarray(to_bytes(array, "images")))

    def _rows(self, raw: Raw) -> Tensor:
        features = self.model_file.inputs.shape[0]
        if self.columns is None:
            array = _numbers(raw)
            if array.shape[1:] != (features,):
                raise UserError(
                    f"the rows are of shape {list(array.shape)}, but the model reads [n, {features}]: give "
                    "as many features as it was trained on."
                )
            return torch.from_numpy(np.ascontiguousarray(array, np.float32))
        return self.features_of(self._cells(raw, self.columns))

    def _cells(self, raw: Raw, columns: Columns) -> Rows:
        names, site_column, sites = columns.names, columns.site, None
        if not isinstance(raw, Tensor | np.ndarray) and all(isinstance(row, Mapping) for row in raw):
            rows = [row for row in raw if isinstance(row, Mapping)]
            for at, row in enumerate(rows):
                if lacking := [name for name in names if name not in row]:
                    raise UserError(f"row {at} lacks the column '{lacking[0]}': give it, or None in it.")
            cells = [[_cell(row[name]) for name in names] for row in rows]
            if (
                columns.scale == "site"
                and site_column is not None
                and all(site_column in row for row in rows)
            ):
                sites = [str(row[site_column]).strip() for row in rows]
        else:
            array = _numbers(raw)
            if array.shape[1:] != (len(names),):
                raise UserError(
                    f"the rows are of shape {list(array.shape)}, but the model reads {len(names)} columns: "
                    "give them in the order of model.columns.names, or each row as a dictionary."
                )
            cells = [[_cell(value) for value in row] for row in array.tolist()]
        if self.site is not None:
            sites = [self.site] * len(cells)
        files, numbers = [Path("the input")] * len(cells), list(range(len(cells)))
        return Rows(names, cells, files, numbers, sites, settled=True)

    @property
    def scaled_columns(self) -> tuple[InputColumn, ...] | None:
        """How columns become features, if this is the same for every row. None if it depends on the row's
        site, or if there are no columns."""
        if self.columns is None or self.columns.scale != "site":
            return None if self.columns is None else self.columns.columns
        return None if self.site is None else self.columns.sites[self.site]

    def features_of(self, rows: Rows) -> Tensor:
        """Return the features of a table's rows, scaled as in training."""
        assert self.columns is not None
        with np.errstate(over="ignore"):
            return torch.from_numpy(self.columns.apply(rows).astype(np.float32))

    def _texts(self, raw: Raw) -> Tensor:
        length = self.model_file.inputs.shape[0]
        if isinstance(raw, str):
            raise UserError("the input is one text: give a list of texts.")
        if not isinstance(raw, Tensor | np.ndarray) and all(isinstance(each, str) for each in raw):
            if self.words is None:
                raise UserError("the model was trained on token ids, whose words are not known: give such.")
            return self.words.encode([tokenise(str(text)) for text in raw])
        array = _numbers(raw)
        most = self.model_file.inputs.vocabulary
        if array.shape[1:] != (length,) or array.dtype.kind not in "iu":
            raise UserError(
                f"the inputs are {array.dtype} of shape {list(array.shape)}: give texts, or token ids "
                f"[n, {length}]."
            )
        if array.size and (array.min() < 0 or array.max() >= most):
            raise UserError(f"there are token ids outside 0..{most - 1}: give those of the model's words.")
        return torch.from_numpy(array.astype(np.int32))


def _numbers(raw: Raw) -> Array:
    array = to_array(raw)  # type: ignore[arg-type]
    if array.dtype.kind not in "buif" or not array.ndim:
        raise UserError(f"the inputs are of type {array.dtype}: give numbers, as an array or a tensor.")
    return array


def _cell(value: object) -> CellValue:
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return ""
    return cell_of(str(value))
