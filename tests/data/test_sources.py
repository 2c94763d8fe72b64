from __future__ import annotations

import contextlib
import gzip
import math
import os
import pickle
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from layouts import (
    CIFAR10,
    leaf_user,
    noise,
    write_ag_news,
    write_cifar10,
    write_cifar100,
    write_cinic10,
    write_emnist,
    write_idx_pair,
    write_image,
    write_leaf,
    write_mat,
    write_mnist,
    write_tiny_imagenet,
    write_usps_libsvm,
)
from sklearn.datasets import load_digits

from unskew.data import load
from unskew.data.cache import write_arrays
from unskew.data.downloads import DOWNLOADS
from unskew.data.federation import federate
from unskew.data.images import channel_stats
from unskew.data.sources import SOURCES, available, data_folder
from unskew.errors import UserError

real = pytest.mark.skipif(not os.environ.get("UNSKEW_DATA"), reason="UNSKEW_DATA names no data folder")


def equal(tensor: torch.Tensor, array: np.ndarray) -> bool:
    return np.array_equal(tensor.numpy(), array)


# ---- bundled ----


def test_digits_are_scikit_learns_with_every_fifth_of_a_class_for_testing() -> None:
    data = load("digits")
    assert (
        (len(data.train), len(data.test)) == (SOURCES["digits"].train, SOURCES["digits"].test) == (1442, 355)
    )
    assert data.train.inputs.dtype == torch.uint8
    assert data.inputs.shape == (1, 8, 8)
    published = load_digits()
    zeros = published.images[published.target == 0]
    assert equal(data.test.inputs[data.test.labels == 0][:, 0], np.rint(zeros[4::5] * 255 / 16))
    assert equal(data.train.inputs[data.train.labels == 0][:4, 0], np.rint(zeros[:4] * 255 / 16))
    assert load("digits").sha256 == data.sha256


def test_heart_disease_is_a_federation_of_four_hospitals() -> None:
    data = load("heart-disease")
    source = SOURCES["heart-disease"]
    assert (len(data.train), len(data.test)) == (source.train, source.test)
    assert source.shape == f"{data.inputs.shape[0]} features"
    assert data.owners == ("Cleveland", "Hungary", "Switzerland", "Long Beach")
    counted = torch.zeros(4, 2, dtype=torch.int64)
    for split in (data.train, data.test):
        assert split.owners is not None
        counted.index_put_((split.owners, split.labels), torch.tensor(1), accumulate=True)
    assert counted.tolist() == [[164, 139], [188, 106], [8, 115], [51, 149]]  # as UCI's table has them
    told = " ".join(data.notes)
    for name, gaps in {"ca": 611, "thal": 486, "slope": 309, "chol": 30 + 172, "trestbps": 59 + 1}.items():
        assert f"{name} {gaps}" in told


def test_grades_of_heart_disease_say_what_hungary_recorded() -> None:
    data = load("heart-disease:grades")
    made = federate(data, "natural", 0, seed=0)
    assert dict(zip(made.names, made.partition.vacant, strict=True)) == {
        "Cleveland": 0,
        "Hungary": 3,
        "Switzerland": 0,
        "Long Beach": 0,
    }
    assert "every diseased patient as grade 1" in data.notes[0]


@pytest.mark.parametrize(
    "spec", ["digits", *(pytest.param(n, marks=real) for n in ("mnist", "fashion_mnist"))]
)
def test_written_statistics_are_those_of_the_training_pixels(spec: str) -> None:
    data = load(spec)
    mean, std = channel_stats(data.train.inputs.numpy())
    assert data.mean == pytest.approx(mean, abs=6e-5)
    assert data.std == pytest.approx(std, abs=6e-5)


def test_synthetic_cuts_every_client_ninety_to_ten_and_names_its_owner() -> None:
    data = load("synthetic:0.5,0.5,clients=30,cap=400")
    assert data.inputs.kind == "table"
    assert data.inputs.shape == (60,)
    assert data.train.owners is not None
    assert data.test.owners is not None
    train, test = torch.bincount(data.train.owners).tolist(), torch.bincount(data.test.owners).tolist()
    assert len(train) == len(test) == 30
    assert train == [math.floor(0.9 * (a + b)) for a, b in zip(train, test, strict=True)]
    assert all(50 <= a + b <= 400 for a, b in zip(train, test, strict=True))
    assert len(set(train)) > 5  # sizes differ


def test_synthetic_draws_by_its_seed() -> None:
    data = load("synthetic")
    assert load("synthetic").sha256 == data.sha256
    assert load("synthetic", seed=0).sha256 == data.sha256
    assert load("synthetic", seed=1).sha256 == load("synthetic:seed=1").sha256 != data.sha256
    assert load("synthetic:seed=1", seed=2).sha256 == load("synthetic:seed=1").sha256  # the spec decides


def test_synthetic_clients_label_by_linear_models_of_their_own() -> None:
    """Check that one linear rule explains all labels of a client, but not those of another client."""
    from sklearn.linear_model import LogisticRegression

    data = load("synthetic:0,0,clients=12,cap=1000,seed=3")
    sizes = torch.bincount(data.train.owners)
    a, b = sizes.argsort(descending=True)[:2].tolist()
    x, y = data.train.inputs[data.train.owners == a], data.train.labels[data.train.owners == a]
    rule = LogisticRegression(C=1e4, max_iter=2000).fit(x, y)
    assert rule.score(x, y) > 0.99
    other = data.train.owners == b
    assert rule.score(data.train.inputs[other], data.train.labels[other]) < 0.6


