"""Downloads of the publishers' files: resumed, checked, and put in place whole or not at all."""

from __future__ import annotations

import hashlib
import http.client
import ssl
import stat
import tarfile
import tempfile
import urllib.error
import urllib.request
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import IO, Any

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)

from unskew.data.bounded import TooLargeError, most_unpacked, open_zip
from unskew.data.sources import SOURCES, data_folder, spelled
from unskew.errors import UserError, unknown
from unskew.files import put

ReportProgress = Callable[[str, int, int | None], None]
"""Told of progress: the file's name, bytes so far, and bytes in all where the server says so."""

TIMEOUT = 60  # seconds without a byte
MOST_BYTES = 4 << 30
"""Of one download: the largest file here has 1.3 GB."""
MOST_MEMBERS = 1_000_000
"""Of one archive: the largest here holds 270,000 files."""
CHUNK = 1 << 18


@dataclass(frozen=True)
class Download:
    """Where a set's files are published. `files` pairs names with MD5 sums; `bases` are tried in order."""

    bases: tuple[str, ...]
    files: tuple[tuple[str, str], ...]
    folder: str
    """Inside the data folder, as the reader expects it."""
    unpacked: tuple[str, ...] = ()
    """Not empty: the file is an archive, to be unpacked as `folder`, which then has these."""


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


def fetch(
    name: str, folder: Path | None = None, *, base: str | None = None, progress: ReportProgress | None = None
) -> Path:
    """Download the set `name` into the data folder (see `data_folder`) and return the set's folder.

    What is there already and right is not downloaded again; what an earlier run left half is resumed.
    base: download from this URL instead of the publisher's."""
    name = spelled(name)
    if name not in DOWNLOADS:
        raise no_download(name, folder)
    download = DOWNLOADS[name]
    root = data_folder(folder)
    target = root / download.folder
    bases = download.bases if base is None else (base.rstrip("/") + "/",)
    report = progress or (lambda *_: None)
    try:
        if not download.unpacked:
            target.mkdir(parents=True, exist_ok=True)
            for file, md5 in download.files:
                fetch_file(bases, file, md5, target, report)
        elif not is_unpacked(target, download.unpacked):
            root.mkdir(parents=True, exist_ok=True)
            for file, md5 in download.files:
                archive = fetch_file(bases, file, md5, root, report)
                unpack(archive, target, download.unpacked)
                archive.unlink()
    except OSError as error:  # no place, no permission; what the network does is said in `receive`
        raise UserError(f"'{name}' cannot be put into {root} ({error}).") from error
    return target


def no_download(name: str, folder: Path | None) -> UserError:
    if name not in SOURCES:
        return unknown("dataset to fetch", name, DOWNLOADS)
    source = SOURCES[name]
    if source.bundled:
        return UserError(f"'{name}' comes with unskew: there is nothing to fetch.")
    place = data_folder(folder) / source.folders[0]
    return UserError(f"{source.title} has no open download: {source.by_hand} into {place}.")


def fetch_file(bases: tuple[str, ...], file: str, md5: str, folder: Path, report: ReportProgress) -> Path:
    """The file in `folder`, from the first base that gives it."""
    target = folder / file
    if target.exists():
        if md5_of(target) == md5:
            return target
        raise UserError(
            f"{target} is not the published file (its MD5 differs): move it away and fetch again."
        )
    errors = []
    for base in bases:
        try:
            receive(base + file, target, md5, report)
            return target
        except UserError as error:
            errors.append(error)
    raise errors[0]


def receive(url: str, target: Path, md5: str, report: ReportProgress) -> None:
    """Download `url` to TARGET.part, from where an earlier attempt stopped; check it; rename it to TARGET."""
    part = target.with_name(f"{target.name}.part")
    try:
        answer = ask(url, part.stat().st_size if part.exists() else 0)
        if answer is not None:
            with answer:
                store(answer, part, report)
    except urllib.error.HTTPError as error:
        error.close()
        raise UserError(f"{url} cannot be fetched: the server answers {error.code} {error.reason}.") from None
    except urllib.error.URLError as error:
        raise UserError(
            f"{url} cannot be reached ({error.reason}): check the connection and run the command again."
        ) from error
    except (ConnectionError, TimeoutError, ssl.SSLError, http.client.HTTPException) as error:
        kept = part.stat().st_size if part.exists() else 0
        raise UserError(
            f"the connection to {url} broke off: run the command again to continue from byte {kept}."
        ) from error
    except UserError:  # too much
        part.unlink(missing_ok=True)
        raise
    except ValueError as error:  # "unknown url type"
        raise UserError(f"{url} is not a URL that can be fetched ({error}).") from error
    found = md5_of(part)
    if found != md5:
        bad = target.with_name(f"{target.name}.bad")
        part.replace(bad)
        raise UserError(
            f"{url} gave a file with the MD5 {found}, not the published {md5}: it is kept as {bad}; fetch "
            f"again, and if this repeats the publisher's file has changed."
        )
    put(part, target)


