"""Metrics against numbers worked out by hand."""

import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

import unskew
from unskew import metrics
from unskew.errors import UserError
from unskew.metrics import Passes, Stages, Traffic

PAGE = Path(__file__).parents[1] / "docs" / "metrics.md"

CONFUSION = np.array(
    [
        [8, 2, 0, 0],
        [1, 3, 1, 0],
        [0, 0, 0, 5],
        [0, 0, 0, 0],  # no test sample of class 3
    ]
)


def test_accuracies_of_a_small_confusion_matrix():
    assert metrics.accuracy(CONFUSION) == 11 / 20
    by_class = metrics.class_accuracy(CONFUSION)
    assert by_class[:3].tolist() == [0.8, 0.6, 0.0]
    assert np.isnan(by_class[3])
    assert metrics.balanced_accuracy(CONFUSION) == pytest.approx(1.4 / 3)
    assert metrics.discrepancy(by_class) == 0.8
    assert metrics.worst_class(by_class) == 2


def test_where_the_errors_go():
    share = metrics.misclassification_share(CONFUSION)
    assert share[0].tolist() == [0, 1, 0, 0]
    assert share[1].tolist() == [0.5, 0, 0.5, 0]
    assert share[2].tolist() == [0, 0, 0, 1]
    assert share[3].tolist() == [0, 0, 0, 0]


def test_the_paper_figure_of_t_shirts_taken_for_shirts():
    # PKD reports that 85 of 137 misread T-shirts were read as shirts, 62 %.
    confusion = np.array([[863, 85, 52], [0, 1, 0], [0, 0, 1]])
    assert round(100 * metrics.misclassification_share(confusion)[0, 1]) == 62


def test_predictions_and_their_distance_to_uniform():
    share = metrics.prediction_share(CONFUSION)
    assert share.tolist() == [9 / 20, 5 / 20, 1 / 20, 5 / 20]
    assert metrics.distance_to_uniform(share) == pytest.approx(0.5 * (0.2 + 0 + 0.2 + 0))


def test_groups_of_the_client_the_fedvls_paper_describes():
    # Client 0 of its Table 7: "classes 5, 8 and 9 are majority classes, class 3 is a minority class".
    counts = np.zeros((1, 10), np.int64)
    counts[0, [3, 5, 8, 9]] = [141, 1471, 1360, 366]
    groups = metrics.groups(counts)
    assert np.flatnonzero(groups["majority"][0]).tolist() == [5, 8, 9]
    assert np.flatnonzero(groups["minority"][0]).tolist() == [3]
    assert np.flatnonzero(groups["vacant"][0]).tolist() == [0, 1, 2, 4, 6, 7]


def test_groups_of_special_clients():
    counts = np.array([[5, 5, 5], [0, 0, 0], [1, 0, 0]])
    groups = metrics.groups(counts)
    assert groups["majority"].tolist() == [[True] * 3, [False] * 3, [True, False, False]]
    assert not groups["minority"].any()
    assert groups["vacant"].tolist() == [[False] * 3, [True] * 3, [False, True, True]]


def test_group_accuracy_is_a_mean_over_clients_of_means_over_classes():
    by_class = np.array([0.9, 0.5, 0.1, np.nan])
    counts = np.array([[10, 1, 0, 0], [10, 10, 10, 10]])
    accuracy = metrics.group_accuracy(by_class, counts)
    assert accuracy["majority"] == pytest.approx((0.9 + (0.9 + 0.5 + 0.1) / 3) / 2)
    assert accuracy["minority"] == pytest.approx(0.5)
    assert accuracy["vacant"] == pytest.approx(0.1)


def test_a_group_no_client_has_is_none():
    assert metrics.group_accuracy(np.array([0.2, 0.4]), np.array([[3, 3]])) == {
        "majority": pytest.approx(0.3),
        "minority": None,
        "vacant": None,
    }


def test_forgetting():
    history = [np.array([0.5, 0.9]), np.array([0.8, 0.4]), np.array([0.6, 0.95])]
    assert metrics.forgetting(history) == pytest.approx((0.2 - 0.05) / 2)
    assert metrics.forgetting(history, clamp=True) == pytest.approx(0.1)
    assert metrics.forgetting(history[:1]) == 0
    untested = [np.append(values, np.nan) for values in history]
    assert metrics.forgetting(untested) == metrics.forgetting(history)


def test_rounds_to_a_target():
    accuracies = {5: 0.3, 10: 0.6, 15: 0.55}
    assert metrics.rounds_to(0.5, accuracies) == 10
    assert metrics.rounds_to(0.7, accuracies) is None


