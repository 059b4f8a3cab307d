"""Reading a recipe: the file, what it extends, `--set` over all; then checked, and every value with its origin."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence, Set
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
from trainkit.recipe.toml.paths import as_shown, make_absolute
from trainkit.recipe.toml.positions import Key, Origin, dotted, locate
from trainkit.recipe.toml.pretrained import LookUp, LookUpAdapter, PretrainedCheckpoint
from trainkit.recipe.toml.syntax import not_toml, unreadable
from trainkit.recipe.toml.values import flat

if TYPE_CHECKING:
    from trainkit.recipe.toml.plugins import Plugin

SET = Origin("--set")
DEFAULT = Origin("default")

#: Of these keys a table has one; a file or `--set` that gives one takes back the others given before it.
ONE_OF: dict[Key, frozenset[str]] = {
    ("train",): frozenset({"steps", "epochs", "tokens"}),
    ("tokenizer",): frozenset({"path", "train"}),
}
#: Keys that a `revision` beside them is of.
REVISED: dict[Key, frozenset[str]] = {
    ("tokenizer",): frozenset({"path", "train"}),
    ("model",): frozenset({"pretrained"}),
    ("adapter",): frozenset({"pretrained"}),
}
#: The `type` of a table that says none, where there are several to choose from; `*` is any place of a list.
TYPES: dict[Key, str] = {
    ("model",): "gpt2",
    ("model", "rope_scaling"): "linear",
    ("optimizer",): "adamw",
    ("optimizer", "groups", "*", "optimizer"): "adamw",
    ("schedule",): "cosine",
    ("task",): "causal-lm",
    ("data", "encoding"): "concatenate",
    ("data", "train", "*"): "files",
    ("data", "train", "*", "document"): "",
    ("data", "validation", "*"): "files",
    ("data", "validation", "*", "document"): "",
}


@dataclass(frozen=True)
class Loaded:
    """A recipe, where it was read, and for each dotted key (`data.train.0.path`) where its value was written:
    `recipes/quickstart.toml:14`, `--set` or `default`."""

    recipe: Recipe
    origins: dict[str, str]
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
    Without `look_up`, a model that begins with a checkpoint must say itself all that the checkpoint's config says, as
    the recipe in a run's directory does; so must, without `look_up_adapter`, an adapter.

    Raises:
        TrainkitError: a file is missing or not TOML, or the recipe is wrong; then all that is wrong is told at once.
    """
    layer = _file(path, ())
    for override in overrides:
        _override(layer, override)
    language, plugins = _language(layer)
    if look_up is not None:
        layer = _begun(layer, "model", look_up)
    if look_up_adapter is not None:
        layer = _begun(layer, "adapter", partial(look_up_adapter, tables=layer.table))
    try:
        recipe = language.model_validate(with_tuples(layer.table))
    except ValidationError as error:
        from trainkit.recipe.toml.diagnosis import diagnose

        raise diagnose(layer.table, error, origin=layer.origin, name=as_shown(path), language=language) from None
    tokenizer = recipe.tokenizer
    if tokenizer and tokenizer.revision is not None and os.path.exists(os.path.expanduser(tokenizer.path or "")):
        raise _of_the_hub(("tokenizer", "revision"), tokenizer.path, layer)
    _check_directories(recipe.data, layer)
    changed = _changed_plugins(recipe, plugins, layer)
    recipe = _complete(recipe, path, plugins)
    origins = {dotted(key): str(layer.leaf_origin(key)) for key in flat(recipe)}
    return Loaded(recipe=recipe, origins=origins, path=path, plugins=plugins, changed_plugins=changed)


def _language(layer: _Layer) -> tuple[type[Recipe], tuple[Plugin, ...]]:
    """Return the class of recipes with what the layer's plugins add, and the plugins. Raises TrainkitError."""
    files = _table_at(layer.table, "plugins").get("files")
    if not _are_texts(files) or not files:  # a wrong value is for the diagnosis
        return Recipe, ()
    from trainkit.recipe.toml import plugins

    files[:] = [os.path.abspath(os.path.expanduser(file)) for file in files]  # those of --set
    found = plugins.load_plugins(files, lambda number: str(layer.origin(("plugins", "files", number))))
    return plugins.recipe_class(found), found


def _changed_plugins(recipe: Recipe, plugins: tuple[Plugin, ...], layer: _Layer) -> tuple[str, ...]:
    """Return the files of which the recipe holds another digest; of files that `--set` names it holds none."""
    if recipe.plugins is None or layer.leaf_origin(("plugins", "files")) == SET:
        return ()
    digests = dict(zip(recipe.plugins.files, recipe.plugins.digests, strict=False))
    return tuple(str(p.path) for p in plugins if digests.get(str(p.path), p.digest) != p.digest)


def _are_texts(value: Any) -> TypeGuard[list[str]]:
    return isinstance(value, list) and all(isinstance(inner, str) and inner for inner in value)


