"""Layers that the families share.

Shapes: B batch, T positions, S cached positions, D hidden, H heads, K width of a head, L layers, V vocabulary.
Matrices are stored (in, out). Layers compute in the dtype of their input; norms and softmax in float32.
"""

from __future__ import annotations

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PRNGKeyArray

from trainkit.parallel.devices import AttentionImplementation


class Linear(eqx.Module):
    """x @ weight + bias."""

    weight: Float[Array, "in out"]
    bias: Float[Array, " out"]

    @staticmethod
    def init(key: PRNGKeyArray, inputs: int, outputs: int, *, scale: float) -> Linear:
        """Normal weights of standard deviation `scale`, zero bias."""
        return Linear(jax.random.normal(key, (inputs, outputs)) * scale, jnp.zeros(outputs))

    def __call__(self, x: Float[Array, "*n in"]) -> Float[Array, "*n out"]:
        return x @ self.weight + self.bias


class LayerNorm(eqx.Module):
    """Layer normalisation (Ba et al. 2016) over the last axis, statistics in float32."""

    weight: Float[Array, " D"]
    bias: Float[Array, " D"]

    @staticmethod
    def init(width: int) -> LayerNorm:
        return LayerNorm(jnp.ones(width), jnp.zeros(width))

    def __call__(self, x: Float[Array, "*n D"]) -> Float[Array, "*n D"]:
        x32 = x.astype(jnp.float32)
        centred = x32 - x32.mean(-1, keepdims=True)
        scaled = centred * jax.lax.rsqrt(jnp.square(centred).mean(-1, keepdims=True) + 1e-5)
        return (scaled * self.weight.astype(jnp.float32) + self.bias.astype(jnp.float32)).astype(x.dtype)


class KeyValues(NamedTuple):
    """Keys and values of the positions seen so far, of one layer or, stacked, of all."""

    k_BSHK: Float[Array, "*L B S H K"]
    v_BSHK: Float[Array, "*L B S H K"]


def causal_attention(
    q_BTHK: Float[Array, "B T H K"],
    k_BTHK: Float[Array, "B T H K"],
    v_BTHK: Float[Array, "B T H K"],
    segments_BT: Int[Array, "B T"] | None,
    *,
    implementation: AttentionImplementation,
) -> Float[Array, "B T H K"]:
    """Softmax attention over each position and those before it (Vaswani et al. 2017), of its own segment where given.

    Padding is a segment like any other here: every position sees at least itself, so that all numbers stay finite.
    `implementation` is what `parallel.devices.attention_implementation` chose for the device.
    """
    # no mask at all without segments: the kernels then know the triangle, and skip what it hides
    same_B1TT = None if segments_BT is None else (segments_BT[:, :, None] == segments_BT[:, None, :])[:, None]
    return jax.nn.dot_product_attention(
        q_BTHK, k_BTHK, v_BTHK, mask=same_B1TT, is_causal=True, implementation=implementation
    )


def cached_attention(
    q_BTHK: Float[Array, "B T H K"],
    k_BTHK: Float[Array, "B T H K"],
    v_BTHK: Float[Array, "B T H K"],
    cache: KeyValues,
    positions_BT: Int[Array, "B T"],
) -> tuple[Float[Array, "B T H K"], KeyValues]:
    """Attention to all cached positions up to each query's own; stores the new keys and values at `positions_BT`."""
    rows_B1 = jnp.arange(q_BTHK.shape[0])[:, None]
    cache = KeyValues(
        cache.k_BSHK.at[rows_B1, positions_BT].set(k_BTHK), cache.v_BSHK.at[rows_B1, positions_BT].set(v_BTHK)
    )
    visible_B1TS = (jnp.arange(cache.k_BSHK.shape[1]) <= positions_BT[:, :, None])[:, None]
    return jax.nn.dot_product_attention(q_BTHK, cache.k_BSHK, cache.v_BSHK, mask=visible_B1TS), cache
