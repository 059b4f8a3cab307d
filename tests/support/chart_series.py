"""Series for charts: all of their points, or those that are left after a limit."""

from __future__ import annotations

from array import array
from collections.abc import Sequence

from trainkit.events.series import Series


def series(values: Sequence[float], steps: Sequence[float] | None = None) -> Series:
    made = Series()
    made.steps = array("d", range(len(values)) if steps is None else steps)
    made.values = array("d", values)
    return made


def thinned(values: Sequence[float], *, limit: int) -> Series:
    made = Series(limit=limit)
    for step, value in enumerate(values):
        made.add(step, value)
    return made
