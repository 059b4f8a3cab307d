"""Reading a recipe that may begin with a checkpoint: `recipe.toml.load.load`, with the eyes for a config.json."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from trainkit.recipe import Recipe
from trainkit.recipe.families.transformer import Transformer
from trainkit.recipe.toml import load as recipes
from trainkit.recipe.toml.load import Loaded
from trainkit.recipe.toml.pretrained import PretrainedCheckpoint
from trainkit.text import neutralise


def load(path: Path, overrides: Sequence[str] = ()) -> Loaded:
    """As `recipe.toml.load.load`; what `[model] pretrained` says of the model is read from its config.json, and what
    `[adapter] pretrained` says of the adapter from its adapter_config.json.

    Raises:
        TrainkitError: as there, and where the checkpoint cannot be found or asks for what is not supported.
    """
    return recipes.load(path, overrides, look_up=look_up, look_up_adapter=look_up_adapter)


def notes(recipe: Recipe) -> list[str]:
    """What is worth a look in a recipe that is right.

    Raises:
        TrainkitError: the config of its model or of its adapter cannot be found or read.
    """

    return [neutralise(note) for note in (*_notes_on_model(recipe), *_notes_on_adapter(recipe))]


def _notes_on_model(recipe: Recipe) -> list[str]:
    """What the checkpoint that the model begins with asks of training and trainkit does not do."""
    model = recipe.model
    if not isinstance(model, Transformer) or model.pretrained is None:
        return []
    from trainkit.hub import find
    from trainkit.hub.config import family_of, read_config, untrained

    directory, _ = find.config(model.pretrained, model.revision)
    config = read_config(directory)
    family = family_of(config, where=str(directory))
    noise = untrained(config, family)
    notes = [f"the checkpoint asks for {', '.join(noise)}; trainkit trains without noise"] if noise else []
    return [*notes, *family.notes(model, {**family.defaults, **config})]


def _notes_on_adapter(recipe: Recipe) -> list[str]:
    adapter = recipe.adapter
    if adapter is None or adapter.pretrained is None:
        return []
    from trainkit.hub import adapter_config, find

    directory, _ = find.config(adapter.pretrained, adapter.revision, kind=find.ADAPTER)
    notes = []
    if other := adapter_config.other_base(directory, recipe.language_model):
        notes.append(f"the adapter says that it is for {other}; here it is put on {recipe.base_checkpoint}")
    if adapter.base == "none" and adapter_config.trained_on(directory) == "nf4":
        notes.append(
            "the adapter was trained on its base in 4 bit; here it is put on the base in full, on which it answers"
            ' differently: [adapter] base = "nf4"'
        )
    return notes


def look_up(pretrained: str, revision: str | None) -> PretrainedCheckpoint:
    """What a checkpoint says of its model. Raises TrainkitError."""
    from trainkit.hub import find
    from trainkit.hub.config import family_of, read_config, spec_values

    directory, commit = find.config(pretrained, revision)
    config, where = read_config(directory), str(directory / "config.json")
    family = family_of(config, where=where)
    here = find.local(pretrained) is not None
    return PretrainedCheckpoint(
        values=spec_values(config, family, where=where),
        pretrained=str(directory) if here else pretrained,
        revision=commit,
        config=where if here else f"{pretrained}/config.json",
        changeable=family.spec.changeable,
    )


def look_up_adapter(pretrained: str, revision: str | None, *, tables: Mapping[str, Any]) -> PretrainedCheckpoint | None:
    """As `adapter_config.look_up`, which most recipes have no use for."""
    from trainkit.hub import adapter_config

    return adapter_config.look_up(pretrained, revision, tables=tables)
