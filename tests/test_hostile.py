"""Nothing that is read from disk or network runs code, writes elsewhere, or fills memory: a hostile file for
each reader, given to the command or function that a user would give it to."""

from __future__ import annotations

import ast
import bz2
import gzip
import io
import json
import os
import pickle
import resource
import struct
import subprocess
import sys
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tomli_w
from safetensors.torch import load as load_tensors
from safetensors.torch import save_file
from tests.data import layouts

from unskew import UserError, load
from unskew.cli import main
from unskew.data import bounded, fetch
from unskew.data.downloads import DOWNLOADS, Download
from unskew.data.importers import flbench_dataset
from unskew.labelled_runs import read
from unskew.model_features import final_features

pytestmark = pytest.mark.usefixtures("no_workers")

SOURCE = Path(__file__).parents[1] / "src" / "unskew"
TOUCH = "touch owned"


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty folder, a gigabyte of memory, and afterwards no trace of code that ran."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    taken = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (taken + (1 << 30), hard))
    try:
        yield tmp_path
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
    assert not list(tmp_path.rglob("owned"))


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bombs of a megabyte are quicker to make."""
    monkeypatch.setattr(bounded, "SMALL", 1 << 20)


# ---- Pickles

OS_SYSTEM = b"cos\nsystem\n"
GADGETS = {
    "reduce": OS_SYSTEM + b"(V" + TOUCH.encode() + b"\ntR.",
    "stack global": b"\x80\x04\x8c\x02os\x8c\x06system\x93\x8c\x0btouch owned\x85R.",
    "inst": b"(V" + TOUCH.encode() + b"\nios\nsystem\n.",
    "obj": b"(" + OS_SYSTEM + b"V" + TOUCH.encode() + b"\no.",
    "newobj": b"\x80\x02csubprocess\nPopen\n(V" + TOUCH.encode() + b"\nt\x81.",
    "python 2's os": b"cposix\nsystem\n(V" + TOUCH.encode() + b"\ntR.",
    "eval": b"c__builtin__\neval\n(V__import__('os').system('touch owned')\ntR.",
    "getattr": b"cbuiltins\ngetattr\n(cbuiltins\nlist\nV__class__\ntR.",
    "numpy's loader": b"cnumpy\nload\n(Vx.npy\ntR.",
    "a function of numpy.core": b"cnumpy.core.multiarray\nfromfile\n(Vx\ntR.",
    "an extension": b"\x80\x02\x82\x01.",
    "a persistent name": b"Pos.system\n.",
    "a state": b"ccollections\nOrderedDict\n)R}Vget\n" + OS_SYSTEM + b"sb.",
    "a name with dots": b"\x80\x04\x8c\x05numpy\x8c\x0fndarray.tofile\x93.",
}
DEEP = 100_000
BOMBS = {
    "a range": b"cbuiltins\nrange\n(I0\nI999999999999\ntR.",
    "a list of a range": b"cbuiltins\nlist\n(cbuiltins\nrange\n(I0\nI999999999999\ntRtR.",
    "a place far away in the memo": b"}r\xff\xff\xff\x7f.",
    "a text that is not there": b"\x8d\xff\xff\xff\xff\xff\xff\x00\x00.",
    "a byte array that is not there": b"\x96\xff\xff\xff\xff\x0f\x00\x00\x00.",
    "tuples in tuples for a key": b"}" + b")" + b"\x85" * DEEP + b"Ns.",
    "tuples in tuples in a set": b"\x8f()" + b"\x85" * DEEP + b"\x90.",
    "lists in lists": b"]" * DEEP + b"a" * (DEEP - 1) + b".",
    "an array as long as it is empty": pickle.dumps(np.zeros((0, 3)), 2).replace(
        b"K\x00K\x03\x86", b"J\xff\xff\xff\x7fK\x00\x86"
    ),
    "one text in many arrays": b"(U\x01x0" + b"".join(
        b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\n(I0\ntVb\ntR(I1\n(I16777216\ntcnumpy\ndtype\n"
        b"(Vu1\nI0\nI1\ntRI00\n" + (b"T\0\0\0\1" + bytes(1 << 24) + b"p7\n" if not i else b"g7\n") + b"tb"
        for i in range(40)
    ) + b"l.",
    "numbers that a dictionary does not tell apart": b"}(" + b"".join(
        f"L{(i + 1) * (2**61 - 1)}L\nN".encode() for i in range(50_000)
    ) + b"u.",
}  # fmt: skip


@pytest.mark.parametrize("name", GADGETS)
def test_a_pickle_runs_nothing(unskew, here: Path, name: str) -> None:
    content = GADGETS[name]
    layouts.write_cifar10(here / "data" / "cifar-10-batches-py", "python3", n=1)
    (here / "data" / "cifar-10-batches-py" / "data_batch_1").write_bytes(content)
    (here / "map.pkl").write_bytes(content)
    with (here / "map.npy").open("wb") as file:
        np.lib.format.write_array_header_1_0(file, {"descr": "|O", "fortran_order": False, "shape": ()})
        file.write(content)
    for arguments in (
        ["--dataset", "cifar10", "--data", "data"],
        ["--skew", "niidbench:map.pkl"],
        ["--skew", "niidbench:map.npy"],
        ["--skew", "flbench:map.pkl"],
    ):
        answer = unskew("skew", *arguments)
        assert (answer.code, answer.out) == (2, "")
        assert answer.err.count("\n") == 1


@pytest.mark.parametrize("name", BOMBS)
def test_a_pickle_fills_no_memory(unskew, here: Path, name: str) -> None:
    (here / "map.pkl").write_bytes(BOMBS[name])
    answer = unskew("skew", "--skew", "niidbench:map.pkl")
    assert (answer.code, answer.out) == (2, "")
    assert answer.err.count("\n") == 1


def test_one_list_given_to_many_clients_is_looked_at_once(here: Path) -> None:
    held = list(range(100))
    (here / "map.pkl").write_bytes(pickle.dumps({"data_indices": [{"train": held}] * 1_000_000}))
    with pytest.raises(UserError, match="names more than the 1797 samples of 'digits'"):
        flbench_dataset(here / "map.pkl", load("digits"))


# ---- Arrays, tables and archives


def npy(header: dict[str, object], data: bytes = b"") -> bytes:
    out = io.BytesIO()
    np.lib.format.write_array_header_1_0(out, header)
    return out.getvalue() + data


def npz(**members: bytes) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(f"{name}.npy", content)
    return out.getvalue()


def objects() -> bytes:
    out = io.BytesIO()

    class Trap:
        def __reduce__(self) -> tuple[object, ...]:
            return os.system, (TOUCH,)

    np.savez(out, x=np.array([Trap()] * 4), y=np.arange(4))
    return out.getvalue()


def huge(shape: tuple[int, ...], descr: str = "|u1") -> bytes:
    return npy({"descr": descr, "fortran_order": False, "shape": shape}, b"0123")


ARRAYS = {
    "objects": objects(),
    "a shape beyond the file": npz(x=huge((1 << 40, 2)), y=huge((1 << 40,))),
    "a million million empty names": npz(x=huge((1 << 40, 0), "<f4"), y=huge((1 << 40,), "<U0")),
    "an axis below zero": npz(x=huge((-4,)), y=huge((4,))),
    "zeros": npz(x=huge((1 << 24,)) + bytes(1 << 24), y=huge((1 << 24,))),
    "a header of brackets": npz(x=b"\x93NUMPY\x01\x00\x10\x27" + b"(" * 10_000, y=huge((4,))),
    "a header that calls": npz(
        x=b"\x93NUMPY\x01\x00\x76\x00"
        + b"{'descr': __import__('os').system('touch owned'), 'fortran_order': False}".ljust(118),
        y=huge((4,)),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", ARRAYS)
def test_an_array_is_as_large_as_its_file_says(unskew, here: Path, small: None, name: str) -> None:
    (here / "own.npz").write_bytes(ARRAYS[name])
    (here / "usps").mkdir()
    (here / "usps" / "usps.npz").write_bytes(ARRAYS[name])
    for arguments in (
        ["--dataset", "npz:own.npz"],
        ["--dataset", "usps", "--data", "."],
        ["--skew", "niidbench:own.npz"],
    ):
        answer = unskew("skew", *arguments)
        assert (answer.code, answer.out) == (2, "")
        assert answer.err.count("\n") == 1


def test_packed_files_unpack_no_further_than_an_honest_one(unskew, here: Path, small: None) -> None:
    layouts.write_mnist(here / "mnist", 10)
    (here / "mnist" / "train-images-idx3-ubyte.gz").write_bytes(gzip.compress(bytes(1 << 20)) * 100)
    layouts.write_usps_libsvm(here / "usps")
    (here / "usps" / "usps.bz2").write_bytes(bz2.compress(bytes(1 << 20)) * 1000)
    layouts.write_mat(here / "svhn" / "test_32x32.mat", [1, 2])
    part = zlib.compress(bytes(1 << 24))
    (here / "svhn" / "train_32x32.mat").write_bytes(
        b"MATLAB 5.0".ljust(124) + b"\0\1IM" + struct.pack("<II", 15, len(part)) + part
    )
    for name in ("mnist", "usps", "svhn"):
        answer = unskew("skew", "--dataset", name, "--data", ".")
        assert answer.code == 2
        assert "unpacks to more than" in answer.err


def tarred(name: str, **settings: object) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as archive:
        member = tarfile.TarInfo(name)
        content = settings.pop("content", b"")
        assert isinstance(content, bytes)
        member.size = len(content)
        for key, value in settings.items():
            setattr(member, key, value)
        archive.addfile(member, io.BytesIO(content))
    return out.getvalue()


def zipped(name: str, mode: int = 0o100644, content: bytes = b"") -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        info = zipfile.ZipInfo(name)
        info.external_attr, info.compress_type = mode << 16, zipfile.ZIP_DEFLATED
        archive.writestr(info, content)
    return out.getvalue()


ARCHIVES = {
    "up.tar.gz": (tarred("a/../../owned"), "leads out"),
    "absolute.tar.gz": (tarred("/owned"), "leads out"),
    "symlink.tar.gz": (tarred("x", type=tarfile.SYMTYPE, linkname="/etc"), "a link or device"),
    "hardlink.tar.gz": (tarred("x", type=tarfile.LNKTYPE, linkname="/etc/passwd"), "a link or device"),
    "pipe.tar.gz": (tarred("x", type=tarfile.FIFOTYPE), "a link or device"),
    "newline.tar.gz": (tarred("a\nb"), "no valid file name on every system"),
    "reserved.tar.gz": (tarred("con"), "no valid file name on every system"),
    "long.tar.gz": (tarred("x" * 5000), "cannot be put into"),
    "bomb.tar.gz": (tarred("x", content=bytes(1 << 24)), "unpacks to more than"),
    "up.zip": (zipped("../owned"), "leads out"),
    "symlink.zip": (zipped("x", 0o120777, b"/etc/passwd"), "a link"),
    "bomb.zip": (zipped("x", content=bytes(1 << 24)), "unpacks to"),
}


@pytest.mark.parametrize("name", ARCHIVES)
def test_an_archive_stays_in_its_folder_and_bounds(
    here: Path, small: None, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    content, says = ARCHIVES[name]
    (here / "served").mkdir()
    (here / "served" / name).write_bytes(content)
    sums = ((name, fetch.md5_of(here / "served" / name)),)
    served = ((here / "served").as_uri() + "/",)
    monkeypatch.setitem(DOWNLOADS, "cifar10", Download(served, sums, "cifar-10-batches-bin", ("x",)))
    with pytest.raises(UserError, match=says):
        fetch.fetch("cifar10", here / "data")
    assert sorted(path.name for path in (here / "data").iterdir()) == [name]


def test_a_download_that_does_not_end_is_given_up(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (here / "served").mkdir()
    (here / "served" / "big").write_bytes(bytes(1 << 20))
    monkeypatch.setattr(fetch, "MOST_BYTES", 1 << 19)
    served = Download(((here / "served").as_uri() + "/",), (("big", "0" * 32),), "mnist")
    monkeypatch.setitem(DOWNLOADS, "mnist", served)
    with pytest.raises(UserError, match="gives more than 524,288 bytes"):
        fetch.fetch("mnist", here / "data")
    assert list((here / "data" / "mnist").iterdir()) == []


# ---- Images and models


def png(width: int, height: int) -> bytes:
    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    rows = zlib.compress(bytes(1 << 16))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", rows) + chunk(b"IEND", b"")


POSTSCRIPT = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 8 8\n(owned) (w) file closefile\nshowpage\n"


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (png(60_000, 60_000), "too large|cannot be read"),
        (png(12_000, 12_000), "too large"),
        (POSTSCRIPT, "cannot be read"),
    ],
    ids=["3.6 billion pixels", "144 million pixels", "a program for the printer"],
)  # fmt: skip
def test_an_image_is_an_image_of_reasonable_size(here: Path, content: bytes, says: str) -> None:
    for name in ("a", "b"):
        layouts.write_image(here / "images" / name / "0.png", layouts.noise(0, 8, 8))
    (here / "images" / "b" / "1.png").write_bytes(content)
    with pytest.raises(UserError, match=rf"b/1\.png.* ({says})"):
        load("folder:images,size=8")


@pytest.fixture(scope="module")
def real_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("real") / "run"
    short = ["--rounds", "1", "--epochs", "1", "--clients", "3", "--probe", "1", "--quiet", "--json"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["unskew", "run", *short, "--out", str(folder)])
        with pytest.raises(SystemExit, match="0"):
            main()
    return folder


def copied(run: Path, to: Path) -> Path:
    to.mkdir()
    for path in run.iterdir():
        (to / path.name).write_bytes(path.read_bytes())
    return to


def test_a_model_is_what_its_experiment_says(unskew, real_run: Path, here: Path) -> None:
    run = copied(real_run, here / "run")
    model = run / "model.safetensors"
    tensors = load_tensors(model.read_bytes())
    wrong = [
        struct.pack("<Q", 1 << 62) + b"{}",
        struct.pack("<Q", 90_000_000) + b"{" * 1000,
        struct.pack("<Q", 1000) + b'{"a":' * 200,
        pickle.dumps(tensors),
        GADGETS["reduce"],
    ]
    for content in wrong:
        model.write_bytes(content)
        assert "is damaged" in unskew("figure", "tsne", "run").err
        assert "is damaged" in unskew("predict", "run", "x.npz").err
    told = (run / "model.json").read_text()
    save_file({name: value.double() for name, value in tensors.items()}, model, {"unskew": told})
    assert "does not hold the weights of a mlp-small" in unskew("figure", "tsne", "run").err
    assert not (here / "tsne.png").exists()


def described(run: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Write another description of a run's model, both where it stands alone and beside the weights."""
    told = json.loads((run / "model.json").read_text())
    change(told)
    (run / "model.json").write_text(json.dumps(told))
    tensors = load_tensors((run / "model.safetensors").read_bytes())
    save_file(tensors, run / "model.safetensors", {"unskew": json.dumps(told)})


