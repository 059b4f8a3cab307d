"""Sums by row: what a GPU computes by sorting is what others add one after the other."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from trainkit.models import row_sums
from trainkit.models.master_weights import in_compute_dtype, lookup
from trainkit.models.row_sums import BLOCK, add_rows
from trainkit.parallel import mesh

ROWS, WIDTH = 40, 8


def frequent(count: int, shape: tuple[int, ...] = ()) -> np.ndarray:
    """Rows of which some are far more frequent than others, and some never come."""
    return np.minimum(np.random.default_rng(0).zipf(1.4, shape or count), ROWS - 3).astype(np.uint16)


@pytest.mark.parametrize("count", [BLOCK - 1, BLOCK, 5 * BLOCK + 7, 1000])
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_values_that_are_sorted_first_have_the_same_sums(
    count: int, dtype: jnp.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows, values = jnp.asarray(frequent(count)), jax.random.normal(jax.random.key(1), (count, WIDTH), dtype)
    before = jnp.ones((ROWS, WIDTH))
    right = np.ones((ROWS, WIDTH))
    np.add.at(right, np.asarray(rows), np.asarray(values, np.float64))
    np.testing.assert_allclose(add_rows(before, rows, values), right, atol=1e-4)
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    monkeypatch.setattr(row_sums, "AT_ONCE", 4 * BLOCK)
    sort = jax.jit(lambda *arguments: add_rows(*arguments))
    np.testing.assert_allclose(sort(before, rows, values), right, atol=1e-4)
    assert ("stablehlo.sort" in sort.lower(before, rows, values).as_text()) == (count >= BLOCK)


@pytest.mark.parametrize("devices", [1, 4])
def test_the_gradient_of_a_lookup_is_the_same_where_it_is_sorted(devices: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = jnp.asarray(frequent(0, (8, 32)))
    along = jax.random.normal(jax.random.key(2), (8, 32, WIDTH), jnp.bfloat16)

    def gradient() -> jax.Array:
        def value(table: jax.Array) -> jax.Array:
            return (lookup(in_compute_dtype(table, jnp.dtype(jnp.bfloat16)), rows) * along).sum(dtype=jnp.float32)

        with jax.set_mesh(mesh.make_mesh(data=devices, fsdp=1)):
            return jax.jit(jax.grad(value))(jnp.zeros((ROWS, WIDTH)))

    scattered = gradient()
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    np.testing.assert_allclose(gradient(), scattered, rtol=1e-5, atol=1e-5)
