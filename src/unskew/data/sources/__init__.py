"""Named datasets: what they are, and where their files are in the data folder."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from unskew.data.sources.ag_news import ag_news
from unskew.data.sources.cifar import cifar10, cifar100
from unskew.data.sources.digits import digits
from unskew.data.sources.folders import cinic10, tiny_imagenet
from unskew.data.sources.heart import heart_disease
from unskew.data.sources.idx import emnist, fashion_mnist, kmnist, mnist
from unskew.data.sources.leaf import femnist
from unskew.data.sources.mat import svhn, syn_digits
from unskew.data.sources.source import Source, data_folder
from unskew.data.sources.synthetic import leaf_synthetic, synthetic
from unskew.data.sources.usps import usps

__all__ = ["SOURCES", "Found", "Source", "available", "data_folder", "spelled"]

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


@dataclass(frozen=True)
class Found:
    """A source and the folder that holds it: None if it is absent, or bundled."""

    source: Source
    folder: Path | None

    @property
    def ready(self) -> bool:
        return self.source.bundled or self.folder is not None


def available(folder: Path | None = None) -> list[Found]:
    """List every source with its place in the data folder (see `data_folder`)."""
    root = data_folder(folder)
    return [Found(source, source.find(root)) for source in SOURCES.values()]


def spelled(name: str) -> str:
    """Return the listed name of a dataset whose hyphens and underscores may be exchanged; any other name is
    returned as it is."""
    found = (known for known in SOURCES if known.replace("-", "_") == name.replace("-", "_"))
    return next(found, name)
