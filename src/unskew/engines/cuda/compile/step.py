"""A step made over by a compiler: its forward and backward passes, loss and optimiser as one program.

The step is traced once, at the level of PyTorch's operators, gradients already taken, so a method needs to
know nothing of it. Some of them are put in other words (`rewrite`), then TorchInductor makes the program.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from unskew.engines.cuda.compile.decompositions import Rewriting
from unskew.errors import UserError

if TYPE_CHECKING:
    from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
    from torch.fx import GraphModule

PAYS = 0.05
"""Share of all work below which something is not worth the time to compile it."""
OPTIONS: dict[str, Any] = {
    # One kernel for small things that do not depend on each other: 154 us instead of 176 for a step of
    # FedLMD's network (H200, bf16, batch 50).
    "combo_kernels": True,
    # PyTorch 2.11 fails over it where an optimiser's update of many tensors is one kernel.
    "loop_ordering_after_fusion": False,
}


def fuse(step: Callable[..., None], *example: Any) -> Callable[..., None]:
    """The same step, for arguments of the same shapes: what it does is change tensors among them."""
    leaves, mode = pytree.tree_leaves(example), _fake_mode()
    with _compiling():
        fakes = [mode.from_tensor(leaf, static_shapes=True) for leaf in leaves]
        return _compiled(_traced(step, example, fakes, "real"), fakes, mode)


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

    traced: GraphModule = make_fx(flat, decomposition_table=Rewriting().table(), tracing_mode=mode)(*leaves)
    return traced


def _compiled(traced: GraphModule, leaves: Sequence[Tensor], mode: FakeTensorMode) -> Callable[..., None]:
    import torch._inductor as inductor  # here: it takes a second
    from torch._guards import TracingContext, tracing

    with tracing(TracingContext(mode)):  # without which the compiler does not look into its cache
        program = inductor.compile(traced, [*leaves], options=OPTIONS)

    def run(*arguments: Any) -> None:
        program(*pytree.tree_leaves(arguments))

    return run


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
