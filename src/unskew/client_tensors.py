"""What clients keep between rounds, however many they are: on their device, in host memory, and beyond a
limit on disk.

A `ClientTensors` is a value: a mapping from clients to tensors, which never changes. `updated` makes the next
one, and both share what is the same. A `ClientStore` decides where the tensors lie. What is on disk lies in
files that are only appended to, and a file goes when nothing that is alive lies in it.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
import threading
import weakref
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from unskew.errors import UserError
from unskew.files import sync_folder
from unskew.tensor_files import dump, load
from unskew.types import Tensors

GIB = 1 << 30
MOST_ON_HOST = GIB
"""Bytes that stay in memory on a CPU unless somebody says otherwise. What is beyond them is in files, and
those are in memory too as long as the system has some to spare."""
HOST_SHARE = 1 / 8
"""Of the machine's memory, where that is less."""
HOST_SHARE_BESIDE_DEVICE = 1 / 4
"""Of the machine's memory, where the tensors come from a GPU: the disk is far from there."""
DEVICE_SHARE = 1 / 4
"""Of the memory that a GPU has free when the first client keeps something."""
SEGMENT_BYTES = 64 << 20
"""When a file is full. They are larger where there are many, since all of them are open."""
MOST_SEGMENTS = 64
ALIGNMENT = 64
"""Bytes of a cache line. The order of a kernel's sums may depend on where in one a tensor begins."""

Index = dict[str, list[Any]]
"""By client, as JSON has it: the number of the file, the first byte, how many, and their checksum."""


class ClientTensors(Mapping[int, Tensors]):
    """What each client keeps: a value, which stays as it is when the next one is made of it."""

    __hash__ = object.__hash__
    __eq__ = object.__eq__  # tensors cannot be compared as a mapping compares its values

    def __init__(self, store: ClientStore | None = None, entries: Mapping[int, _Entry] | None = None) -> None:
        """Without a store nothing is kept yet, and what comes stays in memory."""
        self.store = store
        self._entries = entries or {}
        self._index: Index | None = None
        self._copies: Mapping[_Entry, Tensors] = {}

    def __getitem__(self, client: int) -> Tensors:
        entry = self._entries[client]
        assert self.store is not None  # who has an entry has one
        return self.store.read(client, entry)

    def __contains__(self, client: object) -> bool:
        return client in self._entries

    def __iter__(self) -> Iterator[int]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def updated(self, changes: Mapping[int, Tensors]) -> ClientTensors:
        """The mapping in which these clients keep these tensors."""
        if not changes:
            return self
        store = self.store or ClientStore(_device_of(changes), limit=None)
        new = {client: store.keep(tensors) for client, tensors in changes.items()}
        return ClientTensors(store, {**self._entries, **new})

    def __reduce__(self) -> tuple[Any, ...]:
        """In another process it is a mapping without files."""
        return _kept_in_memory, ({client: self[client] for client in self},)

    @property
    def bytes_to_write(self) -> int:
        """How many bytes `sync` would write."""
        return sum(entry.size for entry in self._entries.values() if entry.place is None)

    def copy_to_host(self) -> None:
        """Copy from the device what has still to be written, so that another thread need not touch it."""
        if self.store:
            self._copies = self.store.copies(self._entries.values())

    def sync(self) -> None:
        """Write to the store's folder what is not there yet, and wait until the disk has it. Another thread
        may do so while training goes on; beside a GPU, after `copy_to_host`."""
        self._index = self.store.write(self, self._entries, self._copies) if self.store else {}
        self._copies = {}

    def index(self) -> Index:
        """Where each client's tensors lie in the store's folder, as `sync` has put them there. They stay as
        long as this mapping is alive, whatever becomes of the mappings after it."""
        if self and self._index is None:
            raise ValueError("what clients keep is not on disk yet: call sync first")
        return self._index or {}


def _kept_in_memory(tensors: dict[int, Tensors]) -> ClientTensors:
    return ClientTensors().updated(tensors)


