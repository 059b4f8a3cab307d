"""The same training steps by torch loops over transformers, by bare JAX and by trainkit: speed, memory, loss curves.

uv run python scripts/bench/step.py cpu                        # float32, two shapes of 4,096 tokens a step
uv run python scripts/bench/step.py bf16                       # trainkit in bfloat16 and in float32, on a CPU
uv run python scripts/bench/step.py gpu                        # bfloat16, every shape; none takes more than 9 minutes
uv run python scripts/bench/step.py gpu --only gpt2-124m-1024  # one of them; a name's beginning chooses several
uv run python scripts/bench/step.py memory                     # what the logits of a large vocabulary add to a step
uv run python scripts/bench/step.py checkpoint                 # what one checkpoint every ten minutes costs

`--torch PYTHON` names the Python that has torch and transformers, if this one has not. Contenders are processes that
stay warm and give one sample each in turn, the first of a round changing; all have the same first weights, batches and
update rule, so that their loss curves coincide. On a shared machine only ratios mean anything.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass, replace
from typing import Any

from paired import ROOT
from step_contenders import DIRECTORY, Entry, Result, compare, work_of
from step_work import Shape

#: `transformers` is torch with the loss that the model makes itself, as its Trainer has it.
KINDS = ("torch", "transformers", "jax", "trainkit")
#: The losses that are printed, by step.
SHOWN = (1, 2, 5, 10, 20, 50, 100)
#: A checkpoint's cost is told as a share of this.
BETWEEN_CHECKPOINTS = 600.0


def gpt2(layers: int, hidden: int, heads: int, *, vocab: int = 50_304, length: int = 1024, tokens: int = 8192) -> Shape:
    return Shape(
        vocab=vocab,
        layers=layers,
        hidden=hidden,
        heads=heads,
        kv_heads=heads,
        intermediate=4 * hidden,
        length=length,
        sequences=tokens // length,
    )


def llama_1b(length: int) -> Shape:
    """Of the form of Llama 3.2 1B (16 x 2048, 8 key heads, a vocabulary of 128k)."""
    return Shape(
        family="llama",
        vocab=128_256,
        layers=16,
        hidden=2048,
        heads=32,
        kv_heads=8,
        intermediate=8192,
        length=length,
        sequences=8192 // length,
    )


ON_CPU = {
    "6x384-v65": gpt2(6, 384, 6, vocab=65, length=256, tokens=4096),
    "4x256-v50304": gpt2(4, 256, 4, length=256, tokens=4096),
}
#: Only to show that everything runs; used only if `--only` names them.
TINY = {
    "tiny-gpt2": gpt2(1, 32, 2, vocab=65, length=32, tokens=64),
    "tiny-llama": Shape(
        family="llama",
        vocab=65,
        layers=1,
        hidden=32,
        heads=2,
        kv_heads=1,
        intermediate=64,
        length=32,
        sequences=2,
    ),
}
ON_GPU = {
    **{f"gpt2-124m-{length}": gpt2(12, 768, 12, length=length, tokens=16_384) for length in (1024, 2048, 4096, 8192)},
    "gpt2-350m-1024": gpt2(24, 1024, 16),
    "gpt2-1.5b-1024": gpt2(48, 1600, 25),
    **{f"llama-1b-{length}": llama_1b(length) for length in (1024, 2048, 4096, 8192)},
}
#: Of models with more parameters, three do not fit into the memory of one GPU: the contenders come one after the other.
AT_ONCE = 200e6
#: Between which `memory` looks for the logits.
VOCABULARIES = (1_024, 131_072)
#: Bytes a parameter, all in float32: read for the forward and the backward pass; its gradient written and read; itself
#: and two moments read and written.
STATE_TRAFFIC = 4 * (2 + 2 + 2 * 3)


@dataclass(frozen=True)
class Limits:
    """Of the device, a second."""

    flops: float
    bytes: float


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["cpu", "gpu", "bf16", "memory", "checkpoint"])
    parser.add_argument("--only", metavar="NAME", help="shapes whose name begins so")
    parser.add_argument("--torch", metavar="PYTHON", default=sys.executable, help="a Python with torch, transformers")
    parser.add_argument("--contenders", nargs="+", choices=KINDS, help="all where not given; on a GPU no transformers")
    parser.add_argument(
        "--set", dest="overrides", action="append", default=[], metavar="KEY=VALUE", help="in trainkit's recipe"
    )
    parser.add_argument(
        "--torch-backend", default="inductor", help="backend of torch.compile; aot_eager needs no C++ compiler"
    )
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=3.0, help="a sample is as many steps as take so long")
    parser.add_argument("--curve", type=int, default=20, help="steps of the loss curve, which also warm up")
    parser.add_argument(
        "--apart", action="store_true", help="run one contender after the other, which large models on a GPU need"
    )
    parser.add_argument("--limit", type=float, default=520.0, help="seconds for a shape; what is not done then fails")
    parser.add_argument("--on-gpu", action="store_true", help="memory and checkpoint: there rather than on the CPU")
    arguments = parser.parse_args()
    on_gpu = arguments.what == "gpu" or arguments.on_gpu
    usual = ON_GPU if on_gpu else ON_CPU
    shapes = {n: s for n, s in usual.items() if n.startswith(arguments.only or "")}
    shapes |= {n: s for n, s in TINY.items() if n == arguments.only}
    if not shapes:
        parser.error(f"--only {arguments.only}: there are {', '.join({**usual, **TINY})}")
    settle_environment(on_gpu=on_gpu)
    print(f"# {time.strftime('%Y-%m-%d')}, {machine(on_gpu)}, Python {sys.version.split()[0]}\n", flush=True)
    match arguments.what:
        case "memory":
            return memory(shapes, arguments, on_gpu=on_gpu)
        case "checkpoint":
            return checkpoint(shapes, arguments, on_gpu=on_gpu)
        case _:
            return all_shapes(shapes, arguments, on_gpu=on_gpu)


def settle_environment(*, on_gpu: bool) -> None:
    """For all contenders alike: one GPU, or none though there be one."""
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    if on_gpu:
        os.environ.setdefault("CUDA_VISIBLE_DEVICES", "0")
    else:
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
        os.environ["JAX_PLATFORMS"] = "cpu"


def machine(on_gpu: bool) -> str:
    told = f"{platform.machine()}, {len(os.sched_getaffinity(0))} cores"
    if not on_gpu:
        return told
    query = ["nvidia-smi", "--query-gpu=name,memory.total,driver_version", "--format=csv,noheader", "--id=0"]
    try:
        return f"{told}, {subprocess.run(query, check=True, capture_output=True, text=True).stdout.strip()}"
    except (OSError, subprocess.CalledProcessError) as error:
        return f"{told}, no answer from nvidia-smi ({error})"


# -------------------------------------------------------------------------------------------------------------- reports
def all_shapes(shapes: dict[str, Shape], arguments: argparse.Namespace, *, on_gpu: bool) -> int:
    """Compare, shape by shape; 1 where a contender has failed."""
    limits = probe(compute="bfloat16" if on_gpu else "float32")
    failed = False
    for name, shape in shapes.items():
        results = compare(
            shape,
            entries_of(arguments),
            arguments,
            on_gpu=on_gpu,
            apart=arguments.apart or (on_gpu and shape.parameters > AT_ONCE),
        )
        report(name, shape, results, limits)
        failed |= any(result.error for result in results.values())
    return int(failed)


def entries_of(arguments: argparse.Namespace) -> list[Entry]:
    """Whom the others are compared with comes first."""
    if arguments.what == "bf16":
        entries = [Entry("trainkit", "float32"), Entry("trainkit", "bfloat16"), Entry("torch", "bfloat16")]
    else:
        compute = "bfloat16" if arguments.what == "gpu" else "float32"
        entries = [Entry(kind, compute) for kind in KINDS]
    usual = [kind for kind in KINDS if arguments.what == "cpu" or kind != "transformers"]
    return [entry for entry in entries if entry.kind in (arguments.contenders or usual)]


def probe(*, compute: str) -> Limits:
    """What the device can do: its peak where that is known, else what it reaches when measured; told at once."""
    from trainkit.parallel import hardware

    command = [sys.executable, str(DIRECTORY / "step_jax.py"), "probe"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    if done.returncode:
        raise SystemExit(f"the device could not be measured:\n{done.stderr}")
    measured = json.loads(done.stdout.splitlines()[-1])
    kind = measured["kind"]
    flops, bandwidth = hardware.peak_flops(kind, compute), hardware.peak_bandwidth(kind)
    print(
        f"{kind}: a matrix product reaches {_giga(measured['flops'])}FLOP/s of {_giga(flops)}FLOP/s at most,"
        f" a copy {_giga(measured['bytes'])}B/s of {_giga(bandwidth)}B/s.\n",
        flush=True,
    )
    return Limits(flops or measured["flops"], bandwidth or measured["bytes"])


def report(name: str, shape: Shape, results: dict[Entry, Result], limits: Limits) -> None:
    """Markdown rows: the first contender that gave samples is what the others are compared with."""
    base = next((result for result in results.values() if result.samples), None)
    against = next((str(entry) for entry, result in results.items() if result is base), "")
    ours = [result.ready for entry, result in results.items() if entry.kind == "trainkit" and result.ready]
    flops = ours[0]["facts"]["flops_per_token"] if ours else 0
    print(f"## {name}: {shape.family} {shape.layers} x {shape.hidden}, vocabulary {shape.vocab:,},", end=" ")
    print(f"{shape.sequences} x {shape.length} tokens a step, {shape.parameters / 1e6:.1f} M parameters\n")
    print(f"| contender | ms a step | tokens/s | speed / {against} | peak memory | / {against} | first step | MFU |")
    print("|---|---|---|---|---|---|---|---|")
    for entry, result in results.items():
        if not result.samples:
            print(f"| {entry} | not measured: {_cell(result.error)} | | | | | | |")
            continue
        assert base is not None
        step, peak, theirs = statistics.median(result.seconds), result.samples[-1]["peak"], base.samples[-1]["peak"]
        pairs = [b / a for a, b in zip(result.seconds, base.seconds, strict=False)]
        rate = shape.tokens / step
        mfu = f"{flops * rate / limits.flops:.1%}" if flops else "n/a"
        print(
            f"| {entry} | {step * 1e3:.1f} | {rate:,.0f}"
            f" | {statistics.median(pairs):.2f} [{min(pairs):.2f} to {max(pairs):.2f}]"
            f" | {peak / 1e6:,.0f} MB | {peak / theirs:.2f} | {result.ready['first_step']:.1f} s | {mfu} |"
        )
        if result.error:
            print(f"| {entry} | then failed: {_cell(result.error)} | | | | | | |")
    print()
    if flops:
        work, traffic = flops * shape.tokens, STATE_TRAFFIC * shape.parameters
        print(
            f"Floors: {work / limits.flops * 1e3:.1f} ms for the {_giga(work)}FLOP of a step,"
            f" {traffic / limits.bytes * 1e3:.1f} ms for the {_mb(traffic)} that parameters, gradients and moments"
            " take through memory at least. The first step is from the start of the process, nothing compiled before.\n"
        )
    for entry, result in results.items():
        if result.ready:
            print(f"- {entry}: " + ", ".join(f"{key} {value}" for key, value in result.ready["facts"].items()))
    print()
    curves({entry: result.ready["losses"] for entry, result in results.items() if result.ready})


def curves(losses: dict[Entry, list[float]]) -> None:
    """Show that the work is the same."""
    if not losses:
        return
    first, *_ = losses.values()
    shown = [step for step in SHOWN if step <= len(first)]
    print("| loss at step | " + " | ".join(map(str, shown)) + f" | furthest from {next(iter(losses))} |")
    print("|---|" + "---|" * (len(shown) + 1))
    for entry, curve in losses.items():
        apart = max(abs(a - b) for a, b in zip(curve, first, strict=True))
        print(f"| {entry} | " + " | ".join(f"{curve[step - 1]:.4f}" for step in shown) + f" | {apart:.1e} |")
    print(flush=True)


def _cell(text: str | None) -> str:
    return " ".join((text or "no sample").replace("|", "/").split())[:300]


# ------------------------------------------------------------------------------------------------ memory and checkpoint
def memory(shapes: dict[str, Shape], arguments: argparse.Namespace, *, on_gpu: bool) -> int:
    """What a step of trainkit's takes beside its arguments, at a small and at a large vocabulary."""
    small, large = VOCABULARIES
    print(f"| shape | temporary at {small:,} | {large:,} | more | embedding's gradient | rest | a block | all logits |")
    print("|---|---|---|---|---|---|---|---|")
    for name, shape in shapes.items():
        few, many = (_measured("memory", replace(shape, vocab=vocab), arguments, on_gpu) for vocab in VOCABULARIES)
        more = many["temporary"] - few["temporary"]
        gradient = 4 * (many["parameters"] - few["parameters"])
        sizes = (few["temporary"], many["temporary"], more, gradient, more - gradient, many["block"])
        print(f"| {name} | {' | '.join(map(_mb, sizes))} | {_mb(4 * shape.tokens * large)} |", flush=True)
    return 0


