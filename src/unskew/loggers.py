"""Loggers, which write the numbers of a run for TensorBoard, MLflow or Weights & Biases.

A logger writes into the run folder, next to the run's own files, and never to the network. It changes no
number of a run, and an error in it does not stop the run. Only the packages of the chosen loggers are
imported.
"""

from __future__ import annotations

import csv
import html
import importlib
import io
import math
import os
import re
import shutil
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol

import numpy as np

from unskew import metrics
from unskew.errors import UserError, unknown
from unskew.record import Json, ProbeRecord, RoundRecord, Summary, plain

LoggedSetting = bool | int | float | str

PROJECT = "unskew"
"""The name of the project or experiment under which a logger files runs."""
SHOWN_FIRST = ("accuracy", "min_class", "groups/vacant")
"""The columns of TensorBoard's table of hyperparameters."""
LONGEST_NAME = 100  # of a class: MLflow uses it as a file name, of at most 250 characters
CORNER = "true \\ predicted"
MOST_CELLS = 32  # with more classes, a table of the confusion matrix is too wide to read


class Logger(Protocol):
    """Receives a run: once when it begins, after every round, and once when it has ended."""

    def begin(self, settings: Mapping[str, LoggedSetting], folder: Path, name: str, /) -> None:
        """Receive the settings of the experiment in a flat table, with keys such as budget.rounds, and the
        folder and the name of the run."""

    def round(self, number: int, values: Mapping[str, float], /) -> None:
        """Receive the numbers of a round, which `flatten` has made from its lines in rounds.jsonl and
        probes.jsonl."""

    def end(self, summary: Mapping[str, Json] | None, /) -> None:
        """Receive the content of summary.json, or None if the run was stopped."""


def _remove(folder: Path) -> None:
    """Remove what was logged before a run was interrupted, since a resumed run logs all its rounds again."""
    shutil.rmtree(folder, ignore_errors=True)


class TensorBoard:
    """Event files in RUN/tensorboard."""

    def __init__(self) -> None:
        self._torch = _import("torch.utils.tensorboard", "tensorboard")
        self._plugin = importlib.import_module("torch.utils.tensorboard.summary")

    def begin(self, settings: Mapping[str, LoggedSetting], folder: Path, name: str) -> None:
        _remove(folder / "tensorboard")
        self._writer = self._torch.SummaryWriter(str(folder / "tensorboard"), flush_secs=10)
        # add_hparams would open a second file, in a folder of its own, and write the metrics once more.
        described, started, self._ended = self._plugin.hparams(dict(settings), dict.fromkeys(SHOWN_FIRST))
        self._write(described)
        self._write(started)
        self._writer.add_text("run", _code(name))

    def round(self, number: int, values: Mapping[str, float]) -> None:
        for tag, value in values.items():
            self._writer.add_scalar(tag, value, number)

    def end(self, summary: Mapping[str, Json] | None) -> None:
        if summary is not None:
            classes, confusion = _confusion(summary)
            step = int(str(summary["rounds"]))
            self._writer.add_image("confusion", _picture(confusion), step, dataformats="HW")
            if len(classes) <= MOST_CELLS:
                self._writer.add_text("confusion", _markdown(classes, confusion), step)
            self._write(self._ended)
        self._writer.close()

    def _write(self, summary: object) -> None:
        self._writer.file_writer.add_summary(summary)


class MLflow:
    """A store of files in RUN/mlruns."""

    def __init__(self) -> None:
        os.environ["MLFLOW_DISABLE_TELEMETRY"] = "true"
        os.environ["MLFLOW_ALLOW_FILE_STORE"] = "true"  # the one store that needs no database
        self._mlflow = _import("mlflow", "mlflow")
        self._entities = importlib.import_module("mlflow.entities")

    def begin(self, settings: Mapping[str, LoggedSetting], folder: Path, name: str) -> None:
        self._client = self._mlflow.MlflowClient((folder / "mlruns").resolve().as_uri())
        found = self._client.get_experiment_by_name(PROJECT)
        place = found.experiment_id if found else self._client.create_experiment(PROJECT)
        for before in self._client.search_runs([place]):  # the same run before it was interrupted
            self._client.delete_run(before.info.run_id)
        self._run = self._client.create_run(place, run_name=name).info.run_id
        params = [self._entities.Param(key, str(value)) for key, value in settings.items()]
        for first in range(0, len(params), 100):  # as many as MLflow takes at once
            self._client.log_batch(self._run, params=params[first : first + 100])

    def round(self, number: int, values: Mapping[str, float]) -> None:
        now = int(1000 * time.time())
        batch = [self._entities.Metric(key, value, now, number) for key, value in values.items()]
        for first in range(0, len(batch), 1000):  # as many as MLflow takes at once
            self._client.log_batch(self._run, metrics=batch[first : first + 1000])

    def end(self, summary: Mapping[str, Json] | None) -> None:
        if summary is not None:
            self._client.log_text(self._run, _csv(*_confusion(summary)), "confusion.csv")
        self._client.set_terminated(self._run, "KILLED" if summary is None else "FINISHED")


