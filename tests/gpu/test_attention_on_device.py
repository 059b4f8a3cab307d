"""Attention on this machine's device is what its definition says, in value and gradient, as far as bfloat16 allows."""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from trainkit.models import grouped_product
from trainkit.models.attention import AttentionSpec, causal_attention
from trainkit.models.flash_check import why_broken
from trainkit.parallel.devices import AttentionName, Capabilities, choose_attention


class Case(NamedTuple):
    """Heads, groups that share keys and values, the window, and how many documents a row has."""

    heads: int = 4
    groups: int = 4
    window: int | None = None
    documents: int = 1
    softcap: float | None = None


CASES = {
    "plain": Case(),
    "packed": Case(documents=5),
    "windowed": Case(window=37),
    "packed and windowed": Case(window=37, documents=5),
    "grouped": Case(groups=1),
    "grouped, packed and windowed": Case(groups=2, window=37, documents=5),
    "with a soft cap": Case(groups=2, window=37, documents=5, softcap=3.0),
}


def exact(
    case: Case, q: np.ndarray, k: np.ndarray, v: np.ndarray, along: np.ndarray, segments: np.ndarray
) -> list[np.ndarray]:
    """Attention and its gradients along `along`, written out in float64."""
    t, shared = q.shape[1], case.heads // case.groups
    q, k, v, along = (np.asarray(x, np.float64).swapaxes(1, 2) for x in (q, k, v, along))
    k, v = (np.repeat(x, shared, axis=1) for x in (k, v))
    scale = q.shape[-1] ** -0.5
    distance = np.arange(t)[:, None] - np.arange(t)
    visible = (
        (distance >= 0) & (distance < (case.window or t)) & (segments[:, None, :, None] == segments[:, None, None])
    )
    scores = scale * q @ k.swapaxes(2, 3)
    slope = np.ones_like(scores)
    if case.softcap is not None:
        bent = np.tanh(scores / case.softcap)
        scores, slope = case.softcap * bent, 1 - bent**2
    p = np.where(visible, np.exp(np.where(visible, scores - scores.max(-1, keepdims=True), 0)), 0)
    p /= p.sum(-1, keepdims=True)
    dp = along @ v.swapaxes(2, 3)
    ds = scale * slope * p * (dp - (dp * p).sum(-1, keepdims=True))
    dk, dv = (
        x.reshape(len(x), case.groups, shared, t, -1).sum(2) for x in (ds.swapaxes(2, 3) @ q, p.swapaxes(2, 3) @ along)
    )
    return [x.swapaxes(1, 2) for x in (p @ v, ds @ k, dk, dv)]


@pytest.mark.parametrize("implementation", ["cudnn", "pallas", "xla", "blockwise"])
@pytest.mark.parametrize("name", CASES)
def test_attention_and_its_gradients_are_as_near_to_float64_as_bfloat16_allows(
    name: str, implementation: AttentionName, on_gpu: bool, device: Capabilities
) -> None:
    case = CASES[name]
    if implementation in ("cudnn", "xla") and case.softcap is not None:
        pytest.skip("only blockwise attention and trainkit's kernels have soft caps")
    if implementation == "cudnn" and not on_gpu:
        pytest.skip("cuDNN's attention needs an NVIDIA GPU; `pytest -m gpu` runs it there")
    rows, length, width = (2, 1024, 64) if on_gpu else (1, 96, 16)
    chosen = choose_attention(device, jnp.bfloat16, width, length, False)
    if implementation == "cudnn" and chosen.name != "cudnn":
        pytest.skip(chosen.reason)
    random = np.random.default_rng(0)
    shapes = [(rows, length, heads, width) for heads in (case.heads, case.groups, case.groups, case.heads)]
    q, k, v, along = (jnp.asarray(2 * random.standard_normal(shape), jnp.bfloat16) for shape in shapes)
    segments = np.sort(random.integers(0, case.documents, (rows, length)).astype(np.int32), axis=1)
    attend = partial(
        causal_attention,
        segments_BT=jnp.asarray(segments) if case.documents > 1 else None,
        implementation=implementation,
        spec=AttentionSpec(case.window, softcap=case.softcap),
    )

    @jax.jit
    def value_and_gradients(q: jax.Array, k: jax.Array, v: jax.Array, along: jax.Array) -> list[jax.Array]:
        value, backward = jax.vjp(attend, q, k, v)
        return [value, *backward(along)]

    found = value_and_gradients(q, k, v, along)
    for what, ours, right in zip(
        ("value", "dq", "dk", "dv"), found, exact(case, q, k, v, along, segments), strict=True
    ):
        error = np.asarray(ours, np.float64) - right
        assert np.linalg.norm(error) <= 0.02 * np.linalg.norm(right), what
        assert np.abs(error).max() <= 0.04 * np.abs(right).max(), what


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("width", [64, 80, 128, 256])
@pytest.mark.usefixtures("needs_gpu")
def test_the_kernels_of_attention_work_here(width: int, causal: bool) -> None:
    heads: dict[str, Any] = {"width": width, "heads": 4, "groups": 2, "dtype": "bfloat16", "causal": causal}
    assert why_broken(**heads, softcap=None, sloped=False) == ""
    assert why_broken(**heads, softcap=20.0, sloped=True) == ""


@pytest.mark.usefixtures("needs_gpu")
def test_the_kernel_of_experts_works_here() -> None:
    assert grouped_product.why_broken() == ""
