"""Whether what several GPUs send each other overlaps with products, in the step as XLA compiles it. Needs no GPU.

python scripts/bench/overlap.py                      # FSDP and ZeRO-1 on four H100, without and with trainkit's flags
python scripts/bench/overlap.py --only fsdp --flags xla_gpu_enable_latency_hiding_scheduler=true

Needs JAX's CUDA plugin and NVIDIA's ptxas, which the extra cuda12 or cuda13 installs, but neither a driver nor a GPU:
XLA compiles for a described one, with attention by plain products and without measuring kernels. Its program is a
schedule. A transfer begins at an instruction `…-start` and must have arrived at `…-done`; the products that are listed
between the two are what it can hide behind. How much they hide can only be measured on several GPUs.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
GPUS, VOCAB, LENGTH = 4, 8192, 1024
#: `parallel` of the recipe.
LAYOUTS = {"fsdp": {"fsdp": GPUS}, "zero1": {"zero1": True}}
#: The sizes of the model, and those of `--small`.
USUAL = {"layers": 4, "hidden": 1024, "heads": 8, "kv_heads": 4, "intermediate": 2816}
SMALL = {"layers": 2, "hidden": 128, "heads": 2, "kv_heads": 1, "intermediate": 256}
#: An H100 as XLA's compiler describes it.
H100 = """
gpu_device_info {
  threads_per_block_limit: 1024  threads_per_warp: 32  shared_memory_per_block: 49152  shared_memory_per_core: 233472
  threads_per_core_limit: 2048  core_count: 132  fpus_per_core: 128  block_dim_limit_x: 2147483647
  block_dim_limit_y: 65535  block_dim_limit_z: 65535  memory_bandwidth: 3352320000000  l2_cache_size: 52428800
  clock_rate_ghz: 1.98  device_memory_size: 84942979072  shared_memory_per_block_optin: 232448
  cuda_compute_capability { major: 9 }  registers_per_core_limit: 65536  registers_per_block_limit: 65536
}
platform_name: "CUDA"
dnn_version_info { major: 9 minor: 10 }
runtime_version { major: 12 minor: 9 }
device_description_str: "NVIDIA H100 80GB HBM3"
"""
#: What the line of an instruction has if it is a matrix product, of a library or of Triton.
PRODUCT = re.compile(r'custom_call_target="__cublas|"kind":"__triton_(nested_)?gemm')


class Transfer(NamedTuple):
    """A transfer of one computation of a program."""

    kind: str
    shape: str
    """The beginning of the type of what arrives."""
    loop: bool
    """Whether it is in the body of a loop, such as that over layers."""
    products: int
    """How many matrix products are between its start and its end."""


def transfers(program: str) -> Iterator[Transfer]:
    """Yield the transfers of a scheduled program that have a start and an end."""
    bodies = set(re.findall(r"\bbody=%([\w.\-]+)", program))
    began: dict[str, int] = {}
    computation, products = "", 0
    for line in program.splitlines():
        if opening := re.match(r"(?:ENTRY )?%([\w.\-]+) \(.*\{$", line):
            computation, products, began = opening[1], 0, {}
            continue
        found = re.match(r"\s+(?:ROOT )?%([\w.\-]+) = (.*?) ([\w\-]+)\((?:%([\w.\-]+))?", line)
        if found is None:
            continue
        name, shape, operation, operand = found.groups()
        if operation.endswith("-start"):
            began[name] = products
        elif operation.endswith("-done") and operand in began:
            kind = operation.removesuffix("-done")
            yield Transfer(kind, shape[:40], computation in bodies, products - began.pop(operand))
        else:
            products += bool(PRODUCT.search(line))


def compile_step(layout: str, *, small: bool) -> dict[str, object]:
    """Return the transfers of a Llama's step on four described GPUs, and the bytes that it needs besides its state."""
    import jax
    from jax.experimental import topologies

    from trainkit.data.batches.layout import longest_layout
    from trainkit.parallel import devices
    from trainkit.plan import Devices, make_plan
    from trainkit.recipe import Recipe
    from trainkit.train.build import build
    from trainkit.train.program import compile_program

    described = list(topologies.get_topology_desc(platform="cuda", target_config=H100, topology=f"1x1x{GPUS}").devices)
    kind = described[0].device_kind
    # what trainkit asks of a device, answered for one that is not there
    jax.devices, jax.default_backend = lambda *_: described, lambda: "gpu"
    devices.capabilities = lambda: devices.Capabilities("gpu", kind, (9, 0))
    devices.choose_attention = lambda *_: devices.AttentionChoice("xla", "cuDNN is not needed")
    length = 128 if small else LENGTH
    recipe = Recipe.model_validate(
        {
            "schema": 1,
            "model": {"type": "llama", **(SMALL if small else USUAL)},
            "tokenizer": {"train": {"vocab_size": VOCAB}},
            "data": {"sequence_length": length, "train": ({"type": "python-stdlib"},)},
            "train": {"steps": 100, "batch_size": 16, "micro_batch_size": 2, "remat": "none"},
            "optimizer": {"learning_rate": 1e-3},
            "parallel": LAYOUTS[layout],
        }
    )
    four = Devices(count=GPUS, platform="gpu", kind=kind, memory_bytes=80 << 30)
    plan = make_plan(recipe, devices=four, vocab_size=VOCAB, data=None)
    batches = {length: longest_layout(recipe.data, batch_size=16, vocab_size=VOCAB)}
    program = compile_program(build(recipe, plan), plan, batches)
    (compiled,) = program.by_shapes.values()
    assert program.memory is not None
    return {"transfers": list(transfers(compiled.as_text())), "temporary": sum(program.memory.temporary.values())}


