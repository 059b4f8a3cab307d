"""The files of the recipe's sources."""

from __future__ import annotations

import os
import sysconfig
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from trainkit.data.documents import templates
from trainkit.data.documents.pieces import Refuse, Span
from trainkit.data.documents.templates import RowReading
from trainkit.data.sources.files import COMPRESSED, suffixes
from trainkit.data.sources.patterns import Match, local_file, match_files
from trainkit.data.sources.source_file import FORMATS, Rows, SourceFile, SourceRow
from trainkit.errors import TrainkitError
from trainkit.recipe.sections.source import (
    FILE_FORMATS,
    CustomRows,
    Files,
    HuggingFace,
    PythonStdlib,
    RowSource,
    Source,
    Tokens,
)
from trainkit.recipe.spec import import_named

#: The name of the format of each suffix, in the order of the registry.
_BY_SUFFIX = {suffix: each.name for each in FILE_FORMATS for suffix in each.suffixes}
_ARRAYS = (".npy", ".bin", ".parquet")
_NOT_LIBRARY = {"site-packages", "dist-packages", "test", "tests", "idle_test", "__pycache__"}


def list_files(source: Source, cache: Path) -> tuple[SourceFile, ...]:
    """Return the files of a source in a fixed order; at least one. Commits of the hub are remembered below `cache`.

    Raises:
        TrainkitError: a pattern matches nothing; a file is missing, or its name does not tell its format; a template
            has a mistake; the hub or another store cannot be reached.
    """
    files: tuple[SourceFile, ...] = import_named(source.listing)(source, cache)
    return files


def list_tokens(source: Tokens, cache: Path) -> tuple[SourceFile, ...]:
    """Return the arrays that match the patterns of a source of tokens."""
    reading = RowReading(keys=(source.tokens_key,), dtype=source.dtype)
    arrays = tuple(_file(match, _array(match), reading) for match in _matches(source.path))
    _check_asked(arrays, "dtype", source.dtype != "uint16", [".bin"])
    _check_asked(arrays, "tokens_key", source.tokens_key != "tokens", [".parquet"])
    return arrays


def list_custom(source: CustomRows, cache: Path) -> tuple[SourceFile, ...]:
    """Return one file that stands for all rows of a source that makes them itself."""
    identity = source.identity()
    reading = replace(_reading(source), source=source)
    return (SourceFile(f"{source.type} {identity}", source.type, "custom", reading, (0, 0, 0, 0), identity),)


def read_custom(file: SourceFile, refuse: Refuse, span: Span | None = None) -> Rows:
    """Yield the rows that a source makes itself. Raises TrainkitError for whatever the source raises."""
    assert file.reading.source is not None
    try:
        for number, values in enumerate(file.reading.source.rows()):
            yield SourceRow(number, f":row {number}", values)
    except TrainkitError:
        raise
    # the code is a plugin's, and may raise anything
    except Exception as error:
        problem = f"the source cannot make its rows: {type(error).__name__}: {error}"
        raise TrainkitError(problem, where=file.path) from error


def _reading(source: RowSource) -> RowReading:
    templates.check(source.document)
    keys = (source.text_key,) if isinstance(source.text_key, str) else source.text_key
    return RowReading(
        keys=() if source.document else keys,
        document=source.document,
        shortest=source.min_characters,
        longest=source.max_characters,
    )


def _matches(paths: str | tuple[str, ...]) -> list[Match]:
    matches: dict[str, Match] = {}
    for pattern in (paths,) if isinstance(paths, str) else paths:
        for match in match_files(pattern):
            matches.setdefault(match.path, match)
    return list(matches.values())


