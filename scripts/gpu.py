"""Everything that only a GPU shows, in numbered parts of at most nine minutes, in order of value.

python scripts/gpu.py --list                        # the parts, and what each shows
python scripts/gpu.py --wheels wheels               # where there is a network: the packages that a GPU machine may lack
python scripts/gpu.py --part 1 --carried wheels     # on the GPU; writes gpu-results/part-1.json and .md
python scripts/gpu.py --part 3a --small             # the same on a CPU, as small as it gets

A part needs no other part. It needs jax with CUDA, equinox, optax, tensorstore and tokenizers; parts 3 and 5a also
torch and transformers, of this Python or of the one that `--torch` names. Of the packages in `--carried`, those that
this Python lacks are unpacked there and used. Results are written as they come: what ends a part early loses only the
rest.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import os
import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

from gpu_parts.correctness import check_bits, check_numbers
from gpu_parts.machine import watch_machine
from gpu_parts.memory import measure_memory, measure_qlora
from gpu_parts.place import LIMIT, ROOT, Part, Place
from gpu_parts.speed import (
    compare_inference,
    compare_kernels,
    compare_large,
    compare_llama,
    compare_small,
    compile_for_several,
    compile_kernels,
    measure_costs,
)

PARTS = {
    "1": Part(check_numbers, "attention, gradients, losses, fp8, NF4, experts and whole runs are right: pytest -m gpu"),
    "2": Part(check_bits, "two runs and one that was killed end with the same bits, also without `deterministic`"),
    "3a": Part(compare_small, "speed and memory of GPT-2 124M by torch.compile and by trainkit, 1k to 8k"),
    "3b": Part(compare_large, "the same of GPT-2 350M and 1.5B"),
    "3c": Part(compare_llama, "the same of Llama 1B, 1k to 8k"),
    "3d": Part(compare_kernels, "the time of trainkit's kernels of attention and experts, and of what replaces them"),
    "4a": Part(measure_memory, "the planned and the real peak of memory, and the largest model that fits"),
    "4b": Part(measure_qlora, "how much memory and time QLoRA of an 8B model takes"),
    "5a": Part(compare_inference, "generation and loading beside transformers and safetensors"),
    "5b": Part(measure_costs, "what checkpoints, the loop, a dashboard and statistics of every step cost"),
    "6": Part(watch_machine, "power and utilisation in the log, rows of a profile, and a step that runs out of memory"),
    "7": Part(
        compile_for_several, "transfers of four GPUs overlap with products in the step as it is compiled for them"
    ),
    "8": Part(compile_kernels, "trainkit's kernels compile for H100, A100 and RTX 4090: registers and shared memory"),
}
#: What a machine for numerical work may lack of what a trainer, its tests and its dashboard import; pip adds what these
#: need.
CARRIED = (
    "pydantic", "tomli", "typer", "rich", "jaxtyping", "jinja2", "fsspec", "huggingface-hub", "nvidia-ml-py", "textual",
    "textual-image", "pytest", "pytest-timeout", "pytest-xdist", "hypothesis",
)  # fmt: skip
#: Large ones that such a machine has, or that nothing in the parts imports.
NOT_CARRIED = re.compile(r"(numpy|pillow|hf_xet)-")


def main() -> int:
    """Do what the arguments say; return 1 if a row is not what it should be."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--list", action="store_true", help="show the parts")
    what.add_argument("--wheels", type=Path, metavar="DIR", help="download packages for Python 3.12 on Linux x86-64")
    what.add_argument("--part", choices=PARTS)
    parser.add_argument("--small", action="store_true", help="on the CPU, in a small form")
    parser.add_argument("--carried", type=Path, metavar="DIR", help="wheels that --wheels downloaded")
    parser.add_argument("--torch", metavar="PYTHON", default=sys.executable)
    parser.add_argument("--out", type=Path, default=Path("gpu-results"), metavar="DIR")
    parser.add_argument("--limit", type=float, default=LIMIT, metavar="SECONDS", help="after which a part ends")
    arguments = parser.parse_args()
    if arguments.list:
        print("\n".join(f"{name:>2}  {part.shows}" for name, part in PARTS.items()))
        return 0
    if arguments.wheels:
        return download(arguments.wheels)
    if arguments.carried:
        use(arguments.carried)
    settle(small=arguments.small)
    return Place(arguments.part, arguments.out, arguments.limit, arguments.torch, arguments.small).run(
        PARTS[arguments.part]
    )


def download(directory: Path) -> int:
    """Download the wheels into a directory; return pip's exit code."""
    locked = {each["name"]: each["version"] for each in tomllib.loads((ROOT / "uv.lock").read_text())["package"]}
    wanted = [f"{name}=={locked[name]}" for name in CARRIED]
    platforms = ["manylinux_2_28_x86_64", "manylinux_2_17_x86_64", "manylinux2014_x86_64"]
    command = ["python3", "-m", "pip", "download", "--quiet", "--only-binary=:all:", "--python-version=3.12"]
    command += ["--implementation=cp", *(f"--platform={name}" for name in platforms), f"--dest={directory}"]
    code = subprocess.run([*command, *wanted]).returncode
    for wheel in directory.glob("*.whl"):
        if NOT_CARRIED.match(wheel.name):
            wheel.unlink()
    size = sum(wheel.stat().st_size for wheel in directory.glob("*.whl"))
    print(f"{len(list(directory.glob('*.whl')))} wheels, {size / 1e6:.1f} MB in {directory}")
    return code


def use(directory: Path) -> None:
    """Let this process and those that it starts import the carried packages that this Python lacks."""
    unpacked = (directory / "unpacked").resolve()
    for wheel in sorted(directory.glob("*.whl")):
        name = wheel.name.partition("-")[0]
        try:
            importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            zipfile.ZipFile(wheel).extractall(unpacked)
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(unpacked), os.environ.get("PYTHONPATH")]))
    sys.path.append(str(unpacked))


def settle(*, small: bool) -> None:
    """Let this process and those that parts start find trainkit, and compute on one GPU or, if `small`, on the CPU."""
    sys.path.append(str(ROOT))
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    if small:
        os.environ |= {"CUDA_VISIBLE_DEVICES": "", "JAX_PLATFORMS": "cpu"}
    else:
        os.environ.setdefault("CUDA_VISIBLE_DEVICES", "0")


if __name__ == "__main__":
    sys.exit(main())
