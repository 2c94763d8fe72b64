"""The mapping of what clients keep, and the store that decides where its tensors lie."""

from __future__ import annotations

import threading
import weakref
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

from unskew.client_tensors import layout, limits
from unskew.client_tensors.segments import ClientEntry, DiskPlace, Segments, damaged, read_checked
from unskew.errors import UserError
from unskew.tensor_files import dump, load
from unskew.types import Tensors

Index = dict[str, list[Any]]
"""For each client, as in JSON: the number of the file, the first byte, the number of bytes, and their
checksum."""


class ClientTensors(Mapping[int, Tensors]):
    """What each client keeps. It is a value: it stays as it is when the next one is made from it."""

    __hash__ = object.__hash__
    __eq__ = object.__eq__  # tensors cannot be compared as a mapping compares its values

    def __init__(
        self, store: ClientStore | None = None, entries: Mapping[int, ClientEntry] | None = None
    ) -> None:
        """Hold the entries of a store. Without a store it is empty, and what is added stays in memory."""
        self.store = store
        self._entries = entries or {}
        self._index: Index | None = None
        self._copies: Mapping[ClientEntry, Tensors] = {}

    def __getitem__(self, client: int) -> Tensors:
        entry = self._entries[client]
        assert self.store is not None  # without a store there are no entries
        return self.store.read(client, entry)

    def __contains__(self, client: object) -> bool:
        return client in self._entries

    def __iter__(self) -> Iterator[int]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def updated(self, changes: Mapping[int, Tensors]) -> ClientTensors:
        """Return a mapping in which these clients keep these tensors, and the others what they keep now."""
        if not changes:
            return self
        store = self.store or ClientStore(layout.device_of(changes), limit=None)
        new = {client: store.keep(tensors) for client, tensors in changes.items()}
        return ClientTensors(store, {**self._entries, **new})

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the tensors themselves: in another process the mapping has no files."""
        return _in_memory, ({client: self[client] for client in self},)

    @property
    def bytes_to_write(self) -> int:
        """How many bytes `sync` would write."""
        return sum(entry.size for entry in self._entries.values() if entry.place is None)

    def copy_to_host(self) -> None:
        """Copy from the device what `sync` has to write, so that `sync` in another thread does not use the
        device."""
        if self.store:
            self._copies = self.store.copies(self._entries.values())

    def sync(self) -> None:
        """Write to the store's folder what is not there yet, and wait until the disk has it. Another thread
        may call it while training goes on; with a GPU, only after `copy_to_host`."""
        self._index = self.store.write(self, self._entries, self._copies) if self.store else {}
        self._copies = {}

    def index(self) -> Index:
        """Return where each client's tensors lie in the store's folder since `sync`. They stay there as long
        as this mapping is alive, even if later mappings no longer need them."""
        if self and self._index is None:
            raise ValueError("what clients keep is not on disk yet: call sync first")
        return self._index or {}


def _in_memory(tensors: dict[int, Tensors]) -> ClientTensors:
    return ClientTensors().updated(tensors)


class ClientStore:
    """The place of clients' tensors. Tensors stay on their device as long as there is room, else in host
    memory as long as there is room there, else they are written to disk at once."""

    def __init__(self, device: torch.device, *, limit: int | None, folder: Path | None = None) -> None:
        """Keep at most `limit` bytes in host memory, all if it is None. Files are in `folder`, where they
        stay when this process ends. Without a folder they have no names, and are removed when this process
        ends."""
        self.device, self.limit, self.folder = device, limit, folder
        self.device_limit: int | None = None
        """How many bytes may stay on a GPU; None: not known yet."""
        self._used = {"device": 0, "host": 0, "disk": 0}
        self._freed: deque[tuple[str, int]] = deque()
        self._segments = Segments(folder)
        self._lock = threading.RLock()

    def empty(self) -> ClientTensors:
        """Return the mapping in which no client keeps anything yet."""
        return ClientTensors(self)

    @property
    def used(self) -> dict[str, int]:
        """How many bytes are on the device, in host memory, and on disk only."""
        with self._lock:
            while self._freed:
                tier, freed = self._freed.popleft()
                self._used[tier] -= freed
            return dict(self._used)

    def keep(self, tensors: Tensors) -> ClientEntry:
        """Store what a client keeps."""
        tensors = layout.own_tensors(tensors, self.device)
        size = layout.size_in_bytes(tensors)
        with self._lock:
            tier = self._tier(size)
            self._used[tier] += size
            if tier == "disk":
                entry = ClientEntry(None, None, tier, size, self._freed)
                self._write(entry, tensors)
                return entry
            return ClientEntry(
                self._to_host(tensors) if tier == "host" else tensors, None, tier, size, self._freed
            )

    def read(self, client: int, entry: ClientEntry) -> Tensors:
        """Return what a client kept, on the device. The client's number is for the error if it is damaged."""
        if entry.tensors is not None:
            if self.device.type == "cuda" and entry.tier == "host":
                return {
                    name: value.to(self.device, non_blocking=True) for name, value in entry.tensors.items()
                }
            return dict(entry.tensors)
        with self._lock:
            place = entry.place
            assert place is not None
            data = read_checked(place, client)
        try:
            tensors = load(data, torch.device("cpu"))
        except ValueError as error:
            raise damaged(place, client, str(error)) from None
        if self.device.type == "cuda":
            return {
                name: value.pin_memory().to(self.device, non_blocking=True) for name, value in tensors.items()
            }
        return {name: layout.aligned(value) for name, value in tensors.items()}

    def copies(self, entries: Iterable[ClientEntry]) -> dict[ClientEntry, Tensors]:
        """Return copies in host memory of the entries that are not on disk. With a GPU, wait until it has
        finished its work."""
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
        self,
        mapping: ClientTensors,
        entries: Mapping[int, ClientEntry],
        copies: Mapping[ClientEntry, Tensors],
    ) -> Index:
        """Write the entries of a mapping that are not on disk yet, and return where all of them lie. They
        stay there as long as the mapping is alive."""
        if self.folder is None:
            raise ValueError("tensors in files without a name cannot be found again: give the store a folder")
        for entry in entries.values():
            with self._lock:  # for one entry at a time, since training waits for the lock
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
            segments = self._segments.indexed_by(mapping)
        self._segments.sync(segments)
        return index

    def open(self, index: Mapping[str, Any]) -> ClientTensors:
        """Return the mapping that an index describes, from the store's folder. Check that all files are there
        and long enough; tensors are read when they are used."""
        if self.folder is None:
            raise ValueError("an index describes files with names: give the store the folder they are in")
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
                segment = self._segments.open(number)
                place = DiskPlace(segment, offset, length, checksum)
                if offset + length > segment.size:
                    raise damaged(place, client, "the file is too short")
                entry = ClientEntry(None, place, "disk", length, self._freed)
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
        """Remove the files of the folder that no living mapping needs, such as those of a run that was
        stopped. Every mapping that may still be needed must have been opened before."""
        with self._lock:
            self._segments.tidy()
            self._segments.remove_unknown()

    def _tier(self, size: int) -> str:
        used = self.used
        if self.device.type == "cuda":
            if self.device_limit is None:
                self.device_limit = limits.device_limit(self.device)
            if used["device"] + size <= self.device_limit:
                return "device"
        return "host" if self.limit is None or used["host"] + size <= self.limit else "disk"

    def _to_host(self, tensors: Tensors) -> Tensors:
        """Start copying tensors to host memory. The copies are complete when the device has got to them."""
        if self.device.type != "cuda":
            return tensors
        copies = {}
        for name, value in tensors.items():
            copies[name] = torch.empty_like(value, device="cpu", pin_memory=True)
            copies[name].copy_(value, non_blocking=True)
            # Its memory must not be given to another stream before it was copied.
            value.record_stream(torch.cuda.current_stream(self.device))
        return copies

    def _write(self, entry: ClientEntry, tensors: Tensors) -> None:
        if any(value.is_cuda for value in tensors.values()):
            torch.cuda.synchronize(self.device)
        self._segments.append(entry, dump(tensors))


_stores: weakref.WeakValueDictionary[tuple[object, ...], ClientStore] = weakref.WeakValueDictionary()


def client_store(device: torch.device, limit: int | None = None, folder: Path | None = None) -> ClientStore:
    """Return the store for a device and a folder: the one that is in use already, or a new one. `limit` is in
    bytes; if it is None, it follows from the machine's memory."""
    key = (str(device), limit, folder)
    found = _stores.get(key)
    if found is None:
        most = limits.default_limit(device) if limit is None else limit
        found = _stores[key] = ClientStore(device, limit=most, folder=folder)
    return found
