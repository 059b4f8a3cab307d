"""The plan: everything that follows from a recipe, the devices and the data, by arithmetic alone.

Steps, the split of the batch, the mesh, parameters, FLOPs and an estimate of bytes. Nothing is built, so a plan takes
no time, and needs neither jax nor a device.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from itertools import product
from typing import Any, Literal, get_args

from trainkit.errors import TrainkitError
from trainkit.recipe import Recipe
from trainkit.recipe.model import positions_in_block
from trainkit.recipe.train import Remat

#: Of a number; with fp8 what is kept is bfloat16.
BYTES = {"float32": 4, "bfloat16": 2, "float16": 2, "fp8": 2}
Compute = Literal["float32", "bfloat16", "float16", "fp8"]
#: What activations may take where the memory of a device is not known.
UNKNOWN_MEMORY_ACTIVATIONS = 4 << 30
#: Share of a device's memory that is planned with; the rest is fragmentation and what the estimate forgets.
USABLE = 0.9
#: Tokens in a micro-batch from which on a larger one is hardly faster: before it falls below, less is kept (`remat`).
ENOUGH_TOKENS = 4096
#: Categories of the estimate that live within a step only.
WITHIN_STEP = ("gradients", "cast_parameters", "activations", "logits")
#: Tokens for each parameter at which a budget of FLOPs gives the lowest loss (Hoffmann et al. 2022, table 3).
COMPUTE_OPTIMAL = 20


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
class Choice:
    """What a recipe may leave to the memory of the device: sequences that it processes at once, and what is kept."""

    micro: int
    remat: Remat


@dataclass(frozen=True, kw_only=True)
class Memory:
    """What one device holds while a compiled step runs, in bytes.

    Exact: `parameters`, `optimizer` and `snapshot` (the copy that a checkpoint is written from). XLA's own numbers,
    from `memory_analysis`: `rest` (what else goes in: the batch, keys), `batches` (those that wait), `program`, and the
    sum of `temporary`, which is all that lives within a step. How `temporary` is divided, XLA does not tell:
    `gradients`, `activations` and `logits` in it are estimates, no more than there is, and `workspace` is what remains.
    """

    parameters: int
    optimizer: int
    snapshot: int
    rest: int
    batches: int
    program: int
    temporary: dict[str, int]

    @property
    def by_category(self) -> dict[str, int]:
        exact = {name: size for name, size in asdict(self).items() if name != "temporary"}
        return {**exact, **self.temporary}

    @property
    def peak(self) -> int:
        return sum(self.by_category.values())


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
    compute: Compute
    remat: Remat
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

    @property
    def step_bytes(self) -> int:
        """The estimate of what lives only within a step."""
        return sum(size for what, size in self.bytes.items() if what in WITHIN_STEP)

    @property
    def choice(self) -> Choice:
        return Choice(micro=self.batch.micro, remat=self.remat)

    @property
    def tokens_per_parameter(self) -> float:
        return self.total_tokens / self.parameters

    def summary(self) -> dict[str, Any]:
        """All of it as plain JSON, for the `planned` event."""
        return {**asdict(self), "total_bytes": self.total_bytes, "fits": self.fits}


def make_plan(
    recipe: Recipe, *, devices: Devices, vocab_size: int, data: DataSize | None, choice: Choice | None = None
) -> Plan:
    """Derive the plan; `choice` goes before what the recipe says of micro-batch and remat, and before the estimate.

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
    state = _state_bytes(recipe, parameters, data=data_axis, fsdp=fsdp_axis, compute=compute)
    replicas = data_axis * fsdp_axis
    _check_split(recipe, replicas)
    possible = [choice] if choice else list(choices(recipe, replicas=replicas, platform=devices.platform))
    # what `parallel.devices.choose_attention` says of most shapes
    flash = devices.platform == "gpu" and compute != "float32"
    needed = [_activation_bytes(recipe, c, vocab_size=vocab_size, compute=compute, flash=flash) for c in possible]
    room = _room(devices, sum(state.values()))
    fits = (index for index, sizes in enumerate(needed) if sum(sizes.values()) <= room)
    least = min(range(len(needed)), key=lambda index: sum(needed[index].values()))
    chosen = next(fits, least)
    micro = possible[chosen].micro
    size = train.batch_size
    batch = BatchSplit(global_size=size, micro=micro, accumulation=size // (micro * replicas), replicas=replicas)
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
        bytes={**state, **needed[chosen]},
        compute=compute,
        remat=possible[chosen].remat,
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


def choices(recipe: Recipe, *, replicas: int, platform: str) -> Iterator[Choice]:
    """All ways to run the recipe's batch, the best first: as much at once as goes, and nothing computed twice.

    What is kept is cut down before the micro-batch falls below `ENOUGH_TOKENS`, and only then the micro-batch.
    """
    train = recipe.train
    micros = divisors(train.batch_size // replicas)[::-1]
    if train.micro_batch_size != "auto":
        micros = [train.micro_batch_size]
    policies: list[Remat] = [remat for remat in get_args(Remat) if remat != "offload" or platform != "cpu"]
    if train.remat != "auto":
        policies = [train.remat]
    enough = min(micros[0], math.ceil(ENOUGH_TOKENS / recipe.data.sequence_length))
    for large in (True, False):
        for remat, micro in product(policies, micros):
            if (micro >= enough) == large:
                yield Choice(micro=micro, remat=remat)


def _room(devices: Devices, taken: int) -> int:
    """What activations may take. A CPU is no faster for more than its caches hold, and its memory is not ours alone."""
    room = UNKNOWN_MEMORY_ACTIVATIONS
    if devices.memory_bytes is not None:
        left = int(USABLE * devices.memory_bytes) - taken
        room = min(room, left) if devices.platform == "cpu" else left
    return room


def _check_split(recipe: Recipe, replicas: int) -> None:
    """Raises TrainkitError where the batch cannot be divided over the devices and their micro-batches."""
    size, wanted = recipe.train.batch_size, recipe.train.micro_batch_size
    if wanted == "auto":
        if size % replicas:
            raise TrainkitError(
                f"batch_size = {size} cannot be divided equally among {_devices(replicas)}",
                where="train.batch_size",
                hint=f"train.batch_size = {_either(_multiples(replicas, size))}",
            )
    elif size % (wanted * replicas):
        hint = f"train.batch_size = {_either(_multiples(wanted * replicas, size))}"
        if size % replicas == 0:
            hint += f"; or train.micro_batch_size = {_either(_nearest(divisors(size // replicas), wanted))}"
        raise TrainkitError(
            f"batch_size = {size} is not a multiple of micro_batch_size = {wanted} x {_devices(replicas)}"
            f" = {wanted * replicas}",
            where="train.batch_size",
            hint=hint,
        )


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


def _compute(recipe: Recipe, devices: Devices) -> Compute:
    if recipe.precision.compute != "auto":
        return recipe.precision.compute
    return "float32" if devices.platform == "cpu" else "bfloat16"


def _state_bytes(recipe: Recipe, parameters: int, *, data: int, fsdp: int, compute: str) -> dict[str, int]:
    copy = math.ceil(parameters * BYTES[recipe.precision.params] / fsdp)
    sharing = fsdp * data if recipe.parallel.zero1 else fsdp
    optimizer = math.ceil(parameters * recipe.optimizer.state_bytes_per_parameter / sharing)
    state = {"parameters": copy, "gradients": copy, "optimizer": optimizer, "snapshot": copy + optimizer}
    if ("bfloat16" if compute == "fp8" else compute) != recipe.precision.params:
        state["cast_parameters"] = parameters * BYTES[compute]
    return state


def _activation_bytes(recipe: Recipe, choice: Choice, *, vocab_size: int, compute: str, flash: bool) -> dict[str, int]:
    """For one micro-batch. Logits are float32 whatever the compute dtype is, and there is one block of them at once."""
    model, length = recipe.model, recipe.data.sequence_length
    tokens = choice.micro * length
    floats = model.activation_floats_per_token(sequence_length=length, remat=choice.remat, flash=flash)
    block = positions_in_block(rows=choice.micro, positions=length, hidden=model.hidden, vocab_size=vocab_size)
    # as they are, their exponentials, and their gradients
    logits = 3 * choice.micro * block * vocab_size
    return {"activations": tokens * floats * BYTES[compute], "logits": logits * BYTES["float32"]}


def divisors(number: int) -> list[int]:
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
