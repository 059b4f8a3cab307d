"""`trainkit cache-data`: tokenise ahead of time, and verify, repair, show or export what is tokenised."""

from __future__ import annotations

import itertools
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from trainkit.cli.arguments import Mode, Overrides, RecipePath
from trainkit.cli.batch_rows import row_lines
from trainkit.errors import DONE, FAILED, TrainkitError
from trainkit.printer import complain
from trainkit.text import format_bytes, format_count, format_duration, plural

if TYPE_CHECKING:
    from trainkit.data.cache.encode import Engine
    from trainkit.data.cache.token_cache import Cache
    from trainkit.data.jobs import CachingProgress
    from trainkit.recipe import Recipe

_ONLY_REMOVES = "--prune only removes what no run needs"
_ONLY_COMPARES = "--verify only compares shards with their checksums"
EXCLUSIVE = [
    ("--rebuild", "--repair", "--rebuild deletes what --repair would repair"),
    ("--verify", "--repair", "--repair verifies too"),
    *(
        (option, other, reason)
        for option, reason in (("--verify", _ONLY_COMPARES), ("--prune", _ONLY_REMOVES))
        for other in ("--rebuild", "--show", "--export", "--workers", "--engine", "--address")
    ),
    *(("--prune", option, _ONLY_REMOVES) for option in ("--verify", "--repair")),
]
NEEDS = [("--address", "--engine"), ("--yes", "--prune")]

#: Seconds between two lines of progress where there is no terminal.
EVERY_SECONDS = 5.0


class EngineName(StrEnum):
    """Who tokenises."""

    LOCAL = "local"
    RAY = "ray"


