"""What arrays hold, in a few letters: computed where they lie, so that no model goes through the host to be known."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, UInt

from trainkit.checkpoint.manifest import Manifest
from trainkit.checkpoint.names import named_leaves
from trainkit.errors import TrainkitError
from trainkit.parallel.precision import mixed, places

#: Two hashes of 32 bits for each array, each begun with one of these: any two odd numbers do.
_SEEDS = (0x9E3779B1, 0x7FEB352D)
_UNSIGNED = {1: jnp.uint8, 2: jnp.uint16, 4: jnp.uint32}


def digest(tree: Any) -> str | None:
    """Hash of all arrays with their names, shapes and dtypes; None where there are none.

    Of each array the hashes of its numbers at their places are added up, which is the same however it is shared among
    devices. It tells one model from another; it is no protection against somebody who means harm.
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
    return {name: _sum(leaf) for name, leaf in leaves.items()}


def _sum(leaf: jax.Array) -> UInt[Array, 2]:
    bits = jax.lax.bitcast_convert_type(leaf, _UNSIGNED[leaf.dtype.itemsize]).astype(jnp.uint32)
    sums = (mixed(mixed(places(leaf.shape) ^ jnp.uint32(seed)) ^ bits).sum(dtype=jnp.uint32) for seed in _SEEDS)
    return jnp.stack(list(sums))
