"""Which evaluation was the best so far, and whether the run has stopped improving.

Both follow from the log alone, so that they are the same after a kill and a resume.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path

from trainkit.events.attempts import current_events
from trainkit.events.tail import number, of_kinds
from trainkit.recipe import Recipe
from trainkit.rundir.checkpoint_files import BestMark
from trainkit.rundir.owed import falls_on


class BestSoFar:
    """The best value of the metric that `checkpoint.best` names, of all evaluations that count."""

    def __init__(self, recipe: Recipe) -> None:
        self._spec, self._every = recipe.checkpoint.best, recipe.evaluate.every
        self._patience = recipe.evaluate.patience
        named = self._spec.metric if self._spec else ""
        names = (*recipe.data.validation_names, *recipe.evaluate.tags)
        #: The set or the tag that the metric is computed on; the longest that fits, as a name may hold a slash.
        self._set = max((name for name in names if named.startswith(f"validation/{name}/")), default="")
        #: Scheduled evaluations since the best one, and the last that was counted.
        self._since, self._counted = 0, -1
        self.mark: BestMark | None = None
        """The best step, its metric and value; None where nothing was evaluated."""

    @property
    def exhausted(self) -> bool:
        """Whether as many evaluations in a row as `evaluate.patience` were no better than the best."""
        return self._patience is not None and self._since >= self._patience

    @property
    def reason(self) -> str:
        """Why the run ends early, if it does."""
        if not self.exhausted or self.mark is None:
            return ""
        evaluations = "evaluation" if self._since == 1 else f"{self._since} evaluations"
        return (
            f"stopped early: {self.mark.metric} was no better in the last {evaluations}"
            f" than {self.mark.value:.6g} at step {self.mark.step}, the best checkpoint"
        )

    def take(self, step: int, evaluated: Mapping[str, Mapping[str, float]]) -> BestMark | None:
        """Return the mark of this step if it is the best so far; None if it is not.

        Args:
            evaluated: the metrics of the sets that were evaluated after this step, by the set's name.
        """
        if self._spec is None or self._set not in evaluated:
            return None
        value = evaluated[self._set].get(self._spec.metric, math.nan)
        if self._is_better(value):
            self.mark = BestMark(step, self._spec.metric, value)
            self._since, self._counted = 0, step
            return self.mark
        if falls_on(step, self._every) and step > self._counted:
            self._since, self._counted = self._since + 1, step
        return None

    def _is_better(self, value: float) -> bool:
        assert self._spec is not None
        if self.mark is None or math.isnan(value):
            return not math.isnan(value)
        return value < self.mark.value if self._spec.mode == "min" else value > self.mark.value


def best_so_far(run_directory: Path, recipe: Recipe, *, until: int | None = None) -> BestSoFar:
    """Return the best of the evaluations that count in a run's log.

    Args:
        until: the last step that counts; None for all of them.
    """
    best = BestSoFar(recipe)
    if recipe.checkpoint.best is not None:
        for event in current_events(list(of_kinds(run_directory, "run_started", "evaluated"))):
            if event["type"] == "evaluated" and (until is None or event["step"] <= until):
                metrics = {name: number(value) for name, value in event["metrics"].items()}
                best.take(event["step"], {event["name"]: metrics})
    return best
