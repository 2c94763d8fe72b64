"""When checkpoints are written, and which of them a run resumes from.

A checkpoint holds one stage of a run, whole or up to one of its rounds. It is written in another thread while
training goes on, and is read back before an older one is removed. What clients keep is in files of its own
(`client_tensors`).
"""

from __future__ import annotations

import hashlib
import json
import threading
import time
from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import Any

from unskew.checkpoints.file import encode, read
from unskew.checkpoints.packing import pack, unpack
from unskew.checkpoints.period import Period
from unskew.client_tensors import ClientTensors
from unskew.data.dataset import Split
from unskew.errors import UserError
from unskew.files import sync_folder, write_file
from unskew.program import StoredStage
from unskew.result import Stage
from unskew.rounds import store_of
from unskew.tensor_files import dump
from unskew.trial import Trial
from unskew.types import Tensors

MOST_COST = 0.02
"""The share of a run's time that checkpoints may take if the user has not set how often they are due."""
BYTES_A_SECOND = 100e6
"""The assumed speed of writing before the first checkpoint: that of a slow disk."""
SUFFIX = ".checkpoint"


class Checkpoints:
    """The checkpoints of a run in a folder. Stages that are there already are found again."""

    def __init__(
        self,
        folder: str | Path,
        trial: Trial,
        method: str,
        *,
        every: Period | str = "auto",
        say: Callable[[str], None] = lambda _: None,
    ) -> None:
        """Read the checkpoints in the folder. `method` is a text that describes the method, since its
        functions cannot be compared: a run resumes only from checkpoints of the same trial with the same
        text. `every` says how often a checkpoint is due. `say` receives a sentence for each checkpoint that
        cannot be used."""
        self.folder, self._say = Path(folder), say
        self._trial, self._method = trial, method
        self.period = Period.parse(every) if isinstance(every, str) else every
        self.store = store_of(trial)
        self._device = trial.pick_device()
        self._numbers: dict[str, int] = {}
        """The number of each stage in the names of its files."""
        self._ended: dict[str, Stage] = {}
        """Stages that have ended and are not on disk yet."""
        self._files: dict[Path, list[ClientTensors]] = {}
        """The intact checkpoints, with the mappings of what clients keep in them. The files of these mappings
        stay as long as the mappings are alive."""
        self._writer: threading.Thread | None = None
        self._error: Exception | None = None
        self._stop: Callable[[], BaseException] | None = None
        self._rounds = 0
        self._cost = 0.0
        self._began = self._saved = time.monotonic()
        self._some_unusable = False
        self.seconds_before = 0.0
        """How long the run took before it was stopped, up to its last checkpoint."""
        self.written = 0
        """How many checkpoints were written."""
        self._found = self._read_all()

    @cached_property
    def identity(self) -> str:
        """The identity that a checkpoint of this run has. It is computed when it is first needed, since the
        initial model has to be built for it."""
        return identity_of(self._trial, self._method)

    # Called by the run

    def find(self, name: str) -> StoredStage | None:
        """Return what is stored of a stage, or None."""
        self._numbers.setdefault(name, max(self._numbers.values(), default=-1) + 1)
        return self._found.pop(name, None)

    def after_round(self, name: str, stage: Stage) -> None:
        """Write a checkpoint of a stage that goes on, if one is due or the run is to stop."""
        self._rounds += 1
        if self._stop:
            self._save(name, stage, ended=False)
            self.wait()
            raise self._stop()
        if self._due() and self._affordable(stage):
            self._save(name, stage, ended=False)

    def end(self, name: str, stage: Stage) -> None:
        """Keep a stage that has ended for the next checkpoint, and write that if it is due. A run that is
        stopped before repeats what is not written."""
        self._ended[name] = stage
        if self._stop or (self._due() and self._affordable(stage)):
            self._save(name, stage, ended=True)
        if self._stop:
            self.wait()
            raise self._stop()

    # Called by the owner of the run

    def stop(self, reason: Callable[[], BaseException]) -> None:
        """Make the run write a checkpoint after its current round, and raise the reason."""
        self._stop = reason

    def close(self) -> None:
        """Wait until the thread that writes has ended."""
        if self._writer is not None:
            self._writer.join()
            self._writer = None

    def wait(self) -> None:
        """Wait until everything is on disk. An error of writing is raised here, or at the next checkpoint."""
        self.close()
        error, self._error = self._error, None
        if isinstance(error, OSError):
            raise UserError(
                f"a checkpoint cannot be written to {self.folder} ({error.strerror}): make room there, and "
                "continue with unskew resume."
            ) from None
        if error is not None:
            raise error

    # Writing

    def _due(self) -> bool:
        if self.period.rounds is not None:
            return self._rounds >= self.period.rounds
        if self.period.seconds is None or (self._writer is not None and self._writer.is_alive()):
            return False
        return time.monotonic() - self._saved >= self.period.seconds

    def _affordable(self, stage: Stage) -> bool:
        """Say whether checkpoints take no more than `MOST_COST` of the time if one more is written. The cost
        of the first is estimated from its size, that of the others from those before."""
        if not self.period.adapts:
            return True
        affordable = MOST_COST * (time.monotonic() - self._began) - self._cost
        return affordable > 0 and affordable >= (
            self._cost / self.written if self.written else _size(stage) / BYTES_A_SECOND
        )

    def _save(self, name: str, stage: Stage, *, ended: bool) -> None:
        """Start writing the stages that have ended, and this one if it has not."""
        self.wait()
        began = time.monotonic()
        files = [
            (self._path(each), *self._packed(each, done, True), done) for each, done in self._ended.items()
        ]
        if not ended:
            files.append((self._path(name, len(stage.rounds)), *self._packed(name, stage, False), stage))
        self._ended.clear()
        self._rounds = 0
        packing_time = time.monotonic() - began

        def write() -> None:
            began = time.monotonic()
            try:
                if not self.folder.is_dir():
                    self.folder.mkdir(parents=True)
                    sync_folder(self.folder.parent)
                for path, header, tensors, value in files:
                    write_file(path, encode(header, tensors))
                    read(path, self.identity)  # to check the file as it is on disk
                    self._files[path] = _kept_by_clients(value)
                    self._prune(path)
                self.written += 1
            except Exception as error:  # for the thread that waits
                self._error = error
            self._cost += packing_time + time.monotonic() - began
            self._saved = time.monotonic()

        self._writer = threading.Thread(target=write, name="checkpoint")
        self._writer.start()

    def _path(self, name: str, rounds: int | None = None) -> Path:
        last = "ended" if rounds is None else f"{rounds:07d}"
        return self.folder / f"{self._numbers[name]:03d}-{last}{SUFFIX}"

    def _packed(self, name: str, stage: Stage, ended: bool) -> tuple[dict[str, Any], Tensors]:
        """Return a stage as JSON and as tensors in host memory, copies that training does not change."""
        tensors: Tensors = {}
        value = pack(stage, tensors, self.store)
        header = {"stage": name, "ended": ended, "rounds": len(stage.rounds), "value": value}
        seconds = self.seconds_before + time.monotonic() - self._began
        return header | {"identity": self.identity, "seconds": seconds}, tensors

    def _prune(self, newest: Path) -> None:
        """Remove the files of a stage except the two newest, or except the last one if the stage has ended.
        Damaged files stay, so that the user can look at them."""
        number, _, last = newest.name.removesuffix(SUFFIX).partition("-")
        others = sorted(path for path in self._files if path.name.startswith(f"{number}-") and path != newest)
        for path in others if last == "ended" else others[:-1]:
            path.unlink(missing_ok=True)
            del self._files[path]

    # Reading

    def _read_all(self) -> dict[str, StoredStage]:
        """Return the newest intact checkpoint of every stage. Damaged files are reported, and stay."""
        found: dict[str, StoredStage] = {}
        for path in sorted(self.folder.glob(f"*{SUFFIX}"), reverse=True):
            try:
                header, tensors = read(path, self.identity)
                name, number = header["stage"], int(path.name.partition("-")[0])
                stage = unpack(Stage, header["value"], tensors, self.store, self._device)
                mappings = _kept_by_clients(stage)
                for mapping in mappings:
                    for client in mapping:
                        mapping[client]  # raises if it is damaged
            except Exception as error:  # of any kind, since a damaged file may hold anything
                why = str(error).rstrip(".")
                self._say(f"the checkpoint {path} cannot be used ({why}): an older one is used, or none.")
                self._some_unusable = True
                continue
            # The newest comes first, and before it the one that was written when the stage had ended.
            found.setdefault(name, StoredStage(stage, header["ended"]))
            self._numbers[name] = number
            self.seconds_before = max(self.seconds_before, float(header["seconds"]))
            self._files[path] = mappings
        if not self._some_unusable:  # else the user may still need the files that it refers to
            self.store.remove_unused()
        return found


