"""How much of what clients keep stays in memory by default."""

from __future__ import annotations

import torch

from unskew.machine import GIB, machine_memory

MOST_ON_HOST = GIB
"""The most bytes in host memory when training on a CPU. The rest is in files, which the system holds in
memory too as long as it has some to spare."""
HOST_SHARE = 1 / 8
"""The share of the machine's memory that is used when training on a CPU, if it is less than
`MOST_ON_HOST`."""
HOST_SHARE_WITH_GPU = 1 / 4
"""The share of the machine's memory that is used when training on a GPU, where reading from disk costs
more."""
DEVICE_SHARE = 1 / 4
"""The share of a GPU's memory that is used, of what is free when the first client keeps something."""


def default_limit(device: torch.device) -> int:
    """Return how many bytes of what clients keep stay in host memory if no limit is set."""
    if device.type == "cuda":
        return int(HOST_SHARE_WITH_GPU * machine_memory())
    return min(MOST_ON_HOST, int(HOST_SHARE * machine_memory()))


def device_limit(device: torch.device) -> int:
    """Return how many bytes of what clients keep may stay on a GPU, from the memory that is free on it
    now."""
    return int(DEVICE_SHARE * torch.cuda.mem_get_info(device)[0])
