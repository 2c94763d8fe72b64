"""Makes docs/which-method.md, and the file that `unskew advise` reads, from the raw results.

python docs/results/build.py

Every number on the page is computed from the lines in docs/results/raw.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean

from grouping import RAW, raw_lines, settings_of
from tables import star, table

from unskew import metrics
from unskew.advice import evidence, verdict
from unskew.advice.evidence import MethodResult, NetworkResult, Setting
from unskew.advice.verdict import Candidate, ChosenCandidate, Equal, Verdict
from unskew.metrics import Difference
from unskew.report.differences import points, signed
from unskew.report.sentences import claims, join
from unskew.report.standings import REFERENCE, TITLES

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/which-method.md"
EVIDENCE = ROOT / "src/unskew/advice/evidence.jsonl"

INTRODUCTION = """# Which method, under which skew

This page says what the runs in `docs/results/raw` support, and no more. `unskew advise` uses the same runs
to find what fits your data:

```
unskew advise --dataset cifar10 --skew dirichlet:0.1 --clients 100 --cohort 10
unskew advise counts.csv --cohort 5
```

`python docs/results/build.py` makes this page. It computes all numbers from the raw results, which have one
line per run."""

DEFINITIONS = """## What the numbers are

- **A number** is the mean of a run's last ten tested rounds, in % of the test set, given as mean ± standard
  deviation over seeds. Runs of fewer than a hundred rounds use the last tenth (`compare` and `table` show the
  mean of the last ten, however few rounds there are). Under label skew a model may swing by ten points from
  round to round, and this mean is what to expect of the last one.
  Where validation chose the model, or CCVR changed it at the end, the number is of that model. Of PKD,
  FedConcat and MOON with a projection, runs made up to 2026-11-18 have the last round alone.
- **A difference** is taken seed by seed, over the seeds that both methods have, with its 95 % interval. A
  star marks a difference whose sign is significant after Holm's correction over all methods of its table, or
  over all combinations of methods (`a+b`) in it; worst class and vacant classes are corrected together. Bold
  marks a method that is significantly above every other one. Fewer than three seeds support no claim.
  These are [the rules](claims.md) of `unskew compare` but for three things: `compare` uses only the seeds
  that all methods have, corrects for combinations together with the other methods, and counts majority and
  minority classes beside worst class and vacant classes.
- **Vacant classes** are those of which a client has no sample. The number is the mean over clients of the
  model's accuracy on their vacant classes.
- **Work** is what clients compute, and **traffic** is what is sent up and down. Both are multiples of
  FedAvg's. **Seconds** are for a whole run that had the named device to itself.
"""

EQUAL = """## Which gains are left under equal conditions

A paper tests its loss with one network and one server. Here each loss is compared with FedAvg on the same
network and with the same server (`ema`, `fedavgm`, `fedacg` and whatever else changes the server). So only
what happens at the clients differs.

Each cell has two gains in accuracy, in points: over FedAvg as published (first network, plain server) →
over the strongest FedAvg that the loss was measured with. A network and server with which FedAvg falls
below FedAvg as published do not count, since any loss gains over that. The section of each setting has all
networks and servers. Methods that are a loss and a server in one have no FedAvg with the same server; they
are in the tables of the settings.
"""

TUNED = """## When every method is tuned

