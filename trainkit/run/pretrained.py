"""The weights with which a run begins that goes on from a checkpoint of the Hugging Face hub."""

from __future__ import annotations

import warnings
from typing import Any

import jax
from jaxtyping import PyTree

from trainkit.hub import find
from trainkit.recipe import Recipe
from trainkit.run.compiled import Built


def weights_of(recipe: Recipe, built: Built) -> PyTree | None:
    """The arrays of `[model] pretrained`, laid out as in training; None where the model begins at random.

    Raises:
        TrainkitError: they cannot be found, fetched or read, or are not those of the recipe's model.
    """
    model = recipe.model
    if model.pretrained is None:
        return None
    from trainkit.hub.load import load_params

    directory = find.weights(model.pretrained, model.revision)
    return load_params(directory, built.base, resize=model.resize_vocabulary)


def made_of(built: Built, key: jax.Array, weights: PyTree | None, *, part: str | None = None) -> Any:
    """A new state, or a part of it; what was `weights` becomes part of it, so that it is there once."""

    def initial(key: jax.Array, weights: PyTree | None) -> Any:
        state = built.initial(key, weights)
        return state if part is None else getattr(state, part)

    lie = built.shardings if part is None else getattr(built.shardings, part)
    with warnings.catch_warnings():
        # weights that are quantised or cut cannot be taken over as they are
        warnings.filterwarnings("ignore", "Some donated buffers were not usable")
        return jax.jit(initial, out_shardings=lie, donate_argnums=1)(key, weights)
