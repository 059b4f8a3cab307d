from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import small

from trainkit.models.casting import cast


def test_a_position_sees_itself_and_those_before_it_only() -> None:
    model = small.model(jax.random.key(1))
    tokens = jax.random.randint(jax.random.key(2), (1, small.LENGTH), 0, small.VOCAB)
    changed = tokens.at[0, 9].add(1)
    before, after = (model.hidden_states(t)[0][0] for t in (tokens, changed))
    np.testing.assert_array_equal(before[:9], after[:9])
    assert (jnp.abs(before[9:] - after[9:]).max(-1) > 1e-6).all()


def test_tied_embeddings_stay_tied_through_training() -> None:
    state, step = small.state(), small.jitted()
    for seed in range(3):
        state, _ = step(state, small.batch(seed))
    model = eqx.combine(state.params, state.frozen)
    assert model.output is None
    np.testing.assert_array_equal(model.output_matrix(), model.token_embedding)
    # both uses reach the one matrix: rows of tokens that never occur move too, because they are outputs
    unseen = sorted(set(range(small.VOCAB)) - set(np.unique(small.batch(0)["tokens"]).tolist()))
    first = eqx.combine(small.state().params, small.state().frozen)
    moved, _ = step(small.state(), small.batch(0))
    assert (
        unseen and (moved.params.token_embedding[jnp.array(unseen)] != first.token_embedding[jnp.array(unseen)]).any()
    )


def test_bfloat16_compute_is_near_float32() -> None:
    model = small.model(jax.random.key(1))
    tokens = jax.random.randint(jax.random.key(2), (2, small.LENGTH), 0, small.VOCAB)
    exact, rounded = model.hidden_states(tokens)[0], cast(model, jnp.bfloat16).hidden_states(tokens)[0]
    assert rounded.dtype == jnp.bfloat16
    np.testing.assert_allclose(rounded.astype(jnp.float32), exact, atol=0.08)
