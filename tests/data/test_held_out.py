"""The validation set: a part of each client's own, or a file."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from unskew import Dataset, UserError, federate, load
from unskew.data import from_arrays, from_csv
from unskew.data.dataset import Split
from unskew.data.federation import Federation
from unskew.data.partition import partition_of
from unskew.data.validation import hold_out


def holding(*counts: tuple[int, ...]) -> tuple[Dataset, list[np.ndarray]]:
    """Return a dataset, and for each client rows with these counts of each class."""
    labels = np.concatenate([np.repeat(np.arange(len(mine)), mine) for mine in counts])
    inputs = torch.arange(len(labels), dtype=torch.float32)[:, None]
    names = tuple(f"class {c}" for c in range(len(counts[0])))
    split = Split(inputs, torch.from_numpy(labels))
    cuts = np.cumsum([sum(mine) for mine in counts])[:-1]
    rows = np.random.default_rng(0).permutation  # in no order of classes
    return Dataset("held", split, split, names), [
        rows(part) for part in np.split(np.arange(len(labels)), cuts)
    ]


def made(*counts: tuple[int, ...], share: float = 0.1, seed: int = 1):
    dataset, rows = holding(*counts)
    return hold_out(partition_of(rows, dataset, recipe="by hand"), dataset, share, seed), dataset


def test_every_class_gives_its_share_at_every_client() -> None:
    partition, dataset = made((100, 40, 0, 7), (30, 0, 200, 1), (5, 5, 5, 5))
    labels = dataset.train.labels.numpy()
    for rows, held, before in zip(
        partition.indices, partition.validation, ((100, 40, 0, 7), (30, 0, 200, 1), (5, 5, 5, 5)), strict=True
    ):
        counts = np.bincount(labels[held], minlength=4)
        for c, n in enumerate(before):
            assert np.floor(0.1 * n) <= counts[c] <= np.ceil(0.1 * n)
        assert (counts + np.bincount(labels[rows], minlength=4)).tolist() == list(before)
        assert abs(len(held) - 0.1 * sum(before)) <= 1
        assert not set(rows) & set(held)
    assert partition.counts.tolist() == [
        np.bincount(labels[rows], minlength=4).tolist() for rows in partition.indices
    ]
    assert partition.sizes.tolist() == [len(rows) for rows in partition.indices]


@pytest.mark.parametrize("share", [0.1, 0.5, 0.9])
def test_no_class_vanishes_from_a_client(share: float) -> None:
    counts = [(1, 2, 3), (1, 1, 1), (2, 0, 2), (0, 0, 0), (40, 1, 2)]
    for seed in range(20):
        partition, _ = made(*counts, share=share, seed=seed)
        assert ((partition.counts > 0) == (np.array(counts) > 0)).all()


def test_a_class_of_which_every_client_has_few_gives_its_share_over_all_of_them() -> None:
    partition, dataset = made(*[(50, 3)] * 200)
    given = np.bincount(dataset.train.labels.numpy()[np.concatenate(partition.validation)], minlength=2)
    assert given[0] / (50 * 200) == pytest.approx(0.1, rel=0.05)
    assert given[1] / (3 * 200) == pytest.approx(0.1, rel=0.4)


def test_what_is_held_out_follows_from_the_seed_and_the_client() -> None:
    both = (50, 50)
    one, again, other = made(both, both)[0], made(both, both)[0], made(both, both, seed=2)[0]
    assert one.index_sha256 == again.index_sha256 != other.index_sha256
    more = made(both, both, both)[0]
    assert all((a == b).all() for a, b in zip(one.validation, more.validation, strict=False))
    assert not (one.validation[0] == one.validation[1] - 100).all()


def test_the_order_of_what_trains_stays() -> None:
    dataset, (rows,) = holding((30, 30))
    partition = hold_out(partition_of([rows], dataset, recipe="by hand"), dataset, 0.2, 1)
    held = set(partition.validation[0].tolist())
    assert partition.indices[0].tolist() == [row for row in rows.tolist() if row not in held]


def test_a_federation_says_whose_each_sample_is(digits: Dataset) -> None:
    federation = federate(digits, "dirichlet:0.3", clients=4, seed=3, validation=0.2)
    whole = federate(digits, "dirichlet:0.3", clients=4, seed=3)
    found = federation.validation
    assert found is not None
    assert whole.validation is None
    for client in range(4):
        mine = found.owners == client
        held = torch.from_numpy(federation.partition.validation[client])
        assert torch.equal(found.inputs[mine], digits.train.inputs[held])
        assert torch.equal(found.labels[mine], digits.train.labels[held])
        both = torch.cat([federation.indices(client), held])
        assert torch.equal(both.sort().values, whole.indices(client).sort().values)
    assert federation.population.samples + len(found) == whole.population.samples
    assert f"{len(found)} validation samples" in repr(federation)


def test_a_partition_file_keeps_what_validates(digits: Dataset, tmp_path: Path) -> None:
    federation = federate(digits, "dirichlet:0.3", clients=4, seed=3, validation=0.2)
    federation.save(tmp_path / "p.json")
    back = federate(digits, f"file:{tmp_path / 'p.json'}", clients=0, seed=9)
    assert back.partition.index_sha256 == federation.partition.index_sha256
    assert torch.equal(back.validation.inputs, federation.validation.inputs)
    with pytest.raises(UserError, match=r"already has validation samples: leave validation out"):
        federate(digits, f"file:{tmp_path / 'p.json'}", clients=0, seed=9, validation=0.2)
    content = json.loads((tmp_path / "p.json").read_text())
    content["validation"][0].pop()
    (tmp_path / "p.json").write_text(json.dumps(content))
    with pytest.raises(UserError, match="was edited after it was saved"):
        federate(digits, f"file:{tmp_path / 'p.json'}", clients=0, seed=9)


def test_a_partition_file_without_validation_is_as_it_was(digits: Dataset, tmp_path: Path) -> None:
    federate(digits, "iid", clients=2, seed=3).save(tmp_path / "p.json")
    assert "validation" not in json.loads((tmp_path / "p.json").read_text())


def test_classes_that_nobody_can_give_are_noted() -> None:
    partition, _ = made((60, 1, 0), (60, 1, 0))
    assert partition.notes == ("Validation has no sample of class 1: clients hold too few to give one away.",)


@pytest.mark.parametrize("share", [0.0, 1.0, -0.1, 1.5, float("nan"), "0", "2", True])
def test_a_share_is_between_0_and_1(digits: Dataset, share) -> None:
    with pytest.raises(UserError, match="should be a share of each client's samples between 0 and 1"):
        federate(digits, "iid", clients=2, seed=1, validation=share)


def test_what_cannot_be_held_out_is_said() -> None:
    with pytest.raises(UserError, match=r"no client has enough samples to hold out 0.1 of them"):
        made((1, 1), (1, 0))
    drawn = load("synthetic:1,1,clients=5,drawn=true")
    with pytest.raises(UserError, match=r"are drawn when they are needed, so no part of them can be held"):
        federate(drawn, "natural", clients=0, seed=1, validation=0.1)


# Files


def table(path: Path, rows: int, seed: int, classes: str = "abc") -> Path:
    rng = np.random.default_rng(seed)
    lines = ["x,kind,colour,y"]
    for n in range(rows):
        colour = "red" if rng.random() < 0.5 else "blue"
        lines.append(f"{5 * rng.normal():.3f},{classes[n % len(classes)]},{colour},{rng.normal():.3f}")
    path.write_text("\n".join(lines) + "\n")
    return path


def test_a_table_is_scaled_as_the_training_rows_were(tmp_path: Path) -> None:
    dataset = from_csv(table(tmp_path / "a.csv", 60, 1), label="kind")
    path = table(tmp_path / "val.csv", 8, 2, "ca")
    federation = federate(dataset, "iid", clients=2, seed=1, validation=f"csv:{path},label=kind")
    tested = from_csv(tmp_path / "a.csv", label="kind", test=path)  # the same file, as test rows are read
    assert federation.validation.labels.tolist() == tested.test.labels.tolist() == [2, 0] * 4
    assert federation.validation.owners is None
    number = dataset.columns.columns[0]
    first = float(path.read_text().splitlines()[1].partition(",")[0])
    assert federation.validation.inputs[0, 0].item() == pytest.approx((first - number.mean) / number.scale)
    assert federation.population.samples == len(dataset.train)  # all of them train


def test_rows_are_scaled_by_their_sites_where_each_has_a_scale_of_its_own(tmp_path: Path) -> None:
    for name, rows in (("a.csv", 40), ("val.csv", 6)):
        lines = [f"{n % 7 + 100 * (n % 2)},{'xy'[n // 2 % 2]},{'uv'[n % 2]}" for n in range(rows)]
        (tmp_path / name).write_text("\n".join(["x,kind,place", *lines]) + "\n")
    dataset = from_csv(tmp_path / "a.csv", label="kind", site="place", scale="site")
    word = f"csv:{tmp_path / 'val.csv'},label=kind"
    found = federate(dataset, "natural", clients=0, seed=1, validation=word).validation
    assert float(found.inputs.abs().max()) < 3  # 100 apart, were they scaled together
    lines = (tmp_path / "val.csv").read_text().splitlines()
    (tmp_path / "val.csv").write_text("\n".join(line.rpartition(",")[0] for line in lines) + "\n")
    with pytest.raises(UserError, match=r"does not say whose its rows are, .* add the column 'place'"):
        federate(dataset, "natural", clients=0, seed=1, validation=word)


def test_arrays_validate(digits: Dataset, tmp_path: Path) -> None:
    images, labels = digits.test.inputs[:20, 0].numpy(), digits.test.labels[:20].numpy()
    np.savez(tmp_path / "val.npz", x=images[labels != 3], y=labels[labels != 3])
    federation = federate(digits, "iid", clients=2, seed=1, validation=f"npz:{tmp_path / 'val.npz'}")
    assert torch.equal(federation.validation.labels, digits.test.labels[:20][digits.test.labels[:20] != 3])
    own = from_arrays(images, labels, classes=digits.classes)
    assert len(federate(digits, "iid", clients=2, seed=1, validation=own).validation) == 20
    held = Split(digits.test.inputs[:7], digits.test.labels[:7])
    assert federate(digits, "iid", clients=2, seed=1, validation=held).validation is held


def test_classes_are_told_apart_by_their_names() -> None:
    x = np.arange(12, dtype=np.float32)[:, None]
    dataset = from_arrays(x, ["cat", "dog", "eel"] * 4, name="mine")
    other = from_arrays(x, ["eel", "cat"] * 6, name="other")
    found = federate(dataset, "iid", clients=1, seed=1, validation=other).validation
    assert {(int(a), int(b)) for a, b in zip(found.inputs[:, 0] % 2, found.labels, strict=True)} == {
        (0, 2),
        (1, 0),
    }
    bad = from_arrays(x, ["eel", "fox"] * 6, name="other")
    with pytest.raises(UserError, match=r"other has the class 'fox', and 'mine' has not \(cat, dog, eel\)"):
        federate(dataset, "iid", clients=1, seed=1, validation=bad)


def test_data_that_cannot_validate_is_refused(digits: Dataset, tmp_path: Path) -> None:
    dataset = from_csv(table(tmp_path / "a.csv", 60, 1), label="kind")
    other = table(tmp_path / "val.csv", 8, 2, "abz")

    def refused(on: Dataset, validation, sentence: str) -> None:
        with pytest.raises(UserError, match=sentence):
            federate(on, "iid", clients=2, seed=1, validation=validation)

    refused(dataset, f"csv:{other},label=kind", r"val.csv has the class 'z', and 'a' has not \(a, b, c\)")
    refused(dataset, f"csv:{other},label=sort", "unknown column of .*val.csv 'sort'")
    refused(dataset, f"csv:{other}", "csv needs a value for label")
    refused(dataset, "csv:", "has no path: write csv:PATH,label=COLUMN")
    refused(dataset, from_csv(other, label="kind"), "scaled by its own rows, and not as those of 'a'")
    refused(dataset, "digits", "holds image samples of shape .* and 'a' table samples")
    refused(digits, f"csv:{other},label=kind", "'digits' was not read from a table")
    refused(digits, "diggits", "unknown dataset 'diggits': did you mean 'digits'")
    np.savez(tmp_path / "v.npz", a=np.zeros(3))
    refused(digits, f"npz:{tmp_path / 'v.npz'}", "has no arrays x and y")


def test_a_federation_made_by_hand_has_none(digits: Dataset) -> None:
    assert Federation(digits, partition_of([[0, 1]], digits, recipe="r")).validation is None


def test_the_test_set_does_not_validate(digits: Dataset) -> None:
    for given in ("digits", digits, digits.test):
        with pytest.raises(UserError, match="most samples of the test set are also in the validation set"):
            federate(digits, "iid", clients=2, seed=1, validation=given)
    with pytest.raises(UserError, match="validation is of type list: give a share"):
        federate(digits, "iid", clients=2, seed=1, validation=[0.1])
    share = federate(digits, "iid", clients=2, seed=1, validation=np.float32(0.25))
    assert share.validated_on == "0.25"
