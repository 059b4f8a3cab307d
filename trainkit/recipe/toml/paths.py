"""The paths of a recipe, made absolute, so that a run can be resumed from anywhere."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any, TypeVar

from trainkit.recipe import Recipe
from trainkit.recipe.sections.document import Chat
from trainkit.recipe.sections.source import HuggingFace, SourceSpec, document_of
from trainkit.recipe.spec import Spec

#: What a URL begins with.
SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")
S = TypeVar("S", bound=Spec)


def as_shown(path: Path) -> str:
    """Return a path as text: relative where it is below the working directory, which is shorter to read."""
    try:
        return str(path.absolute().relative_to(Path.cwd()))
    except ValueError:
        return os.path.normpath(path)


def with_absolute_paths(recipe: Recipe) -> Recipe:
    """Return the recipe with its relative paths made absolute, against the working directory.

    URLs stay as they are. A name that may be one of the hub stays unless a file or directory here has that name.
    """
    data = recipe.data
    tokenizer = recipe.tokenizer
    if tokenizer is not None and tokenizer.path is not None and os.path.exists(os.path.expanduser(tokenizer.path)):
        tokenizer = with_values(tokenizer, path=absolute(tokenizer.path))
    sections = {
        "run": with_values(recipe.run, directory=absolute(recipe.run.directory)),
        "data": with_values(
            data,
            cache=absolute(data.cache),
            train=tuple(map(_source, data.train)),
            validation=tuple(map(_source, data.validation)),
        ),
        "tokenizer": tokenizer,
        "track": with_values(recipe.track, repository=absolute(recipe.track.repository)),
    }
    return with_values(recipe, **sections)


def absolute(path: str) -> str:
    """Return a path with `~` expanded, absolute against the working directory; a URL as it is."""
    return path if SCHEME.match(path) else os.path.abspath(os.path.expanduser(path))


def with_values(spec: S, **values: Any) -> S:
    """Return a spec with other values, which are known to be valid."""
    return spec.model_copy(update=values)


def _source(source: SourceSpec) -> SourceSpec:
    values: dict[str, Any] = {}
    for key in source.path_keys:
        paths = getattr(source, key)
        if paths is not None:  # a key of a plugin need not be given
            values[key] = absolute(paths) if isinstance(paths, str) else tuple(map(absolute, paths))
    if isinstance(source, HuggingFace) and os.path.isdir(os.path.expanduser(source.id)):
        values["id"] = absolute(source.id)
    document = document_of(source)
    if isinstance(document, Chat) and document.template_path is not None:
        values["document"] = with_values(document, template=absolute(document.template_path))
    return with_values(source, **values) if values else source
