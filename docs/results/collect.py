"""Raw results of runs, a line for each: what docs/which-method.md and `unskew advise` go by.

python docs/results/collect.py [--shared] RUNS... >> docs/results/raw/NAME.jsonl

Runs that validate settings, which no page compares with others, go to docs/results/validation.

With --shared no seconds are kept: the device did other work beside the runs. RUNS are run folders, or folders
with run folders somewhere in them; of a run folder all is needed but the model. Runs that have not ended,
those whose lines are in docs/results/raw already, and those of methods, networks or data that do not come
with unskew are left out: stderr says how many.
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
from unskew.notation import joined, named
from unskew.record import TestedRound, plain
from unskew.report.measures import MEASURES
from unskew.report.read import SavedRun, read_run
from unskew.reproduce.measures import costs_by_round, own_round_costs

RAW = Path(__file__).parent / "raw"
MEASURED = ("accuracy", "worst", "majority", "minority", "vacant")
MOST_CLASSES = 20
"""Up to so many classes a line has the confusion matrix."""
DIGITS = 6
"""That numbers are rounded to: accuracies are shares of at most some 10,000 samples."""


def line(run: SavedRun, *, shared: bool = False) -> dict[str, Any]:
    """What is kept of a finished run; no seconds where it shared its device."""
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
        "weights_sha256": summary.weights_sha256,
    }
    return {"experiment": experiment, **rounded(plain(found))}


def _short(commit: str) -> str:
    """With the sign that there were changes."""
    return commit[:7] + "+" * commit.endswith("+")


def facts(run: SavedRun) -> SkewFacts:
    """The skew of the run's clients, and how many take part."""
    cohort = run.experiment["budget"]["cohort"]
    return measure(
        run.counts,
        cohort=None if cohort == "all" else int(cohort),
        clients=run.clients,
        samples=run.samples,
    )


def validated(run: SavedRun) -> list[float]:
    """The accuracy on validation data, by round."""
    return [each.validation.accuracy for each in run.tested if each.validation is not None]


def last_rounds(run: SavedRun) -> dict[str, float | None]:
    """The mean of the last ten tested rounds, of fewer than a hundred of the last tenth: a run's model swings
    from round to round, and this is what to expect of it. Where validation chose the model, or CCVR changes
    it at the end, of that alone."""
    assert run.summary is not None
    assert run.final is not None
    one = run.summary.validation is not None or "ccvr" in run.experiment["method"]["name"].split("+")
    lines = [run.final] if one else run.tested[-min(10, -(-len(run.tested) // 10)) :]
    return {"rounds": len(lines)} | {name: _mean(name, lines) for name in MEASURED}


def _mean(name: str, lines: Iterable[TestedRound]) -> float | None:
    values = [MEASURES[name].of(each) for each in lines]
    return fmean(known) if (known := [value for value in values if value is not None]) else None


def is_own(run: SavedRun) -> bool:
    """Whether the method, the network or the data do not come with unskew, so that others cannot run it."""
    method, data = run.experiment["method"]["name"], run.experiment["data"]["name"]
    return (
        not set(method.split("+")) <= METHODS.keys()
        or run.experiment["model"]["name"] not in MODELS
        or not {named(part)[0] for part in joined(data)} <= SOURCES.keys()
    )


def written() -> set[str]:
    """The identities of all runs that have a line."""
    return {
        json.loads(text)["identity"] for path in RAW.glob("*.jsonl") for text in path.read_text().splitlines()
    }


def rounded(value: Any) -> Any:
    """The same with fewer digits."""
    if isinstance(value, float):
        return round(value, DIGITS)
    if isinstance(value, list):
        return [rounded(each) for each in value]
    return {key: rounded(each) for key, each in value.items()} if isinstance(value, dict) else value


def runs_in(folder: Path) -> Iterable[SavedRun]:
    """All that have begun."""
    found = sorted(path.parent for path in folder.rglob("rounds.jsonl"))
    if not found:
        raise UserError(f"there is no run in {folder}: check the path.")
    return map(read_run, found)


def main(arguments: list[str]) -> None:
    shared, folders = "--shared" in arguments, [each for each in arguments if each != "--shared"]
    known, told = written(), dict.fromkeys(("written", "there already", "not ended", "of one's own"), 0)
    for run in (run for folder in folders for run in runs_in(Path(folder))):
        if not run.finished:
            told["not ended"] += 1
        elif is_own(run):
            told["of one's own"] += 1
        elif run.summary.identity in known:
            told["there already"] += 1
        else:
            known.add(run.summary.identity)
            told["written"] += 1
            print(json.dumps(line(run, shared=shared), allow_nan=False, separators=(",", ":")))
    print(", ".join(f"{number} {what}" for what, number in told.items()), file=sys.stderr)


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except UserError as error:
        sys.exit(f"{error}")
