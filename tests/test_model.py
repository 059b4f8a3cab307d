from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import small
from hypothesis import given, settings
from hypothesis import strategies as st

from trainkit import models
from trainkit.models.exact import cast
from trainkit.recipe.model import Gpt2


@st.composite
def specs(draw: st.DrawFn) -> Gpt2:
    heads = draw(st.integers(1, 4))
    return Gpt2(
        layers=draw(st.integers(1, 5)),
        heads=heads,
        hidden=heads * draw(st.integers(1, 16)),
        intermediate=draw(st.none() | st.integers(1, 100)),
        context_length=draw(st.none() | st.integers(1, 64)),
        tied=draw(st.booleans()),
    )


@settings(max_examples=40, deadline=None)
@given(specs(), st.integers(2, 300), st.integers(1, 64))
def test_the_closed_form_parameter_count_is_that_of_the_real_pytree(spec: Gpt2, vocab: int, length: int) -> None:
    real = jax.eval_shape(
        lambda key: models.build(spec, vocab_size=vocab, sequence_length=length, implementation="xla", key=key),
        jax.random.key(0),
    )
    counted = spec.parameter_count(vocab_size=vocab, sequence_length=length)
    assert sum(leaf.size for leaf in jax.tree.leaves(real)) == sum(counted.values())
    for part, size in counted.items():
        assert sum(leaf.size for leaf in jax.tree.leaves(getattr(real, part))) == size, part


def test_a_position_sees_itself_and_those_before_it_only() -> None:
    model = small.model(jax.random.key(1))
    tokens = jax.random.randint(jax.random.key(2), (1, small.LENGTH), 0, small.VOCAB)
    changed = tokens.at[0, 9].add(1)
    before, after = (model.hidden(t)[0][0] for t in (tokens, changed))
    np.testing.assert_array_equal(before[:9], after[:9])
    assert (jnp.abs(before[9:] - after[9:]).max(-1) > 1e-6).all()


def test_tied_embeddings_stay_tied_through_training() -> None:
    state, step = small.state(), small.jitted()
    for seed in range(3):
        state, _ = step(state, small.batch(seed))
    model = eqx.combine(state.params, state.frozen)
    assert model.output is None
    np.testing.assert_array_equal(model.unembedding(), model.token_embedding)
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
    exact, rounded = model.hidden(tokens)[0], cast(model, jnp.bfloat16).hidden(tokens)[0]
    assert rounded.dtype == jnp.bfloat16
    np.testing.assert_allclose(rounded.astype(jnp.float32), exact, atol=0.08)
