"""A leaf is named by its path in the pytree: `params.blocks.qkv.weight`, `optimizer.1.mu.wte`."""

from __future__ import annotations

import re
from typing import Any

import jax

_SAFE = re.compile(r"[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*")


def named_leaves(tree: Any, *, under: str = "") -> dict[str, Any]:
    """Every leaf of a pytree by its name, in the order of the flattened tree.

    Names are attribute names, dictionary keys and indices joined by dots, so they serve as names of directories too.
    `under` is put in front of each where the tree is a part of a greater one; a tree that is a leaf is named `under`.
    """
    pairs, _ = jax.tree_util.tree_flatten_with_path(tree)
    named = {_join(under, jax.tree_util.keystr(path, simple=True, separator=".")): leaf for path, leaf in pairs}
    # two names that differ by case only are one directory on some file systems
    assert len({name.lower() for name in named}) == len(pairs), "two leaves of the state have the same name"
    unsafe = [name for name in named if not _SAFE.fullmatch(name)]
    assert not unsafe, f"not usable as names of directories: {unsafe}"
    return named


def _join(under: str, path: str) -> str:
    return ".".join(part for part in (under, path) if part)