def cache_data(
    recipe: RecipePath,
    overrides: Overrides = None,
    mode: Mode = "full",
    workers: Annotated[int | None, typer.Option(min=1, help="Number of workers that tokenise.")] = None,
    engine: Annotated[
        EngineName,
        typer.Option(
            help="What tokenises: threads of this process, or a Ray cluster. All hosts of the cluster must see the"
            " sources and the cache directory (data.cache) at the same paths."
        ),
    ] = EngineName.LOCAL,
    address: Annotated[
        str | None,
        typer.Option(
            help="Address of the Ray cluster, HOST:PORT or auto. Default: RAY_ADDRESS, or a cluster started here.",
            show_default=False,
        ),
    ] = None,
    verify: Annotated[bool, typer.Option("--verify", help="Only compare the shards with their checksums.")] = False,
    repair: Annotated[
        bool, typer.Option("--repair", help="Compare the shards with their checksums and rewrite damaged ones.")
    ] = False,
    prune: Annotated[
        bool,
        typer.Option(
            "--prune",
            help="Show what of the cache neither this recipe nor a run in run.directory needs; --yes removes it.",
        ),
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Remove what --prune shows.")] = False,
    rebuild: Annotated[bool, typer.Option("--rebuild", help="Delete the whole cache directory first.")] = False,
    show: Annotated[int, typer.Option(metavar="N", min=0, help="Print the first N examples.")] = 0,
    export: Annotated[
        Path | None,
        typer.Option(metavar="DIRECTORY", help="Also write the tokens as Parquet files.", show_default=False),
    ] = None,
) -> Iterator[str] | str | tuple[str, int]:
    """Tokenise the data of a recipe ahead of time."""
    from trainkit.hub.recipe import load
    from trainkit.recipe.toml.load import locate_error

    loaded = load(recipe, overrides or [], mode=mode)
    parsed = loaded.recipe
    directory = Path(parsed.data.cache)
    if verify:
        return _verify(directory)
    if prune:
        return _prune(parsed, yes=yes)
    if export is not None:
        from trainkit.data.export import check_exportable

        check_exportable(parsed.data)
    from trainkit.data import storage
    from trainkit.data.cache.build import build

    with _engine(engine, address, workers) as tokenise:
        if rebuild:
            storage.remove(directory)
        lines = _repair(directory) if repair else []
        start = time.monotonic()
        with show_progress() as progress:
            try:
                cache = build(parsed, engine=tokenise, progress=progress)
            except TrainkitError as error:
                raise locate_error(error, loaded) from error
    lines += _summary(cache, parsed, time.monotonic() - start)
    if export is not None:
        from trainkit.data.export import export as write

        files = write(cache, parsed.data, export)
        lines.append(f"exported {plural(len(files), 'file')} to {export}")
    return itertools.chain(lines, _examples(cache, parsed, show))


@contextmanager
def _engine(name: EngineName, address: str | None, workers: int | None) -> Iterator[Engine]:
    if name is EngineName.RAY:
        from trainkit.data.cache.ray_engine import cluster

        with cluster(address, workers=workers) as engine:
            yield engine
        return
    if address is not None:
        raise TrainkitError("--address is the address of a Ray cluster", hint="add --engine ray, or omit --address")
    from trainkit.data.cache.encode import threads

    yield threads(workers)


def _verify(directory: Path) -> tuple[str, int]:
    """Compare all shards of a cache with their checksums, and return what to print and the exit code."""
    from trainkit.data.cache.verify import verify

    with show_progress() as progress:
        report = verify(directory, progress)
    lines = [f"{file}: {problem}" for file, problem in report.damaged]
    if lines:
        lines.append(f"{len(lines)} of {plural(report.shards, 'shard')} are damaged; to rewrite them: --repair")
        return "\n".join(lines), FAILED
    return f"{plural(report.shards, 'shard')}, {format_bytes(report.bytes)}: undamaged", DONE


def _repair(directory: Path) -> list[str]:
    from trainkit.data.cache.verify import remove, verify

    with show_progress() as progress:
        report = verify(directory, progress)
    remove(directory, report)
    return [f"{file}: {problem}; rewritten" for file, problem in report.damaged]


def _prune(recipe: Recipe, *, yes: bool) -> str:
    """Return what of the cache no run needs, after removing it if `yes`."""
    from trainkit.data.prune import find_unused, prune

    unused = prune(recipe) if yes else find_unused(recipe)
    lines = [f"{run} does not say which data it needs: some may have to be tokenised again" for run in unused.unknown]
    lines.append(f"kept: what this recipe and {plural(unused.runs, 'run')} below {recipe.run.directory} need")
    if not unused.files:
        return "\n".join([*lines, "nothing else is in the cache"])
    found = f"{plural(unused.ledgers, 'ledger')} and {plural(unused.shards, 'shard')}, {format_bytes(unused.bytes)}"
    if yes:
        return "\n".join([*lines, f"removed: {found}"])
    lines += [f"unused: {path}" for path in unused.files if path.suffix != ".npy"]
    return "\n".join([*lines, f"{found} can be removed; to do so: --prune --yes"])


def _examples(cache: Cache, recipe: Recipe, number: int) -> Iterator[str]:
    if not number:
        return
    from trainkit.data.batches.dataset import TrainSet
    from trainkit.data.show import show

    data = TrainSet(cache, recipe)
    rows = (row for step in itertools.count() for row in show(cache, data, step))
    for row in itertools.islice(rows, number):
        yield ""
        yield from row_lines(row, colour=sys.stdout.isatty())


def _summary(cache: Cache, recipe: Recipe, seconds: float) -> list[str]:
    from trainkit.data.checks import find_problems

    rows = [("SET", "DOCUMENTS", "BYTES", "TOKENS")]
    for name, stream in {"train": cache.train, **cache.validation}.items():
        size, tokens = (stream.bytes, f"{stream.tokens:,}") if cache.tokenizer else (stream.tokens, "-")
        rows.append((name, f"{stream.documents:,}", format_bytes(size), tokens))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    table = [f"{row[0]:<{widths[0]}}  " + "  ".join(map(str.rjust, row[1:], widths[1:])) for row in rows]
    table += [f"{finding.level}: {finding.message}" for finding in find_problems(cache, recipe)]
    if cache.left_out.refused:
        table.append(f"skipped documents are listed in {cache.list_rejected()}")
    vocabulary = f"vocabulary {cache.vocab_size:,}, " if cache.tokenizer else ""
    return [*table, f"{vocabulary}{format_duration(seconds)}, in {cache.directory}"]


@contextmanager
def show_progress() -> Iterator[Callable[[CachingProgress], None]]:
    """Yield a function that shows on stderr how far caching is: a bar on a terminal, lines elsewhere."""
    if not sys.stderr.isatty():
        yield _Lines()
        return
    from rich import progress as rich
    from rich.console import Console

    name, eta = rich.TextColumn("{task.description}", markup=False), rich.TextColumn("ETA")
    amount = rich.TextColumn("{task.fields[amount]}", markup=False)
    columns = (name, rich.BarColumn(), rich.TaskProgressColumn(), amount, eta, rich.TimeRemainingColumn())
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
    """Prints a line every few seconds, and one when a set is done."""

    def __init__(self) -> None:
        self._rate = _Rate()
        self._last = time.monotonic()

    def __call__(self, now: CachingProgress) -> None:
        amount = self._rate.describe(now)
        if now.done or time.monotonic() - self._last >= EVERY_SECONDS:
            self._last = time.monotonic()
            complain(f"{now.what}: {amount}{', done' if now.done else ''}")


class _Rate:
    """Measures tokens per second since the first report on a set."""

    def __init__(self) -> None:
        self._first: dict[str, tuple[float, int]] = {}

    def describe(self, now: CachingProgress) -> str:
        start, tokens = self._first.setdefault(now.what, (time.monotonic(), now.tokens))
        seconds = time.monotonic() - start
        speed = f", {format_count((now.tokens - tokens) / seconds)} tokens/s" if seconds and now.tokens > tokens else ""
        of = f" of {format_bytes(now.total_bytes)}" if now.total_bytes and not now.done else ""
        documents = f"{plural(now.documents, 'document')}, " if now.documents else ""
        return f"{documents}{format_bytes(now.bytes)}{of}{speed}"
