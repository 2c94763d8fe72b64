"""The files in which clients' tensors lie on disk. They are called segments, and are only appended to."""

from __future__ import annotations

import hashlib
import os
import tempfile
import weakref
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from unskew.errors import UserError
from unskew.files import sync_folder
from unskew.types import Tensors

SEGMENT_BYTES = 64 << 20
"""The size at which a file is full. It grows with the total size, since all files are open at once."""
MOST_SEGMENTS = 64


@dataclass(frozen=True)
class DiskPlace:
    """Where the tensors of one client lie on disk."""

    segment: Segment
    offset: int
    length: int
    checksum: str


class ClientEntry:
    """What one client kept after one round. Its place may change, its values do not."""

    __slots__ = ("__weakref__", "_freed", "place", "size", "tensors", "tier")

    def __init__(
        self, tensors: Tensors | None, place: DiskPlace | None, tier: str, size: int, freed: deque[Any]
    ) -> None:
        """Hold `tensors` in memory, or None if they are on disk alone. When this entry is garbage, its tier
        and size are appended to `freed`."""
        self.tensors, self.place, self.tier, self.size, self._freed = tensors, place, tier, size, freed

    def __del__(self) -> None:
        self._freed.append((self.tier, self.size))


class Segment:
    """One file. It stays open, so that it can be read even after it was removed."""

    def __init__(self, number: int, path: Path | None, *, new: bool) -> None:
        """Create the file at `path` if it is `new`, else open it. Without a path it is a file without a
        name."""
        self.number, self.path = number, path
        if path is None:  # the system removes it when this process ends, however that happens
            with tempfile.TemporaryFile(dir=temporary_folder()) as file:
                self._file = os.dup(file.fileno())
        else:
            flags = os.O_RDWR | getattr(os, "O_BINARY", 0) | (os.O_CREAT | os.O_EXCL if new else 0)
            self._file = os.open(path, flags, 0o644)
        weakref.finalize(self, os.close, self._file)
        self.size = os.fstat(self._file).st_size
        self.synced = not new
        self.entries: weakref.WeakSet[ClientEntry] = weakref.WeakSet()
        self.indexed: weakref.WeakSet[Any] = weakref.WeakSet()
        """The mappings whose index refers to this file."""

    @property
    def name(self) -> str:
        """The file's path, for error messages."""
        return "a temporary file" if self.path is None else str(self.path)

    def append(self, data: bytes, checksum: str) -> DiskPlace:
        """Write bytes at the end of the file, and return their place."""
        os.lseek(self._file, self.size, os.SEEK_SET)
        left = memoryview(data)
        while left:
            left = left[os.write(self._file, left) :]
        place = DiskPlace(self, self.size, len(data), checksum)
        self.size += len(data)  # only now: if writing fails, the next bytes overwrite the incomplete ones
        self.synced = False
        return place

    def read(self, offset: int, length: int) -> bytes:
        """Return `length` bytes from `offset`, fewer if the file ends before."""
        os.lseek(self._file, offset, os.SEEK_SET)
        parts = []
        while length and (part := os.read(self._file, length)):
            parts.append(part)
            length -= len(part)
        return b"".join(parts)

    def sync(self) -> None:
        """Wait until the disk has all that was appended."""
        if not self.synced:
            self.synced = True  # first, since another thread may append meanwhile and set it to False
            try:
                os.fsync(self._file)
            except OSError:
                self.synced = False
                raise

    def remove(self) -> None:
        """Remove the file from its folder, if it has a name."""
        if self.path is not None:
            self.path.unlink(missing_ok=True)


