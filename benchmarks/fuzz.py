"""Damaged and hostile input for every reader: each is read, or refused in one sentence.

    python -m benchmarks.fuzz --inputs 100000
    python -m benchmarks.fuzz --inputs 5000 --only manifest,cifar10 --seed 3
    python -m benchmarks.fuzz --atheris manifest -- -runs=100000

Inputs are valid ones with a few edits, drawn by hypothesis. A failure is whatever is not an answer: another
exception than UserError, a warning, several lines, five seconds, a gigabyte, a file left behind. The inputs
that failed are kept in a folder. With `--atheris`, and the package of that name, the edits follow the code
that they reach.

A new reader is one more entry of KINDS: a function that writes a valid example and says how it is read.
"""

from __future__ import annotations

import argparse
import bz2
import contextlib
import copy
import faulthandler
import gc
import gzip
import hashlib
import io
import json
import math
import os
import pickle
import re
import resource
import shutil
import signal
import sys
import tempfile
import time
import tomllib
import traceback
import warnings
import zipfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial
from pathlib import Path
from types import FrameType, FunctionType
from typing import Any, Literal

import hypothesis
import numpy as np
import tomli_w
import torch
from hypothesis import strategies as st
from PIL import Image
from safetensors.torch import load as load_safetensors
from safetensors.torch import save as save_safetensors
from tests.data import layouts

import unskew
from unskew import UserError, tensor_files
from unskew.cli import main as command_line
from unskew.data.augment import Augment
from unskew.data.importers import flbench_dataset
from unskew.experiment import Experiment, assign, load_data, method_table, partition, prepare, read
from unskew.labelled_runs import read as read_runs
from unskew.model_features import final_features
from unskew.model_files import load_model
from unskew.predictions import predict
from unskew.report.page import embed, page_data
from unskew.report.read import coming
from unskew.report.table import tabulate
from unskew.report.table_text import WRITERS
from unskew.testing import hard_trial
from unskew.tune.space import parse_over

LONGEST = 5.0
"""Seconds that an answer may take."""
MEMORY = 1 << 30
"""Bytes that reading may take."""

Format = Literal["bytes", "text", "json", "lines", "toml"]


@dataclass(frozen=True)
class Target:
    """A valid example, and how it is read."""

    examples: Sequence[tuple[bytes, Format]]
    """Each of which is edited alone."""
    read: Callable[[int, bytes], None]
    """Read the edited one, by its number, among the valid others: raises UserError where it is refused."""
    folder: Path
    """Where no file may be left behind."""


Make = Callable[[Path], Target]

# ---- Examples in files


def in_files(
    folder: Path,
    files: dict[Path, Format],
    read: Callable[[], object],
    unpack: Callable[[bytes], bytes] = bytes,
    pack: Callable[[bytes], bytes] = bytes,
) -> Target:
    """Files of a folder; those that are packed are edited inside and packed again."""
    paths, wholes = list(files), [path.read_bytes() for path in files]

    def write_and_read(number: int, content: bytes) -> None:
        paths[number].write_bytes(pack(content))
        try:
            read()
        finally:
            paths[number].write_bytes(wholes[number])

    return Target(
        [(unpack(whole), format) for whole, format in zip(wholes, files.values(), strict=True)],
        write_and_read,
        folder,
    )


def in_text(examples: Sequence[str], read: Callable[[str], object], folder: Path) -> Target:
    """What is typed."""
    return Target(
        [(text.encode(), "text") for text in examples],
        lambda _, content: read(content.decode(errors="replace")) and None,
        folder,
    )


def dataset(
    name: str,
    write: Callable[[Path], object],
    pattern: str,
    format: Format = "bytes",
    *packing: Callable[[bytes], bytes],
) -> Make:
    """A named dataset, of which the files of a pattern are edited."""

    def make(folder: Path) -> Target:
        write(folder)
        files = dict.fromkeys(sorted(folder.glob(pattern))[:2], format)
        assert files
        return in_files(folder, files, lambda: unskew.load(name, folder), *packing)

    return make


def own(
    spec: str, write: Callable[[Path], object], format: Format, *packing: Callable[[bytes], bytes]
) -> Make:
    """A file of the user's own data; {} is its path."""

    def make(folder: Path) -> Target:
        path = folder / ("file" + re.sub(r".*\{\}|,.*", "", spec))
        write(path)
        typed = spec.replace("{}", str(folder / "file"))
        return in_files(folder, {path: format}, lambda: unskew.load(typed), *packing)

    return make


def skew_file(
    kind: str, name: str, write: Callable[[Path], object], format: Format, *packing: Callable[[bytes], bytes]
) -> Make:
    """A partition in a file, of the digits."""

    def make(folder: Path) -> Target:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        write(path)
        typed = f"{kind}:{folder if kind == 'pfllib' else path}"

        def read() -> None:
            if kind == "flbench":
                flbench_dataset(path, digits())
            unskew.federate(digits(), typed, clients=0, seed=1)

        return in_files(folder, {path: format}, read, *packing)

    return make


def unzip(content: bytes) -> bytes:
    """The files of an archive one after the other, each behind its length and its name."""
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        parts = [(info.filename.encode(), archive.read(info)) for info in archive.infolist()]
    return b"".join(
        len(name).to_bytes(1, "little") + name + len(data).to_bytes(4, "little") + data
        for name, data in parts
    )


