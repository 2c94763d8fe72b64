"""Training as a whole: one model, by one method, under the conditions of a trial."""

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
"""Training uses PyTorch's random state and settings, of which a process has one."""


def train(
    trial: Trial,
    method: Method | Program | None = None,
    *,
    start: State | None = None,
    on_round: OnRound = lambda _: None,
    keeper: StageStore | None = None,
    make_run: MakeRun | None = None,
) -> Result:
    """Train one global model under a trial's conditions. `on_round` sees every round as it ends; `start`
    continues where another training of the same model ended, and the result has the rounds since then. A
    `keeper`, such as `unskew.Checkpoints`, keeps what training has come to: given again, training resumes
    from there, tells the rounds from before again, and its result has them all. `make_run` is for clients
    that no engine of a trial reaches, such as those on other machines. Of several threads one trains at a
    time: what is side by side in a process is the clients."""
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
    """A plain method as a program of one stage, which trains all rounds."""

    def all_rounds(run: Run) -> Result:
        rounds = run.trial.budget.rounds
        if start and start.round >= rounds:
            raise UserError(
                f"the state to start from is that after round {start.round}, and the budget has {rounds}: "
                "give it more rounds."
            )
        return run.train_all(run.base, start=start)

    return Program(all_rounds, base=method)
