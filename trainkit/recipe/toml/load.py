"""Loading a recipe: its layers are merged, then checked once; a key without any effect is refused."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from trainkit.errors import TrainkitError
from trainkit.recipe import Recipe
from trainkit.recipe.sections.data import Data, HuggingFace
from trainkit.recipe.spec import with_tuples
from trainkit.recipe.toml.files import are_texts, as_shown, read_file, with_absolute_paths, with_values
from trainkit.recipe.toml.ignored_keys import check_ignored_keys
from trainkit.recipe.toml.layers import DEFAULT, SET, Layer, put_override, table_at
from trainkit.recipe.toml.modes import BUILT_IN, FULL, check_mode, in_mode, take_modes
from trainkit.recipe.toml.paths import check_name, check_paths
from trainkit.recipe.toml.positions import Key, dotted_key
from trainkit.recipe.toml.pretrained import LookUp, LookUpAdapter, hub_only, put_below
from trainkit.recipe.toml.values import Secrets, flat, pair
from trainkit.redaction import redact

if TYPE_CHECKING:
    from trainkit.recipe.toml.plugins import Plugin


#: Sections whose values may be paths of what is read.
_WITH_PATHS = (("data", "train"), ("data", "validation"), ("tokenizer",), ("model",), ("adapter",))
_MAGIC = re.compile(r"[*?\[{]")


@dataclass(frozen=True)
class Loaded:
    """A recipe, and where it and each of its values came from."""

    recipe: Recipe
    origins: dict[str, str]
    """For each dotted key (`data.train.0.path`): `recipes/quickstart.toml:14`, `--set` or `default`."""
    path: Path
    plugins: tuple[Plugin, ...] = ()
    changed_plugins: tuple[str, ...] = ()
    """Files that have changed since the digests of `[plugins]` were written."""


def load(
    path: Path,
    overrides: Sequence[str] = (),
    *,
    mode: str = FULL,
    look_up: LookUp | None = None,
    look_up_adapter: LookUpAdapter | None = None,
) -> Loaded:
    """Return the recipe in `path` with one of its modes and then `overrides` (`"train.steps=10"`) applied, fully
    checked.

    The other modes are checked too, so that a mistake in one is found before somebody needs it. Relative paths become
    absolute against the working directory, so that a run can be resumed from anywhere.

    Args:
        look_up: reads the config of the checkpoint that `[model] pretrained` names. Without it, the recipe itself must
            hold everything that the config would give, like the recipe in a run's directory.
        look_up_adapter: the same for `[adapter] pretrained`.

    Raises:
        TrainkitError: a file is missing or not TOML, or the recipe is wrong; then all errors are reported together.
    """
    layer = read_file(path)
    modes = take_modes(layer)
    check_mode(modes, mode, path)
    check = partial(_check, path=path, look_up=look_up, look_up_adapter=look_up_adapter)

    def loaded(name: str, overrides: Sequence[str]) -> Loaded:
        changed = in_mode(layer, modes, name, path)
        try:
            return check(changed, overrides=overrides)
        except TrainkitError as error:
            if name == FULL or error.where.startswith("mode "):
                raise
            check(in_mode(layer, modes, FULL, path), overrides=overrides)  # raises where the mode is not to blame
            raise TrainkitError(f"in mode {name}: {error.problem}", where=error.where, hint=error.hint) from error

    found = loaded(mode, overrides)
    for name in modes.table["mode"]:
        if name != mode:
            try:
                loaded(name, overrides)
            except TrainkitError:
                if not overrides:
                    raise
                loaded(name, ())  # what is set for this mode need not fit another one
    return found


def load_language(path: Path) -> type[Recipe]:
    """Return the class of recipes with what the plugins of a recipe add. The rest of that recipe may be wrong.

    Raises:
        TrainkitError: a file is missing or not TOML, or a plugin cannot be used.
    """
    return _language(read_file(path))[0]


def _check(
    layer: Layer,
    path: Path,
    overrides: Sequence[str],
    *,
    look_up: LookUp | None = None,
    look_up_adapter: LookUpAdapter | None = None,
    resolved: bool = False,
) -> Loaded:
    for override in overrides:
        put_override(layer, override)
    language, plugins = _language(layer)
    if look_up is not None:
        try:
            layer = put_below(layer, "model", look_up)
        except TrainkitError as error:
            from trainkit.recipe.toml.diagnosis import diagnose_others

            raise diagnose_others(
                error, layer.table, "model", origin=layer.origin, name=as_shown(path), language=language
            ) from error
    if look_up_adapter is not None:
        layer = put_below(layer, "adapter", partial(look_up_adapter, tables=layer.table))
    try:
        if not resolved:
            recipe = language.model_validate(with_tuples(layer.table))
        else:
            from trainkit.recipe.toml.recorded_values import validate_recorded

            recipe = validate_recorded(language, layer)
    except ValidationError as error:
        from trainkit.recipe.toml.diagnosis import diagnose

        raise diagnose(layer.table, error, origin=layer.origin, name=as_shown(path), language=language) from None
    if not resolved:  # the paths of a run were used already
        check_paths(recipe, layer)
    tokenizer = recipe.tokenizer
    if tokenizer and tokenizer.revision is not None and os.path.exists(os.path.expanduser(tokenizer.path or "")):
        raise hub_only(("tokenizer", "revision"), tokenizer.path, layer)
    _check_directories(recipe.data, layer)
    check_ignored_keys(recipe, layer, top=None if resolved else as_shown(path))
    changed = _changed_plugins(recipe, plugins, layer)
    recipe = _complete(recipe, path, plugins)
    origins = {dotted_key(key): str(layer.leaf_origin(key)) for key in flat(recipe)}
    if recipe.sweep is not None:
        keys: list[tuple[str, ...]] = [("sweep", key) for key in recipe.sweep.model_fields_set]
        keys += [("sweep", "parameters", key) for key in recipe.sweep.parameters]
        origins |= {".".join(key): str(layer.origin(key)) for key in keys}
    if plugins:
        origins["plugins.digests"] = "SHA-256 of plugins.files"
    return Loaded(recipe=recipe, origins=origins, path=path, plugins=plugins, changed_plugins=changed)


def _language(layer: Layer) -> tuple[type[Recipe], tuple[Plugin, ...]]:
    """Return the class of recipes with what the layer's plugins add, and the plugins. Raises TrainkitError."""
    files = table_at(layer.table, "plugins").get("files")
    if not are_texts(files) or not files:  # the diagnosis reports a wrong value
        return Recipe, ()
    from trainkit.recipe.toml import plugins

    files[:] = [os.path.abspath(os.path.expanduser(file)) for file in files]  # those of --set
    found = plugins.load_plugins(files, lambda number: str(layer.origin(("plugins", "files", number))))
    return plugins.recipe_class(found), found


