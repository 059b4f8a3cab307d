"""How the batch is divided: over a mesh of devices, and into micro-batches."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import product
from typing import get_args

from trainkit.errors import TrainkitError
from trainkit.plan.types import Choice, Devices
from trainkit.recipe import Recipe
from trainkit.recipe.families.sizes import Remat
from trainkit.text import plural

#: Tokens in a micro-batch from which on a larger one is hardly faster: before it falls below, less is kept (`remat`).
ENOUGH_TOKENS = 4096


def mesh_axes(recipe: Recipe, devices: Devices) -> tuple[int, int]:
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
    enough = min(micros[0], math.ceil(ENOUGH_TOKENS / recipe.data.positions))
    for large in (True, False):
        for remat, micro in product(policies, micros):
            if (micro >= enough) == large:
                yield Choice(micro=micro, remat=remat)


def check_split(recipe: Recipe, replicas: int) -> None:
    """Raises TrainkitError where a batch cannot be divided over the devices, or that of a step over micro-batches."""
    size, wanted = recipe.train.batch_size, recipe.train.micro_batch_size
    at_once = recipe.evaluate.batch_size
    if at_once is not None and at_once % replicas:
        raise TrainkitError(
            f"batch_size = {at_once} cannot be divided equally among {_devices(replicas)}",
            where="evaluate.batch_size",
            hint=f"evaluate.batch_size = {_either(_multiples(replicas, at_once))}",
        )
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
    return plural(count, "device")