def test_best_is_never_alone():
    values = [0.1] * 5 + [0.9] + [0.2] * 9
    assert metrics.best_last_mean(values) == {
        "best": 0.9,
        "last": 0.2,
        "mean_last_10": pytest.approx((0.9 + 9 * 0.2) / 10),
    }


def test_feature_distances():
    means = np.array([[0.0, 0.0], [3.0, 4.0]])
    assert metrics.feature_distances(means).tolist() == [[0, 5], [5, 0]]


# Per class


def test_max_mean_min():
    ends = metrics.max_mean_min(np.array([0.8, 0.6, 0.0, np.nan]))
    assert ends == {"max": 0.8, "mean": pytest.approx((0.8 + 0.6 + 0.0) / 3), "min": 0.0}
    assert metrics.discrepancy(np.array([0.75, np.nan, 0.5])) == 0.75 - 0.5


def test_confusion_share():
    share = metrics.confusion_share(CONFUSION)
    assert share[:3].tolist() == [[8 / 10, 2 / 10, 0, 0], [1 / 5, 3 / 5, 1 / 5, 0], [0, 0, 0, 1]]
    assert np.isnan(share[3]).all()


def test_without_any_test_sample_numbers_are_nan_and_nothing_warns():
    empty = np.zeros((3, 3), np.int64)
    by_class = metrics.class_accuracy(empty)
    assert np.isnan(by_class).all()
    assert np.isnan(metrics.accuracy(empty))
    assert np.isnan(metrics.balanced_accuracy(empty))
    assert np.isnan(metrics.discrepancy(by_class))
    assert np.isnan(metrics.prediction_share(empty)).all()
    assert np.isnan(metrics.forgetting([by_class, by_class]))
    assert metrics.group_accuracy(by_class, np.array([[1, 0, 0]]))["vacant"] is None
    with pytest.raises(UserError, match="no class has a test sample"):
        metrics.worst_class(by_class)


def test_feature_distances_of_an_untested_class_are_nan():
    means = np.array([[0.0, 0.0], [np.nan, np.nan], [6.0, 8.0]])
    distances = metrics.feature_distances(means)
    assert distances[0, 2] == distances[2, 0] == 10
    assert np.isnan(distances[1]).all()
    assert np.isnan(distances[:, 1]).all()


confusions = st.integers(2, 6).flatmap(lambda C: arrays(np.int64, (C, C), elements=st.integers(0, 50)))


@given(confusions, st.randoms(use_true_random=False))
def test_renaming_classes_renames_their_numbers_and_changes_no_other(confusion, random):
    order = list(range(len(confusion)))
    random.shuffle(order)
    renamed = confusion[np.ix_(order, order)]
    by_class = metrics.class_accuracy(confusion)
    same = {"rtol": 0, "atol": 1e-12, "equal_nan": True}
    assert np.allclose(metrics.class_accuracy(renamed), by_class[order], **same)
    assert np.allclose(metrics.prediction_share(renamed), metrics.prediction_share(confusion)[order], **same)
    wrong = metrics.misclassification_share(confusion)
    assert np.allclose(metrics.misclassification_share(renamed), wrong[np.ix_(order, order)], **same)
    for number in (metrics.accuracy, metrics.balanced_accuracy):
        assert np.allclose(number(renamed), number(confusion), **same)
    assert np.allclose(metrics.discrepancy(by_class[order]), metrics.discrepancy(by_class), **same)


@given(confusions.filter(lambda confusion: confusion.sum() > 0))
def test_bounds_of_class_numbers(confusion):
    by_class = metrics.class_accuracy(confusion)
    ends = metrics.max_mean_min(by_class)
    assert 0 <= ends["min"] <= ends["mean"] + 1e-12
    assert ends["mean"] <= ends["max"] + 1e-12 <= 1 + 1e-12
    assert by_class[metrics.worst_class(by_class)] == ends["min"]
    assert metrics.prediction_share(confusion).sum() == pytest.approx(1)
    C = len(confusion)
    assert 0 <= metrics.distance_to_uniform(metrics.prediction_share(confusion)) <= 1 - 1 / C + 1e-12


# Per client


BEFORE = np.array([0.7, 0.5, 0.6, 0.4, np.nan])
AFTER = np.array([0.9, 0.9, 0.3, 0.0, np.nan])
AGGREGATED = np.array([0.8, 0.6, 0.5, 0.3, np.nan])


