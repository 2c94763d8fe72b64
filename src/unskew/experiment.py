"""An experiment as a file: every setting of a run, written out."""

from __future__ import annotations

import contextlib
import copy
import hashlib
import json
import re
import shlex
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import tomli_w
import torch
from pydantic import BeforeValidator, ConfigDict, Field, field_validator

from unskew import engines, models
from unskew.attacks import Attack
from unskew.checkpoints import Period
from unskew.data import load
from unskew.data.augment import Augment
from unskew.data.dataset import Dataset, Split
from unskew.data.federation import Federation, federate
from unskew.data.importers import Import
from unskew.data.loading import OWN, absolute
from unskew.data.partitions import (
    Domains,
    Natural,
    OwnSkew,
    Skew,
    absolute_skew,
    innermost,
    own_skew,
    parse_skew,
    write_skew,
)
from unskew.data.sources import SOURCES, spelled
from unskew.data.validation import NONE, read_validation
from unskew.data.validation import parse as parse_validation
from unskew.engines.network import Network
from unskew.errors import UserError, unknown
from unskew.method import Method
from unskew.methods.assemble import assemble, find
from unskew.methods.card import OptionValue
from unskew.models.tuning import MOST_RANK
from unskew.notation import (
    items,
    joined,
    named,
    path_in,
    path_of,
    short_data,
    short_paths,
    short_texts,
    without,
    write_method,
    write_parts,
)
from unskew.program import Program
from unskew.rounds import check_compatible
from unskew.spec import Spec
from unskew.trial import (
    MOST_THREADS,
    Budget,
    Evaluation,
    Faults,
    PrecisionOrAuto,
    Probe,
    Statistics,
    Stop,
    Teacher,
    Trial,
)
from unskew.user_code import absolute_name, is_code, sha256_of, split_name


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
    """auto: as many as the data or the recipe tell, else 10."""
    seed: int | None = Field(default=None, ge=0)
    """The partition's own seed; follows the run's when not given."""
    sha256: str = ""
    """The hash of the file with the recipe's function, where it is the user's own; filled in."""


class ModelSpec(Spec):
    """A model and its options: the keys beside these are the model's own, such as hidden."""

    model_config = ConfigDict(extra="allow")
    name: str = "auto"
    """A name of `unskew.models.MODELS`, or one's own as my_net.py:Net; auto: one that suits the data."""
    sha256: str = ""
    """The hash of the file with the model, where it is the user's own; filled in."""
    init: str = ""
    """Trained weights to start from: a .safetensors or .pt file, or a run's folder."""
    init_sha256: str = ""
    """The hash of these weights; filled in."""
    freeze: Patterns = ()
    """Parameters that stay as they are and are not sent: parts or patterns, such as body or *.bias."""
    train_only: Patterns = ()
    """Parameters that alone are trained and sent."""
    lora: int = Field(default=0, ge=0, le=MOST_RANK)
    """The rank of LoRA adapters, which are trained and sent in the place of their layers; 0: none."""
    lora_alpha: float = Field(default=0.0, ge=0)
    """LoRA alpha: adapters are scaled by lora_alpha / lora; 0: by 1."""
    lora_layers: Patterns = ()
    """The layers with adapters; none: every linear layer and convolution but the last layer."""
    norm: Literal["auto", "batch", "group", "none", "ws", "group+ws"] = "auto"
    statistics: Statistics = "average"
    teacher: Teacher = "running"


