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
from trainkit.models import blockwise_attention
from trainkit.models.attention import AttentionSpec, KeyValues, attention, causal_attention, splash_attention
from trainkit.parallel.devices import Capabilities, choose_attention, require_precision


def inputs(seed: int, *, rows: int = 2, length: int, heads: int, groups: int, width: int = 8) -> list[jax.Array]:
    """q, k, v, and what the output is multiplied with before it is summed."""
    random = np.random.default_rng(seed)
    shapes = [(rows, length, h, width) for h in (heads, groups, groups, heads)]
    return [jnp.asarray(random.standard_normal(shape), jnp.float32) for shape in shapes]


def segments_of(seed: int, *, rows: int = 2, length: int) -> jax.Array:
    return jnp.asarray(np.sort(np.random.default_rng(seed).integers(0, 4, (rows, length)), axis=1), jnp.int32)


def written_out(
    q: np.ndarray,
    k: np.ndarray,
    v: np.ndarray,
    segments: np.ndarray | None,
    window: int | None,
    *,
    softcap: float | None = None,
    scale: float | None = None,
    slopes_H: np.ndarray | None = None,
) -> np.ndarray:
    """Attention as the definition has it, one query at a time, in float64."""
    q, k, v = (np.asarray(x, np.float64) for x in (q, k, v))
    out = np.zeros_like(q)
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    window = window if window and window > 0 else q.shape[1]
    for b, t, h in np.ndindex(q.shape[:3]):
        seen = [s for s in range(max(0, t - window + 1), t + 1) if segments is None or segments[b, s] == segments[b, t]]
        g = h // (q.shape[2] // k.shape[2])
        scores = scale * np.array([q[b, t, h] @ k[b, s, g] for s in seen])
        if softcap is not None:
            scores = softcap * np.tanh(scores / softcap)
        if slopes_H is not None:
            scores -= slopes_H[h] * np.array([t - s for s in seen])
        weights = np.exp(scores - scores.max())
        out[b, t, h] = (weights / weights.sum()) @ np.array([v[b, s, g] for s in seen])
    return out


def value_and_gradients(attend: object, q: jax.Array, k: jax.Array, v: jax.Array, along: jax.Array) -> list[np.ndarray]:
    def loss(q: jax.Array, k: jax.Array, v: jax.Array) -> tuple[jax.Array, jax.Array]:
        y = attend(q, k, v)
        return (y * along.astype(y.dtype)).astype(jnp.float32).sum(), y

    (_, y), grads = jax.jit(jax.value_and_grad(loss, argnums=(0, 1, 2), has_aux=True))(q, k, v)
    return [np.asarray(x, np.float32) for x in (y, *grads)]


@pytest.mark.parametrize(
    ("length", "packed", "heads", "groups", "window"),
    [
        (128, False, 4, 4, None),
        (301, True, 4, 4, None),
        (301, False, 4, 2, 50),
        (128, True, 4, 2, 50),
        (128, False, 4, 1, None),
        (301, True, 4, 1, None),
    ],
)
def test_lean_equals_jax_attention_in_values_and_gradients(
    length: int, packed: bool, heads: int, groups: int, window: int | None
) -> None:
    q, k, v, along = inputs(length, length=length, heads=heads, groups=groups)
    segments = segments_of(1, length=length) if packed else None
    blockwise, reference = (
        value_and_gradients(
            lambda q, k, v, name=name: causal_attention(
                q, k, v, segments, implementation=name, spec=AttentionSpec(window)
            ),
            q, k, v, along,
        )
        for name in ("blockwise", "xla")
    )  # fmt: skip
    for ours, theirs in zip(blockwise, reference, strict=True):
        np.testing.assert_allclose(ours, theirs, atol=5e-6)


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])
def test_lean_in_16_bit_is_as_near_to_float32_as_rounding_allows(dtype: type) -> None:
    exact = inputs(3, length=200, heads=4, groups=2)
    rounded = [x.astype(dtype) for x in exact]
    attend = partial(causal_attention, segments_BT=segments_of(2, length=200), implementation="blockwise")
    for low, high in zip(value_and_gradients(attend, *rounded), value_and_gradients(attend, *exact), strict=True):
        np.testing.assert_allclose(low, high, atol=0.03 * np.abs(high).max())
    assert attend(*rounded[:3]).dtype == dtype


@st.composite
def options(draw: st.DrawFn, heads: int, length: int) -> dict:
    """What a family may ask of attention: some of it, or nothing."""
    slopes = np.random.default_rng(draw(st.integers(0, 99))).uniform(0, 1, heads)
    return {
        "softcap": draw(st.none() | st.sampled_from([0.7, 3.0])),
        "scale": draw(st.none() | st.sampled_from([0.1, 1.0])),
        "slopes_H": draw(st.sampled_from([None, slopes])),
        "window": draw(st.none() | st.integers(-1, length + 1)),
    }


