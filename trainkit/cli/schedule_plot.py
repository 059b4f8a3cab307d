"""Values over the steps of a run as text: what `trainkit plan --plot` draws."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from trainkit.dashboard.charts import ticks
from trainkit.dashboard.charts.columns import braille_cells
from trainkit.recipe.sections.schedule_spec import NEVER, ScheduleSpec
from trainkit.recipe.sections.stages import mixture_stages

if TYPE_CHECKING:
    from trainkit.recipe import Recipe

#: Returns the values at some steps.
Values = Callable[[npt.NDArray[np.intp]], npt.NDArray[Any]]
#: Lines of a plot, dots of a character in each direction, and the values that are computed for each column of dots.
ROWS, DOWN, ACROSS, SAMPLES = 8, 4, 2, 4
#: Cells of the numbers beside a plot, and between two numbers under it.
GUTTER, APART = 9, 16


def draw_schedules(recipe: Recipe, *, steps: int, width: int) -> list[str]:
    """Return lines of at most `width` cells with the scheduled values of a run over its steps."""
    title = f"optimizer.learning_rate over {steps:,} steps, type = {recipe.schedule.type!r}"
    if recipe.train.is_timed:
        title = f"{title}, if it takes them all"
    plots: list[tuple[str, Values]] = [(title, _rates(recipe.schedule, recipe.optimizer.learning_rate, steps))]
    for name, schedule in recipe.optimizer_schedules.items():
        plots += [
            (f"optimizer.{key}, type = {schedule.type!r}", _rates(schedule, value, steps))
            for key, value in recipe.optimizer.scheduled_values(name).items()
            if value
        ]
    if len(recipe.batch_sizes.values) > 1:
        plots.append(("sequences in a batch", np.vectorize(recipe.batch_sizes.at)))
    if len(recipe.step_lengths.values) > 1:
        plots.append(("length of sequences", np.vectorize(recipe.step_lengths.at)))
    plots += _mixture(recipe)
    return [line for title, values in plots for line in ("", title[:width], *_draw(values, steps=steps, width=width))]


def _rates(schedule: ScheduleSpec, peak: float, steps: int) -> Values:
    def values(at: npt.NDArray[np.intp]) -> npt.NDArray[np.float64]:
        found = schedule.rate(at, peak=peak, steps=steps, decay_start=NEVER, xp=np)
        return np.broadcast_to(np.asarray(found, dtype=np.float64), at.shape)

    return values


def _mixture(recipe: Recipe) -> list[tuple[str, Values]]:
    """Return the share of each source in a mixture that changes, with its title."""
    sources = recipe.data.train
    stages = mixture_stages(sources, (recipe.schedules and recipe.schedules.mixture) or {})
    if len(stages) < 2:
        return []
    begins = np.array(list(stages))
    weights = np.array(list(stages.values()))
    shares = weights / np.maximum(weights.sum(axis=1, keepdims=True), 1e-300)

    def of_source(number: int) -> Values:
        return lambda at: shares[np.searchsorted(begins, at, side="right") - 1, number]

    names = [source.name or f"source-{number}" for number, source in enumerate(sources)]
    return [(f"share of {name} in the examples", of_source(number)) for number, name in enumerate(names)]


def _draw(values: Values, *, steps: int, width: int) -> list[str]:
    cells = max(width - GUTTER - 2, 1)
    low, high = _columns(values, steps, ACROSS * cells)
    top = float(high.max()) or 1.0
    bottoms, tops = (np.rint((1 - level / top) * (DOWN * ROWS - 1)) for level in (low, high))
    rows = np.arange(DOWN * ROWS)[:, None]
    lines = braille_cells((rows >= tops) & (rows <= bottoms))
    labels = {0: f"{top:.3g}", ROWS - 1: "0"}
    drawn = [
        f"{labels.get(row, ''):>{GUTTER}} ┤{''.join(chr(0x2800 + bits) for bits in line)}".rstrip("\u2800")
        for row, line in enumerate(lines.tolist())
    ]
    return [*drawn, _step_numbers(steps, cells)]


def _columns(values: Values, steps: int, columns: int) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Return the lowest and the highest value in each column of dots, each joined to the column before it."""
    places = np.linspace(0, steps - 1, SAMPLES * columns)
    at = np.unique(np.rint(places).astype(np.intp))
    found = np.interp(places, at, values(at)).reshape(columns, SAMPLES)
    before = np.concatenate([found[:1, 0], found[:-1, -1]])
    return np.minimum(found.min(axis=1), before), np.maximum(found.max(axis=1), before)


def _step_numbers(steps: int, cells: int) -> str:
    line = [" "] * (GUTTER + 2 + cells)
    for step, text in ticks.steps(0, steps, most=max(cells // APART, 2)):
        begin = GUTTER + 2 + round(step / max(steps, 1) * (cells - 1))
        begin = min(begin, len(line) - len(text))
        line[begin : begin + len(text)] = text
    return "".join(line).rstrip()
