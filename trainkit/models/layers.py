"""Layers that the families share.

Shapes: B batch, T positions, S cached positions, D hidden, H heads, K width of a head, L layers, V vocabulary.
Matrices are stored (in, out). Layers compute in the dtype of their input; norms and softmax in float32.
While a model is trained in 16 bit, each of its trained arrays is a `weight.Weight`.
"""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from trainkit.models.custom_vjps import layer_norm, rms_norm
from trainkit.models.fp8 import fp8_product
from trainkit.models.master_weights import add, exact, product


class Linear(eqx.Module):
    """x @ weight, plus bias if it has one."""

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
        y = fp8_product(x, self.weight) if self.fp8 else product(x, self.weight)
        return y if self.bias is None else add(y, self.bias)


class LayerNorm(eqx.Module):
    """Layer normalisation over the last axis."""

    weight: Float[Array, " D"]
    bias: Float[Array, " D"] | None
    epsilon: float = eqx.field(static=True)

    @staticmethod
    def init(width: int, *, epsilon: float, bias: bool = True) -> LayerNorm:
        """Return a norm of weight 1 and, with `bias`, bias 0."""
        return LayerNorm(jnp.ones(width), jnp.zeros(width) if bias else None, epsilon)

    def __call__(self, x: Float[Array, "*n D"]) -> Float[Array, "*n D"]:
        weight = exact(self.weight)
        bias = jnp.zeros_like(weight) if self.bias is None else exact(self.bias)
        return layer_norm(x, weight, bias, self.epsilon)


class RmsNorm(eqx.Module):
    """Root-mean-square normalisation over the last axis."""

    weight: Float[Array, " D"]
    epsilon: float = eqx.field(static=True)
    offset: float = eqx.field(static=True, default=0.0)
    """Added to the weight, which then begins as 1 less: Gemma's weights are differences from 1."""

    @staticmethod
    def init(width: int, *, epsilon: float, offset: float = 0.0) -> RmsNorm:
        """Return a norm of weight 1, `offset` included."""
        return RmsNorm(jnp.full(width, 1 - offset), epsilon, offset)

    def __call__(self, x: Float[Array, "*n D"]) -> Float[Array, "*n D"]:
        weight = exact(self.weight)
        return rms_norm(x, self.offset + weight if self.offset else weight, self.epsilon)


def logits(
    hidden_TD: Float[Array, "*n D"], unembedding_VD: Float[Array, "V D"], *, softcap: float | None = None
) -> Float[Array, "*n V"]:
    """Return the logits of every entry of the vocabulary, in float32; `softcap` bounds them (Gemma 2, section 2)."""
    logits_TV = jnp.einsum("...d,vd->...v", hidden_TD, unembedding_VD, preferred_element_type=jnp.float32)
    return logits_TV if softcap is None else softcap * jnp.tanh(logits_TV / softcap)