def test_what_an_update_did_to_a_clients_classes():
    # n / C = 100 / 5 = 20: classes 0 and 1 are majority, 2 is minority, 3 and 4 are vacant, 4 is untested.
    effect = metrics.update_effect(BEFORE, AFTER, AGGREGATED, np.array([60, 30, 10, 0, 0]))
    assert effect["majority"] == Stages(pytest.approx(0.6), pytest.approx(0.9), pytest.approx(0.7))
    assert effect["majority"].drop == pytest.approx(0.6 - 0.9)
    assert effect["minority"] == Stages(0.6, 0.3, 0.5)
    assert effect["vacant"] == Stages(0.4, 0.0, 0.3)
    assert effect["vacant"].drop == pytest.approx(0.4)


def test_a_client_without_classes_of_a_kind_has_none():
    effect = metrics.update_effect(BEFORE, AFTER, AGGREGATED, np.array([20, 20, 20, 20, 20]))
    assert effect["minority"] is None
    assert effect["vacant"] is None
    only_untested_vacant = metrics.update_effect(BEFORE, AFTER, AGGREGATED, np.array([5, 5, 5, 5, 0]))
    assert only_untested_vacant["vacant"] is None


def test_the_mean_over_a_cohort_is_over_the_clients_that_have_the_kind():
    clients = [
        {"majority": Stages(0.6, 0.8, 0.7), "minority": None, "vacant": Stages(0.5, 0.1, 0.4)},
        {"majority": Stages(0.4, 0.9, 0.6), "minority": None, "vacant": None},
    ]
    mean = metrics.mean_effect(clients)
    assert mean["majority"] == Stages(
        pytest.approx((0.6 + 0.4) / 2), pytest.approx((0.8 + 0.9) / 2), pytest.approx((0.7 + 0.6) / 2)
    )
    assert mean["minority"] is None
    assert mean["vacant"] == Stages(0.5, 0.1, 0.4)
    assert metrics.mean_effect([]) == {"majority": None, "minority": None, "vacant": None}


@given(arrays(np.int64, (4, 5), elements=st.integers(0, 9)))
def test_the_mean_effect_agrees_with_the_group_accuracy_of_all_clients(counts):
    effect = metrics.mean_effect(metrics.update_effect(BEFORE, AFTER, AGGREGATED, row) for row in counts)
    expected = metrics.group_accuracy(BEFORE, counts)
    for name, stages in effect.items():
        assert (stages is None) == (expected[name] is None)
        assert stages is None or stages.before == pytest.approx(expected[name])


def test_update_effect_refuses_accuracies_and_counts_of_different_classes():
    with pytest.raises(UserError, match="one value per class"):
        metrics.update_effect(BEFORE, AFTER, AGGREGATED, np.array([1]))


def test_mean_class_accuracy_of_local_models():
    local = [np.array([0.2, 0.8, np.nan]), np.array([0.6, 0.4, np.nan])]
    means = metrics.mean_class_accuracy(local)
    assert means[:2].tolist() == pytest.approx([(0.2 + 0.6) / 2, (0.8 + 0.4) / 2])
    assert np.isnan(means[2])
    assert metrics.mean_class_accuracy([]) is None


def test_in_and_out_local_accuracy():
    by_class, counts = np.array([0.9, 0.6, 0.2]), np.array([3, 1, 0])
    assert metrics.in_local_accuracy(by_class, counts) == pytest.approx(0.75 * 0.9 + 0.25 * 0.6)
    out = (0.25 * 0.9 + 0.75 * 0.6 + 1 * 0.2) / 2
    assert metrics.out_local_accuracy(by_class, counts) == pytest.approx(out)


def test_local_accuracy_leaves_untested_classes_out():
    by_class, counts = np.array([0.9, np.nan, 0.2]), np.array([2, 1, 1])
    assert metrics.in_local_accuracy(by_class, counts) == pytest.approx((2 * 0.9 + 1 * 0.2) / 3)
    assert metrics.out_local_accuracy(by_class, counts) == pytest.approx((2 * 0.9 + 3 * 0.2) / 5)


def test_local_accuracy_of_clients_that_have_none():
    assert metrics.in_local_accuracy(np.array([0.9, 0.2]), np.array([0, 0])) is None
    assert metrics.out_local_accuracy(np.array([0.9, 0.2]), np.array([0, 0])) is None
    assert metrics.in_local_accuracy(np.array([0.9, np.nan]), np.array([0, 4])) is None
    assert metrics.out_local_accuracy(np.array([0.9, np.nan]), np.array([4, 0])) is None


