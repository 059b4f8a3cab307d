"""What a checkpoint was made from and with: the contents of its manifest."""

from __future__ import annotations

import platform
import time
from dataclasses import dataclass, field
from importlib.metadata import version
from typing import Any

import jax
from jax.sharding import NamedSharding

from trainkit import __version__
from trainkit.checkpoint.leaves import leaf_of
from trainkit.checkpoint.manifest import FORMAT, Kind, Manifest, machine
from trainkit.checkpoint.snapshot import plain


@dataclass(frozen=True, kw_only=True)
class Provenance:
    """What a manifest records besides the state."""

    recipe: str
    """Fingerprint of the recipe."""
    data: str
    """Fingerprint of the ledger."""
    attempt: int
    base: str | None = None
    """Digest of the frozen parameters, which are not saved; None where there are none."""
    began_with: str | None = None
    """Digest of the parameters of another run that the run began with; None if it did not."""
    aim_run: str | None = None
    recipe_text: str = ""
    """The resolved recipe, which the checkpoint keeps; empty where there is none."""
    tokenizer: str | None = None
    """Checksum of the run's tokenizer."""
    log: tuple[int, str] | None = None
    """The bytes of the run's log, and their checksum."""
    left_out: tuple[int, ...] = ()
    """The steps of the run that a rollback left out."""
    metrics: dict[str, float] = field(default_factory=dict)


def make_manifest(leaves: dict[str, jax.Array], *, step: int, kind: Kind, provenance: Provenance) -> Manifest:
    """Return the manifest of a checkpoint of these leaves after `step` updates."""
    assert leaves, "the state has leaves"
    strange = [name for name, leaf in leaves.items() if not isinstance(leaf, jax.Array)]
    assert not strange, f"not arrays: {strange}"
    stored = {name: leaf_of(leaf) for name, leaf in leaves.items()}
    shardings = [leaf.sharding for leaf in leaves.values()]
    devices: set[jax.Device] = set().union(*(sharding.device_set for sharding in shardings))
    meshes = [dict(sharding.mesh.shape) for sharding in shardings if isinstance(sharding, NamedSharding)]
    return Manifest(
        format=FORMAT,
        step=step,
        kind=kind,
        created=time.time(),
        attempt=provenance.attempt,
        recipe=provenance.recipe,
        data=provenance.data,
        base=provenance.base,
        began_with=provenance.began_with,
        tokenizer=provenance.tokenizer,
        log=provenance.log,
        left_out=tuple(number for number in provenance.left_out if number <= step),
        aim_run=provenance.aim_run,
        metrics=provenance.metrics,
        versions=versions_of(),
        machine=machine(),
        devices=sorted(device.device_kind for device in devices),
        mesh=meshes[0] if meshes else {},
        bytes=size_of(leaves),
        leaves=stored,
    )


def versions_of() -> dict[str, str]:
    """Return the versions of Python, trainkit and the packages that compute and store."""
    packages = ("jax", "jaxlib", "numpy", "tensorstore")
    return {"trainkit": __version__, "python": platform.python_version()} | {name: version(name) for name in packages}


def size_of(state: Any) -> int:
    """Return the bytes of a checkpoint of a pytree of arrays, however they are sharded."""
    return sum(plain(leaf).nbytes for leaf in jax.tree.leaves(state))
