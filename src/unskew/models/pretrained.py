"""Trained weights to start from: read from a file or a run's folder, and given to a model by name."""

from __future__ import annotations

import pickle
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load as load_safetensors
from torch import Tensor, nn

from unskew.errors import UserError
from unskew.models.lora import is_adapter, merge_adapters
from unskew.types import Tensors

TORCH = (".pt", ".pth", ".bin")
MOST_NAMES = 3
"""The number of tensors that a sentence names."""


@dataclass(frozen=True)
class Matched:
    """Which tensors of a file were given to a model, and which were not."""

    taken: tuple[str, ...]
    other_shape: tuple[str, ...]
    """In both, with different shapes: they keep their initial values."""
    missing: tuple[str, ...]
    """Only in the model: they keep their initial values."""
    unexpected: tuple[str, ...]
    """Only in the file."""

    source: str
    """Where the tensors come from, in words."""

    def note(self) -> str:
        """Say the same in a sentence."""
        model = len(self.taken) + len(self.other_shape) + len(self.missing)
        if len(self.taken) == model and not self.unexpected:
            return f"started from {self.source}: all {model} tensors of the model are taken."
        parts = [
            f"{words} {_listed(names)}"
            for words, names in (
                ("of another shape, left at their initial values:", self.other_shape),
                ("not in the file, left at their initial values:", self.missing),
                ("in the file alone:", self.unexpected),
            )
            if names
        ]
        return (
            f"started from {self.source}: {len(self.taken)} of {model} tensors are taken; {'; '.join(parts)}."
        )


@dataclass(frozen=True, eq=False)
class TrainedWeights:
    """Tensors to start from, and where they come from."""

    tensors: Tensors
    source: str

    @classmethod
    def of(cls, given: str | Path | Mapping[str, Tensor] | TrainedWeights) -> TrainedWeights:
        """Take tensors as they are given, or read those in a file or a run's folder."""
        if isinstance(given, TrainedWeights):
            return given
        if not isinstance(given, Mapping):
            return cls(read_weights(given), str(given))
        if not all(isinstance(value, Tensor) for value in given.values()):
            raise UserError("init holds something else than tensors: give a model's state_dict().")
        return cls(dict(given), "the tensors given")

    def load_into(self, module: nn.Module) -> Matched:
        """Give a model the tensors that have the names and shapes of its own."""
        return load_weights(module, self.tensors, self.source)


def weights_file(source: str | Path) -> Path:
    """Return the file with the weights at a path: the path itself, or the model in a run's folder."""
    path = Path(source).expanduser()
    if not path.is_dir():
        return path
    file = path / "model.safetensors"
    if file.is_file():
        return file
    if (path / "plan.json").is_file():
        raise UserError(f"{path} holds a compare: name the folder of one of its runs.")
    if (path / "experiment.toml").is_file():
        raise UserError(f"the run in {path} has no model yet: finish it with unskew resume {path}.")
    raise UserError(
        f"{path} is a folder without model.safetensors: name a run's folder or a file of weights."
    )


def read_weights(source: str | Path) -> Tensors:
    """Read the tensors in a .safetensors file, in a run's folder, or in a .pt file, which must hold nothing
    but tensors, so that no code is run."""
    path = weights_file(source)
    if path.suffix not in (".safetensors", *TORCH):
        raise UserError(f"{path} is no file of weights: name a .safetensors or .pt file, or a run's folder.")
    if not path.is_file():
        raise UserError(f"the weights {path} are not there: check the path, or bring the file back.")
    try:
        tensors = _read_torch(path) if path.suffix in TORCH else load_safetensors(path.read_bytes())
    except UserError:
        raise
    except (OSError, SafetensorError, RuntimeError, ValueError, KeyError, EOFError) as error:
        said = " ".join(str(error).split())[:200].removesuffix(".")
        raise UserError(f"the weights {path} cannot be read ({said}): copy or make them again.") from None
    if not tensors:
        raise UserError(f"the weights {path} hold no tensor: name another file.")
    return tensors


def _read_torch(path: Path) -> Tensors:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # what PyTorch guesses about a damaged file
            content = torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError:
        raise UserError(
            f"{path} holds more than tensors, which could run code: save the model's state_dict() alone, as "
            ".safetensors."
        ) from None
    except Exception as error:  # whatever the reader makes of a damaged file
        raise ValueError(error) from None
    for key in ("state_dict", "model"):  # as training scripts keep them
        if isinstance(content, Mapping) and isinstance(content.get(key), Mapping):
            content = content[key]
    if not isinstance(content, Mapping) or not all(isinstance(value, Tensor) for value in content.values()):
        raise UserError(f"{path} holds no state_dict: save the model's state_dict(), as .safetensors.")
    return {str(name): value for name, value in content.items()}


@torch.no_grad()
def load_weights(module: nn.Module, tensors: Tensors, source: str) -> Matched:
    """Give a model the tensors that have the names and shapes of its own. Refuse weights without a tensor for
    any parameter of the model, and values that are not finite."""
    own = module.state_dict(keep_vars=True)
    tensors = merge_adapters(tensors, own)
    taken, other_shape = [], []
    for name, value in own.items():
        given = tensors.get(name)
        if given is None:
            continue
        plain = given.layout == torch.strided and not (
            given.is_meta or given.is_complex() or given.is_quantized
        )
        if given.shape != value.shape or not plain:
            other_shape.append(name)
            continue
        if not bool(torch.isfinite(given).all()):
            raise UserError(f"'{name}' in {source} has values that are not finite: take other weights.")
        value.copy_(given)
        taken.append(name)
    parameters = dict(module.named_parameters(remove_duplicate=False))
    if not any(name in parameters for name in taken):
        raise UserError(
            f"{source} has no weights for this model ({_example(own, tensors)}): {_todo(own, tensors)}"
        )
    missing = [name for name in own if name not in tensors and not is_adapter(name)]
    unexpected = [name for name in tensors if name not in own]
    return Matched(tuple(taken), tuple(other_shape), tuple(missing), tuple(unexpected), source)


def _example(own: Mapping[str, Tensor], given: Tensors) -> str:
    for name in own:
        if name in given:
            mine, theirs = list(own[name].shape), list(given[name].shape)
            return f"its '{name}' is {theirs} and the model's {mine}"
    return f"it has '{next(iter(given))}' and others, the model '{next(iter(own))}' and others"


def _todo(own: Mapping[str, Tensor], given: Tensors) -> str:
    for prefix in ("module.", "model."):
        if any(name.removeprefix(prefix) in own for name in given if name.startswith(prefix)):
            return f"rename its tensors without '{prefix}'."
    return "choose the model that they were trained with."


def _listed(names: tuple[str, ...]) -> str:
    more = f" and {len(names) - MOST_NAMES} more" if len(names) > MOST_NAMES else ""
    return ", ".join(names[:MOST_NAMES]) + more
