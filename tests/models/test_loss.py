"""Cross-entropy in blocks is cross-entropy."""

from __future__ import annotations

import re
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.sharding import NamedSharding, PartitionSpec

from trainkit.models.loss import blocked_cross_entropy
from trainkit.parallel.mesh import make_mesh, partition
from trainkit.recipe.families.sizes import LOGIT_BLOCK_BYTES, tokens_in_block


def inputs(seed: int, *, rows: int, length: int, hidden: int, vocab: int) -> tuple[jax.Array, ...]:
    """hidden, unembedding, targets, weights, of which about a third are 0."""
    random = np.random.default_rng(seed)
    weights = random.random((rows, length)) * (random.random((rows, length)) < 0.67)
    return (
        jnp.asarray(random.standard_normal((rows, length, hidden)), jnp.float32),
        jnp.asarray(random.standard_normal((vocab, hidden)), jnp.float32),
        jnp.asarray(random.integers(0, vocab, (rows, length)), jnp.int32),
        jnp.asarray(weights, jnp.float32),
    )


def whole(
    hidden: jax.Array, unembedding: jax.Array, targets: jax.Array, weights: jax.Array, softcap: float | None = None
) -> jax.Array:
    """Over all logits at once, in the precision of its input."""
    logits = jnp.einsum("btd,vd->btv", hidden, unembedding, precision="highest")
    if softcap is not None:
        logits = softcap * jnp.tanh(logits / softcap)
    target_logits = jnp.take_along_axis(logits, targets[..., None], -1)[..., 0]
    return ((jax.nn.logsumexp(logits, -1) - target_logits) * weights).sum()


def gradients(loss: object, *arguments: jax.Array) -> tuple[jax.Array, ...]:
    """Of hidden, unembedding and weights."""
    return jax.grad(loss, argnums=(0, 1, 3))(*arguments)


@partial(jax.jit, static_argnums=(4, 5, 6))
def both(
    hidden: jax.Array,
    unembedding: jax.Array,
    targets: jax.Array,
    weights: jax.Array,
    block: int | None,
    entries: int | None,
    softcap: float | None = None,
) -> tuple[tuple[jax.Array, ...], tuple[jax.Array, ...]]:
    """Loss and gradients in blocks, and at once; three times as large, as an outer derivative may have it."""
    arguments, places = (hidden, unembedding, targets, weights), (0, 1, 3)
    loss = lambda *a: 3 * blocked_cross_entropy(*a, block=block, entries=entries, softcap=softcap)[0]  # noqa: E731
    ours = jax.value_and_grad(loss, argnums=places)(*arguments)
    expected = jax.value_and_grad(lambda *a: 3 * whole(*a, softcap), argnums=places)(*arguments)
    return (ours[0], *ours[1]), (expected[0], *expected[1])


@settings(max_examples=20, deadline=None)
@given(
    st.integers(0, 2**31),
    st.sampled_from(
        [
            (1, 1, None, 2, None),
            (2, 23, None, 31, None),
            (2, 23, 10, 31, 31),
            (2, 23, 10, 31, 8),
            (3, 12, 12, 7, 6),
            (1, 7, 1, 30, 1),
            (2, 9, 50, 8, 4),
        ]
    ),
)
def test_it_equals_cross_entropy_over_all_logits_in_value_and_gradients(
    seed: int, case: tuple[int, int, int | None, int, int | None]
) -> None:
    rows, length, block, vocab, entries = case
    arguments = inputs(seed, rows=rows, length=length, hidden=5, vocab=vocab)
    for got, wanted in zip(*both(*arguments, block, entries), strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=2e-5)


@partial(jax.jit, static_argnums=4)
def slowly(*arguments: object) -> tuple:
    """Three times the loss, and its gradients, without a word about blocks."""
    return jax.value_and_grad(lambda *a: 3 * whole(*a, arguments[4]), argnums=(0, 1, 3))(*arguments[:4])


