from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from layouts import noise, write_image
from PIL import Image
from torch.utils.data import Dataset as TorchDataset
from torch.utils.data import IterableDataset, TensorDataset

from unskew.data import Dataset, federate, join, load
from unskew.data.arrays import from_arrays, from_npz, from_torch, stratified
from unskew.data.columns import Columns
from unskew.data.image_folders import from_folder
from unskew.data.names import distinct_names
from unskew.data.table_dataset import from_csv
from unskew.data.tables import read_rows
from unskew.errors import UserError

Y = np.arange(20) % 2


# ---- arrays ----


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


# ---- npz ----


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


# ---- folders ----


def make_folder(root: Path, parts: dict[str, int], seed: int = 0, shape: tuple[int, ...] = (6, 5, 3)) -> None:
    """parts: folder -> number of images in it."""
    for j, (part, n) in enumerate(parts.items()):
        for i in range(n):
            write_image(root / part / f"{i:02}.png", noise(seed + 100 * j + i, *shape))


def test_a_folder_with_both_splits(tmp_path: Path) -> None:
    make_folder(tmp_path, {"train/cat": 3, "train/dog": 2, "test/dog": 2})
    (tmp_path / "train" / "cat" / "notes.txt").write_text("not an image")
    (tmp_path / "train" / ".hidden").mkdir()
    data = from_folder(tmp_path)
    assert data.name == tmp_path.name
    assert data.classes == ("cat", "dog")
    assert data.train.labels.tolist() == [0, 0, 0, 1, 1]
    assert data.test.labels.tolist() == [1, 1]
    assert np.array_equal(data.train.inputs[1].numpy(), noise(1, 6, 5, 3).transpose(2, 0, 1))
    assert data.mean == pytest.approx((data.train.inputs.double().mean(dim=(0, 2, 3)) / 255).tolist())


@pytest.mark.parametrize("prefix", ["", "train/"])
def test_a_folder_without_a_test_split_is_cut(tmp_path: Path, prefix: str) -> None:
    make_folder(tmp_path, {f"{prefix}cat": 10, f"{prefix}dog": 5})
    data = from_folder(tmp_path)
    assert torch.bincount(data.train.labels).tolist() == [8, 4]
    assert torch.bincount(data.test.labels).tolist() == [2, 1]


def test_images_of_several_sizes_need_size(tmp_path: Path) -> None:
    make_folder(tmp_path, {"cat": 3, "dog": 3})
    write_image(tmp_path / "dog" / "large.png", np.full((12, 12, 3), 9, np.uint8))
    with pytest.raises(UserError, match=r"large\.png is 12x12 pixels but .* is 5x6: give size=N"):
        from_folder(tmp_path)
    data = from_folder(tmp_path, size=8)
    assert data.inputs.shape == (3, 8, 8)
    everything = torch.cat([data.train.inputs, data.test.inputs])
    assert (everything == 9).all(dim=(1, 2, 3)).sum() == 1


def test_grey_images_stay_grey_and_a_mixture_needs_channels(tmp_path: Path) -> None:
    make_folder(tmp_path, {"cat": 3, "dog": 3}, shape=(6, 5))
    assert from_folder(tmp_path).inputs.shape == (1, 6, 5)
    write_image(tmp_path / "dog" / "colour.png", noise(0, 6, 5, 3))
    with pytest.raises(UserError, match=r"colour\.png is colour but .* is grey: give channels=1"):
        from_folder(tmp_path)
    assert from_folder(tmp_path, channels=1).inputs.shape == (1, 6, 5)
    assert from_folder(tmp_path, channels=3).inputs.shape == (3, 6, 5)


def test_palettes_and_transparency_become_rgb(tmp_path: Path) -> None:
    make_folder(tmp_path, {"cat": 2, "dog": 2})
    picture = Image.fromarray(noise(0, 6, 5, 3))
    picture.convert("RGBA").save(tmp_path / "cat" / "alpha.png")
    palette = picture.convert("P")
    palette.save(tmp_path / "cat" / "palette.png", transparency=bytes(range(256)))
    assert from_folder(tmp_path).inputs.shape == (3, 6, 5)


