"""A run's folder while the run is under way."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from safetensors.torch import save
from torch import Tensor

from unskew import record
from unskew.errors import UserError
from unskew.experiment import Resolved
from unskew.files import sync_file
from unskew.record import to_json
from unskew.result import Result, Round
from unskew.runs.lines import RoundLines, probe_record
from unskew.runs.output_folder import FINISHED, UNFINISHED, check_partition, check_same, claim, is_begun
from unskew.runs.run_environment import environment
from unskew.runs.summary import model_file, site_record, summarise
from unskew.runs.write import write_whole, writing

T = TypeVar("T")
L = TypeVar("L", record.RoundRecord, record.ProbeRecord)


class RunFolder:
    """The folder of a run that is under way. It is opened when everything has been checked and before the
    first round. Every file is whole or absent, and a run that is stopped keeps all the rounds it finished. A
    folder that holds the same experiment unfinished is continued: its files stay."""

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
        self._lines = RoundLines(resolved.trial.federation)

    def _keep_partition(self, resolved: Resolved) -> None:
        """Write which client holds which samples, or check that the partition is the same as before."""
        federation, path = resolved.trial.federation, self.path / "partition.json"
        if not path.exists():
            federation.save(path)
            return
        check_partition(path, federation)

    def _environment(self) -> record.Environment | None:
        """Return where the run began. Return None if it begins now, or if environment.json is damaged, which
        is added to the notes."""
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
        """Return a note that names the versions and machines that have changed since the run was stopped, on
        which the last bits of a result may depend; no note if none has changed."""
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
        """Read the lines of a file. A line that a crash left unfinished is cut off, and so is everything from
        a damaged line on: those rounds are trained again."""
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
        """Write a round and its probe to their files, unless they are there from before the run was stopped.
        Return the two records as the files have them."""
        line = self._write("rounds.jsonl", self._lines.of_round(round), self._rounds)
        if round.probe is None:
            return line, None
        return line, self._write("probes.jsonl", probe_record(round.number, round.probe), self._probes)

    def _write(self, name: str, line: L, there: list[L]) -> L:
        """Append a line to a file, or find it there. If a different line is in its place, such as when the
        run was stopped after a fault that did not happen again, the file is cut off before it."""
        if there:
            before = there.pop(0)
            if _timeless(before) == _timeless(line):
                return before
            there.clear()
            self._cut(name, line.round)
        self._add_line(name, line)
        return line

    def _cut(self, name: str, number: int) -> None:
        """Keep only the lines of the rounds before this one."""
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

    def finish(self, resolved: Resolved, result: Result, time: Callable[[], record.Time]) -> record.Summary:
        """Write the model and then the summary, which includes the time spent until then; return the
        summary."""
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
    """Return a model's tensor as it is written: if all clients' models share it, its first axis has one
    entry."""
    shared = network.clients is not None and len(value) > 1 and value.stride(0) == 0
    return value[:1] if shared else value


def _timeless(line: record.RoundRecord | record.ProbeRecord) -> dict[str, Any]:
    """Return a record as JSON values without its seconds."""
    values: dict[str, Any] = json.loads(to_json(line))
    return {key: value for key, value in values.items() if key != "seconds"}
