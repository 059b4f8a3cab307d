"""How the parameters are distributed, layer by layer."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PyTree

from trainkit.events.log import EventLog
from trainkit.models import leaf_names
from trainkit.train.state import State

BINS = 64
#: What a model calls its blocks; their leaves have a leading axis of layers.
STACKED = "blocks."


class Histogram(NamedTuple):
    """Of each of N layers (1 where a leaf has none): counts in bins of equal width from `low` to `high`."""

    low: Float[Array, " N"]
    high: Float[Array, " N"]
    counts: Int[Array, "N bins"]


def histogram(values: Float[Array, " count"]) -> Histogram:
    """Of all values; where one is not finite, the bounds are not either."""
    values = values.astype(jnp.float32)
    low, high = values.min(), values.max()
    place = jnp.floor((values - low) / jnp.where(high > low, high - low, 1) * BINS)
    counts = jnp.zeros(BINS, jnp.int32).at[jnp.clip(place, 0, BINS - 1).astype(jnp.int32)].add(1)
    return Histogram(low, high, counts)


@jax.jit
def _histograms(leaves: dict[str, Array]) -> dict[str, Histogram]:
    return {
        name: jax.vmap(histogram)(leaf.reshape(leaf.shape[0] if name.startswith(STACKED) else 1, -1))
        for name, leaf in leaves.items()
    }


def distributions(params: PyTree) -> dict[str, dict[str, Any]]:
    """Path -> `{"low", "high", "counts"}`: `parameters/token_embedding`, `parameters/layers/3/attention.qkv.weight`.

    What holds a value that is not finite is left out.
    """
    leaves = eqx.filter(params, eqx.is_inexact_array)
    named = dict(zip(jax.tree.leaves(leaf_names(leaves)), jax.tree.leaves(leaves), strict=True))
    found: dict[str, dict[str, Any]] = {}
    for name, of in jax.device_get(_histograms(named)).items():
        for layer, (low, high, counts) in enumerate(zip(*map(np.asarray, of), strict=True)):
            path = f"layers/{layer}/{name.removeprefix(STACKED)}" if name.startswith(STACKED) else name
            if math.isfinite(low) and math.isfinite(high):
                found[f"parameters/{path}"] = {"low": float(low), "high": float(high), "counts": counts.tolist()}
    return found


class ParameterHistograms:
    """Writes the distributions of a state to the log."""

    def __init__(self, log: EventLog) -> None:
        self._log = log

    def __call__(self, state: State, step: int) -> None:
        self._log.write("distributions", step=step, values=distributions(state.params))