@given(
    arrays(np.float64, 4, elements=st.floats(0, 1)),
    arrays(np.int64, 4, elements=st.integers(0, 9)).filter(np.any),
)
def test_in_and_out_local_accuracy_lie_between_the_classes(by_class, counts):
    for number in (metrics.in_local_accuracy, metrics.out_local_accuracy):
        assert by_class.min() - 1e-12 <= number(by_class, counts) <= by_class.max() + 1e-12


def test_drift_diversity_from_the_model_before():
    # m_1 = (3, 0; 0), m_2 = (0, 4; 1): squares 9 + 17, sum (3, 4; 1) of square 26; they are orthogonal.
    delta = {"a": np.array([[3.0, 0.0], [0.0, 4.0]]), "b": np.array([[0.0], [1.0]])}
    assert metrics.drift_diversity(delta) == (9 + 17) / 26 == 1
    # m_1 = (1, 2), m_2 = (3, -1): squares 5 + 10, sum (4, 1) of square 17.
    assert metrics.drift_diversity({"a": np.array([[1.0, 2.0], [3.0, -1.0]])}) == pytest.approx(15 / 17)


def test_drift_diversity_from_the_model_after():
    # Weights 3/4 and 1/4 of moves 4 and 0 make a step of 3: m = 1 and -3, squares 10, sum -2 of square 4.
    assert metrics.drift_diversity({"a": np.array([[4.0], [0.0]])}, {"a": np.array([3.0])}) == 10 / 4


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_equally_weighted_clients_cancel_around_the_model_after(dtype):
    moves = np.random.default_rng(0).normal(size=(7, 50)).astype(dtype)
    assert metrics.drift_diversity({"a": moves}, {"a": moves.mean(axis=0)}) == float("inf")


def test_drift_diversity_of_nobody_and_of_nothing_moved():
    assert metrics.drift_diversity({"a": np.zeros((0, 3))}) is None
    assert metrics.drift_diversity({"a": np.zeros((2, 3))}) is None


@pytest.mark.parametrize("broken", [np.nan, np.inf])
def test_drift_diversity_of_diverged_clients_is_nan(broken):
    assert np.isnan(metrics.drift_diversity({"a": np.array([[broken, 1.0], [-broken, 1.0]])}))


@given(st.integers(1, 6), st.integers(0, 99))
def test_bounds_of_drift_diversity(m, seed):
    move = np.random.default_rng(seed).normal(size=(1, 4, 2))
    assert metrics.drift_diversity({"a": np.repeat(move, m, axis=0)}) == pytest.approx(1 / m)
    others = np.random.default_rng(seed + 100).normal(size=(m, 9))
    assert metrics.drift_diversity({"a": others}) >= 1 / m - 1e-12


PROBABILITY = np.array([[0.8, 0.15, 0.05], [0.5, 0.4, 0.1], [np.nan, np.nan, np.nan]])
FEATURES = np.array([[2.0, 0.0], [1.0, 1.0], [np.nan, np.nan]])


def test_deviation_bound():
    found = metrics.deviation(PROBABILITY, FEATURES, np.array([90, 10, 0]))
    # j=0, r=1: (1 - 0.4) * 2 / (0.15 * 2) = 4, and 90 / 10 = 9 is above it.
    assert found.bound[0, 1] == pytest.approx(0.6 * 2 / (0.15 * 2))
    assert found.deviates[0, 1]
    # j=1, r=0: (1 - 0.8) * 4 / (0.5 * 2) = 0.8, and 10 / 90 is below it.
    assert found.bound[1, 0] == pytest.approx(0.2 * 4 / (0.5 * 2))
    assert not found.deviates[1, 0]
    assert np.isnan(found.bound[2]).all()  # vacant
    assert np.isnan(found.bound[:, 2]).all()
    assert np.isnan(np.diag(found.bound)).all()
    assert found.defined.tolist() == [[False, True, False], [True, False, False], [False] * 3]


def test_the_deviation_bound_is_where_a_step_turns_against_a_class():
    # A full-batch step of a linear head moves class r by n_r (1 - p_r^r) h_r - n_j p_r^j h_j.
    for n in ([39, 10], [41, 10]):  # the bound is 4
        step = n[1] * (1 - 0.4) * FEATURES[1] - n[0] * 0.15 * FEATURES[0]
        found = metrics.deviation(PROBABILITY, FEATURES, np.array([*n, 0]))
        assert found.deviates[0, 1] == (step @ FEATURES[1] < 0) == (n[0] > 40)


