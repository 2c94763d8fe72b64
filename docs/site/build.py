"""Build the documentation as a site that is read and searched without a network: make docs.

python docs/site/build.py [FOLDER]

The site has the layout of the repository, so that links between pages work on both. Code that a page links
to becomes a page, the notebook becomes one, and the reference is made from docstrings. A link or an anchor
that leads nowhere, a page that the contents below leave out, and anything taken from a network is an error.
"""

from __future__ import annotations

import ast
import base64
import json
import re
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

ROOT = Path(__file__).parents[2]
SHIM = "https://unpkg.com/iframe-worker/shim"
"""What the theme loads for searching from disk; docs/site/from-disk.js takes its place."""
CODE = {".py": "python", ".txt": "text", ".toml": "toml"}

CONTENTS: dict[str, list[str]] = {
    "First steps": ["docs/first-steps.ipynb", "docs/python.md", "docs/four-sites.md"],
    "Comparing fairly": [
        "docs/fair-comparison.md", "docs/claims.md", "docs/metrics.md", "docs/experiments.md",
    ],
    "Your own data": [
        "docs/data.md", "docs/skew.md", "docs/models.md", "docs/fine-tuning.md", "docs/using-the-model.md",
    ],
    "Methods": [
        "docs/which-method.md", "docs/steady.md", "docs/methods/README.md",
        "docs/own-method.md",
        "All methods: docs/methods/*.md",
    ],
    "Losses": ["docs/losses.md"],
    "On Flower": ["docs/deploy.md"],
    "Figures and the page": [
        "docs/report.md", "docs/tables.md", "docs/figures.md", "docs/gallery/README.md", "docs/logging.md",
    ],
    "Speed": ["docs/engines.md", "docs/cluster.md", "docs/bench.md", "benchmarks/README.md"],
    "Reliability": ["docs/reliability.md", "docs/bad-input.md"],
    "Reference": [],
    "Development": ["docs/architecture.md", "CONTRIBUTING.md", "Decisions: docs/decisions/*.md"],
    "Results": ["docs/reproduce.md", "docs/results/*.md", "Speed: benchmarks/results/*.md"],
    "Changes": ["CHANGELOG.md"],
}  # fmt: skip
"""The sections in reading order; a star stands for the pages that are named nowhere, here under a title of
their own where one stands before it."""

REFERENCE = {
    "unskew": "What most scripts need.",
    "unskew.data": "Datasets, partitions and federations.",
    "unskew.models": "Networks, and how one is chosen, started and trained in part.",
    "unskew.methods": "Constructors of the methods; [their pages](../docs/methods/README.md) say more.",
    "unskew.losses": "Losses for any training loop; [one loss](../docs/losses.md) shows how.",
    "unskew.metrics": "Numbers from labels, answers and counts; [metrics](../docs/metrics.md) defines them.",
    "unskew.plot": "Figures for notebooks and scripts; [figures](../docs/figures.md) shows them.",
    "unskew.flower": "Losses, class-wise results and methods for apps [on Flower](../docs/deploy.md).",
    "unskew.testing": "Laws that every method keeps, for [your own](../docs/own-method.md).",
}
"""The modules that the reference covers, and a line on each."""
CONTENTS["Reference"] = [f"reference/{module}.md" for module in REFERENCE]

FIRST = [
    "load", "federate", "Dataset", "Federation", "Trial", "Budget", "train", "Result", "Round", "compare",
    "advise", "Advice", "load_model", "TrainedModel", "Method", "Program",
]  # fmt: skip
"""What stands first in the reference; all else follows as its module names it."""


def main(site: Path) -> None:
    """Assemble the pages beside the site, build it, and check what came out."""
    pages = site.with_name(f"{site.name}-pages")
    shutil.rmtree(pages, ignore_errors=True)
    assemble(pages)
    generate(configuration(pages, site, contents(pages)), site)
    if found := defects(site):
        sys.exit("\n".join([*found, f"{len(found)} defects in the site: fix the pages they are on."]))
    print(f"written: {site / 'index.html'}")