def rezip(content: bytes) -> bytes:
    """As far as the parts can be told apart, an archive of them, with the right checksums."""
    out = io.BytesIO()
    with warnings.catch_warnings(), zipfile.ZipFile(out, "w") as archive:
        warnings.simplefilter("ignore")  # names twice
        while content:
            name, content = content[1 : 1 + content[0]], content[1 + content[0] :]
            size = int.from_bytes(content[:4], "little")
            archive.writestr(name.decode("latin-1").partition("\0")[0] or "x", content[4 : 4 + size])
            content = content[4 + size :]
    return out.getvalue()


@cache
def digits() -> unskew.Dataset:
    return unskew.load("digits")


# ---- How things are read


def command(*words: str) -> None:
    """A command line, in this process."""
    sys.argv = ["unskew", *words]
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            command_line()
        except SystemExit as end:
            code = end.code
    said = err.getvalue()
    if code == 0:
        return
    assert code == 2, f"exit code {code}"
    assert re.fullmatch(r"unskew: .*\n", said), f"standard error is {said!r}"
    raise UserError(said.removeprefix("unskew: ").removesuffix("\n"))


def settle(settings: dict[str, Any]) -> None:
    """All that `unskew run` does with settings before it trains."""
    experiment = Experiment(**settings)
    loaded = digits() if experiment.data.name == "digits" else load_data(experiment)
    made = prepare(experiment, loaded, partition(experiment, loaded))
    made.experiment.toml()
    made.experiment.identity()
    made.experiment.title()


def settle_method(text: str) -> None:
    settle({"method": method_table(text)})


EXPERIMENT = tomllib.loads(
    Experiment(
        **assign({}, ["method.name=fedprox+feddecorr", "data.augment=crop:4,flip", "skew.clients=5"])
    ).toml()
)


def experiment_file(folder: Path) -> Target:
    path = folder / "experiment.toml"
    path.write_text(tomli_w.dumps(EXPERIMENT))
    return in_files(folder, {path: "toml"}, lambda: settle(read(path)))


def experiment_command(folder: Path) -> Target:
    """`unskew run`, which finds only at the end that its output folder is taken."""
    path = folder / "experiment.toml"
    path.write_text(tomli_w.dumps(EXPERIMENT))
    taken = folder / "taken"
    taken.mkdir()
    (taken / "notes.txt").touch()
    return in_files(
        folder, {path: "toml"}, lambda: command("run", str(path), "--out", str(taken), "--json", "--quiet")
    )


ASSIGNMENTS = (
    "budget.rounds=5", "budget.lr=0.1", "budget.cohort=all", "model.name=mlp-small", "model.hidden=64",
    "data.name=digits", "skew.recipe=dirichlet:0.1,min_size=2", "method.name=fedavg",
    "method={name='fedavg'}",
    "seed=[1, 2]", "evaluation.every=2", "probe.every=1", "device=cpu", "engine=loop", "precision=bf16",
    "model.norm=group", "skew.clients=10", "skew.seed=4", "budget.lr_decay=0.99", "threads=2", "workers=2",
    "budget.steps=7", "budget.epochs=0.5", "budget.schedule=step:at=1/2,factor=0.5,warmup=1",
    "budget.schedule=cosine:final=0.001", "budget.optimizer=adamw:betas=0.9/0.99,eps=1e-6",
)  # fmt: skip
SKEWS = (
    "iid", "dirichlet:0.1", "dirichlet:0.05,cap=false,min_size=3", "client-dirichlet:0.5", "shards:2",
    "sorted-shards:2", "labels:3", "quantity:2", "classes:2", "balanced", "natural", "natural,min_size=1",
    "longtail:10+dirichlet:0.1",
    "domains:6/4+iid", "file:/nowhere", "flwr:/nowhere", "dirichlet:0.1,variant=pfllib",
)  # fmt: skip
METHODS = (
    "fedavg", "fedprox:mu=0.1", "fedlmd:beta=1.0", "fedvls+fedexp", "fedprox:mu=1e+3+feddecorr:beta=0.1",
    "scaffold", "ccvr", "pkd", "moon:mu=1.0,tau=0.5", "fedopt:kind=adam", "logit-adjustment:tau=1",
)  # fmt: skip
DATASETS = (
    "digits", "synthetic:0.5,0.5,clients=10", "leaf_synthetic:clients=5", "emnist:letters",
    "csv:/nowhere,label=x", "csv:/nowhere,label=x,drop=a/b+csv:/dev/null,test=/nowhere",
    "heart-disease:grades",
    "npz:/nowhere", "folder:/nowhere,size=8", "cifar100:labels=coarse", "digits+digits", "cinic10:valid=true",
    "femnist:digits_only=true,min_samples=3", "ag_news:vocabulary=100", "synthetic:0,0,seed=1",
)  # fmt: skip
OVERS = ("mu=0.001..1:log", "mu=0.1|1|true", "budget.batch_size=16..64", "budget.lr=1e-3..0.1:log")
AUGMENTS = ("none", "crop:4", "crop:4,flip,cutout:16", "rotate:15", "autoaugment", "flip")


