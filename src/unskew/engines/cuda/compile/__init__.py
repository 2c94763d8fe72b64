"""Training steps compiled as a whole, which is what `fast=true` asks for.

`step` traces a step at the level of PyTorch's operators, gradients already taken, and gives the trace to
TorchInductor. While it is traced, `decompositions` replaces operators for which the compiler would call a
library or make a slow program: convolutions (`convolution`, `im2col`, `depthwise`),
batch normalisation (`batch_norm`) and small matrix products (`matmul`). `depthwise_ops` has the operators
that PyTorch lacks, and `triton_kernels` their programs.
"""

from unskew.engines.cuda.compile.decompositions import decompose_convolutions
from unskew.engines.cuda.compile.step import (
    AnyBatchStep,
    compile_step,
    compile_step_for_any_batch,
    worth_compiling,
)

__all__ = [
    "AnyBatchStep",
    "compile_step",
    "compile_step_for_any_batch",
    "decompose_convolutions",
    "worth_compiling",
]
