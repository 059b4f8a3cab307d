"""Comparing the shards of a cache with their checksums."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path

from trainkit.data import jobs
from trainkit.data.cache.shards import Shard
from trainkit.data.jobs import Reporter, Stop, Tell
from trainkit.data.sources.files import chunks
from trainkit.files import checksum, read_json


@dataclass(frozen=True)
class Verified:
    """How many shards and bytes were compared; `damaged` are (file, what is wrong with it)."""

    shards: int
    bytes: int
    damaged: tuple[tuple[Path, str], ...]


def verify(cache: Path, progress: Tell = None) -> Verified:
    """Return which shards of a cache differ from their checksums, after reading every byte. Changes nothing."""
    notes = sorted((cache / "shards").glob("*.json"))
    reporter = Reporter("shards", 0, progress)
    todo = [partial(_problem, cache, note, reporter) for note in notes]
    found = jobs.run(todo, workers=jobs.WORKERS, tick=reporter.tick)
    reporter.finish()
    damaged = tuple((path, problem) for _, path, problem in found if problem)
    return Verified(len(notes), sum(size for size, _, _ in found), damaged)


def remove(cache: Path, damaged: Verified) -> None:
    """Remove damaged shards, so that the next build makes them again. Raises OSError."""
    for path, _ in damaged.damaged:
        path.with_suffix(".json").unlink(missing_ok=True)
        path.unlink(missing_ok=True)


def _problem(cache: Path, note: Path, reporter: Reporter, stop: Stop) -> tuple[int, Path, str]:
    """Return (bytes, file, what is wrong with it or nothing)."""
    path = note.with_suffix(".shard")
    try:
        shard = Shard.from_json(read_json(note))
        size = path.stat().st_size
        if size != shard.size:
            return size, path, f"has {size:,} bytes instead of {shard.size:,}"
        found = 0
        with path.open("rb") as file:
            for chunk in chunks(file):
                stop.check()
                found = checksum(chunk, found)
                reporter.add(bytes=len(chunk))
    except FileNotFoundError:
        return 0, path, "is missing"
    except (OSError, ValueError, KeyError, TypeError) as error:
        return 0, path, f"cannot be read: {error}"
    if shard.key != note.stem:
        return size, path, f"is the shard {shard.key}"
    return size, path, "" if found == shard.crc32 else "does not match its checksum"
