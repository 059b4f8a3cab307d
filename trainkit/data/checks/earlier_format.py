"""Data of runs that began with an earlier format of shards: whether tokens and order would be the same today.

Such a run knows its data by a fingerprint that no longer comes out, though most data gives the same tokens as then. The
old fingerprint follows from the same files, tokenizer and encoding, so it can still be computed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from trainkit.data.batches.dataset import stages_of
from trainkit.data.batches.order import MIXTURE_BLOCK
from trainkit.data.cache import ledger, shards
from trainkit.data.cache.build import Cache
from trainkit.data.cache.stream import Stream
from trainkit.data.documents.pieces import PIECE
from trainkit.data.sources.digests import of_value
from trainkit.data.tokenizer.special_tokens import NAMES, Role
from trainkit.errors import TrainkitError
from trainkit.recipe import Recipe
from trainkit.recipe.sections.document import Chat, Prompt
from trainkit.recipe.sections.source import HuggingFace, RowSource, Source, Tokens


def check_same_data(cache: Cache, recipe: Recipe, recorded: str, *, where: Path) -> None:
    """Check that a run whose checkpoint in `where` has the fingerprint `recorded` was trained on this cache.

    Raises:
        TrainkitError: the files, the tokenizer or the encoding are others, or the run began with an earlier format and
            the same files would give other tokens now, or the same tokens in another order.
    """
    if recorded == cache.fingerprint:
        return
    format = format_of(cache, recorded)
    changes = list(_changes_since_2(cache, recipe)) if cache.tokenizer and format != 3 else []
    if format is not None and _has_long_text(cache):
        changes.append(f"texts of more than {PIECE:,} characters are tokenised as a whole now, and were cut")
    if format is None and not changes:
        raise TrainkitError(
            f"the data is not what this run was trained on: its checkpoint has the fingerprint {recorded},"
            f" the data {cache.fingerprint}",
            where=str(where),
            hint="bring the source files and the tokenizer back as they were, or begin a new run",
        )
    if changes:
        raise TrainkitError(
            "the data is not what this run was trained on, or this version of trainkit reads it differently:\n"
            + "\n".join(f"  {change}" for change in changes),
            where=str(where),
            hint="resume with the version of trainkit that began the run, or begin a new run",
        )


def format_of(cache: Cache, recorded: str) -> int | None:
    """Return the earlier format in which this data has the fingerprint `recorded`; None where it has it in none."""
    earlier = (3, 2) if cache.tokenizer else ()  # an earlier format had no data without a tokenizer
    return next((format for format in earlier if recorded == _fingerprint(cache, format)), None)


def _fingerprint(cache: Cache, format: int) -> str:
    """Return the fingerprint that this data had in a format; in 2, the tokenizer's lacked its begin and end tokens."""
    tokenizer = cache.text_tokenizer.content_digest if format == 2 else cache.text_tokenizer.fingerprint
    names = []
    for source in cache.trained.sources:
        pixels = source.encoding.tokenizer != cache.text_tokenizer.fingerprint
        encoding = source.encoding if pixels else replace(source.encoding, tokenizer=tokenizer)
        split = encoding.splits[0]
        units = [shards.key_of(unit, split, encoding, format=format) for unit in source.units]
        names.append(ledger.name_of_keys(units, source.limit))
    return of_value([tokenizer, names])


def _changes_since_2(cache: Cache, recipe: Recipe) -> Iterator[str]:
    """Yield what the same files and tokenizer would give now that differs from what they gave in format 2."""
    spec = recipe.data.encoding
    if spec.eos:
        yield from _other_token(cache, "eos", cache.text_tokenizer.end_of_text, "end")
    if spec.bos is True:
        yield from _other_token(cache, "bos", cache.text_tokenizer.beginning_of_text, "begin")
    for number, source in enumerate(recipe.data.train):
        if change := _other_reading(cache, number, source):
            yield f"data.train.{number}: {change}"
    if any(source.weight is not None for source in recipe.data.train):
        for begin, weights in stages_of(recipe.data.train).items():
            if _was_rounded(weights):
                yield f"the weights of data.train from step {begin} on were rounded to {MIXTURE_BLOCK}ths"


def _has_long_text(cache: Cache) -> bool:
    """Whether a training text is longer than a piece; waits until all texts are tokenised."""
    for source, stream in zip(cache.trained.sources, cache.sources, strict=True):
        stream.wait(None)
        files = {file for unit in source.units for file in unit.files}
        # where part of a file is held out, its documents are shorter than the file
        size = sum(shard.bytes for shard in source.shards)
        texts = [file for file in files if file.format.one_document]
        if any((size if file.compressed else file.size) > PIECE for file in texts):
            return True
        if any(file.kind == "array" for file in files) or not stream.tokens:
            continue
        ends = np.unique(stream.borders(0, stream.tokens))
        for start, end in zip([0, *ends[:-1].tolist()], ends.tolist(), strict=True):
            # no token of a vocabulary in use has as many characters
            if (end - start) * 1024 > PIECE and len(_text(cache, stream, start, end)) > PIECE:
                return True
    return False


def _text(cache: Cache, stream: Stream, start: int, end: int) -> str:
    return cache.text_tokenizer.decode(stream.windows(np.array([start]), end - start)[0].tolist())


def _other_token(cache: Cache, role: Role, now: int | None, verb: str) -> Iterator[str]:
    """Yield that documents would begin or end with another token: it used to be the first of the usual names."""
    before = next((id_ for name in NAMES[role] if (id_ := cache.text_tokenizer.token_id(name)) is not None), None)
    if before != now:
        names = [repr(cache.text_tokenizer.name(id_)) if id_ is not None else "no token" for id_ in (before, now)]
        yield f"documents {verb} with {names[1]} now, and with {names[0]} before"


def _other_reading(cache: Cache, number: int, source: Source) -> str | None:
    if isinstance(source, RowSource) and isinstance(source.document, Prompt | Chat):
        return "prompts and conversations are tokenised as a whole now, and were tokenised part by part"
    if isinstance(source, HuggingFace) and Path(source.id).is_dir():
        return "a dataset directory is known by the content of its files now, and was known by their times"
    if isinstance(source, Tokens):
        cache.sources[number].wait(None)
        if empty := sum(shard.empty for shard in cache.trained.sources[number].shards):
            return f"{empty:,} rows without token ids are left out now, and were documents"
    return None


def _was_rounded(weights: Sequence[float]) -> bool:
    """Whether a source's share of a block of examples is no whole number: shares used to be rounded to whole ones."""
    shares = [weight / sum(weights) * MIXTURE_BLOCK for weight in weights]
    return any(abs(share - round(share)) > 1e-6 for share in shares)