def test_the_deviation_bound_of_features_that_oppose_each_other_is_infinite_and_flagged():
    features = np.array([[1.0, 0.0], [-1.0, 0.5]])
    found = metrics.deviation(PROBABILITY[:2, :2], features, np.array([1000, 1]))
    assert found.bound[0, 1] == np.inf
    assert not found.defined[0, 1]
    assert not found.deviates[0, 1]


def test_a_class_nobody_is_taken_for_cannot_be_overwhelmed():
    found = metrics.deviation(np.eye(2), np.array([[1.0, 1.0], [1.0, 0.0]]), np.array([1000, 1]))
    assert found.bound[0, 1] == np.inf
    assert found.defined[0, 1]
    assert not found.deviates[0, 1]


# Per run


def test_numbers_of_a_run_without_tests():
    assert all(np.isnan(value) for value in metrics.best_last_mean([]).values())
    assert metrics.rounds_to(0.1, {}) is None
    assert metrics.speed_up({}, {}) is None


def test_speed_up_over_a_baseline():
    baseline = {1: 0.2, 2: 0.4, 3: 0.5, 4: 0.5}  # its best, 0.5, first in round 3
    assert metrics.speed_up({1: 0.3, 2: 0.55, 3: 0.4}, baseline) == 3 / 2
    assert metrics.speed_up({1: 0.3, 2: 0.45}, baseline) is None
    assert metrics.speed_up({1: 0.3, 2: 0.45}, baseline, target=0.4) == 2 / 2
    assert metrics.speed_up({1: 0.9}, baseline, target=0.8) is None
    assert metrics.speed_up(baseline, baseline) == 1


def test_traffic():
    weights = {"weight": np.zeros((10, 4), np.float32), "counter": np.zeros((), np.int64)}  # 160 + 8
    shared, reported = {"control": np.zeros(40, np.float32)}, {"counts": np.zeros(3, np.int64)}  # 160; 24
    plain = metrics.traffic(weights, cohort=5, trained=4)
    assert plain == Traffic(up=4 * 168, down=5 * 168)
    more = metrics.traffic(weights, cohort=5, trained=4, shared=shared, reported=reported)
    assert more == Traffic(up=4 * (168 + 24), down=5 * (168 + 160))
    assert plain + more == Traffic(up=672 + 768, down=840 + 1640)
    assert metrics.traffic(weights, cohort=0, trained=0) == Traffic(0, 0)
    with pytest.raises(UserError, match="trained <= cohort"):
        metrics.traffic(weights, cohort=1, trained=2)


def test_traffic_counts_tensors_as_it_counts_arrays():
    weights = {"weight": torch.zeros(10, 4), "half": torch.zeros(3, dtype=torch.bfloat16)}
    assert metrics.traffic(weights, cohort=1, trained=1) == Traffic(up=166, down=166)


def test_forward_passes_and_their_cost():
    assert metrics.forward_passes(Passes(), epochs=5) == 5
    assert metrics.forward_passes(Passes(frozen=2, once=1), epochs=5) == 5 * 3 + 1
    assert metrics.round_cost(Passes(), epochs=5) == 1
    assert metrics.round_cost(Passes(frozen=1), epochs=5) == pytest.approx(4 / 3)  # a teacher: a third more
    assert metrics.round_cost(Passes(frozen=2), epochs=5) == pytest.approx(5 / 3)  # MOON
    assert metrics.round_cost(Passes(trained=2), epochs=5) == 2  # SAM
    assert metrics.round_cost(Passes(once=1), epochs=5) == pytest.approx(1 + 1 / 15)
    with pytest.raises(UserError, match="epochs above 0"):
        metrics.round_cost(Passes(), epochs=0)


def test_the_costs_the_pkd_paper_prints():
    # LeNet-5 at 28x28 has 416,520 multiply-adds; Table 9 gives U as 374.87 GFLOPs.
    assert round(metrics.cost_unit(60_000, 5, 416_520) / 1e9, 2) == 374.87
    # 20 rounds of warm-up and 25 of experts on groups of 2 and 3 of 10 even classes are 32.5 U.
    expert = metrics.expert_cost([12_000, 18_000], 60_000, epochs=5)
    assert 20 * 1 + 25 * expert == 32.5
    assert metrics.expert_cost([30_000], 60_000, epochs=5, expert_epochs=1) == pytest.approx(0.1)


