"""The checkpoints of a run: which there are, whether they are whole, which are kept. Imports no jax."""

from __future__ import annotations

import os
import shutil
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from trainkit.checkpoint import manifest as manifests
from trainkit.checkpoint.manifest import DamagedCheckpoint, Kind, Manifest, sync_directory
from trainkit.errors import TrainkitError
from trainkit.recipe.sections.outputs import Checkpoint
from trainkit.rundir import marks
from trainkit.rundir.directory import as_typed

_WRITING, _REMOVING, ASIDE = ".tmp-", ".trash-", "set-aside-"


@dataclass(frozen=True)
class Info:
    """A checkpoint whose manifest could be read; its arrays may still be damaged, see `verify`."""

    step: int
    directory: Path
    manifest: Manifest


def directory_of(run_directory: Path) -> Path:
    return run_directory / "checkpoints"


def step_directories(run_directory: Path) -> list[Path]:
    """Directories that have a step for a name, in ascending order, whatever is in them."""
    try:
        found = [path for path in directory_of(run_directory).iterdir() if path.name.isdecimal() and path.is_dir()]
    except FileNotFoundError:
        return []
    return sorted(found, key=lambda path: int(path.name))


def checkpoints(run_directory: Path) -> list[Info]:
    """Those of a run, by ascending step; reads manifests only. One without a readable manifest is none."""
    infos = []
    for directory in step_directories(run_directory):
        try:
            infos.append(Info(int(directory.name), directory, manifests.read(directory)))
        except TrainkitError:
            continue
    return infos


def newest(run_directory: Path) -> Info | None:
    """The one with the highest step; reads manifests only."""
    return next(reversed(checkpoints(run_directory)), None)


def find(run_directory: Path, step: int) -> Info:
    """That of a step. Raises TrainkitError, which lists those that there are, or DamagedCheckpoint."""
    directory = directory_of(run_directory) / str(step)
    if not directory.is_dir():
        steps = ", ".join(str(info.step) for info in checkpoints(run_directory)) or "none"
        raise TrainkitError(f"there is no checkpoint of step {step}; there are: {steps}", where=str(run_directory))
    return Info(step, directory, manifests.read(directory))


def verify(directory: Path, *, gently: bool = False) -> list[str]:
    """Read every chunk of every array of a checkpoint and compare with its manifest.

    Returns what is wrong, a sentence each; an empty list means that all is there and every checksum is right. `gently`
    leaves the processors to who else needs them.
    """
    from trainkit.checkpoint import arrays

    try:
        manifest = manifests.read(directory)
    except DamagedCheckpoint as error:
        return [error.problem]
    root = directory / "arrays"
    opened, problems = arrays.open_all(root, manifest.leaves, gently=gently)
    for name, array in opened.items():
        problems += [f"{name}: {found}" for found in arrays.damage(array)]
    present = {path.name for path in root.iterdir()} if root.is_dir() else set()
    return problems + [f"{name}: the manifest does not know it" for name in sorted(present - manifest.leaves.keys())]


def due(spec: Checkpoint, *, step: int, last_saved_time: float, now: float) -> Kind | None:
    """Which kind of checkpoint the recipe asks for after this step. Times in seconds, of one clock."""
    if isinstance(spec.keep_every, int) and step and step % spec.keep_every == 0:
        return "permanent"
    if isinstance(spec.keep_every, tuple) and step in spec.keep_every:
        return "permanent"
    if spec.every_minutes is not None and now - last_saved_time >= 60 * spec.every_minutes:
        return "rolling"
    return None


def retain(run_directory: Path, *, saved: int, keep_last: int, held: Collection[int] = ()) -> None:
    """Once the checkpoint of step `saved` is committed: of the rolling ones up to it, remove all but `keep_last`.

    Those that a person has marked stay, and those of the steps in `held`.
    """
    rolling = [i for i in checkpoints(run_directory) if i.manifest.kind == "rolling" and i.step <= saved]
    for info in rolling[:-keep_last]:
        if info.step in held or marks.is_marked(info.directory):
            continue
        removed = _trash(info.directory)
        if marks.is_marked(removed):  # in this very moment
            removed.rename(info.directory)
        else:
            shutil.rmtree(removed, ignore_errors=True)


def temporary(run_directory: Path, step: int) -> Path:
    """Where the checkpoint of a step is written before it is committed."""
    return directory_of(run_directory) / f"{_WRITING}{step}-{os.getpid()}"


def commit(written: Path, final: Path) -> None:
    """Rename a whole checkpoint into place. One that is there already is replaced, its mark stays. Raises OSError.

    A process that dies between the two renames leaves the new one under its temporary name, whole, manifest and all:
    `clean` then puts it in place.
    """
    if marks.is_marked(final) and not marks.is_marked(written):
        marks.mark(written, keep=True)
    replaced = _trash(final) if final.exists() else None
    written.rename(final)
    sync_directory(final.parent)
    if replaced:
        shutil.rmtree(replaced, ignore_errors=True)


def clean(run_directory: Path) -> None:
    """Remove what a killed writer left. Only for a writer that holds the run's lock, before it reads or writes."""
    for path in sorted(directory_of(run_directory).glob(".*")):
        if path.name.startswith(_WRITING):
            final = path.parent / path.name.removeprefix(_WRITING).split("-")[0]
            if (path / manifests.NAME).exists() and not final.exists():
                commit(path, final)
            else:
                shutil.rmtree(path, ignore_errors=True)
        elif path.name.startswith(_REMOVING):
            shutil.rmtree(path, ignore_errors=True)


def set_aside(run_directory: Path, *, beyond: int) -> list[int]:
    """Move the checkpoints after step `beyond` out of the way, and return their steps.

    For a run that goes on from an older checkpoint on purpose: what came after it belongs to a course that was given
    up, and must not be taken for the newest of the new one. Nothing is deleted.
    """
    later = [path for path in step_directories(run_directory) if int(path.name) > beyond]
    taken = len(list(directory_of(run_directory).glob(f"{ASIDE}*")))
    for path in later:
        target = path.parent / f"{ASIDE}{taken + 1}"
        target.mkdir(exist_ok=True)
        path.rename(target / path.name)
    return [int(path.name) for path in later]


def _trash(directory: Path) -> Path:
    target = directory.with_name(f"{_REMOVING}{directory.name}-{os.getpid()}")
    shutil.rmtree(target, ignore_errors=True)
    return directory.rename(target)


def checkpoint_of(directory: Path, step: int | None) -> Info:
    """Return the checkpoint of a run at `step`, or the newest where `step` is None. Raises TrainkitError if missing."""
    info = newest(directory) if step is None else find(directory, step)
    if info is None:
        raise TrainkitError(
            "the run has no checkpoint yet", where=str(directory), hint=f"trainkit send {as_typed(directory)} save"
        )
    return info
