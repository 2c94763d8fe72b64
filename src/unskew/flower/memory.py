"""Keeps on disk what clients keep between rounds, so that a node that is started again still has it.

Flower's own place for it, `Context.state`, is lost with the process of a SuperNode and with the run.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import time
from collections.abc import Mapping
from pathlib import Path

from unskew.errors import UserError
from unskew.files import write_file
from unskew.tensor_files import dump, load
from unskew.types import Tensors

VERSIONS = 3
"""How many versions are kept of each client: a server that was stopped may go back by a round or two."""
MOST_DAYS = 30
"""Days without a write after which the memory of a run is removed."""


class NodeMemory:
    """The tensors that the clients of a node keep during one run, in a folder."""

    def __init__(self, folder: Path, run: str) -> None:
        if not re.fullmatch(r"[0-9a-f]{32}", run):
            raise UserError(f"the server calls its run '{run}': use the same unskew at server and sites.")
        self._root, self._folder = folder, folder / run

    def recall(self, client: int, version: int) -> dict[str, Tensors] | None:
        """Return what a client has kept under a version: tensors by kind and by name. Return None if that
        version no longer exists."""
        found = next(self._folder.glob(f"{client}/*/{_file_name(version)}"), None)
        tensors = None if found is None else self._read(found)
        if tensors is None:
            return None
        kinds: dict[str, Tensors] = {}
        for name, value in tensors.items():
            kind, _, rest = name.partition("/")
            kinds.setdefault(kind, {})[rest] = value
        return kinds

    def keep(
        self, client: int, stage: str, version: int, parts: Mapping[str, Tensors], recalled: int
    ) -> None:
        """Write what a client keeps under a version: tensors by kind and by name. Older versions of the same
        stage are removed, except for the last ones and `recalled`, the version that training began from.
        Versions of other stages stay, since a later stage may continue from them."""
        tensors = {f"{kind}/{name}": value for kind, part in parts.items() for name, value in part.items()}
        folder = self._folder / str(client) / _short_hash(stage)
        self._write(folder / _file_name(version), tensors)
        others = sorted(folder.glob("*.tensors"), key=lambda path: path.stat().st_mtime_ns, reverse=True)
        for path in others[VERSIONS:]:
            if path.name != _file_name(recalled):
                path.unlink(missing_ok=True)

    def result(self, digest: str) -> Tensors | None:
        """Return the result of an earlier stage by its digest, or None if the server has not sent it."""
        return self._read(self._folder / "results" / f"{_short_hash(digest)}.tensors")

    def keep_result(self, tensors: Tensors) -> None:
        """Write the result of an earlier stage that the server has sent."""
        self._write(self._folder / "results" / f"{_short_hash(digest_of(tensors))}.tensors", tensors)

    def forget(self) -> None:
        """Remove what clients have kept of this run, and of runs in which they have kept nothing for long."""
        shutil.rmtree(self._folder, ignore_errors=True)
        before = time.time() - MOST_DAYS * 86400
        for other in self._root.glob("*") if self._root.is_dir() else ():
            if other.is_dir() and other.stat().st_mtime < before:
                shutil.rmtree(other, ignore_errors=True)

    def _read(self, path: Path) -> Tensors | None:
        try:
            return load(path.read_bytes())
        except (FileNotFoundError, NotADirectoryError):
            return None
        except (OSError, ValueError) as error:
            raise UserError(
                f"what a client has kept in {path} cannot be read ({error}): restore it."
            ) from None

    def _write(self, path: Path, tensors: Tensors) -> None:
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            path.parent.mkdir(parents=True, exist_ok=True)
            os.utime(self._folder)
            write_file(path, dump(tensors))
        except OSError as error:
            raise UserError(
                f"a client cannot keep what it needs in {path} ({error.strerror}): make room there, or name "
                "another folder in the node's config, memory=FOLDER."
            ) from None


def _file_name(version: int) -> str:
    return f"{version:016x}.tensors"


def _short_hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:24]


def digest_of(tensors: Tensors) -> str:
    """Return the hash of tensors: of their names, values, types and strides."""
    return hashlib.sha256(dump(tensors)).hexdigest()


def memory_folder(setting: object) -> Path:
    """Return the folder for clients' memory: the one that a node's config names, or one in Flower's home."""
    if setting is not None and not (isinstance(setting, str) and setting):
        raise UserError(f"memory is {setting!r} in this node's config but should be a folder.")
    if isinstance(setting, str):
        return Path(setting).expanduser()
    return Path(os.environ.get("FLWR_HOME") or Path.home() / ".flwr") / "unskew"