def test_synthetic_beta_spreads_the_clients_and_alpha_leaves_the_labels() -> None:
    def centres(spec: str) -> torch.Tensor:
        data = load(spec)
        return torch.stack([data.train.inputs[data.train.owners == k].mean() for k in range(200)])

    near, far = centres("synthetic:0,0,clients=200,cap=60"), centres("synthetic:0,2,clients=200,cap=60")
    assert far.std() == pytest.approx(2.0, rel=0.15)  # the standard deviation of B_k
    assert near.std() < 0.3
    assert load("synthetic:0,1").sha256 == load("synthetic:5,1").sha256


def test_synthetic_features_vary_as_their_definition_says() -> None:
    data = load("synthetic:iid=true,clients=100,cap=300")
    std = data.train.inputs.std(dim=0).numpy()
    assert std == pytest.approx(np.arange(1, 61) ** -0.6, rel=0.05)
    assert data.train.inputs.mean(dim=0).abs().max() < 0.05


def test_synthetic_cap_shortens_a_client_and_changes_no_other() -> None:
    whole, capped = load("synthetic:clients=20"), load("synthetic:clients=20,cap=100")
    sizes = torch.bincount(whole.train.owners) + torch.bincount(whole.test.owners)
    assert sizes.max() > 100
    for k in range(20):
        x, y = (data.train.inputs[data.train.owners == k] for data in (whole, capped))
        assert torch.equal(x[: len(y)], y)
        assert len(y) == math.floor(0.9 * min(int(sizes[k]), 100))


def test_mixed_synthetic_gives_half_of_the_clients_two_classes_in_equal_parts() -> None:
    data = load("synthetic:1,1,clients=20,mixed=true,cap=500")
    labels = torch.cat([data.train.labels, data.test.labels])
    owners = torch.cat([data.train.owners, data.test.owners])
    for k in range(20):
        counts = torch.bincount(labels[owners == k], minlength=10).sort(descending=True).values.tolist()
        if k % 2 == 0:
            assert counts[0] - counts[1] in (0, 1)
            assert sum(counts[2:]) == 0
    plain = load("synthetic:1,1,clients=20,cap=500")
    assert (torch.bincount(plain.train.owners) == torch.bincount(data.train.owners)).all()


def test_leaf_synthetic_is_leafs_own() -> None:
    """Compare with the label counts of LEAF's main.py for 200 tasks, 5 classes, 60 features and its seed."""
    data = load("leaf_synthetic:clients=200")
    assert torch.bincount(data.train.labels).tolist() == [1666, 6761, 4821, 5651, 2440]
    assert data.inputs.shape == (60,)
    assert int(data.train.owners.max()) == 199


@pytest.mark.parametrize(
    "spec",
    [
        "synthetic:alpha=-1",
        "synthetic:clients=0",
        "synthetic:cap=3",
        "synthetic:iid=true,mixed=true",
        "synthetic:seed=-1",
    ],
)
def test_synthetic_refuses_what_makes_no_federation(spec: str) -> None:
    with pytest.raises(UserError, match="synthetic"):
        load(spec)


# ---- IDX ----


@pytest.mark.parametrize("gz", [True, False])
@pytest.mark.parametrize("dot", ["-", "."])
@pytest.mark.parametrize(
    ("name", "folder"),
    [
        ("mnist", "mnist"),
        ("mnist", "MNIST/raw"),
        ("fashion_mnist", "fashion-mnist"),
        ("kmnist", "KMNIST/raw"),
    ],
)
def test_idx_sets_are_read_under_all_their_names(
    tmp_path: Path, name: str, folder: str, gz: bool, dot: str
) -> None:
    images, labels = write_mnist(tmp_path / folder, gz=gz, dot=dot)
    data = load(name, tmp_path)
    assert equal(data.train.inputs[:, 0], images)
    assert equal(data.train.labels, labels)
    assert equal(data.test.inputs[:, 0], images[:10])
    assert len(data.classes) == len(data.mean) * 10


@pytest.mark.parametrize(
    ("part", "classes", "first"),
    [
        ("balanced", 47, 0),
        ("byclass", 62, 0),
        ("bymerge", 47, 0),
        ("letters", 26, 1),
        ("digits", 10, 0),
        ("mnist", 10, 0),
    ],
)
def test_emnist_stands_upright_with_labels_from_zero(
    tmp_path: Path, part: str, classes: int, first: int
) -> None:
    upright = noise(0, classes, 28, 28)
    write_emnist(tmp_path / "emnist", part, upright, np.arange(first, first + classes, dtype=np.uint8))
    data = load(f"emnist:{part}", tmp_path)
    assert equal(data.train.inputs[:, 0], upright)
    assert equal(data.train.labels, np.arange(classes))
    assert len(data.classes) == classes
    assert data.mean[0] == pytest.approx(upright.mean() / 255)


def test_emnist_classes_are_named_by_their_characters() -> None:
    from unskew.data.sources.idx import EMNIST

    assert EMNIST["balanced"][10] == "A"
    assert EMNIST["balanced"][36:] == tuple("abdefghnqrt")
    assert EMNIST["byclass"][61] == "z"


