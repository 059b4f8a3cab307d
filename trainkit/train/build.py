"""Recipe and plan → model, optimiser, task and step: everything that exists before the first array is allocated."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jax.sharding import Mesh
from jaxtyping import PyTree

from trainkit import models, optim
from trainkit.data.batches.examples import lengths_of
from trainkit.data.batches.layout import has_segments
from trainkit.errors import TrainkitError
from trainkit.models import flash_check, grouped_product
from trainkit.models.adapters import Numbers, trainable, with_adapter
from trainkit.models.dropout import EmbeddingNoise
from trainkit.models.stack import LanguageModel
from trainkit.optim import average
from trainkit.parallel import devices, mesh
from trainkit.parallel.precision import compute_dtype
from trainkit.plan import Plan
from trainkit.recipe import Recipe
from trainkit.recipe.families.transformer import GptDecoder, Transformer
from trainkit.recipe.sections.mup import weight_factor, width_ratio
from trainkit.tasks import Task
from trainkit.tasks import build as build_task
from trainkit.tasks.metric import Metric, build_metrics
from trainkit.train.state import State, init
from trainkit.train.step import Step, make_step


class BuiltStep(NamedTuple):
    """What follows from recipe, plan and devices, before any state exists."""

    mesh: Mesh
    task: Task
    metrics: Mapping[str, Metric]
    """The metrics of evaluations, by label."""
    compute: jnp.dtype
    step: Step
    initial: Callable[..., State]
    """Returns a new state from a key, the model's arrays, and the adapter's arrays; the arrays are optional, and random
    where they are not given. `base` describes those of the model; they are packed if an adapter keeps them in 4 bit."""
    base: PyTree[jax.ShapeDtypeStruct]
    """The model without its adapter: the shape, dtype and sharding of every array."""
    optimizer_state: Callable[[PyTree], optax.OptState]
    """Returns the optimizer state before the first step from the trained parameters."""
    shardings: PyTree[Any]
    attention: devices.AttentionChoice
    measuring_step: Step | None = None
    """The step with the statistics of the recipe; None if a step computes none."""


def build(recipe: Recipe, plan: Plan, *, task: Task | None = None) -> BuiltStep:
    """Return model, optimiser, task and step for the plan's devices; nothing is allocated.

    `task` may be None where only shapes matter: the task is then built without the tokenizer.

    Raises:
        TrainkitError: the devices cannot compute in the plan's precision, or the model cannot be laid out over them.
    """
    compute = compute_dtype(plan.compute)
    nearby = _nearby(recipe, plan)
    attention = choose_attention(recipe, plan)
    wider = width_ratio(recipe.mup, recipe.model)
    base = partial(_random_model, recipe, plan, implementation=attention.name, wider=wider)

    def model(key: jax.Array, weights: PyTree | None = None, numbers: Numbers | None = None) -> LanguageModel:
        return with_adapter(base(key) if weights is None else weights, recipe.adapter, key=key, numbers=numbers)

    def initial(key: jax.Array, weights: PyTree | None = None, numbers: Numbers | None = None) -> State:
        return init(
            key,
            model=partial(model, weights=weights, numbers=numbers),
            optimizer=optimizer,
            compute=compute,
            averages=averaging is not None,
            statistics=recipe.statistics,
            timed=recipe.train.is_timed,
            guard=recipe.guard,
        )

    whole = jax.eval_shape(model, jax.random.key(0))
    trained = eqx.filter(whole, trainable(whole))
    names = models.leaf_names(trained)
    scheduled = recipe.optimizer_schedules.keys()
    optimizer = optim.build(recipe.optimizer, names, trained, adapter=recipe.adapter, wider=wider, scheduled=scheduled)
    averaging = average.build(recipe.average, recipe.optimizer, names, trained, steps=plan.steps)
    mesh.check_layout(whole, fsdp=plan.fsdp_axis)
    device_mesh, zero1 = mesh.make_mesh(data=plan.data_axis, fsdp=plan.fsdp_axis), recipe.parallel.zero1
    task = task or build_task(recipe.task)
    step_with = partial(
        _step,
        recipe,
        plan,
        task=task,
        optimizer=optimizer,
        averaging=averaging,
        compute=compute,
        nearby=nearby,
        gradient_shardings=mesh.shardings(device_mesh, trained, over_data=True) if zero1 else None,
    )
    arrays = eqx.filter_eval_shape(lambda key: eqx.filter(base(key), eqx.is_array), jax.random.key(0))
    return BuiltStep(
        mesh=device_mesh,
        task=task,
        metrics=build_metrics(recipe.evaluate.metrics, recipe.task.class_names(recipe.data)),
        compute=compute,
        step=step_with(),
        initial=initial,
        base=_with_shardings(arrays, mesh.shardings(device_mesh, arrays)),
        optimizer_state=optimizer.init,
        shardings=mesh.state_shardings(device_mesh, jax.eval_shape(initial, jax.random.key(0)), zero1=zero1),
        attention=attention,
        measuring_step=step_with(statistics=recipe.statistics) if recipe.statistics.in_step else None,
    )


def _random_model(
    recipe: Recipe, plan: Plan, key: jax.Array, *, implementation: devices.AttentionName, wider: float
) -> LanguageModel:
    """Return a model with random weights; `wider` is how many times as wide as the base of [mup] it is."""
    fresh = models.build(
        recipe.model,
        vocab_size=plan.vocab_size,
        sequence_length=recipe.data.positions,
        implementation=implementation,
        remat=plan.remat,
        fp8=plan.compute == "fp8",
        key=key,
    )
    if wider != 1.0:
        fresh = models.scale(fresh, partial(weight_factor, wider=wider))
    if noise := recipe.task.noise:
        if not isinstance(fresh, LanguageModel):
            raise TrainkitError(
                f'model.type = "{recipe.model.type}" adds no noise to its embeddings',
                where="task.embedding_noise",
                hint="leave it out, or derive the model from trainkit.models.stack.LanguageModel",
            )
        fresh = replace(fresh, embedding_noise=EmbeddingNoise(noise))
    return models.cast(fresh, jnp.dtype(recipe.precision.params))


def _step(recipe: Recipe, plan: Plan, **parts: Any) -> Step:
    """Return the step of a recipe with these parts, and with what follows from its tables."""
    return make_step(
        learning_rate=optim.learning_rate(recipe.schedule, peak=recipe.optimizer.learning_rate, steps=plan.steps),
        max_grad_norm=recipe.train.max_grad_norm,
        rounding=recipe.precision.rounding,
        guard=recipe.guard,
        schedules={
            name: optim.ScheduledValue(
                optim.learning_rate(schedule, peak=1.0, steps=plan.steps), recipe.optimizer.scheduled_metrics(name)
            )
            for name, schedule in recipe.optimizer_schedules.items()
        },
        **parts,
    )


def state_shapes(built: BuiltStep) -> State:
    """Return the state before it exists: the shape, dtype and sharding of every array."""
    shapes: State = _with_shardings(jax.eval_shape(built.initial, jax.random.key(0)), built.shardings)
    return shapes


def model_shapes(built: BuiltStep) -> LanguageModel:
    """Return the whole model, with its adapter, before it exists: the shape, dtype and sharding of every array."""
    state = state_shapes(built)
    model: LanguageModel = eqx.combine(state.params, state.frozen)
    return model


def new_state(
    built: BuiltStep, key: jax.Array, weights: PyTree | None, numbers: Numbers | None = None, *, part: str | None = None
) -> Any:
    """Return a new state, or one `part` of it.

    Args:
        weights: the model's arrays, or None for random ones. They are donated, so that they are in memory once.
        numbers: the adapter's arrays, or None for fresh ones.
        part: the name of a field of `State`; None for all of it.
    """

    def initial(key: jax.Array, weights: PyTree | None, numbers: Numbers | None) -> Any:
        state = built.initial(key, weights, numbers)
        return state if part is None else getattr(state, part)

    shardings = built.shardings if part is None else getattr(built.shardings, part)
    with warnings.catch_warnings():
        # JAX cannot reuse the buffers of weights whose size changes
        warnings.filterwarnings("ignore", "Some donated buffers were not usable")
        return jax.jit(initial, out_shardings=shardings, donate_argnums=1)(key, weights, numbers)


def _nearby(recipe: Recipe, plan: Plan) -> jnp.dtype:
    """Return the dtype in which products are computed, except those of linear layers in 8 bit."""
    return jnp.dtype(jnp.float32) if recipe.needs_exact_gradients else compute_dtype(plan.compute)


def choose_attention(recipe: Recipe, plan: Plan) -> devices.AttentionChoice:
    """Return the fastest attention for a model on this machine's devices, whose kernels are tried once.

    Raises:
        TrainkitError: the devices cannot compute in the plan's precision.
    """
    device, compute = devices.capabilities(), _nearby(recipe, plan)
    if not plan.devices.supposed:
        devices.require_precision(plan.compute, device)
    spec, length = recipe.model, recipe.data.positions
    if not isinstance(spec, Transformer):
        return devices.AttentionChoice("xla", "the model has no attention")
    lengths = sorted({*lengths_of(recipe.data.encoding, length), *recipe.step_lengths.values})
    # One implementation serves batches of all lengths. The longest decides where all are whole blocks.
    common = length if len(lengths) == 1 or not any(each % devices.FLASH_BLOCK for each in lengths) else None
    # encoders, and models that score texts, see padding as a segment of its own
    segments = has_segments(recipe.data.encoding) or spec.kind == "encoder" or not spec.predicts_tokens
    choose = partial(
        devices.choose_attention,
        device,
        compute,
        spec.key_width,
        common,
        segments,
        spec.special_attention,
        spec.own_kernel_attention,
    )
    choice = choose()
    tried = device.platform == "gpu" and not plan.devices.supposed
    if tried and choice.name == "pallas" and (broken := _why_broken(spec, compute)):
        choice = choose(broken=broken)
    if tried and spec.has_experts and compute != jnp.float32 and (broken := grouped_product.why_broken()):
        lost = f"trainkit's kernel for experts does not work here: {broken}; they are computed block by block"
        choice = choice._replace(fallback="; ".join(filter(None, (choice.fallback, lost))))
    return choice._replace(masked=segments and choice.name in devices.MASKED)


def _why_broken(spec: Transformer, compute: jnp.dtype) -> str:
    """Return why trainkit's kernels cannot be used for the attention of a model; empty if they work."""
    return flash_check.why_broken(
        width=spec.key_width,
        heads=spec.heads,
        groups=spec.groups,
        dtype=compute.name,
        softcap=spec.softcap_of_scores,
        sloped=isinstance(spec, GptDecoder) and not spec.learned_positions,
        causal=spec.kind != "encoder",
    )


def _with_shardings(shapes: PyTree, shardings: PyTree) -> Any:
    return jax.tree.map(
        lambda leaf, sharding: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding), shapes, shardings
    )
