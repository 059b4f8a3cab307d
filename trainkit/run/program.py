"""Recipe and plan → model, optimiser, task → the step, compiled for the run's shapes before anything is allocated."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.sharding import Mesh
from jaxtyping import Array, PyTree

from trainkit import models, optim
from trainkit.data.batches.examples import lengths_of
from trainkit.data.batches.layout import Layout, has_segments
from trainkit.data.jobs import Stop
from trainkit.events.log import EventLog
from trainkit.infer.adapted import with_adapter
from trainkit.models.adapters import Numbers, trainable
from trainkit.models.stack import LanguageModel
from trainkit.parallel import devices, mesh
from trainkit.parallel.precision import compute_dtype
from trainkit.plan import Choice, Memory, Plan, choices
from trainkit.recipe import Recipe
from trainkit.recipe.families.transformer import Transformer
from trainkit.run.replan import replan
from trainkit.tasks import Task
from trainkit.tasks import build as build_task
from trainkit.text import format_bytes
from trainkit.train import memory
from trainkit.train.state import State, init
from trainkit.train.step import Metrics, Step, make_step

#: The layout of the batches of each length.
Layouts = Mapping[int, Layout]
#: The shapes of a batch's arrays, in the order of their names.
Shapes = tuple[tuple[int, ...], ...]


class BuiltStep(NamedTuple):
    """What follows from recipe, plan and devices, before any state exists."""

    mesh: Mesh
    task: Task
    compute: jnp.dtype
    step: Step
    initial: Callable[..., State]
    """Of a key and, where the model does not begin at random, the arrays that `base` describes, packed where an
    adapter has them so; and, where that does not, its numbers."""
    base: PyTree[jax.ShapeDtypeStruct]
    """The model before an adapter is put on it: every array, and where it lies."""
    shardings: PyTree[Any]
    attention: devices.AttentionChoice


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


def build(recipe: Recipe, plan: Plan, *, task: Task | None = None) -> BuiltStep:
    """Model, optimiser, task and step for the plan's devices; nothing is allocated.

    `task` is None where only shapes matter: the task is then made without the tokenizer.
    """
    device = devices.capabilities()
    if not plan.devices.supposed:
        devices.require_precision(plan.compute, device)
    compute, kept = compute_dtype(plan.compute), jnp.dtype(recipe.precision.params)
    length = recipe.data.positions
    lengths = lengths_of(recipe.data.encoding, length)
    # one implementation is for batches of all lengths: of these the longest tells enough where all are in whole blocks
    common = length if len(lengths) == 1 or not any(each % devices.FLASH_BLOCK for each in lengths) else None
    attention = devices.AttentionChoice("xla", "the model has no attention")
    if isinstance(spec := recipe.model, Transformer):
        attention = devices.choose_attention(
            device, compute, spec.key_width, common, has_segments(recipe.data.encoding), spec.special_attention
        )

    def base(key: jax.Array) -> LanguageModel:
        fresh = models.build(
            recipe.model,
            vocab_size=plan.vocab_size,
            sequence_length=length,
            implementation=attention.name,
            remat=plan.remat,
            fp8=plan.compute == "fp8",
            key=key,
        )
        return models.cast(fresh, kept)

    def model(key: jax.Array, weights: PyTree | None = None, numbers: Numbers | None = None) -> LanguageModel:
        return with_adapter(base(key) if weights is None else weights, recipe, key=key, numbers=numbers)

    def initial(key: jax.Array, weights: PyTree | None = None, numbers: Numbers | None = None) -> State:
        begun = partial(model, weights=weights, numbers=numbers)
        return init(key, model=begun, optimizer=optimizer, compute=compute)

    whole = jax.eval_shape(model, jax.random.key(0))
    trained = eqx.filter(whole, trainable(whole))
    optimizer = optim.build(recipe.optimizer, models.leaf_names(trained), trained, adapter=recipe.adapter)
    mesh.check_layout(whole, fsdp=plan.fsdp_axis)
    device_mesh, zero1 = mesh.make_mesh(data=plan.data_axis, fsdp=plan.fsdp_axis), recipe.parallel.zero1
    rate = optim.learning_rate(recipe.schedule, peak=recipe.optimizer.learning_rate, steps=plan.steps)
    task = task or build_task(recipe.task)
    step = make_step(
        task=task,
        optimizer=optimizer,
        learning_rate=rate,
        compute=compute,
        max_grad_norm=recipe.train.max_grad_norm,
        rounding=recipe.precision.rounding,
        gradient_shardings=mesh.shardings(device_mesh, trained, over_data=True) if zero1 else None,
    )
    shardings = mesh.state_shardings(device_mesh, jax.eval_shape(initial, jax.random.key(0)), zero1=zero1)
    arrays = eqx.filter_eval_shape(lambda key: eqx.filter(base(key), eqx.is_array), jax.random.key(0))
    plain = _placed(arrays, device_mesh)
    return BuiltStep(device_mesh, task, compute, step, initial, plain, shardings, attention)


def _placed(shapes: PyTree, on: Mesh) -> PyTree[jax.ShapeDtypeStruct]:
    return jax.tree.map(
        lambda leaf, sharding: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding),
        shapes,
        mesh.shardings(on, shapes),
    )


def compile_program(built: BuiltStep, plan: Plan, layouts: Layouts) -> Program:
    """The step of a run, lowered and compiled from shapes alone.

    Raises:
        jax.errors.JaxRuntimeError: the compiler found no memory to try its kernels in.
    """
    started = time.perf_counter()
    state = state_shapes(built)
    step = jax.jit(built.step, donate_argnums=0, out_shardings=(built.shardings, mesh.replicated(built.mesh)))
    by_shapes: dict[Shapes, Step] = {}
    most: Memory | None = None
    for layout in layouts.values():
        batch = _batch(layout, plan, built)
        # by the mesh the cross-entropy knows which rows each device has: see `parallel/rows.py`
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


def state_shapes(built: BuiltStep) -> State:
    """The state before it exists: every array's shape, dtype and sharding."""
    return jax.tree.map(
        lambda leaf, sharding: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding),
        jax.eval_shape(built.initial, jax.random.key(0)),
        built.shardings,
    )


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
    """What was compiled, what it needs, and, where the first guess did not fit, what runs instead."""
    plan, memory = program.plan, program.memory
    fields = {"memory": memory.by_category} if memory else {}
    log.write("compiled", step=log.step, what="train step", seconds=round(program.seconds, 3), **fields)
    if plan.choice != guessed.choice:
        log_plan(plan, program.built, total_steps=total_steps, log=log)
        message = f"{_told(guessed)} did not fit: going on with {_told(plan)}"
        log.write("log", step=log.step, level="info", message=message)
    limit = plan.devices.memory_bytes
    if memory and limit is not None and memory.peak > limit:
        message = f"a step needs {format_bytes(memory.peak)} per device, which has {format_bytes(limit)};"
        message += " to see what would fit: trainkit plan RECIPE"
        log.write("alert", step=log.step, kind="memory", message=message)


def _told(plan: Plan) -> str:
    return f"micro_batch_size = {plan.batch.micro}, remat = {plan.remat}"
