"""Prepares experiments: loads their data, divides it over clients and builds trials."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from unskew.cli.terminal import say
from unskew.clock import Clock
from unskew.data import Dataset, Federation
from unskew.engines import FLOWER, ON_FLOWER
from unskew.errors import UserError
from unskew.experiment import Experiment, Prepared, load_data, partition, prepare

Cells = list[tuple[str, Prepared]]
"""Prepared experiments, each with a label; those of `unskew compare` are ordered by seed, then by method."""


@dataclass
class Loaded:
    """Datasets and partitions that several experiments share."""

    datasets: dict[str, Dataset] = field(default_factory=dict)
    federations: dict[tuple[str, int], Federation] = field(default_factory=dict)
    """Partitions, by their data, skew and validation, and by their seed."""


def set_up(
    specs: Iterable[tuple[str, Experiment]], clock: Clock, loaded: Loaded | None = None, *, quiet: bool
) -> Cells:
    """Load and divide the data of experiments, and prepare them.

    Each dataset is loaded and each partition drawn only once; `loaded` keeps them for further calls.
    """
    loaded = loaded or Loaded()
    datasets, federations = loaded.datasets, loaded.federations
    cells = []
    for method, spec in specs:
        if spec.engine == FLOWER:
            raise UserError(ON_FLOWER)
        data = str(spec.data)
        if data not in datasets:
            datasets[data] = load_data(spec)
            for note in datasets[data].notes if not quiet else ():
                say(f"note: {note}")
            clock.mark("data")
        divided = (
            f"{data} {spec.skew} {spec.validation}",
            spec.seed if spec.skew.seed is None else spec.skew.seed,
        )
        if divided not in federations:
            federations[divided] = partition(spec, datasets[data])
            clock.mark("partition")
        cells.append((method, prepare(spec, datasets[data], federations[divided])))
        clock.mark("set-up")
    return cells
