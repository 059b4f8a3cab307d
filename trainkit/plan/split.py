"""How a plan divides its work: the batch over devices and micro-batches."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product
from typing import get_args

from trainkit.errors import TrainkitError
from trainkit.recipe import Recipe
from trainkit.recipe.families.sizes import Remat, divisors
from trainkit.text import plural

#: The share of a device's memory that a plan uses; the rest is for fragmentation and what the estimate omits. The
#: memory of a GPU is XLA's alone: see `parallel.nvidia.claim_memory`.
USABLE, USABLE_OF_GPU = 0.9, 0.95
#: The kind of supposed devices: a plan for them is compiled for as many CPUs.
SUPPOSED = "supposed device"
#: Tokens in a micro-batch from which on a larger one is hardly faster: before it falls below, less is kept (`remat`).
ENOUGH_TOKENS = 4096


@dataclass(frozen=True, kw_only=True)
class Devices:
    """The devices that train. `memory_bytes` is the memory of one device, None if unknown."""

    count: int
    platform: str = "cpu"
    kind: str = "cpu"
    memory_bytes: int | None = None
    bfloat16: bool = True
    """Whether the devices multiply bfloat16: NVIDIA's do from Ampere on, which also have flash attention."""

    @property
    def supposed(self) -> bool:
        """Return whether the plan is for devices that this machine does not have."""
        return self.kind == SUPPOSED

    @property
    def usable_bytes(self) -> int | None:
        """Return the bytes of one device that a plan may use; None if its memory is unknown."""
        share = USABLE_OF_GPU if self.platform == "gpu" else USABLE
        return None if self.memory_bytes is None else int(share * self.memory_bytes)

    def have_room_for(self, size: float) -> bool | None:
        """Return whether so many bytes per device are usable; None if the memory is unknown."""
        return None if self.usable_bytes is None else size <= self.usable_bytes


