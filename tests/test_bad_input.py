"""docs/bad-input.md, executed: every bad input gets its sentence, and nothing is lost or half-written."""

from __future__ import annotations

import gzip
import json
import os
import pickle
import re
import shlex
import struct
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
import torch
from PIL import Image

import unskew as package
from unskew import UserError

Bytes = npt.NDArray[np.uint8]
PAGE = (Path(__file__).parents[1] / "docs" / "bad-input.md").read_text(encoding="utf-8")
DIGITS = np.arange(20, dtype=np.uint8) % 10
NOISE = np.random.default_rng(0).integers(0, 256, (20, 28, 28), np.uint8)


def table_rows(start: str) -> Iterator[tuple[str, str, str]]:
    """The rows (what, input, answer) of the page's tables whose input begins so."""
    for line in PAGE.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split(" | ")]
        if len(cells) == 3 and cells[1].startswith(f"`{start}"):
            yield cells[0], cells[1].strip("`"), cells[2]


COMMANDS = list(table_rows("unskew "))
CALLS = list(table_rows("unskew."))


class Trap:
    """Unpickled, it would leave a file."""

    def __reduce__(self) -> tuple[object, ...]:
        return os.system, ("touch owned",)


def write(path: Path, content: str | bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content.encode() if isinstance(content, str) else content)


def idx(array: Bytes) -> bytes:
    return bytes((0, 0, 8, array.ndim)) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()


def write_mnist(folder: Path, *, images: bytes | None = None, labels: bytes | None = None) -> None:
    for part in ("train", "t10k"):
        for name, given, array in (("images-idx3", images, NOISE), ("labels-idx1", labels, DIGITS)):
            content = gzip.compress(idx(array)) if given is None or part == "t10k" else given
            write(folder / f"{part}-{name}-ubyte.gz", content)


