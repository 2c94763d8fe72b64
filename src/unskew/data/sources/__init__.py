"""Named datasets: what they are, where they lie, and how to load one from a spec.

A spec is NAME or NAME:OPTIONS for a source, and KIND:PATH or KIND:PATH,OPTIONS for the user's own data:
`cifar10`, `emnist:letters`, `synthetic:0.5,0.5,clients=100`, `folder:/scans,size=64`,
`csv:/table.csv,label=kind`. Commas separate options, so a path in a spec has none."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

from unskew.data.arrays import from_npz
from unskew.data.dataset import Dataset
from unskew.data.image_folders import from_folder
from unskew.data.sources.ag_news import ag_news
from unskew.data.sources.cifar import cifar10, cifar100
from unskew.data.sources.digits import digits
from unskew.data.sources.folders import cinic10, tiny_imagenet
from unskew.data.sources.heart import heart_disease
from unskew.data.sources.idx import emnist, fashion_mnist, kmnist, mnist
from unskew.data.sources.leaf import femnist, from_leaf
from unskew.data.sources.mat import svhn, syn_digits
from unskew.data.sources.source import Source, data_folder
from unskew.data.sources.synthetic import leaf_synthetic, synthetic
from unskew.data.sources.usps import usps
from unskew.data.tables import TablePart, from_csv, from_tables
from unskew.errors import UserError, unknown
from unskew.notation import Item, Option, items, joined, named, path_of, read_options, without

__all__ = [
    "OWN",
    "SOURCES",
    "TABLES",
    "Found",
    "Source",
    "absolute",
    "available",
    "data_folder",
    "load",
    "load_tables",
    "seeded",
    "spelled",
]

SOURCES: dict[str, Source] = {
    "digits": Source(
        name="digits",
        title="Digits (scikit-learn)",
        classes=10,
        train=1_442,
        test=355,
        shape="1x8x8",
        home="https://archive.ics.uci.edu/dataset/80",
        licence="CC BY 4.0",
        load=digits,
    ),
    "heart-disease": Source(
        name="heart-disease",
        title="Heart disease (four hospitals)",
        classes=2,
        train=735,
        test=185,
        shape="32 features",
        home="https://doi.org/10.24432/C52P4X",
        licence="CC BY 4.0",
        load=heart_disease,
    ),
    "synthetic": Source(
        name="synthetic",
        title="Synthetic(alpha, beta) of FedProx",
        classes=10,
        train=0,
        test=0,
        shape="60 features",
        home="https://github.com/litian96/FedProx",
        licence="generated",
        load=synthetic,
    ),
    "leaf_synthetic": Source(
        name="leaf_synthetic",
        title="Synthetic of LEAF",
        classes=5,
        train=0,
        test=0,
        shape="60 features",
        home="https://github.com/TalwalkarLab/leaf",
        licence="generated",
        load=leaf_synthetic,
    ),
    "mnist": Source(
        name="mnist",
        title="MNIST",
        classes=10,
        train=60_000,
        test=10_000,
        shape="1x28x28",
        home="http://yann.lecun.com/exdb/mnist/",
        licence="CC BY-SA 3.0",
        load=mnist,
        folders=("mnist", "MNIST/raw", "MNIST"),
        marks=("train-images[-.]idx3-ubyte*",),
    ),
    "fashion_mnist": Source(
        name="fashion_mnist",
        title="Fashion-MNIST",
        classes=10,
        train=60_000,
        test=10_000,
        shape="1x28x28",
        home="https://github.com/zalandoresearch/fashion-mnist",
        licence="MIT",
        load=fashion_mnist,
        folders=("fashion-mnist", "fashion_mnist", "FashionMNIST/raw", "FashionMNIST"),
        marks=("train-images[-.]idx3-ubyte*",),
    ),
    "kmnist": Source(
        name="kmnist",
        title="Kuzushiji-MNIST",
        classes=10,
        train=60_000,
        test=10_000,
        shape="1x28x28",
        home="http://codh.rois.ac.jp/kmnist/",
        licence="CC BY-SA 4.0",
        load=kmnist,
        folders=("kmnist", "KMNIST/raw", "KMNIST"),
        marks=("train-images[-.]idx3-ubyte*",),
    ),
    "emnist": Source(
        name="emnist",
        title="EMNIST",
        classes=47,
        train=112_800,
        test=18_800,
        shape="1x28x28",
        home="https://www.nist.gov/itl/products-and-services/emnist-dataset",
        licence="not stated",
        load=emnist,
        folders=("emnist", "emnist/gzip", "EMNIST/raw", "EMNIST"),
        marks=("emnist-*-images[-.]idx3-ubyte*",),
    ),
    "cifar10": Source(
        name="cifar10",
        title="CIFAR-10",
        classes=10,
        train=50_000,
        test=10_000,
        shape="3x32x32",
        home="https://www.cs.toronto.edu/~kriz/cifar.html",
        licence="not stated",
        load=cifar10,
        folders=("cifar-10-batches-bin", "cifar-10-batches-py", "cifar10", "cifar-10"),
        marks=("data_batch_1", "data_batch_1.bin"),
    ),
    "cifar100": Source(
        name="cifar100",
        title="CIFAR-100",
        classes=100,
        train=50_000,
        test=10_000,
        shape="3x32x32",
        home="https://www.cs.toronto.edu/~kriz/cifar.html",
        licence="not stated",
        load=cifar100,
        folders=("cifar-100-binary", "cifar-100-python", "cifar100", "cifar-100"),
        marks=("train", "train.bin"),
    ),
    "svhn": Source(
        name="svhn",
        title="SVHN (cropped digits)",
        classes=10,
        train=73_257,
        test=26_032,
        shape="3x32x32",
        home="http://ufldl.stanford.edu/housenumbers/",
        licence="non-commercial use",
        load=svhn,
        folders=("svhn", "SVHN", "."),
        marks=("train_32x32.mat",),
    ),
    "syn_digits": Source(
        name="syn_digits",
        title="SYN digits",
        classes=10,
        train=479_400,
        test=9_553,
        shape="3x32x32",
        home="http://yaroslav.ganin.net/",
        licence="not stated",
        load=syn_digits,
        folders=("syn_digits", "syn-digits", "syn", "SYN", "."),
        marks=("synth_train_32x32.mat",),
        by_hand="unpack SynthDigits.zip, which http://yaroslav.ganin.net/ links to on Google Drive,",
    ),
    "tiny_imagenet": Source(
        name="tiny_imagenet",
        title="TinyImageNet",
        classes=200,
        train=100_000,
        test=10_000,
        shape="3x64x64",
        home="http://cs231n.stanford.edu/tiny-imagenet-200.zip",
        licence="ImageNet's terms (non-commercial research)",
        load=tiny_imagenet,
        folders=("tiny-imagenet-200", "tiny_imagenet", "tiny-imagenet"),
        marks=("train/n*",),
    ),
    "cinic10": Source(
        name="cinic10",
        title="CINIC-10",
        classes=10,
        train=90_000,
        test=90_000,
        shape="3x32x32",
        home="https://doi.org/10.7488/ds/2448",
        licence="CC BY 4.0",
        load=cinic10,
        folders=("cinic-10", "CINIC-10", "cinic10"),
        marks=("train/airplane",),
    ),
    "femnist": Source(
        name="femnist",
        title="FEMNIST (LEAF)",
        classes=62,
        train=0,
        test=0,
        shape="1x28x28",
        home="https://github.com/TalwalkarLab/leaf",
        licence="not stated",
        load=femnist,
        folders=("femnist", "femnist/data", "FEMNIST"),
        marks=("train/*.json", "test/*.json", "all_data/*.json", "data/*/*.json", "*.json"),
        by_hand="run data/femnist/preprocess.sh of https://github.com/TalwalkarLab/leaf and copy train and "
        "test (or all_data) from its data folder",
    ),
    "usps": Source(
        name="usps",
        title="USPS",
        classes=10,
        train=7_291,
        test=2_007,
        shape="1x16x16",
        home="https://www.csie.ntu.edu.tw/~cjlin/libsvmtools/datasets/multiclass.html#usps",
        licence="research use",
        load=usps,
        folders=("usps", "USPS", "."),
        marks=("usps.npz", "usps.bz2", "usps"),
    ),
    "ag_news": Source(
        name="ag_news",
        title="AG News",
        classes=4,
        train=120_000,
        test=7_600,
        shape="64 tokens",
        home="http://groups.di.unipi.it/~gulli/AG_corpus_of_news_articles.html",
        licence="non-commercial research",
        load=ag_news,
        folders=("ag_news", "ag_news_csv", "AG_NEWS"),
        marks=("train.csv", "test.csv"),
    ),
}

OWN: dict[str, Callable[..., Dataset]] = {
    "folder": from_folder,
    "csv": from_csv,
    "parquet": from_csv,
    "npz": from_npz,
    "leaf": from_leaf,
}
"""Kinds of the user's own data: loaders that take a path first."""
TABLES = ("csv", "parquet")


