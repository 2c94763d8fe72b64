"""The user's own tables, with and without sites."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from by_site import held

from unskew.data import join, load
from unskew.data.columns import Columns, Scale
from unskew.data.table_dataset import from_csv
from unskew.data.tables import read_rows
from unskew.errors import UserError


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
    """Write one table of two hospitals, and the same rows as a file for each hospital."""
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


@pytest.mark.parametrize("scale", ["all", "site", "none"])
def test_a_table_too_small_for_a_test_row_says_so(tmp_path: Path, scale: Scale) -> None:
    path = tmp_path / "t.csv"
    path.write_text("hospital,x,kind\na,1,cat\na,2,dog\nb,3,cat\nb,4,dog\n")
    with pytest.raises(UserError, match="the test split of 't' is empty"):
        from_csv(path, label="kind", site="hospital", scale=scale)


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
