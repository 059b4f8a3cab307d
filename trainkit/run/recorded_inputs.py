"""Whether the recipe and the tokenizer in a run's directory are those that its newest checkpoint was trained with."""

from __future__ import annotations

import contextlib
from pathlib import Path

from trainkit.checkpoint import store
from trainkit.checkpoint.manifest import Manifest
from trainkit.checkpoint.store import Info
from trainkit.errors import FAILED, TrainkitError
from trainkit.events.damage import damage
from trainkit.events.mark import newest_mark
from trainkit.events.rebuild import KnownStep, rebuild
from trainkit.events.tail import NAME as LOG
from trainkit.events.tail import of_kinds
from trainkit.files import checksum_of
from trainkit.recipe.toml.load import Loaded, load_resolved
from trainkit.recipe.toml.values import Difference, differences
from trainkit.rundir import kept_secrets, recipes
from trainkit.rundir.directory import RECIPE, TOKENIZER, as_typed, recipe_of, tokenizer_checksum
from trainkit.track.projections import have_moved

#: Steps that a message names.
_LISTED = 5


def present_recipe(directory: Path, newest: Info | None) -> Loaded:
    """Return the recipe in a run's directory. Raises TrainkitError, which names the copy in the checkpoint `newest`."""
    try:
        return recipe_of(directory)
    except TrainkitError as error:
        if newest is None or not (newest.directory / RECIPE).exists():
            raise
        copy = f"cp {as_typed(newest.directory / RECIPE)} {as_typed(directory / RECIPE)}"
        hint = f"{error.hint}   " * bool(error.hint) + f"to restore the recipe of step {newest.step}: {copy}"
        raise TrainkitError(error.problem, where=error.where, hint=hint, exit_code=error.exit_code) from error


def trained_recipe(directory: Path, newest: Info | None, present: Loaded) -> tuple[Loaded, list[str]]:
    """Return the recipe that the run was last trained with, and a line if it is unknown, which is then `present`.

    It is `present` too if recipe.toml is as the last attempt found it.
    """
    *_, last = (None, *(event.get("recipe") for event in of_kinds(directory, "run_started")))
    if newest is None or present.recipe.fingerprint() in (newest.manifest.recipe, last):
        return present, []
    if RECIPE not in newest.manifest.checksums:  # a recipe as it was has another fingerprint too if keys were added
        by = f"an earlier version of trainkit wrote the checkpoint of step {newest.step}"
        return present, [f"{by}: whether {RECIPE} was edited since then is unknown"]
    edited = f"{RECIPE} has changed since the checkpoint of step {newest.step} was written"
    if (copy := _recipe_copy(directory, newest.manifest.recipe)) is None:
        return present, [f"{edited}; the recipe in the checkpoint is damaged too, so the changed keys are unknown"]
    try:
        return load_resolved(copy, secrets=kept_secrets.read(directory)), []
    except TrainkitError as error:  # such as a plugin that is gone
        return present, [f"{edited}; the recipe in the checkpoint cannot be read: {error.problem}"]


def recipe_with(directory: Path, fingerprint: str | None, present: Loaded) -> tuple[Loaded, bool]:
    """Return the recipe with this fingerprint that a run was trained with, and True; or `present` and False."""
    if fingerprint is None or present.recipe.fingerprint() == fingerprint:
        return present, fingerprint is not None
    with contextlib.suppress(TrainkitError):  # such as a plugin that is gone
        if copy := _recipe_copy(directory, fingerprint):
            return load_resolved(copy, secrets=kept_secrets.read(directory)), True
    return present, False


def _recipe_copy(directory: Path, fingerprint: str) -> Path | None:
    """Return a whole copy of the recipe with this fingerprint: that of the newest checkpoint that has it."""
    for info in reversed(store.checkpoints(directory)):
        expected = info.manifest.checksums.get(RECIPE)
        if info.manifest.recipe == fingerprint and expected is not None:
            with contextlib.suppress(OSError):
                if checksum_of(info.directory / RECIPE) == expected:
                    return info.directory / RECIPE
    return None


