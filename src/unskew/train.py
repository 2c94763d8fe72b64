"""`unskew.train`: train a model with a method under the conditions of a trial."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from threading import RLock

import torch

from unskew.errors import UserError
from unskew.method import Method
from unskew.program import MakeRun, Program, Run, StageStore
from unskew.result import Result, State
from unskew.rounds import OnRound
from unskew.trial import Trial

_ONE_AT_A_TIME = RLock()
"""Training uses PyTorch's random state and settings, which are the same for all threads of a process."""


def train(
    trial: Trial,
    method: Method | Program | None = None,
    *,
    start: State | None = None,
    on_round: OnRound = lambda _: None,
    keeper: StageStore | None = None,
    make_run: MakeRun | None = None,
) -> Result:
    """Train one global model under a trial's conditions. The method is FedAvg by default.

    `on_round` is called with every round when it ends. `start` is the state with which another training of
    the same model ended: training continues from it, and the result has only the rounds after it. `keeper`,
    such as an `unskew.Checkpoints`, stores the state of training. If it has stored rounds of this training
    before, training resumes after them, calls `on_round` with these rounds too, and its result has all
    rounds. `make_run` is for clients that no engine of a trial reaches, such as those on other machines.

    Without `make_run`, only one thread of a process trains at a time. Engines run clients in parallel."""
    method = method or Method()
    asked = method
    if isinstance(method, Method):
        method = in_one_stage(method, start)
    elif not isinstance(method, Program):
        raise UserError("train needs a method, such as unskew.methods.fedprox(): call its function first.")
    elif start is not None:
        raise UserError("a method in stages begins at its beginning: leave start out.")
    with _ONE_AT_A_TIME if make_run is None else nullcontext(), torch.inference_mode(False):
        result = method.train_in_stages(trial, on_round, keeper, make_run)
    parts = {"fedavg": {}} if asked == Method() else asked.parts
    return replace(result, trial=trial, parts=parts, work=asked.work_in(trial))


def in_one_stage(method: Method, start: State | None = None) -> Program:
    """Return a plain method as a program with one stage, which trains all rounds."""

    def all_rounds(run: Run) -> Result:
        rounds = run.trial.budget.rounds
        if start and start.round >= rounds:
            raise UserError(
                f"the state to start from is that after round {start.round}, and the budget has {rounds}: "
                "give it more rounds."
            )
        return run.train_all(run.base, start=start)

    return Program(all_rounds, base=method)