def damage_idx(kind: str, folder: Path) -> None:
    path = folder / "train-images-idx3-ubyte.gz"
    raw = gzip.decompress(path.read_bytes())
    if kind == "empty":
        path.write_bytes(b"")
    elif kind == "empty inside":
        path.write_bytes(gzip.compress(b""))
    elif kind == "bad magic":
        path.write_bytes(gzip.compress(b"\0\0\x0d\x03" + raw[4:]))
    elif kind == "short gz":
        path.write_bytes(path.read_bytes()[:-100])
    elif kind == "not gz":
        path.write_bytes(raw)
    elif kind == "too few pixels":
        path.write_bytes(gzip.compress(raw[:-1]))
    elif kind == "too many pixels":
        path.write_bytes(gzip.compress(raw + b"\0"))
    elif kind == "header only":
        path.write_bytes(gzip.compress(raw[:9]))


@pytest.mark.parametrize(
    "kind",
    [
        "empty",
        "empty inside",
        "bad magic",
        "short gz",
        "not gz",
        "too few pixels",
        "too many pixels",
        "header only",
    ],
)
def test_a_damaged_idx_file_is_named(tmp_path: Path, kind: str) -> None:
    write_mnist(tmp_path / "mnist")
    damage_idx(kind, tmp_path / "mnist")
    with pytest.raises(UserError, match=r"train-images-idx3-ubyte\.gz .*again\.$"):
        load("mnist", tmp_path)


def test_an_idx_label_out_of_range_is_named(tmp_path: Path) -> None:
    write_mnist(tmp_path / "mnist")
    write_idx_pair(tmp_path / "mnist", "t10k", noise(0, 2, 28, 28), np.array([3, 10], np.uint8))
    with pytest.raises(
        UserError, match=r"t10k-labels-idx1-ubyte\.gz has label 10 at sample 1, outside 0\.\.9"
    ):
        load("mnist", tmp_path)


def test_images_and_labels_that_differ_in_number_are_named(tmp_path: Path) -> None:
    write_mnist(tmp_path / "mnist")
    write_idx_pair(tmp_path / "mnist", "t10k", noise(0, 3, 28, 28), np.array([3, 1], np.uint8))
    with pytest.raises(UserError, match=r"3 images but .* 2 labels"):
        load("mnist", tmp_path)


# ---- CIFAR ----


@pytest.mark.parametrize(
    ("version", "folder"),
    [("bin", "cifar-10-batches-bin"), ("python2", "cifar-10-batches-py"), ("python3", "cifar-10-batches-py")],
)
def test_cifar10_versions_agree(tmp_path: Path, version: str, folder: str) -> None:
    images, labels = write_cifar10(tmp_path / folder, version)
    data = load("cifar10", tmp_path)
    assert equal(data.train.inputs, images)
    assert equal(data.train.labels, labels)
    assert equal(data.test.inputs, images[:2])
    assert data.classes == tuple(CIFAR10)


@pytest.mark.parametrize(
    ("version", "folder"), [("bin", "cifar-100-binary"), ("python2", "cifar-100-python")]
)
def test_cifar100_has_fine_and_coarse_labels(tmp_path: Path, version: str, folder: str) -> None:
    images, fine, coarse = write_cifar100(tmp_path / folder, version)
    data = load("cifar100", tmp_path)
    assert equal(data.train.inputs, images)
    assert equal(data.train.labels, fine)
    assert (len(data.classes), data.classes[0], data.classes[99]) == (100, "apple", "worm")
    assert list(data.classes) == sorted(data.classes)
    data = load("cifar100:coarse", tmp_path)
    assert equal(data.train.labels, coarse)
    assert len(data.classes) == 20


class Attack:
    def __init__(self, target: Path) -> None:
        self.target = target

    def __reduce__(self) -> tuple[Callable[[str], int], tuple[str]]:
        return os.system, (f"touch {self.target}",)


def test_a_pickle_that_calls_anything_is_refused_and_not_run(tmp_path: Path) -> None:
    folder = tmp_path / "cifar-10-batches-py"
    write_cifar10(folder, "python2")
    target = tmp_path / "harm"
    (folder / "data_batch_2").write_bytes(pickle.dumps({"data": Attack(target), "labels": []}))
    with pytest.raises(UserError, match=r"data_batch_2 is refused: it asks for '\w+\.system'"):
        load("cifar10", tmp_path)
    assert not target.exists()


@pytest.mark.parametrize(
    "content",
    [
        [1, 2],
        {"labels": [1]},
        {"data": noise(0, 1, 3071), "labels": [1]},
        {"data": noise(0, 2, 3072), "labels": [1]},
        {"data": noise(0, 1, 3072).astype(np.float32), "labels": [1]},
        {"data": noise(0, 1, 3072), "labels": ["cat"]},
    ],
)
def test_a_pickle_without_a_batch_is_named(tmp_path: Path, content: object) -> None:
    folder = tmp_path / "cifar-10-batches-py"
    write_cifar10(folder, "python2")
    (folder / "test_batch").write_bytes(pickle.dumps(content))
    with pytest.raises(UserError, match=r"test_batch (does not hold|is not a readable pickle)"):
        load("cifar10", tmp_path)


