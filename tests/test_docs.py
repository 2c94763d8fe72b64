"""The documentation's Python runs as it stands."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = ["README.md", "docs/logging.md", "docs/own-method.md", "docs/python.md"]


def examples():
    for page in PAGES:
        blocks = re.findall(r"^```python\n(.*?)^```", (ROOT / page).read_text(), re.MULTILINE | re.DOTALL)
        for number, block in enumerate(blocks, 1):
            yield pytest.param(block, id=f"{page}-{number}")


@pytest.mark.parametrize("code", list(examples()))
def test_example(code, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    exec(compile(code, "example", "exec"), {"__name__": "example"})


def test_the_experiment_page_shows_the_defaults():
    import tomllib

    from unskew.experiment import Experiment

    text = re.search(r"```toml\n(.*?)```", (ROOT / "docs/experiments.md").read_text(), re.DOTALL)[1]
    shown = Experiment(**tomllib.loads(text)).model_dump()
    default = Experiment().model_dump()
    named = (
        "data",
        "model",
        "budget",
        "evaluation",
        "probe",
        "faults",
        "seed",
        "engine",
        "device",
        "threads",
    )
    for name in named:
        assert shown[name] == default[name]


def test_links_between_pages_lead_somewhere():
    for page in [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]:
        for target in re.findall(r"\]\(([^)#]+)\)", page.read_text()):
            if "://" not in target:
                assert (page.parent / target).exists(), f"{page.name} links to {target}"
