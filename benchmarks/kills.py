"""Kills runs again and again, at random moments and at the worst ones, and resumes them.

`python -m benchmarks.kills --kills 100` trains every method in turn: once undisturbed, and once with kill -9
at several moments, each time resumed with a random engine and number of workers. In the end both folders must
have the same model, records and summary, except for times. Each run is a process that is forked from one that
has imported all modules.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

SETTINGS = (
    "--dataset", "digits", "--skew", "dirichlet:0.3", "--clients", "5", "--cohort", "3", "--rounds", "6",
    "--epochs", "1", "--model", "mlp-small", "--set", "model.hidden=[16]", "--probe", "every=3",
    "--checkpoint", "every=1", "--quiet",
)  # fmt: skip
KEPT = ("--set", "budget.optimizer_state=kept")
TIMES = {"seconds", "probe_seconds", "time", "run_dir"}
"""Values that may differ between two runs of the same experiment."""
STAGES = "pkd:warmup=2,expert_rounds=2,groups=1/2;3/5/8"


def fingerprint(folder: Path) -> str:
    """Return a SHA-256 of a run's model, records and summary without times."""
    digest = hashlib.sha256((folder / "model.safetensors").read_bytes())
    for name in ("rounds.jsonl", "probes.jsonl", "summary.json"):
        text = (folder / name).read_text() if (folder / name).exists() else ""
        for line in text.splitlines() if name.endswith("l") else [text]:
            digest.update(json.dumps(_timeless(json.loads(line)), sort_keys=True).encode())
    digest.update((folder / "partition.json").read_bytes())
    return digest.hexdigest()


def _timeless(value: Any) -> Any:
    """Return a record without times, at every level."""
    if isinstance(value, dict):
        return {key: _timeless(each) for key, each in value.items() if key not in TIMES}
    return [_timeless(each) for each in value] if isinstance(value, list) else value


