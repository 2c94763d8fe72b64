"""A step made over by a compiler: its forward and backward passes, loss and optimiser as one program.

The step is traced once, at the level of PyTorch's operators, gradients already taken, so a method needs to
know nothing of it. TorchInductor makes the program; convolutions it would leave to cuDNN, and pooling, are
put in other words where that is faster.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import reduce
from operator import add, mul
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad
from torch.utils import _pytree as pytree

from unskew.engines.kernels import tap_slopes
from unskew.errors import UserError

if TYPE_CHECKING:
    from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
    from torch.fx import GraphModule

aten = torch.ops.aten

FEW = 8
"""Input channels below which cuDNN has no kernel for tensor cores: those of images."""
PAYS = 0.05
"""Share of all work below which something is not worth the time to compile it."""
OPTIONS: dict[str, Any] = {
    # One kernel for small things that do not depend on each other: 154 us instead of 176 for a step of
    # FedLMD's network (H200, bf16, batch 50).
    "combo_kernels": True,
    # PyTorch 2.11 fails over it where an optimiser's update of many tensors is one kernel.
    "loop_ordering_after_fusion": False,
}

READ_AGAIN = {"realize_reads_threshold": 8}
"""What is made of so many values is made again by all who need it, not written: a normalised value is made of
five, and 4 is the default."""


def fuse(step: Callable[..., None], *example: Any) -> Callable[..., None]:
    """The same step, for arguments of the same shapes: what it does is change tensors among them. It runs
    once, on the example."""
    leaves, mode = pytree.tree_leaves(example), _fake_mode()
    with _compiling():
        fakes = [mode.from_tensor(leaf, static_shapes=True) for leaf in leaves]
        return _compiled(_traced(step, example, leaves, "real"), fakes, mode)


class Sized(NamedTuple):
    """A step for batches of any number of samples that fits."""

    run: Callable[..., None]
    fits: Callable[[int], bool]


def fuse_any_size(step: Callable[..., None], *example: Any, batch: Sequence[Tensor]) -> Sized | None:
    """The same step for batches of other sizes too, if it can be had. `batch`: those tensors of the example
    whose first dimension that is."""
    from torch.fx.experimental.symbolic_shapes import DimDynamic, StatelessSymbolicContext

    leaves, mode = pytree.tree_leaves(example), _fake_mode()
    sizes = mode.shape_env
    assert sizes is not None
    varying = {id(each) for each in batch}

    def fake(leaf: Tensor) -> FakeTensor:
        if id(leaf) not in varying:
            return mode.from_tensor(leaf, static_shapes=True)
        dims = [DimDynamic.DUCK, *[DimDynamic.STATIC] * (leaf.ndim - 1)]
        return mode.from_tensor(leaf, symbolic_context=StatelessSymbolicContext(dynamic_sizes=dims))

    def of(n: int, leaf: Tensor) -> Tensor:
        return torch.empty_strided((n, *leaf.shape[1:]), leaf.stride(), dtype=leaf.dtype, device="meta")

    def fits(n: int) -> bool:
        """Whether nothing that was taken for granted is otherwise for such a batch."""
        given = [of(n, leaf) if id(leaf) in varying else leaf for leaf in leaves]
        return sizes.evaluate_guards_for_args(fakes, given, ignore_static=False)

    with suppress(UserError), _compiling():
        fakes = [fake(leaf) for leaf in leaves]
        return Sized(_compiled(_traced(step, example, fakes, "symbolic"), fakes, mode), fits)
    return None


def _fake_mode() -> FakeTensorMode:
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    return FakeTensorMode(shape_env=ShapeEnv(), allow_non_fake_inputs=True)


def _traced(
    step: Callable[..., None], example: Any, leaves: Sequence[Tensor], mode: Literal["real", "symbolic"]
) -> GraphModule:
    """All that it does to the leaves of the example, gradients already taken."""
    from torch.fx.experimental.proxy_tensor import make_fx

    shape = pytree.tree_structure(example)

    def flat(*values: Tensor) -> tuple[()]:
        step(*pytree.tree_unflatten(values, shape))
        return ()

    rewriting = Rewriting()
    table: dict[Any, Callable[..., Any]] = {
        aten.convolution.default: rewriting.convolution,
        aten.convolution_backward.default: rewriting.convolution_backward,
        aten.max_pool2d_with_indices.default: rewriting.max_pool,
        aten.max_pool2d_with_indices_backward.default: rewriting.max_pool_backward,
    }
    traced: GraphModule = make_fx(flat, decomposition_table=table, tracing_mode=mode)(*leaves)
    return traced


def _compiled(traced: GraphModule, leaves: Sequence[Tensor], mode: FakeTensorMode) -> Callable[..., None]:
    import torch._inductor as inductor  # here: it takes a second
    from torch._guards import TracingContext, tracing

    options = OPTIONS | (READ_AGAIN if _look_before_relus(traced) else {})
    with tracing(TracingContext(mode)):  # without which the compiler does not look into its cache
        program = inductor.compile(traced, [*leaves], options=options)

    def run(*arguments: Any) -> None:
        program(*pytree.tree_leaves(arguments))

    return run


def _look_before_relus(traced: GraphModule) -> bool:
    """Let the gradient of a ReLU that follows a batch normalisation ask for the sign of what went in, not of
    what came out: all that this is made of is read there anyway. Whether there was any."""
    found = False
    for node in traced.graph.nodes:
        if node.target is aten.threshold_backward.default:
            grad, result, threshold = node.args
            while result.target is aten.detach.default:
                result = result.args[0]
            if result.target is aten.relu.default and "batch_norm" in str(result.args[0].args[0]):
                node.args, found = (grad, result.args[0], threshold), True
    if found:
        traced.recompile()
    return found


@contextmanager
def _compiling() -> Iterator[None]:
    """Without the compiler's advice, which is for those who use it directly."""
    logger = logging.getLogger("torch._inductor")
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    except UserError:
        raise
    except Exception as error:  # a compiler's errors are of any kind
        reason = str(error).strip().splitlines()[0].rstrip(".")
        raise UserError(f"this method's step cannot be compiled ({reason}): leave fast=true out.") from error
    finally:
        logger.setLevel(before)