@dataclass(frozen=True)
class Found:
    """A source and the folder that holds it: None where it is absent, and where it is bundled."""

    source: Source
    folder: Path | None

    @property
    def ready(self) -> bool:
        return self.source.bundled or self.folder is not None


def available(folder: Path | None = None) -> list[Found]:
    """Every source, and where it is in the data folder (see `data_folder`)."""
    root = data_folder(folder)
    return [Found(source, source.find(root)) for source in SOURCES.values()]


def load(spec: str, folder: Path | None = None, *, seed: int | None = None) -> Dataset:
    """The dataset that `spec` names, read from the data folder (see `data_folder`).

    seed: for what draws (generated data, a test split cut off the user's data), unless the spec has seed=…"""
    try:
        return _load(spec, folder, seed)
    except OSError as error:  # such as a name that is too long, or a folder that may not be read
        raise UserError(f"the dataset '{spec}' cannot be read ({error.strerror}): check its path.") from None


def load_tables(specs: Sequence[str], *, seed: int | None = None) -> Dataset:
    """Several files of rows as one dataset, each a site. An option that one of them gives is that of all, but
    the test file."""
    given = [items(named(spec)[1]) for spec in specs]
    for spec, mine in zip(specs, given, strict=True):
        if not mine or not mine[0].text:
            raise UserError(f"'{spec}' has no path: write {named(spec)[0]}:PATH.")
    shared = {each.key: each for mine in given for each in mine[1:] if each.key not in (None, "test")}
    options, parts = dict[str, Any](), list[TablePart]()
    for mine in given:
        own = {each.key for each in mine} | set(
            list(_options_of(from_csv))[: sum(e.key is None for e in mine[1:])]
        )
        more = [each for key, each in shared.items() if key not in own]
        values = _read(named(specs[0])[0], from_csv, [*mine[1:], *more], seed, "PATH,")
        parts.append(TablePart(path_of(mine[0].text), values.pop("test", None)))
        for key, value in values.items():
            if options.setdefault(key, value) != value:
                raise UserError(f"{key} differs between the files that are joined: give it once, for all.")
    try:
        return from_tables(parts, **options)
    except OSError as error:
        raise UserError(
            f"the dataset '{'+'.join(specs)}' cannot be read ({error.strerror}): check its paths."
        ) from None


