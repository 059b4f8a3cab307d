"""Follow or replay the log of a run in slices, so that even a very long log opens without a freeze."""

from __future__ import annotations

import time
from pathlib import Path

from trainkit.events.attempts import kept_until
from trainkit.events.current_steps import MOST, CurrentSteps
from trainkit.events.index import Stretch, stretches
from trainkit.events.reducer import reduce
from trainkit.events.schema import FOREIGN, SCHEMA, Event
from trainkit.events.series import Series
from trainkit.events.tail import Tail, parse
from trainkit.events.view import Pace, State, View, alive, is_resuming, state

#: Bytes parsed at once (a millisecond or two), and seconds between two looks at the trainer's process.
SLICE_BYTES, LOOK_EVERY = 1 << 17, 1.0
#: The speeds of a replay: seconds of the run per second.
SPEEDS = (0.25, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 100.0, 1000.0)
#: The longest pause between two events, in seconds, that a replay plays in full: it skips a night between two attempts.
LONGEST_GAP = 10.0


class LogFollower:
    """A view of a run that follows its log. Stretches that the log's index summarises are not read line by line."""

    def __init__(self, run_directory: Path) -> None:
        self._directory = run_directory
        self._alive, self._resuming, self._looked = True, False, 0.0
        #: The attempt whose process was checked last.
        self._looked_of = 0
        #: The time of the newest event when the process was last checked.
        self._heard: float | None = None
        self._rewind()

    def advance(self, *, seconds: float) -> bool:
        """Read new events for at most about `seconds`, and return whether more are waiting."""
        until, left = time.monotonic() + seconds, 0
        while self._fold_stretch() or self._fold_lines():
            if time.monotonic() >= until:
                left = self._tail.bytes_left()
                break
        self._unread = left if left > (SLICE_BYTES if self._caught_up else 0) else 0
        self._caught_up |= not left
        return left > 0

    @property
    def read_share(self) -> float | None:
        """Return how much of the log has been read, 0 to 1; None if the view is up to date, or nearly."""
        return self._tail.offset / (self._tail.offset + self._unread) if self._unread else None

    def detail(self, low: float, high: float) -> dict[str, Series]:
        """Return every point of every metric from step `low` to `high`, read from the log again, to zoom in beyond the
        view's buckets.

        Empty if there would be too many points. Takes up to a second; any thread may call it.
        """
        return self._course.points(max(low, 0), min(high, self.view.step))

    def now(self) -> float:
        """Return the moment that is shown, in Unix seconds."""
        return time.time()

    def state(self, now: float) -> State:
        """Return what the run is doing at `now` (Unix seconds); "waiting" until the log has been read to its end."""
        if self._unread:
            return "waiting"
        if self._looked_of != self.view.attempt or abs(now - self._looked) >= LOOK_EVERY:
            heard, self._heard = self._heard, self.view.last_event
            # a trainer that has written since the last check was alive a moment ago
            wrote = heard is not None and self._heard is not None and max(heard, now - 2 * LOOK_EVERY) < self._heard
            self._alive, self._looked, self._looked_of = wrote or alive(self.view), now, self.view.attempt
            over = self.view.finished or not self._alive
            self._resuming = bool(over) and is_resuming(self.view, self._directory)
        return state(self.view, now, self._alive, self._resuming)

    @property
    def problem(self) -> str:
        """Return what is wrong with the log, in a few words; empty if nothing is."""
        if self._unreadable:
            return f"its log cannot be read: {self._unreadable}"
        if self._schema > SCHEMA:
            return f"written by a newer trainkit (schema {self._schema}): not all of it may be shown"
        if self.view.last_event is None and self._tail.offset:
            return "its log holds no event"
        lines = "1 line" if self._foreign == 1 else f"{self._foreign:,} lines"
        return f"{lines} of its log not written by trainkit" if self._foreign else ""

    def _rewind(self) -> None:
        """Start again before the first event."""
        self._schema, self._foreign, self._unreadable = 0, 0, ""
        self.view = View()
        #: Bytes that are still to be read, if so many that the view is out of date; else 0.
        self._unread = 0
        self._caught_up: bool = False
        self._tail: Tail = Tail(self._directory)
        self._course = CurrentSteps(self._directory)
        self._stretches = stretches(self._directory)
        self._ahead: Stretch | None = next(self._stretches, None)

    def _read(self) -> list[tuple[int, Event]]:
        """Return the next lines, up to the next stretch of the index, each with the byte at which it begins."""
        while self._ahead and self._ahead.begin <= self._tail.offset:
            self._ahead = next(self._stretches, None)
        limit = min(SLICE_BYTES, self._ahead.begin - self._tail.offset) if self._ahead else SLICE_BYTES
        try:
            lines, self._unreadable = self._tail.poll_with_places(limit_bytes=limit), ""
        except OSError as error:
            lines, self._unreadable = [], error.strerror or str(error)
        if self._tail.replaced:  # another run has taken the directory
            self._rewind()
            return self._read()
        return lines

    def _fold_lines(self) -> bool:
        tail, begin = self._tail, self._tail.offset
        for offset, event in self._read():
            self._fold(offset, event)
        # lines that hold no event are progress too
        return self._tail is not tail or tail.offset > begin

    def _fold(self, offset: int, event: Event) -> None:
        """Apply the event whose line begins at this byte of the log; count an event that no trainer wrote."""
        try:
            self._take(offset, event)
        except FOREIGN:
            self._foreign += 1

    def _take(self, offset: int, event: Event) -> None:
        lost: dict[str, Series] = {}
        if (done := kept_until(event)) is not None:
            self._schema = max(self._schema, event["schema"])
            lost = self._lost_points(done)
            self._course.mark(done, offset)
        elif offset - self._course.marked >= SLICE_BYTES:
            self._course.mark(self.view.step, offset)
        reduce(self.view, event)
        for name, points in lost.items():
            series = self.view.series.setdefault(name, Series())
            there = series.steps[-1] if series else -1
            for step, value in zip(points.steps, points.values, strict=True):
                if step > there:
                    series.add(step, value)

    def _lost_points(self, done: int) -> dict[str, Series]:
        """Return the points just before step `done` that the view is about to forget.

        The view drops a whole bucket that ends beyond `done`, and the best value of the run may be in it.
        """
        begins = [series.bucket_across(done) for series in self.view.series.values()]
        low = min((begin for begin in begins if begin is not None), default=None)
        return {} if low is None else self._course.points(max(low, done - MOST), done)

    def _fold_stretch(self) -> bool:
        """Apply the index's summary of the next part of the log, if there is one, and return whether there was."""
        stretch = self._ahead
        if stretch is None or stretch.begin != self._tail.offset:
            return False
        for step, offset in [(self.view.step, stretch.begin), *stretch.blocks]:
            self._course.mark(step, offset)
        for name, series in stretch.series.items():
            self.view.series.setdefault(name, Series()).extend(series)
        for _, event in parse(stretch.lines):
            reduce(self.view, {**event, "metrics": {}} if event["type"] == "step" else event)
        self.view.pace = Pace(stretch.pace, stretch.timed)
        self._tail.offset = stretch.end
        self._ahead = next(self._stretches, None)
        return True