class Rewriting:
    """Convolutions and pooling in words for which a compiler makes faster programs; NotImplemented where it
    does well already."""

    def __init__(self) -> None:
        # By the place in memory of a tensor, which is kept beside it so that its place is not reused.
        self._looks: dict[tuple[object, ...], tuple[Tensor, Tensor]] = {}
        self._which: dict[int, tuple[Tensor, Tensor]] = {}

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
            y = _back(_rows(x) @ weight.flatten(1).t(), x.shape)
        elif kind == "stem":
            size = [x.shape[0], 0, *_size(x, weight, stride, padding)]
            y = _back(self.columns(x, weight, stride, padding) @ _matrix(weight), size)
        elif kind == "depthwise":
            taps = _taps(self.framed(x, padding), weight, stride, _size(x, weight, stride, padding))
            y = _weighed(taps, self.by_tap(weight))
            # Written, because batch normalisation turns it into float32 next, and would have it written so.
            # Not for a teacher, whose statistics are known: what follows is done at once.
            y = (_written(y) if torch.is_grad_enabled() else y).permute(0, 3, 1, 2)
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
        rows = _rows(grad)
        if kind == "pointwise":
            if output_mask[0]:
                to_x = _back(rows @ weight.flatten(1), x.shape)
            if output_mask[1]:
                to_weight = (rows.t() @ _rows(x)).view_as(weight)
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
            frame = [x.shape[2 + n] + weight.shape[2 + n] - 1 for n in range(2)]
            before = [weight.shape[2 + n] - 1 - padding[n] for n in range(2)]
            slopes = _framed(_spread(grad, stride).permute(0, 2, 3, 1), before, frame)
            if output_mask[0]:
                taps = _taps(slopes, weight, [1, 1], list(x.shape[2:]))
                to_x = _written(_weighed(taps[::-1], self.by_tap(weight))).permute(0, 3, 1, 2)
            if output_mask[1]:
                framed, size = self.framed(x, padding), list(grad.shape[2:])
                if x.is_cuda and x.dtype != torch.float64 and weight.shape[2:] == (3, 3):
                    sums = tap_slopes(framed, slopes, before, stride, size)
                else:
                    pixels = _window(slopes, before, stride, size)
                    taps = _taps(framed, weight, stride, size)
                    sums = torch.stack([(pixels * tap).sum(dim=(0, 1, 2)) for tap in taps])
                to_weight = sums.t().reshape(weight.shape).to(weight.dtype)
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
        self._which[index.untyped_storage()._cdata] = index, which
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
        place = index.untyped_storage()._cdata
        if place not in self._which:
            return NotImplemented  # type: ignore[no-any-return]
        (_, which), (height, width) = self._which[place], kernel
        windows = _laid_out(grad.permute(0, 2, 3, 1))[:, :, None, :, None]
        here = torch.arange(height * width, device=x.device, dtype=torch.int8).view(height, 1, width, 1)
        return _joined(torch.where(which[:, :, None, :, None] == here, windows, 0))

    def columns(self, x: Tensor, weight: Tensor, stride: list[int], padding: list[int]) -> Tensor:
        """What each output pixel sees of the input, a row each. Lines of windows first, filled up to a
        multiple of eight numbers, then several lines below each other: moved in pieces, not one by one."""

        def look() -> Tensor:
            N, (H, W) = x.shape[0], _size(x, weight, stride, padding)
            wide = pad(x, (padding[1], padding[1], padding[0], padding[0]))
            lines = _laid_out(wide.unfold(3, weight.shape[3], stride[1]).permute(0, 2, 3, 4, 1)).flatten(3)
            lines = _laid_out(pad(lines, (0, -lines.shape[3] % 8)))
            image, line, pixel, _ = lines.stride()
            seen = lines.as_strided(
                (N, H, W, weight.shape[2], lines.shape[3]), (image, stride[0] * line, pixel, line, 1)
            )
            return _laid_out(seen).view(N * H * W, -1)

        return self._once(x, f"columns {weight.shape[2:]} {stride} {padding}", look)

    def framed(self, x: Tensor, padding: list[int]) -> Tensor:
        """Images in a frame of zeros, channels last, all that is written of them."""

        def look() -> Tensor:
            size = [x.shape[2 + n] + 2 * padding[n] for n in range(2)]
            return _framed(x.permute(0, 2, 3, 1), padding, size)

        return self._once(x, f"frame {padding}", look)

    def by_tap(self, weight: Tensor) -> Tensor:
        """The kernels' weights, those of all channels beside each other."""
        return self._once(weight, "by tap", lambda: _written(weight.view(len(weight), -1).t()))

    def _once(self, x: Tensor, what: str, look: Callable[[], Tensor]) -> Tensor:
        """The backward pass, and a teacher, get the same as the first who asked."""
        place = x.untyped_storage()._cdata, x.storage_offset(), x._version
        key = (*place, f"{x.shape} {x.stride()}", what)  # a text, because sizes may be symbols
        if key not in self._looks:
            self._looks[key] = x, look()
        return self._looks[key][1]


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


