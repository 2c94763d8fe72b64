"""Run folders made by hand: what a run writes, with invented numbers."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tomli_w
from invented import make_environment, make_summary

from unskew import metrics

WriteRun = Callable[..., Path]
NAMES = ("T-shirt", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "boot")


@pytest.fixture(scope="session")
def write_at() -> Callable[..., None]:
    """Writes a run folder to a path."""
    return write_folder


@pytest.fixture
def write_run(tmp_path: Path) -> WriteRun:
    """Writes a run folder below the test's own folder and returns its path."""

    def write(name: str = "run", **settings) -> Path:
        path = tmp_path / name
        write_folder(path, **settings)
        return path

    return write


def write_folder(
    path: Path,
    *,
    method: str = "fedavg",
    options: dict | None = None,
    seed: int = 1,
    classes: Sequence[str] = NAMES,
    clients: int = 6,
    rounds: int = 12,
    done: int | None = None,
    every: int = 1,
    probe: int = 0,
    untested: Sequence[int] = (),
    tally: str = "",
    sites: Sequence[str] = (),
    validation: int = 0,
    **changes,
) -> None:
    """`changes` are settings of the experiment by path, with __ for the dot: budget__lr=0.1. `done` rounds
    are there, and no summary unless that is all. Classes in `untested` have no test samples. `sites` are the
    names of the clients, which then have test samples of their own. Where some samples validate, `validation`
    is the round they chose."""
    clients = len(sites) or clients
    rng = np.random.default_rng([seed, *f"{method}{options}{changes}".encode()])
    C = len(classes)
    held = np.random.default_rng(seed)  # the same for all methods
    counts = held.integers(1, 200, (clients, C)) * (held.random((clients, C)) < 0.4)
    counts[np.arange(clients), np.arange(clients) % C] = 400
    path.mkdir(parents=True)
    experiment: dict = {
        "seed": seed,
        "engine": "loop",
        "device": "cpu",
        "data": {"name": "fashion-mnist", "folder": "", "augment": "none"},
        "skew": {"recipe": "dirichlet:0.05", "clients": clients, "seed": seed},
        "model": {"name": "mlp-small", "norm": "none"},
        "method": {"name": method, **(options or {})},
        "budget": {"rounds": rounds, "cohort": "all", "epochs": 2, "batch_size": 32, "lr": 0.01},
        "evaluation": {"every": every, "batch_size": 500},
        "probe": {"every": probe},
    }
    for place, value in changes.items():
        table, _, key = place.partition("__")
        experiment[table][key] = value
    (path / "experiment.toml").write_text(tomli_w.dumps(experiment))
    dump(path / "environment.json", make_environment(seed))
    partition = {"dataset": {"classes": list(classes)}, "counts": counts.tolist()}
    dump(path / "partition.json", partition | ({"names": list(sites)} if sites else {}))

    last = rounds if done is None else done
    lines, probes, confusion = [], [], np.zeros((C, C), np.int64)
    for t in range(1, last + 1):
        line: dict = {
            "round": t,
            "lr": 0.01,
            "cohort": list(range(clients)),
            "trained": list(range(clients)),
            "samples": 2 * int(counts.sum()),
            "train_loss": 1 / t,
            "seconds": 0.5,
            "traffic": {"up": 1000 * clients, "down": 1000 * clients},
            "tallies": {tally: 100 * t} if tally else {},
        }
        if t % every == 0 or t == rounds:
            confusion = make_confusion(rng, C, t / (t + 5), untested)
            by_class, share = metrics.class_accuracy(confusion), metrics.prediction_share(confusion)
            ends = metrics.max_mean_min(by_class)
            line |= {
                "accuracy": metrics.accuracy(confusion),
                "loss": 1 / t,
                "class_accuracy": by_class.tolist(),
                "balanced_accuracy": ends["mean"],
                "max_class": ends["max"],
                "min_class": ends["min"],
                "discrepancy": ends["max"] - ends["min"],
                "worst_class": metrics.worst_class(by_class),
                "groups": metrics.group_accuracy(by_class, counts),
                "prediction_share": share.tolist(),
                "distance_to_uniform": metrics.distance_to_uniform(share),
                "macro_f1": metrics.macro_f1(confusion),
            }
            if sites:
                each = [make_confusion(rng, C, t / (t + 5), untested) for _ in sites]
                line["sites"] = make_spread(sites, each)
            if validation:
                scores = ("accuracy", "macro_f1", "balanced_accuracy", "worst_class_accuracy", "loss")
                line["validation"] = dict.fromkeys(scores, 0.9 if t == validation else 0.5)
        lines.append(line)
        if probe and (t % probe == 0 or t == rounds):
            probes.append(make_probe(rng, t, counts, untested))
    write_lines(path / "rounds.jsonl", lines)
    if probe:
        write_lines(path / "probes.jsonl", probes)
    if last == rounds:
        summary = make_summary(path, experiment, lines, confusion, counts, classes)
        if sites:
            spread = lines[-1]["sites"]
            summary["sites"] = {
                "spread": spread,
                "each": [
                    make_site(k, *site, counts[k]) for k, site in enumerate(zip(sites, each, strict=True))
                ],
            }
        if validation:
            chosen = {"round": validation, "line": validation, "stopped": None, "samples": 50}
            summary["validation"] = {
                "metric": "accuracy", "value": 0.9, **chosen, **lines[validation - 1]["validation"]
            }  # fmt: skip
            summary["accuracy"]["best_by_validation"] = lines[validation - 1]["accuracy"]
        dump(path / "summary.json", summary)


