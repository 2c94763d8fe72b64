"""Exports a trained model for other programs, and compares the exported one with it on real inputs."""

from __future__ import annotations

import copy
import logging
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path

import torch
from torch import Tensor, nn

from unskew.data.columns import InputColumn, cell_of
from unskew.errors import UserError, unknown
from unskew.files import replacing
from unskew.models.standardised import make_plain
from unskew.record import to_json
from unskew.trained_model import TrainedModel

LARGEST_DIFFERENCE = 1e-4
"""The largest allowed difference between logits of the original and the exported model, relative to the
largest logit, or to 1 if that is larger."""


@dataclass(frozen=True, eq=False)
class Exported:
    """An exported model, and how closely it agrees with the original."""

    path: Path
    inputs: str
    """The type and shape of its inputs, in words."""
    samples: int
    """The number of samples on which it was checked."""
    difference: float
    """The largest difference between two logits."""


def export(model: TrainedModel, to: str, path: Path, samples: Tensor) -> Exported:
    """Write a model to a file in the format that `to` names, and check the exported model on samples of a
    dataset. If it differs from the original, write nothing and raise a UserError."""
    if to not in WRITERS:
        raise unknown("kind of export", to, WRITERS)
    if len(samples) < 4:
        raise UserError(f"the check needs 4 samples or more and has {len(samples)}: give such with --check.")
    model = _with_plain_layers(model)
    whole = Exportable(model).eval()
    inputs = whole.raw(samples)
    # The batches differ in size from the traced one, to check that the exported model reads any size.
    batches = [inputs[:2], inputs[2:]]
    with torch.no_grad():
        # The core reads samples as a dataset holds them, the whole model the columns of a table.
        wanted = torch.cat(
            [model.core(batch).logits if inputs is samples else model(batch) for batch in batches]
        )
    with replacing(path) as partial:
        with _silence():
            run = WRITERS[to](whole, inputs, partial, model)
            found = torch.cat([run(batch) for batch in batches])
        difference = float((found - wanted).abs().max())
        most = LARGEST_DIFFERENCE * max(1.0, float(wanted.abs().max()))
        if not difference <= most:
            raise UserError(
                f"the exported model differs from the original by {difference:.1e} on real inputs, where "
                f"{most:.1e} is allowed: nothing was written; use unskew.load_model."
            )
    return Exported(path, whole.reads, len(samples), difference)


class Exportable(nn.Module):
    """The part of a model that computes with tensors only. Its outputs are logits and probabilities."""

    def __init__(self, model: TrainedModel) -> None:
        super().__init__()
        self.core = model.core
        shape, columns = model.model_file.inputs.shape, model.scaled_columns
        self.columns: nn.Module = nn.Identity()
        size = ", ".join(map(str, shape))
        match model.model_file.inputs.kind:
            case "image":
                self.reads = f"uint8 [n, {size}]"
            case "text":
                self.reads = f"int32 token ids [n, {size}]"
            case _:
                self.reads = f"float32 features [n, {size}]"
                if columns is not None and all_numbers(columns):
                    self.columns = ColumnsInside(columns)
                    self.reads = f"float64 [n, {len(columns)}], NaN where a value is missing"

    def raw(self, samples: Tensor) -> Tensor:
        """Return the inputs of the exported model for these samples. If it reads the columns of a table, they
        are computed from the features."""
        return self.columns.undo(samples) if isinstance(self.columns, ColumnsInside) else samples

    def forward(self, inputs: Tensor) -> tuple[Tensor, Tensor]:
        logits: Tensor = self.core(self.columns(inputs)).logits
        return logits, logits.softmax(dim=1)


def all_numbers(columns: Sequence[InputColumn]) -> bool:
    """Say whether all categories of a table are numbers, so that its cells fit into a tensor."""
    return all(isinstance(cell_of(each), float) for column in columns for each in column.categories)


class ColumnsInside(nn.Module):
    """Does the same as `Columns.apply` with tensors: float64 [n, columns] to float32 [n, features]."""

    def __init__(self, columns: Sequence[InputColumn]) -> None:
        super().__init__()
        self.columns = tuple(columns)
        for name, values in self._by_feature().items():
            self.register_buffer(name, values)
        fills = [cell_of(str(column.fill)) for column in columns]
        nan = float("nan")
        self.fill: Tensor
        self.register_buffer("fill", _numbers([each if isinstance(each, float) else nan for each in fills]))
        # At least one entry, NaN, which no value equals: ONNX cannot reduce an empty axis.
        most = max(1, *(len(column.unknown) for column in columns))
        unknown = [[*column.unknown, *[nan] * (most - len(column.unknown))] for column in columns]
        self.unknown: Tensor
        self.register_buffer("unknown", _numbers(unknown))

    def _by_feature(self) -> dict[str, Tensor]:
        """Return tensors with an entry for every feature: its column, kind, mean, scale and category."""
        rows = [
            (at, kind, column.mean, column.scale, category)
            for at, column in enumerate(self.columns)
            for kind, category in (
                *([(NUMBER, 0.0)] if column.kind == "number" else ()),
                *((CATEGORY, cell_of(each)) for each in column.categories),
                *([(FLAG, 0.0)] if column.flagged else ()),
            )
        ]
        source, kind, mean, scale, category = (_numbers(values) for values in zip(*rows, strict=True))
        whole = {"source": source.long(), "kind": kind.long()}
        return {**whole, "mean": mean, "scale": scale, "category": category}

    def forward(self, x: Tensor) -> Tensor:
        source, kind = self.get_buffer("source"), self.get_buffer("kind")
        missing = x.isnan() | (x[:, :, None] == self.unknown).any(dim=2)
        x = torch.where(missing & ~self.fill.isnan(), self.fill, x)[:, source]
        number = (x - self.get_buffer("mean")) / self.get_buffer("scale")
        own = (x == self.get_buffer("category")).double()
        flag = missing[:, source].double()
        return torch.where(kind == NUMBER, number, torch.where(kind == CATEGORY, own, flag)).float()

    def undo(self, features: Tensor) -> Tensor:
        """Return numbers that `forward` turns into these features, NaN for values flagged as missing."""
        parts, start = list[Tensor](), 0
        for column in self.columns:
            x = features[:, start : start + len(column.features)].double()
            start += len(column.features)
            missing = x[:, -1] == 1 if column.flagged else torch.zeros(len(x), dtype=torch.bool)
            if column.kind == "number":
                value = x[:, 0] * column.scale + column.mean
            else:
                hot = x[:, : len(column.categories)]
                known = _numbers([cell_of(each) for each in column.categories])
                # All features are 0 for an unknown category, so any number that is no category fits.
                value = torch.where(hot.sum(dim=1) == 0, known.max() + 1, known[hot.argmax(dim=1)])
            parts.append(torch.where(missing, torch.full_like(value, torch.nan), value))
        return torch.stack(parts, dim=1)


