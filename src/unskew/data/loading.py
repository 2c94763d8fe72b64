"""Load a dataset from its spec.

A spec is NAME or NAME:OPTIONS for a source, and KIND:PATH or KIND:PATH,OPTIONS for the user's own data:
`cifar10`, `emnist:letters`, `synthetic:0.5,0.5,clients=100`, `folder:/scans,size=64`,
`csv:/table.csv,label=kind`. Commas separate options, so a path in a spec has none. Specs joined by plus signs
are the domains, or the sites, of one dataset."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

from unskew.data.arrays import from_npz
from unskew.data.dataset import Dataset
from unskew.data.image_folders import from_folder
from unskew.data.join import join
from unskew.data.names import distinct_names
from unskew.data.sources import SOURCES, data_folder, spelled
from unskew.data.sources.leaf import from_leaf
from unskew.data.table_dataset import TablePart, from_csv, from_tables
from unskew.errors import UserError, unknown
from unskew.notation import Item, Option, items, joined, named, path_of, read_options, without

OWN: dict[str, Callable[..., Dataset]] = {
    "folder": from_folder,
    "csv": from_csv,
    "parquet": from_csv,
    "npz": from_npz,
    "leaf": from_leaf,
}
"""Kinds of the user's own data, and their loaders, which take a path first."""
TABLES = ("csv", "parquet")
"""The kinds that are tables."""


def load(name: str, folder: Path | None = None, *, seed: int | None = None) -> Dataset:
    """Load a dataset by name, such as "cifar10", "emnist:letters" or "csv:table.csv,label=kind".

    Names joined by +, such as "mnist+usps+svhn", become the domains of one dataset, and joined tables its
    sites. If all parts are the user's own data, the classes are those of all parts together, and images that
    have one shape keep it.
    folder: the data folder; without it the folder that UNSKEW_DATA names, or else the user's cache folder.
    seed: for what is drawn (generated data, a test split cut off the user's data), unless the name has
    seed=…"""
    parts = joined(name)
    dataset = _load_parts(parts, folder, seed)
    spec = name if seed is None else _seeded(name, seed) if len(parts) == 1 else ""
    # The dataset is frozen, and its copies by `replace` have no spec.
    object.__setattr__(dataset, "spec", spec.strip())
    return dataset


def _load_parts(parts: list[str], folder: Path | None, seed: int | None) -> Dataset:
    if len(parts) > 1 and all(named(part)[0] in TABLES for part in parts):
        return _load_tables(parts, seed)
    datasets = [load_one(part, folder, seed=seed) for part in parts]
    if len(datasets) == 1:
        return datasets[0]
    if not all(named(part)[0] in OWN for part in parts):
        return join(datasets)
    names = distinct_names([path_of(items(named(part)[1])[0].text) for part in parts])
    datasets = [replace(each, name=name) for each, name in zip(datasets, names, strict=True)]
    shapes = {dataset.inputs.shape for dataset in datasets if dataset.kind == "image"}
    same = next(iter(shapes)) if len(shapes) == 1 else (3, 32, 32)
    return join(datasets, (same[0], same[1], same[2]), union=True)


def load_one(spec: str, folder: Path | None = None, *, seed: int | None = None) -> Dataset:
    """Load the dataset of a single spec, without plus signs; see `load`."""
    try:
        return _load_one(spec, folder, seed)
    except OSError as error:  # such as a name that is too long, or a folder that may not be read
        raise UserError(f"the dataset '{spec}' cannot be read ({error.strerror}): check its path.") from None


def _load_one(spec: str, folder: Path | None, seed: int | None) -> Dataset:
    name, rest = named(spec)
    name, given = spelled(name), items(rest)
    if name in OWN:
        if not given or not given[0].text:
            raise UserError(f"'{spec}' has no path: write {name}:PATH.")
        options = _read_options(name, OWN[name], given[1:], seed, "PATH,")
        return OWN[name](path_of(given[0].text), **options)
    if name not in SOURCES:
        raise _not_a_dataset(spec, name)
    source = SOURCES[name]
    options = _read_options(name, source.load, given, seed)
    if source.bundled:
        return source.load(**options)
    root = data_folder(folder)
    place = source.find(root)
    if place is None:
        raise source.missing(root)
    return source.load(place, **options)


