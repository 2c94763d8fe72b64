"""Prints raw results of runs, a line for each: docs/which-method.md and `unskew advise` are made of them.

python docs/results/collect.py [--shared] [--tuned] RUNS... >> docs/results/raw/NAME.jsonl
python docs/results/collect.py --trials SEARCHES... >> docs/results/validation/NAME.jsonl

Runs that validate settings, which no page compares with others, go to docs/results/validation.

With --shared no seconds are kept, since the device did other work during the runs. With --tuned the lines say
that the settings of each method were chosen on validation data by `unskew tune`. RUNS are run folders, or
folders with run folders somewhere in them; the models are not needed. Runs that have not ended, runs whose
lines are in docs/results/raw already, and runs of methods, networks or data that are not part of unskew are
left out: stderr says how many.

With --trials a line has all trials of a method in a search. SEARCHES are folders of `unskew tune`.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from pathlib import Path
from statistics import fmean
from typing import Any

from unskew.advice.facts import SkewFacts, measure
from unskew.data.sources import SOURCES
from unskew.errors import UserError
from unskew.methods import METHODS
from unskew.models import MODELS
from unskew.notation import joined, method_parts, named
from unskew.record import TestedRound, plain
from unskew.report.measures import MEASURES
from unskew.report.read import SavedRun, read_run
from unskew.reproduce.measures import costs_by_round, own_round_costs
from unskew.tune.folder import read_search, read_trials

RAW = Path(__file__).parent / "raw"
MEASURED = ("accuracy", "worst", "majority", "minority", "vacant")
MOST_CLASSES = 20
"""The most classes with which a line has the confusion matrix."""
DIGITS = 6
"""The digits of rounded numbers: accuracies are shares of at most about 10,000 samples."""


def line(run: SavedRun, *, shared: bool = False, tuned: bool = False) -> dict[str, Any]:
    """Return the line of a finished run; without seconds if it shared its device."""
    summary, where = run.summary, run.environment
    assert summary is not None
    experiment = dict(run.experiment)
    experiment["data"] = {key: value for key, value in experiment["data"].items() if key != "folder"}
    few = len(run.classes) <= MOST_CLASSES
    costs = costs_by_round(run)
    found = {
        "identity": summary.identity,
        "started": where.started,
        "commit": _short(where.unskew_commit or ""),
        "device": where.device_name,
        "versions": where.versions,
        "skew": facts(run),
        "accuracy": summary.accuracy,
        "last_rounds": last_rounds(run),
        "groups": summary.groups,
        "worst_class": summary.worst_class,
        "worst_class_accuracy": summary.worst_class_accuracy,
        "classes": list(run.classes),
        "class_accuracy": summary.class_accuracy,
        **({"confusion": summary.confusion} if few else {}),
        "forgetting": summary.forgetting,
        "traffic": summary.traffic,
        "work": summary.cost,
        "seconds": None if shared else summary.time,
        "notes": summary.notes,
        "curve": [each.accuracy for each in run.tested],
        "worst_curve": [each.min_class for each in run.tested],
        **({} if own_round_costs(run) is None else {"costs": costs and list(costs.values())}),
        **({} if summary.validation is None else {"validation_curve": validated(run)}),
        **({"tuned": True} if tuned else {}),
        "weights_sha256": summary.weights_sha256,
    }
    return {"experiment": experiment, **rounded(plain(found))}


def _short(commit: str) -> str:
    """Return the first digits of a commit, with a + if there were changes."""
    return commit[:7] + "+" * commit.endswith("+")


def facts(run: SavedRun) -> SkewFacts:
    """Measure the skew of the run's clients."""
    cohort = run.experiment["budget"]["cohort"]
    return measure(
        run.counts,
        cohort=None if cohort == "all" else int(cohort),
        clients=run.clients,
        samples=run.samples,
    )


def validated(run: SavedRun) -> list[float]:
    """Return the accuracy on validation data of each round that has one."""
    return [each.validation.accuracy for each in run.tested if each.validation is not None]