def test_images_of_more_than_eight_bits_are_refused(tmp_path: Path) -> None:
    make_folder(tmp_path, {"cat": 2, "dog": 2})
    Image.fromarray(np.full((6, 5), 40000, np.uint16)).save(tmp_path / "dog" / "deep.png")
    with pytest.raises(UserError, match=r"deep\.png: .*convert it to 8 bits"):
        from_folder(tmp_path)


def test_folders_that_cannot_be_meant_are_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="nowhere is not a folder"):
        from_folder(tmp_path / "nowhere")
    with pytest.raises(UserError, match="has no folders"):
        from_folder(tmp_path)
    make_folder(tmp_path, {"train/cat": 2, "train/dog": 2, "test/cow": 1})
    with pytest.raises(UserError, match=r"cow has no counterpart"):
        from_folder(tmp_path)
    (tmp_path / "test" / "cow" / "00.png").unlink()
    (tmp_path / "test" / "cow").rename(tmp_path / "test" / "cat")
    with pytest.raises(UserError, match="test holds no images"):
        from_folder(tmp_path)
    (tmp_path / "train" / "dog" / "01.png").write_bytes(b"")
    with pytest.raises(UserError, match=r"01\.png cannot be read as an image"):
        from_folder(tmp_path)
    (tmp_path / "train" / "empty").mkdir()
    with pytest.raises(UserError, match="empty holds no images"):
        from_folder(tmp_path)
    with pytest.raises(UserError, match="channels is 1 or 3"):
        from_folder(tmp_path, channels=2)


# ---- sites ----


def held(data: Dataset, clients: int = 0) -> dict[str, list[int]]:
    """The label counts of every site under the skew natural, by its name."""
    made = federate(data, "natural", clients, seed=0)
    return dict(zip(made.names, made.counts.tolist(), strict=True))


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


@pytest.mark.parametrize("prefix", ["{site}/", "train/{site}/", "{site}/train/"])
def test_folders_of_sites_are_found_and_said(tmp_path: Path, prefix: str) -> None:
    parts = {("west", "cat"): 10, ("west", "cow"): 10, ("east", "cow"): 10, ("east", "dog"): 5}
    make_folder(tmp_path, {f"{prefix.format(site=s)}{c}": n for (s, c), n in parts.items()})
    data = from_folder(tmp_path)
    assert data.classes == ("cat", "cow", "dog")
    assert held(data) == SITES
    assert len(data.notes) == 1
    assert "read as SITE/CLASS/image: 2 sites (east, west); sites=false" in data.notes[0]
    if prefix == "{site}/":
        assert from_folder(tmp_path, sites=False).classes == ("east", "west")


@pytest.mark.parametrize("test", ["test/{}/", "{}/test/"])
def test_sites_may_have_test_images_of_their_own(tmp_path: Path, test: str) -> None:
    train = test.replace("test", "train")
    make_folder(
        tmp_path,
        {f"{train.format(site)}{kind}": 3 for site in ("a", "b") for kind in ("cat", "dog")}
        | {f"{test.format('b')}dog": 2},
    )
    data = from_folder(tmp_path)
    assert held(data) == {"a": [3, 3], "b": [3, 3]}
    assert data.test.labels.tolist() == [1, 1]
    assert data.test.owners is not None
    assert data.test.owners.tolist() == [1, 1]


def test_folders_inside_a_class_are_not_taken_for_classes(tmp_path: Path) -> None:
    make_folder(tmp_path / "patients", {f"{k}/patient{i}": 2 for i, k in enumerate(["ill", "well"] * 3)})
    data = from_folder(tmp_path / "patients")
    assert data.classes == ("ill", "well")
    assert "sites=true takes the first folders as sites" in data.notes[0]
    assert from_folder(tmp_path / "patients", sites=True).owners == ("ill", "well")
    make_folder(tmp_path / "deep", {"cat/images": 4, "dog/images": 4})  # as in TinyImageNet
    assert from_folder(tmp_path / "deep").classes == ("cat", "dog")
    make_folder(tmp_path / "plain", {"cat": 2, "dog": 2})
    assert from_folder(tmp_path / "plain").notes == ()


