"""Loading a recipe: its layers are merged, then checked once; a key without any effect is refused."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from pydantic import ValidationError

from trainkit.errors import TrainkitError
from trainkit.recipe import Recipe
from trainkit.recipe.sections.data import Data, HuggingFace
from trainkit.recipe.spec import with_tuples
from trainkit.recipe.toml.files import are_texts, as_shown, read_file, with_absolute_paths, with_values
from trainkit.recipe.toml.layers import DEFAULT, SET, Layer, put_override, table_at
from trainkit.recipe.toml.modes import BUILT_IN, FULL, check_mode, in_mode, take_modes
from trainkit.recipe.toml.positions import Key, dotted
from trainkit.recipe.toml.pretrained import LookUp, LookUpAdapter, hub_only, put_below
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
    if recipe.sweep is not None:
        origins |= {
            f"sweep.parameters.{key}": str(layer.origin(("sweep", "parameters", key)))
            for key in recipe.sweep.parameters
        }
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
            if not isinstance(source, HuggingFace) or not (path := Path(source.id).expanduser()).is_dir():
                continue
            if source.revision is not None:
                raise hub_only(("data", section, number, "revision"), source.id, layer)
            saved = any((path / name).is_file() for name in ("dataset_dict.json", "state.json"))
            if source.config is not None and saved:
                raise hub_only(("data", section, number, "config"), source.id, layer)


def _completed(recipe: Recipe, path: Path, plugins: tuple[Plugin, ...]) -> Recipe:
    """Return the recipe with a name, with absolute paths, and with the digests of its plugins."""
    if recipe.run.name is None:
        recipe = with_values(recipe, run=with_values(recipe.run, name=path.stem))
    if recipe.plugins is not None and plugins:
        digests = tuple(plugin.digest for plugin in plugins)
        recipe = with_values(recipe, plugins=with_values(recipe.plugins, digests=digests))
    return with_absolute_paths(recipe)


def load_resolved(path: Path, overrides: Sequence[str] = ()) -> Loaded:
    """Return a recipe that `values.dumps` wrote. Its origins are those in its comments, not the lines of this file.

    Raises:
        TrainkitError: the file is missing, or is not a valid recipe for this version.
    """
    layer = read_file(path)
    loaded = _check(layer, path, overrides, resolved=True)
    lines = layer.text.splitlines()

    def first(origin: str) -> str:
        file, _, line = origin.rpartition(":")
        return lines[int(line) - 1].rpartition("  # ")[2] or origin if file == as_shown(path) else origin

    return replace(loaded, origins={key: first(origin) for key, origin in loaded.origins.items()})


def check_lengths(loaded: Loaded, mode: str) -> None:
    """Raise TrainkitError if a new run would end in the past, or its schedule is longer than its steps, if known.

    A built-in mode shortens the schedule with the run, as far as it can, and so does a run that has begun.
    """
    train = loaded.recipe.train
    try:
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
    where = error.where if origin in (None, str(DEFAULT)) else f"{origin}: {error.where}"
    return TrainkitError(error.problem, where=where, hint=error.hint, exit_code=error.exit_code)


class Ignored(NamedTuple):
    """Keys that have no effect, and why."""

    keys: tuple[Key, ...]
    causes: tuple[Key, ...]
    """The keys whose values, or absence, make the others useless."""
    why: str
    hint: str


def check_ignored_keys(recipe: Recipe, layer: Layer, *, top: str | None) -> None:
    """Check that every key of a recipe has an effect.

    A key in an extended file is not refused if the recipe that extends it makes it useless, because that recipe could
    not remove it.

    Args:
        top: the file that the recipe was read from; None to check only what `--set` gives, as of a run's own recipe,
            which holds every default.

    Raises:
        TrainkitError: some have none; all of them are reported together.
    """

    def rank(key: Key) -> int:
        """Return how late a key was written: 0 never, 1 in an extended file, 2 in the file itself, 3 with --set."""
        origin = layer.leaf_origin(key)
        return 0 if origin == DEFAULT else 3 if origin == SET else 2 if origin.file == top else 1

    least = 1 if top is not None else 3

    def is_refused(key: Key, case: Ignored) -> bool:
        written = max(map(rank, case.causes)) or 2  # nothing that an extended file could have known
        return rank(key) >= max(least, written)

    found = [(key, case) for case in _ignored(recipe) for key in case.keys if is_refused(key, case)]
    if not found:
        return
    problems = [f"{dotted(key)} has no effect: {case.why}" for key, case in found]
    places = [str(layer.origin(key)) for key, _ in found]
    hint = "; or ".join(dict.fromkeys(case.hint for _, case in found))
    more = "".join(f"\n{place}: {problem}" for place, problem in zip(places[1:], problems[1:], strict=True))
    raise TrainkitError(problems[0] + more, where=places[0], hint=hint)


def _ignored(recipe: Recipe) -> Iterator[Ignored]:
    if not recipe.data.validation_names:
        yield Ignored(
            _keys("evaluate", "every", "batch_size", "max_batches"),
            (("data", "validation"), ("data", "held_out")),
            "there is no validation set",
            "leave it out, or add [[data.validation]] or data.held_out",
        )
    if recipe.sample is not None and recipe.sample.temperature == 0:
        yield Ignored(
            _keys("sample", "top_k", "top_p", "min_p"),
            (("sample", "temperature"),),
            "sample.temperature = 0 always takes the likeliest token",
            "leave it out, or give a temperature above 0",
        )
    if recipe.adapter is not None:
        yield Ignored(
            _keys("precision", "rounding"),
            (("adapter",),),
            "an adapter is trained in float32, which needs no rounding",
            "leave it out",
        )
    elif recipe.precision.params == "float32":
        yield Ignored(
            _keys("precision", "rounding"),
            (("precision", "params"),),
            'precision.params = "float32" needs no rounding',
            'leave it out, or write precision.params = "bfloat16"',
        )
    kept, steps = recipe.checkpoint.keep_every, recipe.train.steps
    if isinstance(kept, tuple) and steps is not None and kept and kept[-1] > steps:
        yield Ignored(
            (("checkpoint", "keep_every"),),
            (("train", "steps"),),
            f"the run ends after step {steps:,}, before step {kept[-1]:,}",
            f"leave it out, or list only steps up to {steps:,}",
        )
    groups = recipe.optimizer.groups
    for number in range(len(groups)):
        # a later group may match the same parameters, and its factor is the one that counts
        if all(later.learning_rate_factor == 0 for later in groups[number:]):
            place: Key = ("optimizer", "groups", number)
            yield Ignored(
                ((*place, "weight_decay"),),
                ((*place, "learning_rate_factor"),),
                "learning_rate_factor = 0 freezes the parameters of this group",
                "leave it out, or give a factor above 0",
            )


def _keys(section: str, *names: str) -> tuple[Key, ...]:
    return tuple((section, name) for name in names)