def write_cifar10(folder: Path, third_batch: bytes) -> None:
    for name in [*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"]:
        write(folder / f"{name}.bin", bytes(10 * 3073))
    write(folder / "data_batch_3.bin", third_batch)


def write_png(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.zeros((8, 8), np.uint8)).save(path)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files that the page describes."""
    root = tmp_path_factory.mktemp("bad")
    write_mnist(root / "empty" / "mnist", images=b"")
    write_mnist(root / "cut" / "mnist", images=gzip.compress(idx(NOISE))[:5000])
    write_mnist(root / "short" / "mnist", images=gzip.compress(idx(NOISE)[:-100]))
    write_mnist(root / "label" / "mnist", labels=gzip.compress(idx(DIGITS + 1)))
    write_mnist(root / "fewer" / "mnist", labels=gzip.compress(idx(DIGITS[:19])))
    write_cifar10(root / "empty" / "cifar-10-batches-bin", b"")
    write_cifar10(root / "short" / "cifar-10-batches-bin", bytes(30_000))
    write_cifar10(root / "label" / "cifar-10-batches-bin", bytes([10] * 3073))
    write(root / "trap" / "cifar-10-batches-py" / "data_batch_1", pickle.dumps(Trap()))

    write(root / "empty.csv", "")
    write(root / "header.csv", "a,b,kind\n")
    write(root / "nan.csv", "a,b,kind\n1,2,x\n3,nan,y\n")
    write(root / "word.csv", "a,b,kind\n1,2,x\n3,four,y\n")
    write(root / "huge.csv", "a,b,kind\n1,2,x\n3,1e300,y\n")
    write(root / "cut.csv", "a,b,kind\n1,2,x\n3,4,y\n5,")
    write(root / "one.csv", "a,b,kind\n1,2,x\n3,4,x\n")

    write(root / "thousands.csv", '"1,200","30"\n500,20\n600,10\n')
    write(root / "blank.csv", "100,0,0\n,100,5\n0,10,100\n")

    images, three = np.zeros((30, 8, 8), np.uint8), np.arange(30) % 3
    holed = np.zeros((30, 8, 8), np.float32)
    holed[7, 2, 2] = np.nan
    np.savez(root / "three.npz", x=images, y=three)
    np.savez(root / "nan.npz", x=holed, y=three)
    np.savez(root / "nan-table.npz", x=holed.reshape(30, 64), y=three)
    np.savez(root / "normalised.npz", x=images - np.float32(1), y=three)
    np.savez(root / "minus.npz", x=images, y=three - 1)
    np.savez(root / "gap.npz", x=images, y=2 * three)
    np.savez(root / "names.npz", images=images, labels=three)
    np.savez(root / "fewer.npz", x=images, y=three[:29])
    write(root / "empty.npz", b"")
    write(root / "cut.npz", (root / "three.npz").read_bytes()[:200])

    write_png(root / "pictures" / "a" / "1.png")
    (root / "pictures" / "b").mkdir()
    write_png(root / "torn" / "a" / "1.png")
    write_png(root / "torn" / "b" / "1.png")
    write(root / "torn" / "b" / "2.png", (root / "torn" / "b" / "1.png").read_bytes()[:40])

    write(root / "empty.toml", "")
    write(root / "cut.toml", "seed = 1\n[budget]\nrounds =")
    write(root / "key.toml", "[budget]\nrouns = 3\n")
    write(root / "flat.toml", "budget = 3\n")

    digits = package.load("digits")
    package.federate(digits, "iid", clients=2, seed=1).save(root / "digits.json")
    saved = (root / "digits.json").read_text()
    write(root / "empty.json", "")
    write(root / "cut.json", saved[:300])
    write(root / "edited.json", saved.replace('"seed": 1', '"seed": 2'))

    write(root / "finished" / "experiment.toml", "seed = 1\n")
    write(root / "finished" / "summary.json", "{}\n")
    write(root / "tuned" / "search.json", "{}\n")
    write(root / "tuned" / "best" / "fedavg.toml", "seed = 1\n")
    write(root / "tuned" / "fedavg" / "trial-000-seed1" / "experiment.toml", "seed = 1\n")
    write(root / "notes" / "today.txt", "buy milk\n")
    write(root / "today.txt", "buy milk\n")
    return root


def content(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes() if path.is_file() else b"a folder"
        for path in folder.rglob("*")
    }


def test_the_page_has_tables_to_execute() -> None:
    assert len(COMMANDS) > 80
    assert len(CALLS) > 3
    named = [what for what, _, _ in COMMANDS + CALLS]
    assert len(set(named)) == len(named)


def test_the_page_describes_every_file_and_no_other(folder: Path) -> None:
    described = re.findall(r"^\| `([^ `]+)` \|", PAGE, re.MULTILINE)
    assert sorted(described) == sorted(path.name + "/" * path.is_dir() for path in folder.iterdir())


@pytest.mark.parametrize(
    ("command", "sentence"), [row[1:] for row in COMMANDS], ids=[row[0] for row in COMMANDS]
)
def test_bad_input_gets_its_sentence_and_leaves_everything_as_it_was(
    unskew, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str, sentence: str
) -> None:
    if "GPU" in sentence and torch.cuda.is_available():
        pytest.skip("there is a GPU here")
    monkeypatch.chdir(folder)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("UNSKEW_DATA", raising=False)
    before = content(folder)
    answer = unskew(*shlex.split(command)[1:])
    assert answer.err == f"unskew: {sentence}\n"
    assert answer.code == 2
    assert answer.out == ""
    assert sentence[-1] in ".?"
    assert content(folder) == before


@pytest.mark.parametrize(("call", "sentence"), [row[1:] for row in CALLS], ids=[row[0] for row in CALLS])
def test_bad_input_in_python_is_a_user_error_with_its_sentence(call: str, sentence: str) -> None:
    digits = package.load("digits")
    names = {
        "unskew": package,
        "np": np,
        "nn": torch.nn,
        "digits": digits,
        "federation": package.federate(digits, "iid", clients=2, seed=1),
    }
    names["trial"] = package.Trial(names["federation"], "logistic", engine="loop")
    with pytest.raises(UserError) as error:
        eval(call, names)
    assert str(error.value) == sentence


@pytest.mark.parametrize(
    ("column", "advice"),
    [
        ("target", "choose one of age, bp, diagnosis, sex."),  # it has letters of age in their order
        ("diagnsosis", "did you mean 'diagnosis'?"),
        ("diagonsis", "did you mean 'diagnosis'?"),
        ("Diagnose", "did you mean 'diagnosis'?"),
        ("diag", "choose one of age, bp, diagnosis, sex."),
        ("BP", "did you mean 'bp'?"),
        ("ages", "did you mean 'age'?"),
        ("ge", "choose one of age, bp, diagnosis, sex."),
    ],
)
def test_a_name_is_suggested_only_if_it_was_probably_meant(
    unskew, tmp_path: Path, column: str, advice: str
) -> None:
    write(tmp_path / "rows.csv", "age,bp,sex,diagnosis\n60,120,1,yes\n50,130,0,no\n")
    answer = unskew("run", "--dataset", f"csv:rows.csv,label={column}")
    assert answer.err == f"unskew: unknown column of rows.csv '{column}': {advice}\n"


def test_clients_with_one_sample_one_class_or_nothing_are_normal(unskew) -> None:
    skew = ["--skew", "dirichlet:0.01,min_size=0", "--clients", "40"]
    answer = unskew("skew", *skew, "--json")
    sizes, counts = (np.array(json.loads(answer.out)[key]) for key in ("sizes", "counts"))
    assert 0 in sizes
    assert 1 in sizes
    assert (np.count_nonzero(counts, axis=1) == 1).any()
    answer = unskew("run", *skew, "--rounds", "2", "--epochs", "1", "--quiet", "--json")
    assert (answer.code, answer.err) == (0, "")
    summary = json.loads(answer.out)
    assert 0 < summary["accuracy"]["last"] <= 1
    rounds = (Path(summary["run_dir"]) / "rounds.jsonl").read_text().splitlines()
    trained = json.loads(rounds[0])["trained"]
    assert trained == [client for client in range(40) if sizes[client]]
