"""How often a checkpoint is due."""

from __future__ import annotations

import re
from dataclasses import dataclass

from unskew.errors import UserError


@dataclass(frozen=True)
class Period:
    """How often a checkpoint is due."""

    rounds: int | None = None
    """The number of rounds between two checkpoints; None if time decides."""
    seconds: float | None = 30.0
    """The number of seconds between two checkpoints; None if rounds decide. If both are None, there are no
    checkpoints."""
    adapts: bool = True
    """Whether there may be fewer checkpoints, so that they take no more than `MOST_COST` of the time."""

    @classmethod
    def parse(cls, text: str) -> Period:
        """Read `auto`, `never`, `every=10` (rounds) or a time such as `30s`, `5m` or `2h`."""
        text = text.strip().removeprefix("every=")
        if text == "auto":
            return cls()
        if text == "never":
            return cls(seconds=None)
        if match := re.fullmatch(r"(\d{1,9})", text):
            if int(match[1]):
                return cls(rounds=int(match[1]), seconds=None, adapts=False)
        elif match := re.fullmatch(r"(\d{1,9}(?:\.\d{1,9})?)\s*(s|m|h)", text):
            return cls(seconds=float(match[1]) * {"s": 1, "m": 60, "h": 3600}[match[2]], adapts=False)
        raise UserError(
            f"checkpoint is '{text}' but should be every=ROUNDS, a time such as 30s or 5m, auto or never."
        )