def command_words(folder: Path) -> Target:
    """Words of command lines that train nothing."""
    taken = folder / "taken"
    taken.mkdir()
    (taken / "notes.txt").touch()
    lines = [
        "skew --skew dirichlet:0.1 --clients 5 --seed 1 --json",
        "skew --set skew.recipe=iid --set skew.clients=4",
        "methods fedprox",
        "data --json",
        f"table {taken} --metric accuracy --target 50",
        f"figure curves {taken} --metric loss --width column",
        f"report {taken}",
        f"run --method fedavg --rounds 2 --lr 0.1 --cohort 3 --probe every=2 --quiet --out {taken}",
        f"compare fedavg fedprox --seeds 1-2 --rounds 2 --quiet --out {taken}",
        f"run --dataset digits --model mlp-small --device cpu --engine loop --out {taken}",
    ]

    def run(line: str) -> None:
        words = line.split()
        if words and words[0] in ("watch", "bench"):
            return  # they would go on for ever
        if "run" in words or "compare" in words:
            words += ["--out", str(taken)]
        if "fetch" in words:
            return  # the network is no reader
        here = Path.cwd()
        os.chdir(folder)
        try:
            command(*words)
        finally:
            os.chdir(here)

    return in_text(lines, run, folder)


# ---- Run folders


@cache
def real_runs() -> Path:
    """A small compare, with all that runs write."""
    folder = Path(tempfile.mkdtemp(prefix="fuzz-runs-")) / "compare"
    short = ["--skew", "dirichlet:0.3", "--clients", "3", "--rounds", "2", "--epochs", "1", "--probe", "1"]
    command("compare", "fedavg", "fedprox:mu=0.1", *short, "--out", str(folder), "--quiet", "--json")
    failure = {"error": "ValueError: it broke.", "notes": ["In round 2."], "traceback": "Traceback"}
    (next(folder.glob("fedprox*")) / "error.json").write_text(json.dumps(failure))
    return folder


def records(*names: str, read: Callable[[Path], object]) -> Make:
    """Files of a run folder, or of the folder of a compare."""

    def make(folder: Path) -> Target:
        place = folder / "compare"
        shutil.copytree(real_runs(), place)
        for run in place.glob("*/experiment.toml"):  # elsewhere
            run.with_name("summary.json").write_text(
                run.with_name("summary.json").read_text().replace(str(real_runs()), str(place))
            )
        formats: dict[str, Format] = {".json": "json", ".jsonl": "lines", ".toml": "toml"}
        files = {
            path: formats.get(path.suffix, "bytes")
            for name in names
            for path in sorted([*place.glob(name), *place.glob(f"*/{name}")])[:1]
        }
        assert len(files) == len(names), names
        return in_files(folder, files, lambda: read(place))

    return make


RECORDS = (
    "experiment.toml", "environment.json", "partition.json", "rounds.jsonl", "probes.jsonl", "summary.json",
    "error.json", "compare.json", "plan.json",
)  # fmt: skip


def show_all(place: Path) -> None:
    """What tables and the page are made of."""
    runs = read_runs([place])
    for write in WRITERS.values():
        write(tabulate(runs))
    embed(page_data(runs, coming([place])))


FIGURES = (
    "partition", "curves", "extremes", "updates", "confusion", "predictions", "features", "sensitivity",
    "experts",
)  # fmt: skip


def draw(name: str) -> Callable[[Path], object]:
    def read(place: Path) -> None:
        out = place.parent / "out.png"
        try:
            command("figure", name, str(place), "--out", str(out))
        finally:
            assert not list(place.parent.glob(".*.part")), "half a file is left"
            out.unlink(missing_ok=True)

    return read


def write_report(place: Path) -> None:
    out = place.parent / "out.html"
    try:
        command("report", str(place), "--out", str(out))
        command("table", str(place))
    finally:
        out.unlink(missing_ok=True)


def model_features(place: Path) -> None:
    final_features(read_runs([place]))


def described_model(folder: Path) -> Target:
    """What is told of a model beside its weights, edited as a value."""
    shutil.copytree(real_runs(), folder / "compare")
    run = next(path for path in sorted((folder / "compare").iterdir()) if path.is_dir())
    tensors = load_safetensors((run / "model.safetensors").read_bytes())

    def read(_: int, content: bytes) -> None:
        path = run / "model.safetensors"
        path.write_bytes(save_safetensors(tensors, {"unskew": content.decode(errors="replace")}))
        load_model(path)(digits().test.inputs[:2])

    return Target([((run / "model.json").read_bytes(), "json")], read, folder)


def predicted_table(folder: Path) -> Target:
    """A table of rows for a model that was trained on another."""
    path = folder / "rows.csv"
    (folder / "train.csv").write_text(SITES)
    spec = f"csv:{folder / 'train.csv'},label=kind,site=site,missing=column,categorical=b"
    federation = unskew.federate(unskew.load(spec), "natural", clients=0, seed=1)
    trial = unskew.Trial(federation, "logistic", budget=unskew.Budget(rounds=1, epochs=1), engine="loop")
    unskew.train(trial).save(folder / "run")
    path.write_text(SITES)
    model = load_model(folder / "run")
    return in_files(folder, {path: "text"}, lambda: predict(model, path).to_csv())


# ---- The kinds of input

CIFAR = {
    "cifar10": partial(layouts.write_cifar10, version="python3", n=1),
    "cifar10-python2": partial(layouts.write_cifar10, version="python2", n=1),
    "cifar10-binary": partial(layouts.write_cifar10, version="bin", n=1),
}


def to(folder: str, write: Callable[..., object], *arguments: object) -> Callable[[Path], object]:
    return lambda root: write(root / folder, *arguments)


def write_svhn(root: Path) -> None:
    for which in ("train", "test"):
        layouts.write_mat(root / "svhn" / f"{which}_32x32.mat", [1, 2])


