"""Small HTML tables for notebooks, readable on light and dark backgrounds, with all texts escaped."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape

MOST_ROWS, MOST_COLUMNS = 20, 20
"""The most rows and columns of a table that is shown as a whole."""
CELL = "padding:0.15em 0.6em;border:0;border-bottom:1px solid rgba(128,128,128,0.3)"


@dataclass(frozen=True)
class HtmlCell:
    """A number in a table, and how dark its background is, from 0 to 1."""

    text: str
    shade: float = 0.0
    bold: bool = False


def facts(title: str, values: Mapping[str, str], *more: str) -> str:
    """Write a title, then the values as a table of two columns, then more HTML. Empty values are left out."""
    rows = [(name, value) for name, value in values.items() if value]
    return panel(title, table((), rows, numbers=False), *more)


def panel(title: str, *parts: str) -> str:
    """Write a title, and below it parts that are HTML already."""
    return f'<div style="max-width:100%;overflow-x:auto"><b>{escape(title)}</b>{"".join(parts)}</div>'


def paragraph(text: str) -> str:
    return f'<p style="margin:0.4em 0;max-width:48em">{escape(text)}</p>'


def table(head: Sequence[str], rows: Iterable[Sequence[str | HtmlCell]], *, numbers: bool = True) -> str:
    """Write a table whose first column is text; the other columns are aligned as numbers, or as text."""
    lines = [_row(head, "th", numbers)] if head else []
    lines += [_row(row, "td", numbers) for row in rows]
    style = "border-collapse:collapse;margin:0.4em 0;font-size:90%;font-variant-numeric:tabular-nums"
    return f'<table style="{style}">{"".join(lines)}</table>'


def _row(cells: Sequence[str | HtmlCell], tag: str, numbers: bool) -> str:
    shown = []
    for place, each in enumerate(cells):
        cell = each if isinstance(each, HtmlCell) else HtmlCell(each)
        side = "right" if numbers and place else "left;white-space:nowrap" if not place else "left"
        # A transparent blue, on which both dark and light text can be read.
        ground = f";background:rgba(60,130,220,{0.55 * cell.shade:.2f})" if cell.shade > 0 else ""
        bold = ";font-weight:bold" if cell.bold else ""
        shown.append(f'<{tag} style="{CELL};text-align:{side}{ground}{bold}">{escape(cell.text)}</{tag}>')
    return f"<tr>{''.join(shown)}</tr>"


def some(names: Sequence[str], most: int = 12) -> str:
    """Write names as a list; if there are many, only the first ones and how many follow."""
    shown = ", ".join(names[:most])
    return shown if len(names) <= most else f"{shown} and {len(names) - most:,} more"


def percent(value: float | None) -> str:
    """Write a fraction in percent; a dash if it is None or NaN."""
    if value is None or value != value:
        return "–"
    return f"{round(100 * value, 1) + 0.0:.1f} %"  # + 0.0: no minus before a zero
