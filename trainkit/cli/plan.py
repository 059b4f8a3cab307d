"""`trainkit plan`: the plan of a recipe as a table, and whether its compiled step fits."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from trainkit.errors import TrainkitError
from trainkit.hub.recipe import load
from trainkit.parallel.peaks import peak_of
from trainkit.plan import COMPUTE_OPTIMAL, SUPPOSED, WITHIN_STEP, DataSize, Devices, Plan, make_plan, proposal
from trainkit.recipe import Recipe
from trainkit.recipe.toml.load import locate_error
from trainkit.text import format_bytes, format_count, format_duration, plural
from trainkit.train.forecast import Forecast, forecast, forecast_supposed

if TYPE_CHECKING:
    from trainkit.data.tokenizer.vocabulary import LoadedTokenizer

UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "KI": 2**10, "MI": 2**20, "GI": 2**30, "TI": 2**40}


@dataclass(frozen=True, kw_only=True)
class Measured:
    """What is known beyond arithmetic."""

    forecast: Forecast
    peak_flops: float | None
    """Of all devices that train, a second."""
    mfu: float


def plan(path: Path, overrides: Sequence[str], *, devices: int | None, memory: str | None, mfu: float) -> str:
    """The plan on this machine's devices, or on `devices` supposed ones, each with `memory` if that is given.

    Tokenises nothing and allocates nothing; compiles the step, and, if it does not fit, what would.

    Raises:
        TrainkitError: the recipe is wrong or does not suit the devices, or it needs data that is not cached yet.
    """
    loaded = load(path, overrides)
    recipe = loaded.recipe
    supposed = None if memory is None else parsed_bytes(memory)
    codec, vocab_size, data = _vocabulary_and_data(recipe)
    try:
        there = _devices(devices, recipe)
        if supposed is not None:
            there = replace(there, memory_bytes=supposed)
        made = make_plan(recipe, devices=there, vocab_size=vocab_size, data=data)
        compiled = forecast_supposed(recipe, made) if devices is not None else forecast(recipe, made)
        made = make_plan(recipe, devices=there, vocab_size=vocab_size, data=data, choice=compiled.choice)
    except TrainkitError as error:
        raise locate_error(error, loaded) from error
    peak = peak_of(made, tflops=recipe.parallel.peak_tflops)
    found = Measured(forecast=compiled, peak_flops=peak, mfu=mfu)
    told = lines(
        made, name=str(recipe.run.name), data=data, found=found, texts=None if codec is None else texts(recipe, codec)
    )
    if compiled.fits(there) is False:
        told += ["", *_way_out(compiled)]
        if compiled.proposal:
            told += proposal.diff(loaded, compiled.proposal.changes)
    return "\n".join(told)


def parsed_bytes(text: str) -> int:
    """`8GB`, `80 GiB` or `500M` in bytes. Raises TrainkitError."""
    told = re.fullmatch(r"(\d+(?:\.\d+)?) *([KMGT]?I?)B?", text.strip().upper())
    if told is None or told[2] not in UNITS or float(told[1]) == 0:
        raise TrainkitError(f"'{text}' is no size of memory", where="--memory", hint="such as 8GB, 80GiB or 500MB")
    return int(float(told[1]) * UNITS[told[2]])


def texts(recipe: Recipe, codec: LoadedTokenizer) -> str:
    """How documents begin and end, and what decides whether a token begins them."""
    from trainkit.data.tokenizer.load import begins

    begin = codec.name(codec.beginning_of_text or 0) if begins(recipe, codec) else "no token of its own"
    end = codec.name(codec.end_of_text) if recipe.data.encoding.eos else "none"
    why = "as data.encoding.bos says"
    if recipe.data.encoding.bos == "auto":
        why = "as with a new model" if recipe.base_checkpoint is None else "as the tokenizer does by itself"
    return f"begin with {begin} ({why}), end with {end}"


def lines(
    plan: Plan, *, name: str, data: DataSize | None, found: Measured | None = None, texts: str | None = None
) -> list[str]:
    """A plan as aligned lines of text."""
    batch, devices = plan.batch, plan.devices
    epochs = f" = {plan.epochs:.2f} epochs" if plan.epochs is not None else ""
    split = f"micro-batch {batch.micro} x accumulation {batch.accumulation} x {plural(batch.replicas, 'device')}"
    rows = [
        ("steps", f"{plan.steps:,}{epochs}"),
        *_work(plan),
        ("batch", f"{batch.global_size} {_rows(plan)} = {split}"),
        ("remat", plan.remat),
        ("devices", f"{devices.count} x {devices.kind}, data {plan.data_axis} x fsdp {plan.fsdp_axis}"),
        *_supposed(plan),
        ("compute", plan.compute),
        *_attention(found),
        ("data", _data(data)),
        *([("texts", texts)] if texts else []),
        ("FLOPs", f"{format_count(plan.flops_per_token)} {_unit(plan)}"),
        *_time(plan, found),
        ("parameters", f"{plan.parameters:,}"),
        *_trained(plan),
        *((f"  {part.replace('_', ' ')}", f"{size:>14,}") for part, size in plan.parameters_by_part.items()),
        *_memory(plan, found),
    ]
    width = max(len(label) for label, _ in rows) + 2
    return [f"plan of {name}", *(f"  {label:<{width}}{text}" for label, text in rows)]


def _work(plan: Plan) -> list[tuple[str, str]]:
    if plan.sequence_length is None:
        return [("examples", f"{format_count(plan.total_tokens)} = {plan.tokens_per_step:,} a step")]
    return [
        ("tokens", f"{format_count(plan.total_tokens)} = {plan.tokens_per_step:,} a step"),
        ("", f"{plan.tokens_per_parameter:.3g} a parameter (compute-optimal is about {COMPUTE_OPTIMAL})"),
    ]


def _rows(plan: Plan) -> str:
    return "examples" if plan.sequence_length is None else f"sequences of {plan.sequence_length}"


def _unit(plan: Plan) -> str:
    if plan.sequence_length is None:
        return f"an example, {plan.total_flops:.2e} in all"
    return f"a token, {plan.total_flops:.2e} in all (causal attention)"


def _supposed(plan: Plan) -> list[tuple[str, str]]:
    if not plan.devices.supposed:
        return []
    return [
        ("", "which are not here: it is compiled for as many CPUs. GPUs and TPUs keep less of"),
        ("", 'attention and more for their kernels; "auto" may choose another compute and remat there'),
    ]


def _trained(plan: Plan) -> list[tuple[str, str]]:
    if plan.trainable == plan.parameters:
        return []
    return [("", f"{plan.trainable:,} of them are trained ({plan.trainable / plan.parameters:.2%}), the others frozen")]


def _attention(found: Measured | None) -> list[tuple[str, str]]:
    if found is None:
        return []
    return [("attention", f"{found.forecast.attention}: {found.forecast.attention_reason}")]


def _time(plan: Plan, found: Measured | None) -> list[tuple[str, str]]:
    if found is None:
        return []
    if found.peak_flops is None:
        peak = f"the peak of '{plan.devices.kind}' in {plan.compute} is not known: parallel.peak_tflops says it"
        return [("speed", f"n/a: {peak}")]
    rate = found.mfu * found.peak_flops / plan.flops_per_token
    left = format_duration(plan.total_tokens / rate)
    return [("speed", f"{format_count(int(rate))} tokens/s at {found.mfu:.0%} MFU: {left} to the end")]


def _memory(plan: Plan, found: Measured | None) -> list[tuple[str, str]]:
    """Of each device, by category: compiled, where it was, and estimated."""
    memory = found.forecast.memory if found else None
    if memory is None or found is None:
        rows = [("memory", f"{format_bytes(plan.total_bytes)} a device, estimated{_of(plan, plan.fits)}")]
        parts = ((part.replace("_", " "), format_bytes(size)) for part, size in plan.bytes.items())
        return [*rows, *((f"  {part}", f"{size:>14}") for part, size in parts)]
    fits = found.forecast.fits(plan.devices)
    compiled, estimated = memory.by_category, plan.bytes
    within = format_bytes(sum(memory.temporary.values()))
    needed, guess = format_bytes(memory.peak), format_bytes(plan.total_bytes)
    rows = [
        ("memory", f"{needed} a device, compiled{_of(plan, fits)}; {guess} estimated"),
        ("", f"{'COMPILED':>14}{'ESTIMATED':>14}"),
    ]
    for part in dict.fromkeys([*compiled, *estimated]):
        sizes = [f"{format_bytes(of[part]) if part in of else '-':>14}" for of in (compiled, estimated)]
        share = "  a share, by the estimate" if part in compiled and part in WITHIN_STEP else ""
        rows.append((f"  {part.replace('_', ' ')}", "".join(sizes) + share))
    shares = ", ".join(memory.temporary)
    rows.append(("", f"of what lives within a step ({shares}) XLA tells the sum only: {within}"))
    return rows


def _way_out(forecast: Forecast) -> list[str]:
    if forecast.proposal is None:
        return ["it does not fit, and no micro-batch, remat, fsdp or moments were found with which it would"]
    needed = format_bytes(forecast.proposal.memory.peak)
    return [f"it does not fit; with this it does (compiled: {needed} a device):"]


def _vocabulary_and_data(recipe: Recipe) -> tuple[LoadedTokenizer | None, int, DataSize | None]:
    from trainkit.data.batches.dataset import TrainSet
    from trainkit.data.cache.build import find
    from trainkit.data.tokenizer.load import peek, peek_vocab_size

    if cache := find(recipe):
        return cache.tokenizer, cache.vocab_size, TrainSet(cache, recipe).size()
    vocab_size = peek_vocab_size(recipe)
    if vocab_size is None:
        raise TrainkitError(
            f"the size of the vocabulary of '{recipe.text_tokenizer.path}' is not known before it is fetched",
            where="tokenizer.path",
            hint="fetch it, and count the data: trainkit cache-data RECIPE",
        )
    return peek(recipe), vocab_size, None


def _devices(supposed: int | None, recipe: Recipe) -> Devices:
    if supposed is not None:
        return Devices(count=supposed, kind=SUPPOSED)
    from trainkit.parallel.devices import local

    return local(recipe.parallel.platform)


def _data(data: DataSize | None) -> str:
    if data is None:
        return "not cached yet: trainkit cache-data counts it"
    text = f"{format_bytes(data.bytes)}, {format_count(data.tokens)} tokens, " if data.tokens else ""
    return f"{plural(data.documents, 'document')}, {text}{plural(data.examples, 'example')}"


def _of(plan: Plan, fits: bool | None) -> str:
    if fits is None or plan.devices.memory_bytes is None:
        return ""
    return f" of {format_bytes(plan.devices.memory_bytes)}: {'fits' if fits else 'DOES NOT FIT'}"
