"""`run.deterministic`: the XLA flags with which a program gives the same bits each time. Imports no jax."""

from __future__ import annotations

import importlib.util
import mmap
import os
from collections.abc import Iterator
from pathlib import Path

from trainkit.errors import TrainkitError

#: No kernels whose result depends on the order in which threads come, and none chosen by how fast it was just now. Only
#: GPUs have such kernels.
FLAG = "xla_gpu_deterministic_ops"


def make_deterministic() -> str:
    """Tell XLA, before jax opens a device in this process; what all of `XLA_FLAGS` is then.

    Raises:
        TrainkitError: an installed XLA does not know the flag: it would end the process without a word.
    """
    for library in _libraries():
        if not _knows(library):
            raise TrainkitError(
                f"{library.name} does not know --{FLAG}, without which results on a GPU differ from run to run",
                where="run.deterministic",
                hint="install a jax from 0.10 on and its plugin of the same version, or leave it false",
            )
    flags = f"{os.environ.get('XLA_FLAGS', '')} --{FLAG}=true".strip()
    os.environ["XLA_FLAGS"] = flags
    return flags


def _libraries() -> Iterator[Path]:
    """Those that read `XLA_FLAGS`: that of jaxlib, and those of its plugins for GPUs."""
    for package, pattern in (("jaxlib", "libjax_common.so"), ("jax_plugins", "*/xla_*_plugin.so")):
        spec = importlib.util.find_spec(package)
        for place in (spec.submodule_search_locations or ()) if spec else ():
            yield from Path(place).glob(pattern)


def _knows(library: Path) -> bool:
    with library.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        return content.find(FLAG.encode()) >= 0