def write_usps_npz(root: Path) -> None:
    (root / "usps").mkdir()
    x, y = layouts.noise(1, 10, 16, 16), np.arange(10)
    np.savez(root / "usps" / "usps.npz", x_train=x, y_train=y, x_test=x, y_test=y)


def write_femnist(root: Path) -> None:
    user = {"x": [[0.5] * 784] * 10, "y": [1, 2] * 5}
    layouts.write_leaf(root / "femnist" / "all_data" / "a.json", {"ann": user, "bob": user})


def write_own_leaf(path: Path) -> None:
    user = {"x": [[0.5, 1], [2, 3], [4, -1], [0, 0]], "y": [0, 2, 0, 2]}
    layouts.write_leaf(path, {"ann": user, "bob": user})


def trained_weights(suffix: str, write: Callable[[Path], object], *packing: Callable[[bytes], bytes]) -> Make:
    """Weights to start from."""

    def make(folder: Path) -> Target:
        path = folder / f"weights{suffix}"
        write(path)
        federation = unskew.federate(digits(), "iid", 2, 1)
        return in_files(
            folder,
            {path: "bytes"},
            lambda: unskew.Trial(federation, "logistic", init=path).build(),
            *packing,
        )

    return make


def logistic_weights() -> dict[str, torch.Tensor]:
    return {"head.weight": torch.zeros(10, 64), "head.bias": torch.ones(10)}


def write_safetensors(path: Path) -> None:
    path.write_bytes(save_safetensors(logistic_weights()))


def write_torch(path: Path) -> None:
    torch.save(logistic_weights(), path)


TABLE = "a,b,kind\n1,2,x\n3,4,y\n5,6,x\n7,8,y\n"
SITES = "a,b,c,site,kind\n1,2,red,n,x\n3,?,blue,s,y\n5,6,,n,x\n,8,red,s,y\n1,2,red,s,y\n3,2,blue,n,x\n"
IMAGES = (".png", ".jpg", ".gif", ".tif", ".webp", ".bmp")
NEWS = [
    (1, "Peace at last", "A pact is signed"),
    (2, "They win", "Two to one"),
    (3, "Up", "Gold"),
    (4, "New", "x"),
]


def write_news(root: Path) -> None:
    layouts.write_ag_news(root / "ag_news", NEWS, NEWS)


def write_folder(suffix: str) -> Callable[[Path], object]:
    def write(path: Path) -> None:
        for name in ("a", "b"):
            for number in range(3):
                layouts.write_image(path / name / f"{number}{suffix}", layouts.noise(number, 8, 8, 3))

    return write


def image_folder(suffix: str) -> Make:
    def make(folder: Path) -> Target:
        write_folder(suffix)(folder / "images")
        files: dict[Path, Format] = {folder / "images" / "a" / f"0{suffix}": "bytes"}
        return in_files(folder, files, lambda: unskew.load(f"folder:{folder / 'images'},size=8"))

    return make


def write_own_npz(path: Path) -> None:
    with path.open("wb") as file:
        np.savez(file, x=np.zeros((12, 4, 4), np.uint8), y=np.arange(12) % 3)


def write_parquet(path: Path) -> None:
    from pyarrow import parquet, table

    parquet.write_table(
        table({"a": [1.5, None, 3.0, 4.0], "b": ["p", "q", "p", None], "kind": list("xyxy")}), path
    )


def write_names_npz(path: Path) -> None:
    with path.open("wb") as file:
        np.savez(file, x=np.random.default_rng(0).random((12, 4)), y=np.array(["a", "b", "c"] * 4))


MAP = {0: [5, 1, 9], 1: [2], 2: [0, 7]}


def write_pfllib(path: Path) -> None:
    pixels = digits().train.inputs[:4].numpy() / 255
    for part in ("train", "test"):
        for client in range(2):
            where = path.parents[1] / part / f"{client}.npz"
            where.parent.mkdir(exist_ok=True)
            with where.open("wb") as file:
                held = {"x": pixels[2 * client :][:2], "y": digits().train.labels[2 * client :][:2].numpy()}
                np.savez(file, data=np.array(held))


def write_flbench(path: Path) -> None:
    held = {"train": np.array([1, 2]), "val": np.array([], np.int64), "test": np.array([4])}
    path.write_bytes(
        pickle.dumps({"separation": {"train": [0]}, "data_indices": [held, {"train": [3], "test": []}]})
    )


def write_npy(path: Path) -> None:
    with path.open("wb") as file:
        np.save(file, np.array(MAP), allow_pickle=True)


def write_npz(path: Path) -> None:
    with path.open("wb") as file:
        np.savez(file, **{str(key): np.array(value) for key, value in MAP.items()})


def dump_pickle(protocol: int) -> Callable[[Path], object]:
    content = {key: np.array(value) for key, value in MAP.items()}
    return lambda path: path.write_bytes(pickle.dumps(content, protocol))


def write_manifest(path: Path) -> None:
    unskew.federate(digits(), "dirichlet:0.3", clients=3, seed=1).save(path)


