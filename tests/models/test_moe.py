"""Mixtures of experts: no token is dropped, and the router learns to keep experts busy."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from small_decoders import SPECS, VOCAB, model, tokens

from trainkit.models import grouped_product
from trainkit.models.decoder import DecoderModel
from trainkit.models.moe import Experts, Places, Routing, blocked_product, through_experts
from trainkit.parallel import mesh
from trainkit.recipe.families.qwen3_moe import Qwen3Moe
from trainkit.tasks.causal_lm import CausalLMTask


def experts(seed: int = 0, **options: object) -> Experts:
    of = Qwen3Moe(
        layers=1, hidden=16, heads=2, **{"moe_intermediate": 12, "experts": 5, "experts_per_token": 3, **options}
    )
    made = Experts.init(of, jax.random.key(seed), residual=0.3)
    return jax.tree.map(lambda leaf: 10 * leaf, made)


def plain(layer: Experts, x: jax.Array, *, normalised: bool) -> jax.Array:
    """Every token through every expert, weighted by 0 where it was not given to it."""
    weights = jax.nn.softmax(x @ layer.router.weight)
    least = jnp.sort(weights)[..., -layer.per_token, None]
    weights = jnp.where(weights >= least, weights, 0)
    if normalised:
        weights = weights / weights.sum(-1, keepdims=True)
    inner = jax.nn.silu(jnp.einsum("btd,edf->btef", x, layer.gate)) * jnp.einsum("btd,edf->btef", x, layer.up)
    return jnp.einsum("btef,efd,bte->btd", inner, layer.down, weights)


@pytest.mark.parametrize("normalised", [True, False])
@pytest.mark.parametrize("shape", [(2, 7), (1, 1), (3, 40)])
def test_what_comes_out_is_the_plain_sum_over_each_tokens_experts_and_so_are_gradients(
    normalised: bool, shape: tuple[int, int]
) -> None:
    layer, x = experts(normalise_top=normalised), jax.random.normal(jax.random.key(1), (*shape, 16))
    along = jax.random.normal(jax.random.key(2), x.shape)
    ours, expected = (
        jax.jit(jax.value_and_grad(lambda layer, x, f=f: (f(layer, x) * along).sum(), argnums=(0, 1)))(layer, x)
        for f in (lambda layer, x: layer(x, None)[0], lambda layer, x: plain(layer, x, normalised=normalised))
    )
    for a, b in zip(jax.tree.leaves(ours), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-4 * max(1.0, float(jnp.abs(b).max())))


@settings(max_examples=60, deadline=None)
@given(st.sampled_from([1, 9, 400]).flatmap(lambda rows: st.lists(st.integers(0, 6), min_size=rows, max_size=rows)))
def test_every_row_has_a_place_of_its_own_in_a_block_of_its_expert(chosen: list[int]) -> None:
    blocks = jax.jit(Places.of, static_argnums=1)(jnp.asarray(chosen), 7)
    places, rows = np.asarray(blocks.place_R), np.asarray(blocks.row_P)
    size = len(rows) // len(blocks.expert_J)
    assert len(set(places.tolist())) == len(chosen)
    np.testing.assert_array_equal(rows[places], np.arange(len(chosen)))
    np.testing.assert_array_equal(np.asarray(blocks.expert_J)[places // size], chosen)
    assert (np.delete(rows, places) >= len(chosen)).all() and len(set(rows.tolist())) == len(rows)


def test_the_blocks_and_the_ragged_product_of_tpus_are_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    layer, x = experts(), jax.random.normal(jax.random.key(1), (2, 30, 16))
    chosen = jax.random.randint(jax.random.key(2), (2, 30, 2), 0, 5)

    def run() -> tuple[jax.Array, list[jax.Array]]:
        def total(x: jax.Array, *matrices: jax.Array) -> tuple[jax.Array, jax.Array]:
            y = through_experts(x, chosen, jnp.full(chosen.shape, 0.5), *matrices)
            return jnp.square(y).sum(), y

        gradients, y = jax.grad(total, argnums=(0, 1, 2, 3), has_aux=True)(x, layer.gate, layer.up, layer.down)
        return y, gradients

    blocks, expected = run()
    monkeypatch.setattr(jax, "default_backend", lambda: "tpu")
    ragged, gradients = run()
    np.testing.assert_allclose(ragged, blocks, atol=1e-4)
    for ours, theirs in zip(gradients, expected, strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-5 * float(jnp.abs(theirs).max()))


def test_experts_on_many_devices_are_as_on_one() -> None:
    layer, x = experts(), jax.random.normal(jax.random.key(1), (8, 6, 16))

    @jax.jit
    def run(layer: Experts, x: jax.Array) -> tuple[jax.Array, Experts]:
        return jax.value_and_grad(lambda layer: jnp.square(layer(x, None)[0]).sum())(layer)

    one, one_gradient = run(layer, x)
    device_mesh = mesh.make_mesh(data=2, fsdp=4)
    with jax.set_mesh(device_mesh):
        places = mesh.shardings(device_mesh, layer)
        split = jax.device_put(x, mesh.NamedSharding(device_mesh, mesh.PartitionSpec(("data", "fsdp"))))
        many, many_gradient = run(jax.device_put(layer, places), split)
    np.testing.assert_allclose(many, one, rtol=1e-5)
    for a, b in zip(jax.tree.leaves(many_gradient), jax.tree.leaves(one_gradient), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-5 * float(jnp.abs(b).max()))


def test_experts_as_busy_as_each_other_lose_least_and_layers_are_taken_together() -> None:
    even = Routing(jnp.full((2, 4), 30.0), jnp.full((2, 4), 15.0), jnp.full(2, 60.0))
    assert float(even.balance_loss()) == pytest.approx(2.0)  # two experts a token
    one = jnp.array([60.0, 60.0, 0.0, 0.0])
    assert float(Routing(one[None], one[None] / 2, jnp.full(1, 60.0)).balance_loss()) == pytest.approx(4.0)
    swapped = jnp.stack([one, one[::-1]])
    assert float(Routing(swapped, swapped / 2, jnp.full(2, 60.0)).balance_loss()) == pytest.approx(2.0)


def test_padding_has_no_say_in_how_busy_experts_are() -> None:
    decoder, ids = model(SPECS["mixtral"]), tokens(1)
    segments = jnp.array([[1] * 15 + [0] * 9])
    positions = jnp.arange(24)[None] % 15
    _, padded = decoder.hidden_and_penalty(ids, positions_BT=positions, segments_BT=segments)
    _, alone = decoder.hidden_and_penalty(ids[:, :15])
    np.testing.assert_allclose(padded, alone, rtol=1e-5)


def test_padding_of_a_row_without_segments_has_no_say_in_the_gradient_of_the_balance() -> None:
    decoder, ids = model(SPECS["mixtral"]), tokens(2)
    weights = jnp.zeros(ids.shape).at[:, :15].set(1)
    padded = {"tokens": ids.at[:, 15:].set(0), "targets": (ids + 1) % VOCAB, "weights": weights}
    cut = {name: array[:, :15] for name, array in padded.items()}

    def gradient(batch: dict[str, jax.Array]) -> DecoderModel:
        return eqx.filter_jit(eqx.filter_grad(lambda m: CausalLMTask().loss(m, batch)[0]))(
            replace(decoder, router_loss=5.0)
        )

    ours, expected = (gradient(b).blocks.mlp.router.weight for b in (padded | {"filled": jnp.full(2, 15)}, cut))
    np.testing.assert_allclose(ours, expected, atol=1e-4 * float(jnp.abs(expected).max()))


def test_the_routers_loss_changes_gradients_by_its_own_and_no_loss_that_is_shown() -> None:
    decoder, ids = model(SPECS["qwen3-moe"]), tokens(3)
    batch = {"tokens": ids, "targets": (ids + 1) % VOCAB, "weights": jnp.ones(ids.shape).at[0].set(0)}

    def told(coefficient: float) -> tuple[jax.Array, DecoderModel]:
        this = replace(decoder, router_loss=coefficient)
        return eqx.filter_jit(eqx.filter_value_and_grad(lambda m: CausalLMTask().loss(m, batch)[0]))(this)

    (without, plain_gradients), (with_it, gradients) = told(0.0), told(0.5)
    np.testing.assert_allclose(with_it, without, rtol=1e-6)
    own = eqx.filter_jit(eqx.filter_grad(lambda m: m.hidden_and_penalty(ids)[1]))(replace(decoder, router_loss=1.0))
    weight = 0.5 * batch["weights"].sum()
    for a, b, c in zip(*(jax.tree.leaves(t) for t in (gradients, plain_gradients, own)), strict=True):
        np.testing.assert_allclose(a, b + weight * c, atol=2e-4 * max(1.0, float(jnp.abs(a).max())))
    assert float(jnp.abs(own.blocks.mlp.router.weight).max()) > 1e-3


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_the_kernels_multiply_each_block_by_its_expert_and_so_are_gradients(dtype: type) -> None:
    random, expert = np.random.default_rng(0), jnp.asarray([0, 0, 0, 2, 3, 3], jnp.int32)
    x, weight, dy = (
        jnp.asarray(random.standard_normal(shape), dtype) for shape in ((6, 16, 64), (5, 64, 32), (6, 16, 32))
    )
    expected, backward = jax.vjp(lambda x, weight: blocked_product(x, weight, weight, expert), x, weight)
    dx, _ = backward(dy)
    dw = jax.grad(lambda w: (blocked_product(x, weight, w, expert).astype(jnp.float32) * dy).sum())(
        weight.astype(jnp.float32)
    )
    multiply = partial(grouped_product.multiply, interpret=True)
    near = {"rtol": 1e-2, "atol": 5e-2} if dtype == jnp.bfloat16 else {"atol": 1e-4}
    for ours, theirs in (
        (multiply(x, weight, expert), expected),
        (multiply(dy, weight, expert, transposed=True), dx),
        (grouped_product.gradient(x, dy, expert, 5, interpret=True), dw),
    ):
        assert ours.dtype == theirs.dtype
        np.testing.assert_allclose(ours.astype(jnp.float32), theirs.astype(jnp.float32), **near)
    assert not dw[1].any() and not dw[4].any()


def test_on_gpus_where_the_kernels_work_experts_use_them_in_both_directions(monkeypatch: pytest.MonkeyPatch) -> None:
    assert grouped_product.why_broken(interpret=True) == ""
    layer, x = experts(moe_intermediate=16), jax.random.normal(jax.random.key(1), (2, 64, 16), jnp.bfloat16)
    layer = jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16), layer)

    def kernels() -> int:
        return str(jax.make_jaxpr(jax.grad(lambda x, e: e(x, None)[0].sum(), argnums=(0, 1)))(x, layer)).count(
            "pallas_call["
        )

    assert kernels() == 0
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    monkeypatch.setattr(grouped_product, "why_broken", lambda: "")
    assert kernels() == 9
    monkeypatch.setattr(grouped_product, "why_broken", lambda: "no Triton")
    assert kernels() == 0


def test_the_kernels_of_experts_lower_for_cuda() -> None:
    shape = partial(jax.ShapeDtypeStruct, dtype=jnp.bfloat16)
    x, weight, dy = shape((6, 32, 192)), shape((5, 192, 64)), shape((6, 32, 64))
    expert = jax.ShapeDtypeStruct((6,), jnp.int32)
    traced = jax.jit(partial(grouped_product._products, interpret=False)).trace(x, weight, dy, expert)
    try:
        lowered = traced.lower(lowering_platforms=("cuda",))
    except RuntimeError as error:  # from jax 0.11 on it asks the GPU what it is
        pytest.skip(str(error))
    assert lowered.as_text().count("xla.gpu.triton") == 3
