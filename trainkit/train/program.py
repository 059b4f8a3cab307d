"""The step of a run: compiled for the run's shapes before anything is allocated, with a micro-batch that fits."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import jax
from jax.errors import JaxRuntimeError
from jax.stages import Compiled
from jaxtyping import Array

from trainkit.data.batches.layout import Layout
from trainkit.data.jobs import Stop
from trainkit.parallel import mesh
from trainkit.plan import IN_HOST_MEMORY, Choice, Memory, Plan, choices, replan
from trainkit.plan.proposal import smaller_plan
from trainkit.recipe import Recipe
from trainkit.train.build import BuiltStep, build, state_shapes
from trainkit.train.choosing import choose_better, first_that_fits
from trainkit.train.out_of_memory import is_out_of_memory
from trainkit.train.state import State
from trainkit.train.step import Metrics, Step

#: Batches on the device besides the one that the step reads: two are prefetched, and one is being copied.
WAITING = 3
#: Bytes that XLA's CPU runtime holds and its compiler does not report: compiled code, packed operands, threads. It was
#: 57 to 97 MB for the shapes of scripts/bench/fit.py.
CPU_RUNTIME = 64 << 20
#: The layout of the batches, by their length.
Layouts = Mapping[int, Layout]
#: The shapes of a batch's arrays, in the order of their names.
Shapes = tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class Program:
    """The step of a run, compiled for the shapes of all its batches. It is called like the step."""

    plan: Plan
    built: BuiltStep
    by_shapes: Mapping[Shapes, Step]
    memory: Memory | None
    """The memory of the shapes that need most; None if the compiler does not report it."""
    seconds: float
    """The time for building and compiling, including programs that did not fit."""
    measuring_by_shapes: Mapping[Shapes, Step] | None = None
    """The step with statistics; None if there is none, or it did not fit."""

    def adopt(self, state: State) -> State:
        """Return the same arrays in the structure that this program takes, which includes its `remat`."""
        return jax.tree.unflatten(jax.tree.structure(state_shapes(self.built)), jax.tree.leaves(state))

    def __call__(self, state: State, batch: Mapping[str, Array]) -> tuple[State, Metrics]:
        return _of_shapes(self.by_shapes, batch)(state, batch)

    @property
    def measuring_step(self) -> Step | None:
        """Return the step with statistics, which is called like the step; None if there is none."""
        if (steps := self.measuring_by_shapes) is None:
            return None
        return lambda state, batch: _of_shapes(steps, batch)(state, batch)


def compile_program(built: BuiltStep, plan: Plan, layouts: Layouts) -> Program:
    """Return the step of a run, compiled from shapes alone.

    Raises:
        JaxRuntimeError: the compiler had no memory to try its kernels in.
    """
    started = time.perf_counter()
    by_shapes, most = _compile(built.step, built, plan, layouts)
    return Program(plan, built, by_shapes, most, time.perf_counter() - started)


def with_statistics(program: Program, layouts: Layouts) -> Program:
    """Return the program with its step with statistics, if it has one and that fits in memory; else the program."""
    started, built = time.perf_counter(), program.built
    if built.measuring_step is None:
        return program
    try:
        by_shapes, most = _compile(built.measuring_step, built, program.plan, layouts)
    except JaxRuntimeError as error:
        if not is_out_of_memory(error):
            raise
        return program
    limit = program.plan.devices.usable_bytes
    if most is not None and limit is not None and most.peak > limit:
        return program
    seconds = program.seconds + time.perf_counter() - started
    return replace(program, measuring_by_shapes=by_shapes, seconds=seconds)


def _compile(
    function: Step, built: BuiltStep, plan: Plan, layouts: Layouts
) -> tuple[dict[Shapes, Step], Memory | None]:
    """Return a step compiled for all shapes, and the memory of those that need most."""
    state = state_shapes(built)
    step = jax.jit(function, donate_argnums=0, out_shardings=(built.shardings, mesh.replicated_sharding(built.mesh)))
    by_shapes: dict[Shapes, Step] = {}
    most: Memory | None = None
    batches = [
        _batch(layout, plan, built, accumulation)
        for length, layout in layouts.items()
        for accumulation in plan.accumulations(length)
    ]
    for batch in batches:
        # `on_own_rows` in `parallel/mesh.py` needs the mesh
        with jax.set_mesh(built.mesh):
            by_shapes[_shapes(batch)] = compiled = step.lower(state, batch).compile()
        needed = memory_of(compiled, state, batch, plan)
        most = max(filter(None, (most, needed)), key=lambda memory: memory.peak, default=None)
    return by_shapes, most


def fit_program(
    recipe: Recipe, plan: Plan, built: BuiltStep, layouts: Layouts, *, stop: Stop | None = None, enlarge: bool = False
) -> Program:
    """Return the step of a run, compiled with a micro-batch and remat that fit.

    The first choice is that of `plan`. If it fits, there is no second compilation, except with `enlarge` on a device
    that is not a CPU: a better choice is compiled if, by the measured memory, there is room for it.

    Raises:
        Stopped: `stop` was set. A compilation that has begun cannot be ended, but no other one begins.
    """
    started, stop = time.perf_counter(), stop or Stop()
    with_choice = partial(replan, recipe, plan)

    def compiled(choice: Choice) -> Program:
        stop.check()
        if choice == plan.choice:
            return compile_program(built, plan, layouts)
        other = with_choice(choice)
        return compile_program(build(recipe, other, task=built.task), other, layouts)

    possible = list(choices(recipe, replicas=plan.batch.replicas, platform=plan.devices.platform))
    search: Any = {
        "attempt": compiled,
        "memory": lambda program: program.memory,
        "estimate": lambda choice: with_choice(choice).step_bytes,
        "limit": plan.devices.usable_bytes,
    }
    program: Program = first_that_fits(possible, first=plan.choice, **search)
    # a CPU is no faster for larger micro-batches: see `plan.memory.room_for_activations`
    if enlarge and program.plan.choice == plan.choice and plan.choice in possible and plan.devices.platform != "cpu":
        program = choose_better(program, possible[: possible.index(plan.choice)], choice=plan.choice, **search)
    return replace(program, seconds=time.perf_counter() - started)


def compile_smaller(recipe: Recipe, plan: Plan, built: BuiltStep, layouts: Layouts) -> Program:
    """Return the compiled step of `plan` or, while the compiler has no memory, of the next smaller one.

    Raises:
        TrainkitError: the compiler has no memory even for one sequence at a time.
    """
    while True:
        try:
            return compile_program(built, plan, layouts)
        except JaxRuntimeError as error:
            if not is_out_of_memory(error):
                raise
        plan = smaller_plan(recipe, plan)
        built = build(recipe, plan, task=built.task)


def device_bytes(tree: Any) -> int:
    """Return the bytes on one device of arrays, or of shapes with shardings."""
    return sum(math.prod(leaf.sharding.shard_shape(leaf.shape)) * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree))


def memory_of(compiled: Compiled, state: State, batch: Any, plan: Plan) -> Memory | None:
    """Return what a device holds while a compiled step with donated state runs; None if the compiler does not say.

    Args:
        state, batch: the arguments of the step, as arrays or as shapes with shardings.
        plan: its estimate divides the temporary memory into categories.
    """
    analysis = compiled.memory_analysis()
    if analysis is None:
        return None
    parts = (state.params, state.frozen, state.optimizer, state.averages, state.history)
    parameters, frozen, optimizer, averages, statistics = map(device_bytes, parts)
    one_batch = device_bytes(batch)
    arguments = analysis.argument_size_in_bytes
    results = max(0, analysis.output_size_in_bytes - analysis.alias_size_in_bytes)
    return Memory(
        parameters=parameters,
        frozen=frozen,
        optimizer=optimizer,
        averages=averages,
        statistics=statistics,
        snapshot=max(0, arguments - one_batch - frozen) if plan.devices.platform in IN_HOST_MEMORY else 0,
        rest=max(0, arguments - parameters - frozen - optimizer - averages - statistics) + results,
        batches=WAITING * one_batch,
        program=analysis.generated_code_size_in_bytes + (CPU_RUNTIME if plan.devices.platform == "cpu" else 0),
        temporary=_divide(analysis.temp_size_in_bytes, plan),
    )


def _divide(total: int, plan: Plan) -> dict[str, int]:
    """Return temporary memory by category: the estimates, cut to the total, and the remainder as workspace."""
    shares, left = {}, total
    for name in ("gradients", "activations", *(name for name in ("attention_mask", "logits") if name in plan.bytes)):
        shares[name] = min(left, plan.bytes[name])
        left -= shares[name]
    return {**shares, "workspace": left}


def _of_shapes(steps: Mapping[Shapes, Step], batch: Mapping[str, Array]) -> Step:
    return next(iter(steps.values())) if len(steps) == 1 else steps[_shapes(batch)]


def _shapes(batch: Mapping[str, Any]) -> Shapes:
    return tuple(tuple(batch[name].shape) for name in sorted(batch))


def _batch(layout: Layout, plan: Plan, built: BuiltStep, accumulation: int) -> dict[str, jax.ShapeDtypeStruct]:
    rows = next(iter(layout.values()))[0][0]
    lead = (accumulation, rows // plan.batch.accumulation)
    sharding = mesh.batch_sharding(built.mesh)
    return {
        name: jax.ShapeDtypeStruct((*lead, *shape[1:]), dtype, sharding=sharding)
        for name, (shape, dtype) in layout.items()
    }