def test_a_cifar_file_of_wrong_size_or_labels_or_absence_is_named(tmp_path: Path) -> None:
    folder = tmp_path / "cifar-10-batches-bin"
    write_cifar10(folder)
    path = folder / "data_batch_3.bin"
    whole = path.read_bytes()
    path.write_bytes(whole[:-1])
    with pytest.raises(UserError, match=r"data_batch_3\.bin has \d+ bytes, not a multiple of 3073"):
        load("cifar10", tmp_path)
    path.write_bytes(b"\x0b" + whole[1:])
    with pytest.raises(UserError, match=r"data_batch_3\.bin has label 11 at sample 0"):
        load("cifar10", tmp_path)
    path.unlink()
    with pytest.raises(UserError, match=r"lacks data_batch_3\.bin"):
        load("cifar10", tmp_path)


# ---- Matlab digits ----


def test_svhn_reads_ten_as_zero_and_adds_the_extra_images_on_request(tmp_path: Path) -> None:
    train = write_mat(tmp_path / "svhn" / "train_32x32.mat", [10, 1, 9])
    write_mat(tmp_path / "svhn" / "test_32x32.mat", [2, 10])
    data = load("svhn", tmp_path)
    assert equal(data.train.inputs, train)
    assert data.train.labels.tolist() == [0, 1, 9]
    assert data.test.labels.tolist() == [2, 0]
    with pytest.raises(UserError, match="unskew data fetch svhn_extra"):
        load("svhn:extra=true", tmp_path)
    extra = write_mat(tmp_path / "svhn" / "extra_32x32.mat", [5], seed=9)
    assert equal(load("svhn:extra=true", tmp_path).train.inputs[3:], extra)


def test_syn_digits_lie_beside_each_other_in_the_data_folder(tmp_path: Path) -> None:
    train = write_mat(tmp_path / "synth_train_32x32.mat", [0, 1, 9])
    write_mat(tmp_path / "synth_test_32x32.mat", [4])
    data = load("syn_digits", tmp_path)
    assert equal(data.train.inputs, train)
    assert data.train.labels.tolist() == [0, 1, 9]
    assert data.mean == pytest.approx(train.mean(axis=(0, 2, 3)) / 255)
    assert data.std == pytest.approx(train.std(axis=(0, 2, 3)) / 255)


@pytest.mark.parametrize("labels", [[11, 1], [200, 0]])
def test_a_matlab_label_out_of_range_is_named(tmp_path: Path, labels: list[int]) -> None:
    write_mat(tmp_path / "svhn" / "train_32x32.mat", labels)
    with pytest.raises(UserError, match=rf"train_32x32\.mat has label {labels[0]} at sample 0"):
        load("svhn", tmp_path)


# ---- folders of images ----


@pytest.mark.parametrize("rearranged", [False, True])
def test_tiny_imagenet(tmp_path: Path, rearranged: bool) -> None:
    write_tiny_imagenet(tmp_path / "tiny-imagenet-200", rearranged=rearranged)
    data = load("tiny_imagenet", tmp_path)
    assert data.inputs.shape == (3, 64, 64)
    assert data.train.labels.tolist() == [0, 0, 1, 1, 2, 2]
    assert data.train.inputs[:, 1, 5, 5].tolist() == pytest.approx([0, 1, 40, 41, 80, 81], abs=1)
    by_class = data.test.inputs[data.test.labels.argsort(), 0, 0, 0].tolist()
    assert by_class == pytest.approx([9, 49, 89], abs=1)
    assert data.classes == ("crane (n01)", "goldfish", "crane (n03)")


def test_tiny_imagenet_annotations_must_name_known_classes_and_files(tmp_path: Path) -> None:
    folder = tmp_path / "tiny-imagenet-200"
    write_tiny_imagenet(folder)
    table = folder / "val" / "val_annotations.txt"
    table.write_text("val_0.JPEG\tn99\t0\t0\t1\t1\n")
    with pytest.raises(UserError, match=r"val_annotations\.txt names the class 'n99' in line 1"):
        load("tiny_imagenet", tmp_path)
    table.write_text("val_7.JPEG\tn01\t0\t0\t1\t1\n")
    with pytest.raises(UserError, match=r"lacks val_7\.JPEG"):
        load("tiny_imagenet", tmp_path)


def test_cinic10_trains_on_its_training_part_and_on_request_on_the_valid_one(tmp_path: Path) -> None:
    write_cinic10(tmp_path / "CINIC-10")
    data = load("cinic10", tmp_path)
    assert data.train.inputs[:, 0, 0, 0].tolist() == list(range(10))
    assert data.test.inputs[:, 0, 0, 0].tolist() == list(range(200, 210))
    assert data.train.labels.tolist() == list(range(10))
    both = load("cinic10:valid=true", tmp_path)
    assert both.train.inputs[:, 2, 9, 9].tolist() == [*range(10), *range(100, 110)]
    assert both.train.labels.tolist() == [*range(10)] * 2


def test_an_image_of_wrong_size_or_content_is_named(tmp_path: Path) -> None:
    folder = tmp_path / "cinic-10"
    write_cinic10(folder)
    odd = folder / "train" / "dog" / "5.png"
    write_image(odd, noise(0, 16, 16, 3))
    with pytest.raises(UserError, match=r"dog.5\.png is 16x16 pixels but"):
        load("cinic10", tmp_path)
    odd.write_bytes(b"\x89PNG\r\n\x1a\n" + b"\0" * 50)
    with pytest.raises(UserError, match=r"dog.5\.png cannot be read as an image"):
        load("cinic10", tmp_path)
    shutil.rmtree(folder / "train" / "dog")
    with pytest.raises(UserError, match=r"dog holds no images"):
        load("cinic10", tmp_path)


