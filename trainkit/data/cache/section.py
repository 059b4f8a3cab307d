"""What a stream is made of, and where its tokens come from."""

from __future__ import annotations

from dataclasses import dataclass

from trainkit.data.cache.shards import Shard


@dataclass(frozen=True)
class Section:
    """A shard in a source, or only its first documents.

    Attributes:
        entries: as in the shard.
        unit: the number of the shard's unit in its source.
    """

    shard: Shard
    source: int
    unit: int
    tokens: int
    documents: int
    entries: int
    bytes: int


@dataclass(frozen=True)
class SourceSpan:
    """The document that some tokens of a stream come from.

    Attributes:
        file: a number within the unit.
        first, end: offsets within the document's tokens (within this shard).
        size: the document's tokens (within this shard).
    """

    section: Section
    file: int
    index: int
    first: int
    end: int
    size: int
