"""Resuming a run: check that it can continue, put its changed recipe in place, and say what differs."""

from __future__ import annotations

import platform
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from trainkit.checkpoint import store
from trainkit.checkpoint.manifest import Manifest, machine
from trainkit.errors import DONE, WRONG_INPUT, TrainkitError
from trainkit.events.commands import issued_commands
from trainkit.events.tail import last_attempt, last_end, of_kinds
from trainkit.recipe import Recipe
from trainkit.recipe.sections.guard import Guard
from trainkit.recipe.sections.schedule_spec import NEVER
from trainkit.recipe.toml.load import Loaded
from trainkit.recipe.toml.values import Difference, differences
from trainkit.run.recorded_inputs import check_tokenizer, is_place, present_recipe, trained_recipe
from trainkit.run.start import Start, version_of
from trainkit.rundir.changes import check_changes, compare_rates
from trainkit.rundir.directory import EXPORTS, disk_errors, hold_lock, recipe_of, replace_recipe
from trainkit.rundir.owed import find_owed
from trainkit.train.best import best_so_far


@dataclass(frozen=True)
class Resumption:
    """How a run will continue, its recipe, and lines for people about what differs."""

    start: Start
    loaded: Loaded
    notes: tuple[str, ...]


def prepare(
    directory: Path,
    *,
    step: int | None,
    overrides: Sequence[str],
    reset_optimizer: bool,
    forget_commands: bool,
    raise_rate: bool,
) -> Resumption:
    """Check that the run can continue from `step` (None: the newest checkpoint) and put its changed recipe in place.

    Raises:
        TrainkitError: another process trains it, it is finished (with exit code 0 if nothing else was asked for), the
            checkpoint does not exist, a key changed that must not, by `overrides` or in recipe.toml, the learning rate
            would rise and `raise_rate` does not allow it, or a file of the run is damaged.
    """
    with disk_errors(directory), hold_lock(directory):
        store.clean(directory)
        store.check_readable(directory)  # before a changed recipe is put in place
        newest = store.newest(directory)
        info = store.find(directory, step) if step is not None else newest
        check_tokenizer(directory, newest)
        present = present_recipe(directory, newest)
        old, unknown = trained_recipe(directory, newest, present)
        new = recipe_of(directory, overrides) if overrides else present
        changed = differences(old.recipe, new.recipe)
        moved = {d.key for d in differences(old.recipe, present.recipe) if is_place(d)}
        checked = [difference for difference in changed if difference.key not in moved]
        check_changes(old.recipe, new.recipe, checked, reset_optimizer=reset_optimizer)
        if info and info.manifest.kind == "final" and not _has_work_left(directory, new.recipe, info.step, changed):
            asks = overrides or step is not None or reset_optimizer or forget_commands or raise_rate
            raise _is_finished(directory, new.recipe, info.step, exit_code=WRONG_INPUT if asks else DONE)
        at = info.step if info else 0
        rates = compare_rates(directory, old.recipe, new.recipe, at, changed, raise_rate=raise_rate)
        if differences(present.recipe, new.recipe) or new.changed_plugins:
            replace_recipe(directory, new, attempt=last_attempt(directory))
    notes = [f"resuming from step {info.step}" if info else "there is no checkpoint: starting at step 0"]
    notes += [*unknown, *(f"recipe: {difference}" for difference in changed), *rates]
    notes += [f"the plugin {file} has changed since the run was last started" for file in new.changed_plugins]
    notes += _guard_changes(old.recipe.guard, new.recipe.guard) if info else ()
    notes += changes_of_bits(info.manifest) if info else ()
    start = Start(step=step, reset_optimizer=reset_optimizer, forget_commands=forget_commands)
    return Resumption(start, new, tuple(notes))


def _is_finished(directory: Path, recipe: Recipe, last: int, *, exit_code: int) -> TrainkitError:
    """Return the error about a run that ended at step `last` and has no work left."""
    best, train = best_so_far(directory, recipe, until=last), recipe.train
    if train.is_timed and not best.exhausted:
        key = "until" if train.until is not None else "duration"
        return TrainkitError(
            f"the run is finished: it ended in time, after step {last}",
            where=str(directory),
            hint="to train it longer, continue from a checkpoint before its decay:"
            f" trainkit resume RUN/STEP --forget-commands --set train.{key}=…",
            exit_code=exit_code,
        )
    longer = ["--set evaluate.patience=…"] if best.exhausted else []
    *_, total = (event.get("total_steps") or 0 for event in of_kinds(directory, "planned"))
    if not best.exhausted or last >= total:
        length = next(key for key in ("steps", "epochs", "tokens") if getattr(train, key) is not None)
        longer += [f"--set train.{length}=…", "--raise-rate"]
    return TrainkitError(
        f"the run is finished: its last step was {last}" + f"; it {best.reason}" * best.exhausted,
        where=str(directory),
        hint=f"to train it longer: {' '.join(longer)}   to continue from an earlier checkpoint: RUN/STEP",
        exit_code=exit_code,
    )


def _has_work_left(directory: Path, recipe: Recipe, last: int, changed: list[Difference]) -> bool:
    """Return whether a run with a final checkpoint of step `last` is longer now, or its end was cut off."""
    exported = not recipe.export or (directory / EXPORTS / str(last)).exists()
    return (
        last_end(directory) != "finished"  # it was killed before it said so
        or not exported
        or _is_longer(directory, recipe, last, changed)
        or bool(find_owed(directory, recipe, last, last=True))
    )


def _is_longer(directory: Path, recipe: Recipe, step: int, changed: list[Difference]) -> bool:
    if best_so_far(directory, recipe, until=step).exhausted:
        return False
    if recipe.train.steps is None:
        return any(difference.key in ("train.epochs", "train.tokens") for difference in changed)
    if recipe.train.is_timed:  # its decay is over: a later end would only train on with the last learning rate
        return False
    decays = [
        issued.step for issued in issued_commands(directory) if issued.command.name == "decay" and issued.step <= step
    ]
    return recipe.schedule.last_step(recipe.train.steps, decay_start=min(decays, default=NEVER)) > step


def _guard_changes(old: Guard, new: Guard) -> Iterator[str]:
    """Yield in words what a changed [guard] means for the steps to come."""
    if old != new:
        yield "[guard] changed: it judges the steps from here on; steps that were left out before stay so"
    if new.in_step and new.memory != old.memory:
        yield "[guard] remembers no earlier losses and skips: it counts them from here on"


def changes_of_bits(manifest: Manifest) -> Iterator[str]:
    """Yield in words how versions and machine differ from those that a checkpoint was written with."""
    for name, now in (machine() if manifest.machine else {}).items():
        if (before := manifest.machine.get(name, now)) != now:
            yield f"machine: {name} {before or 'none'} -> {now or 'none'}; results may differ in the last bits"
    yield from (f"versions: {line}" for line in _version_changes(manifest.versions))


def _version_changes(earlier: dict[str, str]) -> Iterator[str]:
    for package, before in earlier.items():
        now = platform.python_version() if package == "python" else version_of(package)
        if now != before:
            yield f"{package} {before} -> {now}"
