"""The kernels of flash attention, run by Pallas' interpreter, are attention as its definition says it."""

from __future__ import annotations

from functools import partial
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import Phase, example, given, settings
from hypothesis import strategies as st
from jax._src.cudnn import fused_attention_stablehlo

from trainkit.models.attention import causal_attention
from trainkit.models.flash_attention import flash_attention
from trainkit.models.flash_blocks import FlashBlock, FlashSizes, intervals, key_blocks, query_blocks
from trainkit.models.flash_check import why_broken
from trainkit.models.remat import KERNELS, rematerialise
from trainkit.recipe.families.sizes import Remat

#: The arguments of `inputs`, whether there are slopes, and what is asked of attention.
Case: TypeAlias = tuple[dict[str, Any], bool, dict[str, Any]]
#: FlashBlock of unequal sizes, so small that few positions make several.
SIZES = FlashSizes(FlashBlock(16, 8, 4), FlashBlock(8, 16, 4), FlashBlock(16, 8, 4))


def written_out(q: Any, k: Any, v: Any, segments: Any, slopes_H: Any, *, scale: float, **asked: Any) -> jax.Array:
    """The definition in a few lines, which jax differentiates by itself."""
    q, k, v = (x.astype(jnp.float32) for x in (q, k, v))
    k, v = (jnp.repeat(x, q.shape[2] // x.shape[2], axis=2) for x in (k, v))
    scores = scale * jnp.einsum("bthk,bshk->bhts", q, k)
    if (cap := asked["softcap"]) is not None:
        scores = cap * jnp.tanh(scores / cap)
    ahead = np.arange(q.shape[1])[:, None] - np.arange(q.shape[1])
    if slopes_H is not None:
        scores -= slopes_H[:, None, None] * ahead
    window = asked["window"] or q.shape[1]
    seen = ((ahead >= 0) & (ahead < window)) if asked["causal"] else abs(ahead) < window
    if segments is not None:
        seen = seen & (segments[:, None, :, None] == segments[:, None, None, :])
    return jnp.einsum("bhts,bshk->bthk", jax.nn.softmax(jnp.where(seen, scores, -jnp.inf), axis=-1), v)


def inputs(seed: int, *, length: int, heads: int, groups: int, width: int, packed: bool) -> tuple[list[Any], Any]:
    """q, k, v, what the output is multiplied with; and segments, the last of which are padding."""
    random = np.random.default_rng(seed)
    shapes = [(2, length, h, width) for h in (heads, groups, groups, heads)]
    arrays = [jnp.asarray(random.standard_normal(shape), jnp.float32) for shape in shapes]
    segments = np.sort(random.integers(1, 5, (2, length)), axis=1)
    segments[1, length - length // 4 :] = 0
    return arrays, jnp.asarray(segments, jnp.int32) if packed else None


@partial(jax.jit, static_argnums=0)
def value_and_gradients(attend: Any, q: Any, k: Any, v: Any, along: Any, *rest: Any) -> list[jax.Array]:
    def loss(q: Any, k: Any, v: Any) -> tuple[jax.Array, jax.Array]:
        y = attend(q, k, v, *rest)
        return (y.astype(jnp.float32) * along).sum(), y

    (_, y), gradients = jax.value_and_grad(loss, argnums=(0, 1, 2), has_aux=True)(q, k, v)
    return [x.astype(jnp.float32) for x in (y, *gradients)]


@st.composite
def cases(draw: st.DrawFn) -> Case:
    heads, groups = draw(st.sampled_from([(1, 1), (4, 2), (3, 3), (6, 2)]))
    shape = {"seed": draw(st.integers(0, 2**31)), "length": draw(st.sampled_from([1, 16, 37, 64])), "groups": groups}
    shape |= {"heads": heads, "width": draw(st.sampled_from([8, 16, 24])), "packed": draw(st.booleans())}
    asked = {"softcap": draw(st.sampled_from([None, 1.5])), "causal": draw(st.booleans()), "scale": 0.4}
    return shape, draw(st.booleans()), asked | {"window": draw(st.none() | st.integers(1, 70))}


PACKED = {"seed": 1, "length": 50, "groups": 2, "heads": 4, "width": 24, "packed": True}


@settings(max_examples=2, deadline=None, phases=[Phase.explicit, Phase.generate])
@given(cases())
@example((PACKED, True, {"softcap": 1.5, "causal": True, "scale": 0.4, "window": 20}))
@example((PACKED, False, {"softcap": None, "causal": False, "scale": 0.4, "window": 9}))
def test_values_and_gradients_are_those_of_the_definition(case: Case) -> None:
    shape, sloped, asked = case
    arrays, segments = inputs(**shape)
    slopes = jnp.linspace(0.1, 0.5, shape["heads"]) if sloped else None
    ours = value_and_gradients(
        partial(flash_attention, **asked, interpret=True, sizes=SIZES), *arrays, segments, slopes
    )
    expected = value_and_gradients(partial(written_out, **asked), *arrays, segments, slopes)
    for got, wanted in zip(ours, expected, strict=True):
        np.testing.assert_allclose(got, wanted, atol=2e-5 * max(1, float(jnp.abs(wanted).max())))


def test_16_bit_is_as_near_to_float32_as_rounding_allows() -> None:
    arrays, segments = inputs(3, length=100, heads=4, groups=2, width=16, packed=True)
    asked: dict[str, Any] = {"softcap": 5.0, "causal": True, "scale": 0.4, "window": 30}
    rounded = [x.astype(jnp.bfloat16) for x in arrays[:3]]
    ours = value_and_gradients(
        partial(flash_attention, **asked, interpret=True, sizes=SIZES), *rounded, arrays[3], segments, None
    )
    expected = value_and_gradients(partial(written_out, **asked), *arrays, segments, None)
    for got, wanted in zip(ours, expected, strict=True):
        np.testing.assert_allclose(got, wanted, atol=0.03 * float(jnp.abs(wanted).max()))


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 2**31), st.none() | st.integers(1, 70), st.booleans())
def test_a_block_is_computed_with_exactly_if_some_pair_of_it_is_seen_and_masked_unless_all_are(
    seed: int, window: int | None, causal: bool
) -> None:
    _, segments = inputs(seed, length=64, heads=1, groups=1, width=8, packed=True)
    low, high = (np.asarray(x) for x in intervals(segments, 64, window=window, causal=causal))
    seen = (low[..., None] <= np.arange(64)) & (np.arange(64) < high[..., None])
    for edges, blocks in ((key_blocks, SIZES.forward), (query_blocks, SIZES.keys)):
        m, n = blocks.queries, blocks.keys
        pairs = seen.reshape(2, 64 // m, m, 64 // n, n)
        some, whole = pairs.any((2, 4)), pairs.all((2, 4))
        if edges is query_blocks:
            some, whole = some.swapaxes(1, 2), whole.swapaxes(1, 2)
        found = np.asarray(edges(jnp.asarray(low), jnp.asarray(high), blocks))
        numbers = np.arange(some.shape[-1])
        np.testing.assert_array_equal((found[..., :1] <= numbers) & (numbers < found[..., 3:]), some)
        np.testing.assert_array_equal((found[..., 1:2] <= numbers) & (numbers < found[..., 2:3]), whole)


def test_other_documents_and_what_is_outside_the_window_are_not_read() -> None:
    arrays, _ = inputs(0, length=64, heads=2, groups=1, width=16, packed=False)
    segments = jnp.asarray(np.repeat([[1, 2]], 32, axis=1).reshape(1, 64, order="F").repeat(2, 0), jnp.int32)
    q, k, v, along = arrays
    broken = [x.at[:, :32].set(jnp.nan) for x in (k, v)]
    attend = partial(flash_attention, scale=0.4, interpret=True, sizes=SIZES)
    y, dq, *_ = value_and_gradients(attend, q, *broken, along, segments, None)
    expected, wanted, *_ = value_and_gradients(attend, q, k, v, along, segments, None)
    np.testing.assert_array_equal(y[:, 32:], expected[:, 32:])
    np.testing.assert_array_equal(dq[:, 32:], wanted[:, 32:])


@pytest.mark.parametrize("width", [64, 256])
def test_the_kernels_lower_for_cuda(width: int) -> None:
    shape = [jax.ShapeDtypeStruct((2, 200, heads, width), jnp.bfloat16) for heads in (4, 2, 2)]
    segments = jax.ShapeDtypeStruct((2, 200), jnp.int32)

    def loss(q: jax.Array, k: jax.Array, v: jax.Array, segments: jax.Array, slopes: jax.Array) -> jax.Array:
        return flash_attention(q, k, v, segments, slopes, scale=0.1, softcap=30.0, window=50).astype(jnp.float32).sum()

    traced = jax.jit(jax.grad(loss, argnums=(0, 1, 2))).trace(*shape, segments, jax.ShapeDtypeStruct((4,), jnp.float32))
    try:
        lowered = traced.lower(lowering_platforms=("cuda",))
    except RuntimeError as error:  # from jax 0.11 on it asks the GPU what it is
        pytest.skip(str(error))
    assert lowered.as_text().count("xla.gpu.triton") == 3


def test_dots_keeps_the_result_of_the_kernel_and_does_not_run_it_again() -> None:
    arrays, segments = inputs(0, length=16, heads=2, groups=1, width=16, packed=True)
    attend = partial(flash_attention, segments_BT=segments, slopes_H=None, scale=0.4, interpret=True, sizes=SIZES)

    def kernels(remat: Remat) -> int:
        layer = rematerialise(lambda q, k, v: attend(q * 2, k, v), remat)
        return str(jax.make_jaxpr(jax.grad(lambda q, k, v: layer(q, k, v).sum()))(*arrays[:3])).count("pallas_call[")

    assert [kernels(remat) for remat in ("none", "dots", "blocks")] == [3, 3, 4]


def test_dots_keeps_the_results_of_cudnn_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fused_attention_stablehlo, "check_cudnn_version", lambda: 91000)
    monkeypatch.setattr(fused_attention_stablehlo, "check_compute_capability", lambda capability: True)
    q = jnp.ones((1, 64, 2, 64), jnp.bfloat16)

    def kernels(remat: Remat) -> int:
        layer = rematerialise(lambda q: causal_attention(q * 2, q, q, None, implementation="cudnn"), remat)
        program = jax.make_jaxpr(jax.grad(lambda q: layer(q).astype(jnp.float32).sum()))(q)
        return str(program).count(f"{KERNELS[0]}[")

    assert [kernels(remat) for remat in ("none", "dots", "blocks")] == [1, 1, 2]


def test_kernels_that_fail_or_compute_wrong_numbers_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    heads: dict[str, Any] = {"width": 16, "heads": 2, "groups": 1, "dtype": "bfloat16", "softcap": None}
    heads |= {"sloped": False, "causal": True}
    monkeypatch.setattr("trainkit.models.flash_check.WINDOWS", (100,))
    check = why_broken.__wrapped__
    assert check(**heads) == ""

    def wrong(q: jax.Array, *others: Any, **options: Any) -> jax.Array:
        return flash_attention(q * 1.1, *others, **options)

    def failing(*arrays: Any, **options: Any) -> jax.Array:
        raise NotImplementedError("no such operation\nin Triton")

    monkeypatch.setattr("trainkit.models.flash_attention.flash_attention", wrong)
    assert "differs from plain products by" in check(**heads)
    monkeypatch.setattr("trainkit.models.flash_attention.flash_attention", failing)
    assert check(**heads) == "NotImplementedError: no such operation"
