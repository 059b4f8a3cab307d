"""Where examples begin and end in a shard, for every encoding except concatenation.

Where targets are the next tokens (`shift` is 1), a document of n tokens has n - 1 targets: each token but the first,
from those before it. So it takes n - 1 positions: position p holds token p, and its target is token p + 1.
Where `shift` is 0, it takes n positions, and every token can be a target. An example is one or several **spans** of
documents, one after the other: (start, positions, context), in tokens of the shard; the targets of the first `context`
positions do not count, because another window has them.

Spans follow from a shard's documents alone, so they are the same whether the rest of the cache is there or not.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from trainkit.data.cache.shards import Shard
from trainkit.data.sources.digests import of_value
from trainkit.data.storage import Version, map_file, write_file
from trainkit.errors import TrainkitError
from trainkit.files import checksum
from trainkit.recipe.sections.data import Encoding, Pack, Pad, Windows

#: Raise it when the same documents would give other spans than before.
FORMAT = 1
#: Documents that are packed together; few shards have more.
_PACKED_TOGETHER = 1 << 16


class PackingCounts(NamedTuple):
    """How many of a shard's documents and targets are used."""

    documents: int
    dropped: int
    """Documents left out as too short or too long."""
    truncated: int
    """Documents that were cut off."""
    lost: int
    """Targets that are in no example."""
    targets: int
    """Targets of all documents."""


@dataclass(frozen=True)
class PackedSpans:
    """The spans of examples: example i has the spans `offsets[i]` … `offsets[i + 1] - 1` of the other arrays. All are
    int64, (examples + 1,) and (spans,)."""

    offsets: np.ndarray
    starts: np.ndarray
    lengths: np.ndarray
    contexts: np.ndarray
    counts: PackingCounts
    version: Version | None = None
    """Of the file that they are mapped from."""

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @property
    def longest(self) -> np.ndarray:
        """Return the number of positions that each example fills, (examples,)."""
        sums = np.concatenate([[0], np.cumsum(self.lengths)])
        return sums[self.offsets[1:]] - sums[self.offsets[:-1]]


def find_spans(spec: Encoding, length: int, ends: np.ndarray, tokens: int, *, shift: int = 1) -> PackedSpans:
    """Return the examples of a shard: `ends` are those of its documents, `length` the positions of an example.

    The tokens behind the last end, of a document that continues in the next shard, count as a document.
    """
    ends = np.append(ends, tokens).astype(np.int64) if not len(ends) or ends[-1] < tokens else ends.astype(np.int64)
    starts = np.concatenate([[0], ends[:-1]]).astype(np.int64)
    sizes = ends - starts - shift
    documents = int((sizes >= 0).sum())
    starts, sizes = starts[sizes > 0], sizes[sizes > 0]
    if isinstance(spec, Windows):
        return _windows(spec, length, starts, sizes, documents)
    assert isinstance(spec, Pack | Pad), spec
    kept, pieces, lost = _fit_documents(spec, length, starts, sizes)
    too_long = int((sizes > max(length, spec.min_length - 1)).sum())
    truncated = too_long if spec.too_long == "truncate" else 0
    counts = PackingCounts(documents, documents - kept, truncated, lost, int(sizes.sum()))
    starts, lengths = pieces
    contexts = np.zeros(len(starts), np.int64)
    if isinstance(spec, Pad):
        return PackedSpans(np.arange(len(starts) + 1), starts, lengths, contexts, counts)
    order, offsets = _best_fit(lengths, length)
    return PackedSpans(offsets, starts[order], lengths[order], contexts, counts)