# Moments


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _at(owner: Any, name: str, count: int, *, before: bool = True) -> None:
    """Let a function kill the process before or after its call number `count`."""
    whole, calls = getattr(owner, name), 0

    def killing(*arguments: Any, **named: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == count and before:
            _die()
        result = whole(*arguments, **named)
        if calls == count:
            _die()
        return result

    setattr(owner, name, killing)


def _in_step(count: int) -> None:
    from unskew.engines import loop

    _at(loop, "gradient_of", count)


def _in_aggregation(count: int) -> None:
    from unskew.rounds import aggregation

    _at(aggregation, "_gather", count, before=False)


def _in_stage(count: int) -> None:
    from unskew.program import Run

    _at(Run, "_stage", count)


def _around_rename(count: int) -> None:
    """Kill before a rename or after it: fsync is called for the file before, and for its folder after it."""
    from unskew import files

    _at(files.os, "fsync", count)


def _in_write(count: int) -> None:
    """Kill when half of a checkpoint is written."""
    from unskew.checkpoints import stages

    whole, calls = stages.write_file, 0

    def half(path: Path, content: bytes) -> None:
        nonlocal calls
        calls += 1
        if calls == count:
            path.with_name(f".{path.name}.dead.part").write_bytes(content[: len(content) // 2])
            _die()
        whole(path, content)

    stages.write_file = half


def _in_record(count: int) -> None:
    """Kill when half of a line of a record is written."""
    from unskew import runs

    whole, calls = runs.RunFolder._add_line, 0

    def half(folder: runs.RunFolder, name: str, written: Any) -> None:
        nonlocal calls
        calls += 1
        if calls == count:
            with (folder.path / name).open("ab") as file:
                file.write(b'{"round": ')
            _die()
        whole(folder, name, written)

    runs.RunFolder._add_line = half  # type: ignore[method-assign]


def _at_end(count: int) -> None:
    from unskew.runs import folder

    _at(folder, "write_whole", count, before=False)


POINTS: dict[str, tuple[Callable[[int], None], int]] = {
    "in a step": (_in_step, 40),
    "in aggregation": (_in_aggregation, 5),
    "at a stage": (_in_stage, 4),
    "around a rename": (_around_rename, 14),
    "in a checkpoint's write": (_in_write, 5),
    "in a record's write": (_in_record, 6),
    "between files": (_at_end, 4),
}
"""By moment, the function that lets a process be killed then, and the highest number of the call to draw."""
ANYWHERE = "at any time"


def fork(arguments: Sequence[str], log: Path, point: Callable[[], None] | None = None) -> int:
    """Run the command line in a forked process, and return its id."""
    sys.stdout.flush()
    child = os.fork()
    if child:
        return child
    status = 1
    try:
        with log.open("ab") as file:
            os.dup2(file.fileno(), 1)
            os.dup2(file.fileno(), 2)
        sys.stdout, sys.stderr = (os.fdopen(number, "w", buffering=1, closefd=False) for number in (1, 2))
        if point:
            point()
        from unskew.cli import main

        sys.argv = ["unskew", *arguments]
        main()
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else 1
    finally:
        sys.stdout.flush()
        os._exit(status)


@dataclass
class Tally:
    kills: Counter[str] = field(default_factory=Counter)
    """The number of killed processes, by moment."""
    runs: int = 0
    """The number of runs that were resumed to their end."""
    unequal: list[str] = field(default_factory=list)


def try_method(method: str, kills: int, rng: random.Random, folder: Path, tally: Tally) -> dict[str, Any]:
    """Run a method undisturbed and with a number of kills, and return a line about the comparison."""
    more = list(KEPT) if rng.random() < 0.3 and method not in WITHOUT_KEPT else []
    ask = ["--method", method, "--seed", str(rng.randrange(1000)), *SETTINGS, *more]
    log = folder / "log"
    began = time.monotonic()
    whole = fork(["run", *ask, "--out", str(folder / "whole"), "--engine", "loop"], log)
    _, status = os.waitpid(whole, 0)
    if os.waitstatus_to_exitcode(status):
        raise SystemExit(f"{method} does not run:\n{log.read_text()[-2000:]}")
    takes = time.monotonic() - began
    broken, done, hit = folder / "broken", 0, []
    while True:
        engine = rng.choice([["--engine", "loop"], *(["--engine", "pool", "--workers", n] for n in "124")])
        begin = not (broken / "experiment.toml").exists()
        command = ["run", *ask, "--out", str(broken)] if begin else ["resume", str(broken), "--quiet"]
        moment, point = rng.choice([ANYWHERE, *POINTS]), None
        if done < kills and moment != ANYWHERE:
            install, most = POINTS[moment]
            point = partial(install, rng.randint(1, most))
            if install is _in_step:  # in a worker it would be a fault of a client, which would be left out
                engine = ["--engine", "loop"]
        child = fork([*command, *engine], log, point)
        if done < kills and moment == ANYWHERE:
            time.sleep(rng.uniform(0, takes))
            os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
        code = os.waitstatus_to_exitcode(status)
        if code == -signal.SIGKILL:
            tally.kills[moment] += 1
            hit.append(moment)
            done += 1
        elif code == 0:
            break
        else:
            raise SystemExit(f"{method} ended with {code}:\n{log.read_text()[-3000:]}")
    same = fingerprint(folder / "whole") == fingerprint(broken)
    tally.runs += 1
    if not same:
        tally.unequal.append(f"{method}: {hit}, {difference(folder / 'whole', broken)}")
    return {"method": method, "options": more, "kills": hit, "equal": same}


def difference(one: Path, other: Path) -> str:
    """Return the first difference between the records of two runs."""
    for name in ("rounds.jsonl", "probes.jsonl", "summary.json"):
        texts = [(folder / name).read_text() for folder in (one, other)]
        each = [text.splitlines() if name.endswith("l") else [text] for text in texts]
        for number, (mine, theirs) in enumerate(zip(*each, strict=False), 1):
            first, second = (_timeless(json.loads(line)) for line in (mine, theirs))
            for key in first:
                if first[key] != second.get(key):
                    return f"{name}, line {number}, {key}: {first[key]} and {second.get(key)}"[:300]
        if len(each[0]) != len(each[1]):
            return f"{name} has {len(each[0])} lines and {len(each[1])}"
    return "the model"


WITHOUT_KEPT = {"fednova", "scaffold", "feddyn", "fedlmd-switch"}


def names() -> list[str]:
    from unskew.methods import METHODS

    return [STAGES if name == "pkd" else name for name in METHODS]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=100, help="in all")
    parser.add_argument("--each", type=int, default=4, help="kills of a run")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, help="a file for a line of JSON for every run")
    parser.add_argument("methods", nargs="*")
    given = parser.parse_args()
    prepare()
    rng, tally = random.Random(given.seed), Tally()
    order = given.methods or names()
    while sum(tally.kills.values()) < given.kills:
        for method in order:
            with tempfile.TemporaryDirectory() as scratch:
                line = try_method(method, given.each, rng, Path(scratch), tally)
            print(json.dumps(line), flush=True)
            if given.out:
                with given.out.open("a") as file:
                    file.write(json.dumps(line) + "\n")
            if sum(tally.kills.values()) >= given.kills and given.methods:
                break
    print(f"{sum(tally.kills.values())} kills of {tally.runs} runs, {len(tally.unequal)} of them unequal")
    for moment, count in tally.kills.most_common():
        print(f"  {moment}: {count}")
    for each in tally.unequal:
        print("unequal:", each)
    sys.exit(bool(tally.unequal))


def prepare() -> None:
    """Import the modules that every run needs, so that forked processes have them."""
    import unskew.cli.resume  # noqa: F401
    import unskew.cli.run  # noqa: F401
    import unskew.engines.cpu.pool  # noqa: F401
    import unskew.methods  # noqa: F401


if __name__ == "__main__":
    main()
