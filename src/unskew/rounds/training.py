"""Rounds one after another."""

from __future__ import annotations

from collections.abc import Callable

from unskew import engines
from unskew.engines.job import Pending
from unskew.method import Method
from unskew.result import Round, State
from unskew.rounds.checks import check_compatible
from unskew.rounds.round import TrainedCohort, begin_round
from unskew.trial import Trial

OnRound = Callable[[Round], None]


def train_rounds(
    trial: Trial,
    method: Method,
    engine: engines.Engine,
    state: State,
    *,
    until: int | None = None,
    after_round: Callable[[Round, State], bool] = lambda *_: False,
) -> State:
    """Train up to round `until` (by default the budget's). `after_round(round, state)` is called in order and
    returns True to stop. With `engine.rounds_ahead > 0` a round may begin before the results of the previous
    one arrive. If these show an unusable update, training goes back to the state before that round and
    repeats it without the client."""
    check_compatible(trial, method)
    until = trial.budget.rounds if until is None else until
    under_way: list[tuple[State, Pending[Round | TrainedCohort]]] = []
    again: TrainedCohort | None = None

    def settle() -> State:
        """End the oldest round that is under way; return the state to go on from."""
        nonlocal again, until
        before, pending = under_way.pop(0)
        outcome = pending.result()
        if isinstance(outcome, Round):
            after = under_way[0][0] if under_way else state
            if not after_round(outcome, after):
                return state
            under_way.clear()
            until = after.round
            return after
        again = outcome
        under_way.clear()
        return before

    while under_way or state.round < until:
        if state.round < until and len(under_way) <= engine.rounds_ahead:
            before, cohort, again = state, again, None
            try:
                state, pending = begin_round(trial, method, engine, before, cohort=cohort)
            except Exception:
                while under_way:  # the rounds before are done all the same, or are what is wrong
                    state = settle()
                if state is before and state.round < until:
                    raise
            else:
                under_way.append((before, pending))
        else:
            state = settle()
    return state
