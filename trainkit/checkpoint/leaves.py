"""The leaves of a pytree: their names, how they are stored, and a digest of what they hold.

A leaf is named by its path in the pytree: `params.blocks.qkv.weight`, `optimizer.1.mu.wte`.
"""

from __future__ import annotations

import hashlib
import re
from typing import Any, TypeAlias

import jax
from jaxtyping import Array, UInt

from trainkit.checkpoint.manifest import Leaf
from trainkit.parallel.precision import fingerprint

#: Describes an array by its shape, dtype and sharding; its contents do not matter.
Template: TypeAlias = jax.Array | jax.ShapeDtypeStruct

_SAFE = re.compile(r"[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*")


def named_leaves(tree: Any, *, under: str = "") -> dict[str, Any]:
    """Return every leaf of a pytree by its name, in the order of the flattened tree.

    Names are attribute names, dictionary keys and indices joined by dots, so they also serve as names of directories.

    Args:
        under: the name of the whole tree, if it is part of a larger one; it precedes the name of each leaf.
    """
    pairs, _ = jax.tree_util.tree_flatten_with_path(tree)
    named = {_join(under, jax.tree_util.keystr(path, simple=True, separator=".")): leaf for path, leaf in pairs}
    # some file systems take two names that differ by case only for one directory
    assert len({name.lower() for name in named}) == len(pairs), "two leaves of the state have the same name"
    unsafe = [name for name in named if not _SAFE.fullmatch(name)]
    assert not unsafe, f"not usable as names of directories: {unsafe}"
    return named


def leaf_of(template: Template) -> Leaf:
    """Return how an array is stored: a PRNG key as its key data."""
    if jax.dtypes.issubdtype(template.dtype, jax.dtypes.prng_key):
        impl = []

        def trace(key: jax.Array) -> jax.Array:
            impl.append(str(jax.random.key_impl(key)))  # works for a tracer, not for a ShapeDtypeStruct
            return jax.random.key_data(key)

        data = jax.eval_shape(trace, template)
        return Leaf(shape=data.shape, dtype=str(data.dtype), kind="key", impl=impl[0])
    return Leaf(shape=template.shape, dtype=str(template.dtype))


def digest(tree: Any) -> str | None:
    """Return a hash of all arrays with their names, shapes and dtypes; None if there are no arrays.

    It is computed on the devices, and is the same however the arrays are sharded.
    """
    leaves = named_leaves(tree)
    if not leaves:
        return None
    sums = jax.device_get(_fingerprints(leaves))
    lines = [f"{name} {leaf.shape} {leaf.dtype} {sums[name].tolist()}" for name, leaf in sorted(leaves.items())]
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16]


@jax.jit
def _fingerprints(leaves: dict[str, jax.Array]) -> dict[str, UInt[Array, 2]]:
    return {name: fingerprint(leaf) for name, leaf in leaves.items()}


def _join(under: str, path: str) -> str:
    return ".".join(part for part in (under, path) if part)
