"""Settings of XLA: where compiled programs are kept, and deterministic kernels."""

from __future__ import annotations

import importlib.util
import mmap
import os
from collections.abc import Iterator
from pathlib import Path

from trainkit.errors import TrainkitError

#: Excludes kernels whose result depends on the order of threads, and the choice of kernels by measured speed. Only GPUs
#: have such kernels.
DETERMINISTIC = "xla_gpu_deterministic_ops"


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
        if not _knows_flag(library):
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


def _knows_flag(library: Path) -> bool:
    with library.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        return content.find(DETERMINISTIC.encode()) >= 0
