"""Copies of a state on its devices, to be written to the disk while training continues."""

from __future__ import annotations

from collections.abc import Iterator

import jax
import jax.numpy as jnp
import numpy as np

from trainkit.checkpoint.arrays import Box
from trainkit.checkpoint.restore import box_of


def plain(leaf: jax.Array) -> jax.Array:
    """Return an array that can be written: for PRNG keys, their data."""
    return jax.random.key_data(leaf) if jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key) else leaf


@jax.jit
def _copy(leaves: dict[str, jax.Array]) -> dict[str, jax.Array]:
    return {name: jnp.copy(plain(leaf)) for name, leaf in leaves.items()}


def _copy_into(old: dict[str, jax.Array], leaves: dict[str, jax.Array]) -> dict[str, jax.Array]:
    return _copy(leaves)


# XLA writes the copy into the buffers of `old`, which is donated
_recopied_jit = jax.jit(_copy_into, donate_argnums=0, keep_unused=True)


def copy_leaves(leaves: dict[str, jax.Array], old: dict[str, jax.Array]) -> dict[str, jax.Array]:
    """Return a copy on the devices, with keys as their data, that reuses the buffers of `old` if all of them fit."""
    fits = leaves.keys() == old.keys() and all(_is_alike(plain(leaves[name]), old[name]) for name in old)
    return _recopied_jit(old, leaves) if fits else _copy(leaves)


def _is_alike(a: jax.Array, b: jax.Array) -> bool:
    return a.shape == b.shape and a.dtype == b.dtype and a.sharding.is_equivalent_to(b.sharding, a.ndim)


def parts(snapshot: dict[str, jax.Array]) -> Iterator[tuple[str, Box, np.ndarray]]:
    """Yield each part of each leaf once, on the host. On a CPU these are views, which the caller must not keep."""
    for name, leaf in snapshot.items():
        for shard in leaf.addressable_shards:
            if shard.replica_id == 0:
                yield name, box_of(shard.index, leaf.shape), np.asarray(shard.data)