@dataclass(frozen=True)
class _DiskPlace:
    """Where something lies on disk."""

    segment: _Segment
    offset: int
    length: int
    checksum: str


class _Entry:
    """What one client kept after one round. Where it is may change; what it is does not."""

    __slots__ = ("__weakref__", "_freed", "place", "size", "tensors", "tier")

    def __init__(
        self, tensors: Tensors | None, place: _DiskPlace | None, tier: str, size: int, freed: deque[Any]
    ) -> None:
        self.tensors, self.place, self.tier, self.size, self._freed = tensors, place, tier, size, freed

    def __del__(self) -> None:
        self._freed.append((self.tier, self.size))


class _Segment:
    """A file that entries are appended to. It stays open, so that it can be read even when it was removed."""

    def __init__(self, number: int, path: Path | None, *, new: bool, beside: Path) -> None:
        self.number, self.path = number, path
        if path is None:  # without a name: it is gone when this process is, however that ends
            with tempfile.TemporaryFile(dir=beside) as file:
                self._file = os.dup(file.fileno())
        else:
            flags = os.O_RDWR | getattr(os, "O_BINARY", 0) | (os.O_CREAT | os.O_EXCL if new else 0)
            self._file = os.open(path, flags, 0o644)
        weakref.finalize(self, os.close, self._file)
        self.size = os.fstat(self._file).st_size
        self.synced = not new
        self.entries: weakref.WeakSet[_Entry] = weakref.WeakSet()
        self.indexed: weakref.WeakSet[ClientTensors] = weakref.WeakSet()
        """Mappings that have told somebody that something of theirs lies here."""

    @property
    def name(self) -> str:
        return "a temporary file" if self.path is None else str(self.path)

    def append(self, data: bytes, checksum: str) -> _DiskPlace:
        os.lseek(self._file, self.size, os.SEEK_SET)
        left = memoryview(data)
        while left:
            left = left[os.write(self._file, left) :]
        place = _DiskPlace(self, self.size, len(data), checksum)
        self.size += len(data)  # not before all is written: the next one overwrites what is not
        self.synced = False
        return place

    def read(self, offset: int, length: int) -> bytes:
        os.lseek(self._file, offset, os.SEEK_SET)
        parts = []
        while length and (part := os.read(self._file, length)):
            parts.append(part)
            length -= len(part)
        return b"".join(parts)

    def sync(self) -> None:
        if not self.synced:
            self.synced = True  # before: what another thread appends meanwhile is for the next time
            try:
                os.fsync(self._file)
            except OSError:
                self.synced = False
                raise

    def remove(self) -> None:
        if self.path is not None:
            self.path.unlink(missing_ok=True)


