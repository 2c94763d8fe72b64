"""A model that was trained, for raw inputs: with what was learnt to prepare them, and with its classes."""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load as load_tensors
from torch import Tensor, nn

from unskew import models, notebook, record
from unskew.data.arrays import Array, to_array, to_bytes
from unskew.data.bounded import check_regular
from unskew.data.columns import CellValue, Columns, InputColumn, Rows, cell_of
from unskew.data.words import Words, tokenise
from unskew.errors import UserError, unknown
from unskew.parts.architecture import MakeModule, rebuild
from unskew.types import Inputs, Out, Tensors
from unskew.user_code import is_code

DESCRIPTION, WEIGHTS = "model.json", "model.safetensors"
VERSION = 1

Raw = Tensor | Array | Sequence[str] | Sequence[Mapping[str, Any]]
"""Images, rows or texts as they are before anything was done to them; see `TrainedModel.preprocess`."""


class Core(nn.Module):
    """The part of a model that is all tensors: samples as a dataset holds them, normalised, and through the
    network."""

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
        if alone:  # one sample has no statistics: beside its copy it has
            x = torch.cat([x, x])
        with torch.autocast(x.device.type, torch.bfloat16) if self.bf16 else nullcontext():
            out = self.network(x)
        features, logits = out.features.float(), out.logits.float()
        return Out(features[:1], logits[:1]) if alone else Out(features, logits)


def _is_exporting() -> bool:
    """Whether this is traced for an export. PyTorch 2.6 does not tell that from any other compilation."""
    ask = getattr(torch.compiler, "is_exporting", torch.compiler.is_compiling)
    return bool(ask())


class TrainedModel(nn.Module):
    """What `unskew.load_model` returns. Called with raw inputs it gives logits [n, classes]."""

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
        """The site whose rows it reads, where each site has a scale of its own; None: the rows say it."""
        self.classes = tuple(file.classes)
        self.eval()

    @property
    def method(self) -> str:
        """By which it was trained, as it can be typed."""
        return self.model_file.method

    @property
    def round(self) -> int:
        """After which round it was this, counted from 1."""
        return self.model_file.round

    def __repr__(self) -> str:
        """What it is, in one line."""
        file, whose = self.model_file, "" if self.client is None else f", client {self.client.client}"
        shape = "x".join(map(str, file.inputs.shape))
        return (
            f"TrainedModel({file.network.name!r} of {file.method!r}{whose}, round {file.round}, reads "
            f"{file.inputs.kind} {shape}, {len(self.classes)} classes)"
        )

    def _repr_html_(self) -> str:
        """What it is, for a notebook."""
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
        """The logits [n, classes] of raw inputs; see `preprocess`."""
        return self.out(raw).logits

    def probabilities(self, raw: Raw) -> Tensor:
        """The probability of every class, [n, classes]."""
        return self.out(raw).logits.softmax(dim=1)

    @torch.no_grad()
    def predict(self, raw: Raw) -> list[str]:
        """The most probable class of each input, by its name."""
        return [self.classes[at] for at in self(raw).argmax(dim=1).tolist()]

    def out(self, raw: Raw) -> Out:
        """The features [n, d] and the logits [n, classes] of raw inputs."""
        samples = self.preprocess(raw)
        out: Out = self.core(samples.to(next(self.core.buffers()).device))
        return out

    def preprocess(self, raw: Raw) -> Tensor:
        """Raw inputs as samples of the training data, before they are normalised by mean and std.

        images: [n, channels, H, W], [n, H, W, channels] or, of one channel, [n, H, W]; whole numbers 0..255
        or floats in 0..1, which become bytes as in training. The size is the model's.
        tables: dictionaries by column name, or an array [n, columns] of numbers in the order of
        `model.columns.names`, NaN where a value is missing; scaled, filled and turned into features here. A
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
        names, owner, sites = columns.names, columns.site, None
        if not isinstance(raw, Tensor | np.ndarray) and all(isinstance(row, Mapping) for row in raw):
            rows = [row for row in raw if isinstance(row, Mapping)]
            for at, row in enumerate(rows):
                if lacking := [name for name in names if name not in row]:
                    raise UserError(f"row {at} lacks the column '{lacking[0]}': give it, or None in it.")
            cells = [[_cell(row[name]) for name in names] for row in rows]
            if columns.scale == "site" and owner is not None and all(owner in row for row in rows):
                sites = [str(row[owner]).strip() for row in rows]
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
        return Rows(names, cells, [Path("the input")] * len(cells), list(range(len(cells))), sites)

    @property
    def scaled_columns(self) -> tuple[InputColumn, ...] | None:
        """How the columns of every row become features; None where that depends on the row's site, or there
        are no columns."""
        if self.columns is None or self.columns.scale != "site":
            return None if self.columns is None else self.columns.columns
        return None if self.site is None else self.columns.sites[self.site]

    def features_of(self, rows: Rows) -> Tensor:
        """The features of a table's rows, scaled as in training."""
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


