"""Files that are replaced whole."""

from __future__ import annotations

from pathlib import Path

import pytest

from unskew.files import put, replacing, write_file


def test_a_file_is_replaced_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "some.json"
    write_file(path, "old")
    with pytest.raises(RuntimeError, match="halfway"), replacing(path) as partial:  # noqa: PT012
        partial.write_text("ne")
        assert path.read_text() == "old"
        raise RuntimeError("halfway")
    assert path.read_text() == "old"
    write_file(path, b"new")
    assert path.read_text() == "new"
    assert list(tmp_path.iterdir()) == [path]


def test_two_writers_of_one_file_do_not_meet(tmp_path: Path) -> None:
    path = tmp_path / "some.json"
    with replacing(path) as first, replacing(path) as second:
        first.write_text("first")
        second.write_text("second")
        assert first != second
    assert path.read_text() == "first"  # the last to end
    assert list(tmp_path.iterdir()) == [path]


def test_a_folder_is_put_in_its_place(tmp_path: Path) -> None:
    ready = tmp_path / "ready"
    write_file(tmp_path / "file", "")
    ready.mkdir()
    write_file(ready / "inner", "content")
    put(ready, tmp_path / "set")
    assert (tmp_path / "set" / "inner").read_text() == "content"
    assert not ready.exists()