class Segments:
    """All files of a store. Only `sync` may be called by several threads at once."""

    def __init__(self, folder: Path | None) -> None:
        """Keep the files in `folder`, where they stay when this process ends. Without a folder they have no
        names, and are removed when this process ends."""
        self.folder = folder
        self._by_number: dict[int, Segment] = {}
        self._current: Segment | None = None

    def append(self, entry: ClientEntry, data: bytes) -> None:
        """Write what an entry holds, and set its place."""
        with self._explained():
            segment = self._with_room_for(len(data))
            entry.place = segment.append(data, _checksum(data))
            segment.entries.add(entry)

    def open(self, number: int) -> Segment:
        """Return the file with this number, from the folder if it is not open yet."""
        if number not in self._by_number:
            assert self.folder is not None
            path = self.folder / _file_name(number)
            try:
                self._by_number[number] = Segment(number, path, new=False)
            except OSError as error:
                raise UserError(
                    f"what clients keep cannot be read from {path} ({error.strerror}): resume from an older "
                    "checkpoint, or run again."
                ) from None
        return self._by_number[number]

    def indexed_by(self, mapping: object) -> list[Segment]:
        """Return the files that the index of a mapping refers to."""
        return [segment for segment in self._by_number.values() if mapping in segment.indexed]

    def sync(self, segments: list[Segment]) -> None:
        """Wait until the disk has these files and their names."""
        with self._explained():
            for segment in segments:
                segment.sync()
            if segments and self.folder is not None:
                sync_folder(self.folder)

    def tidy(self) -> None:
        """Remove the files that no living mapping needs, and copy the living entries out of those in which
        they take at most half of the space."""
        for number, segment in list(self._by_number.items()):
            alive = [(entry, place) for entry in segment.entries if (place := entry.place) is not None]
            if segment is self._current or 2 * sum(place.length for _, place in alive) > segment.size:
                continue
            for entry, place in alive:
                if self._current is None or self._current.size > SEGMENT_BYTES:
                    self._current = self._new_segment()
                data = segment.read(place.offset, place.length)  # its checksum is checked when it is used
                entry.place = self._current.append(data, place.checksum)
                self._current.entries.add(entry)
            segment.entries.clear()
            if not segment.indexed:  # else an index still refers to it
                del self._by_number[number]
                segment.remove()

    def remove_unknown(self) -> None:
        """Remove the files of the folder that are not open here."""
        if self.folder is not None and self.folder.is_dir():
            known = {segment.path for segment in self._by_number.values()}
            for path in self.folder.glob("clients-*.bin"):
                if path not in known:
                    path.unlink(missing_ok=True)

    def _with_room_for(self, length: int) -> Segment:
        """Return the file to append so many bytes to: the current one, or a new one if that is full."""
        total = sum(segment.size for segment in self._by_number.values())
        full = max(SEGMENT_BYTES, total // MOST_SEGMENTS)
        if self._current is not None and 0 < self._current.size > full - length:
            self._current = None
            self.tidy()
        if self._current is None:
            self._current = self._new_segment()
        return self._current

    def _new_segment(self) -> Segment:
        number, path = max(self._by_number, default=-1) + 1, None
        if self.folder is not None:
            self.folder.mkdir(parents=True, exist_ok=True)
            there = [_number_of(path) for path in self.folder.glob("clients-*.bin")]
            number = max([number, *(found + 1 for found in there)])
            path = self.folder / _file_name(number)
        self._by_number[number] = Segment(number, path, new=True)
        return self._by_number[number]

    @contextmanager
    def _explained(self) -> Iterator[None]:
        """Turn an error of writing into a sentence for the user."""
        try:
            yield
        except OSError as error:
            raise UserError(
                f"what clients keep cannot be written to {self.folder or temporary_folder()} "
                f"({error.strerror}): make room there, or raise client_memory."
            ) from None


def temporary_folder() -> Path:
    """Return where files without a name are made: on a disk, which /tmp often is not."""
    disk = Path("/var/tmp")
    named = any(name in os.environ for name in ("TMPDIR", "TEMP", "TMP"))
    return disk if not named and os.access(disk, os.W_OK) else Path(tempfile.gettempdir())


def read_checked(place: DiskPlace, client: int) -> bytes:
    """Return the bytes at a place, or raise a UserError if they are damaged. The error names the client."""
    try:
        data = place.segment.read(place.offset, place.length)
    except OSError as error:
        raise damaged(place, client, str(error.strerror)) from None
    if len(data) < place.length:
        raise damaged(place, client, "the file is too short")
    if _checksum(data) != place.checksum:
        raise damaged(place, client, "its checksum is wrong")
    return data


def damaged(place: DiskPlace, client: int, how: str) -> UserError:
    """Return the error for a client whose tensors are damaged on disk."""
    return UserError(
        f"what client {client} keeps is damaged in {place.segment.name} ({how}): resume from an older "
        "checkpoint, or run again."
    )


def _checksum(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:32]


def _file_name(number: int) -> str:
    return f"clients-{number}.bin"


def _number_of(path: Path) -> int:
    digits = path.stem.removeprefix("clients-")
    return int(digits) if digits.isdecimal() else -1
