"""The user's own network, made to return what every method reads: features and logits."""

from __future__ import annotations

from torch import Tensor, nn
from torch.jit import ScriptModule
from torch.nn.parameter import UninitializedParameter

from unskew.errors import UserError
from unskew.types import Out


class LastLinear:
    """Remembers, during one forward pass, the input of the last linear layer."""

    def __init__(self, classes: int) -> None:
        self.classes = classes
        self.seen: Tensor | None = None

    def watch(self, layer: nn.Module, args: tuple[object, ...], output: object) -> None:
        if args and isinstance(args[0], Tensor) and args[0].ndim == 2:
            self.seen = args[0]

    def finish(self, module: nn.Module, args: tuple[object, ...], output: object) -> Out:
        seen, self.seen = self.seen, None
        if isinstance(output, tuple) and len(output) == 2 and all(isinstance(v, Tensor) for v in output):
            out = Out(*output)
        elif isinstance(output, Tensor):
            out = Out(output if seen is None else seen, output)
        else:
            what = (
                f"{len(output)} things" if isinstance(output, tuple | list) else f"a {type(output).__name__}"
            )
            raise UserError(
                f"the model returns {what}: let it return logits, or the pair (features, logits)."
            )
        if out.logits.ndim != 2 or out.logits.shape[1] != self.classes:
            raise UserError(
                f"the model returns logits of shape {list(out.logits.shape)} for {self.classes} classes: "
                f"let its last layer have {self.classes} outputs."
            )
        return out


def adapt(module: nn.Module, classes: int) -> nn.Module:
    """Make any classifier return Out(features, logits). Its parameters keep their names.

    A network that returns Out or a pair (features, logits) keeps its own features. If it returns logits, the
    features are the input [B, d] of the last nn.Linear that ran, or the logits themselves if none ran. The
    hooks that do this are put on `module` itself, and are copied and pickled with it.
    """
    if isinstance(module, ScriptModule):
        raise UserError(
            "the model is a ScriptModule, which does not show its features: give the module that it was "
            "scripted from."
        )
    for name, parameter in module.named_parameters():
        if isinstance(parameter, UninitializedParameter):
            raise UserError(f"'{name}' of the model has no shape yet: run the model once on a batch first.")
    last = LastLinear(classes)
    for layer in module.modules():
        if isinstance(layer, nn.Linear):
            layer.register_forward_hook(last.watch)
    module.register_forward_hook(last.finish)
    return module
