"""Writes a whole app for Flower: settings, a client, a server, and the form of the data."""

from __future__ import annotations

import importlib.util
import re
import shutil
import tempfile
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

import tomli_w

from unskew.data.loading import load_one
from unskew.data.partitions import parse_skew
from unskew.errors import UserError
from unskew.experiment import MethodSpec, check_names, method_table
from unskew.files import put
from unskew.flower.form import form_of
from unskew.flower.node_data import FORM
from unskew.flower.run_config import FederationSpec, read_config, tables
from unskew.flower.settings import named_method, refuse_one_place
from unskew.user_code import is_code, split_name

CLIENT = '''"""A site: its node's config says where its data are."""

from pathlib import Path

from unskew import flower

app = flower.client_app(Path(__file__).parent)
'''
SERVER = '''"""The server: it trains what pyproject.toml says, and writes a run folder."""

from pathlib import Path

from unskew import flower

app = flower.server_app(Path(__file__).parent)
'''
LICENSE = """All rights are reserved by the authors of {name}. Put the license that you choose in the place of
this.
"""
README = """# {name}

A federation on Flower that trains by `{method}`. What it trains and how stands in `pyproject.toml`, under
`tool.flwr.app.config`; `flwr run . -c 'budget.rounds=5'` changes it for one run.

On one machine, with TLS and keys that are made on the spot:

```
{up}
```

It prints the `flwr run` line to paste.
{more}"""
SIMULATION = """
In Flower's simulation, without any node:

```
export FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION=1
flwr run . --stream --federation-config 'num-supernodes={nodes}'
```
"""
OWN_SITES = """
Every site starts its node with the place of its own samples, which stay there, and a name:

```
flower-supernode ... --node-config 'data="csv:/path/of/its/file.csv,label=COLUMN" site="NAME"'
```

Its columns have to be those of `{package}/form.json`; in the place of a CSV file a folder of images
(`folder:PATH`) or a function of its own that returns a dataset (`my_data.py:load`) does as well. Of the
samples of each class a fifth tests the model; `test=0.3` in the node's config changes that.
"""


def write_app(folder: Path, settings: Mapping[str, Any], *, like: str | None, nodes: int) -> list[str]:
    """Write an app into a new folder, whole or not at all, and return the names of its files.

    `settings` are those of an experiment by their paths, such as budget.rounds. `like` names sample data in
    the form that the data of every site have; none of its samples goes into the app. Without `like`, nodes
    take parts of the experiment's dataset."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UserError(f"{folder} is there already: choose a new folder.")
    name = _app_name(folder)
    package = name.replace("-", "_")
    config = _app_config(name, settings, nodes, own_data=like is not None)
    code = _own_code(config)
    read_config(config)  # refuses settings that do not fit before anything is written
    files = {
        "pyproject.toml": _pyproject(name, package, config),
        "LICENSE": LICENSE.format(name=name),
        "README.md": _readme(name, package, config["method"], nodes, own=like is not None),
        f"{package}/__init__.py": "",
        f"{package}/client_app.py": CLIENT,
        f"{package}/server_app.py": SERVER,
    }
    if like is not None:
        files[f"{package}/{FORM}"] = form_of(load_one(like)) + "\n"
    files |= {f"{package}/{path.name}": path.read_text(encoding="utf-8") for path in code}
    _write_folder(folder, files)
    return list(files)


def _app_name(folder: Path) -> str:
    """Return the name of the app in a folder, whose Python package has the same name with underscores."""
    name = re.sub(r"[^a-z0-9-]+", "-", folder.name.lower()).strip("-")
    if not name or not name[0].isalpha():
        raise UserError(f"'{folder.name}' is no name for an app: begin with a letter.")
    if importlib.util.find_spec(name.replace("-", "_")) is not None:
        raise UserError(f"'{folder.name}' is the name of a Python module: choose another for the app.")
    return name


def _app_config(name: str, settings: Mapping[str, Any], nodes: int, *, own_data: bool) -> dict[str, Any]:
    """Return an app's run config: the settings of its experiment, and those of its federation. Refuse methods
    that cannot train across machines, and settings that can run at no node."""
    config = {key: ",".join(value) if isinstance(value, list) else value for key, value in settings.items()}
    if own_data:
        config |= {"data.name": name, "skew.recipe": "natural"}
    tested_at = "sites" if own_data else "server"
    config |= {"federation.nodes": nodes, "federation.test": tested_at, "federation.out": ""}
    defaults = FederationSpec()  # written out, since `flwr run -c` changes only settings that are in the file
    config |= {f"federation.{key}": getattr(defaults, key) for key in ("wait", "timeout", "label_counts")}
    refuse_one_place(*named_method(config["method"]))
    _check(config, nodes, own_data=own_data)
    return config


def _write_folder(folder: Path, files: Mapping[str, str]) -> None:
    """Write files, given by their paths, into a new or empty folder, all of them or none."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    partial = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
    try:
        for path, content in files.items():
            (partial / path).parent.mkdir(exist_ok=True)
            (partial / path).write_text(content, encoding="utf-8")
        partial.chmod(0o755)
        if folder.exists():
            folder.rmdir()
        put(partial, folder)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise


