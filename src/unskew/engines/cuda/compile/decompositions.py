"""Layers in words of which a compiler makes faster programs: convolutions that it would leave to cuDNN,
pooling, batch normalisation."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import reduce
from operator import add, mul
from typing import Any, ParamSpec, TypeVar

import torch
from torch import Tensor
from torch.nn.functional import pad
from torch.utils._python_dispatch import TorchDispatchMode

from unskew.engines.cuda.compile.depthwise_ops import begin, tap_slopes, times, weigh, weigh_back

P = ParamSpec("P")
T = TypeVar("T")
aten = torch.ops.aten

FEW = 8
"""Input channels below which cuDNN has no kernel for tensor cores: those of images."""
SLIM, SMALL = 16, 2**21
"""Rows or columns, and multiplications, up to which a product is faster without them: ten classes do not fill
a tensor core, and cuBLAS takes its slowest kernels where rows do not begin at multiples of 16 bytes."""


class Rewriting:
    """For one step. NotImplemented where a compiler does well already."""

    def __init__(self, *, compiled: bool = True) -> None:
        self._compiled = compiled
        self._known: dict[tuple[int, str], tuple[Tensor, Any]] = {}

    def note(self, about: Tensor, what: str, value: Any) -> None:
        """For whoever meets the same memory again, such as the backward pass. The tensor is kept, so that its
        place is not reused."""
        self._known[about.untyped_storage()._cdata, what] = about, value

    def noted(self, about: Tensor, what: str) -> Any:
        """None where nothing was."""
        return self._known.get((about.untyped_storage()._cdata, what), (None, None))[1]

    def table(self) -> dict[Any, Callable[..., Any]]:
        return {
            aten.convolution.default: self.convolution,
            aten.convolution_backward.default: self.convolution_backward,
            aten.max_pool2d_with_indices.default: self.max_pool,
            aten.max_pool2d_with_indices_backward.default: self.max_pool_backward,
            aten.native_batch_norm.default: self.batch_norm,
            aten.native_batch_norm_backward.default: self.batch_norm_backward,
            aten.mm.default: _product,
            aten.addmm.default: _sum_and_product,
            aten.relu.default: self.relu,
            aten.threshold_backward.default: self.threshold_backward,
        }

    def convolution(
        self,
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        stride: list[int],
        padding: list[int],
        dilation: list[int],
        transposed: bool,
        output_padding: list[int],
        groups: int,
    ) -> Tensor:
        kind = _kind(x, weight, stride, padding, dilation, transposed, groups)
        if kind == "pointwise":
            y = _back(self._rows(x) @ weight.flatten(1).t(), x.shape)
        elif kind == "stem":
            size = [x.shape[0], 0, *_size(x, weight, stride, padding)]
            y = _back(self.columns(x, weight, stride, padding) @ _matrix(weight), size)
        elif kind == "depthwise":
            y = self.weighed(
                self.framed(x, padding),
                weight,
                stride,
                _size(x, weight, stride, padding),
                # Of a teacher, nobody needs statistics of this: a compiler does what follows at once.
                written=torch.is_grad_enabled() or not self._compiled,
            )
        else:
            return NotImplemented  # type: ignore[no-any-return]
        return y if bias is None else y + bias[:, None, None]

    def convolution_backward(
        self,
        grad: Tensor,
        x: Tensor,
        weight: Tensor,
        bias_sizes: list[int] | None,
        stride: list[int],
        padding: list[int],
        dilation: list[int],
        transposed: bool,
        output_padding: list[int],
        groups: int,
        output_mask: list[bool],
    ) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        kind = _kind(x, weight, stride, padding, dilation, transposed, groups)
        if kind == "other" or (kind == "stem" and output_mask[0]):
            return NotImplemented  # type: ignore[no-any-return]
        to_x: Tensor | None = None
        to_weight: Tensor | None = None
        rows = self._rows(grad)
        if kind == "pointwise":
            if output_mask[0]:
                to_x = _back(rows @ weight.flatten(1), x.shape)
            if output_mask[1]:
                to_weight = (rows.t() @ self._rows(x)).view_as(weight)
        elif kind == "stem":
            if output_mask[1]:
                # By samples first: as one product it would be a few blocks with a very long sum each.
                columns = self.columns(x, weight, stride, padding)
                each = columns.view(x.shape[0], -1, columns.shape[1]).transpose(1, 2) @ rows.view(
                    x.shape[0], -1, len(weight)
                )
                O, C, height, width = weight.shape
                whole = each.sum(dim=0).view(height, -1, O)[:, : width * C]
                to_weight = whole.reshape(height, width, C, O).permute(3, 2, 0, 1)
        else:
            # Both products see the slopes in one frame, which is all that is written of them.
            before = begin(list(weight.shape[2:]), stride, padding)
            frame = [
                before[n] + times(x.shape[2 + n], stride[n]) + times(padding[n], stride[n]) for n in range(2)
            ]
            slopes = _framed(grad.permute(0, 2, 3, 1), before, frame)
            if output_mask[0]:
                to_x = self.weighed_back(slopes, weight, stride, padding, list(x.shape[2:]))
            if output_mask[1]:
                framed, size = self.framed(x, padding), list(grad.shape[2:])
                if _has_kernels(x) and weight.shape[2:] == (3, 3):
                    sums = tap_slopes(framed, slopes, before, stride, size)
                else:
                    pixels = _window(slopes, before, [1, 1], size)
                    taps = _taps(framed, weight, stride, size)
                    sums = torch.stack([(pixels * tap).sum(dim=(0, 1, 2)) for tap in taps])
                to_weight = sums.t().reshape(weight.shape).to(weight.dtype)
        if to_weight is not None and not self._compiled:
            # PyTorch lays out a weight's slopes as the weight, which its fused optimisers count on.
            to_weight = torch.empty_like(weight).copy_(to_weight)
        return to_x, to_weight, rows.sum(dim=0) if output_mask[2] else None

    def max_pool(
        self,
        x: Tensor,
        kernel: list[int],
        stride: list[int] | None = None,
        padding: list[int] | int = 0,
        dilation: list[int] | int = 1,
        ceil_mode: bool = False,
    ) -> tuple[Tensor, Tensor]:
        if not _tiles(x, kernel, stride, padding, dilation):
            return NotImplemented  # type: ignore[no-any-return]
        pixels, (height, width) = x.permute(0, 2, 3, 1), kernel
        taps = [pixels[:, i::height, j::width] for i in range(height) for j in range(width)]
        most, which = taps[0], torch.zeros_like(taps[0], dtype=torch.int8)
        for n, tap in enumerate(taps[1:], start=1):
            more = (tap > most) | tap.isnan()
            most, which = torch.where(more, tap, most), torch.where(more, n, which)
        # What PyTorch gives: where in the image the largest one lies. `which` is enough for the gradient.
        _, H, W, _ = which.shape
        line = height * torch.arange(H, device=x.device)[:, None, None] + which // width
        index = x.shape[3] * line + width * torch.arange(W, device=x.device)[:, None] + which % width
        index = index.permute(0, 3, 1, 2)
        self.note(index, "which", which)
        return most.permute(0, 3, 1, 2), index

    def max_pool_backward(
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
        which, (height, width) = self.noted(index, "which"), kernel
        if which is None:
            return NotImplemented  # type: ignore[no-any-return]
        windows = self._laid_out(grad.permute(0, 2, 3, 1))[:, :, None, :, None]
        here = torch.arange(height * width, device=x.device, dtype=torch.int8).view(height, 1, width, 1)
        return self._joined(torch.where(which[:, :, None, :, None] == here, windows, 0))

    def batch_norm(
        self,
        x: Tensor,
        weight: Tensor | None,
        bias: Tensor | None,
        running_mean: Tensor | None,
        running_var: Tensor | None,
        training: bool,
        momentum: float,
        eps: float,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """As one factor and one summand for each channel, which are made once and not for every value."""
        if weight is None or bias is None:
            return NotImplemented  # type: ignore[no-any-return]
        wide = _wide(x)
        if training:
            # By two sums, a third of the instructions of PyTorch's way; of differences from one pixel,
            # so that nothing is lost where a mean is far from zero.
            some = wide[(slice(1), slice(None), *[slice(1)] * (x.ndim - 2))]
            apart = wide - some
            off = apart.mean(_others(x))
            var = (apart.square().mean(_others(x)) - off.square()).clamp_min(0)
            mean = _written(off + some.view(-1))
            if running_mean is not None and running_var is not None:
                each = x.numel() // x.shape[1]
                running_mean.lerp_(mean.to(running_mean.dtype), momentum)
                running_var.lerp_((var * each / (each - 1)).to(running_var.dtype), momentum)
        else:
            assert running_mean is not None
            assert running_var is not None
            mean, var = running_mean, running_var
        scale = torch.rsqrt(var + eps)
        factor = _written(weight * scale)
        y = (wide * _per_channel(factor, x) + _per_channel(_written(bias - mean * factor), x)).to(x.dtype)
        self.note(y, "normed", True)
        self.note(scale, "factor", factor)
        return (y, mean, scale) if training else (y, x.new_empty(0), x.new_empty(0))

    def batch_norm_backward(
        self,
        grad: Tensor,
        x: Tensor,
        weight: Tensor | None,
        running_mean: Tensor | None,
        running_var: Tensor | None,
        mean: Tensor | None,
        scale: Tensor | None,
        training: bool,
        eps: float,
        output_mask: list[bool],
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Linear in the slope and in the value, by three numbers for each channel."""
        factor = None if scale is None else self.noted(scale, "factor")
        if not training or mean is None or scale is None or weight is None or factor is None:
            return NotImplemented  # type: ignore[no-any-return]
        slope, wide, each = _wide(grad), _wide(x), x.numel() // x.shape[1]
        sums = slope.sum(_others(x))
        moments = (slope * (wide - _per_channel(mean, x))).sum(_others(x)) * scale
        by_value = _written(-factor * scale * moments / each)
        beside = _written(-factor * sums / each - by_value * mean)
        to_x = slope * _per_channel(factor, x) + wide * _per_channel(by_value, x)
        return (to_x + _per_channel(beside, x)).to(x.dtype), moments.to(weight.dtype), sums.to(weight.dtype)

    def relu(self, x: Tensor) -> Tensor:
        if not self.noted(x, "normed"):
            return NotImplemented  # type: ignore[no-any-return]
        y = x.clamp_min(0)  # a ReLU by another name, or it would be rewritten again
        self.note(y, "before", (x, x._version))
        return y

    def threshold_backward(self, grad: Tensor, result: Tensor, threshold: float) -> Tensor:
        """After a batch normalisation by the sign of what went in, not of what came out: what that is made of
        is read here anyway."""
        x, version = self.noted(result, "before") or (None, 0)
        if x is None or x._version != version or threshold != 0:
            return NotImplemented  # type: ignore[no-any-return]
        return torch.where(x <= 0, 0, grad)

    def columns(self, x: Tensor, weight: Tensor, stride: list[int], padding: list[int]) -> Tensor:
        """What each output pixel sees of the input, a row each. Lines of windows first, filled up to a
        multiple of eight numbers, then several lines below each other: moved in pieces, not one by one."""

        def look() -> Tensor:
            N, (H, W) = x.shape[0], _size(x, weight, stride, padding)
            wide = pad(x, (padding[1], padding[1], padding[0], padding[0]))
            lines = wide.unfold(3, weight.shape[3], stride[1]).permute(0, 2, 3, 4, 1)
            lines = self._laid_out(lines).flatten(3)
            lines = self._laid_out(pad(lines, (0, -lines.shape[3] % 8)))
            image, line, pixel, _ = lines.stride()
            seen = lines.as_strided(
                (N, H, W, weight.shape[2], lines.shape[3]), (image, stride[0] * line, pixel, line, 1)
            )
            return self._laid_out(seen).view(N * H * W, -1)

        return self._once(x, f"columns {weight.shape[2:]} {stride} {padding}", look)

    def framed(self, x: Tensor, padding: list[int]) -> Tensor:
        """Images in a frame of zeros, channels last, all that is written of them."""

        def look() -> Tensor:
            size = [x.shape[2 + n] + 2 * padding[n] for n in range(2)]
            return _framed(x.permute(0, 2, 3, 1), padding, size)

        return self._once(x, f"frame {padding}", look)

    def weighed(
        self,
        framed: Tensor,
        weight: Tensor,
        stride: list[int],
        size: list[int],
        *,
        turned: bool = False,
        written: bool = True,
    ) -> Tensor:
        """The sum of what a kernel of each channel's own sees, or one turned around."""
        weights = self._by_tap(weight)
        if _has_kernels(framed) and written:
            y: Tensor = weigh(framed, weights, list(weight.shape[2:]), stride, size, turned)
        else:
            taps = _taps(framed, weight, stride, size)
            total: Tensor = reduce(add, map(mul, taps[::-1] if turned else taps, weights.unbind()))
            y = total.to(framed.dtype)
            if written:  # batch normalisation would have it written in float32
                y = _written(y)
        return y.permute(0, 3, 1, 2)

    def weighed_back(
        self, slopes: Tensor, weight: Tensor, stride: list[int], padding: list[int], size: list[int]
    ) -> Tensor:
        """How the loss changes with what such a kernel saw, from the framed slopes of what it made of it."""
        if set(stride) == {1}:
            return self.weighed(slopes, weight, stride, size, turned=True)
        weights, kernel = self._by_tap(weight), list(weight.shape[2:])
        if _has_kernels(slopes):
            y: Tensor = weigh_back(slopes, weights, kernel, stride, padding, size)
            return y.permute(0, 3, 1, 2)
        before, many = begin(kernel, stride, padding), [times(size[n], stride[n]) for n in range(2)]

        def given(*place: int) -> Tensor:
            """To the pixels at this place between two strides, by the weights that see them."""
            total = slopes.new_zeros((slopes.shape[0], *many, slopes.shape[3]), dtype=weights.dtype)
            for tap, each in enumerate(weights.unbind()):
                at = [place[n] + padding[n] - divmod(tap, kernel[1])[n] for n in range(2)]
                if not any(at[n] % stride[n] for n in range(2)):
                    seen = _window(slopes, [before[n] + at[n] // stride[n] for n in range(2)], [1, 1], many)
                    total = total + seen * each
            return total.to(slopes.dtype)

        lines = [
            torch.stack([given(row, column) for column in range(stride[1])], dim=3)
            for row in range(stride[0])
        ]
        return self._joined(torch.stack(lines, dim=2))[:, :, : size[0], : size[1]]

    def _by_tap(self, weight: Tensor) -> Tensor:
        """The weights of all channels beside each other."""
        return self._once(weight, "by tap", lambda: _written(_wide(weight).view(len(weight), -1).t()))

    def _once(self, x: Tensor, what: str, look: Callable[[], Tensor]) -> Tensor:
        """The backward pass, and a teacher, get the same as the first who asked."""
        what += f" {x.storage_offset()} {x._version} {x.shape} {x.stride()}"
        seen: Tensor | None = self.noted(x, what)
        if seen is None:
            seen = look()
            if self._compiled or torch.is_grad_enabled():  # else nobody will ask, and it takes memory
                self.note(x, what, seen)
        return seen

    def _rows(self, x: Tensor) -> Tensor:
        """Images as the rows of a matrix, one for each pixel."""
        return self._laid_out(x.permute(0, 2, 3, 1)).view(-1, x.shape[1])

    def _joined(self, windows: Tensor) -> Tensor:
        """Images of the windows that they are made of, [N, H, height, W, width, C]."""
        return self._laid_out(windows).flatten(3, 4).flatten(1, 2).permute(0, 3, 1, 2)

    def _laid_out(self, x: Tensor) -> Tensor:
        """Contiguous, so that it can be seen in another shape; for a compiler whatever it was, which may lay
        out values in other ways than they were when the step was traced, and leaves the copy out where it
        can."""
        return x.clone(memory_format=torch.contiguous_format) if self._compiled else x.contiguous()


def in_other_words(step: Callable[P, T]) -> Callable[P, T]:
    """A step whose convolutions are those of a compiled one, without a compiler. cuDNN would look for its
    kernels anew for every size of a batch: for MobileNetV2's layers, 8 s each on an H200."""

    def run(*arguments: P.args, **named: P.kwargs) -> T:
        with _Convolutions():
            return step(*arguments, **named)

    return run


class _Convolutions(TorchDispatchMode):  # type: ignore[no-untyped-call]
    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        rewriting = Rewriting(compiled=False)
        self._table: dict[Any, Callable[..., Any]] = {
            aten.convolution.default: rewriting.convolution,
            aten.convolution_backward.default: rewriting.convolution_backward,
        }

    def __torch_dispatch__(self, operator: Any, _: Any, arguments: Any = (), named: Any = None) -> Any:
        done = self._table[operator](*arguments) if operator in self._table else NotImplemented
        return operator(*arguments, **(named or {})) if done is NotImplemented else done


def _product(a: Tensor, b: Tensor) -> Tensor:
    sizes = [n for n in (*a.shape, b.shape[1]) if isinstance(n, int)]  # the size of a batch may be a symbol
    slim = any(n <= SLIM and n % 8 for n in sizes) and math.prod(sizes) <= SMALL
    if not slim or a.dtype not in (torch.bfloat16, torch.float16):
        return NotImplemented  # type: ignore[no-any-return]
    return (_wide(a)[:, None] * _wide(b).t()).sum(dim=2).to(a.dtype)


def _sum_and_product(base: Tensor, a: Tensor, b: Tensor, *, beta: float = 1, alpha: float = 1) -> Tensor:
    product = _product(a, b) if beta == alpha == 1 else NotImplemented
    return product if product is NotImplemented else product + base


def _kind(
    x: Tensor,
    weight: Tensor,
    stride: list[int],
    padding: list[int],
    dilation: list[int],
    transposed: bool,
    groups: int,
) -> str:
    if weight.ndim != 4 or transposed or set(dilation) != {1}:
        return "other"
    channels_last = x.stride(1) == 1
    if 1 < groups == x.shape[1] == len(weight) and channels_last:
        return "depthwise" if all(padding[n] < weight.shape[2 + n] for n in range(2)) else "other"
    if groups > 1 or x.dtype == torch.float32:
        return "other"
    if weight.shape[2:] == (1, 1) and set(stride) == {1} and set(padding) == {0} and channels_last:
        return "pointwise"
    return "stem" if weight.shape[1] < FEW else "other"


def _tiles(
    x: Tensor,
    kernel: list[int],
    stride: list[int] | None,
    padding: list[int] | int,
    dilation: list[int] | int,
) -> bool:
    """Whether pooling windows lie side by side and cover images that are channels last."""

    def only(number: int, given: list[int] | int) -> bool:
        return all(each == number for each in (given if isinstance(given, list) else [given]))

    side_by_side = list(stride or kernel) == list(kernel) and only(0, padding) and only(1, dilation)
    covered = x.ndim == 4 and not any(x.shape[2 + n] % kernel[n] for n in range(2))
    return side_by_side and covered and x.stride(1) == 1


def _taps(framed: Tensor, weight: Tensor, stride: list[int], size: list[int]) -> list[Tensor]:
    """Framed images as each weight of a kernel sees them, in the size of the output."""
    places = ([i, j] for i in range(weight.shape[2]) for j in range(weight.shape[3]))
    return [_window(framed, place, stride, size) for place in places]


def _window(images: Tensor, place: list[int], stride: list[int], size: list[int]) -> Tensor:
    """Pixels of images, channels last, from a place on."""
    rows, columns = (slice(place[n], place[n] + stride[n] * (size[n] - 1) + 1, stride[n]) for n in range(2))
    return images[:, rows, columns]


def _framed(images: Tensor, before: list[int], size: list[int]) -> Tensor:
    """Images, channels last, in larger ones of zeros."""
    after = [size[n] - before[n] - images.shape[1 + n] for n in range(2)]
    return _written(pad(images, (0, 0, before[1], after[1], before[0], after[0])))


def _written(x: Tensor) -> Tensor:
    """Seen like this, a compiler writes it into memory as it is, and makes it only once."""
    x = x.contiguous()
    return x.as_strided(x.shape, x.stride())


def _has_kernels(x: Tensor) -> bool:
    """Whether those of our own take it."""
    return x.is_cuda and x.dtype != torch.float64


def _others(x: Tensor) -> list[int]:
    """All dimensions but that of the channels."""
    return [0, *range(2, x.ndim)]


def _per_channel(values: Tensor, x: Tensor) -> Tensor:
    """One for each channel, beside images."""
    return values.view(-1, *[1] * (x.ndim - 2))


def _wide(x: Tensor) -> Tensor:
    """As it is calculated with."""
    return x.float() if x.dtype in (torch.bfloat16, torch.float16) else x


def _back(rows: Tensor, like: Any) -> Tensor:
    """Images of a batch and size like another's, channels last."""
    return rows.view(like[0], like[2], like[3], -1).permute(0, 3, 1, 2)


def _size(x: Tensor, weight: Tensor, stride: list[int], padding: list[int]) -> list[int]:
    return [(x.shape[2 + n] + 2 * padding[n] - weight.shape[2 + n]) // stride[n] + 1 for n in range(2)]


def _matrix(weight: Tensor) -> Tensor:
    """The weights for `columns`."""
    lines = weight.permute(2, 3, 1, 0).flatten(1, 2)
    return pad(lines, (0, 0, 0, -lines.shape[1] % 8)).flatten(0, 1)
