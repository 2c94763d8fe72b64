"""What a named dataset is, and where its files are looked for."""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import platformdirs

from unskew.data.dataset import Dataset
from unskew.errors import UserError


@dataclass(frozen=True)
class Source:
    """A named dataset. Its options are the keyword-only parameters of `load`; a spec may give them without
    names, in the same order."""

    name: str
    title: str
    classes: int
    train: int
    """Training samples with the default options; 0 if the number depends on the options."""
    test: int
    shape: str
    """One sample, in words: "1x28x28"."""
    home: str
    licence: str
    load: Callable[..., Dataset]
    """Called as load(folder, **options) with the folder of the files, or load(**options) if it is bundled."""
    folders: tuple[str, ...] = ()
    """Folders inside the data folder that may hold its files, first choice first. Empty if it is bundled."""
    marks: tuple[str, ...] = ()
    """File patterns: a folder that matches any of them is taken as the source's folder."""
    by_hand: str = ""
    """How to get it if there is no open download: what stands between "… is not in FOLDER: " and
    " into FOLDER."."""

    @property
    def bundled(self) -> bool:
        return not self.folders

    def find(self, root: Path) -> Path | None:
        """Return the folder with this source's files inside the data folder `root`; None if there is none."""
        for name in self.folders:
            folder = root / name
            if folder.is_dir() and any(next(folder.glob(mark), None) is not None for mark in self.marks):
                return folder
        return None

    def fetch_command(self, root: Path) -> str:
        """Return the command that downloads it into the data folder `root`; empty if none does."""
        where = "" if root == data_folder() else f" --data {shlex.quote(str(root))}"
        return "" if self.bundled or self.by_hand else f"unskew data fetch {self.name}{where}"

    def missing(self, root: Path) -> UserError:
        how = self.by_hand or f"run `{self.fetch_command(root)}`, or copy the files of {self.home}"
        return UserError(f"{self.title} is not in {root}: {how} into {root / self.folders[0]}.")


def data_folder(folder: Path | None = None) -> Path:
    """Return `folder`, else the folder that the environment variable UNSKEW_DATA names, else the user's cache
    folder."""
    if folder is not None:
        return Path(folder).expanduser()
    named = os.environ.get("UNSKEW_DATA")
    return Path(named).expanduser() if named else platformdirs.user_cache_path("unskew")
