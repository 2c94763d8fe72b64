"""The processes of a local federation, and the file `state.json` that records them."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from unskew.errors import UserError
from unskew.files import write_file
from unskew.flower import processes
from unskew.record import to_json


@dataclass(frozen=True)
class Process:
    """A process that was started. Since process numbers are used again, `started` says when it began."""

    name: str
    pid: int
    started: int
    port: int
    log: str
    command: list[str]


@dataclass(frozen=True)
class LocalFederation:
    """A federation in a folder: its address and its processes, the SuperLink first."""

    folder: str
    address: str
    secure: bool
    mark: str
    processes: tuple[Process, ...] = ()

    @property
    def nodes(self) -> tuple[Process, ...]:
        return self.processes[1:]


def running_processes(federation: LocalFederation) -> list[Process]:
    """Return the processes of a federation that are running."""
    running = processes.running(federation.mark)
    return [each for each in federation.processes if running.get(each.pid) == each.started]


def write_state(federation: LocalFederation) -> None:
    write_file(Path(federation.folder, "state.json"), to_json(asdict(federation)))


def read_state(folder: Path) -> LocalFederation | None:
    """Return the federation that `state.json` of a folder records, or None if there is no such file."""
    path = folder / "state.json"
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        started = tuple(Process(**each) for each in found.pop("processes"))
        return LocalFederation(**found, processes=started)
    except FileNotFoundError:
        return None
    except (ValueError, TypeError, KeyError, AttributeError):
        raise UserError(f"{path} is damaged: end by hand what it names, then remove it.") from None