def test_joined_folders_are_sites_over_the_union_of_their_classes(tmp_path: Path) -> None:
    make_folder(
        tmp_path, {"east/scans/cow": 10, "east/scans/dog": 5, "west/scans/cat": 10, "west/scans/cow": 10}
    )
    data = load(f"folder:{tmp_path / 'west/scans'}+folder:{tmp_path / 'east/scans'}")
    assert data.classes == ("cat", "cow", "dog")
    assert data.inputs.shape == (3, 6, 5)
    assert data.domains == ("west/scans", "east/scans")
    assert held(data) == {"west/scans": [8, 8, 0], "east/scans": [0, 8, 4]}
    with pytest.raises(UserError, match="scans is named twice"):
        load(f"folder:{tmp_path / 'west/scans'}+folder:{tmp_path / 'west/../west/scans'}")


def test_parts_are_called_as_shortly_as_tells_them_apart(tmp_path: Path) -> None:
    for name in ("v1.0", "v1.5"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "t.csv").touch()
    (tmp_path / "v1.0" / "t.txt").touch()

    def names(*parts: str) -> list[str]:
        return distinct_names([tmp_path / part for part in parts])

    assert names("v1.0", "v1.5") == ["v1.0", "v1.5"]
    assert names("v1.0/t.csv") == ["t"]
    assert names("v1.0/t.csv", "v1.5/t.csv") == ["v1.0/t", "v1.5/t"]
    assert names("v1.0/t.csv", "v1.0/t.txt") == ["t.csv", "t.txt"]


def test_joined_tables_of_numbers_are_sites(tmp_path: Path) -> None:
    for name, labels in (("a", Y), ("b", np.arange(20) % 3)):
        np.savez(tmp_path / f"{name}.npz", x=np.ones((20, 2)), y=labels)
    data = load(f"npz:{tmp_path / 'a.npz'}+npz:{tmp_path / 'b.npz'}")
    assert held(data) == {"a": [8, 8, 0], "b": [6, 6, 5]}
    np.savez(tmp_path / "b.npz", x=np.ones((20, 3)), y=Y)
    with pytest.raises(UserError, match="'a' has 2 features and 'b' has 3"):
        load(f"npz:{tmp_path / 'a.npz'}+npz:{tmp_path / 'b.npz'}")


# ---- csv ----


def rows(n: int) -> str:
    return "".join(f"{i},{i * 2.5},{'ab'[i % 2]}\n" for i in range(n))


def test_a_table_is_standardised_with_the_training_rows(tmp_path: Path) -> None:
    path = tmp_path / "table.csv"
    path.write_text("\ufeffx, y ,kind\n" + rows(10), encoding="utf-8")
    data = from_csv(path, label="kind")
    assert data.name == "table"
    assert data.classes == ("a", "b")
    assert data.inputs.shape == (2,)
    assert data.train.inputs.mean(dim=0).tolist() == pytest.approx([0, 0], abs=1e-6)
    assert data.train.inputs.std(dim=0, correction=0).tolist() == pytest.approx([1, 1], rel=1e-6)
    raw = from_csv(path, label="kind", scale="none")
    assert raw.test.inputs[0, 1] == 2.5 * raw.test.inputs[0, 0]
    mean, std = raw.train.inputs.mean(dim=0), raw.train.inputs.std(dim=0, correction=0)
    assert torch.allclose(data.test.inputs, (raw.test.inputs - mean) / std, atol=1e-6)


