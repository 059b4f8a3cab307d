"""The weights of sources over the steps of a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from trainkit.data.batches.order import Mixture
from trainkit.errors import TrainkitError
from trainkit.recipe.sections.source import Source
from trainkit.recipe.sections.stages import Stages, stairs


def mixture_of(stages: Mapping[int, Sequence[float]], sizes: Stages, seed: int, *, where: str) -> Mixture:
    """Return the order of sources. Raises TrainkitError, with `where`, if in some stage none has a weight above 0."""
    for begin, weights in stages.items():
        if not any(weights):
            raise TrainkitError(f"from step {begin} on every source has the weight 0", where=where)
    return Mixture([(sizes.before(begin), weights) for begin, weights in stages.items()], seed=seed)


def stages_of(
    sources: Sequence[Source], factors: Mapping[str, Sequence[tuple[int, float]]] = {}
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


def _weight_at(source: Source, step: int) -> float:
    if not isinstance(source.weight, tuple):
        return source.weight or 0.0
    return next(weight for begin, weight in reversed(source.weight) if begin <= step)