class WeightsAndBiases:
    """An offline run in RUN/wandb, for `wandb sync` or `wandb leet`."""

    def __init__(self) -> None:
        os.environ["WANDB_ERROR_REPORTING"] = "false"
        self._wandb = _import("wandb", "wandb")

    def begin(self, settings: Mapping[str, LoggedSetting], folder: Path, name: str) -> None:
        quiet = self._wandb.Settings(
            mode="offline",
            silent=True,
            console="off",
            disable_code=True,
            disable_git=True,
            x_disable_stats=True,
            x_disable_meta=True,
            x_disable_machine_info=True,
            x_save_requirements=False,
        )
        _remove(folder / "wandb")
        self._run = self._wandb.init(
            dir=str(folder.resolve()),  # since the process of wandb may run in another folder
            project=PROJECT,
            name=name,
            config=dict(settings),
            reinit="create_new",
            settings=quiet,
        )

    def round(self, number: int, values: Mapping[str, float]) -> None:
        self._run.log(dict(values), step=number)

    def end(self, summary: Mapping[str, Json] | None) -> None:
        if summary is not None:
            # Not as a table of wandb: these become artifacts, which wandb stores outside of the folder.
            matrix = self._wandb.Html(_html(*_confusion(summary)), inject=False)
            self._run.log({"confusion": matrix})
        self._run.finish(exit_code=int(summary is None))


LOGGERS: dict[str, Callable[[], Logger]] = {
    "tensorboard": TensorBoard,
    "mlflow": MLflow,
    "wandb": WeightsAndBiases,
}


def find(names: Iterable[str]) -> tuple[str, ...]:
    """Return the names without repetitions. Refuse one that is no logger or whose package is not
    installed."""
    found = tuple(dict.fromkeys(names))
    for name in found:
        if name not in LOGGERS:
            raise unknown("logger", name, LOGGERS)
    for name in found:
        LOGGERS[name]()
    return found


class Log:
    """The loggers of one run. If one fails, this is reported once, and it is not called again."""

    def __init__(
        self,
        names: Iterable[str],
        *,
        settings: Mapping[str, object],
        classes: Sequence[str],
        folder: Path,
        name: str,
        say: Callable[[Iterable[str]], None],
    ) -> None:
        self._say = say
        self._classes = classes
        self.names = tuple(names)
        self._loggers = {each: LOGGERS[each]() for each in self.names}
        self.notes: list[str] = []
        """A sentence for each logger that has failed."""
        flat = flatten_settings(settings)
        self._call(lambda logger: logger.begin(flat, folder, name))

    def __enter__(self) -> Log:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            self.end(None)

    def round(self, line: RoundRecord, probe: ProbeRecord | None = None) -> None:
        """Log a line of rounds.jsonl, and the line of probes.jsonl if the round was probed."""
        if self._loggers:
            values = flatten(plain(line), None if probe is None else plain(probe), self._classes)
            self._call(lambda logger: logger.round(line.round, values))

    def end(self, summary: Summary | None) -> None:
        """Log summary.json, or None if the run was stopped, and end the loggers."""
        values = None if summary is None else plain(summary)
        self._call(lambda logger: logger.end(values))
        self._loggers.clear()

    def _call(self, call: Callable[[Logger], None]) -> None:
        for name, logger in list(self._loggers.items()):
            try:
                call(logger)
            except Exception as error:  # of any kind, since it comes from a package of others
                del self._loggers[name]
                reason = " ".join(f"{type(error).__name__}: {error}".split())
                self.notes.append(f"{name} has failed and gets no more of this run: {reason}")
                self._say(self.notes[-1:])


