"""Data that are read as they are meant: constants, missing names, whole numbers, hidden copies."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import unskew
from unskew import UserError
from unskew.data import from_arrays, from_csv, from_folder, from_leaf, from_torch


@pytest.fixture(autouse=True)
def in_a_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def csv(path: str, head: str, rows) -> str:
    Path(path).write_text("\n".join([head, *(",".join(map(str, row)) for row in rows)]) + "\n")
    return path


@pytest.mark.parametrize("scale", ["all", "site"])
def test_a_constant_column_is_0_whatever_rounding_leaves_of_it(scale):
    rows = [(n / 7, 0.1, n % 2, "ab"[n // 2 % 2]) for n in range(98)]
    made = from_csv(
        csv("a.csv", "x,c,y,s", rows),
        label="y",
        site="s",
        scale=scale,
        test=csv("b.csv", "x,c,y,s", [(0, 0.1001, 0, "a"), (1, 0.1, 1, "b")]),
    )
    assert not made.train.inputs[:, 1].any()
    assert made.test.inputs[0, 1] == pytest.approx(0.0001, rel=1e-3)


def test_what_python_takes_for_a_number_and_people_do_not_is_a_category():
    rows = [(("0_10", "10_20", "20_30")[n % 3], n % 2) for n in range(30)]
    made = from_csv(csv("a.csv", "bin,y", rows), label="y")
    assert made.columns.features == ("bin=0_10", "bin=10_20", "bin=20_30")


@pytest.mark.parametrize("nothing", ["NaN", "?"])
def test_a_label_that_is_missing_is_no_class(nothing):
    rows = [(n, nothing if n == 3 else n % 2) for n in range(10)]
    with pytest.raises(UserError, match=r"a.csv has no label in row 5, column 'y'"):
        from_csv(csv("a.csv", "x,y", rows), label="y")


def test_a_name_that_is_missing_from_a_list_is_no_class_and_no_owner():
    x = np.zeros((9, 2))
    with pytest.raises(UserError, match="has no label for sample 2"):
        from_arrays(x, ["a", "b", float("nan")] * 3)
    with pytest.raises(UserError, match="has no owner for sample 2"):
        from_arrays(x, [0, 1, 0] * 3, owners=["a", "b", None] * 3)


def test_parquet_of_pandas_keeps_its_index_and_its_gaps_to_itself():
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    columns = {"x": list(range(10)), "y": [0.0, 1.0] * 5, "__index_level_0__": list(range(10))}
    parquet.write_table(pyarrow.table(columns), "a.parquet")
    assert from_csv("a.parquet", label="y").columns.features == ("x",)
    columns["y"][3] = float("nan")
    parquet.write_table(pyarrow.table(columns), "b.parquet")
    with pytest.raises(UserError, match=r"b\.parquet has no label in row 4"):
        from_csv("b.parquet", label="y")


def test_whole_numbers_are_classes_in_their_order():
    numbers = list(range(12))
    user = {"x": [[float(n), 0.0] for n in numbers * 4], "y": numbers * 4}
    told = {"users": ["u"], "num_samples": [48], "user_data": {"u": user}}
    Path("leaf.json").write_text(json.dumps(told))
    made = from_leaf("leaf.json")
    assert made.classes == tuple(map(str, numbers))
    named = from_arrays(np.zeros((60, 2)), np.array(numbers * 5, dtype=object))
    assert named.classes == tuple(map(str, numbers))

    np.savez("val.npz", x=np.array([[n, 9.0] for n in numbers], "f"), y=np.array(numbers))
    federation = unskew.federate(made, "natural", 0, 1, validation="npz:val.npz")
    validation = federation.validation
    assert [made.classes[y] for y in validation.labels] == [str(int(x[0])) for x in validation.inputs]


def test_a_user_of_leaf_is_read_once():
    user = {"x": [[float(n)] for n in range(8)], "y": [0, 1] * 4}
    told = {"users": ["u", "u"], "num_samples": [8, 8], "user_data": {"u": user}}
    Path("leaf.json").write_text(json.dumps(told))
    with pytest.raises(UserError, match=r"leaf\.json names a user twice: write it as LEAF does"):
        from_leaf("leaf.json")


def test_plain_numbers_do_not_validate_a_table():
    made = from_csv(csv("a.csv", "x,y", [(100 + n, n % 2) for n in range(20)]), label="y")
    np.savez("val.npz", x=np.zeros((4, 1)), y=np.array([0, 1, 0, 1]))
    with pytest.raises(UserError, match=r"val.npz has plain numbers, and the columns of .* were scaled"):
        unskew.federate(made, "iid", 2, 1, validation="npz:val.npz")


def test_labels_of_a_torch_dataset_are_whole_and_its_inputs_may_be_of_bfloat16():
    rows = [(torch.zeros(3, dtype=torch.bfloat16), n % 2) for n in range(20)]
    assert len(from_torch(rows).classes) == 2
    with pytest.raises(UserError, match=r"sample 0 of .* is not a pair of input and class number"):
        from_torch([(torch.zeros(3), 0.9), (torch.zeros(3), 1.7)] * 10)


def test_copies_in_hidden_folders_are_no_samples():
    for name in ("cat", "dog"):
        for n in range(5):
            for folder in (Path("H", name), Path("H", name, ".thumbnails")):
                folder.mkdir(parents=True, exist_ok=True)
                Image.fromarray(np.full((4, 4), 10 * n, np.uint8)).save(folder / f"{n}.png")
    made = from_folder("H")
    assert len(made.train) + len(made.test) == 10


def test_a_part_of_what_joined_sites_hold_is_divided_by_site():
    for name in ("a", "b"):
        csv(f"{name}.csv", "x,y", [(n, n % 2) for n in range(40)])
    joined = unskew.load("csv:a.csv,label=y+csv:b.csv,label=y")
    assert unskew.federate(joined, "part:0.5+natural", 0, 1).clients == 2


def test_a_column_without_a_value_at_a_site_is_0_there():
    """Also for rows that come with a number later, which nothing tells how to scale. A category needs no
    scale."""
    head = "age,x,group,kind,place"
    here = [(n, n % 5 + 200, "rs"[n % 3 == 0], "ab"[n % 3 == 0], "u") for n in range(20)]
    there = [(n, "?", "", "ab"[n % 2], "v") for n in range(20)]
    later = [(30, 203, "r", "a", "v"), (31, "?", "", "b", "v"), (32, "?", "", "a", "u")]
    train, test = csv("a.csv", head, here + there), csv("b.csv", head, later)
    made = from_csv(train, label="kind", site="place", scale="site", missing="fill", test=test)
    names = [name for column in made.columns.columns for name in column.features]
    x, groups = names.index("x"), [names.index("group=r"), names.index("group=s")]
    assert not made.train.inputs[20:, [x, *groups]].any()
    assert made.test.inputs[:2, x].abs().max() < 1e-20
    assert made.test.inputs[:2, groups].tolist() == [[1, 0], [0, 0]]
    assert made.test.inputs[2, groups].sum() == 1


@pytest.mark.parametrize("given", [{"missing": "mean"}, {"scale": "sites"}])
def test_what_is_no_way_to_scale_or_fill_is_refused(given):
    table = csv("a.csv", "x,y", [(n, n % 2) for n in range(20)])
    with pytest.raises(UserError, match=f"unknown {next(iter(given))} '{next(iter(given.values()))}'"):
        from_csv(table, label="y", **given)
