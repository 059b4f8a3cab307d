"""The step of a run, compiled for the run's shapes before anything is allocated."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import jax
from jaxtyping import Array

from trainkit.data.batches.layout import Layout
from trainkit.data.jobs import Stop
from trainkit.events.log import EventLog
from trainkit.parallel import mesh
from trainkit.plan import Choice, Memory, Plan, choices, replan
from trainkit.recipe import Recipe
from trainkit.text import format_bytes
from trainkit.train import memory
from trainkit.train.build import BuiltStep, build, state_shapes
from trainkit.train.state import State
from trainkit.train.step import Metrics, Step

#: The layout of the batches of each length.
Layouts = Mapping[int, Layout]
#: The shapes of a batch's arrays, in the order of their names.
Shapes = tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class Program:
    """The step of a run, compiled for the shapes of all its batches. Callable as the step."""

    plan: Plan
    built: BuiltStep
    by_shapes: Mapping[Shapes, Step]
    memory: Memory | None
    """Of the length that needs most; None where the compiler does not tell."""
    seconds: float
    """That building and compiling took, those that did not fit included."""

    def adopt(self, state: State) -> State:
        """The same arrays in the structure that this program takes: what it keeps (`remat`) is part of the model's."""
        return jax.tree.unflatten(jax.tree.structure(state_shapes(self.built)), jax.tree.leaves(state))

    def __call__(self, state: State, batch: Mapping[str, Array]) -> tuple[State, Metrics]:
        if len(self.by_shapes) == 1:
            return next(iter(self.by_shapes.values()))(state, batch)
        return self.by_shapes[_shapes(batch)](state, batch)


def compile_program(built: BuiltStep, plan: Plan, layouts: Layouts) -> Program:
    """The step of a run, lowered and compiled from shapes alone.

    Raises:
        jax.errors.JaxRuntimeError: the compiler found no memory to try its kernels in.
    """
    started = time.perf_counter()
    state = state_shapes(built)
    step = jax.jit(built.step, donate_argnums=0, out_shardings=(built.shardings, mesh.replicated_sharding(built.mesh)))
    by_shapes: dict[Shapes, Step] = {}
    most: Memory | None = None
    for layout in layouts.values():
        batch = _batch(layout, plan, built)
        # by the mesh the cross-entropy knows which rows each device has: see `parallel/mesh.py`
        with jax.set_mesh(built.mesh):
            by_shapes[_shapes(batch)] = done = step.lower(state, batch).compile()
        needed = memory.memory_of(done, state, batch, plan)
        most = max(filter(None, (most, needed)), key=lambda memory: memory.peak, default=None)
    return Program(plan, built, by_shapes, most, time.perf_counter() - started)


def fit_program(
    recipe: Recipe, plan: Plan, built: BuiltStep, layouts: Layouts, *, stop: Stop | None = None, enlarge: bool = False
) -> Program:
    """The step of a run with the micro-batch and remat of `plan` or, where the recipe leaves them open and the compiled
    step does not fit, with the next ones that do. A first guess that fits is compiled once, and is what runs;
    with `enlarge`, and not on a CPU, a better choice runs where, by what was measured, there is room for it.

    Raises `Stopped` instead of compiling another once `stop` is set: a compilation that has begun cannot be ended.
    """
    began, stop = time.perf_counter(), stop or Stop()
    again = partial(replan, recipe, plan)

    def attempt(choice: Choice) -> Program:
        stop.check()
        if choice == plan.choice:
            return compile_program(built, plan, layouts)
        return compile_program(build(recipe, again(choice), task=built.task), again(choice), layouts)

    possible = list(choices(recipe, replicas=plan.batch.replicas, platform=plan.devices.platform))
    search: Any = {
        "attempt": attempt,
        "memory": lambda program: program.memory,
        "estimate": lambda choice: again(choice).step_bytes,
        "limit": plan.devices.usable_bytes,
    }
    found: Program = memory.first_that_fits(possible, first=plan.choice, **search)
    # a CPU is no faster for more at once: see `plan.plan._room`
    if enlarge and found.plan.choice == plan.choice and plan.choice in possible and plan.devices.platform != "cpu":
        found = memory.enlarged(found, possible[: possible.index(plan.choice)], choice=plan.choice, **search)
    return replace(found, seconds=time.perf_counter() - began)


def _shapes(batch: Mapping[str, Any]) -> Shapes:
    return tuple(tuple(batch[name].shape) for name in sorted(batch))


def _batch(layout: Layout, plan: Plan, built: BuiltStep) -> dict[str, jax.ShapeDtypeStruct]:
    lead = (plan.batch.accumulation, plan.batch.micro * plan.batch.replicas)
    sharding = mesh.batch_sharding(built.mesh)
    return {
        name: jax.ShapeDtypeStruct((*lead, *shape[1:]), dtype, sharding=sharding)
        for name, (shape, dtype) in layout.items()
    }


def log_plan(plan: Plan, built: BuiltStep, *, total_steps: int, log: EventLog) -> None:
    log.write(
        "planned",
        step=log.step,
        total_steps=total_steps,
        plan=plan.summary(),
        devices=[f"{device.platform}:{device.id} {device.device_kind}" for device in jax.devices()],
        attention=built.attention.name,
        attention_reason=built.attention.reason,
    )


def log_program(program: Program, *, guessed: Plan, total_steps: int, log: EventLog) -> None:
    """Log what was compiled, the memory that it needs, and what runs instead of a first guess that does not fit."""
    plan, memory = program.plan, program.memory
    fields = {"memory": memory.by_category} if memory else {}
    log.write("compiled", step=log.step, what="train step", seconds=round(program.seconds, 3), **fields)
    if plan.choice != guessed.choice:
        log_plan(plan, program.built, total_steps=total_steps, log=log)
        message = f"{_described(guessed)} does not fit: continuing with {_described(plan)}"
        log.write("log", step=log.step, level="info", message=message)
    limit = plan.devices.memory_bytes
    if memory and limit is not None and memory.peak > limit:
        message = f"a step needs {format_bytes(memory.peak)} per device, which has {format_bytes(limit)};"
        message += " to see what would fit: trainkit plan RECIPE"
        log.write("alert", step=log.step, kind="memory", message=message)


def _described(plan: Plan) -> str:
    return f"micro_batch_size = {plan.batch.micro}, remat = {plan.remat}"
