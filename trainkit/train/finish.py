"""When a run that ends at a time must end, in steps: from the speed that is measured while it trains."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from datetime import datetime
from pathlib import Path

from trainkit.events.tail import of_kinds
from trainkit.recipe import Recipe
from trainkit.rundir.owed import falls_on

#: Steps that are measured before the first decision, without the very first one, and at most.
_FEWEST, _MOST = 5, 4096
#: The end is computed again after this share of the time that is left, but at least so many seconds.
_LOOK_SHARE, _LOOK_SECONDS = 0.1, 0.2
#: The end is moved if it would be missed by this share of all the time, and of the time that is left.
_MISSED, _MISSED_OF_REST = 0.004, 0.04


class FinishInTime:
    """Measures the speed of training and says at which step the run must end.

    What is done every so many steps (evaluations, samples, statistics) is measured apart from the steps, and counted
    exactly. Checkpoints are part of the steps that they delay, and the last one takes as long as the fastest so far. A
    pause only takes time.
    """

    def __init__(
        self,
        *,
        seconds: float,
        most: int,
        every: tuple[int | None, ...] = (),
        at_end: tuple[int | None, ...] = (),
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Begin to measure.

        Args:
            seconds: until the end.
            most: steps that the run may take.
            every: after how many steps each kind of longer work is due.
            at_end: those of them that are due after the last step too.
        """
        self._clock, self._most = clock, most
        self._total, self._ends = seconds, clock() + seconds
        self._kinds = tuple(dict.fromkeys(each for each in every if each is not None))
        self._at_end = [each for each in dict.fromkeys(at_end) if each is not None]
        self._seconds: deque[float] = deque(maxlen=_MOST)
        self._work: dict[int, float] = {}
        self._save: float | None = None
        self._last: tuple[int, float] | None = None
        self._skipped_first = False
        self._next_look = 0.0

    def interrupt(self) -> None:
        """Do not count the time since the last step as a step: the run was paused."""
        self._last = None

    def note_save(self, seconds: float) -> None:
        """Note how long a checkpoint took: nothing is trained while the last one is written."""
        self._save = seconds if self._save is None else min(seconds, self._save)

    def after(self, step: int, *, end: int) -> int | None:
        """Return the step at which the run must end, now that `step` steps are done; None to leave it at `end`."""
        now = self._clock()
        self._measure(step, now)
        left = self._ends - now
        if step >= end:  # the decay is over: a later end would raise the rate again
            return None
        if now < self._next_look or (left > 0 and len(self._seconds) < _FEWEST):
            return None
        self._next_look = now + max(_LOOK_SECONDS, _LOOK_SHARE * left)
        if left <= 0:
            return step + 1 if end > step + 1 else None
        seconds = self._seconds_per_step(left)
        found = self._end(step, left, seconds)
        missed = abs(found - end) * seconds
        return found if missed > max(_MISSED * self._total, _MISSED_OF_REST * left) else None

    def _measure(self, step: int, now: float) -> None:
        last, self._last = self._last, (step, now)
        if last is None or last[0] != step - 1:
            return
        if not self._skipped_first:  # it may have waited for data
            self._skipped_first = True
            return
        due = [every for every in self._kinds if falls_on(step - 1, every)]
        if not due:
            self._seconds.append(now - last[1])
        elif self._seconds:
            self._share_out(due, max(0.0, now - last[1] - self._seconds_per_step(1.0)))

    def _share_out(self, due: list[int], seconds: float) -> None:
        """Note how long the kinds of work took that were due together."""
        new = [every for every in due if every not in self._work]
        known = sum(self._work.get(every, 0.0) for every in due)
        for every in new:
            self._work[every] = max(0.0, seconds - known) / len(new)
        if not new and known:
            for every in due:
                self._work[every] *= seconds / known

    def _seconds_per_step(self, window: float) -> float:
        """Return the mean time of the latest steps: of as many as fill the window, but at least the fewest."""
        total, count = 0.0, 0
        for seconds in reversed(self._seconds):
            if count >= _FEWEST and total >= window:
                break
            total, count = total + seconds, count + 1
        return max(total / count, 1e-9)

    def _end(self, step: int, left: float, seconds: float) -> int:
        """Return the last step that fits into the seconds that are left."""
        left -= (self._save or 0.0) + sum(self._work.get(every, 0.0) for every in self._at_end)

        def lasts(end: int) -> float:
            times = {every: (end - 1) // every - (step - 1) // every for every in self._work}
            return (end - step) * seconds + sum(count * self._work[every] for every, count in times.items())

        fits, too_many = step + 1, max(self._most, step + 1) + 1
        while too_many - fits > 1:
            middle = (fits + too_many) // 2
            fits, too_many = (middle, too_many) if lasts(middle) <= left else (fits, middle)
        return fits


def finish_in_time(recipe: Recipe, directory: Path) -> FinishInTime | None:
    """Return what measures a run that ends at a time, from now on; None for other runs."""
    train = recipe.train
    if not train.is_timed:
        return None
    assert train.steps is not None
    evaluate, sample = recipe.evaluate.every, recipe.sample.every if recipe.sample else None
    return FinishInTime(
        seconds=train.seconds_left(now=datetime.now(), spent=seconds_spent(directory)),
        most=train.steps,
        every=(evaluate, sample, recipe.statistics.every),
        at_end=(evaluate, sample),
    )


def seconds_spent(directory: Path) -> float:
    """Return for how long the attempts of a run have trained, from compiling to the last result or checkpoint."""
    kinds = ("compiled", "evaluated", "checkpoint_saved", "control", "run_finished")
    times: dict[int, list[float]] = {}
    for event in of_kinds(directory, *kinds):
        if event["type"] == "compiled" or event["attempt"] in times:
            times.setdefault(event["attempt"], []).append(event["t"])
    return sum(max(each) - min(each) for each in times.values())
