"""The weights that a run begins with: those of `[model] pretrained` and of `[adapter] pretrained`."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any
from zlib import crc32

import jax
import numpy as np
from jax.sharding import Mesh
from jaxtyping import PyTree

from trainkit.checkpoint.leaves import digest
from trainkit.checkpoint.manifest import Manifest
from trainkit.errors import TrainkitError
from trainkit.hub import find, peft
from trainkit.hub.load import check, load_params
from trainkit.models.adapters import Numbers, packed_leaves
from trainkit.models.nf4 import quantise, sources, without_sources
from trainkit.parallel import mesh
from trainkit.recipe import Recipe
from trainkit.recipe.families.sizes import Shape
from trainkit.recipe.families.transformer import Pretrained


def load_base(recipe: Recipe, shapes: PyTree, *, on: Mesh) -> PyTree | None:
    """Return the weights of `[model] pretrained`, laid out as `shapes` say; None where the model begins at random.

    The caller owns the arrays and may donate them. What the adapter keeps in 4 bit is packed leaf by leaf, so that one
    leaf at a time is in memory in full.

    Args:
        shapes: the model without its adapter; each array has the sharding that it shall have.

    Raises:
        TrainkitError: the weights cannot be found, fetched or read, or do not fit the recipe's model.
    """
    model = recipe.model
    if not isinstance(model, Pretrained) or model.pretrained is None:
        return None
    packed = packed_leaves(shapes, recipe.adapter)
    return load_params(
        find.weights(model.pretrained, model.revision),
        shapes,
        resize=model.resize_vocabulary,
        owned=True,
        made=lambda name, leaf: _packed(leaf, on) if name in packed else leaf,
        head=model.head,
        fresh_leaf=partial(_fresh_leaf, seed=recipe.run.seed, scale=recipe.language_model.initializer_range),
    )


def load_adapter(recipe: Recipe, shapes: PyTree) -> Numbers | None:
    """Return the arrays of `[adapter] pretrained` on the host; None where the adapter begins afresh or there is none.

    Args:
        shapes: the model with its adapter.

    Raises:
        TrainkitError: they cannot be found, fetched or read, or do not fit an adapter of the recipe's model.
    """
    adapter = recipe.adapter
    if adapter is None or adapter.pretrained is None:
        return None
    return peft.read(
        find.weights(adapter.pretrained, adapter.revision, kind=find.ADAPTER), shapes, recipe.language_model
    )


def check_weights(recipe: Recipe, base: PyTree, shapes: PyTree, *, resumed: bool) -> None:
    """Raise early what `load_base` and `load_adapter` would raise later.

    Files are fetched, and the headers of weights are read. A resumed run needs only the base of an adapter.

    Args:
        base: the model without its adapter.
        shapes: the model with its adapter.

    Raises:
        TrainkitError: as the two functions above.
    """
    model = recipe.model
    if not resumed:
        load_adapter(recipe, shapes)
    if isinstance(model, Pretrained) and model.pretrained is not None and (recipe.adapter is not None or not resumed):
        check(find.weights(model.pretrained, model.revision), base, resize=model.resize_vocabulary, head=model.head)


def _fresh_leaf(name: str, shape: Shape, *, seed: int, scale: float) -> np.ndarray:
    """Return what a part of a head begins as: zero biases, and matrices that are drawn from seed and name alone."""
    if name.endswith(".bias"):
        return np.zeros(shape, np.float32)
    return scale * np.random.default_rng([seed, crc32(name.encode())]).standard_normal(shape, np.float32)


def base_digest(frozen: PyTree, recipe: Recipe) -> str | None:
    """Return the digest by which a checkpoint of an adapter knows its base; None where the whole model is trained.

    For arrays in 4 bit it is that of the arrays they were packed from, so that an adapter trained on a GPU can be used
    without one. A random base is known by the packed arrays: its numbers are drawn again, and another program may round
    them differently in the last bit.
    """
    return digest(without_sources(frozen) if recipe.base_checkpoint is None else sources(frozen))


def check_same_base(manifest: Manifest, frozen: PyTree, *, where: Path) -> None:
    """Raise TrainkitError if the adapter in a checkpoint was trained on another base than `frozen`."""
    ours = digest(sources(frozen))
    # a random base, and any base in earlier versions, is known by its packed arrays
    if manifest.base not in (ours, digest(without_sources(frozen))):
        raise TrainkitError(
            "the adapter was trained on top of another model: its checkpoint records the base"
            f" {manifest.base or 'none'}, found {ours or 'none'}",
            where=str(where),
            hint="bring the pretrained weights back as they were, or begin a new run",
        )


def _packed(leaf: jax.Array, on: Mesh) -> Any:
    """Return the leaf in 4 bit; the leaf itself is deleted."""
    shapes = jax.eval_shape(quantise, leaf)
    packed = jax.jit(quantise, out_shardings=mesh.shardings(on, shapes))(leaf)
    jax.block_until_ready(packed)
    leaf.delete()
    return packed
