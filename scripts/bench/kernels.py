"""Trainkit's own kernels: whether XLA and Triton compile them for a GPU that is not here, and how fast they are on one.

python scripts/bench/kernels.py --compile         # for H100, A100 and RTX 4090; needs no GPU, but what overlap.py needs
python scripts/bench/kernels.py                   # on a GPU: milliseconds of attention and its gradients

The rows of attention are packed, with documents of `--document` positions: `pallas` skips what other documents hold,
`cudnn` gets a bias of length x length.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

from overlap import H100, ROOT

#: Compute capability, shared memory of a block and of a core.
GPUS = {"H100": (9, 0, 232448, 233472), "A100": (8, 0, 166912, 167936), "RTX 4090": (8, 9, 101376, 102400)}
WIDTHS, HEADS, GROUPS = (64, 128, 256), 16, 4


def compile_for(gpu: str) -> dict[str, str]:
    """Return for each kernel how long its compilation took, or why there was none."""
    import jax
    import jax.numpy as jnp
    from jax.experimental import topologies
    from jax.sharding import SingleDeviceSharding

    from trainkit.models.flash_attention import flash_attention
    from trainkit.models.grouped_product import gradient, multiply

    major, minor, of_block, of_core = GPUS[gpu]
    described = H100.replace("{ major: 9 }", f"{{ major: {major} minor: {minor} }}")
    described = described.replace("232448", str(of_block)).replace("233472", str(of_core))
    device = topologies.get_topology_desc(platform="cuda", target_config=described, topology="1x1x1").devices[0]
    shape = partial(jax.ShapeDtypeStruct, sharding=SingleDeviceSharding(device))

    def attention(q: Any, k: Any, v: Any, segments: Any) -> Any:
        y = flash_attention(q, k, v, segments, None, scale=0.1, softcap=30.0, window=300)
        return y.astype(jnp.float32).sum()

    def experts(x: Any, weight: Any, dy: Any, expert: Any) -> Any:
        dx = multiply(dy, weight, expert, transposed=True)
        return multiply(x, weight, expert), dx, gradient(x, dy, expert, len(weight))

    programs: dict[str, tuple[Any, list[Any]]] = {}
    for width in WIDTHS:
        rows = [shape((2, 1024, heads, width), jnp.bfloat16) for heads in (HEADS, GROUPS, GROUPS)]
        programs[f"attention, heads of {width}"] = (
            jax.grad(attention, argnums=(0, 1, 2)),
            [*rows, shape((2, 1024), jnp.int32)],
        )
    blocks = [shape(size, jnp.bfloat16) for size in ((64, 128, 1024), (8, 1024, 512), (64, 128, 512))]
    programs["experts"] = (experts, [*blocks, shape((64,), jnp.int32)])
    found = {}
    for name, (function, arguments) in programs.items():
        start = time.monotonic()
        try:
            jax.jit(function).lower(*arguments).compile()
            found[name] = f"{time.monotonic() - start:.0f} s"
        except Exception as error:  # whatever a compiler raises is the result
            found[name] = f"{type(error).__name__}: {str(error)[:200]}"
    return found


def time_attention(length: int, document: int, rows: int) -> None:
    """Print milliseconds of attention and its gradients by each implementation, for packed rows."""
    import jax
    import jax.numpy as jnp

    from trainkit.models.attention import AttentionSpec, causal_attention

    segments = jnp.broadcast_to(jnp.arange(length, dtype=jnp.int32) // document + 1, (rows, length))
    print("| heads of | window | soft cap | implementation | ms |\n|---|---|---|---|---|")
    for width, window, softcap in ((64, None, None), (128, None, None), (128, 1024, None), (256, 1024, 50.0)):
        keys = jax.random.split(jax.random.key(0), 3)
        q, k, v = (
            jax.random.normal(key, (rows, length, heads, width), jnp.bfloat16)
            for key, heads in zip(keys, (HEADS, GROUPS, GROUPS), strict=True)
        )
        for name in ("pallas", "cudnn") if softcap is None else ("pallas", "blockwise"):
            spec = AttentionSpec(window, softcap)
            attend = partial(causal_attention, segments_BT=segments, implementation=name, spec=spec)
            step = jax.jit(jax.grad(lambda *x, f=attend: f(*x).astype(jnp.float32).sum(), argnums=(0, 1, 2)))
            jax.block_until_ready(step(q, k, v))
            times = []
            for _ in range(10):
                start = time.perf_counter()
                jax.block_until_ready(step(q, k, v))
                times.append(time.perf_counter() - start)
            print(f"| {width} | {window or '-'} | {softcap or '-'} | {name} | {1000 * min(times):.2f} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--compile", action="store_true", help="for GPUs that are only described")
    parser.add_argument("--length", type=int, default=8192)
    parser.add_argument("--document", type=int, default=1024)
    parser.add_argument("--rows", type=int, default=4)
    parser.add_argument("--child", choices=GPUS, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    sys.path.insert(0, str(ROOT))
    if arguments.child:
        print(json.dumps(compile_for(arguments.child)))
    elif arguments.compile:
        tools = [str(tool.parent) for root in sys.path for tool in Path(root or ".").glob("nvidia/*/bin/ptxas")]
        settings = {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": "--xla_gpu_autotune_level=0"}
        settings |= {"JAX_ENABLE_COMPILATION_CACHE": "false", "PATH": os.pathsep.join([*tools, os.environ["PATH"]])}
        print("| GPU | kernels | compiled in |\n|---|---|---|")
        for gpu in GPUS:
            command = [sys.executable, __file__, "--child", gpu]
            done = subprocess.run(command, env=os.environ | settings, capture_output=True, text=True, check=True)
            for name, result in json.loads(done.stdout.splitlines()[-1]).items():
                print(f"| {gpu} | {name} | {result} |", flush=True)
    else:
        time_attention(arguments.length, arguments.document, arguments.rows)


if __name__ == "__main__":
    main()