def test_decoded_images_are_kept_until_a_file_changes(tmp_path: Path, cache: Path) -> None:
    write_cinic10(tmp_path / "cinic-10")
    load("cinic10", tmp_path)
    kept = {path.name for path in (cache / "decoded").iterdir()}
    assert len(kept) == 2
    path = tmp_path / "cinic-10" / "train" / "cat" / "3.png"
    before, size = path.stat(), path.stat().st_size
    path.write_bytes(b"x" * size)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert load("cinic10", tmp_path).train.inputs[3, 0, 0, 0] == 3  # not decoded again
    write_image(path, np.full((32, 32, 3), 77, np.uint8))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns + 10**9))
    assert load("cinic10", tmp_path).train.inputs[3, 0, 0, 0] == 77
    now = {path.name for path in (cache / "decoded").iterdir()}
    assert len(now) == 2  # what is out of date is gone
    assert len(now & kept) == 1


def test_a_broken_or_unwritable_cache_does_no_harm(tmp_path: Path, cache: Path) -> None:
    write_cinic10(tmp_path / "cinic-10")
    whole = load("cinic10", tmp_path)
    for path in (cache / "decoded").iterdir():
        path.write_bytes(path.read_bytes()[:1000])
    assert load("cinic10", tmp_path).sha256 == whole.sha256
    shutil.rmtree(cache)
    cache.write_text("a file where the folder should be")
    with pytest.warns(UserWarning, match="cannot be kept"):
        assert load("cinic10", tmp_path).sha256 == whole.sha256


def test_a_cache_file_that_cannot_be_written_whole_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="allow_pickle"):
        write_arrays(tmp_path / "some.npz", {"good": np.zeros(3), "bad": np.array([object()])})
    assert list(tmp_path.iterdir()) == []


# ---- FEMNIST ----


def test_femnist_in_leafs_split_has_its_writers_as_owners(tmp_path: Path) -> None:
    base = tmp_path / "femnist" / "data"
    ann, bob, small = leaf_user(12, [0, 11, 61], 1), leaf_user(15, [3, 9], 2), leaf_user(4, [1], 3)
    write_leaf(base / "train" / "all_data_0_keep_0_train_9.json", {"ann": ann, "small": small})
    write_leaf(base / "train" / "all_data_1_keep_0_train_9.json", {"bob": bob})
    write_leaf(
        base / "test" / "all_data_0_keep_0_test_9.json",
        {"bob": leaf_user(2, [9], 4), "ann": leaf_user(1, [61], 5)},
    )
    data = load("femnist", tmp_path)
    assert data.train.owners.tolist() == [0] * 12 + [1] * 15  # `small` is below 10 samples
    assert data.test.owners.tolist() == [1, 1, 0]
    assert data.train.labels.tolist() == [*ann["y"], *bob["y"]]
    assert equal(data.train.inputs[:12].reshape(12, 784), noise(1, 12, 784))
    assert (len(data.classes), data.classes[10], data.classes[61]) == (62, "A", "z")
    everyone = load("femnist:min_samples=0", tmp_path)
    assert torch.bincount(everyone.train.owners).tolist() == [12, 4, 15]


def test_femnist_digits_only(tmp_path: Path) -> None:
    write_leaf(
        tmp_path / "femnist" / "train" / "a.json",
        {"ann": leaf_user(30, [0, 11, 61], 1), "bob": leaf_user(12, [3], 2)},
    )
    write_leaf(
        tmp_path / "femnist" / "test" / "a.json",
        {"ann": leaf_user(3, [0, 50], 1), "bob": leaf_user(1, [3], 2)},
    )
    data = load("femnist:digits_only=true", tmp_path)
    assert data.classes == tuple("0123456789")
    assert torch.bincount(data.train.owners).tolist() == [10, 12]
    assert data.train.labels.unique().tolist() == [0, 3]
    fewer = load("femnist:digits_only=true,min_samples=13", tmp_path)  # ann has 10 + 2 digits, bob 12 + 1
    assert fewer.train.owners.tolist() == [0] * 12
    assert fewer.train.labels.unique().tolist() == [3]


def test_femnist_not_yet_split_gives_every_tenth_sample_of_a_writer_for_testing(tmp_path: Path) -> None:
    for name, user, n in (("all_data_0", "ann", 25), ("all_data_1", "bob", 10)):
        write_leaf(
            tmp_path / "femnist" / "all_data" / f"{name}.json", {user: leaf_user(n, list(range(10)), n)}
        )
    data = load("femnist", tmp_path)
    assert torch.bincount(data.train.owners).tolist() == [23, 9]
    assert torch.bincount(data.test.owners).tolist() == [2, 1]
    assert equal(data.test.inputs[2].reshape(784), noise(10, 10, 784)[9])


