"""Loading, fetching or training the recipe's tokenizer."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from trainkit.data.hub_files import BESIDE, HUB_ID, NotAskedError, commit_of, file_of, read_object
from trainkit.data.jobs import Reporter, Tell
from trainkit.data.sources.digests import Contents, of_value
from trainkit.data.sources.source_file import SourceFile
from trainkit.data.storage import write_file
from trainkit.data.tokenizer import train
from trainkit.data.tokenizer.new_tokens import add_tokens
from trainkit.data.tokenizer.train import Drawn, draw
from trainkit.data.tokenizer.vocabulary import LoadedTokenizer, load
from trainkit.errors import TrainkitError
from trainkit.recipe import Recipe
from trainkit.recipe.sections.tokenizer import TrainTokenizer

#: Beside a tokenizer from the hub: the files that are still to be fetched, and their commit.
_LATER = "not-asked.json"
CONFIG = "config.json"


def for_files(
    recipe: Recipe, groups: Sequence[Sequence[SourceFile]], contents: Contents, *, progress: Tell = None
) -> LoadedTokenizer | None:
    """Return the recipe's tokenizer; None if documents are not text.

    The first call trains it if the recipe asks for that, and keeps it in the cache.

    `groups` are the files of each training source, with what is in them.

    Raises:
        TrainkitError: it cannot be found, fetched or trained, or has no end-of-text token.
    """
    if not recipe.data.is_text:
        return None
    spec = recipe.text_tokenizer.train
    if spec is None:
        return _load_named(recipe)
    drawn, path = _to_train(recipe, spec, groups, contents)
    if not path.exists():
        reporter = Reporter("tokenizer", 0, progress)
        train.train(path, recipe.data, spec, drawn, reporter)
        reporter.finish()
    return load(path)


def find_cached(recipe: Recipe, groups: Sequence[Sequence[SourceFile]], contents: Contents) -> LoadedTokenizer | None:
    """Return the result of `for_files` without training or fetching; None if that would be needed. Raises
    TrainkitError."""
    if not recipe.data.is_text:
        return None
    if (spec := recipe.text_tokenizer.train) is None:
        return peek(recipe)
    _, path = _to_train(recipe, spec, groups, contents)
    return load(path) if path.exists() else None


def _open(recipe: Recipe, path: Path) -> LoadedTokenizer:
    """Return the tokenizer at `path`, with the new tokens of the recipe; a config.json beside it counts unless the
    recipe names the file directly."""
    alone = recipe.text_tokenizer.path is not None and Path(os.path.expanduser(recipe.text_tokenizer.path)).is_file()
    return add_tokens(load(path, config=not alone), recipe.text_tokenizer.new_tokens)


def _to_train(
    recipe: Recipe, spec: TrainTokenizer, groups: Sequence[Sequence[SourceFile]], contents: Contents
) -> tuple[list[Drawn], Path]:
    """Return the parts of the sources to train on, with their chat template, and where the tokenizer is kept."""
    nowhere = Path(recipe.data.cache) / "tokenizers" / "tokenizer.json"
    drawn = draw(recipe.data, spec, [_with_template(files, nowhere) for files in groups], contents)
    return drawn, train.path_of(recipe.data, spec, drawn)


def resolve_readings(files: Sequence[SourceFile], codec: LoadedTokenizer | None) -> list[SourceFile]:
    """Return the files, with what depends on the tokenizer in how they are read: the chat template, and where documents
    end in flat arrays. Raises TrainkitError if conversations have no chat template, or it has a mistake."""
    if codec is None:
        return list(files)
    ends = [
        replace(file, reading=replace(file.reading, end_of_text=codec.end_of_text)) if file.kind == "array" else file
        for file in files
    ]
    return _with_template(ends, codec.path)


def _with_template(files: Sequence[SourceFile], path: Path) -> list[SourceFile]:
    """Return the files with the chat template that writes their conversations, if they hold any: the recipe's, or the
    one beside the tokenizer at `path`. Raises TrainkitError if there is none, or it has a mistake."""
    return [_resolve_reading(file, path) for file in files]


def _resolve_reading(file: SourceFile, path: Path) -> SourceFile:
    document = file.reading.document
    chosen = None if document is None else document.chat_template
    if chosen is None:
        return file
    from trainkit.data.documents.chat_template import resolve_template

    return replace(file, reading=replace(file.reading, chat=resolve_template(chosen, path)))


def begins(recipe: Recipe, codec: LoadedTokenizer) -> bool:
    """Return whether the beginning-of-text token goes before every document. Raises TrainkitError if the recipe asks
    for it and there is none."""
    setting = recipe.data.encoding.bos
    if setting == "auto":
        # an encoder sees whole texts, so even a new one gets them as its tokenizer makes them
        encodes = recipe.model.kind in ("encoder", "encoder-decoder")
        return (recipe.base_checkpoint is not None or encodes) and codec.begins
    if setting and codec.beginning_of_text is None:
        raise TrainkitError(
            "the tokenizer has no beginning-of-text token",
            where="data.encoding.bos",
            hint="remove it, or set it to false",
        )
    return setting


def peek_vocab_size(recipe: Recipe) -> int | None:
    """Return the size of the vocabulary without training or fetching; None if it must be fetched first, 0 if documents
    are not text.

    A tokenizer that is still to be trained has at most this size. Raises TrainkitError if a local file is not a
    tokenizer.
    """
    if not recipe.data.is_text:
        return 0
    if recipe.text_tokenizer.train is not None:
        return recipe.text_tokenizer.train.vocab_size
    codec = peek(recipe)
    return None if codec is None else codec.vocab_size


def peek(recipe: Recipe) -> LoadedTokenizer | None:
    """Return the tokenizer that the recipe names; None if it must be trained or fetched first. Raises TrainkitError."""
    if recipe.tokenizer is None or recipe.tokenizer.path is None:
        return None
    path = _local(recipe) or _fetch_tokenizer(recipe)
    return _open(recipe, path) if path.exists() else None


def _load_named(recipe: Recipe) -> LoadedTokenizer:
    if (local := _local(recipe)) is not None:
        return _open(recipe, local)
    name, revision = recipe.text_tokenizer.path, recipe.text_tokenizer.revision
    assert name is not None
    path = _fetch_tokenizer(recipe)
    if not path.exists():
        content = _fetch(name, revision)
        _fetch_beside(name, revision, (*BESIDE, CONFIG), path.parent)
        with write_file(path) as out:
            out.write(content.encode())
    elif later := read_object(path.with_name(_LATER), missing_ok=True):
        with contextlib.suppress(TrainkitError):  # still offline: the files have not changed
            _fetch_beside(name, later["revision"], later["files"], path.parent)
    return _open(recipe, path)


def _local(recipe: Recipe) -> Path | None:
    """Return the `tokenizer.json` that `tokenizer.path` means; None if it means one on the hub."""
    assert recipe.text_tokenizer.path is not None
    path = Path(os.path.expanduser(recipe.text_tokenizer.path))
    if path.is_dir():
        inside = path / "tokenizer.json"
        if not inside.is_file():
            raise TrainkitError("the directory holds no tokenizer.json", where=str(path), hint="name the file itself")
        return inside
    if path.exists():
        return path
    if path.suffix == ".json" or not HUB_ID.fullmatch(recipe.text_tokenizer.path):
        raise TrainkitError(
            "no such file",
            where=str(path.absolute()),
            hint='tokenizer.path is a tokenizer.json, a directory that holds one, or a hub id such as "gpt2"',
        )
    return None


def _fetch_tokenizer(recipe: Recipe) -> Path:
    """Return where a tokenizer from the hub is kept, so that a run continues with the same one, even offline."""
    revision = [recipe.text_tokenizer.revision] if recipe.text_tokenizer.revision is not None else []
    named = of_value(["hub", recipe.text_tokenizer.path, *revision])
    return Path(recipe.data.cache) / "tokenizers" / named / "tokenizer.json"


def _fetch_beside(name: str, revision: str | None, files: Sequence[str], to: Path) -> None:
    """Fetch the files beside a tokenizer that exist: its chat template, its special tokens.

    Offline, some files may be unknown. They are skipped and recorded, to be fetched from the same commit later.
    """
    unknown = []
    for file in files:
        try:
            fetched = file_of(name, file, revision)
        except NotAskedError:
            unknown.append(file)
            continue
        # the hub's client and its HTTP library each raise what they like
        except Exception as error:
            raise _not_fetched(name, error) from error
        if fetched is not None:
            with write_file(to / file) as out:
                out.write(fetched.read_bytes())
    if unknown:
        with write_file(to / _LATER) as out:
            commit = commit_of(name, "tokenizer.json", revision) or revision
            out.write(json.dumps({"revision": commit, "files": unknown}).encode())
    else:
        (to / _LATER).unlink(missing_ok=True)


def _fetch(name: str, revision: str | None) -> str:
    from tokenizers import Tokenizer

    try:
        return Tokenizer.from_pretrained(name, revision=revision or "main").to_str()
    # the hub's client, its HTTP library and tokenizers (a bare Exception) each raise what they like
    except Exception as error:
        raise _not_fetched(name, error) from error


def _not_fetched(name: str, error: Exception) -> TrainkitError:
    return TrainkitError(
        f"'{name}' is not a local file, and fetching it from the Hugging Face hub failed: {str(error).strip()}",
        where="tokenizer.path",
        hint="give a local tokenizer.json or a directory that holds one, or train one on your own text:"
        " [tokenizer] train = { vocab_size = 4096 }",
    )
