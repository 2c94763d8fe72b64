"""Records of runs with invented numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from unskew import metrics, record
from unskew.report.read import SavedRun


def make_environment(seed: int) -> dict:
    return {
        "started": f"2026-01-01T00:00:{seed:02}+00:00",
        "command": ["unskew", "run"],
        "device": "cpu",
        "device_name": "CPU",
        "cores": 2,
        "platform": "Linux",
        "python": "3.12.1",
        "versions": {"unskew": "0.1.0"},
        "unskew_commit": None,
        "working_directory_commit": None,
        "identity": 64 * "0",
    }


def make_summary(
    path: Path,
    experiment: dict,
    lines: list[dict],
    confusion: np.ndarray,
    counts: np.ndarray,
    classes: Sequence[str],
) -> dict:
    by_class = metrics.class_accuracy(confusion)
    features = np.random.default_rng(0).normal(size=(len(confusion), 8))
    features[np.isnan(by_class)] = np.nan
    worst = metrics.worst_class(by_class)
    seconds = 0.5 * len(lines)
    return {
        "identity": 64 * "0",
        "method": experiment["method"]["name"],
        "hyperparameters": {key: value for key, value in experiment["method"].items() if key != "name"},
        "dataset": experiment["data"]["name"],
        "skew": experiment["skew"]["recipe"],
        "clients": len(counts),
        "seed": experiment["seed"],
        "partition_seed": experiment["skew"]["seed"],
        "rounds": len(lines),
        "balanced_accuracy": metrics.balanced_accuracy(confusion),
        "loss": 1 / len(lines),
        "classes": list(classes),
        "discrepancy": metrics.discrepancy(by_class),
        "forgetting": 0.0,
        "mean_probability": metrics.confusion_share(confusion).tolist(),
        "weights_sha256": 64 * "0",
        "time": {"total": seconds, "start": {}, "first_round": 0.5, "rounds": seconds - 0.5, "end": 0.0},
        "tallies": {
            name: {
                "of": f"samples that are {name}",
                "share": [line["tallies"][name] / line["samples"] for line in lines],
            }
            for name in lines[0]["tallies"]
        },
        "accuracy": {
            "best_by_test" if key == "best" else key: value
            for key, value in metrics.best_last_mean(
                [line["accuracy"] for line in lines if "accuracy" in line]
            ).items()
        },
        "macro_f1": metrics.macro_f1(confusion),
        "probabilities": {"auc": 0.9, "calibration_error": 0.1, "brier": 0.4, "log_loss": 1 / len(lines)},
        "class_accuracy": by_class.tolist(),
        "groups": metrics.group_accuracy(by_class, counts),
        "worst_class": worst,
        "worst_class_accuracy": float(by_class[worst]),
        "confusion": confusion.tolist(),
        "misclassification_share": metrics.misclassification_share(confusion).tolist(),
        "feature_distances": metrics.feature_distances(features).tolist(),
        "seconds": seconds,
        "notes": [],
        "run_dir": str(path),
        "traffic": {way: sum(line["traffic"][way] for line in lines) for way in ("up", "down")},
        "passes": {"trained": 1.0, "frozen": 0.0, "once": 0.0},
        "cost": float(len(lines)),
        "probe_seconds": None,
    }


def made(
    label: str = "fedavg",
    seed: int = 1,
    accuracy: float = 0.6,
    *,
    vacant: float = 0.4,
    majority: float = 0.8,
    rounds: int = 3,
    done: int = 3,
    skew: str = "dirichlet:0.05",
) -> SavedRun:
    """Make a run with the same accuracies in all its rounds."""
    line = record.TestedRound(
        round=1,
        lr=0.1,
        cohort=[0, 1, 2],
        trained=[0, 1, 2],
        samples=21,
        train_loss=1.0,
        seconds=0.5,
        traffic=record.TrafficRecord(1000, 1000),
        tallies={},
        accuracy=accuracy,
        loss=None,
        class_accuracy=[majority, vacant],
        balanced_accuracy=None,
        max_class=majority,
        min_class=vacant,
        discrepancy=majority - vacant,
        worst_class=1,
        groups=record.Groups(majority, None, vacant),
        prediction_share=[0.5, 0.5],
        distance_to_uniform=0.0,
    )
    experiment = {
        "seed": seed,
        "data": {"name": "digits"},
        "skew": {"recipe": skew, "seed": seed},
        "model": {"name": "mlp"},
        "method": {"name": label},
        "budget": {"rounds": rounds, "cohort": "all", "epochs": 1},
    }
    confusion = np.array([[8, 2], [6, 4]])
    path = Path(f"runs/{label}-{skew}-{seed}")
    counts = np.array([[9, 0], [0, 9], [3, 0]])
    lines = [replace(line, round=number) for number in range(1, done + 1)]
    told = [record.plain(line) for line in lines]
    summary = None
    if done == rounds:
        summary = record.SUMMARY.parse(
            record.to_json(make_summary(path, experiment, told, confusion, counts, ("cat", "dog")))
        )
    return SavedRun(
        data="digits",
        model="mlp",
        path=path,
        label=label,
        seed=seed,
        experiment=experiment,
        environment=record.Environment(**make_environment(seed)),
        classes=("cat", "dog"),
        counts=counts,
        rounds=list(lines),
        probes=[],
        summary=summary,
        failure=None,
        skew=skew,
    )
