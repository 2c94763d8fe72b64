"""The grids of losses and servers in docs/results/*-study.md.

python docs/results/study.py

A grid stands between two comments. The first names a setting and a network of docs/which-method.md, such as
`<!-- grid: digits, dirichlet:0.05, 10 clients, 3 per round | mlp-small -->`. With `| worst` behind the
network it shows the worst class in the place of the accuracy. The numbers are those that
docs/results/build.py made of the raw lines.
"""

from __future__ import annotations

import re
from pathlib import Path

from build import table

from unskew import metrics
from unskew.advice.evidence import evidence

PAGES = sorted(Path(__file__).parent.glob("*-study.md"))
LOSSES = (
    "fedavg",
    "fedprox",
    "fedlc",
    "fedntd",
    "fedlmd",
    "fedvls",
    "fedrcl",
    "logit-adjustment",
    "logit-adjustment:floor=0.01",
)
SERVERS = {
    "": "plain server",
    "+ema:decay=auto": "`ema:decay=auto`",
    "+fedavgm": "`fedavgm`",
    "+fedavgm+ema:decay=auto": "both",
    "+uniform+fedacg:beta=0+ema:decay=auto": "steady's",
}
GRID = re.compile(r"(<!-- grid: (.*?) \| (.*?)(?: \| (\w+))? -->).*?(<!-- /grid -->)", re.DOTALL)


def grid(setting: str, network: str, measure: str) -> str:
    """Every loss with every server: a measure as mean ± standard deviation over seeds."""
    (found,) = [
        each for one in evidence() if one.title == setting for each in one.networks if each.title == network
    ]
    methods = {each.name: each for each in found.methods}
    servers = [each for each in SERVERS if any(loss + each in methods for loss in LOSSES)]

    def number(name: str) -> str:
        seeds = methods[name].seeds.values() if name in methods else ()
        summary = metrics.over_seeds(getattr(each, measure) for each in seeds)
        return "-" if summary is None else metrics.plus_minus(summary, scale=100)

    losses = [each for each in LOSSES if any(each + server in methods for server in servers)]
    rows = [[f"`{loss}`", *(number(loss + server) for server in servers)] for loss in losses]
    return table(["loss", *(SERVERS[each] for each in servers)], rows)


def renewed(page: str) -> str:
    """The page with its grids made anew."""
    return GRID.sub(
        lambda told: f"{told[1]}\n\n{grid(told[2], told[3], told[4] or 'accuracy')}\n\n{told[5]}", page
    )


if __name__ == "__main__":
    for path in PAGES:
        path.write_text(renewed(path.read_text()))
        print(f"written: the grids of {path.name}")
