"""Which parameters of a model are trained, and so sent: all, some, or adapters and the last layer."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from torch import nn

from unskew.errors import UserError
from unskew.models.lora import add_adapter, can_adapt
from unskew.models.net import last_linear

MOST_RANK = 4096
"""The largest rank of an adapter. Few layers are wider, and an adapter should be smaller than its layer."""


@dataclass(frozen=True)
class Tuning:
    """Which parts of a model are trained. Patterns match the names of parameters, such as body.conv1.weight:
    with * and ? as in file names, or the name of a part of the model, such as body."""

    freeze: tuple[str, ...] = ()
    """Parameters that stay as they are."""
    train_only: tuple[str, ...] = ()
    """If given, all others stay as they are. With LoRA they are trained in addition to the
    adapters, in place of the last layer."""
    lora: int = 0
    """The rank of LoRA's adapters, 0 for none. With them only the last layer is trained in addition."""
    lora_alpha: float = 0.0
    """The adapters' output is multiplied by lora_alpha / rank; 0 stands for the rank."""
    lora_layers: tuple[str, ...] = ()
    """The layers that get an adapter; if empty, every linear layer and convolution but the last layer."""

    def __post_init__(self) -> None:
        if not 0 <= self.lora <= MOST_RANK:
            raise UserError(f"lora is {self.lora} but should be a rank of 1 to {MOST_RANK}, or 0 for none.")
        if not 0 <= self.lora_alpha < float("inf"):
            raise UserError(f"lora_alpha is {self.lora_alpha} but should be 0 or more.")
        if self.lora_layers and not self.lora:
            raise UserError("lora_layers is given without lora: give the adapters' rank, such as lora=8.")
        if self.freeze and self.train_only:
            raise UserError("freeze and train_only are both given: keep one.")

    def __bool__(self) -> bool:
        return bool(self.freeze or self.train_only or self.lora)

    def apply(self, module: nn.Module, classes: int) -> None:
        """Freeze and add what these settings ask for. Adapters are drawn from PyTorch's global generator."""
        trained = {name: value for name, value in module.named_parameters() if value.requires_grad}
        if self.lora:
            self._add_adapters(module, classes)
        if self.freeze:
            for name in _matching(self.freeze, trained, "parameter"):
                trained[name].requires_grad_(False)
        if self.train_only:
            kept = _matching(self.train_only, trained, "parameter")
            for name, value in trained.items():
                value.requires_grad_(name in kept)

    def _add_adapters(self, module: nn.Module, classes: int) -> None:
        head = last_linear(module, classes)
        able = {name: layer for name, layer in module.named_modules() if can_adapt(layer)}
        if self.lora_layers:
            chosen = _matching(self.lora_layers, able, "layer that can have an adapter")
        else:
            chosen = {name for name in able if name != head}
        if head in chosen:
            raise UserError(
                f"the last layer, '{head}', is trained as a whole with adapters: leave it out of lora_layers."
            )
        if not chosen:
            raise UserError(
                "the model has no linear layer or convolution before its last layer for LoRA: leave lora out."
            )
        module.requires_grad_(False)
        for name in able:
            if name in chosen:
                add_adapter(able[name], self.lora, self.lora_alpha or self.lora)
        if head is not None and head not in chosen:
            module.get_submodule(head).requires_grad_(True)


def patterns(text: str | Iterable[str]) -> tuple[str, ...]:
    """Split a text at commas or blanks into patterns. A list of patterns is returned as it is."""
    return tuple(text.replace(",", " ").split()) if isinstance(text, str) else tuple(text)


def _matching(wanted: Sequence[str], names: Iterable[str], what: str) -> set[str]:
    """Return the names that match any of the patterns. Refuse a pattern that matches none."""
    names, found = list(names), set[str]()
    for pattern in wanted:
        mine = {name for name in names if fnmatchcase(name, pattern) or name.startswith(f"{pattern}.")}
        if not mine:
            parts = list(dict.fromkeys(name.split(".")[0] if what == "parameter" else name for name in names))
            shown = ", ".join(parts[:8]) + (f" and {len(parts) - 8} more" if len(parts) > 8 else "")
            raise UserError(f"no {what} of the model is called '{pattern}': it has {shown}.")
        found |= mine
    return found
