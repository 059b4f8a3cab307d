"""Values of [schedules] that change at given steps: the batch size, the length of sequences, and the mixture."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from itertools import accumulate, pairwise
from typing import Annotated

from pydantic import Field

from trainkit.recipe.sections.source import SourceSpec
from trainkit.recipe.spec import Count, Index, NotNegative

Step = Index
StageList = Annotated[tuple[tuple[Step, Count], ...], Field(min_length=1)]
"""The steps after which a value begins, each with the value; the first is 0."""
Points = Annotated[tuple[tuple[Step, NotNegative], ...], Field(min_length=1)]
"""The steps at which straight lines meet, each with a factor."""
#: The most steps of the staircase that stands for a straight line of weights.
STAIRS = 100


class Stages:
    """A whole number above 0 for each step of a run."""

    def __init__(self, stages: Sequence[tuple[int, int]]) -> None:
        """`stages` are (updates before it, value), the first after 0 updates."""
        assert stages[0][0] == 0
        self.begins = [begin for begin, _ in stages]
        self.values = [value for _, value in stages]
        sums = ((end - begin) * value for (begin, value), (end, _) in pairwise(stages))
        self._before = [0, *accumulate(sums)]

    def at(self, step: int) -> int:
        """Return the value of the update after `step` others."""
        return self.values[bisect_right(self.begins, step) - 1]

    def before(self, step: int) -> int:
        """Return the sum of the values of the first `step` updates."""
        stage = bisect_right(self.begins, step) - 1
        return self._before[stage] + (step - self.begins[stage]) * self.values[stage]

    def steps_for(self, total: int) -> int:
        """Return the fewest updates whose values together are at least `total`."""
        stage = max(bisect_right(self._before, max(total - 1, 0)) - 1, 0)
        return self.begins[stage] - (self._before[stage] - total) // self.values[stage]


def check_stages(key: str, stages: Sequence[tuple[int, int]], *, largest: int, of: str) -> None:
    """Raise ValueError if stages do not begin at step 0, do not rise, or never have the `largest` value, which is that
    of the key `of`."""
    check_begins(key, stages, unit="step")
    most = max(value for _, value in stages)
    if most != largest:
        raise ValueError(
            f"schedules.{key} reaches {most}, and {of} = {largest}, for which memory is planned: make them the same"
        )


def check_begins(key: str, stages: Sequence[tuple[int, int]], *, unit: str) -> None:
    """Raise ValueError if the first of some stages does not begin at 0, or the others do not rise."""
    begins = [begin for begin, _ in stages]
    if begins[0] != 0 or any(after <= before for before, after in pairwise(begins)):
        raise ValueError(f"schedules.{key} must begin at {unit} 0 and list its {unit}s in rising order, found {begins}")


def token_stages(stages: Sequence[tuple[int, int]], length: int) -> tuple[tuple[int, int], ...]:
    """Return the batch sizes of `stages` of tokens: (updates before it, sequences of `length`), of each at least one
    update.

    Args:
        stages: (tokens before it, tokens of a step), the first after 0 tokens.
    """
    found = [(0, stages[0][1] // length)]
    seen = 0
    for (_, before), (begin, tokens) in pairwise(stages):
        updates = max(1, -(-(begin - seen) // before))
        seen += updates * before
        found.append((found[-1][0] + updates, tokens // length))
    return tuple(found)


def factor_at(points: Sequence[tuple[int, float]], step: float) -> float:
    """Return the value at a step of straight lines between points; before the first and after the last, theirs."""
    for (begin, first), (end, last) in pairwise(points):
        if begin <= step < end:
            return first + (last - first) * (step - begin) / (end - begin)
    return points[0][1] if step < points[0][0] else points[-1][1]


def stairs(mixture: Mapping[str, Sequence[tuple[int, float]]]) -> dict[int, dict[str, float]]:
    """Return the factors of a mixture by the step from which on they hold: each line as at most `STAIRS` equal steps,
    with its values at their middles."""
    steps = sorted({step for points in mixture.values() for step, _ in points} | {0})
    found: dict[int, dict[str, float]] = {}
    for begin, end in pairwise(steps):
        changes = any(factor_at(points, begin) != factor_at(points, end) for points in mixture.values())
        count = min(STAIRS, end - begin) if changes else 1
        edges = [begin + (end - begin) * number // count for number in range(count + 1)]
        for first, last in pairwise(edges):
            middle = (first + last - 1) / 2
            found[first] = {name: factor_at(points, middle) for name, points in mixture.items()}
    found[steps[-1]] = {name: factor_at(points, steps[-1]) for name, points in mixture.items()}
    return found


def mixture_stages(
    sources: Sequence[SourceSpec], factors: Mapping[str, Sequence[tuple[int, float]]] = {}
) -> dict[int, list[float]]:
    """Return the weight of each source in each stage of the mixture, by the step with which the stage begins.

    Args:
        factors: of the weights of some sources, as points of lines: see `[schedules] mixture`.
    """
    begins = {step for source in sources if isinstance(source.weight, tuple) for step, _ in source.weight} | {0}
    scaled = stairs(factors) if factors else {}
    stages = {}
    for begin in sorted(begins | scaled.keys()):
        now = next((found for first, found in reversed(scaled.items()) if first <= begin), {})
        stages[begin] = [_weight_at(source, begin) * now.get(source.name or "", 1.0) for source in sources]
    return stages


def _weight_at(source: SourceSpec, step: int) -> float:
    if not isinstance(source.weight, tuple):
        return source.weight or 0.0
    return next(weight for begin, weight in reversed(source.weight) if begin <= step)


def check_mixture(stages: Mapping[int, Sequence[float]], *, key: str) -> None:
    """Raise ValueError, with the key that says so, if in some stage of a mixture no source has a weight above 0."""
    for begin, weights in stages.items():
        if not any(weights):
            raise ValueError(f"{key}: from step {begin} on every source has the weight 0; one must have more")
