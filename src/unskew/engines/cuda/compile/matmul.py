"""Small matrix products as sums, which a compiler fuses with the operations around them.

Up to `MAX_SIDE` rows or columns and `MAX_PRODUCTS` multiplications this is faster than cuBLAS: ten classes do
not fill a tensor core, and cuBLAS takes its slowest kernels if rows do not start at multiples of 16 bytes.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from unskew.engines.cuda.compile.context import upcast

MAX_SIDE, MAX_PRODUCTS = 16, 2**21


def mm(a: Tensor, b: Tensor) -> Tensor:
    """Multiply two matrices in half precision if one of them has few rows or columns."""
    sizes = [n for n in (*a.shape, b.shape[1]) if isinstance(n, int)]  # the size of a batch may be a symbol
    small = any(n <= MAX_SIDE and n % 8 for n in sizes) and math.prod(sizes) <= MAX_PRODUCTS
    if not small or a.dtype not in (torch.bfloat16, torch.float16):
        return NotImplemented  # type: ignore[no-any-return]
    return (upcast(a)[:, None] * upcast(b).t()).sum(dim=2).to(a.dtype)


def addmm(base: Tensor, a: Tensor, b: Tensor, *, beta: float = 1, alpha: float = 1) -> Tensor:
    """Multiply two matrices as `mm` does, and add a third."""
    product = mm(a, b) if beta == alpha == 1 else NotImplemented
    return product if product is NotImplemented else product + base