def generate(settings: dict[str, object], site: Path) -> None:
    """Build the site, every warning being an error."""
    shutil.rmtree(site, ignore_errors=True)
    file = site.parent / "mkdocs.yml"
    file.write_text(json.dumps(settings, indent=1))  # JSON is YAML
    # Clean: its cache does not see that a docstring has changed.
    built = subprocess.run([sys.executable, "-m", "zensical", "build", "--clean", "--strict", "-f", file])
    if built.returncode:
        sys.exit(built.returncode)
    _copy(ROOT / "docs/site/from-disk.js", site)
    for path in site.rglob("*.html"):
        own = "../" * (len(path.relative_to(site).parts) - 1) + "docs/site/from-disk.js"
        path.write_text(path.read_text().replace(SHIM, own))


def assemble(pages: Path) -> None:
    """Write all pages, and what they link to, into a folder with the layout of the repository."""
    for path in sources():
        text = notebook_page(path, pages) if path.suffix == ".ipynb" else path.read_text()
        _write(pages, path.relative_to(ROOT).with_suffix(".md"), rewrite(text, path, pages))
    for picture in (ROOT / "docs").rglob("*.png"):
        _copy(picture, pages)
    _copy(ROOT / "docs/site/site.css", pages)
    for module, line in REFERENCE.items():
        _write(pages, Path(f"reference/{module}.md"), reference_page(module, line))


def sources() -> list[Path]:
    """Return the paths of the repository's pages, and of the notebook."""
    roots = [ROOT / name for name in ("README.md", "CHANGELOG.md", "CONTRIBUTING.md")]
    folders = [*(ROOT / "docs").rglob("*.md"), *(ROOT / "docs").rglob("*.ipynb")]
    return [
        *roots,
        *folders,
        *(ROOT / "benchmarks").glob("*.md"),
        *(ROOT / "benchmarks/results").glob("*.md"),
    ]


def rewrite(text: str, path: Path, pages: Path) -> str:
    """Return the text of a page with links that lead to pages.

    Code that it links to becomes a page, a folder the list of its files; other files are copied.
    """

    def target(found: re.Match[str]) -> str:
        link, anchor = found[1], found[2] or ""
        if "://" in link:
            return found[0]
        there = (path.parent / link).resolve()
        if there.is_dir():
            _write(pages, there.relative_to(ROOT) / "README.md", _list_page(there))
            return f"]({link.rstrip('/')}/README.md{anchor})"
        if there.suffix == ".ipynb":
            return f"]({link.removesuffix('.ipynb')}.md{anchor})"
        if there.suffix in CODE and there.is_file():
            name = there.relative_to(ROOT)
            code = f"# {name}\n\n````{CODE[there.suffix]}\n{there.read_text()}\n````\n"
            _write(pages, name.with_name(f"{name.name}.md"), f"---\nsearch:\n  exclude: true\n---\n{code}")
            return f"]({link}.md{anchor})"
        if there.is_file() and there not in sources():
            _copy(there, pages)
        return found[0]

    parts = re.split(r"(^```.*?^```|`[^`\n]*`)", text, flags=re.MULTILINE | re.DOTALL)  # code stays as it is
    return "".join(
        part if part.startswith("`") else re.sub(r"\]\(([^)#\s]+)(#[^)\s]*)?\)", target, part)
        for part in parts
    )


def _list_page(folder: Path) -> str:
    pages = [
        (each.name, each.read_text().partition("\n")[0].lstrip("# ")) for each in sorted(folder.glob("*.md"))
    ]
    return "\n".join(
        [f"# {folder.name.capitalize()}", "", *(f"- [{title}]({name})" for name, title in pages)]
    )


