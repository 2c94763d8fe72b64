"""A run's folder: what was asked, where it ran, who held what, what every round did, and the model."""

from __future__ import annotations

import contextlib
import hashlib
import os
import platform
import re
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save

import unskew
from unskew import metrics, record
from unskew.clock import Clock
from unskew.errors import UserError
from unskew.experiment import Experiment, Prepared
from unskew.files import write_file
from unskew.metrics import Comparison, Stages, Summary, Traffic
from unskew.probe import Findings
from unskew.record import Json, to_json
from unskew.train import Result, Round
from unskew.types import Params
from unskew.version import VERSION

LONGEST_NAME = 120  # of a run folder, before the time is added; file systems allow 255 bytes


class RunFolder:
    """Opened when everything has been checked and before the first round; every file is whole or absent,
    and a run that is stopped keeps all rounds it finished."""

    def __init__(self, path: Path, prepared: Prepared) -> None:
        self.path = path
        claim(path)
        write_whole(path / "experiment.toml", prepared.experiment.toml())
        write_whole(path / "environment.json", to_json(environment(prepared)))
        prepared.trial.federation.save(path / "partition.json")
        (path / "rounds.jsonl").touch()
        if prepared.trial.probe.every:
            (path / "probes.jsonl").touch()
        dataset = prepared.trial.federation.dataset
        tested = np.bincount(dataset.test.labels.numpy(), minlength=len(dataset.classes)) > 0
        self._shares = metrics.group_shares(prepared.trial.federation.counts.numpy(), tested)
        self._domains = dataset.domains

    def append(self, round: Round) -> tuple[record.Round, record.Probe | None]:
        """Write a round down. What was written of it, and of its probe, comes back."""
        line = self._line(round)
        self._add_line("rounds.jsonl", line)
        probe = None if round.probe is None else probe_record(round.number, round.probe)
        if probe is not None:
            self._add_line("probes.jsonl", probe)
        return line, probe

    def _add_line(self, name: str, written: record.Round | record.Probe) -> None:
        line = to_json(written, indent=None) + "\n"
        with writing(self.path / name) as path, path.open("ab") as file:
            file.write(line.encode())  # as bytes it goes out at once: a run that is killed leaves whole lines

    def _line(self, round: Round) -> record.Round:
        plain = record.Round(
            round=round.number,
            lr=round.lr,
            cohort=list(round.cohort),
            trained=list(round.trained),
            samples=round.samples,
            train_loss=round.train_loss,
            seconds=round.seconds,
            traffic=_traffic(round.traffic),
            tallies=dict(round.tallies),
        )
        if round.test is None:
            return plain
        confusion, domains = round.test.confusion, round.test.domains
        by_class = metrics.class_accuracy(confusion)
        share = metrics.prediction_share(confusion)
        extremes = metrics.max_mean_min(by_class)
        return record.TestedRound(
            **vars(plain),
            accuracy=metrics.accuracy(confusion),
            loss=round.test.loss,
            class_accuracy=by_class.tolist(),
            macro_accuracy=metrics.macro_accuracy(confusion),
            max_class=extremes["max"],
            min_class=extremes["min"],
            discrepancy=metrics.discrepancy(by_class),
            worst_class=metrics.worst_class(by_class),
            groups=record.Groups(**metrics.weigh(by_class, self._shares)),
            prediction_share=share.tolist(),
            distance_to_uniform=metrics.distance_to_uniform(share),
            domains=None if domains is None else _domain_accuracy(self._domains, domains),
        )

    def finish(self, prepared: Prepared, result: Result, time: Callable[[], record.Time]) -> record.Summary:
        """Write the model, then the summary, with the time until then; return the summary."""
        weights = result.weights
        tensors = {
            name: value.cpu().contiguous() for name, value in (weights.params | weights.buffers).items()
        }
        # One entry alone: of several, safetensors writes now one first, now another.
        content = save(tensors, metadata={"format": "pt"})
        write_whole(self.path / "model.safetensors", content)
        summary = summarise(prepared, result, time(), self.path)
        write_whole(self.path / "summary.json", to_json(summary))
        return summary

    def fail(self, failure: record.Failure) -> None:
        """Write down why there will be no summary."""
        write_whole(self.path / "error.json", to_json(failure))


