"""What [guard] decides inside the compiled step: which updates do not count.

W = losses in the window. The robust z-score is that of `events/alerts.py`, which announces what is decided here.
"""

from __future__ import annotations

from dataclasses import replace
from statistics import NormalDist
from typing import Any

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from trainkit.events.alerts import ENOUGH, LEAST_LOSS
from trainkit.recipe.sections.guard import Guard

#: Metrics of a guarded step: the steps skipped so far and since the last one that counted; the robust z-score of its
#: loss; by how much the median of the last losses is above the lowest median of the run.
SKIPPED, SKIPPED_IN_A_ROW, SCORE, DRIFT = (
    "guard/skipped", "guard/skipped_in_a_row", "guard/score", "guard/drift",
)  # fmt: skip
#: The median distance from the mean of a normal distribution, in standard deviations.
NORMAL_MAD = NormalDist().inv_cdf(0.75)


class Losses(eqx.Module):
    """The last losses of steps that counted."""

    window: Float[Array, " W"]
    count: Int[Array, ""]
    """Losses of the run so far."""
    lowest: Float[Array, ""]
    """The lowest median that a full window has had; infinite before there was one."""
    spread: Float[Array, ""]
    """The median distance from it."""


class GuardState(eqx.Module):
    """What the guard remembers from step to step."""

    skipped: Int[Array, ""]
    """Steps of the run that were skipped."""
    in_a_row: Int[Array, ""]
    """Steps that were skipped since the last one that counted."""
    losses: Losses | None
    """None if no loss is compared with earlier ones."""


def first_guard(spec: Guard) -> GuardState | None:
    """Return the guard before the first step; None if it decides nothing inside a step."""
    if not spec.in_step:
        return None
    losses = Losses(jnp.zeros(spec.window, jnp.float32), jnp.int32(0), jnp.float32(jnp.inf), jnp.float32(0))
    return GuardState(jnp.int32(0), jnp.int32(0), losses if spec.remembers_losses else None)


def judge(
    spec: Guard, before: GuardState, metrics: dict[str, Any], *, weight: Float[Array, ""], scaled: bool
) -> tuple[Bool[Array, ""], GuardState]:
    """Return whether the update of a step counts, and the guard after the step. Adds the guard's metrics.

    Args:
        metrics: has the loss and the norms of gradients and updates.
        weight: the sum of the weights; without any there is no loss.
        scaled: whether the state has a loss scale, which handles gradients that overflow.
    """
    loss, gradients, updates = (metrics[name] for name in ("train/loss", "gradients/norm", "updates/norm"))
    broken = jnp.isfinite(gradients) & ~(jnp.isfinite(loss) & jnp.isfinite(updates))
    if not scaled:
        broken |= ~jnp.isfinite(gradients)
    skips = broken if spec.non_finite == "skip" else jnp.bool_(False)
    losses = before.losses
    if losses is not None:
        metrics[SCORE] = score = jnp.where(weight > 0, _score(losses, loss), 0)
        if spec.spike == "skip":
            skips |= score > spec.threshold
        losses = _remember(losses, loss, counts=(weight > 0) & jnp.isfinite(loss) & ~skips)
        losses, metrics[DRIFT] = _drift(losses)
    after = GuardState(before.skipped + skips, jnp.where(skips, before.in_a_row + 1, 0), losses)
    metrics |= {SKIPPED: after.skipped, SKIPPED_IN_A_ROW: after.in_a_row}
    return ~skips, after


def _score(losses: Losses, loss: Float[Array, ""]) -> Float[Array, ""]:
    """Return the robust z-score of a loss that is not in the window; 0 if it is not finite, or there are too few."""
    median, mad = _centre(losses)
    enough = jnp.minimum(losses.count, losses.window.size) >= ENOUGH
    return jnp.where(enough & jnp.isfinite(loss), _distance(loss, median, mad), 0)


def _drift(losses: Losses) -> tuple[Losses, Float[Array, ""]]:
    """Return the losses with their lowest median, and the distance of the present one from it; 0 if none is known."""
    median, mad = _centre(losses)
    full, known = losses.count >= losses.window.size, jnp.isfinite(losses.lowest)
    drift = jnp.where(full & known, _distance(median, losses.lowest, losses.spread), 0)
    lower = full & (median < losses.lowest)
    lowest, spread = jnp.where(lower, median, losses.lowest), jnp.where(lower, mad, losses.spread)
    return replace(losses, lowest=lowest, spread=spread), drift


def _distance(value: Array, median: Array, mad: Array) -> Array:
    # a product with infinity, where there is no median yet, is chosen by nobody
    return NORMAL_MAD * (value - median) / jnp.maximum(jnp.maximum(mad, LEAST_LOSS * jnp.abs(median)), 1e-30)


def _centre(losses: Losses) -> tuple[Float[Array, ""], Float[Array, ""]]:
    """Return the median of the window and the median distance from it, the upper one of two."""
    size = losses.window.size
    filled = jnp.minimum(losses.count, size)
    used = jnp.arange(size) < filled
    median = jnp.sort(jnp.where(used, losses.window, jnp.inf))[filled // 2]
    return median, jnp.sort(jnp.where(used, jnp.abs(losses.window - median), jnp.inf))[filled // 2]


def _remember(losses: Losses, loss: Float[Array, ""], *, counts: Bool[Array, ""]) -> Losses:
    place = losses.count % losses.window.size
    window = losses.window.at[place].set(jnp.where(counts, loss, losses.window[place]))
    return replace(losses, window=window, count=losses.count + counts)
