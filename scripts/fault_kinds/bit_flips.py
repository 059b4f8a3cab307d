"""Flipped bits: one bit of one file of a finished run, of its checkpoints or of the cache, after each of which
everything is read that a resume reads: the recipe, the tokenizer, the data, the state and the log.

Reading this in one process takes a fraction of the time of a resume, so that thousands of bits can be tried. One flip
in `RESUMED_EVERY` is followed by a real resume from an older step too.
"""

from __future__ import annotations

import contextlib
import hashlib
import random
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from fault_kinds.workplace import NAME, STEPS, Outcome, Workplace, copy_of, judge, trainkit
from trainkit.checkpoint import manifest as manifests
from trainkit.checkpoint.restore import restore, restore_newest
from trainkit.checkpoint.store import step_directories
from trainkit.data import recorded
from trainkit.data.batches.dataset import TrainSet
from trainkit.data.cache import build as caches
from trainkit.errors import TrainkitError
from trainkit.events.log import NAME as LOG
from trainkit.events.log import damage
from trainkit.run.resume import prepare

RESUMED_EVERY = 100
#: Files that a resume does not read: written for people, locks, and what is made again.
UNREAD = ("trainer.log", "lock", "events.index", "generation_config.json")


def flip_bits(workplace: Workplace, times: int, chance: random.Random) -> Iterator[Outcome]:
    """Flip a random bit of a random file, each kind of file equally often, and yield what became of each."""
    pristine = workplace.directory.with_name(workplace.directory.name + "-pristine")
    copy_of(workplace.directory, pristine)
    try:
        expected = _everything(workplace.directory)
        states = {int(path.name): (_digest(_leaves(path)), _log(path)) for path in step_directories(workplace.run)}
        by_kind = _files_by_kind(workplace.directory)
        for number in range(times):
            kind = sorted(by_kind)[number % len(by_kind)]
            path = chance.choice(by_kind[kind])
            what = _flip(path, chance)
            if number % RESUMED_EVERY == RESUMED_EVERY - 1:
                done = trainkit(workplace.directory, "resume", f"{NAME}/{STEPS // 2}", "--plain")
                yield judge(workplace, workplace.run, done, what)
            else:
                yield _outcome(workplace.directory, expected, states, what)
            copy_of(pristine, workplace.directory)
    finally:
        copy_of(pristine, workplace.directory)
        shutil.rmtree(pristine)


def _files_by_kind(directory: Path) -> dict[str, list[Path]]:
    """Return the files that are not empty, by their suffix and the directory that they are in."""
    found: dict[str, list[Path]] = {}
    for root in ("runs", "cache"):
        for path in sorted((directory / root).rglob("*")):
            parts = path.relative_to(directory).parts
            if path.is_file() and path.stat().st_size and path.name not in UNREAD and "locks" not in parts:
                place = "/".join(part for part in parts[:-1] if not part.isdecimal())
                kind = "arrays" if "arrays" in parts else f"{place} {path.suffix}"
                found.setdefault(kind if root == "cache" or "arrays" in kind else path.name, []).append(path)
    return found


def _flip(path: Path, chance: random.Random) -> str:
    content = bytearray(path.read_bytes())
    bit = chance.randrange(8 * len(content))
    content[bit // 8] ^= 1 << bit % 8
    path.write_bytes(content)
    return f"bit {bit} of {path}"


def _outcome(directory: Path, expected: Found, states: dict[int, tuple[str, str]], what: str) -> Outcome:
    try:
        found = _everything(directory)
    except TrainkitError as error:
        return Outcome("refused", f"{what}: {error}")
    except Exception as error:  # a traceback is no message
        return Outcome("lost", f"{what}: {type(error).__name__}: {error}")
    parts = {"recipe": found.recipe == expected.recipe, "data": found.data == expected.data}
    state, log = states[found.step]
    parts |= {"state": found.state == state, "log": found.log == log}
    if other := [part for part, same in parts.items() if not same and part not in found.reported]:
        return Outcome("wrong", f"{what}: other {' and '.join(other)}")
    if not all(parts.values()):
        return Outcome("reported", what)
    return Outcome("exact" if found.step == expected.step else "fell back", what)


class Found(NamedTuple):
    """Digests of what a resume reads, and the step of the newest whole checkpoint."""

    recipe: str
    data: str
    state: str
    step: int
    log: str
    reported: tuple[str, ...]
    """The parts of which a resume says that they differ."""


def _everything(directory: Path) -> Found:
    """Return a digest of each part of what a resume reads. Raises TrainkitError as a resume does."""
    run = directory / "runs" / NAME
    with contextlib.chdir(directory):
        resumption = prepare(
            run, step=STEPS // 2, overrides=(), reset_optimizer=False, forget_commands=False, raise_rate=False
        )
        recipe = resumption.loaded.recipe
        own = recorded.with_own_tokenizer(recipe, run)
        cache = caches.find(own) or caches.build(own)
        restored = restore_newest(run, _leaves, on_damaged=lambda path, error: None)
        assert restored is not None, "the run has checkpoints"
        with contextlib.closing(cache):
            recorded.check_same_data(cache, recipe, restored[1].data, where=run)
            data = TrainSet(cache, recipe)
            batches = [data.batch(step) for step in range(STEPS)]
    content = [cache.fingerprint, *(batch[name] for batch in batches for name in sorted(batch))]
    mark = restored[1].log
    assert mark is not None, "every checkpoint knows the log"
    reported = ["recipe"] if any(note.startswith("recipe: ") for note in resumption.notes) else []
    reported += ["log"] if damage(run, mark, step=restored[1].step, attempt=1) else []
    log, step = _log(run / "checkpoints" / str(restored[1].step)), restored[1].step
    return Found(recipe.fingerprint(), _digest(content), _digest(restored[0]), step, log, tuple(reported))


def _leaves(checkpoint: Path) -> list[Any]:
    """Return the names and the arrays of a checkpoint, read as a resume reads them."""
    leaves = manifests.read(checkpoint).leaves
    key = jax.eval_shape(lambda: jax.random.key(0))
    template = {
        n: key if leaf.kind == "key" else jax.ShapeDtypeStruct(leaf.shape, leaf.dtype) for n, leaf in leaves.items()
    }
    arrays = restore(checkpoint, template)
    plain = {name: jax.random.key_data(a) if leaves[name].kind == "key" else a for name, a in arrays.items()}
    return [part for name in sorted(plain) for part in (name, np.asarray(plain[name]))]


def _log(checkpoint: Path) -> str:
    """Return a digest of the part of the log that was there when a checkpoint was begun."""
    mark = manifests.read(checkpoint).log
    assert mark is not None, "every checkpoint knows the log"
    return _digest([(checkpoint.parents[1] / LOG).read_bytes()[: mark[0]]])


def _digest(parts: list[Any]) -> str:
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part.tobytes() if isinstance(part, np.ndarray) else str(part).encode())
    return digest.hexdigest()
