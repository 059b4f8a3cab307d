"""Units of work, and the shards that they become.

A **unit** is some consecutive files of a source. It follows from the files alone, never from the number of workers. A
unit ends where a file's name says so (content-defined boundaries, as in Muthitacharoen et al. 2001, LBFS), so that a
file that is added or grows disturbs only its neighbourhood.

A **shard** is the tokens of one split of one unit, stored under the hash of everything that they depend on:
`shards/KEY.tokens`, little-endian uint16 or uint32, and `shards/KEY.json`, written last. So nothing has to be compared
to know that it is up to date, and two processes that make the same shard make the same file.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from trainkit.data.digests import Digests, of_value
from trainkit.data.sources import SourceFile
from trainkit.data.splits import Split, treatment
from trainkit.data.storage import writing

#: Raise it when the same files and tokenizer would give other tokens than before.
FORMAT = 1
#: Bytes of the files of a unit: from so many on it may end, and with so many it does.
SMALL, LARGE = 1 << 20, 8 << 20
#: Of the skipped documents of a shard so many are told with place and reason.
EXAMPLES = 20


@dataclass(frozen=True)
class Encoding:
    """What the tokens of a text depend on beside the text."""

    tokenizer: str
    dtype: str
    held_out: float

    @property
    def splits(self) -> tuple[Split, ...]:
        return ("train", "held-out") if self.held_out else ("all",)


@dataclass(frozen=True)
class Unit:
    files: tuple[SourceFile, ...]
    digests: tuple[str, ...]

    def key(self, split: Split, encoding: Encoding) -> str:
        """The name of its shard."""
        files = [
            (file.name, digest, treatment(file, encoding.held_out), file.text_key)
            for file, digest in zip(self.files, self.digests, strict=True)
        ]
        return of_value([FORMAT, split, encoding.held_out, encoding.tokenizer, encoding.dtype, files])


@dataclass(frozen=True)
class Shard:
    """What a finished shard holds. `bytes` are those of the documents' text in UTF-8.

    A document that is in two splits in parts is one of the `documents` of each.
    """

    key: str
    tokens: int
    documents: int
    bytes: int
    crc32: int
    empty: int
    """Documents without text; they are left out."""
    skipped: int
    """Documents that could not be read; counted with the unit's first split."""
    examples: tuple[tuple[str, str], ...]
    """Of the skipped ones, the first few: (where, why)."""

    @staticmethod
    def from_json(value: dict[str, Any]) -> Shard:
        """Raises KeyError, TypeError or ValueError where it is none."""
        return Shard(**{**value, "examples": tuple((where, why) for where, why in value["examples"])})


def units(files: Iterable[SourceFile], digests: Digests) -> Iterator[Unit]:
    """Groups of consecutive small files, 1 to 8 MB together; a larger file is one of its own."""
    group: list[SourceFile] = []
    size = 0
    for file in files:
        if group and size + file.size > LARGE:
            yield _unit(group, digests)
            group, size = [], 0
        group.append(file)
        size += file.size
        if size >= SMALL and _ends_a_unit(file):
            yield _unit(group, digests)
            group, size = [], 0
    if group:
        yield _unit(group, digests)


def _unit(files: list[SourceFile], digests: Digests) -> Unit:
    return Unit(tuple(files), tuple(digests[file.path] for file in files))


def _ends_a_unit(file: SourceFile) -> bool:
    return hashlib.blake2b(file.name.encode(errors="surrogateescape"), digest_size=1).digest()[0] < 64


def tokens_path(cache: Path, key: str) -> Path:
    return cache / "shards" / f"{key}.tokens"


def find(cache: Path, key: str, dtype: str) -> Shard | None:
    """A shard that is there, whole; None where it is not. A file of the wrong size is not whole."""
    try:
        shard = Shard.from_json(json.loads((cache / "shards" / f"{key}.json").read_bytes()))
        size = tokens_path(cache, key).stat().st_size
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return shard if shard.key == key and is_whole(shard, size, dtype) else None


def is_whole(shard: Shard, size: int, dtype: str) -> bool:
    return size == shard.tokens * (2 if dtype == "uint16" else 4)


def commit(cache: Path, shard: Shard) -> None:
    """Say that the tokens of a shard are all there. Raises TrainkitError."""
    with writing(cache / "shards" / f"{shard.key}.json") as out:
        out.write(json.dumps(asdict(shard)).encode())
