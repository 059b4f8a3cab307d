"""The step, compiled, and the state that training begins with."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import NamedTuple

from trainkit.data.batches.dataset import TrainSet
from trainkit.data.cache import build as caches
from trainkit.data.jobs import Stop
from trainkit.events.commands import IssuedCommand
from trainkit.events.log import EventLog, of_kinds
from trainkit.infer.text_format import keep_tokenizer
from trainkit.parallel import devices
from trainkit.plan import Choice, Devices, Plan, choices, make_plan
from trainkit.recipe import Recipe
from trainkit.recipe.toml.load import Loaded
from trainkit.run.health import DataHealth
from trainkit.run.initial_state import initial_state
from trainkit.run.out_of_memory import Restart, compile_smaller, explain_out_of_memory
from trainkit.run.reference import attach_reference
from trainkit.run.start import Start
from trainkit.tasks import build as build_task
from trainkit.tasks import check_tokenizer
from trainkit.train.build import build
from trainkit.train.live_schedule import LiveSchedule
from trainkit.train.profile import check_steps
from trainkit.train.program import Program, fit_program, log_plan, log_program
from trainkit.train.state import State


class Ready(NamedTuple):
    """What exists before the first step."""

    program: Program
    state: State
    schedule: LiveSchedule
    repeats: list[IssuedCommand]
    """Commands of earlier attempts that are carried out again."""


def prepare_training(
    directory: Path,
    loaded: Loaded,
    start: Start,
    cache: caches.Cache,
    data: TrainSet,
    data_health: DataHealth,
    *,
    restart: Restart | None = None,
    log: EventLog,
) -> Ready:
    """Plan and compile the step, and meanwhile make or read the state. After running out of memory, `restart` has the
    plan."""
    recipe = loaded.recipe
    plan = restart.plan if restart else plan_of(recipe, cache, data, before=partial(previous_choice, directory))
    if cache.tokenizer is not None:
        check_tokenizer(recipe.task, cache.tokenizer)
    built = build(recipe, plan, task=build_task(recipe.task, cache.tokenizer))
    stop = Stop()
    with ThreadPoolExecutor(1, "compile") as thread, contextlib.ExitStack() as leaving:
        leaving.callback(stop.set)  # an exception waits for the compilation under way, and for no other
        # XLA compiles without the interpreter's lock, so the state is made or read meanwhile.
        # A resumed attempt computes with the choice of the attempt before it.
        enlarge = previous_choice(directory, plan.devices) is None
        compiler = compile_smaller if restart else partial(fit_program, stop=stop, enlarge=enlarge)
        compiling = thread.submit(compiler, recipe, plan, built, data.layouts())
        with explain_out_of_memory("the state (parameters and optimizer)", plan, recipe):
            state = initial_state(directory, loaded, start, built=built, cache=cache, log=log)
        first = int(state.step)
        if restart:
            restart.report(first=first, log=log)
        schedule = LiveSchedule(recipe.schedule, steps=plan.steps, live=state.live)
        log_plan(plan, built, total_steps=schedule.total_steps, log=log)
        check_steps(start.profile, done=first, total=schedule.total_steps)
        repeats = commands_to_repeat(start, schedule, first=first, log=log)
        if cache.tokenizer is not None:
            keep_tokenizer(cache.tokenizer, recipe, directory)
        with explain_out_of_memory("a step of the smallest micro-batch", plan, recipe):
            program = compiling.result()
    log_program(program, guessed=plan, total_steps=schedule.total_steps, log=log)
    state = program.adopt(state)
    with explain_out_of_memory("the reference model", program.plan, recipe):
        attach_reference(
            directory, recipe, cache, data, program.built, program.plan, state, check=data_health.check, log=log
        )
    return Ready(program, state, schedule, repeats)


def plan_of(
    recipe: Recipe, cache: caches.Cache, data: TrainSet, *, before: Callable[[Devices], Choice | None] | None = None
) -> Plan:
    """Return the plan on this machine's devices.

    `before` returns the choice of an earlier attempt on them. It is made again where it is possible, so that a resumed
    run computes the same in the same order.
    """
    local = devices.local(recipe.parallel.platform)
    size = data.size() if cache.train.complete else None
    planned = partial(make_plan, recipe, devices=local, vocab_size=cache.vocab_size, data=size)
    plan = planned()
    choice = before(local) if before else None
    possible = list(choices(recipe, replicas=plan.batch.replicas, platform=local.platform))
    return planned(choice=choice) if choice in possible else plan


def previous_choice(directory: Path, devices: Devices) -> Choice | None:
    """Return what the run's last attempt computed with; None if it had no plan yet, or other devices."""
    *_, plan = (None, *(event["plan"] for event in of_kinds(directory, "planned")))
    try:
        if plan is None or (plan["devices"]["kind"], plan["devices"]["count"]) != (devices.kind, devices.count):
            return None
        return Choice(micro=int(plan["batch"]["micro"]), remat=plan["remat"])
    except (KeyError, TypeError, ValueError):  # early versions logged no choice
        return None


def commands_to_repeat(start: Start, schedule: LiveSchedule, *, first: int, log: EventLog) -> list[IssuedCommand]:
    """Return, by step, the commands of earlier attempts beyond step `first`, from which this attempt continues.

    They are carried out again. A checkpoint may or may not include a command that came after its very step, because
    it may have been written while the command came.
    """
    repeats = [
        issued
        for issued in start.repeated(after=first - 1)
        if issued.step > first or not schedule.holds(issued.command, step=first)
    ]
    if repeats:
        listed = ", ".join(map(_described, repeats))
        message = f"commands of earlier attempts are repeated: {listed}; to omit them: trainkit resume RUN"
        log.write("log", step=log.step, level="info", message=f"{message} --forget-commands")
    return repeats


def _described(issued: IssuedCommand) -> str:
    argument = "" if issued.command.argument is None else f" {issued.command.argument}"
    return f"{issued.command.name}{argument} after step {issued.step}"
