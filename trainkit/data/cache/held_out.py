"""What is held out, without the exact copies of training documents: a score on those would be one of memory.

Which documents are held out follows from their names and places, so copies of one text may lie on both sides. A shard
of held-out documents that has copies is written again without them, under a name of its own. Which shards these are is
kept under the names of the ledgers that it follows from, and is worked out once, when both splits are complete.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np

from trainkit.data.cache import shards
from trainkit.data.cache.sets import Set
from trainkit.data.cache.shards import LEARNED, Shard
from trainkit.data.cache.stream import Section, Stream
from trainkit.data.sources.digests import of_value
from trainkit.data.storage import writing
from trainkit.data.tokenizer.vocabulary import LoadedTokenizer
from trainkit.errors import TrainkitError

#: Raise it when the same documents would be left out differently than before.
_FORMAT = 1


def find(cache: Path, one: Set) -> bool:
    """Complete `one.apart` where it has been worked out before; False where it has not."""
    assert one.apart is not None
    held_out = one.streams["held-out"].all
    try:
        found = json.loads(_path(cache, one).read_bytes())
        written = {int(number): Shard.from_json(shard) for number, shard in found.items()}
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
    one.apart.extend(sections)
    one.apart.finish()
    return True


def make(cache: Path, one: Set, codec: LoadedTokenizer | None) -> None:
    """Complete `one.apart`, once both splits of the set are complete.

    Raises:
        TrainkitError: nothing is left of what is held out, or the cache cannot be written.
    """
    if find(cache, one):
        return
    held_out = one.streams["held-out"].all
    copies = _common_hashes(one.streams["train"].all, held_out)
    written: dict[str, Mapping[str, object]] = {}
    for number in range(len(held_out.sections)):
        if (keep := _which_stay(held_out, number, copies)) is not None:
            written[str(number)] = asdict(_write(cache, held_out, number, keep, codec))
    with writing(_path(cache, one)) as out:
        out.write(json.dumps(written).encode())
    found = find(cache, one)
    assert found, "what was written can be read"


def _path(cache: Path, one: Set) -> Path:
    names = [[source.names["train"], source.names["held-out"]] for source in one.sources]
    return cache / "apart" / f"{of_value([_FORMAT, names])}.json"


def _hashes(stream: Stream, number: int) -> np.ndarray:
    """Those of the documents of a section, (entries,)."""
    return stream.arrays(number).documents["hash"][: stream.sections[number].entries]


def _common_hashes(trained: Stream, held_out: Stream) -> np.ndarray:
    """The hashes of documents that are in both, rising."""
    every = [np.zeros(0, np.uint64), *(_hashes(held_out, number) for number in range(len(held_out.sections)))]
    wanted = np.unique(np.concatenate(every))
    seen = np.zeros(len(wanted) + 1, bool)
    for number in range(len(trained.sections)):
        hashes = _hashes(trained, number)
        place = np.searchsorted(wanted, hashes)
        there = place < len(wanted)
        seen[place[there][wanted[place[there]] == hashes[there]]] = True
    return wanted[seen[:-1]]


def _which_stay(stream: Stream, number: int, copies: np.ndarray) -> np.ndarray | None:
    """Which documents of a section stay, (entries,); None where all do."""
    keep = ~np.isin(_hashes(stream, number), copies)
    if len(keep) and number and _goes_on(stream, number - 1):
        keep[0] = True  # the hash is of its end alone
    return None if keep.all() else keep


def _goes_on(stream: Stream, number: int) -> bool:
    """Whether the last document of a section goes on in the next one."""
    section, ends = stream.sections[number], stream.arrays(number).ends
    return not section.entries or int(ends[section.entries - 1]) < section.tokens


def _write(cache: Path, stream: Stream, number: int, keep: np.ndarray, codec: LoadedTokenizer | None) -> Shard:
    """The shard of a section with only some of its documents, and what follows the last of them."""
    section, arrays = stream.sections[number], stream.arrays(number)
    ends = arrays.ends[: section.entries].astype(np.int64)
    lengths = np.diff(ends, prepend=0)
    stays = np.append(np.repeat(keep, lengths), np.ones(section.tokens - int(lengths.sum()), bool))
    tokens, documents = arrays.tokens[: section.tokens][stays], arrays.documents[: section.entries][keep]
    marks = None if arrays.marks is None else arrays.marks[: section.tokens][stays]
    labels = None if arrays.labels is None else arrays.labels[: section.tokens][stays]
    parts = [tokens, np.cumsum(lengths[keep]).astype("<u4"), documents, marks, labels]
    content = b"".join(part.tobytes() for part in parts if part is not None)
    key = of_value([shards.FORMAT, _FORMAT, section.shard.key, section.tokens, np.flatnonzero(~keep).tolist()])
    shard = replace(
        section.shard,
        key=key,
        tokens=len(tokens),
        documents=len(np.unique(documents[["file", "index"]])),
        entries=len(documents),
        # of single documents they are not known
        bytes=round(section.bytes * len(tokens) / max(1, section.tokens)),
        crc32=zlib.crc32(content),
        learned=len(tokens) if marks is None else int((marks & LEARNED != 0).sum()),
        unknown=0 if codec is None or codec.unknown is None else int((tokens == codec.unknown).sum()),
        highest=int(tokens.max()) if len(tokens) else 0,
        empty=0,
        refused=0,
        filtered=0,
        examples=(),
    )
    with writing(shards.path_of(cache, key)) as out:
        out.write(content)
    shards.commit(cache, shard)
    return shard


def _in_place_of(section: Section, shard: Shard) -> Section:
    return Section(shard, section.source, section.unit, shard.tokens, shard.documents, shard.entries, shard.bytes)
