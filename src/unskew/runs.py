"""A run's folder: what was asked, where it ran, who held what, what every round did, and the model."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import re
import traceback
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, replace
from datetime import datetime
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray
from safetensors.torch import save
from torch import Tensor

from unskew import metrics, record
from unskew.clock import Clock
from unskew.data.federation import Federation
from unskew.errors import UserError
from unskew.experiment import Experiment, Resolved, brief_skew, read
from unskew.files import sync_file, write_file
from unskew.lock import NAME as LOCK
from unskew.machine import machine
from unskew.metrics import Assessment, Stages, Traffic
from unskew.notation import flatten, write_method
from unskew.probe import Findings
from unskew.record import to_json
from unskew.result import Result, Round, Validation
from unskew.sites import Sites
from unskew.types import Params

T = TypeVar("T")
L = TypeVar("L", record.RoundRecord, record.ProbeRecord)
CHECKPOINTS = "checkpoints"
"""The folder of a run's checkpoints, in its own."""
LONGEST_NAME = 120  # of a run folder, before the time is added; file systems allow 255 bytes


def check_partition(path: Path, federation: Federation) -> None:
    """Refuse data, or a partition of it, that a run's partition.json does not tell of."""
    try:
        there = record.PARTITION.parse(path.read_text(encoding="utf-8"))
    except (record.DamagedError, OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path} is damaged ({error}): run it again in another folder.") from None
    found = there["dataset"].get("sha256"), there.get("index_sha256")
    if found != (federation.dataset.sha256, federation.partition.index_sha256):
        raise UserError(
            f"the data or its partition is not what {path} says: bring back the data that the run began "
            "with, or begin anew with another --out."
        )