@st.composite
def cases_with_options(draw: st.DrawFn) -> tuple:
    heads, groups = draw(st.sampled_from([(1, 1), (4, 4), (4, 2), (6, 1)]))
    length = draw(st.sampled_from([1, 6, 11]))
    return draw(st.integers(0, 2**31)), length, heads, groups, draw(st.booleans()), draw(options(heads, length))


def as_arrays(options: dict, *, traced: bool) -> AttentionSpec:
    """Slopes, and with `traced` windows too, as the arrays that a scan over layers makes of them."""
    slopes, window = options["slopes_H"], options["window"]
    return AttentionSpec(**options)._replace(
        slopes_H=None if slopes is None else jnp.asarray(slopes, jnp.float32),
        window=jnp.int32(window) if traced and window is not None else window,
    )


@settings(max_examples=14, deadline=None)
@given(cases_with_options(), st.booleans(), st.sampled_from(["blockwise", "xla", "cudnn", "splash"]))
def test_with_caps_slopes_scales_and_windows_it_is_what_the_definition_says(
    case: tuple, traced: bool, implementation: str
) -> None:
    seed, length, heads, groups, packed, asked = case
    if asked["softcap"] is None and asked["slopes_H"] is None and not (traced and asked["window"] is not None):
        implementation = "blockwise" if implementation in ("cudnn", "splash") else implementation
    q, k, v, _ = inputs(seed, length=length, heads=heads, groups=groups)
    segments = segments_of(seed, length=length) if packed else None
    attend = partial(causal_attention, implementation=implementation, spec=as_arrays(asked, traced=traced))
    y = jax.jit(attend)(q, k, v, segments)
    numpy_segments = None if segments is None else np.asarray(segments)
    np.testing.assert_allclose(y, written_out(q, k, v, numpy_segments, **asked), atol=3e-6)


@settings(max_examples=8, deadline=None)
@given(cases_with_options(), st.booleans(), st.data())
def test_a_text_in_pieces_with_a_cache_is_as_the_text_at_once(case: tuple, traced: bool, data: st.DataObject) -> None:
    seed, length, heads, groups, _, asked = case
    q, k, v, _ = inputs(seed, length=length, heads=heads, groups=groups)
    rubbish = np.full((2, length + 3, groups, q.shape[-1]), 1e3, np.float32)
    cache, done, pieces = KeyValues(rubbish, rubbish), 0, []
    attend = jax.jit(
        lambda q, k, v, positions, cache: attention(
            q, k, v, positions, None, cache, implementation="blockwise", spec=as_arrays(asked, traced=traced)
        )
    )
    while done < length:
        end = data.draw(st.sampled_from([done + 1, length]))
        positions = np.broadcast_to(np.arange(done, end, dtype=np.int32), (2, end - done))
        y, cache = attend(*(np.asarray(x)[:, done:end] for x in (q, k, v)), positions, cache)
        pieces.append(np.asarray(y))
        done = end
    np.testing.assert_allclose(np.concatenate(pieces, 1), written_out(q, k, v, None, **asked), atol=3e-6)


@pytest.mark.parametrize("route", ["blockwise", "xla", "cache"])
@pytest.mark.parametrize("traced", [False, True])
@pytest.mark.parametrize("given", [{"scale": 0.1}, {"window": 3}, {"window": 3, "scale": 1.0}], ids=str)
def test_where_a_window_and_a_scale_are_all_that_is_asked_no_route_forgets_them(
    route: str, traced: bool, given: dict
) -> None:
    asked = {"softcap": None, "scale": None, "slopes_H": None, "window": None} | given
    q, k, v, _ = inputs(4, length=11, heads=4, groups=2)
    empty, positions = jnp.zeros_like(k), jnp.broadcast_to(jnp.arange(11), (2, 11))
    cache, name = (KeyValues(empty, empty), "blockwise") if route == "cache" else (None, route)
    y, _ = attention(q, k, v, positions, None, cache, implementation=name, spec=as_arrays(asked, traced=traced))
    np.testing.assert_allclose(y, written_out(q, k, v, None, **asked), atol=3e-6)


