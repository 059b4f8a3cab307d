"""`trainkit cache-data`: tokenise, with a bar on a terminal and with lines elsewhere, both on stderr; and look after
what is tokenised."""

from __future__ import annotations

import itertools
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from trainkit.errors import DONE, FAILED, TrainkitError
from trainkit.hub.recipe import load
from trainkit.text import format_bytes, format_count, format_duration

if TYPE_CHECKING:
    from trainkit.data.cache.build import Cache, CachingProgress
    from trainkit.data.cache.engine import Engine
    from trainkit.recipe import Recipe

#: Seconds between two lines where there is no terminal.
EVERY_SECONDS = 5.0


def cache_data(
    path: Path,
    overrides: Sequence[str],
    *,
    workers: int | None,
    engine: Literal["local", "ray"] = "local",
    address: str | None = None,
    rebuild: bool = False,
    repair: bool = False,
    show: int = 0,
    export: Path | None = None,
) -> str:
    """Build the cache, and return a table of what is in it, with what else is asked for.

    Raises:
        TrainkitError: the recipe or its data is wrong, the cache cannot be written, or there is no Ray cluster.
    """
    recipe = load(path, overrides).recipe
    from trainkit.data import storage
    from trainkit.data.cache.build import build

    directory = Path(recipe.data.cache)
    with _engine(engine, address, workers) as tokenise:
        if rebuild:
            storage.remove(directory)
        lines = _repair(directory) if repair else []
        began = time.monotonic()
        with shown(sys.stderr.isatty()) as progress:
            cache = build(recipe, engine=tokenise, progress=progress)
    lines += _summary(cache, recipe, time.monotonic() - began)
    if export is not None:
        from trainkit.data.export import export as write

        files = write(cache, export)
        lines.append(f"exported {len(files)} files to {export}")
    return "\n".join([*lines, *_examples(cache, recipe, show)])


@contextmanager
def _engine(name: Literal["local", "ray"], address: str | None, workers: int | None) -> Iterator[Engine]:
    if name == "ray":
        from trainkit.data.cache.ray_engine import cluster

        with cluster(address, workers=workers) as engine:
            yield engine
        return
    if address is not None:
        raise TrainkitError("is the address of a Ray cluster", where="--address", hint="add --engine ray")
    from trainkit.data.cache.engine import threads

    yield threads(workers)


def verify(path: Path, overrides: Sequence[str]) -> tuple[str, int]:
    """Compare all shards of the recipe's cache with their checksums: what to print, and the exit code."""
    directory = Path(load(path, overrides).recipe.data.cache)
    from trainkit.data.cache.verify import verify

    with shown(sys.stderr.isatty()) as progress:
        found = verify(directory, progress)
    lines = [f"{file}: {problem}" for file, problem in found.damaged]
    if lines:
        lines.append(f"{len(lines)} of {found.shards} shards are damaged; make them again: --repair")
        return "\n".join(lines), FAILED
    return f"{found.shards} shards, {format_bytes(found.bytes)}: all as they were written", DONE


def _repair(directory: Path) -> list[str]:
    from trainkit.data.cache.verify import remove, verify

    with shown(sys.stderr.isatty()) as progress:
        found = verify(directory, progress)
    remove(directory, found)
    return [f"{file}: {problem}; made again" for file, problem in found.damaged]


def _examples(cache: Cache, recipe: Recipe, number: int) -> Iterator[str]:
    if not number:
        return
    from trainkit.cli.inspect import row_lines
    from trainkit.data.batches.dataset import TrainSet
    from trainkit.data.checks.show import show

    data = TrainSet(cache, recipe)
    rows = (row for step in itertools.count() for row in show(cache, data, step))
    for row in itertools.islice(rows, number):
        yield ""
        yield from row_lines(row, colour=sys.stdout.isatty())


@contextmanager
def shown(terminal: bool) -> Iterator[Callable[[CachingProgress], None]]:
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

        def progress(now: CachingProgress) -> None:
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

    def __call__(self, now: CachingProgress) -> None:
        told = self.rate.told(now)
        if now.done or time.monotonic() - self.last >= EVERY_SECONDS:
            self.last = time.monotonic()
            print(f"{now.what}: {told}{', done' if now.done else ''}", file=sys.stderr, flush=True)


class _Rate:
    """Tokens a second since a set was first heard of."""

    def __init__(self) -> None:
        self.first: dict[str, tuple[float, int]] = {}

    def told(self, now: CachingProgress) -> str:
        began, tokens = self.first.setdefault(now.what, (time.monotonic(), now.tokens))
        seconds = time.monotonic() - began
        speed = f", {format_count((now.tokens - tokens) / seconds)} tokens/s" if seconds and now.tokens > tokens else ""
        of = f" of {format_bytes(now.total_bytes)}" if now.total_bytes and not now.done else ""
        documents = f"{now.documents:,} documents, " if now.documents else ""
        return f"{documents}{format_bytes(now.bytes)}{of}{speed}"


def _summary(cache: Cache, recipe: Recipe, seconds: float) -> list[str]:
    from trainkit.data.checks.supervision import find_problems

    rows = [("SET", "DOCUMENTS", "BYTES", "TOKENS")]
    for name, stream in {"train": cache.train, **cache.validation}.items():
        size, tokens = (stream.bytes, f"{stream.tokens:,}") if cache.tokenizer else (stream.tokens, "-")
        rows.append((name, f"{stream.documents:,}", format_bytes(size), tokens))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    table = [f"{row[0]:<{widths[0]}}  " + "  ".join(map(str.rjust, row[1:], widths[1:])) for row in rows]
    table += [f"{finding.level}: {finding.message}" for finding in find_problems(cache, recipe)]
    if cache.left_out.refused:
        table.append(f"all that was skipped is listed in {cache.list_rejected()}")
    vocabulary = f"vocabulary {cache.vocab_size:,}, " if cache.tokenizer else ""
    return [*table, f"{vocabulary}{format_duration(seconds)}, in {cache.directory}"]