DESCRIPTIONS: dict[str, Callable[[dict[str, Any]], object]] = {
    "a network as large as a planet": lambda told: told["network"]["options"].update(hidden=[10**9, 10**9]),
    "as many networks as grains of sand": lambda told: told["network"].update(side_by_side=10**15),
    "a method in the place of a network": lambda told: told["network"].update(name="os.system"),
    "an option that is a program": lambda told: told["network"]["options"].update(hidden="__import__('os')"),
    "images of a negative size": lambda told: told["inputs"].update(shape=[1, -8, 8]),
    "an image as wide as the world": lambda told: told["inputs"].update(shape=[1, 1 << 62, 1 << 62]),
    "no deviation": lambda told: told.update(std=[0.0]),
    "words for pixels": lambda told: told.update(words={"words": ["a"], "length": 3}),
    "columns of nothing": lambda told: told.update(columns={"columns": []}),
    "a million clients": lambda told: told["network"].update(
        clients=[{"client": n, "name": ""} for n in range(1000)]
    ),
    "another version": lambda told: told.update(version=2),
    "one class": lambda told: told.update(classes=["0"]),
    "code of one's own": lambda told: told["network"].update(name="owned.py:Net", own=True),
}


@pytest.mark.parametrize("name", DESCRIPTIONS)
def test_a_description_builds_no_more_than_its_weights(unskew, real_run: Path, here: Path, name: str) -> None:
    (here / "owned.py").write_text("import os\nos.system('touch owned')\n")
    np.savez(here / "x.npz", x=np.zeros((2, 8, 8), np.uint8))
    run = copied(real_run, here / "run")
    described(run, DESCRIPTIONS[name])
    answer = unskew("predict", "run", "x.npz")
    (here / "owned.py").unlink()
    assert (answer.code, answer.out) == (2, "")
    assert answer.err.count("\n") == 1


