"""The check of the documentation's site finds what is broken; make docs builds and checks the whole."""

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.fixture
def build(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "docs/site")
    sys.modules.pop("build", None)
    import build

    yield build
    sys.modules.pop("build")


PAGE = '<h1 id="top">Title</h1><a href="other.html#there">on</a><script src="own.js"></script>'


@pytest.mark.parametrize(
    ("page", "said"),
    [
        (PAGE, None),
        (PAGE.replace("other.html", "gone.html"), "gone.html#there, which is not there"),
        (PAGE.replace("#there", "#gone"), "no such anchor"),
        (PAGE + '<a href="#gone">up</a>', "no such anchor"),
        (PAGE.replace("own.js", "missing.js"), "missing.js, which is not there"),
        (PAGE.replace("own.js", "https://example.org/own.js"), "from the network"),
        (PAGE.replace("own.js", "//example.org/own.js"), "from the network"),
        (PAGE + '<link rel="stylesheet" href="https://example.org/a.css">', "from the network"),
        (PAGE + '<a href="https://example.org/">elsewhere</a>', None),
    ],
)
def test_what_leads_nowhere_or_to_a_network_is_found(build, tmp_path, page, said):
    (tmp_path / "index.html").write_text(page)
    (tmp_path / "other.html").write_text('<p id="there">')
    (tmp_path / "own.js").touch()
    found = build.defects(tmp_path)
    assert len(found) == (said is not None)
    assert said is None or said in found[0]


def test_a_style_that_loads_from_a_network_is_found(build, tmp_path):
    (tmp_path / "a.css").write_text("@import url(https://example.org/font.css);")
    assert "from the network" in build.defects(tmp_path)[0]


def test_code_that_a_page_links_to_becomes_a_page(build, tmp_path):
    page = ROOT / "docs/own-method.md"
    text = build.rewrite("[one](../examples/flatten.py), `[code](../examples/flatten.py)`", page, tmp_path)
    assert text == "[one](../examples/flatten.py.md), `[code](../examples/flatten.py)`"
    assert "def flatten" in (tmp_path / "examples/flatten.py.md").read_text()


def test_every_page_has_a_place_in_the_contents(build, tmp_path, monkeypatch):
    build.assemble(tmp_path)
    build.contents(tmp_path)
    monkeypatch.setitem(build.CONTENTS, "Losses", [])
    with pytest.raises(SystemExit, match=r"leave out docs/losses\.md"):
        build.contents(tmp_path)