def _begun(layer: _Layer, section: str, look_up: Callable[[str, str | None], PretrainedCheckpoint | None]) -> _Layer:
    """The layer over what the checkpoint says that its model, or its adapter, begins with, if it begins with one."""
    given = _table_at(layer.table, section)
    if not isinstance(given.get("pretrained"), str):
        return layer
    revision, where = given.get("revision"), layer.origin((section, "pretrained"))
    try:
        found = look_up(given["pretrained"], revision if isinstance(revision, str) else None)
    except TrainkitError as error:
        at = f"{where}: {error.where}" if error.where else str(where)
        raise TrainkitError(error.problem, where=at, hint=error.hint) from error
    if found is None:
        return layer
    if revision is not None and found.revision is None:
        raise _of_the_hub((section, "revision"), found.pretrained, layer)
    try:
        values = found.values_for(given)
    except TrainkitError as error:
        raise TrainkitError(error.problem, where=str(layer.origin((section,))), hint=error.hint) from None
    base: dict[str, Any] = {section: values}
    if section == "model" and not {"path", "train"} & set(_table_at(layer.table, "tokenizer")):
        base["tokenizer"] = {"path": found.pretrained, "revision": found.revision}
    origin = Origin(found.config)
    below = _Layer(base, {key: origin for key in _all_keys(base, ())}, layer.fallback)
    below.put(layer)
    below.table[section] |= {"pretrained": found.pretrained, "revision": found.revision}
    return below


def _check_directories(data: Data, layer: _Layer) -> None:
    """Raises TrainkitError where a dataset in a directory is asked for what only one of the hub has."""
    for section, sources in (("train", data.train), ("validation", data.validation)):
        for number, source in enumerate(sources):
            if not isinstance(source, HuggingFace) or not (path := Path(source.id).expanduser()).is_dir():
                continue
            if source.revision is not None:
                raise _of_the_hub(("data", section, number, "revision"), source.id, layer)
            saved = any((path / name).is_file() for name in ("dataset_dict.json", "state.json"))
            if source.config is not None and saved:
                raise _of_the_hub(("data", section, number, "config"), source.id, layer)


def _of_the_hub(key: Key, path: str | None, layer: _Layer) -> TrainkitError:
    return TrainkitError(
        f"{dotted(key)} is for what is on the hub, and {path} is on this machine",
        where=str(layer.origin(key)),
        hint="leave it out; what is here is taken as it is",
    )


def _table_at(table: dict[str, Any], name: str) -> dict[str, Any]:
    found = table.get(name)
    return found if isinstance(found, dict) else {}


class _Layer:
    """A table, and where each part of it was written."""

    def __init__(self, table: dict[str, Any], origins: dict[Key, Origin], fallback: Origin) -> None:
        self.table = table
        self.origins = origins
        self.fallback = fallback

    def origin(self, key: Key) -> Origin:
        """Where `key` or the nearest table around it was written."""
        while key and key not in self.origins:
            key = key[:-1]
        found = self.origins.get(key, self.fallback)
        return Origin(f"{SET} {dotted(key)}") if found == SET else found

    def leaf_origin(self, key: Key) -> Origin:
        """Where a value was written; a list that was changed in one place was written there."""
        inner = [origin for known, origin in self.origins.items() if known[: len(key)] == key]
        return SET if SET in inner else self.origins.get(key, DEFAULT)

    def put(self, over: _Layer) -> None:
        """Merge another layer over this one."""
        self._merge(self.table, over.table, (), over)

    def _merge(self, base: dict[str, Any], over: dict[str, Any], key: Key, layer: _Layer) -> None:
        if "type" in over:
            self.become(over["type"], base, key)
        self.take_back_rivals(base, key, over.keys())
        for name, value in over.items():
            path = (*key, name)
            if isinstance(value, dict) and isinstance(base.get(name), dict):
                self.origins[path] = layer.origins[path]
                self._merge(base[name], value, path, layer)
            else:
                base[name] = value
                self.forget(path)
                self.origins |= {known: o for known, o in layer.origins.items() if known[: len(path)] == path}

    def take_back_rivals(self, table: dict[str, Any], key: Key, given: Set[str]) -> None:
        """Remove what was given before `given` are and cannot stand with them: of keys that exclude each other the
        others, and the revision of what is another now. What a person typed stays: it may have been typed first."""
        rivals = ONE_OF.get(key, frozenset())
        old = rivals - given if rivals & given else frozenset()
        if REVISED.get(key, frozenset()) & given and self.origins.get((*key, "revision")) != SET:
            old |= {"revision"} - given
        for name in old & table.keys():
            del table[name]
            self.forget((*key, name))

    def become(self, kind: Any, table: dict[str, Any], key: Key) -> None:
        """Empty `table` where it is of another type than `kind`: what was given was meant for that one."""
        default = TYPES.get(tuple("*" if isinstance(part, int) else part for part in key))
        # which family a checkpoint is of, its config.json says
        if default is None or ("pretrained" in table and "type" not in table):
            return
        if table.get("type", default) != kind:
            self._empty(table, key)

    def _empty(self, table: dict[str, Any], key: Key) -> None:
        """Remove what files have given; what a person typed stays: it may have been typed first."""
        for name in list(table):
            path = (*key, name)
            if isinstance(table[name], dict):
                self._empty(table[name], path)
            if self.leaf_origin(path) != SET:
                del table[name]
                self.forget(path)

    def forget(self, key: Key) -> None:
        """The origins of what stood at `key`."""
        self.origins = {known: origin for known, origin in self.origins.items() if known[: len(key)] != key}


