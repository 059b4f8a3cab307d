"""Orders are pure functions of an index, and lose and double nothing."""

from __future__ import annotations

import numpy as np
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from trainkit.data.batches.order import MIXTURE_BLOCK, ExampleOrder, Mixture, Permutation
from trainkit.recipe.sections.data import Window

few = settings(max_examples=60, deadline=None)


@few
@given(size=st.integers(1, 3000), key=st.integers(0, 2**32))
def test_a_permutation_reaches_every_number_once_at_every_size(size, key):
    assert sorted(Permutation(size, key)(np.arange(size)).tolist()) == list(range(size))


@few
@given(size=st.integers(2**33, 2**45), key=st.integers(0, 99), first=st.integers(0, 2**32))
def test_a_permutation_of_more_than_fits_in_memory_stays_inside_and_distinct(size, key, first):
    images = Permutation(size, key)(np.arange(first, first + 500))
    assert images.min() >= 0
    assert images.max() < size
    assert len(set(images.tolist())) == 500


def test_a_permutation_leaves_hardly_a_neighbour_beside_its_neighbour_and_depends_on_its_key():
    one, other = (Permutation(10_000, key)(np.arange(10_000)) for key in (1, 2))
    assert (np.abs(np.diff(one)) == 1).sum() < 20
    assert (one == other).sum() < 20
    # the mean distance moved in a random permutation of n is n / 3
    assert 3200 < np.abs(one - np.arange(10_000)).mean() < 3466


@few
@given(
    examples=st.integers(1, 200),
    shuffle=st.one_of(st.just("full"), st.just(False), st.integers(1, 250).map(lambda n: Window(window=n))),
    seed=st.integers(0, 5),
)
def test_every_epoch_has_every_example_once(examples, shuffle, seed):
    seen = ExampleOrder(examples, shuffle=shuffle, seed=seed, name="x")(np.arange(3 * examples))
    for epoch in range(3):
        assert sorted(seen[epoch * examples : (epoch + 1) * examples].tolist()) == list(range(examples))


@few
@given(examples=st.integers(1, 9000), window=st.integers(50, 9000), cut=st.floats(0, 1))
def test_a_command_is_the_same_asked_at_once_or_in_parts(examples, window, cut):
    index = np.arange(2 * examples)
    cut = 1 + int(cut * (2 * examples - 2))
    order = ExampleOrder(examples, shuffle=Window(window=window), seed=1, name="x")
    parts = np.concatenate([order(index[:cut]), order(index[cut:])])
    np.testing.assert_array_equal(parts, ExampleOrder(examples, shuffle=Window(window=window), seed=1, name="x")(index))


def test_a_window_is_seen_whole_before_the_next_begins():
    seen = ExampleOrder(100, shuffle=Window(window=30), seed=0, name="x")(np.arange(100))
    for first in range(0, 100, 30):
        part = seen[first : first + 30].tolist()
        assert sorted(part) == list(range(first, min(first + 30, 100)))
        assert part != sorted(part)
    places = ExampleOrder(2000, shuffle=Window(window=1000), seed=0, name="x")(np.arange(2000)) % 1000
    assert (places[:1000] == places[1000:]).sum() < 20, "each window has an order of its own"


def test_epochs_seeds_and_sources_have_orders_of_their_own():
    def order(seed: int, name: str) -> np.ndarray:
        return ExampleOrder(500, shuffle="full", seed=seed, name=name)(np.arange(1000))

    one = order(0, "source 0")
    for other in (one[500:], order(1, "source 0")[:500], order(0, "source 1")[:500]):
        assert (one[:500] == other).sum() < 20


small = st.floats(-6, 1).map(lambda power: 10**power)


def away(sources: int) -> float:
    """How many examples a source may be away from its share: half of one for each time that the sources are halved."""
    return (sources - 1).bit_length() / 2


