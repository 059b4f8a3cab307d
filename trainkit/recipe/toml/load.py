"""Reading a recipe: its layers are merged, then checked once; every value keeps its origin."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeGuard

import tomli
from pydantic import ValidationError

from trainkit.errors import TrainkitError
from trainkit.recipe import Recipe
from trainkit.recipe.sections.data import Data, HuggingFace
from trainkit.recipe.spec import with_tuples
from trainkit.recipe.toml.ignored import check_ignored_keys
from trainkit.recipe.toml.layers import DEFAULT, SET, Layer, table_at
from trainkit.recipe.toml.overrides import put_override
from trainkit.recipe.toml.paths import as_shown, with_absolute_paths, with_values
from trainkit.recipe.toml.positions import Origin, dotted, locate
from trainkit.recipe.toml.pretrained import LookUp, LookUpAdapter, hub_only, put_below
from trainkit.recipe.toml.syntax import not_toml, unreadable
from trainkit.recipe.toml.values import flat

if TYPE_CHECKING:
    from trainkit.recipe.toml.plugins import Plugin


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
    look_up: LookUp | None = None,
    look_up_adapter: LookUpAdapter | None = None,
) -> Loaded:
    """Read `path`, put `overrides` (`"train.steps=10"`) over it, and check all of it.

    Relative paths in it are made absolute against the working directory, so that a run can be resumed from anywhere.

    Args:
        look_up: reads the config of the checkpoint that `[model] pretrained` names. Without it, the recipe itself must
            hold everything that the config says, as the recipe in a run's directory does.
        look_up_adapter: the same for `[adapter] pretrained`.

    Raises:
        TrainkitError: a file is missing or not TOML, or the recipe is wrong; then all errors are reported together.
    """
    return _check(_read(path), path, overrides, look_up=look_up, look_up_adapter=look_up_adapter)


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
        layer = put_below(layer, "model", look_up)
    if look_up_adapter is not None:
        layer = put_below(layer, "adapter", partial(look_up_adapter, tables=layer.table))
    try:
        recipe = language.model_validate(with_tuples(layer.table))
    except ValidationError as error:
        from trainkit.recipe.toml.diagnosis import diagnose

        raise diagnose(layer.table, error, origin=layer.origin, name=as_shown(path), language=language) from None
    tokenizer = recipe.tokenizer
    if tokenizer and tokenizer.revision is not None and os.path.exists(os.path.expanduser(tokenizer.path or "")):
        raise hub_only(("tokenizer", "revision"), tokenizer.path, layer)
    _check_directories(recipe.data, layer)
    check_ignored_keys(recipe, layer, top=None if resolved else as_shown(path))
    changed = _changed_plugins(recipe, plugins, layer)
    recipe = _completed(recipe, path, plugins)
    origins = {dotted(key): str(layer.leaf_origin(key)) for key in flat(recipe)}
    return Loaded(recipe=recipe, origins=origins, path=path, plugins=plugins, changed_plugins=changed)


def _language(layer: Layer) -> tuple[type[Recipe], tuple[Plugin, ...]]:
    """Return the class of recipes with what the layer's plugins add, and the plugins. Raises TrainkitError."""
    files = table_at(layer.table, "plugins").get("files")
    if not _are_texts(files) or not files:  # a wrong value is for the diagnosis
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


def _are_texts(value: Any) -> TypeGuard[list[str]]:
    return isinstance(value, list) and all(isinstance(inner, str) and inner for inner in value)


def _check_directories(data: Data, layer: Layer) -> None:
    """Raise TrainkitError where a dataset in a directory is given keys that only a dataset on the hub has."""
    for section, sources in (("train", data.train), ("validation", data.validation)):
        for number, source in enumerate(sources):
            if not isinstance(source, HuggingFace) or not (path := Path(source.id).expanduser()).is_dir():
                continue
            if source.revision is not None:
                raise hub_only(("data", section, number, "revision"), source.id, layer)
            saved = any((path / name).is_file() for name in ("dataset_dict.json", "state.json"))
            if source.config is not None and saved:
                raise hub_only(("data", section, number, "config"), source.id, layer)


def _read(path: Path, chain: tuple[Path, ...] = ()) -> Layer:
    """Return a file merged over what it extends; `chain` are the files that led here."""
    shown = as_shown(path)
    led_here = " -> ".join([*map(as_shown, chain), shown])
    resolved = path.resolve()
    if resolved in [known.resolve() for known in chain]:
        raise TrainkitError("a recipe extends itself", where=led_here, hint="take one of these out of an extends")
    try:
        text = path.read_bytes().decode("utf-8-sig").replace("\r\n", "\n")
    except (OSError, UnicodeDecodeError) as error:
        raise unreadable(path, error, where=led_here) from error
    try:
        table = tomli.loads(text)
    except (tomli.TOMLDecodeError, RecursionError) as error:
        raise not_toml(text, error, shown) from error
    lines = {key: Origin(shown, line) for key, line in locate(text).items()}
    if _are_texts(files := table_at(table, "plugins").get("files")):
        files[:] = [os.path.abspath(path.parent / os.path.expanduser(file)) for file in files]
    own = Layer(table, lines, Origin(shown))
    merged = Layer({}, {}, Origin(shown), text=text)
    for base in _extends(own):
        merged.put(_read(path.parent / base, (*chain, path)))
    merged.put(own)
    return merged


def _extends(layer: Layer) -> list[str]:
    value = layer.table.pop("extends", [])
    bases = [value] if isinstance(value, str) else value
    if not _are_texts(bases):
        raise TrainkitError(
            "extends takes a path or a list of paths, relative to this file",
            where=str(layer.origin(("extends",))),
            hint='extends = ["base/small-gpt.toml"]',
        )
    return bases


def _completed(recipe: Recipe, path: Path, plugins: tuple[Plugin, ...]) -> Recipe:
    """Return the recipe with a name, with absolute paths, and with the digests of its plugins."""
    if recipe.run.name is None:
        recipe = with_values(recipe, run=with_values(recipe.run, name=path.stem))
    if recipe.plugins is not None and plugins:
        digests = tuple(plugin.digest for plugin in plugins)
        recipe = with_values(recipe, plugins=with_values(recipe.plugins, digests=digests))
    return with_absolute_paths(recipe)


def load_resolved(path: Path, overrides: Sequence[str] = ()) -> Loaded:
    """Read a recipe that `write.dumps` wrote. The origins are those in its comments, not the lines of this file.

    Raises:
        TrainkitError: the file is missing, or is not a valid recipe for this version.
    """
    layer = _read(path)
    loaded = _check(layer, path, overrides, resolved=True)
    lines = layer.text.splitlines()

    def first(origin: str) -> str:
        file, _, line = origin.rpartition(":")
        return lines[int(line) - 1].rpartition("  # ")[2] or origin if file == as_shown(path) else origin

    return replace(loaded, origins={key: first(origin) for key, origin in loaded.origins.items()})


def locate_error(error: TrainkitError, loaded: Loaded) -> TrainkitError:
    """Return an error about a key of the recipe with the file and line of the key's value."""
    # a table has no line of its own here: the first value in it that a person wrote stands for it
    written = (o for key, o in loaded.origins.items() if key.startswith(f"{error.where}.") and o != str(DEFAULT))
    origin = loaded.origins.get(error.where) or next(written, None)
    where = error.where if origin in (None, str(DEFAULT)) else f"{origin}: {error.where}"
    return TrainkitError(error.problem, where=where, hint=error.hint, exit_code=error.exit_code)
