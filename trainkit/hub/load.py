"""From a checkpoint's directory to the arrays of a model, leaf by leaf, each part once and straight to its device."""

from __future__ import annotations

import math
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, cast

import jax
import numpy as np
from jax.sharding import SingleDeviceSharding
from jaxtyping import PyTree

from trainkit.hub.config import family_of, head_of, read_config, spec_of
from trainkit.hub.copying import Scratch, fresh
from trainkit.hub.source import TensorSource
from trainkit.models.build import leaf_names
from trainkit.recipe.families.model import TOKENS, Head
from trainkit.recipe.families.sizes import Shape
from trainkit.recipe.families.transformer import Transformer

#: Pieces of tensors that are copied at once.
COPIES = 4
_ARRAYS = (jax.ShapeDtypeStruct, jax.Array, np.ndarray)


def read_spec(directory: Path) -> Transformer:
    """The spec of the model in a checkpoint's directory, with its head. Raises TrainkitError."""
    config, where = read_config(directory), str(directory / "config.json")
    family = family_of(config, where=where)
    return cast(Transformer, spec_of(config, family, where=where)).with_head(head_of(config, family))


def check(directory: Path, shapes: PyTree, *, resize: bool = False, head: Head = TOKENS) -> None:
    """Whether `load_params` finds what it needs. Of the weights nothing is read but what they are.

    Raises:
        TrainkitError: as there, but for a tied embedding that is there in two versions.
    """
    TensorSource(directory, head).check(_arrays(shapes), resize=resize)


def load_params(
    directory: Path,
    shapes: PyTree,
    shardings: PyTree | None = None,
    dtype: Any = None,
    *,
    resize: bool = False,
    owned: bool = False,
    made: Callable[[str, jax.Array], Any] = lambda _, leaf: leaf,
    head: Head = TOKENS,
    fresh_leaf: Callable[[str, Shape], np.ndarray] | None = None,
) -> PyTree:
    """The weights of a checkpoint in the structure of `shapes`, a model or the arrays of one.

    Each leaf is put together in host memory, a part for each device, and handed over before the next is looked at.

    Args:
        shapes: a pytree of arrays or `jax.ShapeDtypeStruct`, named as a model's leaves; what is no array stays.
        shardings: where each leaf goes; where None, as its shape says or, if it does not, to the first device.
        dtype: that all leaves get; as `shapes` says where None.
        resize: whether embeddings may have other rows than the checkpoint: the first are taken, further ones are
            their mean (Hewitt 2021).
        owned: whether they are to be donated. Where not, jax on a CPU takes over the memory that a leaf was put
            together in, which cannot be donated, and is spared a copy.
        made: what stands in the place of a leaf, of its name and itself; made before the next leaf is read.
        head: that of the model.
        fresh_leaf: what a leaf of a head that the checkpoint does not have begins as, of its name and shape; where
            None, it must be there.

    Raises:
        TrainkitError: the checkpoint is damaged, of another family, or its tensors are not those of `shapes`.
    """
    leaves, structure = jax.tree.flatten(shapes)
    where = jax.tree.leaves(shardings) if shardings is not None else [None] * len(leaves)
    names = jax.tree.leaves(leaf_names(shapes))
    source = TensorSource(directory, head)
    source.check(_arrays(shapes), resize=resize)
    source.check_tied()
    asked = [i for i, leaf in enumerate(leaves) if isinstance(leaf, _ARRAYS)]
    kinds = {i: np.dtype(dtype or leaves[i].dtype) for i in asked}
    largest = max((math.prod(leaves[i].shape) * kinds[i].itemsize for i in asked), default=0)
    scratch = Scratch(largest, parts=len(jax.local_devices()))
    with ThreadPoolExecutor(COPIES, "weights") as pool:
        for i in asked:
            to = where[i] or getattr(leaves[i], "sharding", None) or SingleDeviceSharding(jax.devices()[0])
            kept = not owned and next(iter(to.device_set)).platform == "cpu"
            if source.begins_at_random(names[i]):
                assert fresh_leaf is not None, names[i]
                new = fresh_leaf(names[i], leaves[i].shape).astype(kinds[i])
                leaves[i] = made(names[i], _place(new.__getitem__, leaves[i].shape, to))
                continue
            read = source.reader(names[i], leaves[i].shape, kinds[i], pool, fresh if kept else scratch)
            leaves[i] = made(names[i], _place(read, leaves[i].shape, to))
            scratch.clear()
    return jax.tree.unflatten(structure, leaves)


def _place(read: Callable[[Any], np.ndarray], shape: Shape, sharding: Any) -> jax.Array:
    array = jax.make_array_from_callback(shape, sharding, read)
    array.block_until_ready()  # what it was made of is not needed any more
    return array


def _arrays(shapes: PyTree) -> dict[str, Shape]:
    """The shapes of those that are arrays, by name."""
    named = zip(jax.tree.leaves(leaf_names(shapes)), jax.tree.leaves(shapes), strict=True)
    return {name: leaf.shape for name, leaf in named if isinstance(leaf, _ARRAYS)}