@few
@given(weights=st.lists(st.one_of(st.just(0.0), small), min_size=1, max_size=9), block=st.integers(0, 10**7))
def test_after_every_block_of_a_mixture_each_source_has_had_its_share_however_small(weights, block):
    assume(sum(weights) > 0)
    mixture = Mixture([(0, weights)], seed=3)
    first = block * MIXTURE_BLOCK
    sources, ranks = mixture(np.arange(first, first + 2 * MIXTURE_BLOCK))
    before, between, after = (mixture.counts_before(first + i * MIXTURE_BLOCK) for i in range(3))
    for source, share in enumerate(np.array(weights) / sum(weights)):
        assert abs(before[source] - share * first) <= away(len(weights)) + 1e-12 * first
        assert (sources[:MIXTURE_BLOCK] == source).sum() == between[source] - before[source]
        assert ranks[sources == source].tolist() == list(range(before[source], after[source]))
        assert share or not after[source]


def test_a_source_with_half_an_example_a_block_is_seen_as_often_as_its_weight_says():
    sources, _ = Mixture([(0, [1.0, 0.0005])], seed=0)(np.arange(200 * MIXTURE_BLOCK))
    assert (sources == 1).sum() == round(200 * MIXTURE_BLOCK * 0.0005 / 1.0005) == 102


def test_a_mixture_is_the_same_asked_in_any_parts():
    index = np.arange(1000, 3000)
    sources, ranks = Mixture([(0, [3, 1, 0.5])], seed=0)(index)
    for i in (0, 23, 24, 1047, 1999):
        one_source, one_rank = Mixture([(0, [3, 1, 0.5])], seed=0)(index[i : i + 1])
        assert (one_source[0], one_rank[0]) == (sources[i], ranks[i])


def test_every_block_of_a_mixture_has_an_order_of_its_own():
    sources, _ = Mixture([(0, [1, 1])], seed=0)(np.arange(2 * MIXTURE_BLOCK))
    # equal in about half of the places, as two unrelated orders are
    assert 400 < (sources[:MIXTURE_BLOCK] == sources[MIXTURE_BLOCK:]).sum() < 624


weighed = st.lists(st.floats(0, 10), min_size=3, max_size=3).filter(lambda weights: sum(weights) > 0.1)


@few
@given(
    lengths=st.lists(st.integers(1, 3000), max_size=4),
    weights=st.lists(weighed, min_size=5, max_size=5),
    seed=st.integers(0, 9),
)
def test_every_stage_of_a_mixture_has_its_shares_and_each_source_continues_where_it_was(lengths, weights, seed):
    begins = [0, *np.cumsum(lengths).tolist()]
    mixture = Mixture(list(zip(begins, weights, strict=False)), seed=seed)
    ends = [*begins[1:], begins[-1] + 3 * MIXTURE_BLOCK]
    sources, ranks = mixture(np.arange(ends[-1]))
    for stage, (begin, end) in enumerate(zip(begins, ends, strict=True)):
        for first in range(begin, end - MIXTURE_BLOCK + 1, MIXTURE_BLOCK):
            seen = np.bincount(sources[begin : first + MIXTURE_BLOCK], minlength=3)
            share = np.array(weights[stage]) / sum(weights[stage]) * (first + MIXTURE_BLOCK - begin)
            assert np.abs(seen - share).max() <= away(3) + 1e-9
    for source in range(3):
        assert ranks[sources == source].tolist() == list(range((sources == source).sum()))
    for index in (0, begins[-1], ends[-1] - 1, ends[-1] // 2):
        assert mixture.counts_before(index).tolist() == np.bincount(sources[:index], minlength=3).tolist()
        one_source, one_rank = mixture(np.array([index]))
        assert (one_source[0], one_rank[0]) == (sources[index], ranks[index])


def test_the_shares_of_a_mixture_converge_to_its_weights():
    sources, _ = Mixture([(0, [0.7, 0.2, 0.1])], seed=0)(np.arange(100 * MIXTURE_BLOCK))
    np.testing.assert_allclose(np.bincount(sources) / len(sources), [0.7, 0.2, 0.1], atol=1 / MIXTURE_BLOCK)