In the tables above all methods share one learning rate and have their defaults otherwise. Here validation
data chose both for each method by itself, in one search for all ([the study](results/tuned-study.md)). A cell
has the mean gain over FedAvg, tuned alike and on the same network, as in
[the tables by kind](#by-kind-of-skew). A method's name leaves out the values that were chosen."""

READING = """## The verdict

- **Search the learning rate before the method.** The next four points compare methods at one rate for all,
  the papers' on images and 0.05 on digits. [Where each method was tuned](#when-every-method-is-tuned):
    - On CIFAR-10 with 100 clients the gains of the papers' losses stay: FedVLS's of 18 and 10 points over
      FedAvg, under dirichlet:0.05 and shards:2, and FedLMD's of 11 and 9, all but the last significant.
      `steady` gains 25 and 14, which is 6 and 5 above FedVLS; momentum and a served mean alone gain nothing
      significant.
    - On digits FedAvg itself gains 3 to 15 points in the last rounds by a lower rate. In these rounds
      `steady` is 5 to 10 points above it, not seen apart from plain cross-entropy with momentum or a served
      mean of the models, and no loss of the papers is seen to gain.
    - On Fashion-MNIST with 100 clients, under two skews and where validation chooses the round, losses that
      calibrate by label counts gain 2.5 to 5.2 points over FedAvg, not all significantly, and `steady` 6.6
      and 6.4. That is 4.0 and 2.2 above the strongest FedAvg, which has momentum and a served mean.
    - On CIFAR-100 no method was tuned yet.
- **Labels skewed, some clients in a round:** `steady`, which is our own, has the highest mean of all methods
  as published in every setting, in accuracy and in the worst class, for the work of FedAvg. Its gain in
  accuracy is significant in all of them. A network with normalised weights (`--set model.norm=group+ws`) has
  a higher mean still, by up to 4 points. Of the papers' losses FedLMD, FedNTD and FedVLS gain significantly
  in more than half of their settings; what is left of that beside a stronger FedAvg is
  [below](#which-gains-are-left-under-equal-conditions).
- **Labels skewed, all clients in every round:** start with FedAvg. On digits and CIFAR-10 no loss gains
  significantly; on digits momentum at the server does, by 1.7 points. On MNIST three gains are
  significant, each for twice the work: FedSAM's and FedGF's of 0.9 points (Dirichlet 0.05), and FedGF's of
  0.4 (Dirichlet 0.5). Losses that leave vacant classes out of the softmax lose most: FedLC,
  FedVLS and logit adjustment 20 to 27 points on digits
  ([why](steady.md#why-calibration-alone-loses-where-all-clients-take-part)), FedLC 16 and FedVLS 8 on MNIST,
  all under Dirichlet 0.05.
- **Sites with data of their own:** on Synthetic, where inputs differ too, SCAFFOLD, FedNova and FedAdam gain,
  and FedLC loses. On heart-disease nothing gains, and FedVLS, logit adjustment and `steady` lose 3 to 4
  points ([let validation choose the round](steady.md#few-samples-let-validation-choose-the-round)).
- **No skew:** on CIFAR-10 `steady` gains, presumably by its server, since without skew its loss is nearly
  cross-entropy. On digits nothing does."""

VERDICT = """## By kind of skew

Methods as published:

- A cell has the mean gain over FedAvg in points, and in how many settings it is significant after Holm's
  correction: ↑ above FedAvg, ↓ below it. Only settings with three seeds or more count.
- Methods were not all measured in the same settings, so their means compare only roughly.
- Methods with other settings than their defaults (such as `fedlmd:beta=0.1`) and other networks are not in
  these tables, but [setting by setting](#setting-by-setting) below.
- In a setting all methods share one learning rate. That of digits, 0.05, is too high for `fedacg`, which
  fails with it and gains [with lower ones](#when-every-method-is-tuned).
- *Work* is what clients compute, as a multiple of FedAvg's.
- *Sites* are clients with data of their own (`natural`)."""

KINDS = ("some clients in a round", "all clients in every round", "sites", "no skew")
"""Kinds of skew; in the first two labels are skewed."""

SHORT = """For each setting, the highest of all methods, on all networks, that are significantly above FedAvg
(on the setting's first network that has it with three seeds). Where no method is, the one with the highest
mean stands in brackets. *Alike* counts the other methods that it is not significantly above, after
correction for their number. Where FedAvg was not measured so often, the difference names what it is
against. The highest of many is so partly by luck: expect a somewhat smaller gain from new runs of it, and
read its interval as that of one method chosen beforehand."""

ADDING = """## How to add to it

```
unskew compare fedavg METHOD ... --seeds 1-5 --out runs/mine
python docs/results/collect.py runs/mine >> docs/results/raw/mine.jsonl
make results
```

The last command updates this page, the tables of [steady](steady.md), [published numbers and
ours](results/published.md) and the grids of the studies ([digits](results/digits-study.md),
[CIFAR-10](results/cifar10-study.md)). A raw line has:

- the whole experiment of a run, its identity, commit, device and versions;
- how skewed the clients' labels are;
- accuracy (last, best by test, mean of the last ten rounds), worst class, majority, minority and vacant
  classes, all at the end and as the mean of the last rounds;
- every class, the confusion matrix of up to twenty classes, and the curve;
- traffic, clients' work and seconds.

A run that already has a line is left out. With three seeds and many methods, Holm's correction leaves
little to claim. Then two more seeds of the methods that matter say more than more methods do."""

NONE = "No setting has three seeds of several methods yet."


def page(settings: Sequence[Setting]) -> str:
    """Return the whole page."""
    judged = [(each, verdict.in_setting(each)) for each in settings if not each.tuned]
    backed = [(setting, result) for setting, result in judged if result.answer is not None]
    others = [setting for setting, result in judged if result.answer is None]
    parts = [INTRODUCTION, READING if backed else "", DEFINITIONS, *_by_kind(backed)]
    parts += ["## The highest in each setting", *_short(backed), *_overall(backed)]
    equal = {setting.title: verdict.under_equal_conditions(setting) for setting, _ in backed}
    if several := [(setting, equal[setting.title]) for setting, _ in backed if len(equal[setting.title]) > 1]:
        parts += [EQUAL, *_vanished(several)]
    parts += _tuned([each for each in settings if each.tuned])
    parts += ["## Setting by setting", *(part for setting, _ in backed for part in _section(setting))]
    if others:
        parts += [
            "## Measured with too few seeds",
            "Fewer than three seeds, or one method alone: numbers without a claim.",
            *(part for setting in others for part in _section(setting)),
        ]
    files = ", ".join(f"[{path.name}](results/raw/{path.name})" for path in sorted(RAW.glob("*.jsonl")))
    parts += [ADDING, f"The lines: {files}."]
    return "\n\n".join(part.strip() for part in parts if part.strip()) + "\n"


def _short(judged: Sequence[tuple[Setting, Verdict]]) -> list[str]:
    """Return a table with a line for each setting: the best method by each goal."""
    if not judged:
        return [NONE]
    rows = []
    for setting, result in judged:
        cells = [_chosen(result.choose(goal)) for goal in evidence.GOALS]
        rows.append([f"[{setting.title}](#{anchor(setting.title)})", *cells])
    return [SHORT, table(["setting", *(TITLES[goal] for goal in evidence.GOALS)], rows)]


MOST = 20
"""The most rows of the table over all settings."""
OVERALL = """### Over all settings

All methods that were compared with FedAvg in several settings. *Above* and *below* count the settings in
which a method is significantly above or below FedAvg (on the setting's first network that has it). The
other columns are its differences to FedAvg, in points. Settings are not pooled: the means say where to
look, and support no claim."""


def _by_kind(judged: Sequence[tuple[Setting, Verdict]]) -> list[str]:
    """Return tables of the mean gains of methods as published, by kind of skew."""
    found: dict[str, dict[str, dict[str, list[Difference]]]] = {}
    work: dict[str, str] = {}
    for setting, result in judged:
        for name, one in result.candidates.items() if result.reference.plain else ():
            method, network = one.method.name, evidence.in_words(one.network.changed)
            if set("+:") & set(method) or (network and method != "steady"):
                continue
            row = f"`{method}`, {network}" if network else f"`{method}`"
            for goal in evidence.GOALS:
                if (difference := result.difference(name, goal)) is not None:
                    kinds = found.setdefault(goal, {}).setdefault(row, {})
                    kinds.setdefault(_kind(setting), []).append(difference)
            if (costs := times(one, result.reference, "work")) != "-":
                work[row] = costs
    parts = [VERDICT]
    for goal, rows in found.items():
        shown = [kind for kind in KINDS if any(kind in each for each in rows.values())]
        order = sorted(rows, key=lambda row: [-_mean(rows[row].get(kind, ())) for kind in shown])
        cells = [
            [row, work.get(row, "-"), *(_fared(rows[row].get(kind, ())) for kind in shown)] for row in order
        ]
        title = TITLES[goal]
        parts += [f"**{title[0].upper()}{title[1:]}**", table(["method", "work", *shown], cells)]
    return parts if found else []


def _kind(setting: Setting) -> str:
    """Return the kind of a setting's skew, one of KINDS."""
    some, every, sites, none = KINDS
    if setting.skew.startswith("natural"):
        return sites
    if setting.skew.startswith("iid"):
        return none
    return every if setting.facts.cohort == setting.facts.clients else some


def _fared(differences: Sequence[Difference]) -> str:
    """Return the mean of a method's differences to FedAvg as text, with the number of significant ones."""
    if not differences:
        return "-"
    claimed = [each.difference > 0 for each in differences if each.settled]
    up, down = claimed.count(True), claimed.count(False)
    return f"{signed(_mean(differences))} (↑{up} ↓{down} of {len(differences)})"


def _overall(judged: Sequence[tuple[Setting, Verdict]]) -> list[str]:
    """Return a table of the gains of methods that were measured in several settings."""
    found: dict[tuple[str, str], dict[str, list[Difference]]] = {}
    for result in (result for _, result in judged if result.reference.plain):
        for name, one in result.candidates.items():
            for goal in evidence.GOALS:
                if (difference := result.difference(name, goal)) is not None:
                    network = evidence.in_words(one.network.changed) or "as published"
                    mine = found.setdefault((one.method.name, network), {})
                    mine.setdefault(goal, []).append(difference)
    rows = []
    for (method, network), each in sorted(found.items(), key=lambda item: -_mean(item[1]["accuracy"])):
        accuracy = each["accuracy"]
        if len(accuracy) < 2:
            continue
        claimed = [difference.difference > 0 for difference in accuracy if difference.settled]
        rows.append(
            [
                f"`{method}`",
                network,
                str(len(accuracy)),
                str(claimed.count(True)),
                str(claimed.count(False)),
                signed(_mean(accuracy)),
                signed(min(difference.difference for difference in accuracy)),
                *(signed(_mean(each[goal])) if goal in each else "-" for goal in evidence.GOALS[1:]),
            ]
        )
    more = f"And {len(rows) - MOST} more below these." if len(rows) > MOST else ""
    heads = ["method", "network", "settings", "above", "below", "accuracy, mean", "accuracy, least"]
    heads += [f"{TITLES[goal]}, mean" for goal in evidence.GOALS[1:]]
    return [OVERALL, table(heads, rows[:MOST]), more] if rows else []


def _tuned(settings: Sequence[Setting]) -> list[str]:
    """Return a table of the mean gains in accuracy of tuned methods over tuned FedAvg on the same network, by
    kind of skew."""
    found: dict[str, dict[str, list[Difference]]] = {}
    for setting in settings:
        for result in map(verdict.on_network, setting.networks):
            for name, one in result.candidates.items():
                if (difference := result.difference(name, "accuracy")) is not None:
                    kinds = found.setdefault(one.method.family, {})
                    kinds.setdefault(_kind(setting), []).append(difference)
    shown = [kind for kind in KINDS if any(kind in each for each in found.values())]
    order = sorted(found, key=lambda name: [-_mean(found[name].get(kind, ())) for kind in shown])
    rows = [[f"`{name}`", *(_fared(found[name].get(kind, ())) for kind in shown)] for name in order]
    return [TUNED, table(["method", *shown], rows)] if rows else []


def _mean(differences: Sequence[Difference]) -> float:
    """Return the mean difference; minus infinity without any, which sorts last."""
    return fmean(each.difference for each in differences) if differences else -math.inf


def _chosen(choice: ChosenCandidate | None) -> str:
    if choice is None:
        return "-"
    name = f"`{choice.candidate.method.name}`"
    if choice.candidate.name != choice.candidate.method.name:
        name += f" on {choice.candidate.network.title}"
    value = "" if choice.value is None else f" {metrics.plus_minus(choice.value, scale=100)}"
    reference = choice.verdict.reference
    other = "" if reference.plain else f" against `{reference.method.name}` on {reference.network.title}"
    gain = "" if choice.difference is None else f", {points(choice.difference)}{other}, {choice.seeds} seeds"
    if not choice.backed:
        return f"({name}{value}{gain})"
    alike = f"; {len(choice.alike)} alike" if choice.alike else ""
    return f"{'**' * choice.best}{name}{'**' * choice.best}{value}{gain}{alike}"


def _vanished(several: Sequence[tuple[Setting, Sequence[Equal]]]) -> list[str]:
    """Return a table of each method's gain over FedAvg as published and over the strongest FedAvg, and
    words."""
    clients = dict.fromkeys(client for _, found in several for each in found for client in each.gains)
    rows, words = [], []
    for client in clients:
        cells, pairs = [], []
        for _, found in several:
            pair = (_as_published(found).get(client), _over_the_strongest(client, found))
            cells.append(" → ".join(map(_brief, pair)) if any(pair) else "-")
            if all(pair):
                pairs.append(pair)
        if not pairs:
            continue
        rows.append([f"`{client}`", *cells])
        claimed = [pair for pair in pairs if _gains(pair[0])]
        left = [pair for pair in claimed if _gains(pair[1])]
        if claimed:
            before, after = (fmean(pair[place].difference for pair in claimed) for place in (0, 1))
            words.append(
                f"- `{client}` has both numbers in {len(pairs)} setting{'s' * (len(pairs) > 1)}. As "
                f"published, its gain is significant in {len(claimed)} of them, {signed(before)} points on "
                f"average. In these, beside the strongest FedAvg, it is significant in {len(left)}, "
                f"{signed(after)} on average."
            )
    itself, where = list[str](), dict[str, list[str]]()
    for setting, found in several:
        network, fedavg = _strongest_fedavg(setting)
        itself.append(f"{_plain(found[0])} → {_percent(fedavg, 'accuracy')}")
        where.setdefault(_conditions(network, fedavg.server), []).append(setting.title)
    words += [
        f"- FedAvg itself is strongest with {conditions}: {'; '.join(titles)}."
        for conditions, titles in where.items()
    ]
    short = [f"{setting.data}, {setting.skew}" for setting, _ in several]
    heads = [
        name if short.count(name) == 1 else setting.title
        for name, (setting, _) in zip(short, several, strict=True)
    ]
    return [table(["method", *heads], [["FedAvg itself, accuracy", *itself], *rows]), "\n".join(words)]


def _as_published(found: Sequence[Equal]) -> dict[str, Difference]:
    """Return the gains on the network as published with a plain server."""
    plain = (each.gains for each in found if not each.server and not each.network.changed)
    return next(plain, {})


def _over_the_strongest(client: str, found: Sequence[Equal]) -> Difference | None:
    """Return a method's gain on the network and with the server with which FedAvg is strongest.

    Only networks and servers with which the method was measured count. None if FedAvg is strongest with plain
    averaging on the network as published.
    """
    measured = [each for each in found if client in each.gains]
    strongest = max(measured, key=lambda each: _accuracy(each.verdict.reference.method), default=None)
    if strongest is None or not (strongest.server or strongest.network.changed):
        return None
    return strongest.gains[client]


def _accuracy(method: MethodResult) -> float:
    return method.mean("accuracy") or 0.0


def _strongest_fedavg(setting: Setting) -> tuple[NetworkResult, MethodResult]:
    """Return the network and server with which FedAvg has the highest accuracy of all."""
    return max(
        (
            (network, method)
            for network in setting.networks
            for method in network.methods
            if method.client == REFERENCE and len(method.seeds) >= metrics.FEWEST
        ),
        key=lambda each: _accuracy(each[1]),
    )


def _plain(equal: Equal) -> str:
    """Return FedAvg's accuracy under equal conditions, as text."""
    return _percent(equal.verdict.reference.method, "accuracy")


def _percent(method: MethodResult, measure: str) -> str:
    value = verdict.over_seeds(method, measure)
    return "-" if value is None else metrics.plus_minus(value, scale=100)


def _gains(found: Difference) -> bool:
    """Say whether a difference is a significant gain."""
    return found.settled and found.difference > 0


def _brief(found: Difference | None) -> str:
    return "-" if found is None else f"{signed(found.difference)}{star(found)}"


def _equal(found: Sequence[Equal]) -> list[str]:
    """Return a table of the gains of each method's client part, on each network with each server."""
    clients = dict.fromkeys(client for each in found for client in each.gains)
    rows = [
        [f"`{client}`", *(_gain(each.gains.get(client)) for each in found)]
        for client in sorted(clients, key=lambda client: -_first(client, found))
    ]
    several = len({each.network.title for each in found}) > 1
    heads = [
        "accuracy against FedAvg with the same",
        *(_conditions(each.network if several else None, each.server) for each in found),
    ]
    return ["Under equal conditions:", table(heads, [["FedAvg itself", *map(_plain, found)], *rows])]


def _first(client: str, found: Sequence[Equal]) -> float:
    return next(each.gains[client].difference for each in found if client in each.gains)


def _conditions(network: NetworkResult | None, server: str) -> str:
    words = [network.title] if network else []
    return ", ".join([*words, f"`{server}`" if server else "plain server"])


def _gain(found: Difference | None) -> str:
    return "-" if found is None else f"{points(found)}{star(found)}"


def _section(setting: Setting) -> list[str]:
    """Return the section of a setting, with all that was measured in it."""
    words = setting.facts.words
    where = f"{join(setting.devices)}; commit{'s' * (len(setting.commits) > 1)} {', '.join(setting.commits)}"
    parts = [
        f"### {setting.title}",
        f"{words[:1].upper()}{words[1:]}. Budget: {setting.budget}. {where}.",
    ]
    first, several = setting.networks[0], len(setting.networks) > 1
    gains = verdict.of_networks(setting)
    for network in setting.networks:
        result = verdict.on_network(network)
        parts += [f"**On {network.title}**"] * several
        parts.append(_methods(result, f"against {first.title}", gains.get(network.title, {})))
        if result.answer is not None:
            sentence, notes = claims(result.answer)
            parts.append("\n".join(f"- {each}" for each in (f"Accuracy: {sentence}.", *notes)))
    if len(equal := verdict.under_equal_conditions(setting)) > 1:
        parts += _equal(equal)
    return parts


def _methods(result: Verdict, other: str, gains: Mapping[str, Difference]) -> str:
    """Return a table of the methods on one network, the highest first and those not compared last.

    If there are other networks, `gains` has the differences from the first one, and `other` is their title.
    """
    heads = [
        "method",
        "seeds",
        "accuracy",
        f"against {result.reference.method.name}",
        "worst class",
        "vacant classes",
    ]
    heads += ["last round", "work", "traffic", "seconds"]
    names = result.ranked("accuracy") if result.answer else []
    rest = sorted(
        (name for name in result.candidates if name not in names),
        key=lambda name: -(result.candidates[name].method.mean("accuracy") or 0.0),
    )
    rows = [_row(result, result.candidates[name]) for name in [*names, *rest]]
    if gains:
        heads.insert(4, other)
        for row, name in zip(rows, [*names, *rest], strict=True):
            row.insert(4, _gain(gains.get(name)))
    if result.answer is None:
        for row in (heads, *rows):
            row.pop(3)
    return table(heads, rows)


def _row(result: Verdict, one: Candidate) -> list[str]:
    tuned = f" ({evidence.in_words(one.method.tuned)})" if one.method.tuned else ""
    found = result.difference(one.name, "accuracy")
    against = _gain(found) if found else "" if one.name == result.reference.name else "not compared"
    cells = [_value(result, one, measure) for measure in evidence.GOALS]
    last = metrics.over_seeds(seed.last for seed in one.method.seeds.values())
    return [
        f"`{one.method.name}`{tuned}",
        str(len(one.method.seeds)),
        cells[0],
        against,
        *cells[1:],
        "-" if last is None else metrics.plus_minus(last, scale=100),
        times(one, result.reference, "work"),
        times(one, result.reference, "traffic"),
        "-" if (seconds := one.method.mean("seconds")) is None else f"{seconds:.0f}",
    ]


def _value(result: Verdict, one: Candidate, measure: str) -> str:
    """Return a value as text: bold if it is significantly the best, with a star if it differs significantly
    from the reference. For accuracy the star is at the difference instead."""
    value = result.value(one.name, measure)
    if value is None:
        return "-"
    text = metrics.plus_minus(value, scale=100)
    bold = "**" * (result.answer is not None and result.answer.best.get(measure) == one.name)
    found = None if measure == "accuracy" else result.difference(one.name, measure)
    return f"{bold}{text}{bold}{star(found)}"


def times(one: Candidate, reference: Candidate, what: str) -> str:
    """Return a method's value as a multiple of FedAvg's; a dash if FedAvg is not the reference."""
    mine, theirs = one.method.mean(what), reference.method.mean(what)
    return f"{mine / theirs:.2f}" if mine is not None and theirs and reference.plain else "-"


def anchor(title: str) -> str:
    """Return the name of a heading in links on the page."""
    kept = "".join(each for each in title.lower() if each.isalnum() or each in " -_")
    return kept.replace(" ", "-")


def main() -> None:
    settings = settings_of(raw_lines())
    EVIDENCE.write_text(evidence.write(settings))
    PAGE.write_text(page(settings))
    print(f"written: {PAGE.relative_to(ROOT)}, {EVIDENCE.relative_to(ROOT)}, {len(settings)} settings")


if __name__ == "__main__":
    main()
