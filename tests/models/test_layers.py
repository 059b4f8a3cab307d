"""Layers whose backward pass is written by hand, against the formulas that it was written for."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from trainkit.models.custom_vjps import exact_gelu, gated_silu, gelu, layer_norm, rms_norm
from trainkit.models.fp8 import BACKWARD, FORWARD, fp8_product, scale_to
from trainkit.models.layers import Linear
from trainkit.models.rope import rotary_tables, rotate
from trainkit.recipe.families.rope import Rope


def random(seed: int, *shapes: tuple[int, ...]) -> list[jax.Array]:
    generator = np.random.default_rng(seed)
    return [jnp.asarray(3 * generator.standard_normal(shape), jnp.float32) for shape in shapes]


def plain_layer_norm(x: jax.Array, weight: jax.Array, bias: jax.Array) -> jax.Array:
    centred = x - x.mean(-1, keepdims=True)
    return centred / jnp.sqrt(jnp.square(centred).mean(-1, keepdims=True) + 1e-5) * weight + bias


def plain_rms_norm(x: jax.Array, weight: jax.Array) -> jax.Array:
    return x / jnp.sqrt(jnp.square(x).mean(-1, keepdims=True) + 1e-6) * weight


CASES = {
    "gelu": (gelu, lambda x: jax.nn.gelu(x, approximate=True), [(2, 5, 7)]),
    "exact_gelu": (exact_gelu, lambda x: jax.nn.gelu(x, approximate=False), [(2, 5, 7)]),
    "gated_silu": (gated_silu, lambda gate, up: jax.nn.silu(gate) * up, [(2, 5, 7), (2, 5, 7)]),
    "layer_norm": (lambda x, w, b: layer_norm(x, w, b, 1e-5), plain_layer_norm, [(2, 5, 7), (7,), (7,)]),
    "rms_norm": (lambda x, w: rms_norm(x, w, 1e-6), plain_rms_norm, [(2, 5, 7), (7,)]),
}


@pytest.mark.parametrize("name", CASES)
def test_the_backward_pass_written_by_hand_is_that_of_the_formula(name: str) -> None:
    function, formula, shapes = CASES[name]
    arguments, (along,) = random(0, *shapes), random(1, shapes[0])
    places = tuple(range(len(shapes)))
    ours, plain = (
        jax.value_and_grad(lambda *a, f=f: (f(*a) * along).sum(), argnums=places)(*arguments)
        for f in (function, formula)
    )
    np.testing.assert_allclose(ours[0], plain[0], rtol=1e-5)
    for a, b in zip(ours[1], plain[1], strict=True):
        np.testing.assert_allclose(a, b, atol=3e-5)


@pytest.mark.parametrize("name", CASES)
def test_in_bfloat16_what_is_kept_and_what_comes_back_is_bfloat16_and_near(name: str) -> None:
    function, formula, shapes = CASES[name]
    exact, (along,) = random(0, *shapes), random(1, shapes[0])
    low = [x.astype(jnp.bfloat16) for x in exact]
    y, backward = jax.vjp(function, *low)
    grads = backward(along.astype(jnp.bfloat16))
    expected, expected_backward = jax.vjp(formula, *exact)
    for a, b in zip((y, *grads), (expected, *expected_backward(along)), strict=True):
        assert a.dtype == jnp.bfloat16
        np.testing.assert_allclose(a.astype(jnp.float32), b, atol=0.03 * float(jnp.abs(b).max()))
    kept = [leaf for leaf in jax.tree.leaves(backward) if leaf.size >= 70]
    assert len(kept) <= 2 and all(leaf.dtype == jnp.bfloat16 for leaf in kept)


ROTARY = rotary_tables(Rope(100.0, None), 8)


def test_rotation_keeps_lengths_and_products_hang_on_distances_only() -> None:
    q, k = random(0, (1, 1, 1, 8), (1, 1, 1, 8))

    def product(at: int, other: int) -> float:
        left, right = (rotate(x, jnp.array([[p]]), ROTARY) for x, p in ((q, at), (k, other)))
        np.testing.assert_allclose(jnp.linalg.norm(left), jnp.linalg.norm(q), rtol=1e-5)
        return float((left * right).sum())

    np.testing.assert_allclose(product(7, 3), product(104, 100), atol=1e-4)
    assert abs(product(7, 3) - product(7, 4)) > 1e-2
    np.testing.assert_allclose(rotate(q, jnp.zeros((1, 1), jnp.int32), ROTARY), q)


def by_hand(x: np.ndarray, dtype: type) -> np.ndarray:
    """Rounded to 8 bit and back, in float64."""
    limit = float(jnp.finfo(dtype).max)
    scale = np.float32(np.abs(x).max() / limit)
    return np.asarray(jnp.asarray(x / scale, jnp.float32).astype(dtype).astype(jnp.float32), np.float64) * scale


def test_an_fp8_product_is_that_of_its_rounded_operands_forward_and_backward() -> None:
    x, weight, dy = random(0, (3, 4, 16), (16, 8), (3, 4, 8))
    y, backward = jax.vjp(fp8_product, x, weight)
    left, right, incoming = by_hand(x, FORWARD), by_hand(weight, FORWARD), by_hand(dy, BACKWARD)
    np.testing.assert_allclose(y, left @ right, rtol=1e-4, atol=1e-3)
    dx, dweight = backward(dy)
    np.testing.assert_allclose(dx, incoming @ right.T, rtol=1e-4, atol=1e-3)
    np.testing.assert_allclose(dweight, np.einsum("bti,bto->io", left, incoming), rtol=1e-4, atol=1e-3)


def test_an_fp8_linear_layer_is_near_the_same_layer_in_bfloat16() -> None:
    x, weight, along = (a.astype(jnp.bfloat16) for a in random(1, (4, 32, 64), (64, 48), (4, 32, 48)))

    def loss(layer: Linear, x: jax.Array) -> jax.Array:
        return (layer(x) * along).astype(jnp.float32).sum()

    fine, coarse = (jax.grad(loss, argnums=(0, 1))(Linear(weight, None, fp8), x) for fp8 in (False, True))
    assert not np.array_equal(*(np.asarray(g[1], np.float32) for g in (fine, coarse)))
    for a, b in zip(jax.tree.leaves(coarse), jax.tree.leaves(fine), strict=True):
        assert a.dtype == b.dtype == jnp.bfloat16
        error = jnp.linalg.norm((a - b).astype(jnp.float32)) / jnp.linalg.norm(b.astype(jnp.float32))
        assert error < 0.08


@pytest.mark.parametrize("dtype", [FORWARD, BACKWARD])
def test_what_is_rounded_to_8_bit_fills_its_range_and_zeros_stay_zeros(dtype: type) -> None:
    (x,) = random(2, (50,))
    for factor in (1e-20, 1.0, 1e20):
        rounded = scale_to(factor * x, dtype)
        assert float(jnp.abs(rounded.values.astype(jnp.float32)).max()) == float(jnp.finfo(dtype).max)
    nothing = scale_to(jnp.zeros(5), dtype)
    assert (nothing.values.astype(jnp.float32) * nothing.scale == 0).all()