@settings(max_examples=20, deadline=None)
@given(
    st.integers(0, 2**31),
    st.sampled_from([(1, 1, None, 2, None), (2, 23, 10, 31, 8), (2, 9, 50, 8, 4), (1, 7, 1, 30, 7)]),
    st.sampled_from([0.5, 30.0]),
)
def test_with_a_softcap_it_equals_cross_entropy_over_all_capped_logits_in_value_and_gradients(
    seed: int, case: tuple[int, int, int | None, int, int | None], softcap: float
) -> None:
    rows, length, block, vocab, entries = case
    arguments = inputs(seed, rows=rows, length=length, hidden=5, vocab=vocab)
    ours, _ = both(*arguments, block, entries, softcap)
    undifferentiated = blocked_cross_entropy(*arguments, block=block, entries=entries, softcap=softcap)[0]
    np.testing.assert_allclose(3 * undifferentiated, ours[0], rtol=1e-5, atol=1e-6)
    with jax.enable_x64(True):
        exact = [np.asarray(x, np.float64 if x.dtype == jnp.float32 else np.int32) for x in arguments]
        expected = slowly(*map(jnp.asarray, exact), softcap)
    for got, wanted in zip(ours, (expected[0], *expected[1]), strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=2e-5)


def test_logits_far_beyond_the_softcap_leave_all_numbers_finite_and_change_nothing_further() -> None:
    hidden, unembedding, targets, weights = inputs(0, rows=2, length=9, hidden=4, vocab=11)
    loss = lambda *a: blocked_cross_entropy(*a, block=5, entries=4, softcap=2.0)[0]  # noqa: E731
    value, grads = jax.value_and_grad(loss, argnums=(0, 1))(1e6 * hidden, unembedding, targets, weights)
    assert np.isfinite(value) and value <= weights.sum() * (np.log(11) + 4)
    for grad in grads:
        np.testing.assert_array_equal(grad, 0)


def test_the_second_sum_is_that_of_the_weights() -> None:
    arguments = inputs(0, rows=2, length=12, hidden=4, vocab=9)
    np.testing.assert_allclose(blocked_cross_entropy(*arguments, block=5)[1], arguments[-1].sum(), rtol=1e-6)


def test_where_the_weight_is_zero_nothing_is_learned() -> None:
    hidden, unembedding, targets, weights = inputs(0, rows=2, length=12, hidden=4, vocab=9)
    other = jnp.where(weights == 0, (targets + 1) % 9, targets)
    loss = lambda *a: blocked_cross_entropy(*a, block=5)[0]  # noqa: E731
    left, right = (gradients(loss, hidden, unembedding, t, weights) for t in (targets, other))
    for a, b in zip(left[:2], right[:2], strict=True):
        np.testing.assert_array_equal(a, b)
    assert (left[0][weights == 0] == 0).all() and (left[0][weights > 0] != 0).any()


@pytest.mark.parametrize("softcap", [None, 5.0])
@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])
def test_in_16_bit_it_is_near_float32_and_gradients_have_the_dtype_of_what_they_are_of(
    dtype: type, softcap: float | None
) -> None:
    exact = inputs(1, rows=2, length=64, hidden=16, vocab=50)
    low = (*(x.astype(dtype) for x in exact[:2]), *exact[2:])
    loss = lambda *a: blocked_cross_entropy(*a, block=20, softcap=softcap)[0]  # noqa: E731
    np.testing.assert_allclose(loss(*low), loss(*exact), rtol=0.01)
    for a, b in zip(gradients(loss, *low), gradients(loss, *exact), strict=True):
        np.testing.assert_allclose(a.astype(jnp.float32), b, atol=0.03 * float(jnp.abs(b).max()))
    assert [g.dtype for g in gradients(loss, *low)] == [dtype, dtype, jnp.float32]


def test_gradients_too_small_for_float16_are_there_once_the_loss_is_scaled() -> None:
    hidden, unembedding, targets, weights = inputs(2, rows=1, length=8, hidden=4, vocab=6)
    low = (hidden.astype(jnp.float16), unembedding.astype(jnp.float16), targets, 1e-6 * weights)
    scaled = gradients(lambda *a: 1e6 * blocked_cross_entropy(*a)[0], *low)[0]
    expected = gradients(lambda *a: blocked_cross_entropy(*a)[0], hidden, unembedding, targets, weights)[0]
    np.testing.assert_allclose(scaled.astype(jnp.float32), expected, atol=0.2 * float(jnp.abs(expected).max()))