@pytest.mark.parametrize("value", ["[" * 100_000, '{"a":' * 50_000, "9" * 5000, "NaN", '"\\ud800"'])
def test_a_description_of_any_depth_is_answered(unskew, real_run: Path, here: Path, value: str) -> None:
    run = copied(real_run, here / "run")
    (run / "model.json").write_text(f'{{"version": 1, "round": {value}}}')
    answer = unskew("predict", "run", "x.npz")
    assert (answer.code, answer.err.count("\n")) == (2, 1)
    assert "model.json is damaged" in answer.err


# ---- Settings and records

DEEP_LISTS = "[" * 100_000
LONG_NUMBER = "9" * 5000


@pytest.mark.parametrize("value", [DEEP_LISTS, "{a=" * 50_000, LONG_NUMBER, "[" * 900 + "]" * 900])
def test_an_experiment_file_of_any_depth_is_answered(unskew, here: Path, value: str) -> None:
    (here / "deep.toml").write_text(f"seed = {value}\n")
    for arguments in (["run", "deep.toml"], ["skew", "--set", f"seed={value}"]):
        answer = unskew(*arguments)
        assert (answer.code, answer.err.count("\n")) == (2, 1)


@pytest.mark.parametrize("value", [DEEP_LISTS, '{"a":' * 50_000, LONG_NUMBER, "NaN", "1e999", '"\\ud800"'])
def test_a_manifest_or_record_of_any_depth_is_answered(
    unskew, real_run: Path, here: Path, value: str
) -> None:
    for name in ("partition.json", "summary.json", "environment.json", "rounds.jsonl", "probes.jsonl"):
        run = copied(real_run, here / f"run-{name}")
        (run / name).write_text(f'{{"seed": {value}}}\n')
        for command in (["table"], ["report"], ["figure", "curves"]):
            answer = unskew(*command, str(run))
            assert (answer.code, answer.err.count("\n")) == (2, 1)
    (here / "manifest.json").write_text(value)
    for kind in ("file", "flwr"):
        answer = unskew("skew", "--skew", f"{kind}:manifest.json")
        assert (answer.code, answer.err.count("\n")) == (2, 1)


