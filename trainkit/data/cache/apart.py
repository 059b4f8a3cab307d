"""Held-out documents without those that are in the training data too.

Which documents are held out follows from their names and places, so copies of one text may be in both splits, and a
score on a copy would measure memory. A shard of held-out documents that has exact copies of training documents is
therefore written again without them, under its own name. Which shards these are is computed once, when both splits are
complete, and stored under the names of the ledgers that it follows from.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np

from trainkit.data.cache import shards
from trainkit.data.cache.section import Section
from trainkit.data.cache.sets import Set
from trainkit.data.cache.shards import LEARNED, LabelArrayShard, Shard
from trainkit.data.cache.stream import Stream
from trainkit.data.sources.digests import of_value
from trainkit.data.storage import write_file, write_json
from trainkit.data.tokenizer.vocabulary import LoadedTokenizer
from trainkit.errors import TrainkitError
from trainkit.files import checksum, read_json

#: Raise it when the same documents would be left out differently than before.
_APART_FORMAT = 1


def find_apart(cache: Path, group: Set) -> bool:
    """Complete `group.apart` if it was computed before; return whether it was. Raises TrainkitError as `make_apart`."""
    assert group.apart is not None
    held_out = group.streams["held-out"].all
    try:
        table = read_json(_path(cache, group))
        written = {int(number): Shard.from_json(shard) for number, shard in table.get("shards", table).items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return False
    if any(shards.find(cache, shard.key) is None for shard in written.values()):
        return False
    sections = [_in_place_of(s, written[i]) if i in written else s for i, s in enumerate(held_out.sections)]
    if not any(section.tokens for section in sections):
        raise TrainkitError(
            f"all {held_out.documents:,} documents that are held out are exact copies of training documents",
            where="data.held_out",
            hint="give text that does not repeat itself, add a [[data.validation]], or set data.held_out = 0",
        )
    group.apart.extend(sections)
    group.apart.finish()
    return True


def make_apart(cache: Path, group: Set, codec: LoadedTokenizer | None) -> None:
    """Complete `group.apart`, once both splits of the set are complete.

    Raises:
        TrainkitError: no held-out document is left, or the cache cannot be written.
    """
    if find_apart(cache, group):
        return
    held_out = group.streams["held-out"].all
    copies = _common_hashes(group.streams["train"].all, held_out)
    written: dict[str, Mapping[str, object]] = {}
    for number in range(len(held_out.sections)):
        if (keep := _which_stay(held_out, number, copies)) is not None:
            written[str(number)] = asdict(_write(cache, held_out, number, keep, codec))
    names = sorted({name for source in group.sources for name in source.names.values()})
    write_json(_path(cache, group), {"shards": written, "ledgers": names})
    found = find_apart(cache, group)
    assert found, "what was written can be read"


def _path(cache: Path, group: Set) -> Path:
    names = [[source.names["train"], source.names["held-out"]] for source in group.sources]
    measured = [s.shard.measured for s in group.streams["held-out"].all.sections]
    return cache / "apart" / f"{of_value([_APART_FORMAT, names, measured])}.json"


def _hashes(stream: Stream, number: int) -> np.ndarray:
    """Return the hashes of the documents of a section, (entries,)."""
    return stream.arrays(number).documents["hash"][: stream.sections[number].entries]


def _common_hashes(trained: Stream, held_out: Stream) -> np.ndarray:
    """Return the hashes of documents that are in both streams, rising."""
    every = [np.zeros(0, np.uint64), *(_hashes(held_out, number) for number in range(len(held_out.sections)))]
    wanted = np.unique(np.concatenate(every))
    seen = np.zeros(len(wanted) + 1, bool)
    for number in range(len(trained.sections)):
        hashes = _hashes(trained, number)
        place = np.searchsorted(wanted, hashes)
        inside = place < len(wanted)
        seen[place[inside][wanted[place[inside]] == hashes[inside]]] = True
    return wanted[seen[:-1]]


def _which_stay(stream: Stream, number: int, copies: np.ndarray) -> np.ndarray | None:
    """Return which documents of a section stay, (entries,); None if all do."""
    keep = ~np.isin(_hashes(stream, number), copies)
    if len(keep) and number and _continues(stream, number - 1):
        keep[0] = True  # the hash is of its end only
    return None if keep.all() else keep


def _continues(stream: Stream, number: int) -> bool:
    """Return whether the last document of a section continues in the next one."""
    section, ends = stream.sections[number], stream.arrays(number).ends
    return not section.entries or int(ends[section.entries - 1]) < section.tokens


def _write(cache: Path, stream: Stream, number: int, keep: np.ndarray, codec: LoadedTokenizer | None) -> Shard:
    """Write and return the shard of a section with only some of its documents, and what follows the last of them."""
    section, arrays = stream.sections[number], stream.arrays(number)
    ends = arrays.ends[: section.entries].astype(np.int64)
    lengths = np.diff(ends, prepend=0)
    stays = np.append(np.repeat(keep, lengths), np.ones(section.tokens - int(lengths.sum()), bool))
    tokens, documents = arrays.tokens[: section.tokens][stays], arrays.documents[: section.entries][keep]
    marks = None if arrays.marks is None else arrays.marks[: section.tokens][stays]
    labels = arrays.labels
    if labels is not None:
        per_token = not isinstance(section.shard, LabelArrayShard)
        labels = labels[: section.tokens][stays] if per_token else labels[: section.entries][keep]
    if arrays.sizes is None:  # the shard is of an earlier version
        size, sizes = round(section.bytes * len(tokens) / max(1, section.tokens)), None
    else:
        sizes = arrays.sizes[: section.entries][keep]
        size = section.bytes - int(arrays.sizes[: section.entries][~keep].sum(dtype=np.int64))
    parts = [tokens, np.cumsum(lengths[keep]).astype("<u4"), documents, marks, labels, sizes]
    content = b"".join(part.tobytes() for part in parts if part is not None)
    name = [section.shard.key, section.tokens, np.flatnonzero(~keep).tolist(), section.shard.measured]
    key = of_value([shards.FORMAT, _APART_FORMAT, *name])
    shard = replace(
        section.shard,
        key=key,
        tokens=len(tokens),
        documents=len(np.unique(documents[["file", "index"]])),
        entries=len(documents),
        bytes=size,
        crc32=checksum(content),
        learned=len(tokens) if marks is None else int((marks & LEARNED != 0).sum()),
        unknown=0 if codec is None or codec.unknown is None else int((tokens == codec.unknown).sum()),
        highest=int(tokens.max()) if len(tokens) else 0,
        empty=0,
        refused=0,
        filtered=0,
        examples=(),
    )
    with write_file(shards.path_of(cache, key)) as out:
        out.write(content)
    shards.commit(cache, shard)
    return shard


def _in_place_of(section: Section, shard: Shard) -> Section:
    return Section(shard, section.source, section.unit, shard.tokens, shard.documents, shard.entries, shard.bytes)