def _windows(spec: Windows, length: int, starts: np.ndarray, sizes: np.ndarray, documents: int) -> PackedSpans:
    """Return windows: window k of a document begins at position k * stride; its new targets are those that window k - 1
    did not have."""
    stride = min(spec.stride or length, length)
    many = np.maximum(1, -(-(sizes - length) // stride) + 1)
    document = np.repeat(np.arange(len(sizes)), many)
    number = np.arange(len(document)) - np.repeat(np.cumsum(many) - many, many)
    begin = number * stride
    lengths = np.minimum(length, sizes[document] - begin)
    contexts = np.where(number > 0, length - stride, 0)
    new = lengths - contexts
    keep = new >= spec.min_length
    lost = int(new[~keep].sum())
    dropped = documents - len(np.unique(document[keep]))
    counts = PackingCounts(documents, dropped, 0, lost, int(sizes.sum()))
    starts = starts[document] + begin
    return PackedSpans(np.arange(int(keep.sum()) + 1), starts[keep], lengths[keep], contexts[keep], counts)


def _fit_documents(
    spec: Pack | Pad, length: int, starts: np.ndarray, sizes: np.ndarray
) -> tuple[int, tuple[np.ndarray, np.ndarray], int]:
    """Return (number of documents kept, (starts, lengths) of their kept parts, number of targets lost)."""
    keep = sizes >= spec.min_length
    if spec.too_long == "drop":
        keep &= sizes <= length
    lost = int(sizes[~keep].sum())
    starts, sizes = starts[keep], sizes[keep]
    kept = len(sizes)
    if spec.too_long == "split":
        many = -(-sizes // length)
        begin = (np.arange(int(many.sum())) - np.repeat(np.cumsum(many) - many, many)) * length
        return kept, (np.repeat(starts, many) + begin, np.minimum(length, np.repeat(sizes, many) - begin)), lost
    lost += int(np.maximum(0, sizes - length).sum())
    return kept, (starts, np.minimum(sizes, length)), lost


def _best_fit(lengths: np.ndarray, capacity: int) -> tuple[np.ndarray, np.ndarray]:
    """Return (order of the items, where in it each bin begins) by best fit decreasing (Johnson 1973, Near-optimal bin
    packing algorithms; for training Ding et al. 2024, Fewer Truncations Improve Language Modeling).

    The room that is left in the open bins is a set of numbers, held as the bits of one integer: the smallest that is
    enough is its lowest set bit from there on.
    """
    bins: list[list[int]] = []
    for first in range(0, len(lengths), _PACKED_TOGETHER):
        part = lengths[first : first + _PACKED_TOGETHER]
        open_bins: dict[int, list[int]] = {}
        rooms = 0
        for item in np.argsort(-part, kind="stable").tolist():
            size = int(part[item])
            if fitting := rooms >> size:
                room = size + (fitting & -fitting).bit_length() - 1
                number = open_bins[room].pop()
                if not open_bins[room]:
                    rooms ^= 1 << room
                bins[number].append(first + item)
            else:
                room, number = capacity, len(bins)
                bins.append([first + item])
            if left := room - size:
                open_bins.setdefault(left, []).append(number)
                rooms |= 1 << left
    # in the order of their first documents, so that an example's neighbours in the source stay near it
    bins = [sorted(items) for items in bins]
    bins.sort()
    offsets = np.concatenate([[0], np.cumsum([len(items) for items in bins])]).astype(np.int64)
    return np.array([item for items in bins for item in items], np.int64), offsets


def load(
    cache: Path,
    shard: Shard,
    spec: Encoding,
    length: int,
    ends: Callable[[], np.ndarray],
    tokens: int,
    *,
    shift: int = 1,
) -> PackedSpans:
    """Return the spans of a shard, mapped into memory, after writing them if the cache lacks them or has them damaged
    or, from an earlier version, without a checksum.

    `ends` returns those of the shard's documents, and is called only then. Raises TrainkitError.
    """
    parts = [FORMAT, spec.model_dump(mode="json"), length, shard.key, tokens]
    key = of_value(parts if shift else [*parts, "not shifted"])
    path = cache / "frames" / f"{shard.key}-{key}.npy"
    if (earlier := cache / "frames" / f"{key}.npy").exists():  # an earlier version did not name the shard
        path = earlier
    try:
        return _read(path)
    except (FileNotFoundError, ValueError):
        _write(path, find_spans(spec, length, ends(), tokens, shift=shift))
    except OSError as error:
        raise TrainkitError(f"cannot read it: {error}", where=str(path), hint="delete it: it is rebuilt") from error
    return _read(path)


def _write(path: Path, packed: PackedSpans) -> None:
    """Write one flat array of int64: the numbers of examples and spans, the counts, the arrays, and a checksum."""
    head = [len(packed), len(packed.starts), *packed.counts]
    arrays = (packed.offsets, packed.starts, packed.lengths, packed.contexts)
    with write_file(path) as out:
        content = np.concatenate([head, *arrays]).astype("<i8")
        out.write(np.append(content, checksum(content)).tobytes())


def _read(path: Path) -> PackedSpans:
    version = Version.of(path)
    stored = map_file(path).view("<i8")
    whole = stored[:-1]
    if checksum(whole) != stored[-1]:
        raise ValueError("it does not match its checksum")
    examples, spans = whole[:2].tolist()
    head = 2 + len(PackingCounts._fields)
    counts = PackingCounts(*whole[2:head].tolist())
    cuts = [examples + 1, examples + 1 + spans, examples + 1 + 2 * spans]
    offsets, starts, lengths, contexts = np.split(whole[head:], cuts)
    return PackedSpans(offsets, starts, lengths, contexts, counts, version)
