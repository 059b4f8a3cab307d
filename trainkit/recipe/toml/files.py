"""Recipe files and the paths in them: a file is read over those that it extends, and its paths become absolute.

The errors of files that cannot be read, because they are missing, no text or not TOML, say what was probably meant.
"""

from __future__ import annotations

import difflib
import os
import re
import sys
from collections.abc import Iterable
from copy import deepcopy
from pathlib import Path
from typing import Any, TypeGuard, TypeVar

import tomli

from trainkit.errors import TrainkitError
from trainkit.recipe import Recipe
from trainkit.recipe.sections.source import SourceSpec, document_of
from trainkit.recipe.spec import Spec
from trainkit.recipe.toml.layers import Layer, table_at
from trainkit.recipe.toml.positions import Origin, locate
from trainkit.recipe.toml.syntax import syntax_hint
from trainkit.text import shorten

#: The most files of which each extends the next.
MOST_BASES = 50
#: Bytes of a recipe file; a hand-written one has some thousands.
MOST_BYTES = 16_000_000
#: Characters of a line that a hint is looked for in.
MOST_READ = 1000
#: Characters that are shown of a line.
LONGEST_LINE = 160


def read_file(
    path: Path, chain: tuple[Path, ...] = (), named_at: Origin | None = None, known: dict[Path, Layer] | None = None
) -> Layer:
    """Return a file merged over what it extends.

    Args:
        chain: the files that extend it, the first one first.
        named_at: where the last of these names it.
        known: the files that were read before, each merged, by their real paths.

    Raises:
        TrainkitError: the file is missing, unreadable or not TOML, or it extends itself.
    """
    shown = as_shown(path)
    led_here = " -> ".join([*map(as_shown, chain[:-1]), *([f"{named_at}: extends"] if named_at else []), shown])
    try:
        resolved = path.resolve()
        if resolved in [above.resolve() for above in chain]:
            raise TrainkitError(
                "a recipe extends itself", where=led_here, hint="remove one of these files from its `extends`"
            )
    except (OSError, RuntimeError, ValueError) as error:  # a loop of links, or a name that no file can have
        raise TrainkitError(f"is not a file path: {error}", where=led_here) from error
    known = {} if known is None else known
    if resolved in known:  # many files may extend it, and each of them may be extended by many
        return deepcopy(known[resolved])
    if len(chain) >= MOST_BASES:
        raise TrainkitError(
            f"is extended by a chain of {MOST_BASES} files", where=str(named_at), hint="put some of them into one file"
        )
    try:
        text = _bytes_of(path, where=led_here).decode("utf-8-sig").replace("\r\n", "\n")
    except (OSError, UnicodeDecodeError) as error:
        raise _unreadable(path, error, where=led_here) from error
    try:
        table = tomli.loads(text)
    except (ValueError, RecursionError) as error:
        raise _not_toml(text, error, shown) from error
    lines = {key: Origin(shown, line) for key, line in locate(text).items()}
    for part in (table, *(mode for mode in table_at(table, "mode").values() if isinstance(mode, dict))):
        if are_texts(files := table_at(part, "plugins").get("files")):
            files[:] = [os.path.abspath(path.parent / os.path.expanduser(file)) for file in files]
    own = Layer(table, lines, Origin(shown))
    merged = Layer({}, {}, Origin(shown), text=text)
    for number, base in enumerate(_extends(own)):
        place = own.origins.get(("extends", number), own.origin(("extends",)))
        merged.put(read_file(path.parent / base, (*chain, path), place, known))
    merged.put(own)
    known[resolved] = deepcopy(merged) if chain else merged
    return merged


def _bytes_of(path: Path, *, where: str) -> bytes:
    """Return what a file holds. Raises TrainkitError if no recipe is so large, as of a device, which has no end.

    A named pipe is refused, because opening one waits for a writer. The pipes of stdin and of a shell's `<(...)`
    have no name in any directory, and are read.
    """
    if path.is_fifo() and os.path.exists(os.path.realpath(path)):
        raise TrainkitError("is a named pipe, not a file", where=where, hint="give a file, or /dev/stdin")
    with path.open("rb") as file:
        read = file.read(MOST_BYTES + 1)
    if len(read) > MOST_BYTES:
        raise TrainkitError(f"has more than {MOST_BYTES:,} bytes, which no recipe has", where=where)
    return read


