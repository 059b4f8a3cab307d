"""The sets of a recipe: training data, documents held out from it, and validation sets of their own."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainkit.data.cache import ledger, shards
from trainkit.data.cache.ledger import Ledger
from trainkit.data.cache.left_out import group_reasons
from trainkit.data.cache.live_cache import LiveSource, Streams
from trainkit.data.cache.shards import Encoding
from trainkit.data.cache.stream import Stream
from trainkit.data.documents.templates import RowReading
from trainkit.data.sources import splits
from trainkit.data.sources.digests import Listing
from trainkit.data.sources.source_file import SourceFile
from trainkit.data.sources.splits import Split
from trainkit.data.sources.units import Unit, units_of
from trainkit.data.tokenizer import load
from trainkit.data.tokenizer.vocabulary import LoadedTokenizer
from trainkit.errors import TrainkitError
from trainkit.recipe import Recipe
from trainkit.recipe.sections.data import Data
from trainkit.recipe.sections.source import Source as SourceSpec
from trainkit.recipe.sections.source import document_of
from trainkit.text import plural


@dataclass(frozen=True)
class Set:
    """The sources of one set of the recipe."""

    name: str
    sources: tuple[LiveSource, ...]
    streams: Mapping[Split, Streams]
    weights: tuple[float, ...]
    """How much sooner than the others a source is needed."""
    apart: Stream | None = None
    """The held-out documents without exact copies of training documents."""


def sets_of(recipe: Recipe, listing: Listing, codec: LoadedTokenizer | None) -> list[Set]:
    """Return the training set, then the validation sets that have sources of their own."""
    data = recipe.data
    trained = len(data.train)
    own = zip(data.validation_names, data.validation, listing.files[trained:], strict=False)  # "held-out" has none
    return [
        _set("train", recipe, data.train, listing.files[:trained], listing, codec, data.held_out),
        *(_set(name, recipe, [spec], [files], listing, codec, 0.0) for name, spec, files in own),
    ]


def _set(
    name: str,
    recipe: Recipe,
    specs: Sequence[SourceSpec],
    files: Sequence[Sequence[SourceFile]],
    listing: Listing,
    codec: LoadedTokenizer | None,
    held_out: float,
) -> Set:
    encoding = _encoding(recipe, codec, held_out)
    empty = _empty_streams(recipe, encoding, codec)
    streams = {split: Streams(empty, len(specs)) for split in encoding.splits}
    sources = []
    for number, (spec, its_files) in enumerate(zip(specs, files, strict=True)):
        units = tuple(units_of(load.resolve_readings(its_files, codec), listing.contents))
        sources.append(LiveSource(number, units, encoding, spec.limit, streams))
    weights = [spec.weight[0][1] if isinstance(spec.weight, tuple) else spec.weight or 1.0 for spec in specs]
    apart = next(empty) if held_out else None
    return Set(name, tuple(sources), streams, tuple(weights), apart)


def set_of_ledgers(recipe: Recipe, codec: LoadedTokenizer | None, names: Sequence[str]) -> Set | None:
    """Return the training set of a run by the names of its sources' ledgers, whether its files still exist or not; None
    if it is not completely in the cache."""
    data, cache = recipe.data, Path(recipe.data.cache)
    encoding = _encoding(recipe, codec, data.held_out)
    split = encoding.splits[0]
    streams = {split: Streams(_empty_streams(recipe, encoding, codec), len(data.train))}
    sources = []
    for number, (spec, name) in enumerate(zip(data.train, names, strict=False)):
        stored, files = ledger.find(cache, name), ledger.files_of(cache, name)
        if stored is None or files is None:
            return None
        units = _units_of(files)
        sources.append(LiveSource(number, units, encoding, spec.limit, streams, {split: name}))
        sources[-1].take({split: stored})
    return Set("train", tuple(sources), streams, ()) if len(sources) == len(data.train) == len(names) else None


def _units_of(files: Sequence[Mapping[str, Any]]) -> tuple[Unit, ...]:
    """Return units that say where documents come from, and cannot be read."""
    units: dict[int, list[SourceFile]] = {}
    for file in files:
        source_file = SourceFile(file["path"], file["name"], file["kind"], RowReading(), (0, 0, 0, 0))
        for number in range(file["unit"], file["unit"] + file["units"]):
            units.setdefault(number, []).append(source_file)
    return tuple(Unit(tuple(units[number]), ()) for number in sorted(units))


def _encoding(recipe: Recipe, codec: LoadedTokenizer | None, held_out: float) -> Encoding:
    """Return what the tokens depend on. Raises TrainkitError if the tokenizer lacks a token that the recipe needs."""
    document = document_of(recipe.data.train[0])
    if document is not None and not document.is_text:
        return Encoding(document.stored_as, "uint8", held_out, bos=False, eos=False)
    assert codec is not None
    bos = load.begins(recipe, codec)
    eos = recipe.data.encoding.eos
    # such as T5's, which ends both texts of a pair and begins none
    encodes = recipe.model.kind in ("encoder", "encoder-decoder") and recipe.data.encoding.bos == "auto" and eos
    between = encodes and not bos and document is not None and document.is_pair and bool(codec.between)
    return Encoding(codec.fingerprint, codec.dtype, held_out, bos, eos, between)


def _empty_streams(recipe: Recipe, encoding: Encoding, codec: LoadedTokenizer | None) -> Iterator[Stream]:
    """Yield streams of a recipe's documents, as many as are wanted."""
    document = document_of(recipe.data.train[0])
    is_pair = codec is not None and document is not None and document.is_pair and (encoding.bos or encoding.between)
    between = len(codec.between) if is_pair and codec is not None else 0
    while True:
        yield Stream(Path(recipe.data.cache), encoding.dtype, begins=encoding.bos, between=between)


