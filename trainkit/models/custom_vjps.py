"""Norms and activations with a hand-written backward pass that keeps as little in memory as possible.

Automatic differentiation would keep every intermediate result in float32: for the MLP of a GPT-2 block six arrays of
its width, where two are enough. Everything is computed in float32; what is kept has the dtype of the input.
"""

from __future__ import annotations

import math
from functools import partial

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

CUBIC = 0.044715
ROOT = math.sqrt(2 / math.pi)


@jax.custom_vjp
def gelu(x: Float[Array, ...]) -> Float[Array, ...]:
    """Return x times the normal cumulative distribution, approximated by a hyperbolic tangent (Hendrycks and Gimpel
    2016)."""
    return _gelu_and_slope(x)[0]


def _gelu_and_slope(x: Array) -> tuple[Array, Array]:
    x32 = x.astype(jnp.float32)
    tanh = jnp.tanh(ROOT * (x32 + CUBIC * x32**3))
    slope = 0.5 * (1 + tanh) + 0.5 * x32 * (1 - tanh**2) * ROOT * (1 + 3 * CUBIC * x32**2)
    return (0.5 * x32 * (1 + tanh)).astype(x.dtype), slope.astype(x.dtype)


gelu.defvjp(_gelu_and_slope, lambda slope, dy: (dy * slope,))


@jax.custom_vjp
def exact_gelu(x: Float[Array, ...]) -> Float[Array, ...]:
    """Return x times the normal cumulative distribution, by the error function (Hendrycks and Gimpel 2016)."""
    return _exact_gelu_and_slope(x)[0]


def _exact_gelu_and_slope(x: Array) -> tuple[Array, Array]:
    x32 = x.astype(jnp.float32)
    cumulative = 0.5 * jax.lax.erfc(-x32 * math.sqrt(0.5))
    slope = cumulative + x32 * jnp.exp(-0.5 * x32**2) / math.sqrt(2 * math.pi)
    return (x32 * cumulative).astype(x.dtype), slope.astype(x.dtype)


exact_gelu.defvjp(_exact_gelu_and_slope, lambda slope, dy: (dy * slope,))


@jax.custom_vjp
def gated_silu(gate: Float[Array, ...], up: Float[Array, ...]) -> Float[Array, ...]:
    """Return silu(gate) * up, the gated unit of Shazeer 2020."""
    return (jax.nn.silu(gate.astype(jnp.float32)) * up.astype(jnp.float32)).astype(gate.dtype)


def _gated_silu_backward(residuals: tuple[Array, Array], dy: Array) -> tuple[Array, Array]:
    gate, up, dy32 = *(x.astype(jnp.float32) for x in residuals), dy.astype(jnp.float32)
    sigmoid = jax.nn.sigmoid(gate)
    dgate = dy32 * up * sigmoid * (1 + gate * (1 - sigmoid))
    return dgate.astype(dy.dtype), (dy32 * gate * sigmoid).astype(dy.dtype)


gated_silu.defvjp(lambda gate, up: (gated_silu(gate, up), (gate, up)), _gated_silu_backward)


@partial(jax.custom_vjp, nondiff_argnums=(3,))
def layer_norm(
    x: Float[Array, "*n D"], weight: Float[Array, " D"], bias: Float[Array, " D"], epsilon: float
) -> Float[Array, "*n D"]:
    """Return `x` after layer normalisation over the last axis (Ba et al. 2016)."""
    return _layer_norm(x, weight, bias, epsilon)[0]


def _layer_norm(x: Array, weight: Array, bias: Array, epsilon: float) -> tuple[Array, tuple[Array, Array, Array]]:
    x32 = x.astype(jnp.float32)
    centred = x32 - x32.mean(-1, keepdims=True)
    scale = jax.lax.rsqrt(jnp.square(centred).mean(-1, keepdims=True) + epsilon)
    normal = centred * scale
    y = normal * weight.astype(jnp.float32) + bias.astype(jnp.float32)
    return y.astype(x.dtype), (normal.astype(x.dtype), scale, weight)


def _layer_norm_backward(
    epsilon: float, residuals: tuple[Array, Array, Array], dy: Array
) -> tuple[Array, Array, Array]:
    normal, scale, weight = residuals
    dx, dweight = _norm_backward(normal, scale, weight, dy, centred=True)
    return dx, dweight, dy.astype(jnp.float32).sum(_rows(dy)).astype(weight.dtype)


layer_norm.defvjp(_layer_norm, _layer_norm_backward)


@partial(jax.custom_vjp, nondiff_argnums=(2,))
def rms_norm(x: Float[Array, "*n D"], weight: Float[Array, " D"], epsilon: float) -> Float[Array, "*n D"]:
    """Return `x` scaled by the root of the mean square over the last axis (Zhang and Sennrich 2019)."""
    return _rms_norm(x, weight, epsilon)[0]


def _rms_norm(x: Array, weight: Array, epsilon: float) -> tuple[Array, tuple[Array, Array, Array]]:
    x32 = x.astype(jnp.float32)
    scale = jax.lax.rsqrt(jnp.square(x32).mean(-1, keepdims=True) + epsilon)
    normal = x32 * scale
    return (normal * weight.astype(jnp.float32)).astype(x.dtype), (normal.astype(x.dtype), scale, weight)


def _rms_norm_backward(epsilon: float, residuals: tuple[Array, Array, Array], dy: Array) -> tuple[Array, Array]:
    return _norm_backward(*residuals, dy, centred=False)


rms_norm.defvjp(_rms_norm, _rms_norm_backward)


def _norm_backward(
    normal: Array, scale: Array, weight: Array, dy: Array, *, centred: bool
) -> tuple[Float[Array, "*n D"], Float[Array, " D"]]:
    """Return the gradients of input and weight, from the normalised input, its factor and the weight."""
    normal32, dy32 = normal.astype(jnp.float32), dy.astype(jnp.float32)
    dnormal = dy32 * weight.astype(jnp.float32)
    along = (dnormal * normal32).mean(-1, keepdims=True)
    mean = dnormal.mean(-1, keepdims=True) if centred else 0
    dx = scale * (dnormal - mean - normal32 * along)
    return dx.astype(dy.dtype), (dy32 * normal32).sum(_rows(dy)).astype(weight.dtype)


def _rows(x: Array) -> tuple[int, ...]:
    return tuple(range(x.ndim - 1))
