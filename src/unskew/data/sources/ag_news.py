"""AG News: titles and descriptions of news articles in four classes, as token ids."""

from __future__ import annotations

import csv
import io
from collections import Counter
from pathlib import Path

import numpy as np
import torch

from unskew.data.dataset import Dataset, Split
from unskew.data.sources.files import check_labels, damaged, find_file, read
from unskew.data.words import Words, tokenise
from unskew.errors import UserError

CLASSES = ("World", "Sports", "Business", "Sci/Tech")
COLUMNS = ("title", "description")


def ag_news(folder: Path, *, vocabulary: int = 20_000, length: int = 64, min_count: int = 2) -> Dataset:
    """Read AG News, each text as `length` token ids, cut or padded with 0 at the end.

    Id 0 is padding and 1 an unknown word. Then follow the words of the training texts that occur `min_count`
    times or more, by falling frequency (in alphabetical order if that is equal), up to `vocabulary` ids in
    all."""
    if vocabulary < 3 or length < 1 or min_count < 1:
        raise UserError("ag_news needs vocabulary of at least 3, length and min_count of at least 1.")
    train, train_labels = read_csv(find_file(folder, "train.csv"))
    test, test_labels = read_csv(find_file(folder, "test.csv"))
    counts = Counter(word for words in train for word in words)
    frequent = sorted((-n, word) for word, n in counts.items() if n >= min_count)[: vocabulary - 2]
    words = Words(tuple(word for _, word in frequent), length, COLUMNS)
    return Dataset(
        "ag_news",
        Split(words.encode(train), train_labels),
        Split(words.encode(test), test_labels),
        CLASSES,
        vocabulary=words.ids,
        words=words,
    )


def read_csv(path: Path) -> tuple[list[list[str]], torch.Tensor]:
    """Read rows of class 1..4, title and description; return the words of each text, and the labels 0..3."""
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
