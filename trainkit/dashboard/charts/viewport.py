"""The steps that all charts show, and the step of their crosshair."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, Protocol
from weakref import WeakKeyDictionary, WeakSet

from textual.app import App

from trainkit.dashboard.charts.columns import StepRange
from trainkit.dashboard.charts.curves import SMOOTHINGS, ChartOptions
from trainkit.events.series import Series

#: Steps that are shown at least.
LEAST = 4.0


class Member(Protocol):
    """A chart that follows a viewport. `extent`: all steps that it has; `in_sight`: whether it is on the screen."""

    @property
    def extent(self) -> StepRange | None: ...
    @property
    def in_sight(self) -> bool: ...
    def viewport_changed(self) -> None:
        """Draw again what the viewport shows."""


class Viewport:
    """The steps that all charts of an application show, their crosshair, and their options.

    Attributes:
        range: the first and last step that all charts show; None: each shows all it has, and future steps too.
        cross: the step of the crosshair, or None.
        pinned: whether the crosshair was set by a key or a click; otherwise it follows the mouse.
        log_x: whether steps have a logarithmic axis.
        looks: a person's options for the chart of a metric; other charts have the defaults.
        exact: every point of a few steps, by metric.
        version: grows with every change of `range`, `log_x` and `exact`.
    """

    def __init__(self) -> None:
        self.range: tuple[float, float] | None = None
        self.cross: float | None = None
        self.pinned = self.log_x = False
        self.looks: dict[str, ChartOptions] = {}
        self.exact: Mapping[str, Series] = {}
        self._exact_range = (math.inf, -math.inf)
        self.version = 0
        #: Called after every change of what is shown.
        self.moved: Callable[[], object] = lambda: None
        self.members: WeakSet[Member] = WeakSet()

    def look(self, key: str) -> ChartOptions:
        """Return the options of the chart of this metric."""
        return self.looks.get(key, ChartOptions())

    def change_look(self, key: str, look: ChartOptions) -> None:
        """Set the options of the chart of this metric."""
        if look == ChartOptions():
            self.looks.pop(key, None)
        else:
            self.looks[key] = look
        self._tell()

    def next_smoothing(self, key: str) -> None:
        """Choose the next smoothing of the chart of this metric."""
        look = self.look(key)
        following = SMOOTHINGS[(SMOOTHINGS.index(look.smoothing) + 1) % len(SMOOTHINGS)]
        self.change_look(key, look._replace(smoothing=following))

    def preferences(self) -> dict[str, list[Any]]:
        """Return the options of all charts as JSON values."""
        return {key: list(look) for key, look in self.looks.items()}

    def adopt(self, preferences: object) -> None:
        """Apply the options in `preferences`; wrong values are ignored."""
        if not isinstance(preferences, dict):
            return
        for key, values in preferences.items():
            match values:
                case [bool(), str(), bool()] if isinstance(key, str) and values[1] in SMOOTHINGS:
                    self.looks[key] = ChartOptions(*values)
        self._tell()

    def whole(self) -> StepRange | None:
        """Return all steps of all visible charts; None if they have none."""
        there = [member.extent for member in self.members if member.in_sight]
        found = [extent for extent in there if extent is not None]
        if not found:
            return None
        return StepRange(min(e.low for e in found), max(e.high for e in found), all(e.log for e in found))

    def window(self, whole: StepRange | None) -> StepRange | None:
        """Return the steps to show of a chart that has the `whole`; None means all of them."""
        if self.range is None or whole is None:
            return None
        low, high = self.range
        return StepRange(max(1.0, low) if whole.log else low, high, whole.log)

    def zoom(self, factor: float, whole: StepRange, *, around: float | None = None) -> None:
        """Show `factor` times as many steps of the `whole`. The step `around` stays in place; by default it is the
        crosshair's, or else the right end."""
        shown = self.window(whole) or whole
        center = around if around is not None else self.cross if self.cross is not None else shown.high
        at = min(max(0.0, shown.share_of(center)), 1.0)
        left, right = shown.share_of(whole.low), shown.share_of(whole.high)
        # what would lie beyond one end is added at the other
        begin = max(left, min(at - at * factor, right - factor))
        low, high = shown.step(begin), shown.step(min(right, begin + factor))
        if high - low < LEAST:
            low = max(whole.low, min(center - at * LEAST, whole.high - LEAST))
            high = low + LEAST
        self._show(low, high, whole)

    def pan(self, share: float, whole: StepRange) -> None:
        """Move by a share of the window, to the right if positive, and not beyond the ends."""
        if (shown := self.window(whole)) is None:
            return
        left, right = shown.share_of(whole.low), shown.share_of(whole.high)
        share = min(max(share, left), right - 1)
        low = shown.step(share)
        # on a logarithmic axis the same share holds fewer steps further to the left
        self._show(low, max(shown.step(1 + share), min(low + LEAST, whole.high)), whole)

    def reset(self) -> None:
        """Show all steps, also those still to come."""
        self.range = None
        self._changed()

    def toggle_log_x(self) -> None:
        """Turn the logarithmic axis of steps on or off."""
        self.log_x = not self.log_x
        self._changed()

    def point(self, step: float | None, *, pinned: bool = False) -> None:
        """Put the crosshair at a step, or remove it (None). A passing mouse does not move a pinned crosshair."""
        if self.pinned and not pinned and step is not None:
            return
        step = None if step is None else float(round(step))
        if (step, pinned) != (self.cross, self.pinned):
            self.cross, self.pinned = step, pinned
            self._tell()

    def give(self, exact: Mapping[str, Series], low: float, high: float) -> None:
        """Use these exact points for any window within the steps `low` to `high`."""
        self.exact = {name: series for name, series in exact.items() if len(series)}
        self._exact_range = (low, high)
        self._changed()

    def exact_for(self, window: StepRange) -> Mapping[str, Series]:
        """Return every point of the window by metric, if they have been read."""
        low, high = self._exact_range
        return self.exact if low <= window.low and window.high <= high else {}

    def asked_for(self, low: float, high: float) -> bool:
        """Return whether the points of these steps have been read, or were too many."""
        return self._exact_range[0] <= low and high <= self._exact_range[1]

    def forget(self) -> None:
        """Drop the exact points, because they are no longer the run's."""
        self.exact, self._exact_range = {}, (math.inf, -math.inf)
        self._changed()

    def _show(self, low: float, high: float, whole: StepRange) -> None:
        low, high = max(low, whole.low), min(high, whole.high)
        everything = low <= whole.low and high >= whole.high
        self.range = None if everything or high <= low else (low, high)
        self._changed()

    def _changed(self) -> None:
        self.version += 1
        self._tell()
        self.moved()

    def _tell(self) -> None:
        for member in list(self.members):
            member.viewport_changed()


_OF: WeakKeyDictionary[App[Any], Viewport] = WeakKeyDictionary()


def viewport_of(app: App[Any]) -> Viewport:
    """The application's only viewport."""
    return _OF.setdefault(app, Viewport())
