"""The user's own arrays, .npz files and torch datasets, with and without owners."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from by_site import held
from hypothesis import given
from hypothesis import strategies as st
from layouts import noise
from PIL import Image
from torch.utils.data import Dataset as TorchDataset
from torch.utils.data import IterableDataset, TensorDataset

from unskew.data import federate, load
from unskew.data.arrays import from_arrays, from_npz, from_torch, stratified
from unskew.errors import UserError

Y = np.arange(20) % 2


@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        ((20, 5, 6), (1, 5, 6)),
        ((20, 5, 6, 3), (3, 5, 6)),
        ((20, 5, 6, 1), (1, 5, 6)),
        ((20, 3, 5, 6), (3, 5, 6)),
    ],
)
def test_images_of_any_layout_become_channels_first(
    shape: tuple[int, ...], expected: tuple[int, ...]
) -> None:
    x = noise(0, *shape)
    data = from_arrays(x, Y, x, Y)
    assert data.inputs.kind == "image"
    assert data.inputs.shape == expected
    first = x.reshape(20, 1, 5, 6) if len(shape) == 3 else x if shape[1] == 3 else x.transpose(0, 3, 1, 2)
    assert np.array_equal(data.train.inputs.numpy(), first)
    assert data.mean == pytest.approx(first.mean(axis=(0, 2, 3)) / 255)
    assert data.std == pytest.approx(first.std(axis=(0, 2, 3)) / 255)


def test_a_layout_that_is_not_plain_must_be_given() -> None:
    x = noise(0, 20, 3, 9, 3)
    with pytest.raises(UserError, match="layout='chw' or 'hwc'"):
        from_arrays(x, Y)
    assert from_arrays(x, Y, layout="chw").inputs.shape == (3, 9, 3)
    assert from_arrays(x, Y, layout="hwc").inputs.shape == (3, 3, 9)
    with pytest.raises(UserError, match="layout='chw' or 'hwc'"):
        from_arrays(noise(0, 20, 8, 8, 4), Y)


@pytest.mark.parametrize("kind", [np.float32, np.float64, np.int64, bool])
def test_images_of_other_numbers_become_bytes(kind: type) -> None:
    grey = np.array([[0, 1], [0, 1]])
    x = np.stack([grey] * 20).astype(kind)
    top = 1 if kind is np.int64 else 255
    assert from_arrays(x, Y).train.inputs[0, 0].tolist() == [[0, top], [0, top]]


@given(st.integers(0, 255))
def test_a_byte_survives_the_way_through_floats(value: int) -> None:
    for kind in (np.float32, np.float64):
        x = np.full((4, 2, 2), value, kind) / kind(255)
        assert (from_arrays(x, [0, 1, 0, 1]).train.inputs == value).all()


@pytest.mark.parametrize(
    ("x", "says"),
    [
        (np.where(np.arange(20) == 7, np.nan, 0.5)[:, None, None] * np.ones((1, 2, 2)), "a NaN in image 7"),
        (np.full((20, 2, 2), 255.0), "floats in 0..1"),
        (np.full((20, 2, 2), -0.1), "floats in 0..1"),
        (np.full((20, 2, 2), np.inf), "floats in 0..1"),
        (np.full((20, 2, 2), 256), "whole numbers 0..255"),
        (np.full(20, 0.5), "inputs of shape"),
        (np.full((20, 2), "a"), "give numbers"),
        (np.where(np.arange(20) == 3, np.nan, 0.5)[:, None] * np.ones((1, 4)), "NaN or infinite value"),
        (np.full((20, 4), 1e300), "NaN or infinite value"),
        (np.zeros((19, 4)), "19 samples but 20 labels"),
        (np.zeros((0, 4)), "0 samples but 20 labels"),
    ],
)
def test_inputs_that_cannot_be_meant_are_one_sentence(x: np.ndarray, says: str) -> None:
    with pytest.raises(UserError, match=says) as caught:
        from_arrays(x, Y, name="mine")
    assert "'mine'" in str(caught.value)


def test_tables_stay_numbers() -> None:
    x = np.arange(80).reshape(20, 4)
    data = from_arrays(x, Y, x, Y)
    assert data.train.inputs.dtype == torch.float32
    assert np.array_equal(data.train.inputs.numpy(), x)
    assert data.mean == ()


def test_tensors_are_taken_too() -> None:
    x, y = torch.rand(20, 3, 4, 4, requires_grad=True), torch.tensor(Y)
    assert from_arrays(x, y).inputs.shape == (3, 4, 4)


@pytest.mark.parametrize(
    ("y", "says"),
    [
        (Y * 2, "has label 1: number the classes"),
        (Y + 1, "has label 0: number the classes"),
        (Y - 1, "has label -1"),
        (Y * 0.5, "labels of type float64"),
        (Y[:, None], "labels of shape"),
        (Y * 0, "1 class"),
    ],
)
def test_labels_that_cannot_be_meant_are_one_sentence(y: np.ndarray, says: str) -> None:
    with pytest.raises(UserError, match=says):
        from_arrays(np.zeros((20, 4)), y)


def test_named_labels_are_numbered_in_alphabetical_order() -> None:
    y = np.array(["dog", "cat"] * 10)
    data = from_arrays(np.zeros((20, 4)), y, np.zeros((2, 4)), ["cat", "dog"])
    assert data.classes == ("cat", "dog")
    assert data.train.labels.tolist() == [1, 0] * 10
    assert data.test.labels.tolist() == [0, 1]
    with pytest.raises(UserError, match=r"unknown class in 'arrays' 'dog'"):
        from_arrays(np.zeros((20, 4)), y, classes=["cat", "cow"])


def test_given_classes_allow_for_absent_ones() -> None:
    data = from_arrays(np.zeros((20, 4)), Y * 2, classes=["a", "b", "c"])
    assert data.classes == ("a", "b", "c")
    with pytest.raises(UserError, match=r"labels must lie in 0\.\.1"):
        from_arrays(np.zeros((20, 4)), Y * 2, classes=["a", "b"])


def test_half_a_test_split_is_refused() -> None:
    with pytest.raises(UserError, match="only one of x_test and y_test"):
        from_arrays(np.zeros((20, 4)), Y, x_test=np.zeros((2, 4)))


@given(
    labels=st.lists(st.integers(0, 4), min_size=2, max_size=60),
    fraction=st.floats(0.01, 0.99),
    seed=st.integers(0, 100),
)
def test_a_cut_is_stratified(labels: list[int], fraction: float, seed: int) -> None:
    y = np.array(labels)
    train, test = stratified(y, fraction, seed)
    assert sorted([*train, *test]) == list(range(len(y)))
    assert list(train) == sorted(train)
    for c in np.unique(y):
        n, cut = (y == c).sum(), (y[test] == c).sum()
        assert cut == min(max(round(fraction * n), 1), n - 1)
    again = stratified(y, fraction, seed)
    assert np.array_equal(again[1], test)


def test_the_seed_decides_the_cut() -> None:
    x = np.arange(200).reshape(100, 2)
    y = np.arange(100) % 4
    assert len(from_arrays(x, y).test) == 20
    assert from_arrays(x, y, seed=1).sha256 == from_arrays(x, y, seed=1).sha256 != from_arrays(x, y).sha256
    for wrong in (0, 1, -0.5, float("nan")):
        with pytest.raises(UserError, match="test_fraction"):
            from_arrays(x, y, test_fraction=wrong)


def test_a_constant_channel_can_be_normalised() -> None:
    x = noise(0, 20, 4, 4, 3)
    x[..., 1] = 7
    data = from_arrays(x, Y)
    assert data.std[1] == 1
    assert data.mean[1] == pytest.approx(7 / 255)


def test_an_npz_file_with_or_without_a_test_split(tmp_path: Path) -> None:
    x = noise(0, 20, 4, 4)
    np.savez(tmp_path / "a.npz", x_train=x, y_train=Y, x_test=x[:4], y_test=Y[:4])
    data = from_npz(tmp_path / "a.npz")
    assert (data.name, len(data.train), len(data.test)) == ("a", 20, 4)
    np.savez(tmp_path / "b.npz", x=x, y=Y)
    assert len(from_npz(tmp_path / "b.npz", test_fraction=0.5).test) == 10


def test_other_npz_files_are_one_sentence(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    with pytest.raises(UserError, match=r"a\.npz does not exist"):
        from_npz(path)
    np.savez(path, images=noise(0, 2, 2))
    with pytest.raises(UserError, match=r"a\.npz holds images: name its arrays x_train"):
        from_npz(path)
    np.savez(path, x=np.array([object()]), y=np.array([0]))
    with pytest.raises(UserError, match=r"a\.npz is not a readable"):
        from_npz(path)
    np.save(tmp_path / "single.npy", noise(0, 2, 2))
    with pytest.raises(UserError, match=r"single\.npy is not a readable"):
        from_npz(tmp_path / "single.npy")
    for content in (b"", b"PK", b"nonsense"):
        path.write_bytes(content)
        with pytest.raises(UserError, match=r"a\.npz is not a readable"):
            from_npz(path)


SITES = {"east": [0, 8, 4], "west": [8, 8, 0]}


OWNERS = ["west"] * 20 + ["east"] * 15


AT_SITES = [0] * 10 + [1] * 20 + [2] * 5


def test_arrays_and_npz_files_and_torch_datasets_say_who_owns_what(tmp_path: Path) -> None:
    x = np.arange(70, dtype=np.float32).reshape(35, 2)
    np.savez(tmp_path / "a.npz", x=x, y=AT_SITES, owners=OWNERS)
    torch_rows = TensorDataset(torch.tensor(x), torch.tensor(AT_SITES))
    for data in (
        from_arrays(x, AT_SITES, owners=OWNERS),
        from_npz(tmp_path / "a.npz"),
        from_torch(torch_rows, owners=OWNERS),
    ):
        assert held(data) == SITES
        assert data.test.owners is not None
        own = [torch.bincount(data.test.labels[data.test.owners == k], minlength=3).tolist() for k in (0, 1)]
        assert own == [[0, 2, 1], [2, 2, 0]]  # a fifth of every class of every site
    numbers = [7 if name == "west" else 12 for name in OWNERS]
    assert list(held(from_arrays(x, AT_SITES, owners=numbers))) == ["7", "12"]


def test_a_test_split_may_have_owners_that_training_lacks(tmp_path: Path) -> None:
    x = np.zeros((20, 2))
    np.savez(
        *(tmp_path / "a.npz",),
        **{"x_train": x, "y_train": Y, "x_test": x[:4], "y_test": Y[:4]},
        owners=["b"] * 20,
        owners_test=["a", "b", "b", "a"],
    )
    data = from_npz(tmp_path / "a.npz")
    assert data.owners == ("b", "a")
    assert data.test.owners is not None
    assert data.test.owners.tolist() == [1, 0, 0, 1]
    assert list(held(data)) == ["b"]


def test_a_site_that_is_divided_among_clients_names_none_of_them() -> None:
    x = np.zeros((35, 2))
    data = from_arrays(x, AT_SITES, owners=OWNERS)
    assert federate(data, "iid", 2, seed=0).names == ()
    assert federate(data, "natural:surplus=merge", 1, seed=0).names == ("east+west",)
    assert federate(from_arrays(x, AT_SITES), "iid", 2, seed=0).names == ()


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ({"owners": ["a"] * 19}, "'arrays' has 19 owners for 20 samples"),
        ({"owners": ["a"] * 19 + [None]}, "no owner for sample 19, but None"),
        ({"owners": ["a"] * 19 + [" "]}, "no owner for sample 19"),
        ({"owners": [0.5] * 20}, "owners of type float64"),
        ({"owners_test": ["a"] * 20}, "owners_test without owners"),
    ],
)
def test_owners_that_cannot_be_meant_are_one_sentence(more: dict[str, Any], says: str) -> None:
    with pytest.raises(UserError, match=says):
        from_arrays(np.zeros((20, 2)), Y, **more)


@pytest.mark.parametrize("nothing", [None, float("nan")])
def test_no_label_is_not_a_class(nothing: object) -> None:
    with pytest.raises(UserError, match=f"no label for sample 3, but {nothing}"):
        from_arrays(np.zeros((4, 2)), np.array(["a", "b", "a", nothing], object))


def test_joined_tables_of_numbers_are_sites(tmp_path: Path) -> None:
    for name, labels in (("a", Y), ("b", np.arange(20) % 3)):
        np.savez(tmp_path / f"{name}.npz", x=np.ones((20, 2)), y=labels)
    data = load(f"npz:{tmp_path / 'a.npz'}+npz:{tmp_path / 'b.npz'}")
    assert held(data) == {"a": [8, 8, 0], "b": [6, 6, 5]}
    np.savez(tmp_path / "b.npz", x=np.ones((20, 3)), y=Y)
    with pytest.raises(UserError, match="'a' has 2 features and 'b' has 3"):
        load(f"npz:{tmp_path / 'a.npz'}+npz:{tmp_path / 'b.npz'}")


class Pictures(TorchDataset):  # type: ignore[type-arg]
    def __init__(self, samples: list[object]) -> None:
        self.samples = samples

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, i: int) -> tuple[object, int]:
        return self.samples[i], i % 2


@pytest.mark.parametrize("kind", ["pillow", "tensor", "array"])
def test_torch_datasets_of_any_kind_of_image_are_read_alike(kind: str) -> None:
    x = noise(0, 10, 6, 5, 3)
    samples: dict[str, list[object]] = {
        "pillow": [Image.fromarray(image) for image in x],
        "tensor": [torch.tensor(image).permute(2, 0, 1) / 255 for image in x],
        "array": list(x),
    }
    data = from_torch(Pictures(samples[kind]), Pictures(samples[kind][:4]), classes=["no", "yes"])
    assert np.array_equal(data.train.inputs.numpy(), x.transpose(0, 3, 1, 2))
    assert data.train.labels.tolist() == [0, 1] * 5
    assert len(data.test) == 4
    assert data.classes == ("no", "yes")


def test_torch_rows_are_a_table() -> None:
    data = from_torch(TensorDataset(torch.rand(10, 4), torch.arange(10) % 2))
    assert data.inputs.kind == "table"
    assert (len(data.train), len(data.test)) == (8, 2)


def test_torch_datasets_that_cannot_be_meant_are_one_sentence() -> None:
    class Endless(IterableDataset):  # type: ignore[type-arg]
        def __iter__(self) -> Iterator[object]:
            return iter(())

    with pytest.raises(UserError, match="map-style"):
        from_torch(Endless())
    with pytest.raises(UserError, match="is empty"):
        from_torch(Pictures([]))
    with pytest.raises(UserError, match="sample 0 of 'torch' is not a pair"):
        from_torch(TensorDataset(torch.rand(10, 4)))
    with pytest.raises(UserError, match=r"sample 1 of 'torch' has shape \(3, 4, 5\)"):
        from_torch(Pictures([torch.rand(3, 4, 4), torch.rand(3, 4, 5)]))
    with pytest.raises(UserError, match="not normalised"):
        from_torch(Pictures([torch.randn(3, 4, 4) * 3 for _ in range(4)]))
