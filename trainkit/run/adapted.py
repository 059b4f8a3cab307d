"""A trained adapter, put back on its base to be used."""

from __future__ import annotations

import warnings
from functools import partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.sharding import Mesh
from jaxtyping import PyTree

from trainkit import models
from trainkit.checkpoint import restore
from trainkit.checkpoint.digest import check_base, digest
from trainkit.checkpoint.store import Info
from trainkit.models.adapters import adapt, merge, trainable
from trainkit.models.build import LanguageModel
from trainkit.parallel import mesh
from trainkit.recipe import Recipe

#: What an adapter's own random numbers are drawn for.
ADAPTER = 0x10A


def with_adapter(base: LanguageModel, recipe: Recipe, *, key: jax.Array) -> LanguageModel:
    """`base` as the recipe has it trained; `key` is the one from which a random base was made."""
    return adapt(base, recipe.adapter, key=jax.random.fold_in(key, ADAPTER)) if recipe.adapter else base


def merged(info: Info, recipe: Recipe, *, vocab_size: int, on: Mesh, dtype: jnp.dtype) -> LanguageModel:
    """The model that a checkpoint of an adapter amounts to, with plain layers, in `dtype`. Raises as `opened`."""
    model = opened(info, recipe, vocab_size=vocab_size, on=on)
    with warnings.catch_warnings():
        # what is packed, and the adapter itself, cannot be taken over as they are
        warnings.filterwarnings("ignore", "Some donated buffers were not usable")
        return _plain(model, dtype)


def opened(info: Info, recipe: Recipe, *, vocab_size: int, on: Mesh) -> LanguageModel:
    """The adapted model in a checkpoint of an adapter; its base is made again.

    Raises:
        TrainkitError: the base is not to be had, is another one, or the checkpoint has other leaves than the adapter.
        DamagedCheckpoint: something is missing or fails its checksum.
    """
    build = partial(_base, recipe, vocab_size=vocab_size)
    # as in `train.state.init`
    key = jax.random.fold_in(jax.random.key(recipe.run.seed), 0)
    base = _placed(jax.eval_shape(build, key), on)
    if recipe.model.pretrained is None:
        weights = jax.jit(build, out_shardings=_shardings(base))(key)
    else:
        from trainkit.hub import find
        from trainkit.hub.load import load_params

        directory = find.weights(recipe.model.pretrained, recipe.model.revision)
        weights = load_params(directory, base, resize=recipe.model.resize_vocabulary)
    put_on = partial(with_adapter, recipe=recipe, key=key)
    shapes = _placed(jax.eval_shape(put_on, weights), on)
    fresh = jax.jit(put_on, out_shardings=_shardings(shapes))(weights)
    _, frozen = eqx.partition(fresh, trainable(fresh))
    check_base(info.manifest, digest(frozen), where=info.directory)
    params = restore.restore(info.directory, eqx.filter(shapes, trainable(shapes)), under="params")
    del fresh, weights
    return eqx.combine(params, frozen)


def _base(recipe: Recipe, key: jax.Array, *, vocab_size: int) -> LanguageModel:
    # how attention is computed is no part of the weights
    length = recipe.data.sequence_length
    built = models.build(recipe.model, vocab_size=vocab_size, sequence_length=length, implementation="xla", key=key)
    return models.cast(built, jnp.dtype(recipe.precision.params))


@partial(jax.jit, static_argnums=1, donate_argnums=0)
def _plain(model: LanguageModel, dtype: Any) -> LanguageModel:
    return models.cast(merge(model), dtype)


def _placed(shapes: PyTree, on: Mesh) -> PyTree[jax.ShapeDtypeStruct]:
    return jax.tree.map(
        lambda leaf, lies: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=lies),
        shapes,
        mesh.shardings(on, shapes),
    )


def _shardings(placed: PyTree[jax.ShapeDtypeStruct]) -> PyTree:
    return jax.tree.map(lambda leaf: leaf.sharding, placed)