class ClientStore:
    """Where clients' tensors lie. What is kept stays on its device as long as there is room, else in host
    memory as long as there is room, else it goes to disk at once."""

    def __init__(self, device: torch.device, *, limit: int | None, folder: Path | None = None) -> None:
        """`limit` is how many bytes may stay in host memory, None: all. The files are in `folder`, where they
        stay when this process has ended; without one they have no name and go with it."""
        self.device, self.limit, self.folder = device, limit, folder
        self.device_limit: int | None = None
        """How many bytes may stay on a GPU; None: not known yet."""
        self._used = {"device": 0, "host": 0, "disk": 0}
        self._freed: deque[tuple[str, int]] = deque()
        self._segments: dict[int, _Segment] = {}
        self._current: _Segment | None = None
        self._lock = threading.RLock()

    def empty(self) -> ClientTensors:
        """The mapping in which no client keeps anything yet."""
        return ClientTensors(self)

    @property
    def used(self) -> dict[str, int]:
        """How many bytes are kept on the device, in host memory and on disk alone."""
        with self._lock:
            while self._freed:
                tier, freed = self._freed.popleft()
                self._used[tier] -= freed
            return dict(self._used)

    def keep(self, tensors: Tensors) -> _Entry:
        """Put away what a client keeps."""
        tensors = self._own(tensors)
        size = _bytes(tensors)
        with self._lock:
            tier = self._tier(size)
            self._used[tier] += size
            if tier == "disk":
                entry = _Entry(None, None, tier, size, self._freed)
                self._write(entry, tensors)
                return entry
            return _Entry(
                self._to_host(tensors) if tier == "host" else tensors, None, tier, size, self._freed
            )

    def read(self, client: int, entry: _Entry) -> Tensors:
        """What a client kept, on the device."""
        if entry.tensors is not None:
            if self.device.type == "cuda" and entry.tier == "host":
                return {
                    name: value.to(self.device, non_blocking=True) for name, value in entry.tensors.items()
                }
            return dict(entry.tensors)
        with self._lock:
            place = entry.place
            assert place is not None
            data = _read_checked(place, client)
        try:
            tensors = load(data, torch.device("cpu"))
        except ValueError as error:
            raise _damaged(place, client, str(error)) from None
        if self.device.type == "cuda":
            return {
                name: value.pin_memory().to(self.device, non_blocking=True) for name, value in tensors.items()
            }
        return {name: _aligned(value) for name, value in tensors.items()}

    def copies(self, entries: Iterable[_Entry]) -> dict[_Entry, Tensors]:
        """Copies in host memory of what is on the device alone. It waits for the device."""
        with self._lock:
            waiting = [(entry, entry.tensors) for entry in entries if entry.place is None]
        if waiting and self.device.type == "cuda":
            torch.cuda.synchronize(self.device)  # some may still be on their way to the host
        return {
            entry: {name: value.cpu() for name, value in tensors.items()}
            for entry, tensors in waiting
            if tensors is not None
        }

    def write(
        self, mapping: ClientTensors, entries: Mapping[int, _Entry], copies: Mapping[_Entry, Tensors]
    ) -> Index:
        """Bring to disk what of a mapping's entries is not there yet, and say where all of them lie, which
        they do as long as the mapping is alive."""
        if self.folder is None:
            raise ValueError("tensors in files without a name cannot be found again: give the store a folder")
        for entry in entries.values():
            with self._lock:  # not for all of them at once: training waits for it
                if entry.place is None:
                    assert entry.tensors is not None
                    self._write(entry, copies.get(entry, entry.tensors))
        index: Index = {}
        with self._lock:
            for client, entry in entries.items():
                place = entry.place
                assert place is not None
                place.segment.indexed.add(mapping)
                index[str(client)] = [place.segment.number, place.offset, place.length, place.checksum]
            new = [segment for segment in self._segments.values() if mapping in segment.indexed]
        with self._writing():
            for segment in new:
                segment.sync()
            if new:
                sync_folder(self.folder)
        return index

    def open(self, index: Mapping[str, Any]) -> ClientTensors:
        """The mapping that `index` tells of, from the store's folder. Nothing is read before it is asked for,
        but that all of it is there is checked."""
        if self.folder is None:
            raise ValueError("an index tells of files with names: give the store the folder they are in")
        with self._lock:
            entries = {}
            for key, value in index.items():
                try:
                    client, (number, offset, length, checksum) = int(key), value
                    whole = all(type(each) is int and each >= 0 for each in (client, number, offset, length))
                except (TypeError, ValueError):
                    whole = False
                if not whole or not isinstance(checksum, str):
                    raise UserError(
                        f"the list of what clients keep in {self.folder} is damaged (client {key!r}): resume "
                        "from an older checkpoint, or run again."
                    )
                segment = self._opened(number)
                place = _DiskPlace(segment, offset, length, checksum)
                if offset + length > segment.size:
                    raise _damaged(place, client, "the file is too short")
                entry = _Entry(None, place, "disk", length, self._freed)
                self._used["disk"] += length
                segment.entries.add(entry)
                entries[client] = entry
            mapping = ClientTensors(self, entries)
            mapping._index = dict(index)
            for entry in entries.values():
                assert entry.place is not None
                entry.place.segment.indexed.add(mapping)
            return mapping

    def remove_unused(self) -> None:
        """Remove every file of the folder in which nothing of a mapping lies that is alive: what is left over
        from a run that was stopped. All mappings that may be asked for again have to be open."""
        with self._lock:
            self._tidy()
            if self.folder is not None and self.folder.is_dir():
                known = {segment.path for segment in self._segments.values()}
                for path in self.folder.glob("clients-*.bin"):
                    if path not in known:
                        path.unlink(missing_ok=True)

    def _tier(self, size: int) -> str:
        used = self.used
        if self.device.type == "cuda":
            if self.device_limit is None:
                self.device_limit = int(DEVICE_SHARE * torch.cuda.mem_get_info(self.device)[0])
            if used["device"] + size <= self.device_limit:
                return "device"
        return "host" if self.limit is None or used["host"] + size <= self.limit else "disk"

    def _own(self, tensors: Tensors) -> Tensors:
        """The tensors on the device, none of them a part of something much larger, without gaps, and where a
        tensor of its own would begin: so they are the same wherever they were meanwhile."""
        tensors = {name: value.detach().to(self.device) for name, value in tensors.items()}
        parts: dict[int, int] = {}
        for value in tensors.values():
            memory = value.untyped_storage().data_ptr()
            parts[memory] = parts.get(memory, 0) + value.numel() * value.element_size()
        return {
            name: _aligned(value)
            if 2 * parts[value.untyped_storage().data_ptr()] >= value.untyped_storage().nbytes()
            else _copy(value)
            for name, value in tensors.items()
        }

    def _to_host(self, tensors: Tensors) -> Tensors:
        if self.device.type != "cuda":
            return tensors
        there = {}
        for name, value in tensors.items():
            there[name] = torch.empty_like(value, device="cpu", pin_memory=True)
            there[name].copy_(value, non_blocking=True)
            # Its memory is not to be given to another stream before it was copied.
            value.record_stream(torch.cuda.current_stream(self.device))
        return there

    def _write(self, entry: _Entry, tensors: Tensors) -> None:
        if any(value.is_cuda for value in tensors.values()):
            torch.cuda.synchronize(self.device)
        data = dump(tensors)
        with self._writing():
            segment = self._appending(len(data))
            entry.place = segment.append(data, _checksum(data))
            segment.entries.add(entry)

    def _appending(self, length: int) -> _Segment:
        """The file for the next so many bytes."""
        total = sum(segment.size for segment in self._segments.values())
        full = max(SEGMENT_BYTES, total // MOST_SEGMENTS)
        if self._current is not None and 0 < self._current.size > full - length:
            self._current = None
            self._tidy()
        if self._current is None:
            self._current = self._new_segment()
        return self._current

    def _new_segment(self) -> _Segment:
        number = max(self._segments, default=-1) + 1
        path, beside = None, temporary_folder()
        if self.folder is not None:
            self.folder.mkdir(parents=True, exist_ok=True)
            there = [_number_of(path) for path in self.folder.glob("clients-*.bin")]
            number = max([number, *(found + 1 for found in there)])
            path = self.folder / _file_name(number)
        self._segments[number] = _Segment(number, path, new=True, beside=beside)
        return self._segments[number]

    def _opened(self, number: int) -> _Segment:
        if number not in self._segments:
            assert self.folder is not None
            path = self.folder / _file_name(number)
            try:
                self._segments[number] = _Segment(number, path, new=False, beside=self.folder)
            except OSError as error:
                raise UserError(
                    f"what clients keep cannot be read from {path} ({error.strerror}): resume from an older "
                    "checkpoint, or run again."
                ) from None
        return self._segments[number]

    def _tidy(self) -> None:
        """Remove files that nobody needs, and copy what is alive out of those that are mostly not."""
        for number, segment in list(self._segments.items()):
            alive = [(entry, place) for entry in segment.entries if (place := entry.place) is not None]
            if segment is self._current or 2 * sum(place.length for _, place in alive) > segment.size:
                continue
            for entry, place in alive:
                if self._current is None or self._current.size > SEGMENT_BYTES:
                    self._current = self._new_segment()
                data = segment.read(place.offset, place.length)  # checked when somebody asks for it
                entry.place = self._current.append(data, place.checksum)
                self._current.entries.add(entry)
            segment.entries.clear()
            if not segment.indexed:  # else somebody may still look there
                del self._segments[number]
                segment.remove()

    @contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise UserError(
                f"what clients keep cannot be written to {self.folder or temporary_folder()} "
                f"({error.strerror}): make room there, or raise client_memory."
            ) from None


_stores: weakref.WeakValueDictionary[tuple[object, ...], ClientStore] = weakref.WeakValueDictionary()


def client_store(device: torch.device, limit: int | None = None, folder: Path | None = None) -> ClientStore:
    """The store for a device and a folder: the one that is in use already, or a new one. Without a limit in
    bytes it is a part of the machine's memory."""
    key = (str(device), limit, folder)
    found = _stores.get(key)
    if found is None:
        most = default_limit(device) if limit is None else limit
        found = _stores[key] = ClientStore(device, limit=most, folder=folder)
    return found


def default_limit(device: torch.device) -> int:
    """How many bytes of what clients keep stay in host memory, where nobody says."""
    if device.type == "cuda":
        return int(HOST_SHARE_BESIDE_DEVICE * machine_memory())
    return min(MOST_ON_HOST, int(HOST_SHARE * machine_memory()))


def machine_memory() -> int:
    """Return how many bytes this process may have: of the machine's, and of a container's share."""
    try:
        found = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):  # Windows has no sysconf
        found = 8 * GIB
    with suppress(OSError, ValueError):  # "max" where there is no limit
        found = min(found, int(Path("/sys/fs/cgroup/memory.max").read_text(encoding="utf-8")))
    return found


