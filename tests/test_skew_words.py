"""How skewed a federation is, in one sentence."""

from __future__ import annotations

import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from unskew.data import federate, load
from unskew.skew_words import describe_skew


@pytest.mark.parametrize(
    ("counts", "more", "says"),
    [
        (
            [[50, 0, 0, 0], [0, 20, 0, 0], [0, 1, 1, 300]],
            {"samples": "images"},
            "a client lacks 2.3 of 4 classes; half the clients hold under 51 images, the largest 302; "
            "the largest class has 300 times the images of the smallest",
        ),
        ([[9, 0, 0], [0, 10, 0], [0, 0, 9]], {}, "each client holds one of 3 classes and about 9 samples"),
        (
            [[30, 30], [30, 30]],
            {"samples": "rows"},
            "no skew: every client holds both classes in much the same shares, 60 rows each",
        ),
        (
            [[50, 52, 49], [500, 502, 501], [20, 21, 19]],
            {},
            "every client holds all 3 classes in much the same shares; half the clients hold under 160 "
            "samples, the largest 1,503",
        ),
        (
            [[90, 10], [20, 80]],
            {},
            "every client holds both classes, its largest is 80 to 90 % of its samples, 100 samples each",
        ),
        (
            [[90, 10, 4], [20, 80, 0], [10, 10, 10]],
            {"names": ("Bern", "Köln", "Lyon"), "samples": "rows"},
            "1 of 3 sites lacks one of 3 classes; 30 rows (Lyon) to 104 (Bern); the largest class has "
            "9 times the rows of the smallest",
        ),
        (
            [[5, 0], [0, 5], [0, 0]],
            {},
            "a client lacks 1.3 of 2 classes and holds 5 samples; 1 client holds nothing",
        ),
        (
            [[5, 0, 5], [5, 0, 5]],
            {},
            "each client holds 2 of 3 classes and 10 samples; nobody holds one of them",
        ),
        (
            [[5, 0, 5]] * 3,
            {"clients": 10**6, "cohort": 10},
            "of the first 3 of 1,000,000 clients: each client holds 2 of 3 classes and 10 samples; "
            "nobody holds one of them",
        ),
        # Two of four clients, each with a class of its own, lack two of four classes whoever they are.
        (
            np.diag([7, 7, 7, 7]).tolist(),
            {"cohort": 2},
            "each client holds one of 4 classes and 7 samples; the 2 clients of a round together lack 2",
        ),
        (
            np.diag([7, 7, 7, 7]).tolist(),
            {"cohort": 1},
            "each client holds one of 4 classes and 7 samples; the one client of a round lacks 3",
        ),
        ([[5, 6]], {}, "one client holds all 11 samples of 2 classes"),
    ],
)
def test_a_skew_in_words(counts, more, says):
    assert describe_skew(np.array(counts), **more) == says


def test_what_data_call_their_samples():
    words = {"digits": "images", "heart-disease": "rows", "synthetic:1,1,clients=3": "rows"}
    for name, called in words.items():
        dataset = load(name)
        assert dataset.samples == called
    digits = federate(load("digits"), "dirichlet:0.1", clients=10, seed=1)
    text = describe_skew(digits.partition.counts, samples=digits.dataset.samples)
    assert text.startswith(f"a client lacks {digits.partition.vacant.mean():.1f} of 10 classes; ")


@given(arrays(np.int64, st.tuples(st.integers(1, 12), st.integers(2, 6)), elements=st.integers(0, 500)))
def test_any_counts_have_a_sentence_and_its_half_is_half(counts):
    text = describe_skew(counts, cohort=max(1, len(counts) // 2))
    assert text
    assert "nan" not in text
    sizes = counts.sum(axis=1)
    if found := re.search(r"half the clients hold under ([\d,]+) ", text):
        assert np.mean(sizes < int(found[1].replace(",", ""))) >= 0.5
    if found := re.search(r"lacks ([\d.]+) of", text):
        assert found[1] == f"{(counts == 0).sum(axis=1).mean():.1f}".removesuffix(".0") or "lacks one" in text