def summarise(prepared: Prepared, result: Result, time: record.Time, path: Path) -> record.Summary:
    """What `--json` prints and `summary.json` holds."""
    experiment, trial = prepared.experiment, prepared.trial
    final = result.final
    by_class = metrics.class_accuracy(final.confusion)
    worst = metrics.worst_class(by_class)
    work = prepared.method.work_in(trial)
    assert isinstance(experiment.skew.clients, int)  # resolved, as the seed is
    assert experiment.skew.seed is not None
    summary = record.Summary(
        identity=experiment.identity(),
        method=experiment.method.name,
        hyperparameters=dict(experiment.method.model_extra or {}),
        dataset=experiment.data.name,
        skew=experiment.skew.recipe,
        clients=experiment.skew.clients,
        seed=experiment.seed,
        partition_seed=experiment.skew.seed,
        rounds=len(result.rounds),
        accuracy=record.Accuracy(**result.accuracy),
        macro_accuracy=metrics.macro_accuracy(final.confusion),
        loss=final.loss,
        classes=list(result.classes),
        class_accuracy=by_class.tolist(),
        groups=record.Groups(**result.groups),
        worst_class=worst,
        worst_class_accuracy=float(by_class[worst]),
        discrepancy=metrics.discrepancy(by_class),
        forgetting=result.forgetting,
        confusion=final.confusion.tolist(),
        misclassification_share=metrics.misclassification_share(final.confusion).tolist(),
        mean_probability=final.mean_probability.tolist(),
        feature_distances=metrics.feature_distances(final.mean_features).tolist(),
        notes=list(result.notes),
        seconds=result.seconds,
        probe_seconds=result.probe_seconds,
        traffic=_traffic(result.traffic),
        passes=None if work is None else record.Passes(**asdict(work.passes(trial.budget.epochs))),
        cost=result.cost,
        tallies={tally.name: record.Tally(tally.of, _shares(result, tally.name)) for tally in result.tallies},
        weights_sha256=weights_sha256(result.weights.params),
        time=time,
        run_dir=str(path),
    )
    if final.domains is None:
        return summary
    return replace(summary, domains=_domain_accuracy(trial.federation.dataset.domains, final.domains))


def _shares(result: Result, tally: str) -> list[float | None]:
    """By round: what was counted, as a share of the samples that the clients passed through."""
    return [
        round.tallies[tally] / round.samples if tally in round.tallies and round.samples else None
        for round in result.rounds
    ]


FIRST_ROUND, ROUNDS, END = "first round", "rounds", "end"
"""The parts of a clock from the beginning of training on."""


def time_of(clock: Clock) -> record.Time:
    """Where the time of a run went until now."""
    clock.mark(END)
    later = [clock.parts.get(name, 0.0) for name in (FIRST_ROUND, ROUNDS, END)]
    before = {name: spent for name, spent in clock.parts.items() if name not in (FIRST_ROUND, ROUNDS, END)}
    return record.Time(clock.total, before, *later)


def probe_record(round: int, found: Findings) -> record.Probe:
    """A line of `probes.jsonl`."""
    return record.Probe(
        round=round,
        seconds=found.seconds,
        clients=[
            record.Client(
                client=effect.client,
                before=effect.before.tolist(),
                after=effect.after.tolist(),
                aggregated=effect.aggregated.tolist(),
                groups=_effect(effect.groups),
                in_local=effect.in_local,
                out_local=effect.out_local,
                deviation=effect.deviation,
            )
            for effect in found.clients
        ],
        groups=_effect(found.groups),
        local_class_accuracy=found.local_class_accuracy.tolist(),
        drift=record.Drift(**found.drift),
    )


def _effect(groups: dict[str, Stages | None]) -> record.Effect:
    return record.Effect(
        **{
            name: None if stages is None else record.Stages(**asdict(stages), drop=stages.drop)
            for name, stages in groups.items()
        }
    )


def _traffic(sent: Traffic) -> record.Traffic:
    return record.Traffic(sent.up, sent.down)


