"""Which parameters of a model are trained, and so sent: all, some, or adapters beside what stays."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from torch import nn

from unskew.errors import UserError
from unskew.models.lora import add_adapter, can_adapt
from unskew.models.net import last_linear

MOST_RANK = 4096
"""Of an adapter: few layers are as wide, and a wider adapter would be larger than its layer."""


@dataclass(frozen=True)
class Tuning:
    """What of a model is trained. Patterns are over the names of parameters, such as body.conv1.weight: with
    * and ? as in file names, or the name of a part of the model, such as body."""

    freeze: tuple[str, ...] = ()
    """Parameters that stay as they are."""
    train_only: tuple[str, ...] = ()
    """Where given, all others stay as they are; beside LoRA's adapters, in the place of the last layer."""
    lora: int = 0
    """The rank of LoRA's adapters; 0: none. With them nothing else is trained but the last layer."""
    lora_alpha: float = 0.0
    """What the adapters' output is multiplied by, times their rank; 0: the rank."""
    lora_layers: tuple[str, ...] = ()
    """The layers that get an adapter; none: every linear layer and convolution but the last layer."""

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
        """Freeze and add what is asked for. Adapters are drawn from PyTorch's global generator."""
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
                f"the last layer, '{head}', is trained whole beside adapters: leave it out of lora_layers."
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
    """Patterns as a list has them, or in one text, where commas or blanks separate them."""
    return tuple(text.replace(",", " ").split()) if isinstance(text, str) else tuple(text)


def _matching(wanted: Sequence[str], names: Iterable[str], what: str) -> set[str]:
    names, found = list(names), set[str]()
    for pattern in wanted:
        mine = {name for name in names if fnmatchcase(name, pattern) or name.startswith(f"{pattern}.")}
        if not mine:
            parts = list(dict.fromkeys(name.split(".")[0] if what == "parameter" else name for name in names))
            shown = ", ".join(parts[:8]) + (f" and {len(parts) - 8} more" if len(parts) > 8 else "")
            raise UserError(f"no {what} of the model is called '{pattern}': it has {shown}.")
        found |= mine
    return found