def identity_of(trial: Trial, method: str) -> str:
    """Return the SHA-256 of everything that a trial's results depend on, including the initial model, and of
    the text that describes the method."""
    parts = {
        "method": method,
        "data": trial.federation.dataset.sha256,
        "partition": trial.federation.partition.index_sha256,
        "validation": _digest(trial.federation.validation),
        "model": hashlib.sha256(dump(trial.build().state_dict())).hexdigest(),
        "settings": [
            each.model_dump(mode="json")
            for each in (trial.budget, trial.evaluation, trial.probe, trial.faults, trial.stop)
        ],
        "others": [
            trial.seed, trial.statistics, trial.teacher, str(trial.augment), str(trial.attack),
            trial.pick_device().type, trial.threads, trial.pick_precision(), trial.fast, str(trial.tuning),
        ],
    }  # fmt: skip
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def _digest(split: Split | None) -> str:
    digest = hashlib.sha256()
    if split is not None:
        split.digest(digest)
    return digest.hexdigest()


def _size(stage: Stage) -> int:
    """Return about how many bytes a stage takes on disk."""
    total = (
        sum(value.nbytes for value in (stage.best.params | stage.best.buffers).values()) if stage.best else 0
    )
    for state in stage.states:
        weights = state.server.weights
        for tensors in (weights.params, weights.buffers, state.server.memory):
            total += sum(value.nbytes for value in tensors.values())
    return total + sum(mapping.bytes_to_write for mapping in _kept_by_clients(stage))


def _kept_by_clients(stage: Stage) -> list[ClientTensors]:
    return [
        mapping for state in stage.states for mapping in (state.memories, state.buffers, state.optimizers)
    ]
