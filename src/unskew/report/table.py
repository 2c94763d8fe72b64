"""Methods against each other in one table: best value bold, second underlined, mean ± std over seeds."""

from __future__ import annotations

import contextlib
import csv
import io
import re
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from unskew import metrics
from unskew.errors import UserError
from unskew.metrics import Summary
from unskew.report.measures import MEASURES, Measure, final_value, find, series
from unskew.report.read import Run, by_method

Rank = Literal["first", "second", ""]
NONE = "—"


@dataclass(frozen=True)
class Column:
    name: str
    """As in a CSV file."""
    title: str
    scale: float = 1.0
    digits: int = 1
    lower: bool = False
    """Whether less is better."""
    counted: bool = False
    """Whether it may be the same for all seeds by its nature; no spread is shown then."""


BY_VALIDATION = Column("best_by_validation", "best by validation", 100)
"""Of runs that chose a round by validation."""
COLUMNS = (
    Column("last", "last", 100),
    Column("best_by_test", "best by test", 100),
    Column("mean_last_10", "mean last 10", 100),
    Column("worst_class", "worst class", 100),
    Column("majority", "majority", 100),
    Column("minority", "minority", 100),
    Column("vacant", "vacant", 100),
    Column("rounds_to_target", "rounds to target", lower=True, counted=True),
    Column("speed_up", "speed-up", digits=2, counted=True),
    Column("traffic", "traffic (MB)", 1e-6, lower=True, counted=True),
    Column("cost", "cost (U)", lower=True, counted=True),
)


@dataclass(frozen=True)
class Cell:
    value: Summary | None
    """None where it does not exist, or not for all seeds."""
    seeds: tuple[int, int]
    """For how many seeds it exists, of how many."""
    text: str
    rank: Rank = ""


@dataclass(frozen=True)
class Row:
    method: str
    cells: tuple[Cell, ...]


@dataclass(frozen=True)
class Comparison:
    """What `unskew table` shows."""

    columns: tuple[Column, ...]
    rows: tuple[Row, ...]
    notes: tuple[str, ...]


def tabulate(runs: Sequence[Run], *, metric: str = "accuracy", target: float | None = None) -> Comparison:
    """A row for each method, over its seeds.

    `metric` is what best by validation, last, best by test, mean last 10 and the target are about. The target
    is a fraction; without one it is the best of the first method on the same seed, to which speed-up is
    relative too. What not all seeds of a method have, such as a target reached, is not averaged over the
    others.
    """
    measure = find(metric, runs)
    if measure.lower:
        raise UserError(f"of {metric} less is better: choose a metric for the table of which more is better.")
    groups = by_method(runs)
    first = {run.seed: series(run, measure) for run in next(iter(groups.values()))}
    numbers = {
        name: [_numbers(run, measure, first, target) for run in members] for name, members in groups.items()
    }
    chose = any(run.summary and run.summary.validation for run in runs)
    columns = (BY_VALIDATION, *COLUMNS) if chose else COLUMNS
    cells = {name: [_cell(column, each) for column in columns] for name, each in numbers.items()}
    ranks = [
        _rank([row[index] for row in cells.values()], column.lower) for index, column in enumerate(columns)
    ]
    rows = tuple(
        Row(
            name,
            tuple(
                Cell(cell.value, cell.seeds, cell.text, ranks[index][place]) for index, cell in enumerate(row)
            ),
        )
        for place, (name, row) in enumerate(cells.items())
    )
    return Comparison(columns, rows, _notes(runs, groups, measure, target))


def _numbers(
    run: Run, measure: Measure, first: Mapping[int, Mapping[int, float]], target: float | None
) -> dict[str, float | None]:
    values = series(run, measure)
    ends = metrics.best_last_mean(list(values.values()))
    chose = run.summary is not None and run.summary.validation is not None
    baseline = first.get(run.seed)
    goal = max(baseline.values()) if target is None and baseline else target
    # The summary has what was sent beside the rounds too, such as PKD's experts.
    sent = [run.summary.traffic] if run.summary else [line.traffic for line in run.rounds]
    return {
        "best_by_validation": final_value(run, measure) if chose else None,
        "last": ends["last"],
        "best_by_test": ends["best"],
        "mean_last_10": ends["mean_last_10"],
        "worst_class": final_value(run, MEASURES["worst"]),
        "majority": final_value(run, MEASURES["majority"]),
        "minority": final_value(run, MEASURES["minority"]),
        "vacant": final_value(run, MEASURES["vacant"]),
        "rounds_to_target": None if goal is None else metrics.rounds_to(goal, values),
        "speed_up": None if baseline is None else metrics.speed_up(values, baseline, target=goal),
        "traffic": float(sum(each.up + each.down for each in sent)) if sent else None,
        "cost": run.summary.cost if run.summary else None,
    }


def _cell(column: Column, seeds: Sequence[Mapping[str, float | None]]) -> Cell:
    values = [each[column.name] for each in seeds]
    value, known = metrics.over_seeds(values), sum(each is not None for each in values)
    whole = value if known == len(values) else None
    partly = f" ({known} of {len(values)})" if known else ""
    return Cell(whole, (known, len(values)), _write(whole, column) if whole else NONE + partly)


def _write(value: Summary, column: Column) -> str:
    if column.counted and not value.std:
        value = replace(value, std=None)
    return metrics.plus_minus(value, scale=column.scale, digits=column.digits)


