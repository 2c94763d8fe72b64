"""Every method has a page, and the page says what the code says."""

import importlib.util
from pathlib import Path

import pytest

from unskew.methods import METHODS

PAGES = Path(__file__).parents[1] / "docs" / "methods"
spec = importlib.util.spec_from_file_location("build_pages", PAGES / "build.py")
build = importlib.util.module_from_spec(spec)
spec.loader.exec_module(build)


@pytest.mark.parametrize("name", METHODS)
def test_the_page_is_up_to_date_and_has_a_result(name):
    page = (PAGES / f"{name}.md").read_text()
    assert page.startswith(build.text(name, METHODS[name])), "run python docs/methods/build.py"
    assert f"| {name} | " in page.split(build.command(name))[1]


def test_no_page_is_left_over():
    assert {page.stem for page in PAGES.glob("*.md")} == {*METHODS, "README"}
