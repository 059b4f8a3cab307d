"""Which data a run was trained on, as its directory records it: so that no other data is taken for it."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

from trainkit.data.cache import ledger
from trainkit.data.cache.build import Cache, begin, build, may_start_early
from trainkit.data.cache.sets import set_of_ledgers
from trainkit.data.progress import Tell
from trainkit.data.tokenizer.vocabulary import load
from trainkit.errors import TrainkitError
from trainkit.recipe import Recipe

NAME = "data.json"
#: Files that an error names.
_NAMED = 3


@dataclass(frozen=True)
class Recorded:
    """The fingerprint of a run's data, and the ledgers that it is made of."""

    fingerprint: str
    ledgers: tuple[str, ...] = ()


class _OtherData(TrainkitError):
    """The sources are not what the run was trained on."""

    def __init__(self, problem: str, run: Path, *, only_gone: bool) -> None:
        super().__init__(
            f"{problem}: this is not the data that the run was trained on",
            where=str(run),
            hint="bring the source files and the tokenizer back as they were; trainkit inspect RECIPE shows other data",
        )
        self.only_gone = only_gone


def keep(cache: Cache, run: Path) -> None:
    """Write down in the run's directory which data it is trained on. Raises OSError."""
    found = asdict(Recorded(cache.fingerprint, cache.ledgers))
    draft = run / f".{NAME}"
    draft.write_text(json.dumps(found), encoding="utf-8")
    draft.replace(run / NAME)


def with_own_tokenizer(recipe: Recipe, run: Path) -> Recipe:
    """Return the recipe with the tokenizer that was trained for the run, where there is one: trained again, by another
    version or on another sample of the same text, it would be another."""
    path = run / "tokenizer.json"
    if recipe.tokenizer is None or recipe.tokenizer.train is None or not path.is_file():
        return recipe
    own = recipe.tokenizer.model_copy(update={"train": None, "path": str(path)})
    return recipe.model_copy(update={"tokenizer": own})


def read(run: Path) -> Recorded | None:
    """What a run has written down; None where an earlier version began it."""
    try:
        found = json.loads((run / NAME).read_bytes())
        return Recorded(str(found["fingerprint"]), tuple(map(str, found["ledgers"])))
    except (OSError, ValueError, KeyError, TypeError):
        return None


def open_again(
    recipe: Recipe,
    run: Path,
    recorded: Recorded,
    *,
    accept: Callable[[Cache], bool] = lambda cache: False,
    progress: Tell = None,
) -> Cache:
    """The cache that a run was trained on. What is missing of it is tokenised again, as `begin` and `build` do; where
    sources are gone, but the cache is whole, it is used without them.

    Args:
        accept: whether to take a cache with another fingerprint than the recorded one.

    Raises:
        TrainkitError: the sources or the tokenizer have changed since, or they are gone and the cache is not whole.
    """
    make = begin if may_start_early(recipe) else build
    try:
        return make(recipe, progress=progress, check=partial(_check_same, run, recorded, accept))
    except TrainkitError as error:
        there = None if isinstance(error, _OtherData) and not error.only_gone else _whole(recipe, run, recorded)
        if there is None:
            raise
        return there


def _check_same(run: Path, recorded: Recorded, accept: Callable[[Cache], bool], cache: Cache) -> None:
    if cache.fingerprint != recorded.fingerprint and not accept(cache):
        differences, only_gone = _differences(recorded, cache)
        raise _OtherData(
            differences or "the tokenizer, or how documents are read, has changed", run, only_gone=only_gone
        )


def _differences(recorded: Recorded, cache: Cache) -> tuple[str, bool]:
    """Which files differ from those of the run, and whether they are merely gone."""
    told: list[str] = []
    gone = 0
    for name, units in zip(recorded.ledgers, cache.units["train"], strict=False):
        before = {file["name"]: file for file in ledger.files_of(cache.directory, name) or ()}
        now = {f.name: (f, c) for unit in units for f, c in zip(unit.files, unit.contents, strict=True)}
        for name, file in before.items():
            if name not in now:
                told.append(f"{file['path']} is gone")
                gone += 1
            elif now[name][1].digest != file["digest"]:
                told.append(f"{file['path']} has changed")
        told += [f"{now[name][0].path} was added" for name in now if before and name not in before]
    more = f" and {len(told) - _NAMED} more" if len(told) > _NAMED else ""
    return ", ".join(told[:_NAMED]) + more, 0 < gone == len(told)


def _whole(recipe: Recipe, run: Path, recorded: Recorded) -> Cache | None:
    """The cache by its ledgers alone; None where it, or the run's tokenizer, is not as it was."""
    codec = None
    if recipe.data.is_text:
        if not (run / "tokenizer.json").is_file():
            return None
        codec = load(run / "tokenizer.json")
    found = set_of_ledgers(recipe, codec, recorded.ledgers)
    cache = found and Cache(recipe, codec, [found])
    return cache if cache and cache.fingerprint == recorded.fingerprint else None