def test_how_often_experts_are_asked_and_what_it_costs():
    # 5 epochs of 1000 samples: 800 activations are 16 %, and cost a third of that.
    assert metrics.activation_frequency([0, 800, 15], 1000, 5).tolist() == [0, 0.16, 0.003]
    assert metrics.distillation_cost(800, 1000, 5) == pytest.approx(1 + 0.16 / 3)
    assert metrics.distillation_cost(0, 1000, 5) == 1
    assert metrics.activation_frequency([], 1000, 5).tolist() == []


def test_the_cost_to_reach_an_accuracy():
    worst = {2: 0.3, 4: 0.5}
    costs = {1: 1.0, 2: 1.1, 3: 1.2, 4: 1.3}
    assert metrics.cost_to(0.3, worst, costs) == pytest.approx(1.0 + 1.1)
    assert metrics.cost_to(0.4, worst, costs, before=12.5) == pytest.approx(12.5 + 1.0 + 1.1 + 1.2 + 1.3)
    assert metrics.cost_to(0.6, worst, costs) is None


# Over seeds


def test_a_number_over_seeds():
    found = metrics.over_seeds([0.5, 0.6, 0.7])
    assert found.mean == pytest.approx(0.6)
    assert found.std == pytest.approx(np.sqrt((0.01 + 0 + 0.01) / 2))
    margin = 4.302653 * 0.1 / np.sqrt(3)  # Student's t, 2 degrees of freedom, 97.5 %
    assert found.interval == pytest.approx((0.6 - margin, 0.6 + margin), abs=1e-6)
    narrow = metrics.over_seeds([0.5, 0.6, 0.7], confidence=0.5).interval
    assert narrow[1] - 0.6 == pytest.approx(0.816497 * 0.1 / np.sqrt(3), abs=1e-6)


def test_seeds_that_say_little():
    assert metrics.over_seeds([]) is None
    assert metrics.over_seeds([None, float("nan")]) is None
    one = metrics.over_seeds([None, 0.4])
    assert (one.mean, one.std, one.interval, one.n) == (0.4, None, None, 1)
    assert metrics.plus_minus(one, scale=100) == "40.0"
    assert metrics.plus_minus(metrics.over_seeds([0.5, 0.6, 0.7]), scale=100) == "60.0 ± 10.0"
    assert metrics.plus_minus(metrics.over_seeds([-0.001, 0.0]), digits=2) == "0.00 ± 0.00"
    assert metrics.over_seeds([0.5, 0.6]).interval is None
    assert metrics.over_seeds([0.1, 0.9, 0.95], bounds=(0, 1)).interval[1] == 1
    same = metrics.over_seeds([0.1, 0.1, 0.1])
    assert (same.std, same.n) == (0, 3)
    assert same.interval == (same.mean, same.mean)
    with pytest.raises(UserError, match="between 0 and 1"):
        metrics.over_seeds([0.1, 0.2], confidence=95)


def test_a_paired_comparison():
    first = {1: 0.62, 2: 0.65, 3: 0.61, 4: 0.66, 9: 0.99}
    second = {4: 0.60, 3: 0.62, 2: 0.60, 1: 0.58, 7: 0.01}
    found = metrics.compare(first, second)
    assert found.seeds == (1, 2, 3, 4)
    # Differences 4, 5, -1, 6 hundredths: mean 3.5, squared deviations 0.25 + 2.25 + 20.25 + 6.25 = 29.
    std = np.sqrt(29 / 3) / 100
    assert found.difference == pytest.approx(0.035)
    margin = 3.182446 * std / 2  # 3 degrees of freedom
    assert found.interval == pytest.approx((0.035 - margin, 0.035 + margin), abs=1e-6)
    # t = 3.5 / (sqrt(29/3) / 2) = 2.2514. With 3 degrees of freedom and u = t / sqrt(3), the two-sided p is
    # 1 - 2 (u / (1 + u^2) + arctan u) / pi.
    u = 0.035 / (std / 2) / np.sqrt(3)
    assert found.t_test == pytest.approx(1 - 2 * (u / (1 + u**2) + np.arctan(u)) / np.pi)
    # 3 of 4 positive: P(at least 3, or at most 1) = 2 (4 + 1) / 16.
    assert found.sign_test == pytest.approx(10 / 16)


