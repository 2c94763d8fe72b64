"""AG News: titles and descriptions of news articles in four classes, as token ids."""

from __future__ import annotations

import csv
import html
import io
import re
from collections import Counter
from pathlib import Path

import numpy as np
import torch

from unskew.data.dataset import Dataset, Split
from unskew.data.sources.files import check_labels, damaged, find_file, read
from unskew.errors import UserError

CLASSES = ("World", "Sports", "Business", "Sci/Tech")
PADDING, UNKNOWN = 0, 1
ENTITY = re.compile(r"&?#(\d+);")  # the files hold "#39;" where "&#39;" was meant
WORD = re.compile(r"\w+(?:'\w+)?")


def ag_news(folder: Path, *, vocabulary: int = 20_000, length: int = 64, min_count: int = 2) -> Dataset:
    """Texts as `length` token ids, cut or padded with 0 at the end.

    Ids are 0 padding, 1 unknown, then the words of the training texts from the most frequent on (words of
    equal frequency in alphabetical order): at most `vocabulary` ids in all, of words that occur `min_count`
    times."""
    if vocabulary < 3 or length < 1 or min_count < 1:
        raise UserError("ag_news needs vocabulary of at least 3, length and min_count of at least 1.")
    train, train_labels = read_csv(find_file(folder, "train.csv"))
    test, test_labels = read_csv(find_file(folder, "test.csv"))
    counts = Counter(word for words in train for word in words)
    frequent = sorted((-n, word) for word, n in counts.items() if n >= min_count)[: vocabulary - 2]
    ids = {word: i for i, (_, word) in enumerate(frequent, start=UNKNOWN + 1)}
    return Dataset(
        "ag_news",
        Split(encode(train, ids, length), train_labels),
        Split(encode(test, ids, length), test_labels),
        CLASSES,
        vocabulary=len(ids) + 2,
    )


def tokenise(text: str) -> list[str]:
    """Lower-case words. The files write line breaks as a backslash, and HTML entities without their "&"."""
    if "#" in text or "&" in text:
        text = html.unescape(ENTITY.sub(r"&#\1;", text))
    return WORD.findall(text.replace("\\", " ").lower())


def read_csv(path: Path) -> tuple[list[list[str]], torch.Tensor]:
    """Rows of class 1..4, title, description."""
    content = read(path)
    texts, labels = [], []
    try:
        for row in csv.reader(io.StringIO(content.decode("utf-8"), newline=""), strict=True):
            label, title, description = row
            texts.append(tokenise(f"{title} {description}"))
            labels.append(int(label))
    except (ValueError, csv.Error) as error:  # UnicodeDecodeError is a ValueError
        raise damaged(
            path, f"is not a table of class, title and description in row {len(labels) + 1}"
        ) from error
    return texts, torch.from_numpy(check_labels(np.array(labels), 4, path, first=1))


def encode(texts: list[list[str]], ids: dict[str, int], length: int) -> torch.Tensor:
    out = np.full((len(texts), length), PADDING, np.int32)
    for row, words in zip(out, texts, strict=True):
        tokens = [ids.get(word, UNKNOWN) for word in words[:length]]
        row[: len(tokens)] = tokens
    return torch.from_numpy(out)
