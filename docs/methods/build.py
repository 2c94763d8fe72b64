"""Write a page for every method, with the result of the command it shows.

python docs/methods/build.py [NAME ...]
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

from unskew.methods import METHODS, Card

HERE = Path(__file__).parent
CONDITIONS = "--dataset digits --skew dirichlet:0.05 --clients 10 --rounds 20 --seed 1"


def command(name: str) -> str:
    """Return the command whose result the page shows."""
    return f"unskew run --method {name} {CONDITIONS}"


def text(name: str, card: Card) -> str:
    """Return the part of the method's page before its result."""
    title, _, rest = card.page.partition("\n")
    options = [f"| `{key}` | `{value}` |" for key, value in card.options.items()]
    table = ["| hyperparameter | default |", "|---|---|", *options] if options else ["No hyperparameters."]
    more = "nothing else" if card.sends == "nothing" else card.sends
    return "\n".join(
        [
            f"# {name}",
            "",
            f"**{title.rstrip('.')}.** {card.idea}",
            "",
            "```text",
            rest.strip(),
            "```",
            "",
            *table,
            "",
            "| cost beyond FedAvg | |",
            "|---|---|",
            f"| forward passes | {card.passes} |",
            f"| memory at a client | {card.memory} |",
            f"| traffic | {card.traffic} |",
            f"| leaves the client | weights, number of samples, and {more} |",
            *([f"| optimiser | sgd alone, because {card.needs_sgd} |"] if card.needs_sgd else []),
            "",
            "```",
            command(name),
            "```",
            "",
        ]
    )


def result(name: str, folder: Path) -> tuple[dict, dict]:
    """Run the command, and return its summary and its environment."""
    arguments = [*command(name).split()[1:], "--quiet", "--json", "--out", str(folder)]
    out = subprocess.run(
        [sys.executable, "-m", "unskew", *arguments], capture_output=True, text=True, check=True
    )
    summary = json.loads(out.stdout.splitlines()[-1])
    return summary, json.loads((folder / "environment.json").read_text())


def row(name: str, summary: dict) -> str:
    """Return the row of the table of accuracies."""
    values = [summary["accuracy"][key] for key in ("last", "best_by_test", "mean_last_10")]
    values += [summary["worst_class_accuracy"], *summary["groups"].values()]
    cells = ["-" if value is None else f"{100 * value:.1f}" for value in values]
    return f"| {name} | {' | '.join(cells)} |"


def main(names: list[str]) -> None:
    """Write the pages of these methods, and the list of all methods."""
    with tempfile.TemporaryDirectory() as scratch:
        plain, environment = result("fedavg", Path(scratch) / "plain")
        commit, torch = environment["unskew_commit"], environment["versions"]["torch"]
        if commit.endswith("+"):
            sys.exit("commit first: a page names the commit that made its numbers.")
        for name in names:
            summary, _ = result(name, Path(scratch) / name)
            lines = [
                "| accuracy in % | last | best by test | mean last 10 | worst class | majority | minority "
                "| vacant |",
                "|---|---|---|---|---|---|---|---|",
                row(name, summary),
                *([] if name == "fedavg" else [row("fedavg", plain)]),
                "",
                "One seed on a small dataset: that it runs, not how good it is. "
                f"Commit {commit[:12]}, {environment['device_name']}, torch {torch}, 1 thread.",
                *(line for note in summary["notes"] for line in ("", f"Note of the run: {note}")),
                "",
            ]
            (HERE / f"{name}.md").write_text(text(name, METHODS[name]) + "\n" + "\n".join(lines))
            print(name)
    index = ["# Methods", ""]
    index += ["[Which one to take](../which-method.md) under which skew, as far as that was measured.", ""]
    index += ["| method | what it does |", "|---|---|"]
    index += [f"| [{name}]({name}.md) | {card.idea} |" for name, card in METHODS.items()]
    index += [
        "",
        "Several can be combined with `+`, on the command line and in Python: `fedlmd+fedprox+fedavgm`,",
        "`fedvls+fedexp`, `fedlc+scaffold`, `fedlmd+ema`, `fedvls+nnm+median`.",
        "[Your own](../own-method.md) takes one file.",
        "",
    ]
    (HERE / "README.md").write_text("\n".join(index))


if __name__ == "__main__":
    main(sys.argv[1:] or list(METHODS))
