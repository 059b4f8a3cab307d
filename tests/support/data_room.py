"""Texts, recipes and tokenizers for the tests of the data room, small enough to cache in a moment."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from trainkit.data.cache import encode
from trainkit.data.cache.stream import Stream
from trainkit.data.cache.token_cache import Cache
from trainkit.data.documents.pieces import Refused
from trainkit.data.documents.templates import RowReading
from trainkit.data.sources import digests, units
from trainkit.data.sources.listing import list_files
from trainkit.data.sources.source_file import SourceFile
from trainkit.data.sources.units import Unit
from trainkit.data.tokenizer import load
from trainkit.data.tokenizer.vocabulary import LoadedTokenizer
from trainkit.recipe import Recipe
from trainkit.recipe.sections.source import HuggingFace

END = "<|endoftext|>"
WORDS = ["alpha", "beta", "gamma\n", "delta", "Ωmega", "epsilon\n\n", "zeta", "naïve", "42", "  indented", "𝕏"]


def text(seed: int, words: int = 40) -> str:
    """Some text; another for each seed."""
    return " ".join(WORDS[(seed * 7 + i * (seed % 5 + 1) + i // 3) % len(WORDS)] for i in range(words)) + f" {seed}"


def write_texts(directory: Path, count: int, *, words: int = 40, first: int = 0) -> Path:
    """`count` text files below `directory`, in two levels."""
    for i in range(first, first + count):
        path = directory / f"part{i % 3}" / f"{i:04d}.txt"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text(i, words), encoding="utf-8")
    return directory


def write_rows(path: Path, rows: Iterable[dict[str, Any]]) -> Path:
    """A file of JSON lines."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def write_jsonl(path: Path, texts: list[str]) -> Path:
    return write_rows(path, ({"text": t} for t in texts))


@cache
def tokenizer_json(vocab_size: int = 300) -> str:
    """A byte-level BPE of few entries, as JSON."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=["<|endoftext|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([text(i) for i in range(50)], trainer)
    return tokenizer.to_str()


def tokenizer_file(directory: Path, vocab_size: int = 300) -> Path:
    path = directory / f"tokenizer-{vocab_size}.json"
    if not path.exists():
        directory.mkdir(parents=True, exist_ok=True)
        path.write_text(tokenizer_json(vocab_size), encoding="utf-8")
    return path


def recipe(
    directory: Path,
    *train: dict[str, Any] | str | Path,
    tokenizer: dict[str, Any] | None = None,
    sequence_length: int = 16,
    batch_size: int = 4,
    seed: int = 0,
    **data: Any,
) -> Recipe:
    """A recipe with its cache in `directory`/cache; sources are tables or patterns."""
    sources = tuple(source if isinstance(source, dict) else {"path": str(source)} for source in train)
    return Recipe.model_validate(
        {
            "schema": 1,
            "run": {"seed": seed},
            "model": {"type": "gpt2", "layers": 1, "hidden": 16, "heads": 2},
            "tokenizer": tokenizer or {"path": str(tokenizer_file(directory))},
            "data": {
                "sequence_length": sequence_length,
                "train": sources,
                "cache": str(directory / "cache"),
                **data,
            },
            "train": {"steps": 1, "batch_size": batch_size},
            "optimizer": {"type": "adamw", "learning_rate": 1e-3},
        }
    )


def recipes_of(directory: Path, *sources: Any, **options: Any) -> tuple[Recipe, Recipe]:
    """The same recipe twice, each with a cache of its own."""
    one, other = (recipe(directory / name, *sources, **options) for name in ("one", "other"))
    return one, other


def small_units(monkeypatch: Any = None) -> None:
    """Units of about 1 to 4 KB, so that little text makes many shards."""
    for name, value in (("SMALL", 1000), ("LARGE", 4000)):
        if monkeypatch is None:
            setattr(units, name, value)
        else:
            monkeypatch.setattr(units, name, value)


@pytest.fixture(autouse=True)
def always_small_units(monkeypatch: pytest.MonkeyPatch) -> None:
    """For every test of a file that has it."""
    small_units(monkeypatch)


@pytest.fixture
def settled(monkeypatch: pytest.MonkeyPatch) -> None:
    """A clock so coarse never was: every file counts as changed long ago."""
    monkeypatch.setattr(digests, "RACY_NS", -(10**18))


@pytest.fixture
def tokenised(monkeypatch: pytest.MonkeyPatch) -> list[Unit]:
    """The units that were tokenised, in a list that grows."""
    seen: list[Unit] = []
    before_each_unit(monkeypatch, seen.append)
    return seen


def dataset(cache: Path, id: Path | str, **options: Any) -> SourceFile:
    """A dataset of the Hugging Face hub, or a directory that holds one."""
    (file,) = list_files(HuggingFace(type="huggingface", id=str(id), **options), cache)
    return file


def open_tokenizer(recipe: Recipe) -> LoadedTokenizer:
    """The recipe's tokenizer, without the rest of its cache."""
    listing = digests.survey(Path(recipe.data.cache), recipe.data.train if recipe.tokenizer.train else (), None)
    return load.for_files(recipe, listing.files, listing.contents)


def never(found: Refused) -> None:
    """To read what has no document that is refused."""
    raise AssertionError(found)


def a_file(name: str, kind: str = "text") -> SourceFile:
    """A file that is not there, for what hangs on its name and kind alone."""
    return SourceFile(name, name, kind, RowReading(), (0, 0, 0, 0))


def tokens_of(stream: Stream) -> np.ndarray:
    """All tokens of a stream."""
    return stream.windows(np.zeros(1, np.int64), stream.tokens)[0] if stream.tokens else np.zeros(0, stream.dtype)


def text_of(cache: Cache, stream: Stream) -> str:
    """All its text, documents ended by `END`."""
    return cache.tokenizer.decode(tokens_of(stream).tolist())


def before_each_unit(patch: pytest.MonkeyPatch, call: Callable[[Unit], object]) -> None:
    """Have `call` called in the worker's thread before it tokenises a unit."""
    original = encode.encode

    def watched(unit, *args, **options):
        call(unit)
        return original(unit, *args, **options)

    patch.setattr(encode, "encode", watched)


def stored(directory: Path) -> dict[str, bytes]:
    """Every shard of a cache, by its name."""
    return {path.name: path.read_bytes() for path in sorted((directory / "cache" / "shards").glob("*.shard"))}
