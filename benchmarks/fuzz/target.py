"""Valid examples of an input, and how they are read."""

from __future__ import annotations

import io
import warnings
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

Format = Literal["bytes", "text", "json", "lines", "toml"]


@dataclass(frozen=True)
class Target:
    """Valid examples of one kind of input, and how they are read."""

    examples: Sequence[tuple[bytes, Format]]
    """The examples; one of them is edited at a time."""
    read: Callable[[int, bytes], None]
    """Reads an edited example, given its number, next to the valid others; raises UserError to refuse it."""
    folder: Path
    """The folder in which no file may be left behind."""


Make = Callable[[Path], Target]


def in_files(
    folder: Path,
    files: dict[Path, Format],
    read: Callable[[], object],
    unpack: Callable[[bytes], bytes] = bytes,
    pack: Callable[[bytes], bytes] = bytes,
) -> Target:
    """Return a target whose examples are files of a folder.

    Packed files are unpacked, edited, and packed again.
    """
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
    """Return a target whose examples are typed texts."""
    return Target(
        [(text.encode(), "text") for text in examples],
        lambda _, content: read(content.decode(errors="replace")) and None,
        folder,
    )


def unzip(content: bytes) -> bytes:
    """Return the files of an archive one after the other, each after its length and its name."""
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        parts = [(info.filename.encode(), archive.read(info)) for info in archive.infolist()]
    return b"".join(
        len(name).to_bytes(1, "little") + name + len(data).to_bytes(4, "little") + data
        for name, data in parts
    )


def rezip(content: bytes) -> bytes:
    """Make an archive of the parts that `unzip` returned, as far as they are legible, with valid
    checksums."""
    out = io.BytesIO()
    with warnings.catch_warnings(), zipfile.ZipFile(out, "w") as archive:
        warnings.simplefilter("ignore")  # a name may appear twice
        while content:
            name, content = content[1 : 1 + content[0]], content[1 + content[0] :]
            size = int.from_bytes(content[:4], "little")
            archive.writestr(name.decode("latin-1").partition("\0")[0] or "x", content[4 : 4 + size])
            content = content[4 + size :]
    return out.getvalue()
