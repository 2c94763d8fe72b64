"""The page's data of single runs: every measure by round, the costs until each round, and probes."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import TypeVar

from unskew import metrics
from unskew.metrics import GROUPS
from unskew.record import Json, ProbeRecord, RoundRecord, StagesRecord
from unskew.report.measures import MEASURES
from unskew.report.read import SavedRun

T = TypeVar("T")


def number(value: float | None) -> float | None:
    """Return a number for the page with all its digits; None if it is not finite.

    Means over seeds often lie exactly between two printed numbers, and the page must round them as a table
    does.
    """
    return None if value is None or not math.isfinite(value) else float(value)


def over_seeds(values: Sequence[float | None]) -> Json:
    """Return the mean as a number, and the mean with its spread in percent as text; None without values."""
    known = metrics.over_seeds(values)
    return None if known is None else [number(known.mean), metrics.plus_minus(known, scale=100)]


def _hundredths(value: float | None) -> int | None:
    """Round a fraction to hundredths of a percent, for lists with very many numbers; None if not finite."""
    return None if value is None or not math.isfinite(value) else round(10_000 * value)


def thin(values: int, most: int) -> int:
    """Return the step between rounds that are kept, so that at most `most` of the values remain."""
    return max(1, math.ceil(values / most))


def every(lines: Sequence[T], step: int) -> list[T]:
    """Return every `step`-th line, counted from the last one."""
    return list(lines[::-1][::step][::-1])


# By round


def curves(run: SavedRun, keep: int, keep_sites: int) -> dict[str, Json]:
    """Return every measure of a run by round.

    Accuracies of classes are of every `keep`-th tested round including the last, and accuracies of sites of
    every `keep_sites`-th. The numbers of the rounds are listed separately: under `all` for measures of every
    round, and under `tested`, `probed`, `by_class` or `by_site` for others.
    """
    some, of_sites = every(run.tested, keep), every(run.tested, keep_sites)
    lines: dict[str, Sequence[RoundRecord | ProbeRecord]] = {
        "all": run.rounds,
        "tested": run.tested,
        "probed": run.probes,
        "by_class": some,
        "by_site": of_sites,
    }
    series: dict[str, Json] = {}
    for key, measure in MEASURES.items():
        kind = "probed" if measure.probed else "all" if key == "train-loss" else "tested"
        values = [number(measure.of(line)) for line in lines[kind]]
        if any(value is not None for value in values):
            series[key] = [kind, list(values)]
    domains = dict.fromkeys(name for line in run.tested for name in line.domains or {})
    by_site = [(line.sites.accuracy or {}) if line.sites else {} for line in of_sites]
    sites = dict.fromkeys(name for values in by_site for name in values)
    return {
        "rounds": {kind: [line.round for line in each] for kind, each in lines.items()},
        "series": series,
        "domains": {
            name: [number((line.domains or {}).get(name)) for line in run.tested] for name in domains
        },
        "by_site": {name: [number(values.get(name)) for values in by_site] for name in sites},
        "by_class": [[number(line.class_accuracy[c]) for line in some] for c in range(len(run.classes))],
    }


def site_values(run: SavedRun) -> int:
    return sum(len(line.sites.accuracy or {}) for line in run.tested if line.sites)


# Costs


def seconds(run: SavedRun) -> float:
    """Return the seconds of a run with all its stages and probes, until now if it has not ended."""
    return max(run.summary.seconds if run.summary else 0.0, _counted_seconds(run))


def _counted_seconds(run: SavedRun) -> float:
    return sum(line.seconds for line in run.rounds) + sum(probe.seconds for probe in run.probes)


def spent(run: SavedRun, of_method: Sequence[SavedRun]) -> dict[str, Json]:
    """Return the costs until the end of each round.

    They are megabytes between server and clients, computation in U, and seconds. The costs outside of rounds,
    such as of PKD's experts, are in `beside`. Since only their sum is recorded, all numbers include them as
    if they came before the first round.
    """
    sent = [line.traffic.up + line.traffic.down for line in run.rounds]
    whole = run.summary.traffic.up + run.summary.traffic.down if run.summary else sum(sent)
    probing = {probe.round: probe.seconds for probe in run.probes}
    took = [line.seconds + probing.get(line.round, 0.0) for line in run.rounds]
    more = {"traffic": whole - sum(sent), "time": seconds(run) - _counted_seconds(run)}
    cost = _cost_of_round(run, of_method)
    series: dict[str, Json] = {
        "traffic": _so_far([value / 1e6 for value in sent], more["traffic"] / 1e6),
        "time": _so_far(took, more["time"]),
    }
    beside: dict[str, Json] = {"traffic": _short(more["traffic"] / 1e6)}
    if cost is not None:
        known = run.summary.cost if run.summary else None
        before = 0.0 if known is None else max(known - cost * run.done, 0.0)
        series["cost"] = [_short(before + cost * n) for n in range(1, run.done + 1)]
        beside["cost"] = _short(before)
    elif run.summary and run.summary.cost is not None:  # if rounds differ, as PKD's do, only the sum is known
        series["cost"] = [*[None] * (run.done - 1), _short(run.summary.cost)]
    return series | {"beside": beside}


def _cost_of_round(run: SavedRun, of_method: Sequence[SavedRun]) -> float | None:
    """Return the computation of one round in U; None if rounds differ or the passes are not known."""
    epochs = run.experiment["budget"].get("epochs")
    passes = next((each.summary.passes for each in (run, *of_method) if each.summary), None)
    if passes is not None and not passes.once:
        epochs = epochs or 1  # rounds may be given in steps; without `once`, epochs cancel out
    if passes is None or not isinstance(epochs, int | float) or epochs <= 0:
        return None
    return metrics.round_cost(metrics.Passes(passes.trained, passes.frozen, passes.once), epochs)


def _so_far(values: Sequence[float], before: float) -> list[Json]:
    so_far = list(itertools.accumulate(values, initial=before))
    return [_short(value) for value in so_far[1:]]


def _short(value: float) -> float:
    return float(f"{value:.6g}")


# Probes


def probe_every(run: SavedRun) -> int:
    table = run.experiment.get("probe")
    every = table.get("every", 0) if isinstance(table, dict) else 0
    return every if isinstance(every, int) else 0


def probe_values(run: SavedRun) -> int:
    return sum(
        len(probe.clients) * 12 + sum(map(len, _models(probe).values())) * len(run.classes)
        for probe in run.probes
    )


def _models(probe: ProbeRecord) -> Mapping[str, list[list[float | None]]]:
    """Return class accuracies around local updates, for each client or once if all have the same model."""
    stages = {}
    for name in ("before", "after", "aggregated"):
        models = [getattr(client, name) for client in probe.clients]
        same = name != "after" and all(model == models[0] for model in models)
        stages[name] = models[:1] if same else models
    return stages


def probed(probe: ProbeRecord) -> dict[str, Json]:
    """Return the values of a probed round's clients, in the order of `clients`.

    Class accuracies are in hundredths of a percent; a model that all clients have in common appears once.
    """
    clients = probe.clients
    values: dict[str, Json] = {"round": probe.round, "clients": [client.client for client in clients]}
    for name, models in _models(probe).items():
        values[name] = [[_hundredths(value) for value in model] for model in models]
    values["groups"] = [[_stages(getattr(client.groups, group)) for group in GROUPS] for client in clients]
    for key in ("in_local", "out_local", "deviation"):
        values[key] = [number(getattr(client, key)) for client in clients]
    return values


def _stages(stages: StagesRecord | None) -> Json:
    if stages is None:
        return None
    return [number(value) for value in (stages.before, stages.after, stages.aggregated)]