EVIL = """
import pathlib
pathlib.Path('owned').touch()
from unskew import Method
def evil():
    return Method()
"""


@pytest.mark.parametrize("name", ["evil.py", "fedprox+evil.py", "evil.evil", "{folder}/evil.py"])
def test_an_experiment_file_does_not_choose_the_code_that_runs(
    unskew, real_run: Path, here: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.syspath_prepend(str(here))
    (here / "evil.py").write_text(EVIL)
    name = name.format(folder=here)
    run = copied(real_run, here / "run")
    settings = (
        (run / "experiment.toml").read_text().replace('name = "fedavg"', f'name = "{name}"\nx = "; rm *"')
    )
    (run / "experiment.toml").write_text(settings)
    answer = unskew("run", "run/experiment.toml")
    assert answer.code == 2
    assert "whose code would run: if you trust it, give it yourself, as --method " in answer.err
    final_features(read([run]))
    for arguments in (["table", "run"], ["report", "run"]):
        assert unskew(*arguments).code == 0
    assert unskew("skew", "run/experiment.toml").code == 0


def test_who_names_a_file_runs_it(unskew, here: Path) -> None:
    (here / "mine.py").write_text(EVIL.replace("owned", "ran").replace("evil", "mine"))
    (here / "experiment.toml").write_text('[method]\nname = "other.py"\n[budget]\nrounds = 1\nepochs = 1\n')
    answer = unskew("run", "experiment.toml", "--method", "mine.py", "--quiet")
    assert (answer.code, answer.err) == (0, "")
    assert (here / "ran").exists()


def test_paths_that_have_no_end_are_not_read(unskew, here: Path) -> None:
    os.mkfifo(here / "pipe")
    for arguments in (
        ["--dataset", "csv:/dev/zero,label=x"],
        ["--dataset", "csv:pipe,label=x"],
        ["--dataset", "npz:pipe"],
        ["--skew", "niidbench:/dev/zero"],
        ["--skew", "flwr:pipe"],
        ["--skew", "file:/dev/zero"],
    ):
        answer = unskew("skew", *arguments)
        assert answer.code == 2
        assert "regular file" in answer.err or "none of" in answer.err


# ---- What is written

NAMES = [
    "</script><script>alert(1)</script>", "<img src=x onerror=alert(1)>", "=cmd|' /C calc'!A0", "@SUM(1)",
    r"\input{/etc/passwd}", "\x1b]0;owned\x07", "../../../owned", "$(touch owned)", "`touch owned`",
    "x" * 5000,
]  # fmt: skip


def elements(page: Path) -> list[int]:
    """How many there are of those that a name could try to add."""
    text = page.read_text().lower()
    return [text.count(each) for each in ("<script", "</script", "<img", "<a ", "<iframe", "<svg")]


def test_names_in_records_are_shown_as_text(unskew, real_run: Path, here: Path) -> None:
    unskew("report", str(real_run), "--out", "plain.html")
    run = copied(real_run, here / "run")
    partition = json.loads((run / "partition.json").read_text())
    partition["dataset"]["classes"] = NAMES
    (run / "partition.json").write_text(json.dumps(partition))
    summary = json.loads((run / "summary.json").read_text())
    (run / "summary.json").write_text(
        json.dumps(summary | {"classes": NAMES, "notes": NAMES, "method": NAMES[0]})
    )
    experiment = (run / "experiment.toml").read_text()
    for number, name in enumerate(NAMES):
        changed = tomli_w.dumps({"name": name}).strip()
        (run / "experiment.toml").write_text(
            experiment.replace('name = "fedavg"', changed).replace('name = "mlp-small"', changed)
        )
        if name.startswith("<"):
            answer = unskew("report", "run", "--out", f"{number}.html")
            assert (answer.code, answer.err) == (0, "")
            assert elements(here / f"{number}.html") == elements(here / "plain.html")
        files = [f"{number}.{kind}" for kind in ("csv", "tex", "md")]
        answer = unskew("table", "run", *(word for file in files for word in ("--out", file)))
        assert answer.code == 0
        assert "\x1b" not in answer.out
        table, tex, _ = ((here / file).read_text() for file in files)
        assert not table.splitlines()[1].startswith(("=", "@", '"=', '"@'))
        assert all(line.startswith("%") or r"\input{" not in line for line in tex.splitlines())
    answer = unskew("figure", "confusion", "run", "--out", "figure.svg")
    assert answer.code == 0
    assert "<script" not in (here / "figure.svg").read_text()
    assert {path.name for path in here.iterdir() if path.is_dir()} <= {"run", "cache"}


def test_an_answer_gives_the_terminal_no_commands(unskew, here: Path) -> None:
    unskew("skew", "--out", "manifest.json", "--dataset", "synthetic:0,0,clients=3")
    manifest = json.loads((here / "manifest.json").read_text())
    manifest["dataset"]["name"] = "\x1b]0;owned\x07\x9b31m"
    (here / "manifest.json").write_text(json.dumps(manifest))
    answer = unskew("skew", "--skew", "file:manifest.json", "--dataset", "\x1b[2J")
    assert answer.code == 2
    assert answer.err.removesuffix("\n").isprintable()


def test_a_run_stays_in_its_folder_whatever_it_is_called(unskew, here: Path) -> None:
    (here / "a" / "b").mkdir(parents=True)
    (here / "a" / "..evil..py").write_text(EVIL.replace("owned", "ran"))
    os.chdir(here / "a" / "b")
    answer = unskew(
        "compare", "../..evil..py", "fedavg", "--rounds", "1", "--epochs", "1", "--quiet", "--out", "out"
    )
    assert answer.code == 0
    assert {path.parent for path in here.rglob("summary.json")} == {
        here / "a" / "b" / "out" / "evil..py-seed1", here / "a" / "b" / "out" / "fedavg-seed1",
    }  # fmt: skip


# ---- Other programs


def test_a_strangers_repository_runs_no_program(unskew, here: Path) -> None:
    def git(*words: str) -> None:
        identity = ["-c", "user.name=x", "-c", "user.email=x@x"]
        subprocess.run(["git", *identity, *words], check=True, capture_output=True, cwd=here)

    git("init", "-q")
    (here / "data.txt").write_text("one\n")
    (here / ".gitattributes").write_text("*.txt filter=evil\n")
    git("add", ".")
    git("commit", "-qm", "x")
    config = f'[core]\n fsmonitor = "{TOUCH}"\n[filter "evil"]\n clean = "{TOUCH}; cat"\n required = true\n'
    with (here / ".git" / "config").open("a") as file:
        file.write(config)
    for hook in ("post-index-change", "fsmonitor-watchman"):
        (here / ".git" / "hooks").mkdir(exist_ok=True)
        (here / ".git" / "hooks" / hook).write_text(f"#!/bin/sh\n{TOUCH}\n")
        (here / ".git" / "hooks" / hook).chmod(0o755)
    (here / "data.txt").write_text("two\n")
    answer = unskew("run", "--rounds", "1", "--epochs", "1", "--quiet", "--out", "run")
    assert answer.code == 0
    assert json.loads((here / "run" / "environment.json").read_text())["working_directory_commit"].endswith(
        "+"
    )


RUN = {"eval", "exec", "compile", "__import__", "os.system", "os.popen", "pickle.load", "pickle.loads"}
OPEN = {"torch.load", "np.load", "numpy.load", "yaml.load", "joblib.load", "shutil.unpack_archive"}
ALLOWED = {("engines/job.py", "pickle.loads"), ("models/pretrained.py", "torch.load")}
"""Of what was pickled in the same line; and of tensors alone, with weights_only=True."""


def test_the_source_calls_nothing_that_runs_what_it_reads() -> None:
    found = set()
    for path in SOURCE.rglob("*.py"):
        text = path.read_text()
        if not any(f"{name}(" in text for name in RUN | OPEN) and "shell=" not in text:
            continue
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Call):
                called = ast.unparse(node.func)
                if called in RUN | OPEN or any(each.arg == "shell" for each in node.keywords):
                    found.add((str(path.relative_to(SOURCE)), called))
    assert found == ALLOWED
