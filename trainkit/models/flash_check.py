"""Whether the kernels of flash attention work on this device: their compiler is experimental and differs by version."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, partial

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from trainkit.models import blockwise_attention
from trainkit.models.attention import AttentionSpec, causal_attention

#: The largest norm of the difference to plain products, as a share of their norm: 16 bit has errors below 1 %.
TOLERANCE = 0.03
ROWS, POSITIONS, WINDOWS = 2, 320, (None, 100)


@lru_cache
def why_broken(
    *, width: int, heads: int, groups: int, dtype: str, softcap: float | None, sloped: bool, causal: bool
) -> str:
    """Return why the kernels cannot be used for such heads: what failed, or which numbers are wrong; empty if they
    work.

    They are compiled and run once for two packed rows, with and without a window, in a few seconds.
    """
    slopes_H = jnp.linspace(0.05, 0.5, heads) if sloped else None
    random = np.random.default_rng(0)
    shapes = [(ROWS, POSITIONS, count, width) for count in (heads, groups, groups, heads)]
    q, k, v, along = (jnp.asarray(random.standard_normal(shape), dtype) for shape in shapes)
    segments_BT = jnp.asarray(np.sort(random.integers(0, 4, (ROWS, POSITIONS)), 1), jnp.int32)
    for window in WINDOWS:
        spec = AttentionSpec(window, softcap, None, slopes_H, causal)

        def by_kernel(q: Array, k: Array, v: Array, spec: AttentionSpec = spec) -> Array:
            return causal_attention(q, k, v, segments_BT, implementation="pallas", spec=spec)

        try:
            ours = _with_gradients(by_kernel, q, k, v, along)
            exact = _with_gradients(partial(_by_products, segments_BT=segments_BT, spec=spec), q, k, v, along)
        except Exception as error:  # whatever a compiler raises means that there is no kernel
            return f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0][:200]}"
        for name, got, wanted in zip(("the result", "dq", "dk", "dv"), ours, exact, strict=True):
            share = float(jnp.linalg.norm(got - wanted) / jnp.linalg.norm(wanted))
            if not share <= TOLERANCE:  # NaN too
                return f"{name} differs from plain products by {share:.0%}"
    return ""


def _by_products(
    q_BTHK: Array, k_BTGK: Array, v_BTGK: Array, *, segments_BT: Array, spec: AttentionSpec
) -> Float[Array, "B T H K"]:
    """Return attention computed from all of its probabilities, in float32."""
    q_BTHK, k_BTGK, v_BTGK = (x.astype(jnp.float32) for x in (q_BTHK, k_BTGK, v_BTGK))
    q_BGNK, k_BGSK = blockwise_attention.by_group(q_BTHK, k_BTGK.shape[2]), k_BTGK.swapaxes(1, 2)
    same_BTS, (rule, window) = segments_BT[:, :, None] == segments_BT[:, None, :], spec.rule(q_BTHK)
    p_BGNS = blockwise_attention.probabilities(
        q_BGNK, k_BGSK, np.arange(q_BTHK.shape[1])[None], same_BTS, window, spec.slopes_H, rule, causal=spec.causal
    )
    return blockwise_attention.by_position(jnp.einsum("bgns,bsgk->bgnk", p_BGNS, v_BTGK), q_BTHK.shape[1])


def _with_gradients(attend: Callable[..., Array], q: Array, k: Array, v: Array, along: Array) -> list[Array]:
    """Return attention and its gradients, in float32."""

    def loss(q: Array, k: Array, v: Array) -> tuple[Array, Array]:
        y = attend(q, k, v).astype(jnp.float32)
        return (y * along.astype(jnp.float32)).sum(), y

    (_, y), gradients = jax.jit(jax.value_and_grad(loss, argnums=(0, 1, 2), has_aux=True))(q, k, v)
    return [x.astype(jnp.float32) for x in (y, *gradients)]
