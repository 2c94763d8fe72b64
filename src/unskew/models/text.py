"""A bag of words for short texts.

The mean of the embeddings of a text's tokens, and a linear layer: fastText without n-grams (Joulin et al.,
EACL 2017). FedVLS reports AG News but prints no text model, so there is none to follow.

Deviations from fastText: no n-grams; embeddings from N(0, 1), PyTorch's default.
"""

from __future__ import annotations

from torch import nn

from unskew.errors import UserError
from unskew.models.net import Net
from unskew.types import Inputs


def text(inputs: Inputs, classes: int, norm: str, *, width: int = 64) -> Net:
    if not isinstance(width, int) or width < 1:
        raise UserError(f"width is {width!r} but should be a whole number of 1 or more.")
    # Id 0 is padding: it counts for nothing, and a text of padding alone becomes zero.
    return Net(nn.EmbeddingBag(inputs.vocabulary, width, mode="mean", padding_idx=0), width, classes)
