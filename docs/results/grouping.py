"""Groups the lines in docs/results/raw into settings, networks, methods and seeds."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from unskew import metrics, models
from unskew.advice import evidence
from unskew.advice.evidence import MethodResult, NetworkResult, SeedResult, Setting
from unskew.advice.facts import SkewFacts, mean_of
from unskew.experiment import Experiment, MethodSpec, brief_skew
from unskew.method import Method, plain_loss
from unskew.methods.assemble import assemble, find
from unskew.notation import flatten, write_parts
from unskew.record import is_tunable
from unskew.report.grouping import conditions_of
from unskew.types import Server

RAW = Path(__file__).with_name("raw")

Line = dict[str, Any]
TUNED = "tuned"
"""The key of a line that says that the settings of each method were chosen on validation data."""
TITLE = ("data.name", "skew.recipe", "skew.clients", "skew.seed", "budget.cohort")
"""Settings that the title of a setting names."""


def raw_lines() -> list[Line]:
    """Read the lines of all files, each run once."""
    lines = [
        json.loads(text) for path in sorted(RAW.glob("*.jsonl")) for text in path.read_text().splitlines()
    ]
    return list({each["identity"]: each for each in lines}.values())


def settings_of(lines: Iterable[Line]) -> list[Setting]:
    """Group runs by setting, network, method and seed."""
    pairs = [(line, resolve(line["experiment"])) for line in lines]
    groups: dict[str, list[tuple[Line, Line]]] = {}
    for line, resolved in pairs:
        conditions = {k: v for k, v in shared(resolved).items() if not is_tunable(k)}
        groups.setdefault(text_of(conditions | {TUNED: is_tuned(line)}), []).append((line, resolved))
    parts = [part for group in _with_fixed_partitions(groups) for part in _by_tuned(group)]
    found = [_setting(part) for part in parts]
    return sorted(_with_distinct_titles(found), key=_order)


def _with_fixed_partitions(groups: Mapping[str, list[tuple[Line, Line]]]) -> list[list[tuple[Line, Line]]]:
    """Return groups of runs with those added to a fixed partition whose own seed happens to be its seed.

    Such a run looks as if its partition followed its seed. Runs that have other seeds too, each with a
    partition of its own, stay apart.
    """
    found = {key: list(group) for key, group in groups.items()}
    for key, group in groups.items():
        seeds = {resolved["seed"] for _, resolved in group}
        if len(seeds) > 1 or "skew.seed" in (own := json.loads(key)):
            continue
        fixed = text_of(own | {"skew.seed": seeds.pop()})
        if fixed in found:
            found[fixed] += found.pop(key)
    return list(found.values())


def _with_distinct_titles(settings: Sequence[Setting]) -> list[Setting]:
    """Return settings with the differences added to titles that would be the same."""
    found = []
    for each in settings:
        alike = [other.settings for other in settings if other.title == each.title]
        differs = {
            key: value
            for key, value in each.settings.items()
            if any(other.get(key) != value for other in alike)
        }
        found.append(replace(each, title=", ".join(filter(None, (each.title, evidence.in_words(differs))))))
    return found


def _order(setting: Setting) -> tuple[bool, str, float, str]:
    """Return a key that sorts settings with enough seeds for claims first, then by dataset, most skewed
    first."""
    return setting.seeds < metrics.FEWEST, setting.data, -setting.facts.vacant, setting.title


def resolve(experiment: Mapping[str, Any]) -> Line:
    """Return the tables of an experiment with defaults for settings that did not exist when it ran."""
    without = {**experiment, "seed": 1, "skew": {**experiment["skew"], "seed": 1}}
    resolved: Line = json.loads(_resolved(text_of(without)))
    return resolved | {
        "seed": experiment["seed"],
        "skew": resolved["skew"] | {"seed": experiment["skew"]["seed"]},
    }


@cache
def _resolved(text: str) -> str:
    """Do the part of `resolve` that is the same for all seeds, from text to text."""
    resolved = Experiment(**json.loads(text)).model_dump(mode="json", exclude_none=True)
    model = models.MODELS[resolved["model"]["name"]].defaults | resolved["model"]
    if model["norm"] != "batch":  # these settings are of BatchNorms, and change nothing without any
        model |= {"statistics": "average", "teacher": "running"}
    resolved["model"] = model
    return json.dumps(resolved)


def shared(resolved: Line) -> dict[str, Any]:
    """Return the settings that runs of all methods and networks have in common, by path."""
    seed = resolved["skew"].get("seed", resolved["seed"])
    conditions = {
        key: value for key, value in conditions_of(resolved).items() if not key.startswith("model.")
    }
    # A partition that is the same for all seeds is another condition than one that follows the seed.
    return conditions | ({} if seed == resolved["seed"] else {"skew.seed": seed})


def _by_tuned(group: Sequence[tuple[Line, Line]]) -> list[list[tuple[Line, Line]]]:
    """Split runs if a method has several values of its tunable settings: each of these is a setting of its
    own, with all methods that have it.

    Methods with other values, each with one, stay together in the setting with most runs: there, tunable
    settings differ only between methods or networks.
    """
    values: dict[str, set[str]] = {}
    for _, resolved in group:
        values.setdefault(text_of([resolved["method"], resolved["model"]]), set()).add(
            text_of(_tuned(resolved))
        )
    several = {value for each in values.values() if len(each) > 1 for value in each}
    if not several:
        return [list(group)]
    found = [text_of(_tuned(resolved)) for _, resolved in group]
    usual = Counter(value for value in found if value in several).most_common(1)[0][0]
    apart: dict[str, list[tuple[Line, Line]]] = {}
    for value, run in zip(found, group, strict=True):
        apart.setdefault(value if value in several else usual, []).append(run)
    return list(apart.values())


def _tuned(resolved: Line) -> dict[str, Any]:
    return {key: value for key, value in shared(resolved).items() if is_tunable(key)}


def is_tuned(line: Line) -> bool:
    return bool(line.get(TUNED))


def text_of(value: object) -> str:
    return json.dumps(value, sort_keys=True)


def _setting(group: Sequence[tuple[Line, Line]]) -> Setting:
    tuned, own = is_tuned(group[0][0]), [_tuned(resolved) for _, resolved in group]
    common = json.loads(Counter(map(text_of, own)).most_common(1)[0][0])
    if tuned:  # what was searched is each method's own, whatever most of them have
        common = {key: value for key, value in common.items() if all(each.get(key) == value for each in own)}
    conditions = {k: v for k, v in shared(group[0][1]).items() if not is_tunable(k)} | common
    # Of a group with a fixed partition, the runs whose own seed is the partition's do not name it.
    fixed = next((found for _, resolved in group if "skew.seed" in (found := shared(resolved))), {})
    conditions |= {key: value for key, value in fixed.items() if key == "skew.seed"}
    defaults = dict(flatten(Experiment(precision="fp32").model_dump(mode="json", exclude_none=True)))
    settings = {key: value for key, value in conditions.items() if value != defaults.get(key)}
    settings["skew.recipe"] = brief_skew(conditions["skew.recipe"])
    settings |= {key: conditions[key] for key in ("data.name", "skew.clients", "budget.cohort")}
    cohort = (
        "all in every round"
        if settings["budget.cohort"] == "all"
        else f"{settings['budget.cohort']} per round"
    )
    partition = f", one partition (seed {settings['skew.seed']})" if "skew.seed" in settings else ""
    facts = [SkewFacts(**line["skew"]) for line, _ in group]
    networks: dict[str, list[tuple[Line, Line]]] = {}
    for line, resolved in group:
        networks.setdefault(text_of(resolved["model"]), []).append((line, resolved))
    return Setting(
        title=f"{settings['data.name']}, {settings['skew.recipe']}, {settings['skew.clients']} clients, "
        f"{cohort}{partition}{evidence.TUNED_TITLE * tuned}",
        tuned=tuned,
        budget=_budget(conditions, settings),
        settings=settings,
        data=settings["data.name"],
        skew=settings["skew.recipe"],
        facts=mean_of(facts),
        devices=sorted({line["device"] for line, _ in group}),
        commits=sorted({line["commit"] for line, _ in group}),
        networks=sorted(
            (_network(part, conditions) for part in networks.values()),
            key=lambda each: (len(each.changed), each.title),
        ),
    )


def _budget(conditions: Mapping[str, Any], settings: Mapping[str, Any]) -> str:
    """Return the budget in words, with all other settings that differ from their defaults."""
    usual = ("rounds", "epochs", "steps", "batch_size", "lr")
    each = {
        f"budget.{name}": conditions[f"budget.{name}"] for name in usual if f"budget.{name}" in conditions
    }
    return evidence.in_words(each | {key: value for key, value in settings.items() if key not in TITLE})


def _network(group: Sequence[tuple[Line, Line]], conditions: Mapping[str, Any]) -> NetworkResult:
    model = group[0][1]["model"]
    known = models.MODELS[model["name"]]
    defaults = Experiment().model.model_dump(mode="json") | known.defaults | {"norm": known.norms[0]}
    changed = {
        f"model.{key}": value for key, value in model.items() if key != "name" and value != defaults.get(key)
    }
    methods: dict[str, dict[int, tuple[Line, Line]]] = {}
    # If a seed ran twice the first run counts, so that reported numbers do not change by chance.
    for line, resolved in sorted(group, key=lambda each: each[0]["started"]):
        methods.setdefault(text_of(resolved["method"]), {}).setdefault(resolved["seed"], (line, resolved))
    found = [_method(seeds, conditions) for seeds in methods.values()]
    return NetworkResult(
        title=", ".join(filter(None, (model["name"], evidence.in_words(changed)))),
        name=model["name"],
        changed=changed,
        methods=sorted(found, key=lambda each: (each.client != "fedavg", each.client, each.server)),
    )


def _method(seeds: Mapping[int, tuple[Line, Line]], conditions: Mapping[str, Any]) -> MethodResult:
    _, resolved = next(iter(seeds.values()))
    spec = Experiment(**resolved).method
    client, server, own = split(spec.parts())
    return MethodResult(
        name=spec.brief(),
        family=family(spec.parts()),
        client=client,
        server=server,
        own_server=own,
        tuned={key: value for key, value in _tuned(resolved).items() if value != conditions.get(key)},
        seeds={seed: _seed(line) for seed, (line, _) in sorted(seeds.items())},
    )


def _seed(line: Line) -> SeedResult:
    measured = {name: line["last_rounds"][name] for name in evidence.GOALS}
    return SeedResult(
        **measured,
        last=line["accuracy"].get("best_by_validation", line["accuracy"]["last"]),
        traffic=line["traffic"]["up"] + line["traffic"]["down"],
        work=line["work"],
        seconds=line["seconds"] and round(line["seconds"]["total"], 1),
    )


def family(parts: Mapping[str, Mapping[str, Any]]) -> str:
    """Return a method's name without the values of its hyperparameters.

    Hyperparameters that switch something on, since they are 0 by default, are named, such as
    `logit-adjustment:floor`.
    """
    names = []
    for name, options in parts.items():
        defaults = find(name).options
        on = sorted(key for key, value in options.items() if not defaults[key] and value)
        names.append(f"{name}:{','.join(on)}" if on else name)
    return "+".join(names)


def split(parts: Mapping[str, Mapping[str, Any]]) -> tuple[str, str, bool]:
    """Split a method into the parts that change clients and those that change the server.

    The third value says whether one part has both a loss and a server, so that FedAvg cannot have that
    server.
    """
    at_client, at_server, own = {}, {}, False
    for name, options in parts.items():
        made, _ = assemble({name: options})
        changed = MethodSpec(name=name, **options).changed()
        if not isinstance(made, Method) or (made.loss is not plain_loss and made.server != Server()):
            own = True
            at_client |= changed
        elif made.server != Server():
            at_server |= changed
        elif made != Method():
            at_client |= changed
    return write_parts(at_client) or "fedavg", write_parts(dict(sorted(at_server.items()))), own
