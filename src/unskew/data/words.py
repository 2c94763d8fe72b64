"""How texts become token ids: learnt from training texts, then applied to any texts."""

from __future__ import annotations

import html
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from pydantic import TypeAdapter, ValidationError

from unskew.errors import UserError

PADDING, UNKNOWN = 0, 1
ENTITY = re.compile(r"&?#(\d+);")  # AG News has "#39;" instead of "&#39;"
WORD = re.compile(r"\w+(?:'\w+)?")


@dataclass(frozen=True)
class Words:
    """The words that have a token id. A text becomes `length` ids: it is cut, or padded with 0 at its end.
    Id 1 stands for every other word."""

    words: tuple[str, ...]
    """The words with the ids 2, 3, ..."""
    length: int
    columns: tuple[str, ...] = ()
    """The columns of a table whose cells, with a blank between them, are the text."""

    @property
    def ids(self) -> int:
        """The number of token ids."""
        return len(self.words) + 2

    @cached_property
    def _ids(self) -> dict[str, int]:
        return {word: at for at, word in enumerate(self.words, start=UNKNOWN + 1)}

    def encode(self, texts: Sequence[Sequence[str]]) -> torch.Tensor:
        """Return the token ids of texts that are split into words, int32 [n, length]."""
        out = np.full((len(texts), self.length), PADDING, np.int32)
        for row, words in zip(out, texts, strict=True):
            tokens = [self._ids.get(word, UNKNOWN) for word in words[: self.length]]
            row[: len(tokens)] = tokens
        return torch.from_numpy(out)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, value: object) -> Words:
        """Return the words that `to_json` wrote."""
        try:
            return TypeAdapter(cls).validate_python(value)
        except ValidationError as error:
            where = ".".join(map(str, error.errors(include_url=False)[0]["loc"])) or "content"
            raise UserError(f"the words of a text model are not as they were written ({where}).") from None


def tokenise(text: str) -> list[str]:
    """Split a text into lower-case words. AG News writes line breaks as a backslash, and HTML entities
    without their "&"."""
    if "#" in text or "&" in text:
        text = html.unescape(ENTITY.sub(r"&#\1;", text))
    return WORD.findall(text.replace("\\", " ").lower())