def _domain_accuracy(names: tuple[str, ...], confusions: np.ndarray) -> dict[str, float | None]:
    return {
        name: metrics.accuracy(confusion) if confusion.sum() else None
        for name, confusion in zip(names, confusions, strict=True)
    }


def failure_of(error: Exception) -> record.Failure:
    """Why a run has failed: what is wrong, and by the notes that the error carries where it happened. Notes
    of several lines stand in the traceback alone."""
    said = " ".join(str(error).split())
    if not isinstance(error, UserError):
        said = f"{type(error).__name__}: {said}" if said else type(error).__name__
    return record.Failure(
        error=said,
        notes=[note for note in getattr(error, "__notes__", ()) if "\n" not in note],
        traceback="".join(traceback.format_exception(error)),
    )


def weights_sha256(params: Params) -> str:
    """SHA-256 over the parameters' bytes (little-endian, row-major), in the order of their names."""
    digest = hashlib.sha256()
    for name in sorted(params):
        digest.update(params[name].detach().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()


def claim(path: Path) -> None:
    """Make the folder a run will write to, or say why not."""
    with writing(path):
        if path.is_file():
            raise UserError(f"the output folder {path} is a file: choose another with --out.")
        if (path / "experiment.toml").exists() or (path / "compare.json").exists():
            raise UserError(
                f"the output folder {path} holds another run: choose another with --out, or remove it."
            )
        path.mkdir(parents=True, exist_ok=True)
        if any(path.iterdir()):
            raise UserError(f"the output folder {path} is not empty: choose an empty or new one with --out.")


def free_folder(name: str, parent: Path = Path("runs")) -> Path:
    """A new folder, named after what runs in it and when; made at once, so that no other run takes it."""
    stem = f"{slug(name)}-{datetime.now():%Y%m%d-%H%M%S}"
    folder, number = parent / stem, 1
    while True:
        with writing(folder), contextlib.suppress(FileExistsError):
            folder.mkdir(parents=True)
            return folder
        number += 1
        folder = parent / f"{stem}-{number}"


def slug(text: str) -> str:
    """The text as a file name. Of a long one the end is kept: what tells runs apart stands there."""
    return re.sub(r"[^A-Za-z0-9.=_-]+", "-", text)[-LONGEST_NAME:].strip("-.")


Measure = Callable[[Result], float | None]

COMPARED: dict[str, Measure] = {
    "accuracy": lambda result: result.accuracy["last"],
    "worst_class_accuracy": lambda result: result.worst_accuracy,
    "vacant": lambda result: result.groups["vacant"],
}
"""What is compared between methods, of their last models."""


def comparison(
    experiment: Experiment,
    seeds: Sequence[int],
    outcomes: Mapping[str, Mapping[int, tuple[Result, record.Summary]]],
    failed: Sequence[record.FailedRun] = (),
) -> dict[str, Any]:
    """What `compare.json` holds, of methods under the conditions of an experiment: of each, results and
    summaries by seed, as far as there are any. The first one is what the others are compared with."""
    results = {
        method: {seed: result for seed, (result, _) in each.items()} for method, each in outcomes.items()
    }
    first = next(iter(results))
    return {
        "dataset": experiment.data.name,
        "skew": experiment.skew.recipe,
        "clients": experiment.skew.clients,
        "seeds": list(seeds),
        "methods": {method: statistics(list(each.values())) for method, each in results.items()},
        "baseline": first,
        "comparisons": {
            method: against(each, results[first])
            for method, each in results.items()
            if method != first and each.keys() & results[first].keys()
        },
        # By seed, as they ran.
        "runs": [
            outcomes[method][seed][1] for seed in seeds for method in outcomes if seed in outcomes[method]
        ],
        "failed": list(failed),
    }


def statistics(results: Sequence[Result]) -> Json:
    """Mean, standard deviation (n-1) and 95% confidence interval over the runs of several seeds."""

    def over(values: Sequence[float | None]) -> Json:
        return _told(metrics.over_seeds(values))

    return {
        "accuracy": {
            key: over([result.accuracy[key] for result in results])
            for key in ("best", "last", "mean_last_10")
        },
        "worst_class_accuracy": over([result.worst_accuracy for result in results]),
        "groups": {
            key: over([result.groups[key] for result in results])
            for key in ("majority", "minority", "vacant")
        },
        "seconds": over([result.seconds for result in results]),
    }


def against(results: Mapping[int, Result], baseline: Mapping[int, Result]) -> dict[str, Json]:
    """A method against another on the seeds that both have: by each measure the difference, and when it was
    as good as the other ever got."""
    told: dict[str, Json] = {}
    for name, measure in COMPARED.items():
        own, other = (
            {seed: measure(result) for seed, result in each.items()} for each in (results, baseline)
        )
        found = metrics.compare(own, other)
        told[name] = _told(found)
    both = [seed for seed in results if seed in baseline]
    curves = [(_curve(results[seed]), _curve(baseline[seed])) for seed in both]
    targets = [max(other.values()) for _, other in curves]
    told["target"] = list(targets)
    told["rounds_to_target"] = [
        metrics.rounds_to(target, own) for (own, _), target in zip(curves, targets, strict=True)
    ]
    told["speed_up"] = [metrics.speed_up(own, other) for own, other in curves]
    return told


def _curve(result: Result) -> dict[int, float]:
    """Accuracy by round."""
    return {
        round.number: metrics.accuracy(round.test.confusion)
        for round in result.rounds
        if round.test is not None
    }


def _told(found: Summary | Comparison | None) -> Json:
    if found is None:
        return None
    return {name: list(value) if isinstance(value, tuple) else value for name, value in asdict(found).items()}


def write_whole(path: Path, content: str | bytes) -> None:
    """So that a reader sees all of it or none of it, and one who cannot write is told so in a sentence."""
    with writing(path):
        write_file(path, content)


@contextlib.contextmanager
def writing(path: Path) -> Iterator[Path]:
    """Say in one sentence why `path` cannot be written to."""
    try:
        yield path
    except OSError as error:
        raise UserError(
            f"cannot write to {path} ({error.strerror}): choose another folder with --out."
        ) from None


def environment(prepared: Prepared) -> record.Environment:
    """Where a run runs, and which one it is."""
    where = machine(prepared.trial.pick_device())
    return record.Environment(**vars(where), identity=prepared.experiment.identity())


def machine(device: torch.device) -> record.Machine:
    """Where this process runs."""
    packages = ("torch", "numpy", "scipy", "scikit-learn", "safetensors", "pydantic")
    return record.Machine(
        started=datetime.now(UTC).isoformat(timespec="seconds"),
        command=list(sys.argv),
        device=str(device),
        device_name=torch.cuda.get_device_name(device) if device.type == "cuda" else _cpu_name(),
        cores=os.cpu_count(),
        platform=platform.platform(),
        python=platform.python_version(),
        versions={"unskew": VERSION, **{package: version(package) for package in packages}},
        unskew_commit=_git_commit(Path(unskew.__file__).parent),
        working_directory_commit=_git_commit(Path.cwd()),
    )


def _cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")


def _git_commit(folder: Path) -> str | None:
    """The commit checked out in `folder`, with '+' where tracked files differ from it; None outside git.
    A repository may name programs in its settings, and may be a stranger's: none of them runs."""
    quiet = {"GIT_OPTIONAL_LOCKS": "0", "GIT_ALLOW_PROTOCOL": "none", "GIT_TERMINAL_PROMPT": "0"}
    ask = ["git", "-C", str(folder), "-c", "core.fsmonitor=false", "-c", f"core.hooksPath={os.devnull}"]

    def answer(*words: str) -> subprocess.CompletedProcess[str]:
        environment = os.environ | quiet
        return subprocess.run([*ask, *words], capture_output=True, text=True, timeout=10, env=environment)

    try:
        commit = answer("rev-parse", "HEAD")
        filters = answer("config", "--name-only", "--get-regexp", r"^filter\..*\.(clean|process|required)$")
        for name in filters.stdout.splitlines():
            if "=" in name:  # cannot be given another value
                return None
            ask += ["-c", f"{name}="]
        changed = answer("status", "--porcelain", "--untracked-files=no", "--ignore-submodules=all")
    except (OSError, ValueError, subprocess.TimeoutExpired):
        return None
    return commit.stdout.strip() + ("+" if changed.stdout.strip() else "") if commit.returncode == 0 else None
