"""Reading a recipe that may begin with a checkpoint: `recipe.load.load`, with the eyes for a config.json."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from trainkit.recipe import load as recipes
from trainkit.recipe.load import Loaded
from trainkit.recipe.pretrained import Checkpoint


def load(path: Path, overrides: Sequence[str] = ()) -> Loaded:
    """As `recipe.load.load`; what `[model] pretrained` says of the model is read from its config.json.

    Raises:
        TrainkitError: as there, and where the checkpoint cannot be found or asks for what cannot be had.
    """
    return recipes.load(path, overrides, look_up=look_up)


def look_up(pretrained: str, revision: str | None) -> Checkpoint:
    """What a checkpoint says of its model. Raises TrainkitError."""
    from trainkit.hub import find
    from trainkit.hub.config import family_of, read_config, spec_values

    directory, commit = find.config(pretrained, revision)
    config, where = read_config(directory), str(directory / "config.json")
    here = find.local(pretrained) is not None
    return Checkpoint(
        values=spec_values(config, family_of(config, where=where), where=where),
        pretrained=str(directory) if here else pretrained,
        revision=commit,
        config=where if here else f"{pretrained}/config.json",
    )
