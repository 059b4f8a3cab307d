"""The captions on the two borders of a chart: what is shown, how, and its values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from textual.content import Content

from trainkit.dashboard import theme
from trainkit.dashboard.charts import titles
from trainkit.dashboard.charts.columns import StepRange
from trainkit.dashboard.charts.curves import ChartOptions, Curve
from trainkit.dashboard.charts.plot import ABOVE, BELOW, MARKS, Picture
from trainkit.dashboard.charts.titles import Part, TitlePart
from trainkit.events.series import Series
from trainkit.events.view import Marker
from trainkit.text import one_line

#: What gives way first where there is little room (the highest), after the values of the curves.
TITLE, BEST, CHANGE, MEANING = 50, 100, 200, 300
#: What Δ compares.
DELTA = "Δ: last tenth of the steps against the first"


@dataclass(frozen=True, kw_only=True)
class Caption:
    """What a chart shows: `window` is None if it shows all steps, `exact` is as for `draw`."""

    title: Sequence[Part]
    curves: Sequence[Curve]
    marks: Sequence[Marker]
    look: ChartOptions
    picture: Picture
    window: StepRange | None
    cross: float | None
    log_x: bool
    letters: bool
    exact: Mapping[str, Series]

    def above(self, width: int) -> Content:
        """Return the upper border: the name and the last values, or those under the crosshair."""
        return titles.fit_parts(self._one(width) if len(self.curves) < 2 else self._several(), width)

    def below(self, width: int) -> Content:
        """Return the lower border: scale and smoothing, so that nobody is misled, and more about a single curve."""
        more = [piece for piece in self._more() if sum(len(text) for text, _ in piece.parts) <= width]
        return titles.fit_parts([*self._at_cross(), *self._how(), *more], width)

    def _one(self, width: int) -> list[TitlePart]:
        """Return name and value of the only curve; a name that is too long keeps its end."""
        *before, (name, color) = self.title
        values = [part for curve in self.curves for part in ((" ", theme.DIM), self._value(curve))]
        room = width - sum(len(text) for text, _ in [*before, *values])
        return [TitlePart(0, [*before, (titles.shorten(name, room), color), *values])]

    def _several(self) -> list[TitlePart]:
        """Return name and value of each curve; its best value and its change if they fit."""
        pieces = [TitlePart(TITLE, self.title)]
        if self.cross is not None:
            pieces = [TitlePart(0, [(f"step {self.cross:,.0f}", theme.BRIGHT)])]
        for index, curve in enumerate(self.curves):
            if not curve.label:
                continue
            head = titles.legend(curve, index, letters=self.letters)
            pieces.append(TitlePart(1 + index, [*head, self._value(curve)]))
            found = titles.summarize(self._series(curve), self.window)
            if self.cross is None and found is not None:
                if titles.goal(curve.metric) and found.last != found.low:
                    pieces.append(TitlePart(BEST + index, [(titles.format_best(curve.metric, found), theme.DIM)]))
                pieces.append(TitlePart(CHANGE + index, [titles.format_change(curve.metric, found)]))
        changes = any(text for piece in pieces if piece.rank >= CHANGE for text, _ in piece.parts)
        return [*pieces, TitlePart(MEANING, [(DELTA, theme.DIM)])] if changes else pieces

    def _at_cross(self) -> list[TitlePart]:
        """Return the step of the crosshair, and the marks at it, the most important first."""
        if self.cross is None:
            return []
        step = TitlePart(0, [(f"step {self.cross:,.0f}", theme.BRIGHT)] if len(self.curves) < 2 else [])
        if (cell := self.picture.cell(self.cross)) is None:
            return [step]
        low, high = self.picture.steps(cell)
        marks = [mark for mark in self.marks if low <= mark.step < high and mark.kind in MARKS]
        marks.sort(key=lambda mark: -list(MARKS).index(mark.kind))
        texts = [(f"{MARKS[mark.kind][0]} {mark.kind} {one_line(mark.text)}", theme.TEXT) for mark in marks]
        return [step, *(TitlePart(1, [text]) for text in texts)]

    def _how(self) -> list[TitlePart]:
        look, cut = self.look, self.picture.cut
        pieces = []
        if self.window is not None:
            pieces = [TitlePart(2, [(f"steps {self.window.low:,.0f}–{self.window.high:,.0f}, 0: all", theme.WARN)])]
        if any(cut):
            signs = ABOVE * cut[0] + BELOW * cut[1]
            pieces.append(TitlePart(2, [(f"{signs} off scale, o: all", theme.WARN)]))
        words = ["log"] * look.log + ["log steps"] * self.log_x
        if any(curve.band is not None for curve in self.curves) and look.smoothing != "auto":
            words.append("raw" if look.smoothing == "off" else f"EMA {look.smoothing}")
        return [*pieces, *(TitlePart(3, [(word, theme.WARN)]) for word in words)]

    def _more(self) -> list[TitlePart]:
        """Return the best value of a single curve, and its change."""
        if self.cross is not None or len(self.curves) != 1:
            return []
        (curve,) = self.curves
        if (found := titles.summarize(self._series(curve), self.window)) is None:
            return []
        best = titles.format_best(curve.metric, found)
        change = titles.format_change(curve.metric, found)
        meaning = [(DELTA, theme.DIM)] if change[0] else []
        return [TitlePart(BEST, [(best, theme.DIM)]), TitlePart(CHANGE, [change]), TitlePart(MEANING, meaning)]

    def _value(self, curve: Curve) -> Part:
        """Return the last value of a curve in the window, or the one under the crosshair."""
        series = self._series(curve)
        if self.cross is not None:
            cell = self.picture.cell(self.cross)
            found = None if cell is None else titles.value_range(series, *self.picture.steps(cell))
            return titles.format_reading(curve.metric, found)
        last = titles.last(series, self.window)
        return ("–", theme.DIM) if last is None else (titles.format_value(curve.metric, last), theme.TEXT)

    def _series(self, curve: Curve) -> Series:
        return self.exact.get(curve.metric, curve.series)
