"""Downloads of the publishers' files: resumed, checked, and put in place whole or not at all."""

from __future__ import annotations

import hashlib
import http.client
import ssl
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

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

from unskew.data.archives import is_unpacked, unpack
from unskew.data.downloads import DOWNLOADS
from unskew.data.sources import SOURCES, data_folder, spelled
from unskew.errors import UserError, unknown
from unskew.files import put

ReportProgress = Callable[[str, int, int | None], None]
"""Receives the file's name, the bytes so far, and the bytes in all, or None if the server does not say."""

TIMEOUT = 60  # seconds without a byte
MOST_BYTES = 4 << 30
"""Bytes of one download: the largest file here has 1.3 GB."""
CHUNK = 1 << 18


def fetch(
    name: str, folder: Path | None = None, *, base: str | None = None, progress: ReportProgress | None = None
) -> Path:
    """Download the dataset `name` into the data folder (see `data_folder`) and return the dataset's folder.

    Files that are complete are not downloaded again; interrupted downloads are resumed.
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
    except OSError as error:  # a full disk, no permission; `receive` explains errors of the network
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
    """Download a file into `folder` from the first of `bases` that works, unless it is there, and return its
    path."""
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
    except UserError:  # the file is too large
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
    """Request a file from byte `start` on and return the server's answer, which has the whole file if the
    server cannot continue one. Return None if the file ends at `start`."""
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
    """Write an answer to `part`: appended if the answer continues that file, else from the beginning."""
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
    if total is not None and done < total:  # read(n) reports no cut connection
        raise http.client.IncompleteRead(b"", total - done)


def too_large(url: str) -> UserError:
    return UserError(
        f"{url} gives more than {MOST_BYTES:,} bytes, which no dataset here has: fetch it later."
    )


def md5_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()


@contextmanager
def progress_bar(console: Console | None = None) -> Iterator[ReportProgress]:
    """Show one bar per file on the terminal; yield what `fetch` takes as `progress`."""
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