def test_a_test_table_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("x,kind\n1,10\n2,9\n\n3,9\n")
    (tmp_path / "b.csv").write_text("kind,x\n9,4\n")
    data = from_csv(tmp_path / "a.csv", label="kind", test=tmp_path / "b.csv", scale="none")
    assert data.classes == ("9", "10")  # as numbers
    assert data.train.labels.tolist() == [1, 0, 0]
    assert data.test.inputs.tolist() == [[4]]
    (tmp_path / "b.csv").write_text("x,kind\n4,9\n5,-1\n")
    with pytest.raises(UserError, match=r"b\.csv has the class '-1' in row 3, and no training row has"):
        from_csv(tmp_path / "a.csv", label="kind", test=tmp_path / "b.csv")
    (tmp_path / "b.csv").write_text("z,kind\n4,9\n")
    with pytest.raises(UserError, match=r"b\.csv and .* have different columns"):
        from_csv(tmp_path / "a.csv", label="kind", test=tmp_path / "b.csv")


def test_a_constant_column_becomes_zero(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("x,c,kind\n" + "".join(f"{i},7,{i % 2}\n" for i in range(10)))
    assert (from_csv(tmp_path / "a.csv", label="kind").train.inputs[:, 1] == 0).all()


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("x,y,kind\n1,2,a\n3,,b\n", "has '' in row 3, column 'y'"),
        ("x,y,kind\n1,NaN,a\n", "has 'NaN' in row 2, column 'y'"),
        ("kind,x,y\na,1,inf\n", "has 'inf' in row 2, column 'y'"),
        ("x,kind,y\n1,a,red\n2,b,1\n", "has 'red' in row 2, column 'y': .* or give categorical=y"),
        ("x,kind\n1e300,a\n1,b\n2,a\n", r"has '1e\+300' in row 2, column 'x': .* 32 bits can hold"),
        ("x,kind\n1e400,a\n1,b\n2,a\n", "has 'inf' in row 2, column 'x': .* 32 bits can hold"),
        ("x,y,kind\n1,2\n", "has 2 cells in row 2 but 3 columns"),
        ("x,y,kind\n1,2,\n", "has no label in row 2, column 'kind'"),
        ("x,y,kimd\n1,2,a\n", "did you mean 'kimd'"),
        ("x,x,kind\n1,2,a\n", "no name twice"),
        ("kind\na\n", "needs a label column, feature columns"),
        ("x,kind\n", "has no rows"),
        ("", "is empty"),
        ('x,kind\n"1,a\n', "cannot be read as comma-separated"),
        ("x,kind\n1,a\n2,a\n", "1 class"),
    ],
)
def test_a_table_that_cannot_be_meant_names_row_and_column(tmp_path: Path, text: str, says: str) -> None:
    path = tmp_path / "t.csv"
    path.write_text(text)
    with pytest.raises(UserError, match=says):
        from_csv(path, label="kind")


HOSPITALS = {"north": "cat,dog,cat", "south": "dog,cow,cow"}


def write_tables(folder: Path) -> None:
    """One table of two hospitals, and the same as a file for each."""
    lines = {
        name: [f"{name},{i},{kinds.split(',')[i % 3]}" for i in range(15)]
        for name, kinds in HOSPITALS.items()
    }
    (folder / "all.csv").write_text("\n".join(["hospital,x,kind", *lines["south"], *lines["north"]]) + "\n")
    for name, mine in lines.items():
        cut = [line.partition(",")[2] for line in mine]
        (folder / f"{name}.csv").write_text("\n".join(["x,kind", *cut]) + "\n")


def test_a_site_column_and_a_file_for_each_site_are_the_same_federation(tmp_path: Path) -> None:
    write_tables(tmp_path)
    whole = load(f"csv:{tmp_path / 'all.csv'},label=kind,site=hospital")
    assert whole.inputs.shape == (1,)
    parts = load(f"csv:{tmp_path / 'north.csv'},label=kind+csv:{tmp_path / 'south.csv'}")
    expected = {"north": [8, 0, 4], "south": [0, 8, 4]}
    for data in (whole, parts, from_csv([tmp_path / "north.csv", tmp_path / "south.csv"], label="kind")):
        assert data.classes == ("cat", "cow", "dog")
        assert held(data) == expected
        assert data.train.inputs.mean().item() == pytest.approx(0, abs=1e-6)  # over both, not each
        assert any("each would have to send its number of rows, the sum" in note for note in data.notes)
        assert data.test.owners is not None
        assert torch.bincount(data.test.owners).tolist() == [3, 3]
    assert not from_csv(tmp_path / "north.csv", label="kind").notes


