"""Shards: files of a cache, each with the tokens of one unit of the sources in one split.

A **shard** holds the tokens of one split of a unit, or of a part of it. It is stored under the hash of everything that
it depends on: `shards/KEY.shard`, and `shards/KEY.json`, written last. So a shard is never out of date, and two
processes that make the same shard make the same file. Its arrays follow one another, little-endian:

| array     | type                       | of each  | meaning                                                        |
|-----------|----------------------------|----------|----------------------------------------------------------------|
| tokens    | uint8, uint16 or uint32    | token    |                                                                |
| ends      | uint32                     | document | where in the shard it ends (a long one may continue in another) |
| documents | `DOCUMENT`                 | document | where it comes from, a hash of its content, its label          |
| marks     | uint8, if `marked`         | token    | `LEARNED`: it is a target; `SECOND`: it is of a second or later |
|           |                            |          | text; `FURTHER`: it is the first of a third or later text       |
| labels    | int16, of a `LabelledShard`| token    | its label, -1 where it has none                                |
| labels    | of a `LabelArrayShard`     | document | its label, where this is not the number of a class             |
| sizes     | uint32, if `measured`      | document | bytes of its text in UTF-8 that are in this shard              |
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np

from trainkit.data.cache.left_out import Reason
from trainkit.data.documents.labels import Labels
from trainkit.data.sources.digests import of_value
from trainkit.data.sources.splits import Split, treatment
from trainkit.data.sources.units import Unit
from trainkit.data.storage import Version, map_file, write_json
from trainkit.files import Damaged, checksum, read_json

#: Raise it when the same files and tokenizer would give other shards than before.
FORMAT = 4
#: Formats whose files can share a cache, because their names differ.
FORMATS = (2, 3, FORMAT)
#: How many unusable documents of a shard are listed with place and reason.
EXAMPLES = 20
#: For each document: which file of the unit, which document of that file, a hash of its content, its label or -1.
DOCUMENT = np.dtype([("file", "<u4"), ("index", "<u4"), ("hash", "<u8"), ("label", "<i4")])
#: The shards that this process has compared with their checksums, which several streams may share.
_CHECKED: dict[Path, tuple[int, Version]] = {}
#: Characters of a name; hashes are shorter.
LONGEST_KEY = 128
#: The types of a record's fields, by their annotations, and what the names of its arrays' types are like.
_TYPES: dict[str, type] = {"int": int, "bool": bool, "str": str}
_DTYPE = re.compile(r"(u?int|float)(8|16|32|64)")
#: Bits of the marks.
LEARNED, SECOND, FURTHER = 1, 2, 4


@dataclass(frozen=True)
class Encoding:
    """Everything that the tokens of a text depend on, apart from the text."""

    tokenizer: str
    dtype: str
    held_out: float
    bos: bool = False
    eos: bool = True
    between: bool = False
    """Whether two texts have the tokenizer's tokens between them although none precedes the first; with `bos` they
    always have."""

    @property
    def splits(self) -> tuple[Split, ...]:
        """The splits of a unit; the first one counts what was refused."""
        return ("train", "held-out") if self.held_out else ("all",)


@dataclass(frozen=True, kw_only=True)
class Shard:
    """The record of a finished shard. `bytes` are those of the documents' text in UTF-8.

    A document with parts in two splits is one of the `documents` of each; one that continues in another shard is
    counted where it ends.
    """

    key: str
    dtype: str
    tokens: int
    documents: int
    entries: int
    """Rows of the arrays of documents: each part of a long text that is held out in parts has one."""
    bytes: int
    crc32: int
    marked: bool
    learned: int
    """Tokens that are targets."""
    unknown: int
    """Tokens that stand for text that the tokenizer has no token for."""
    highest: int
    """The highest id."""
    empty: int
    """Documents without text or ids; they are left out."""
    refused: int
    """Documents that could not be read; counted with the unit's first split."""
    filtered: int
    """Documents left out for their length."""
    examples: tuple[tuple[str, str], ...]
    """The first few refused documents: (where, why)."""
    reasons: tuple[Reason, ...]
    """All refused documents, by what is wrong."""
    pieces: int
    """Pieces of the unit up to the end of this shard."""
    last: bool
    """Whether the unit ends with this shard."""
    carried: int = 0
    """Characters of the last piece whose tokens are in the next shard, where the piece's text is continued."""
    measured: bool = False
    """Whether it has the bytes of each document. Shards from before this existed do not."""

    @staticmethod
    def from_json(value: dict[str, Any]) -> Shard:
        """Return the shard that JSON describes. Raises KeyError, TypeError or ValueError if it describes none."""
        examples = tuple((where, why) for where, why in value["examples"])
        with_labels = LabelArrayShard if "label_width" in value else LabelledShard
        kind = with_labels if "label_dtype" in value else Shard
        shard = kind(**{**value, "examples": examples, "reasons": tuple(Reason(*r) for r in value["reasons"])})
        _check_types(shard)
        return shard

    @property
    def size(self) -> int:
        """Bytes of its file."""
        width = np.dtype(self.dtype).itemsize
        labels = math.prod(self.label_shape) * self.label_type.itemsize
        return self.tokens * (width + self.marked) + self.entries * (4 + DOCUMENT.itemsize + 4 * self.measured) + labels

    @property
    def label_shape(self) -> tuple[int, ...]:
        """The shape of the array of labels."""
        return (0,)

    @property
    def label_type(self) -> np.dtype:
        """The type of the array of labels."""
        return np.dtype("<i2")


