"""Settings under which the same work gives the same bits."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def steady(device: torch.device, threads: int) -> Iterator[None]:
    """A fixed number of CPU threads, deterministic kernels, full float32 on a GPU; the random state and the
    settings of the caller are put back afterwards."""
    # cuBLAS reads this when it starts: https://docs.nvidia.com/cuda/cublas/#results-reproducibility
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    devices = [device] if device.type == "cuda" else []
    flags = torch.backends.cudnn.flags(enabled=True, benchmark=False, deterministic=True, allow_tf32=False)
    try:
        with flags, torch.random.fork_rng(devices=devices):
            yield
    finally:
        torch.set_num_threads(before)
