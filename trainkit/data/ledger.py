"""What one source's tokens in one split are made of: its shards in order, and the files that they came from.

A ledger is named by the hash of its shards' keys, which are hashes of everything that the tokens depend on; so the one
that belongs to the sources as they are is found by its name, or is not there.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from trainkit.data import shards
from trainkit.data.digests import of_value
from trainkit.data.shards import Encoding, Shard, Unit
from trainkit.data.splits import Split
from trainkit.data.storage import sync_directory, writing


@dataclass(frozen=True)
class Ledger:
    split: Split
    tokenizer: str
    dtype: str
    shards: tuple[Shard, ...]

    @property
    def tokens(self) -> int:
        return sum(shard.tokens for shard in self.shards)

    @property
    def documents(self) -> int:
        return sum(shard.documents for shard in self.shards)

    @property
    def bytes(self) -> int:
        """Of the documents' text in UTF-8."""
        return sum(shard.bytes for shard in self.shards)

    @property
    def fingerprint(self) -> str:
        """Of the tokens in their order; where the files and the cache lie does not matter."""
        return of_value([(shard.key, shard.crc32) for shard in self.shards])


def find(cache: Path, units: Sequence[Unit], split: Split, encoding: Encoding) -> Ledger | None:
    """The ledger of these units, if it is there with all its shards; None where it is not."""
    keys = [unit.key(split, encoding) for unit in units]
    try:
        found = json.loads(_path(cache, keys).read_bytes())
        ledger = Ledger(
            found["split"], found["tokenizer"], found["dtype"], tuple(map(Shard.from_json, found["shards"]))
        )
        for shard in ledger.shards:
            if not shards.is_whole(shard, shards.tokens_path(cache, shard.key).stat().st_size, ledger.dtype):
                return None
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return ledger if [shard.key for shard in ledger.shards] == keys else None


def save(cache: Path, ledger: Ledger, units: Sequence[Unit]) -> None:
    """Write it, once all its shards are there. Raises TrainkitError."""
    sync_directory(cache / "shards")
    files = [
        {"name": file.name, "path": str(file.path), "size": file.size, "digest": digest}
        for unit in units
        for file, digest in zip(unit.files, unit.digests, strict=True)
    ]
    totals = {"tokens": ledger.tokens, "documents": ledger.documents, "bytes": ledger.bytes}
    table = {"format": shards.FORMAT, **asdict(ledger), **totals, "fingerprint": ledger.fingerprint, "files": files}
    path = _path(cache, [shard.key for shard in ledger.shards])
    with writing(path) as out:
        out.write(json.dumps(table, indent=1).encode())
    sync_directory(path.parent)


def _path(cache: Path, keys: list[str]) -> Path:
    return cache / "ledgers" / f"{of_value(keys)}.json"