def checkpoint(shapes: dict[str, Shape], arguments: argparse.Namespace, *, on_gpu: bool) -> int:
    """What saving costs a run of trainkit's."""
    print("| shape | checkpoint | on disk after | a step | it costs | of ten minutes |")
    print("|---|---|---|---|---|---|")
    for name, shape in shapes.items():
        got = _measured("checkpoint", shape, arguments, on_gpu, str(arguments.rounds))
        cost, low, high = statistics.median(got["costs"]), min(got["costs"]), max(got["costs"])
        print(
            f"| {name} | {_mb(got['bytes'])} | {got['writing']:.1f} s | {got['step'] * 1e3:.0f} ms"
            f" | {cost:.2f} s [{low:.2f} to {high:.2f}] | {cost / BETWEEN_CHECKPOINTS:.2%} |",
            flush=True,
        )
    return 0


def _measured(what: str, shape: Shape, arguments: argparse.Namespace, on_gpu: bool, *more: str) -> dict[str, Any]:
    work = work_of(shape, "bfloat16" if on_gpu else "float32", arguments, on_gpu=on_gpu)
    command = [sys.executable, str(DIRECTORY / "step_trainkit.py"), what, work.to_json(), *more]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{what}: trainkit's step could not be measured:\n{done.stderr}")
    return json.loads(done.stdout.splitlines()[-1])


def _giga(rate: float | None) -> str:
    return "an unknown number of G" if rate is None else f"{rate / 1e9:,.0f} G"


def _mb(size: float) -> str:
    return f"{size / 1e6:,.0f} MB"


if __name__ == "__main__":
    sys.exit(main())
