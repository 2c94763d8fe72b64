"""The settings of an experiment, as its file has them."""

from __future__ import annotations

import hashlib
import json
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import tomli_w
from pydantic import BeforeValidator, ConfigDict, Field, field_validator

from unskew import models
from unskew.data.partitions import (
    own_skew,
    parse_skew,
    write_skew,
)
from unskew.errors import UserError
from unskew.methods.assemble import find
from unskew.methods.card import OptionValue
from unskew.models.tuning import MOST_RANK
from unskew.notation import (
    method_parts,
    named,
    path_in,
    short_data,
    short_paths,
    short_texts,
    without,
    write_parts,
)
from unskew.spec import Spec
from unskew.trial import (
    MOST_THREADS,
    Budget,
    Evaluation,
    Faults,
    PrecisionOrAuto,
    Probe,
    Statistics,
    Teacher,
)
from unskew.user_code import is_code


def _as_patterns(value: object) -> object:
    return models.patterns(value) if isinstance(value, str) else value


Patterns = Annotated[tuple[str, ...], BeforeValidator(_as_patterns)]


class DataSpec(Spec):
    name: str = "digits"
    """A dataset of `unskew data`, with its options; several joined by + are the domains of one federation."""
    folder: str = ""
    """Where the datasets are; empty: the folder that UNSKEW_DATA names, else the cache folder."""
    augment: str = "none"
    """For example crop:4,flip,cutout:16."""


class SkewSpec(Spec):
    recipe: str = "dirichlet:0.1"
    """How samples are divided among clients: see `unskew skew --help`."""
    clients: Literal["auto"] | int = "auto"
    """auto: the number that the data or the recipe implies, else 10."""
    seed: int | None = Field(default=None, ge=0)
    """The partition's own seed; follows the run's when not given."""
    sha256: str = ""
    """The hash of the file with the recipe's function, if it is the user's own; filled in."""


class ModelSpec(Spec):
    """A model and its options: all other keys are the model's own, such as hidden."""

    model_config = ConfigDict(extra="allow")
    name: str = "auto"
    """A name of `unskew.models.MODELS`, or one's own as my_net.py:Net; auto: one that suits the data."""
    sha256: str = ""
    """The hash of the file with the model, if it is the user's own; filled in."""
    init: str = ""
    """Trained weights to start from: a .safetensors or .pt file, or a run's folder."""
    init_sha256: str = ""
    """The hash of these weights; filled in."""
    freeze: Patterns = ()
    """Parameters that stay as they are and are not sent: parts or patterns, such as body or *.bias."""
    train_only: Patterns = ()
    """Parameters that alone are trained and sent."""
    lora: int = Field(default=0, ge=0, le=MOST_RANK)
    """The rank of LoRA adapters, which are trained and sent instead of their layers; 0: none."""
    lora_alpha: float = Field(default=0.0, ge=0)
    """LoRA alpha: adapters are scaled by lora_alpha / lora; 0: by 1."""
    lora_layers: Patterns = ()
    """The layers with adapters; none: every linear layer and convolution but the last layer."""
    norm: Literal["auto", "batch", "group", "none", "ws", "group+ws"] = "auto"
    statistics: Statistics = "average"
    teacher: Teacher = "running"


class MethodSpec(Spec):
    """A method and its hyperparameters: all keys but `name` are the constructor's. For methods put
    together, such as fedvls+fedexp, they stand in a table of each part's name."""

    model_config = ConfigDict(extra="allow")
    name: str = "fedavg"
    sha256: str | None = None
    """The hash of the method's own file; where several parts have files, the hash of these files' hashes."""

    def brief(self, short: Mapping[str, str] | None = None) -> str:
        """Return the method's label: its name (without the folder if it is a file) and the hyperparameters
        that differ from their defaults. `short` has other names for files that would otherwise be called the
        same."""
        parts = self.changed()
        short = short or short_paths(self.files())
        return write_parts({short.get(name, name): options for name, options in parts.items()})

    def changed(self) -> dict[str, dict[str, OptionValue]]:
        """Return the hyperparameters that differ from their defaults, by part."""
        return {
            name: {key: value for key, value in options.items() if value != find(name).options.get(key)}
            for name, options in self.parts().items()
        }

    def files(self) -> list[str]:
        """Return the parts that are the user's own files."""
        return [name for name in self.parts() if name.endswith(".py")]

    def parts(self) -> dict[str, dict[str, OptionValue]]:
        """Return each part's name and the hyperparameters given for it."""
        names = method_parts(self.name)
        given: dict[str, Any] = self.model_extra or {}
        if len(set(names)) < len(names):
            raise UserError(f"method '{self.name}' names a part twice: name each once.")
        if len(names) == 1:
            return {names[0]: given}
        for key, value in given.items():
            if key not in names or not isinstance(value, dict):
                first = names[0]
                raise UserError(
                    f"method.{key} does not say whose hyperparameter it is: write method.{first}.{key}, or "
                    f"{first}:{key}=VALUE in the method's name."
                )
        return {name: given.get(name, {}) for name in names}