# ---- Reading


def load_model(
    run: Path | str,
    *,
    client: int | str | None = None,
    site: str | None = None,
    model: str | MakeModule | nn.Module | None = None,
) -> TrainedModel:
    """The model of a run, in evaluation mode, for raw inputs.

    run: a run folder, or its model.safetensors alone.
    client: whose model, by number or name, where a run has one for each client, as local-only.
    site: whose rows it is going to read, where tables were scaled by each site for itself; without it the
    column that named the site says it, and rows of a new site are scaled by themselves.
    model: for a network of one's own code, that code: a module, or a function or class that makes one. A run
    folder never chooses it."""
    file, tensors, path = read_model(Path(run))
    columns = None if file.columns is None else _inside(path, Columns.from_json, file.columns)
    words = None if file.words is None else _inside(path, Words.from_json, file.words)
    inputs = Inputs(file.inputs.kind, tuple(file.inputs.shape), file.inputs.vocabulary)
    _check(file, columns, words, path)
    if site is not None and (columns is None or site not in columns.sites):
        known = [] if columns is None else list(columns.sites)
        if not known:
            raise UserError(f"{path} has no scale for each site: leave site out.")
        raise unknown("site", site, known)
    whose = None
    if file.network.clients is not None or client is not None:
        at, whose = _choose(file.network.clients or [], client, path)
        tensors = _of_client(at, tensors, file, path)
    network = _own(file, inputs, model, path) if file.network.own else _named(file, inputs, tensors, path)
    norms = [] if file.network.statistics == "average" else models.moving_norms(network)
    _fill(network, tensors, file, path)
    for norm in norms:
        models.forget_statistics(norm)
    return TrainedModel(Core(network, file, by_batch=bool(norms)), file, columns, words, whose, site)


def read_model(run: Path) -> tuple[record.ModelFile, Tensors, Path]:
    """What is told of a run's model, its weights, and where they are."""
    path = run if run.suffix == ".safetensors" else run / WEIGHTS
    try:
        if run.is_dir() and not path.exists():
            raise _absent(run)
        check_regular(path)
        content = path.read_bytes()  # not mapped: a file may be cut short while it is
        tensors = load_tensors(content)
        header = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])
    except FileNotFoundError:
        raise UserError(f"there is no run folder {run}: check the path.") from None
    except (OSError, SafetensorError, ValueError, KeyError, AttributeError, RuntimeError) as error:
        if isinstance(error, UserError):
            raise
        raise _damaged(path, str(error)) from None
    text = header.get("__metadata__", {}).get("unskew")
    if text is None:
        raise UserError(f"{path} tells nothing of its model, as those of older versions: run it again.")
    file = _parse(text, path)
    beside = run / DESCRIPTION
    if run.is_dir():
        try:
            other = beside.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise _damaged(beside, str(error)) from None
        if _parse(other, beside) != file:
            raise UserError(f"{beside} and {path.name} are of two models: give another run, or run it again.")
    return file, tensors, path


def _absent(run: Path) -> UserError:
    inside = sorted(each.parent.name for each in run.glob(f"*/{WEIGHTS}"))
    if inside:
        return UserError(f"{run} holds several runs: give one of them, such as {run / inside[0]}.")
    if not (run / "experiment.toml").is_file():
        return UserError(f"{run} is not a run folder: give one that unskew run or compare has written.")
    return UserError(f"{run} lacks {WEIGHTS}, as a run that has not ended: end it with unskew resume {run}.")


def _parse(text: str, path: Path) -> record.ModelFile:
    try:
        version = json.loads(text).get("version")
        if version != VERSION:
            raise UserError(
                f"{path} is of version {version!r}, and this is unskew for version {VERSION}: run it again."
            )
        return record.MODEL.parse(text)
    except (record.DamagedError, ValueError, AttributeError, RecursionError) as error:
        if isinstance(error, UserError):
            raise
        raise _damaged(path, str(error)) from None


def _inside(path: Path, read: Callable[[object], Any], value: object) -> Any:
    try:
        return read(value)
    except UserError as error:
        raise _damaged(path, str(error).removesuffix(".")) from None


def _damaged(path: Path, what: str) -> UserError:
    said = " ".join(what.split())[:300]
    return UserError(f"{path} is damaged ({said}): give another run, or run it again.")


