"""Adapters on their base: opened from a checkpoint, and merged into the base."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Literal, TypeAlias

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.sharding import Mesh
from jaxtyping import PyTree

from trainkit import models
from trainkit.checkpoint import restore
from trainkit.checkpoint.store import Info
from trainkit.errors import TrainkitError
from trainkit.hub import adapter_config, find, peft
from trainkit.hub.load import check_same_base, load_base
from trainkit.models.adapters import Numbers, adapt, merge, trainable, with_adapter, with_numbers
from trainkit.models.stack import LanguageModel
from trainkit.parallel import mesh
from trainkit.recipe import Recipe
from trainkit.recipe.families.transformer import Transformer

#: The parts of a checkpoint that can be the weights of a model.
Weights: TypeAlias = Literal["params", "averages"]


def merge_adapter(
    info: Info, recipe: Recipe, *, part: Weights = "params", vocab_size: int, on: Mesh, dtype: jnp.dtype
) -> LanguageModel:
    """Return the model of a checkpoint's adapter and its base, merged into plain layers, in `dtype`. Raises as
    `open_adapted`."""
    model = open_adapted(info, recipe, part=part, vocab_size=vocab_size, on=on)

    def plain(model: LanguageModel) -> LanguageModel:
        return models.cast(merge(model), dtype)

    return _run_donating(plain, _shardings(_place(jax.eval_shape(plain, model), on)), model)


def adapter_merger(directory: Path, spec: Transformer, shapes: PyTree) -> Callable[[LanguageModel], LanguageModel]:
    """Return a function that merges the PEFT adapter in a directory into a model of these shapes.

    The result has the dtype of that model, whose arrays are donated.

    Raises:
        TrainkitError: the adapter cannot be read, is for another model, or uses something that is not supported.
    """
    adapter = adapter_config.read(directory, spec)
    put_on = partial(adapt, spec=adapter, key=jax.random.key(0))
    numbers = peft.read(directory, jax.eval_shape(put_on, shapes), spec)

    def plain(base: LanguageModel, numbers: Numbers) -> LanguageModel:
        return merge(with_numbers(put_on(base), numbers))

    return lambda base: _run_donating(plain, _shardings(base), base, numbers)


def base_of(directory: Path) -> Path:
    """Return the directory of the base of the PEFT adapter in a directory. Raises TrainkitError without one."""
    name, revision = adapter_config.base_of(directory)
    try:
        return find.weights(name, revision)
    except TrainkitError as error:
        raise TrainkitError(
            f"the model that the adapter is for, {name}, is not available: {error.problem}",
            where=str(directory / adapter_config.FILE),
            hint="set base_model_name_or_path in this file to its directory or hub id",
        ) from error


def open_adapted(info: Info, recipe: Recipe, *, part: Weights = "params", vocab_size: int, on: Mesh) -> LanguageModel:
    """Return the adapted model of a checkpoint; its base is loaded or drawn again, and the adapter is that in `part`.

    Raises:
        TrainkitError: the base is not available, is another one, or the checkpoint has other leaves than the adapter.
        DamagedCheckpoint: something is missing or fails its checksum.
    """
    build = partial(_base, recipe, vocab_size=vocab_size)
    # as in `train.state.init`
    key = jax.random.fold_in(jax.random.key(recipe.run.seed), 0)
    base = _place(jax.eval_shape(build, key), on)
    random = recipe.base_checkpoint is None
    weights = jax.jit(build, out_shardings=_shardings(base))(key) if random else load_base(recipe, base, on=on)
    put_on = partial(with_adapter, spec=recipe.adapter, key=key)
    shapes = _place(jax.eval_shape(put_on, weights), on)
    params, frozen = eqx.partition(shapes, trainable(shapes))

    def without_adapter(weights: LanguageModel) -> PyTree:
        model = put_on(weights)
        return eqx.partition(model, trainable(model))[1]

    frozen = _run_donating(without_adapter, _shardings(frozen), weights)
    check_same_base(info.manifest, frozen, where=info.directory)
    return eqx.combine(restore.restore(info.directory, params, under=part), frozen)


def _base(recipe: Recipe, key: jax.Array, *, vocab_size: int) -> LanguageModel:
    # the implementation of attention does not affect the weights
    length = recipe.data.positions
    built = models.build(recipe.model, vocab_size=vocab_size, sequence_length=length, implementation="xla", key=key)
    return models.cast(built, jnp.dtype(recipe.precision.params))


def _run_donating(function: Callable[..., PyTree], lie: PyTree, tree: PyTree, *rest: Any) -> Any:
    """Return `function` of a tree and more. The tree is donated, so that unchanged arrays are in memory only once."""
    with warnings.catch_warnings():
        # what is packed or merged, and the adapter itself, cannot be taken over as they are
        warnings.filterwarnings("ignore", "Some donated buffers were not usable")
        return jax.jit(function, out_shardings=lie, donate_argnums=0)(tree, *rest)


def _place(shapes: PyTree, on: Mesh) -> PyTree[jax.ShapeDtypeStruct]:
    return jax.tree.map(
        lambda leaf, lies: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=lies),
        shapes,
        mesh.shardings(on, shapes),
    )


def _shardings(placed: PyTree[jax.ShapeDtypeStruct]) -> PyTree:
    return jax.tree.map(lambda leaf: leaf.sharding, placed)