NUMBER, CATEGORY, FLAG = range(3)
"""The kinds of features: a scaled number, whether a value is of a category, whether it is missing."""


def _numbers(values: object) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


class MeanOfEmbeddings(nn.Module):
    """Does the same as nn.EmbeddingBag in mode mean, with operations that every format has."""

    def __init__(self, bag: nn.EmbeddingBag) -> None:
        super().__init__()
        self.weight, self.padding = bag.weight, bag.padding_idx

    def forward(self, tokens: Tensor) -> Tensor:
        counted = (tokens != (-1 if self.padding is None else self.padding)).to(self.weight.dtype)[..., None]
        total = (torch.nn.functional.embedding(tokens.long(), self.weight) * counted).sum(dim=1)
        return total / counted.sum(dim=1).clamp(min=1)


def _with_plain_layers(model: TrainedModel) -> TrainedModel:
    """Return a copy of the model in float32, with its standardised layers and embedding bags replaced by
    plain ones that compute the same."""
    model = copy.deepcopy(model).cpu().float()
    model.core.bf16 = False
    make_plain(model)
    for name, part in list(model.named_modules()):
        if isinstance(part, nn.EmbeddingBag) and part.mode == "mean" and part.include_last_offset is False:
            model.set_submodule(name, MeanOfEmbeddings(part))
    return model


Runner = Callable[[Tensor], Tensor]


def _program(whole: Exportable, inputs: Tensor) -> torch.export.ExportedProgram:
    try:
        return torch.export.export(whole, (inputs,), dynamic_shapes=({0: torch.export.Dim.DYNAMIC},))
    except Exception as error:  # any error of code that cannot be traced
        said = " ".join(str(error).split())[:200]
        raise UserError(
            f"the model cannot be traced for export ({type(error).__name__}: {said}): let its forward do "
            "without decisions that depend on values."
        ) from error


def _metadata(model: TrainedModel, reads: str) -> dict[str, str]:
    columns = [] if model.columns is None else list(model.columns.names)
    features = [] if model.columns is None else list(model.columns.features)
    values = {"classes": list(model.classes), "reads": reads, "columns": columns, "features": features}
    if model.words is not None:
        values["words"] = list(model.words.words)
    return {name: to_json(value, indent=None) for name, value in values.items()} | {
        "unskew": to_json(model.model_file, indent=None)
    }


def _onnx(whole: Exportable, inputs: Tensor, path: Path, model: TrainedModel) -> Runner:
    try:
        import onnxruntime
        import onnxscript  # noqa: F401 (PyTorch's exporter needs it)
    except ImportError:
        raise UserError("export to onnx needs more packages: pip install 'unskew[export]'.") from None
    program = torch.onnx.export(
        _program(whole, inputs),
        dynamo=True,
        verbose=False,
        input_names=["input"],
        output_names=["logits", "probabilities"],
        dynamic_shapes=({0: "n"},),
    )
    assert program is not None
    program.model.metadata_props.update(_metadata(model, whole.reads))
    program.save(path, external_data=False)
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])

    def run(inputs: Tensor) -> Tensor:
        return torch.from_numpy(session.run(["logits"], {"input": inputs.numpy()})[0])

    return run


def _torch_export(whole: Exportable, inputs: Tensor, path: Path, model: TrainedModel) -> Runner:
    made = BytesIO()  # in memory first: PyTorch's writer ends the process if the disk is full
    torch.export.save(_program(whole, inputs), made, extra_files=_metadata(model, whole.reads))
    path.write_bytes(made.getvalue())
    with path.open("rb") as file:
        module = torch.export.load(file).module()

    def run(inputs: Tensor) -> Tensor:
        with torch.no_grad():
            logits: Tensor = module(inputs)[0]
        return logits

    return run


WRITERS: dict[str, Callable[[Exportable, Tensor, Path, TrainedModel], Runner]] = {
    "onnx": _onnx,
    "torch-export": _torch_export,
}
"""The formats of export. Each function writes a file, reads it back, and returns a function that runs it."""


@contextmanager
def _silence() -> Iterator[None]:
    """Silence the log lines and warnings of PyTorch's exporter."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)