def temporary_folder() -> Path:
    """Return where files without a name are made: on a disk, which /tmp often is not."""
    disk = Path("/var/tmp")
    named = any(name in os.environ for name in ("TMPDIR", "TEMP", "TMP"))
    return disk if not named and os.access(disk, os.W_OK) else Path(tempfile.gettempdir())


def _device_of(kept: Mapping[int, Tensors]) -> torch.device:
    found = (value.device for tensors in kept.values() for value in tensors.values())
    return next(found, torch.device("cpu"))


def _bytes(tensors: Tensors) -> int:
    return sum(value.numel() * value.element_size() for value in tensors.values())


def _copy(value: Tensor) -> Tensor:
    return torch.empty_like(value).copy_(value)


def _aligned(value: Tensor) -> Tensor:
    """The tensor without gaps, at the beginning of a cache line."""
    dense = value.is_contiguous() or torch.empty_like(value, device="meta").stride() == value.stride()
    return value if dense and value.data_ptr() % ALIGNMENT == 0 else _copy(value)


def _checksum(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:32]


def _read_checked(place: _DiskPlace, client: int) -> bytes:
    try:
        data = place.segment.read(place.offset, place.length)
    except OSError as error:
        raise _damaged(place, client, str(error.strerror)) from None
    if len(data) < place.length:
        raise _damaged(place, client, "the file is too short")
    if _checksum(data) != place.checksum:
        raise _damaged(place, client, "its checksum is another")
    return data


def _damaged(place: _DiskPlace, client: int, how: str) -> UserError:
    return UserError(
        f"what client {client} keeps is damaged in {place.segment.name} ({how}): resume from an older "
        "checkpoint, or run again."
    )


def _file_name(number: int) -> str:
    return f"clients-{number}.bin"


def _number_of(path: Path) -> int:
    digits = path.stem.removeprefix("clients-")
    return int(digits) if digits.isdecimal() else -1