def test_each_site_may_have_a_test_file_of_its_own(tmp_path: Path) -> None:
    write_tables(tmp_path)
    (tmp_path / "t.csv").write_text("x,kind\n1,dog\n2,dog\n")
    data = load(
        f"csv:{tmp_path / 'north.csv'},label=kind+csv:{tmp_path / 'south.csv'},test={tmp_path / 't.csv'}"
    )
    assert held(data) == {"north": [8, 0, 4], "south": [0, 10, 5]}
    assert data.test.owners is not None
    assert data.test.labels[data.test.owners == 1].tolist() == [2, 2]
    one = from_csv([tmp_path / "north.csv", tmp_path / "south.csv"], label="kind", test=tmp_path / "t.csv")
    assert (len(one.train), len(one.test), one.test.owners) == (30, 2, None)


def test_joined_tables_that_cannot_be_meant_are_one_sentence(tmp_path: Path) -> None:
    write_tables(tmp_path)
    north, south = (f"csv:{tmp_path / name}.csv" for name in HOSPITALS)
    for spec, says in (
        (f"{north}+{south}", "csv needs a value for label"),
        (f"{north},label=kind+{south},label=x", "label differs between the files"),
        (f"{north},label=kind+{north}", r"north\.csv is named twice"),
        (f"{north},label=kind+csv:", "'csv:' has no path"),
        (f"{north},label=kind+csv:{tmp_path / 'all.csv'}", "different columns \\('hospital' is in one alone"),
        (f"{north},label=kind,site=hospital", "unknown column of .* 'hospital'"),
        (f"{north},label=kind,site=kind", "cannot be both label and site"),
        (f"{north},label=kind,drop=z", "unknown column of .* 'z'"),
        (f"{north},label=kind,drop=x", "needs a label column, feature columns"),
        (f"{north},label=kind,categorical=kind", "unknown feature of .* 'kind'"),
    ):
        with pytest.raises(UserError, match=says):
            load(spec)
    with pytest.raises(UserError, match="scaled apart: load the files together"):
        join([from_csv(tmp_path / f"{name}.csv", label="kind") for name in HOSPITALS])


MIXED = """id,age,colour,grade,stage,kind
1,10,red,1,?,a
2,20,blue,1.0,1,b
3,30,red,2,3,a
4,,,2,3,b
"""


