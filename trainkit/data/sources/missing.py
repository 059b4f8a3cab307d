"""What is wrong with the sources of a recipe that can be known before data is read: files that do not exist, URLs that
cannot be opened, documents that do not fit their files, and mistakes in templates. No other machine is asked."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from trainkit.data.hub_files import HUB_ID
from trainkit.data.sources.files import is_remote, suffixes, why_unusable
from trainkit.data.sources.patterns import match_files, nearest
from trainkit.errors import TrainkitError
from trainkit.recipe import Recipe
from trainkit.recipe.sections.source import FILE_FORMATS, Files, SourceSpec, Tokens, document_of
from trainkit.recipe.toml.files import as_shown


def missing_files(recipe: Recipe) -> Iterator[TrainkitError]:
    """Yield an error for each key whose path or pattern matches no file, with the key as its place.

    Pretrained models and adapters are left out, because loading the recipe has looked for them already.
    """
    for section, sources in (("train", recipe.data.train), ("validation", recipe.data.validation)):
        for number, source in enumerate(sources):
            place = f"data.{section}.{number}"
            missing = list(_of_source(place, source))
            yield from missing or _of_documents(place, source, Path(recipe.data.cache))
    path = recipe.tokenizer.path if recipe.tokenizer else None
    if path is not None and (path.endswith(".json") or not HUB_ID.fullmatch(path)):
        yield from _unless_it_exists("tokenizer.path", path)
    directory = Path(os.path.expanduser(path or ""))
    if path and directory.is_dir() and not (directory / "tokenizer.json").is_file():
        problem = f'tokenizer.path = "{as_shown(directory)}": the directory holds no tokenizer.json'
        yield TrainkitError(problem, where="tokenizer.path", hint="name the directory that holds it, or the file")


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


def _of_documents(place: str, source: SourceSpec, cache: Path) -> Iterator[TrainkitError]:
    """Yield what is wrong with the documents of a source whose files exist."""
    document = document_of(source)
    try:
        if isinstance(source, Files | Tokens) and not any(map(is_remote, _texts(source.path))):
            if document is not None or not _has_usual_files(source):
                from trainkit.data.sources.listing import list_files  # it loads numpy

                list_files(source, cache)
        elif document is not None and document.templates:
            from trainkit.data.documents import templates

            templates.check(document)
        if document is not None and (chosen := document.chat_template) is not None:
            from trainkit.data.documents.chat_template import check_syntax

            check_syntax(chosen)
    except TrainkitError as error:
        at = f"{place}.{'document' if document is not None else 'path'}"
        problem = error.problem if error.where.startswith("data.") else f"{error.where}: {error.problem}"
        yield TrainkitError(f"{at}: {problem}", where=at, hint=error.hint)


def _has_usual_files(source: Files | Tokens) -> bool:
    """Return whether the names of its patterns tell the format of its files."""
    known = {suffix for each in FILE_FORMATS for suffix in each.suffixes}
    patterns = _texts(source.path)
    return (
        isinstance(source, Files)
        and (source.format != "auto" or all(suffixes(pattern)[0] in known for pattern in patterns))
        and source.text_key == "text"
    )


def _texts(value: str | Sequence[str] | None) -> Sequence[str]:
    return () if value is None else (value,) if isinstance(value, str) else value


def _unless_it_matches(place: str, pattern: str) -> Iterator[TrainkitError]:
    if is_remote(pattern):
        if (why := why_unusable(pattern)) is not None:
            yield TrainkitError(f'{place} = "{pattern}": {why[0]}', where=place, hint=why[1])
    else:
        try:
            match_files(pattern)
        except TrainkitError as error:
            problem = f'{place} = "{as_shown(Path(pattern))}": {error.problem}'
            yield TrainkitError(problem, where=place, hint=error.hint)


def _unless_it_exists(place: str, text: str) -> Iterator[TrainkitError]:
    path = Path(os.path.abspath(os.path.expanduser(text.removeprefix("file://"))))
    if not is_remote(text) and not os.path.exists(path):
        yield TrainkitError(f'{place} = "{as_shown(path)}": no such file', where=place, hint=nearest(path))
