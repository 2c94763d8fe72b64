"""Max pooling over windows that lie side by side, as a choice among strided images."""

from __future__ import annotations

import torch
from torch import Tensor

from unskew.engines.cuda.compile.context import Context


class MaxPool:
    """Max pooling, whose gradient needs one byte for each window."""

    def __init__(self, context: Context) -> None:
        self._context = context

    def forward(
        self,
        x: Tensor,
        kernel: list[int],
        stride: list[int] | None = None,
        padding: list[int] | int = 0,
        dilation: list[int] | int = 1,
        ceil_mode: bool = False,
    ) -> tuple[Tensor, Tensor]:
        """Return the largest value of each window, and its index in the image as PyTorch counts it."""
        if not _side_by_side(x, kernel, stride, padding, dilation):
            return NotImplemented  # type: ignore[no-any-return]
        pixels, (height, width) = x.permute(0, 2, 3, 1), kernel
        taps = [pixels[:, i::height, j::width] for i in range(height) for j in range(width)]
        largest, which = taps[0], torch.zeros_like(taps[0], dtype=torch.int8)
        for n, tap in enumerate(taps[1:], start=1):
            larger = (tap > largest) | tap.isnan()
            largest, which = torch.where(larger, tap, largest), torch.where(larger, n, which)
        # The index is only what PyTorch's operator returns: `which` is enough for the gradient.
        _, H, W, _ = which.shape
        row = height * torch.arange(H, device=x.device)[:, None, None] + which // width
        index = x.shape[3] * row + width * torch.arange(W, device=x.device)[:, None] + which % width
        index = index.permute(0, 3, 1, 2)
        self._context.remember(index, "which", which)
        return largest.permute(0, 3, 1, 2), index

    def backward(
        self,
        grad: Tensor,
        x: Tensor,
        kernel: list[int],
        stride: list[int],
        padding: list[int],
        dilation: list[int],
        ceil_mode: bool,
        index: Tensor,
    ) -> Tensor:
        """Return the gradient of the input: each window's gradient at its largest value, zero elsewhere."""
        which, (height, width) = self._context.recall(index, "which"), kernel
        if which is None:
            return NotImplemented  # type: ignore[no-any-return]
        windows = self._context.contiguous(grad.permute(0, 2, 3, 1))[:, :, None, :, None]
        tap = torch.arange(height * width, device=x.device, dtype=torch.int8).view(height, 1, width, 1)
        return self._context.join_windows(torch.where(which[:, :, None, :, None] == tap, windows, 0))


def _side_by_side(
    x: Tensor,
    kernel: list[int],
    stride: list[int] | None,
    padding: list[int] | int,
    dilation: list[int] | int,
) -> bool:
    """Return whether the windows lie side by side and cover images that are channels last."""

    def only(number: int, given: list[int] | int) -> bool:
        return all(each == number for each in (given if isinstance(given, list) else [given]))

    plain = list(stride or kernel) == list(kernel) and only(0, padding) and only(1, dilation)
    covered = x.ndim == 4 and not any(x.shape[2 + n] % kernel[n] for n in range(2))
    return plain and covered and x.stride(1) == 1
