"""The first operation that is not finite is found in layers and loops, forward and backward."""

from __future__ import annotations

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import small

from trainkit.train.first_non_finite import find_origins


def layers(w_LDD: jax.Array, x_D: jax.Array) -> jax.Array:
    def layer(x_D: jax.Array, w_DD: jax.Array) -> tuple[jax.Array, None]:
        return jnp.exp(x_D @ w_DD), None

    return jax.lax.scan(jax.checkpoint(layer), x_D, w_LDD)[0].sum()


def test_it_names_the_operation_its_iteration_and_its_line() -> None:
    w_LDD = jnp.stack([jnp.eye(3)] * 3)
    assert find_origins(layers, w_LDD, jnp.zeros(3)) == []
    origin = find_origins(layers, w_LDD.at[1].mul(1e3), jnp.zeros(3))[0]
    assert (origin.found, origin.operation, origin.loops) == ("infinity", "exp", (("iteration", 1),))
    assert "test_first_non_finite.py" in origin.place and not origin.backward
    # the root has a value at 0, and no finite slope
    root, nan = find_origins(jax.grad(lambda x: (jnp.sqrt(x) * 0).sum()), jnp.zeros(2))
    assert root.found == "infinity" and root.operation in ("div", "rsqrt", "pow", "integer_pow")
    assert nan.found == "NaN" and nan.operation == "mul" and nan.in_words().startswith("the first NaN is the result of")


def test_of_a_step_it_names_the_layer_whose_parameters_are_broken() -> None:
    state = small.state()
    weight = state.params.blocks.mlp_in.weight
    broken = weight.at[1].mul(3e38)
    params = jax.tree.map(lambda leaf: broken if leaf is weight else leaf, state.params)
    origin = find_origins(small.step(), replace(state, params=params), small.batch(0, accumulation=2))[0]
    assert ("layer", 1) in origin.loops and origin.loops[0] == ("micro-batch", 0) and not origin.backward
    assert "trainkit/" in origin.place or "models" in origin.place


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_an_operand_that_is_broken_makes_no_origin(value: float) -> None:
    assert [o.found for o in find_origins(lambda x: x * 2 + 1, jnp.full(2, value))] == []
