"""The choice of the next token. Shapes: N sequences, V vocabulary, C candidates; of equal logits, lower ids
come first."""

from __future__ import annotations

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from trainkit.errors import TrainkitError


@dataclass(frozen=True)
class Sampling:
    """How a token is drawn. The settings apply in this order: penalty, temperature, top-k, top-p, min-p.

    Hashable: each combination is compiled separately, so that unused settings cost nothing.

    Raises:
        TrainkitError: a value is out of its range.
    """

    temperature: float = 1.0
    """What logits are divided by; 0 always takes the likeliest token."""
    top_k: int | None = None
    """Only the likeliest so many are drawn from (Fan et al. 2018)."""
    top_p: float | None = None
    """Only those are drawn from than which likelier ones have together less than this (Holtzman et al. 2019)."""
    min_p: float | None = None
    """Only those are drawn from that are at least this many times as likely as the likeliest (Nguyen et al. 2024)."""
    repetition_penalty: float = 1.0
    """What the logit of a token that was there before is divided by, or multiplied where negative (Keskar et al.
    2019); 1 changes nothing."""

    def __post_init__(self) -> None:
        for name, fits, must in (
            ("temperature", 0 <= self.temperature < float("inf"), "a number from 0 on"),
            ("top_k", self.top_k is None or self.top_k >= 1, "at least 1"),
            ("top_p", self.top_p is None or 0 < self.top_p <= 1, "above 0 and at most 1"),
            ("min_p", self.min_p is None or 0 <= self.min_p <= 1, "between 0 and 1"),
            ("repetition_penalty", 0 < self.repetition_penalty < float("inf"), "above 0"),
        ):
            if not fits:
                raise TrainkitError(f"{name} must be {must}, found {getattr(self, name)}")

    @property
    def penalises(self) -> bool:
        """Return whether tokens that were seen before become less likely."""
        return self.repetition_penalty != 1


def draw(
    logits_NV: Float[Array, "N V"], keys_N: PRNGKeyArray, sampling: Sampling, *, seen_NV: Bool[Array, "N V"] | None
) -> Int[Array, " N"]:
    """Return one token for each sequence, drawn with its own key, whatever else is in the batch.

    `seen_NV` says which tokens a sequence already has; it is needed if `sampling.penalises`.
    """
    if sampling.penalises:
        assert seen_NV is not None
        logits_NV = penalise(logits_NV, seen_NV, sampling.repetition_penalty)
    if sampling.temperature == 0:
        return logits_NV.argmax(-1).astype(jnp.int32)
    logits_NC, ids_NC = candidates(logits_NV, sampling)
    chosen_N = jax.vmap(jax.random.categorical)(keys_N, logits_NC)
    if ids_NC is None:
        return chosen_N.astype(jnp.int32)
    return jnp.take_along_axis(ids_NC, chosen_N[:, None], axis=1)[:, 0].astype(jnp.int32)


def penalise(logits_NV: Float[Array, "N V"], seen_NV: Bool[Array, "N V"], penalty: float) -> Float[Array, "N V"]:
    """Return logits that make tokens seen before less likely, for a penalty above 1 (Keskar et al. 2019)."""
    less_NV = jnp.where(logits_NV > 0, logits_NV / penalty, logits_NV * penalty)
    return jnp.where(seen_NV, less_NV, logits_NV)


def candidates(
    logits_NV: Float[Array, "N V"], sampling: Sampling
) -> tuple[Float[Array, "N C"], Int[Array, "N C"] | None]:
    """Return the logits to draw by, -inf for tokens that a filter removes, and their ids; None means all, in order.

    They are sorted only where a filter needs it: of a large vocabulary that takes longer than all else here.
    """
    logits, ids = logits_NV / sampling.temperature, None
    if sampling.top_k is not None or sampling.top_p is not None:
        logits, ids = jax.lax.top_k(logits, min(sampling.top_k or logits.shape[-1], logits.shape[-1]))
    if sampling.top_p is not None:
        p_NC = jax.nn.softmax(logits, axis=-1)
        likelier_NC = jnp.cumsum(p_NC, axis=-1) - p_NC
        # the first one always stays, despite rounding
        logits = jnp.where(likelier_NC < sampling.top_p, logits, -jnp.inf).at[:, 0].set(logits[:, 0])
    if sampling.min_p:
        least_N1 = logits.max(-1, keepdims=True) + jnp.log(sampling.min_p)
        logits = jnp.where(logits < least_N1, -jnp.inf, logits)
    return logits, ids
