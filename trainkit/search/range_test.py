"""The range test of learning rates (Smith 2017, arXiv:1506.01186): one short run whose rate rises by the same factor in
each step, until the loss explodes."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from trainkit.errors import FAILED, TrainkitError
from trainkit.events.schema import Event
from trainkit.events.tail import number
from trainkit.hub.recipe import load
from trainkit.parallel import hosts
from trainkit.recipe import Recipe
from trainkit.recipe.optimizers.spec import OptimizerSpec
from trainkit.recipe.sections.schedule_shapes import ExponentialRise
from trainkit.recipe.toml.files import with_values
from trainkit.recipe.toml.modes import FULL
from trainkit.recipe.toml.positions import dotted_key
from trainkit.recipe.toml.values import flat
from trainkit.run.attempt import attempt
from trainkit.run.start import Start
from trainkit.rundir.directory import create
from trainkit.track.projections import NAMES

#: The share of the earlier losses in the smoothed one.
SMOOTHING = 0.9
#: How far the smoothed loss may rise above the first one, as a share of it, before it has exploded.
MARGIN = 0.1


@dataclass(frozen=True)
class RatePoint:
    """A step of the test: its learning rate, its loss, and the mean of the losses so far, the recent ones weighted
    most."""

    step: int
    learning_rate: float
    loss: float
    smoothed: float


@dataclass(frozen=True)
class RangeTest:
    """The result of a range test."""

    points: tuple[RatePoint, ...]
    exploded: bool
    """Whether the loss exploded before the last step."""

    @property
    def lowest(self) -> RatePoint:
        """Return the point with the lowest smoothed loss."""
        return min(self.points, key=lambda point: point.smoothed)

    @property
    def steepest(self) -> RatePoint | None:
        """Return the point, before the lowest, where the smoothed loss falls fastest by the logarithm of the rate; None
        where it never falls."""
        points = self.points[: self.points.index(self.lowest) + 1]
        falls = [(points[at - 1].smoothed - points[at + 1].smoothed, points[at]) for at in range(1, len(points) - 1)]
        fall, point = max(falls, key=lambda pair: pair[0], default=(0.0, None))
        return point if fall > 0 else None

    def as_json(self) -> dict[str, Any]:
        """Return the result as plain JSON; rates in the units of `optimizer.learning_rate`."""
        steepest = self.steepest
        return {
            "suggestion": steepest.learning_rate if steepest else None,
            "lowest": self.lowest.learning_rate,
            "exploded": self.exploded,
            "points": [asdict(point) for point in self.points],
        }


class _Enough(BaseException):
    """Ends the run of a test. It is no `Exception`: for those the trainer would save its state."""


class RateRecorder:
    """Collects the points of a test from the events of its run, and raises `_Enough` at its end."""

    def __init__(self, steps: int) -> None:
        self.points: list[RatePoint] = []
        self.exploded = False
        self._steps, self._sum = steps, 0.0

    def __call__(self, event: Event) -> None:
        if event["type"] != "step":
            return
        if "train/loss" not in event["metrics"]:  # a batch without targets
            if event["step"] == self._steps:
                raise _Enough
            return
        loss = number(event["metrics"]["train/loss"])
        if not math.isfinite(loss):
            self.exploded = True
            raise _Enough
        self._sum = SMOOTHING * self._sum + (1 - SMOOTHING) * loss
        smoothed = self._sum / (1 - SMOOTHING ** (len(self.points) + 1))
        rate = number(event["metrics"]["optimizer/learning_rate"])
        self.points.append(RatePoint(event["step"], rate, loss, smoothed))
        first, lowest = self.points[0].smoothed, min(point.smoothed for point in self.points)
        self.exploded = smoothed > first + MARGIN * max(abs(first), first - lowest)
        if self.exploded or event["step"] == self._steps:
            raise _Enough


def find_rate(
    path: Path, overrides: Sequence[str] = (), *, mode: str = FULL, low: float, high: float, steps: int
) -> RangeTest:
    """Train the recipe for at most `steps` steps with rates from `low` to `high`, in a temporary directory.

    Nothing is evaluated, saved or sent to a tracker. The steps replace the length of the recipe, also a time.

    Raises:
        TrainkitError: the recipe cannot be trained, the rates do not rise, or the run was stopped.
    """
    if hosts.count() > 1:
        raise TrainkitError("find-lr works with one process only", hint=f"unset {hosts.ADDRESS}")
    if not 0 < low < high < math.inf:
        raise TrainkitError(
            f"the rates must rise from above 0, found {low:g} to {high:g}", where="--low, --high", hint="--low 1e-6"
        )
    record = RateRecorder(steps)
    with tempfile.TemporaryDirectory(prefix="trainkit-find-lr-") as directory:
        loaded = load(path, overrides, mode=mode)
        recipe = _training_only(loaded.recipe)
        schedule = ExponentialRise(type="exponential-rise", first_ratio=low / high)
        recipe = with_values(
            recipe,
            run=with_values(recipe.run, directory=directory),
            train=recipe.train.with_steps(steps),
            optimizer=_in_proportion(recipe.optimizer, high / recipe.optimizer.learning_rate),
            schedule=schedule,
        )
        origins = dict.fromkeys(map(dotted_key, flat(recipe)), "trainkit find-lr") | loaded.origins
        loaded = replace(loaded, recipe=recipe, origins=origins)
        try:
            attempt(create(loaded), Start(), loaded=loaded, echo=record)
        except _Enough:
            if len(record.points) > 2:
                return RangeTest(tuple(record.points), record.exploded)
            raise TrainkitError(
                f"the loss exploded in step {len(record.points) + 1}, at the lowest rates",
                where="--low",
                hint=f"begin lower: --low {low / 1000:g}",
                exit_code=FAILED,
            ) from None
    raise TrainkitError("the test was stopped before its end", exit_code=FAILED)


def _in_proportion(rule: OptimizerSpec, factor: float) -> OptimizerSpec:
    """Return a rule whose learning rate, and those of rules inside it and of its groups, are `factor` times as high.

    Otherwise the rates of embeddings, say, would be another share of the tested rate, which depends on the highest one.
    """
    inner = {name: _in_proportion(value, factor) for name, value in rule if isinstance(value, OptimizerSpec)}
    groups = tuple(
        with_values(group, optimizer=_in_proportion(group.optimizer, factor)) if group.optimizer else group
        for group in rule.groups
    )
    return with_values(rule, learning_rate=rule.learning_rate * factor, groups=groups, **inner)


def _training_only(recipe: Recipe) -> Recipe:
    """Return the recipe without evaluations, samples, statistics, averages, exports, trackers, checkpoints on the way
    and [guard], which would skip the steps that show where training diverges."""
    return with_values(
        recipe,
        evaluate=with_values(recipe.evaluate, every=None, patience=None),
        sample=None,
        average=None,
        export=None,
        track=with_values(recipe.track, **dict.fromkeys(NAMES, False)),
        statistics=type(recipe.statistics)(),
        guard=type(recipe.guard)(),
        checkpoint=with_values(recipe.checkpoint, every_minutes=None, keep_every=None),
    )
