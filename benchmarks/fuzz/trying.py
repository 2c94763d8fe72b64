"""Reads edited inputs, and notes what is neither an answer nor a refusal in one sentence."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import tempfile
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

import hypothesis

from benchmarks.fuzz.edits import INPUTS, Input, content_of
from benchmarks.fuzz.kinds import KINDS
from benchmarks.fuzz.target import Target
from unskew import UserError

LONGEST = 5.0
"""Seconds that an answer may take."""


class HangError(BaseException):
    """Reading took too long."""


def _too_long(_: int, __: FrameType | None) -> None:
    raise HangError(f"no answer in {LONGEST:g} s")


@dataclass
class Tally:
    """The results of the inputs of one kind."""

    tried: int = 0
    refused: int = 0
    slowest: float = 0.0
    seconds: float = 0.0
    failures: dict[str, tuple[str, bytes]] = field(default_factory=dict)
    """By place in the code: the problem, and the first input with it."""
    often: Counter[str] = field(default_factory=Counter)


def attempt(target: Target, drawn: Input, tally: Tally) -> None:
    """Read one input, and note its result."""
    number, content = content_of(target, drawn)
    before = sorted(path.name for path in target.folder.iterdir())
    start = time.perf_counter()
    signal.setitimer(signal.ITIMER_REAL, LONGEST)
    problem, place = "", ""
    try:
        target.read(number, content)
    except UserError as error:
        tally.refused += 1
        said = str(error)
        if not said.rstrip().endswith((".", "?")):
            problem, place = f"no sentence: {said[:300]!r}", "sentence " + re.sub(r"\W|\d", "", said)[-20:]
    except (Exception, HangError) as error:
        frames = [each for each in traceback.extract_tb(error.__traceback__) if "unskew" in each.filename]
        inside = frames[-1] if frames else traceback.extract_tb(error.__traceback__)[-1]
        place = f"{type(error).__name__} {Path(inside.filename).name}:{inside.lineno}"
        problem = f"{type(error).__name__}: {str(error)[:300]} ({Path(inside.filename).name}:{inside.lineno})"
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
    took = time.perf_counter() - start
    tally.tried += 1
    tally.seconds += took
    tally.slowest = max(tally.slowest, took)
    if not problem and sorted(path.name for path in target.folder.iterdir()) != before:
        problem = place = "a file is left behind"
    if problem:
        tally.often[place] += 1
        tally.failures.setdefault(place, (problem, content))


@contextlib.contextmanager
def prepared(kind: str) -> Iterator[Target]:
    """Prepare the examples of a kind in a temporary folder; only for the main thread, which has signals."""
    cache_before = os.environ.get("XDG_CACHE_HOME")
    with tempfile.TemporaryDirectory(prefix="fuzz-") as temporary, warnings.catch_warnings():
        warnings.simplefilter("error")
        os.environ["XDG_CACHE_HOME"] = f"{temporary}/cache"
        folder = Path(temporary, "input")
        folder.mkdir()
        old = signal.signal(signal.SIGALRM, _too_long)
        try:
            target = KINDS[kind][1](folder)
            for number, (content, _) in enumerate(target.examples):
                with (
                    contextlib.suppress(UserError) if content.count(b"nowhere") else contextlib.nullcontext()
                ):
                    _expect_valid(target, number, content)
            yield target
        finally:
            signal.signal(signal.SIGALRM, old)
            if cache_before is None:
                os.environ.pop("XDG_CACHE_HOME")
            else:
                os.environ["XDG_CACHE_HOME"] = cache_before


def _expect_valid(target: Target, number: int, content: bytes) -> None:
    with contextlib.suppress(UserError):
        target.read(number, content)


def explore(kind: str, inputs: int, seed: int) -> Tally:
    """Try a number of inputs of a kind, drawn with a seed."""
    tally = Tally()
    with prepared(kind) as target:

        @hypothesis.seed(seed)
        @hypothesis.settings(
            max_examples=inputs,
            deadline=None,
            database=None,
            derandomize=False,
            phases=[hypothesis.Phase.generate],
            suppress_health_check=list(hypothesis.HealthCheck),
            verbosity=hypothesis.Verbosity.quiet,
        )
        @hypothesis.given(INPUTS)
        def run(drawn: Input) -> None:
            attempt(target, drawn, tally)

        run()
    return tally
