"""One self-contained, interactive page about runs: opens from disk, asks nothing of the network."""

from __future__ import annotations

import base64
import hashlib
import html
import json
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.resources import files
from pathlib import Path
from string import Template

from unskew.errors import UserError
from unskew.files import write_file
from unskew.record import Json
from unskew.report.page.data import page_data
from unskew.report.read import SavedRun

__all__ = ["page_data", "policy", "render", "write_page"]

SCRIPTS = ("basics", "state", "charts", "tables", "forest", "curves", "sites", "classes", "clients", "page")
"""Files of script/, in the order in which they make the page's script."""


def write_page(runs: Sequence[SavedRun], path: Path, coming: Sequence[int] = ()) -> None:
    """Write the page about these runs to a file. `coming` are the rounds of each run that has not begun."""
    content = render(page_data(runs, coming)).encode()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_file(path, content)
    except OSError as error:
        raise UserError(
            f"cannot write the page {path} ({error.strerror}): choose another file with --out."
        ) from None


def render(data: Mapping[str, Json]) -> str:
    """The page that shows this data, which is page_data's."""
    return Template(_part("page.html")).substitute(
        policy=policy(live="revision" in data),
        title=html.escape(str(data["title"])),
        answers=_answers(data["blocks"]),
        style=_part("page.css"),
        data=embed(data),
        plotly=_plotly(),
        script=_script(),
    )


def policy(*, live: bool) -> str:
    """A browser may run the two scripts of the page and no other, and may ask the network for nothing; a live
    page may ask for its data where it came from."""
    network = "connect-src 'self'; " if live else ""
    scripts = " ".join(_hash(script) for script in (_script(), _plotly()))
    return (
        f"default-src 'none'; script-src {scripts}; style-src 'unsafe-inline'; img-src data: blob:; "
        f"{network}base-uri 'none'; form-action 'none'"
    )


def embed(data: Mapping[str, Json]) -> str:
    """JSON that can stand in a script element: no '<' to end it with, and ASCII alone."""
    text = json.dumps(data, separators=(",", ":"), ensure_ascii=True, allow_nan=False)
    return text.replace("<", "\\u003c")


def _answers(blocks: Json) -> str:
    """The sentences, for who reads the page without its script."""
    assert isinstance(blocks, list)
    return "".join(
        f'<p class="answer">{html.escape(str(b["sentence"]))}</p>' for b in blocks if isinstance(b, dict)
    )


def _hash(script: str) -> str:
    digest = hashlib.sha256(script.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"


@cache
def _part(name: str) -> str:
    return files(__package__).joinpath(name).read_text(encoding="utf-8")


@cache
def _script() -> str:
    whole = "\n".join(_part(f"script/{name}.js") for name in SCRIPTS)
    return f'"use strict";\n(() => {{\n{whole}}})();\n'


@cache
def _plotly() -> str:
    try:
        from plotly.offline import get_plotlyjs
    except ImportError:
        raise UserError("the page needs plotly: install it with pip install 'unskew[report]'.") from None
    return str(get_plotlyjs())
