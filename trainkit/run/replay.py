"""A run's steps, computed again from a checkpoint as its trainer computed them. Writes nothing into the run."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from trainkit.checkpoint import restore, store
from trainkit.checkpoint.leaves import named_leaves
from trainkit.checkpoint.manifest import Manifest
from trainkit.checkpoint.snapshot import plain
from trainkit.data import recorded
from trainkit.data.batches.dataset import TrainSet
from trainkit.data.cache import build as caches
from trainkit.data.cache.token_cache import Cache
from trainkit.data.jobs import Tell
from trainkit.errors import TrainkitError
from trainkit.events.attempts import kept_until
from trainkit.events.commands import FINISH, IssuedCommand, issued_commands
from trainkit.events.log import SilentLog
from trainkit.events.tail import Tail, last_step, number
from trainkit.parallel import mesh
from trainkit.parallel.devices import agree_on_memory
from trainkit.parallel.xla import make_deterministic, prepare_gpus, use_compile_cache
from trainkit.recipe import Recipe
from trainkit.run.initial_state import first_state, initial_state
from trainkit.run.prepare import missed_commands
from trainkit.run.recorded_inputs import recipe_with
from trainkit.run.resume import changes_of_bits
from trainkit.run.rollback import left_out_steps
from trainkit.run.start import Start
from trainkit.rundir.directory import as_typed, recipe_of
from trainkit.rundir.owed import falls_on
from trainkit.tasks import build as build_task
from trainkit.train.build import build
from trainkit.train.control import LiveSchedule
from trainkit.train.metrics import metrics_of
from trainkit.train.planning import plan_of
from trainkit.train.prefetch import Prefetch
from trainkit.train.program import Program, compile_program, with_statistics
from trainkit.train.reference import attach_reference
from trainkit.train.state import State, without_frozen, without_update
from trainkit.train.step import WITHOUT_UPDATE, Metrics, Step

#: Differences that are listed.
MOST = 5


class ReplayedStep(NamedTuple):
    """A step that was computed again."""

    step: int
    state: State
    metrics: Metrics


@dataclass(frozen=True)
class ReplayedRun:
    """A run, ready to be trained on from the checkpoint of step `first`, or from its beginning if that is 0."""

    recipe: Recipe
    cache: Cache
    data: TrainSet
    program: Program
    state: State
    schedule: LiveSchedule
    commands: tuple[IssuedCommand, ...]
    left_out: frozenset[int]
    first: int

    def steps(self, until: int) -> Iterator[ReplayedStep]:
        """Compute the steps up to `until`. Each state is donated to the next step."""
        batches, state = self._prefetch(until), self._with_commands(self.state, self.first)
        with contextlib.closing(batches):
            for step in range(self.first + 1, until + 1):
                while (batch := batches.next().batch) is None:
                    self.cache.check()
                if step in self.left_out:
                    state, metrics = without_update(state, step), dict(WITHOUT_UPDATE)
                else:
                    state, metrics = self.step_for(step)(state, batch)
                yield ReplayedStep(step, state, metrics)
                if step < until:
                    state = self._with_commands(state, step)

    def state_before(self, step: int) -> State:
        """Return the state that step `step` begins with. The states before it are donated."""
        if step - 1 == self.first:
            return self._with_commands(self.state, self.first)
        *_, last = self.steps(step - 1)
        return self._with_commands(last.state, step - 1)

    def step_for(self, step: int) -> Step:
        """Return the compiled step, with statistics where they are due."""
        measuring = self.program.measuring_step
        due = measuring is not None and falls_on(step, self.recipe.statistics.every)
        return measuring if due and measuring is not None else self.program

    def batch(self, step: int) -> Any:
        """Return the batch of a step, on the devices."""
        with contextlib.closing(self._prefetch(step, first=step - 1)) as batches:
            while (batch := batches.next().batch) is None:
                self.cache.check()
        return batch

    def _prefetch(self, last: int, *, first: int | None = None) -> Prefetch:
        built, plan = self.program.built, self.program.plan
        return Prefetch(
            self.data.cut_batch,
            count=built.task.count,
            first=self.first if first is None else first,
            last=last,
            split=plan.batch,
            sharding=mesh.batch_sharding(built.mesh),
            size_at=self.recipe.batch_sizes.at,
        )

    def _with_commands(self, state: State, step: int) -> State:
        """Return the state with the changes of the commands that came after `step`, as the log has them."""
        for issued in self.commands:
            command = issued.command
            if issued.step == step or step == self.first > issued.step:
                if command.name == "rate":
                    self.schedule.change_rate(float(command.argument or 1), step=step)
                elif command.name == "decay":
                    self.schedule.begin_decay(step=step)
                elif command.name == FINISH:
                    self.schedule.end_at(int(command.argument or 0), step=step)
        return self.schedule.put_into(state)


def open_replay(directory: Path, recipe: Recipe, first: int, *, progress: Tell = None) -> ReplayedRun:
    """Return a run that can be trained on from the checkpoint of step `first`, or from its beginning if that is 0.

    Raises:
        TrainkitError: there is no such checkpoint, its data is gone, or it was trained on other data.
    """
    if recipe.run.deterministic:
        make_deterministic()
    if recipe.parallel.platform in ("auto", "gpu"):
        prepare_gpus()
    use_compile_cache()
    agree_on_memory(recipe.parallel.platform)
    log = SilentLog(attempt=0)
    with_tokenizer = recorded.with_own_tokenizer(recipe, directory)
    cache = caches.find(with_tokenizer) or caches.build(with_tokenizer, progress=progress)
    data = TrainSet(cache, recipe)
    plan = plan_of(recipe, vocab_size=cache.vocab_size, data=data.size(), directory=directory)
    built = build(recipe, plan, task=build_task(recipe.task, cache.tokenizer))
    layouts = data.layouts()
    program = with_statistics(compile_program(built, plan, layouts), layouts)
    if first:
        start = Start(step=first)
        state = initial_state(directory, recipe, start, built=built, cache=cache, log=log).state
    else:
        state = first_state(recipe, built)
    state = program.adopt(state)
    attach_reference(directory, recipe, cache, data, program, state, check=lambda: None, log=log)
    schedule = LiveSchedule(recipe.schedule, steps=plan.steps, live=state.live)
    commands = tuple(missed_commands(issued_commands(directory), schedule, first=first))
    left_out = frozenset(left_out_steps(directory))
    return ReplayedRun(recipe, cache, data, program, state, schedule, commands, left_out, first)


class Comparison(NamedTuple):
    """What a replay found."""

    first: int
    last: int
    checkpoints: tuple[int, ...]
    """The checkpoints that the replayed state was compared with."""
    differences: tuple[str, ...]
    notes: tuple[str, ...]
    """What limits the comparison."""
    machine: tuple[str, ...]
    """What may be why: how versions and machine differ from those of the first checkpoint."""


class LoggedStep(NamedTuple):
    """A step as the log has it."""

    recipe: str | None
    """The fingerprint of the recipe that it was trained with."""
    metrics: dict[str, float]


def compare_replay(directory: Path, step: int | None, count: int, *, progress: Tell = None) -> Comparison:
    """Compute `count` steps again from the checkpoint of `step`, and compare them bit for bit with log and checkpoints.

    If `step` is None it is the newest checkpoint that so many steps follow in the log. The recipe is the one that these
    steps were trained with; steps that were trained with another one end the comparison.

    Raises:
        TrainkitError: no logged step follows the checkpoint.
    """
    last_logged = last_step(directory)
    saved = [info.step for info in store.checkpoints(directory)]
    if step is None:
        step = max((s for s in saved if s + count <= last_logged), default=0)
    manifest = store.find(directory, step).manifest if step else None
    logged = logged_steps(directory, manifest, first=step + 1, last=step + count)
    if step + 1 not in logged:
        raise TrainkitError(f"the log has no step after {step} to compare with", where=as_typed(directory))
    present, fingerprint, notes = recipe_of(directory), logged[step + 1].recipe, list[str]()
    loaded, found = recipe_with(directory, fingerprint, present)
    if not found:
        notes.append("the recipe that these steps were trained with is unknown: that of the run is used")
    last = step + 1
    while last + 1 in logged and logged[last + 1].recipe == fingerprint:
        last += 1
    if last + 1 in logged:
        notes.append(f"step {last + 1} was trained with another recipe: the comparison ends before it")
    elif last < min(step + count, last_logged):
        notes.append(f"the log lacks step {last + 1}: the comparison ends before it")
    replay = open_replay(directory, loaded.recipe, step, progress=progress)
    differences: list[str] = []
    compared: list[int] = []
    for replayed in replay.steps(last):
        differences += _metric_differences(replayed, logged[replayed.step].metrics)
        if replayed.step in saved:
            compared.append(replayed.step)
            differences += _state_differences(directory, replayed)
        if len(differences) >= MOST:
            break
    replay.cache.close()
    reasons = changes_of_bits(manifest) if manifest else ()
    return Comparison(step, last, tuple(compared), tuple(differences[:MOST]), tuple(notes), tuple(reasons))


def logged_steps(directory: Path, manifest: Manifest | None, *, first: int, last: int) -> dict[int, LoggedStep]:
    """Return the steps from `first` to `last` that count, by step. Holds no others, however long the log is.

    Args:
        manifest: of the checkpoint before `first`, which says where the log was then; None for the first step.
    """
    if manifest and manifest.log:
        found = _steps_from(directory, manifest.log[0], manifest.recipe, first=first, last=last)
        if first in found:
            return found
    return _steps_from(directory, 0, None, first=first, last=last)  # also where the log was made smaller since


def _steps_from(directory: Path, begin: int, recipe: str | None, *, first: int, last: int) -> dict[int, LoggedStep]:
    """Return the same from this byte of the log on, where steps were trained with this recipe."""
    tail, found = Tail(directory, offset=begin), dict[int, LoggedStep]()
    while events := tail.poll():
        for event in events:
            if event["type"] == "run_started":
                recipe, kept = event.get("recipe"), kept_until(event)
                found = {step: each for step, each in found.items() if kept is None or step <= kept}
            elif event["type"] == "step" and first <= event["step"] <= last:
                metrics = {name: number(value) for name, value in event["metrics"].items()}
                found[event["step"]] = LoggedStep(recipe, metrics)
    return found


def _metric_differences(replayed: ReplayedStep, logged: dict[str, float]) -> list[str]:
    found = metrics_of(jax.device_get(replayed.metrics))
    return [
        f"step {replayed.step}: {name} was {logged[name]!r} and is {value!r}"
        for name, value in sorted(found.items())
        if name in logged and not (value == logged[name] or (np.isnan(value) and np.isnan(logged[name])))
    ]


def _state_differences(directory: Path, replayed: ReplayedStep) -> list[str]:
    state = without_frozen(replayed.state)
    saved = restore.restore(store.directory_of(directory) / str(replayed.step), state)
    as_bytes: Callable[[Any], bytes] = lambda leaf: np.asarray(plain(leaf)).tobytes()  # noqa: E731 (NaN equals NaN)
    pairs = zip(named_leaves(state).items(), named_leaves(saved).values(), strict=True)
    names = [name for (name, now), before in pairs if as_bytes(now) != as_bytes(before)]
    return [f"checkpoint {replayed.step}: other bits in {', '.join(names[:MOST])}"] if names else []
