"""Settings of XLA: where compiled programs are kept, flags for GPUs, and deterministic kernels."""

from __future__ import annotations

import importlib.util
import mmap
import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from trainkit.errors import TrainkitError
from trainkit.parallel import nvidia

#: Excludes kernels whose result depends on the order of threads, and the choice of kernels by measured speed. Only GPUs
#: have such kernels.
DETERMINISTIC = "xla_gpu_deterministic_ops"


class Flag(NamedTuple):
    """A flag of XLA for a kind of machine, and why it is set there."""

    name: str
    value: str | None
    """None where XLA's own default is kept."""
    least_gpus: int
    """How many GPUs must train together."""
    reason: str


#: Decisions about flags that JAX recommends for GPUs (docs.jax.dev, "GPU performance tips"). None is measured yet; what
#: the first four change in a compiled step, scripts/bench/overlap.py shows. A flag that XLA_FLAGS names keeps the value
#: that it has there. CPUs and TPUs get none.
FLAGS = (
    Flag("xla_gpu_enable_latency_hiding_scheduler", "true", 2, "gathers parameters while layers before compute"),
    Flag("xla_gpu_enable_pipelined_all_gather", "true", 2, "gathers for the next layer of a scan, not for this one"),
    Flag("xla_gpu_enable_pipelined_reduce_scatter", "true", 2, "scatters the gradients of the layer before"),
    Flag("xla_gpu_enable_pipelined_all_reduce", "true", 2, "sums the gradients of the layer before"),
    Flag(
        "xla_gpu_triton_gemm_any", None, 1, "XLA measures Triton's products beside cuBLAS's and takes the faster ones"
    ),
    Flag(
        "xla_gpu_enable_command_buffer",
        None,
        1,
        "XLA records the launches of most kernels in command buffers by itself",
    ),
)


def set_flags(*, gpus: int) -> list[Flag]:
    """Add to `XLA_FLAGS` what suits so many GPUs that train together, and return it.

    Flags are omitted that `XLA_FLAGS` already names, or that an installed XLA does not know, which would end the
    process. Call it before jax opens a device.
    """
    given = os.environ.get("XLA_FLAGS", "")
    named = {word.removeprefix("--").partition("=")[0] for word in given.split()}
    wanted = [flag for flag in FLAGS if flag.value and gpus >= flag.least_gpus and flag.name not in named]
    chosen = [flag for flag in wanted if all(_knows_flag(library, flag.name) for library in _xla_libraries())]
    if chosen:
        os.environ["XLA_FLAGS"] = " ".join(filter(None, [given, *(f"--{flag.name}={flag.value}" for flag in chosen)]))
    return chosen


def prepare_gpus(*, processes: int = 1) -> list[str]:
    """Set what XLA needs to know about this machine's GPUs, and return each decision in words; none without GPUs.

    The memory is left to JAX where several `processes` train together, as they may see each other's GPUs. Call it
    before jax opens a device.

    Raises:
        TrainkitError: a GPU has no memory left.
    """
    gpus = nvidia.memory_of_gpus()
    messages = [f"--{flag.name}={flag.value}: {flag.reason}" for flag in set_flags(gpus=len(gpus) * processes)]
    if processes == 1 and (claim := nvidia.claim_memory(gpus)):
        messages.append(f"memory for XLA: {claim}")
    return messages


def use_compile_cache() -> None:
    """Keep compiled programs on the disk for later processes, small ones too (measured by `scripts/bench/start.py`)."""
    import jax  # not before `make_deterministic`

    if not os.environ.get("JAX_COMPILATION_CACHE_DIR"):
        base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        jax.config.update("jax_compilation_cache_dir", str(base / "trainkit" / "jax"))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)


def make_deterministic() -> str:
    """Set the flag for `run.deterministic`, and return all of `XLA_FLAGS`. Call it before jax opens a device.

    Raises:
        TrainkitError: an installed XLA does not know the flag, and would end the process without a message.
    """
    for library in _xla_libraries():
        if not _knows_flag(library, DETERMINISTIC):
            raise TrainkitError(
                f"{library.name} does not know --{DETERMINISTIC}; without it results on a GPU differ from run to run",
                where="run.deterministic",
                hint="install jax 0.10 or later and its plugin of the same version, or set it to false",
            )
    flags = f"{os.environ.get('XLA_FLAGS', '')} --{DETERMINISTIC}=true".strip()
    os.environ["XLA_FLAGS"] = flags
    return flags


def _xla_libraries() -> Iterator[Path]:
    """Yield the libraries that read `XLA_FLAGS`: that of jaxlib, and those of its GPU plugins."""
    for package, pattern in (("jaxlib", "libjax_common.so"), ("jax_plugins", "*/xla_*_plugin.so")):
        spec = importlib.util.find_spec(package)
        for directory in (spec.submodule_search_locations or ()) if spec else ():
            yield from Path(directory).glob(pattern)


def _knows_flag(library: Path, flag: str) -> bool:
    with library.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        return content.find(flag.encode()) >= 0
