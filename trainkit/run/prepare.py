"""The step, compiled, and the state that training begins with."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, wait
from functools import partial
from pathlib import Path
from typing import NamedTuple

import jax

from trainkit.checkpoint import store
from trainkit.data.batches.dataset import TrainSet
from trainkit.data.cache.token_cache import Cache
from trainkit.data.jobs import Stop
from trainkit.events.commands import IssuedCommand
from trainkit.events.log import EventLog
from trainkit.infer.text_format import keep_tokenizer
from trainkit.parallel import hosts
from trainkit.parallel.devices import fallbacks
from trainkit.plan import DataSize, Plan
from trainkit.recipe import Recipe
from trainkit.recipe.toml.load import Loaded
from trainkit.run.initial_state import Initial, initial_state
from trainkit.run.start import Start, announce
from trainkit.tasks import build as build_task
from trainkit.tasks import check_tokenizer
from trainkit.train.build import build
from trainkit.train.compilations import compile_apart
from trainkit.train.control import LiveSchedule
from trainkit.train.out_of_memory import explain_out_of_memory
from trainkit.train.planning import log_plan, log_program, needs_room_to_compile, plan_of, previous_choice
from trainkit.train.profile import check_steps
from trainkit.train.program import Program, compile_smaller, fit_program, with_statistics
from trainkit.train.reference import Reference, attach_reference, check_reference
from trainkit.train.signals import StopBeforeTraining
from trainkit.train.state import State


class Ready(NamedTuple):
    """What exists before the first step."""

    program: Program
    state: State
    schedule: LiveSchedule
    repeats: list[IssuedCommand]
    """Commands of earlier attempts that are carried out again."""


class Restart(NamedTuple):
    """A restart in this process with `plan`, because a step of the plan `failed` ran out of memory, or broke.

    `step` steps had been dispatched. It starts like any resumed attempt: from the newest checkpoint, or at step 0.
    """

    failed: Plan
    plan: Plan
    step: int
    rolled_back: bool = False
    """Whether it is a rollback instead, with the same plan."""
    measures: bool = True
    """Whether statistics are computed in steps: not after a step with them ran out of memory."""

    def report(self, *, first: int, compares: bool, log: EventLog) -> None:
        """Write the alert about the lack of memory, if it is one.

        `first` is the step from which training continues; `compares` as for an `Evaluator`.
        """
        if self.rolled_back:
            return
        before, after = (f"micro-batch {p.batch.micro} x accumulation {p.batch.accumulation}" for p in self[:2])
        message = f"out of memory with {before}: continuing with {after} and the same batches"
        if self.plan == self.failed:
            message = "out of memory in a step with statistics: continuing without them"
        elif compares:
            message += ", in which each example is compared with fewer others: losses and metrics mean something else"
        if first < self.step:
            message += f", again from step {first}, because the state after it was lost"
        log.write("alert", step=first, kind="out of memory", message=message)


def prepare_training(
    directory: Path,
    loaded: Loaded,
    start: Start,
    cache: Cache,
    data: TrainSet,
    *,
    check_data: Callable[[], None],
    restart: Restart | None = None,
    log: EventLog,
) -> Ready:
    """Plan and compile the step and, meanwhile or after it, make or restore the state.

    Args:
        check_data: raises if training would learn nothing. A resumed attempt calls it before its start is accepted; a
            new run calls it at once if all of its data is tokenised, and otherwise once its step is compiled, because
            its first tokens may come later than that.
        restart: has the plan, after running out of memory.
    """

    def check_first_data() -> None:
        data.batch(first)  # waits for the first window of tokens
        check_data()

    recipe = loaded.recipe
    size = data.size() if cache.train.complete else None
    plan, was_chosen = hosts.from_first(lambda: _plan(directory, recipe, cache, size, restart))
    if cache.tokenizer is not None:
        check_tokenizer(recipe.task, cache.tokenizer)
    if cache.train.complete and store.newest(directory) is None:
        check_data()
    built = build(recipe, plan, task=build_task(recipe.task, cache.tokenizer))
    stop = Stop()

    def compile_all() -> Program:
        program = compiler(recipe, plan, built, layouts)
        return with_statistics(program, layouts) if measures else program

    # A resumed attempt computes with the choice of the attempt before it.
    compiler = compile_smaller if restart else partial(fit_program, stop=stop, enlarge=not was_chosen)
    layouts = data.layouts()
    measures = restart is None or restart.measures
    with _in_background(compile_all, stop) as compiling:
        # XLA compiles without the interpreter's lock, so the state is made or restored meanwhile where there is room.
        if needs_room_to_compile(plan):
            wait([compiling])
        with explain_out_of_memory("the state (parameters and optimizer)", plan, recipe):
            initial = initial_state(directory, recipe, start, built=built, cache=cache, log=log)
            first = int(initial.state.step)  # waits for the state
        if not first and recipe.train.steps is None:  # otherwise they were checked before the run was made
            recipe.check_lengths(plan.steps)
        schedule = LiveSchedule(recipe.schedule, steps=plan.steps, live=initial.state.live)
        check_steps(start.profile, done=first, total=schedule.total_steps)
        if first:  # accepting the start drops the log's later steps
            check_first_data()
            if recipe.task.reference:
                check_reference(Reference(directory, recipe, built, initial.state, log), cache, data, plan)
        forgotten = missed_commands(start.issued if start.forget_commands else (), schedule, first=first)
        accept_start(directory, loaded, start, initial, forgotten=forgotten, log=log)
        if restart:
            restart.report(first=first, compares=recipe.task.least_rows > 1, log=log)
        log_plan(plan, built, total_steps=schedule.total_steps, log=log)
        for message in fallbacks(plan.devices, platform=recipe.parallel.platform, compute=plan.compute):
            log.write("log", step=log.step, level="warning", message=message)
        repeats = commands_to_repeat(start, schedule, first=first, log=log)
        if cache.tokenizer is not None and hosts.is_first():
            keep_tokenizer(cache.tokenizer, recipe, directory)
        with explain_out_of_memory("a step of the smallest micro-batch", plan, recipe):
            program = compiling.result()
    log_program(program, guessed=plan, total_steps=schedule.total_steps, log=log)
    state = program.adopt(initial.state)
    del initial
    if not first:
        check_first_data()
    with explain_out_of_memory("the reference model", program.plan, recipe):
        attach_reference(directory, recipe, cache, data, program, state, check=check_data, log=log)
    return Ready(program, state, schedule, repeats)


@contextlib.contextmanager
def _in_background(work: Callable[[], Program], stop: Stop) -> Iterator[Future[Program]]:
    """Yield what will hold the result of `work`, which a thread does meanwhile.

    An error in the block waits for the present compilation, and for no other; a signal waits for none: the process
    ends (see `signals.leave`).
    """
    future = compile_apart(work)
    try:
        yield future
    except (StopBeforeTraining, KeyboardInterrupt):
        raise
    except BaseException:
        stop.set()
        wait([future])
        raise
    finally:
        stop.set()


def _plan(
    directory: Path, recipe: Recipe, cache: Cache, size: DataSize | None, restart: Restart | None
) -> tuple[Plan, bool]:
    """Return the plan, and whether an earlier attempt has chosen its micro-batch."""
    plan = restart.plan if restart else plan_of(recipe, vocab_size=cache.vocab_size, data=size, directory=directory)
    return plan, previous_choice(directory, plan.devices) is not None


def commands_to_repeat(start: Start, schedule: LiveSchedule, *, first: int, log: EventLog) -> list[IssuedCommand]:
    """Return, by step, the commands of earlier attempts to repeat when continuing from step `first`."""
    repeats = missed_commands(start.commands_to_repeat(after=first - 1), schedule, first=first)
    if repeats:
        listed = ", ".join(map(_in_words, repeats))
        message = f"commands of earlier attempts are repeated: {listed}; to omit them: trainkit resume RUN"
        log.write("log", step=log.step, level="info", message=f"{message} --forget-commands")
    return repeats


def missed_commands(issued: Sequence[IssuedCommand], schedule: LiveSchedule, *, first: int) -> list[IssuedCommand]:
    """Return those of the commands that the checkpoint of step `first` does not include.

    It may or may not include one that came right after its step, because it may have been written at the same time.
    """
    return [
        each
        for each in issued
        if each.step > first or (each.step == first and not schedule.holds(each.command, step=first))
    ]


def _in_words(issued: IssuedCommand) -> str:
    argument = "" if issued.command.argument is None else f" {issued.command.argument}"
    return f"{issued.command.name}{argument} after step {issued.step}"


def accept_start(
    directory: Path,
    loaded: Loaded,
    start: Start,
    initial: Initial,
    *,
    forgotten: Sequence[IssuedCommand] = (),
    log: EventLog,
) -> None:
    """Set the checkpoints of later steps aside and log where the attempt begins: the restored state is accepted.

    In this order: whenever the process is killed, the next attempt continues where the log says or from this state.
    """
    manifest, moved = initial.manifest, list[int]()
    if manifest and hosts.is_first() and (start.step is not None or initial.skipped):
        # damaged ones too: kept beside whole ones they would push these out
        moved = store.set_aside(store.directory_of(directory), beyond=manifest.step)
    if (manifest.step if manifest else 0) != log.step or forgotten:
        announce(log, loaded, start, resumed_from=manifest.step if manifest else None, forgotten=forgotten)
    if manifest is None:
        return
    before = _devices_in_words(manifest.devices, manifest.mesh)
    mesh = jax.tree.leaves(initial.state)[0].sharding.mesh
    after = _devices_in_words(sorted(device.device_kind for device in mesh.devices.flat), dict(mesh.shape))
    if before != after:
        message = f"devices: {before} -> {after}; results agree to rounding, not bit for bit"
        log.write("log", step=log.step, level="warning", message=message)
    for step in moved:
        log.write("log", step=log.step, level="info", message=f"the checkpoint of step {step} was set aside")


def _devices_in_words(kinds: list[str], axes: dict[str, int]) -> str:
    counted = ", ".join(f"{count} x {kind}" for kind, count in Counter(kinds).items())
    return f"{counted} ({', '.join(f'{axis} {size}' for axis, size in axes.items())})"
