"""The cache of drawn partitions: the same bits as drawing, whatever happens to its files."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
import torch

from unskew.data import join
from unskew.data.dataset import Dataset, Split
from unskew.data.partition import Partition
from unskew.data.partitions import Division, SamplePool, cached, partition

SKEW = "dirichlet:0.02,min_size=20,max_tries=5"  # has a note to keep, and more than one try


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every draw count as slow."""
    monkeypatch.setattr(cached, "SLOW", 0.0)


def table(labels: int = 0, owners: bool = False) -> Dataset:
    y = torch.from_numpy(np.random.RandomState(labels).permutation(np.repeat(np.arange(4), 100)))
    x = torch.arange(len(y), dtype=torch.float32)[:, None]
    return Dataset("toy", Split(x, y, y % 2 if owners else None), Split(x[:2], y[:2]), tuple("abcd"))


def facts(made: Partition) -> tuple[object, ...]:
    return made.index_sha256, made.recipe, made.seed, made.notes, made.tries, made.counts.tolist()


def files(cache: Path) -> list[Path]:
    return sorted((cache / "partitions").glob("*")) if cache.exists() else []


@pytest.mark.parametrize("skew", [SKEW, "iid:truncate=true", "natural", "quantity:1,variant=pfllib"])
def test_a_cached_partition_is_what_is_drawn(cache: Path, monkeypatch: pytest.MonkeyPatch, skew: str) -> None:
    data = table(owners=skew == "natural")
    drawn = facts(partition(data, skew, 2, 3))
    assert not files(cache)  # it was fast
    monkeypatch.setattr(cached, "SLOW", 0.0)
    assert facts(partition(data, skew, 2, 3)) == drawn
    assert len(files(cache)) == 1
    assert facts(partition(data, skew, 2, 3)) == drawn


@pytest.mark.usefixtures("slow")
def test_it_is_drawn_once_for_the_same_request_and_again_for_every_other() -> None:
    draws = []

    def draw() -> Division:
        draws.append(None)
        return Division((np.arange(3), np.arange(3, 3), np.arange(3, 5)), ("A note.",), 7)

    labels = np.array([0, 1, 0, 1, 1])
    pool = SamplePool(labels, 2)
    first, again = (cached.cached_division("some", pool, 3, 1, draw) for _ in range(2))
    assert len(draws) == 1
    assert [mine.tolist() for mine in again.clients] == [mine.tolist() for mine in first.clients]
    assert (again.notes, again.tries) == (("A note.",), 7)
    others = [
        ("other", pool, 3, 1),
        ("some", pool, 4, 1),
        ("some", pool, 3, 2),
        ("some", SamplePool(labels, 3), 3, 1),
        ("some", SamplePool(labels[::-1], 2), 3, 1),
        ("some", SamplePool(labels, 2, owners=labels), 3, 1),
        ("some", SamplePool(labels, 2, domains=labels), 3, 1),
        ("some", SamplePool(labels, 2, domains=labels, domain_names=("a", "b")), 3, 1),
    ]
    for request in others:
        cached.cached_division(*request, draw)
    assert len(draws) == 1 + len(others)


@pytest.mark.usefixtures("slow")
def test_a_damaged_file_is_drawn_anew_and_replaced(cache: Path) -> None:
    data = table()
    drawn = facts(partition(data, SKEW, 20, 1))
    (path,) = files(cache)
    whole = path.read_bytes()
    flipped = [whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :] for at in range(0, len(whole), 97)]
    for damaged in (b"", b"no archive", whole[:-1], whole[:2000], *flipped):
        path.write_bytes(damaged)
        assert facts(partition(data, SKEW, 20, 1)) == drawn
    path.write_bytes(whole[:2000])
    partition(data, SKEW, 20, 1)
    assert path.stat().st_size == len(whole)


@pytest.mark.usefixtures("slow")
def test_a_file_of_another_request_is_not_taken(cache: Path) -> None:
    partition(table(), SKEW, 20, 1)
    (other,) = files(cache)
    drawn = facts(partition(table(), SKEW, 20, 2))
    (mine,) = set(files(cache)) - {other}
    mine.write_bytes(other.read_bytes())
    assert facts(partition(table(), SKEW, 20, 2)) == drawn


@pytest.mark.usefixtures("slow")
def test_a_folder_that_cannot_be_written_does_no_harm(cache: Path) -> None:
    drawn = facts(partition(table(), SKEW, 20, 1))
    for path in files(cache):
        path.unlink()
    (cache / "partitions").rmdir()
    (cache / "partitions").write_text("a file where the folder should be")
    assert facts(partition(table(), SKEW, 20, 1)) == drawn


@pytest.mark.usefixtures("slow")
def test_what_was_used_longest_ago_goes(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cached, "MOST_FILES", 3)
    made: dict[int, Path] = {}
    for seed in range(3):
        partition(table(), SKEW, 20, seed)
        (made[seed],) = set(files(cache)) - set(made.values())
        os.utime(made[seed], (1000 + seed, 1000 + seed))
    partition(table(), SKEW, 20, 0)  # used again
    partition(table(), SKEW, 20, 3)
    assert len(files(cache)) == 3
    assert made[0].exists()
    assert not made[1].exists()
    monkeypatch.setattr(cached, "MOST_BYTES", 1)
    partition(table(), SKEW, 20, 4)
    assert files(cache) == []


@pytest.mark.usefixtures("slow")
def test_other_domains_have_other_files(cache: Path) -> None:
    def images(name: str, seed: int) -> Dataset:
        x = torch.from_numpy(np.random.RandomState(seed).randint(0, 256, (40, 1, 8, 8), dtype=np.uint8))
        y = torch.arange(40) % 2
        return Dataset(name, Split(x, y), Split(x[:4], y[:4]), ("a", "b"), (0.5,), (0.5,))

    one, two, three = (images(name, seed) for seed, name in enumerate(("one", "two", "three")))
    first, again, other = (
        partition(join(pair), "iid", 4, 1) for pair in ((one, two), (one, two), (one, three))
    )
    assert facts(first) == facts(again)
    assert len(files(cache)) == 2
    assert other.recipe == first.recipe