class RunFolder:
    """Opened when everything has been checked and before the first round; every file is whole or absent, and
    a run that is stopped keeps all rounds it finished. A folder that holds the same experiment unfinished is
    continued: what is there stays."""

    def __init__(self, path: Path, resolved: Resolved) -> None:
        self.path, self.notes = path, list[str]()
        found = claim(path)
        if found == FINISHED:
            raise UserError(
                f"the output folder {path} holds a finished run: choose another with --out, or remove it."
            )
        if found == UNFINISHED:
            if not (path / "experiment.toml").exists():
                raise UserError(f"the output folder {path} holds a compare: choose another with --out.")
            check_same(path, resolved.experiment)
        for left in path.glob(".*.part"):  # by a crash, of a file that was being written
            left.unlink(missing_ok=True)
        where = environment(resolved)
        if not is_begun(path):  # a method may have failed in its first round and have been edited since
            write_whole(path / "experiment.toml", resolved.experiment.toml())
        self._keep_partition(resolved)
        before = self._environment()
        if before is None:
            write_whole(path / "environment.json", to_json(where))
        else:
            self.notes += self._other_versions(before, where)
            self._add_line("resumed.jsonl", where)
        self._rounds = self._whole_lines("rounds.jsonl", record.ROUND)
        self._probes = self._whole_lines("probes.jsonl", record.PROBE) if resolved.trial.probe.every else []
        with writing(path):
            (path / "error.json").unlink(missing_ok=True)
        dataset = resolved.trial.federation.dataset
        tested = np.bincount(dataset.test.labels.numpy(), minlength=len(dataset.classes)) > 0
        self._shares = metrics.group_shares(resolved.trial.federation.counts.numpy(), tested)
        self._domains = dataset.domains
        self._sites = resolved.trial.federation.sites

    def _keep_partition(self, resolved: Resolved) -> None:
        """Write who holds what, or check that it is as it was."""
        federation, path = resolved.trial.federation, self.path / "partition.json"
        if not path.exists():
            federation.save(path)
            return
        check_partition(path, federation)

    def _environment(self) -> record.Environment | None:
        """Where the run began; None where it begins now, or nobody can tell any more, which a note says."""
        try:
            return record.ENVIRONMENT.parse((self.path / "environment.json").read_text(encoding="utf-8"))
        except FileNotFoundError:
            return None
        except (record.DamagedError, OSError, UnicodeDecodeError):
            self.notes.append(
                "environment.json was damaged: it says where the run was resumed, not where it began."
            )
            return None

    def _other_versions(self, began: record.Environment, where: record.Environment) -> list[str]:
        """What the last bits of a result may depend on and is not what it was before the run was stopped."""
        before = [*self._whole_lines("resumed.jsonl", record.ENVIRONMENT), began]
        changed = [
            f"{name} {old} is {now} now"
            for name, now in where.versions.items()
            for old in dict.fromkeys(each.versions.get(name) for each in before)
            if old != now
        ]
        machines = dict.fromkeys(each.device_name for each in before)
        changed += [f"{old} is {where.device_name} now" for old in machines if old != where.device_name]
        if not changed:
            return []
        return [
            f"the run was resumed in another environment ({', '.join(changed)}): the last bits may differ."
        ]

    def _whole_lines(self, name: str, kind: record.Format[T]) -> list[T]:
        """The lines of a file. What a crash has left of a line is cut off, and so is what follows a line that
        is damaged: it is told or done again."""
        path, lines, whole = self.path / name, list[T](), 0
        with writing(path):
            path.touch()
            content = path.read_bytes()
            for line in content.splitlines(keepends=True):
                try:
                    if not line.endswith(b"\n"):
                        break
                    lines.append(kind.parse(line.decode()))
                except (record.DamagedError, UnicodeDecodeError):
                    self.notes.append(f"{path} was damaged in line {len(lines) + 1}: it was cut off there.")
                    break
                whole += len(line)
            if whole < len(content):
                os.truncate(path, whole)
        return lines

    def append(self, round: Round) -> tuple[record.RoundRecord, record.ProbeRecord | None]:
        """Write a round down, unless it was before the run was stopped. What stands there of it, and of its
        probe, comes back."""
        line = self._write("rounds.jsonl", self._line(round), self._rounds)
        if round.probe is None:
            return line, None
        return line, self._write("probes.jsonl", probe_record(round.number, round.probe), self._probes)

    def _write(self, name: str, line: L, there: list[L]) -> L:
        """Add a line to a file, or find it there. Where another stands in its place, as when the run was
        stopped after a fault that did not happen again, the file is cut off there."""
        if there:
            before = there.pop(0)
            if _timeless(before) == _timeless(line):
                return before
            there.clear()
            self._cut(name, line.round)
        self._add_line(name, line)
        return line

    def _cut(self, name: str, number: int) -> None:
        """Leave the lines of the rounds before this one."""
        path = self.path / name
        kept = [
            line
            for line in path.read_text(encoding="utf-8").splitlines()
            if json.loads(line)["round"] < number
        ]
        write_whole(path, "".join(f"{line}\n" for line in kept))
        self.notes.append(
            f"round {number} differs from what it was before the run was stopped: {name} has the new one."
        )

    def _add_line(
        self, name: str, written: record.RoundRecord | record.ProbeRecord | record.Environment
    ) -> None:
        line = to_json(written, indent=None) + "\n"
        with writing(self.path / name) as path, path.open("ab") as file:
            file.write(line.encode())  # as bytes it goes out at once: a run that is killed leaves whole lines

    def _line(self, round: Round) -> record.RoundRecord:
        plain = record.RoundRecord(
            round=round.number,
            lr=round.lr,
            cohort=list(round.cohort),
            trained=list(round.trained),
            samples=round.samples,
            train_loss=round.train_loss,
            seconds=round.seconds,
            traffic=_traffic(round.traffic),
            tallies=dict(round.tallies),
            faults=list(round.faults) or None,
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
            balanced_accuracy=metrics.balanced_accuracy(confusion),
            max_class=extremes["max"],
            min_class=extremes["min"],
            discrepancy=metrics.discrepancy(by_class),
            worst_class=metrics.worst_class(by_class),
            groups=record.Groups(**metrics.weigh(by_class, self._shares)),
            prediction_share=share.tolist(),
            distance_to_uniform=metrics.distance_to_uniform(share),
            domains=None if domains is None else _domain_accuracy(self._domains, domains),
            sites=spread_record(self._sites, round.test.answers),
            macro_f1=metrics.macro_f1(confusion),
            validation=None if round.validation is None else record.Validated(**_validated(round.validation)),
        )

    def finish(self, resolved: Resolved, result: Result, time: Callable[[], record.Time]) -> record.Summary:
        """Write the model, then the summary, with the time until then; return the summary."""
        weights = result.weights
        # Copies, since safetensors refuses tensors that share memory, as frozen ones of models side by side.
        tensors = {
            name: _once(value, result.network).cpu().contiguous().clone()
            for name, value in (weights.params | weights.buffers).items()
        }
        for name in ("rounds.jsonl", "probes.jsonl"):
            if (self.path / name).exists():
                with writing(self.path / name) as file:
                    sync_file(file)  # before the summary says that the run is finished
        model = model_file(resolved, result)
        # One entry alone: of several, safetensors writes now one first, now another.
        content = save(tensors, metadata={"unskew": to_json(model, indent=None)})
        write_whole(self.path / "model.json", to_json(model))
        write_whole(self.path / "model.safetensors", content)
        if result.owners is not None and len(result.sites) > record.MOST_SITES:
            lines = (to_json(site_record(site), indent=None) + "\n" for site in result.sites)
            write_whole(self.path / "sites.jsonl", "".join(lines))
        summary = summarise(resolved, result, time(), self.path)
        write_whole(self.path / "summary.json", to_json(summary))
        return summary