def ask(url: str, start: int) -> Any | None:
    """The server's answer, from byte `start` on if it can do that; None if the file ends there."""
    request = urllib.request.Request(url, headers={"User-Agent": "unskew"})
    if start:
        request.add_header("Range", f"bytes={start}-")
    try:
        answer = urllib.request.urlopen(request, timeout=TIMEOUT)
    except urllib.error.HTTPError as error:
        if error.code != 416 or not start:
            raise
        error.close()
        if error.headers.get("Content-Range", "").endswith(f"/{start}"):
            return None
        return ask(url, 0)
    if answer.status == 206 and not answer.headers.get("Content-Range", "").startswith(f"bytes {start}-"):
        answer.close()
        return ask(url, 0)
    return answer


def store(answer: Any, part: Path, report: ReportProgress) -> None:
    """Write an answer to `part`: after what is there if it continues it, else from the beginning."""
    done = part.stat().st_size if answer.status == 206 else 0
    length = answer.headers.get("Content-Length")
    total = done + int(length) if length and length.isdecimal() else None
    if (total or 0) > MOST_BYTES:
        raise too_large(answer.url)
    with part.open("ab" if done else "wb") as file:
        report(part.stem, done, total)
        while block := answer.read(CHUNK):
            file.write(block)
            done += len(block)
            if done > MOST_BYTES:
                raise too_large(answer.url)
            report(part.stem, done, total)
    if total is not None and done < total:  # read(n) ends quietly where the connection was cut
        raise http.client.IncompleteRead(b"", total - done)


def too_large(url: str) -> UserError:
    return UserError(
        f"{url} gives more than {MOST_BYTES:,} bytes, which no dataset here has: fetch it later."
    )


def md5_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()


def is_unpacked(target: Path, names: tuple[str, ...]) -> bool:
    if not target.exists() or not any(target.iterdir()):
        return False
    for name in names:
        if not (target / name).exists():
            raise UserError(f"{target} is there but lacks {name}: move it away and fetch again.")
    return True


def unpack(archive: Path, target: Path, names: tuple[str, ...]) -> None:
    """Unpack beside `target`, and rename when all is there: the archive's top, or the folder in it that has
    `names`."""
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=f".{target.name}-") as temporary:
        content = Path(temporary) / "content"  # only its owner may read the temporary folder itself
        content.mkdir()
        limit, done = most_unpacked(archive.stat().st_size), 0
        try:
            for number, (name, file) in enumerate(members(archive)):
                if number >= MOST_MEMBERS:
                    raise TooLargeError(f"it holds more than {MOST_MEMBERS:,} files")
                path = inside(content, name, archive)
                if file is None:
                    path.mkdir(parents=True, exist_ok=True)
                    continue
                path.parent.mkdir(parents=True, exist_ok=True)
                with path.open("wb") as out:
                    while block := file.read(CHUNK):
                        done += len(block)
                        if done > limit:
                            raise TooLargeError(f"it unpacks to more than {limit:,} bytes")
                        out.write(block)
        except UserError:
            raise
        except (
            tarfile.TarError,
            zipfile.BadZipFile,
            zlib.error,
            EOFError,
            ValueError,
            RuntimeError,
        ) as error:
            raise UserError(f"{archive} cannot be unpacked ({error}): delete it and fetch again.") from error
        for top in (content, *sorted(path for path in content.iterdir() if path.is_dir())):
            if all((top / name).exists() for name in names):
                if target.exists():
                    target.rmdir()  # empty: see is_unpacked
                put(top, target)
                return
    raise UserError(f"{archive} does not hold {', '.join(names)}: its publisher has changed it.")


def members(archive: Path) -> Iterator[tuple[str, IO[bytes] | None]]:
    """Names and contents of an archive's files; folders come with None, anything else is refused."""
    if archive.suffix == ".zip":
        with open_zip(archive) as packed:
            for info in packed.infolist():
                if stat.S_ISLNK(info.external_attr >> 16):
                    raise UserError(f"{archive} holds '{info.filename}', a link: it is not unpacked.")
                if info.is_dir():
                    yield info.filename, None
                else:
                    with packed.open(info) as file:
                        yield info.filename, file
        return
    with tarfile.open(archive) as tar:
        for member in tar:
            if not (member.isfile() or member.isdir()) or member.issparse():
                raise UserError(f"{archive} holds '{member.name}', a link or device: it is not unpacked.")
            yield member.name, tar.extractfile(member) if member.isfile() else None


def inside(folder: Path, name: str, archive: Path) -> Path:
    pure = PurePosixPath(name)
    if not name.isprintable() or PureWindowsPath(name).is_reserved():
        raise UserError(f"{archive} holds {name!r}, which is no file name everywhere: it is not unpacked.")
    if pure.is_absolute() or ".." in pure.parts or "\\" in name or PureWindowsPath(name).drive:
        raise UserError(f"{archive} holds '{name}', which leads out of its folder: it is not unpacked.")
    return folder / pure


@contextmanager
def progress_bar(console: Console | None = None) -> Iterator[ReportProgress]:
    """A bar per file on the terminal, for `fetch(..., progress=...)`."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console) as bar:
        tasks: dict[str, TaskID] = {}

        def report(file: str, done: int, total: int | None) -> None:
            if file not in tasks:
                tasks[file] = bar.add_task(file, total=total)
            bar.update(tasks[file], completed=done, total=total)

        yield report