def _weighed(taps: list[Tensor], weights: Tensor) -> Tensor:
    """The sum of what a kernel of each channel's own sees."""
    total: Tensor = reduce(add, map(mul, taps, weights.unbind()))
    return total


def _written(x: Tensor) -> Tensor:
    """Seen like this, a compiler writes it into memory as it is, and makes it only once."""
    x = x.contiguous()
    return x.as_strided(x.shape, x.stride())


def _spread(grad: Tensor, stride: list[int]) -> Tensor:
    """The output's pixels where they lie in the input, zeros between them."""
    if set(stride) == {1}:
        return grad
    pixels = _laid_out(grad.permute(0, 2, 3, 1))
    return _joined(pad(pixels[:, :, None, :, None], (0, 0, 0, stride[1] - 1, 0, 0, 0, stride[0] - 1)))


def _joined(windows: Tensor) -> Tensor:
    """Images of the windows that they are made of, [N, H, height, W, width, C]."""
    return _laid_out(windows).flatten(3, 4).flatten(1, 2).permute(0, 3, 1, 2)


def _rows(x: Tensor) -> Tensor:
    """Images as the rows of a matrix, one for each pixel."""
    return _laid_out(x.permute(0, 2, 3, 1)).view(-1, x.shape[1])


def _laid_out(x: Tensor) -> Tensor:
    """Contiguous whatever it was, so that it can be seen in another shape: a compiler may lay out values in
    other ways than they were when the step was traced. It leaves the copy out where it can."""
    return x.clone(memory_format=torch.contiguous_format)


def _back(rows: Tensor, like: Any) -> Tensor:
    """Images of a batch and size like another's, channels last."""
    return rows.view(like[0], like[2], like[3], -1).permute(0, 3, 1, 2)


def _size(x: Tensor, weight: Tensor, stride: list[int], padding: list[int]) -> list[int]:
    return [(x.shape[2 + n] + 2 * padding[n] - weight.shape[2 + n]) // stride[n] + 1 for n in range(2)]


def _matrix(weight: Tensor) -> Tensor:
    """The weights for `columns`."""
    lines = weight.permute(2, 3, 1, 0).flatten(1, 2)
    return pad(lines, (0, 0, 0, -lines.shape[1] % 8)).flatten(0, 1)
