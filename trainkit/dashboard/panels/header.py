"""The lines at the top: the run's name, state, speed and progress; the pages and their keys."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.cells import cell_len
from textual.content import Content
from textual.events import Click
from textual.message import Message
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
        self._drawn: object = None

    def show(self, view: View, *, state: State, now: float, read: float | None = None, problem: str = "") -> None:
        """Show `view` as of `now` (Unix seconds). `read` is the share of the log that has been read, None once that is
        all of it; `problem` says what is wrong with the log."""
        self._view, self._state, self._now, self._read, self._problem = view, state, now, read, problem
        content = (self._facts(), view.step, view.total_steps, state, read, problem, tuple(view.cache.items()))
        if content != self._drawn:
            self._drawn = content
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
        elif self._view.message and self._view.finished in ("failed", "crashed"):
            left.append((f"  {self._view.message.splitlines()[0]}", theme.BAD))
        facts = self._facts()
        while facts and _width(left) + _width(_join(facts)) + 2 > width:
            facts = facts[:-1] if len(facts) > 1 else []
        right = _join(facts)
        gap = max(1, width - _width(left) - _width(right))
        first = Content.assemble(*left, " " * gap, *right).truncate(width, ellipsis=True)
        return Content.assemble(first, "\n", self._progress(width))

    def _facts(self) -> list[list[Part]]:
        """Return the facts on the right, the most important first; a narrow screen drops the last ones."""
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
            label = f"{what}  {format_count(cache.documents)} documents  {format_count(cache.tokens)} tokens"
            return _bar(label, share, width=width, color=theme.BUSY)
        if view.total_steps is None or self._earlier:
            return Content("")
        color = theme.STATES[self._state][1]
        share = min(1.0, view.step / view.total_steps) if view.total_steps else 1.0
        return _bar(f"step {view.step:,} / {view.total_steps:,}", share, width=width, color=color)


def _age(seconds: float) -> str:
    """Return an age in whole seconds, so that it is redrawn at most once a second."""
    whole = max(0, int(seconds))
    return f"{whole} s" if whole < 10 else format_duration(whole)


def _bar(label: str, share: float | None, *, width: int, color: str) -> Content:
    """`label ━━━━━╸──── 52%`, the bar as long as there is room for."""
    if share is None:
        return Content.styled(label, theme.TEXT).truncate(width, ellipsis=True)
    percent = f" {share:4.0%}" if share < 1 else " 100%"
    length = width - cell_len(label) - len(percent) - 2
    if length < 4:
        return Content.styled(label + percent, theme.TEXT).truncate(width, ellipsis=True)
    halves = int(2 * length * share)
    full, half = divmod(halves, 2)
    parts: list[Part] = [(label + "  ", theme.TEXT), ("━" * full + "╸" * half, color)]
    parts += [("─" * (length - full - half), theme.EDGE), (percent, theme.TEXT)]
    return Content.assemble(*parts)


def _join(facts: list[list[Part]]) -> list[Part]:
    parts: list[Part] = []
    for fact in facts:
        parts += [("  ·  ", theme.FAINT), *fact] if parts else fact
    return parts


def _width(parts: list[Part]) -> int:
    return sum(Content(text).cell_length for text, _ in parts)


#: The gap between two pages; how many pages have a number key; the hint at the names of the others.
GAP, KEYED, MORE = "   ", 9, ": more"


class Tabs(Widget):
    """`1 overview   2 logs …`, or `1   2 logs   3` where it is narrow; a click chooses.

    A page without a number key has its letter or its name alone; where that does not fit, only the command palette has
    it.
    """

    DEFAULT_CSS = "Tabs { height: 1; padding: 0 1; }"

    class Chosen(Message):
        """A person has clicked on the name of a page."""

        def __init__(self, name: str) -> None:
            super().__init__()
            self.name = name

    def __init__(self, names: Sequence[str], letters: Mapping[str, str]) -> None:
        """`letters` are the keys of pages without a number key, by name; some have none."""
        super().__init__()
        self._letters = letters
        self._names, self._shown, self._status = tuple(names), names[0], ""

    def choose(self, name: str) -> None:
        """Mark the page that is shown."""
        self._shown = name
        self.refresh()

    def show_status(self, text: str) -> None:
        """Show `text` on the right."""
        if text != self._status:
            self._status = text
            self.refresh()

    def render(self) -> Content:
        parts: list[tuple[str, str]] = []
        labels = self._labels()
        if ("", "") in labels:
            labels.append(("", MORE))
        for number, name in labels:
            shown = name == self._shown
            if number or name:
                parts += [(number, theme.DIM), (name, f"bold {theme.BRIGHT}" if shown else theme.DIM), (GAP, theme.DIM)]
        room = self.size.width - len(self._status)
        left = Content.assemble(*parts)
        if not self._status or room < 10:
            return left.truncate(self.size.width, ellipsis=True)
        left = left.truncate(room, ellipsis=True)
        return Content.assemble(left, " " * (room - left.cell_length), (self._status, theme.WARN))

    def on_click(self, event: Click) -> None:
        place = 0
        for (number, label), name in zip(self._labels(), self._names, strict=True):
            place += len(number + label + GAP) if number or label else 0
            if event.x - 1 < place:
                self.post_message(self.Chosen(name))
                return

    def _keys(self) -> list[str]:
        return [str(n) if n <= KEYED else self._letters.get(name, "") for n, name in enumerate(self._names, 1)]

    def _labels(self) -> list[tuple[str, str]]:
        """Return number and name of each page; if they do not all fit, only the current page has its name."""
        full = [(f"{key} " if key else "", name) for key, name in zip(self._keys(), self._names, strict=True)]
        if sum(len(number + name + GAP) for number, name in full) - len(GAP) + len(self._status) <= self.size.width:
            return full
        return [(number, name) if name == self._shown else (number.strip(), "") for number, name in full]
