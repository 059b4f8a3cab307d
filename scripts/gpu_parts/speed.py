"""How fast training, generation and everything around a step are, by the scripts of scripts/bench."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from pathlib import Path

from gpu_parts.place import Place, Row

#: Rounds and seconds of a sample, so that four shapes take less than nine minutes.
SHORT = ("--rounds", "3", "--seconds", "2", "--curve", "10", "--contenders", "torch", "trainkit")
TINY = ("--rounds", "1", "--seconds", "0.2", "--curve", "2", "--contenders", "torch", "trainkit")


def compare_small(place: Place) -> Iterator[Row]:
    """Yield the rows of GPT-2 124M at four lengths."""
    yield from _shapes(place, "gpt2-124m-1024", "gpt2-124m-2048", "gpt2-124m-4096", "gpt2-124m-8192")


def compare_large(place: Place) -> Iterator[Row]:
    """Yield the rows of GPT-2 350M and 1.5B."""
    yield from _shapes(place, "gpt2-350m-1024", "gpt2-1.5b-1024")


def compare_llama(place: Place) -> Iterator[Row]:
    """Yield the rows of Llama 1B at four lengths."""
    yield from _shapes(place, "llama-1b-1024", "llama-1b-4096", "llama-1b-8192", "llama-1b-2048")


def _shapes(place: Place, *names: str) -> Iterator[Row]:
    """Yield the rows of each shape, of which each gets its share of the time that is left."""
    if place.small:
        yield from place.bench("step.py", "cpu", "--only", "6x384", "--torch", place.torch, *TINY, of="6x384-v65")
        return
    for number, name in enumerate(names):
        limit = f"{place.seconds_left / (len(names) - number) - 5:.0f}"
        yield from place.bench(
            "step.py", "gpu", "--only", name, "--torch", place.torch, "--limit", limit, *SHORT, of=name
        )


def compare_inference(place: Place) -> Iterator[Row]:
    """Yield the rows of generation and of loading, which need torch."""
    small = ("--batches", "1", "--prompt", "4", "--new", "4", "--rounds", "1")
    yield from place.bench("generate.py", "--torch", place.torch, *(small if place.small else ()))
    small = ("--dtypes", "bfloat16", "--rounds", "1", "--size", "100000000")
    yield from place.bench("load.py", "--torch", place.torch, *(small if place.small else ("--rounds", "2")))


def compile_for_several(place: Place) -> Iterator[Row]:
    """Yield what hides behind products in the step as XLA compiles it for four GPUs; the machine needs none."""
    plugins = importlib.util.find_spec("jax_plugins")
    found = (
        [any(Path(root).glob("xla_cuda*")) for root in (plugins.submodule_search_locations or ())] if plugins else []
    )
    if any(found):
        yield from place.bench("overlap.py", *(("--only", "zero1") if place.small else ()))
    else:
        yield Row("overlap.py", "left out: JAX's CUDA plugin is not installed")


def measure_costs(place: Place) -> Iterator[Row]:
    """Yield what checkpoints, the loop, a dashboard and statistics cost."""
    where = ("--only", "6x384") if place.small else ("--on-gpu", "--only", "gpt2-1.5b")
    yield from place.bench("step.py", "checkpoint", *where, "--rounds", "1" if place.small else "2", "--curve", "4")
    yield from place.bench("loop.py", "--rounds", "1" if place.small else "6")
    some = ("--rounds", "1", "--only", "norms", "--set", "model.layers=1", "--set", "model.hidden=48")
    yield from place.bench("step_statistics.py", *(some if place.small else ("--rounds", "5")))
