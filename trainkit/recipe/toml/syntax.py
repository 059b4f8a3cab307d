"""Files that cannot be read at all: missing, not text, not TOML."""

from __future__ import annotations

import difflib
import re
from pathlib import Path

import tomli

from trainkit.errors import TrainkitError


def unreadable(path: Path, error: OSError | UnicodeDecodeError, *, where: str) -> TrainkitError:
    """Why a recipe file cannot be read; `where` names it and the files that led to it."""
    if isinstance(error, UnicodeDecodeError):
        line = error.object.count(b"\n", 0, error.start) + 1
        return TrainkitError("is not UTF-8 text", where=f"{where}:{line}", hint="save it as UTF-8")
    if isinstance(error, IsADirectoryError):
        return TrainkitError("is a directory, not a recipe", where=where, hint=_recipes_in(path))
    if isinstance(error, FileNotFoundError | NotADirectoryError):
        near = difflib.get_close_matches(path.name, [found.name for found in _tomls(path.parent)], n=1)
        hint = f"did you mean {path.parent / near[0]}?" if near else _recipes_in(path.parent)
        return TrainkitError("there is no such file", where=where, hint=hint)
    return TrainkitError(f"cannot be read: {error.strerror}", where=where)


def not_toml(text: str, error: tomli.TOMLDecodeError | RecursionError, shown: str) -> TrainkitError:
    """A syntax error with its line and what probably was meant; `shown` is the file's name."""
    if isinstance(error, RecursionError):
        return TrainkitError("nested too deeply", where=shown)
    number, column = error.lineno, error.colno
    lines = text.split("\n")
    if number > 1 and column == 1 and not lines[number - 1].strip():
        # the end of the text, where the line before it is the one that was not finished
        number, column = number - 1, len(lines[number - 2]) + 1
    line = lines[number - 1]
    problem = f"not TOML: {error.msg[0].lower()}{error.msg[1:]}\n  {line}\n  {' ' * (column - 1)}^"
    return TrainkitError(problem, where=f"{shown}:{number}:{column}", hint=_meant(line, error.msg))


def _meant(line: str, message: str) -> str:
    pair = re.match(r"\s*([\w.\"-]+)\s*=\s*(.*?)\s*(#.*)?$", line)
    value = pair.group(2).rstrip(",") if pair else ""
    if re.match(r"\s*[\w.-]+\s*:", line):
        return "write = between key and value, not :"
    if value in ("True", "False"):
        return f"write {value.lower()}"
    if value in ("None", "null", "nil", "~", ""):
        return "leave out a key that has no value" if pair else ""
    if "overwrite" in message or "twice" in message:
        return "this key or section was given before: keep one of the two"
    if "\\" in value:
        return "a backslash begins an escape in \"…\": write it twice, or use '…'"
    if re.fullmatch(r"[A-Za-z_./~*][^\"'\[\]{}]*", value):
        return f'strings stand in quotes: {pair.group(1) if pair else "key"} = "{value}"'
    if re.fullmatch(r"[\d.eE+_-]+", value) and message.startswith("Expected newline"):
        return "one key = value to a line, and no comma after it"
    if value.count('"') % 2 or value.count("'") % 2:
        return "a string is not closed"
    return ""


def _tomls(directory: Path) -> list[Path]:
    """Those that may be recipes."""
    try:
        return sorted(p for p in directory.iterdir() if p.suffix == ".toml" and p.name != "pyproject.toml")
    except OSError:
        return []


def _recipes_in(directory: Path) -> str:
    found = _tomls(directory) or _tomls(Path("recipes"))
    return f"recipes here: {', '.join(map(str, found[:8]))}" if found else ""