def test_comparisons_that_say_little():
    assert metrics.compare({1: 0.5}, {2: 0.5}) is None
    assert metrics.compare({1: 0.5, 2: None}, {1: None, 2: 0.5}) is None
    one = metrics.compare({1: 0.5}, {1: 0.25})
    assert (one.difference, one.interval, one.t_test, one.sign_test) == (0.25, None, None, None)
    two = metrics.compare({1: 0.5, 2: 0.6}, {1: 0.3, 2: 0.5})
    assert (two.interval, two.t_test) == (None, None)
    assert two.std == pytest.approx(0.1 / np.sqrt(2))
    equal = metrics.compare({1: 0.5, 2: 0.6, 3: 0.7}, {1: 0.5, 2: 0.6, 3: 0.7})
    assert (equal.difference, equal.interval, equal.t_test, equal.sign_test) == (0, (0, 0), None, 1)
    # The same gain on every seed, but for rounding: 0.3 - 0.2 is not 0.2 - 0.1.
    shifted = metrics.compare({1: 0.3, 2: 0.2, 3: 0.6}, {1: 0.2, 2: 0.1, 3: 0.5})
    assert shifted.difference == pytest.approx(0.1)
    assert shifted.t_test is None
    assert shifted.sign_test == 2 / 8
    with pytest.raises(UserError, match="between 0 and 1"):
        metrics.compare({1: 0.5}, {1: 0.5}, confidence=1)


def test_ties_are_left_out_of_the_sign_test():
    found = metrics.compare({1: 0.5, 2: 0.7, 3: 0.8}, {1: 0.5, 2: 0.6, 3: 0.6})
    assert found.sign_test == 2 / 4  # two of two
    rounded = metrics.compare({1: 0.1 + 0.2, 2: 0.7, 3: 0.8}, {1: 0.3, 2: 0.6, 3: 0.6})
    assert rounded.sign_test == found.sign_test  # 0.1 + 0.2 is not 0.3


scores = st.dictionaries(st.integers(0, 9), st.integers(0, 1000).map(lambda n: n / 1000), max_size=8)


@given(scores, scores)
def test_comparing_the_other_way_round_turns_the_signs_alone(first, second):
    there, back = metrics.compare(first, second), metrics.compare(second, first)
    assert (there is None) == (back is None) == (not first.keys() & second.keys())
    if there is None:
        return
    assert back.seeds == there.seeds
    assert back.difference == -there.difference
    assert back.sign_test == there.sign_test
    if there.interval is not None:
        assert back.interval == pytest.approx((-there.interval[1], -there.interval[0]))
    for p in (there.t_test, there.sign_test):
        assert p is None or 0 <= p <= 1


# The page, and what the module needs


@pytest.mark.parametrize(
    "code", re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
)
def test_examples_of_the_page(code):
    exec(compile(code, "docs/metrics.md", "exec"), {"__name__": "example"})


def random_answers(seed: int, n: int, classes: int, absent: tuple[int, ...] = ()):
    """Probabilities of few different values, so that there are ties, and labels."""
    rng = np.random.default_rng(seed)
    counts = rng.multinomial(8, rng.dirichlet(np.ones(classes)), n) + (rng.random((n, classes)) < 0.1)
    counts[counts.sum(axis=1) == 0, 0] = 1
    labels = rng.choice([c for c in range(classes) if c not in absent], n)
    return counts / counts.sum(axis=1, keepdims=True), labels


def confusion_of(answers, labels, classes):
    confusion = np.zeros((classes, classes), np.int64)
    np.add.at(confusion, (labels, answers), 1)
    return confusion


@pytest.mark.parametrize("n", [1, 5, 400])
@pytest.mark.parametrize("never", [None, 2])
@pytest.mark.parametrize("absent", [(), (0,), (1, 3)])
@pytest.mark.filterwarnings("ignore")  # scikit-learn's on classes that are not there
def test_scores_of_answers_are_those_of_scikit_learn(n, never, absent):
    from sklearn.metrics import balanced_accuracy_score, f1_score

    probabilities, labels = random_answers(n, n, 5, absent)
    answers = probabilities.argmax(axis=1)
    answers[answers == never] = 4
    confusion = confusion_of(answers, labels, 5)
    assert metrics.macro_f1(confusion) == pytest.approx(f1_score(labels, answers, average="macro"))
    assert metrics.balanced_accuracy(confusion) == pytest.approx(balanced_accuracy_score(labels, answers))


