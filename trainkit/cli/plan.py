"""`trainkit plan`: the plan of a recipe as a table."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from trainkit.errors import TrainkitError
from trainkit.events.plain import bytes_, count
from trainkit.plan import DataSize, Devices, Plan, make_plan
from trainkit.recipe import Recipe
from trainkit.recipe.load import load, located


def plan(path: Path, overrides: Sequence[str], *, devices: int | None) -> str:
    """The plan on this machine's devices, or on `devices` supposed ones. Tokenises nothing and builds nothing.

    Raises:
        TrainkitError: the recipe is wrong or does not fit the devices, or it needs data that is not cached yet.
    """
    loaded = load(path, overrides)
    vocab_size, data = _vocabulary_and_data(loaded.recipe)
    try:
        made = make_plan(loaded.recipe, devices=_devices(devices), vocab_size=vocab_size, data=data)
    except TrainkitError as error:
        raise located(error, loaded) from error
    return "\n".join(lines(made, name=str(loaded.recipe.run.name), data=data))


def lines(plan: Plan, *, name: str, data: DataSize | None) -> list[str]:
    """A plan as aligned lines of text."""
    batch, devices = plan.batch, plan.devices
    epochs = f" = {plan.epochs:.2f} epochs" if plan.epochs is not None else ""
    replicas = f"{batch.replicas} device{'s' if batch.replicas > 1 else ''}"
    split = f"micro-batch {batch.micro} x accumulation {batch.accumulation} x {replicas}"
    rows = [
        ("steps", f"{plan.steps:,}{epochs}"),
        ("tokens", f"{count(plan.total_tokens)} = {plan.tokens_per_step:,} a step"),
        ("batch", f"{batch.global_size} sequences of {plan.sequence_length} = {split}"),
        ("devices", f"{devices.count} x {devices.kind}, data {plan.data_axis} x fsdp {plan.fsdp_axis}"),
        ("compute", plan.compute),
        ("data", _data(data)),
        ("FLOPs", f"{count(plan.flops_per_token)} a token, {plan.total_flops:.2e} in all (causal attention)"),
        ("parameters", f"{plan.parameters:,}"),
        *((f"  {part.replace('_', ' ')}", f"{size:>14,}") for part, size in plan.parameters_by_part.items()),
        ("memory", f"{bytes_(plan.total_bytes)} a device, estimated{_fits(plan)}"),
        *((f"  {part.replace('_', ' ')}", f"{bytes_(size):>14}") for part, size in plan.bytes.items()),
    ]
    width = max(len(label) for label, _ in rows) + 2
    return [f"plan of {name}", *(f"  {label:<{width}}{text}" for label, text in rows)]


def _vocabulary_and_data(recipe: Recipe) -> tuple[int, DataSize | None]:
    from trainkit.data.cache import find
    from trainkit.data.dataset import TrainSet
    from trainkit.data.tokenizer import peek_vocab_size

    if cache := find(recipe):
        return cache.tokenizer.vocab_size, TrainSet(cache, recipe).size()
    vocab_size = peek_vocab_size(recipe)
    if vocab_size is None:
        raise TrainkitError(
            f"the size of the vocabulary of '{recipe.tokenizer.path}' is not known before it is fetched",
            where="tokenizer.path",
            hint="fetch it, and count the data: trainkit cache-data RECIPE",
        )
    return vocab_size, None


def _devices(supposed: int | None) -> Devices:
    if supposed is not None:
        return Devices(count=supposed, kind="supposed device")
    from trainkit.parallel.devices import local

    return local()


def _data(data: DataSize | None) -> str:
    if data is None:
        return "not cached yet: trainkit cache-data counts it"
    return (
        f"{data.documents:,} documents, {bytes_(data.bytes)}, {count(data.tokens)} tokens, {data.examples:,} examples"
    )


def _fits(plan: Plan) -> str:
    if plan.fits is None or plan.devices.memory_bytes is None:
        return ""
    return f" of {bytes_(plan.devices.memory_bytes)}: {'fits' if plan.fits else 'DOES NOT FIT'}"