class MethodSpec(Spec):
    """A method and its hyperparameters: the keys beside `name` are the constructor's. For methods put
    together, such as fedvls+fedexp, they stand in a table of each part's name."""

    model_config = ConfigDict(extra="allow")
    name: str = "fedavg"
    sha256: str | None = None
    """The hash of the method's own file; where several parts have files, the hash of these files' hashes."""

    def brief(self, short: Mapping[str, str] | None = None) -> str:
        """What the method is called everywhere: its name, of a file without the folder, and the
        hyperparameters that do not have their defaults. `short` has other names of files, where two would be
        the same."""
        parts = self.changed()
        short = short or short_paths(self.files())
        return write_parts({short.get(name, name): options for name, options in parts.items()})

    def changed(self) -> dict[str, dict[str, OptionValue]]:
        """The hyperparameters that do not have their defaults, by part."""
        return {
            name: {key: value for key, value in options.items() if value != find(name).options.get(key)}
            for name, options in self.parts().items()
        }

    def files(self) -> list[str]:
        """The parts that are the user's own files."""
        return [name for name in self.parts() if name.endswith(".py")]

    def parts(self) -> dict[str, dict[str, OptionValue]]:
        """Each part's name and the hyperparameters given for it."""
        names = [part.strip() for part in self.name.split("+")]
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
        """A share may be written as a number."""
        return repr(value) if isinstance(value, int | float) and not isinstance(value, bool) else value

    def toml(self) -> str:
        return tomli_w.dumps(self.model_dump(exclude_none=True))

    def result_settings(self) -> dict[str, Any]:
        """The settings that results depend on. The others say how and where they are computed."""
        elsewhere: dict[str, Any] = dict.fromkeys(
            ("engine", "workers", "trace", "client_memory", "checkpoint"), True
        )
        paths = {"data": {"folder"}, "model": {"init"}}  # weights count by their hash
        return self.model_dump(mode="json", exclude_none=True, exclude=elsewhere | paths)

    def identity(self) -> str:
        """SHA-256 over the settings that results depend on, as canonical JSON: sorted keys, no spaces. Of a
        resolved experiment, as `prepare` makes it, it is the same however the settings were written. A
        dataset's file counts by its path, that of a method, a model or a partition by its path and its
        content, weights to start from by their content."""
        text = json.dumps(self.result_settings(), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()

    def title(self) -> str:
        """The conditions in one line."""
        cohort = "" if self.budget.cohort == "all" else f", {self.budget.cohort} per round"
        attack = "" if self.attack == "none" else f", attack {self.attack}"
        held = "" if self.validation == "none" else f", validation {self.validation}"
        (data,), (model,) = short_data([self.data.name]).values(), short_texts([self.model.name]).values()
        return (
            f"{data}, {brief_skew(self.skew.recipe)}, {self.skew.clients} clients{cohort}{attack}, {model}, "
            f"{self.budget.rounds} round{'s' * (self.budget.rounds > 1)}{held}"
        )

    def code(self) -> list[str]:
        """The flags that name the user's own code, without which `unskew resume` does not run it: --method,
        --model and --skew, each with its value."""
        own = [("--method", part) for part in self.method.parts() if "." in part]
        own += [("--model", self.model.name)] if is_code(self.model.name) else []
        own += [("--skew", self.skew.recipe)] if _skew_code(self.skew.recipe) else []
        return [f"{flag} {shlex.quote(value)}" for flag, value in own]

    def words(self) -> list[str]:
        """The method, the data, the skew and the seed, short enough for a folder's name."""
        own = path_in(self.data.name)
        data = Path(own).name if own else named(self.data.name)[0]
        return [self.method.brief(), data, brief_skew(self.skew.recipe), f"seed{self.seed}"]


def brief_skew(recipe: str) -> str:
    """A recipe without the options that have their default values and without folders, for people."""
    text = write_skew(parse_skew(recipe), brief=True)
    return short_texts([text])[text]


@dataclass(frozen=True, eq=False)
class Resolved:
    """An experiment whose every default is written out, and its trial."""

    experiment: Experiment
    trial: Trial


@dataclass(frozen=True, eq=False)
class Prepared(Resolved):
    """All that it takes to run an experiment."""

    method: Method | Program


def read(path: Path) -> dict[str, Any]:
    """The settings in an experiment file, unchecked."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError(f"there is no experiment file {path}: check the path.") from None
    except IsADirectoryError:
        raise UserError(f"{path} is a folder: name a file, such as {path / 'experiment.toml'}.") from None
    except OSError as error:
        raise UserError(f"the experiment file {path} cannot be read: {error.strerror}.") from None
    except UnicodeDecodeError:
        raise UserError(f"the experiment file {path} is not text: write it as UTF-8.") from None
    except tomllib.TOMLDecodeError as error:
        raise UserError(f"the experiment file {path} is not valid TOML: {error}; fix it.") from None
    except (ValueError, RecursionError):  # a number of thousands of digits, or tables in tables without end
        raise UserError(
            f"the experiment file {path} contains an invalid value, such as a number of thousands of "
            "digits or tables nested too deeply: fix it."
        ) from None


def refuse_code(
    settings: Mapping[str, Any],
    path: Path,
    methods: Iterable[str] | None = (),
    model: str | None = "",
    skew: str | None = "",
) -> None:
    """Check that no code runs here which somebody else's experiment file chooses: its method, model and
    partition are unskew's own, or those that are named here as trusted. None: none of this kind will run."""
    if methods is not None:
        _refuse_methods(settings, path, methods)
    for what, key, trusted in (("model", "name", model), ("skew", "recipe", skew)):
        code = _code_in(what, settings.get(what), key)
        if trusted is None or not code or code == _code_in(what, {key: trusted}, key):
            continue
        raise UserError(
            f"{path} names the {what} '{settings[what][key]}', whose code would run: if you trust it, give "
            f"it yourself, as --{what} {shlex.quote(settings[what][key])}."
        )


def _code_in(what: str, table: object, key: str) -> str:
    """The user's own model or partition that settings name, with its whole path."""
    name = table.get(key) if isinstance(table, dict) else None
    if not isinstance(name, str):
        return ""
    if what == "skew":
        with contextlib.suppress(UserError):  # said when it is read
            name = _skew_code(name)
    return absolute_name(name) if is_code(name) else ""


def _refuse_methods(settings: Mapping[str, Any], path: Path, trusted: Iterable[str]) -> None:
    known = {absolute_method(named(each)[0]) for text in trusted for each in re.split(r"\+(?!\d)", text)}
    table = settings.get("method")
    name = table.get("name") if isinstance(table, dict) else None
    if isinstance(name, str) and (
        own := [
            part
            for part in map(str.strip, name.split("+"))
            if "." in part and absolute_method(part) not in known
        ]
    ):
        raise UserError(
            f"{path} names the method '{own[0]}', whose code would run: if you trust it, give it yourself, "
            f"as --method {shlex.quote(write_method(settings['method']))}."
        )


def assign(settings: dict[str, Any], assignments: Iterable[str]) -> dict[str, Any]:
    """The settings with `path=value` pairs put in, such as budget.rounds=5. A value is read as TOML, and as
    plain text where it is not TOML."""
    settings = copy.deepcopy(settings)
    for assignment in assignments:
        path, sign, text = assignment.partition("=")
        if not sign or not path:
            raise UserError(f"'{assignment}' is not a setting: write path=value, such as budget.rounds=5.")
        text = text.strip()
        try:
            (value,) = tomllib.loads(f"value = {text}").values()
        except (ValueError, RecursionError):  # not TOML, or more than one value
            value = text
        put(settings, path.strip().split("."), value)
    return settings


def method_table(text: str) -> dict[str, Any]:
    """`NAME`, `NAME:option=value,option=value`, or several of these joined by +, as the [method] table of an
    experiment."""
    parts = [named(part) for part in re.split(r"\+(?!\d)", text)]
    if not all(name for name, _ in parts):
        raise UserError(f"--method is '{text}' but a name is missing: write one, or several joined by +.")
    for name, options in parts:
        if options == "" or any(item.key is None for item in items(options)):
            raise UserError(f"'{name}:{options}' is not a method: write {name}, or {name}:option=value.")
        if any(item.key == "name" for item in items(options)):
            raise UserError(f"'{name}:{options}' gives {name} a name: leave it out, as no hyperparameter is.")
    tables = {name: assign({}, [item.text for item in items(options)]) for name, options in parts}
    name = "+".join(name for name, _ in parts)
    return {"name": name, **(tables[name] if len(parts) == 1 else tables)}


def put(settings: dict[str, Any], path: Sequence[str], value: object) -> None:
    """Set the value at a path through the tables of settings."""
    *parents, key = path
    for parent in parents:
        settings = settings.setdefault(parent, {})
        if not isinstance(settings, dict):
            raise UserError(f"'{'.'.join(path)}' is not a setting: {parent} is a value, not a table.")
    settings[key] = value


def prepare(experiment: Experiment, dataset: Dataset, federation: Federation | None = None) -> Prepared:
    """Resolve every default. `federation` saves the work where it is known already."""
    Period.parse(experiment.checkpoint)  # a mistake in it is known before anything is written
    method, options = assemble(experiment.method.parts())
    alone = len(options) == 1
    options = {absolute_method(name): given for name, given in options.items()}
    federation = federation or partition(experiment, dataset)
    own, model = _model(experiment.model, dataset)
    trial = Trial(
        federation,
        own or model.name,
        budget=experiment.budget,
        evaluation=experiment.evaluation,
        probe=experiment.probe,
        faults=experiment.faults,
        seed=experiment.seed,
        norm=None if own else model.norm,
        model_options={} if own else experiment.model.model_extra or {},
        init=experiment.model.init or None,
        tuning=models.Tuning(
            freeze=model.freeze,
            train_only=model.train_only,
            lora=model.lora,
            lora_alpha=model.lora_alpha,
            lora_layers=model.lora_layers,
        ),
        statistics=experiment.model.statistics,
        teacher=experiment.model.teacher,
        augment=Augment.parse(experiment.data.augment),
        engine=experiment.engine,
        device=experiment.device,
        threads=experiment.threads,
        workers=experiment.workers,
        trace=experiment.trace,
        precision=experiment.precision,
        fast=experiment.fast,
        client_memory=None if experiment.client_memory == "auto" else experiment.client_memory,
        attack=Attack.parse(experiment.attack),
        stop=Stop.parse(experiment.stop),
    )
    check_compatible(trial, method.base if isinstance(method, Program) else method)
    if trial.faults.min_clients > trial.cohort:
        least = trial.faults.min_clients
        raise UserError(f"faults.min_clients is {least} but a round has {trial.cohort} clients: lower it.")
    resolved = experiment.model_copy(
        update={
            "engine": engines.choose(trial),
            "device": str(trial.pick_device()),
            "precision": trial.pick_precision(),
            "attack": str(trial.attack),
            "validation": write_validation(experiment.validation),
            "stop": str(trial.stop),
            "data": DataSpec(
                name=absolute(experiment.data.name),
                folder=str(Path(experiment.data.folder).resolve()) if experiment.data.folder else "",
                augment=str(trial.augment),
            ),
            "skew": SkewSpec(
                recipe=absolute_skew(federation.partition.recipe),
                clients=federation.clients,
                seed=federation.partition.seed,
                sha256=_skew_sha256(experiment.skew),
            ),
            "model": model,
            "method": MethodSpec(
                name="+".join(options),
                sha256=_method_sha256(experiment.method),
                **(next(iter(options.values())) if alone else options),
            ),
        }
    )
    # A model that does not fit the data is known before anything is written.
    if own is None:
        trial.build()
    else:
        _check_own(trial, own.name)
    return Prepared(resolved, trial, method)


def _model(spec: ModelSpec, dataset: Dataset) -> tuple[models.OwnModel | None, ModelSpec]:
    """The user's own model, where it is one, and the settings with every default written out."""
    given: dict[str, Any] = spec.model_extra or {}
    update: dict[str, Any] = {"init_sha256": _init_sha256(spec)}
    if spec.init:
        update["init"] = str(Path(spec.init).expanduser().resolve())
    if is_code(spec.name):
        options = given if spec.norm == "auto" else given | {"norm": spec.norm}
        own = models.own_model(spec.name, dataset.inputs, len(dataset.classes), options)
        without(":", split_name(spec.name)[0].resolve())
        update |= {"name": absolute_name(spec.name), "sha256": _code_sha256(spec.name, spec.sha256, "model")}
        # A parameter that is called as a setting has its default in the code alone.
        defaults = {
            key: value
            for key, value in models.stated_options(own).items()
            if key not in ModelSpec.model_fields
        }
        return own, spec.model_copy(update=update | defaults | given)
    if spec.sha256:
        raise UserError(f"model.sha256 is given, but model '{spec.name}' is no file: leave it out.")
    name = models.default_model(dataset.name, dataset.inputs) if spec.name == "auto" else spec.name
    if name not in models.MODELS:
        raise unknown("model", name, models.MODELS)
    for key in given:
        if key not in models.MODELS[name].defaults:
            known = [*ModelSpec.model_fields, *models.MODELS[name].defaults]
            raise unknown(f"setting of model '{name}'", key, known)
    update["norm"] = models.MODELS[name].norms[0] if spec.norm == "auto" else spec.norm
    return None, spec.model_copy(update={**update, "name": name, **models.MODELS[name].defaults, **given})


def _check_own(trial: Trial, name: str) -> None:
    """Refuse a model that cannot read the data, or whose initial weights do not follow from the seed."""
    first, second = Network(trial, torch.device("cpu")).train_module.state_dict(), trial.build().state_dict()
    if first.keys() != second.keys() or not all(torch.equal(first[key], second[key]) for key in first):
        raise UserError(
            f"the model '{name}' has other initial weights each time it is made: let it draw random numbers "
            "from PyTorch alone, which the seed sets."
        )


def _code_sha256(name: str, before: str, what: str) -> str:
    """The hash of the file that a model or a partition is in; nothing where it is unskew's own."""
    if not is_code(name):
        return ""
    path = split_name(name)[0]
    return _same_sha256(path, before, f"{what}.sha256")


def _method_sha256(spec: MethodSpec) -> str | None:
    """The hash of a method's own files; None where all of it is unskew's own."""
    files = [Path(name) for name in spec.files()]
    if not files:
        if spec.sha256:
            raise UserError(f"method.sha256 is given, but method '{spec.name}' is no file: leave it out.")
        return None
    each = [sha256_of(path) for path in files]
    now = each[0] if len(each) == 1 else hashlib.sha256("".join(each).encode()).hexdigest()
    return _unchanged(" or ".join(map(str, files)), now, spec.sha256, "method.sha256")


def _init_sha256(spec: ModelSpec) -> str:
    path = models.weights_file(spec.init) if spec.init else None
    if path is None or not path.is_file():  # said when it is read
        return ""
    return _same_sha256(path, spec.init_sha256, "model.init_sha256")


def _same_sha256(path: Path, before: str, setting: str) -> str:
    return _unchanged(str(path), sha256_of(path), before, setting)


def _unchanged(what: str, now: str, before: str | None, setting: str) -> str:
    """The hash as it is now, which has to be what it was before where that is known."""
    if before and before != now:
        raise UserError(
            f"{what} has changed since the experiment was written ({setting} is {before[:12]}… there and "
            f"{now[:12]}… now): bring back what it was, or take {setting} out for a new experiment."
        )
    return now


def check_names(*, data: str | None = None, model: str = "auto") -> None:
    """Refuse a dataset or a model that is neither listed nor one's own, without loading it."""
    if model != "auto" and not is_code(model) and model not in models.MODELS:
        raise unknown("model", model, models.MODELS)
    for part in [] if data is None else joined(data):
        if (name := spelled(named(part)[0])) not in {*SOURCES, *OWN}:
            raise unknown("dataset", name, [*SOURCES, *OWN])


def load_data(experiment: Experiment) -> Dataset:
    folder = experiment.data.folder
    return load(experiment.data.name, Path(folder) if folder else None)


def absolute_method(name: str) -> str:
    return without("+:", Path(name).resolve()) if name.endswith(".py") else name


def _skew_code(recipe: str) -> str:
    """The user's own function in a recipe, such as mine.py:function; nothing where there is none."""
    own = own_skew(parse_skew(recipe))
    return "" if own is None else own.name


def _skew_sha256(spec: SkewSpec) -> str:
    """The hash of the file that a partition or the code that draws it is in; nothing where there is none."""
    skew = parse_skew(spec.recipe)
    path = path_of(skew.path) if isinstance(skew, Import) else None
    if path is not None and path.is_file():
        return _same_sha256(path, spec.sha256, "skew.sha256")
    return _code_sha256(_skew_code(spec.recipe), spec.sha256, "skew")


def partition(experiment: Experiment, dataset: Dataset) -> Federation:
    skew = experiment.skew
    seed = experiment.seed if skew.seed is None else skew.seed
    clients = skew.clients
    if clients == "auto":
        clients = 0 if _tells_clients(parse_skew(skew.recipe)) else 10
    elif clients < 1:
        raise UserError(f"skew.clients is {clients} but should be at least 1.")
    validation: float | str | Split | None = parse_validation(experiment.validation)
    if isinstance(validation, str):
        folder = experiment.data.folder
        validation = read_validation(validation, dataset, Path(folder) if folder else None)
    return federate(dataset, skew.recipe, clients=clients, seed=seed, validation=validation)


def write_validation(text: str) -> str:
    """Write a rule of validation as in a resolved experiment: numbers in one form, paths absolute."""
    found = parse_validation(text)
    return NONE if found is None else absolute(found) if isinstance(found, str) else repr(found)


def _tells_clients(skew: Skew) -> bool:
    """Whether a skew says by itself how many clients there are."""
    skew = innermost(skew)
    if isinstance(skew, OwnSkew):
        return skew.tells_clients
    return isinstance(skew, Import | Natural) or (isinstance(skew, Domains) and bool(skew.clients))