def list_matching(source: Files, cache: Path) -> tuple[SourceFile, ...]:
    """Return the files that match the patterns of a source. Raises TrainkitError as `list_files`."""
    of_rows = _reading(source)
    of_texts = replace(of_rows, keys=(), document=None)
    with_rows = [suffix for suffix, name in _BY_SUFFIX.items() if not FORMATS[name].one_document]
    files = []
    for match in _matches(source.path):
        kind = _kind(match, source.format)
        has_rows = not FORMATS[kind].one_document
        if source.document and not has_rows:
            raise TrainkitError(
                f"is one text without rows, so it has no keys for a document of type '{source.document.type}'",
                where=match.path,
                hint=f"document = {{ … }} is for {', '.join(with_rows)}",
            )
        files.append(_file(match, kind, of_rows if has_rows else of_texts))
    if source.text_key != "text" and all(file.format.one_document for file in files):
        raise _not_read("text_key", with_rows, files[0])
    return tuple(files)


def _check_asked(files: Sequence[SourceFile], key: str, is_set: bool, suffixes: Sequence[str]) -> None:
    """Raise TrainkitError if the source sets a key that is only for files with these suffixes, and has no such file."""
    if is_set and not any(file.path.endswith(tuple(suffixes)) for file in files):
        raise _not_read(key, suffixes, files[0])


def _not_read(key: str, suffixes: Sequence[str], file: SourceFile) -> TrainkitError:
    return TrainkitError(
        f"{key} is for {', '.join(suffixes)}, and the source has none", where=file.path, hint=f"leave {key} out"
    )


def _file(match: Match, kind: str, reading: RowReading) -> SourceFile:
    return SourceFile(match.path, match.name, kind, reading, match.stat, match.identity)


def _kind(match: Match, format: str) -> str:
    suffix, compression = suffixes(match.path)
    kind = _BY_SUFFIX.get(suffix) if format == "auto" else format
    if kind is not None and FORMATS[kind].seeks and compression:
        raise TrainkitError(
            f"a {kind} file cannot be read through {compression}",
            where=match.path,
            hint="decompress it: the format is compressed by itself",
        )
    if kind is None:
        seeking = " and ".join(suffix for suffix, name in _BY_SUFFIX.items() if FORMATS[name].seeks)
        names = ", ".join(f'"{name}"' for name in dict.fromkeys(_BY_SUFFIX.values()))
        raise TrainkitError(
            f"cannot tell the format of a '{suffix + compression or os.path.basename(match.path)}' file by its name",
            where=match.path,
            hint=f"known suffixes: {', '.join(_BY_SUFFIX)} ({', '.join(COMPRESSED)} behind all but {seeking});"
            f" or set format = {names}",
        )
    return kind


def _array(match: Match) -> str:
    suffix, compression = suffixes(match.path)
    if suffix not in _ARRAYS or compression:
        raise TrainkitError(
            f"cannot tell the format of a '{suffix + compression}' file of tokens",
            where=match.path,
            hint=f'known suffixes: {", ".join(_ARRAYS)}; for text use type = "files"',
        )
    return "array"


def list_dataset(source: HuggingFace, cache: Path) -> tuple[SourceFile, ...]:
    """Return the one file that stands for a dataset of the hub."""
    from trainkit.data.sources.formats.hugging_face import pin

    spec, stat, identity = pin(source, cache)
    name = "/".join(filter(None, (source.config, source.split)))
    path = " ".join(filter(None, (source.id, source.revision, "streaming" if source.streaming else None, name)))
    return (SourceFile(path, name, "huggingface", replace(_reading(source), hub=spec), stat, identity),)


def list_standard_library(source: PythonStdlib, cache: Path) -> tuple[SourceFile, ...]:
    """Return the files of the running interpreter's standard library. Raises TrainkitError if it has none."""
    root = Path(sysconfig.get_path("stdlib"))
    paths = []
    for directory, below, names in os.walk(root):
        below[:] = [name for name in below if name not in _NOT_LIBRARY]
        paths += [Path(directory, name) for name in names if name.endswith(".py")]
    if not paths:
        raise TrainkitError(
            "this interpreter's standard library holds no .py files",
            where=str(root),
            hint='use text of your own: [[data.train]] path = "…"',
        )
    files = (_file(local_file(path, root), "python", RowReading()) for path in paths if path.is_file())
    return tuple(sorted(files, key=lambda file: file.name))
