"""What of a cache no run needs, and removing it: `trainkit cache-data RECIPE --prune`.

A run records its ledgers in its directory. What these ledgers and those of the recipe list is kept; other ledgers are
removed, with the shards that only they list. Tokenizers, digests, numbers of reference models and lists of rejected
documents stay: they are small, or cost much time.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from trainkit import files
from trainkit.data import recorded, storage
from trainkit.data.cache import build, shards
from trainkit.errors import FAILED, TrainkitError
from trainkit.recipe import Recipe

#: Directories of a run that hold no other run, and perhaps many files.
_NO_RUNS = {"checkpoints", "exports", "results", "tensorboard", "wandb"}
#: Seconds since the last change of a shard that no ledger lists, after which no process is about to list it.
_LEFT_OVER = 24 * 3600


@dataclass(frozen=True)
class Unused:
    """What of a cache no run needs.

    Attributes:
        ledgers, shards: how many there are.
        files: all that can be removed; if only the first few of them are removed, the others are unused still.
        bytes: of all files.
        runs: how many runs were asked what they need.
        unknown: those that do not say it, so that their data may have to be tokenised again.
    """

    ledgers: int
    shards: int
    files: tuple[Path, ...]
    bytes: int
    runs: int
    unknown: tuple[Path, ...]


def find_unused(recipe: Recipe) -> Unused:
    """Return what of the recipe's cache neither the recipe nor a run below its `run.directory` needs.

    Raises TrainkitError if the sources of the recipe cannot be used.
    """
    cache = Path(recipe.data.cache)
    storage.check_format(cache, shards.FORMATS)
    records = {run: recorded.read(run) for run in _runs(Path(recipe.run.directory))}
    needed = {name for record in records.values() if record for name in (*record.ledgers, *record.others)}
    needed |= build.ledgers_of(recipe)
    listed = {path: _keys_in(path) for path in sorted((cache / "ledgers").glob("*.json"))}
    unused = [path for path in listed if path.stem not in needed]
    apart = {path: _keys_in(path) for path in sorted((cache / "apart").glob("*.json"))}
    unused_apart = [path for path in apart if not _is_needed(path, needed)]
    kept = {key for path, keys in (listed | apart).items() if path not in (*unused, *unused_apart) for key in keys}
    keys = {key for path in (*unused, *unused_apart) for key in listed.get(path, apart.get(path, ()))} - kept
    if needed <= {path.stem for path in listed}:  # else a run was stopped before a ledger listed all of its shards
        keys |= set(_left_over(cache)) - kept
    of_shards = [path for key in sorted(keys) for path in _files_of(cache, key)]
    found = (*unused, *unused_apart, *of_shards)
    size = sum(path.stat().st_size for path in found)
    unknown = tuple(run for run, record in records.items() if record is None)
    return Unused(len(unused), len(keys), found, size, len(records), unknown)


def prune(recipe: Recipe) -> Unused:
    """Remove what of the recipe's cache no run needs, and return what that was.

    Raises TrainkitError if a process uses the cache, or the disk refuses.
    """
    cache = Path(recipe.data.cache)
    with storage.all_to_oneself(cache) as alone:
        if not alone:
            raise TrainkitError(
                "a process uses the cache, so nothing is removed",
                where=str(cache),
                hint="wait until no run, evaluation or command uses it; `trainkit runs` lists what trains",
                exit_code=FAILED,
            )
        unused = find_unused(recipe)
        with storage.refusals(cache):
            for path in unused.files:
                path.unlink(missing_ok=True)
        return unused


def _runs(directory: Path) -> Iterator[Path]:
    """Yield the runs below a directory, those of sweeps too."""
    for place, names, found in os.walk(directory, followlinks=True):
        if "recipe.toml" in found:
            yield Path(place)
        names[:] = [name for name in names if name not in _NO_RUNS and not name.startswith(".")]


def _keys_in(path: Path) -> set[str]:
    """Return the shards that a ledger lists, or a record of held-out documents; none if it cannot be read."""
    try:
        found = files.read_json(path)
        listed = found.get("shards", found)
        return {str(shard["key"]) for shard in (listed.values() if isinstance(listed, dict) else listed)}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return set()


def _is_needed(apart: Path, needed: set[str]) -> bool:
    """Return whether a record of held-out documents follows from ledgers that are needed, or may do so."""
    try:
        return set(files.read_json(apart)["ledgers"]) <= needed
    except (OSError, ValueError, TypeError):
        return False
    except KeyError:  # an earlier version wrote it
        return True


def _left_over(cache: Path) -> Iterator[str]:
    """Yield the shards that have not changed for a day."""
    for path in (cache / "shards").glob("*.shard"):
        if time.time() - path.stat().st_mtime > _LEFT_OVER:
            yield path.stem


def _files_of(cache: Path, key: str) -> list[Path]:
    """Return the files of a shard that exist: first its record, without which nobody finds it."""
    if not shards.is_key(key):  # no trainer wrote it
        return []
    shard = shards.path_of(cache, key)
    frames = sorted((cache / "frames").glob(f"{key}-*.npy"))
    return [
        path for path in (shard.with_suffix(".json"), shard, shards.rejected_path(cache, key), *frames) if path.exists()
    ]