def test_femnist_test_writers_of_their_own_are_numbered_after_the_training_ones(tmp_path: Path) -> None:
    """LEAF's `-t user` puts each writer into one of the two."""
    write_leaf(
        tmp_path / "femnist" / "train" / "a.json",
        {"tiny": leaf_user(1, [1], 0), "ann": leaf_user(10, [1], 1)},
    )
    write_leaf(tmp_path / "femnist" / "test" / "a.json", {"bob": leaf_user(10, [2], 2)})
    data = load("femnist", tmp_path)
    assert data.train.owners.unique().tolist() == [0]
    assert data.test.owners.unique().tolist() == [1]


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("", "is empty"),
        ('{"users": ["a"', "not readable JSON"),
        ('{"users": ["a"], "user_data": {}}', "does not hold LEAF's users"),
        ('{"users": ["a"], "user_data": {"a": {"x": [[1, 2]], "y": [1]}}}', "does not hold LEAF's users"),
        ('{"users": ["a"], "user_data": {"a": {"x": [], "y": [1]}}}', "does not hold LEAF's users"),
        ('{"users": []}', "hold no samples"),
        ("[]", "does not hold LEAF's users"),
    ],
)
def test_a_damaged_femnist_file_is_named(tmp_path: Path, content: str, says: str) -> None:
    path = tmp_path / "femnist" / "all_data" / "all_data_0.json"
    path.parent.mkdir(parents=True)
    path.write_text(content)
    with pytest.raises(UserError, match=rf"all_data_0\.json .*{says}"):
        load("femnist", tmp_path)


def test_femnist_labels_and_options_are_checked(tmp_path: Path) -> None:
    write_leaf(tmp_path / "femnist" / "all_data" / "a.json", {"ann": leaf_user(10, [62], 1)})
    with pytest.raises(UserError, match=r"a\.json has label 62 at sample 0, outside 0\.\.61"):
        load("femnist", tmp_path)
    write_leaf(tmp_path / "femnist" / "all_data" / "a.json", {"ann": leaf_user(10, [6], 1)})
    with pytest.raises(UserError, match="min_samples=11: lower it"):
        load("femnist:min_samples=11", tmp_path)


# ---- USPS and AG News ----


def test_usps_in_libsvms_format(tmp_path: Path) -> None:
    pixels = write_usps_libsvm(tmp_path / "usps")
    data = load("usps", tmp_path)
    assert equal(data.train.inputs[:, 0], pixels)
    assert data.train.labels.tolist() == list(range(10))


def test_usps_as_one_npz_file(tmp_path: Path) -> None:
    x, y = noise(0, 10, 16, 16), np.arange(10, dtype=np.uint8)
    np.savez(tmp_path / "usps.npz", x_train=x, y_train=y, x_test=x[:3], y_test=y[:3])
    data = load("usps", tmp_path)
    assert equal(data.train.inputs[:, 0], x)
    assert equal(data.test.labels, y[:3])
    np.savez(tmp_path / "usps.npz", x_train=x, y_train=y + 1, x_test=x[:3], y_test=y[:3])
    with pytest.raises(UserError, match=r"usps\.npz has label 10 at sample 9"):
        load("usps", tmp_path)


NEWS = [
    (3, "Shares rise", "Shares rose; the market&lt;b&gt; closed higher."),
    (4, "It's a rocket", r"A rocket\launch for #36;10 and Sun #39;s rays"),
    (1, "Shares the market", "A 'quoted' word, the end"),
    (2, "Match", "The match ended"),
]


def test_ag_news_ids_follow_frequency_in_the_training_texts(tmp_path: Path) -> None:
    write_ag_news(tmp_path / "ag_news", NEWS, [(2, "Shares match", "unseen words")])
    data = load("ag_news:min_count=1,length=8", tmp_path)
    assert data.inputs.kind == "text"
    assert data.train.inputs.dtype == torch.int32
    assert data.train.labels.tolist() == [2, 3, 0, 1]
    # `the` occurs 4 times, `a` and `shares` 3 times, `market`, `match` and `rocket` twice.
    the, shares, match = 2, 4, 6
    assert data.train.inputs[3].tolist()[:3] == [match, the, match]
    assert data.train.inputs[3].tolist()[4:] == [0] * 4
    assert data.test.inputs[0].tolist() == [shares, match, 1, 1, 0, 0, 0, 0]
    assert int(data.train.inputs.max()) == data.vocabulary - 1


def test_ag_news_vocabulary_is_capped_and_rare_words_are_unknown(tmp_path: Path) -> None:
    write_ag_news(tmp_path / "ag_news", NEWS, NEWS[:1])
    assert load("ag_news:vocabulary=4,min_count=1", tmp_path).vocabulary == 4
    data = load("ag_news", tmp_path)
    assert data.vocabulary == 2 + 6  # the words that occur twice
    assert data.inputs.shape == (64,)
    with pytest.raises(UserError, match="vocabulary of at least 3"):
        load("ag_news:2", tmp_path)


@pytest.mark.parametrize("name", ["train.csv", "test.csv"])
def test_a_missing_ag_news_file_is_named(tmp_path: Path, name: str) -> None:
    write_ag_news(tmp_path / "ag_news", NEWS, NEWS)
    (tmp_path / "ag_news" / name).unlink()
    with pytest.raises(UserError, match=f"ag_news lacks {name}: fetch or copy the whole set again"):
        load("ag_news", tmp_path)


def test_ag_news_words_are_freed_of_the_files_escapes() -> None:
    from unskew.data.words import tokenise

    assert tokenise(r"A rocket\launch for #36;10: Sun#39;s, don't &lt;b&gt;") == [
        *("a", "rocket", "launch", "for", "10", "sun's", "don't", "b"),
    ]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('"5","a","b"\n', "has label 5 at sample 0, outside 1..4"),
        ('"1","a","b"\n"2","a"\n', "is not a table .* in row 2"),
        ('"x","a","b"\n', "is not a table .* in row 1"),
        ('"1","a","cut', "is not a table .* in row 1"),
        ("", "is empty"),
    ],
)
def test_a_damaged_ag_news_file_is_named(tmp_path: Path, text: str, says: str) -> None:
    write_ag_news(tmp_path / "ag_news", NEWS, NEWS)
    (tmp_path / "ag_news" / "test.csv").write_text(text)
    with pytest.raises(UserError, match=rf"test\.csv {says}"):
        load("ag_news", tmp_path)


