"""Local files that a recipe names and that do not exist. No file is read, and no other machine is asked."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from trainkit.data.hub_files import HUB_ID
from trainkit.data.sources.files import is_remote
from trainkit.data.sources.patterns import match_files, nearest
from trainkit.errors import TrainkitError
from trainkit.recipe import Recipe
from trainkit.recipe.sections.source import Files, SourceSpec, Tokens, document_of
from trainkit.recipe.toml.files import as_shown


def missing_files(recipe: Recipe) -> Iterator[TrainkitError]:
    """Yield an error for each key whose path or pattern matches no file, with the key as its place.

    Pretrained models and adapters are left out, because loading the recipe has looked for them already.
    """
    for section, sources in (("train", recipe.data.train), ("validation", recipe.data.validation)):
        for number, source in enumerate(sources):
            yield from _of_source(f"data.{section}.{number}", source)
    path = recipe.tokenizer.path if recipe.tokenizer else None
    if path is not None and (path.endswith(".json") or not HUB_ID.fullmatch(path)):
        yield from _unless_it_exists("tokenizer.path", path)


def _of_source(place: str, source: SourceSpec) -> Iterator[TrainkitError]:
    for key in source.path_keys:
        for path in _texts(getattr(source, key)):
            if isinstance(source, Files | Tokens):
                yield from _unless_it_matches(f"{place}.{key}", path)
            else:
                yield from _unless_it_exists(f"{place}.{key}", path)
    for key in source.hub_keys:
        if not HUB_ID.fullmatch(path := getattr(source, key)):
            yield from _unless_it_exists(f"{place}.{key}", path)
    if (document := document_of(source)) is not None:
        for key in document.path_keys:
            for path in _texts(getattr(document, key)):
                yield from _unless_it_exists(f"{place}.document.{key}", path)


def _texts(value: str | Sequence[str] | None) -> Sequence[str]:
    return () if value is None else (value,) if isinstance(value, str) else value


def _unless_it_matches(place: str, pattern: str) -> Iterator[TrainkitError]:
    if not is_remote(pattern):
        try:
            match_files(pattern)
        except TrainkitError as error:
            problem = f'{place} = "{as_shown(Path(pattern))}": {error.problem}'
            yield TrainkitError(problem, where=place, hint=error.hint)


def _unless_it_exists(place: str, text: str) -> Iterator[TrainkitError]:
    path = Path(os.path.abspath(os.path.expanduser(text.removeprefix("file://"))))
    if not is_remote(text) and not os.path.exists(path):
        yield TrainkitError(f'{place} = "{as_shown(path)}": no such file', where=place, hint=nearest(path))
