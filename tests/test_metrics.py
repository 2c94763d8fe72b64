"""Metrics against numbers worked out by hand."""

import numpy as np
import pytest

from unskew import metrics

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
    assert metrics.macro_accuracy(CONFUSION) == pytest.approx(1.4 / 3)
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
