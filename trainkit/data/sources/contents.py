"""The files of several sources, each with what is in it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from trainkit.data.jobs import WORKERS
from trainkit.data.progress import Reporter, Tell
from trainkit.data.sources import digests
from trainkit.data.sources.digests import Contents
from trainkit.data.sources.listing import list_files
from trainkit.data.sources.source_file import SourceFile
from trainkit.recipe.sections.data import Source


@dataclass(frozen=True)
class Listing:
    """`files` are those of each source, in the order of the sources."""

    files: tuple[tuple[SourceFile, ...], ...]
    contents: Contents


def survey(cache: Path, sources: Sequence[Source], progress: Tell) -> Listing:
    """List the sources, and read what is not known yet. Raises TrainkitError."""
    files = tuple(list_files(source, cache) for source in sources)
    known: Contents = {}
    reporter = Reporter("files", 0, progress)
    for group in files:
        known |= digests.compute(
            cache, group, workers=WORKERS, progress=lambda size: reporter.add(bytes=size), tick=reporter.tick
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
