"""The checkpoints of a run: find, verify, keep and remove them. Imports no jax."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from trainkit import files
from trainkit.checkpoint import manifest as manifests
from trainkit.checkpoint.manifest import DamagedCheckpoint, Kind, Manifest
from trainkit.errors import TrainkitError
from trainkit.recipe.sections.outputs import Checkpoint
from trainkit.rundir import checkpoint_files
from trainkit.rundir.directory import RECIPE, as_typed

T = TypeVar("T")
_WRITING, _REMOVING, _LEAVING, _ASIDE = ".tmp-", ".trash-", ".set-aside-beyond-", "set-aside-"


@dataclass(frozen=True)
class Info:
    """A checkpoint with a readable manifest. Its arrays may still be damaged: see `verify`."""

    step: int
    directory: Path
    manifest: Manifest


def directory_of(run_directory: Path) -> Path:
    """Return the directory of a run's checkpoints."""
    return run_directory / "checkpoints"


def step_directories(run_directory: Path) -> list[Path]:
    """Return the directories of a run's checkpoints, readable or not, by ascending step."""
    return _numbered_directories(directory_of(run_directory))


def checkpoints(run_directory: Path) -> list[Info]:
    """Return the checkpoints of a run that have a readable manifest, by ascending step."""
    infos = []
    for directory in step_directories(run_directory):
        try:
            infos.append(Info(int(directory.name), directory, manifests.read(directory)))
        except TrainkitError:
            continue
    return infos


def newest(run_directory: Path) -> Info | None:
    """Return the checkpoint with the highest step and a readable manifest; None if there is none."""
    return next(reversed(checkpoints(run_directory)), None)


def find(run_directory: Path, step: int) -> Info:
    """Return the checkpoint of a step.

    Raises:
        TrainkitError: it is missing; the message lists the steps of the others.
        DamagedCheckpoint: its manifest cannot be read.
    """
    directory = directory_of(run_directory) / str(step)
    try:
        return Info(step, directory, manifests.read(directory))
    except DamagedCheckpoint:
        if directory.is_dir():
            raise
    steps = ", ".join(str(info.step) for info in checkpoints(run_directory)) or "none"
    raise TrainkitError(f"there is no checkpoint of step {step}; there are: {steps}", where=str(run_directory))


def check_readable(directory: Path) -> None:
    """Raise TrainkitError if a run has checkpoints, and none of them has a readable manifest."""
    if (damaged := step_directories(directory)) and newest(directory) is None:
        raise TrainkitError(
            f"no checkpoint has a readable manifest; all are damaged: {', '.join(path.name for path in damaged)}",
            where=str(directory),
            hint=f"trainkit verify {as_typed(directory)} says what is wrong with each",
        )


def checkpoint_of(directory: Path, step: int | None) -> Info:
    """Return the checkpoint of a run at `step`, or the newest where `step` is None. Raises TrainkitError if missing."""
    info = newest(directory) if step is None else find(directory, step)
    if info is None:
        check_readable(directory)
        raise TrainkitError(
            "the run has no checkpoint yet", where=str(directory), hint=f"trainkit send {as_typed(directory)} save"
        )
    return info


def read_checkpoint(directory: Path, step: int | None, read: Callable[[Info], T]) -> T:
    """Return the result of `read` for the checkpoint of a run at `step`, or for the newest if `step` is None.

    Use this to read while a trainer runs: if the trainer removes the newest checkpoint meanwhile, the next one is read.

    Raises:
        TrainkitError: the checkpoint is missing, or was removed; and whatever else `read` raises.
    """
    while True:
        info = checkpoint_of(directory, step)
        try:
            return read(info)
        except DamagedCheckpoint:
            if info.directory.exists():
                raise


def verify(directory: Path, *, gently: bool = False) -> list[str]:
    """Read every chunk of every array of a checkpoint, and return its problems, a sentence each.

    An empty list means that nothing is missing and every checksum is right. `gently` leaves the processors to training.
    """
    from trainkit.checkpoint import arrays

    try:
        manifest = manifests.read(directory)
    except DamagedCheckpoint as error:
        return [error.problem]
    root = directory / "arrays"
    opened, problems = arrays.open_all(root, manifest.leaves, manifest.checksums, gently=gently)
    for name, array in opened.items():
        problems += [f"{name}: {problem}" for problem in arrays.damage(array)]
    if (expected := manifest.checksums.get(RECIPE)) is not None:
        problems += _other_file(directory / RECIPE, expected)
    present = {path.name for path in root.iterdir()} if root.is_dir() else set()
    return problems + [f"{name}: the manifest does not list it" for name in sorted(present - manifest.leaves.keys())]


def _other_file(path: Path, expected: str) -> list[str]:
    try:
        found = files.checksum_of(path)
    except OSError as error:
        return [f"{path.name}: it cannot be read: {error.strerror}"]
    return [] if found == expected else [f"{path.name}: it does not match its checksum"]


