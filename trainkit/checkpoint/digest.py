"""What arrays hold, in a few letters: computed where they lie, so that no model goes through the host to be known."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import jax
from jaxtyping import Array, UInt

from trainkit.checkpoint.manifest import Manifest
from trainkit.checkpoint.names import named_leaves
from trainkit.errors import TrainkitError
from trainkit.parallel.precision import fingerprint


def digest(tree: Any) -> str | None:
    """Hash of all arrays with their names, shapes and dtypes; None where there are none.

    Of each array it is the `fingerprint`, which is the same however it is shared among devices.
    """
    leaves = named_leaves(tree)
    if not leaves:
        return None
    sums = jax.device_get(_sums(leaves))
    told = [f"{name} {leaf.shape} {leaf.dtype} {sums[name].tolist()}" for name, leaf in sorted(leaves.items())]
    return hashlib.sha256("\n".join(told).encode()).hexdigest()[:16]


def check_base(manifest: Manifest, found: str | None, *, where: Path) -> None:
    """Raises TrainkitError where a checkpoint belongs on top of something else than the base of this digest."""
    if manifest.base != found:
        raise TrainkitError(
            f"the adapter was trained on top of another model: its checkpoint knows the base {manifest.base or 'none'},"
            f" found {found or 'none'}",
            where=str(where),
            hint="bring the pretrained weights back as they were, or begin a new run",
        )


@jax.jit
def _sums(leaves: dict[str, jax.Array]) -> dict[str, UInt[Array, 2]]:
    return {name: fingerprint(leaf) for name, leaf in leaves.items()}
