"""The parameters of another run, with which a run begins: `[run] parameters_from`."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from trainkit.checkpoint import store
from trainkit.checkpoint.store import Info
from trainkit.errors import TrainkitError
from trainkit.recipe import Recipe
from trainkit.recipe.toml.files import with_values
from trainkit.recipe.toml.load import Loaded, locate_error
from trainkit.rundir.find import find_run

if TYPE_CHECKING:
    from jaxtyping import PyTree

KEY = "run.parameters_from"
#: What the names of parameters, and of their averages, begin with in a checkpoint.
_PARAMS, _AVERAGES = "params", "averages"


def with_checkpoint(loaded: Loaded) -> Loaded:
    """Return a recipe that has `run.parameters_from` with it as an absolute path that ends with the step.

    Raises:
        TrainkitError: there is no such run or checkpoint, or its parameters are not those of the recipe's model.
    """
    recipe = loaded.recipe
    assert recipe.run.parameters_from is not None
    try:
        directory, step = find_run(os.path.expanduser(recipe.run.parameters_from))
        info = store.checkpoint_of(directory, step)
        _check(recipe, info)
    except TrainkitError as error:
        problem = f"{error.where}: {error.problem}" if error.where else error.problem
        raise locate_error(TrainkitError(problem, where=KEY, hint=error.hint), loaded) from error
    path = str(directory.absolute() / str(info.step))
    return replace(loaded, recipe=with_values(recipe, run=with_values(recipe.run, parameters_from=path)))


def _check(recipe: Recipe, info: Info) -> None:
    """Raise TrainkitError unless the parameters in a checkpoint have the names and shapes of the recipe's model.

    Rows of a vocabulary are left out: their number is known once the tokenizer is.
    """
    if info.manifest.base is not None:
        raise TrainkitError(
            "its checkpoints hold an adapter without the model",
            where=str(info.directory),
            hint='export it with trainkit export, and name the export in [model] pretrained = "DIRECTORY"',
        )
    prefix = f"{_part(recipe)}."
    if not any(name.startswith(prefix) for name in info.manifest.leaves):
        raise TrainkitError(
            "its checkpoints hold no average of the parameters",
            where=str(info.directory),
            hint="leave run.average_from out; the average of schedule-free is in an export: model.pretrained",
        )
    length = recipe.data.positions
    wanted, wider = (recipe.model.leaf_shapes(vocab_size=size, sequence_length=length) for size in (1, 2))
    leaves = info.manifest.leaves
    found = {name.removeprefix(prefix): leaf.shape for name, leaf in leaves.items() if name.startswith(prefix)}
    lines = [
        f"  {name}: the checkpoint has {_show(found.get(name))}, the model {_show(wanted.get(name))}"
        for name in sorted(found.keys() | wanted.keys())
        if found.get(name) != wanted.get(name) and not (name in found and wanted.get(name) != wider.get(name))
    ]
    if lines:
        raise TrainkitError(
            "its parameters are not those of [model]:\n" + "\n".join(lines),
            where=str(info.directory),
            hint="give the model the type and the sizes of that run, or extend its recipe",
        )


def load_parameters(recipe: Recipe, shapes: PyTree) -> PyTree | None:
    """Return the parameters that `run.parameters_from` names, of the dtypes in `shapes`; None if it names none.

    Raises:
        TrainkitError: the checkpoint is gone or damaged, or the vocabulary has another size.
    """
    if recipe.run.parameters_from is None:
        return None
    import jax

    from trainkit.checkpoint import restore
    from trainkit.checkpoint.leaves import named_leaves

    path = Path(recipe.run.parameters_from)
    info = store.find(path.parent, int(path.name))
    stored, named = info.manifest.leaves, named_leaves(shapes, under=_part(recipe))
    other = [name for name, leaf in named.items() if name not in stored or stored[name].shape != leaf.shape]
    if other:
        lines = [f"  {name}: the model has {_show(named[name].shape)}" for name in other]
        raise TrainkitError(
            "the parameters of that run do not fit:\n" + "\n".join(lines),
            where=KEY,
            hint=f'use its tokenizer: [tokenizer] path = "{path.parent / "tokenizer.json"}"',
        )
    read = [
        restore.restore(
            info.directory, jax.ShapeDtypeStruct(leaf.shape, stored[name].dtype, sharding=leaf.sharding), under=name
        ).astype(leaf.dtype)
        for name, leaf in named.items()
    ]
    return jax.tree.unflatten(jax.tree.structure(shapes), read)


def _part(recipe: Recipe) -> str:
    """Return the part of a state that the run begins with."""
    return _AVERAGES if recipe.run.average_from else _PARAMS


def _show(shape: tuple[int, ...] | None) -> str:
    return "none" if shape is None else " x ".join(map(str, shape))