def _rank(cells: Sequence[Cell], lower: bool) -> list[Rank]:
    """By the means as they are printed: what looks the same ranks the same. Where all look the same, or one
    is alone, none ranks."""
    shown = [float(cell.text.split(" ")[0]) if cell.value else None for cell in cells]
    order = sorted({value for value in shown if value is not None}, reverse=not lower)
    if len(order) < 2:
        return [""] * len(cells)
    names: dict[float | None, Rank] = {order[0]: "first", order[1]: "second"}
    return [names.get(value, "") for value in shown]


def _notes(
    runs: Sequence[Run], groups: Mapping[str, Sequence[Run]], measure: Measure, target: float | None
) -> tuple[str, ...]:
    notes = []
    if len({run.conditions for run in runs}) > 1:
        notes.append("the runs were made under different conditions: compare only those made under the same.")
    notes += [f"{run.path} failed: {run.failure.sentence}" for run in runs if run.failure]
    under_way = [str(run.path) for run in runs if not run.over]
    if under_way:
        notes.append(f"not finished: {', '.join(under_way)}.")
    seeds = {name: sorted(run.seed for run in members) for name, members in groups.items()}
    if len({str(each) for each in seeds.values()}) > 1:
        told = "; ".join(f"{name} {', '.join(map(str, each))}" for name, each in seeds.items())
        notes.append(f"the methods have different seeds: {told}.")
    baseline = next(iter(groups))
    own = f"the best {measure.title} of {baseline} on the same seed"
    goal = own if target is None else f"{measure.title} of {100 * target:g} %"
    notes.append(f"target: {goal}; speed-up: against {baseline}; U: the computation of a FedAvg round.")
    return tuple(notes)


def to_markdown(table: Comparison) -> str:
    lines = [
        "| " + " | ".join(["method", *(column.title for column in table.columns)]) + " |",
        "|---|" + "---:|" * len(table.columns),
    ]
    marks: dict[Rank, Callable[[str], str]] = {
        "first": lambda text: f"**{text}**",
        "second": lambda text: f"<u>{text}</u>",
        "": lambda text: text,
    }
    for row in table.rows:
        cells = [escape_markdown(row.method), *(marks[cell.rank](cell.text) for cell in row.cells)]
        lines.append("| " + " | ".join(cells) + " |")
    notes = [f"- {escape_markdown(note)}" for note in table.notes]
    return "\n".join([*lines, "", *notes]) + "\n"


def to_csv(table: Comparison) -> str:
    """Numbers as they are, for programs: accuracies as fractions, traffic in bytes; an empty field where a
    value does not exist."""
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    names = [f"{column.name}_{what}" for column in table.columns for what in ("mean", "std", "n")]
    writer.writerow(["method", *names])
    for row in table.rows:
        fields: list[object] = [escape_csv(row.method)]
        for cell in row.cells:
            mean, std = (None, None) if cell.value is None else (cell.value.mean, cell.value.std)
            fields += [mean, std, cell.seeds[0]]
        writer.writerow(fields)
    return file.getvalue()


def to_latex(table: Comparison) -> str:
    """A tabular for the booktabs package."""
    marks: dict[Rank, Callable[[str], str]] = {
        "first": lambda text: rf"\textbf{{{text}}}",
        "second": lambda text: rf"\underline{{{text}}}",
        "": lambda text: text,
    }
    lines = [
        *(f"% {escape_comment(note)}" for note in table.notes),
        r"\begin{tabular}{l" + "r" * len(table.columns) + "}",
        r"\toprule",
        " & ".join(["method", *(escape_latex(column.title) for column in table.columns)]) + r" \\",
        r"\midrule",
    ]
    for row in table.rows:
        cells = [escape_latex(row.method), *(marks[cell.rank](escape_latex(cell.text)) for cell in row.cells)]
        lines.append(" & ".join(cells) + r" \\")
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}"]) + "\n"


WRITERS: dict[str, Callable[[Comparison], str]] = {".md": to_markdown, ".csv": to_csv, ".tex": to_latex}

_LATEX = {
    "\\": r"\textbackslash{}", "{": r"\{", "}": r"\}", "$": r"\$", "&": r"\&", "#": r"\#", "%": r"\%",
    "_": r"\_", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "<": r"\textless{}",
    ">": r"\textgreater{}", "|": r"\textbar{}", '"': "''", "±": r"$\pm$", "—": r"\textemdash{}",
}  # fmt: skip


def escape_latex(text: str) -> str:
    """Accented letters of Western Europe stay; for what pdflatex does not know there is a question mark."""
    letters = (_LATEX.get(each, each if _known(each) else "?") for each in _one_line(text))
    return re.sub(r"-(?=-)", "-{}", "".join(letters))  # two hyphens would become a dash


def _known(letter: str) -> bool:
    accented = ord(letter) < 0x100 and letter.isalpha() and unicodedata.decomposition(letter)
    return " " <= letter <= "~" or bool(accented) or letter in "ßæøÆØ"


def escape_comment(text: str) -> str:
    return "".join(each if 32 <= ord(each) < 127 else "?" for each in _one_line(text))


def escape_markdown(text: str) -> str:
    return re.sub(r"([\\`*_{}\[\]<>|#~$!])", r"\\\1", _one_line(text).replace("&", "&amp;"))


def escape_csv(text: str) -> str:
    """A spreadsheet takes for a formula what begins like one and is no number."""
    with contextlib.suppress(ValueError):
        float(text)
        return text
    return f"'{text}" if text[:1] in ("=", "+", "-", "@", "\t", "\r") else text


def _one_line(text: str) -> str:
    return " ".join(text.split())
