"""Rules that divide a dataset among clients, as frozen dataclasses and as text.

A skew string is NAME:PARAMETER,option=value, such as dirichlet:0.05,cap=false. `longtail:100+` before it
makes the classes long-tailed first, `part:0.1+` keeps a tenth of the data, and `domains:6/4/3/7+` gives every
domain of a joined dataset clients of its own."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import cast

from unskew.data.dataset import Dataset
from unskew.data.drawn import DrawnSplit
from unskew.data.importers import IMPORTERS, Import
from unskew.data.partition import Partition, drawn_partition, partition_of
from unskew.data.partitions import recipe as recipes
from unskew.data.partitions.cached import cached_division
from unskew.data.partitions.classes import Balanced, Classes, Labels, Quantity
from unskew.data.partitions.compose import Domains, LongTail, Part
from unskew.data.partitions.dirichlet import ClientDirichlet, Dirichlet
from unskew.data.partitions.natural import Natural
from unskew.data.partitions.own import OwnSkew
from unskew.data.partitions.pool import Division, Partitioner, PartitionSeed, SamplePool
from unskew.data.partitions.shards import Iid, Shards, SortedShards
from unskew.errors import UserError, unknown, whole_number
from unskew.notation import joined, named, path_of
from unskew.user_code import is_code

__all__ = [
    "PARTITIONERS",
    "Balanced",
    "Classes",
    "ClientDirichlet",
    "Dirichlet",
    "Division",
    "Domains",
    "Iid",
    "Labels",
    "LongTail",
    "Natural",
    "OwnSkew",
    "Part",
    "PartitionSeed",
    "Partitioner",
    "Quantity",
    "SamplePool",
    "Shards",
    "Skew",
    "SortedShards",
    "absolute_skew",
    "own_skew",
    "parse_skew",
    "partition",
    "write_skew",
]

PARTITIONERS: Mapping[str, type[Partitioner]] = {
    "iid": Iid,
    "dirichlet": Dirichlet,
    "client-dirichlet": ClientDirichlet,
    "shards": Shards,
    "sorted-shards": SortedShards,
    "labels": Labels,
    "quantity": Quantity,
    "classes": Classes,
    "balanced": Balanced,
    "natural": Natural,
    "longtail": LongTail,
    "part": Part,
    "domains": Domains,
}

Skew = Partitioner | Import
"""A rule that divides samples, or a partition made elsewhere."""


def parse_skew(text: str) -> Skew:
    """Return the rule that a skew string names, with its options checked."""
    name, options = named(text)
    if name in IMPORTERS:
        return Import(name, options or "")
    return _parse_rule(joined(text))


def _parse_rule(parts: Sequence[str]) -> Partitioner:
    head, *rest = parts
    name, options = named(head)
    if is_code(head):
        if rest:
            raise UserError(f"'{head}' cannot be followed by '+{'+'.join(rest)}': let it come last.")
        return OwnSkew.parse(head)
    if name in IMPORTERS:
        raise UserError(
            f"'{head}' is a partition made elsewhere and is taken as it is: let nothing come before."
        )
    if name not in PARTITIONERS:
        if name.partition(",")[0] in PARTITIONERS:
            raise UserError(
                f"'{head}' has a comma where a colon should be: write {head.replace(',', ':', 1)}."
            )
        raise unknown("skew", name, [*PARTITIONERS, *IMPORTERS])
    kind = PARTITIONERS[name]
    if name not in ("longtail", "part", "domains"):
        if rest:
            raise UserError(
                f"{name} cannot be followed by '+{'+'.join(rest)}': only longtail, part and domains can."
            )
        return recipes.read(name, kind, options)
    if not rest:
        raise UserError(f"{name} does not say how to divide: write {head}+dirichlet:0.1, for example.")
    return recipes.read(name, kind, options, then=_parse_rule(rest))


def write_skew(skew: Skew, *, brief: bool = False) -> str:
    """Return the skew string of a rule, with every option, or if `brief` only with those that matter."""
    if isinstance(skew, Import):
        return skew.recipe
    if isinstance(skew, OwnSkew):
        return skew.recipe(brief=brief)
    names = {kind: name for name, kind in PARTITIONERS.items()}
    if type(skew) not in names:
        raise UserError(
            f"{type(skew).__name__} is not a partitioner of unskew: use one of {', '.join(PARTITIONERS)}."
        )
    text = recipes.write(names[type(skew)], skew, brief=brief)
    return (
        f"{text}+{write_skew(skew.then, brief=brief)}"
        if isinstance(skew, LongTail | Part | Domains)
        else text
    )


def own_skew(skew: Skew) -> OwnSkew | None:
    """Return the user's own function in a rule; None if the rule has none."""
    while isinstance(skew, LongTail | Part | Domains):
        skew = skew.then
    return skew if isinstance(skew, OwnSkew) else None


