"""An interactive page about runs in one file, which opens from disk and needs no network."""

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
"""The files of script/, in the order in which they are joined to the page's script."""


def write_page(runs: Sequence[SavedRun], path: Path, coming: Sequence[int] = ()) -> None:
    """Write the page about these runs to a file. `coming` has the rounds of each run that has not begun."""
    content = render(page_data(runs, coming)).encode()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_file(path, content)
    except OSError as error:
        raise UserError(
            f"cannot write the page {path} ({error.strerror}): choose another file with --out."
        ) from None


def render(data: Mapping[str, Json]) -> str:
    """Return the HTML of the page that shows the data of `page_data`."""
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
    """Return the content security policy of the page.

    The browser may run the two scripts of the page and no other, and may request nothing from the network. A
    live page may request its data from its own server.
    """
    network = "connect-src 'self'; " if live else ""
    scripts = " ".join(_hash(script) for script in (_script(), _plotly()))
    return (
        f"default-src 'none'; script-src {scripts}; style-src 'unsafe-inline'; img-src data: blob:; "
        f"{network}base-uri 'none'; form-action 'none'"
    )


def embed(data: Mapping[str, Json]) -> str:
    """Write JSON for a script element: in ASCII, and without '<', which could end the element."""
    text = json.dumps(data, separators=(",", ":"), ensure_ascii=True, allow_nan=False)
    return text.replace("<", "\\u003c")


def _answers(blocks: Json) -> str:
    """Return the sentences of all conditions as HTML, for readers without JavaScript."""
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
