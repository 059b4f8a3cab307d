"""The table that `trainkit plan` shows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from trainkit.text import format_bytes, format_count, format_duration, plural

if TYPE_CHECKING:
    from trainkit.data.tokenizer.vocabulary import LoadedTokenizer
    from trainkit.plan import DataSize, Plan
    from trainkit.recipe import Recipe
    from trainkit.train.forecast import Forecast


@dataclass(frozen=True, kw_only=True)
class Measured:
    """What the compiler and a person add to the arithmetic of a plan."""

    forecast: Forecast
    peak_flops: float | None
    """FLOP/s of all devices together; None where unknown."""
    mfu: float


def texts(recipe: Recipe, codec: LoadedTokenizer) -> str:
    """Return which tokens begin and end a document, and what decides the first."""
    from trainkit.data.tokenizer.load import begins

    begin = codec.name(codec.beginning_of_text or 0) if begins(recipe, codec) else "no special token"
    end = codec.name(codec.end_of_text) if recipe.data.encoding.eos else "no special token"
    reason = "set by data.encoding.bos"
    if recipe.data.encoding.bos == "auto":
        reason = "the default for a new model" if recipe.base_checkpoint is None else "as the tokenizer itself does"
    return f"begin with {begin} ({reason}), end with {end}"


def end_in_words(recipe: Recipe) -> str:
    """Return when a run ends that does so at a time, and when its decay begins; empty for other runs."""
    train, decay = recipe.train, recipe.schedule.phases.get("decay")
    if not train.is_timed:
        return ""
    length = f"{decay} steps" if isinstance(decay, int) else f"{decay:.0%} of all steps"
    when = f"at {train.until}" if train.until is not None else f"after {train.duration} of training"
    return f"{when}, or at the last of these steps; the decay, {length}, begins by the measured speed"


def statistics_in_words(recipe: Recipe, plan: Plan) -> list[tuple[str, str]]:
    """Return rows with the statistics of steps and what each costs; none if steps compute none."""
    from trainkit.plan.statistics import costs_in_words

    costs = costs_in_words(recipe, plan)
    return [("statistics", recipe.statistics.in_words()), *costs] if costs else []


def lines(
    plan: Plan,
    *,
    name: str,
    data: DataSize | None,
    found: Measured | None = None,
    texts: str | None = None,
    ends: str = "",
    statistics: Sequence[tuple[str, str]] = (),
    settings: Sequence[str] = (),
) -> list[str]:
    """Return a plan as aligned lines of text.

    `ends` says when a run ends that does so at a time; `statistics`, which its steps compute and what they cost;
    `settings`, what was decided about GPUs before they were opened.
    """
    batch, devices = plan.batch, plan.devices
    epochs = f" = {plan.epochs:.2f} epochs" if plan.epochs is not None else ""
    split = f"micro-batch {batch.micro} x accumulation {batch.accumulation} x {plural(batch.replicas, 'device')}"
    rows = [
        ("steps", f"{plan.steps:,}{epochs}"),
        *([("ends", ends)] if ends else []),
        *_work(plan),
        ("batch", f"{batch.global_size} {_rows(plan)} = {split}"),
        *_stages(plan),
        ("remat", plan.remat),
        ("devices", f"{devices.count} x {devices.kind}, data {plan.data_axis} x fsdp {plan.fsdp_axis}"),
        *_supposed(plan),
        *(("" if number else "GPU settings", text) for number, text in enumerate(settings)),
        ("compute", plan.compute),
        *_attention(found),
        ("data", _data(data)),
        *([("texts", texts)] if texts else []),
        *statistics,
        ("FLOPs", f"{format_count(plan.flops_per_token)} {_unit(plan)}"),
        *_time(plan, found),
        ("parameters", f"{plan.parameters:,}"),
        *_trained(plan),
        *((f"  {part.replace('_', ' ')}", f"{size:>14,}") for part, size in plan.parameters_by_part.items()),
        *_memory(plan, found),
    ]
    width = max(len(label) for label, _ in rows) + 2
    return [f"plan of {name}", *(f"  {label:<{width}}{text}" for label, text in rows)]


def _stages(plan: Plan) -> list[tuple[str, str]]:
    """Return a line for each stage in which batches have another shape."""
    if not plan.stages:
        return []
    shapes = {(stage.batch_size, stage.length) for stage in plan.stages}
    rows = []
    for stage in plan.stages:
        cut = "" if stage.length == plan.sequence_length else f", cut into sequences of {stage.length}"
        accumulation = plan.batch.of_size(stage.batch_size).accumulation
        size = f"{stage.batch_size} {_rows(plan)}{cut} = accumulation {accumulation}"
        rows.append(f"from step {stage.begin + 1:,}: {size}")
    rows.append(f"{plural(len(shapes), 'shape')} of batches: the step is compiled once for each")
    return [("" if number else "stages", row) for number, row in enumerate(rows)]


def _work(plan: Plan) -> list[tuple[str, str]]:
    from trainkit.plan import COMPUTE_OPTIMAL

    if plan.sequence_length is None:
        return [("examples", f"{format_count(plan.total_tokens)} = {plan.tokens_per_step:,} per step")]
    return [
        ("tokens", f"{format_count(plan.total_tokens)} = {plan.tokens_per_step:,} per step"),
        ("", f"{plan.tokens_per_parameter:.3g} per parameter (compute-optimal is about {COMPUTE_OPTIMAL})"),
    ]


def _rows(plan: Plan) -> str:
    return "examples" if plan.sequence_length is None else f"sequences of {plan.sequence_length}"


def _unit(plan: Plan) -> str:
    if plan.sequence_length is None:
        return f"per example, {plan.total_flops:.2e} in total"
    return f"per token, {plan.total_flops:.2e} in total (causal attention)"


def _supposed(plan: Plan) -> list[tuple[str, str]]:
    if not plan.devices.supposed:
        return []
    return [
        ("", "not the devices of this machine: the step is compiled for this many CPUs. GPUs and TPUs"),
        ("", 'need less memory for attention and more for their kernels, and "auto" may choose another'),
        ("", "compute dtype and another remat there"),
    ]


def _trained(plan: Plan) -> list[tuple[str, str]]:
    if plan.trainable == plan.parameters:
        return []
    return [("", f"{plan.trainable:,} are trained ({plan.trainable / plan.parameters:.2%}); the others are frozen")]


def _attention(found: Measured | None) -> list[tuple[str, str]]:
    if found is None:
        return []
    return [("attention", f"{found.forecast.attention}: {found.forecast.attention_reason}")]


def _time(plan: Plan, found: Measured | None) -> list[tuple[str, str]]:
    if found is None:
        return []
    if found.peak_flops is None:
        peak = f"trainkit does not know the peak FLOP/s of '{plan.devices.kind}' in {plan.compute}"
        return [("speed", f"unknown: {peak}; set parallel.peak_tflops")]
    rate = found.mfu * found.peak_flops / plan.flops_per_token
    left = format_duration(plan.total_tokens / rate)
    return [("speed", f"{format_count(int(rate))} tokens/s at {found.mfu:.0%} MFU: {left} for the whole run")]


def _memory(plan: Plan, found: Measured | None) -> list[tuple[str, str]]:
    """Return the memory of each device by category: compiled, where it was compiled, and estimated."""
    from trainkit.plan import WITHIN_STEP

    memory = found.forecast.memory if found else None
    if memory is None or found is None:
        rows = [("memory", f"{format_bytes(plan.total_bytes)} per device, estimated{_of(plan, plan.fits)}")]
        parts = ((part.replace("_", " "), format_bytes(size)) for part, size in plan.bytes.items())
        return [*rows, *((f"  {part}", f"{size:>14}") for part, size in parts)]
    fits = found.forecast.fits(plan.devices)
    compiled, estimated = memory.by_category, plan.bytes
    within = format_bytes(sum(memory.temporary.values()))
    needed, guess = format_bytes(memory.peak), format_bytes(plan.total_bytes)
    rows = [
        ("memory", f"{needed} per device, compiled{_of(plan, fits)}; {guess} estimated"),
        ("", f"{'COMPILED':>14}{'ESTIMATED':>14}"),
    ]
    for part in dict.fromkeys([*compiled, *estimated]):
        sizes = [f"{format_bytes(of[part]) if part in of else '-':>14}" for of in (compiled, estimated)]
        share = "  (a share, split as in the estimate)" if part in compiled and part in WITHIN_STEP else ""
        rows.append((f"  {part.replace('_', ' ')}", "".join(sizes) + share))
    shares = ", ".join(memory.temporary)
    rows.append(("", f"XLA reports only the sum, {within}, of what exists during a step: {shares}"))
    return rows


def _data(data: DataSize | None) -> str:
    if data is None:
        return "not cached yet; to count it: trainkit cache-data RECIPE"
    text = f"{format_bytes(data.bytes)}, {format_count(data.tokens)} tokens, " if data.tokens else ""
    return f"{plural(data.documents, 'document')}, {text}{plural(data.examples, 'example')}"


def _of(plan: Plan, fits: bool | None) -> str:
    if fits is None or plan.devices.memory_bytes is None:
        return ""
    return f" of {format_bytes(plan.devices.memory_bytes)}: {'fits' if fits else 'DOES NOT FIT'}"
