from __future__ import annotations

import gzip
import hashlib
import io
import re
import tarfile
import threading
import zipfile
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest
from layouts import idx, noise, write_cifar10
from rich.console import Console

from unskew.data import load
from unskew.data.downloads import DOWNLOADS, Download
from unskew.data.fetch import fetch, progress_bar
from unskew.data.sources import SOURCES
from unskew.errors import UserError


class Server:
    """A real server on loopback. `files` maps names to contents; `log` keeps (name, Range header)."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.log: list[tuple[str, str | None]] = []
        self.ranges = True
        self.wrong_range = False
        self.length = True
        self.cut_after: int | None = None
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                server.answer(self)

            def log_message(self, *_: object) -> None:
                pass

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.base = f"http://127.0.0.1:{self.http.server_port}/sets"
        self.thread = threading.Thread(target=self.http.serve_forever, kwargs={"poll_interval": 0.01})
        self.thread.start()

    def answer(self, request: BaseHTTPRequestHandler) -> None:
        name = request.path.removeprefix("/sets/")
        asked = request.headers.get("Range")
        self.log.append((name, asked))
        if name not in self.files:
            request.send_error(404)
            return
        content = self.files[name]
        start = 0
        if asked and self.ranges:
            start = int(re.fullmatch(r"bytes=(\d+)-", asked).group(1))  # type: ignore[union-attr]
            if start >= len(content):
                request.send_response(416)
                request.send_header("Content-Range", f"bytes */{len(content)}")
                request.send_header("Content-Length", "0")
                request.end_headers()
                return
            request.send_response(206)
            first = start + 1 if self.wrong_range else start
            request.send_header("Content-Range", f"bytes {first}-{len(content) - 1}/{len(content)}")
        else:
            request.send_response(200)
        if self.length:
            request.send_header("Content-Length", str(len(content) - start))
        request.end_headers()
        end = len(content) if self.cut_after is None else start + self.cut_after
        request.wfile.write(content[start:end])

    def close(self) -> None:
        self.http.shutdown()
        self.http.server_close()
        self.thread.join()


@pytest.fixture
def server() -> Iterator[Server]:
    server = Server()
    yield server
    server.close()


def md5(data: bytes) -> str:
    return hashlib.md5(data).hexdigest()


@pytest.fixture
def mnist(server: Server, monkeypatch: pytest.MonkeyPatch) -> dict[str, bytes]:
    """Put a small MNIST on the server, and its checksums into the table."""
    images, labels = noise(0, 600, 28, 28), (np.arange(600) % 10).astype(np.uint8)
    files = {}
    for part in ("train", "t10k"):
        files[f"{part}-images-idx3-ubyte.gz"] = gzip.compress(idx(images))
        files[f"{part}-labels-idx1-ubyte.gz"] = gzip.compress(idx(labels))
    server.files |= files
    sums = tuple((name, md5(data)) for name, data in files.items())
    monkeypatch.setitem(DOWNLOADS, "mnist", Download(("http://unreachable.invalid/",), sums, "mnist"))
    return files


def test_a_set_is_fetched_and_can_be_loaded(server: Server, mnist: dict[str, bytes], tmp_path: Path) -> None:
    seen: list[tuple[str, int, int | None]] = []
    folder = fetch("mnist", tmp_path / "new", base=server.base, progress=lambda *step: seen.append(step))
    assert folder == tmp_path / "new" / "mnist"
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == mnist
    assert len(load("mnist", tmp_path / "new").train) == 600
    for name, data in mnist.items():
        steps = [step for step in seen if step[0] == name]
        assert steps[0] == (name, 0, len(data))
        assert steps[-1] == (name, len(data), len(data))


def test_what_is_there_is_not_fetched_again(server: Server, mnist: dict[str, bytes], tmp_path: Path) -> None:
    fetch("mnist", tmp_path, base=server.base)
    server.log.clear()
    fetch("mnist", tmp_path, base=server.base)
    assert server.log == []
    (tmp_path / "mnist" / "t10k-labels-idx1-ubyte.gz").unlink()
    fetch("mnist", tmp_path, base=server.base)
    assert server.log == [("t10k-labels-idx1-ubyte.gz", None)]


def test_a_file_of_ones_own_is_neither_overwritten_nor_passed_off(
    server: Server, mnist: dict[str, bytes], tmp_path: Path
) -> None:
    own = tmp_path / "mnist" / "train-labels-idx1-ubyte.gz"
    own.parent.mkdir()
    own.write_bytes(b"mine")
    with pytest.raises(UserError, match=r"train-labels-idx1-ubyte\.gz is not the published file"):
        fetch("mnist", tmp_path, base=server.base)
    assert own.read_bytes() == b"mine"


BIG = "train-images-idx3-ubyte.gz"


@pytest.mark.parametrize("kept", [1, 1000, 100_000])
def test_a_part_is_resumed(server: Server, mnist: dict[str, bytes], tmp_path: Path, kept: int) -> None:
    part = tmp_path / "mnist" / f"{BIG}.part"
    part.parent.mkdir()
    part.write_bytes(mnist[BIG][:kept])
    seen: list[tuple[str, int, int | None]] = []
    fetch("mnist", tmp_path, base=server.base, progress=lambda *step: seen.append(step))
    assert server.log[0] == (BIG, f"bytes={kept}-")
    assert (tmp_path / "mnist" / BIG).read_bytes() == mnist[BIG]
    assert not part.exists()
    assert seen[0] == (BIG, kept, len(mnist[BIG]))


def test_a_part_starts_anew_where_the_server_ignores_ranges(
    server: Server, mnist: dict[str, bytes], tmp_path: Path
) -> None:
    server.ranges = False
    part = tmp_path / "mnist" / f"{BIG}.part"
    part.parent.mkdir()
    part.write_bytes(b"x" * 1000)
    fetch("mnist", tmp_path, base=server.base)
    assert (tmp_path / "mnist" / BIG).read_bytes() == mnist[BIG]


def test_a_part_starts_anew_where_the_server_sends_another_range(
    server: Server, mnist: dict[str, bytes], tmp_path: Path
) -> None:
    server.wrong_range = True
    part = tmp_path / "mnist" / f"{BIG}.part"
    part.parent.mkdir()
    part.write_bytes(mnist[BIG][:1000])
    fetch("mnist", tmp_path, base=server.base)
    assert (tmp_path / "mnist" / BIG).read_bytes() == mnist[BIG]


@pytest.mark.parametrize("extra", [b"", b"too long"])
def test_a_part_that_is_whole_or_too_long(
    server: Server, mnist: dict[str, bytes], tmp_path: Path, extra: bytes
) -> None:
    part = tmp_path / "mnist" / f"{BIG}.part"
    part.parent.mkdir()
    part.write_bytes(mnist[BIG] + extra)
    fetch("mnist", tmp_path, base=server.base)
    assert (tmp_path / "mnist" / BIG).read_bytes() == mnist[BIG]
    asked = [header for name, header in server.log if name == BIG]
    assert asked == [f"bytes={len(mnist[BIG] + extra)}-", *([None] if extra else [])]


def test_a_connection_cut_off_keeps_the_part_and_the_next_run_goes_on(
    server: Server, mnist: dict[str, bytes], tmp_path: Path
) -> None:
    server.cut_after = 5000
    with pytest.raises(UserError, match=r"broke off: run the command again to continue from byte \d+\.$"):
        fetch("mnist", tmp_path, base=server.base)
    part = tmp_path / "mnist" / f"{BIG}.part"
    kept = part.stat().st_size
    assert 0 < kept <= 5000
    assert part.read_bytes() == mnist[BIG][:kept]
    assert not (tmp_path / "mnist" / BIG).exists()
    server.cut_after = None
    fetch("mnist", tmp_path, base=server.base)
    assert (BIG, f"bytes={kept}-") in server.log
    assert (tmp_path / "mnist" / BIG).read_bytes() == mnist[BIG]


def test_a_server_that_does_not_tell_the_length(
    server: Server, mnist: dict[str, bytes], tmp_path: Path
) -> None:
    server.length = False
    totals: set[int | None] = set()
    fetch("mnist", tmp_path, base=server.base, progress=lambda _, __, total: totals.add(total))
    assert totals == {None}
    assert (tmp_path / "mnist" / BIG).read_bytes() == mnist[BIG]


def test_a_wrong_checksum_keeps_the_file_and_says_so(
    server: Server, mnist: dict[str, bytes], tmp_path: Path
) -> None:
    server.files[BIG] = b"something else"
    with pytest.raises(UserError, match=rf"{md5(b'something else')}, not the published {md5(mnist[BIG])}"):
        fetch("mnist", tmp_path, base=server.base)
    assert [path.name for path in (tmp_path / "mnist").iterdir()] == [f"{BIG}.bad"]
    server.files[BIG] = mnist[BIG]
    fetch("mnist", tmp_path, base=server.base)
    assert (tmp_path / "mnist" / BIG).read_bytes() == mnist[BIG]


def test_a_missing_file_on_the_server_is_one_sentence(
    server: Server, mnist: dict[str, bytes], tmp_path: Path
) -> None:
    del server.files[BIG]
    with pytest.raises(UserError, match=rf"/sets/{BIG} cannot be fetched: the server answers 404"):
        fetch("mnist", tmp_path, base=server.base)


def test_a_server_out_of_reach_is_one_sentence(mnist: dict[str, bytes], tmp_path: Path) -> None:
    gone = Server()
    gone.close()
    with pytest.raises(UserError, match=r"cannot be reached \(.*refused\)"):
        fetch("mnist", tmp_path, base=gone.base)
    with pytest.raises(UserError, match="is not a URL that can be fetched"):
        fetch("mnist", tmp_path, base="nonsense")


def test_the_next_mirror_is_tried(
    server: Server, mnist: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sums = DOWNLOADS["mnist"].files
    bases = (f"{server.base}/elsewhere/", f"{server.base}/")
    monkeypatch.setitem(DOWNLOADS, "mnist", Download(bases, sums, "mnist"))
    fetch("mnist", tmp_path)
    assert (tmp_path / "mnist" / BIG).read_bytes() == mnist[BIG]
    monkeypatch.setitem(DOWNLOADS, "mnist", Download(bases[:1] * 2, sums, "mnist"))
    with pytest.raises(UserError, match="404"):
        fetch("mnist", tmp_path / "other")


def test_a_folder_that_cannot_be_written_is_one_sentence(
    server: Server, mnist: dict[str, bytes], tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="'mnist' cannot be put into"):
        fetch("mnist", tmp_path / "file", base=server.base)


# ---- archives ----


def tar_of(folder: Path, top: str) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as tar:
        tar.add(folder, top)
    return out.getvalue()


def tar_with(member: tarfile.TarInfo, content: bytes = b"") -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as tar:
        member.size = len(content)
        tar.addfile(member, io.BytesIO(content))
    return out.getvalue()


CIFAR = "cifar-10-binary.tar.gz"


def offer(server: Server, monkeypatch: pytest.MonkeyPatch, name: str, file: str, content: bytes) -> None:
    server.files[file] = content
    entry = DOWNLOADS[name]
    changed = Download(entry.bases, ((file, md5(content)),), entry.folder, entry.unpacked)
    monkeypatch.setitem(DOWNLOADS, name, changed)


@pytest.mark.parametrize("top", ["cifar-10-batches-bin", "another-name", "."])
def test_a_tar_archive_is_unpacked_and_can_be_loaded(
    server: Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, top: str
) -> None:
    write_cifar10(tmp_path / "source")
    offer(server, monkeypatch, "cifar10", CIFAR, tar_of(tmp_path / "source", top))
    data = tmp_path / "data"
    assert fetch("cifar10", data, base=server.base) == data / "cifar-10-batches-bin"
    assert [path.name for path in data.iterdir()] == ["cifar-10-batches-bin"]  # nothing else is left
    assert len(load("cifar10", data).train) == 20
    server.log.clear()
    fetch("cifar10", data, base=server.base)
    assert server.log == []


def test_a_zip_archive_is_unpacked(server: Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as packed:
        packed.mkdir("tiny-imagenet-200/val")
        packed.writestr("tiny-imagenet-200/train/n01/images/a.JPEG", b"image")
        packed.writestr("tiny-imagenet-200/words.txt", b"n01\tgoldfish")
    offer(server, monkeypatch, "tiny_imagenet", "tiny-imagenet-200.zip", out.getvalue())
    folder = fetch("tiny_imagenet", tmp_path, base=server.base)
    assert (folder / "train" / "n01" / "images" / "a.JPEG").read_bytes() == b"image"
    assert (folder / "val").is_dir()


def test_a_folder_that_is_there_in_part_is_left_alone(tmp_path: Path) -> None:
    write_cifar10(tmp_path / "cifar-10-batches-bin")
    (tmp_path / "cifar-10-batches-bin" / "data_batch_4.bin").unlink()
    with pytest.raises(UserError, match=r"is there but lacks data_batch_4\.bin: move it away"):
        fetch("cifar10", tmp_path, base="http://127.0.0.1:9")


@pytest.mark.parametrize(
    ("member", "says"),
    [
        (tarfile.TarInfo("../../evil"), "leads out of its folder"),
        (tarfile.TarInfo("/tmp/evil"), "leads out of its folder"),
        (tarfile.TarInfo("a\\..\\evil"), "leads out of its folder"),
        (tarfile.TarInfo("C:evil"), "leads out of its folder"),
        ("link", "a link or device"),
        ("device", "a link or device"),
        (tarfile.TarInfo("harmless"), r"does not hold data_batch_1\.bin"),
    ],
)
def test_an_archive_that_would_write_elsewhere_is_not_unpacked(
    server: Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, member: tarfile.TarInfo | str, says: str
) -> None:
    if isinstance(member, str):
        kind = tarfile.SYMTYPE if member == "link" else tarfile.CHRTYPE
        member = tarfile.TarInfo(member)
        member.type, member.linkname = kind, "/etc/passwd"
    offer(server, monkeypatch, "cifar10", CIFAR, tar_with(member))
    data = tmp_path / "one" / "two" / "data"
    with pytest.raises(UserError, match=says):
        fetch("cifar10", data, base=server.base)
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == [CIFAR]


def test_a_zip_that_would_write_elsewhere_is_not_unpacked(
    server: Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as packed:
        packed.writestr("../evil", b"")
    offer(server, monkeypatch, "emnist", "gzip.zip", out.getvalue())
    with pytest.raises(UserError, match="leads out of its folder"):
        fetch("emnist", tmp_path / "data", base=server.base)
    assert not (tmp_path / "evil").exists()


@pytest.mark.parametrize("keep", [0.3, 0.9])
def test_a_damaged_archive_is_named_and_leaves_nothing_half(
    server: Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, keep: float
) -> None:
    write_cifar10(tmp_path / "source")
    whole = tar_of(tmp_path / "source", "x")
    offer(server, monkeypatch, "cifar10", CIFAR, whole[: int(keep * len(whole))])
    with pytest.raises(UserError, match=rf"{CIFAR} cannot be unpacked"):
        fetch("cifar10", tmp_path / "data", base=server.base)
    assert [path.name for path in (tmp_path / "data").iterdir()] == [CIFAR]


# ---- names ----


@pytest.mark.parametrize("name", [name for name, source in SOURCES.items() if source.by_hand])
def test_sets_without_a_download_say_how_to_get_them(name: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"has no open download: .*http") as caught:
        fetch(name, tmp_path)
    assert str(tmp_path / SOURCES[name].folders[0]) in str(caught.value)


def test_bundled_and_unknown_sets_cannot_be_fetched(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="'digits' comes with unskew"):
        fetch("digits", tmp_path)
    with pytest.raises(UserError, match="did you mean 'mnist'"):
        fetch("mnits", tmp_path)


def test_the_table_of_downloads_is_well_formed() -> None:
    for entry in DOWNLOADS.values():
        assert entry.bases
        assert all(re.fullmatch(r"https?://.*/", base) for base in entry.bases)
        assert all(re.fullmatch(r"[0-9a-f]{32}", sum_) for _, sum_ in entry.files)
        assert not entry.unpacked or len(entry.files) == 1


def test_the_bar_shows_files_and_sizes() -> None:
    out = io.StringIO()
    console = Console(file=out, width=100, force_terminal=True)
    with progress_bar(console) as report:
        report("a.gz", 0, None)
        report("a.gz", 500, 1000)
        report("a.gz", 1000, 1000)
        report("b.gz", 10, 10)
    text = out.getvalue()
    assert "a.gz" in text
    assert "1.0/1.0 kB" in text
    assert "b.gz" in text
