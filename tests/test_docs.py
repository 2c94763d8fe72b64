"""The documentation's Python runs as it stands."""

import itertools
import pkgutil
import re
import shlex
import tomllib
from pathlib import Path

import pytest

pytestmark = pytest.mark.usefixtures("no_workers")

ROOT = Path(__file__).parents[1]
PAGES = [
    "README.md",
    "docs/fine-tuning.md",
    "docs/logging.md",
    "docs/own-method.md",
    "docs/python.md",
    "docs/reproduce.md",
    "docs/skew.md",
    "docs/using-the-model.md",
]


def examples():
    for page in PAGES:
        blocks = re.findall(r"^```python\n(.*?)^```", (ROOT / page).read_text(), re.MULTILINE | re.DOTALL)
        for number, block in enumerate(blocks, 1):
            yield pytest.param(block, id=f"{page}-{number}")


@pytest.mark.parametrize("code", list(examples()))
def test_example(code, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    exec(compile(code, "example", "exec"), {"__name__": "example"})


@pytest.mark.parametrize(
    ("page", "ends_with"), [("four-sites", "sites.html"), ("fair-comparison", "compared.html")]
)
def test_a_walk_through_runs_from_top_to_bottom(unskew, page, ends_with):
    """Its Python, its settings and its commands, in one folder."""
    text = (ROOT / f"docs/{page}.md").read_text()
    blocks = re.findall(r"^```(\w*)\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    names = {"__name__": "example"}
    said: list[list[str]] = []
    for kind, block in blocks:
        if kind == "python":
            exec(compile(block, "example", "exec"), names)
        elif kind == "toml":
            Path("sites.toml").write_text(f'engine = "loop"\n{block}')  # for one core
        elif kind == "sh":
            for line in block.splitlines():
                answer = unskew(*shlex.split(line)[1:])
                assert answer.code == 0, answer.err
                said += [words for line in answer.out.splitlines() if (words := line.split())]
        else:
            heads, *rows = block.splitlines()
            assert heads.split() in said
            assert {row.split()[0] for row in rows} <= {words[0] for words in said}
    assert Path(ends_with).exists()


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


def test_the_architecture_page_has_the_layers_that_are_checked_and_every_module_is_in_one():
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    checked = [line.replace("unskew.", "").split(" | ") for line in contracts[0]["layers"]]
    after = (ROOT / "docs/architecture.md").read_text().split("## What may import what")[1]
    shown = [line.split(", ") for line in after.split("```")[1].split("\n") if line]
    assert shown == checked
    modules = {module.name for module in pkgutil.iter_modules([ROOT / "src/unskew"])} - {"__main__"}
    assert modules == {"report", *itertools.chain(*checked)}  # which has a contract of its own


def test_links_between_pages_lead_somewhere():
    for page in [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]:
        for target in re.findall(r"\]\(([^)#]+)\)", page.read_text()):
            if "://" not in target:
                assert (page.parent / target).exists(), f"{page.name} links to {target}"
