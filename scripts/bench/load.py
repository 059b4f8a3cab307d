"""Loading a checkpoint of about 1 GB by trainkit and by the library safetensors: seconds, memory, and their ratios.

uv run python scripts/bench/load.py --torch PYTHON               # bfloat16 and float32, five rounds
uv run python scripts/bench/load.py --torch PYTHON --dtypes bfloat16 --rounds 3 --shards 4

`PYTHON` has torch, safetensors and, for the contender of that name, jax. A checkpoint of Llama's shape is written into
a temporary directory, and read once, so that all of it is in the page cache. Then each contender loads it in a process
of its own, in turn:

- trainkit: `hub.load.load_params` to the model's leaves, which are stacked and whose matrices are turned, in memory of
  their own;
- donated: the same in memory of XLA's own, as a training that begins with them asks for it;
- mapped: `safetensors.torch.load_file`, which maps the file, and one look at every page;
- copied: the same, and every tensor copied, so that it too is in memory of its own and may be written to;
- numpy (float32 only): `safetensors.numpy.load_file`, which copies;
- jax: `safetensors.flax.load_file`, whose tensors are arrays of jax as ours are, neither stacked nor turned.

Imports, and the start of jax's backend, are not counted. Memory is the peak of what the process holds while it loads,
beyond what it held before. On a shared machine only ratios mean anything, and there those of processors more than those
of the clock: the load is printed.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from paired import environment_of

GB = 10**9
HIDDEN, INTERMEDIATE, HEADS, KV_HEADS, VOCAB = 2048, 5632, 32, 8, 32_000
OURS = ("trainkit", "donated")
ITEM = {"bfloat16": 2, "float32": 4}
CONTENDERS = {"bfloat16": ("trainkit", "donated", "mapped", "copied", "jax")}
CONTENDERS["float32"] = (*CONTENDERS["bfloat16"], "numpy")


def spec(layers: int) -> Any:
    from trainkit.recipe.families.llama import Llama

    return Llama(
        vocab_size=VOCAB,
        layers=layers,
        hidden=HIDDEN,
        heads=HEADS,
        kv_heads=KV_HEADS,
        intermediate=INTERMEDIATE,
        context_length=2048,
        tied=True,
    )


def layers_for(size: int, dtype: str) -> int:
    """As many as make a checkpoint of about this size."""
    empty, one = (sum(spec(n).parameter_count(vocab_size=VOCAB, sequence_length=1).values()) for n in (1, 2))
    return max(1, round((size / ITEM[dtype] - empty) / (one - empty)) + 1)


def shapes(model: Any) -> Any:
    import equinox as eqx
    import jax

    from trainkit import models

    def build(key: jax.Array) -> Any:
        return models.build(model, vocab_size=VOCAB, sequence_length=2048, implementation="xla", key=key)

    return eqx.filter_eval_shape(build, jax.random.key(0))


def write(directory: Path, size: int, dtype: str, shards: int) -> int:
    """A checkpoint of random numbers; its bytes."""
    import jax
    import numpy as np

    from trainkit import models
    from trainkit.hub import safetensors
    from trainkit.hub.config import config_of, family_of_spec
    from trainkit.hub.save import DTYPES
    from trainkit.hub.source import tensor_shapes

    model = spec(layers_for(size, dtype))
    found = shapes(model)
    leaves = [leaf for leaf in jax.tree.leaves(found) if isinstance(leaf, jax.ShapeDtypeStruct)]
    names = jax.tree.leaves(models.leaf_names(jax.tree.map(lambda leaf: leaf, found)))
    named = {name: leaf.shape for name, leaf in zip(names, leaves, strict=True)}
    wanted = tensor_shapes({name.ours: name for name in family_of_spec(model).names}, named)
    most = max(np.prod(shape) for shape in wanted.values())
    block = np.random.default_rng(0).standard_normal(most, np.float32).astype(DTYPES[dtype])
    entries = [
        safetensors.TensorEntry(name, shape, block.dtype, lambda shape=shape: block[: np.prod(shape)].reshape(shape))
        for name, shape in wanted.items()
    ]
    total = sum(entry.nbytes for entry in entries)
    safetensors.write(directory, entries, shard_bytes=-(-total // shards))
    config = config_of(model, vocab_size=VOCAB, sequence_length=2048, dtype=dtype)
    (directory / "config.json").write_text(json.dumps(config))
    return total


def of_trainkit(directory: Path, *, owned: bool) -> Callable[[], object]:
    import jax

    from trainkit.hub.load import load_params, read_spec

    dtype = jax.numpy.dtype(json.loads((directory / "config.json").read_text())["torch_dtype"])
    jax.block_until_ready(jax.numpy.zeros(1))
    wanted = shapes(read_spec(directory))
    return lambda: jax.block_until_ready(load_params(directory, wanted, dtype=dtype, owned=owned))


def of_torch(directory: Path, *, copied: bool) -> Callable[[], object]:
    import torch
    from safetensors.torch import load_file

    torch.set_num_threads(len(os.sched_getaffinity(0)))

    def load() -> object:
        found = {}
        for file in sorted(directory.glob("*.safetensors")):
            found |= load_file(file)
        if copied:
            return {name: tensor.clone() for name, tensor in found.items()}
        for tensor in found.values():
            tensor.view(torch.uint8).flatten()[:: resource.getpagesize()].sum()
        return found

    return load


def of_numpy(directory: Path) -> Callable[[], object]:
    from safetensors.numpy import load_file

    return lambda: [load_file(file) for file in sorted(directory.glob("*.safetensors"))]


def of_jax(directory: Path) -> Callable[[], object]:
    import jax
    from safetensors.flax import load_file

    jax.block_until_ready(jax.numpy.zeros(1))
    return lambda: jax.block_until_ready([load_file(file) for file in sorted(directory.glob("*.safetensors"))])


def work(contender: str, directory: Path) -> None:
    """A contender's process: one load."""
    match contender:
        case "trainkit" | "donated":
            load = of_trainkit(directory, owned=contender == "donated")
        case "numpy":
            load = of_numpy(directory)
        case "jax":
            load = of_jax(directory)
        case _:
            load = of_torch(directory, copied=contender == "copied")
    gc.collect()
    Path("/proc/self/clear_refs").write_text("5")  # resets the peak
    before, worked, started = _status("VmRSS"), time.process_time(), time.perf_counter()
    kept = load()
    seconds, worked = time.perf_counter() - started, time.process_time() - worked
    print(
        json.dumps(
            {"seconds": seconds, "processor": worked, "peak": _status("VmHWM") - before, "kept": kept is not None}
        )
    )


