"""Methods and states that do not fit a trial are refused."""

from __future__ import annotations

from unskew.errors import UserError
from unskew.method import Method
from unskew.parts.optimizers import OptimizerChoice
from unskew.result import State
from unskew.trial import Trial
from unskew.types import Weights


def check_compatible(trial: Trial, method: Method) -> None:
    """Refuse a method that does not fit the trial's optimiser, its state or the probe."""
    budget = trial.budget
    kind = OptimizerChoice.parse(budget.optimizer).kind
    if method.needs_sgd and kind != "sgd":
        raise UserError(
            f"this method needs budget.optimizer=sgd, not {kind}, because {method.needs_sgd}: choose sgd, or "
            "another method."
        )
    if method.own_start and trial.probe.every:
        raise UserError(
            "the clients of this method start at their own last weights, which a probe does not see: leave "
            "the probe out."
        )
    if method.fresh_momentum and budget.optimizer_state == "kept":
        raise UserError(
            "this method divides by the steps of a momentum that starts at 0: use "
            "budget.optimizer_state=fresh."
        )


def check_fits(method: Method, state: State, initial: Weights, trial: Trial) -> None:
    """Refuse a state of another model, one that lacks what the method's server keeps, or one whose clients
    kept the state of another optimiser."""
    of_model = state.server.weights
    for have, need in ((of_model.params, initial.params), (of_model.buffers, initial.buffers)):
        for name in sorted(have.keys() | need.keys()):
            if name not in have or name not in need or have[name].shape != need[name].shape:
                raise UserError(
                    f"the state to start from is of another model ('{name}' differs): start from one of this."
                )
    if missing := sorted(method.server.init(initial).keys() - state.server.memory.keys()):
        raise UserError(
            f"the state to start from is of another method (it lacks '{missing[0]}' of the server): start "
            "from one of this."
        )
    expected = trial.budget.local_optimizer(trial.budget.lr).init(initial.params).keys()
    for client in list(state.optimizers)[:1]:
        if trial.budget.optimizer_state == "kept" and state.optimizers[client].keys() != expected:
            raise UserError(
                "the state to start from is of clients with another optimiser: start from one of this, or "
                "use budget.optimizer_state=fresh."
            )
