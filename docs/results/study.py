"""Makes the tables of docs/results/*-study.md, and those of tuned methods in docs/steady.md.

python docs/results/study.py

A table stands between two comments. The first names a setting and a network of docs/which-method.md, such as
`<!-- grid: digits, dirichlet:0.05, 10 clients, 3 per round | mlp-small -->`. With `| worst` after the network
it shows the worst class instead of the accuracy. With `servers` instead of `grid` it shows the gain of each
server over the plain one, and with `losses` the paired differences between two losses. The numbers are those
that docs/results/build.py made of the raw lines. docs/results/tuned.py makes the other tables, and
figures.
"""

from __future__ import annotations

import re
from pathlib import Path

import steady
import tuned
from tables import differences, table

from unskew import metrics
from unskew.advice.evidence import evidence

PAGES = (*sorted(Path(__file__).parent.glob("*-study.md")), steady.PAGE)
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
PAIRS = (
    ("fedvls", "logit-adjustment"),
    ("logit-adjustment:floor=0.01", "logit-adjustment"),
    ("fedlmd", "logit-adjustment"),
    ("fedlmd", "fedntd"),
)
TABLE = re.compile(r"(<!-- (\w+): (.*?) \| (.*?)(?: \| (\w+))? -->).*?(<!-- /\2 -->)", re.DOTALL)

Values = dict[str, dict[int, float | None]]
"""By method and seed."""


def values(setting: str, network: str, measure: str) -> Values:
    """Return a measure of every method in a setting on a network, by seed."""
    (found,) = [
        each for one in evidence() if one.title == setting for each in one.networks if each.title == network
    ]
    return {
        each.name: {seed: getattr(run, measure) for seed, run in each.seeds.items()} for each in found.methods
    }


def grid(of: Values) -> str:
    """Return a table of each loss with each server: mean ± standard deviation over seeds."""
    servers = [each for each in SERVERS if any(loss + each in of for loss in LOSSES)]

    def number(name: str) -> str:
        summary = metrics.over_seeds(of.get(name, {}).values())
        return "-" if summary is None else metrics.plus_minus(summary, scale=100)

    losses = [each for each in LOSSES if any(each + server in of for server in servers)]
    rows = [[f"`{loss}`", *(number(loss + server) for server in servers)] for loss in losses]
    return table(["loss", *(SERVERS[each] for each in servers)], rows)


def gains_of_servers(of: Values) -> str:
    """Return a table of the gains of each server over the plain one."""
    others = [each for each in SERVERS if each]
    return differences(
        of,
        ["loss", *(SERVERS[each] for each in others)],
        {f"`{loss}`": [(loss + server, loss) for server in others] for loss in LOSSES},
    )


def gaps_between_losses(of: Values) -> str:
    """Return a table of the differences between two losses with each server."""
    return differences(
        of,
        ["losses", *SERVERS.values()],
        {
            f"`{first}` − `{second}`": [(first + server, second + server) for server in SERVERS]
            for first, second in PAIRS
        },
    )


KINDS = {"grid": grid, "servers": gains_of_servers, "losses": gaps_between_losses}


def renewed(page: str) -> str:
    """Return the page with new tables."""

    def new(match: re.Match[str]) -> str:
        head, kind, setting, network, measure, end = match.groups()
        if kind in KINDS:
            made = KINDS[kind](values(setting, network, measure or "accuracy"))
        else:
            made = tuned.KINDS[kind](setting, network)
        return f"{head}\n\n{made}\n\n{end}"

    return TABLE.sub(new, page)


if __name__ == "__main__":
    for path in PAGES:
        path.write_text(renewed(path.read_text()))
        print(f"written: the tables of {path.name}")
    tuned.draw()