def test_columns_are_chosen_and_become_numbers(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text(MIXED)
    (tmp_path / "u.csv").write_text("kind,stage,grade,colour,age\na,NA,3,green,40\nb,2,1,red,\n")
    data = from_csv(
        *(tmp_path / "t.csv",),
        label="kind",
        test=tmp_path / "u.csv",
        drop=("id",),
        categorical=("grade",),
        missing="column",
        scale="none",
    )
    assert data.columns is not None
    assert data.columns.features == (
        *("age", "age is missing", "colour=blue", "colour=red", "colour is missing"),
        *("grade=1", "grade=2", "stage", "stage is missing"),
    )
    assert data.train.inputs.tolist() == [
        [10, 0, 0, 1, 0, 1, 0, pytest.approx(7 / 3), 1],
        [20, 0, 1, 0, 0, 1, 0, 1, 0],
        [30, 0, 0, 1, 0, 0, 1, 3, 0],
        [20, 1, 0, 0, 1, 0, 1, 3, 0],
    ]
    assert data.test.inputs.tolist() == [
        [40, 0, 0, 0, 0, 0, 0, pytest.approx(7 / 3), 1],
        [20, 1, 0, 1, 0, 1, 0, 2, 0],
    ]
    told = " ".join(data.notes)
    assert "colour (2), grade (2)" in told
    assert "age 2, stage 2, colour 1" in told
    assert "1 test rows have a category of 'colour' that no training row has (green)" in told
    chosen = from_csv(tmp_path / "t.csv", label="kind", columns=("stage", "colour"), missing="fill")
    assert chosen.columns is not None
    assert chosen.columns.names == ("stage", "colour")


def test_what_was_learnt_of_a_table_can_be_kept_and_used_again(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text(MIXED)
    options: dict[str, Any] = {"label": "kind", "test": tmp_path / "t.csv", "missing": "fill"}
    data = from_csv(tmp_path / "t.csv", **options)
    assert data.columns is not None
    again = Columns.from_json(json.loads(json.dumps(data.columns.to_json())))
    assert again == data.columns
    rows = read_rows(tmp_path / "t.csv", again)
    assert torch.equal(torch.tensor(again.apply(rows), dtype=torch.float32), data.test.inputs)
    with pytest.raises(UserError, match="not as they were written"):
        Columns.from_json({"version": 1, "columns": [{"name": 3}]})
    with pytest.raises(UserError, match="of version 7, and this unskew reads 1"):
        Columns.from_json({"version": 7, "columns": []})


def test_a_parquet_file_is_read_as_the_same_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    (tmp_path / "t.csv").write_text(MIXED)
    columns = {
        "id": [1, 2, 3, 4],
        "age": [10.0, 20.0, 30.0, None],
        "colour": ["red", "blue", "red", None],
        "grade": [1, 1, 2, 2],
        "stage": [None, 1, 3, 3],
        "kind": ["a", "b", "a", "b"],
    }
    path = tmp_path / "t.parquet"
    parquet.write_table(pyarrow.table(columns), path)
    options = "label=kind,missing=fill,categorical=grade,test_fraction=0.5"
    table, same = load(f"parquet:{path},{options}"), load(f"csv:{tmp_path / 't.csv'},{options}")
    assert table.sha256 == same.sha256
    assert table.columns == same.columns
    sites = load(f"parquet:{path},label=kind,test={path},columns=id,site=grade")
    assert held(sites) == {"1": [1, 1], "2": [1, 1]}
    joined = load(f"parquet:{path},{options}+csv:{tmp_path / 't.csv'}")
    assert joined.owners == ("t.parquet", "t.csv")
    whole = path.read_bytes()
    for content in (b"", b"PAR1", whole[:200], whole[:-20] + bytes(20)):
        path.write_bytes(content)
        with pytest.raises(UserError, match=r"t\.parquet is not a readable Parquet file"):
            load(f"parquet:{path},label=kind")
    parquet.write_table(pyarrow.table({"x": [[1], [2]], "kind": ["a", "b"]}), path)
    with pytest.raises(UserError, match="lists or tables in the column 'x'"):
        load(f"parquet:{path},label=kind")
    monkeypatch.setattr("unskew.data.bounded.SMALL", 1000)
    parquet.write_table(pyarrow.table({"x": ["long" * 1000] * 700, "kind": ["a", "b"] * 350}), path)
    with pytest.raises(UserError, match="unpacks to more than"):
        load(f"parquet:{path},label=kind")


def test_too_many_categories_are_refused(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("who,x,kind\n" + "".join(f"p{i},{i},{i % 2}\n" for i in range(200)))
    with pytest.raises(
        UserError, match=r"'who' has 160 different texts, .* drop=who, or give categorical=who"
    ):
        from_csv(tmp_path / "t.csv", label="kind")
    assert from_csv(tmp_path / "t.csv", label="kind", categorical=("who",)).inputs.shape == (161,)


def test_tables_that_cannot_be_opened_are_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"t\.csv does not exist"):
        from_csv(tmp_path / "t.csv", label="kind")
    (tmp_path / "t.csv").write_bytes(b"x,kind\n\xff\xfe,a\n")
    with pytest.raises(UserError, match=r"t\.csv cannot be read"):
        from_csv(tmp_path / "t.csv", label="kind")


# ---- torch ----


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
