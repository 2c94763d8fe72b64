"""Damaged and hostile input for every reader: each input is read, or refused in one sentence.

    python -m benchmarks.fuzz --inputs 100000
    python -m benchmarks.fuzz --inputs 5000 --only manifest,cifar10 --seed 3
    python -m benchmarks.fuzz --atheris manifest -- -runs=100000

Inputs are valid examples with a few edits, drawn by hypothesis. These are failures: an exception other than
UserError, a warning, several lines, more than five seconds or a gigabyte, a file left behind. The inputs that
failed are kept in a folder. With `--atheris`, and the package of that name, the code that edits reach guides
their choice.

A new reader needs one more entry of KINDS: a function that writes a valid example and says how it is read.
"""

from __future__ import annotations

import argparse
import faulthandler
import gc
import math
import resource
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from types import FunctionType

import hypothesis
from PIL import Image

from benchmarks.fuzz.edits import INPUTS, Input
from benchmarks.fuzz.kinds import KINDS, draw, real_runs, settle
from benchmarks.fuzz.trying import Tally, attempt, explore, prepared

MEMORY = 1 << 30
"""Bytes that reading may allocate."""


def shares(inputs: int, kinds: Sequence[str]) -> dict[str, int]:
    """Return the number of inputs of each kind."""
    total = sum(KINDS[kind][0] for kind in kinds)
    return {kind: math.ceil(inputs * KINDS[kind][0] / total) for kind in kinds}


def limit_memory() -> None:
    """Limit the memory of this process to what it has now and MEMORY more."""
    pages = int(Path("/proc/self/statm").read_text(encoding="utf-8").split()[0])
    limit = pages * resource.getpagesize() + MEMORY
    resource.setrlimit(resource.RLIMIT_AS, (limit, resource.RLIM_INFINITY))


def with_atheris(kind: str, arguments: list[str]) -> None:
    """Let atheris choose edits by the code that they reach."""
    try:
        import atheris
    except ImportError:
        raise SystemExit("atheris is not installed: pip install atheris.") from None
    tally = Tally()
    with prepared(kind) as target:

        @hypothesis.settings(database=None, deadline=None)
        @hypothesis.given(INPUTS)
        def run(drawn: Input) -> None:
            attempt(target, drawn, tally)
            assert not tally.failures, tally.failures

        for each in gc.get_objects():
            if type(each) is FunctionType and str(each.__module__).startswith("unskew."):
                atheris.instrument_func(each)
        atheris.Setup(
            [sys.argv[0], "-max_len=4096", "-len_control=0", *arguments], run.hypothesis.fuzz_one_input
        )
        atheris.Fuzz()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--inputs", type=int, default=100_000)
    parser.add_argument("--only", default="", help=f"kinds, separated by commas: {', '.join(KINDS)}")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--keep", type=Path, default=Path("fuzz-failures"), help="folder for inputs that failed"
    )
    parser.add_argument("--atheris", metavar="KIND", choices=KINDS)
    parser.add_argument("rest", nargs="*", help="for atheris, after --")
    chosen = parser.parse_args()
    faulthandler.enable()
    if chosen.atheris:
        with_atheris(chosen.atheris, chosen.rest)
        return
    kinds = chosen.only.split(",") if chosen.only else list(KINDS)
    settle({})  # so that late imports are done
    real_runs()
    draw("curves")(real_runs())
    Image.init()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    print(f"{'kind':24}{'inputs':>9}{'refused':>9}{'failed':>8}{'slowest s':>11}{'inputs/s':>10}")
    total, failed = Tally(), 0
    for kind, inputs in shares(chosen.inputs, kinds).items():
        limit_memory()
        tally = explore(kind, inputs, chosen.seed)
        total.tried += tally.tried
        total.refused += tally.refused
        total.seconds += tally.seconds
        total.slowest = max(total.slowest, tally.slowest)
        failed += sum(tally.often.values())
        _row(kind, tally, sum(tally.often.values()))
        for number, (place, (problem, content)) in enumerate(tally.failures.items()):
            chosen.keep.mkdir(exist_ok=True)
            (chosen.keep / f"{kind}-{number}").write_bytes(content)
            print(f"    {tally.often[place]} x {problem}", flush=True)
    _row("all", total, failed)
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    print(f"seed {chosen.seed}; the largest memory was {grown:.0f} MB more than before the first input")
    shutil.rmtree(real_runs().parent)
    sys.exit(1 if failed else 0)


def _row(kind: str, tally: Tally, failed: int) -> None:
    speed = tally.tried / max(tally.seconds, 1e-9)
    print(
        f"{kind:24}{tally.tried:9,}{tally.refused:9,}{failed:8,}{tally.slowest:11.2f}{speed:10.0f}",
        flush=True,
    )


if __name__ == "__main__":
    main()
