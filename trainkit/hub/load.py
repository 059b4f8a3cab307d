"""The weights that a run begins with, loaded leaf by leaf, each part once and directly to its device."""

from __future__ import annotations

import math
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, cast
from zlib import crc32

import jax
import numpy as np
from jax.sharding import Mesh, SingleDeviceSharding
from jaxtyping import PyTree

from trainkit.checkpoint.leaves import digest
from trainkit.checkpoint.manifest import Manifest
from trainkit.errors import TrainkitError
from trainkit.hub import find, peft
from trainkit.hub.config import family_of, head_of, read_config, spec_of
from trainkit.hub.copying import Scratch, fresh
from trainkit.hub.run_parameters import load_parameters
from trainkit.hub.source import TensorSource
from trainkit.models.adapters import Numbers, packed_leaves
from trainkit.models.build import leaf_names
from trainkit.models.nf4 import quantise, sources, without_sources
from trainkit.parallel import mesh
from trainkit.recipe import Recipe
from trainkit.recipe.families.model import TOKENS, Head
from trainkit.recipe.families.sizes import Shape
from trainkit.recipe.families.transformer import Pretrained, Transformer

#: Pieces of tensors that are copied in parallel.
COPIES = 4
_ARRAYS = (jax.ShapeDtypeStruct, jax.Array, np.ndarray)


def read_spec(directory: Path) -> Transformer:
    """Return the spec of the model in a checkpoint's directory, with its head. Raises TrainkitError."""
    config, where = read_config(directory), str(directory / "config.json")
    family = family_of(config, where=where)
    return cast(Transformer, spec_of(config, family, where=where)).with_head(head_of(config, family))


def check(directory: Path, shapes: PyTree, *, resize: bool = False, head: Head = TOKENS) -> None:
    """Check that `load_params` would find what it needs, by reading only the headers of the weights.

    Raises:
        TrainkitError: as `load_params`, except for a tied embedding that is stored twice with different numbers.
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
    """Return the weights of a checkpoint in the structure of `shapes`, a model or its arrays.

    Each leaf is assembled in host memory, one part per device, and transferred before the next leaf is read.

    Args:
        shapes: a pytree of arrays or `jax.ShapeDtypeStruct`, named as a model's leaves; other leaves are unchanged.
        shardings: where each leaf goes; if None, as its shape says or else to the first device.
        dtype: of all leaves; if None, as in `shapes`.
        resize: whether embeddings may have another number of rows than the checkpoint: missing rows are the mean of the
            others (Hewitt 2021).
        owned: whether the arrays will be donated. If not, jax on a CPU uses the host memory of a leaf without a copy,
            and such memory cannot be donated.
        made: called with the name and value of each leaf before the next is read; returns its replacement.
        head: the model's head.
        fresh_leaf: called with the name and shape of a leaf of the head that the checkpoint lacks; returns its initial
            values. If None, such a leaf is an error.

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
            if source.is_zero(names[i]) or source.begins_at_random(names[i]):
                if source.is_zero(names[i]):
                    new = np.zeros(leaves[i].shape, kinds[i])
                else:
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
    array.block_until_ready()  # its host memory is reused
    return array


def _arrays(shapes: PyTree) -> dict[str, Shape]:
    """Return the shapes of the leaves that are arrays, by name."""
    named = zip(jax.tree.leaves(leaf_names(shapes)), jax.tree.leaves(shapes), strict=True)
    return {name: leaf.shape for name, leaf in named if isinstance(leaf, _ARRAYS)}


def load_base(recipe: Recipe, shapes: PyTree, *, on: Mesh) -> PyTree | None:
    """Return the weights of `[run] parameters_from` or else of `[model] pretrained`, laid out as in `shapes`; None if
    the model begins at random.

    The caller owns the arrays and may donate them. Leaves that the adapter keeps in 4 bit are packed one by one, so
    that only one leaf at a time is in memory in full.

    Args:
        shapes: the model without its adapter; each array has its final sharding.

    Raises:
        TrainkitError: the weights cannot be found, fetched or read, or do not fit the recipe's model.
    """
    model = recipe.model
    if (parameters := load_parameters(recipe, shapes)) is not None:
        return parameters
    if not isinstance(model, Pretrained) or model.pretrained is None:
        return None
    packed = packed_leaves(shapes, recipe.adapter)
    return load_params(
        find.weights(model.pretrained, model.revision),
        shapes,
        resize=model.resize_vocabulary,
        owned=True,
        made=lambda name, leaf: _pack(leaf, on) if name in packed else leaf,
        head=model.head,
        fresh_leaf=partial(_fresh_leaf, seed=recipe.run.seed, scale=recipe.language_model.head_range),
    )


def load_adapter(recipe: Recipe, shapes: PyTree) -> Numbers | None:
    """Return the arrays of `[adapter] pretrained` on the host; None if there is no adapter or it begins afresh.

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
    begins = not resumed and recipe.run.parameters_from is None
    if isinstance(model, Pretrained) and model.pretrained is not None and (recipe.adapter is not None or begins):
        check(find.weights(model.pretrained, model.revision), base, resize=model.resize_vocabulary, head=model.head)


def _fresh_leaf(name: str, shape: Shape, *, seed: int, scale: float) -> np.ndarray:
    """Return the initial values of a part of a head: zero biases, norms that change nothing, and matrices drawn from
    the seed and the name."""
    if len(shape) == 1:
        return np.zeros(shape, np.float32) if name.endswith(".bias") else np.ones(shape, np.float32)
    return scale * np.random.default_rng([seed, crc32(name.encode())]).standard_normal(shape, np.float32)


def base_digest(frozen: PyTree, recipe: Recipe) -> str | None:
    """Return the digest that identifies the base in a checkpoint of an adapter; None if the whole model is trained.

    For arrays in 4 bit it is the digest of the arrays that they were packed from, so that an adapter trained on a GPU
    can be used without one. A random base is identified by its packed arrays, because its numbers are drawn again, and
    another program may round their last bits differently.
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
            hint="restore the original pretrained weights, or begin a new run",
        )


def _pack(leaf: jax.Array, on: Mesh) -> Any:
    """Return the leaf in 4 bit; the leaf itself is deleted."""
    shapes = jax.eval_shape(quantise, leaf)
    packed = jax.jit(quantise, out_shardings=mesh.shardings(on, shapes))(leaf)
    jax.block_until_ready(packed)
    leaf.delete()
    return packed
