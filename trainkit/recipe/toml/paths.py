"""Paths in a recipe that no file can have, found before anything looks for the files."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator

from trainkit.errors import TrainkitError
from trainkit.recipe import Recipe
from trainkit.recipe.sections.source import document_of
from trainkit.recipe.toml.files import SCHEME
from trainkit.recipe.toml.layers import Layer
from trainkit.recipe.toml.positions import Key, dotted_key
from trainkit.text import one_line, shorten

#: Bytes of a name, and of a path, that file systems accept.
LONGEST_NAME, LONGEST_PATH = 255, 4096
#: Bytes of the name of a run, to which temporary files add some.
LONGEST_RUN = 200
_MAGIC = re.compile(r"[*?\[{]")


def check_paths(recipe: Recipe, layer: Layer) -> None:
    """Raise TrainkitError, with line and key, if a key holds a text that is no path, or a URL where it takes none."""
    for key, text, is_pattern in _paths(recipe):
        check_path(key, text, layer, is_pattern=is_pattern)


def check_path(key: Key, text: str, layer: Layer, *, is_pattern: bool = False) -> None:
    """Raise TrainkitError, with line and key, if a text is no path; a pattern may also be a URL."""
    if why := _why_no_path(text, is_pattern=is_pattern):
        problem, hint = why
        shown = f'{dotted_key(key)} = "{shorten(one_line(text))}"'
        raise TrainkitError(f"{shown}: {problem}", where=str(layer.origin(key)), hint=hint)


def check_name(name: str) -> None:
    """Raise TrainkitError if a new run should not have this name, because commands could not use it afterwards."""
    if name.startswith("-"):
        why = "it begins with a dash, which commands take for an option"
    elif name.startswith("."):
        why = "it begins with a dot, which hides the run from `trainkit runs` and `trainkit watch`"
    elif len(os.fsencode(name)) > LONGEST_RUN:
        why = f"it has more than {LONGEST_RUN} bytes, and files that are named by it would have no room for more"
    else:
        return
    raise TrainkitError(
        f'run.name = "{shorten(one_line(name))}": {why}', where="run.name", hint="choose another: --name NAME"
    )


def _why_no_path(text: str, *, is_pattern: bool) -> tuple[str, str] | None:
    """Return why a text is no path, and what to do; None if it is one."""
    scheme = SCHEME.match(text)
    is_url = scheme is not None and scheme[1].lower() != "file"
    if not text.strip():
        return "it is empty", "write a path, or leave the key out"
    if "\0" in text:
        return "it holds the character NUL, which no path has", "write the path without it"
    if is_url and not is_pattern:
        return "it is a URL, and this key takes a path of this machine", "write a path, or leave the key out"
    if is_url:
        return None
    if text.startswith("~") and os.path.expanduser(text) == text:
        return f"there is no user {text[1:].partition('/')[0]}", "write the path of the directory instead of ~"
    if is_pattern and _MAGIC.search(text):  # it stands for other names, which may be shorter
        return None
    if len(os.fsencode(text)) > LONGEST_PATH:
        return f"it is longer than {LONGEST_PATH:,} bytes, which no path is", "write a shorter path"
    if any(len(os.fsencode(name)) > LONGEST_NAME for name in text.split("/")):
        return f"it holds a name of more than {LONGEST_NAME} bytes, which no file has", "write a shorter path"
    return None


def _paths(recipe: Recipe) -> Iterator[tuple[Key, str, bool]]:
    """Yield the keys that hold paths, each path, and whether it may be a pattern or a URL."""
    yield ("run", "directory"), recipe.run.directory, False
    yield ("data", "cache"), recipe.data.cache, False
    yield ("track", "repository"), recipe.track.repository, False
    others: list[tuple[Key, object]] = [
        (("run", "parameters_from"), recipe.run.parameters_from),
        (("tokenizer", "path"), recipe.tokenizer and recipe.tokenizer.path),
        (("model", "pretrained"), getattr(recipe.model, "pretrained", None)),
        (("adapter", "pretrained"), getattr(recipe.adapter, "pretrained", None)),
    ]
    for section, sources in (("train", recipe.data.train), ("validation", recipe.data.validation)):
        for number, source in enumerate(sources):
            at: Key = ("data", section, number)
            for name in source.path_keys:
                for text in _texts(getattr(source, name)):
                    yield (*at, name), text, True
            others += [((*at, name), getattr(source, name)) for name in source.hub_keys]
            if (document := document_of(source)) is not None:
                others += [((*at, "document", name), getattr(document, name)) for name in document.path_keys]
    yield from ((key, text, False) for key, value in others for text in _texts(value))


def _texts(value: object) -> tuple[str, ...]:
    texts = (value,) if isinstance(value, str) else value if isinstance(value, list | tuple) else ()
    return tuple(text for text in texts if isinstance(text, str))
