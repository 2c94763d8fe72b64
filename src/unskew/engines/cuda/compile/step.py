"""A step as one compiled program: forward and backward passes, loss and optimiser.

The step is traced once, at the level of PyTorch's operators, gradients already taken, so that methods need
nothing for it. Some operators are decomposed in the trace, then TorchInductor makes the program.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from unskew.engines.cuda.compile.decompositions import Decompositions, left_out
from unskew.errors import UserError
from unskew.garbage_collection import without_collection

if TYPE_CHECKING:
    from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
    from torch.fx import GraphModule

GAIN = 0.4
"""The share of the time of a part of the work that compiling it usually saves."""


def worth_compiling(seconds: float, takes: float) -> bool:
    """Say whether compiling what will run for `seconds` saves more time than the `takes` seconds of
    compiling."""
    return GAIN * seconds > takes


def compile_step(step: Callable[..., None], *example: Any) -> Callable[..., None]:
    """Return the compiled step for arguments of the example's shapes. It changes tensors among its arguments,
    as the step does."""
    leaves, mode = pytree.tree_leaves(example), _fake_mode()
    with _compiling():
        fakes = [mode.from_tensor(leaf, static_shapes=True) for leaf in leaves]
        return _compile(_trace(step, example, fakes, "real"), fakes, mode)


class AnyBatchStep(NamedTuple):
    """A compiled step for batches of any number of samples that `fits`."""

    run: Callable[..., None]
    fits: Callable[[int], bool]


def compile_step_for_any_batch(
    step: Callable[..., None], *example: Any, batch: Sequence[Tensor]
) -> AnyBatchStep | None:
    """Return the compiled step for batches of other sizes too, or None if there can be none. `batch` are the
    tensors of the example whose first dimension is the size."""
    from torch.fx.experimental.symbolic_shapes import DimDynamic, StatelessSymbolicContext

    if "any_batch" in left_out():
        return None
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
        """Return whether all that the trace assumed of its batch holds for one of this size."""
        given = [of(n, leaf) if id(leaf) in varying else leaf for leaf in leaves]
        return sizes.evaluate_guards_for_args(fakes, given, ignore_static=False)

    with suppress(UserError), _compiling():
        fakes = [fake(leaf) for leaf in leaves]
        return AnyBatchStep(_compile(_trace(step, example, fakes, "symbolic"), fakes, mode), fits)
    return None


def _fake_mode() -> FakeTensorMode:
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    return FakeTensorMode(shape_env=ShapeEnv(), allow_non_fake_inputs=True)


def _trace(
    step: Callable[..., None], example: Any, leaves: Sequence[Tensor], mode: Literal["real", "symbolic"]
) -> GraphModule:
    """Return all that a step does to the leaves of the example, gradients already taken."""
    from torch.fx.experimental.proxy_tensor import make_fx

    structure = pytree.tree_structure(example)

    def flat(*values: Tensor) -> tuple[()]:
        step(*pytree.tree_unflatten(values, structure))
        return ()

    table = Decompositions(without=left_out()).all
    traced: GraphModule = make_fx(flat, decomposition_table=table, tracing_mode=mode)(*leaves)
    # It cannot be pickled, which would keep the program out of the compiler's cache.
    traced.__dict__.pop("shape_env", None)
    return traced


def _compile(traced: GraphModule, leaves: Sequence[Tensor], mode: FakeTensorMode) -> Callable[..., None]:
    import torch._inductor as inductor  # here, because it takes a second
    from torch._guards import TracingContext, tracing

    with tracing(TracingContext(mode)):  # without it the compiler does not use its cache
        program = inductor.compile(traced, [*leaves], options=_options())

    def run(*arguments: Any) -> None:
        program(*pytree.tree_leaves(arguments))

    return run


def _options() -> dict[str, Any]:
    return {
        # One kernel for small operations that do not depend on each other: 154 us instead of 176 for a step
        # of FedLMD's network (H200, bf16, batch 50).
        "combo_kernels": "combo_kernels" not in left_out(),
        # PyTorch 2.11 fails with it if an optimiser's update of many tensors is one kernel.
        "loop_ordering_after_fusion": False,
    }


@contextmanager
def _compiling() -> Iterator[None]:
    """Silence the compiler's advice, which is for direct users, and turn its errors into one sentence.
    Garbage is not collected, which would take a third of the time of importing the compiler."""
    logger = logging.getLogger("torch._inductor")
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings(), without_collection():
            warnings.filterwarnings("ignore", module=r"torch\._inductor")
            yield
    except UserError:
        raise
    except Exception as error:  # a compiler's errors are of any kind
        lines = str(error).strip().splitlines() or [type(error).__name__]
        reason = lines[0].rstrip(".")
        raise UserError(f"this method's step cannot be compiled ({reason}): leave fast=true out.") from error
    finally:
        logger.setLevel(before)