# ---- damage of any kind ----


def small_sets(root: Path) -> dict[str, Path]:
    """Small sets of each format, and one file of each."""
    write_mnist(root / "mnist", 10)
    write_mnist(root / "kmnist", 10, gz=False)
    write_cifar10(root / "cifar-10-batches-py", "python2", n=1)
    write_cifar100(root / "cifar-100-python", "python2", n=2)
    for which in ("train", "test"):
        write_mat(root / "svhn" / f"{which}_32x32.mat", [1, 2])
    write_usps_libsvm(root / "usps")
    write_leaf(root / "femnist" / "all_data" / "a.json", {"ann": leaf_user(10, [1, 2], 0)})
    write_ag_news(root / "ag_news", NEWS, NEWS)
    return {
        "mnist": root / "mnist" / "train-images-idx3-ubyte.gz",
        "kmnist": root / "kmnist" / "train-labels-idx1-ubyte",
        "cifar10": root / "cifar-10-batches-py" / "data_batch_1",
        "cifar100": root / "cifar-100-python" / "train",
        "svhn": root / "svhn" / "train_32x32.mat",
        "usps": root / "usps" / "usps.bz2",
        "femnist": root / "femnist" / "all_data" / "a.json",
        "ag_news": root / "ag_news" / "train.csv",
    }


@pytest.fixture(scope="module")
def sets() -> dict[str, Path]:
    root = Path(tempfile.mkdtemp())
    yield small_sets(root)
    shutil.rmtree(root)


FORMATS = ["mnist", "kmnist", "cifar10", "cifar100", "svhn", "usps", "femnist", "ag_news"]


@pytest.mark.parametrize("name", FORMATS[:-1])  # a table of text cut between rows is a shorter table
@settings(max_examples=25)
@given(at=st.floats(0, 1, exclude_max=True))
def test_a_file_cut_anywhere_is_a_one_sentence_error_that_names_it(
    name: str, sets: dict[str, Path], at: float
) -> None:
    path = sets[name]
    root = path.parents[2 if name == "femnist" else 1]
    whole = path.read_bytes()
    end = int(at * (len(whole) - 2))  # the last bytes of a text may be a line break that nobody misses
    try:
        path.write_bytes(whole[:end])
        with pytest.raises(UserError, match=path.name) as caught:
            load(name, root)
        assert "\n" not in str(caught.value)
    finally:
        path.write_bytes(whole)


@pytest.mark.parametrize("name", FORMATS)
@settings(max_examples=40)
@given(at=st.floats(0, 1, exclude_max=True), mask=st.integers(1, 255))
def test_a_file_with_a_changed_byte_is_read_or_refused_but_never_a_traceback(
    name: str, sets: dict[str, Path], at: float, mask: int
) -> None:
    path = sets[name]
    root = path.parents[2 if name == "femnist" else 1]
    whole = bytearray(path.read_bytes())
    changed = whole.copy()
    changed[int(at * len(whole))] ^= mask
    try:
        path.write_bytes(changed)
        with contextlib.suppress(UserError):
            load(name, root)
    finally:
        path.write_bytes(whole)


# ---- finding, specs ----


def test_the_data_folder_is_the_given_one_else_the_environments_else_the_cache(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("UNSKEW_DATA", raising=False)
    assert data_folder() == cache
    write_mnist(cache / "mnist")
    assert len(load("mnist").train) == 20
    monkeypatch.setenv("UNSKEW_DATA", str(tmp_path / "env"))
    write_mnist(tmp_path / "env" / "mnist", 30)
    assert len(load("mnist").train) == 30
    write_mnist(tmp_path / "given" / "mnist", 40)
    assert len(load("mnist", tmp_path / "given").train) == 40


def test_available_tells_what_is_there_and_where(tmp_path: Path) -> None:
    write_mnist(tmp_path / "MNIST" / "raw")
    write_cifar10(tmp_path / "cifar-10-batches-py", "python2")
    (tmp_path / "kmnist").mkdir()  # empty
    found = {f.source.name: f for f in available(tmp_path)}
    assert list(found) == list(SOURCES)
    ready = {name: f.folder for name, f in found.items() if f.ready}
    assert ready == {
        **dict.fromkeys(("digits", "heart-disease", "synthetic", "leaf_synthetic")),
        "mnist": tmp_path / "MNIST" / "raw",
        "cifar10": tmp_path / "cifar-10-batches-py",
    }


@pytest.mark.parametrize("name", [name for name, source in SOURCES.items() if not source.bundled])
def test_an_absent_set_says_what_is_missing_where_it_goes_and_how_to_get_it(
    tmp_path: Path, name: str
) -> None:
    source = SOURCES[name]
    with pytest.raises(UserError) as caught:
        load(name, tmp_path / "nowhere")
    said = str(caught.value)
    assert said.startswith(source.title)
    assert str(tmp_path / "nowhere" / source.folders[0]) in said
    assert (f"unskew data fetch {name}" in said) == (name in DOWNLOADS)
    assert name in DOWNLOADS or "http" in said


def test_the_table_of_sources_agrees_with_itself_and_with_the_downloads() -> None:
    for name, source in SOURCES.items():
        assert source.name == name
        assert source.bundled == (not source.marks)
        assert source.bundled + (name in DOWNLOADS) + bool(source.by_hand) == 1
        if name in DOWNLOADS:
            assert DOWNLOADS[name].folder == source.folders[0]


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        ("cifr10", "unknown dataset 'cifr10': did you mean 'cifar10'?"),
        ("", "unknown dataset '': choose one of"),
        ("synthetic:client=3", "unknown option of synthetic 'client': did you mean 'clients'?"),
        ("synthetic:clients=few", "synthetic clients is 'few' but should be a whole number."),
        ("synthetic:0.5,nan", "synthetic beta is 'nan' but should be a finite number."),
        ("synthetic:iid=maybe", "synthetic iid is 'maybe' but should be true or false."),
        ("synthetic:1,alpha=2", "synthetic is given alpha twice: give it once."),
        ("synthetic:seed=1,0.5", "'0.5' is out of place"),
        ("synthetic:1,,", "'' is out of place"),
        ("leaf_synthetic:1,2,3,4,5,6", "'6' is out of place"),
        ("mnist:3", "mnist has no options: leave out '3'."),
        ("emnist:leters", "unknown emnist split 'leters': did you mean 'letters'?"),
        ("csv:table.csv", "csv needs a value for label: write csv:PATH,LABEL."),
        ("folder:", "'folder:' has no path: write folder:PATH."),
        ("npz:nowhere.npz", "nowhere.npz does not exist"),
    ],
)
def test_a_wrong_spec_is_one_sentence(spec: str, says: str) -> None:
    with pytest.raises(UserError) as caught:
        load(spec)
    assert says in str(caught.value)


