"""The user's own folders of images, with and without sites."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from by_site import held
from layouts import noise, write_image
from PIL import Image

from unskew.data import load
from unskew.data.image_folders import from_folder
from unskew.data.names import distinct_names
from unskew.errors import UserError


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


@pytest.mark.parametrize("prefix", ["{site}/", "train/{site}/", "{site}/train/"])
def test_folders_of_sites_are_found_and_said(tmp_path: Path, prefix: str) -> None:
    parts = {("west", "cat"): 10, ("west", "cow"): 10, ("east", "cow"): 10, ("east", "dog"): 5}
    make_folder(tmp_path, {f"{prefix.format(site=s)}{c}": n for (s, c), n in parts.items()})
    data = from_folder(tmp_path)
    assert data.classes == ("cat", "cow", "dog")
    assert held(data) == {"east": [0, 8, 4], "west": [8, 8, 0]}
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
