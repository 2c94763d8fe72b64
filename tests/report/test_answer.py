"""What is said of methods that ran under the same conditions: no more than the seeds back."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from invented import made
from scipy import stats

from unskew import metrics, record
from unskew.errors import UserError
from unskew.report.answer import answer
from unskew.report.differences import points, verdict
from unskew.report.grouping import by_method
from unskew.report.read import SavedRun
from unskew.report.standings import choose_reference


def say(*runs: SavedRun, reference: str | None = None) -> str:
    told = answer(by_method(runs), reference=reference)
    return " ".join([told.sentence, *told.notes]).replace("\N{NO-BREAK SPACE}", " ")


def seeds(label: str, *accuracies: float, **more: object) -> list[SavedRun]:
    return [made(label, seed, value, **more) for seed, value in enumerate(accuracies, 1)]


def test_a_clear_winner_is_named_with_its_spread_and_who_gains():
    runs = seeds("fedavg", 0.61, 0.62, 0.63)
    for s, value in ((1, 0.712), (2, 0.72), (3, 0.728)):
        runs.append(made("fedvls", s, value, vacant=0.55 + s / 1000, majority=0.79 + s / 5000))
    told = say(*runs)
    assert "On digits split by dirichlet:0.05 over 3 clients, fedvls ends at 72.0 ± 0.8 %" in told
    assert "against fedavg's 62.0 ± 1.0 % (+10.0 points, 95 % interval +9.5 to +10.5)" in told
    assert "with it clients' vacant classes gain 15.2 points, majority classes lose 1.0" in told
    assert "over 3 seeds" in told


def test_what_a_method_costs_the_worst_class_is_in_the_sentence():
    runs = seeds("fedavg", 0.61, 0.62, 0.63)
    runs += [made("fedvls", s, 0.71 + s / 1000, vacant=0.1 + s / 1000) for s in (1, 2, 3)]
    assert "with it clients' vacant classes lose 29.8 points, the worst class loses 29.8" in say(*runs)


def test_a_difference_within_the_seeds_is_not_sold_as_a_gain():
    told = say(*seeds("fedavg", 0.6, 0.6, 0.6), *seeds("fedprox", 0.57, 0.62, 0.64))
    assert "which is not significant with 3 seeds" in told
    assert "no group of clients' classes gains or loses significantly" in told


@pytest.mark.parametrize("number", [1, 2])
def test_one_or_two_seeds_back_no_claim(number):
    runs = seeds("fedavg", *[0.6, 0.61][:number])
    runs += seeds("fedvls", *[0.7, 0.712][:number], vacant=0.5)
    told = answer(by_method(runs))
    assert f"{'one seed backs' if number == 1 else '2 seeds back'} no claim" in told.sentence
    assert "gain" not in told.sentence
    (one,) = told.others
    found = one.differences["accuracy"]
    assert (found.interval, found.p, found.settled) == (None, None, False)
    assert told.best["accuracy"] is None
    assert "give three or more" in told.lines()[0]


def test_one_method_alone_is_compared_with_nothing():
    told = say(made())
    assert "fedavg ends at 60.0 %: its worst class at 40.0 %" in told
    assert "clients' majority classes at 80.0 %" in told
    assert "against" not in told
    assert "No other method" in told


def test_runs_under_way_are_compared_in_the_last_round_that_all_reached():
    ahead = made("fedavg", rounds=5, done=5)
    for place, value in ((1, 0.5), (4, 0.9)):
        ahead.rounds[place] = replace(ahead.rounds[place], accuracy=value)
    told = say(ahead, made("fedvls", accuracy=0.55, rounds=5, done=2))
    assert "after 2 rounds, in one seed fedvls stands at 55.0 %, fedavg at 50.0 %" in told
    assert "Not all runs have ended: the numbers are of round 2" in told
    assert "no round has been tested yet" in say(made(done=0), made("fedvls", done=0))
    assert "Not compared, for want of tested seeds that the others have: fedvls." in say(
        ahead, made("fedvls", rounds=5, done=0)
    )


def test_methods_are_compared_on_the_seeds_that_all_have():
    """Do not compare a lucky seed of one method with the mean of the other."""
    told = say(made("fedavg", 1, 0.8), made("fedavg", 2, 0.6), made("pkd", 1, 0.75), made("pkd", 3, 0.9))
    assert "in one seed fedavg ends at 80.0 %, pkd at 75.0 %" in told
    assert "Left out: 2 of 4 runs" in told
    assert "no seed in common, so they are not compared" in say(made("fedavg", 1), made("fedvls", 2, 0.7))


def test_a_method_with_other_seeds_does_not_keep_the_rest_from_being_compared():
    """Though it has as many as the reference."""
    others = [made("fedavgm", seed, 0.65) for seed in range(4, 9)]
    told = say(*seeds("fedavg", 0.6, 0.61, 0.6, 0.62, 0.6), *seeds("fedprox", 0.7, 0.71, 0.7), *others)
    assert "fedprox ends at 70.3" in told
    assert "Not compared, for want of tested seeds that the others have: fedavgm." in told


def test_a_reference_that_was_asked_for_is_not_replaced_in_silence():
    runs = [*seeds("fedavg", 0.6, 0.6), *seeds("fedprox", 0.7, 0.71, 0.7), *seeds("fedavgm", 0.7, 0.7, 0.72)]
    told = say(*runs, reference="fedavg")
    assert "fedavg has too few seeds to compare with, so fedprox takes its place." in told


def test_a_method_that_failed_on_most_seeds_does_not_silence_the_others():
    runs = [*seeds("fedavg", 0.60, 0.61, 0.62), *seeds("fedvls", 0.70, 0.712, 0.72), made("pkd", 2, 0.9)]
    told = answer(by_method(runs))
    assert told.seeds == (1, 2, 3)
    assert "fedvls ends at 71.1" in told.sentence
    assert any("for want of tested seeds" in note and "pkd" in note for note in told.notes)


def test_a_run_that_failed_holds_the_others_back_in_no_round():
    broken = record.Failure(error="the loss became NaN.", notes=[], traceback="")
    going = [*seeds("fedavg", 0.60, 0.61, 0.62), *seeds("fedvls", 0.70, 0.712, 0.72), *seeds("pkd", 0.9, 0.9)]
    failed = replace(made("pkd", 3, 0.2, rounds=3, done=1), failure=broken)
    told = answer(by_method([*going, failed]))
    assert (told.round, told.seeds, len(told.standings)) == (None, (1, 2, 3), 2)
    assert told.sentence == answer(by_method(going)).sentence
    assert any("Not compared" in note and "pkd" in note for note in told.notes)
    alone = say(replace(made(rounds=3, done=2), failure=broken))
    assert "after 2 rounds, fedavg stands at 60.0 %" in alone
    left = say(made(), replace(made("pkd", done=0), failure=broken))
    assert "No other method" not in left
    assert "Not compared" in left


def test_a_tie_has_no_winner():
    told = answer(by_method([*seeds("fedavg", 0.6, 0.7, 0.8), *seeds("fedprox", 0.6, 0.7, 0.8)]))
    assert "fedavg and fedprox end the same in every seed, at 70.0" in told.sentence
    assert told.best["accuracy"] is None
    assert "the same in every seed" in told.lines()[0]
    alone = say(made("fedavg"), made("fedprox"), made("pkd", accuracy=0.2))
    assert "in one seed fedavg and fedprox end highest alike at 60.0 %" in alone


def test_methods_above_the_reference_are_all_named_though_none_is_best():
    runs = seeds("fedavg", 0.300, 0.310, 0.290)
    runs += seeds("fedlc", 0.500, 0.512, 0.492)
    runs += seeds("fedvls", 0.505, 0.510, 0.495)
    runs += seeds("scaffold", 0.100, 0.111, 0.089)
    told = say(*runs)
    assert "fedvls (+20.3) and fedlc (+20.1) end above fedavg's 30.0 ± 1.0 %" in told
    assert "scaffold (−20.0) ends below it" in told
    assert "3 seeds do not show which method is best" in told


def test_the_reference_is_fedavg_or_the_one_that_is_asked_for():
    runs = [*seeds("fedprox", 0.61, 0.62, 0.63), *seeds("fedavg", 0.60, 0.615, 0.62)]
    assert answer(by_method(runs)).reference == "fedavg"
    assert answer(by_method(runs), reference="fedprox").reference == "fedprox"
    assert choose_reference(by_method(runs[:3])) == "fedprox"
    with pytest.raises(UserError, match="fedvls"):
        choose_reference(by_method(runs), "fedvls")
    asked = [replace(run, reference="fedprox") for run in runs]  # when they were run
    assert answer(by_method(asked)).reference == "fedprox"
    assert answer(by_method(asked), reference="fedavg").reference == "fedavg"
    assert answer(by_method([*asked[:3], *runs[3:]])).reference == "fedavg"


def test_the_reference_leading_is_said_once_all_others_are_below():
    runs = seeds("fedavg", 0.800, 0.805, 0.810)
    runs += seeds("fedvls", 0.700, 0.706, 0.709)
    runs += seeds("fedlc", 0.500, 0.506, 0.508)
    assert "fedavg ends above each of the 2 other methods, at 80.5 ± 0.5 %." in say(*runs)


def test_differences_are_those_of_scipy():
    rng = np.random.default_rng(0)
    table = {name: rng.normal(0.5, 0.1, 6).tolist() for name in ("fedavg", "fedlc", "fedprox", "pkd")}
    told = answer(by_method([run for name, values in table.items() for run in seeds(name, *values)]))
    tests = {name: stats.ttest_rel(table[name], table["fedavg"]) for name in ("fedlc", "fedprox", "pkd")}
    order = sorted(tests, key=lambda name: tests[name].pvalue)
    highest = 0.0
    for rank, name in enumerate(order):
        found = next(each for each in told.others if each.name == name).differences["accuracy"]
        assert found.p == pytest.approx(tests[name].pvalue)
        low, high = tests[name].confidence_interval(0.95)
        assert found.interval == pytest.approx((low, high))
        highest = max(highest, min(1.0, (3 - rank) * tests[name].pvalue))
        assert found.adjusted == pytest.approx(highest)


def test_intervals_stay_within_what_is_possible():
    told = answer(by_method([*seeds("fedavg", 0.1, 0.9, 0.2), *seeds("fedvls", 0.9, 0.1, 0.95)]))
    found = told.others[0].differences["accuracy"]
    assert found.interval == (-1.0, 1.0)
    for each in told.standings:
        low, high = each.values["accuracy"].interval
        assert low >= 0
        assert high <= 1


def test_holm_by_hand():
    assert metrics.holm([0.01, 0.04, None, 0.03]) == pytest.approx([0.03, 0.06, None, 0.06])
    assert metrics.holm([0.9, 0.8]) == [1.0, 1.0]
    assert metrics.holm([]) == []


def test_how_many_seeds_would_settle_it():
    """Compare with textbooks: an effect of one standard deviation takes 10 pairs, of half of one 34."""
    assert metrics.seeds_needed(1.0, 1.0) == 10
    assert metrics.seeds_needed(-0.5, 1.0) == 34
    assert metrics.seeds_needed(0.0, 1.0) is None
    assert metrics.seeds_needed(1e-6, 1.0) is None
    for effect in np.linspace(0.7, 12, 60):
        for level in (0.05, 0.05 / 9, 0.05 / 36):
            needed = metrics.seeds_needed(effect, 1.0, level=level)
            at, below = (
                stats.nct.sf(stats.t.isf(level / 2, n - 1), n - 1, effect * n**0.5)
                for n in (needed, needed - 1)
            )
            assert at >= 0.8
            assert needed == 3 or below < 0.8
    needed = metrics.seeds_needed(0.7, 1.0, level=0.01)
    draws = np.random.default_rng(1).normal(0.7, 1.0, (4000, needed))
    found = (stats.ttest_1samp(draws, 0, axis=1).pvalue <= 0.01).mean()
    assert found == pytest.approx(0.8, abs=0.03)
    told = answer(by_method([*seeds("fedavg", 0.5, 0.5, 0.5), *seeds("fedvls", 0.45, 0.65, 0.68)]))
    one = told.others[0].differences["accuracy"]
    assert points(one) == "+9.3 (−21.7 to +40.4)"
    assert verdict(one) == f"not significant with 3 seeds; about {one.needed} would probably show it"
    assert one.needed > 3


def test_seeds_that_do_not_settle_it_are_never_said_to_be_enough():
    """Use many p-values just above the level for the smallest, of which the largest would need few seeds."""
    spread = np.array([-1.0, -0.5, 0.0, 0.5, 1.0])
    values = {"fedavg": {"accuracy": dict.fromkeys(range(5), 0.0)}}
    for number in range(9):
        shifted = spread / 100 + (0.0186 + number / 1e5)
        values[f"m{number}"] = {"accuracy": dict(enumerate(shifted))}
    found = [each["accuracy"] for each in metrics.against_reference(values, "fedavg").values()]
    assert not any(one.settled for one in found)
    assert all(one.needed > 5 for one in found)


@pytest.mark.parametrize("better", [0.0, 1.0], ids=["all alike", "two alike above the others"])
def test_a_winner_where_there_is_none_is_declared_at_most_once_in_twenty_times(better):
    """Methods drawn alike, with an effect of the seed that they share and spreads of their own; and where two
    of them are above the rest, neither is called the best."""
    rng = np.random.default_rng(2)
    times, names = 600, ("fedavg", "a", "b", "c", "d")
    false = 0
    for _ in range(times):
        draws = 0.1 * rng.normal(size=5) + rng.uniform(0.01, 0.05, (5, 1)) * rng.normal(size=(5, 5))
        draws[1:3] += better
        values = {
            name: {"accuracy": dict(enumerate(row.tolist()))} for name, row in zip(names, draws, strict=True)
        }
        found = metrics.against_reference(values, "fedavg")
        best = metrics.best_of({name: each["accuracy"] for name, each in values.items()})
        if better:
            false += best is not None
        else:
            false += best is not None or any(each["accuracy"].settled for each in found.values())
    assert false / times <= 0.05 + 3 * (0.05 * 0.95 / times) ** 0.5
