"""Sums, losses and products of few bits on this machine's device are what their definitions say."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from trainkit.models.fp8 import fp8_product
from trainkit.models.loss import blocked_cross_entropy
from trainkit.models.master_weights import add, in_compute_dtype, lookup
from trainkit.models.moe import Experts
from trainkit.models.nf4 import LEVELS, nf4_product, quantise
from trainkit.parallel.devices import Capabilities
from trainkit.parallel.precision import from_blocks, greatest_in, random_bits, to_blocks
from trainkit.recipe.families.qwen3_moe import Qwen3Moe

BFLOAT16 = jnp.dtype(jnp.bfloat16)
TOKENS = 1 << 16


def relative_error(ours: jax.Array, right: np.ndarray) -> float:
    """The norm of the error by that of what is right."""
    return float(np.linalg.norm(np.asarray(ours, np.float64) - right) / np.linalg.norm(right))


def test_gradients_of_embedding_and_bias_are_exact_over_65536_tokens(on_gpu: bool) -> None:
    vocab, width = (50_304, 64) if on_gpu else (500, 16)
    random = np.random.default_rng(0)
    tokens = np.minimum(random.zipf(1.3, TOKENS) - 1, vocab - 1)  # the most frequent one makes a quarter of all
    along = np.asarray(jnp.asarray(1 + random.standard_normal((TOKENS, width)), jnp.bfloat16), np.float64)

    @jax.jit
    @partial(jax.grad, argnums=(0, 1))
    def gradients(table: jax.Array, bias: jax.Array, along: jax.Array) -> jax.Array:
        table, bias = in_compute_dtype((table, bias), BFLOAT16)
        return (add(lookup(table, jnp.asarray(tokens)), bias) * along).sum(dtype=jnp.float32)

    of_table, of_bias = gradients(jnp.zeros((vocab, width)), jnp.zeros(width), jnp.asarray(along, jnp.bfloat16))
    right = np.zeros((vocab, width))
    np.add.at(right, tokens, along)
    most = np.bincount(tokens).argmax()
    assert (tokens == most).sum() > 10_000
    assert relative_error(of_table[most], right[most]) < 1e-4, "a sum in bfloat16 is wrong by most of it"
    assert relative_error(of_table, right) < 1e-4 and relative_error(of_bias, along.sum(0)) < 1e-4


@pytest.mark.parametrize("block", [None, 64])
def test_cross_entropy_in_blocks_is_that_of_all_logits(block: int | None, on_gpu: bool) -> None:
    tokens, width, vocab = (2048, 256, 50_304) if on_gpu else (200, 32, 700)
    random = np.random.default_rng(1)
    hidden, matrix = (
        jnp.asarray(random.standard_normal(shape), jnp.bfloat16) for shape in ((1, tokens, width), (vocab, width))
    )
    targets, weights = random.integers(0, vocab, (1, tokens)), random.uniform(0, 2, (1, tokens)).astype(np.float32)

    @jax.jit
    @partial(jax.value_and_grad, argnums=(0, 1))
    def loss(hidden: jax.Array, matrix: jax.Array) -> jax.Array:
        return blocked_cross_entropy(hidden, matrix, jnp.asarray(targets), jnp.asarray(weights), block=block)[0]

    value, (of_hidden, of_matrix) = loss(hidden, matrix)
    x, w = np.asarray(hidden[0], np.float64), np.asarray(matrix, np.float64)
    logits = x @ w.T
    logits -= logits.max(-1, keepdims=True)
    p = np.exp(logits)
    p /= p.sum(-1, keepdims=True)
    right = -(weights[0] * np.log(p[np.arange(tokens), targets[0]])).sum()
    assert float(value) == pytest.approx(right, rel=1e-3)
    p[np.arange(tokens), targets[0]] -= 1
    p *= weights[0][:, None]
    assert relative_error(of_hidden[0], p @ w) < 0.01 and relative_error(of_matrix, p.T @ x) < 0.01


def test_a_matrix_in_4_bit_is_rounded_to_the_nearest_level_and_multiplied_as_what_it_represents(on_gpu: bool) -> None:
    inputs, outputs = (1024, 4096) if on_gpu else (64, 96)
    weight = np.random.default_rng(2).standard_normal((inputs, outputs)).astype(np.float32)
    packed = jax.jit(quantise)(weight)
    represented = np.asarray(packed.dequantise(jnp.float32), np.float64)
    largest = np.abs(weight.reshape(-1, 64)).max(-1, keepdims=True)
    nearest = np.abs(weight.reshape(-1, 64, 1) / largest[..., None] - LEVELS).min(-1) * largest
    apart = np.abs(represented - weight).reshape(-1, 64)
    # scales have 8 bits: a block is as much wider or narrower as half of their unit
    assert (apart <= nearest + 0.02 * largest).all() and apart.mean() < 1.1 * nearest.mean()

    x = jnp.asarray(np.random.default_rng(3).standard_normal((8, inputs)), jnp.bfloat16)
    y, backward = jax.vjp(jax.jit(partial(nf4_product, weight=packed)), x)
    assert relative_error(y, np.asarray(x, np.float64) @ represented) < 0.01
    assert relative_error(backward(y)[0], np.asarray(y, np.float64) @ represented.T) < 0.01


def test_a_product_in_8_bit_is_near_the_exact_one_forward_and_backward(on_gpu: bool) -> None:
    rows, inputs, outputs = (2048, 1024, 1024) if on_gpu else (64, 48, 32)
    random = np.random.default_rng(4)
    x, weight, along = (
        jnp.asarray(random.standard_normal(shape), jnp.bfloat16)
        for shape in ((rows, inputs), (inputs, outputs), (rows, outputs))
    )
    y, backward = jax.vjp(jax.jit(fp8_product), x, weight)
    of_x, of_weight = backward(along)
    a, b, d = (np.asarray(array, np.float64) for array in (x, weight, along))
    # e4m3 rounds by 2^-4 at most, e5m2 by 2^-3
    assert relative_error(y, a @ b) < 0.05
    assert relative_error(of_x, d @ b.T) < 0.08 and relative_error(of_weight, a.T @ d) < 0.08


@pytest.mark.usefixtures("needs_gpu")
def test_a_product_in_8_bit_is_one_of_the_library_for_it(device: Capabilities) -> None:
    if (device.compute_capability or (0, 0)) < (8, 9):
        pytest.skip(f"{device.kind} has no units for fp8")
    x = jnp.ones((2048, 1024), jnp.bfloat16)
    lowered = jax.jit(fp8_product).lower(x, jnp.ones((1024, 1024), jnp.bfloat16))
    # Triton's product may be the faster one, and has no name by which it can be known
    program = lowered.compile({"xla_gpu_enable_triton_gemm": False}).as_text()
    assert "__cublas$lt$matmul$f8" in program, "the operands were widened before the product"


def test_experts_are_the_sum_over_each_tokens_experts_and_so_are_their_gradients(on_gpu: bool) -> None:
    rows, width, inner, experts = (2048, 256, 512, 16) if on_gpu else (40, 16, 12, 5)
    spec = Qwen3Moe(layers=1, hidden=width, heads=2, moe_intermediate=inner, experts=experts, experts_per_token=3)
    layer = jax.tree.map(lambda leaf: 5 * leaf, Experts.init(spec, jax.random.key(0), residual=0.1))
    x, along = (jax.random.normal(jax.random.key(seed), (1, rows, width)) for seed in (1, 2))

    def plain(layer: Experts, x: jax.Array) -> jax.Array:
        """Every token through every expert, weighted by 0 where it was not given to it."""
        weights = jax.nn.softmax(x @ layer.router.weight)
        least = jnp.sort(weights)[..., -layer.per_token, None]
        weights = jnp.where(weights >= least, weights, 0)
        weights = weights / weights.sum(-1, keepdims=True) if layer.normalised else weights
        made = jax.nn.silu(jnp.einsum("btd,edf->btef", x, layer.gate)) * jnp.einsum("btd,edf->btef", x, layer.up)
        return jnp.einsum("btef,efd,bte->btd", made, layer.down, weights)

    with jax.default_matmul_precision("highest"):  # so that both choose the same experts
        ours, right = (
            jax.jit(jax.value_and_grad(lambda layer, x, f=f: (f(layer, x) * along).sum(), argnums=(0, 1)))(layer, x)
            for f in (lambda layer, x: layer(x, None)[0], plain)
        )
    for a, b in zip(jax.tree.leaves(ours), jax.tree.leaves(right), strict=True):
        np.testing.assert_allclose(a, b, atol=2e-4 * max(1.0, float(jnp.abs(b).max())))


@pytest.mark.parametrize("signed", [True, False])
def test_an_average_in_8_bit_is_near_and_right_on_average(signed: bool, on_gpu: bool) -> None:
    size = (4096, 1024) if on_gpu else (64, 96)
    average = np.random.default_rng(5).standard_normal(size).astype(np.float32)
    average = average if signed else np.square(average) + 1e-6

    @jax.jit
    def stored(average: jax.Array, key: jax.Array) -> jax.Array:
        return from_blocks(to_blocks(average, random_bits(key, average.shape), greatest_in(average), signed=signed))

    drawn = [np.asarray(stored(average, jax.random.key(seed)), np.float64) for seed in range(32)]
    assert relative_error(drawn[0], average) < 0.08
    assert relative_error(np.mean(drawn, axis=0), average) < 0.02, "rounded stochastically, errors average out"
