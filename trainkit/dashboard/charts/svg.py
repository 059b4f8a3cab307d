"""One chart as an SVG of lines and text for a page or a paper, drawn from the data and not from cells."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from xml.sax.saxutils import escape

import numpy as np

from trainkit.dashboard import theme
from trainkit.dashboard.charts import ticks, titles
from trainkit.dashboard.charts.columns import Envelope, Floats, Ints, StepRange
from trainkit.dashboard.charts.curves import (
    ChartOptions,
    Curve,
    DrawnCurve,
    points_to_draw,
    reduce_curve,
    visible_curves,
    y_range,
)
from trainkit.dashboard.charts.plot import ABOVE, BELOW, MARKS, x_ticks
from trainkit.events.series import Series
from trainkit.events.view import Marker
from trainkit.text import one_line

#: Pixels: of the picture, around the plot (left, top, right, bottom), between two columns of points, of letters.
WIDTH, HEIGHT = 960, 540
LEFT, TOP, RIGHT, BOTTOM = 76, 76, 24, 56
COLUMN, LETTERS = 1, 13
FONT = "ui-monospace, 'DejaVu Sans Mono', Menlo, Consolas, monospace"


@dataclass(frozen=True)
class _Place:
    """Where steps and values lie in the picture."""

    window: StepRange
    y: tuple[float, float]

    def x_of(self, steps: Floats) -> Floats:
        return LEFT + self.window.share(steps) * (WIDTH - LEFT - RIGHT)

    def y_of(self, values: Floats) -> Floats:
        low, high = self.y
        # limited to coordinates that any reader of SVG accepts
        return np.clip(TOP + (high - values) / (high - low) * (HEIGHT - TOP - BOTTOM), -HEIGHT, 2 * HEIGHT)

    def column(self, columns: Ints) -> Floats:
        return np.asarray(LEFT + columns * COLUMN, dtype=np.float64)


def svg(
    curves: Sequence[Curve],
    *,
    window: StepRange,
    look: ChartOptions,
    colors: Mapping[str, str],
    title: str,
    marks: Sequence[Marker] = (),
    from_zero: bool = False,
    exact: Mapping[str, Series] | None = None,
    over: str = "step",
) -> str:
    """Return the curves over the steps of the window as an SVG document; `exact` and `look` are as for `draw`.

    `over` is the label of the horizontal axis.
    """
    exact = exact or {}
    curves = visible_curves(curves, look)
    columns = (WIDTH - LEFT - RIGHT) // COLUMN + 1
    lines = [reduce_curve(c, points_to_draw(c, window, look, exact), window, columns, look) for c in curves]
    y = y_range([line.raw for line in lines], from_zero=from_zero and not look.log, whole=look.whole)
    place = _Place(window, y)
    unit = titles.unit(curves[0].metric) if curves else ""

    def color(name: str) -> str:
        return colors[name.removeprefix("$")]

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}" viewBox="0 0 {WIDTH} {HEIGHT}"'
        f' font-family="{FONT}" font-size="{LETTERS}">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="{color(theme.GROUND)}"/>',
        _text(LEFT, 26, one_line(title), color(theme.BRIGHT)),
        f'<clipPath id="plot"><rect x="{LEFT}" y="{TOP}" width="{WIDTH - LEFT - RIGHT}"'
        f' height="{HEIGHT - TOP - BOTTOM}"/></clipPath>',
        *_axes(place, look, unit, color(theme.EDGE), color(theme.DIM)),
        _text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 12, over, color(theme.DIM), anchor="middle"),
    ]
    x = LEFT
    for index, line in enumerate(lines):
        parts += [*_line(line, place, color(line.curve.color), color(line.curve.band or line.curve.color))]
        parts += [_text(sign_x, sign_y, sign, color(theme.BAD)) for sign_x, sign_y, sign in _signs(line.raw, place)]
        summary = titles.summarize(exact.get(line.curve.metric, line.curve.series), window)
        name = one_line(line.curve.label or line.curve.metric)
        words = f"{name} {titles.format_value(line.curve.metric, summary.last)}" if summary else name
        words += (
            f" ({titles.format_best(line.curve.metric, summary)})" if summary and titles.goal(line.curve.metric) else ""
        )
        parts.append(f'<rect x="{x}" y="{TOP - 29}" width="14" height="4" fill="{color(line.curve.color)}"/>')
        parts.append(_text(x + 20, TOP - 22, words, color(theme.TEXT)))
        x += round(0.62 * LETTERS * len(words)) + 44
        if x > WIDTH - RIGHT - 100 and index + 1 < len(lines):
            break
    parts += _marks(marks, place, color)
    parts.append(_text(WIDTH - RIGHT, 26, _how(lines, look, window), color(theme.DIM), anchor="end"))
    return "\n".join([*parts, "</svg>", ""])


def _how(lines: Sequence[DrawnCurve], look: ChartOptions, window: StepRange) -> str:
    """Return scale and smoothing in words, so that nobody is misled."""
    smooth = {"auto": "line: trend", "off": ""}.get(look.smoothing, f"line: EMA {look.smoothing}")
    words = [smooth if any(line.smooth for line in lines) else "", "log scale" * look.log, "log steps" * window.log]
    return ", ".join(word for word in words if word)


def _axes(place: _Place, look: ChartOptions, unit: ticks.Unit, edge: str, dim: str) -> Iterator[str]:
    find = ticks.logarithmic if look.log else ticks.linear
    for value, text in find(*place.y, most=8, unit=unit):
        y = float(place.y_of(np.asarray(value)))
        yield f'<path d="M{LEFT} {y:.1f}H{WIDTH - RIGHT}" stroke="{edge}"/>'
        yield _text(LEFT - 8, y + 4, text, dim, anchor="end")
    yield f'<path d="M{LEFT} {HEIGHT - BOTTOM}H{WIDTH - RIGHT}" stroke="{dim}"/>'
    for step, text in x_ticks(place.window, most=10):
        x = float(place.x_of(np.asarray(step)))
        yield f'<path d="M{x:.1f} {HEIGHT - BOTTOM}v5" stroke="{dim}"/>'
        yield _text(x, HEIGHT - BOTTOM + 20, text, dim, anchor="middle")


def _line(line: DrawnCurve, place: _Place, color: str, band: str) -> Iterator[str]:
    """Yield the measured line, as a band if a smooth line lies on it; or the area down to the axis."""
    curve, raw, smooth = line
    if curve.filled:
        for x, y in _pieces(raw, place, points=False):
            path = _path(x, y)
            yield f'<path d="{path}V{HEIGHT - BOTTOM}H{x[0]:.1f}Z" fill="{color}" clip-path="url(#plot)"/>'
        return
    yield from _strokes(raw, place, band if smooth else color, width=1.0 if smooth else 1.4, points=True)
    if smooth:
        yield from _strokes(smooth, place, color, width=2.0, points=False)


def _strokes(of: Envelope, place: _Place, color: str, *, width: float, points: bool) -> Iterator[str]:
    for x, y in _pieces(of, place, points=points):
        if len(x) == 1 or np.ptp(x) + np.ptp(y) == 0:
            yield f'<circle cx="{x[0]:.1f}" cy="{y[0]:.1f}" r="2.5" fill="{color}" clip-path="url(#plot)"/>'
        else:
            yield (
                f'<path d="{_path(x, y)}" fill="none" stroke="{color}" stroke-width="{width}" stroke-linejoin="round"'
                ' clip-path="url(#plot)"/>'
            )


def _pieces(of: Envelope, place: _Place, *, points: bool) -> Iterator[tuple[Floats, Floats]]:
    """The line from gap to gap: of each column its first, lowest, highest and last value, or the last alone."""
    gap = np.searchsorted(of.broken, of.columns, side="right")
    values = np.stack([of.first, of.low, of.high, of.last] if points else [of.last], axis=1)
    for _, group in groupby(range(len(of.columns)), key=lambda i: int(gap[i])):
        chosen = list(group)
        x = np.repeat(place.column(of.columns[chosen]), values.shape[1])
        yield x, place.y_of(values[chosen].ravel())


def _path(x: Floats, y: Floats) -> str:
    points: list[str] = []
    for at, level in zip(x.tolist(), y.tolist(), strict=True):
        point = f"{at:.1f} {level:.1f}"
        if not points or points[-1] != point:
            points.append(point)
    return "M" + "L".join(points)


def _signs(of: Envelope, place: _Place) -> Iterator[tuple[float, float, str]]:
    """Yield the signs at the edges for values off the scale, and for those that are not numbers."""
    low, high = place.y
    for columns, y, sign in (
        (of.columns[of.high > high], TOP - 2, ABOVE), (of.columns[of.low < low], HEIGHT - BOTTOM - 2, BELOW),
        (of.broken, HEIGHT - BOTTOM - 2, "×"),
    ):  # fmt: skip
        for column in np.unique(columns // LETTERS * LETTERS):
            yield float(place.column(column)) - 4, y, sign


def _marks(marks: Sequence[Marker], place: _Place, color: Callable[[str], str]) -> Iterator[str]:
    for kind, (sign, name) in MARKS.items():
        steps = np.array([mark.step for mark in marks if mark.kind == kind], dtype=np.float64)
        steps = steps[(steps >= place.window.low) & (steps <= place.window.high)]
        for x in np.unique(np.rint(place.x_of(steps))):
            yield _text(x, HEIGHT - BOTTOM + 5, sign, color(name), anchor="middle")


def _text(x: float, y: float, text: str, color: str, *, anchor: str = "start") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" fill="{color}" text-anchor="{anchor}">{escape(text)}</text>'
