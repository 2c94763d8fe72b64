"""Cohorts and batches are functions of (seed, round, client, epoch) alone."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from unskew.engines.plan import divide, draw_cohort, epochs, longest_first
from unskew.randomness import Purpose, draw_seed, stream
from unskew.trial import Budget


@given(st.integers(0, 2**32), st.integers(0, 500), st.integers(1, 50), st.data())
def test_a_cohort_is_distinct_clients_and_reproducible(seed, round, clients, data):
    size = data.draw(st.integers(1, clients))
    chosen = draw_cohort(seed, round, clients, size)
    assert len(set(chosen)) == size
    assert all(0 <= client < clients for client in chosen)
    assert chosen == draw_cohort(seed, round, clients, size)


def test_cohorts_change_with_round_and_seed():
    assert len({tuple(draw_cohort(1, t, 100, 10)) for t in range(20)}) == 20
    assert draw_cohort(1, 0, 100, 10) != draw_cohort(2, 0, 100, 10)


def test_every_client_is_chosen_about_equally_often():
    times = np.bincount([c for t in range(2000) for c in draw_cohort(3, t, 20, 5)], minlength=20)
    assert times.sum() == 10_000
    assert abs(times - 500).max() < 100  # 5 standard deviations of a binomial(2000, 1/4)


@given(st.integers(0, 70), st.integers(1, 20), st.integers(1, 3))
def test_every_epoch_sees_every_sample_once(samples, batch_size, times):
    plan = list(epochs(1, 2, 3, samples, Budget(epochs=times, batch_size=batch_size)))
    assert len(plan) == (times if samples else 1)
    for epoch in plan:
        assert sorted(epoch.rows.tolist()) == list(range(samples))
        assert sum(epoch.sizes) == samples
        assert all(size == batch_size for size in epoch.sizes[:-1])
        assert all(0 < size <= batch_size for size in epoch.sizes)


def test_epochs_rounds_and_clients_differ_and_repeat():
    def order(round, client, times=1):
        plan = epochs(1, round, client, 50, Budget(epochs=times, batch_size=8))
        return np.concatenate([epoch.rows for epoch in plan])

    assert (order(0, 0) == order(0, 0)).all()
    assert (order(0, 0) != order(1, 0)).any()
    assert (order(0, 0) != order(0, 1)).any()
    both = order(0, 0, times=2)
    assert (both[:50] == order(0, 0)).all()
    assert (both[50:] != both[:50]).any()


def test_draws_belong_to_the_sample_whatever_the_batch_size():
    def by_sample(batch_size):
        table = np.empty((30, 4), np.float32)
        for epoch in epochs(1, 0, 0, 30, Budget(epochs=1, batch_size=batch_size), draws=4):
            table[epoch.rows] = epoch.draws
        return table

    assert (by_sample(7) == by_sample(30)).all()
    assert len(np.unique(by_sample(7))) == 120


def test_a_trailing_single_sample_can_be_left_out_but_never_the_only_one():
    def sizes(samples, batch_size):
        budget = Budget(epochs=1, batch_size=batch_size)
        (epoch,) = epochs(1, 0, 0, samples, budget, drop_single=True)
        assert len(epoch.rows) == sum(epoch.sizes)
        return epoch.sizes

    assert sizes(9, 4) == [4, 4]
    assert sizes(10, 4) == [4, 4, 2]
    assert sizes(1, 4) == [1]
    assert sizes(3, 1) == [1, 1, 1]
    assert sizes(0, 4) == []


def flat_plan(samples, budget, **more):
    plan = list(epochs(1, 0, 0, samples, budget, **more))
    rows = [row for epoch in plan for row in epoch.rows.tolist()]
    return rows, [size for epoch in plan for size in epoch.sizes]


@given(st.integers(1, 70), st.integers(1, 20), st.integers(1, 40), st.booleans())
def test_steps_go_on_through_passes_that_are_those_of_epochs(samples, batch_size, steps, drop_single):
    """With partial batches where a pass ends, and cut off wherever the steps are."""
    rows, sizes = flat_plan(samples, Budget(steps=steps, batch_size=batch_size), drop_single=drop_single)
    every, longer = flat_plan(samples, Budget(epochs=40, batch_size=batch_size), drop_single=drop_single)
    assert len(sizes) == steps
    assert (rows, sizes) == (every[: len(rows)], longer[:steps])
    passed = Budget(steps=steps, batch_size=batch_size).passed(samples, drop_single=drop_single)
    assert len(rows) == sum(sizes) == passed


def test_a_part_of_a_pass_is_rounded_up_to_steps():
    def steps(samples, part):
        return len(flat_plan(samples, Budget(epochs=part, batch_size=10))[1])

    assert steps(70, 0.5) == 4
    assert steps(100, 0.7) == 7  # although 0.7 * 10 is a little more in floating point
    assert steps(3, 0.01) == 1
    assert steps(65, 1.5) == 11
    assert flat_plan(65, Budget(epochs=1.5))[0][:65] == flat_plan(65, Budget(epochs=1))[0]


def test_the_length_of_a_key_counts():
    keys = [(), (0,), (0, 0), (0, 0, 0), (1,), (1, 0)]
    assert len({stream(1, Purpose.SERVER, *key).bytes(8) for key in keys}) == len(keys)
    assert len({draw_seed(1, Purpose.SERVER, *key) for key in keys}) == len(keys)
    # A seed of more than 32 bits is not another seed with another purpose.
    assert draw_seed(1 + (Purpose.SERVER << 32), Purpose.COHORT) != draw_seed(
        1, Purpose.SERVER, Purpose.COHORT
    )


def test_the_longest_are_given_out_first_and_evenly():
    sizes = [3, 0, 9, 4, 4, 1]
    assert longest_first(sizes) == [2, 3, 4, 0, 5]
    assert divide(sizes, 2) == [[2, 5], [3, 4, 0]]
    assert divide([0, 0], 3) == [[], [], []]
