"""Reads the trained model of a run folder, or of its weights file alone."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, cast

import torch
from safetensors import SafetensorError
from safetensors.torch import load as load_tensors
from torch import nn

from unskew import models, record
from unskew.data.bounded import check_regular
from unskew.data.columns import Columns
from unskew.data.words import Words
from unskew.errors import UserError, unknown
from unskew.parts.architecture import MakeModule, rebuild
from unskew.trained_model import Core, TrainedModel
from unskew.types import Inputs, Tensors
from unskew.user_code import is_code

DESCRIPTION, WEIGHTS = "model.json", "model.safetensors"
VERSION = 1


def load_model(
    run: Path | str,
    *,
    client: int | str | None = None,
    site: str | None = None,
    model: str | MakeModule | nn.Module | None = None,
) -> TrainedModel:
    """Load the model of a run, in evaluation mode, for raw inputs.

    run: a run folder, or its model.safetensors alone.
    client: the number or name of a client, if the run has a model of each client, as local-only has.
    site: the site whose rows the model will read, if each site scaled its tables by itself. Without it, rows
    name their site in the column that named it in training, and rows of a new site are scaled by themselves.
    model: if the network is made by code of your own, this code: a module, or a function or class that makes
    one. It is never chosen by the run folder."""
    file, tensors, path = read_model(Path(run))
    columns = None if file.columns is None else _part(path, Columns.from_json, file.columns)
    words = None if file.words is None else _part(path, Words.from_json, file.words)
    inputs = Inputs(file.inputs.kind, tuple(file.inputs.shape), file.inputs.vocabulary)
    _check(file, columns, words, path)
    if site is not None and (columns is None or site not in columns.sites):
        known = [] if columns is None else list(columns.sites)
        if not known:
            raise UserError(f"{path} has no scale for each site: leave site out.")
        raise unknown("site", site, known)
    if model is not None and not file.network.own:
        raise UserError(f"the network of {path} is one of unskew's ({file.network.name}): leave model out.")
    chosen = None
    if file.network.clients is not None or client is not None:
        index, chosen = _choose_client(file.network.clients or [], client, path)
        tensors = _client_tensors(index, tensors, file, path)
    if file.network.own:
        network = _own_network(file, inputs, model, path)
    else:
        network = _empty_network(file, inputs, tensors, path)
    norms = [] if file.network.statistics == "average" else models.moving_norms(network)
    _load_weights(network, tensors, file, path)
    for norm in norms:
        models.forget_statistics(norm)
    return TrainedModel(Core(network, file, by_batch=bool(norms)), file, columns, words, chosen, site)


def read_model(run: Path) -> tuple[record.ModelFile, Tensors, Path]:
    """Read the description of a run's model and its weights, and return them with the path of the weights."""
    path = run if run.suffix == ".safetensors" else run / WEIGHTS
    try:
        if path != run and run.is_file():
            raise UserError(
                f"{run} is a file and no run folder: give one that unskew run or compare has written, or the "
                f"{WEIGHTS} in it."
            )
        if run.is_dir() and not path.exists():
            raise _missing_weights(run)
        check_regular(path)
        content = path.read_bytes()  # read at once: a mapped file may be cut short while it is in use
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
    if run.is_dir() and _read_description(run / DESCRIPTION) != file:
        raise UserError(
            f"{run / DESCRIPTION} and {path.name} are of two models: give another run, or run it again."
        )
    return file, tensors, path


def _read_description(path: Path) -> record.ModelFile:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise _damaged(path, str(error)) from None
    return _parse(text, path)


def _missing_weights(run: Path) -> UserError:
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


def _part(path: Path, read: Callable[[object], Any], value: object) -> Any:
    try:
        return read(value)
    except UserError as error:
        raise _damaged(path, str(error).removesuffix(".")) from None


def _damaged(path: Path, what: str) -> UserError:
    said = " ".join(what.split())[:300]
    return UserError(f"{path} is damaged ({said}): give another run, or run it again.")


def _check(file: record.ModelFile, columns: Columns | None, words: Words | None, path: Path) -> None:
    """Raise a UserError if parts of a description contradict each other."""
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


def _choose_client(
    clients: Sequence[record.ClientModel], wanted: int | str | None, path: Path
) -> tuple[int, record.ClientModel]:
    """Return the index and the description of the wanted client's model."""
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


def _client_tensors(index: int, tensors: Tensors, file: record.ModelFile, path: Path) -> Tensors:
    """Return the weights of one client's model. Tensors have an entry for each client, or one for all."""
    clients = len(file.network.clients or ())
    if any(value.ndim == 0 or len(value) not in (1, clients) for value in tensors.values()):
        raise _damaged(path, f"it should hold {clients} models")
    return {name: value[index if len(value) > 1 else 0] for name, value in tensors.items()}


def _empty_network(file: record.ModelFile, inputs: Inputs, tensors: Tensors, path: Path) -> nn.Module:
    """Return a network of unskew's own without memory for its weights, which the file has."""
    nets = file.network.side_by_side
    if nets is not None and len({name.split(".")[1] for name in tensors if name.startswith("nets.")}) != nets:
        raise _damaged(path, f"it should hold {nets} networks side by side")
    try:
        with torch.device("meta"), torch.random.fork_rng(devices=[]):
            return rebuild(file.network, inputs, len(file.classes))
    except UserError as error:
        raise _damaged(path, str(error).removesuffix(".")) from None
    except Exception as error:  # any error that wrong options cause in a network
        raise _damaged(path, f"no {file.network.name} is made so: {error}") from None


def _own_network(
    file: record.ModelFile, inputs: Inputs, model: str | MakeModule | nn.Module | None, path: Path
) -> nn.Module:
    """Return a network of the user's own, made by `model`."""
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
    elif is_code(file.network.name):  # trained from a file's code, and given here as an object
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


def _load_weights(network: nn.Module, tensors: Tensors, file: record.ModelFile, path: Path) -> None:
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
