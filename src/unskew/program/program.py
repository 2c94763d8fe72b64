"""A method in stages."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass, field, replace
from typing import Any

from unskew.errors import UserError
from unskew.method import Method, Work, combined_parts
from unskew.program.run import MakeRun, Run
from unskew.program.stages import StageStore
from unskew.result import Result
from unskew.rounds import OnRound
from unskew.trial import Trial


@dataclass(frozen=True)
class Program:
    """A method in stages, or one that changes the model: a function of a `Run`. It trains with a base method:
    plain FedAvg, or what the program was combined with by `+`. A program can be combined with methods, but
    not with another program."""

    run: Callable[[Run], Result]
    base: Method = Method()
    work: Work | None = None
    """What every round computes at a client beyond the base method, where all rounds compute the same."""
    parts: Mapping[str, Mapping[str, Any]] = field(default_factory=dict, compare=False)
    """The methods that it combines, as in `Method.parts`."""
    one_place: str = ""
    """Why it cannot train across machines whose data stay there, as what follows "because"; empty: it can."""

    @property
    def notes(self) -> tuple[str, ...]:
        """What a reader of its results should know before they come."""
        return self.base.notes

    def work_in(self, trial: Trial) -> Work | None:
        """Return what a client computes in every round; None if the stages differ or it is unknown."""
        base = self.base.work_in(trial)
        return None if self.work is None or base is None else self.work + base

    def train_in_stages(
        self,
        trial: Trial,
        on_round: OnRound = lambda _: None,
        keeper: StageStore | None = None,
        make_run: MakeRun | None = None,
    ) -> Result:
        """Train under a trial's conditions. Stages that the keeper has stored are not trained again, but
        their rounds are reported. `make_run` makes the run if clients are not asked by the trial's engine."""
        with closing((make_run or Run)(trial, self.base, on_round, keeper)) as run:
            return self.run(run)

    def __add__(self, other: Method) -> Program:
        if isinstance(other, Program):
            raise UserError("these methods cannot be combined: each trains in stages of its own.")
        return replace(self, base=self.base + other, parts=combined_parts(self.parts, other.parts))

    __radd__ = __add__
