"""From the recipe's sources to files."""

from __future__ import annotations

import os
import sysconfig
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from trainkit.data.documents import templates
from trainkit.data.documents.templates import RowReading
from trainkit.data.sources.files import COMPRESSED, is_remote, suffixes
from trainkit.data.sources.patterns import Match, Stat, local_file, look_again, match_files, stat_of
from trainkit.data.sources.source_file import Kind, SourceFile
from trainkit.errors import TrainkitError
from trainkit.recipe.sections.source import CustomRows, Files, HuggingFace, PythonStdlib, RowSource, Source, Tokens
from trainkit.recipe.spec import import_named

_BY_SUFFIX: dict[str, Kind] = {
    ".txt": "text",
    ".md": "text",
    ".py": "text",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "json",
    ".csv": "csv",
    ".tsv": "csv",
    ".parquet": "parquet",
    ".arrow": "arrow",
}
_ARRAYS = (".npy", ".bin", ".parquet")
#: They are compressed inside, and read in parts: from the outside they cannot be.
_SEEKING: tuple[Kind, ...] = ("parquet", "arrow", "array")
_NOT_LIBRARY = {"site-packages", "dist-packages", "test", "tests", "idle_test", "__pycache__"}


def list_files(source: Source, cache: Path) -> tuple[SourceFile, ...]:
    """The files of a source in a fixed order; at least one. What the hub said is remembered below `cache`.

    Raises:
        TrainkitError: a pattern matches nothing, a file is missing, its format cannot be told; a template cannot be
            understood; the hub or another store cannot be reached.
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


def check_unchanged(file: SourceFile) -> None:
    """Raises TrainkitError where a file has changed since it was listed: a local file, a directory that holds a
    dataset, or a remote file as far as its store reports. A commit of the hub never changes."""
    if file.kind in ("huggingface", "custom") and file.identity is not None:
        return
    try:
        unchanged = _look_again(file) == (file.stat, file.identity)
    except FileNotFoundError:
        unchanged = False
    if not unchanged:
        raise TrainkitError(
            "was changed while it was being read", where=file.path, hint="run again when nothing writes to it"
        )


def _look_again(file: SourceFile) -> tuple[Stat, str | None]:
    """The `stat` and `identity` of a file now. Raises FileNotFoundError."""
    if file.kind == "huggingface":
        from trainkit.data.sources.formats.hugging_face import stat_of_directory

        assert file.reading.hub is not None
        return stat_of_directory(file.reading.hub), None
    return look_again(file.path) if is_remote(file.path) else (stat_of(file.path), None)


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
    found: dict[str, Match] = {}
    for pattern in (paths,) if isinstance(paths, str) else paths:
        for match in match_files(pattern):
            found.setdefault(match.path, match)
    return list(found.values())


def list_matching(source: Files, cache: Path) -> tuple[SourceFile, ...]:
    """Return the files that match the patterns of a source."""
    of_rows = _reading(source)
    of_texts = replace(of_rows, keys=(), document=None)
    files = []
    for match in _matches(source.path):
        kind = _kind(match, source.format)
        if kind == "text" and source.document:
            raise TrainkitError(
                f"is one text without rows, so it has no keys for a document of type '{source.document.type}' of",
                where=match.path,
                hint=f"document = {{ … }} is for {', '.join(s for s, k in _BY_SUFFIX.items() if k != 'text')}",
            )
        files.append(_file(match, kind, of_texts if kind == "text" else of_rows))
    if source.text_key != "text" and all(file.kind == "text" for file in files):
        rows = [suffix for suffix, kind in _BY_SUFFIX.items() if kind != "text"]
        raise _not_read("text_key", rows, files[0])
    return tuple(files)


def _check_asked(files: Sequence[SourceFile], key: str, asked: bool, suffixes: Sequence[str]) -> None:
    """Raises TrainkitError where the source has a key that is of files with these suffixes, and there is none."""
    if asked and not any(file.path.endswith(tuple(suffixes)) for file in files):
        raise _not_read(key, suffixes, files[0])


def _not_read(key: str, suffixes: Sequence[str], file: SourceFile) -> TrainkitError:
    return TrainkitError(
        f"{key} is for {', '.join(suffixes)}, and the source has none", where=file.path, hint=f"leave {key} out"
    )


def _file(match: Match, kind: Kind, reading: RowReading) -> SourceFile:
    return SourceFile(match.path, match.name, kind, reading, match.stat, match.identity)


def _kind(match: Match, said: str) -> Kind:
    suffix, compression = suffixes(match.path)
    kind = _BY_SUFFIX.get(suffix) if said == "auto" else said
    if kind in _SEEKING and compression:
        raise TrainkitError(
            f"a {kind} file cannot be read through {compression}",
            where=match.path,
            hint="decompress it: the format is compressed by itself",
        )
    if kind is None:
        raise TrainkitError(
            f"cannot tell the format of a '{suffix + compression or os.path.basename(match.path)}' file by its name",
            where=match.path,
            hint=f"known suffixes: {', '.join(_BY_SUFFIX)} (all but the last two also with {', '.join(COMPRESSED)});"
            ' or set format = "text", "jsonl", "json", "csv", "parquet" or "arrow"',
        )
    return kind  # type: ignore[return-value]


def _array(match: Match) -> Kind:
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
    """Return the files of the running interpreter's standard library."""
    root = Path(sysconfig.get_path("stdlib"))
    found = []
    for directory, below, names in os.walk(root):
        below[:] = [name for name in below if name not in _NOT_LIBRARY]
        found += [Path(directory, name) for name in names if name.endswith(".py")]
    if not found:
        raise TrainkitError(
            "this interpreter's standard library holds no .py files",
            where=str(root),
            hint='use text of your own: [[data.train]] path = "…"',
        )
    files = (_file(local_file(path, root), "python", RowReading()) for path in found if path.is_file())
    return tuple(sorted(files, key=lambda file: file.name))
