"""Settings under which the same work gives the same bits."""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Literal

import torch

from unskew.errors import UserError


@contextmanager
def deterministic(device: torch.device, threads: int, *, tf32: bool = False) -> Iterator[None]:
    """Use a fixed number of CPU threads, deterministic kernels and full float32, or on a GPU `tf32` if asked
    for. The caller's random state and settings are restored afterwards."""
    # cuBLAS reads this when it starts: https://docs.nvidia.com/cuda/cublas/#results-reproducibility
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    devices = [device] if device.type == "cuda" else []
    with ExitStack() as stack:
        stack.callback(torch.set_num_threads, torch.get_num_threads())
        torch.set_num_threads(threads)
        # PyTorch's shortcut for attention without gradient gives other bits, and is not taken while a step
        # is traced.
        stack.callback(torch.backends.mha.set_fastpath_enabled, torch.backends.mha.get_fastpath_enabled())
        torch.backends.mha.set_fastpath_enabled(False)
        if torch.is_autocast_enabled(device.type):  # by the caller: the trial says its own precision
            stack.enter_context(torch.autocast(device.type, enabled=False, cache_enabled=False))
        stack.enter_context(kernels(tf32=tf32))
        stack.enter_context(torch.random.fork_rng(devices=devices))
        yield


@contextmanager
def kernels(
    *, tf32: bool, choice: Literal["deterministic", "default", "fastest"] = "deterministic"
) -> Iterator[None]:
    """Choose a GPU's kernels within the context: those that always give the same bits, those that PyTorch
    takes by default, or those that cuDNN measures to be fastest."""
    with ExitStack() as stack:
        try:
            stack.callback(torch.set_float32_matmul_precision, torch.get_float32_matmul_precision())
            torch.set_float32_matmul_precision("high" if tf32 else "highest")
            flags = torch.backends.cudnn.flags(
                enabled=True,
                benchmark=choice == "fastest",
                deterministic=choice == "deterministic",
                allow_tf32=tf32,
            )
            stack.enter_context(flags)
        except RuntimeError:  # PyTorch refuses to mix settings of its older and newer interface
            raise UserError(
                "an fp32_precision of torch.backends was set, with which no trial can set its own "
                "precision: set it back to what it was."
            ) from None
        yield


# Options of mallopt, from <malloc.h> of the GNU C library.
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD, M_ARENA_MAX = -1, -3, -8
KEPT = 1 << 30


def keep_freed_memory(*, one_arena: bool = False) -> None:
    """Let this process keep up to 1 GiB of the memory it frees, instead of asking the system for fresh pages
    at every step, which with large activations takes a quarter of the time (MobileNetV2, batch 64).
    `one_arena` is for a process that works in one thread other than its first: the arenas of such threads
    are small and return their memory sooner. Does nothing with another C library."""
    if sys.platform != "linux":
        return
    with suppress(AttributeError):
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(M_MMAP_THRESHOLD, KEPT)
        mallopt(M_TRIM_THRESHOLD, KEPT)
        if one_arena:
            mallopt(M_ARENA_MAX, 1)
