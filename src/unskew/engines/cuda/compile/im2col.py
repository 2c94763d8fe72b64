"""Convolutions of few input channels, such as an image's three, as a product of matrices.

For fewer than `FEW_CHANNELS` input channels cuDNN has no kernel that uses tensor cores.
"""

from __future__ import annotations

from torch import Tensor
from torch.nn.functional import pad

from unskew.engines.cuda.compile.context import Context, images, output_size

FEW_CHANNELS = 8


def convolution(context: Context, x: Tensor, weight: Tensor, stride: list[int], padding: list[int]) -> Tensor:
    """Return the convolution's output, without its bias."""
    shape = [x.shape[0], 0, *output_size(x, weight, stride, padding)]
    return images(_im2col(context, x, weight, stride, padding) @ _matrix(weight), shape)


def weight_gradient(
    context: Context, rows: Tensor, x: Tensor, weight: Tensor, stride: list[int], padding: list[int]
) -> Tensor:
    """Return the gradient of the weights, from that of the output as `rows` of pixels. Samples are multiplied
    one by one and then added: a single product would be a few blocks with a very long sum each."""
    columns = _im2col(context, x, weight, stride, padding)
    products = columns.view(x.shape[0], -1, columns.shape[1]).transpose(1, 2) @ rows.view(
        x.shape[0], -1, len(weight)
    )
    O, C, height, width = weight.shape
    total = products.sum(dim=0).view(height, -1, O)[:, : width * C]
    return total.reshape(height, width, C, O).permute(3, 2, 0, 1)


def _im2col(context: Context, x: Tensor, weight: Tensor, stride: list[int], padding: list[int]) -> Tensor:
    """Return a matrix with a row for each output pixel: the part of the input from which it is computed. It
    consists of rows of windows, each padded to a multiple of eight numbers, so that numbers are moved in
    groups and not one by one."""

    def make() -> Tensor:
        N, (H, W) = x.shape[0], output_size(x, weight, stride, padding)
        padded = pad(x, (padding[1], padding[1], padding[0], padding[0]))
        windows = padded.unfold(3, weight.shape[3], stride[1]).permute(0, 2, 3, 4, 1)
        windows = context.contiguous(windows).flatten(3)
        windows = context.contiguous(pad(windows, (0, -windows.shape[3] % 8)))
        image, row, pixel, _ = windows.stride()
        columns = windows.as_strided(
            (N, H, W, weight.shape[2], windows.shape[3]), (image, stride[0] * row, pixel, row, 1)
        )
        return context.contiguous(columns).view(N * H * W, -1)

    return context.once(x, f"im2col {weight.shape[2:]} {stride} {padding}", make)


def _matrix(weight: Tensor) -> Tensor:
    """Return the weights as the matrix by which that of the input is multiplied."""
    rows = weight.permute(2, 3, 1, 0).flatten(1, 2)
    return pad(rows, (0, 0, 0, -rows.shape[1] % 8)).flatten(0, 1)