def find_problems(directory: Path) -> list[str]:
    """Return how the recipe, the tokenizer and the log of a run differ from its newest checkpoint, a sentence each."""
    problems: list[str] = []
    if (newest := store.newest(directory)) is None:
        return problems
    try:
        check_tokenizer(directory, newest)
    except TrainkitError as error:
        problems.append(f"{error.where}: {error.problem}")
    try:
        problems += [f"{as_typed(directory / RECIPE)}: {line}" for line in _edits(directory, newest)]
    except TrainkitError as error:
        problems.append(f"{error.where}: {error.problem}")
    if problem := _log_damage(directory, newest):
        problems.append(f"{as_typed(directory)}: {problem}")
    return problems


def mend_log(directory: Path) -> str | None:
    """Put into a run's log what its checkpoints know of it, if it is damaged; return what was wrong, or None."""
    if (problem := _log_damage(directory, store.newest(directory))) is None:
        return None
    manifests = [info.manifest for info in store.checkpoints(directory)]
    known = [KnownStep(m.attempt, m.step, m.created, _of_step(m)) for m in manifests if _of_step(m)]
    try:
        rebuilt = rebuild(directory, known)
    except OSError:  # a disk that is full or has no links: the log stays as it is
        return problem
    have_moved(directory, rebuilt.place_of)
    if steps := sorted({*rebuilt.missing, *rebuilt.different}):
        listed = ", ".join(map(str, steps[:_LISTED])) + f" and {len(steps) - _LISTED} more" * (len(steps) > _LISTED)
        problem += f"; from checkpoints, what these know of the steps {listed} is in the log again"
    return problem


def _of_step(manifest: Manifest) -> dict[str, float]:
    """Return the metrics of the step itself that a checkpoint knows; of an evaluation it may know some too."""
    return {name: value for name, value in manifest.metrics.items() if name.startswith("train/")}


def _log_damage(directory: Path, newest: Info | None) -> str | None:
    """Return how the log of a run differs from what its newest checkpoint, or its newest mark, knows of it."""
    known = newest.manifest if newest is not None else None
    if known is not None and known.log is not None:
        problem = damage(directory, known.log, step=known.step, attempt=known.attempt)
        if problem is not None:
            return problem
    mark = newest_mark(directory)
    if mark is None or damage(directory, mark.log, step=mark.step, attempt=mark.attempt) is None:
        return None
    at = f"after the checkpoint of step {newest.step}" if newest else "before the first checkpoint"
    return (
        f"{LOG} is not as it was at step {mark.step}, {at}: commands that would be repeated, or evaluations by which"
        " the best checkpoint is chosen, may be missing or others"
    )


def _edits(directory: Path, newest: Info) -> list[str]:
    """Return what was edited in a run's recipe, if the checkpoint knows it.

    A recipe with plugins is not compared, as that would run their code.
    """
    if RECIPE not in newest.manifest.checksums:
        present_recipe(directory, newest)
        return []
    if any(key.startswith("plugins.") for key in recipes.entries(directory / RECIPE)):
        return []
    present = present_recipe(directory, newest)
    trained, unknown = trained_recipe(directory, newest, present)
    return [*unknown, *(str(d) for d in differences(trained.recipe, present.recipe) if not is_place(d))]


def is_place(difference: Difference) -> bool:
    """Return whether a difference says only where a file is, as in a run that was moved: its content is checked."""
    return all(_is_path(value) for value in (difference.old, difference.new))


def _is_path(value: object) -> bool:
    """Return whether a value of a recipe is an absolute path, or a list of such."""
    texts = value if isinstance(value, list | tuple) else [value]
    return bool(texts) and all(isinstance(text, str) and Path(text).is_absolute() for text in texts)


def check_tokenizer(directory: Path, newest: Info | None) -> None:
    """Raise TrainkitError if the run's tokenizer is not the one that the checkpoint `newest` was trained with."""
    expected = newest.manifest.tokenizer if newest else None
    if newest is not None and expected is not None and tokenizer_checksum(directory) != expected:
        raise TrainkitError(
            f"the run's tokenizer is missing, damaged or another one than at step {newest.step}",
            where=str(directory / TOKENIZER),
            hint="bring the file back as it was: a copy is where the recipe's tokenizer came from, or in an export",
            exit_code=FAILED,
        )