def _once(value: Tensor, network: record.NetworkRecord) -> Tensor:
    """A tensor of a model as it is written: of one that all clients' models share, the first axis has one
    entry."""
    shared = network.clients is not None and len(value) > 1 and value.stride(0) == 0
    return value[:1] if shared else value


def model_file(resolved: Resolved, result: Result) -> record.ModelFile:
    """All it takes to use the model of a run beside its weights."""
    experiment, dataset = resolved.experiment, resolved.trial.federation.dataset
    inputs = dataset.inputs
    return record.ModelFile(
        version=1,
        network=result.network,
        inputs=record.ModelInputs(kind=inputs.kind, shape=list(inputs.shape), vocabulary=inputs.vocabulary),
        classes=list(dataset.classes),
        mean=list(dataset.mean),
        std=list(dataset.std),
        columns=None if dataset.columns is None else dataset.columns.to_json(),
        words=None if dataset.words is None else dataset.words.to_json(),
        method=write_method(experiment.method.model_dump()),
        dataset=experiment.data.name,
        seed=None if result.hides_seed else experiment.seed,
        round=result.rounds[-1].number if result.validation is None else result.validation.round,
        identity=None if result.hides_seed else experiment.identity(),
    )


def summarise(resolved: Resolved, result: Result, time: record.Time, path: Path) -> record.Summary:
    """What `--json` prints and `summary.json` holds."""
    experiment, trial = resolved.experiment, resolved.trial
    final = result.final
    by_class = metrics.class_accuracy(final.confusion)
    worst = metrics.worst_class(by_class)
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
        balanced_accuracy=metrics.balanced_accuracy(final.confusion),
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
        passes=None
        if result.work is None
        else record.PassesRecord(**asdict(result.work.passes(trial.epochs))),
        cost=result.cost,
        tallies={
            tally.name: record.TallyRecord(tally.of, _shares(result, tally.name)) for tally in result.tallies
        },
        weights_sha256=weights_sha256(result.weights.params),
        time=time,
        run_dir=str(path),
        sites=sites_record(result),
        macro_f1=result.macro_f1,
        probabilities=None if result.scores is None else record.Probabilities(**asdict(result.scores)),
        validation=None if result.validation is None else _validation(result.validation),
    )
    if final.domains is None:
        return summary
    return replace(summary, domains=_domain_accuracy(trial.federation.dataset.domains, final.domains))