def _extends(layer: Layer) -> list[str]:
    value = layer.table.pop("extends", [])
    bases = [value] if isinstance(value, str) and value else value
    if not are_texts(bases):
        raise TrainkitError(
            "extends takes a path or a list of paths, relative to this file",
            where=str(layer.origin(("extends",))),
            hint='extends = ["base/small-gpt.toml"]',
        )
    return bases


def are_texts(value: Any) -> TypeGuard[list[str]]:
    """Return whether a value is a list of texts that are not empty."""
    return isinstance(value, list) and all(isinstance(inner, str) and inner for inner in value)


def _unreadable(path: Path, error: OSError | UnicodeDecodeError, *, where: str) -> TrainkitError:
    """Return the error of a recipe file that cannot be read; `where` names it and the files that extend it."""
    if isinstance(error, UnicodeDecodeError):
        line = error.object.count(b"\n", 0, error.start) + 1
        return TrainkitError("is not UTF-8 text", where=f"{where}:{line}", hint="save it as UTF-8")
    if isinstance(error, IsADirectoryError):
        return TrainkitError("is a directory, not a recipe", where=where, hint=_recipes_in(path))
    if isinstance(error, FileNotFoundError | NotADirectoryError):
        for directory in (path.parent, OWN_RECIPES):
            if near := difflib.get_close_matches(path.stem, [found.stem for found in _tomls(directory)], n=1):
                hint = f"did you mean {as_shown(directory / near[0])}.toml?"
                break
        else:
            hint = _recipes_in(path.parent) or "`trainkit schema` prints what a recipe consists of"
        return TrainkitError("there is no such file", where=where, hint=hint)
    return TrainkitError(f"cannot be read: {error.strerror}", where=where)


