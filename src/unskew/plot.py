"""Figures as Matplotlib figures, for notebooks and scripts: the same that `unskew figure` draws.

Each function takes run folders (a folder of compare stands for all its runs), results in memory, or both
under names of your own: {"fedavg": [first, second], "mine": third}. A notebook shows the figure that it
returns. pyplot does not keep it, so it is not shown twice and need not be closed.
`figure.savefig("curves.pdf")` writes it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from unskew.data import Federation
from unskew.errors import unknown
from unskew.labelled_runs import read_searched
from unskew.model_features import draw_tsne
from unskew.report import figures
from unskew.report.read import SavedRun
from unskew.run_sources import RunSources, gathered

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = [
    "confusion",
    "curves",
    "experts",
    "extremes",
    "features",
    "forest",
    "heatmap",
    "partition",
    "predictions",
    "search",
    "sensitivity",
    "tsne",
    "updates",
]

Width = Literal["column", "page"] | float | None
"""A column of a paper (3.4 inches), the text of a page (7.2), a number of inches, or None for the width that
the figure needs."""


def forest(
    runs: RunSources, *, reference: str | None = None, width: Width = None, title: str | None = None
) -> Figure:
    """Draw how far each method is from a reference, with intervals: the figure to see first.

    Without `reference` it is FedAvg, or the first method if FedAvg is not among them.
    """
    return _draw(figures.forest, runs, reference=reference, width=width, title=title)


def partition(runs: Federation | RunSources, *, width: Width = None, title: str | None = None) -> Figure:
    """Draw which client holds how many samples of each class, in a federation or in the runs."""
    if not isinstance(runs, Federation):
        return _draw(figures.partition, runs, width=width, title=title)
    words = f"{runs.dataset.short_name}, {runs.skew}, {runs.clients:,} clients" if title is None else title
    counts, classes = runs.partition.counts, runs.dataset.classes
    return _shown(figures.draw_partition(counts, classes, runs.names, title=words, width=_inches(width)))


def curves(
    runs: RunSources, *, metric: str = "accuracy", width: Width = None, title: str | None = None
) -> Figure:
    """Draw a metric by round, with bands over seeds."""
    return _draw(figures.curves, runs, metric=metric, width=width, title=title)


def extremes(runs: RunSources, *, width: Width = None, title: str | None = None) -> Figure:
    """Draw the accuracies of the best class, the mean and the worst class by round."""
    return _draw(figures.extremes, runs, width=width, title=title)


def updates(
    runs: RunSources,
    *,
    client: int | None = None,
    round: int | None = None,
    width: Width = None,
    title: str | None = None,
) -> Figure:
    """Draw the accuracy of each class before and after a client's update and after aggregation.

    It needs runs that were probed: `Trial(..., probe=Probe(every=5))`. Without `round` it is the last probed
    round, without `client` the first client of that round.
    """
    return _draw(figures.updates, runs, client=client, round=round, width=width, title=title)


def heatmap(runs: RunSources, *, sort: bool = False, width: Width = None, title: str | None = None) -> Figure:
    """Draw the accuracy of each class by each method's final model, with `sort` the hardest classes first."""
    return _draw(figures.heatmap, runs, sort=sort, width=width, title=title)


def confusion(
    runs: RunSources, *, against: str | None = None, width: Width = None, title: str | None = None
) -> Figure:
    """Draw the final model's answers for each class, or how they differ from the method `against`."""
    return _draw(figures.confusion, runs, against=against, width=width, title=title)


def predictions(runs: RunSources, *, width: Width = None, title: str | None = None) -> Figure:
    """Draw how often the model answers each class, by round."""
    return _draw(figures.predictions, runs, width=width, title=title)


def features(runs: RunSources, *, width: Width = None, title: str | None = None) -> Figure:
    """Draw the distances between the mean features of classes."""
    return _draw(figures.features, runs, width=width, title=title)


def tsne(
    runs: RunSources,
    *,
    classes: Sequence[str] = (),
    data: Path | str | None = None,
    width: Width = None,
    title: str | None = None,
) -> Figure:
    """Draw test samples by the final model's features in two dimensions, only of `classes` if given.

    `data` is the folder with the datasets, if it has moved.
    """
    folder = None if data is None else Path(data)
    return _draw(draw_tsne, runs, classes=classes, data=folder, width=width, title=title)


def sensitivity(
    runs: RunSources,
    *,
    over: Sequence[str] = (),
    metric: str = "accuracy",
    width: Width = None,
    title: str | None = None,
) -> Figure:
    """Draw the final metric by each setting that varies between the runs, or by the settings `over`."""
    return _draw(figures.sensitivity, runs, over=over, metric=metric, width=width, title=title)


def search(
    folder: Path | str,
    *,
    over: Sequence[str] = (),
    methods: Sequence[str] = (),
    width: Width = None,
    title: str | None = None,
) -> Figure:
    """Draw the scores of the trials of `unskew tune` in this folder, by each setting that was searched.

    `over` chooses settings, such as budget.lr, and `methods` chooses methods as they were searched.
    """
    found = read_searched(Path(folder))
    return _shown(figures.search(*found, over=over, methods=methods, width=_inches(width), title=title))


def experts(runs: RunSources, *, width: Width = None, title: str | None = None) -> Figure:
    """Draw what methods count by round, such as how often PKD's experts teach. Other methods are left out."""

    def draw(found: Sequence[SavedRun], *, width: float | None, title: str | None) -> Figure:
        return figures.experts(figures.counting(found), width=width, title=title)

    return _draw(draw, runs, width=width, title=title)


def _draw(draw: Callable[..., Figure], runs: RunSources, *, width: Width, **asked: object) -> Figure:
    inches = _inches(width)
    with gathered(runs) as found:
        return _shown(draw(found, width=inches, **asked))


def _inches(width: Width) -> float | None:
    named = {"column": figures.COLUMN, "page": figures.PAGE}
    if isinstance(width, str) and width not in named:
        raise unknown("width", width, named)
    return named[width] if isinstance(width, str) else width


def _shown(figure: Figure) -> Figure:
    """Let a notebook show figures that pyplot does not keep, unless it is set up for that already."""
    if "IPython" not in sys.modules:
        return figure
    from IPython import get_ipython
    from IPython.core.pylabtools import select_figure_formats
    from matplotlib.figure import Figure as Shown

    shell = get_ipython()
    if shell is not None and not any(
        Shown in formatter.type_printers for formatter in shell.display_formatter.formatters.values()
    ):
        select_figure_formats(shell, {"retina"})  # type: ignore[no-untyped-call,unused-ignore]
    return figure
