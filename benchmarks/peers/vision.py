"""Lets `import torchvision` work with a CPU build of PyTorch.

PyPI has torchvision for CUDA only. Without CUDA it cannot load its binary part, and then fails because
operators are missing that no code here calls. They are declared first.
"""

from __future__ import annotations

import torch

if not torch.cuda.is_available():
    library = torch.library.Library("torchvision", "DEF")
    for name in ("nms", "qnms"):
        library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
