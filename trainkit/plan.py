"""The plan: everything that follows from a recipe, the devices and the data, by arithmetic alone.

Steps, the split of the batch, the mesh, parameters, FLOPs and an estimate of bytes. Nothing is built, so a plan takes
no time, and needs neither jax nor a device.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any, Literal

from trainkit.errors import TrainkitError
from trainkit.recipe import Recipe

BYTES = {"float32": 4, "bfloat16": 2}
#: What activations may take where the memory of a device is not known.
UNKNOWN_MEMORY_ACTIVATIONS = 4 << 30
#: Share of a device's memory that is planned with; the rest is fragmentation and what the estimate forgets.
USABLE = 0.9


@dataclass(frozen=True, kw_only=True)
class Devices:
    """The devices that train. `memory_bytes` is that of one device, None where it is not known."""

    count: int
    platform: str = "cpu"
    kind: str = "cpu"
    memory_bytes: int | None = None


@dataclass(frozen=True, kw_only=True)
class DataSize:
    """One epoch of the training data, from the cache's ledger. `batches` is given where none lies in two epochs."""

    examples: int
    batches: int | None = None
    tokens: int
    documents: int
    bytes: int


@dataclass(frozen=True, kw_only=True)
class BatchSplit:
    """`micro * accumulation * replicas == global_size`, in sequences."""

    global_size: int
    micro: int
    accumulation: int
    replicas: int


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What a run will do.

    `bytes` are estimates for each device: `parameters`, `gradients`, `optimizer` and `snapshot` (the copy that a
    checkpoint is written from) are divided by the fsdp axis; `cast_parameters` (the parameters in the compute dtype),
    `activations` and `logits` are those of one micro-batch and are not.
    """

    steps: int
    epochs: float | None
    batch: BatchSplit
    sequence_length: int
    tokens_per_step: int
    total_tokens: int
    parameters: int
    parameters_by_part: dict[str, int]
    flops_per_token: int
    total_flops: int
    bytes: dict[str, int]
    compute: Literal["float32", "bfloat16"]
    data_axis: int
    fsdp_axis: int
    vocab_size: int
    devices: Devices

    @property
    def total_bytes(self) -> int:
        """The estimate for one device, all categories together."""
        return sum(self.bytes.values())

    @property
    def fits(self) -> bool | None:
        """Whether the estimate is within the usable memory of a device; None where that is not known."""
        if self.devices.memory_bytes is None:
            return None
        return self.total_bytes <= USABLE * self.devices.memory_bytes

    def summary(self) -> dict[str, Any]:
        """All of it as plain JSON, for the `planned` event."""
        return {**asdict(self), "total_bytes": self.total_bytes, "fits": self.fits}


def make_plan(recipe: Recipe, *, devices: Devices, vocab_size: int, data: DataSize | None) -> Plan:
    """Derive the plan.

    FLOPs per token count a multiplication and an addition as two, the backward pass as twice the forward one:
    6 for every parameter in a matrix product (Kaplan et al. 2020, section 2.1), plus 3 times the forward attention,
    which is counted as causal: a token at position t is charged for the t + 1 positions it may see, (T + 1) / 2 on
    average, though a kernel may compute and mask all T. Recomputed activations are not counted.

    Raises:
        TrainkitError: the mesh does not fit the devices, the batch cannot be split over them, or the recipe counts in
            epochs and `data` is None.
    """
    train, length = recipe.train, recipe.data.sequence_length
    data_axis, fsdp_axis = _mesh(recipe, devices)
    compute = _compute(recipe, devices)
    by_part = recipe.model.parameter_count(vocab_size=vocab_size, sequence_length=length)
    parameters = sum(by_part.values())
    state = _state_bytes(recipe, parameters, fsdp=fsdp_axis, compute=compute)
    per_sequence = _activation_bytes(recipe, vocab_size=vocab_size, compute=compute)
    room = UNKNOWN_MEMORY_ACTIVATIONS
    if devices.memory_bytes is not None and devices.platform != "cpu":
        room = int(USABLE * devices.memory_bytes) - sum(state.values())
    batch = _split(recipe, replicas=data_axis * fsdp_axis, fitting=room // max(1, sum(per_sequence.values())))
    steps = _steps(recipe, data)
    flops_per_token = 6 * recipe.model.matmul_parameters(vocab_size=vocab_size)
    flops_per_token += 3 * recipe.model.attention_flops_per_token(sequence_length=length)
    total_tokens = steps * train.batch_size * length
    return Plan(
        steps=steps,
        epochs=steps / (data.batches or data.examples / train.batch_size) if data else None,
        batch=batch,
        sequence_length=length,
        tokens_per_step=train.batch_size * length,
        total_tokens=total_tokens,
        parameters=parameters,
        parameters_by_part=by_part,
        flops_per_token=flops_per_token,
        total_flops=flops_per_token * total_tokens,
        bytes={**state, **{what: size * batch.micro for what, size in per_sequence.items()}},
        compute=compute,
        data_axis=data_axis,
        fsdp_axis=fsdp_axis,
        vocab_size=vocab_size,
        devices=devices,
    )


def _mesh(recipe: Recipe, devices: Devices) -> tuple[int, int]:
    """(data, fsdp). A given `parallel.data` may leave devices unused; more devices than there are is an error."""
    fsdp, count = recipe.parallel.fsdp, devices.count
    if recipe.parallel.data == "auto":
        if count % fsdp:
            fits = _nearest([n for n in range(1, count + 1) if count % n == 0], fsdp)
            raise TrainkitError(
                f"{_devices(count)} cannot be divided by fsdp = {fsdp}",
                where="parallel.fsdp",
                hint=f"parallel.fsdp = {_either(fits)}",
            )
        return count // fsdp, fsdp
    if recipe.parallel.data * fsdp > count:
        most = f"parallel.data = {count // fsdp}" if fsdp <= count else 'parallel.data = "auto" and parallel.fsdp = 1'
        raise TrainkitError(
            f"data = {recipe.parallel.data} x fsdp = {fsdp} needs {recipe.parallel.data * fsdp} devices; found {count}",
            where="parallel.data",
            hint=most,
        )
    return recipe.parallel.data, fsdp


def _split(recipe: Recipe, *, replicas: int, fitting: int) -> BatchSplit:
    """Divide the batch; with micro-batch "auto" into the largest equal parts of at most `fitting` sequences, or 1."""
    size, wanted = recipe.train.batch_size, recipe.train.micro_batch_size
    if wanted == "auto":
        if size % replicas:
            raise TrainkitError(
                f"batch_size = {size} cannot be divided equally among {_devices(replicas)}",
                where="train.batch_size",
                hint=f"train.batch_size = {_either(_multiples(replicas, size))}",
            )
        micro = max(n for n in _divisors(size // replicas) if n <= max(1, fitting))
    else:
        micro = wanted
    if size % (micro * replicas):
        hint = f"train.batch_size = {_either(_multiples(micro * replicas, size))}"
        if size % replicas == 0:
            hint += f"; or train.micro_batch_size = {_either(_nearest(_divisors(size // replicas), micro))}"
        raise TrainkitError(
            f"batch_size = {size} is not a multiple of micro_batch_size = {micro} x {_devices(replicas)}"
            f" = {micro * replicas}",
            where="train.batch_size",
            hint=hint,
        )
    return BatchSplit(global_size=size, micro=micro, accumulation=size // (micro * replicas), replicas=replicas)


def _steps(recipe: Recipe, data: DataSize | None) -> int:
    train = recipe.train
    if data is not None and data.examples == 0:
        raise TrainkitError(
            f"the training data ({data.tokens:,} tokens) does not fill one example of"
            f" {recipe.data.sequence_length} tokens",
            where="data.train",
            hint="give more text or a smaller data.sequence_length",
        )
    if train.steps is not None:
        return train.steps
    if train.tokens is not None:
        return math.ceil(train.tokens / (train.batch_size * recipe.data.sequence_length))
    assert train.epochs is not None
    if data is None:
        raise TrainkitError(
            f"epochs = {train.epochs} cannot be turned into steps before the data is counted",
            where="train.epochs",
            hint="count it first: trainkit cache-data RECIPE; or give train.steps or train.tokens",
        )
    return math.ceil(train.epochs * (data.batches or data.examples / train.batch_size))


def _compute(recipe: Recipe, devices: Devices) -> Literal["float32", "bfloat16"]:
    if recipe.precision.compute != "auto":
        return recipe.precision.compute
    return "float32" if devices.platform == "cpu" else "bfloat16"


def _state_bytes(recipe: Recipe, parameters: int, *, fsdp: int, compute: str) -> dict[str, int]:
    copy = math.ceil(parameters * BYTES[recipe.precision.params] / fsdp)
    optimizer = copy * recipe.optimizer.state_per_parameter
    state = {"parameters": copy, "gradients": copy, "optimizer": optimizer, "snapshot": copy + optimizer}
    if compute != recipe.precision.params:
        state["cast_parameters"] = parameters * BYTES[compute]
    return state


def _activation_bytes(recipe: Recipe, *, vocab_size: int, compute: str) -> dict[str, int]:
    """For one sequence. Logits are float32 whatever the compute dtype is."""
    length = recipe.data.sequence_length
    inner = recipe.model.activation_floats_per_token(vocab_size=0, sequence_length=length)
    both = recipe.model.activation_floats_per_token(vocab_size=vocab_size, sequence_length=length)
    return {"activations": length * inner * BYTES[compute], "logits": length * (both - inner) * BYTES["float32"]}


def _divisors(number: int) -> list[int]:
    small = [n for n in range(1, math.isqrt(number) + 1) if number % n == 0]
    return sorted({*small, *(number // n for n in small)})


def _multiples(of: int, near: int) -> list[int]:
    """The multiples on either side, without 0."""
    below = near // of * of
    return [n for n in (below, below + of) if n > 0]


def _nearest(values: list[int], to: int) -> list[int]:
    return sorted(sorted(values, key=lambda value: abs(value - to))[:3])


def _either(values: list[int]) -> str:
    *head, last = map(str, values)
    return f"{', '.join(head)} or {last}" if head else last


def _devices(count: int) -> str:
    return f"{count} device{'s' if count > 1 else ''}"
