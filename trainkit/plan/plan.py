"""The plan: everything that follows from a recipe, the devices and the data, by arithmetic alone.

Steps, the split of the batch, the mesh, parameters, FLOPs and an estimate of bytes. Nothing is built, so a plan takes
no time, and needs neither jax nor a device.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any, Literal, NamedTuple

from trainkit.plan.length import DataSize, check_average, count_steps
from trainkit.plan.memory import KeptByAttention, activation_bytes, room_for_activations, state_bytes, usual_attention
from trainkit.plan.split import BatchSplit, Choice, Devices, check_split, choices, mesh_axes
from trainkit.plan.stages import Stage, flops_of_stages, flops_per_token_of, stages_of
from trainkit.recipe import Recipe
from trainkit.recipe.families.sizes import Remat
from trainkit.recipe.sections.adapter import adapter_parameters, trained_shapes

Compute = Literal["float32", "bfloat16", "float16", "fp8"]
#: Categories of the estimate that exist only within a step.
WITHIN_STEP = ("gradients", "cast_parameters", "activations", "attention_mask", "logits")


@dataclass(frozen=True, kw_only=True)
class Memory:
    """What one device holds while a compiled step runs, in bytes.

    `parameters` (trained ones), `frozen`, `optimizer`, `averages` (of parameters), `statistics` (what they remember of
    earlier steps) and `snapshot` (on a CPU, the copy from which a checkpoint is written) are exact. `rest` (other
    inputs: the batch, keys), `batches` (waiting ones), `program` and the sum of `temporary` are XLA's, from
    `memory_analysis`. `temporary` is all that lives within a step. XLA does not divide it: its `gradients`,
    `activations` and `logits` are estimates, cut to the sum, and `workspace` is the remainder.
    """

    parameters: int
    frozen: int = 0
    optimizer: int
    averages: int = 0
    statistics: int = 0
    snapshot: int = 0
    rest: int
    batches: int
    program: int
    temporary: dict[str, int]

    @property
    def by_category(self) -> dict[str, int]:
        """Return the bytes by category, for the log."""
        exact = {name: size for name, size in asdict(self).items() if name != "temporary"}
        absent = [name for name in ("frozen", "averages", "statistics", "snapshot") if not exact[name]]
        return {**{name: size for name, size in exact.items() if name not in absent}, **self.temporary}

    @property
    def peak(self) -> int:
        """Return the sum of all categories, because a checkpoint may be saved while a step runs."""
        return sum(self.by_category.values())


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What a run will do. Tokens do not include padding; until the data is counted, every position counts as a token.

    `bytes` are estimates for one device. `parameters` (trained ones), `frozen`, `gradients` (always float32),
    `optimizer`, `averages` and `snapshot` (on a CPU, the copy from which a checkpoint is written) are divided by the
    fsdp axis.
    `cast_parameters` (in the compute dtype), `activations`, `attention_mask` (of attention that gets a matrix for each
    row) and `logits` are those of one micro-batch, undivided.
    """

    steps: int
    epochs: float | None
    batch: BatchSplit
    sequence_length: int | None
    """None if documents are not text: an example then counts as one token."""
    tokens_per_step: int
    """On average, where `stages` have different batch sizes."""
    total_tokens: int
    parameters: int
    trainable: int
    """The number of trained parameters: all, or those of the adapter."""
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
    attention: KeptByAttention
    stages: tuple[Stage, ...] = ()
    """Where batches change their shape; `batch` is then the largest one."""

    def accumulations(self, length: int) -> list[int]:
        """Return how many micro-batches steps with sequences of this length have, in ascending order."""
        if not self.stages:
            return [self.batch.accumulation]
        sizes = {stage.batch_size for stage in self.stages if stage.length == length}
        return sorted(self.batch.of_size(size).accumulation for size in sizes)

    @property
    def total_bytes(self) -> int:
        """Return the estimated bytes of one device, in all categories."""
        return sum(self.bytes.values())

    @property
    def fits(self) -> bool | None:
        """Return whether the estimate is within the usable memory of a device; None if that is unknown."""
        return self.devices.have_room_for(self.total_bytes)

    @property
    def step_bytes(self) -> int:
        """Return the estimated bytes that exist only within a step."""
        return sum(size for what, size in self.bytes.items() if what in WITHIN_STEP)

    @property
    def choice(self) -> Choice:
        """Return the micro-batch and remat of the plan."""
        return Choice(micro=self.batch.micro, remat=self.remat)

    @property
    def tokens_per_parameter(self) -> float:
        """Return the run's tokens divided by its parameters (compare Hoffmann et al. 2022: about 20)."""
        return self.total_tokens / self.parameters

    def summary(self) -> dict[str, Any]:
        """Return the plan as plain JSON, for the `planned` event."""
        return {**asdict(self), "total_bytes": self.total_bytes, "fits": self.fits}


