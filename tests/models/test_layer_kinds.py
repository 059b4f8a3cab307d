"""Layers of several kinds, such as with and without a window, run in scans whose steps have one layer of each kind."""

from __future__ import annotations

from functools import partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from small_decoders import LENGTH, SPECS, VOCAB, model, tokens

from trainkit import models
from trainkit.models.attention import AttentionSpec, causal_attention
from trainkit.models.stack import LanguageModel, periods
from trainkit.parallel import mesh
from trainkit.recipe.families.modernbert import ModernBert
from trainkit.recipe.families.sizes import Remat

CASES = {
    "gemma3": (SPECS["gemma3"].model_copy(update={"layers": 5}), [(0, 1, 1), (1, 2, 2)]),
    "qwen2": (SPECS["qwen2"], [(0, 1, 1), (1, 2, 1)]),
}


@pytest.mark.parametrize(
    ("kinds", "expected"),
    [
        ("aaaa", [(0, 4, 1)]),
        ("wgwgwgwg", [(0, 4, 2)]),
        ("wwwwwg" * 4 + "ww", [(0, 2, 1), (2, 4, 6)]),
        ("ggggwwww", [(0, 4, 1), (4, 4, 1)]),
        ("g", [(0, 1, 1)]),
        ("gwwgwwgwwg", [(0, 1, 1), (1, 3, 3)]),
    ],
)
def test_layers_whose_kinds_repeat_share_a_scan(kinds: str, expected: list[tuple[int, int, int]]) -> None:
    assert periods(tuple(kinds)) == expected


@settings(max_examples=50, deadline=None)
@given(st.lists(st.sampled_from("wg"), min_size=1, max_size=12).map(tuple))
def test_every_layer_is_in_one_scan_in_its_order(kinds: tuple[str, ...]) -> None:
    found = [
        kind for first, times, period in periods(kinds) for _ in range(times) for kind in kinds[first : first + period]
    ]
    assert tuple(found) == kinds


def with_attention(of: LanguageModel, spec: Any, name: Any, remat: Remat = "none") -> LanguageModel:
    """The same weights with another implementation of attention."""
    other = models.build(
        spec, vocab_size=VOCAB, sequence_length=LENGTH, implementation=name, key=jax.random.key(0), remat=remat
    )
    return jax.tree.unflatten(jax.tree.structure(other), jax.tree.leaves(of))


@eqx.filter_jit
def value_and_gradients(of: LanguageModel, segments: jax.Array) -> tuple[jax.Array, LanguageModel]:
    def loss(of: LanguageModel) -> jax.Array:
        hidden, auxiliary = of.hidden_and_penalty(tokens(2), segments_BT=segments)
        return jnp.square(of.logits(hidden)).mean() + auxiliary

    return eqx.filter_value_and_grad(loss)(of)


@pytest.fixture
def xla_like_a_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let plain products have windows that are constants, as kernels need them."""
    monkeypatch.setattr("trainkit.models.decoder.KERNELS", ("xla",))


@pytest.mark.usefixtures("xla_like_a_kernel")
@pytest.mark.parametrize(("family", "remat"), [("gemma3", "none"), ("qwen2", "blocks")])
def test_windows_that_are_constants_give_the_same_values_and_gradients(family: str, remat: Remat) -> None:
    spec, scans = CASES[family]
    scanned, segments = model(spec), jnp.asarray(np.repeat([[1] * 10 + [2] * 14], 2, 0))
    static = with_attention(scanned, spec, "xla", remat)
    kinds = tuple(zip(static.windows, static.ropes, strict=True))
    assert periods(kinds) == scans
    ours, theirs = (jax.tree.leaves(value_and_gradients(m, segments)) for m in (static, scanned))
    for a, b in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(a, b, atol=2e-5 * max(1, np.abs(b).max()))


@pytest.mark.usefixtures("xla_like_a_kernel")
def test_fast_attention_receives_the_window_of_each_kind_of_layer_as_a_number(monkeypatch: pytest.MonkeyPatch) -> None:
    spec, _ = CASES["gemma3"]
    static, seen, attend = with_attention(model(spec), spec, "xla"), [], jax.nn.dot_product_attention

    def noted(*arrays: jax.Array, **options: Any) -> jax.Array:
        seen.append(options["local_window_size"])
        return attend(*arrays, **options)

    monkeypatch.setattr(jax.nn, "dot_product_attention", noted)
    jax.eval_shape(lambda: static.hidden_states(tokens(1))[0])
    assert set(seen) == {(spec.window - 1, 0), None}


def test_an_encoder_with_windows_in_some_layers_is_the_same_by_the_kernels() -> None:
    spec = ModernBert(layers=3, hidden=32, heads=4, intermediate=24, window=6)
    scanned = models.build(
        spec, vocab_size=VOCAB, sequence_length=LENGTH, implementation="blockwise", key=jax.random.key(0)
    )
    scanned = jax.tree.map(lambda leaf: 4 * leaf, scanned)
    segments = jnp.asarray(np.repeat([[1] * 10 + [2] * 9 + [0] * 5], 2, 0))
    ours, theirs = (
        eqx.filter_jit(lambda of: of.hidden_and_penalty(tokens(2), segments_BT=segments)[0])(of)
        for of in (with_attention(scanned, spec, "pallas"), scanned)
    )
    np.testing.assert_allclose(ours, theirs, atol=2e-5 * float(jnp.abs(theirs).max()))


def test_on_several_devices_each_has_the_kernels_compute_its_own_rows() -> None:
    random = np.random.default_rng(0)
    q, k, v = (jnp.asarray(random.standard_normal((4, 20, heads, 16)), jnp.float32) for heads in (4, 2, 2))
    segments = jnp.asarray(np.sort(random.integers(0, 3, (4, 20)), 1), jnp.int32)
    spec = AttentionSpec(slopes_H=jnp.linspace(0.1, 0.4, 4))
    attend = jax.jit(partial(causal_attention, spec=spec), static_argnames="implementation")
    expected = attend(q, k, v, segments, implementation="blockwise")
    with jax.set_mesh(mesh.make_mesh(data=2, fsdp=2)):
        ours = attend(q, k, v, segments, implementation="pallas")
    np.testing.assert_allclose(ours, expected, atol=2e-5)