class Replay(LogFollower):
    """A `LogFollower` that shows an earlier moment of the run, and moves forward from it.

    Attributes:
        playing: whether it moves forward; False while paused.
        speed: seconds of the run per second.
        over: whether the last event has been shown.
    """

    def __init__(self, run_directory: Path, *, speed: float = 10.0) -> None:
        super().__init__(run_directory)
        self.speed, self.playing, self.over = speed, True, False
        self._clock: float | None = None
        self._looked_at = time.monotonic()

    def advance(self, *, seconds: float) -> bool:
        until = time.monotonic() + seconds
        self._tick()
        while (event := self._next()) is not None and self._clock is not None and event["t"] <= self._clock:
            self._fold(*self._waiting.pop())
            if time.monotonic() >= until:
                return True
        return False

    def now(self) -> float:
        return time.time() if self._clock is None else self._clock

    def state(self, now: float) -> State:
        return state(self.view, now, alive=True)

    def faster(self, by: int) -> None:
        """Choose the next higher (1) or lower (-1) speed."""
        nearest = min(range(len(SPEEDS)), key=lambda i: abs(SPEEDS[i] - self.speed))
        self.speed = SPEEDS[min(max(0, nearest + by), len(SPEEDS) - 1)]

    def seek(self, step: int) -> None:
        """Move to just after `step`, forwards or backwards; to the end if the run has no such step."""
        if step <= self.view.step:
            self._rewind()
        while True:
            if not self._waiting and self._ahead and self._ahead.last < step and self._fold_stretch():
                self._clock = self.view.last_event
                continue
            if (event := self._next()) is None:
                return
            self._clock = event["t"]
            self._fold(*self._waiting.pop())
            if event["type"] == "step" and event["step"] >= step:
                return

    def _rewind(self) -> None:
        super()._rewind()
        self._waiting: list[tuple[int, Event]] = []

    def _next(self) -> Event | None:
        """Return the next event; it stays the next one until it is popped from `_waiting`."""
        read = -1
        while not self._waiting and read != self._tail.offset:  # skip lines that hold no event
            read = self._tail.offset
            # in reverse, so that the next one is popped from the end
            self._waiting = self._read()[::-1]
        self.over = not self._waiting
        return self._waiting[-1][1] if self._waiting else None

    def _tick(self) -> None:
        now = time.monotonic()
        passed, self._looked_at = (now - self._looked_at) * self.speed, now
        event = self._next()
        if event is None or not self.playing:
            return
        if self._clock is None:
            self._clock = event["t"]
        self._clock = max(self._clock + passed, event["t"] - LONGEST_GAP)
