"""The kinds of input: a valid example of each, and how it is read."""

from __future__ import annotations

import bz2
import contextlib
import gzip
import hashlib
import io
import json
import os
import pickle
import re
import shutil
import sys
import tempfile
import tomllib
from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import tomli_w
import torch
from safetensors.torch import load as load_safetensors
from safetensors.torch import save as save_safetensors
from tests.data import layouts

import unskew
from benchmarks.fuzz.target import Format, Make, Target, in_files, in_text, rezip, unzip
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


def dataset(
    name: str,
    write: Callable[[Path], object],
    pattern: str,
    format: Format = "bytes",
    *packing: Callable[[bytes], bytes],
) -> Make:
    """Return a kind for a named dataset, whose files that match a pattern are edited."""

    def make(folder: Path) -> Target:
        write(folder)
        files = dict.fromkeys(sorted(folder.glob(pattern))[:2], format)
        assert files
        return in_files(folder, files, lambda: unskew.load(name, folder), *packing)

    return make


def own(
    spec: str, write: Callable[[Path], object], format: Format, *packing: Callable[[bytes], bytes]
) -> Make:
    """Return a kind for a file of the user's own data; {} in `spec` stands for its path."""

    def make(folder: Path) -> Target:
        path = folder / ("file" + re.sub(r".*\{\}|,.*", "", spec))
        write(path)
        typed = spec.replace("{}", str(folder / "file"))
        return in_files(folder, {path: format}, lambda: unskew.load(typed), *packing)

    return make


def skew_file(
    kind: str, name: str, write: Callable[[Path], object], format: Format, *packing: Callable[[bytes], bytes]
) -> Make:
    """Return a kind for a file with a partition of the digits."""

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


@cache
def digits() -> unskew.Dataset:
    return unskew.load("digits")


# ---- How things are read


def command(*words: str) -> None:
    """Run a command line in this process; raise UserError with its sentence if it refuses."""
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
    """Do all that `unskew run` does with settings before it trains."""
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
    """Read an experiment file by `unskew run`, which refuses at the end because its output folder is in
    use."""
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
    """Run command lines that train nothing, with edited words."""
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
            return  # they would not end
        if "run" in words or "compare" in words:
            words += ["--out", str(taken)]
        if "fetch" in words:
            return  # it needs the network
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
    """Run a small compare, whose folder has every file that runs write."""
    folder = Path(tempfile.mkdtemp(prefix="fuzz-runs-")) / "compare"
    short = ["--skew", "dirichlet:0.3", "--clients", "3", "--rounds", "2", "--epochs", "1", "--probe", "1"]
    command("compare", "fedavg", "fedprox:mu=0.1", *short, "--out", str(folder), "--quiet", "--json")
    failure = {"error": "ValueError: it broke.", "notes": ["In round 2."], "traceback": "Traceback"}
    (next(folder.glob("fedprox*")) / "error.json").write_text(json.dumps(failure))
    return folder


def records(*names: str, read: Callable[[Path], object]) -> Make:
    """Return a kind for files of a run folder or of the folder of a compare."""

    def make(folder: Path) -> Target:
        place = folder / "compare"
        shutil.copytree(real_runs(), place)
        for run in place.glob("*/experiment.toml"):  # the runs were made in another folder
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
    """Make all tables and the page."""
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
    """Edit the description of a model in its weights file as a value."""
    shutil.copytree(real_runs(), folder / "compare")
    run = next(path for path in sorted((folder / "compare").iterdir()) if path.is_dir())
    tensors = load_safetensors((run / "model.safetensors").read_bytes())

    def read(_: int, content: bytes) -> None:
        path = run / "model.safetensors"
        path.write_bytes(save_safetensors(tensors, {"unskew": content.decode(errors="replace")}))
        load_model(path)(digits().test.inputs[:2])

    return Target([((run / "model.json").read_bytes(), "json")], read, folder)


def predicted_table(folder: Path) -> Target:
    """Edit a table of rows that a model trained on another table predicts."""
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
    """Return a kind for a file of initial weights."""

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
    """Return a kind for a checkpoint of a run: the whole file, or its body or value with a matching
    checksum."""

    def make(folder: Path) -> Target:
        trial = replace(hard_trial(), client_files=folder / "clients")
        keeper = unskew.Checkpoints(folder / "kept", trial, "it", every="every=1")
        unskew.train(trial, unskew.methods.scaffold(), keeper=keeper)
        keeper.wait()
        path = max((folder / "kept").iterdir())
        whole = path.read_bytes()
        header, body = whole.split(b"\n", 1)
        unsigned = {key: value for key, value in json.loads(header).items() if key != "sha256"}
        tensors = tensor_files.load(body)

        def signed(content: bytes) -> bytes:
            first = json.dumps({**unsigned, "bytes": len(content)}, sort_keys=True).encode()
            digest = hashlib.sha256(first + b"\n" + content).hexdigest()
            named = {**unsigned, "bytes": len(content), "sha256": digest}
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
"""By name, each kind's weight among all inputs, and the function that makes its examples."""
