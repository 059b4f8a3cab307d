"""Rotary positions (Su et al. 2021), as in the checkpoints on the Hugging Face hub.

Shapes: B batch, T positions, H heads, K width of a head, h = K / 2.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from trainkit.recipe.families.rope import LinearScaling, Llama3, Rope, Yarn


class RotaryTables(NamedTuple):
    """How queries and keys are rotated at each position."""

    frequencies_h: Float[Array, "*L h"] | Float[np.ndarray, "*L h"]
    """Radians a position, float32."""
    length: Float[Array, ""] | Float[np.ndarray, " L"] | float
    """What cosine and sine are multiplied with."""


def rotary_tables(rope: Rope, width: int) -> RotaryTables:
    """Return the tables of heads of this width, scaled as `rope` says.

    Computed in the float32 steps in which checkpoints were trained, each rounded right: at position 100,000 the last
    bit of a frequency is worth a hundredth of a radian.
    """
    even_h = np.arange(0, width, 2, dtype=np.float32) / np.float32(width)
    frequencies_h = 1 / (rope.theta ** even_h.astype(np.float64)).astype(np.float32)
    match rope.scaling:
        case None:
            return _tables(frequencies_h)
        case LinearScaling(factor=factor):
            return _tables(frequencies_h / factor)
        case Llama3() as scaling:
            rounds_h = scaling.original_context * frequencies_h / (2 * math.pi)
            low, high = scaling.low_frequency_factor, scaling.high_frequency_factor
            return _tables(_blend(frequencies_h, scaling.factor, kept=(rounds_h - low) / (high - low)))
        case Yarn() as scaling:
            length = scaling.attention_factor or 0.1 * math.log(scaling.factor) + 1
            return _tables(_blend(frequencies_h, scaling.factor, kept=_ramp(scaling, rope.theta, width)), length)


def stack_tables(layers: Sequence[RotaryTables]) -> RotaryTables:
    """Return the tables of several layers as one, with a leading axis."""
    frequencies_Lh = np.stack([turned.frequencies_h for turned in layers])
    return RotaryTables(frequencies_Lh, np.asarray([turned.length for turned in layers], np.float32))


def _tables(frequencies_h: np.ndarray, length: float = 1.0) -> RotaryTables:
    return RotaryTables(frequencies_h.astype(np.float32), length)


def _blend(frequencies_h: np.ndarray, factor: float, *, kept: np.ndarray) -> np.ndarray:
    """Return frequencies as they are where `kept` is 1 or more, divided where it is 0 or less, between in between."""
    kept_h = np.clip(kept, 0, 1)
    return kept_h * frequencies_h + (1 - kept_h) * frequencies_h / factor


def _ramp(scaling: Yarn, theta: float, width: int) -> np.ndarray:
    """Return a ramp from 1 to 0 between the dimensions that turn `beta_fast` and `beta_slow` times in the original
    context (Peng et al. 2023, section 3.2), these rounded outwards."""

    def number(rounds: float) -> float:
        return width * math.log(scaling.original_context / (rounds * 2 * math.pi)) / (2 * math.log(theta))

    first = max(math.floor(number(scaling.beta_fast)), 0)
    last = min(math.ceil(number(scaling.beta_slow)), width - 1)
    return 1 - (np.arange(width // 2) - first) / ((last - first) or 1e-3)


def rotate(
    x_BTHK: Float[Array, "B T H K"],
    positions_BT: Int[Array, "B T"],
    by: RotaryTables,
) -> Float[Array, "B T H K"]:
    """Return queries or keys rotated by their positions: number i of the first half with number i of the second."""
    angles_BT1h = positions_BT[:, :, None, None].astype(jnp.float32) * by.frequencies_h
    cosine, sine = by.length * jnp.cos(angles_BT1h), by.length * jnp.sin(angles_BT1h)
    first, second = jnp.split(x_BTHK.astype(jnp.float32), 2, axis=-1)
    turned = jnp.concatenate([first * cosine - second * sine, second * cosine + first * sine], axis=-1)
    return turned.astype(x_BTHK.dtype)
