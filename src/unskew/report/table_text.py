"""A table of methods as text: Markdown, CSV and LaTeX."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable
from itertools import groupby

from unskew.report.escape import escape_comment, escape_csv, escape_latex, escape_markdown
from unskew.report.table import MethodTable
from unskew.report.table_cells import TableCell


def starred(cell: TableCell) -> str:
    """Return the text of a cell, with a star if it differs significantly from the reference."""
    return f"{cell.text}*" if cell.mark in ("above", "below") else cell.text


def to_markdown(table: MethodTable) -> str:
    lines = [
        "| " + " | ".join([*table.heads, *(escape_markdown(head.line) for head in table.columns)]) + " |",
        "|" + "---|" * len(table.heads) + "---:|" * len(table.columns),
    ]
    for row in table.rows:
        cells = [f"**{cell.text}**" if cell.is_best else escape_markdown(starred(cell)) for cell in row.cells]
        lines.append("| " + " | ".join([*map(escape_markdown, row.keys), *cells]) + " |")
    notes = [f"- {escape_markdown(note)}" for note in (*table.footnotes, *table.notes)]
    return "\n".join([escape_markdown(table.title), "", *lines, "", *notes]) + "\n"


def to_csv(table: MethodTable) -> str:
    """Write the table for programs: accuracies as fractions, traffic in bytes, no value as an empty field.

    A mark is best, above or below (the reference). The note of the first row explains the marks.
    """
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    parts = ("mean", "std", "n", "mark")
    names = [f"{escape_csv(head.name)}_{part}" for head in table.columns for part in parts]
    writer.writerow([*table.heads, *names, "note"])
    for place, row in enumerate(table.rows):
        fields: list[object] = [escape_csv(key) for key in row.keys]
        for cell in row.cells:
            mean, std = (None, None) if cell.value is None else (cell.value.mean, cell.value.std)
            fields += [mean, std, cell.seeds[0], cell.mark]
        writer.writerow([*fields, "" if place else escape_csv(_by_words(" ".join(table.footnotes)))])
    return file.getvalue()


def _by_words(footnotes: str) -> str:
    """Return footnotes that explain marks as words instead of as type and stars."""
    for mark, word in (("bold: ", "best: "), ("; *: ", "; above, below: "), (" are bold ", " are best ")):
        footnotes = footnotes.replace(mark, word)
    return footnotes


def to_latex(table: MethodTable) -> str:
    """Write a tabular for the booktabs package, with its footnotes below."""
    comments = [f"% {escape_comment(text)}" for text in table.notes]
    head = [r"\begin{tabular}{l" + "r" * len(table.columns) + "}", r"\toprule"]
    groups = [(group, len(list(heads))) for group, heads in groupby(table.columns, lambda head: head.group)]
    if any(group for group, _ in groups):
        spans = [rf"\multicolumn{{{width}}}{{c}}{{{escape_latex(group)}}}" for group, width in groups]
        head.append(" & ".join(["", *spans]) + r" \\")
        ends = [sum(width for _, width in groups[: place + 1]) + 1 for place in range(len(groups))]
        head += [
            rf"\cmidrule(lr){{{end - width + 1}-{end}}}" for end, (_, width) in zip(ends, groups, strict=True)
        ]
    head.append(
        " & ".join(map(escape_latex, [table.heads[-1], *(each.title for each in table.columns)])) + r" \\"
    )
    lines = []
    for title, rows in table.sections:
        lines.append(r"\midrule")
        if title:
            lines.append(
                rf"\multicolumn{{{1 + len(table.columns)}}}{{l}}{{\emph{{{escape_latex(title)}}}}} \\"
            )
        for row in rows:
            texts = [(escape_latex(starred(cell)), cell.is_best) for cell in row.cells]
            cells = [rf"\textbf{{{text}}}" if best else text for text, best in texts]
            lines.append(" & ".join([escape_latex(row.name), *cells]) + r" \\")
    below = " ".join(map(escape_latex, (f"{table.title}.", *map(_capital, table.footnotes))))
    end = [
        r"\bottomrule",
        r"\end{tabular}",
        rf"\par\smallskip{{\footnotesize {below}\par}}",
    ]
    return "\n".join([*comments, *head, *lines, *end]) + "\n"


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


WRITERS: dict[str, Callable[[MethodTable], str]] = {".md": to_markdown, ".csv": to_csv, ".tex": to_latex}
