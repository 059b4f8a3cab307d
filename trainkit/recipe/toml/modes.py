"""Modes of a recipe: `[mode.NAME]` holds keys that `--mode NAME` puts over the recipe; `--set` goes over both.

`toy` and `sanity` shorten any recipe, even one without such a table. A table changes more.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeGuard

from trainkit.errors import TrainkitError
from trainkit.recipe.toml.layers import Layer, put_value, table_at
from trainkit.recipe.toml.positions import Key, Origin, dotted_key

#: The recipe as it is written.
FULL = "full"
#: The modes that shorten any recipe.
BUILT_IN = ("toy", "sanity")
#: The most steps of the mode `sanity`, the most batches that it evaluates of each validation set, and the most texts
#: that it generates for each.
SANITY_STEPS, SANITY_BATCHES, SANITY_ITEMS = 20, 4, 8
#: What the mode `toy` divides the length of a run by.
TOY = 10
#: How long the mode `toy` trains a run that ends at a time.
TOY_DURATION = "5m"


def take_modes(layer: Layer) -> Layer:
    """Remove `[mode]` from a recipe's layer, and return it as a layer of its own.

    Raises:
        TrainkitError: `[mode]` is not a table of tables, or holds a table named `full`.
    """
    modes = Layer({"mode": layer.table.pop("mode", {})}, layer.origins, layer.fallback)
    layer.forget(("mode",))
    tables = modes.table["mode"]
    wrong = [()] if not isinstance(tables, dict) else [(n,) for n, t in tables.items() if not isinstance(t, dict)]
    if wrong:
        key = ("mode", *wrong[0])
        hint = "[mode.toy] holds the keys that --mode toy changes"
        raise TrainkitError(f"{dotted_key(key)} is not a table", where=str(modes.origin(key)), hint=hint)
    if FULL in tables:
        where = str(modes.origin(("mode", FULL)))
        raise TrainkitError(f"'{FULL}' is the recipe as it is written", where=where, hint="give the mode another name")
    return modes


def names_of(modes: Layer) -> list[str]:
    """Return the names of the modes that change a recipe: the built-in ones and those of its own tables."""
    return list(dict.fromkeys([*BUILT_IN, *modes.table["mode"]]))


def check_mode(modes: Layer, mode: str, path: Path) -> None:
    """Raise TrainkitError if the recipe at `path` has no such mode."""
    known = [FULL, *names_of(modes)]
    if mode not in known:
        near = difflib.get_close_matches(mode, known, n=1)
        hint = f"did you mean {near[0]}?" if near else f"its modes are {', '.join(known)}"
        raise TrainkitError(f"the recipe has no mode '{mode}'", where=f"{path}: --mode", hint=hint)


def in_mode(layer: Layer, modes: Layer, mode: str, path: Path) -> Layer:
    """Return a copy of a recipe's layer with what a mode that it has changes put over it.

    Args:
        path: of the recipe.

    Raises:
        TrainkitError: a key of the mode leads nowhere.
    """
    changed = Layer(deepcopy(layer.table), dict(layer.origins), layer.fallback, text=layer.text)
    if mode == FULL:
        return changed
    for key, value in _leaves(_built_in(mode, layer.table, path)):
        put_value(changed, key, value, Origin(f"mode {mode}"), where=f"mode {mode}")
    for key, value in _leaves(modes.table["mode"].get(mode, {})):
        origin = replace(modes.origin(("mode", mode, *key)), mode=mode)
        put_value(changed, key, value, origin, where=str(origin))
    return changed


def _leaves(table: dict[str, Any], key: Key = ()) -> Iterator[tuple[Key, Any]]:
    """Yield every value of a table with its key; `type` comes first, because a new type empties its table."""
    for name in sorted(table, key=lambda name: name != "type"):
        value = table[name]
        if isinstance(value, dict) and value:
            yield from _leaves(value, (*key, name))
        else:
            yield (*key, name), value


def _built_in(mode: str, table: dict[str, Any], path: Path) -> dict[str, Any]:
    """Return the changes that a mode makes to a recipe before those of its own table, such as the name of the run."""
    run, train = table_at(table, "run"), table_at(table, "train")
    changes: dict[str, Any] = {"run": {"name": f"{run.get('name', path.stem)}-{mode}"}}
    if mode not in BUILT_IN:
        return changes
    given = {key: train[key] for key in ("steps", "epochs", "tokens") if _is_number(train.get(key))}
    if mode == "sanity":
        steps = min(SANITY_STEPS, given.get("steps", SANITY_STEPS))
        most = table_at(table, "evaluate").get("max_batches")
        batches = min(SANITY_BATCHES, most) if _is_number(most) else SANITY_BATCHES
        changes |= {"train": {"steps": steps}, "evaluate": {"max_batches": batches}}
        if isinstance(generate := table_at(table, "evaluate").get("generate"), dict):
            most = generate.get("max_items")
            changes["evaluate"]["generate"] = {
                "max_items": min(SANITY_ITEMS, most) if _is_number(most) else SANITY_ITEMS
            }
    else:
        changes["train"] = {key: value / TOY if key == "epochs" else _tenth(value) for key, value in given.items()}
    timed = [key for key in ("until", "duration") if train.get(key) is not None]
    if mode == "sanity":
        changes["train"] |= dict.fromkeys(timed)
    elif timed:
        changes["train"] = {"until": None, "duration": TOY_DURATION}
    known = None if timed else given.get("steps")  # otherwise they are only the most that a run may take
    if shorter := _shorter(table_at(table, "schedule"), known, tenth=mode == "toy"):
        changes["schedule"] = shorter
    if schedules := _sooner(table_at(table, "schedules"), known, changes["train"].get("steps"), tenth=mode == "toy"):
        changes["schedules"] = schedules
    for section in ("evaluate", "sample", "export"):
        if _is_number(every := table_at(table, section).get("every")):
            sooner = changes["train"]["steps"] if mode == "sanity" else _tenth(every)
            changes.setdefault(section, {})["every"] = sooner
    return changes


def _shorter(schedule: dict[str, Any], steps: Any, *, tenth: bool) -> dict[str, Any]:
    """Return the lengths of a schedule that are given in steps, for a shorter run: as fractions of the `steps` of the
    recipe. Without such a number they are divided as the run is, or stay, if that is unknown too."""

    def shorter(length: Any) -> Any:
        if not isinstance(length, int) or isinstance(length, bool) or length <= 0:
            return length
        return min(1.0, length / steps) if steps else _tenth(length) if tenth else length

    changes = {key: shorter(schedule[key]) for key in ("warmup", "decay", "cooldown") if key in schedule}
    return {key: length for key, length in changes.items() if length != schedule[key]}


def _sooner(schedules: dict[str, Any], steps: Any, shorter: Any, *, tenth: bool) -> dict[str, Any]:
    """Return [schedules] for a run that is `shorter` than its `steps`, or a tenth of it: phases, stages and points come
    as much sooner, each at a step of its own."""
    share = shorter / steps if steps and shorter else 1 / TOY if tenth else 1

    def places(value: Any) -> Any:
        if not (isinstance(value, list) and all(isinstance(v, list) and len(v) == 2 for v in value)):
            return value
        if not all(isinstance(step, int) for step, _ in value):
            return value
        found: list[list[Any]] = []
        for step, at in value:
            found.append([max(int(step * share), found[-1][0] + 1 if found else 0), at])
        return found

    def sooner(table: dict[str, Any]) -> dict[str, Any]:
        return {name: moved for name, value in table.items() if (moved := places(value)) != value}

    changes = sooner(schedules)
    for name, value in schedules.items():
        if isinstance(value, dict):
            changes[name] = sooner(value) | ({} if name == "mixture" else _shorter(value, steps, tenth=tenth))
    return {name: value for name, value in changes.items() if value}


def _tenth(number: float) -> int:
    return max(1, int(number // TOY))


def _is_number(value: Any) -> TypeGuard[int | float]:
    return isinstance(value, int | float) and not isinstance(value, bool)