def _changed_plugins(recipe: Recipe, plugins: tuple[Plugin, ...], layer: Layer) -> tuple[str, ...]:
    """Return the files whose digests differ from those in the recipe, which has none of files that `--set` names."""
    if recipe.plugins is None or layer.leaf_origin(("plugins", "files")) == SET:
        return ()
    digests = dict(zip(recipe.plugins.files, recipe.plugins.digests, strict=False))
    return tuple(str(p.path) for p in plugins if digests.get(str(p.path), p.digest) != p.digest)


def _check_directories(data: Data, layer: Layer) -> None:
    """Raise TrainkitError where a dataset in a directory is given keys that only a dataset on the hub has."""
    for section, sources in (("train", data.train), ("validation", data.validation)):
        for number, source in enumerate(sources):
            if not isinstance(source, HuggingFace) or not (path := Path(os.path.expanduser(source.id))).is_dir():
                continue
            if source.revision is not None:
                raise hub_only(("data", section, number, "revision"), source.id, layer)
            saved = any((path / name).is_file() for name in ("dataset_dict.json", "state.json"))
            if source.config is not None and saved:
                raise hub_only(("data", section, number, "config"), source.id, layer)


def _complete(recipe: Recipe, path: Path, plugins: tuple[Plugin, ...]) -> Recipe:
    """Return the recipe with a name, with absolute paths, and with the digests of its plugins."""
    if recipe.run.name is None:
        recipe = with_values(recipe, run=with_values(recipe.run, name=path.stem))
    if recipe.plugins is not None and plugins:
        digests = tuple(plugin.digest for plugin in plugins)
        recipe = with_values(recipe, plugins=with_values(recipe.plugins, digests=digests))
    return with_absolute_paths(recipe)


