"""What `unskew reproduce` writes and shows."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import tomli_w

from unskew.cli.flags import apply_flags
from unskew.cli.terminal import Grid, console, say
from unskew.record import Json, to_json
from unskew.reproduce import Cell, PublishedTable, Reading, presentation
from unskew.reproduce.outcome import CellOutcome, outcomes
from unskew.reproduce.version import Version, run_stem
from unskew.runs import write_whole


def write_experiments(
    folder: Path,
    wanted: Sequence[tuple[Cell, Reading]],
    seeds: Sequence[int],
    version: Version,
    flags: Mapping[str, Any],
    *,
    json: bool,
    quiet: bool,
) -> None:
    """Write the experiment files of cells to a folder.

    A file that several cells or readings share names all of them.
    """
    if (data := flags["data"]) is not None:
        flags = {**flags, "data": data.expanduser().resolve()}  # so that the file can be run from any folder
    files: dict[Path, tuple[list[str], dict[str, Any]]] = {}
    for cell, reading in wanted:
        for seed in seeds:
            settings = version.experiment(cell, reading, seed)
            path = folder / f"{run_stem(settings)}-seed{seed}.toml"
            first = [] if version.full else [f"# {version.words}"]
            head, _ = files.setdefault(path, (first, apply_flags(settings, **flags)))
            head += [f"# {cell.table} {cell.id}, reading {reading}"]
            head += [f"# assumed: {each}" for each in cell.assumed]
    folder.mkdir(parents=True, exist_ok=True)
    for path, (head, settings) in files.items():
        write_whole(path, "\n".join(dict.fromkeys(head)) + "\n\n" + tomli_w.dumps(settings))
    paths = list(map(str, files))
    if json:
        print(to_json({"files": list[Json](paths)}, indent=None))
        return
    for name in paths:
        console().print(name, soft_wrap=True)
    if quiet:
        return
    written = "1 experiment file; run it" if len(paths) == 1 else f"{len(paths)} experiment files; run one"
    say(f"{written} with: unskew run {shlex.quote(paths[0])}")


def read_table(table: PublishedTable, out: Path, version: Version) -> list[CellOutcome]:
    """Read the outcomes of all cells of a table that have finished runs."""
    everything = [(cell, reading) for cell in table.cells for reading in table.readings]
    return [each for each in outcomes(table, everything, out, version) if each.runs]


def keep_table(table: PublishedTable, out: Path, version: Version) -> None:
    """Write the outcomes of all cells of a table next to its runs, as JSON and Markdown."""
    if kept := read_table(table, out, version):
        stem = out / version.folder / table.id.replace(":", "-")
        write_whole(stem.with_suffix(".json"), to_json(presentation.to_json(table, kept, version)))
        write_whole(stem.with_suffix(".md"), presentation.to_markdown(table, kept, version))


def show_results(
    table: PublishedTable, results: Sequence[CellOutcome], version: Version, left_out: Mapping[str, str]
) -> None:
    """Print cells next to the published numbers, with notes; `left_out` says why cells were not run."""
    screen = console()
    for line in presentation.caption(table, version):
        screen.print(line, soft_wrap=True)
    heads, rows = presentation.rows_of(table, results, version)
    screen.print()
    screen.print(Grid(heads, rows, words=1))
    screen.print()
    for note in (*table.notes, *(f"assumed: {each}" for each in presentation.assumptions(results))):
        screen.print(f"note: {note}", soft_wrap=True)
    for why in dict.fromkeys(left_out.values()):
        names = [name for name, each in left_out.items() if each == why]
        which = f"{len(names)} cells such as {names[0]}" if len(names) > 1 else f"the cell {names[0]}"
        screen.print(f"left out: {which}: {why}", soft_wrap=True)
