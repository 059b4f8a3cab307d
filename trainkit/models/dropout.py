"""Dropout (Srivastava et al. 2014), which in training sets some outputs of a layer to 0 and scales up the others, and
noise that is added to embeddings.

Both do nothing until they have keys. Only the step gives keys, with `with_keys`, so nothing is dropped in evaluation,
in samples or by a frozen reference. Each row of a batch has its own key, so that what is dropped depends neither on the
devices nor on the size of the micro-batch. B rows, L layers.
"""

from __future__ import annotations

import zlib
from dataclasses import replace
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PRNGKeyArray, PyTree

#: The part of a module's path that marks arrays with a leading axis of layers.
STACKED = "blocks"


class Dropout(eqx.Module):
    """Sets numbers to 0, each with the probability `rate`."""

    rate: float = eqx.field(static=True, default=0.0)
    of_rows: bool = eqx.field(static=True, default=True)
    """Whether it drops numbers of the rows of the batch, and not of a table that all rows share."""
    keys_B: PRNGKeyArray | None = None
    """The keys of the rows, (L, B) in stacked blocks; one key, (1,), for a table; None if nothing is dropped."""

    @property
    def is_on(self) -> bool:
        """Return whether it drops anything."""
        return self.keys_B is not None

    def __call__(self, x: Float[Array, "N ..."]) -> Float[Array, "N ..."]:
        """Return `x` with some of its numbers 0 and the others divided by 1 - rate; N is a multiple of B."""
        if self.keys_B is None:
            return x
        if not self.of_rows:
            return replace(self, of_rows=True)(x[None])[0]
        keys = _keys_for(self.keys_B, x.shape[0])
        kept = jax.vmap(lambda key: jax.random.bernoulli(key, 1 - self.rate, x.shape[1:]))(keys)
        # in float32, because a kept share rounded to 16 bit would scale all numbers a little wrong
        larger = (x.astype(jnp.float32) / (1 - self.rate)).astype(x.dtype)
        return jnp.where(kept, larger, jnp.zeros((), x.dtype))


class EmbeddingNoise(eqx.Module):
    """Adds noise to the embeddings of tokens (NEFTune, Jain et al. 2023, algorithm 1)."""

    rate: float = eqx.field(static=True, default=0.0)
    """Alpha: noise is uniform within ± alpha / sqrt(T D)."""
    keys_B: PRNGKeyArray | None = None
    """The keys of the rows; None if nothing is added."""

    def __call__(self, x_NTD: Float[Array, "N T D"]) -> Float[Array, "N T D"]:
        """Return `x_NTD` with noise; N is a multiple of B. T is the length of a row with its padding, as in
        transformers."""
        if self.keys_B is None:
            return x_NTD
        keys_N, (length, d) = _keys_for(self.keys_B, x_NTD.shape[0]), x_NTD.shape[1:]
        largest = self.rate / (length * d) ** 0.5
        noise = jax.vmap(lambda key: jax.random.uniform(key, (length, d), minval=-largest, maxval=largest))(keys_N)
        return x_NTD + noise.astype(x_NTD.dtype)


#: A dropout that never drops anything.
NO_DROPOUT = Dropout()


def has_dropout(model: PyTree) -> bool:
    """Return whether a model drops anything, or adds noise, in training."""
    return any(_is_dropout(node) and node.rate > 0 for node in jax.tree.leaves(model, is_leaf=_is_dropout))


def with_keys(model: PyTree, key: PRNGKeyArray, rows_B: Int[Array, " B"]) -> PyTree:
    """Return a model whose dropout and noise are on. They differ between modules, layers and rows.

    Args:
        key: the key of the step.
        rows_B: the numbers of the rows within the whole batch of the step.
    """
    keys_B = jax.vmap(lambda row: jax.random.fold_in(key, row))(rows_B)

    def with_own_keys(path: Any, node: Any) -> Any:
        if not _is_dropout(node) or node.rate == 0:
            return node
        shared = isinstance(node, Dropout) and not node.of_rows
        place = zlib.crc32(jax.tree_util.keystr(path, simple=True, separator=".").encode())
        own_B = _fold(key[None] if shared else keys_B, place)
        layers = _layers(model, path)
        keys = own_B if layers is None else jax.vmap(lambda layer: _fold(own_B, layer))(jnp.arange(layers))
        return replace(node, keys_B=keys)

    return jax.tree_util.tree_map_with_path(with_own_keys, model, is_leaf=_is_dropout)


def without_keys(model: PyTree) -> PyTree:
    """Return a model that drops and adds nothing."""
    return jax.tree.map(
        lambda node: replace(node, keys_B=None) if _is_dropout(node) else node, model, is_leaf=_is_dropout
    )


def _keys_for(keys_B: PRNGKeyArray, rows: int) -> PRNGKeyArray:
    """Return a key for each of `rows` rows, a multiple of B."""
    each = rows // keys_B.shape[0]
    return keys_B if each == 1 else jax.vmap(lambda key: jax.random.split(key, each))(keys_B).reshape(-1)


def _fold(keys_B: PRNGKeyArray, number: Any) -> PRNGKeyArray:
    return jax.vmap(lambda key: jax.random.fold_in(key, number))(keys_B)


def _layers(model: PyTree, path: Any) -> int | None:
    """Return how many layers are stacked in the module at a path; None if none are."""
    node, stacked = model, False
    for step in path[:-1]:
        if not isinstance(step, jax.tree_util.GetAttrKey):
            return None
        node, stacked = getattr(node, step.name), stacked or step.name == STACKED
    # a model may have two stacks in its blocks
    return int(jax.tree.leaves(node)[0].shape[0]) if stacked else None


def _is_dropout(node: Any) -> bool:
    return isinstance(node, Dropout | EmbeddingNoise)
