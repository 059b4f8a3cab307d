"""Loading a recipe that may begin with a checkpoint: `recipe.toml.load.load` with the checkpoint's config.json."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from trainkit.errors import TrainkitError
from trainkit.recipe import Recipe
from trainkit.recipe.families.hugging_face import Config, Family
from trainkit.recipe.families.transformer import Transformer
from trainkit.recipe.toml import load as recipes
from trainkit.recipe.toml.load import Loaded
from trainkit.recipe.toml.modes import FULL
from trainkit.recipe.toml.pretrained import PretrainedCheckpoint
from trainkit.text import neutralise


def load(path: Path, overrides: Sequence[str] = (), *, mode: str = FULL) -> Loaded:
    """Return the recipe like `recipe.toml.load.load`, completed with the values of its checkpoints.

    Those of `[model] pretrained` come from its config.json, those of `[adapter] pretrained` from its
    adapter_config.json.

    Raises:
        TrainkitError: as there; or the checkpoint cannot be found, uses unsupported features, or has a head that the
            task cannot begin with; or that of `run.parameters_from` is of another model.
    """
    loaded = recipes.load(path, overrides, mode=mode, look_up=look_up, look_up_adapter=look_up_adapter)
    check_head(loaded.recipe)
    if loaded.recipe.run.parameters_from is None:
        return loaded
    from trainkit.hub.run_parameters import with_checkpoint  # loads what reads runs

    return with_checkpoint(loaded)


def check_head(recipe: Recipe) -> None:
    """Raise TrainkitError if the model's checkpoint has a head for another purpose, for another number of classes, or
    for the same classes by other numbers."""
    if (found := _config_of(recipe)) is None:
        return
    from trainkit.hub.config import head_of, moved_class, other_width

    config, family, where = found
    head, wanted = head_of(config, family), recipe.model.head
    if wanted.kind == "tokens" and head.kind != "tokens":
        raise TrainkitError(
            f"its architecture is {family.architecture_of(head.kind)}, whose head gives scores of classes, and the task"
            f" {recipe.task.type} predicts tokens",
            where=where,
            hint=f"take a checkpoint of {family.architecture}, or a task with classes",
        )
    if head.kind != wanted.kind or wanted.new:
        return
    if head.width != wanted.width:
        raise other_width(head.width, wanted.width, where)
    if (error := moved_class(head, wanted, where)) is not None:
        raise error


def _config_of(recipe: Recipe) -> tuple[Config, Family, str] | None:
    """Return the config.json that the model begins with, its family and its path; None where it begins at random."""
    model = recipe.model
    if not isinstance(model, Transformer) or model.pretrained is None:
        return None
    from trainkit.hub import find
    from trainkit.hub.config import family_of, read_config

    directory, _ = find.config(model.pretrained, model.revision)
    config, where = read_config(directory), str(directory / "config.json")
    return config, family_of(config, where=where), where


def notes(recipe: Recipe) -> list[str]:
    """Return notes on a valid recipe: differences from what its checkpoints say, and options that work against others.

    Raises:
        TrainkitError: the config of its model or of its adapter cannot be found or read.
    """

    found = (*_notes_on_model(recipe), *_notes_on_adapter(recipe), *_notes_on_optimizer(recipe))
    return [neutralise(note) for note in found]


def _notes_on_model(recipe: Recipe) -> list[str]:
    """Return what the model's checkpoint asks of training that trainkit does not do."""
    if (found := _config_of(recipe)) is None:
        return []
    from trainkit.hub.config import head_of, untrained_noise

    config, family, _ = found
    noise = untrained_noise(config, family)
    notes = [f"the checkpoint asks for {', '.join(noise)}; trainkit trains without it"] if noise else []
    head, wanted = head_of(config, family), recipe.model.head
    if wanted.kind != "tokens" and head.kind != wanted.kind:
        named = ", ".join(config.get("architectures") or []) or "of an unnamed architecture"
        notes.append(
            f"the checkpoint is {named}: what {family.architecture_of(wanted.kind)} has beyond it begins at random"
        )
    elif wanted.new:
        notes.append(
            f"the head of the checkpoint, which has {head.width} classes, is left out: a new one begins at random"
        )
    return [*notes, *family.notes(recipe.model, {**family.defaults, **config})]


def _notes_on_optimizer(recipe: Recipe) -> Iterator[str]:
    """Yield what the schedule and the clipping of gradients do to the rules and wrappers of the optimizer."""
    optimizer, schedule = recipe.optimizer, recipe.schedule
    rules = (optimizer, *(group.optimizer for group in optimizer.groups if group.optimizer is not None))
    averaging = next((rule.type for rule in rules if rule.own_average), None)
    if averaging is not None and (schedule.type != "constant" or schedule.cooldown):
        changes = f'schedule.type = "{schedule.type}"' if schedule.type != "constant" else "schedule.cooldown"
        yield (
            f'{changes} changes the learning rate, and "{averaging}" averages the parameters in place of that:'
            ' write schedule.type = "constant", with a warmup and without a cooldown'
        )
    for number, wrapper in enumerate(optimizer.wrappers):
        if (note := wrapper.note(max_grad_norm=recipe.train.max_grad_norm)) is not None:
            yield f"optimizer.wrappers.{number}: {note}"


def _notes_on_adapter(recipe: Recipe) -> list[str]:
    adapter = recipe.adapter
    if adapter is None or adapter.pretrained is None:
        return []
    from trainkit.hub import adapter_config, find

    directory, _ = find.config(adapter.pretrained, adapter.revision, kind=find.ADAPTER)
    notes = []
    if other := adapter_config.other_base(directory, recipe.language_model):
        notes.append(f"the adapter was made for {other}; here it is applied to {recipe.base_checkpoint}")
    if adapter.base == "none" and adapter_config.trained_on(directory) == "nf4":
        notes.append(
            "the adapter was trained on its base in 4 bit; on the unquantised base it answers differently. To quantise"
            ' the base: [adapter] base = "nf4"'
        )
    return notes


def look_up(pretrained: str, revision: str | None) -> PretrainedCheckpoint:
    """Return the values of `[model]` that a checkpoint gives. Raises TrainkitError."""
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
    """Return what `adapter_config.look_up` does, imported only by recipes that need it."""
    from trainkit.hub import adapter_config

    return adapter_config.look_up(pretrained, revision, tables=tables)