def checkpoint(part: Literal["file", "body", "value"]) -> Make:
    """A checkpoint of a run: the file as it is, or what its checksum guards, with a checksum to match."""

    def make(folder: Path) -> Target:
        trial = replace(hard_trial(), client_files=folder / "clients")
        keeper = unskew.Checkpoints(folder / "kept", trial, "it", every="every=1")
        unskew.train(trial, unskew.methods.scaffold(), keeper=keeper)
        keeper.wait()
        path = max((folder / "kept").iterdir())
        whole = path.read_bytes()
        header, body = whole.split(b"\n", 1)
        told = {key: value for key, value in json.loads(header).items() if key != "sha256"}
        tensors = tensor_files.load(body)

        def signed(content: bytes) -> bytes:
            first = json.dumps({**told, "bytes": len(content)}, sort_keys=True).encode()
            digest = hashlib.sha256(first + b"\n" + content).hexdigest()
            named = {**told, "bytes": len(content), "sha256": digest}
            return json.dumps(named, sort_keys=True).encode() + b"\n" + content

        def with_value(text: bytes) -> bytes:
            value = torch.frombuffer(bytearray(text or b" "), dtype=torch.uint8)
            return signed(tensor_files.dump({**tensors, "value": value}))

        def read() -> None:
            said: list[str] = []
            unskew.Checkpoints(folder / "kept", trial, "it", say=said.append).find("training")
            if said:
                raise UserError(said[0])

        if part == "file":
            return in_files(folder, {path: "bytes"}, read)
        if part == "body":
            return in_files(folder, {path: "bytes"}, read, lambda _: body, signed)
        return in_files(folder, {path: "json"}, read, lambda _: bytes(tensors["value"].tolist()), with_value)

    return make


GZIP = (gzip.decompress, partial(gzip.compress, compresslevel=1))
BZIP = (bz2.decompress, bz2.compress)
ZIP = (unzip, rezip)

KINDS: dict[str, tuple[float, Make]] = {
    "experiment": (8, experiment_file),
    "experiment-command": (0.5, experiment_command),
    "command": (1, command_words),
    "set": (8, lambda folder: in_text(ASSIGNMENTS, lambda text: settle(assign({}, [text])), folder)),
    "skew": (8, lambda folder: in_text(SKEWS, lambda text: unskew.federate(digits(), text, 5, 1), folder)),
    "method": (6, lambda folder: in_text(METHODS, settle_method, folder)),
    "dataset": (6, lambda folder: in_text(DATASETS, lambda text: unskew.load(text, folder), folder)),
    "over": (3, lambda folder: in_text(OVERS, lambda text: parse_over(text, {"name": "fedprox"}), folder)),
    "augment": (3, lambda folder: in_text(AUGMENTS, Augment.parse, folder)),
    "manifest": (8, skew_file("file", "partition.json", write_manifest, "json")),
    "flwr": (3, skew_file("flwr", "map.json", lambda path: path.write_text(json.dumps(MAP)), "json")),
    "niidbench-pickle": (5, skew_file("niidbench", "map.pkl", dump_pickle(4), "bytes")),
    "niidbench-pickle-text": (3, skew_file("niidbench", "map.pkl", dump_pickle(0), "bytes")),
    "niidbench-npy": (3, skew_file("niidbench", "map.npy", write_npy, "bytes")),
    "niidbench-npz": (3, skew_file("niidbench", "map.npz", write_npz, "bytes", *ZIP)),
    "niidbench-text": (
        2, skew_file("niidbench", "map.txt", lambda path: path.write_text("{0: [4, 7],\n1: [9]}\n"), "text"),
    ),
    "flbench": (3, skew_file("flbench", "partition.pkl", write_flbench, "bytes")),
    "pfllib": (2, skew_file("pfllib", "train/0.npz", write_pfllib, "bytes", *ZIP)),
    "mnist": (3, dataset("mnist", to("mnist", layouts.write_mnist, 10), "mnist/train-*.gz", "bytes", *GZIP)),
    "mnist-gzip": (3, dataset("mnist", to("mnist", layouts.write_mnist, 10), "mnist/train-*.gz")),
    "cifar10": (4, dataset("cifar10", to("cifar-10-batches-py", CIFAR["cifar10"]), "*/data_batch_1")),
    "cifar10-python2": (
        3, dataset("cifar10", to("cifar-10-batches-py", CIFAR["cifar10-python2"]), "*/data_batch_1"),
    ),
    "cifar10-binary": (
        1, dataset("cifar10", to("cifar-10-batches-bin", CIFAR["cifar10-binary"]), "*/data_batch_1.bin"),
    ),
    "svhn": (3, dataset("svhn", write_svhn, "svhn/train_32x32.mat")),
    "usps-npz": (3, dataset("usps", write_usps_npz, "usps/usps.npz", "bytes", *ZIP)),
    "usps-npz-zip": (2, dataset("usps", write_usps_npz, "usps/usps.npz")),
    "usps-libsvm": (2, dataset("usps", to("usps", layouts.write_usps_libsvm), "*/usps.bz2", "text", *BZIP)),
    "femnist": (1.5, dataset("femnist", write_femnist, "femnist/*/a.json", "json")),
    "ag_news": (2, dataset("ag_news", write_news, "*/train.csv", "text")),
    "tiny_imagenet": (
        0.3,
        dataset("tiny_imagenet", to("tiny-imagenet-200", layouts.write_tiny_imagenet), "*/val/*.txt", "text"),
    ),
    "csv": (
        4,
        own("csv:{}.csv,label=kind", lambda path: path.write_text(TABLE), "text"),
    ),
    "csv-sites": (
        3,
        own(
            "csv:{}.csv,label=kind,site=site,missing=column,categorical=b",
            lambda path: path.write_text(SITES),
            "text",
        ),
    ),
    "parquet": (3, own("parquet:{}.parquet,label=kind,missing=fill", write_parquet, "bytes")),
    "npz": (3, own("npz:{}.npz", write_own_npz, "bytes", *ZIP)),
    "npz-names": (2, own("npz:{}.npz", write_names_npz, "bytes", *ZIP)),
    "npz-zip": (2, own("npz:{}.npz", write_own_npz, "bytes")),
    "leaf": (2, own("leaf:{}.json", write_own_leaf, "json")),
    "init": (2, trained_weights(".safetensors", write_safetensors)),
    "init-torch": (2, trained_weights(".pt", write_torch, *ZIP)),
    **{f"image{suffix}": (1.5, image_folder(suffix)) for suffix in IMAGES},
    "records": (10, records(*RECORDS, read=show_all)),
    "report": (0.3, records(*RECORDS, read=write_report)),
    **{f"figure-{name}": (0.1, records(*RECORDS, read=draw(name))) for name in FIGURES},
    "model": (1, records("model.safetensors", read=model_features)),
    "model-description": (2, records("model.json", read=model_features)),
    "model-metadata": (3, described_model),
    "predict-csv": (2, predicted_table),
    "checkpoint": (1, checkpoint("file")),
    "checkpoint-body": (2, checkpoint("body")),
    "checkpoint-value": (3, checkpoint("value")),
}  # fmt: skip
"""How large a part of all inputs each kind is, and how it is made."""

