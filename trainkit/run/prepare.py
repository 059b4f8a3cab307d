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
from trainkit.events.log import EventLog
from trainkit.infer.text_format import keep_tokenizer
from trainkit.parallel import devices
from trainkit.plan import Choice, Devices, Plan, choices, make_plan
from trainkit.recipe import Recipe
from trainkit.recipe.toml.load import Loaded
from trainkit.run.initial_state import initial_state
from trainkit.run.out_of_memory import Restart, compile_smaller, explain_out_of_memory
from trainkit.run.program import Program, build, fit_program, log_plan, log_program
from trainkit.run.repeat import commands_to_repeat
from trainkit.run.replan import previous_choice
from trainkit.run.start import Start
from trainkit.tasks import build as build_task
from trainkit.tasks import check_tokenizer
from trainkit.train.live_schedule import LiveSchedule
from trainkit.train.profile import check_steps
from trainkit.train.state import State


class Ready(NamedTuple):
    """What there is before the first step."""

    program: Program
    state: State
    course: LiveSchedule
    repeats: list[IssuedCommand]
    """Orders of earlier attempts that are to be carried out again."""


def prepare_training(
    directory: Path,
    loaded: Loaded,
    start: Start,
    cache: caches.Cache,
    data: TrainSet,
    *,
    again: Restart | None = None,
    log: EventLog,
) -> Ready:
    """Plan and compile the step, and make or read the state meanwhile. Out of memory, the plan is that of `again`."""
    recipe = loaded.recipe
    plan = again.plan if again else plan_of(recipe, cache, data, before=partial(previous_choice, directory))
    if cache.tokenizer is not None:
        check_tokenizer(recipe.task, cache.tokenizer)
    built = build(recipe, plan, task=build_task(recipe.task, cache.tokenizer))
    stop = Stop()
    with ThreadPoolExecutor(1, "compile") as thread, contextlib.ExitStack() as leaving:
        leaving.callback(stop.set)  # who leaves with an exception waits for what is being compiled, and no longer
        # XLA compiles without the interpreter's lock: meanwhile the state is made or read
        # an attempt that resumes computes with what the one before it chose
        enlarge = previous_choice(directory, plan.devices) is None
        compiled = compile_smaller if again else partial(fit_program, stop=stop, enlarge=enlarge)
        compiling = thread.submit(compiled, recipe, plan, built, data.layouts())
        with explain_out_of_memory("the state (parameters and optimizer)", plan, recipe):
            state = initial_state(directory, loaded, start, built=built, cache=cache, log=log)
        first = int(state.step)
        if again:
            again.report(first=first, log=log)
        course = LiveSchedule(recipe.schedule, steps=plan.steps, live=state.live)
        log_plan(plan, built, total_steps=course.total_steps, log=log)
        check_steps(start.profile, done=first, total=course.total_steps)
        repeats = commands_to_repeat(start, course, first=first, log=log)
        if cache.tokenizer is not None:
            keep_tokenizer(cache.tokenizer, recipe, directory)
        with explain_out_of_memory("a step of the smallest micro-batch", plan, recipe):
            program = compiling.result()
    log_program(program, guessed=plan, total_steps=course.total_steps, log=log)
    return Ready(program, program.adopt(state), course, repeats)


def plan_of(
    recipe: Recipe, cache: caches.Cache, data: TrainSet, *, before: Callable[[Devices], Choice | None] | None = None
) -> Plan:
    """The plan on this machine's devices; what an earlier attempt chose `before` on them is chosen again where it is
    possible, so that the same is computed in the same order."""
    there = devices.local(recipe.parallel.platform)
    size = data.size() if cache.train.complete else None
    made = partial(make_plan, recipe, devices=there, vocab_size=cache.vocab_size, data=size)
    plan = made()
    choice = before(there) if before else None
    possible = list(choices(recipe, replicas=plan.batch.replicas, platform=there.platform))
    return made(choice=choice) if choice in possible else plan
