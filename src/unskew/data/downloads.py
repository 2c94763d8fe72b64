"""Where the publishers offer their files, and the files' MD5 sums."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Download:
    """Where the files of a dataset are published."""

    bases: tuple[str, ...]
    """URLs of folders with the files, tried in this order."""
    files: tuple[tuple[str, str], ...]
    """The name and the MD5 sum of every file."""
    folder: str
    """The dataset's folder inside the data folder, as its reader expects it."""
    unpacked: tuple[str, ...] = ()
    """If not empty, the file is an archive, to be unpacked as `folder`, which then holds these."""


TORONTO = ("https://www.cs.toronto.edu/~kriz/",)
STANFORD = ("http://ufldl.stanford.edu/housenumbers/",)

# MD5 sums: CIFAR's are printed on its home page; those of the MNIST family, SVHN and USPS are
# torchvision's, AG News' torchtext's; CINIC-10's and TinyImageNet's are the ones in common use in public
# loaders.
DOWNLOADS: dict[str, Download] = {
    "mnist": Download(
        (
            "https://ossci-datasets.s3.amazonaws.com/mnist/",
            "https://storage.googleapis.com/cvdf-datasets/mnist/",
            "http://yann.lecun.com/exdb/mnist/",
        ),
        (
            ("train-images-idx3-ubyte.gz", "f68b3c2dcbeaaa9fbdd348bbdeb94873"),
            ("train-labels-idx1-ubyte.gz", "d53e105ee54ea40749a09fcbcd1e9432"),
            ("t10k-images-idx3-ubyte.gz", "9fb629c4189551a2d022fa330f9573f3"),
            ("t10k-labels-idx1-ubyte.gz", "ec29112dd5afa0611ce80d1b7f02629c"),
        ),
        "mnist",
    ),
    "fashion_mnist": Download(
        ("http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",),
        (
            ("train-images-idx3-ubyte.gz", "8d4fb7e6c68d591d4c3dfef9ec88bf0d"),
            ("train-labels-idx1-ubyte.gz", "25c81989df183df01b3e8a0aad5dffbe"),
            ("t10k-images-idx3-ubyte.gz", "bef4ecab320f06d8554ea6380940ec79"),
            ("t10k-labels-idx1-ubyte.gz", "bb300cfdad3c16e7a12a480ee83cd310"),
        ),
        "fashion-mnist",
    ),
    "kmnist": Download(
        ("http://codh.rois.ac.jp/kmnist/dataset/kmnist/",),
        (
            ("train-images-idx3-ubyte.gz", "bdb82020997e1d708af4cf47b453dcf7"),
            ("train-labels-idx1-ubyte.gz", "e144d726b3acfaa3e44228e80efcd344"),
            ("t10k-images-idx3-ubyte.gz", "5c965bf0a639b31b8f53240b1b52f4d7"),
            ("t10k-labels-idx1-ubyte.gz", "7320c461ea6c1c855c0b718fb2a4b134"),
        ),
        "kmnist",
    ),
    "emnist": Download(
        ("https://biometrics.nist.gov/cs_links/EMNIST/",),
        (("gzip.zip", "58c8d27c78d21e728a6bc7b3cc06412e"),),
        "emnist",
        ("emnist-balanced-train-images-idx3-ubyte.gz", "emnist-balanced-test-labels-idx1-ubyte.gz"),
    ),
    "cifar10": Download(
        TORONTO,
        (("cifar-10-binary.tar.gz", "c32a1d4ab5d03f1284b67883e8d87530"),),
        "cifar-10-batches-bin",
        (*(f"data_batch_{i}.bin" for i in range(1, 6)), "test_batch.bin"),
    ),
    "cifar100": Download(
        TORONTO,
        (("cifar-100-binary.tar.gz", "03b5dce01913d631647c71ecec9e9cb8"),),
        "cifar-100-binary",
        ("train.bin", "test.bin"),
    ),
    "svhn": Download(
        STANFORD,
        (
            ("train_32x32.mat", "e26dedcc434d2e4c54c9b2d4a06d8373"),
            ("test_32x32.mat", "eb5a983be6a315427106f1b164d9cef3"),
        ),
        "svhn",
    ),
    "svhn_extra": Download(STANFORD, (("extra_32x32.mat", "a93ce644f1a588dc4d68dda5feec44a7"),), "svhn"),
    "tiny_imagenet": Download(
        ("http://cs231n.stanford.edu/",),
        (("tiny-imagenet-200.zip", "90528d7ca1a48142e341f4ef8d21d0de"),),
        "tiny-imagenet-200",
        ("train", "val", "words.txt"),
    ),
    "cinic10": Download(
        (
            "https://datashare.ed.ac.uk/bitstream/handle/10283/3192/",
            "https://datashare.is.ed.ac.uk/bitstream/handle/10283/3192/",
        ),
        (("CINIC-10.tar.gz", "6ee4d0c996905fe93221de577967a372"),),
        "cinic-10",
        ("train", "valid", "test"),
    ),
    "usps": Download(
        ("https://www.csie.ntu.edu.tw/~cjlin/libsvmtools/datasets/multiclass/",),
        (
            ("usps.bz2", "ec16c51db3855ca6c91edd34d0e9b197"),
            ("usps.t.bz2", "8ea070ee2aca1ac39742fdd1ef5ed118"),
        ),
        "usps",
    ),
    "ag_news": Download(
        ("https://raw.githubusercontent.com/mhjabreel/CharCnn_Keras/master/data/ag_news_csv/",),
        (
            ("train.csv", "b1a00f826fdfbd249f79597b59e1dc12"),
            ("test.csv", "d52ea96a97a2d943681189a97654912d"),
        ),
        "ag_news",
    ),
}
