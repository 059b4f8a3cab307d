"""Ledgers: the shards of one source in one split, in order, and the files that they came from.

A ledger is named by the hash of its units' keys, which are hashes of everything that the tokens depend on. So the
ledger of the sources as they are now is found by its name, or does not exist.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from trainkit.data.cache import shards
from trainkit.data.cache.shards import Encoding, Shard
from trainkit.data.sources.digests import of_value
from trainkit.data.sources.splits import Split
from trainkit.data.sources.units import Unit
from trainkit.data.storage import write_json
from trainkit.files import read_json


@dataclass(frozen=True)
class Ledger:
    """The shards of a source in one split; `units` are the numbers of the units that they are from."""

    split: Split
    tokenizer: str
    dtype: str
    shards: tuple[Shard, ...]
    units: tuple[int, ...]


def name_of(units: Sequence[Unit], split: Split, encoding: Encoding, limit: int | None) -> str:
    """Return the name of the ledger of some units, known before anything is tokenised."""
    return name_of_keys([shards.key_of(unit, split, encoding) for unit in units], limit)


def name_of_keys(keys: Sequence[str], limit: int | None) -> str:
    """Return the name of the ledger of units whose first shards have these names."""
    return of_value([list(keys), limit])


def find(cache: Path, name: str) -> Ledger | None:
    """Return the ledger of a name; None unless it exists with all its shards."""
    try:
        table = read_json(_path(cache, name))
        ledger = Ledger(
            table["split"],
            table["tokenizer"],
            table["dtype"],
            tuple(map(Shard.from_json, table["shards"])),
            tuple(table["units"]),
        )
        for shard in ledger.shards:
            if shards.path_of(cache, shard.key).stat().st_size != shard.size:
                return None
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return ledger


def files_of(cache: Path, name: str) -> list[dict[str, Any]] | None:
    """Return the files that a ledger was made from, each with `name`, `path`, `kind`, `digest`, its first `unit` and
    how many `units` it is divided into; None if there is no such ledger, or an earlier version wrote it."""
    try:
        files = read_json(_path(cache, name))["files"]
        return list(files) if all({"kind", "unit", "units"} <= file.keys() for file in files) else None
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def save(cache: Path, name: str, ledger: Ledger, units: Sequence[Unit], limit: int | None) -> None:
    """Write a ledger whose shards are complete, with the files it was made from. Raises TrainkitError."""
    files = [
        {
            "name": file.name,
            "path": file.path,
            "kind": file.kind,
            "unit": number,
            "units": unit.spans,
            "size": file.size,
            "digest": content.digest,
        }
        for number, unit in enumerate(units)
        for file, content in zip(unit.files, unit.contents, strict=True)
        if unit.span is None or unit.span.first == 0
    ]
    totals = {name: sum(getattr(s, name) for s in ledger.shards) for name in ("tokens", "documents", "bytes")}
    table = {"format": shards.FORMAT, **asdict(ledger), **totals, "limit": limit, "files": files}
    write_json(_path(cache, name), table)


def _path(cache: Path, name: str) -> Path:
    if not shards.is_key(name):
        raise ValueError(f"{name!r:.60} is no name of a ledger")
    return cache / "ledgers" / f"{name}.json"