def _check(file: record.ModelFile, columns: Columns | None, words: Words | None, path: Path) -> None:
    """Check that the parts of a description fit each other."""
    kind, shape = file.inputs.kind, file.inputs.shape
    if len(shape) != (3 if kind == "image" else 1):
        raise _damaged(path, f"inputs.shape is {shape} of {kind} data")
    if len(file.mean) != len(file.std) or len(file.mean) not in (0, shape[0] if kind == "image" else 0):
        raise _damaged(path, "mean and std do not fit the channels")
    if columns is not None and (kind != "table" or [len(columns.features)] != shape):
        raise _damaged(path, "the columns do not make the features")
    if columns is not None:
        same = [(each.name, each.features) for each in columns]
        if any([(each.name, each.features) for each in own] != same for own in columns.sites.values()):
            raise _damaged(path, "the columns of a site are not those of all")
    if words is not None and (kind, [words.length], words.ids) != ("text", shape, file.inputs.vocabulary):
        raise _damaged(path, "the words do not make the tokens")
    if len(file.classes) < 2:
        raise _damaged(path, "there are fewer than two classes")


def _choose(
    clients: Sequence[record.ClientModel], wanted: int | str | None, path: Path
) -> tuple[int, record.ClientModel]:
    """Where the wanted client's model is, and whose it is."""
    if not clients:
        raise UserError(f"{path} holds one model, for all clients: leave client out.")
    names = ", ".join(each.name or str(each.client) for each in clients[:6])
    more = f" and {len(clients) - 6} more" * (len(clients) > 6)
    if wanted is None:
        raise UserError(
            f"{path} holds a model of each client: choose one with --client, or client= in "
            f"Python ({names}{more})."
        )
    if isinstance(wanted, int):
        fits = [(at, each) for at, each in enumerate(clients) if each.client == wanted]
    else:
        fits = [(at, each) for at, each in enumerate(clients) if wanted in (each.name, str(each.client))]
    if len(fits) > 1:
        raise UserError(
            f"'{wanted}' is the name of one client and the number of another in {path}: give the number as "
            "client= in Python."
        )
    if fits:
        return fits[0]
    raise UserError(f"{path} holds no model of client '{wanted}': choose one of {names}{more}.")


def _of_client(at: int, tensors: Tensors, file: record.ModelFile, path: Path) -> Tensors:
    """One of several models. Where a tensor has one entry, all of them share it."""
    clients = len(file.network.clients or ())
    if any(value.ndim == 0 or len(value) not in (1, clients) for value in tensors.values()):
        raise _damaged(path, f"it should hold {clients} models")
    return {name: value[at if len(value) > 1 else 0] for name, value in tensors.items()}


def _named(file: record.ModelFile, inputs: Inputs, tensors: Tensors, path: Path) -> nn.Module:
    """The network of a name, without memory for its weights: those of the file take their places."""
    nets = file.network.side_by_side
    if nets is not None and len({name.split(".")[1] for name in tensors if name.startswith("nets.")}) != nets:
        raise _damaged(path, f"it should hold {nets} networks side by side")
    try:
        with torch.device("meta"), torch.random.fork_rng(devices=[]):
            return rebuild(file.network, inputs, len(file.classes))
    except UserError as error:
        raise _damaged(path, str(error).removesuffix(".")) from None
    except Exception as error:  # whatever a network makes of options that it does not have
        raise _damaged(path, f"no {file.network.name} is made so: {error}") from None


def _own(
    file: record.ModelFile, inputs: Inputs, model: str | MakeModule | nn.Module | None, path: Path
) -> nn.Module:
    if model is None:
        raise UserError(
            f"the network of {path} is made by code of your own ({file.network.name}), which no run folder "
            "chooses: give it yourself, with --model, or model= in Python."
        )
    options, make = file.network.options, cast(MakeModule, model)
    if isinstance(model, nn.Module):
        make = partial(copy.deepcopy, model)
    elif isinstance(model, str):
        make = models.own_model(model, inputs, len(file.classes), options)
    elif is_code(file.network.name):  # made of a file, and given here as what it names
        make = models.own_model(file.network.name, inputs, len(file.classes), options, model)
    elif options:
        make = partial(model, **options)
    try:
        with torch.random.fork_rng(devices=[]):
            return rebuild(file.network, inputs, len(file.classes), make)
    except UserError:
        raise
    except Exception as error:
        raise UserError(f"the model cannot be made ({type(error).__name__}: {error}): fix it.") from error


def _fill(network: nn.Module, tensors: Tensors, file: record.ModelFile, path: Path) -> None:
    wanted, found = (
        {name: (tuple(value.shape), value.dtype) for name, value in each.items()}
        for each in (network.state_dict(), tensors)
    )
    if wanted != found:
        name = next(each for each in dict.fromkeys([*wanted, *found]) if wanted.get(each) != found.get(each))
        raise UserError(
            f"{path} does not hold the weights of a {file.network.name} ('{name}' differs): give the network "
            "that it was trained with, or another run."
        )
    network.load_state_dict(tensors, assign=True)
    network.requires_grad_(False)
