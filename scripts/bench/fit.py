"""How well the plan foresees memory: predicted by compiling, measured while the same step runs.

uv run python scripts/bench/fit.py                       # a few shapes on this machine's device
uv run python scripts/bench/fit.py --recipe RECIPE       # that of a recipe, with `--vocab N`

On CPU measured is by how much the peak of the resident memory of a process grows that holds just the state, its
snapshot and the batches, and runs the step; on other devices it is the most that the allocator has in use meanwhile,
looked at every half a millisecond, because its own peak includes making the state. Each shape has a process
of its own.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

STEPS = 3
SHAPES: dict[str, dict[str, Any]] = {
    "6 x 384, vocab 65": {"layers": 6, "hidden": 384, "heads": 6, "vocab": 65, "length": 256, "batch": 16},
    "4 x 256, vocab 50,304": {"layers": 4, "hidden": 256, "heads": 4, "vocab": 50304, "length": 256, "batch": 16},
    "… in micro-batches of 4": {"layers": 4, "hidden": 256, "heads": 4, "vocab": 50304, "length": 256, "micro": 4},
    "6 x 384, remat blocks": {"layers": 6, "hidden": 384, "heads": 6, "vocab": 2048, "remat": "blocks"},
    "6 x 384, remat dots": {"layers": 6, "hidden": 384, "heads": 6, "vocab": 2048, "remat": "dots"},
    "6 x 384, length 1024": {"layers": 6, "hidden": 384, "heads": 6, "vocab": 2048, "length": 1024, "batch": 4},
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--recipe", type=Path)
    parser.add_argument("--vocab", type=int, default=50304, help="of the recipe's tokenizer")
    parser.add_argument("--only", help="one of the shapes")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        print(json.dumps(measure(json.loads(arguments.child))))
        return
    shapes = {str(arguments.recipe): {"recipe": str(arguments.recipe), "vocab": arguments.vocab}}
    if arguments.recipe is None:
        shapes = {name: shape for name, shape in SHAPES.items() if arguments.only in (None, name)}
    print(
        "| shape | predicted MB | measured MB | predicted / measured | estimated MB | micro-batch | remat | ms a step |"
    )
    print("|---|---|---|---|---|---|---|---|")
    for name, shape in shapes.items():
        command = [sys.executable, __file__, "--child", json.dumps(shape)]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        found = json.loads(done.stdout.splitlines()[-1])
        sizes = [found[what] / 1e6 for what in ("predicted", "measured", "estimated")]
        ratio = sizes[0] / sizes[1]
        choice = f"{found['micro_batch']} | {found['remat']} | {found['step'] * 1e3:.1f}"
        print(f"| {name} | {sizes[0]:.0f} | {sizes[1]:.0f} | {ratio:.3f} | {sizes[2]:.0f} | {choice} |", flush=True)


def measure(shape: dict[str, Any]) -> dict[str, Any]:
    import jax
    import jax.numpy as jnp
    import numpy as np

    from trainkit.data.batches.layout import longest_layout
    from trainkit.parallel import devices, mesh
    from trainkit.parallel.xla import prepare_gpus
    from trainkit.plan import IN_HOST_MEMORY, make_plan
    from trainkit.train.build import build
    from trainkit.train.prefetch import to_device
    from trainkit.train.program import fit_program
    from trainkit.train.state import without_frozen

    recipe = _recipe(shape)
    prepare_gpus()
    local = devices.local()
    plan = make_plan(recipe, devices=local, vocab_size=shape["vocab"], data=None)
    built, length = build(recipe, plan), recipe.data.sequence_length
    layout = longest_layout(recipe.data, batch_size=recipe.train.batch_size, vocab_size=shape["vocab"])
    program = fit_program(recipe, plan, built, {length: layout})
    plan = program.plan
    initial = jax.jit(built.initial, out_shardings=built.shardings).lower(jax.random.key(0)).compile()
    copy = jax.jit(lambda arrays: [jnp.copy(array) for array in arrays])
    saved = local.platform in IN_HOST_MEMORY  # elsewhere a checkpoint is written from the host's memory

    before = _held(local.platform)
    state = program.adopt(initial(jax.random.key(0)))
    snapshot = copy(_plain(without_frozen(state))) if saved else []
    random = np.random.default_rng(0)
    batches = [
        to_device(
            {
                name: random.integers(0, shape["vocab"], size).astype(dtype)
                if dtype.kind == "u"
                else np.ones(size, dtype)
                for name, (size, dtype) in layout.items()
            },
            accumulation=plan.batch.accumulation,
            sharding=mesh.batch_sharding(built.mesh),
        )
        for _ in range(STEPS)
    ]
    jax.block_until_ready((state, snapshot, batches))
    seconds = []
    with _peak(local.platform) as peak:
        for batch in batches:
            began = time.perf_counter()
            state, metrics = program(state, batch)
            jax.block_until_ready(metrics)
            seconds.append(time.perf_counter() - began)
    assert program.memory is not None, "the compiler does not tell"
    return {
        "predicted": program.memory.peak,
        "measured": peak() - before,
        "micro_batch": plan.batch.micro,
        "remat": plan.remat,
        "step": min(seconds),
        "estimated": plan.total_bytes,
        "snapshot": sum(leaf.nbytes for leaf in jax.tree.leaves(snapshot)),
    }


def _recipe(shape: dict[str, Any]) -> Any:
    from trainkit.recipe import Recipe
    from trainkit.recipe.toml.load import load

    if "recipe" in shape:
        return load(Path(shape["recipe"])).recipe
    batch = shape.get("batch", 16)
    return Recipe.model_validate(
        {
            "schema": 1,
            "model": {name: shape[name] for name in ("layers", "hidden", "heads")},
            "tokenizer": {"train": {"vocab_size": max(257, shape["vocab"])}},  # planned with is `vocab`
            "data": {"sequence_length": shape.get("length", 256), "train": ({"type": "python-stdlib"},)},
            "train": {
                "steps": 100,
                "batch_size": batch,
                "micro_batch_size": shape.get("micro", batch),
                "remat": shape.get("remat", "none"),
            },
            "optimizer": {"learning_rate": 1e-3},
        }
    )


def _plain(state: Any) -> list[Any]:
    """Its arrays, keys as their data."""
    import jax

    keys = jax.dtypes.prng_key
    return [jax.random.key_data(x) if jax.dtypes.issubdtype(x.dtype, keys) else x for x in jax.tree.leaves(state)]


def _status(what: str) -> int:
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(what))
    return int(line.split()[1]) * 1024


def _held(platform: str) -> int:
    return _status("VmRSS") if platform == "cpu" else _statistics()["bytes_in_use"]


@contextlib.contextmanager
def _peak(platform: str) -> Iterator[Callable[[], int]]:
    """Yield a function that returns the most bytes held during the block, once it has ended."""
    if platform == "cpu":
        Path("/proc/self/clear_refs").write_text("5")  # Linux: the peak begins again at what is held now
        yield lambda: _status("VmHWM")
        return
    most, ended = [_held(platform)], threading.Event()

    def look() -> None:
        while not ended.wait(0.0005):
            most[0] = max(most[0], _held(platform))

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield lambda: most[0]
    finally:
        ended.set()
        thread.join()


def _statistics() -> dict[str, int]:
    import jax

    return jax.devices()[0].memory_stats() or {}


if __name__ == "__main__":
    main()