@dataclass(frozen=True, kw_only=True)
class LabelledShard(Shard):
    """A shard whose tokens may have labels. The files of other shards have none of its fields."""

    label_dtype: str = "int16"

    @property
    def label_shape(self) -> tuple[int, ...]:
        return (self.tokens,)

    @property
    def label_type(self) -> np.dtype:
        return np.dtype(self.label_dtype).newbyteorder("<")


@dataclass(frozen=True, kw_only=True)
class LabelArrayShard(LabelledShard):
    """A shard whose documents have labels in an array of their own; `label_width` is 0 where a label is one number."""

    label_width: int

    @property
    def label_shape(self) -> tuple[int, ...]:
        return (self.entries, self.label_width) if self.label_width else (self.entries,)


def _check_types(shard: Shard) -> None:
    """Raise ValueError if a record has values that no shard has, such as a key that is a path."""
    for field in fields(shard):
        value = getattr(shard, field.name)
        wanted = _TYPES.get(str(field.type))
        if wanted is not None and (type(value) is not wanted or (isinstance(value, int) and value < 0)):
            raise ValueError(f"{field.name} is {value!r:.60}")
        if field.name.endswith("dtype") and not _DTYPE.fullmatch(value):
            raise ValueError(f"{field.name} is {value!r:.60}")
    if not is_key(shard.key):
        raise ValueError(f"the key is {shard.key!r:.60}")


def is_key(name: object) -> bool:
    """Return whether a name is one of a shard or a ledger, which are hashes: letters and digits, and no path."""
    return isinstance(name, str) and name.isascii() and name.isalnum() and len(name) <= LONGEST_KEY


def shard_of(labels: Labels | None, **fields: Any) -> Shard:
    """Return the record of a shard of documents with these labels."""
    if labels is None or labels.per == "record":
        return Shard(**fields)
    if labels.per == "token":
        return LabelledShard(**fields)
    (width,) = labels.shape or (0,)
    return LabelArrayShard(**fields, label_dtype=labels.stored.name, label_width=width)


Parts = Sequence[Mapping[Split, Shard]]
"""The shards of a unit, by part."""


def all_shards(parts: Parts) -> list[Shard]:
    """Return the shards of all parts, part by part."""
    return [shard for part in parts for shard in part.values()]


def key_of(unit: Unit, split: Split, encoding: Encoding, part: int = 0, *, format: int = FORMAT) -> str:
    """Return the name of the shard that part number `part` of a unit becomes in a split."""
    files = [
        (file.name, content.digest, treatment(file, encoding.held_out), file.reading.signature)
        for file, content in zip(unit.files, unit.contents, strict=True)
    ]
    if unit.span and unit.span.digest:
        files = [(files[0][0], unit.span.digest, *files[0][2:])]
    span = unit.span and (unit.span.first if unit.span.digest else (unit.span.start, unit.span.end))
    # shards without `between` have the names that they had before it existed
    encoded = {key: value for key, value in asdict(encoding).items() if key != "between" or value}
    return of_value([format, encoded, split, part, span, files])


def path_of(cache: Path, key: str) -> Path:
    """Return the file of a shard."""
    return cache / "shards" / f"{key}.shard"


def rejected_path(cache: Path, key: str) -> Path:
    """Return the list of documents that could not be used, a JSON object a line; missing if there are none."""
    return cache / "shards" / f"{key}.rejected.jsonl"


def of_unit(cache: Path, unit: Unit, encoding: Encoding, on_error: str) -> list[Mapping[Split, Shard]]:
    """Return the shards of a unit that exist, by part, up to the first gap; none if one of them may not be used."""
    first = encoding.splits[0]
    parts: list[Mapping[Split, Shard]] = []
    while not parts or not parts[-1][first].last:
        part = {s: find(cache, key_of(unit, s, encoding, len(parts))) for s in encoding.splits}
        complete = {split: shard for split, shard in part.items() if shard is not None}
        if len(complete) < len(part):
            break
        parts.append(complete)
    return parts if all(may_be_used(part[first], unit, on_error) for part in parts) else []


def may_be_used(shard: Shard, unit: Unit, on_error: str) -> bool:
    """Return whether a shard may be used: not if it leaves out unreadable documents, and none may be left out."""
    return not shard.refused or on_error == "skip" or all(file.kind == "python" for file in unit.files)


def find(cache: Path, key: str) -> Shard | None:
    """Return the shard with a name; None unless it exists and its file has the right size."""
    try:
        shard = Shard.from_json(read_json(cache / "shards" / f"{key}.json"))
        size = path_of(cache, key).stat().st_size
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return shard if shard.key == key and size == shard.size else None


def commit(cache: Path, shard: Shard) -> None:
    """Record that a shard is complete. Raises TrainkitError."""
    write_json(cache / "shards" / f"{shard.key}.json", asdict(shard))


def check(cache: Path, shard: Shard) -> Version:
    """Compare the file of a shard with its checksum, once in each process, and return which version of it is good.

    Raises OSError or ValueError if it is gone or cut off, and Damaged if its content has changed.
    """
    path = path_of(cache, shard.key)
    version = Version.of(path)
    if shard.size and _CHECKED.get(path) != (shard.crc32, version):
        if checksum(map_file(path, shard.size)) != shard.crc32:
            raise Damaged("it does not match its checksum")
        _CHECKED[path] = shard.crc32, version
    return version