@pytest.mark.parametrize(("n", "classes"), [(400, 5), (30, 5), (50, 2), (9, 3)])
def test_scores_of_probabilities_are_those_of_scikit_learn(n, classes):
    from sklearn.metrics import brier_score_loss, log_loss, roc_auc_score

    probabilities, labels = random_answers(n, n, classes)
    assert (probabilities == 0).any()
    truth = probabilities[:, 1] if classes == 2 else probabilities
    expected = roc_auc_score(labels, truth, multi_class="ovr", average="macro")
    assert metrics.auc(probabilities, labels) == pytest.approx(expected)
    names = list(range(classes))
    assert metrics.log_loss(probabilities, labels) == pytest.approx(
        log_loss(labels, probabilities, labels=names)
    )
    expected = brier_score_loss(labels, probabilities, labels=names, scale_by_half=False)
    assert metrics.brier(probabilities, labels) == pytest.approx(expected)


def test_a_class_without_a_sample_has_no_curve():
    from sklearn.metrics import roc_auc_score

    probabilities, labels = random_answers(3, 200, 4, absent=(2,))
    each = [roc_auc_score(labels == c, probabilities[:, c]) for c in (0, 1, 3)]
    assert metrics.auc(probabilities, labels) == pytest.approx(np.mean(each))
    assert np.isnan(metrics.auc(probabilities[:1], labels[:1]))  # nothing to tell it from
    assert metrics.auc(np.full((4, 2), 0.5), np.array([0, 1, 1, 0])) == 0.5
    assert np.isnan(metrics.auc(np.full((4, 2), np.nan), np.array([0, 1, 1, 0])))


def test_calibration_error_is_what_it_says():
    probabilities, labels = random_answers(1, 300, 4)
    confidence, right = probabilities.max(axis=1), probabilities.argmax(axis=1) == labels
    expected = 0.0
    for low in range(10):
        inside = (confidence > low / 10) & (confidence <= (low + 1) / 10)
        if inside.any():
            expected += inside.mean() * abs(right[inside].mean() - confidence[inside].mean())
    assert metrics.calibration_error(probabilities, labels, bins=10) == pytest.approx(expected)
    sure = np.array([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0], [0.0, 1.0]])
    assert metrics.calibration_error(sure, np.array([0, 0, 1, 1])) == 0
    assert metrics.calibration_error(sure, np.array([1, 0, 1, 1])) == 0.25
    assert metrics.calibration_error(sure[:1], np.array([1])) == 1
    # Of 80 % three in four: what is above and below in one part cancels, and not what is in two.
    some = np.array([[0.8, 0.2]] * 4)
    assert metrics.calibration_error(some, np.array([0, 0, 0, 1])) == pytest.approx(0.05)


def test_impossible_answers_have_a_finite_loss():
    wrong = np.array([[0.0, 1.0], [1.0, 0.0]])
    assert metrics.log_loss(wrong, np.array([0, 1])) == pytest.approx(-np.log(np.finfo(float).eps))
    assert metrics.brier(wrong, np.array([0, 1])) == 2
    assert metrics.auc(wrong, np.array([0, 1])) == 0


def test_no_sample_has_no_score():
    none = metrics.probability_scores(np.zeros((0, 3)), np.zeros(0, np.int64))
    assert all(np.isnan(value) for value in vars(none).values())
    assert np.isnan(metrics.macro_f1(np.zeros((3, 3), np.int64)))


@pytest.mark.parametrize(
    ("probabilities", "labels", "sentence"),
    [
        (np.ones((2, 3)), np.array([0, 1, 1]), "do not fit: give a row"),
        (np.ones(3), np.array([0, 1, 1]), "do not fit: give a row"),
        (np.ones((2, 3)), np.array([0, 3]), "outside of 0..2"),
        (np.ones((2, 3)), np.array([-1, 0]), "outside of 0..2"),
    ],
)
def test_probabilities_that_do_not_fit_are_refused(probabilities, labels, sentence):
    for score in (metrics.auc, metrics.brier, metrics.log_loss, metrics.calibration_error):
        with pytest.raises(UserError, match=sentence):
            score(probabilities, labels)


def test_the_page_lists_every_function():
    listed = set(re.findall(r"^\| `(\w+)`", PAGE.read_text(), re.MULTILINE))
    functions = {name for name in metrics.__all__ if name[0].islower()}
    steps = {"group_shares", "weigh", "diversity"}  # of group_accuracy and drift_diversity
    assert listed == functions - steps


def test_it_needs_neither_torch_nor_scipy_to_load():
    package = Path(unskew.__file__).parent
    code = (
        "import sys, types\n"
        "sys.modules['unskew'] = package = types.ModuleType('unskew')\n"
        f"package.__path__ = [{str(package)!r}]\n"
        "sys.modules['torch'] = None\n"
        "import unskew.metrics\n"
        "assert not any(name.split('.')[0] == 'scipy' for name in sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
