"""An estimate of the memory of one device: the state, and what a step holds of a micro-batch."""

from __future__ import annotations

import math
from dataclasses import dataclass

from trainkit.plan.split import Choice, Devices
from trainkit.recipe import Recipe
from trainkit.recipe.families.sizes import tokens_in_block
from trainkit.recipe.families.transformer import Transformer
from trainkit.recipe.sections.adapter import quantised_bytes, quantised_parameters

#: Platforms whose devices have the memory of the host. Others send a state to the host to save it, and keep no copy.
IN_HOST_MEMORY = frozenset({"cpu"})
#: Bytes of a number by compute dtype; with fp8 activations are kept in bfloat16.
BYTES = {"float32": 4, "bfloat16": 2, "float16": 2, "fp8": 2}
#: Bytes for activations where the memory of a device is unknown.
UNKNOWN_MEMORY_ACTIVATIONS = 4 << 30


@dataclass(frozen=True)
class KeptByAttention:
    """What an implementation of attention holds for a micro-batch."""

    probabilities: bool
    """Whether it keeps all of them for the backward pass; flash attention does not."""
    mask_bytes: int = 0
    """Bytes of a mask or bias for each pair of positions of a row; 0 without one."""


def state_bytes(
    recipe: Recipe,
    trainable: int,
    optimizer_bytes: int,
    *,
    frozen: int,
    data: int,
    fsdp: int,
    compute: str,
    platform: str,
) -> dict[str, int]:
    """Return the estimated bytes of one device by category: the state, a step's gradients and cast parameters."""
    # an adapter is float32 whatever its base is
    params = BYTES["float32" if recipe.adapter else recipe.precision.params]
    copy = math.ceil(trainable * params / fsdp)
    gradients = math.ceil(trainable * BYTES["float32"] / fsdp)
    sharing = fsdp * data if recipe.parallel.zero1 else fsdp
    optimizer = math.ceil(optimizer_bytes / sharing)
    averages = math.ceil(trainable * BYTES["float32"] / fsdp) if recipe.keeps_average else 0
    statistics = math.ceil(recipe.statistics.state_bytes(trainable, params=params) / fsdp)
    state = {"parameters": copy, "gradients": gradients, "optimizer": optimizer}
    if platform in IN_HOST_MEMORY:
        state["snapshot"] = copy + optimizer + averages + statistics
    state |= {name: size for name, size in (("averages", averages), ("statistics", statistics)) if size}
    cast = 0
    if recipe.adapter:
        packed = quantised_parameters(recipe.model) if recipe.adapter.base == "nf4" else 0
        size = (frozen - packed) * BYTES[recipe.precision.params] + (packed and quantised_bytes(recipe.model))
        state["frozen"] = math.ceil(size / fsdp)
        cast, frozen = trainable * (compute != "float32"), frozen - packed
    if ("bfloat16" if compute == "fp8" else compute) != recipe.precision.params:
        cast += frozen if recipe.adapter else trainable
    return state | ({"cast_parameters": cast * BYTES[compute]} if cast else {})


def usual_attention(recipe: Recipe, devices: Devices, compute: str) -> KeptByAttention:
    """Return what attention keeps on most devices of this platform: see `parallel.devices.choose_attention`."""
    if not isinstance(recipe.model, Transformer):
        return KeptByAttention(probabilities=True)
    width = recipe.model.key_width
    if devices.platform == "tpu":  # Splash
        supported = recipe.model.own_kernel_attention is None
        return KeptByAttention(not (supported and width % 128 == 0 and recipe.data.positions % 128 == 0))
    # cuDNN's up to 128; trainkit's kernels, which need no mask of length x length
    half = devices.platform == "gpu" and devices.bfloat16 and compute != "float32"
    return KeptByAttention(not (half and width % 8 == 0 and width <= 256))


def activation_bytes(
    recipe: Recipe, choice: Choice, *, platform: str, vocab_size: int, compute: str, attention: KeptByAttention
) -> dict[str, int]:
    """Return the estimated bytes of one micro-batch. Logits are float32, and one block of them exists at a time."""
    model, length = recipe.model, recipe.data.positions
    tokens = choice.micro * length * recipe.data.sequences
    flash = not attention.probabilities
    floats = model.activation_floats_per_token(sequence_length=length, remat=choice.remat, flash=flash)
    activations = {"activations": tokens * floats * BYTES[compute]}
    if attention.mask_bytes:
        activations["attention_mask"] = tokens * length * attention.mask_bytes
    if not isinstance(model, Transformer) or not model.predicts_tokens:
        return activations
    block = tokens_in_block(tokens=tokens, hidden=model.hidden, vocab_size=vocab_size, platform=platform)
    return {**activations, "logits": block * vocab_size * BYTES["float32"]}


def room_for_activations(devices: Devices, taken: int) -> int:
    """Return the bytes for activations. A CPU gets a limit: more is no faster, and others use its memory too."""
    room = UNKNOWN_MEMORY_ACTIVATIONS
    if devices.usable_bytes is not None:
        left = devices.usable_bytes - taken
        room = min(room, left) if devices.platform == "cpu" else left
    return room