def notebook_page(path: Path, pages: Path) -> str:
    """Return a notebook as Markdown: its texts, its code and the output of that."""
    parts: list[str] = []
    for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            parts.append(source)
            continue
        parts.append(f"```python\n{source}\n```")
        for output in cell["outputs"]:
            data = output.get("data", {"text/plain": output.get("text", [])})
            if "image/png" in data:
                picture = path.relative_to(ROOT).with_name(f"{path.stem}-{len(parts)}.png")
                _write(pages, picture, base64.b64decode("".join(data["image/png"])))
                width = output["metadata"]["image/png"]["width"]
                parts.append(f'![what the code above draws]({picture.name}){{ width="{1.3 * width:.0f}" }}')
            elif "text/html" in data:
                parts.append(f'<div class="output">{"".join(data["text/html"])}</div>')
            else:
                parts.append(f"```text\n{''.join(data['text/plain']).rstrip()}\n```")
    return "\n\n".join(parts) + "\n"


def reference_page(module: str, line: str) -> str:
    """Return the page of what a module offers, made of its docstrings."""
    folder, names, homes = _offered(module)
    _, offered, come_from = _offered("unskew")
    same = (name for name in offered if name in names and module != "unskew")
    first = {
        name for name in same if come_from[name] == homes.get(name) or come_from[name].startswith(module)
    }
    parts = [f"# {module}", line]
    if first:
        links = ", ".join(f"[{name}](unskew.md#unskew.{name})" for name in sorted(first))
        parts.append(f"Also here, and told of [there](unskew.md): {links}.")
    for name in sorted(names, key=lambda name: FIRST.index(name) if name in FIRST else len(FIRST)):
        full = f"{module}.{name}"
        if full in REFERENCE:
            parts.append(f"[{full}]({full}.md): {REFERENCE[full]}")
        elif name not in first:
            # By its home, where a module beside it has its name.
            twice = any((folder / f"{name}{end}").exists() for end in ("", ".py"))
            parts.append(f"::: {homes[name]}.{name}" if twice else f"::: {full}")
    return "\n\n".join(parts) + "\n"


