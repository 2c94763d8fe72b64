"""The reference page: complete, and its examples run as written."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from unskew import losses

PAGE = (Path(__file__).parents[2] / "docs" / "losses.md").read_text(encoding="utf-8")
SETUP, *_ = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
SECTIONS = dict(re.findall(r"^### (\w+)\n(.*?)(?=^##|\Z)", PAGE, re.DOTALL | re.MULTILINE))


def test_every_loss_has_its_section() -> None:
    assert sorted(SECTIONS) == sorted(losses.__all__)


@pytest.mark.parametrize("name", losses.__all__)
def test_the_example_runs_and_uses_its_loss(name: str) -> None:
    (example,) = re.findall(r"```python\n(.*?)```", SECTIONS[name], re.DOTALL)
    assert f"losses.{name}(" in example
    assert len(example.strip().splitlines()) <= 3
    exec(compile(SETUP + example, f"docs/losses.md#{name}", "exec"), {})
