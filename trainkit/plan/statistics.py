"""What the statistics of a recipe cost, by arithmetic: gradients of the batch, FLOPs, bytes read and bytes kept."""

from __future__ import annotations

from typing import NamedTuple

from trainkit.plan.memory import BYTES
from trainkit.plan.plan import Plan
from trainkit.recipe import Recipe
from trainkit.recipe.sections.outputs import EXTRA_PASSES, FLOAT32, StatisticName
from trainkit.text import format_bytes, format_count, plural

#: FLOPs of each trained number, and how often one is read, for what needs no other pass: a norm squares and adds, and
#: an operator norm takes 61 products with each of two matrices.
WORK: dict[StatisticName, int] = {"norms": 15, "cosines": 32, "last-parameters": 14, "matrices": 250, "hessian": 12}
READS: dict[StatisticName, int] = {"norms": 6, "cosines": 24, "last-parameters": 12, "matrices": 122, "hessian": 12}


class StatisticCost(NamedTuple):
    """What one group of statistics adds to a step that computes it."""

    name: StatisticName
    passes: float
    """Forward and backward passes of the step's batch."""
    flops: int
    """Those of the passes included."""
    read: int
    """Bytes of trained numbers read outside the passes."""
    kept: int
    """Bytes that every step updates, for the next one. What two groups share counts in both."""

    def in_words(self, step_flops: int) -> str:
        """Return the cost in words, relative to a step of so many FLOPs."""
        parts = [f"{format_count(self.flops)} FLOPs = {self.flops / step_flops:.2%} of a step"]
        if self.passes >= 1:
            parts.insert(0, f"{plural(int(self.passes), 'gradient')} more")
        elif self.passes:
            parts.insert(0, "a forward pass of a micro-batch")
        if self.read:
            parts.append(f"reads {format_bytes(self.read)}")
        if self.kept:
            parts.append(f"keeps {format_bytes(self.kept)}")
        return ", ".join(parts)


def statistic_costs(recipe: Recipe, plan: Plan) -> list[StatisticCost]:
    """Return the cost of each group that steps compute.

    `activations` and `attention` share a forward pass, a third of a gradient's work; it counts for the first of them.
    """
    spec, whole = recipe.statistics, step_flops(plan)
    forward = 1 / (3 * plan.batch.accumulation)
    found: list[StatisticCost] = []
    shared = False
    for name in spec.in_step:
        passes: float = EXTRA_PASSES.get(name, 0)
        flops, read = WORK.get(name, 0) * plan.trainable, READS.get(name, 0) * FLOAT32 * plan.trainable
        if name == "noise-scale":
            flops = 2 * plan.trainable * plan.batch.accumulation
            read = FLOAT32 * plan.trainable * plan.batch.accumulation
        if name in ("activations", "attention"):
            passes, shared = (0 if shared else forward), True
        if name == "attention":  # the scores once more, half of attention's products
            tokens = plan.tokens_per_step // plan.batch.accumulation
            length = recipe.data.positions
            flops += recipe.model.attention_flops_per_token(sequence_length=length) * tokens // 2
        params = BYTES["float32" if recipe.adapter else recipe.precision.params]
        kept = type(spec)(every=1, compute=(name,)).state_bytes(plan.trainable, params=params)
        found.append(StatisticCost(name, passes, flops + round(passes * whole), read, kept))
    return found


def step_flops(plan: Plan) -> int:
    """Return the FLOPs of a step without statistics, the optimizer's not counted."""
    return plan.flops_per_token * plan.tokens_per_step


def costs_in_words(recipe: Recipe, plan: Plan) -> list[tuple[str, str]]:
    """Return a row for each group of statistics, and one for all of them on average; nothing if steps compute none."""
    costs = statistic_costs(recipe, plan)
    if not costs:
        return []
    whole, every = step_flops(plan), recipe.statistics.every or 1
    rows = [(f"  {cost.name}", cost.in_words(whole)) for cost in costs]
    total = sum(cost.flops for cost in costs) / whole
    each = "step" if every == 1 else f"{every} steps"
    return [*rows, ("", f"together {total:.2%} of a step's FLOPs every {each}: {total / every:.2%} on average")]
