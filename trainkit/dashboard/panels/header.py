"""The two lines at the top: name, state, speed and progress."""

from __future__ import annotations

from rich.cells import cell_len
from textual.content import Content
from textual.widget import Widget

from trainkit.dashboard import theme
from trainkit.events.view import State, View
from trainkit.text import format_count, format_duration, one_line

Part = tuple[str, str]


class Header(Widget):
    """Name and state, pace and age; below, the progress."""

    DEFAULT_CSS = "Header { height: 2; padding: 0 1; }"

    def __init__(self) -> None:
        super().__init__()
        self._view = View()
        self._state: State = "waiting"
        self._now = 0.0
        self._read: float | None = None
        self._problem = ""
        self._told: object = None

    def show(self, view: View, *, state: State, now: float, read: float | None = None, problem: str = "") -> None:
        """Show `view` as of `now` (Unix seconds); `read` is the share of the log that it comes from, where that is not
        yet all of it, `problem` what is wrong with the log."""
        self._view, self._state, self._now, self._read, self._problem = view, state, now, read, problem
        told = (self._facts(), view.step, view.total_steps, state, read, problem, tuple(view.cache.items()))
        if told != self._told:
            self._told = told
            self.refresh()

    @property
    def _earlier(self) -> bool:
        """Whether the view lags behind the run: the log is still being read, or another attempt is starting."""
        view = self._view
        other = self._state == "starting" and (view.finished is not None or view.activity != "starting")
        return self._read is not None or other

    def render(self) -> Content:
        width = self.size.width
        symbol, color = theme.STATES[self._state]
        name = one_line(self._view.name) or "trainkit"
        left: list[Part] = [(name, f"bold {theme.BRIGHT}"), (f"  {symbol} {self._state}", f"bold {color}")]
        if self._read is not None:
            left.append(("  reading the log …", theme.DIM))
        elif self._problem:
            left.append((f"  {self._problem}", theme.WARN))
        elif self._view.message and self._view.finished == "failed":
            left.append((f"  {self._view.message.splitlines()[0]}", theme.BAD))
        facts = self._facts()
        while facts and _width(left) + _width(_join(facts)) + 2 > width:
            facts = facts[:-1] if len(facts) > 1 else []
        right = _join(facts)
        gap = max(1, width - _width(left) - _width(right))
        first = Content.assemble(*left, " " * gap, *right).truncate(width, ellipsis=True)
        return Content.assemble(first, "\n", self._progress(width))

    def _facts(self) -> list[list[Part]]:
        """The most important first: on a narrow screen the last ones go."""
        view, facts = self._view, []
        if self._earlier:
            return []
        if self._state in ("running", "evaluating", "saving", "paused", "stalled", "stopping") and view.eta is not None:
            facts.append([("ETA ", theme.DIM), (format_duration(view.eta), theme.TEXT)])
        if (speed := view.tokens_per_second) is not None:
            facts.append([(format_count(speed), theme.TEXT), (" tok/s", theme.DIM)])
        elif (speed := view.last("throughput/samples_per_second")) is not None:
            facts.append([(format_count(speed), theme.TEXT), (" samples/s", theme.DIM)])
        if view.finished and view.took:
            facts.append([("took ", theme.DIM), (format_duration(view.took), theme.TEXT)])
        elif view.last_event is not None:
            facts.append([(_age(self._now - view.last_event), theme.TEXT), (" ago", theme.DIM)])
        if view.attempt > 1:
            facts.append([("attempt ", theme.DIM), (str(view.attempt), theme.TEXT)])
        return facts

    def _progress(self, width: int) -> Content:
        view = self._view
        if self._read is not None:
            return _bar("log", self._read, width=width, color=theme.DIM)
        caching = next((item for item in view.cache.items() if not item[1].done), None)
        if self._state == "caching" and caching:
            what, cache = one_line(caching[0]), caching[1]
            share = cache.bytes / cache.total_bytes if cache.total_bytes else None
            told = f"{what}  {format_count(cache.documents)} documents  {format_count(cache.tokens)} tokens"
            return _bar(told, share, width=width, color=theme.BUSY)
        if view.total_steps is None or self._earlier:
            return Content("")
        color = theme.STATES[self._state][1]
        share = min(1.0, view.step / view.total_steps) if view.total_steps else 1.0
        return _bar(f"step {view.step:,} / {view.total_steps:,}", share, width=width, color=color)


def _age(seconds: float) -> str:
    """Return an age in whole seconds, so that it is redrawn at most once a second."""
    whole = max(0, int(seconds))
    return f"{whole} s" if whole < 10 else format_duration(whole)


def _bar(told: str, share: float | None, *, width: int, color: str) -> Content:
    """`told ━━━━━╸──── 52%`, the bar as long as there is room for."""
    if share is None:
        return Content.styled(told, theme.TEXT).truncate(width, ellipsis=True)
    percent = f" {share:4.0%}" if share < 1 else " 100%"
    length = width - cell_len(told) - len(percent) - 2
    if length < 4:
        return Content.styled(told + percent, theme.TEXT).truncate(width, ellipsis=True)
    halves = int(2 * length * share)
    full, half = divmod(halves, 2)
    parts: list[Part] = [(told + "  ", theme.TEXT), ("━" * full + "╸" * half, color)]
    parts += [("─" * (length - full - half), theme.EDGE), (percent, theme.TEXT)]
    return Content.assemble(*parts)


def _join(facts: list[list[Part]]) -> list[Part]:
    parts: list[Part] = []
    for fact in facts:
        parts += [("  ·  ", theme.FAINT), *fact] if parts else fact
    return parts


def _width(parts: list[Part]) -> int:
    return sum(Content(text).cell_length for text, _ in parts)
