"""A table as it was published or a smaller version of it, and the folders that the runs of each are in."""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass
from pathlib import Path

from unskew.reproduce.published import Cell, ExperimentSettings, Reading, experiment


@dataclass(frozen=True)
class Version:
    """A table as it was published, or a smaller version of it: runs of one never count as runs of another."""

    rounds: int | None = None
    fraction: float | None = None
    """The share of the training samples."""
    precision: str = "fp32"
    fast: bool = False
    """Whether a GPU takes its fastest kernels."""

    @property
    def full(self) -> bool:
        """Whether it is the published one."""
        return self == Version()

    @property
    def smaller(self) -> bool:
        """Whether it has fewer rounds or samples, so that no published number compares with its numbers."""
        return self.rounds is not None or self.fraction is not None

    @property
    def folder(self) -> str:
        """The name of the folder that its runs are in."""
        parts = []
        if self.rounds is not None:
            parts.append(f"rounds={self.rounds}")
        if self.fraction is not None:
            parts.append(f"fraction={self.fraction:g}")
        return ",".join([*parts, *self._computed()]) or "full"

    def _computed(self) -> list[str]:
        return [self.precision] * (self.precision != "fp32") + ["fast"] * self.fast

    @property
    def words(self) -> str:
        """How it differs from the published version, in words; empty for the published one."""
        parts = []
        if self.rounds is not None:
            parts.append(f"{self.rounds} round{'s' * (self.rounds != 1)}")
        if self.fraction is not None:
            parts.append(f"{100 * self.fraction:g} % of the training samples")
        smaller = f"a smaller version, with {' and '.join(parts)}" if parts else ""
        return ", ".join(filter(None, (smaller, *self._computed())))

    def experiment(self, cell: Cell, reading: Reading, seed: int) -> ExperimentSettings:
        """Return the experiment of a cell in this version."""
        whole = experiment(cell, reading, seed, rounds=self.rounds, fraction=self.fraction)
        whole["precision"] = self.precision
        return {**whole, "fast": True} if self.fast else whole


def run_stem(settings: ExperimentSettings) -> str:
    """Return what the folder names of an experiment's runs begin with, whatever the seed.

    Cells of several tables that are one experiment have the same stem, so that it runs once.
    """
    without = {key: value for key, value in settings.items() if key != "seed"}
    if settings["precision"] == "fp32":  # folders were named before it was among the settings
        del without["precision"]
    digest = hashlib.sha256(json.dumps(without, sort_keys=True).encode()).hexdigest()[:10]
    recipe = settings["skew"]["recipe"].partition(",")[0]
    words = "-".join([settings["method"]["name"], settings["data"]["name"], recipe])
    return f"{re.sub(r'[^A-Za-z0-9.=_]+', '-', words)}-{digest}"


def run_folder(out: Path, version: Version, settings: ExperimentSettings) -> Path:
    """Return the folder of an experiment's run, in the folder `out` of all reproduced runs."""
    return out / version.folder / f"{run_stem(settings)}-seed{settings['seed']}"
