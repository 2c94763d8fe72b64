"""The reference page: complete, and its examples run as written."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from unskew import losses

PAGE = (Path(__file__).parents[2] / "docs" / "losses.md").read_text(encoding="utf-8")
LOOP, SETUP, *_ = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
SECTIONS = dict(re.findall(r"^### (\w+)\n(.*?)(?=^##|\Z)", PAGE, re.DOTALL | re.MULTILINE))
FUNCTIONS = [name for name in losses.__all__ if name.islower()]


def test_every_function_has_its_section_and_every_module_its_row() -> None:
    assert sorted(SECTIONS) == sorted(FUNCTIONS)
    assert sorted(re.findall(r"^\| `(\w+)\(", PAGE, re.MULTILINE)) == sorted(
        set(losses.__all__) - set(FUNCTIONS)
    )


@pytest.mark.parametrize("name", FUNCTIONS)
def test_the_example_runs_and_uses_its_loss(name: str) -> None:
    (example,) = re.findall(r"```python\n(.*?)```", SECTIONS[name], re.DOTALL)
    assert f"losses.{name}(" in example
    assert len(example.strip().splitlines()) <= 3
    exec(compile(SETUP + example, f"docs/losses.md#{name}", "exec"), {})


def test_the_loop_learns_the_rare_class_as_the_page_says() -> None:
    plain = LOOP.replace("loss(client(x), y, x)", "nn.functional.cross_entropy(client(x), y)")
    assert plain != LOOP
    rare = []
    for code in (LOOP, plain):
        names: dict[str, object] = {}
        exec(compile(code, "docs/losses.md#loop", "exec"), names)
        rare.append(names["accuracy"][-1])
    assert rare[0] > 0.6
    assert rare[1] < 0.3