@pytest.mark.parametrize("vocab", [128_256, 50_304])
def test_logits_add_one_block_to_the_memory_of_gradients(vocab: int) -> None:
    rows, length, hidden = 4, 1024, 64
    shapes = [jax.ShapeDtypeStruct(s, d) for s, d in (
        ((rows, length, hidden), jnp.float32), ((vocab, hidden), jnp.float32),
        ((rows, length), jnp.int32), ((rows, length), jnp.float32),
    )]  # fmt: skip
    gradient = jax.jit(jax.grad(lambda *a: blocked_cross_entropy(*a)[0], argnums=(0, 1)))
    needed = gradient.lower(*shapes).compile().memory_analysis().temp_size_in_bytes
    grads = 4 * (rows * length + vocab) * hidden
    # a block, and a little of one of them as it is made; the gradients as they grow and as the loop hands them on
    assert needed <= 1.1 * LOGIT_BLOCK_BYTES + 2 * grads < 4 * rows * length * vocab / 2


@settings(max_examples=100, deadline=None)
@given(st.integers(1, 1 << 20), st.integers(1, 8192), st.integers(2, 300_000), st.sampled_from(["cpu", "gpu"]))
def test_a_block_is_of_all_tokens_or_the_largest_power_of_two_that_there_is_room_for(
    tokens: int, hidden: int, vocab: int, platform: str
) -> None:
    block = tokens_in_block(tokens=tokens, hidden=hidden, vocab_size=vocab, platform=platform)
    most = max(LOGIT_BLOCK_BYTES * (1 if platform == "cpu" else 8), 4 * vocab * hidden)
    assert block == 1 or 4 * block * vocab <= most
    assert block == tokens or (block < tokens and block.bit_count() == 1 and 4 * 2 * block * vocab > most)


def test_an_evaluation_makes_no_gradients() -> None:
    arguments = inputs(0, rows=2, length=16, hidden=4, vocab=33)
    text = str(jax.make_jaxpr(lambda *a: blocked_cross_entropy(*a, block=4))(*arguments))
    assert len(re.findall("dot_general", text)) == 2  # the logits, and once more those of the targets


def test_the_unembedding_is_not_transposed() -> None:
    arguments = inputs(0, rows=2, length=16, hidden=4, vocab=33)
    text = jax.jit(jax.grad(lambda *a: blocked_cross_entropy(*a, block=4)[0], argnums=1)).lower(*arguments).as_text()
    assert not re.search(r"transpose.*tensor<(33x4|4x33)xf32>", text)


@pytest.mark.parametrize(("data", "fsdp"), [(8, 1), (2, 4), (1, 8)])
def test_over_several_devices_rows_stay_where_they_are_and_the_gradient_is_summed_once(data: int, fsdp: int) -> None:
    arguments = inputs(0, rows=8, length=32, hidden=16, vocab=1000)
    mesh = make_mesh(data=data, fsdp=fsdp)
    rows = NamedSharding(mesh, PartitionSpec(("data", "fsdp")))
    matrix = NamedSharding(mesh, partition((1000, 16), fsdp))
    placed = [jax.device_put(x, s) for x, s in zip(arguments, (rows, matrix, rows, rows), strict=True)]
    gradient = jax.jit(jax.value_and_grad(lambda *a: blocked_cross_entropy(*a, block=8)[0], argnums=(0, 1)))
    expected, (dx, dw) = gradient(*arguments)
    with jax.set_mesh(mesh):
        compiled = gradient.lower(*placed).compile()
        total, grads = compiled(*placed)
    np.testing.assert_allclose(total, expected, rtol=1e-6)
    np.testing.assert_allclose(grads[0], dx, atol=1e-5)
    np.testing.assert_allclose(grads[1], dw, atol=1e-5)
    text = compiled.as_text()
    gathered = re.findall(r"= (\S+) all-gather\(", text)
    assert all(shape.startswith("f32[1000,16]") for shape in gathered) and bool(gathered) == (fsdp > 1)
    sums = [line for line in text.splitlines() if re.search(r" (all-reduce|reduce-scatter)\(", line)]
    assert sum(line.split("-reduce(")[0].count("f32[1000,16]{") for line in sums) == 1
    assert not any("/while/" in line for line in sums)
