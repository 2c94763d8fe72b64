"""`unskew figure`: the figures of papers, drawn from the user's runs."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from rich.table import Table

from unskew.cli import options
from unskew.cli.terminal import console
from unskew.errors import UserError, unknown
from unskew.labelled_runs import read_searched, read_tested
from unskew.model_features import draw_tsne
from unskew.record import Tuned
from unskew.report import figures
from unskew.report.measures import MEASURES
from unskew.report.read import SavedRun

if TYPE_CHECKING:
    from matplotlib.figure import Figure

WIDTHS = {"column": figures.COLUMN, "page": figures.PAGE}


@dataclass(frozen=True)
class Wish:
    """The values of the options; None and () for those not given."""

    width: float | None = None
    title: str | None = None
    metric: str | None = None
    client: int | None = None
    round: int | None = None
    over: tuple[str, ...] = ()
    method: tuple[str, ...] = ()
    classes: tuple[str, ...] = ()
    data: Path | None = None
    against: str | None = None
    reference: str | None = None
    sort: bool = False


FigureOption = Literal[
    "metric", "client", "round", "over", "method", "classes", "data", "against", "reference", "sort"
]
ReadFolders = Callable[[Sequence[Path]], Any]
DrawFigure = Callable[[Any, Wish], "Figure"]


@dataclass(frozen=True)
class FigureType:
    line: str
    draw: DrawFigure
    options: tuple[FigureOption, ...] = ()
    """The options that it takes in addition to --width and --title."""
    read: ReadFolders = read_tested
    """Returns what is drawn, from the given folders."""


Runs = Sequence[SavedRun]
SearchedTrials = tuple[Tuned, Sequence[SavedRun]]


def _plain(draw: Callable[..., Figure]) -> DrawFigure:
    return lambda runs, wish: draw(runs, width=wish.width, title=wish.title)


def _curves(runs: Runs, wish: Wish) -> Figure:
    return figures.curves(runs, metric=wish.metric or "accuracy", width=wish.width, title=wish.title)


def _updates(runs: Runs, wish: Wish) -> Figure:
    return figures.updates(runs, client=wish.client, round=wish.round, width=wish.width, title=wish.title)


def _sensitivity(runs: Runs, wish: Wish) -> Figure:
    return figures.sensitivity(
        runs, over=wish.over, metric=wish.metric or "accuracy", width=wish.width, title=wish.title
    )


def _forest(runs: Runs, wish: Wish) -> Figure:
    return figures.forest(runs, reference=wish.reference, width=wish.width, title=wish.title)


def _heatmap(runs: Runs, wish: Wish) -> Figure:
    return figures.heatmap(runs, sort=wish.sort, width=wish.width, title=wish.title)


def _confusion(runs: Runs, wish: Wish) -> Figure:
    return figures.confusion(runs, against=wish.against, width=wish.width, title=wish.title)


def _experts(runs: Runs, wish: Wish) -> Figure:
    kept = figures.counting(runs)
    silent = dict.fromkeys(run.label for run in runs if run not in kept)
    if silent:
        console().print(f"left out, since they count nothing: {', '.join(silent)}", soft_wrap=True)
    return figures.experts(kept, width=wish.width, title=wish.title)


def _tsne(runs: Runs, wish: Wish) -> Figure:
    return draw_tsne(runs, classes=wish.classes, data=wish.data, width=wish.width, title=wish.title)


def _read_search(paths: Sequence[Path]) -> SearchedTrials:
    if len(paths) > 1:
        raise UserError(f"{len(paths)} folders are given: give that of one search.")
    return read_searched(paths[0])


def _search(found: SearchedTrials, wish: Wish) -> Figure:
    return figures.search(*found, over=wish.over, methods=wish.method, width=wish.width, title=wish.title)


FIGURES: dict[str, FigureType] = {
    "forest": FigureType(
        "how far each method is from a reference, with intervals: the picture to see first",
        _forest,
        ("reference",),
    ),
    "partition": FigureType(
        "which client holds which classes: clients against classes", _plain(figures.partition)
    ),
    "curves": FigureType("a metric in every round, with bands over seeds", _curves, ("metric",)),
    "extremes": FigureType("best class, mean and worst class in every round", _plain(figures.extremes)),
    "updates": FigureType(
        "class by class, before and after a client's update and after aggregation (needs --probe)",
        _updates,
        ("client", "round"),
    ),
    "heatmap": FigureType("the accuracy of every class by every method's final model", _heatmap, ("sort",)),
    "confusion": FigureType(
        "what each class is taken for by the final model, or how that differs from a method's",
        _confusion,
        ("against",),
    ),
    "predictions": FigureType("which classes the model answers in every round", _plain(figures.predictions)),
    "features": FigureType("distances between the classes' mean features", _plain(figures.features)),
    "tsne": FigureType("test samples by the features of the final model", _tsne, ("classes", "data")),
    "sensitivity": FigureType(
        "the final metric against a setting that varies among the runs", _sensitivity, ("metric", "over")
    ),
    "search": FigureType(
        "the score of a search's trials on validation data against each searched setting",
        _search,
        ("over", "method"),
        _read_search,
    ),
    "experts": FigureType(
        "what a method counts in every round, such as how often PKD's experts are asked",
        _experts,
    ),
}


def figure(
    name: Annotated[
        str | None, typer.Argument(metavar="NAME", help="The figure to draw; without it, all are listed.")
    ] = None,
    runs: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="RUN",
            help="Run folders; a folder of `unskew compare` stands for all its runs. search takes a folder "
            "of `unskew tune`.",
        ),
    ] = None,
    out: Annotated[
        Path | None, options.option("--out", "PATH", "The .png, .svg or .pdf file to write.", "NAME.png")
    ] = None,
    metric: Annotated[
        str | None,
        options.option(
            "--metric",
            "NAME",
            f"Metric of curves and sensitivity: {', '.join(MEASURES)} or class:NAME.",
            "accuracy",
        ),
    ] = None,
    client: Annotated[
        str | None, options.option("--client", "NUMBER", "Client that updates shows.", "the first probed")
    ] = None,
    round: Annotated[
        str | None, options.option("--round", "NUMBER", "Round that updates shows.", "the last probed")
    ] = None,
    over: Annotated[
        list[str] | None,
        options.option(
            "--over",
            "SETTING",
            "Setting that sensitivity and search show, such as mu or budget.epochs; may be repeated.",
            "all that vary",
        ),
    ] = None,
    method: Annotated[
        list[str] | None,
        options.option(
            "--method", "METHOD", "Method that search shows, as it was searched; may be repeated.", "all"
        ),
    ] = None,
    classes: Annotated[
        str | None,
        options.option(
            "--classes", "NAMES", "Classes that tsne shows, such as coat,shirt.", "all, or the 10 worst"
        ),
    ] = None,
    data: options.Data = None,
    against: Annotated[
        str | None, options.option("--against", "METHOD", "Method that confusion shows the difference from.")
    ] = None,
    reference: Annotated[
        str | None,
        options.option("--reference", "METHOD", "Method that forest compares the others with.", "fedavg"),
    ] = None,
    sort: Annotated[
        bool | None,
        typer.Option("--sort", help="Let heatmap begin with the hardest class.", show_default=False),
    ] = None,
    width: Annotated[
        str | None,
        options.option(
            "--width",
            "NAME",
            "Width of the figure: column (3.4 inches) or page (7.2).",
            "what the figure needs",
        ),
    ] = None,
    title: Annotated[
        str | None,
        options.option("--title", "TEXT", "Title of the figure; '' for none.", "the runs' conditions"),
    ] = None,
    overwrite: options.Overwrite = False,
) -> None:
    """Draw figures for print: colour-blind safe and readable in grey.

    docs/figures.md shows every figure.
    """
    if name is None:
        _list()
        return
    if name not in FIGURES:
        raise _no_figure(name, runs or [])
    kind, path = FIGURES[name], out or Path(f"{name}.png")
    given: dict[FigureOption, object] = {
        "metric": metric, "client": client, "round": round, "over": over, "method": method,
        "classes": classes, "data": data, "against": against, "reference": reference, "sort": sort,
    }  # fmt: skip
    for option, value in given.items():
        if value is not None and option not in kind.options:
            users = [other for other, each in FIGURES.items() if option in each.options]
            raise UserError(f"--{option} is for {' and '.join(users)}: leave it out for {name}.")
    if width is not None and width not in WIDTHS:
        raise unknown("width", width, WIDTHS)
    figures.check_format(path)
    if not runs:
        raise UserError(f"no run is given: write unskew figure {name} RUN, with the folder of a run.")
    wish = Wish(
        width=None if width is None else WIDTHS[width],
        title=title,
        metric=metric,
        client=_number("--client", client),
        round=_number("--round", round),
        over=tuple(over or ()),
        method=tuple(method or ()),
        classes=tuple(options.listed(classes)) if classes else (),
        data=data,
        against=against,
        reference=reference,
        sort=bool(sort),
    )
    found = kind.read(runs)
    options.check_output(path, overwrite)
    figures.save(kind.draw(found, wish), path)
    console().print(f"written: {path}", soft_wrap=True)


def _no_figure(name: str, others: Sequence[Path]) -> UserError:
    """Return the error for a name that is none of a figure; it may be a folder, and the name behind it."""
    if not Path(name).exists():
        return unknown("figure", name, FIGURES)
    kinds = [str(each) for each in others if str(each) in FIGURES]
    folders = [name, *(str(each) for each in others if str(each) not in FIGURES)]
    kind = kinds[0] if kinds else "search" if Path(name, "search.json").exists() else "curves"
    written = f"unskew figure {kind} {shlex.join(folders)}"
    return UserError(
        f"{name} is no figure, and the name of one comes first: write {written}."
        if kinds
        else f"{name} is no figure: name one first, such as {written}."
    )


def _number(flag: str, text: str | None) -> int | None:
    if text is not None and not text.isdecimal():
        raise UserError(f"{flag} is '{text}' but should be a whole number.")
    return None if text is None else int(text)


def _list() -> None:
    table = Table(box=None, pad_edge=False, show_header=False)
    for name, kind in FIGURES.items():
        table.add_row(name, kind.line)
    console().print(table)
