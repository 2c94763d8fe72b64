"""Local optimisers. One rule for every method: hyperparameters come from the budget, never from a method."""

from __future__ import annotations

import torch

from unskew.types import Gradient, Optimizer, Params, Tensors


def sgd(lr: float | torch.Tensor, *, momentum: float = 0.0, weight_decay: float = 0.0) -> Optimizer:
    """Stochastic gradient descent with heavy-ball momentum and coupled weight decay, as torch.optim.SGD."""

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
    """The gradient function with a constant added to every gradient."""
    if correction is None:
        return gradient

    def shifted(params: Params, /, *, track: bool = True) -> tuple[torch.Tensor, Params]:
        loss, grads = gradient(params, track=track)
        return loss, {name: grad + correction[name] for name, grad in grads.items()}

    return shifted


def _laid_out_as(param: torch.Tensor, gradient: torch.Tensor) -> torch.Tensor:
    """The gradient in the layout of its parameter, without which PyTorch's fused kernels refuse it."""
    if gradient.stride() == param.stride():
        return gradient
    return torch.empty_like(param).copy_(gradient)


def fused_sgd(lr: torch.Tensor, *, momentum: float = 0.0, weight_decay: float = 0.0) -> Optimizer:
    """Stochastic gradient descent in one kernel, with a learning rate that can change under a captured
    step."""

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