@settings(max_examples=20)
@given(alpha=st.floats(0, 3), beta=st.floats(0, 3), clients=st.integers(1, 5), seed=st.integers(0, 2**40))
def test_options_by_place_and_by_name_are_the_same(
    alpha: float, beta: float, clients: int, seed: int
) -> None:
    by_place = load(f"synthetic:{alpha!r},{beta!r},{clients},{seed},cap=50")
    by_name = load(f"synthetic:cap=50, seed={seed},clients={clients},beta={beta!r},alpha={alpha!r}")
    assert by_place.sha256 == by_name.sha256


def test_specs_of_own_data_take_a_path_and_options(tmp_path: Path) -> None:
    folder = tmp_path / "a=b:c"
    for name in ("cat", "dog"):
        for i in range(5):
            write_image(folder / name / f"{i}.png", noise(i, 8, 8, 3))
    assert load(f"folder:{folder},size=4").inputs.shape == (3, 4, 4)
    np.savez(tmp_path / "mine.npz", x=noise(0, 10, 6, 6), y=np.arange(10) % 2)
    assert len(load(f"npz:{tmp_path / 'mine.npz'},test_fraction=0.4").test) == 4
    (tmp_path / "t.csv").write_text("a,kind\n" + "".join(f"{i},{'xy'[i % 2]}\n" for i in range(10)))
    data = load(f"csv:{tmp_path / 't.csv'},label=kind,scale=none", seed=4)
    assert data.classes == ("x", "y")
    assert data.sha256 == load(f"csv:{tmp_path / 't.csv'},kind,seed=4,scale=none").sha256


# ---- the real thing ----


@real
def test_real_mnist() -> None:
    data = load("mnist")
    assert (len(data.train), len(data.test)) == (60_000, 10_000)
    assert torch.bincount(data.train.labels).min() == 5421
    assert data.train.labels[:5].tolist() == [5, 0, 4, 1, 9]
    assert data.test.labels[:5].tolist() == [7, 2, 1, 0, 4]


@real
def test_real_cifar10() -> None:
    data = load("cifar10")
    assert data.train.inputs.shape == (50_000, 3, 32, 32)
    assert torch.bincount(data.train.labels).tolist() == [5000] * 10
    assert [data.classes[c] for c in data.train.labels[:3]] == ["frog", "truck", "truck"]
    assert data.train.inputs[0, :, 0, 0].tolist() == [59, 62, 63]  # the frog's first pixel
    mean, std = channel_stats(data.train.inputs.numpy())
    assert data.mean == pytest.approx(mean, abs=6e-5)
    assert data.std == pytest.approx(std, abs=6e-5)


@real
def test_real_usps() -> None:
    data = load("usps")
    assert torch.bincount(data.train.labels).tolist() == [1194, 1005, 731, 658, 652, 556, 664, 645, 542, 644]
    assert len(data.test) == 2007
    mean, std = channel_stats(data.train.inputs.numpy())
    assert (*data.mean, *data.std) == pytest.approx((*mean, *std), abs=6e-5)


@real
def test_real_ag_news(tmp_path: Path) -> None:
    published = data_folder() / "ag_news" / "test.csv"
    for name in ("train.csv", "test.csv"):  # the test file stands for both
        (tmp_path / "ag_news").mkdir(exist_ok=True)
        shutil.copyfile(published, tmp_path / "ag_news" / name)
    data = load("ag_news", tmp_path)
    assert torch.bincount(data.test.labels).tolist() == [1900] * 4
    assert 10_000 < data.vocabulary <= 20_000
    assert (data.train.inputs == 1).float().mean() < 0.1