@dataclass(frozen=True, kw_only=True)
class BatchSplit:
    """`micro * accumulation * replicas == global_size`, in sequences."""

    global_size: int
    micro: int
    accumulation: int
    replicas: int

    def of_size(self, size: int) -> BatchSplit:
        """Return the split of a batch of another size into the same micro-batches."""
        return replace(self, global_size=size, accumulation=size // (self.micro * self.replicas))


@dataclass(frozen=True, kw_only=True)
class Choice:
    """What a recipe may leave open: the sequences that a device processes at once, and what a step keeps (`remat`)."""

    micro: int
    remat: Remat


def mesh_axes(recipe: Recipe, devices: Devices) -> tuple[int, int]:
    """Return (data, fsdp). A given `parallel.data` may leave devices unused. Raises TrainkitError if it needs more."""
    fsdp, count = recipe.parallel.fsdp, devices.count
    if recipe.parallel.data == "auto":
        if count % fsdp:
            nearest = _nearest(divisors(count), fsdp)
            raise TrainkitError(
                f"{_devices(count)} cannot be divided by fsdp = {fsdp}",
                where="parallel.fsdp",
                hint=f"parallel.fsdp = {_either(nearest)}",
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
    """Yield all ways to run the recipe's batch, the best first: large micro-batches that recompute nothing.

    Recomputation (`remat`) comes before a micro-batch of fewer than `ENOUGH_TOKENS`.
    """
    train = recipe.train
    micros = [m for m in divisors(shared_size(recipe) // replicas)[::-1] if m * replicas >= recipe.task.least_rows]
    if recipe.statistics.compares_micro_batches:
        micros = [m for m in micros if m * replicas < min(recipe.batch_sizes.values)]
    if train.micro_batch_size != "auto":
        micros = [train.micro_batch_size]
    policies: list[Remat] = [remat for remat in get_args(Remat) if remat != "offload" or platform != "cpu"]
    if train.remat != "auto":
        policies = [train.remat]
    enough = min(micros[0], math.ceil(ENOUGH_TOKENS / recipe.data.positions))
    for large in (True, False):
        for remat, micro in product(policies, micros):
            if (micro >= enough) == large:
                yield Choice(micro=micro, remat=remat)


def check_split(recipe: Recipe, replicas: int) -> None:
    """Raise TrainkitError if a batch cannot be divided over the devices, or a step's batch into micro-batches."""
    size, wanted = shared_size(recipe), recipe.train.micro_batch_size
    rows, least = size if wanted == "auto" else wanted * replicas, recipe.task.least_rows
    if rows < least:
        raise TrainkitError(
            f'task.type = "{recipe.task.type}" compares the examples of a micro-batch, and {_devices(replicas)}'
            f" would have {rows} in all",
            where=_size_key(recipe, size) if wanted == "auto" else "train.micro_batch_size",
            hint=f"it learns nothing from fewer than {least}; more are better",
        )
    if recipe.statistics.compares_micro_batches:
        _check_micro_batches(recipe, replicas)
    at_once = recipe.evaluate.batch_size
    if at_once is not None and at_once < least:
        raise TrainkitError(
            f'task.type = "{recipe.task.type}" compares the examples of a batch, and batch_size = {at_once}',
            where="evaluate.batch_size",
            hint=f"it measures nothing with fewer than {least}; more are better",
        )
    if at_once is not None and at_once % replicas:
        raise TrainkitError(
            f"batch_size = {at_once} cannot be divided equally among {_devices(replicas)}",
            where="evaluate.batch_size",
            hint=f"evaluate.batch_size = {_either(_multiples(replicas, at_once))}",
        )
    for size in recipe.batch_sizes.values:
        _check_size(recipe, size, replicas)


def _check_size(recipe: Recipe, size: int, replicas: int) -> None:
    """Raise TrainkitError if a batch of this size cannot be divided over the devices and into micro-batches."""
    wanted = recipe.train.micro_batch_size
    key = _size_key(recipe, size)
    unit = recipe.data.positions if key == "schedules.batch_tokens" else 1
    if wanted == "auto":
        if size % replicas:
            raise TrainkitError(
                f"batch_size = {size} cannot be divided equally among {_devices(replicas)}",
                where=key,
                hint=f"{key} = {_either([unit * near for near in _multiples(replicas, size)])}",
            )
    elif size % (wanted * replicas):
        hint = f"{key} = {_either([unit * near for near in _multiples(wanted * replicas, size)])}"
        if size % replicas == 0:
            hint += f"; or train.micro_batch_size = {_either(_nearest(divisors(size // replicas), wanted))}"
        raise TrainkitError(
            f"batch_size = {size} is not a multiple of micro_batch_size = {wanted} x {_devices(replicas)}"
            f" = {wanted * replicas}",
            where=key,
            hint=hint,
        )


def _check_micro_batches(recipe: Recipe, replicas: int) -> None:
    """Raise TrainkitError if a step would have one micro-batch, from which no noise can be measured."""
    size, wanted, least = min(recipe.batch_sizes.values), recipe.train.micro_batch_size, recipe.task.least_rows
    smaller = [m for m in divisors(size // replicas)[:-1] if m * replicas >= least]
    if not smaller:
        key = _size_key(recipe, size)
        hint = f"{key} of at least {2 * max(replicas, least)}"
    elif wanted != "auto" and wanted * replicas >= size:
        key, hint = "train.micro_batch_size", f"train.micro_batch_size = {smaller[-1]}"
    else:
        return
    raise TrainkitError(
        f'"noise-scale" in statistics.compute needs at least two micro-batches: batch_size = {size} on'
        f" {_devices(replicas)} is one",
        where=key,
        hint=hint,
    )


def _size_key(recipe: Recipe, size: int) -> str:
    """Return the key that gives batches of this size."""
    scheduled = recipe.schedules.batch_size_key if recipe.schedules else None
    return "train.batch_size" if scheduled is None or size == recipe.train.batch_size else scheduled


def shared_size(recipe: Recipe) -> int:
    """Return the largest number that divides the batches of all steps."""
    return math.gcd(*recipe.batch_sizes.values)


def _multiples(of: int, near: int) -> list[int]:
    """Return the nearest multiples below and above, without 0."""
    below = near // of * of
    return [n for n in (below, below + of) if n > 0]


def _nearest(values: list[int], to: int) -> list[int]:
    return sorted(sorted(values, key=lambda value: abs(value - to))[:3])


def _either(values: list[int]) -> str:
    *head, last = map(str, values)
    return f"{', '.join(head)} or {last}" if head else last


def _devices(count: int) -> str:
    return plural(count, "device")
