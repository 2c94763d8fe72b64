"""Records of runs with invented numbers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from unskew import metrics


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