def differentiable(q: jax.Array, k: jax.Array, v: jax.Array, segments: jax.Array | None, **asked: object) -> jax.Array:
    """The definition in a few lines that jax differentiates by itself, at whatever precision is in force."""
    scale, window = asked["scale"] or q.shape[-1] ** -0.5, asked["window"] or 0
    k, v = (jnp.repeat(x, q.shape[2] // x.shape[2], axis=2) for x in (k, v))
    scores = scale * jnp.einsum("bthk,bshk->bhts", q, k)
    if (cap := asked["softcap"]) is not None:
        scores = cap * jnp.tanh(scores / cap)
    distance = jnp.arange(q.shape[1])[:, None] - jnp.arange(q.shape[1])
    if (slopes := asked["slopes_H"]) is not None:
        scores = scores - slopes[:, None, None] * distance
    seen = (distance >= 0) & ((distance < window) | (window <= 0))
    if segments is not None:
        seen = seen & (segments[:, None, :, None] == segments[:, None, None, :])
    return jnp.einsum("bhts,bshk->bthk", jax.nn.softmax(jnp.where(seen, scores, -jnp.inf), axis=-1), v)


@settings(max_examples=8, deadline=None)
@given(cases_with_options(), st.booleans())
def test_its_gradients_are_those_of_the_definition_in_float64(case: tuple, traced: bool) -> None:
    seed, length, heads, groups, packed, asked = case
    arrays = inputs(seed, length=length, heads=heads, groups=groups)
    segments = segments_of(seed, length=length) if packed else None
    attend = partial(
        causal_attention, segments_BT=segments, implementation="blockwise", spec=as_arrays(asked, traced=traced)
    )
    ours = value_and_gradients(attend, *arrays)
    with jax.enable_x64(True):
        exact = [jnp.asarray(np.asarray(x), jnp.float64) for x in arrays]
        expected = value_and_gradients(partial(differentiable, segments=segments, **asked), *exact)
    for got, wanted in zip(ours, expected, strict=True):
        np.testing.assert_allclose(got, wanted, atol=1e-5)


def test_windows_that_change_from_layer_to_layer_of_a_scan_are_those_of_each_layer() -> None:
    length = 2 * blockwise_attention.LEAST_QUERIES + 5
    q, k, v, along = inputs(0, length=length, heads=4, groups=2)
    windows = [3, 0, 150]

    def scanned(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
        def layer(q: jax.Array, window: jax.Array) -> tuple[jax.Array, None]:
            return causal_attention(
                q, k, v, None, implementation="cudnn", spec=AttentionSpec(window, softcap=5.0)
            ), None

        return jax.lax.scan(jax.checkpoint(layer), q, jnp.asarray(windows, jnp.int32))[0]

    def one_by_one(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
        for window in windows:
            q = causal_attention(q, k, v, None, implementation="blockwise", spec=AttentionSpec(window, softcap=5.0))
        return q

    for a, b in zip(*(value_and_gradients(f, q, k, v, along) for f in (scanned, one_by_one)), strict=True):
        np.testing.assert_allclose(a, b, atol=5e-6)


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])
def test_in_16_bit_with_a_cap_and_slopes_it_is_as_near_to_float32_as_rounding_allows(dtype: type) -> None:
    exact = inputs(3, length=200, heads=4, groups=2)
    rounded = [x.astype(dtype) for x in exact]
    spec = AttentionSpec(softcap=2.0, slopes_H=jnp.array([0.5, 0.25, 0.125, 0.0625]))
    attend = partial(causal_attention, segments_BT=segments_of(2, length=200), implementation="blockwise", spec=spec)
    for low, high in zip(value_and_gradients(attend, *rounded), value_and_gradients(attend, *exact), strict=True):
        np.testing.assert_allclose(low, high, atol=0.03 * np.abs(high).max())
    empty, positions = jnp.zeros((2, 200, 2, 8), dtype), jnp.broadcast_to(jnp.arange(200), (2, 200))
    y, _ = attention(*rounded[:3], positions, None, KeyValues(empty, empty), implementation="blockwise", spec=spec)
    assert y.dtype == dtype
    np.testing.assert_allclose(
        y.astype(jnp.float32), causal_attention(*exact[:3], None, implementation="blockwise", spec=spec), atol=0.05
    )


@pytest.mark.parametrize("platform", ["gpu", "tpu", "cpu"])
def test_what_no_kernel_has_is_said_by_name(platform: str) -> None:
    device = Capabilities(platform=platform, kind=platform, compute_capability=(9, 0) if platform == "gpu" else None)
    choice = choose_attention(device, jnp.dtype(jnp.bfloat16), 128, 1024, False, "biases by distance")
    assert choice.name == "blockwise" and ("biases by distance" in choice.reason) == (platform != "cpu")


@pytest.mark.parametrize(("platform", "expected"), [("gpu", "pallas"), ("tpu", "blockwise"), ("cpu", "blockwise")])
def test_what_only_our_kernels_have_is_computed_by_them_on_gpus(platform: str, expected: str) -> None:
    device = Capabilities(platform=platform, kind=platform, compute_capability=(9, 0) if platform == "gpu" else None)
    choice = choose_attention(device, jnp.dtype(jnp.bfloat16), 128, 1024, False, own="capped scores")
    assert choice.name == expected and ("capped scores" in choice.reason) == (platform != "cpu")


@pytest.mark.parametrize(
    ("width", "length", "own", "expected", "because"),
    [
        (64, 1024, None, "cudnn", "mask"),
        (64, 1023, None, "xla", "even sequence length"),
        (64, 1024, "capped scores", "blockwise", "capped scores"),
        (256, 1024, None, "xla", "heads of 256"),
    ],
)
def test_kernels_that_do_not_work_are_replaced_and_it_is_said(
    width: int, length: int, own: str | None, expected: str, because: str
) -> None:
    device = Capabilities(platform="gpu", kind="H100", compute_capability=(9, 0))
    choice = choose_attention(device, jnp.dtype(jnp.bfloat16), width, length, True, own=own, broken="no Triton")
    assert choice.name == expected and because in choice.reason and "no Triton" in choice.fallback


def test_blockwise_attention_keeps_nothing_of_what_comes_after_a_block_of_queries() -> None:
    length, blocks = 4 * blockwise_attention.LEAST_QUERIES, 4
    q, k, v, _ = inputs(0, rows=1, length=length, heads=1, groups=1)
    _, (*_, kept, _) = blockwise_attention._blockwise_forward(
        q, k, v, None, None, None, blockwise_attention.Rule(1.0, None, None)
    )
    assert sum(p.size for p in kept) == length**2 * (blocks + 1) // (2 * blocks)


def test_large_scores_leave_all_numbers_finite() -> None:
    q, k, v, along = inputs(0, length=20, heads=2, groups=1)
    attend = partial(causal_attention, segments_BT=segments_of(0, length=20), implementation="blockwise")
    for x in value_and_gradients(attend, q * 1e4, k * 1e4, v, along):
        assert np.isfinite(x).all()


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("window", [None, 70])
def test_splash_as_the_interpreter_runs_it_equals_jax_attention(packed: bool, window: int | None) -> None:
    q, k, v, along = inputs(5, rows=1, length=256, heads=2, groups=1, width=128)
    segments = segments_of(1, rows=1, length=256) if packed else None
    splash = value_and_gradients(
        lambda q, k, v: splash_attention(q, k, v, segments, window, scale=0.2, interpret=True), q, k, v, along
    )
    reference = value_and_gradients(
        lambda q, k, v: causal_attention(
            q, k, v, segments, implementation="xla", spec=AttentionSpec(window, scale=0.2)
        ),
        q, k, v, along,
    )  # fmt: skip
    for ours, theirs in zip(splash, reference, strict=True):
        np.testing.assert_allclose(ours, theirs, atol=5e-5)


@pytest.mark.parametrize(
    ("platform", "compute", "head_width", "length", "segments", "expected", "because"),
    [
        ("gpu", jnp.bfloat16, 64, 1024, False, "cudnn", "flash attention"),
        ("gpu", jnp.bfloat16, 64, 1024, True, "pallas", "packed rows"),
        ("gpu", jnp.float16, 128, None, True, "pallas", "packed rows"),
        ("gpu", jnp.bfloat16, 64, 1023, False, "cudnn", "flash attention"),
        ("gpu", jnp.float32, 64, 1024, False, "xla", "float32"),
        ("gpu", jnp.bfloat16, 136, 1024, False, "pallas", "heads of 136"),
        ("gpu", jnp.bfloat16, 264, 1024, False, "xla", "at most 256"),
        ("gpu", jnp.bfloat16, 60, 1024, False, "xla", "multiple of 8, found 60"),
        ("tpu", jnp.bfloat16, 128, 1024, True, "splash", "flash attention"),
        ("tpu", jnp.bfloat16, 64, 1024, True, "xla", "multiple of 128, found 64"),
        ("tpu", jnp.bfloat16, 128, 1000, True, "xla", "1000"),
        ("tpu", jnp.bfloat16, 128, None, True, "xla", "several"),
        ("cpu", jnp.float32, 64, 1024, True, "blockwise", "no flash attention for cpu"),
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
    [("Tesla V100", (7, 0), "8.0, Tesla V100 has 7.0"), ("MI300X", None, "an NVIDIA GPU, found MI300X")],
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
    with pytest.raises(TrainkitError, match="no units for it"):
        require_precision("fp8", cpu)
    for compute in ("float32", "bfloat16", "float16"):
        require_precision(compute, cpu)
