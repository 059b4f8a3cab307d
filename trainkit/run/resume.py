"""Resuming a run: what differs from before, and what must not."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from importlib.metadata import version
from pathlib import Path

from trainkit.checkpoint import store
from trainkit.errors import TrainkitError
from trainkit.events.commands import issued_commands
from trainkit.events.log import last_attempt
from trainkit.recipe import Recipe
from trainkit.recipe.sections.optimizer import OptimizerSpec
from trainkit.recipe.sections.schedule import NEVER
from trainkit.recipe.toml.load import Loaded
from trainkit.recipe.toml.values import Difference, differences
from trainkit.run.rates import compare_rates
from trainkit.run.start import Start
from trainkit.rundir.directory import EXPORTS, disk_errors, hold_lock, recipe_of, replace_recipe
from trainkit.train.best import best_so_far
from trainkit.train.owed import owed

#: What the state or the data order depends on: with another value, the run would be another run.
FIXED = (
    "schema",
    "run.*",
    "model.*",
    "adapter.[!l]*",  # all but the learning rate's ratio
    "tokenizer.*",
    "task.*",
    "data.sequence_length",
    "data.encoding*",
    "data.train.*",
    "data.held_out",
    "data.shuffle*",
    "data.on_error",
    "train.batch_size",
    "precision.params",
)


@dataclass(frozen=True)
class Resumption:
    """How a run will continue, its recipe, and what a person should know before it does, a line each."""

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
        TrainkitError: another process trains it, it is finished, the checkpoint does not exist, a key changed that must
            not, or the learning rate would rise and `raise_rate` does not allow it.
    """
    with disk_errors(directory), hold_lock(directory):
        old = recipe_of(directory)
        new = recipe_of(directory, overrides) if overrides else old
        changed = differences(old.recipe, new.recipe)
        _refuse(changed)
        if not reset_optimizer:
            _check_optimizer_state(old.recipe.optimizer, new.recipe.optimizer)
        info = store.find(directory, step) if step is not None else store.newest(directory)
        if (
            info
            and info.manifest.kind == "final"
            and not (
                _goes_further(directory, new.recipe, info.step, changed)
                or _left_undone(directory, new.recipe, info.step)
            )
        ):
            reason = best_so_far(directory, new.recipe, until=info.step).reason
            longer = "evaluate.patience=…" if reason else "train.steps=… --raise-rate"
            raise TrainkitError(
                f"the run is finished: its last step was {info.step}" + f"; it {reason}" * bool(reason),
                where=str(directory),
                hint=f"to train it longer: --set {longer}   to continue from an earlier checkpoint: RUN/STEP",
            )
        at = info.step if info else 0
        rates = compare_rates(directory, old.recipe, new.recipe, at, changed, raise_rate=raise_rate)
        if changed or new.changed_plugins:
            replace_recipe(directory, new, attempt=last_attempt(directory))
        notes = [*(f"recipe: {difference}" for difference in changed), *rates]
        notes += [f"the plugin {file} has changed since the run was last started" for file in new.changed_plugins]
        if info:
            notes += [f"versions: {line}" for line in _version_changes(info.manifest.versions)]
            notes.insert(0, f"resuming from step {info.step}")
        else:
            notes.insert(0, "there is no checkpoint: starting at step 0")
    start = Start(step=step, reset_optimizer=reset_optimizer, forget_commands=forget_commands)
    return Resumption(start, new, tuple(notes))


def _refuse(changed: list[Difference]) -> None:
    wrong = [d for d in changed if any(fnmatchcase(d.key, pattern) for pattern in FIXED)]
    if wrong:
        raise TrainkitError(
            "these cannot change within a run:\n" + "\n".join(f"  {difference}" for difference in wrong),
            hint="begin a new run with the changed recipe: trainkit run RECIPE --name NAME",
        )


def _check_optimizer_state(before: OptimizerSpec, after: OptimizerSpec) -> None:
    """Raise TrainkitError where the saved optimizer state does not fit the changed [optimizer]."""
    old, new = before.state_key_values(), after.state_key_values()
    wrong = [key for key in sorted(old.keys() | new.keys()) if old.get(key) != new.get(key)]
    if wrong:
        raise TrainkitError(
            "the saved optimizer state does not fit:\n"
            + "\n".join(f"  optimizer.{key}: {old.get(key, 'none')} -> {new.get(key, 'none')}" for key in wrong),
            hint="undo the change, or start with a new optimizer state: --reset-optimizer",
        )


def _left_undone(directory: Path, recipe: Recipe, last: int) -> bool:
    """Whether the end of the run was cut off: its last evaluation, its last samples, or an export."""
    exported = not recipe.export or (directory / EXPORTS / str(last)).exists()
    return not exported or bool(owed(directory, recipe, last, last=True))


def _goes_further(directory: Path, recipe: Recipe, step: int, changed: list[Difference]) -> bool:
    if best_so_far(directory, recipe, until=step).exhausted:
        return False
    if recipe.train.steps is not None:
        begun = [
            found.step for found in issued_commands(directory) if found.command.name == "decay" and found.step <= step
        ]
        return recipe.schedule.last_step(recipe.train.steps, decay_start=min(begun, default=NEVER)) > step
    return any(d.key in ("train.epochs", "train.tokens") for d in changed)


def _version_changes(then: dict[str, str]) -> Iterator[str]:
    for package, before in then.items():
        now = _version(package)
        if now != before:
            yield f"{package} {before} -> {now}"


def _version(package: str) -> str:
    import platform

    return platform.python_version() if package == "python" else version(package)