def _load_tables(specs: Sequence[str], seed: int | None) -> Dataset:
    """Load several table files as one dataset, in which each file is a site. An option that is given for one
    file holds for all, except the test file."""
    given = [items(named(spec)[1]) for spec in specs]
    for spec, mine in zip(specs, given, strict=True):
        if not mine or not mine[0].text:
            raise UserError(f"'{spec}' has no path: write {named(spec)[0]}:PATH.")
    shared = {each.key: each for mine in given for each in mine[1:] if each.key not in (None, "test")}
    order = list(_options_of(from_csv))
    options, parts = dict[str, Any](), list[TablePart]()
    for mine in given:
        unnamed = sum(each.key is None for each in mine[1:])
        own = {*(each.key for each in mine), *order[:unnamed]}
        more = [each for key, each in shared.items() if key not in own]
        values = _read_options(named(specs[0])[0], from_csv, [*mine[1:], *more], seed, "PATH,")
        parts.append(TablePart(path_of(mine[0].text), values.pop("test", None)))
        for key, value in values.items():
            if options.setdefault(key, value) != value:
                raise UserError(f"{key} differs between the files that are joined: give it once, for all.")
    try:
        return from_tables(parts, **options)
    except OSError as error:
        raise UserError(
            f"the dataset '{'+'.join(specs)}' cannot be read ({error.strerror}): check its paths."
        ) from None


def _read_options(
    name: str, loader: Callable[..., Dataset], given: list[Item], seed: int | None, path: str = ""
) -> dict[str, Any]:
    """Read the options of a loader, and add the seed if the loader takes one and none is given."""
    known = _options_of(loader)
    options = read_options(name, given, known, list(known), path)
    return {"seed": seed} | options if seed is not None and "seed" in known else options


def _options_of(loader: Callable[..., Dataset]) -> dict[str, Option]:
    """Return the options of a loader: its keyword-only parameters, in order."""
    parameters = inspect.signature(loader, eval_str=True).parameters.values()
    return {
        p.name: Option(p.annotation, p.default is p.empty) for p in parameters if p.kind is p.KEYWORD_ONLY
    }


def _seeded(spec: str, seed: int) -> str:
    """Add the seed to a spec, if its loader takes one and the spec has none."""
    name, rest = named(spec)
    name, given = spelled(name), items(rest)
    loader = OWN[name] if name in OWN else SOURCES[name].load
    values = _read_options(name, loader, given[name in OWN :], None)
    if "seed" not in _options_of(loader) or "seed" in values:
        return spec
    return f"{spec}{',' if rest else ':'}seed={seed}"


def _not_a_dataset(spec: str, name: str) -> UserError:
    path = path_of(spec.strip())
    tables = {f".{kind}": f"{kind}:{spec},label=COLUMN" for kind in TABLES}
    kinds = {**tables, ".npz": f"npz:{spec}"}
    if name and path.is_dir():
        return UserError(f"'{spec}' is a folder: write folder:{spec} for images in one folder per class.")
    if path.is_file() and path.suffix in kinds:
        return UserError(f"'{spec}' is a file: write {kinds[path.suffix]}.")
    return unknown("dataset", name, [*SOURCES, *OWN])


def absolute(spec: str) -> str:
    """Make the paths of the user's own data in a spec absolute, so that it can be read from any folder."""
    return "+".join(map(_absolute_one, joined(spec)))


def _absolute_one(spec: str) -> str:
    name, rest = named(spec)
    if name not in OWN or rest is None:
        return spec
    path, *given = items(rest)
    known = _options_of(OWN[name])
    words = [_absolute_path(path.text)]
    for position, item in enumerate(given):
        key = item.key or list(known)[position]
        is_path = Path in (known[key].kind, *get_args(known[key].kind))
        value = _absolute_path(item.value) if is_path and item.value != "none" else item.value
        words.append(value if item.key is None else f"{key}={value}")
    return f"{name}:{','.join(words)}"


def _absolute_path(text: str) -> str:
    """Make a path absolute; raise a UserError if a spec could not hold it."""
    path = path_of(text).resolve()
    return without(",+" if len(joined(str(path))) > 1 else ",", path)
