"""Local optimisers, the same for every method: hyperparameters come from the budget, never from a method."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Literal, cast, get_args

import torch

from unskew.errors import UserError, require
from unskew.notation import Option, items, named, read_options
from unskew.types import Gradient, Optimizer, Params, Tensors

OptimizerKind = Literal["sgd", "adam", "adamw"]

FIRST, SECOND, STEPS = "first/", "second/", "steps"
"""The names of Adam's state: both moments, each followed by a parameter's name, and the number of steps."""


@dataclass(frozen=True)
class OptimizerChoice:
    """The rule by which clients move. Written `sgd`, or NAME:betas=0.9/0.999,eps=1e-8 for adam and adamw.

    sgd     heavy-ball momentum and coupled weight decay, as torch.optim.SGD
    adam    with coupled weight decay, as torch.optim.Adam
    adamw   with decoupled weight decay, as torch.optim.AdamW
    """

    kind: OptimizerKind = "sgd"
    betas: tuple[float, ...] = (0.9, 0.999)
    eps: float = 1e-8

    def __post_init__(self) -> None:
        shown = "/".join(f"{beta:g}" for beta in self.betas)
        require(
            len(self.betas) == 2 and all(0 <= beta < 1 for beta in self.betas),
            f"optimizer {self.kind} betas is {shown} but should be two numbers from 0 to below 1, such as "
            "0.9/0.999.",
        )
        require(self.eps > 0, f"optimizer {self.kind} eps is {self.eps:g} but should be above 0.")

    @classmethod
    @cache
    def parse(cls, text: str) -> OptimizerChoice:
        """Read a choice from a text such as adamw:betas=0.9/0.99."""
        name, rest = named(text)
        if name not in get_args(OptimizerKind):
            hint = f"; what clients keep of it is optimizer_state={name}" if name in ("fresh", "kept") else ""
            raise UserError(f"optimizer is '{name}' but should be sgd, adam or adamw{hint}.")
        options = {"betas": Option(tuple[float, ...], required=False), "eps": Option(float, required=False)}
        given = read_options(f"optimizer {name}", items(rest), {} if name == "sgd" else options, ())
        return cls(cast(OptimizerKind, name), **given)

    def __str__(self) -> str:
        if self.kind == "sgd":
            return "sgd"
        return f"{self.kind}:betas={'/'.join(map(repr, self.betas))},eps={self.eps!r}"

    def rule(
        self, lr: float | torch.Tensor, *, momentum: float, weight_decay: float, fused: bool = False
    ) -> Optimizer:
        """Make the optimiser. `fused` asks for one kernel, if the learning rate is a tensor in the memory of
        a GPU."""
        if self.kind == "sgd":
            if fused and isinstance(lr, torch.Tensor):
                return fused_sgd(lr, momentum=momentum, weight_decay=weight_decay)
            return sgd(lr, momentum=momentum, weight_decay=weight_decay)
        first, second = self.betas
        settings = AdamSettings(first, second, self.eps, weight_decay, decoupled=self.kind == "adamw")
        return fused_adam(lr, settings) if fused and isinstance(lr, torch.Tensor) else adam(lr, settings)


def sgd(lr: float | torch.Tensor, *, momentum: float = 0.0, weight_decay: float = 0.0) -> Optimizer:
    """Make stochastic gradient descent with heavy-ball momentum and coupled weight decay, as
    torch.optim.SGD."""

    def init(params: Params) -> Tensors:
        return {name: torch.zeros_like(value) for name, value in params.items()} if momentum else {}

    def step(gradient: Gradient, params: Params, state: Tensors) -> torch.Tensor:
        loss, grads = gradient(params)
        values, gradients = list(params.values()), [grads[name] for name in params]
        with torch.no_grad():
            if weight_decay:
                gradients = list(torch._foreach_add(gradients, values, alpha=weight_decay))
            if momentum:
                velocity = [state[name] for name in params]
                torch._foreach_mul_(velocity, momentum)
                torch._foreach_add_(velocity, gradients)
                gradients = velocity
            if isinstance(lr, torch.Tensor):
                torch._foreach_sub_(values, torch._foreach_mul(gradients, lr))
            else:
                torch._foreach_add_(values, gradients, alpha=-lr)
        return loss

    return Optimizer(init, step)


def corrected(gradient: Gradient, correction: Params | None) -> Gradient:
    """Return a gradient function that adds a constant to every gradient."""
    if correction is None:
        return gradient

    def shifted(params: Params, /, *, track: bool = True) -> tuple[torch.Tensor, Params]:
        loss, grads = gradient(params, track=track)
        return loss, {name: grad + correction[name] for name, grad in grads.items()}

    return shifted


def _laid_out_as(param: torch.Tensor, gradient: torch.Tensor) -> torch.Tensor:
    """Return the gradient in the memory layout of its parameter, without which PyTorch's fused kernels refuse
    it."""
    if gradient.stride() == param.stride():
        return gradient
    return torch.empty_like(param).copy_(gradient)


def fused_sgd(lr: torch.Tensor, *, momentum: float = 0.0, weight_decay: float = 0.0) -> Optimizer:
    """Make stochastic gradient descent that runs in one kernel, with a learning rate that can change under a
    captured step."""

    @torch.no_grad()
    def step(gradient: Gradient, params: Params, state: Tensors) -> torch.Tensor:
        loss, grads = gradient(params)
        torch._fused_sgd_(
            list(params.values()),
            [_laid_out_as(params[name], grads[name]) for name in params],
            [state[name] for name in params] if momentum else [],
            weight_decay=weight_decay,
            momentum=momentum,
            lr=lr,
            dampening=0.0,
            nesterov=False,
            maximize=False,
            is_first_step=False,
        )
        return loss

    return Optimizer(sgd(0.0, momentum=momentum).init, step)


@dataclass(frozen=True)
class AdamSettings:
    """Adam's settings in addition to the learning rate."""

    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-8
    weight_decay: float = 0.0
    decoupled: bool = False
    """Whether weight decay stays out of the moments, as in AdamW."""


