"""How far caching is, on stderr: a bar on a terminal, lines elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from trainkit.text import format_bytes, format_count, plural

if TYPE_CHECKING:
    from trainkit.data.cache.build import CachingProgress

#: Seconds between two lines where there is no terminal.
EVERY_SECONDS = 5.0


@contextmanager
def show_progress() -> Iterator[Callable[[CachingProgress], None]]:
    """Show on stderr how far caching is: as a bar on a terminal, elsewhere as lines."""
    if not sys.stderr.isatty():
        yield _Lines()
        return
    from rich import progress as rich
    from rich.console import Console

    name, left = rich.TextColumn("{task.description}", markup=False), rich.TextColumn("ETA")
    amount = rich.TextColumn("{task.fields[amount]}", markup=False)
    columns = (name, rich.BarColumn(), rich.TaskProgressColumn(), amount, left, rich.TimeRemainingColumn())
    with rich.Progress(*columns, console=Console(stderr=True)) as bar:
        tasks: dict[str, rich.TaskID] = {}
        rate = _Rate()

        def progress(now: CachingProgress) -> None:
            if now.what not in tasks:
                tasks[now.what] = bar.add_task(now.what, amount="")
            total = now.bytes if now.done else now.total_bytes
            bar.update(tasks[now.what], completed=now.bytes, total=total, amount=rate.describe(now))

        yield progress


class _Lines:
    """Prints a line every few seconds, and one when a set of documents is done."""

    def __init__(self) -> None:
        self.rate = _Rate()
        self.last = time.monotonic()

    def __call__(self, now: CachingProgress) -> None:
        amount = self.rate.describe(now)
        if now.done or time.monotonic() - self.last >= EVERY_SECONDS:
            self.last = time.monotonic()
            print(f"{now.what}: {amount}{', done' if now.done else ''}", file=sys.stderr, flush=True)


class _Rate:
    """Measures tokens per second since caching of a set began."""

    def __init__(self) -> None:
        self.first: dict[str, tuple[float, int]] = {}

    def describe(self, now: CachingProgress) -> str:
        start, tokens = self.first.setdefault(now.what, (time.monotonic(), now.tokens))
        seconds = time.monotonic() - start
        speed = f", {format_count((now.tokens - tokens) / seconds)} tokens/s" if seconds and now.tokens > tokens else ""
        of = f" of {format_bytes(now.total_bytes)}" if now.total_bytes and not now.done else ""
        documents = f"{plural(now.documents, 'document')}, " if now.documents else ""
        return f"{documents}{format_bytes(now.bytes)}{of}{speed}"