def make_spread(names: Sequence[str], confusions: Sequence[np.ndarray]) -> dict:
    by_site = np.array([metrics.accuracy(confusion) for confusion in confusions])
    return {
        "sites": len(names),
        "mean": float(by_site.mean()),
        "worst": float(by_site.min()),
        "worst_site": names[int(by_site.argmin())],
        "best": float(by_site.max()),
        "std": float(by_site.std()),
        **dict(zip(("q10", "median", "q90"), np.quantile(by_site, (0.1, 0.5, 0.9)).tolist(), strict=True)),
        "accuracy": dict(zip(names, by_site.tolist(), strict=True)),
    }


def make_site(client: int, name: str, confusion: np.ndarray, train: np.ndarray) -> dict:
    site = metrics.SiteResult(name, client, train, confusion.sum(axis=1), confusion)
    return {
        "name": name,
        "client": client,
        "train": train.tolist(),
        "test": site.test.tolist(),
        "accuracy": site.accuracy,
        "balanced_accuracy": site.balanced_accuracy,
        "class_accuracy": site.class_accuracy.tolist(),
        "worst_class": site.worst_class,
        "held": site.held,
        "vacant": site.vacant,
        "answered": [[i, j, int(confusion[i, j])] for i, j in np.argwhere(confusion).tolist()],
    }


def make_confusion(rng: np.random.Generator, C: int, skill: float, untested: Sequence[int]) -> np.ndarray:
    right = np.clip(skill + rng.normal(0, 0.15, C), 0.02, 0.98)
    wrong = rng.dirichlet(np.full(C, 0.3), C)
    rows = [
        rng.multinomial(100, right[c] * np.eye(C)[c] + (1 - right[c]) * wrong[c] / wrong[c].sum())
        for c in range(C)
    ]
    confusion = np.array(rows)
    confusion[list(untested)] = 0
    return confusion


def make_probe(rng: np.random.Generator, t: int, counts: np.ndarray, untested: Sequence[int]) -> dict:
    C = counts.shape[1]
    clients, effects, local = [], [], []
    for client, mine in enumerate(counts):
        before, after, aggregated = (rng.uniform(0.1, 0.9, C) for _ in range(3))
        after[mine == 0] = 0.02
        for model in (before, after, aggregated):
            model[list(untested)] = np.nan
        effect = metrics.update_effect(before, after, aggregated, mine)
        effects.append(effect)
        local.append(after)
        clients.append(
            {
                "client": client,
                "before": before.tolist(),
                "after": after.tolist(),
                "aggregated": aggregated.tolist(),
                "groups": stages(effect),
                "in_local": metrics.in_local_accuracy(after, mine),
                "out_local": metrics.out_local_accuracy(after, mine),
                "deviation": None,
            }
        )
    return {
        "round": t,
        "seconds": 0.3,
        "clients": clients,
        "groups": stages(metrics.mean_effect(effects)),
        "local_class_accuracy": metrics.mean_class_accuracy(local).tolist(),
        "drift": {"received": 0.4, "aggregated": None},
    }


def stages(effect: dict) -> dict:
    return {
        name: None if found is None else {**asdict(found), "drop": found.drop}
        for name, found in effect.items()
    }


def write_lines(path: Path, lines: list[dict]) -> None:
    path.write_text("".join(json.dumps(strict(line)) + "\n" for line in lines))


def dump(path: Path, value: dict) -> None:
    path.write_text(json.dumps(strict(value)))


def strict(value):
    """NaN as null, as a run writes it."""
    if isinstance(value, float):
        return value if np.isfinite(value) else None
    if isinstance(value, dict):
        return {key: strict(part) for key, part in value.items()}
    return [strict(part) for part in value] if isinstance(value, list) else value


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    """Debian's browser, without a window. Closed before other modules' tests: after a run of wandb in the
    same process, playwright waits for its browser for ever."""
    tool = pytest.importorskip("playwright.sync_api", reason="needs playwright: pip install 'unskew[dev]'")
    path = shutil.which("chromium")
    if path is None:
        pytest.skip("needs a browser: apt-get install chromium")
    flags = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]
    flags += ["--disable-component-update", "--disable-sync", "--no-first-run"]
    # No page stays so long that compiling its code well would pay. The lines of its code, for stacks, are
    # kept when it is compiled: else V8 parses much of Plotly once more for them.
    flags += ["--js-flags=--no-turbofan --no-enable-lazy-source-positions"]
    with tool.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=flags)
        yield browser
        browser.close()