# ---- Edits

TOKENS = (
    b"", b"\0", b"\n", b'"', b"'", b"=", b"[", b"]", b"{", b"}", b",", b":", b"+", b"-", b".", b"..", b"/",
    b"<",
    b"\xff", b"\xff\xff\xff\xff", b"\x7f\xff\xff\xff", b"\x80\x00\x00\x00", b"\xff" * 8,
    b"\xff" * 7 + b"\x7f",
    b"0", b"-1", b"1e999", b"nan", b"inf", b"-inf", b"9" * 30, b"9" * 5000, b"1e30", b"0x10", b"1_0",
    b"true", b"none",
    "é".encode(), "\u2028".encode(), "\ud7ff\U0001f600".encode(), b"\xed\xa0\x80",
    b"</script><script>alert(1)</script>",
    b"\x1b[2J", b"$(touch owned)", b"=cmd|' /C calc'!A0", b"%s%n{0}", b"../../../../etc/passwd", b"/dev/zero",
    b"x" * 300, b"x" * 70000, b"[" * 100_000, b'{"a":' * 50_000, b"a." * 2000, b"(" * 5000,
    b"\x8c\x02os\x8c\x06system\x93",
    b"cos\nsystem\n(S'touch owned'\ntR.", b"r\xff\xff\xff\x7f", b"\x96" + b"\xff" * 7 + b"\x00",
    b"\x8e\xff\xff\xff\xff\0\0\0\0",
    b"cbuiltins\nrange\n(I0\nI999999999999\ntR", b"0" * 100, b" " * 100, b"#", b"\t", b"\r", b"\\",
    b"\\u0000", b"\\ud800",
)  # fmt: skip
VALUES: tuple[Any, ...] = (
    None, True, False, 0, -1, 1, 2**31, 2**63, 2**64, -(2**63), 10**30, 10**400, 0.0, -0.5, 1e308, 1e-320,
    "", "x", "a" * 10_000,
    "\0", "\u2028", "\ud800", "</script><script>alert(1)</script>", "<img src=x onerror=alert(1)>", "$x^2$",
    "${x}", "%s", "../..",
    "/etc/passwd", "=1+1", "\x1b[2J", "é", "1", "1e5", "nan", "all", "auto", "none", [], {}, [[]], [None],
    [0], ["x"], {"a": 1}, [1.5],
    {"": {}}, {"name": "x"}, {"name": "evil.py"}, "evil.py", "os.system", [[0] * 3] * 3, list(range(50)),
    "@raw NaN", "@raw Infinity", "@raw 1e999", "@raw " + "9" * 5000, "@raw " + "[" * 100_000,
    '@raw {"a":1,"a":2}',
    "@raw " + "[" * 60 + "]" * 60, "@raw 1979-05-27T07:32:00Z", "@raw nan", "@raw 0x10",
)  # fmt: skip

Edit = tuple[int, int, int, int]
"""What is done, two numbers that say where and how, and the number of a token or a value."""
PLACES = st.integers(0, 2**16 - 1)
BYTE_EDITS = st.tuples(st.integers(0, 8), PLACES, PLACES, st.integers(0, len(TOKENS) - 1))
VALUE_EDITS = st.tuples(st.integers(0, 6), PLACES, PLACES, st.integers(0, len(VALUES) - 1))


def edit_bytes(content: bytes, edit: Edit) -> bytes:
    kind, first, second, chosen_token = edit
    token = TOKENS[chosen_token]
    at = first * (len(content) + 1) >> 16
    if first & 1:  # headers are short, and worth more
        at = min(at, (first >> 1) % 64)
    size = second % 17
    match kind:
        case 0:
            return content[:at]
        case 1:
            return content[:at] + bytes([second & 255]) + content[at + 1 :]
        case 2:
            return content[:at] + token + content[at:]
        case 3:
            return content[:at] + token + content[at + len(token) :]
        case 4:
            return content[:at] + content[at + size :]
        case 5:
            return content[:at] + content[at : at + size] * (1 + second % 50) + content[at + size :]
        case 6:
            other = second * (len(content) + 1) >> 16
            return content[:at] + content[other : other + 16] + content[at + 16 :]
        case 7:
            numbers = list(re.finditer(rb"-?\d+(\.\d+)?", content))
            if not numbers:
                return content + token
            chosen = numbers[second % len(numbers)]
            return content[: chosen.start()] + token + content[chosen.end() :]
        case _:
            return (
                content[:at] + bytes([content[at] ^ (1 << second % 8)]) + content[at + 1 :]
                if at < len(content)
                else b""
            )


