"""`trainkit plan`: the plan of a recipe as a table, and whether its compiled step fits."""

from __future__ import annotations

import re
import shutil
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from trainkit.cli.arguments import Mode, Overrides, RecipePath
from trainkit.errors import TrainkitError
from trainkit.text import format_bytes

if TYPE_CHECKING:
    from trainkit.data.tokenizer.vocabulary import LoadedTokenizer
    from trainkit.plan import DataSize, Devices
    from trainkit.recipe import Recipe
    from trainkit.train.forecast import Forecast

UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "KI": 2**10, "MI": 2**20, "GI": 2**30, "TI": 2**40}


def plan(
    recipe: RecipePath,
    overrides: Overrides = None,
    mode: Mode = "full",
    devices: Annotated[
        int | None, typer.Option(min=1, help="Plan for this many devices instead of this machine's.")
    ] = None,
    memory: Annotated[
        str | None,
        typer.Option(metavar="SIZE", help="Plan for devices with this much memory, such as 8GB.", show_default=False),
    ] = None,
    mfu: Annotated[
        float, typer.Option(min=0.01, max=1.0, help="The share of the devices' peak FLOP/s to expect.")
    ] = 0.4,
    plot: Annotated[
        bool, typer.Option("--plot", help="Draw the learning rate and other schedules over the steps.")
    ] = False,
) -> str:
    """Show what a recipe needs: steps, FLOPs, time and memory.

    Compiles the step to measure its memory, and says whether it fits. Trains nothing.
    """
    from trainkit.cli import plan_table
    from trainkit.hub.recipe import load
    from trainkit.parallel.devices import fallbacks
    from trainkit.parallel.hardware import peak_of
    from trainkit.parallel.xla import prepare_gpus
    from trainkit.plan import make_plan, proposal
    from trainkit.plan.size import check_estimate
    from trainkit.recipe.toml.load import check_lengths, locate_error
    from trainkit.train.forecast import forecast, forecast_supposed
    from trainkit.train.planning import plan_for

    loaded = load(recipe, overrides or [], mode=mode)
    parsed = loaded.recipe
    memory_bytes = None if memory is None else parse_bytes(memory)
    try:
        check_lengths(loaded, mode)
        parsed.task.check_documents(parsed.data.train)
        codec, vocab_size, data = _vocabulary_and_data(parsed)
        settings = prepare_gpus() if devices is None and parsed.parallel.platform in ("auto", "gpu") else []
        available = _devices(devices, parsed)
        if memory_bytes is not None:
            available = replace(available, memory_bytes=memory_bytes)
        plan_with = partial(make_plan if devices is not None else plan_for, parsed, vocab_size=vocab_size, data=data)
        planned = plan_with(devices=available)
        check_estimate(planned)
        if parsed.train.steps is None:
            parsed.check_lengths(planned.steps)
        compiled = forecast_supposed(parsed, planned) if devices is not None else forecast(parsed, planned)
        planned = plan_with(devices=available, choice=compiled.choice)
        if devices is None:
            settings += fallbacks(available, platform=parsed.parallel.platform, compute=planned.compute)
    except TrainkitError as error:
        raise locate_error(error, loaded) from error
    peak = peak_of(planned, tflops=parsed.parallel.peak_tflops)
    found = plan_table.Measured(forecast=compiled, peak_flops=peak, mfu=mfu)
    documents = None if codec is None else plan_table.texts(parsed, codec)
    table = plan_table.lines(
        planned,
        name=str(parsed.run.name),
        data=data,
        found=found,
        texts=documents,
        ends=plan_table.end_in_words(parsed),
        statistics=plan_table.statistics_in_words(parsed, planned),
        settings=settings,
    )
    if compiled.fits(available) is False:
        table += ["", *_way_out(compiled)]
        if compiled.proposal:
            table += proposal.diff(loaded, compiled.proposal.changes)
    if plot:
        from trainkit.cli.schedule_plot import draw_schedules

        table += draw_schedules(parsed, steps=planned.steps, width=shutil.get_terminal_size().columns)
    return "\n".join(table)


def parse_bytes(text: str) -> int:
    """Return `8GB`, `80 GiB` or `500M` in bytes. Raises TrainkitError."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?) *([KMGT]?I?)B?", text.strip().upper())
    if found is None or found[2] not in UNITS or float(found[1]) == 0:
        raise TrainkitError(
            f"'{text}' is not a size of memory",
            where="--memory",
            hint="a number and a unit, such as 8GB, 80GiB or 500MB",
        )
    return int(float(found[1]) * UNITS[found[2]])


def _way_out(forecast: Forecast) -> list[str]:
    if forecast.proposal is None:
        return ["it does not fit, and neither would any other micro-batch, remat, fsdp or dtype of the moments"]
    needed = format_bytes(forecast.proposal.memory.peak)
    return [f"it does not fit. With these changes it does (compiled: {needed} per device):"]


def _vocabulary_and_data(recipe: Recipe) -> tuple[LoadedTokenizer | None, int, DataSize | None]:
    from trainkit.data.batches.dataset import TrainSet
    from trainkit.data.cache.build import find
    from trainkit.data.tokenizer.load import peek, peek_vocab_size

    if cache := find(recipe):
        return cache.tokenizer, cache.vocab_size, TrainSet(cache, recipe).size()
    vocab_size = peek_vocab_size(recipe)
    if vocab_size is None:
        raise TrainkitError(
            f"the vocabulary size of '{recipe.text_tokenizer.path}' is unknown until the tokenizer is downloaded",
            where="tokenizer.path",
            hint="download it and count the data: trainkit cache-data RECIPE",
        )
    return peek(recipe), vocab_size, None


def _devices(supposed: int | None, recipe: Recipe) -> Devices:
    if supposed is not None:
        from trainkit.plan import SUPPOSED, Devices

        return Devices(count=supposed, kind=SUPPOSED)
    from trainkit.parallel.devices import local

    return local(recipe.parallel.platform)
