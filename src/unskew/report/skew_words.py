"""The skew of a run's federation in one sentence."""

from __future__ import annotations

from unskew.report.read import SavedRun
from unskew.skew_words import describe_skew


def skew_in_words(run: SavedRun) -> str:
    """Describe the skew, as in "a client lacks 7.3 of 10 classes; half the clients hold under 60 images"."""
    cohort = run.experiment["budget"]["cohort"]
    return describe_skew(
        run.counts,
        clients=run.clients,
        cohort=None if cohort == "all" else int(cohort),
        samples=run.samples,
        names=run.names,
    )
