"""What a run begins with that goes on from a checkpoint of the Hugging Face hub, or from an adapter."""

from __future__ import annotations

import warnings
from typing import Any

import equinox as eqx
import jax
from jaxtyping import PyTree

from trainkit.hub import find, peft
from trainkit.hub.load import check
from trainkit.infer.adapted import load_base
from trainkit.models.adapters import Numbers
from trainkit.recipe import Recipe
from trainkit.recipe.families.pretrained import Pretrained
from trainkit.run.program import BuiltStep, state_shapes


def weights_of(recipe: Recipe, built: BuiltStep) -> PyTree | None:
    """The arrays of `[model] pretrained`, laid out and packed as in training; None where the model begins at random.

    Raises:
        TrainkitError: they cannot be found, fetched or read, or are not those of the recipe's model.
    """
    return None if recipe.base_checkpoint is None else load_base(recipe, built.base, on=built.mesh)


def check_weights(recipe: Recipe, built: BuiltStep, *, resumed: bool) -> None:
    """Raise what `weights_of` and `numbers_of` would where they will be asked, before it is too late to be of use.

    Files are fetched, and weights are not read but for what their files say of them. Where the run has a checkpoint,
    only the base of an adapter is still needed. Raises TrainkitError.
    """
    model = recipe.model
    if not resumed:
        numbers_of(recipe, built)
    if isinstance(model, Pretrained) and model.pretrained is not None and (recipe.adapter is not None or not resumed):
        check(find.weights(model.pretrained, model.revision), built.base, resize=model.resize_vocabulary)


def numbers_of(recipe: Recipe, built: BuiltStep) -> Numbers | None:
    """The numbers of `[adapter] pretrained`, on the host; None where the adapter begins afresh, or there is none.

    Raises:
        TrainkitError: they cannot be found, fetched or read, or are not those of an adapter of the recipe's model.
    """
    adapter = recipe.adapter
    if adapter is None or adapter.pretrained is None:
        return None
    directory, state = find.weights(adapter.pretrained, adapter.revision, kind=find.ADAPTER), state_shapes(built)
    return peft.read(directory, eqx.combine(state.params, state.frozen), recipe.language_model)


def made_of(
    built: BuiltStep, key: jax.Array, weights: PyTree | None, numbers: Numbers | None = None, *, part: str | None = None
) -> Any:
    """A new state, or a part of it; what was `weights` becomes part of it, so that it is there once.

    `numbers` are those of its adapter, fresh ones where None.
    """

    def initial(key: jax.Array, weights: PyTree | None, numbers: Numbers | None) -> Any:
        state = built.initial(key, weights, numbers)
        return state if part is None else getattr(state, part)

    lie = built.shardings if part is None else getattr(built.shardings, part)
    with warnings.catch_warnings():
        # weights that are cut cannot be taken over as they are
        warnings.filterwarnings("ignore", "Some donated buffers were not usable")
        return jax.jit(initial, out_shardings=lie, donate_argnums=1)(key, weights, numbers)