def _not_toml(text: str, error: ValueError | RecursionError, shown: str) -> TrainkitError:
    """Return a syntax error with its line and what was probably meant; `shown` is the file's name."""
    if isinstance(error, RecursionError):
        deepest = max(enumerate(text.split("\n"), start=1), key=lambda line: sum(map(line[1].count, ".[{")))
        return TrainkitError(f"nested too deeply\n  {shorten(deepest[1].strip())}", where=f"{shown}:{deepest[0]}")
    if not isinstance(error, tomli.TOMLDecodeError):
        return _unreadable_value(text, error, shown)
    number, column = error.lineno, error.colno
    lines = text.split("\n")
    if number > 1 and column == 1 and not lines[number - 1].strip():
        # the end of the text: the line before it is unfinished
        number, column = number - 1, len(lines[number - 2]) + 1
    line = lines[number - 1]
    if (twice := _written_twice(lines, number, error.msg)) is not None:
        hint = "keep one of the two" + (", with the keys of both" if twice.startswith("[") else "")
        return TrainkitError(twice, where=f"{shown}:{number}", hint=hint)
    begin = max(0, column - LONGEST_LINE // 2) if len(line) > LONGEST_LINE else 0
    part = ("…" if begin else "") + shorten(line[begin:], LONGEST_LINE)
    mark = " " * (column - 1 - begin + (1 if begin else 0))
    problem = f"not TOML: {error.msg[0].lower()}{error.msg[1:]}\n  {part}\n  {mark}^"
    return TrainkitError(problem, where=f"{shown}:{number}:{column}", hint=syntax_hint(line[:MOST_READ], error.msg))


def _written_twice(lines: list[str], number: int, message: str) -> str | None:
    """Return the problem of a table or key that the line of a number gives again; None if it does not."""
    if message == "Cannot overwrite a value":
        return _key_written_twice(lines, number)
    named = re.fullmatch(r"Cannot declare \((.*?),?\) twice", message)
    if named is None:
        return None
    name = ".".join(part.strip()[1:-1] for part in named[1].split(", "))
    header = re.compile(rf"\s*\[\s*{re.escape(name)}\s*\]")
    section, _, last = name.rpartition(".")
    inside = re.compile(rf"\s*{re.escape(last)}\s*=")
    first, current = None, ""
    for line, text in enumerate(lines[: number - 1], start=1):
        if first is None and (header.match(text) or (current == section and inside.match(text))):
            first = line
        if found := re.match(r"\s*\[+\s*([^\]]*?)\s*\]", text):
            current = found[1]
    return f"[{name}] is written twice" + (f": first in line {first}" if first else "")


def _key_written_twice(lines: list[str], number: int) -> str | None:
    """Return the problem of a key that the line of a number gives again in its table; None if it is no plain key."""
    key = re.match(r"\s*([\w-]+)\s*=", lines[number - 1])
    if key is None:
        return None
    again = re.compile(rf"\s*{re.escape(key[1])}\s*=")
    for line in range(number - 1, 0, -1):
        if again.match(lines[line - 1]):
            return f"{key[1]} is written twice: first in line {line}"
        if lines[line - 1].lstrip().startswith("["):
            break
    return None


def _unreadable_value(text: str, error: ValueError, shown: str) -> TrainkitError:
    """Return the error of a value that is TOML, but has no meaning in Python, such as a number of 5,000 digits."""
    digits = re.search(rf"[\d_]{{{MOST_DIGITS},}}", text)
    if digits is None:
        return TrainkitError(f"a value cannot be read: {error}", where=shown)
    line = text.count("\n", 0, digits.start())
    key = text.split("\n")[line].partition("=")[0].strip()
    return TrainkitError(
        f"{shorten(key)}: a number has more than {MOST_DIGITS:,} digits",
        where=f"{shown}:{line + 1}",
        hint="no key takes such a number: trainkit explain RECIPE KEY shows its range",
    )


def _tomls(directory: Path) -> list[Path]:
    """Return the files of a directory that may be recipes."""
    try:
        return sorted(p for p in directory.iterdir() if p.suffix == ".toml" and p.name != "pyproject.toml")
    except OSError:
        return []


def _recipes_in(directory: Path) -> str:
    if found := _tomls(directory) or _tomls(Path("recipes")):
        return f"recipes here: {', '.join(map(str, found[:8]))}"
    names = ", ".join(path.name for path in _tomls(OWN_RECIPES))
    return f"recipes in {as_shown(OWN_RECIPES)}: {names}" if names else ""


#: The recipes of the checkout that trainkit runs from; an installed trainkit has none.
OWN_RECIPES = Path(__file__).parents[3] / "recipes"
#: What a URL begins with.
SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")
#: Python reads no number of more digits.
MOST_DIGITS = sys.int_info.default_max_str_digits
S = TypeVar("S", bound=Spec)


def as_shown(path: Path) -> str:
    """Return a path as text: relative where it is below the working directory, which is shorter to read."""
    try:
        return str(path.absolute().relative_to(Path.cwd()))
    except ValueError:
        return os.path.normpath(path)


def with_absolute_paths(recipe: Recipe) -> Recipe:
    """Return the recipe with its relative paths made absolute against the working directory.

    URLs do not change. Neither does a name that may be on the hub, unless a local file or directory has that name.
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
    here = [key for key in source.hub_keys if os.path.isdir(os.path.expanduser(getattr(source, key)))]
    source = _with_absolute_keys(source, (*source.path_keys, *here))
    document = document_of(source)
    if document is None or not document.path_keys:
        return source
    return with_values(source, document=_with_absolute_keys(document, document.path_keys))


def _with_absolute_keys(spec: S, keys: Iterable[str]) -> S:
    given = {key: getattr(spec, key) for key in keys}
    return with_values(
        spec,
        **{
            key: absolute(paths) if isinstance(paths, str) else tuple(map(absolute, paths))
            for key, paths in given.items()
            if paths is not None  # a key of a plugin need not be given
        },
    )