def _status(key: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{key}:"))


def compare(dtype: str, arguments: argparse.Namespace) -> None:
    with tempfile.TemporaryDirectory(prefix="bench-load-", dir=arguments.directory) as place:
        directory = Path(place)
        total = write(directory, arguments.size, dtype, arguments.shards)
        for file in directory.iterdir():
            file.read_bytes()
        print(f"{dtype}: {total / GB:.2f} GB in {arguments.shards} file(s); load {os.getloadavg()[0]:.1f}", flush=True)
        wanted = [name for name in CONTENDERS[dtype] if name in OURS or name in arguments.contenders]
        found: dict[str, list[dict[str, float]]] = {name: [] for name in wanted}
        for number in range(arguments.rounds):
            for name in list(found) if number % 2 == 0 else reversed(found):
                python = sys.executable if name in OURS else arguments.torch
                command = [python, __file__, "--work", name, str(directory)]
                done = subprocess.run(command, env=environment_of(python), capture_output=True, text=True)
                if done.returncode:
                    sys.exit(f"{name} failed:\n{done.stderr}")
                found[name].append(json.loads(done.stdout.splitlines()[-1]))
        _print(found, total)


def _print(found: dict[str, list[dict[str, float]]], total: int) -> None:
    ours = [sample["seconds"] for sample in found["trainkit"]]
    for name, samples in found.items():
        seconds, worked = [sample["seconds"] for sample in samples], [sample["processor"] for sample in samples]
        peak = max(sample["peak"] for sample in samples)
        ratios = [own / other for own, other in zip(ours, seconds, strict=True)]
        told = (
            ""
            if name in OURS
            else f"  trainkit / it: {statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"
        )
        print(
            f"  {name:9} {statistics.median(seconds):6.3f} s ({min(seconds):.3f} to {max(seconds):.3f})"
            f"  of processors {statistics.median(worked):.2f} s  peak {peak / GB:.2f} GB = {peak / total:.2f}x{told}"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--torch", default=sys.executable, metavar="PYTHON")
    parser.add_argument("--dtypes", nargs="+", choices=list(ITEM), default=list(ITEM))
    parser.add_argument("--size", type=int, default=GB, metavar="BYTES")
    parser.add_argument("--shards", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--directory", metavar="DIR", help="where to write the checkpoint, for a while")
    others = [name for name in CONTENDERS["float32"] if name not in OURS]
    parser.add_argument("--contenders", nargs="+", choices=others, default=others, help="run by PYTHON; all by default")
    parser.add_argument("--work", nargs=2, metavar=("CONTENDER", "DIRECTORY"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.work:
        work(arguments.work[0], Path(arguments.work[1]))
        return
    for dtype in arguments.dtypes:
        compare(dtype, arguments)


if __name__ == "__main__":
    main()
