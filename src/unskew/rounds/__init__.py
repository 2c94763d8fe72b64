"""Rounds of training. A round is sample, fit, aggregate, test, record: read `round.begin_round` first."""

from unskew.rounds.aggregation import RoundSummary, aggregate, average_buffers
from unskew.rounds.checks import check_compatible, check_fits
from unskew.rounds.notes import divergence, notes_of_faults, rounds_cost
from unskew.rounds.round import (
    CohortSampler,
    TrainedCohort,
    attacked,
    begin_round,
    fit_clients,
    fit_cohort,
    raise_if_own_fault,
    run_round,
    sample_cohort,
)
from unskew.rounds.state import initial_state, model_to_send, model_to_serve, store_of
from unskew.rounds.training import OnRound, train_rounds

__all__ = [
    "CohortSampler",
    "OnRound",
    "RoundSummary",
    "TrainedCohort",
    "aggregate",
    "attacked",
    "average_buffers",
    "begin_round",
    "check_compatible",
    "check_fits",
    "divergence",
    "fit_clients",
    "fit_cohort",
    "initial_state",
    "model_to_send",
    "model_to_serve",
    "notes_of_faults",
    "raise_if_own_fault",
    "rounds_cost",
    "run_round",
    "sample_cohort",
    "store_of",
    "train_rounds",
]
