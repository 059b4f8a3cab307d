"""What [guard] decides inside the compiled step: which updates do not count."""

from __future__ import annotations

from typing import Any

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int

from trainkit.recipe.sections.guard import Guard

#: Metrics of a guarded step.
SKIPPED, SKIPPED_IN_A_ROW = "guard/skipped", "guard/skipped_in_a_row"


class GuardState(eqx.Module):
    """What the guard remembers from step to step."""

    skipped: Int[Array, ""]
    """Steps of the run that were skipped."""
    in_a_row: Int[Array, ""]
    """Steps that were skipped since the last one that counted."""


def first_guard(spec: Guard) -> GuardState | None:
    """Return the guard before the first step; None if it decides nothing inside a step."""
    return GuardState(jnp.int32(0), jnp.int32(0)) if spec.in_step else None


def judge(
    spec: Guard, before: GuardState, metrics: dict[str, Any], *, scaled: bool
) -> tuple[Bool[Array, ""], GuardState]:
    """Return whether the update of a step counts, and the guard after the step. Adds the guard's metrics.

    Args:
        metrics: has the loss and the norms of gradients and updates.
        scaled: whether the state has a loss scale, which handles gradients that overflow.
    """
    loss, gradients, updates = (metrics[name] for name in ("train/loss", "gradients/norm", "updates/norm"))
    broken = jnp.isfinite(gradients) & ~(jnp.isfinite(loss) & jnp.isfinite(updates))
    if not scaled:
        broken |= ~jnp.isfinite(gradients)
    skips = broken if spec.non_finite == "skip" else jnp.bool_(False)
    after = GuardState(before.skipped + skips, jnp.where(skips, before.in_a_row + 1, 0))
    metrics |= {SKIPPED: after.skipped, SKIPPED_IN_A_ROW: after.in_a_row}
    return ~skips, after