class Experiment(Spec):
    """What `experiment.toml` holds."""

    seed: int = Field(default=1, ge=0)
    engine: str = "auto"
    """How clients are run; auto: the fastest there is for the device."""
    device: str = "auto"
    threads: int = Field(default=1, ge=1, le=MOST_THREADS)
    workers: int = Field(default=0, ge=0)
    """How many clients run side by side; 0: as many as suit the machine."""
    trace: bool = True
    """Whether engine `pool` may trace a client's step and replay it without Python."""
    precision: PrecisionOrAuto = "auto"
    """How exactly numbers are computed; auto: tf32 on a GPU, fp32 on a CPU."""
    fast: bool = False
    """Whether a GPU may take its fastest kernels; last bits then differ from run to run."""
    client_memory: Literal["auto"] | Annotated[float, Field(ge=0)] = "auto"
    """GB of what clients keep between rounds that may stay in memory; the rest goes to disk."""
    checkpoint: str = "auto"
    """When a run saves a checkpoint: every=ROUNDS, a time such as 30s, auto (by time) or never."""
    attack: str = "none"
    """What some clients do instead of training honestly, such as sign-flip:fraction=0.2,scale=10."""
    validation: str = "none"
    """On what a round is chosen: a share of each client's samples, such as 0.1, or a dataset, such as
    csv:val.csv,label=grade."""
    stop: str = "none"
    """By which metric, and when training stops, such as patience=20,metric=macro-f1,min_delta=0.001."""
    data: DataSpec = DataSpec()
    skew: SkewSpec = SkewSpec()
    model: ModelSpec = ModelSpec()
    method: MethodSpec = MethodSpec()
    budget: Budget = Budget()
    evaluation: Evaluation = Evaluation()
    probe: Probe = Probe()
    faults: Faults = Faults()

    @field_validator("validation", mode="before")
    @classmethod
    def _as_text(cls, value: object) -> object:
        """Accept a share that is written as a number."""
        return repr(value) if isinstance(value, int | float) and not isinstance(value, bool) else value

    def toml(self) -> str:
        return tomli_w.dumps(self.model_dump(exclude_none=True))

    def result_settings(self) -> dict[str, Any]:
        """Return the settings that results depend on. The others say how and where they are computed."""
        elsewhere: dict[str, Any] = dict.fromkeys(
            ("engine", "workers", "trace", "client_memory", "checkpoint"), True
        )
        paths = {"data": {"folder"}, "model": {"init"}}  # weights count by their hash
        return self.model_dump(mode="json", exclude_none=True, exclude=elsewhere | paths)

    def identity(self) -> str:
        """Compute the SHA-256 of the settings that results depend on, as canonical JSON (sorted keys, no
        spaces). For a resolved experiment, as `prepare` makes it, it does not depend on how the settings were
        written. A dataset's file counts by its path, a method, a model or a partition by its path and
        content, initial weights by their content."""
        text = json.dumps(self.result_settings(), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()

    def title(self) -> str:
        """Describe the conditions in one line."""
        cohort = "" if self.budget.cohort == "all" else f", {self.budget.cohort} per round"
        attack = "" if self.attack == "none" else f", attack {self.attack}"
        held = "" if self.validation == "none" else f", validation {self.validation}"
        (data,), (model,) = short_data([self.data.name]).values(), short_texts([self.model.name]).values()
        published = models.MODELS[self.model.name].norms[0] if self.model.name in models.MODELS else "auto"
        norm = "" if self.model.norm in ("auto", published) else f", norm {self.model.norm}"
        return (
            f"{data}, {brief_skew(self.skew.recipe)}, {self.skew.clients} clients{cohort}{attack}, "
            f"{model}{norm}, {self.budget.rounds} round{'s' * (self.budget.rounds > 1)}{held}"
        )

    def code(self) -> list[str]:
        """Return the flags that name the user's own code (--method, --model, --skew, each with its value).
        `unskew resume` runs such code only if it is given them."""
        own = [("--method", part) for part in self.method.parts() if "." in part]
        own += [("--model", self.model.name)] if is_code(self.model.name) else []
        own += [("--skew", self.skew.recipe)] if skew_code(self.skew.recipe) else []
        return [f"{flag} {shlex.quote(value)}" for flag, value in own]

    def words(self) -> list[str]:
        """Return the method, the data, the skew and the seed, short enough for a folder's name."""
        own = path_in(self.data.name)
        data = Path(own).name if own else named(self.data.name)[0]
        return [self.method.brief(), data, brief_skew(self.skew.recipe), f"seed{self.seed}"]


def brief_skew(recipe: str) -> str:
    """Shorten a recipe for display: without default options and without folders."""
    text = write_skew(parse_skew(recipe), brief=True)
    return short_texts([text])[text]


def absolute_method(name: str) -> str:
    return without("+:", Path(name).resolve()) if name.endswith(".py") else name


def skew_code(recipe: str) -> str:
    """Return the user's own function in a recipe, such as mine.py:function; an empty text if there is
    none."""
    own = own_skew(parse_skew(recipe))
    return "" if own is None else own.name
