"""The check of the documentation's site finds what is broken; make docs builds and checks the whole."""

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


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


def test_the_site_is_searched_from_disk(build, chromium, tmp_path):
    pages, site = tmp_path / "pages", tmp_path / "site"
    (pages / "docs/site").mkdir(parents=True)
    (pages / "docs/site/site.css").touch()
    (pages / "README.md").write_text("# Home\n\nSomething.\n")
    (pages / "docs/far.md").write_text("# Far away\n\nA zebra lives here.\n")
    settings = build.configuration(pages, site, [{"Home": "README.md"}, {"Far": "docs/far.md"}])
    build.generate(settings | {"plugins": ["search", "offline"]}, site)
    assert not build.defects(site)
    page = chromium.new_page()
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.goto((site / "index.html").as_uri())
    page.get_by_role("button", name="Search").first.click()
    box = page.get_by_role("combobox").or_(page.get_by_role("textbox")).first
    box.press_sequentially("zebra")
    page.get_by_text("A zebra lives here").first.wait_for()
    assert box.input_value() == "zebra"
    page.get_by_text("Far away").first.click()
    page.wait_for_url("**/docs/far.html*")
    assert all(url.startswith(("file:", "data:", "blob:", "about:")) for url in asked)
    page.close()
