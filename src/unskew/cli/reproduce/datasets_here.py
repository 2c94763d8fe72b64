"""The datasets on this machine, and the cells that can be run with them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from unskew.data.sources import SOURCES, available, data_folder
from unskew.reproduce import Cell


@dataclass(frozen=True)
class DatasetsHere:
    """The datasets in the data folder."""

    folder: Path
    names: frozenset[str]

    @classmethod
    def find(cls, folder: Path | None) -> DatasetsHere:
        """Find the datasets in a data folder, or in the usual one."""
        names = (each.source.name for each in available(folder) if each.ready)
        return cls(data_folder(folder), frozenset(names))

    def missing(self, cell: Cell) -> str:
        """Return why a cell cannot be run here; empty if it can."""
        if cell.not_runnable:
            return cell.not_runnable
        lacking = [SOURCES[name] for name in cell.datasets if name not in self.names]
        if not lacking:
            return ""
        commands = " && ".join(filter(None, (source.fetch_command(self.folder) for source in lacking)))
        ways = [
            f"{source.by_hand} into {self.folder / source.folders[0]}" for source in lacking if source.by_hand
        ]
        downloaded = ", downloaded by" if commands else ""
        names = " and ".join(source.title for source in lacking)
        return f"it needs {names}{downloaded}: {'; '.join(filter(None, (commands, *ways)))}"
