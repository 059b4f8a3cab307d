"""`trainkit cache-data`: tokenise, with a bar on a terminal and with lines elsewhere, both on stderr."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from trainkit.events.plain import bytes_, count, duration
from trainkit.recipe.load import load

if TYPE_CHECKING:
    from trainkit.data.cache import Cache, Progress

#: Seconds between two lines where there is no terminal.
EVERY_SECONDS = 5.0


def cache_data(path: Path, overrides: Sequence[str], *, workers: int | None) -> str:
    """Build the cache, and return a table of what is in it.

    Raises:
        TrainkitError: the recipe or its data is wrong, or the cache cannot be written.
    """
    recipe = load(path, overrides).recipe
    from trainkit.data.cache import build

    began = time.monotonic()
    with _shown(sys.stderr.isatty()) as progress:
        cache = build(recipe, workers=workers, progress=progress)
    return "\n".join(_summary(cache, recipe.data.cache, time.monotonic() - began))


@contextmanager
def _shown(terminal: bool) -> Iterator[Callable[[Progress], None]]:
    if not terminal:
        yield _Lines()
        return
    from rich import progress as rich
    from rich.console import Console

    words, left = rich.TextColumn("{task.description}", markup=False), rich.TextColumn("ETA")
    told = rich.TextColumn("{task.fields[told]}", markup=False)
    columns = (words, rich.BarColumn(), rich.TaskProgressColumn(), told, left, rich.TimeRemainingColumn())
    with rich.Progress(*columns, console=Console(stderr=True)) as bar:
        tasks: dict[str, rich.TaskID] = {}
        rate = _Rate()

        def progress(now: Progress) -> None:
            if now.what not in tasks:
                tasks[now.what] = bar.add_task(now.what, told="")
            total = now.bytes if now.done else now.total_bytes
            bar.update(tasks[now.what], completed=now.bytes, total=total, told=rate.told(now))

        yield progress


class _Lines:
    """A line on stderr every few seconds, and for the end of each set."""

    def __init__(self) -> None:
        self.rate = _Rate()
        self.last = time.monotonic()

    def __call__(self, now: Progress) -> None:
        told = self.rate.told(now)
        if now.done or time.monotonic() - self.last >= EVERY_SECONDS:
            self.last = time.monotonic()
            print(f"{now.what}: {told}{', done' if now.done else ''}", file=sys.stderr, flush=True)


class _Rate:
    """Tokens a second since a set was first heard of."""

    def __init__(self) -> None:
        self.first: dict[str, tuple[float, int]] = {}

    def told(self, now: Progress) -> str:
        began, tokens = self.first.setdefault(now.what, (time.monotonic(), now.tokens))
        seconds = time.monotonic() - began
        speed = f", {count((now.tokens - tokens) / seconds)} tokens/s" if seconds and now.tokens > tokens else ""
        of = f" of {bytes_(now.total_bytes)}" if now.total_bytes and not now.done else ""
        documents = f"{now.documents:,} documents, " if now.documents else ""
        return f"{documents}{bytes_(now.bytes)}{of}{speed}"


def _summary(cache: Cache, directory: str, seconds: float) -> list[str]:
    rows = [("SET", "DOCUMENTS", "BYTES", "TOKENS")]
    for name, stream in {"train": cache.train, **cache.validation}.items():
        rows.append((name, f"{stream.documents:,}", bytes_(stream.bytes), f"{stream.tokens:,}"))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    table = [f"{row[0]:<{widths[0]}}  " + "  ".join(map(str.rjust, row[1:], widths[1:])) for row in rows]
    for left_out, what in ((cache.skipped_documents, "cannot be read"), (cache.empty_documents, "have no text")):
        if left_out:
            table.append(f"left out, because they {what}: {left_out:,} documents")
    table += [f"  {where}: {why}" for where, why in cache.skipped]
    return [*table, f"vocabulary {cache.tokenizer.vocab_size:,}, {duration(seconds)}, in {directory}"]
