"""Every implementation of attention is the same function."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trainkit.errors import TrainkitError
from trainkit.models import attention
from trainkit.models.attention import causal_attention, splash_attention
from trainkit.parallel.devices import Capabilities, choose_attention, require_precision


def inputs(seed: int, *, rows: int = 2, length: int, heads: int, groups: int, width: int = 8) -> list[jax.Array]:
    """q, k, v, and what the output is multiplied with before it is summed."""
    random = np.random.default_rng(seed)
    shapes = [(rows, length, h, width) for h in (heads, groups, groups, heads)]
    return [jnp.asarray(random.standard_normal(shape), jnp.float32) for shape in shapes]


def segments_of(seed: int, *, rows: int = 2, length: int) -> jax.Array:
    return jnp.asarray(np.sort(np.random.default_rng(seed).integers(0, 4, (rows, length)), axis=1), jnp.int32)


def written_out(q: np.ndarray, k: np.ndarray, v: np.ndarray, segments: np.ndarray | None, window: int) -> np.ndarray:
    """Attention as the definition has it, one query at a time, in float64."""
    q, k, v = (np.asarray(x, np.float64) for x in (q, k, v))
    out = np.zeros_like(q)
    for b, t, h in np.ndindex(q.shape[:3]):
        seen = [s for s in range(max(0, t - window + 1), t + 1) if segments is None or segments[b, s] == segments[b, t]]
        g = h // (q.shape[2] // k.shape[2])
        scores = np.array([q[b, t, h] @ k[b, s, g] for s in seen]) / np.sqrt(q.shape[-1])
        weights = np.exp(scores - scores.max())
        out[b, t, h] = (weights / weights.sum()) @ np.array([v[b, s, g] for s in seen])
    return out


def value_and_gradients(attend: object, q: jax.Array, k: jax.Array, v: jax.Array, along: jax.Array) -> list[np.ndarray]:
    def loss(q: jax.Array, k: jax.Array, v: jax.Array) -> tuple[jax.Array, jax.Array]:
        y = attend(q, k, v)
        return (y * along.astype(y.dtype)).astype(jnp.float32).sum(), y

    (_, y), grads = jax.jit(jax.value_and_grad(loss, argnums=(0, 1, 2), has_aux=True))(q, k, v)
    return [np.asarray(x, np.float32) for x in (y, *grads)]


cases = st.tuples(
    st.integers(0, 2**31),
    st.integers(1, 19),
    st.sampled_from([(1, 1), (4, 4), (4, 2), (6, 1)]),
    st.booleans(),
    st.none() | st.integers(1, 20),
)


@settings(max_examples=25, deadline=None)
@given(cases)
def test_lean_attention_is_what_the_definition_says(case: tuple) -> None:
    seed, length, (heads, groups), packed, window = case
    q, k, v, _ = inputs(seed, length=length, heads=heads, groups=groups)
    segments = segments_of(seed, length=length) if packed else None
    y = causal_attention(q, k, v, segments, implementation="lean", window=window)
    numpy_segments = None if segments is None else np.asarray(segments)
    np.testing.assert_allclose(y, written_out(q, k, v, numpy_segments, window or length), atol=2e-6)


@pytest.mark.parametrize("length", [128, 301])
@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize(("heads", "groups", "window"), [(4, 4, None), (4, 2, 50), (4, 1, None)])
def test_lean_equals_jax_attention_in_values_and_gradients(
    length: int, packed: bool, heads: int, groups: int, window: int | None
) -> None:
    q, k, v, along = inputs(length, length=length, heads=heads, groups=groups)
    segments = segments_of(1, length=length) if packed else None
    lean, reference = (
        value_and_gradients(
            lambda q, k, v, name=name: causal_attention(q, k, v, segments, implementation=name, window=window),
            q, k, v, along,
        )
        for name in ("lean", "xla")
    )  # fmt: skip
    for ours, theirs in zip(lean, reference, strict=True):
        np.testing.assert_allclose(ours, theirs, atol=5e-6)


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])
def test_lean_in_16_bit_is_as_near_to_float32_as_rounding_allows(dtype: type) -> None:
    exact = inputs(3, length=200, heads=4, groups=2)
    rounded = [x.astype(dtype) for x in exact]
    attend = partial(causal_attention, segments_BT=segments_of(2, length=200), implementation="lean")
    for low, high in zip(value_and_gradients(attend, *rounded), value_and_gradients(attend, *exact), strict=True):
        np.testing.assert_allclose(low, high, atol=0.03 * np.abs(high).max())
    assert attend(*rounded[:3]).dtype == dtype


def test_lean_keeps_nothing_of_what_comes_after_a_block_of_queries() -> None:
    length, blocks = 4 * attention.LEAST_QUERIES, 4
    q, k, v, _ = inputs(0, rows=1, length=length, heads=1, groups=1)
    _, (*_, kept, _) = attention._lean_forward(q, k, v, None, None)
    assert sum(p.size for p in kept) == length**2 * (blocks + 1) // (2 * blocks)


def test_large_scores_leave_all_numbers_finite() -> None:
    q, k, v, along = inputs(0, length=20, heads=2, groups=1)
    attend = partial(causal_attention, segments_BT=segments_of(0, length=20), implementation="lean")
    for x in value_and_gradients(attend, q * 1e4, k * 1e4, v, along):
        assert np.isfinite(x).all()


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("window", [None, 70])
def test_splash_as_the_interpreter_runs_it_equals_jax_attention(packed: bool, window: int | None) -> None:
    q, k, v, along = inputs(5, rows=1, length=256, heads=2, groups=1, width=128)
    segments = segments_of(1, rows=1, length=256) if packed else None
    splash = value_and_gradients(
        lambda q, k, v: splash_attention(q, k, v, segments, window, interpret=True), q, k, v, along
    )
    reference = value_and_gradients(
        lambda q, k, v: causal_attention(q, k, v, segments, implementation="xla", window=window), q, k, v, along
    )
    for ours, theirs in zip(splash, reference, strict=True):
        np.testing.assert_allclose(ours, theirs, atol=5e-5)


@pytest.mark.parametrize(
    ("platform", "compute", "head_width", "length", "segments", "expected", "because"),
    [
        ("gpu", jnp.bfloat16, 64, 1024, False, "cudnn", "flash attention"),
        ("gpu", jnp.bfloat16, 64, 1024, True, "cudnn", "mask"),
        ("gpu", jnp.float16, 128, None, True, "cudnn", "mask"),
        ("gpu", jnp.bfloat16, 64, 1023, False, "cudnn", "flash attention"),
        ("gpu", jnp.bfloat16, 64, 1023, True, "xla", "even length"),
        ("gpu", jnp.float32, 64, 1024, False, "xla", "float32"),
        ("gpu", jnp.bfloat16, 136, 1024, False, "xla", "at most 128"),
        ("gpu", jnp.bfloat16, 60, 1024, False, "xla", "60 wide"),
        ("tpu", jnp.bfloat16, 128, 1024, True, "splash", "flash attention"),
        ("tpu", jnp.bfloat16, 64, 1024, True, "xla", "64 wide"),
        ("tpu", jnp.bfloat16, 128, 1000, True, "xla", "1000"),
        ("tpu", jnp.bfloat16, 128, None, True, "xla", "not always the same"),
        ("cpu", jnp.float32, 64, 1024, True, "lean", "no flash attention for cpu"),
    ],
)
def test_the_fastest_attention_is_chosen_and_it_is_said_why_no_faster_one(
    platform: str, compute: type, head_width: int, length: int | None, segments: bool, expected: str, because: str
) -> None:
    capability = (8, 0) if platform == "gpu" else None
    device = Capabilities(platform=platform, kind=platform, compute_capability=capability)
    choice = choose_attention(device, jnp.dtype(compute), head_width, length, segments)
    assert choice.name == expected and because in choice.reason


@pytest.mark.parametrize(
    ("kind", "capability", "because"),
    [("Tesla V100", (7, 0), "8.0, and Tesla V100 has 7.0"), ("MI300X", None, "an NVIDIA GPU, and this is MI300X")],
)
def test_a_gpu_for_which_cudnn_has_no_flash_attention_is_given_none(
    kind: str, capability: tuple[int, int] | None, because: str
) -> None:
    device = Capabilities(platform="gpu", kind=kind, compute_capability=capability)
    choice = choose_attention(device, jnp.dtype(jnp.bfloat16), 64, 1024, False)
    assert choice.name == "xla" and because in choice.reason


def test_fp8_is_refused_where_there_are_no_units_for_it() -> None:
    hopper = Capabilities(platform="gpu", kind="H100", compute_capability=(9, 0))
    for able in (hopper, hopper._replace(compute_capability=(8, 9)), hopper._replace(compute_capability=(10, 3))):
        require_precision("fp8", able)
    ampere = Capabilities(platform="gpu", kind="A100", compute_capability=(8, 0))
    with pytest.raises(TrainkitError, match=r"A100 has compute capability 8\.0") as caught:
        require_precision("fp8", ampere)
    assert caught.value.where == "precision.compute"
    cpu = Capabilities(platform="cpu", kind="cpu", compute_capability=None)
    with pytest.raises(TrainkitError, match="none of these units"):
        require_precision("fp8", cpu)
    for compute in ("float32", "bfloat16", "float16"):
        require_precision(compute, cpu)