def load_resolved(path: Path, overrides: Sequence[str] = (), *, secrets: Secrets = MappingProxyType({})) -> Loaded:
    """Return a recipe that `values.dumps` wrote. Its origins are those in its comments, not the lines of this file.

    Args:
        secrets: the values that were written without their secrets.

    Raises:
        TrainkitError: the file is missing, or is not a valid recipe for this version.
    """
    layer = read_file(path)
    for key, value in secrets.items():
        _put_secret(layer.table, key, value)
    loaded = _check(layer, path, overrides, resolved=True)
    lines = layer.text.splitlines()

    def first(origin: str) -> str:
        file, _, line = origin.rpartition(":")
        return lines[int(line) - 1].rpartition("  # ")[2] or origin if file == as_shown(path) else origin

    return replace(loaded, origins={key: first(origin) for key, origin in loaded.origins.items()})


def _put_secret(table: Any, key: Key, value: Any) -> None:
    """Put a value in the place of one that was written without its secret, if that is still there."""
    for part in key[:-1]:
        inner = isinstance(table, dict) and part in table
        if not inner and not (isinstance(table, list) and isinstance(part, int) and part < len(table)):
            return
        table = table[part]
    if isinstance(table, dict) and key[-1] in table and pair(key, table[key[-1]]) == redact(pair(key, value)):
        table[key[-1]] = value


def check_lengths(loaded: Loaded, mode: str) -> None:
    """Raise TrainkitError if a new run cannot be used by its name, would end in the past, or has a schedule that is
    longer than its steps, if known.

    A built-in mode shortens the schedule with the run, as far as it can, and so does a run that has begun.
    """
    train = loaded.recipe.train
    try:
        check_name(str(loaded.recipe.run.name))
        train.check_time(datetime.now())
        if train.steps is not None and mode not in BUILT_IN:
            loaded.recipe.check_lengths(train.steps)
    except TrainkitError as error:
        raise locate_error(error, loaded) from None


def locate_error(error: TrainkitError, loaded: Loaded) -> TrainkitError:
    """Return an error about a key of the recipe with the file and line of the key's value."""
    # a table has no origin: use that of its first value that a person wrote
    written = (o for key, o in loaded.origins.items() if key.startswith(f"{error.where}.") and o != str(DEFAULT))
    origin = loaded.origins.get(error.where) or next(written, None)
    where, hint = error.where if origin in (None, str(DEFAULT)) else f"{origin}: {error.where}", error.hint
    if where == error.where and (key := _key_of_path(where, loaded)) is not None:
        hint += f"{'; ' * bool(hint)}it comes from {key} ({loaded.origins[key]})"
    return TrainkitError(error.problem, where=where, hint=hint, exit_code=error.exit_code)


def _key_of_path(where: str, loaded: Loaded) -> str | None:
    """Return the key whose path or pattern a file is of, of the data or the tokenizer; None if it is of none."""
    found: dict[int, str] = {}
    for key, value in flat(loaded.recipe).items():
        if key[:2] in _WITH_PATHS or key[:1] in _WITH_PATHS:
            for text in value if isinstance(value, tuple) else (value,):
                begins = _MAGIC.split(text, maxsplit=1)[0] if isinstance(text, str) else ""
                if ("/" in begins.strip("/") or begins == text) and begins and where.startswith(begins):
                    found[len(begins)] = dotted_key(key)
    return found[max(found)] if found else None