def last_rounds(run: SavedRun) -> dict[str, float | None]:
    """Return the means over the last ten tested rounds, or over the last tenth of fewer than a hundred.

    The model of a run swings from round to round, and this is what to expect of it. If validation chose the
    model, or CCVR changes it at the end, the values are those of that model.
    """
    assert run.summary is not None
    assert run.final is not None
    one = run.summary.validation is not None or "ccvr" in method_parts(run.experiment["method"]["name"])
    lines = [run.final] if one else run.tested[-min(10, -(-len(run.tested) // 10)) :]
    return {"rounds": len(lines)} | {name: _mean(name, lines) for name in MEASURED}


def _mean(name: str, lines: Iterable[TestedRound]) -> float | None:
    values = [MEASURES[name].of(each) for each in lines]
    return fmean(known) if (known := [value for value in values if value is not None]) else None


def is_own(run: SavedRun) -> bool:
    """Say whether the method, the network or the data are not part of unskew, so that others cannot run
    it."""
    method, data = run.experiment["method"]["name"], run.experiment["data"]["name"]
    return (
        not set(method_parts(method)) <= METHODS.keys()
        or run.experiment["model"]["name"] not in MODELS
        or not {named(part)[0] for part in joined(data)} <= SOURCES.keys()
    )


def written() -> set[str]:
    """Return the identities of all runs that have a line."""
    return {
        json.loads(text)["identity"] for path in RAW.glob("*.jsonl") for text in path.read_text().splitlines()
    }


def rounded(value: Any) -> Any:
    """Return a value with all its numbers rounded."""
    if isinstance(value, float):
        return round(value, DIGITS)
    if isinstance(value, list):
        return [rounded(each) for each in value]
    return {key: rounded(each) for key, each in value.items()} if isinstance(value, dict) else value


def runs_in(folder: Path) -> Iterable[SavedRun]:
    """Read all runs in a folder that have begun."""
    found = sorted(path.parent for path in folder.rglob("rounds.jsonl"))
    if not found:
        raise UserError(f"there is no run in {folder}: check the path.")
    return map(read_run, found)


def search_lines(folder: Path) -> Iterable[dict[str, Any]]:
    """Return a line for each method of a search: its conditions, and the values and scores of its trials."""
    search = read_search(folder)
    for method, trials in read_trials(folder, search).items():
        first = read_run(folder / trials[0].folders[0])
        kept = {key: value for key, value in first.experiment.items() if key not in ("seed", "method")}
        kept["data"] = {key: value for key, value in kept["data"].items() if key != "folder"}
        if search.experiment.get("skew", {}).get("seed") is None:  # then it follows the seed of the run
            kept["skew"] = {key: value for key, value in kept["skew"].items() if key != "seed"}
        yield {
            "method": method,
            "experiment": kept,
            "commit": _short(first.environment.unskew_commit or ""),
            "device": first.environment.device_name,
            "metric": search.metric,
            "seeds": search.seeds,
            "trials": [[trial.values, trial.by_seed] for trial in trials],
        }


def main(arguments: list[str]) -> None:
    folders = [Path(each) for each in arguments if not each.startswith("--")]
    if "--trials" in arguments:
        for found in (found for folder in folders for found in search_lines(folder)):
            print(json.dumps(rounded(found), allow_nan=False, separators=(",", ":")))
        return
    shared, tuned = "--shared" in arguments, "--tuned" in arguments
    known, counts = written(), dict.fromkeys(("written", "there already", "not ended", "of one's own"), 0)
    for run in (run for folder in folders for run in runs_in(folder)):
        if not run.finished:
            counts["not ended"] += 1
        elif is_own(run):
            counts["of one's own"] += 1
        elif run.summary.identity in known:
            counts["there already"] += 1
        else:
            known.add(run.summary.identity)
            counts["written"] += 1
            print(json.dumps(line(run, shared=shared, tuned=tuned), allow_nan=False, separators=(",", ":")))
    print(", ".join(f"{number} {what}" for what, number in counts.items()), file=sys.stderr)


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except UserError as error:
        sys.exit(f"{error}")
