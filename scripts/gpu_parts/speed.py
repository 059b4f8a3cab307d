"""How fast training, generation and everything around a step are, by the scripts of scripts/bench."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from pathlib import Path

from gpu_parts.correctness import RECIPE, write_text
from gpu_parts.correctness import TINY as SMALL
from gpu_parts.place import Place, Row

#: Rounds and seconds of a sample, so that four shapes take less than nine minutes.
SHORT = ("--rounds", "3", "--seconds", "2", "--curve", "10", "--contenders", "torch", "trainkit")
TINY = ("--rounds", "1", "--seconds", "0.1", "--curve", "2", "--contenders", "torch", "trainkit")
#: On a CPU, inductor would call a C++ compiler, which takes minutes.
WITHOUT_COMPILER = ("--torch-backend", "aot_eager")


def compare_small(place: Place) -> Iterator[Row]:
    """Yield the rows of GPT-2 124M at four lengths."""
    yield from _shapes(place, "gpt2-124m-1024", "gpt2-124m-2048", "gpt2-124m-4096", "gpt2-124m-8192")


def compare_large(place: Place) -> Iterator[Row]:
    """Yield the rows of GPT-2 350M and 1.5B."""
    yield from _shapes(place, "gpt2-350m-1024", "gpt2-1.5b-1024", small=("tiny-gpt2", "--apart"))


def compare_llama(place: Place) -> Iterator[Row]:
    """Yield the rows of Llama 1B at four lengths."""
    names = ("llama-1b-1024", "llama-1b-4096", "llama-1b-8192", "llama-1b-2048")
    yield from _shapes(place, *names, small=("tiny-llama", "--apart"))


def _shapes(place: Place, *names: str, small: tuple[str, ...] = ("tiny-gpt2",)) -> Iterator[Row]:
    """Yield the rows of each shape; each gets its share of the time that is left.

    Args:
        small: the name of the shape of the small form, and further arguments of step.py.
    """
    if place.small:
        names, more = small[:1], (*small[1:], *TINY, *WITHOUT_COMPILER)
    else:
        more = SHORT
    for number, name in enumerate(names):
        limit = f"{place.seconds_left / (len(names) - number) - 5:.0f}"
        asked = ("cpu" if place.small else "gpu", "--only", name, "--torch", place.torch, "--limit", limit)
        yield from place.bench("step.py", *asked, *more, of=name)


def compare_inference(place: Place) -> Iterator[Row]:
    """Yield the rows of generation and of loading, which need torch."""
    small = ("--batches", "1", "--prompt", "4", "--new", "4", "--rounds", "1")
    yield from place.bench("generate.py", "--torch", place.torch, *(small if place.small else ()))
    # the Python that has torch may lack jax
    asked = ("--torch", place.torch, "--contenders", "mapped", "copied")
    small = ("--dtypes", "bfloat16", "--rounds", "1", "--size", "20000000")
    yield from place.bench("load.py", *asked, *(small if place.small else ("--rounds", "2")))


def compare_kernels(place: Place) -> Iterator[Row]:
    """Yield the times of trainkit's kernels and of what would be used without them."""
    yield from place.bench("kernels.py", *(("--small",) if place.small else ()))


def compile_for_several(place: Place) -> Iterator[Row]:
    """Yield what hides behind products in the step as XLA compiles it for four GPUs; the machine needs none."""
    yield from _compiled(place, "overlap.py", *(("--only", "zero1", "--small") if place.small else ()))


def compile_kernels(place: Place) -> Iterator[Row]:
    """Yield the results of compiling trainkit's kernels for GPUs that the machine need not have."""
    yield from _compiled(place, "kernels.py", "--compile", *(("--small",) if place.small else ()))


def _compiled(place: Place, script: str, *arguments: str) -> Iterator[Row]:
    """Yield the rows of a script that compiles for GPUs which are only described."""
    plugins = importlib.util.find_spec("jax_plugins")
    found = (
        [any(Path(root).glob("xla_cuda*")) for root in (plugins.submodule_search_locations or ())] if plugins else []
    )
    if any(found):
        yield from place.bench(script, *arguments)
    else:
        yield Row(script, "left out: JAX's CUDA plugin is not installed")


def measure_costs(place: Place) -> Iterator[Row]:
    """Yield what checkpoints, the loop, a dashboard and statistics cost."""
    where = ("--only", "tiny-gpt2") if place.small else ("--on-gpu", "--only", "gpt2-1.5b")
    yield from place.bench("step.py", "checkpoint", *where, "--rounds", "1" if place.small else "2", "--curve", "4")
    if place.small:
        write_text(place.directory)
        recipe = place.directory / "tiny.toml"
        recipe.write_text(RECIPE.format(**SMALL, steps=4, saved=1000, deterministic="false"), "utf-8")
        cache = f"data.cache={place.directory / 'cache'}"
        yield from place.bench("loop.py", str(recipe), "--set", cache, "--steps", "8", "--rounds", "1")
        yield from place.bench("step_statistics.py", str(recipe), "--rounds", "1", "--only", "norms")
    else:
        yield from place.bench("loop.py", "--rounds", "6")
        yield from place.bench("step_statistics.py", "--rounds", "5")
