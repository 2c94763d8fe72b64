"""The result of a search: as tune.json, and for the terminal."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from unskew import record
from unskew.cli.terminal import Grid, console, percent, say
from unskew.experiment import MethodSpec, read
from unskew.notation import method_parts
from unskew.report.sentences import join
from unskew.tune.folder import Methods, Winner
from unskew.tune.search import Search, TrialLine
from unskew.tune.space import called, describe
from unskew.user_code import is_code


def tune_json(
    search: Search, won: list[Winner], done: dict[str, list[TrialLine]], folder: Path
) -> dict[str, Any]:
    """Return the contents of tune.json."""
    return {
        "metric": search.metric,
        "trials": {name: len(lines) for name, lines in done.items()},
        "seeds": search.seeds,
        "sampler": search.sampler,
        "winners": [
            {
                "method": each.method,
                "values": each.trial.values,
                "score": each.trial.score,
                "default_score": each.default and each.default.score,
                "trial": each.trial.number + 1,
                "experiment": str(each.experiment),
                "at_edge": each.at_edge,
            }
            for each in won
        ],
        "notes": list(_notes(won)),
        "all": [_trial_json(line) for lines in done.values() for line in lines],
        "run_dir": str(folder),
    }


def _trial_json(line: TrialLine) -> dict[str, Any]:
    """Return a trial for tune.json: its line of trials.jsonl, but counted from 1, as winners are."""
    whole = record.plain(line)
    return {"method": whole.pop("method"), "trial": whole.pop("number") + 1, **whole}


def show_winners(search: Search, won: list[Winner], done: dict[str, list[TrialLine]], folder: Path) -> None:
    """Print the best trial of each method, and the command that compares the winners on the test set."""
    screen = console()
    seeds = f"seed{'s' * (len(search.seeds) > 1)} {','.join(map(str, search.seeds))}"
    screen.print(f"the best trial of each method by {search.metric} on validation data, {seeds}\n")
    rows, score = [], _loss_text if search.metric == "loss" else percent
    head = search.metric if search.metric == "loss" else f"{search.metric} %"
    for each in won:
        failed = sum(line.score is None for line in done[each.method])
        rows.append(
            [
                each.method,
                score(each.trial.score),
                "-" if each.default is None else score(each.default.score),
                f"{each.trial.number + 1} of {len(done[each.method])}",
                str(failed),
                describe(each.trial.values),
            ]
        )
    screen.print(Grid(["method", head, "untuned", "trial", "failed", "values"], rows))
    for note in _notes(won):
        screen.print(f"\nnote: {note}")
    if not won:
        return
    files = " ".join(shlex.quote(str(each.experiment)) for each in won)
    seed = max(search.seeds) + 1
    screen.print("\nthe winners on the test set, with seeds that the search has not seen:")
    own = [f" --method {shlex.quote(name)}" for name in dict.fromkeys(_code(search))]
    screen.print(f"  unskew compare {files}{''.join(own)} --seeds {seed}-{seed + 2}", soft_wrap=True)
    screen.print(f"\nsearch: {folder}", soft_wrap=True)


def note_edited_methods(folder: Path, methods: Methods, done: dict[str, list[TrialLine]]) -> None:
    """Print a note for each method whose own file was edited during the search."""
    for name, (table, _) in methods.items():
        if MethodSpec(**table).files() and len(_file_hashes(folder, done[name])) > 1:
            say(
                f"note: {name} was edited during the search: its trials are of several versions, and their "
                "scores do not compare unless the change does not matter to them."
            )


def _file_hashes(folder: Path, trials: Iterable[TrialLine]) -> set[str]:
    """Return the hashes of a method's own file in the trials that succeeded."""
    paths = [folder / run / "experiment.toml" for line in trials if not line.errors for run in line.folders]
    tables = [read(path).get("method", {}) for path in paths if path.exists()]
    return {table["sha256"] for table in tables if "sha256" in table}


def _code(search: Search) -> Iterator[str]:
    """Yield the code files of the user's own methods, which a command must name."""
    for each in search.methods:
        yield from filter(is_code, method_parts(each.table["name"]))


def _notes(won: list[Winner]) -> Iterator[str]:
    """Yield notes on how far the winners can be trusted."""
    at_edge: dict[str, list[str]] = {}
    for each in won:
        for setting in each.at_edge:
            at_edge.setdefault(called(setting), []).append(each.method)
    if at_edge:
        edges = "; ".join(f"{setting} of {join(methods)}" for setting, methods in at_edge.items())
        yield f"best at the edge of what was tried, so try values beyond it: {edges}."
    searched = {
        each.method: {name for name in each.trial.values if not name.startswith("method.")} for each in won
    }
    for name in sorted(set[str]().union(*searched.values())):
        if others := [method for method, names in searched.items() if name not in names]:
            yield (
                f"{name} was not searched for {', '.join(others)}: for a fair comparison write its --over "
                "before the methods."
            )


def _loss_text(score: float | None) -> str:
    return "-" if score is None else f"{score:.4f}"