def adam(lr: float | torch.Tensor, settings: AdamSettings) -> Optimizer:
    """Make Adam as torch.optim.Adam, or AdamW. The number of steps is a tensor and the learning rate enters
    once, at the end, so that a step that is traced or captured is valid for later steps and rates too."""
    beta1, beta2, decay = settings.beta1, settings.beta2, settings.weight_decay

    def init(params: Params) -> Tensors:
        first = {FIRST + name: torch.zeros_like(value) for name, value in params.items()}
        second = {SECOND + name: torch.zeros_like(value) for name, value in params.items()}
        device = next(iter(params.values())).device
        return first | second | {STEPS: torch.zeros((), dtype=torch.float32, device=device)}

    def step(gradient: Gradient, params: Params, state: Tensors) -> torch.Tensor:
        loss, grads = gradient(params)
        values, gradients = list(params.values()), [grads[name] for name in params]
        first, second = ([state[moment + name] for name in params] for moment in (FIRST, SECOND))
        with torch.no_grad():
            if decay and not settings.decoupled:
                gradients = list(torch._foreach_add(gradients, values, alpha=decay))
            torch._foreach_lerp_(first, gradients, 1 - beta1)
            torch._foreach_mul_(second, beta2)
            torch._foreach_addcmul_(second, gradients, gradients, 1 - beta2)
            torch._foreach_add_([state[STEPS]], 1)
            steps = state[STEPS].double()  # in single precision 1 - 0.999 would lose four digits
            bias1 = (1 - torch.pow(beta1, steps)).to(values[0].dtype)
            bias2 = (1 - torch.pow(beta2, steps)).sqrt().to(values[0].dtype)
            below = torch._foreach_sqrt(second)
            torch._foreach_div_(below, bias2)
            torch._foreach_add_(below, settings.eps)
            torch._foreach_mul_(below, bias1)
            moves = list(torch._foreach_div(first, below))
            if decay and settings.decoupled:
                moves = list(torch._foreach_add(moves, values, alpha=decay))
            if isinstance(lr, torch.Tensor):
                torch._foreach_sub_(values, torch._foreach_mul(moves, lr))
            else:
                torch._foreach_add_(values, moves, alpha=-lr)
        return loss

    return Optimizer(init, step)


def fused_adam(lr: torch.Tensor, settings: AdamSettings) -> Optimizer:
    """Make Adam that runs in one kernel, with a learning rate that can change under a captured step."""
    run = torch._fused_adamw_ if settings.decoupled else torch._fused_adam_

    @torch.no_grad()
    def step(gradient: Gradient, params: Params, state: Tensors) -> torch.Tensor:
        loss, grads = gradient(params)
        state[STEPS].add_(1)
        run(
            list(params.values()),
            [_laid_out_as(params[name], grads[name]) for name in params],
            [state[FIRST + name] for name in params],
            [state[SECOND + name] for name in params],
            [],
            [state[STEPS]] * len(params),
            lr=lr,
            beta1=settings.beta1,
            beta2=settings.beta2,
            weight_decay=settings.weight_decay,
            eps=settings.eps,
            amsgrad=False,
            maximize=False,
        )
        return loss

    return Optimizer(adam(0.0, settings).init, step)
