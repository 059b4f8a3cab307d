"""Several runs beside each other: their results, and their curves over steps, tokens or time."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from trainkit.errors import TrainkitError
from trainkit.events.series import Series
from trainkit.events.view import View
from trainkit.rundir import recipes
from trainkit.rundir.follow import LogFollower
from trainkit.text import format_count, format_quantity

#: The horizontal axes of a curve. Time is the sum of the seconds of the steps that count, without pauses, evaluations,
#: caching, and steps that a resumed attempt did again.
Axis = Literal["steps", "tokens", "training time"]
AXES: tuple[Axis, ...] = ("steps", "tokens", "training time")
SECONDS = "time/step"
#: The arrays of a series that hold steps.
_PLACES = ("steps", "first_steps", "low_at", "high_at", "broken")

#: Seconds for which one call reads a log.
SLICE = 0.03

Floats = npt.NDArray[np.float64]


class Other:
    """A run to compare with: its log, followed as it grows, and its recipe."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.recipe: Mapping[str, str] = {}
        self.loading = True
        self._source = LogFollower(directory)

    @property
    def view(self) -> View:
        """Return the view of the run as far as its log has been read."""
        return self._source.view

    @property
    def problem(self) -> str:
        """Return what is wrong with its log; empty if nothing is."""
        return self._source.problem

    def advance(self) -> None:
        """Read more of the log, for at most about `SLICE` seconds."""
        self.loading = self._source.advance(seconds=SLICE)


def results(views: Sequence[View]) -> list[tuple[str, ...]]:
    """Return rows of text, with a column for each run after the label: steps, losses (last and best), pace, training
    time."""
    rows: list[tuple[str, ...]] = [("step", *(f"{view.step}/{view.total_steps or '?'}" for view in views))]
    sets = list(dict.fromkeys(name for view in views for name in view.validation_sets()))
    for metric in ("train/loss", *(f"validation/{name}/loss" for name in sets)):
        series_of_runs = [view.series.get(metric) for view in views]
        rows.append((f"{metric}, last", *(_last(series) for series in series_of_runs)))
        if metric != "train/loss":
            rows.append((f"{metric}, best", *(_best(series) for series in series_of_runs)))
    rows.append(("tokens/s", *(format_count(v.tokens_per_second) if v.tokens_per_second else "–" for v in views)))
    rows.append(("trained for", *(_training_seconds(view) for view in views)))
    return rows


def along(series: Series, view: View, axis: Axis, *, seconds: float = 1.0) -> Series | None:
    """Return a metric of `view` over another axis, in tokens or units of `seconds`; None if the run does not record
    that axis."""
    if axis == "steps":
        return series
    if axis == "tokens":
        per_step = view.plan.get("tokens_per_step")
        if not isinstance(per_step, int | float) or isinstance(per_step, bool) or per_step <= 0:
            return None
        return _map_points(series, _tokens_at(view.plan))
    times = view.series.get(SECONDS)
    if not times:
        return None
    steps, passed = training_seconds(times)
    return _map_points(series, lambda at: np.interp(at, steps, passed / seconds))


def _tokens_at(plan: Mapping[str, Any]) -> Callable[[Floats], Floats]:
    """Return the function from steps to the tokens of a run until then, by its plan, whose batches may change."""
    if not (stages := plan.get("stages")):
        per_step = float(plan["tokens_per_step"])
        return lambda steps: steps * per_step
    edges = np.array([*(stage["begin"] for stage in stages), plan["steps"]], np.float64)
    rows = np.cumsum([0.0, *(np.diff(edges) * [stage["batch_size"] for stage in stages])])
    return lambda steps: np.interp(steps, edges, rows / rows[-1] * plan["total_tokens"])


def training_seconds(times: Series) -> tuple[Floats, Floats]:
    """Return (steps, seconds of training until each was done), summed from the seconds that each step took.

    Steps that are missing from the log count as the mean of the steps after them.
    """
    last, values = np.array(times.steps), np.array(times.values)
    if times.stride > 1:
        totals, counts = np.array(times.totals), np.array(times.counts)
    else:
        counts = np.isfinite(values).astype(np.float64)
        totals = np.where(counts > 0, values, 0.0)
    usual = totals.sum() / max(1.0, counts.sum())
    mean = np.divide(totals, counts, out=np.full_like(totals, usual), where=counts > 0)
    seconds = np.maximum(0.0, mean) * np.diff(last, prepend=0.0)
    return np.concatenate([[0.0], last]), np.concatenate([[0.0], np.cumsum(seconds)])


def time_unit(views: Sequence[View]) -> tuple[str, float]:
    """Return the unit of training time for these runs, and its seconds."""
    longest = max((_trained_for(view) for view in views), default=0.0)
    for unit, seconds in ((", days", 86400.0), (", hours", 3600.0), (", minutes", 60.0)):
        if longest >= 3 * seconds:
            return unit, seconds
    return ", seconds", 1.0


def recipe_of(directory: Path) -> dict[str, str]:
    """Return the values of a run's recipe by dotted key; empty if it cannot be read."""
    try:
        return recipes.values(directory)
    except TrainkitError:
        return {}


def _map_points(series: Series, place: Callable[[Floats], Floats]) -> Series:
    """Return the same points at other places on the axis, which grow with the steps."""
    moved = Series(stride=series.stride, limit=None)
    moved.version = series.version
    for name in Series.FIELDS if series.stride > 1 else ("steps", "values"):
        column = np.array(getattr(series, name))
        setattr(moved, name, array("d", (place(column) if name in _PLACES else column).tobytes()))
    return moved


def _last(series: Series | None) -> str:
    return format_quantity(series.last) if series and series.last is not None else "–"


def _best(series: Series | None) -> str:
    best = series.lowest if series else None
    return f"{format_quantity(best.value)} at {best.step:,.0f}" if best else "–"


def _training_seconds(view: View) -> str:
    return f"{_trained_for(view):,.1f} s" if view.series.get(SECONDS) else "–"


def _trained_for(view: View) -> float:
    times = view.series.get(SECONDS)
    return float(training_seconds(times)[1][-1]) if times else 0.0