def find_usable(source: LiveSource, directory: Path, on_error: str) -> Mapping[Split, Ledger] | None:
    """Return the ledgers of a source; None if they are missing, or leave out documents that must not be left out."""
    ledgers = source.find(directory)
    if ledgers is None:
        return None
    first = ledgers[source.encoding.splits[0]]
    pairs = zip(first.shards, first.units, strict=True)
    return ledgers if all(shards.may_be_used(shard, source.units[unit], on_error) for shard, unit in pairs) else None


def check_not_empty(data: Data, group: Set) -> None:
    """Raise TrainkitError if a set is empty, or nothing of a source can be read."""
    for source in group.sources:
        _check_readable(data, group, source)
    first: Split = group.sources[0].encoding.splits[0]
    stream = group.streams[first].all
    if not stream.tokens and group.name != "train":
        raise TrainkitError(f"the validation set '{group.name}' holds no text", where="data.validation")
    if not stream.tokens:
        all_shards = [shard for source in group.sources for shard in source.shards]
        empty, refused = sum(shard.empty for shard in all_shards), sum(shard.refused for shard in all_shards)
        raise TrainkitError(
            f"the training data holds no text: {empty:,} empty and {refused:,} unreadable documents"
            + (f"; all others are held out by held_out = {data.held_out}" if data.held_out else ""),
            where="data.train",
            hint="give more text" + (", or a smaller data.held_out" if data.held_out else ""),
        )
    if data.held_out and group.name == "train" and not group.streams["held-out"].all.tokens:
        documents = plural(stream.documents, "document")
        raise TrainkitError(
            f"held_out = {data.held_out} of {documents} holds out none: a document is held out whole or not at all,"
            f" except text files of at least {splits.shortest_divided(data.held_out):,} characters",
            where="data.held_out",
            hint="raise it, give more text, add a [[data.validation]] instead, or set it to 0",
        )


def _check_readable(data: Data, group: Set, source: LiveSource) -> None:
    reasons = group_reasons(reason for shard in source.shards for reason in shard.reasons)
    if not reasons or any(streams.each[source.number].documents for streams in group.streams.values()):
        return
    is_train = group.name == "train"
    key = f"train.{source.number}" if is_train else f"validation.{data.validation_names.index(group.name)}"
    documents = sum(reason.documents for reason in reasons)
    every = "its only document" if documents == 1 else f"all of its {documents:,} documents"
    raise TrainkitError(
        f"{every} cannot be read, so nothing is left of the source: {reasons[0].where}: {reasons[0].why}",
        where=f"data.{key}",
        hint='data.on_error = "skip" leaves out documents, not a whole source: fix or remove the source',
    )