def make_plan(
    recipe: Recipe,
    *,
    devices: Devices,
    vocab_size: int,
    data: DataSize | None,
    choice: Choice | None = None,
    attention: KeptByAttention | None = None,
) -> Plan:
    """Return the plan. `choice` overrides the micro-batch and remat of the recipe and of the estimate; `attention` is
    what attention keeps on these devices, if that is known.

    FLOPs per token count a multiplication and an addition as two, the backward pass as twice the forward one:
    6 for every parameter in a matrix product (Kaplan et al. 2020, section 2.1), plus 3 times the forward attention,
    which is counted as causal: a token at position t is charged for the t + 1 positions it may see, (T + 1) / 2 on
    average, though a kernel may compute and mask all T. Recomputed activations are not counted. Beside an
    adapter it is 4 for every parameter of the base, which has no gradient. Tokens outside the task's `learned_share`
    have a forward pass only.

    Raises:
        TrainkitError: the mesh does not fit the devices, the batch cannot be split over them, or its steps
            depend on the data and `data` is None.
    """
    data_axis, fsdp_axis = mesh_axes(recipe, devices)
    compute = _compute(recipe, devices)
    vocab_size = recipe.model.rows(vocab_size)
    length = recipe.data.positions
    by_part = recipe.model.parameter_count(vocab_size=vocab_size, sequence_length=length)
    if recipe.adapter:
        by_part["adapter"] = adapter_parameters(recipe.adapter, recipe.model)
    parameters = sum(by_part.values())
    trained = trained_shapes(recipe.model, recipe.adapter, vocab_size=vocab_size, sequence_length=length)
    trainable = sum(map(math.prod, trained.values()))
    optimizer_bytes = recipe.optimizer.total_state_bytes(trained)
    state = state_bytes(
        recipe,
        trainable,
        optimizer_bytes,
        frozen=parameters - trainable,
        data=data_axis,
        fsdp=fsdp_axis,
        compute=compute,
        platform=devices.platform,
    )
    replicas = data_axis * fsdp_axis
    check_split(recipe, replicas)
    possible = [choice] if choice else list(choices(recipe, replicas=replicas, platform=devices.platform))
    room = room_for_activations(devices, sum(state.values()))
    attention = attention or usual_attention(recipe, devices, compute)
    chosen, within_step = _first_that_fits(
        possible,
        room,
        partial(
            activation_bytes,
            recipe,
            platform=devices.platform,
            vocab_size=vocab_size,
            compute=compute,
            attention=attention,
        ),
    )
    size, micro = recipe.train.batch_size, chosen.micro
    batch = BatchSplit(global_size=size, micro=micro, accumulation=size // (micro * replicas), replicas=replicas)
    return Plan(
        **_work(recipe, vocab_size, data)._asdict(),
        batch=batch,
        sequence_length=recipe.data.sequence_length,
        parameters=parameters,
        trainable=trainable,
        parameters_by_part=by_part,
        bytes={**state, **within_step},
        compute=compute,
        remat=chosen.remat,
        data_axis=data_axis,
        fsdp_axis=fsdp_axis,
        vocab_size=vocab_size,
        devices=devices,
        attention=attention,
    )


class _Work(NamedTuple):
    """How long a run is, and what it computes: fields of the plan."""

    steps: int
    epochs: float | None
    tokens_per_step: int
    total_tokens: int
    flops_per_token: int
    total_flops: int
    stages: tuple[Stage, ...]


def _work(recipe: Recipe, vocab_size: int, data: DataSize | None) -> _Work:
    """Return the work of a run with so many rows of the vocabulary. Raises as `make_plan`."""
    size, length = recipe.train.batch_size, recipe.data.positions
    most = size * length * recipe.data.sequences
    tokens_per_step = data.tokens_per_batch if data and data.tokens_per_batch else most
    steps = count_steps(recipe, data, tokens_per_step)
    check_average(recipe, steps)
    flops_of_token = partial(flops_per_token_of, recipe, vocab_size)
    flops_per_token = flops_of_token(length)
    rows = recipe.batch_sizes.before(steps)
    epochs = rows / size / (data.batches or data.examples / size) if data else None
    total_tokens = round(rows / size * tokens_per_step)
    stages = stages_of(recipe, steps, flops_of_token)
    total_flops = flops_per_token * total_tokens
    if stages:
        tokens_per_step = total_tokens / steps
        total_flops = flops_of_stages(stages, steps=steps, tokens=total_tokens)
    return _Work(steps, epochs, round(tokens_per_step), total_tokens, flops_per_token, total_flops, stages)


def _first_that_fits(
    possible: Sequence[Choice], room: float, needs: Callable[[Choice], dict[str, int]]
) -> tuple[Choice, dict[str, int]]:
    """Return the first choice whose bytes within a step fit, or else the one with the fewest, and those bytes."""
    needed = [needs(choice) for choice in possible]
    fits = (index for index, sizes in enumerate(needed) if sum(sizes.values()) <= room)
    least = min(range(len(needed)), key=lambda index: sum(needed[index].values()))
    chosen = next(fits, least)
    return possible[chosen], needed[chosen]


def replan(recipe: Recipe, plan: Plan, choice: Choice | None = None) -> Plan:
    """Return a plan of a changed recipe, or with another choice, for the same devices, attention, vocabulary and
    steps."""
    new = make_plan(
        count_in_steps(recipe, plan),
        devices=plan.devices,
        vocab_size=plan.vocab_size,
        data=None,
        choice=choice,
        attention=plan.attention,
    )
    # these depend on the data, which is not counted again here
    return replace(
        new,
        epochs=plan.epochs,
        tokens_per_step=plan.tokens_per_step,
        total_tokens=plan.total_tokens,
        total_flops=plan.total_flops if new.stages else new.flops_per_token * plan.total_tokens,
    )


def count_in_steps(recipe: Recipe, plan: Plan) -> Recipe:
    """Return the recipe with the plan's number of steps, so that its data need not be counted again."""
    length = {"steps": plan.steps, "epochs": None, "tokens": None}
    return recipe.model_copy(update={"train": recipe.train.model_copy(update=length)})


def _compute(recipe: Recipe, devices: Devices) -> Compute:
    if recipe.precision.compute != "auto":
        return recipe.precision.compute
    if devices.platform == "cpu":
        return "float32"
    return "bfloat16" if devices.bfloat16 else "float16"