def _file(path: Path, chain: tuple[Path, ...]) -> _Layer:
    """A file merged over what it extends; `chain` are the files that led here."""
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
    if _are_texts(files := _table_at(table, "plugins").get("files")):
        files[:] = [os.path.abspath(path.parent / os.path.expanduser(file)) for file in files]
    own = _Layer(table, lines, Origin(shown))
    merged = _Layer({}, {}, Origin(shown))
    for base in _extends(own):
        merged.put(_file(path.parent / base, (*chain, path)))
    merged.put(own)
    return merged


def _extends(layer: _Layer) -> list[str]:
    value = layer.table.pop("extends", [])
    bases = [value] if isinstance(value, str) else value
    if not _are_texts(bases):
        raise TrainkitError(
            "extends takes a path or a list of paths, relative to this file",
            where=str(layer.origin(("extends",))),
            hint='extends = ["base/small-gpt.toml"]',
        )
    return bases


def _override(layer: _Layer, override: str) -> None:
    """Put one `a.b=c` over the table; `c` is TOML, or a bare string where it is not."""
    name, equals, text = override.partition("=")
    key: Key = tuple(part.strip() for part in name.split("."))
    where = f"--set {override}"
    if not equals or not all(key):
        raise TrainkitError("an override is written KEY=VALUE", where=where, hint="--set train.steps=100")
    table: Any = layer.table
    at: Key = ()
    for part in key[:-1]:
        place = _place(table, str(part), where, at)
        at = (*at, place)
        if isinstance(table, dict) and place not in table:
            table[place] = {}
            layer.origins[at] = SET
        table = table[place]
    place, value = _place(table, str(key[-1]), where, at), _override_value(text)
    if isinstance(table, dict):
        if place == "type":
            layer.become(value, table, at)
        layer.take_back_rivals(table, at, {str(place)})
    at = (*at, place)
    table[place] = value
    layer.forget(at)
    layer.origins |= {known: SET for known in _all_keys(value, at)}


def _place(table: Any, part: str, where: str, at: Key) -> Any:
    """The part of an override's key as it is used in `table`."""
    if isinstance(table, dict):
        return part
    if isinstance(table, list):
        if part.isdecimal() and int(part) < len(table):
            return int(part)
        found = f"{dotted(at)} is a list of {len(table)}"
        raise TrainkitError(f"{found}; '{part}' is none of its places", where=where, hint="places count from 0")
    raise TrainkitError(f"{dotted(at)} is a value and has no '{part}' in it", where=where, hint=f"--set {dotted(at)}=…")


def _override_value(text: str) -> Any:
    try:
        table = tomli.loads(f"value = {text}")
    except (tomli.TOMLDecodeError, RecursionError):
        return text
    return table["value"] if table.keys() == {"value"} else text


def _all_keys(value: Any, key: Key) -> list[Key]:
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [key, *(found for part, child in inner for found in _all_keys(child, (*key, part)))]


def _complete(recipe: Recipe, path: Path, plugins: tuple[Plugin, ...]) -> Recipe:
    """With a name, with absolute paths, and with the digests of its plugins."""
    values = recipe.model_dump(by_alias=True)
    if values["run"]["name"] is None:
        values["run"]["name"] = path.stem
    if plugins:
        values["plugins"]["digests"] = tuple(plugin.digest for plugin in plugins)
    make_absolute(values)
    if "task" not in recipe.model_fields_set:  # whether the documents fit a task is asked where a task is named
        del values["task"]
    return type(recipe).model_validate(values)


def load_resolved(path: Path, overrides: Sequence[str] = ()) -> Loaded:
    """Read what `write.dumps` wrote; origins are those that it wrote down, not the lines of this file.

    Raises:
        TrainkitError: the file is missing or is no valid recipe (any more).
    """
    loaded = load(path, overrides)
    lines = path.read_text(encoding="utf-8").splitlines()

    def first(origin: str) -> str:
        file, _, line = origin.rpartition(":")
        return lines[int(line) - 1].rpartition("  # ")[2] or origin if file == as_shown(path) else origin

    return replace(loaded, origins={key: first(origin) for key, origin in loaded.origins.items()})


def locate_error(error: TrainkitError, loaded: Loaded) -> TrainkitError:
    """An error about a key of the recipe (such as those of a plan), with the file and line where its value stands."""
    # a table has no line of its own here: the first value in it that somebody wrote stands for it
    written = (o for key, o in loaded.origins.items() if key.startswith(f"{error.where}.") and o != str(DEFAULT))
    origin = loaded.origins.get(error.where) or next(written, None)
    where = error.where if origin in (None, str(DEFAULT)) else f"{origin}: {error.where}"
    return TrainkitError(error.problem, where=where, hint=error.hint, exit_code=error.exit_code)
