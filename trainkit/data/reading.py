"""The files of several sources, each with what is in it."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from trainkit.data import digests
from trainkit.data.digests import Contents
from trainkit.data.progress import Progress, Reporter
from trainkit.data.sources import SourceFile, list_files
from trainkit.recipe.data import Source

_READERS = min(4, os.cpu_count() or 1)


@dataclass(frozen=True)
class Listing:
    """`files` are those of each source, in the order of the sources."""

    files: tuple[tuple[SourceFile, ...], ...]
    contents: Contents


def survey(cache: Path, sources: Sequence[Source], callback: Callable[[Progress], None] | None) -> Listing:
    """List the sources, and read what is not known yet. Raises TrainkitError."""
    files = tuple(list_files(source, cache) for source in sources)
    known: Contents = {}
    reporter = Reporter("files", 0, callback)
    for group in files:
        known |= digests.compute(
            cache, group, workers=_READERS, progress=lambda size: reporter.add(bytes=size), tick=reporter.tick
        )
    if not reporter.idle:
        reporter.done()
    return Listing(files, known)


def recall(cache: Path, sources: Sequence[Source]) -> Listing | None:
    """The same without writing anything; None where there are files that have never been read. Raises TrainkitError."""
    files = tuple(list_files(source, cache) for source in sources)
    known: Contents = {}
    for group in files:
        found = digests.find(cache, group)
        if found is None:
            return None
        known |= found
    return Listing(files, known)