Place = tuple[Any, Any]
"""A container and a key or place in it."""


def places(value: Any) -> Iterator[Place]:
    pairs = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, part in pairs:
        yield value, key
        yield from places(part)


def edit_value(whole: Any, edit: Edit) -> Any:
    kind, first, second, chosen_value = edit
    value = copy.deepcopy(VALUES[chosen_value])
    found = list(places(whole))
    if not found:
        return value
    top = [place for place in found if place[0] is whole]
    holder, key = (top if second % 3 == 0 else found)[first % len(top if second % 3 == 0 else found)]
    match kind:
        case 0 | 1:
            holder[key] = value
        case 2:
            del holder[key]
        case 3 if isinstance(holder, dict):
            holder[f"{key}x" if second & 1 else str(value)[:50]] = holder[key]
        case 3:
            holder.insert(key, holder[key])
        case 4:
            holder[key] = [holder[key]] if second & 1 else {"a": holder[key]}
        case 5:
            other, place = found[second % len(found)]
            if not isinstance(other[place], dict | list):
                holder[key] = other[place]
        case _:
            if isinstance(holder[key], list):
                holder[key] = holder[key][: second % 3] if second & 1 else holder[key] * 2
            else:
                holder[key] = value
    return whole


def raw(text: str) -> str:
    return re.sub(r'"@raw ((?:[^"\\]|\\.)*)"', lambda match: json.loads(f'"{match[1]}"'), text)


def edited(content: bytes, format: Format, edits: Sequence[Edit], number: int) -> bytes:
    """The example with these edits, of its values where it has a structure."""
    match format:
        case "json":
            whole = json.loads(content)
            for edit in edits:
                whole = edit_value(whole, edit)
            return raw(json.dumps(whole)).encode()
        case "lines":
            lines = content.splitlines()
            chosen = number % len(lines)
            lines[chosen] = edited(lines[chosen], "json", edits, number)
            return b"\n".join(lines) + b"\n"
        case _:
            whole = tomllib.loads(content.decode())
            for edit in edits:
                whole = edit_value(whole, edit)
            with contextlib.suppress(TypeError, ValueError, AttributeError):  # no TOML has that value
                return raw(tomli_w.dumps(whole)).encode("utf-8", "surrogatepass")
            return content


@dataclass(frozen=True)
class Input:
    """Which of the examples is edited, and how."""

    number: int
    structured: bool
    byte_edits: Sequence[Edit]
    value_edits: Sequence[Edit]


INPUTS = st.builds(
    Input,
    st.integers(0, 999),
    st.booleans(),
    st.lists(BYTE_EDITS, min_size=1, max_size=3),
    st.lists(VALUE_EDITS, min_size=1, max_size=2),
)


def content_of(target: Target, drawn: Input) -> tuple[int, bytes]:
    number = drawn.number % len(target.examples)
    content, format = target.examples[number]
    if format not in ("bytes", "text") and drawn.structured:
        return number, edited(content, format, drawn.value_edits, drawn.number)
    for edit in drawn.byte_edits:
        content = edit_bytes(content, edit)
    return number, content


# ---- Trying


class HangError(BaseException):
    """No answer in time."""


def _too_long(_: int, __: FrameType | None) -> None:
    raise HangError(f"no answer in {LONGEST:g} s")


@dataclass
class Tally:
    """What came of the inputs of one kind."""

    tried: int = 0
    refused: int = 0
    slowest: float = 0.0
    seconds: float = 0.0
    failures: dict[str, tuple[str, bytes]] = field(default_factory=dict)
    """By where they happened: what, and the first such input."""
    often: Counter[str] = field(default_factory=Counter)


def attempt(target: Target, drawn: Input, tally: Tally) -> None:
    """Read one input, and note what came of it."""
    number, content = content_of(target, drawn)
    before = sorted(path.name for path in target.folder.iterdir())
    start = time.perf_counter()
    signal.setitimer(signal.ITIMER_REAL, LONGEST)
    problem, place = "", ""
    try:
        target.read(number, content)
    except UserError as error:
        tally.refused += 1
        said = str(error)
        if not said.rstrip().endswith((".", "?")):
            problem, place = f"no sentence: {said[:300]!r}", "sentence " + re.sub(r"\W|\d", "", said)[-20:]
    except (Exception, HangError) as error:
        frames = [each for each in traceback.extract_tb(error.__traceback__) if "unskew" in each.filename]
        inside = frames[-1] if frames else traceback.extract_tb(error.__traceback__)[-1]
        place = f"{type(error).__name__} {Path(inside.filename).name}:{inside.lineno}"
        problem = f"{type(error).__name__}: {str(error)[:300]} ({Path(inside.filename).name}:{inside.lineno})"
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
    took = time.perf_counter() - start
    tally.tried += 1
    tally.seconds += took
    tally.slowest = max(tally.slowest, took)
    if not problem and sorted(path.name for path in target.folder.iterdir()) != before:
        problem = place = "a file is left behind"
    if problem:
        tally.often[place] += 1
        tally.failures.setdefault(place, (problem, content))


