"""Rotary positions beyond the length of the first training."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trainkit.models.rope import rotary_tables, rotate, stack_tables
from trainkit.recipe.families.rope import LinearScaling, Llama3, Rope, Yarn

WIDTH = 64
thetas = st.floats(1e3, 1e6)


@settings(deadline=None)
@given(thetas)
def test_a_factor_of_one_changes_nothing(theta: float) -> None:
    plain = rotary_tables(Rope(theta, None), WIDTH)
    for scaling in (LinearScaling(factor=1.0), Llama3(factor=1.0), Yarn(factor=1.0, original_context=2048)):
        scaled = rotary_tables(Rope(theta, scaling), WIDTH)
        np.testing.assert_allclose(scaled.frequencies_h, plain.frequencies_h, rtol=1e-6)
        assert scaled.length == 1


def test_frequencies_fall_from_one_by_powers_of_the_base() -> None:
    np.testing.assert_allclose(rotary_tables(Rope(1e4, None), 8).frequencies_h, [1, 1e-1, 1e-2, 1e-3], rtol=1e-6)


def test_linear_scaling_puts_every_position_where_one_so_many_times_nearer_was() -> None:
    x = jax.random.normal(jax.random.key(0), (1, 3, 2, WIDTH))
    near, far = jnp.array([[0, 5, 11]]), jnp.array([[0, 20, 44]])
    scaled = rotate(x, far, rotary_tables(Rope(1e4, LinearScaling(factor=4.0)), WIDTH))
    np.testing.assert_allclose(scaled, rotate(x, near, rotary_tables(Rope(1e4, None), WIDTH)), atol=1e-5)


@settings(deadline=None)
@given(thetas, st.floats(1.5, 32))
def test_llama3_keeps_fast_frequencies_and_divides_slow_ones_with_the_rest_between(theta: float, factor: float) -> None:
    scaling = Llama3(factor=factor, low_frequency_factor=1.0, high_frequency_factor=4.0, original_context=1024)
    plain = rotary_tables(Rope(theta, None), WIDTH).frequencies_h.astype(np.float64)
    ratio = rotary_tables(Rope(theta, scaling), WIDTH).frequencies_h / plain
    rounds = 1024 * plain / (2 * np.pi)
    np.testing.assert_allclose(ratio[rounds > 4], 1, rtol=1e-6)
    np.testing.assert_allclose(ratio[rounds < 1], 1 / factor, rtol=1e-6)
    assert (np.diff(ratio) <= 1e-6).all()


@settings(deadline=None)
@given(thetas, st.floats(1.5, 32))
def test_yarn_ramps_from_kept_to_divided_and_makes_scores_larger(theta: float, factor: float) -> None:
    plain = rotary_tables(Rope(theta, None), WIDTH).frequencies_h.astype(np.float64)
    scaled = rotary_tables(Rope(theta, Yarn(factor=factor, original_context=4096)), WIDTH)
    ratio, rounds = scaled.frequencies_h / plain, 4096 * plain / (2 * np.pi)
    # a dimension at the end of the ramp is rounded outwards: leave its neighbour out
    np.testing.assert_allclose(ratio[:-1][rounds[1:] > 32], 1, rtol=1e-6)
    np.testing.assert_allclose(ratio[1:][rounds[:-1] < 1], 1 / factor, rtol=1e-6)
    assert (np.diff(ratio) <= 1e-6).all()
    x = jax.random.normal(jax.random.key(0), (1, 1, 1, WIDTH))
    longer = jnp.linalg.norm(rotate(x, jnp.array([[7]]), scaled)) / jnp.linalg.norm(x)
    assert float(longer) == pytest.approx(0.1 * np.log(factor) + 1, rel=1e-5)


def test_layers_that_turn_otherwise_are_stacked_in_their_order() -> None:
    ropes = [Rope(1e4, None), Rope(1e6, LinearScaling(factor=8.0))]
    both = stack_tables([rotary_tables(rope, 8) for rope in ropes])
    for i, rope in enumerate(ropes):
        np.testing.assert_array_equal(both.frequencies_h[i], rotary_tables(rope, 8).frequencies_h)
