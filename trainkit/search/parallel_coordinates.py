"""Parallel coordinates of a sweep: an axis for each swept key and one for the metric, and a line for each trial."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any
from xml.sax.saxutils import escape

import numpy as np

from trainkit.dashboard.charts import ticks
from trainkit.dashboard.charts.columns import braille_cells
from trainkit.recipe.sections.sweep import SweptKey
from trainkit.recipe.toml.values import toml_value
from trainkit.search.study import Study
from trainkit.text import one_line, plural, shorten

#: Pixels of the picture: around the axes (left, top, right, bottom), between two, and how high they are.
LEFT, TOP, RIGHT, BOTTOM, APART, HEIGHT = 100, 90, 110, 30, 170, 340
#: Red, green and blue of the best trial and of the worst.
BEST, WORST = (0, 84, 166), (214, 214, 214)
#: Lines of the drawing in a terminal, the fewest cells between two axes, and dots of a cell (down, across).
ROWS, CLOSEST, DOWN, ACROSS = 12, 10, 4, 2


@dataclass(frozen=True)
class Axis:
    """An axis: its name, where a value lies, from 0 at the bottom to 1, the labels beside it, and those of its ends."""

    name: str
    share: Callable[[Any], float]
    labels: tuple[tuple[float, str], ...]
    low: str
    high: str


@dataclass(frozen=True)
class TrialLine:
    """The line of a trial: where it crosses each axis, its rank as a share (0 is the best), and how it ended."""

    name: str
    crossings: tuple[float, ...]
    rank: float
    pruned: bool


def axes_of(study: Study) -> list[Axis]:
    """Return an axis for each swept key, and one for the metric."""
    axes = [
        _list_axis(key, swept) if swept.values else _range_axis(key, swept)
        for key, swept in study.spec.parameters.items()
    ]
    values = [end.value for _, end in study.rank() if end and math.isfinite(end.value)]
    low, high = min(values, default=0.0), max(values, default=1.0)
    return [*axes, _numbers(study.metric, low, high if high > low else low + 1.0, log=False)]


def lines_of(study: Study, axes: Sequence[Axis]) -> list[TrialLine]:
    """Return the lines of the trials with a value, the best first."""
    ended = [(trial, end) for trial, end in study.rank() if end and math.isfinite(end.value)]
    lines = []
    for place, (trial, end) in enumerate(ended):
        values = [*(trial.settings[key] for key in study.spec.parameters), end.value]
        crossings = tuple(axis.share(value) for axis, value in zip(axes, values, strict=True))
        lines.append(TrialLine(trial.directory.name, crossings, place / max(len(ended) - 1, 1), end.status == "pruned"))
    return lines


def svg(study: Study) -> str:
    """Return the picture as an SVG document."""
    axes = axes_of(study)
    lines = lines_of(study, axes)
    width, height = max(LEFT + APART * (len(axes) - 1) + RIGHT, 720), TOP + HEIGHT + BOTTOM
    best = f"{lines[0].name} is the best" if lines else "no trial has ended"
    how = "dark to light from the best to the worst, dashed if pruned"
    title = f"{study.directory.name}: {plural(len(lines), 'trial')}, {how}; {best}"
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}"'
        ' font-family="sans-serif" font-size="12">',
        f'<rect width="{width}" height="{height}" fill="#ffffff"/>',
        _text(16, 24, title),
    ]
    for line in reversed(lines):
        points = " ".join(f"{LEFT + APART * n},{_y(share):.1f}" for n, share in enumerate(line.crossings))
        dashes = ' stroke-dasharray="5 4"' if line.pruned else ""
        thick = 3 if line is lines[0] else 1.5
        parts.append(
            f'<polyline points="{points}" fill="none" stroke="{_color(line.rank)}" stroke-width="{thick}"{dashes}>'
            f"<title>{escape(one_line(line.name))}</title></polyline>"
        )
    for n, axis in enumerate(axes):
        parts += _axis_parts(axis, LEFT + APART * n, TOP - 20 - 16 * (n % 2))
    return "\n".join([*parts, "</svg>", ""])


def text_lines(study: Study, width: int) -> list[str]:
    """Return the drawing as lines of at most `width` cells; empty where it does not fit or no trial has a value."""
    axes = axes_of(study)
    lines, gap = lines_of(study, axes), (width - 1) // len(axes)
    if gap < CLOSEST or not lines:
        return []
    dots = np.zeros((ROWS * DOWN, ((len(axes) - 1) * gap + 1) * ACROSS), dtype=bool)
    for line in lines:
        columns = np.arange(dots.shape[1])
        shares = np.interp(columns, [n * gap * ACROSS for n in range(len(axes))], line.crossings)
        dots[np.rint((1 - shares) * (ROWS * DOWN - 1)).astype(int), columns] = True
    rows = [[chr(0x2800 + bits) for bits in row] for row in braille_cells(dots).tolist()]
    for row in rows:
        for n in range(len(axes)):
            row[n * gap] = "│"
    head = _columns([axis.name for axis in axes], gap)
    high, low = _columns([axis.high for axis in axes], gap), _columns([axis.low for axis in axes], gap)
    return [head, high, *("".join(row) for row in rows), low]


def _columns(texts: Sequence[str], gap: int) -> str:
    return "".join(shorten(one_line(text), gap - 1).ljust(gap) for text in texts).rstrip()


def _list_axis(key: str, swept: SweptKey) -> Axis:
    names = [toml_value(value) for value in swept.values or ()]
    places = {name: place / max(len(names) - 1, 1) for place, name in enumerate(names)}
    labels = tuple((place, name) for name, place in places.items())
    return Axis(key, lambda value: places[toml_value(value)], labels, names[0], names[-1])


def _range_axis(key: str, swept: SweptKey) -> Axis:
    assert swept.low is not None and swept.high is not None
    return _numbers(key, swept.low, swept.high, log=swept.log)


def _numbers(name: str, low: float, high: float, *, log: bool) -> Axis:
    def position(value: float) -> float:
        return math.log10(value) if log else float(value)

    begin, end = position(low), position(high)
    whole = isinstance(low, int) and isinstance(high, int)
    marks = (ticks.logarithmic if log else ticks.steps if whole else ticks.linear)(begin, end, most=6)
    labels = tuple(((at - begin) / (end - begin), f"{at:.0f}" if whole and not log else label) for at, label in marks)
    return Axis(name, lambda value: (position(value) - begin) / (end - begin), labels, f"{low:.4g}", f"{high:.4g}")


def _axis_parts(axis: Axis, x: int, name_y: int) -> Iterator[str]:
    yield f'<path d="M{x} {TOP}v{HEIGHT}" stroke="#000000"/>'
    yield _text(x, name_y, axis.name, anchor="middle")
    for share, label in axis.labels:
        yield f'<path d="M{x} {_y(share):.1f}h5" stroke="#000000"/>'
        halo = ' stroke="#ffffff" stroke-width="4" paint-order="stroke"'
        yield _text(x + 8, _y(share) + 4, label, more=halo)


def _y(share: float) -> float:
    return TOP + (1 - share) * HEIGHT


def _color(rank: float) -> str:
    return "#" + "".join(f"{round(best + (worst - best) * rank):02x}" for best, worst in zip(BEST, WORST, strict=True))


def _text(x: float, y: float, text: str, *, anchor: str = "start", more: str = "") -> str:
    return f'<text x="{x}" y="{y:.1f}" text-anchor="{anchor}"{more}>{escape(one_line(text))}</text>'