@contextlib.contextmanager
def prepared(kind: str) -> Iterator[Target]:
    """The example of a kind, in a folder of its own, in this process's main thread."""
    cache_before = os.environ.get("XDG_CACHE_HOME")
    with tempfile.TemporaryDirectory(prefix="fuzz-") as temporary, warnings.catch_warnings():
        warnings.simplefilter("error")
        os.environ["XDG_CACHE_HOME"] = f"{temporary}/cache"
        folder = Path(temporary, "input")
        folder.mkdir()
        old = signal.signal(signal.SIGALRM, _too_long)
        try:
            target = KINDS[kind][1](folder)
            for number, (content, _) in enumerate(target.examples):
                with (
                    contextlib.suppress(UserError) if content.count(b"nowhere") else contextlib.nullcontext()
                ):
                    _expect_valid(target, number, content)
            yield target
        finally:
            signal.signal(signal.SIGALRM, old)
            if cache_before is None:
                os.environ.pop("XDG_CACHE_HOME")
            else:
                os.environ["XDG_CACHE_HOME"] = cache_before


def _expect_valid(target: Target, number: int, content: bytes) -> None:
    with contextlib.suppress(UserError):
        target.read(number, content)


def explore(kind: str, inputs: int, seed: int) -> Tally:
    """Try so many inputs of a kind."""
    tally = Tally()
    with prepared(kind) as target:

        @hypothesis.seed(seed)
        @hypothesis.settings(
            max_examples=inputs,
            deadline=None,
            database=None,
            derandomize=False,
            phases=[hypothesis.Phase.generate],
            suppress_health_check=list(hypothesis.HealthCheck),
            verbosity=hypothesis.Verbosity.quiet,
        )
        @hypothesis.given(INPUTS)
        def run(drawn: Input) -> None:
            attempt(target, drawn, tally)

        run()
    return tally


def shares(inputs: int, kinds: Sequence[str]) -> dict[str, int]:
    """How many inputs each kind gets."""
    total = sum(KINDS[kind][0] for kind in kinds)
    return {kind: math.ceil(inputs * KINDS[kind][0] / total) for kind in kinds}


def limit_memory() -> None:
    """To what is taken now and MEMORY more."""
    pages = int(Path("/proc/self/statm").read_text(encoding="utf-8").split()[0])
    limit = pages * resource.getpagesize() + MEMORY
    resource.setrlimit(resource.RLIMIT_AS, (limit, resource.RLIM_INFINITY))


def with_atheris(kind: str, arguments: list[str]) -> None:
    """Let atheris choose the edits by the code that they reach."""
    try:
        import atheris
    except ImportError:
        raise SystemExit("atheris is not installed: pip install atheris.") from None
    tally = Tally()
    with prepared(kind) as target:

        @hypothesis.settings(database=None, deadline=None)
        @hypothesis.given(INPUTS)
        def run(drawn: Input) -> None:
            attempt(target, drawn, tally)
            assert not tally.failures, tally.failures

        for each in gc.get_objects():
            if type(each) is FunctionType and str(each.__module__).startswith("unskew."):
                atheris.instrument_func(each)
        atheris.Setup(
            [sys.argv[0], "-max_len=4096", "-len_control=0", *arguments], run.hypothesis.fuzz_one_input
        )
        atheris.Fuzz()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--inputs", type=int, default=100_000)
    parser.add_argument("--only", default="", help=f"kinds, separated by commas: {', '.join(KINDS)}")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--keep", type=Path, default=Path("fuzz-failures"), help="folder for inputs that failed"
    )
    parser.add_argument("--atheris", metavar="KIND", choices=KINDS)
    parser.add_argument("rest", nargs="*", help="for atheris, after --")
    chosen = parser.parse_args()
    faulthandler.enable()
    if chosen.atheris:
        with_atheris(chosen.atheris, chosen.rest)
        return
    kinds = chosen.only.split(",") if chosen.only else list(KINDS)
    settle({})  # whatever is imported late
    real_runs()
    draw("curves")(real_runs())
    Image.init()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    print(f"{'kind':24}{'inputs':>9}{'refused':>9}{'failed':>8}{'slowest s':>11}{'inputs/s':>10}")
    total, failed = Tally(), 0
    for kind, inputs in shares(chosen.inputs, kinds).items():
        limit_memory()
        tally = explore(kind, inputs, chosen.seed)
        total.tried += tally.tried
        total.refused += tally.refused
        total.seconds += tally.seconds
        total.slowest = max(total.slowest, tally.slowest)
        failed += sum(tally.often.values())
        _row(kind, tally, sum(tally.often.values()))
        for number, (place, (problem, content)) in enumerate(tally.failures.items()):
            chosen.keep.mkdir(exist_ok=True)
            (chosen.keep / f"{kind}-{number}").write_bytes(content)
            print(f"    {tally.often[place]} x {problem}", flush=True)
    _row("all", total, failed)
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    print(f"seed {chosen.seed}; the largest memory was {grown:.0f} MB more than before the first input")
    shutil.rmtree(real_runs().parent)
    sys.exit(1 if failed else 0)


def _row(kind: str, tally: Tally, failed: int) -> None:
    speed = tally.tried / max(tally.seconds, 1e-9)
    print(
        f"{kind:24}{tally.tried:9,}{tally.refused:9,}{failed:8,}{tally.slowest:11.2f}{speed:10.0f}",
        flush=True,
    )


if __name__ == "__main__":
    main()
