"""Layers that the families share.

Shapes: B batch, T positions, S cached positions, D hidden, H heads, K width of a head, L layers, V vocabulary.
Matrices are stored (in, out). Layers compute in the dtype of their input; norms and softmax in float32.
"""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PRNGKeyArray

from trainkit.models.fp8 import fp8_product
from trainkit.models.pointwise import layer_norm, rms_norm


class Linear(eqx.Module):
    """x @ weight, + bias where there is one."""

    weight: Float[Array, "in out"]
    bias: Float[Array, " out"] | None
    fp8: bool = eqx.field(static=True, default=False)
    """Whether the product is made of operands rounded to 8 bit: see `fp8_product`."""

    @staticmethod
    def init(
        key: PRNGKeyArray, inputs: int, outputs: int, *, scale: float, bias: bool = True, fp8: bool = False
    ) -> Linear:
        """Normal weights of standard deviation `scale`, zero bias."""
        weight = jax.random.normal(key, (inputs, outputs)) * scale
        return Linear(weight, jnp.zeros(outputs) if bias else None, fp8)

    def __call__(self, x: Float[Array, "*n in"]) -> Float[Array, "*n out"]:
        y = fp8_product(x, self.weight) if self.fp8 else x @ self.weight
        return y if self.bias is None else y + self.bias


class LayerNorm(eqx.Module):
    """Layer normalisation over the last axis."""

    weight: Float[Array, " D"]
    bias: Float[Array, " D"]

    @staticmethod
    def init(width: int) -> LayerNorm:
        return LayerNorm(jnp.ones(width), jnp.zeros(width))

    def __call__(self, x: Float[Array, "*n D"]) -> Float[Array, "*n D"]:
        return layer_norm(x, self.weight, self.bias, 1e-5)


class RmsNorm(eqx.Module):
    """Root-mean-square normalisation over the last axis."""

    weight: Float[Array, " D"]
    epsilon: float = eqx.field(static=True)

    @staticmethod
    def init(width: int, *, epsilon: float) -> RmsNorm:
        return RmsNorm(jnp.ones(width), epsilon)

    def __call__(self, x: Float[Array, "*n D"]) -> Float[Array, "*n D"]:
        return rms_norm(x, self.weight, self.epsilon)


def rotate(
    x_BTHK: Float[Array, "B T H K"], positions_BT: Int[Array, "B T"], *, theta: float
) -> Float[Array, "B T H K"]:
    """Rotary positions (Su et al. 2021): number i of a head's first half turns with number i of its second.

    Which numbers turn together is what the checkpoints of the Llama family on the Hugging Face hub mean.
    """
    half = x_BTHK.shape[-1] // 2
    frequencies = theta ** (-jnp.arange(half, dtype=jnp.float32) / half)
    angles_BT1h = positions_BT[:, :, None, None].astype(jnp.float32) * frequencies
    cosine, sine = jnp.cos(angles_BT1h), jnp.sin(angles_BT1h)
    first, second = jnp.split(x_BTHK.astype(jnp.float32), 2, axis=-1)
    turned = jnp.concatenate([first * cosine - second * sine, second * cosine + first * sine], axis=-1)
    return turned.astype(x_BTHK.dtype)