def _offered(module: str) -> tuple[Path, list[str], dict[str, str]]:
    """Return the folder of a module, the names that it offers, and the modules that these come from.

    Names are offered in `__all__`, or imported as themselves, or defined there.
    """
    file = ROOT / "src" / Path(*module.split("."))
    file = file.with_suffix(".py") if file.with_suffix(".py").is_file() else file / "__init__.py"
    tree = ast.parse(file.read_text())
    homes = {
        alias.name: f"{node.module}"
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    names: list[str] = []
    for node in tree.body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            names = ast.literal_eval(node.value)
            break
        if isinstance(node, ast.ImportFrom):
            names += [alias.name for alias in node.names if alias.asname == alias.name]
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and not node.name.startswith("_"):
            names.append(node.name)
    return file.parent if file.name == "__init__.py" else Path("nowhere"), names, homes


def contents(pages: Path) -> list[dict[str, object]]:
    """Return the navigation. An error names the pages that it leaves out."""
    asked = {title: [name.replace(".ipynb", ".md") for name in names] for title, names in CONTENTS.items()}
    named = {name for names in asked.values() for name in names}
    sections: list[dict[str, object]] = [{"unskew": "README.md"}]
    for title, names in asked.items():
        found: list[object] = []
        for name in names:
            inner, _, pattern = name.rpartition(": ")
            every = sorted(path.relative_to(pages).as_posix() for path in pages.glob(pattern))
            every = [each for each in every if each == name or each not in named]
            found += [{inner: every}] if inner else every
        sections.append({title: found[0] if len(found) == 1 else found})
    listed = re.findall(r'"([^"]+\.md)"', json.dumps(sections))
    made = {path.relative_to(ROOT).with_suffix(".md").as_posix() for path in sources()}
    if left_out := made - set(listed):
        sys.exit(
            f"CONTENTS in docs/site/build.py leave out {', '.join(sorted(left_out))}: give them a place."
        )
    return sections


def configuration(pages: Path, site: Path, nav: list[dict[str, object]]) -> dict[str, object]:
    """Return the settings of the generator: nothing is loaded from a network."""
    light, dark = "(prefers-color-scheme: light)", "(prefers-color-scheme: dark)"
    return {
        "site_name": "unskew",
        "docs_dir": pages.name,
        "site_dir": str(site),
        "use_directory_urls": False,  # pages open from disk
        "theme": {
            "name": "material",
            "font": False,
            "features": [
                "content.code.copy",
                "navigation.footer",
                "navigation.top",
                "search.highlight",
                "toc.follow",
            ],
            "palette": [
                {
                    "media": light,
                    "scheme": "default",
                    "toggle": {"icon": "material/weather-sunny", "name": "Dark"},
                },
                {
                    "media": dark,
                    "scheme": "slate",
                    "toggle": {"icon": "material/weather-night", "name": "Light"},
                },
            ],
        },
        "extra_css": ["docs/site/site.css"],
        "markdown_extensions": [
            "attr_list",
            "md_in_html",
            "tables",
            {"toc": {"permalink": True}},
            "pymdownx.highlight",
            "pymdownx.superfences",
        ],
        "plugins": [
            "search",
            "offline",
            {
                "mkdocstrings": {
                    "handlers": {
                        "python": {
                            "paths": [str(ROOT / "src")],
                            "options": {
                                "docstring_style": None,
                                "filters": ["!^_"],
                                "heading_level": 2,
                                "members_order": "source",
                                "merge_init_into_class": True,
                                "separate_signature": True,
                                "show_attribute_values": False,
                                "show_bases": False,
                                "show_labels": False,
                                "show_root_full_path": False,
                                "show_root_heading": True,
                                "show_signature_annotations": True,
                                "show_source": False,
                                "show_symbol_type_heading": True,
                                "show_symbol_type_toc": True,
                            },
                        }
                    }
                }
            },
        ],
        "nav": nav,
    }


class _Page(HTMLParser):
    """The anchors of a page, where it leads, and what it loads."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.anchors, self.links, self.loads = {""}, list[str](), list[str]()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        told = {name: value or "" for name, value in attrs}
        self.anchors |= {told[name] for name in ("id", "name") if name in told}
        if tag == "a" and "href" in told:
            self.links.append(told["href"])
        elif tag == "link" and told.get("rel") != "canonical":
            self.loads.append(told.get("href", ""))
        elif "src" in told:
            self.loads.append(told["src"])


def defects(site: Path) -> list[str]:
    """Links and anchors that lead nowhere, files that are not there, and what would come from a network."""
    pages = {path: _Page(path.read_text()) for path in sorted(site.rglob("*.html"))}
    found: list[str] = []
    for path, page in pages.items():
        name = path.relative_to(site)
        if name.name == "404.html":  # shown at any address, by a server
            continue
        for target in page.links + page.loads:
            parts = urlsplit(target)
            if parts.scheme == "data" or (parts.scheme and target in page.links):
                continue
            if parts.scheme or parts.netloc:
                found.append(f"{name} loads {target} from the network")
                continue
            there = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            if there.is_dir():
                there /= "index.html"
            if not there.is_file():
                found.append(f"{name} leads to {target}, which is not there")
            elif there in pages and unquote(parts.fragment) not in pages[there].anchors:
                found.append(f"{name} leads to {target}, and that page has no such anchor")
    for path in sorted(site.rglob("*.css")):
        found += [
            f"{path.relative_to(site)} loads {address} from the network"
            for address in re.findall(r"(?:url\(|@import\s+)['\"]?(https?:[^'\")]+)", path.read_text())
        ]
    return found


def _write(pages: Path, name: Path, content: str | bytes) -> None:
    path = pages / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content if isinstance(content, bytes) else content.encode())


def _copy(path: Path, pages: Path) -> None:
    _write(pages, path.relative_to(ROOT), path.read_bytes())


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else ROOT / "build/site").resolve())