def _own_code(config: dict[str, Any]) -> list[Path]:
    """Return the files of the user's own model and method, which are copied into the app, and change the
    config to name the copies."""
    found = []
    model = config.get("model.name", "")
    if is_code(model):
        path, what = split_name(model)
        found.append(path)
        config["model.name"] = f"{path.name}:{what}"
    for name in MethodSpec(**method_table(config["method"])).files():
        found.append(Path(name))
        config["method"] = config["method"].replace(name, Path(name).name, 1)
    for path in found:
        if not path.is_file():
            raise UserError(f"there is no file {path}: check the path.")
    names = [path.name for path in found]
    different = {path.resolve() for path in found}
    if {"__init__.py", "client_app.py", "server_app.py"} & set(names) or len(different) > len(set(names)):
        raise UserError(f"{names[0]} is the name of two files of the app: call one of them otherwise.")
    return found


def _check(config: Mapping[str, Any], nodes: int, *, own_data: bool) -> None:
    """Refuse settings that can run at no node."""
    model, cohort = config.get("model.name", "auto"), config.get("budget.cohort", "all")
    check_names(data=None if own_data else config["data.name"], model=model)
    if cohort != "all" and cohort > nodes:
        raise UserError(f"--cohort is {cohort} but there are {nodes} nodes: lower it.")
    if not own_data:
        parse_skew(config["skew.recipe"])


def _pyproject(name: str, package: str, config: Mapping[str, Any]) -> str:
    flower = version("flwr")
    least = ".".join(flower.split(".")[:2])
    return tomli_w.dumps(
        {
            "build-system": {"requires": ["hatchling"], "build-backend": "hatchling.build"},
            "project": {
                "name": name,
                "version": "1.0.0",
                "description": "A federation on Flower, by unskew.",
                "license": {"file": "LICENSE"},
                "dependencies": [f"flwr>={least}"],
            },
            "tool": {
                "hatch": {"build": {"targets": {"wheel": {"packages": [package]}}}},
                "flwr": {
                    "app": {
                        "publisher": "local",
                        "fab-format-version": 1,
                        "flwr-version-target": flower,
                        "components": {
                            "serverapp": f"{package}.server_app:app",
                            "clientapp": f"{package}.client_app:app",
                        },
                        "config": tables(config),
                    }
                },
            },
        }
    )


def _readme(name: str, package: str, method: str, nodes: int, *, own: bool) -> str:
    each = " ".join(f"--node 'data=\"csv:site{n}.csv,label=COLUMN\"'" for n in range(1, nodes + 1))
    up = f"unskew flower up {each}" if own else f"unskew flower up --nodes {nodes}"
    more = OWN_SITES.format(package=package) if own else SIMULATION.format(nodes=nodes)
    return README.format(name=name, method=method, up=up, more=more)