def _validation(found: Validation) -> record.ValidationRecord:
    return record.ValidationRecord(
        metric=found.metric,
        value=found.value,
        round=found.round,
        line=found.line,
        stopped=found.stopped,
        samples=found.samples,
        **_validated(found.assessment),
    )


def _validated(found: Assessment) -> dict[str, float]:
    """The fields of `record.Validated`."""
    confusion = found.confusion
    return {
        "accuracy": metrics.accuracy(confusion),
        "macro_f1": metrics.macro_f1(confusion),
        "balanced_accuracy": metrics.balanced_accuracy(confusion),
        "worst_class_accuracy": metrics.max_mean_min(metrics.class_accuracy(confusion))["min"],
        "loss": found.loss,
    }


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


def _timeless(line: record.RoundRecord | record.ProbeRecord) -> dict[str, Any]:
    """A line as its file has it, without its seconds."""
    values: dict[str, Any] = json.loads(to_json(line))
    return {key: value for key, value in values.items() if key != "seconds"}


def probe_record(round: int, found: Findings) -> record.ProbeRecord:
    """A line of `probes.jsonl`."""
    return record.ProbeRecord(
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


def _effect(groups: dict[str, Stages | None]) -> record.EffectRecord:
    return record.EffectRecord(
        **{
            name: None if stages is None else record.StagesRecord(**asdict(stages), drop=stages.drop)
            for name, stages in groups.items()
        }
    )


def _traffic(sent: Traffic) -> record.TrafficRecord:
    return record.TrafficRecord(sent.up, sent.down)


def _domain_accuracy(names: tuple[str, ...], confusions: np.ndarray) -> dict[str, float | None]:
    return {
        name: metrics.accuracy(confusion) if confusion.sum() else None
        for name, confusion in zip(names, confusions, strict=True)
    }


def spread_record(sites: Sites | None, answers: NDArray[np.integer] | None) -> record.SiteSpread | None:
    """How equally a model serves the sites, and the accuracy of each where they are not too many."""
    if sites is None or answers is None:
        return None
    by_site = metrics.site_accuracy(sites, answers)
    found = metrics.spread(sites, by_site)
    if found is None:
        return None
    each = dict(zip(sites.names, by_site.tolist(), strict=True)) if len(sites) <= record.MOST_SITES else None
    return record.SiteSpread(**asdict(found), accuracy=each)


def sites_record(result: Result) -> record.SitesRecord | None:
    """The final model at the sites, of many at those with the lowest accuracy."""
    spread = spread_record(result.owners, result.final.answers)
    if spread is None:
        return None
    shown = result.sites
    if len(shown) > record.MOST_SITES:
        tested = [site for site in shown if site.confusion.any()]
        shown = sorted(tested, key=lambda site: site.accuracy)[: record.MOST_SITES]
    return record.SitesRecord(spread=spread, each=[site_record(site) for site in shown])


def site_record(site: metrics.SiteResult) -> record.SiteRecord:
    """One site as files have it."""
    cells = np.argwhere(site.confusion).tolist()
    return record.SiteRecord(
        name=site.name,
        client=site.client,
        train=site.train.tolist(),
        test=site.test.tolist(),
        accuracy=site.accuracy,
        balanced_accuracy=site.balanced_accuracy,
        class_accuracy=site.class_accuracy.tolist(),
        worst_class=site.worst_class,
        held=site.held,
        vacant=site.vacant,
        answered=[[i, j, int(site.confusion[i, j])] for i, j in cells],
        samples=site.samples,
    )


def write_failure(path: Path, failure: record.Failure) -> None:
    """Write down in a run's folder why there is no summary."""
    write_whole(path / "error.json", to_json(failure))


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


FINISHED, UNFINISHED, EMPTY = "finished", "unfinished", "empty"


def claim(path: Path) -> str:
    """Make the folder a run will write to, or say why not. What comes back is whether it is empty, or holds
    a run, compare or search that is unfinished or finished."""
    with writing(path):
        if path.is_file():
            raise UserError(f"the output folder {path} is a file: choose another with --out.")
        path.mkdir(parents=True, exist_ok=True)
        names = {each.name for each in path.iterdir()} - {LOCK}
    if names & {"summary.json", "compare.json", "tune.json"}:
        return FINISHED
    if names & {"experiment.toml", "plan.json", "search.json"}:
        return UNFINISHED
    if any(not name.endswith(".part") for name in names):  # what a crash has left of a file is no file
        raise UserError(f"the output folder {path} is not empty: choose an empty or new one with --out.")
    return EMPTY


def is_begun(path: Path) -> bool:
    """Whether a run's folder has anything that training came to."""
    rounds = path / "rounds.jsonl"
    return any((path / CHECKPOINTS).glob("*")) or (rounds.exists() and rounds.stat().st_size > 0)


def is_edited(there: Experiment, asked: Experiment) -> bool:
    """Whether nothing but the content of a method's own file differs between two experiments."""
    edited = there.method.model_copy(update={"sha256": asked.method.sha256})
    return there.model_copy(update={"method": edited}).identity() == asked.identity()


def check_same(path: Path, asked: Experiment) -> None:
    """Refuse to continue with another experiment than the folder's, and say what differs. A method's own file
    may have been edited as long as nothing has come of training by it."""
    there = Experiment(**read(path / "experiment.toml"))
    if there.identity() != asked.identity() and (is_begun(path) or not is_edited(there, asked)):
        raise UserError(
            f"the unfinished run in {path} is another experiment ({differences(there, asked)}): choose "
            "another folder with --out, or ask for the same."
        )


def differences(there: Experiment, asked: Experiment) -> str:
    """The settings that two experiments differ in and that results depend on, as many as fit a sentence."""
    mine, theirs = (dict(flatten(_briefly(each))) for each in (asked, there))
    found = differing_keys(theirs, mine)
    named = [
        f"{key} is {_short(theirs.get(key))} there and {_short(mine.get(key))} here" for key in found[:3]
    ]
    return ", ".join(named) + (f", and {len(found) - 3} more" if len(found) > 3 else "")


def differing_keys(one: Mapping[str, object], other: Mapping[str, object]) -> list[str]:
    """The settings whose values differ, by their names."""
    return [key for key in dict.fromkeys([*one, *other]) if one.get(key) != other.get(key)]


def _briefly(experiment: Experiment) -> dict[str, Any]:
    settings = experiment.result_settings()
    with contextlib.suppress(UserError):  # of another version
        settings["skew"]["recipe"] = brief_skew(settings["skew"]["recipe"])
    return settings


def _short(value: object) -> str:
    return "not set" if value is None else str(value)


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
    text = re.sub(r"(?<=\de)\+(?=\d)", "", text)  # 1e+5 is 1e5, and not 1e-5
    return re.sub(r"[^A-Za-z0-9.=_-]+", "-", text)[-LONGEST_NAME:].strip("-.")


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
        folder = path if path.is_dir() else path.parent
        begun = any((folder / name).exists() for name in ("experiment.toml", "plan.json", "search.json"))
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            todo = f"make room there, and {'continue with unskew resume' if begun else 'try again'}"
        else:
            todo = "let it be written to" if begun else "choose another folder with --out"
        raise UserError(f"cannot write to {path} ({error.strerror}): {todo}.") from None
    except UnicodeEncodeError as error:  # of a path that was given, quoted in a record
        before, after = error.object[: error.start], error.object[error.start :]
        name = re.split(r'["\n]', before)[-1] + re.split(r'["\n]', after)[0]
        sentence = (
            f"cannot write to {path} ('{name}' is not {error.encoding.upper()} text): rename that file or "
            "folder, or give another."
        )
        raise UserError(sentence.encode(errors="replace").decode()) from None  # it may get into a record


def environment(resolved: Resolved) -> record.Environment:
    """Where a run runs, and which one it is."""
    where = machine(resolved.trial.pick_device())
    experiment = resolved.experiment
    try:
        changed = experiment.method.changed()
    except UserError:  # a method that was made in Python
        changed = None
    return record.Environment(**vars(where), identity=experiment.identity(), changed=changed)
