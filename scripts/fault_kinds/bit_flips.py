"""Flipped bits: one bit of one file of a run that was killed, of its checkpoints or of the cache.

After each flip this process reads everything that a resume reads: recipe, tokenizer, training and validation data,
state and log. A step is a function of these alone, so that a run in which they are as they were ends as it would have.
This takes a fraction of the time of a resume, so that many thousand bits can be tried. One flip in `RESUMED_EVERY` is
judged by a process that really resumes the run and trains it to its end.
"""

from __future__ import annotations

import contextlib
import hashlib
import random
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from fault_kinds.workplace import NAME, STEPS, Outcome, Snapshot, Workplace, cut_off, judge, trainkit
from trainkit.checkpoint import manifest as manifests
from trainkit.checkpoint.restore import restore, restore_newest
from trainkit.checkpoint.store import step_directories
from trainkit.data import recorded
from trainkit.data.batches.dataset import TrainSet
from trainkit.data.batches.evaluation_set import evaluation_sets
from trainkit.data.cache import build as caches
from trainkit.errors import TrainkitError
from trainkit.events.damage import damage
from trainkit.events.tail import NAME as LOG
from trainkit.run.resume import prepare
from trainkit.rundir import checkpoint_files

RESUMED_EVERY = 100
#: The last step before the run was killed: not that of a checkpoint.
KILLED_AFTER = 20
#: Files that a resume does not read: written for people, locks, and what is made again.
UNREAD = ("trainer.log", "lock", "events.index", "generation_config.json")


def flip_bits(workplace: Workplace, times: int, chance: random.Random) -> Iterator[Outcome]:
    """Flip a random bit of a random file, each kind of file equally often, and yield what became of each."""
    directory = workplace.directory.with_name(workplace.directory.name + "-flipped")
    # at the place where it was made: the recipe has absolute paths
    shutil.move(workplace.directory, directory)
    shutil.copytree(directory, workplace.directory, symlinks=True)
    try:
        yield from _flip_bits(workplace, times, chance)
    finally:
        shutil.rmtree(workplace.directory)
        shutil.move(directory, workplace.directory)


def _flip_bits(workplace: Workplace, times: int, chance: random.Random) -> Iterator[Outcome]:
    cut_off(workplace.run, after=KILLED_AFTER)
    snapshot, expected = Snapshot(workplace.directory), _everything(workplace.directory)
    snapshot.restore()
    states = {int(path.name): (_digest(_leaves(path)), _log(path)) for path in step_directories(workplace.run)}
    by_kind = _files_by_kind(workplace.directory)
    for number in range(times):
        turn, place = divmod(number, len(by_kind))
        kind = sorted(by_kind)[place]
        path = chance.choice(by_kind[kind])
        what = _flip(path, chance)
        if resumed := (turn + place) % RESUMED_EVERY == 0:  # each kind of file in its turn
            outcome = resume_and_judge(workplace, what)
        else:
            outcome = _outcome(workplace.directory, expected, states, what)
        yield outcome._replace(where=kind, resumed=resumed)
        snapshot.restore()


def resume_and_judge(workplace: Workplace, what: str) -> Outcome:
    """Return what became of the damaged run, which a process resumes to its end."""
    done = trainkit(workplace.directory, "resume", NAME, "--plain")
    outcome = judge(workplace, workplace.run, done, what)
    if outcome.result == "lost" and done.returncode == 0 and f"{LOG} is not as it was at step" in done.stdout:
        return outcome._replace(result="reported")
    return outcome


def _files_by_kind(directory: Path) -> dict[str, list[Path]]:
    """Return the files that are not empty by what they are: their path without numbers and names of arrays."""
    found: dict[str, list[Path]] = {}
    for root in ("runs", "cache"):
        for path in sorted((directory / root).rglob("*")):
            parts = path.relative_to(directory).parts
            if path.is_file() and path.stat().st_size and path.name not in UNREAD and "locks" not in parts:
                found.setdefault(_kind(parts), []).append(path)
    return found


def _kind(parts: tuple[str, ...]) -> str:
    if "arrays" in parts:
        return f"checkpoint: arrays{' (metadata)' * parts[-1].endswith('.json')}"
    if parts[0] == "runs":
        return f"{'checkpoint' if 'checkpoints' in parts else 'run'}: {parts[-1]}"
    name = re.sub(r"[0-9a-f]{8,}", "KEY", parts[-1])
    return f"cache: {'/'.join([*(part for part in parts[1:-1] if not re.search('[0-9a-f]{8,}', part)), name])}"


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
    return compare(found, expected, states, what)


def compare(found: Found, expected: Found, states: dict[int, tuple[str, str]], what: str) -> Outcome:
    """Return what a resume would make of what it finds, if `states` are the digests of state and log at each step."""
    parts = {"recipe": found.recipe == expected.recipe, "data": found.data == expected.data}
    state, log = states[found.step]
    parts |= {"state": found.state == state, "log": found.log == log}
    # a mark that cannot be read is made again from the log
    parts |= {"best": found.best in (expected.best, "None")}
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
    best: str
    """The mark of the best checkpoint."""
    reported: tuple[str, ...]
    """The parts of which a resume says that they differ."""


def _everything(directory: Path) -> Found:
    """Return a digest of each part of what a resume reads. Raises TrainkitError as a resume does."""
    run = directory / "runs" / NAME
    with contextlib.chdir(directory):
        resumption = prepare(
            run, step=None, overrides=(), reset_optimizer=False, forget_commands=False, raise_rate=False
        )
        recipe = resumption.loaded.recipe
        own = recorded.with_own_tokenizer(recipe, run)
        cache = caches.find(own) or caches.build(own)
        restored = restore_newest(run, _leaves, on_damaged=lambda path, error: None)
        assert restored is not None, "the run has checkpoints"
        with contextlib.closing(cache):
            recorded.check_same_data(cache, recipe, restored[1].data, where=run)
            train = TrainSet(cache, recipe)
            tests = evaluation_sets(cache.directory, cache.validation, recipe, at_once=8)
            batches = [train.batch(step) for step in range(STEPS)]
            batches += [test.batch(index) for test in tests.values() for index in range(len(test))]
            content = [cache.fingerprint, *(batch[name] for batch in batches for name in sorted(batch))]
    manifest = restored[1]
    assert manifest.log is not None, "every checkpoint knows the log"
    reported = ["recipe"] if any(note.startswith("recipe: ") for note in resumption.notes) else []
    reported += ["log"] if damage(run, manifest.log, step=manifest.step, attempt=1) else []
    return Found(
        recipe.fingerprint(),
        _digest(content),
        _digest(restored[0]),
        manifest.step,
        _log(run / "checkpoints" / str(manifest.step)),
        str(checkpoint_files.best(run)),
        tuple(reported),
    )


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
