"""Adapters: nothing changes before they are trained, nothing else is trained, and merged they are the same model."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from small import LENGTH, batch
from small_adapters import GPT2, LLAMA, MIXTRAL, QWEN2, TOKENS, adapted, hidden, model, shapes, trained

from trainkit import models, optim
from trainkit.checkpoint.leaves import digest, named_leaves
from trainkit.errors import TrainkitError
from trainkit.hub.load import base_digest, check_same_base
from trainkit.models.adapters import Adapted, merge, trainable
from trainkit.models.layers import Linear
from trainkit.models.nf4 import LEVELS, Nf4, nf4_product, quantise, without_sources
from trainkit.recipe.optimizers.adam import AdamW
from trainkit.recipe.optimizers.spec import Group
from trainkit.recipe.sections.adapter import (
    Adapter,
    Lora,
    adapter_parameters,
    linear_shapes,
    quantised_bytes,
    quantised_parameters,
    targeted_layers,
)
from trainkit.recipe.sections.task import CausalLM
from trainkit.tasks import build as build_task
from trainkit.train.state import State, init, without_frozen
from trainkit.train.step import make_step

SPECS = pytest.mark.parametrize("spec", [GPT2, LLAMA, QWEN2], ids=lambda spec: spec.type)
ADAPTERS = pytest.mark.parametrize(
    "adapter",
    [Lora(rank=4), Lora(rank=4, variant="rslora", base="nf4"), Lora(rank=4, variant="dora", targets=("*",))],
    ids=lambda adapter: f"{adapter.variant}-{adapter.base}",
)


@SPECS
@ADAPTERS
def test_before_training_an_adapted_model_equals_its_base(spec: Any, adapter: Adapter) -> None:
    ours = adapted(spec, adapter)
    theirs = merge(ours) if adapter.base == "nf4" else model(spec)
    if adapter.variant == "lora":
        assert jnp.array_equal(hidden(ours), hidden(theirs))
    np.testing.assert_allclose(hidden(ours), hidden(theirs), atol=2e-6)


@SPECS
@ADAPTERS
def test_merged_equals_unmerged(spec: Any, adapter: Adapter) -> None:
    ours = trained(adapted(spec, adapter))
    merged = merge(ours)
    assert jax.tree.structure(merged) == jax.tree.structure(model(spec))
    scale = float(jnp.abs(hidden(ours)).max())
    assert jnp.abs(hidden(ours) - hidden(model(spec))).max() > 0.1 * scale, "the adapter changed nothing"
    np.testing.assert_allclose(hidden(merged), hidden(ours), atol=1e-5 * scale)


def test_an_adapted_model_generates_with_its_cache_what_it_sees_at_once() -> None:
    ours = trained(adapted(LLAMA, Lora(rank=4, targets=("key", "value"), base="nf4")))
    cache, parts = ours.empty_cache(3, LENGTH), []
    for t in range(LENGTH):
        positions = jnp.full((3, 1), t)
        part, cache = ours.hidden_states(TOKENS[:, t : t + 1], positions_BT=positions, cache=cache)
        parts.append(part)
    np.testing.assert_allclose(jnp.concatenate(parts, 1), hidden(ours), atol=1e-5)


def test_the_scale_is_alpha_by_rank_and_in_rslora_by_its_root() -> None:
    for variant, scale in (("lora", 8 / 4), ("rslora", 8 / 4**0.5), ("dora", 8 / 4)):
        layer = adapted(GPT2, Lora(rank=4, alpha=8, variant=variant)).blocks.mlp_in  # type: ignore[arg-type]
        layer = jax.tree.map(lambda leaf: leaf[0], trained(layer))
        x = jax.random.normal(jax.random.key(3), (5, 32))
        whole = np.asarray(layer.base.weight, np.float64) + scale * np.asarray(layer.a @ layer.b, np.float64)
        if variant == "dora":
            whole *= np.asarray(layer.magnitude.value) / np.linalg.norm(whole, axis=0)
        np.testing.assert_allclose(layer(x), x @ whole + layer.base.bias, rtol=1e-4, atol=1e-5)


def test_in_dora_each_column_of_the_matrix_is_as_long_as_its_magnitude() -> None:
    layer = adapted(LLAMA, Lora(rank=4, variant="dora")).blocks.mlp.up
    np.testing.assert_allclose(layer.magnitude.value, np.linalg.norm(layer.base.weight, axis=1), rtol=1e-6)
    layer = trained(layer)
    np.testing.assert_allclose(np.linalg.norm(layer.weight, axis=1), np.abs(layer.magnitude.value), rtol=1e-5)


@pytest.mark.parametrize(
    ("spec", "target", "expected"),
    [
        (GPT2, "qkv", {"attention.qkv"}),
        (GPT2, "mlp_*", {"mlp_in", "mlp_out"}),
        (LLAMA, "attention.*", {"attention.query", "attention.key", "attention.value", "attention.output"}),
        (LLAMA, "up", {"mlp.up"}),
    ],
)
def test_a_target_is_a_name_a_path_or_a_glob(spec: Any, target: str, expected: set[str]) -> None:
    assert set(targeted_layers(Lora(targets=(target,)), list(linear_shapes(spec)))) == expected
    nodes = jax.tree_util.tree_flatten_with_path(
        adapted(spec, Lora(targets=(target,))).blocks, is_leaf=lambda node: isinstance(node, Adapted)
    )[0]
    found = {jax.tree_util.keystr(path, simple=True, separator=".") for path, x in nodes if isinstance(x, Adapted)}
    assert found == expected


def test_a_target_that_is_no_layer_is_answered_with_its_name_here() -> None:
    with pytest.raises(TrainkitError) as raised:
        adapted(LLAMA, Lora(targets=("query", "v_proj")))
    assert raised.value.problem == "'v_proj' matches no linear layer of this model"
    assert raised.value.hint.startswith("it is called 'value' here; there are attention.query, ")


@pytest.mark.parametrize("spec", [GPT2, LLAMA, QWEN2, MIXTRAL], ids=lambda spec: spec.type)
@pytest.mark.parametrize("variant", ["lora", "dora"])
def test_the_plan_counts_what_is_trained_and_what_is_packed(spec: Any, variant: Any) -> None:
    adapter = Lora(rank=3, variant=variant)
    made = shapes(spec, adapter)
    assert sum(x.size for x in jax.tree.leaves(eqx.filter(made, trainable(made)))) == adapter_parameters(adapter, spec)
    packed = shapes(spec, Lora(rank=3, base="nf4"))
    found = [x for x in jax.tree.leaves(packed, is_leaf=lambda x: isinstance(x, Nf4)) if isinstance(x, Nf4)]
    assert sum(int(np.prod(x.shape)) for x in found) == quantised_parameters(spec)
    assert sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(found)) == quantised_bytes(spec)


def naive(weight: np.ndarray, mean: np.ndarray) -> np.ndarray:
    """NF4 as its paper tells it, number by number, with scales of 8 bit around a mean that is nearly theirs."""
    numbers = np.pad(weight.ravel().astype(np.float32), (0, -weight.size % 64)).reshape(-1, 64)
    largest = np.abs(numbers).max(1)
    assert abs(mean - largest.mean()) <= 1e-3 * largest.max()
    kept = largest.copy()
    for first in range(0, len(largest), 256):
        above = largest[first : first + 256] - mean
        unit = np.abs(above).max() / np.float32(127)
        kept[first : first + 256] = (np.round(above / (unit or 1)) * unit + mean).astype(np.float32)
    nearest = np.abs(numbers[:, :, None] / np.where(largest > 0, largest, 1)[:, None, None] - LEVELS).argmin(-1)
    return (LEVELS[nearest] * kept[:, None]).ravel()[: weight.size].reshape(weight.shape)


@pytest.mark.parametrize("shape", [(64, 300), (7, 9), (1, 64), (130, 257)])
def test_a_matrix_in_four_bit_comes_back_as_the_naive_definition_has_it(shape: tuple[int, int]) -> None:
    weights = np.random.default_rng(1).standard_normal((2, *shape)).astype(np.float32) * 0.02
    weights[1, 0] = 0
    packed = quantise(jnp.asarray(weights))
    found = packed.dequantise(jnp.float32)
    for weight, back, mean in zip(weights, found, packed.mean.value, strict=True):
        np.testing.assert_allclose(back, naive(weight, np.asarray(mean)), atol=1e-7)
    assert np.sqrt(np.mean((found - weights) ** 2)) < 0.12 * np.std(weights)


def test_the_levels_are_those_of_the_paper() -> None:
    published = [-1.0, -0.6961928, -0.52507305, -0.3949175, -0.28444138, -0.18477343, -0.09105004, 0.0,
                 0.0795803, 0.1609302, 0.2461123, 0.33791524, 0.44070983, 0.562617, 0.72295684, 1.0]  # fmt: skip
    np.testing.assert_allclose(LEVELS, published, atol=2e-7)


def test_a_base_in_four_bit_takes_less_than_six_tenths_of_a_byte_a_parameter() -> None:
    linear = Linear.init(jax.random.key(0), 256, 512, scale=0.02)
    packed = quantise(linear.weight)
    assert sum(leaf.nbytes for leaf in jax.tree.leaves(packed)) <= 0.52 * linear.weight.size
    kept = jax.tree.leaves(
        jax.eval_shape(lambda x: jax.vjp(lambda x: nf4_product(x, packed), x)[1], jnp.ones((1, 256)))
    )
    assert sum(leaf.size * leaf.dtype.itemsize for leaf in kept) <= 0.52 * linear.weight.size, "kept in full"


def test_the_gradient_of_a_product_in_four_bit_is_that_of_what_it_stands_for() -> None:
    packed = quantise(jax.random.normal(jax.random.key(0), (64, 96)))
    x, plain = jax.random.normal(jax.random.key(1), (5, 64)), packed.dequantise(jnp.float32)
    for ours, theirs in zip(*(jax.vjp(lambda x, w=w: jnp.sin(x @ w), x) for w in (packed, plain)), strict=True):
        if callable(ours):
            ours, theirs = ours(jnp.ones((5, 96)))[0], theirs(jnp.ones((5, 96)))[0]
        np.testing.assert_allclose(ours, theirs, atol=1e-5)


def test_a_cast_leaves_what_much_hangs_on_in_float32() -> None:
    cast = models.cast(adapted(LLAMA, Lora(rank=4, variant="dora", base="nf4")), jnp.dtype(jnp.bfloat16))
    left = {name for name, leaf in named_leaves(cast).items() if leaf.dtype == jnp.float32}
    assert {name.rpartition(".")[0].rpartition(".")[2] for name in left} == {"magnitude", "unit", "mean"}
    y = cast.hidden_states(TOKENS)[0]
    assert y.dtype == jnp.bfloat16 and bool(jnp.isfinite(y).all())


# ---- in training


@cache
def _step(adapter: Adapter, spec: AdamW) -> Any:
    model = shapes(GPT2, adapter)
    trained = eqx.filter(model, trainable(model))
    optimizer = optim.build(spec, models.leaf_names(trained), trained, adapter=adapter)
    step = make_step(
        task=build_task(CausalLM()),
        optimizer=optimizer,
        learning_rate=lambda *_: 1e-2,
        compute=jnp.dtype(jnp.float32),
        max_grad_norm=1.0,
    )
    return optimizer, jax.jit(step)


def state_and_step(adapter: Adapter, **optimizer: Any) -> tuple[State, Any]:
    built, step = _step(adapter, AdamW(learning_rate=1e-2, **optimizer))
    state = init(
        jax.random.key(0),
        model=lambda key: adapted(GPT2, adapter),
        optimizer=built,
        compute=jnp.dtype(jnp.float32),
    )
    return state, step


@ADAPTERS
def test_only_the_adapter_changes_and_it_learns(adapter: Adapter) -> None:
    first, step = state_and_step(adapter)
    state, losses = first, []
    for _ in range(12):
        state, metrics = step(state, batch(0))
        losses.append(float(metrics["train/loss"]))
    assert losses[-1] < losses[0] - 0.02
    for name, leaf in named_leaves(state.params).items():
        assert name.split(".")[-1] in ("a", "b", "value"), name
        assert not jnp.array_equal(leaf, named_leaves(first.params)[name]), name
    for (name, new), old in zip(named_leaves(state.frozen).items(), jax.tree.leaves(first.frozen), strict=True):
        assert jnp.array_equal(new, old), name


def test_what_lasts_is_the_adapter_and_its_moments_and_no_more() -> None:
    state, _ = state_and_step(Lora(rank=2))
    adapter = adapter_parameters(Lora(rank=2), GPT2)
    floats = [x for x in jax.tree.leaves(without_frozen(state)) if jnp.issubdtype(x.dtype, jnp.floating) and x.ndim]
    assert sum(x.size for x in floats) == 3 * adapter
    assert sum(x.size for x in jax.tree.leaves(state.frozen)) == sum(x.size for x in jax.tree.leaves(model(GPT2)))


def test_the_second_matrix_learns_as_much_faster_as_the_ratio_says() -> None:
    after = {}
    for ratio in (1.0, 16.0):
        state, step = state_and_step(Lora(rank=4, learning_rate_ratio=ratio), weight_decay=0.0)
        state, _ = step(state, batch(0))
        after[ratio] = state.params.blocks.attention.qkv
    np.testing.assert_allclose(after[16.0].b, 16 * after[1.0].b, rtol=1e-5)
    np.testing.assert_array_equal(after[16.0].a, after[1.0].a)


def test_a_group_s_factor_and_the_ratio_multiply() -> None:
    spec = AdamW(learning_rate=1e-3, groups=(Group(match="*.b", learning_rate_factor=0.5),))
    names, params = {"a": "x.a", "b": "x.b"}, {"a": jnp.ones(3), "b": jnp.ones(3)}
    plain, both = (
        optim.build(of, names, params, adapter=Lora(learning_rate_ratio=ratio))
        for of, ratio in ((AdamW(learning_rate=1e-3), 1.0), (spec, 8.0))
    )
    one, other = (rule.update(params, rule.init(params), params, key=jax.random.key(0))[0] for rule in (plain, both))
    np.testing.assert_allclose(other["a"], one["a"])
    np.testing.assert_allclose(other["b"], 4 * one["b"])


def test_without_an_adapter_everything_is_trained_and_everything_lasts() -> None:
    whole = model(LLAMA)
    assert all(jax.tree.leaves(trainable(whole)))
    assert digest(eqx.partition(whole, trainable(whole))[1]) is None


def test_a_digest_depends_on_every_number_its_place_its_name_and_its_dtype() -> None:
    tree = {"w": jnp.arange(12.0).reshape(3, 4), "codes": jnp.arange(5, dtype=jnp.uint8)}
    others = [
        {**tree, "w": tree["w"].at[2, 1].add(1e-6 * 9)},
        {**tree, "w": tree["w"].T.reshape(3, 4)},
        {**tree, "w": tree["w"].reshape(4, 3)},
        {**tree, "w": tree["w"].astype(jnp.bfloat16)},
        {**tree, "codes": tree["codes"][::-1]},
        {"v": tree["w"], "codes": tree["codes"]},
    ]
    found = [digest(tree), *map(digest, others)]
    assert len(set(found)) == len(found) and None not in found
    assert digest(jax.tree.map(jnp.copy, tree)) == found[0]


def test_a_base_in_four_bit_is_known_by_what_it_was_packed_from_however_a_device_has_rounded_it(tmp_path: Path) -> None:
    weights = jax.random.normal(jax.random.key(0), (2, 64, 96))
    base = {"w": Linear(quantise(weights), None), "norm": jnp.ones(96)}  # type: ignore[arg-type]
    packed: Any = base["w"].weight
    elsewhere = {**base, "w": Linear(replace(packed, codes=packed.codes.at[0, 0, 0].add(1)), None)}  # type: ignore[arg-type]
    # a difference so small that nothing of it is left in 4 bit
    other = {**base, "w": Linear(quantise(weights.at[1, 5, 7].multiply(1 + 1e-6)), None)}  # type: ignore[arg-type]
    assert np.array_equal(other["w"].weight.codes, packed.codes)
    read, drawn = (SimpleNamespace(base_checkpoint=given) for given in ("them/it", None))
    known, as_before = base_digest(base, read), base_digest(base, drawn)  # type: ignore[arg-type]
    assert known == base_digest(elsewhere, read) != base_digest(other, read)  # type: ignore[arg-type]
    assert as_before == digest(without_sources(base)) != base_digest(elsewhere, drawn)  # type: ignore[arg-type]
    for written in (known, as_before):
        check_same_base(SimpleNamespace(base=written), base, where=tmp_path)  # type: ignore[arg-type]
        with pytest.raises(TrainkitError, match="on top of another model"):
            check_same_base(SimpleNamespace(base=written), {**base, "norm": jnp.zeros(96)}, where=tmp_path)  # type: ignore[arg-type]