def flatten(
    record: Mapping[str, Json], probe: Mapping[str, Json] | None, classes: Sequence[str]
) -> dict[str, float]:
    """Return every number of a round under its own name, such as accuracy, groups/vacant, class/NAME (with
    names from `tags`) or probe/groups/vacant/drop. Leave out numbers that do not exist, such as the accuracy
    of a round that was not tested."""
    values = _numbers("", record, classes)
    return values if probe is None else values | _numbers("probe/", probe, classes)


def _numbers(prefix: str, record: Mapping[str, Json], classes: Sequence[str]) -> dict[str, float]:
    values: dict[str, float] = {}
    for key, value in record.items():
        if isinstance(value, dict):
            named = dict(zip(tags(value), value.values(), strict=True))
            values |= _numbers(f"{prefix}{key}/", named, classes)
        elif isinstance(value, list):
            if key in ("class_accuracy", "local_class_accuracy"):
                by_class = dict(zip(tags(classes), value, strict=True))
                values |= _numbers(f"{prefix}class/", by_class, classes)
        elif key not in ("round", "worst_class") and isinstance(value, int | float) and math.isfinite(value):
            values[prefix + key] = float(value)
    return values


def flatten_settings(settings: Mapping[str, object], prefix: str = "") -> dict[str, LoggedSetting]:
    """Return the settings of an experiment in one flat table, with keys such as budget.rounds and
    method.mu."""
    flat: dict[str, LoggedSetting] = {}
    for key, value in settings.items():
        if isinstance(value, Mapping):
            flat |= flatten_settings(value, f"{prefix}{key}.")
        else:
            flat[prefix + key] = value if isinstance(value, bool | int | float | str) else str(value)
    return flat


def tags(names: Iterable[str]) -> list[str]:
    """Return names of classes or domains that every logger accepts: not too long, and without characters that
    MLflow refuses or reads as a folder. Different names remain different."""
    found: list[str] = []
    for index, name in enumerate(names):
        tag = re.sub(r"[^\w .-]", "_", name)[:LONGEST_NAME].strip(" .") or "_"
        while tag in found:
            tag += f"_{index}"
        found.append(tag)
    return found


def _import(module: str, extra: str) -> Any:
    """Import a module, or tell the user how to install it."""
    try:
        return importlib.import_module(module)
    except ImportError:
        raise UserError(
            f"logging to {extra} needs a package: install it with pip install 'unskew[{extra}]'."
        ) from None


def _confusion(summary: Mapping[str, Json]) -> tuple[list[str], metrics.Counts]:
    """Return the names of the classes and the confusion matrix of a summary."""
    classes = summary["classes"]
    assert isinstance(classes, list)
    return [str(name) for name in classes], np.array(summary["confusion"], dtype=np.int64)


def _picture(confusion: metrics.Counts) -> np.ndarray:
    """Return a picture of the confusion matrix, large enough to see. Rows are true classes, columns are
    predicted ones, and a black cell is all samples of a class."""
    grey = np.rint(255 * (1 - np.nan_to_num(metrics.confusion_share(confusion)))).astype(np.uint8)
    return np.kron(grey, np.ones((max(1, 320 // len(grey)),) * 2, np.uint8))


def _markdown(classes: Sequence[str], confusion: metrics.Counts) -> str:
    heads = [CORNER, *map(_code, classes)]
    rows = [heads, ["---"] + ["--:"] * len(classes)]
    rows += [[_code(name), *map(str, row)] for name, row in zip(classes, confusion.tolist(), strict=True)]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def _html(classes: Sequence[str], confusion: metrics.Counts) -> str:
    def row(kind: str, cells: Iterable[object]) -> str:
        return "<tr>" + "".join(f"<{kind}>{html.escape(str(cell))}</{kind}>" for cell in cells) + "</tr>"

    lines = [row("th", [CORNER, *classes])]
    lines += [row("td", [name, *counts]) for name, counts in zip(classes, confusion.tolist(), strict=True)]
    return f"<table>{''.join(lines)}</table>"


def _code(text: str) -> str:
    """Return text as code in Markdown, so that its characters have no other meaning."""
    return "`" + re.sub(r"[`|\s]+", " ", text) + "`"


def _csv(classes: Sequence[str], confusion: metrics.Counts) -> str:
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    from unskew.report.escape import escape_csv  # here, since a run without loggers needs no report

    names = [escape_csv(name) for name in classes]
    writer.writerow([CORNER, *names])
    writer.writerows([name, *row] for name, row in zip(names, confusion.tolist(), strict=True))
    return file.getvalue()
