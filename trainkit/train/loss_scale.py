"""Dynamic loss scaling (Micikevicius et al. 2018, section 3.2): what keeps small gradients above zero in float16."""

from __future__ import annotations

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

#: Of the mean loss of a micro-batch, before anything is known.
INITIAL = 2.0**16
#: Steps without an overflow after which the scale is doubled.
PATIENCE = 2000


class LossScale(eqx.Module):
    """Gradients are computed of the loss times `value`, and divided by it when they are float32 again."""

    value: Float[Array, ""]
    good_steps: Int[Array, ""]
    """Since the last overflow or the last doubling."""


def initial() -> LossScale:
    return LossScale(jnp.float32(INITIAL), jnp.int32(0))


def adjusted(scale: LossScale, finite: Bool[Array, ""]) -> LossScale:
    """The next step's: half after an overflow, twice after long enough without one."""
    good = jnp.where(finite, scale.good_steps + 1, 0)
    doubled = good >= PATIENCE
    factor = jnp.where(finite, jnp.where(doubled, 2.0, 1.0), 0.5)
    # a gradient that is zero for ever must not make it infinite
    value = jnp.minimum(scale.value * factor, jnp.finfo(jnp.float32).max)
    return LossScale(value, jnp.where(doubled, 0, good))