def absolute_skew(recipe: str) -> str:
    """Make the paths of files in a recipe absolute, so that it can be read from any folder."""
    skew = parse_skew(recipe)
    if isinstance(skew, Import):
        return f"{skew.kind}:{path_of(skew.path).resolve()}"
    return recipe if own_skew(skew) is None else write_skew(_absolute(skew))


def _absolute(rule: Partitioner) -> Partitioner:
    if isinstance(rule, LongTail | Part | Domains):
        return replace(rule, then=_absolute(rule.then))
    return rule.absolute() if isinstance(rule, OwnSkew) else rule


def partition(
    dataset: Dataset, skew: str | Skew | Callable[..., object], clients: int, seed: int
) -> Partition:
    """Divide the training split among clients. If the dataset has domains, each has its own clients.

    clients: may be 0 if the rule decides the number: natural owners, imported partitions, domains with
    numbers."""
    clients, seed = whole_number("clients", clients, None), whole_number("seed", seed)
    if clients < 0:
        raise UserError(f"{clients} clients cannot share data: ask for at least 1.")
    rule = _rule(skew)
    if isinstance(rule, Import):
        return rule.load(dataset, clients)
    train = dataset.train
    if isinstance(train, DrawnSplit):
        if rule != Natural():
            raise UserError(
                f"the clients of '{dataset.name}' are drawn when they are needed, each with its own samples: "
                "use --skew natural, or leave out drawn=true."
            )
        if clients not in (0, len(train.rows)):
            raise UserError(
                f"{clients} clients are asked for, but '{dataset.name}' draws {len(train.rows)}: write "
                f"clients={clients} in its name."
            )
        return drawn_partition(train, recipe=write_skew(rule), seed=seed)
    pool = SamplePool(
        train.labels.numpy(),
        len(dataset.classes),
        None if train.owners is None else train.owners.numpy(),
        None if train.domains is None else train.domains.numpy(),
        dataset.domains,
    )
    rule = spell_out(rule, pool.domain_names, clients)
    recipe = write_skew(rule)
    if own_skew(rule) is not None:  # not cached, since it may depend on anything
        division = rule.divide(pool, clients, PartitionSeed(seed))
    else:
        division = cached_division(
            recipe, pool, clients, seed, lambda: rule.divide(pool, clients, PartitionSeed(seed))
        )
    return partition_of(
        division.clients,
        dataset,
        recipe=recipe,
        seed=seed,
        notes=division.notes,
        tries=division.tries,
    )


def _rule(skew: str | Skew | Callable[..., object]) -> Skew:
    if isinstance(skew, str):
        return parse_skew(skew)
    if inspect.isfunction(skew):
        return OwnSkew(f"{skew.__module__}:{skew.__qualname__}", function=skew)
    return cast(Skew, skew)


def spell_out(rule: Partitioner, domains: tuple[str, ...], clients: int) -> Partitioner:
    """Return the rule with the number of clients and the fraction of each domain, if the dataset has domains.
    Owners, by which `natural` divides, belong to one domain each already."""
    if domains and not isinstance(innermost(rule), Natural | Domains):
        rule = Domains((), rule)
    if isinstance(rule, Domains):
        return rule.spell_out(domains, clients)
    if isinstance(rule, LongTail | Part) and isinstance(innermost(rule), Domains):
        return replace(rule, then=spell_out(rule.then, domains, clients))
    return rule


def innermost(rule: Skew) -> Skew:
    """Return the rule that divides the samples which LongTail and Part keep."""
    while isinstance(rule, LongTail | Part):
        rule = rule.then
    return rule
