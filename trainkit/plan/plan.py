"""The plan: everything that follows from a recipe, the devices and the data, by arithmetic alone.

Steps, the split of the batch, the mesh, parameters, FLOPs and an estimate of bytes. Nothing is built, so a plan takes
no time, and needs neither jax nor a device.
"""

from __future__ import annotations

import math
from dataclasses import replace

from trainkit.errors import TrainkitError
from trainkit.plan.split import check_split, choices, mesh_axes
from trainkit.plan.types import BatchSplit, Choice, Compute, DataSize, Devices, Plan
from trainkit.recipe import Recipe
from trainkit.recipe.families.sizes import tokens_in_block
from trainkit.recipe.families.transformer import Transformer
from trainkit.recipe.sections.adapter import (
    adapter_parameters,
    quantised_bytes,
    quantised_parameters,
    trained_shapes,
)
from trainkit.recipe.sections.data import is_padded

#: Of a number; with fp8 what is kept is bfloat16.
BYTES = {"float32": 4, "bfloat16": 2, "float16": 2, "fp8": 2}
#: What activations may take where the memory of a device is not known.
UNKNOWN_MEMORY_ACTIVATIONS = 4 << 30


def make_plan(
    recipe: Recipe, *, devices: Devices, vocab_size: int, data: DataSize | None, choice: Choice | None = None
) -> Plan:
    """Derive the plan; `choice` goes before what the recipe says of micro-batch and remat, and before the estimate.

    FLOPs per token count a multiplication and an addition as two, the backward pass as twice the forward one:
    6 for every parameter in a matrix product (Kaplan et al. 2020, section 2.1), plus 3 times the forward attention,
    which is counted as causal: a token at position t is charged for the t + 1 positions it may see, (T + 1) / 2 on
    average, though a kernel may compute and mask all T. Recomputed activations are not counted. Beside an
    adapter it is 4 for every parameter of the base, which has no gradient.

    Raises:
        TrainkitError: the mesh does not fit the devices, the batch cannot be split over them, or its steps
            depend on the data and `data` is None.
    """
    train, length = recipe.train, recipe.data.positions
    data_axis, fsdp_axis = mesh_axes(recipe, devices)
    compute = _compute(recipe, devices)
    vocab_size = recipe.model.rows(vocab_size)
    by_part = recipe.model.parameter_count(vocab_size=vocab_size, sequence_length=length)
    if recipe.adapter:
        by_part["adapter"] = adapter_parameters(recipe.adapter, recipe.model)
    parameters = sum(by_part.values())
    trainable = by_part.get("adapter", parameters)
    trained = trained_shapes(recipe.model, recipe.adapter, vocab_size=vocab_size, sequence_length=length)
    optimizer_bytes = recipe.optimizer.total_state_bytes(trained)
    state = _state_bytes(
        recipe,
        trainable,
        optimizer_bytes,
        frozen=parameters - trainable,
        data=data_axis,
        fsdp=fsdp_axis,
        compute=compute,
    )
    replicas = data_axis * fsdp_axis
    check_split(recipe, replicas)
    possible = [choice] if choice else list(choices(recipe, replicas=replicas, platform=devices.platform))
    flash = _has_flash(recipe, devices, compute)
    needed = [_activation_bytes(recipe, c, vocab_size=vocab_size, compute=compute, flash=flash) for c in possible]
    room = _room(devices, sum(state.values()))
    fits = (index for index, sizes in enumerate(needed) if sum(sizes.values()) <= room)
    least = min(range(len(needed)), key=lambda index: sum(needed[index].values()))
    chosen = next(fits, least)
    micro = possible[chosen].micro
    size = train.batch_size
    batch = BatchSplit(global_size=size, micro=micro, accumulation=size // (micro * replicas), replicas=replicas)
    most = train.batch_size * length * recipe.data.sequences
    tokens_per_step = data.tokens_per_batch if data and data.tokens_per_batch else most
    steps = _steps(recipe, data, tokens_per_step)
    flops_per_token = _matmul_flops_per_token(recipe, vocab_size=vocab_size)
    flops_per_token += 3 * recipe.model.attention_flops_per_token(sequence_length=length)
    total_tokens = round(steps * tokens_per_step)
    return Plan(
        steps=steps,
        epochs=steps / (data.batches or data.examples / train.batch_size) if data else None,
        batch=batch,
        sequence_length=recipe.data.sequence_length,
        tokens_per_step=round(tokens_per_step),
        total_tokens=total_tokens,
        parameters=parameters,
        trainable=trainable,
        parameters_by_part=by_part,
        flops_per_token=flops_per_token,
        total_flops=flops_per_token * total_tokens,
        bytes={**state, **needed[chosen]},
        compute=compute,
        remat=possible[chosen].remat,
        data_axis=data_axis,
        fsdp_axis=fsdp_axis,
        vocab_size=vocab_size,
        devices=devices,
    )


def replan(recipe: Recipe, plan: Plan, choice: Choice | None = None) -> Plan:
    """Return a plan of a changed recipe, or with another choice, for the same devices, vocabulary and steps."""
    made = make_plan(
        count_in_steps(recipe, plan), devices=plan.devices, vocab_size=plan.vocab_size, data=None, choice=choice
    )
    # these depend on the data, which is not counted again here
    return replace(
        made,
        epochs=plan.epochs,
        tokens_per_step=plan.tokens_per_step,
        total_tokens=plan.total_tokens,
        total_flops=made.flops_per_token * plan.total_tokens,
    )


def count_in_steps(recipe: Recipe, plan: Plan) -> Recipe:
    """Return the recipe with the plan's number of steps, so that its data need not be counted again."""
    length = {"steps": plan.steps, "epochs": None, "tokens": None}
    return recipe.model_copy(update={"train": recipe.train.model_copy(update=length)})


def _room(devices: Devices, taken: int) -> int:
    """What activations may take. A CPU is no faster for more than its caches hold, and its memory is not ours alone."""
    room = UNKNOWN_MEMORY_ACTIVATIONS
    if devices.usable_bytes is not None:
        left = devices.usable_bytes - taken
        room = min(room, left) if devices.platform == "cpu" else left
    return room


def steps_need_data(recipe: Recipe) -> bool:
    """Whether the number of steps is known only once the data is counted."""
    train = recipe.train
    return train.epochs is not None or (train.tokens is not None and is_padded(recipe.data.encoding))


def _steps(recipe: Recipe, data: DataSize | None, tokens_per_step: float) -> int:
    train = recipe.train
    if data is not None and data.examples == 0:
        raise TrainkitError(
            f"the training data ({data.tokens:,} tokens) does not fill one example of {recipe.data.positions} tokens",
            where="data.train",
            hint="give more text or a smaller data.sequence_length",
        )
    if train.steps is not None:
        return train.steps
    unit = "epochs" if train.epochs is not None else "tokens"
    if data is None and steps_need_data(recipe):
        raise TrainkitError(
            f"{unit} = {getattr(train, unit)} cannot be turned into steps before the data is counted",
            where=f"train.{unit}",
            hint="count it first: trainkit cache-data RECIPE; or give train.steps",
        )
    if train.tokens is not None:
        # rounded, since the mean of so many steps, times as many, need not be what it was the mean of
        return math.ceil(round(train.tokens / tokens_per_step, 6))
    assert train.epochs is not None and data is not None
    return math.ceil(train.epochs * (data.batches or data.examples / train.batch_size))


def _compute(recipe: Recipe, devices: Devices) -> Compute:
    if recipe.precision.compute != "auto":
        return recipe.precision.compute
    return "float32" if devices.platform == "cpu" else "bfloat16"


def _matmul_flops_per_token(recipe: Recipe, *, vocab_size: int) -> int:
    base = recipe.model.matmul_parameters(vocab_size=vocab_size)
    return 4 * base + 6 * adapter_parameters(recipe.adapter, recipe.model) if recipe.adapter else 6 * base


def _state_bytes(
    recipe: Recipe, trainable: int, optimizer_bytes: int, *, frozen: int, data: int, fsdp: int, compute: str
) -> dict[str, int]:
    # an adapter is float32 whatever its base is
    copy = math.ceil(trainable * BYTES["float32" if recipe.adapter else recipe.precision.params] / fsdp)
    gradients = math.ceil(trainable * BYTES["float32"] / fsdp)  # in which a step sums them
    sharing = fsdp * data if recipe.parallel.zero1 else fsdp
    optimizer = math.ceil(optimizer_bytes / sharing)
    state = {"parameters": copy, "gradients": gradients, "optimizer": optimizer, "snapshot": copy + optimizer}
    cast = 0
    if recipe.adapter:
        packed = quantised_parameters(recipe.model) if recipe.adapter.base == "nf4" else 0
        size = (frozen - packed) * BYTES[recipe.precision.params] + (packed and quantised_bytes(recipe.model))
        state["frozen"] = math.ceil(size / fsdp)
        cast, frozen = trainable * (compute != "float32"), frozen - packed
    if ("bfloat16" if compute == "fp8" else compute) != recipe.precision.params:
        cast += frozen if recipe.adapter else trainable
    return state | ({"cast_parameters": cast * BYTES[compute]} if cast else {})


def _has_flash(recipe: Recipe, devices: Devices, compute: str) -> bool:
    """What `parallel.devices.choose_attention` says of most devices of this platform; it knows more of each."""
    if not isinstance(recipe.model, Transformer):
        return False
    width = recipe.model.key_width
    if devices.platform == "tpu":  # Splash
        return width % 128 == 0 and recipe.data.positions % 128 == 0
    return devices.platform == "gpu" and compute != "float32" and width % 8 == 0 and width <= 128


def _activation_bytes(recipe: Recipe, choice: Choice, *, vocab_size: int, compute: str, flash: bool) -> dict[str, int]:
    """For one micro-batch. Logits are float32 whatever the compute dtype is, and there is one block of them at once."""
    model, length = recipe.model, recipe.data.positions
    tokens = choice.micro * length * recipe.data.sequences
    floats = model.activation_floats_per_token(sequence_length=length, remat=choice.remat, flash=flash)
    activations = {"activations": tokens * floats * BYTES[compute]}
    if not isinstance(model, Transformer):
        return activations
    logits = tokens_in_block(tokens=tokens, hidden=model.hidden, vocab_size=vocab_size) * vocab_size
    return {**activations, "logits": logits * BYTES["float32"]}
