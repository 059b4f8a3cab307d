"""`manifest.json`: what a checkpoint holds and where it came from. A directory without one is not a checkpoint."""

from __future__ import annotations

import os
import platform
import sys
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from trainkit import files
from trainkit.errors import FAILED, TrainkitError
from trainkit.parallel.xla import DETERMINISTIC, FLAGS

NAME = "manifest.json"
FORMAT = 1

#: In ascending order of how long it is kept. A command or a signal asks for a `requested` checkpoint.
KINDS = ("rolling", "requested", "permanent", "final")
Kind = Literal["rolling", "requested", "permanent", "final"]
#: Environment variables, besides `XLA_FLAGS`, that change bits: the threads of XLA on a CPU, and how jax computes.
SETTINGS = (
    "NPROC", "JAX_DEFAULT_MATMUL_PRECISION", "JAX_DEFAULT_PRNG_IMPL", "JAX_DISABLE_MOST_OPTIMIZATIONS",
    "JAX_ENABLE_X64", "JAX_THREEFRY_PARTITIONABLE", "NVIDIA_TF32_OVERRIDE",
)  # fmt: skip


class DamagedCheckpoint(TrainkitError):
    """A checkpoint has lost or changed data on the disk. An older checkpoint may be whole."""

    def __init__(self, problem: str, *, where: str) -> None:
        hint = "the checkpoint before it may be whole: `trainkit verify RUN` checks them all"
        super().__init__(problem, where=where, hint=hint, exit_code=FAILED)


class Leaf(BaseModel):
    """An array on disk. A PRNG key is stored as its key data, of this shape and dtype, and the name of its PRNG."""

    model_config = ConfigDict(frozen=True)
    shape: tuple[int, ...]
    dtype: str
    kind: Literal["array", "key"] = "array"
    impl: str | None = None


class Manifest(BaseModel):
    """What a checkpoint holds and where it came from."""

    # metrics that are not finite become "NaN" and "Infinity", because JSON has no such numbers
    model_config = ConfigDict(frozen=True, ser_json_inf_nan="strings")
    format: int
    step: int
    """Completed updates."""
    kind: Kind
    created: float
    """Unix seconds."""
    attempt: int
    recipe: str
    """Fingerprint of the recipe."""
    data: str
    """Fingerprint of the ledger."""
    base: str | None = None
    """Digest of the frozen parameters, which are not saved; None where there are none."""
    began_with: str | None = None
    """Digest of the parameters of another run that its run began with (`run.parameters_from`); None if it did not."""
    aim_run: str | None
    metrics: dict[str, float]
    versions: dict[str, str]
    machine: dict[str, str] = {}
    """What else may change bits (see `machine`); empty where an earlier version wrote the checkpoint."""
    devices: list[str]
    """The kind of each device that held a part of the state."""
    mesh: dict[str, int]
    """Axis name to size; empty where the state lay on one device without a mesh."""
    bytes: int
    leaves: dict[str, Leaf]
    tokenizer: str | None = None
    """Checksum of the run's `tokenizer.json`; None where there is none, or an earlier version wrote the checkpoint."""
    log: tuple[int, str] | None = None
    """The bytes of the run's log when the checkpoint was begun, and their checksum; None as for `tokenizer`."""
    left_out: tuple[int, ...] = ()
    """The steps up to its own that a rollback left out."""
    checksums: dict[str, str] = {}
    """Of each array, by its name, and of `recipe.toml`; empty where an earlier version wrote the checkpoint."""


def machine() -> dict[str, str]:
    """Return what may change bits besides versions and devices: processor, cores, and settings of XLA and jax."""
    ours = {DETERMINISTIC, *(flag.name for flag in FLAGS)}  # they follow from the recipe and the devices
    flags = [flag for flag in os.environ.get("XLA_FLAGS", "").split() if flag.strip("-").partition("=")[0] not in ours]
    cores = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count()
    settings = {name: os.environ.get(name, "") for name in SETTINGS}
    return {"CPU": _processor(), "cores": str(cores), "XLA_FLAGS": " ".join(flags), **settings}


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(errors="replace").splitlines()
    except OSError:
        return platform.machine()
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.machine())


def read(directory: Path) -> Manifest:
    """Return the manifest of a checkpoint, which is as it was written. Those of earlier versions have no checksum.

    Raises:
        DamagedCheckpoint: it is missing or unreadable.
        TrainkitError: another version of trainkit wrote it in another format.
    """
    path = directory / NAME
    try:
        text = path.read_text(encoding="utf-8")
        is_sealed = files.is_sealed(text)
        manifest = Manifest.model_validate_json(text)
    except FileNotFoundError:
        raise DamagedCheckpoint("it has no manifest.json", where=str(directory)) from None
    except ValidationError as error:
        found = "; ".join(f"{'.'.join(map(str, e['loc'])) or 'text'}: {e['msg']}" for e in error.errors()[:3])
        raise DamagedCheckpoint(f"it is not a manifest: {found}", where=str(path)) from None
    except files.Damaged as error:
        raise DamagedCheckpoint(str(error), where=str(path)) from None
    except (OSError, UnicodeDecodeError) as error:
        raise DamagedCheckpoint(f"it cannot be read: {error}", where=str(path)) from error
    if strange := [name for name in manifest.leaves if not _is_name(name)]:
        raise DamagedCheckpoint(f"an array is named {strange[0]!r:.60}, which is no name of a leaf", where=str(path))
    if manifest.checksums and not is_sealed:
        raise DamagedCheckpoint("it has lost its checksum", where=str(path))
    if manifest.format != FORMAT:
        problem = f"it has format {manifest.format}, this trainkit reads format {FORMAT}"
        raise TrainkitError(problem, where=str(path), hint="use the trainkit that wrote it", exit_code=FAILED)
    if directory.name.isdecimal() and manifest.step != int(directory.name):
        raise DamagedCheckpoint(f"it says step {manifest.step}", where=str(path))
    return manifest


def _is_name(name: str) -> bool:
    """Return whether a leaf may have this name, which is also that of its directory: it is no path."""
    return name.isprintable() and name not in ("", ".", "..") and "/" not in name and len(name.encode()) <= 255


def write(directory: Path, manifest: Manifest) -> None:
    """Write or replace the manifest atomically, with its checksum, and flush it to the disk. Raises OSError."""
    files.write(directory / NAME, files.seal(manifest.model_dump_json(indent=1)))