def spelled(name: str) -> str:
    """The name of a dataset as it is listed, also for one that has hyphens in the place of underscores or the
    other way; what is no dataset stays as it is."""
    found = (known for known in SOURCES if known.replace("-", "_") == name.replace("-", "_"))
    return next(found, name)


def _load(spec: str, folder: Path | None, seed: int | None) -> Dataset:
    name, rest = named(spec)
    name, given = spelled(name), items(rest)
    if name in OWN:
        if not given or not given[0].text:
            raise UserError(f"'{spec}' has no path: write {name}:PATH.")
        options = _read(name, OWN[name], given[1:], seed, "PATH,")
        return OWN[name](path_of(given[0].text), **options)
    if name not in SOURCES:
        raise _not_a_dataset(spec, name)
    source = SOURCES[name]
    options = _read(name, source.load, given, seed)
    place = [] if source.bundled else [locate(source, data_folder(folder))]
    return source.load(*place, **options)


def _read(
    name: str, load: Callable[..., Dataset], given: list[Item], seed: int | None, path: str = ""
) -> dict[str, Any]:
    known = _options_of(load)
    options = read_options(name, given, known, list(known), path)
    return {"seed": seed} | options if seed is not None and "seed" in known else options


def seeded(spec: str, seed: int) -> str:
    """The spec with this seed, where it takes one and has none."""
    name, rest = named(spec)
    name, given = spelled(name), items(rest)
    load = OWN[name] if name in OWN else SOURCES[name].load
    values = _read(name, load, given[name in OWN :], None)
    if "seed" not in _options_of(load) or "seed" in values:
        return spec
    return f"{spec}{',' if rest else ':'}seed={seed}"


def _options_of(load: Callable[..., Dataset]) -> dict[str, Option]:
    """The options of a loader: its keyword-only parameters, in order."""
    parameters = inspect.signature(load, eval_str=True).parameters.values()
    return {
        p.name: Option(p.annotation, p.default is p.empty) for p in parameters if p.kind is p.KEYWORD_ONLY
    }


def _not_a_dataset(spec: str, name: str) -> UserError:
    path = path_of(spec.strip())
    tables = {f".{kind}": f"{kind}:{spec},label=COLUMN" for kind in TABLES}
    kinds = {**tables, ".npz": f"npz:{spec}"}
    if name and path.is_dir():
        return UserError(f"'{spec}' is a folder: write folder:{spec} for images in one folder per class.")
    if path.is_file() and path.suffix in kinds:
        return UserError(f"'{spec}' is a file: write {kinds[path.suffix]}.")
    return unknown("dataset", name, [*SOURCES, *OWN])


def absolute(spec: str) -> str:
    """The spec, with the paths of the user's own data written out, so that it can be read from any folder."""
    return "+".join(map(_absolute, joined(spec)))


def _absolute(spec: str) -> str:
    name, rest = named(spec)
    if name not in OWN or rest is None:
        return spec
    path, *given = items(rest)
    known = _options_of(OWN[name])
    words = [_written(path.text)]
    for position, item in enumerate(given):
        key = item.key or list(known)[position]
        is_path = Path in (known[key].kind, *get_args(known[key].kind))
        value = _written(item.value) if is_path and item.value != "none" else item.value
        words.append(value if item.key is None else f"{key}={value}")
    return f"{name}:{','.join(words)}"


def _written(text: str) -> str:
    """The whole path, where it can be written into a spec and read from it again."""
    path = path_of(text).resolve()
    return without(",+" if len(joined(str(path))) > 1 else ",", path)


def locate(source: Source, root: Path) -> Path:
    found = source.find(root)
    if found is None:
        raise source.missing(root)
    return found