def described_step(layout: str, flags: str, *, small: bool) -> dict[str, object]:
    """Return the same from a process of its own, which reads `flags` as it starts."""
    path = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    tools = [str(tool.parent) for root in sys.path for tool in Path(root or ".").glob("nvidia/*/bin/ptxas")]
    environment = os.environ | {
        "JAX_PLATFORMS": "cpu",
        "JAX_ENABLE_COMPILATION_CACHE": "false",
        "XLA_FLAGS": f"--xla_gpu_autotune_level=0 {flags}".strip(),
        "PYTHONPATH": os.pathsep.join(path),
        "PATH": os.pathsep.join([*tools, os.environ.get("PATH", "")]),
    }
    command = [sys.executable, __file__, "--child", layout, *(["--small"] if small else [])]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(done.stderr.strip().splitlines()[-1])
    return json.loads(done.stdout.splitlines()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=LAYOUTS)
    parser.add_argument("--flags", nargs="*", help="instead of none, and of trainkit's")
    parser.add_argument("--small", action="store_true", help="a small model and trainkit's flags, to show that it runs")
    parser.add_argument("--child", choices=LAYOUTS, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        print(json.dumps(compile_step(arguments.child, small=arguments.small)))
        return
    sys.path.insert(0, str(ROOT))
    from trainkit.parallel.xla import FLAGS

    ours = " ".join(f"--{flag.name}={flag.value}" for flag in FLAGS if flag.value is not None)
    choices = {"none": "", "trainkit's": ours}
    if arguments.small:
        del choices["none"]
    if arguments.flags is not None:
        choices = {"given": " ".join(f"--{flag}" for flag in arguments.flags)}
    print("| layout | flags | transfers in loops | with products between start and end | products | temporary MB |")
    print("|---|---|---|---|---|---|")
    for layout in LAYOUTS if arguments.only is None else [arguments.only]:
        for name, flags in choices.items():
            found = described_step(layout, flags, small=arguments.small)
            inside = [Transfer(*each) for each in found["transfers"]]  # type: ignore[attr-defined]
            inside = [each for each in inside if each.loop]
            hidden = [each for each in inside if each.products]
            products = ", ".join(f"{each.kind} {each.products}" for each in hidden) or "-"
            size = found["temporary"] / 1e6  # type: ignore[operator]
            print(f"| {layout} | {name} | {len(inside)} | {len(hidden)} | {products} | {size:.0f} |", flush=True)


if __name__ == "__main__":
    main()
