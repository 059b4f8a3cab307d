"""Reading a recipe that may begin with a checkpoint: `recipe.load.load`, with the eyes for a config.json."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from trainkit.recipe import Recipe
from trainkit.recipe import load as recipes
from trainkit.recipe.load import Loaded
from trainkit.recipe.pretrained import Checkpoint


def load(path: Path, overrides: Sequence[str] = ()) -> Loaded:
    """As `recipe.load.load`; what `[model] pretrained` says of the model is read from its config.json, and what
    `[adapter] pretrained` says of the adapter from its adapter_config.json.

    Raises:
        TrainkitError: as there, and where the checkpoint cannot be found or asks for what cannot be had.
    """
    return recipes.load(path, overrides, look_up=look_up, look_up_adapter=look_up_adapter)


def notes(recipe: Recipe) -> list[str]:
    """What is worth a look in a recipe that is right. Raises TrainkitError where its adapter is not to be had."""
    if recipe.adapter is None or recipe.adapter.pretrained is None:
        return []
    from trainkit.events.plain import inert
    from trainkit.hub import adapter_config, find

    directory, _ = find.config(recipe.adapter.pretrained, recipe.adapter.revision, kind=find.ADAPTER)
    other = adapter_config.other_base(directory, recipe.model)
    if other is None:
        return []
    return [inert(f"the adapter says that it is for {other}, and goes on {recipe.model.pretrained} here")]


def look_up(pretrained: str, revision: str | None) -> Checkpoint:
    """What a checkpoint says of its model. Raises TrainkitError."""
    from trainkit.hub import find
    from trainkit.hub.config import family_of, read_config, spec_values

    directory, commit = find.config(pretrained, revision)
    config, where = read_config(directory), str(directory / "config.json")
    family = family_of(config, where=where)
    here = find.local(pretrained) is not None
    return Checkpoint(
        values=spec_values(config, family, where=where),
        pretrained=str(directory) if here else pretrained,
        revision=commit,
        config=where if here else f"{pretrained}/config.json",
        changeable=family.spec.changeable,
    )


def look_up_adapter(pretrained: str, revision: str | None, *, tables: Mapping[str, Any]) -> Checkpoint | None:
    """As `adapter_config.look_up`, which most recipes have no use for."""
    from trainkit.hub import adapter_config

    return adapter_config.look_up(pretrained, revision, tables=tables)
