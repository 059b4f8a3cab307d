"""Trainkit's own kernels: whether XLA and Triton compile them for a GPU that is not here, and how fast they are on one.

python scripts/bench/kernels.py --compile              # for three described GPUs; needs what overlap.py needs
python scripts/bench/kernels.py --compile --only H100  # every feature of attention, width and dtype, for one of them
python scripts/bench/kernels.py                        # on a GPU: milliseconds of attention and experts, with gradients
python scripts/bench/kernels.py --small                # the same on a CPU, interpreted: it only shows that it runs

The rows of attention are packed, with documents of `--document` positions: `pallas` skips what other documents hold,
`cudnn` gets a bias of length x length. For each kernel of a compiled program the table shows the registers per thread
and the bytes that a thread spills to slow memory for want of registers, as ptxas reports them, and the shared memory of
a block: XLA refuses a kernel that needs more than the GPU has. The kernels of attention are the forward pass, the
gradients of keys and the gradients of queries.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

from overlap import H100, ROOT

#: Compute capability (major, minor), and bytes of shared memory of a block and of a core.
GPUS = {"H100": (9, 0, 232448, 233472), "A100": (8, 0, 166912, 167936), "RTX 4090": (8, 9, 101376, 102400)}
HEADS, GROUPS = 16, 4


class Variant(NamedTuple):
    """Settings of attention that need a kernel of their own; windows, segments and causality are numbers that kernels
    read."""

    width: int
    dtype: str = "bfloat16"
    softcap: float | None = None
    sloped: bool = False
    groups: int = GROUPS

    @property
    def name(self) -> str:
        """Return the settings as text."""
        more = [f"cap {self.softcap:.0f}"] if self.softcap else []
        more += ["slopes"] if self.sloped else []
        more += [] if self.groups < HEADS else ["no groups"]
        return ", ".join([f"attention, heads of {self.width}", self.dtype, *more])


#: A single variant; for each size of blocks, the variant that needs most; and all variants.
VARIANTS = {
    "one": [Variant(64)],
    "largest": [Variant(width, softcap=30.0, sloped=True) for width in (64, 128, 256)],
    "all": [
        *(
            Variant(width, "bfloat16", cap, on)
            for width in (64, 128, 256)
            for cap in (None, 30.0)
            for on in (False, True)
        ),
        *(Variant(width, softcap=30.0) for width in (80, 96)),
        *(Variant(width, groups=HEADS) for width in (64, 128, 256)),
        *(Variant(width, "float16", 30.0, True) for width in (64, 128, 256)),
    ],
}


class Kernel(NamedTuple):
    """What a compiled kernel needs: registers and spilled bytes per thread, bytes of shared memory per block."""

    registers: int
    spilled: int
    shared: int


def kernels_of(dump: Path, ptxas: str, architecture: str) -> Iterator[Kernel]:
    """Yield what the kernels of Triton need in a program that XLA dumped, in the order in which they run."""
    (thunks,) = dump.glob("*.thunk_sequence.txt")
    sources = {text.partition(".entry ")[2].partition("(")[0]: text for text in map(Path.read_text, dump.glob("*.ptx"))}
    for name, shared in re.findall(r" (\w*_kernel\w*) grid: .* shared_memory: (\d+) bytes", thunks.read_text()):
        source = dump / "kernel.txt"
        source.write_text(sources[name])
        command = [ptxas, "-v", f"-arch={architecture}", str(source), "-o", os.devnull]
        said = subprocess.run(command, capture_output=True, text=True, check=True).stderr
        registers = re.search(r"Used (\d+) registers", said)
        assert registers is not None, said
        yield Kernel(int(registers[1]), sum(map(int, re.findall(r"(\d+) bytes spill", said))), int(shared))


def programs(shape: Callable[..., Any], variants: list[Variant]) -> Iterator[tuple[str, Any, list[Any]]]:
    """Yield the name, function and shapes of arguments of each program."""
    import jax
    import jax.numpy as jnp

    from trainkit.models.flash_attention import flash_attention
    from trainkit.models.grouped_product import gradient, multiply

    def attention(q: Any, k: Any, v: Any, segments: Any, slopes: Any, softcap: float | None) -> Any:
        y = flash_attention(q, k, v, segments, slopes, scale=0.1, softcap=softcap, window=300)
        return y.astype(jnp.float32).sum()

    def experts(x: Any, weight: Any, dy: Any, expert: Any) -> Any:
        dx = multiply(dy, weight, expert, transposed=True)
        return multiply(x, weight, expert), dx, gradient(x, dy, expert, len(weight))

    for variant in variants:
        rows = [shape((2, 1024, n, variant.width), variant.dtype) for n in (HEADS, variant.groups, variant.groups)]
        others = [shape((2, 1024), jnp.int32), shape((HEADS,), jnp.float32) if variant.sloped else None]
        function = jax.grad(partial(attention, softcap=variant.softcap), argnums=(0, 1, 2))
        yield variant.name, function, [*rows, *others]
    blocks = [shape(size, jnp.bfloat16) for size in ((64, 128, 1024), (8, 1024, 512), (64, 128, 512))]
    yield "experts", experts, [*blocks, shape((64,), jnp.int32)]


def compile_for(gpu: str, variants: list[Variant], dump: Path) -> dict[str, tuple[str, list[Kernel]]]:
    """Return for each program its kernels, and how long its compilation took or why it failed.

    Args:
        dump: the directory into which XLA writes what it compiles.
    """
    import jax
    from jax.experimental import topologies
    from jax.sharding import SingleDeviceSharding

    major, minor, of_block, of_core = GPUS[gpu]
    described = H100.replace("{ major: 9 }", f"{{ major: {major} minor: {minor} }}")
    described = described.replace("232448", str(of_block)).replace("233472", str(of_core))
    device = topologies.get_topology_desc(platform="cuda", target_config=described, topology="1x1x1").devices[0]
    shape = partial(jax.ShapeDtypeStruct, sharding=SingleDeviceSharding(device))
    architecture, ptxas = f"sm_{major}{minor}" + ("a" if major == 9 else ""), shutil.which("ptxas")
    if ptxas is None:
        raise SystemExit("there is no ptxas: install the extra cuda12 or cuda13")
    found: dict[str, tuple[str, list[Kernel]]] = {}
    for name, function, arguments in programs(shape, variants):
        for file in dump.iterdir():
            file.unlink()
        start = time.monotonic()
        try:
            jax.jit(function).lower(*arguments).compile()
            took = f"{time.monotonic() - start:.0f} s"
            found[name] = (took, list(kernels_of(dump, ptxas, architecture)))
        except Exception as error:  # whatever a compiler raises is the result
            found[name] = (f"{type(error).__name__}: {str(error)[:200]}", [])
    return found


def compile_all(gpus: list[str], variants: str) -> int:
    """Print the kernels of the programs compiled for each GPU; return 1 if a program is not compiled.

    Args:
        variants: a key of `VARIANTS`.
    """
    tools = [str(tool.parent) for root in sys.path for tool in Path(root or ".").glob("nvidia/*/bin/ptxas")]
    bad = False
    print(
        "| GPU | kernels | compiled in | registers | spilled bytes | KiB of shared memory |\n|---|---|---|---|---|---|"
    )
    for gpu in gpus:
        with tempfile.TemporaryDirectory(prefix="trainkit-kernels-") as dump:
            settings = {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": f"--xla_gpu_autotune_level=0 --xla_dump_to={dump}"}
            settings |= {"JAX_ENABLE_COMPILATION_CACHE": "false", "PATH": os.pathsep.join([*tools, os.environ["PATH"]])}
            command = [sys.executable, __file__, "--child", gpu, "--dump", dump, "--variants", variants]
            done = subprocess.run(command, env=os.environ | settings, capture_output=True, text=True)
        if done.returncode:
            print(done.stderr, file=sys.stderr)
            return 1
        for name, (took, kernels) in json.loads(done.stdout.splitlines()[-1]).items():
            needs = [Kernel(*kernel) for kernel in kernels]
            bad |= not needs
            columns = [[k.registers for k in needs], [k.spilled for k in needs], [k.shared >> 10 for k in needs]]
            cells = [gpu, name, took, *(", ".join(map(str, column)) for column in columns)]
            print(f"| {' | '.join(cells)} |", flush=True)
    return int(bad)


def time_attention(length: int, document: int, rows: int, *, small: bool) -> None:
    """Print milliseconds of attention and its gradients by each implementation, for packed rows."""
    import jax
    import jax.numpy as jnp

    from trainkit.models.attention import AttentionSpec, causal_attention

    segments = jnp.broadcast_to(jnp.arange(length, dtype=jnp.int32) // document + 1, (rows, length))
    counts = (2, 1, 1) if small else (HEADS, GROUPS, GROUPS)
    cases = ((64, None, None), (128, None, None), (128, 1024, None), (256, 1024, 50.0))
    print("| attention, heads of | window | soft cap | implementation | ms |\n|---|---|---|---|---|")
    for width, window, softcap in ((16, 8, None), (16, None, 50.0)) if small else cases:
        keys = jax.random.split(jax.random.key(0), 3)
        q, k, v = (
            jax.random.normal(key, (rows, length, heads, width), jnp.bfloat16)
            for key, heads in zip(keys, counts, strict=True)
        )
        # cuDNN runs on GPUs only
        for name in ("pallas", "xla" if small else "cudnn") if softcap is None else ("pallas", "blockwise"):
            spec = AttentionSpec(window, softcap)
            attend = partial(causal_attention, segments_BT=segments, implementation=name, spec=spec)
            step = jax.jit(jax.grad(lambda *x, f=attend: f(*x).astype(jnp.float32).sum(), argnums=(0, 1, 2)))
            took = milliseconds(partial(step, q, k, v), times=1 if small else 10)
            print(f"| {width} | {window or '-'} | {softcap or '-'} | {name} | {took:.2f} |", flush=True)


def time_experts(*, small: bool) -> None:
    """Print milliseconds of the products with experts of a layer: by the kernel, and one block after another."""
    import jax
    import jax.numpy as jnp

    from trainkit.models import grouped_product, moe

    experts, blocks, m, d, f = (2, 3, 16, 32, 16) if small else (64, 256, 128, 2048, 1024)
    keys = jax.random.split(jax.random.key(0), 3)
    sizes = ((blocks, m, d), (experts, d, f), (blocks, m, f))
    x, weight, dy = (jax.random.normal(key, size, jnp.bfloat16) for key, size in zip(keys, sizes, strict=True))
    expert = jnp.sort(jax.random.randint(jax.random.key(1), (blocks,), 0, experts))

    def by_kernel(x: Any, weight: Any, dy: Any, expert: Any) -> Any:
        run = {"interpret": small}
        dx = grouped_product.multiply(dy, weight, expert, transposed=True, **run)
        dw = grouped_product.gradient(x, dy, expert, len(weight), **run)
        return grouped_product.multiply(x, weight, expert, **run), dx, dw

    def one_by_one(x: Any, weight: Any, dy: Any, expert: Any) -> Any:
        y, backward = jax.vjp(lambda x, weight: moe.plain_blocked_product(x, weight, expert), x, weight)
        return y, *backward(dy)

    with patch.object(grouped_product, "can_multiply", lambda *_: False):  # as where the kernel does not work
        plain = jax.jit(one_by_one).lower(x, weight, dy, expert).compile()
    print("\n| experts, matrices of | blocks of | implementation | ms |\n|---|---|---|---|")
    for name, function in (("pallas", jax.jit(by_kernel)), ("one by one", plain)):
        took = milliseconds(partial(function, x, weight, dy, expert), times=1 if small else 10)
        print(f"| {experts} x {d} x {f} | {blocks} x {m} | {name} | {took:.2f} |", flush=True)


def milliseconds(call: Callable[[], Any], *, times: int) -> float:
    """Return the least time of a call that has been compiled."""
    import jax

    jax.block_until_ready(call())
    found = []
    for _ in range(times):
        start = time.perf_counter()
        jax.block_until_ready(call())
        found.append(time.perf_counter() - start)
    return 1000 * min(found)


def main() -> int:
    """Time or compile the kernels; return 1 if one is not compiled."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--compile", action="store_true", help="compile for GPUs that this machine need not have")
    parser.add_argument("--only", choices=GPUS, help="the GPU to compile for, with every variant of the kernels")
    parser.add_argument("--small", action="store_true", help="small sizes, interpreted where there is no GPU")
    parser.add_argument("--length", type=int, default=8192)
    parser.add_argument("--document", type=int, default=1024)
    parser.add_argument("--rows", type=int, default=4)
    parser.add_argument("--child", choices=GPUS, help=argparse.SUPPRESS)
    parser.add_argument("--dump", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--variants", choices=VARIANTS, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    sys.path.insert(0, str(ROOT))
    if arguments.child:
        print(json.dumps(compile_for(arguments.child, VARIANTS[arguments.variants], arguments.dump)))
        return 0
    if arguments.compile:
        if arguments.small:
            return compile_all(["H100"], "one")
        return compile_all([arguments.only], "all") if arguments.only else compile_all(list(GPUS), "largest")
    length, document, rows = (32, 8, 1) if arguments.small else (arguments.length, arguments.document, arguments.rows)
    time_attention(length, document, rows, small=arguments.small)
    time_experts(small=arguments.small)
    return 0


if __name__ == "__main__":
    sys.exit(main())