def due(spec: Checkpoint, *, step: int, last_saved_time: float, now: float) -> Kind | None:
    """Return the kind of checkpoint that the recipe asks for after this step, or None. Times are in seconds."""
    if isinstance(spec.keep_every, int) and step and step % spec.keep_every == 0:
        return "permanent"
    if isinstance(spec.keep_every, tuple) and step in spec.keep_every:
        return "permanent"
    if spec.every_minutes is not None and now - last_saved_time >= 60 * spec.every_minutes:
        return "rolling"
    return None


def retain(run_directory: Path, *, saved: int, keep_last: int, held: Collection[int] = ()) -> None:
    """Remove all but the newest `keep_last` of the rolling checkpoints up to step `saved`, which is on disk.

    Checkpoints that a person has marked stay, and so do the best one and those of the steps in `held`.
    """
    best = checkpoint_files.best(run_directory)
    spared = {*held, *([best.step] if best else [])}
    rolling = [i for i in checkpoints(run_directory) if i.manifest.kind == "rolling" and i.step <= saved]
    for info in rolling[:-keep_last]:
        if info.step in spared or checkpoint_files.is_marked(info.directory):
            continue
        removed = _trash(info.directory)
        if checkpoint_files.is_marked(removed):  # meanwhile
            removed.rename(info.directory)
        else:
            shutil.rmtree(removed, ignore_errors=True)


def note_metric(run_directory: Path, step: int, metric: str, value: float) -> None:
    """Add a metric to the manifest of a checkpoint that is on disk. Raises OSError; TrainkitError if it is missing."""
    info = find(run_directory, step)
    if info.manifest.metrics.get(metric) != value:
        noted = {**info.manifest.metrics, metric: value}
        manifests.write(info.directory, info.manifest.model_copy(update={"metrics": noted}))


def temporary(run_directory: Path, step: int, process: int) -> Path:
    """Return the directory in which the checkpoint of a step is written before it is committed."""
    return directory_of(run_directory) / f"{_WRITING}{step}-{process}"


def commit(written: Path, final: Path) -> None:
    """Rename a whole checkpoint into place, and replace an existing one, whose mark stays. Raises OSError.

    A process that dies between the two renames leaves the whole new checkpoint under its temporary name: `clean` then
    renames it.
    """
    if checkpoint_files.is_marked(final) and not checkpoint_files.is_marked(written):
        checkpoint_files.mark(written, keep=True)
    replaced = _trash(final) if final.exists() else None
    written.rename(final)
    files.sync_directory(final.parent)
    if replaced:
        shutil.rmtree(replaced, ignore_errors=True)


def clean(run_directory: Path) -> None:
    """Remove what a killed writer left. Only the holder of the run's lock may call it, before it reads or writes."""
    for path in sorted(directory_of(run_directory).glob(".*")):
        if path.name.startswith(_WRITING):
            final = path.parent / path.name.removeprefix(_WRITING).split("-")[0]
            if (path / manifests.NAME).exists() and not final.exists():
                commit(path, final)
            else:
                shutil.rmtree(path, ignore_errors=True)
        elif path.name.startswith(_REMOVING):
            shutil.rmtree(path, ignore_errors=True)
        elif path.name.startswith(_LEAVING):
            _move_into(path)


def set_aside(directory: Path, *, beyond: int) -> list[int]:
    """Move what is named by a step after `beyond` into a new directory `set-aside-N`, and return the steps.

    For a run that continues from an older checkpoint: later checkpoints and exports must not be taken for its own. If
    the process is killed meanwhile, `clean` and the next call move the rest.

    Args:
        directory: holds a directory for each step, such as `runs/NAME/checkpoints`.
    """
    for begun in directory.glob(f"{_LEAVING}*"):  # by a process that was killed
        _move_into(begun)
    if not any(int(path.name) > beyond for path in _numbered_directories(directory)):
        return []
    draft = directory / f"{_LEAVING}{beyond}"
    draft.mkdir()
    files.sync_directory(directory)
    return _move_into(draft)


def _move_into(draft: Path) -> list[int]:
    """Move what is named by a later step than `draft` names into it, give it its final name, and return the steps.

    The name of the draft says what to move, so that `clean` can finish it after the process was killed.
    """
    directory, beyond = draft.parent, int(draft.name.removeprefix(_LEAVING))
    later = [path for path in _numbered_directories(directory) if int(path.name) > beyond]
    for path in later:
        path.rename(draft / path.name)
    numbers = [path.name.removeprefix(_ASIDE) for path in directory.glob(f"{_ASIDE}*")]
    files.sync_directory(draft)  # else a power cut brings the abandoned course back
    draft.rename(directory / f"{_ASIDE}{max((int(n) for n in numbers if n.isdecimal()), default=0) + 1}")
    files.sync_directory(directory)
    return [int(path.name) for path in later]


def _numbered_directories(directory: Path) -> list[Path]:
    try:
        numbered = [path for path in directory.iterdir() if path.name.isdecimal() and path.is_dir()]
    except FileNotFoundError:
        return []
    return sorted(numbered, key=lambda path: int(path.name))


def _trash(directory: Path) -> Path:
    target = directory.with_name(f"{_REMOVING}{directory.name}-{os.getpid()}")
    shutil.rmtree(target, ignore_errors=True)
    return directory.rename(target)
