"""A metric over steps, as two flat arrays that a drawing can look into without a copy."""

from __future__ import annotations

from array import array
from bisect import bisect_right


class Series:
    """One metric over steps, which only grow: two arrays of float64, 16 bytes a point.

    `np.frombuffer(series.values)` is a view without a copy; the arrays cannot grow while such a view lives.
    """

    __slots__ = ("steps", "values", "version")

    def __init__(self) -> None:
        self.steps = array("d")
        self.values = array("d")
        #: Grows with every change, so that a drawing knows whether it is out of date.
        self.version = 0

    def __len__(self) -> int:
        return len(self.steps)

    def add(self, step: float, value: float) -> None:
        """Append; a step told again replaces what was told from there on."""
        if self.steps and step <= self.steps[-1]:
            self.cut(step - 1)
        self.steps.append(step)
        self.values.append(value)
        self.version += 1

    def cut(self, after: float) -> None:
        """Forget the points beyond step `after`."""
        keep = bisect_right(self.steps, after)
        del self.steps[keep:], self.values[keep:]
        self.version += 1

    @property
    def last(self) -> float | None:
        return self.values[-1] if self.values else None
