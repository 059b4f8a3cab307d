"""The sets of a recipe: what is trained on, what is held out from it, and the validation sets of their own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainkit.data.cache import ledger, shards
from trainkit.data.cache.ledger import Ledger
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
    """What is held out, without the exact copies of what is trained on: see `data.apart`."""


def sets_of(recipe: Recipe, listing: Listing, codec: LoadedTokenizer | None) -> list[Set]:
    """The training set, then the validation sets that have sources of their own."""
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
    encoding, cache = _encoding(recipe, codec, held_out), Path(recipe.data.cache)
    streams = {s: Streams(cache, encoding.dtype, len(specs), begins=encoding.bos) for s in encoding.splits}
    sources = []
    for number, (spec, its_files) in enumerate(zip(specs, files, strict=True)):
        units = tuple(units_of(load.resolve_readings(its_files, codec), listing.contents))
        sources.append(LiveSource(number, units, encoding, spec.limit, streams))
    weights = [spec.weight[0][1] if isinstance(spec.weight, tuple) else spec.weight or 1.0 for spec in specs]
    apart = Stream(cache, encoding.dtype, begins=encoding.bos) if held_out else None
    return Set(name, tuple(sources), streams, tuple(weights), apart)


def set_of_ledgers(recipe: Recipe, codec: LoadedTokenizer | None, names: Sequence[str]) -> Set | None:
    """What a run was trained on, by the names of its sources' ledgers, whether its files are still there or not; None
    where the cache has not all of it."""
    data, cache = recipe.data, Path(recipe.data.cache)
    encoding = _encoding(recipe, codec, data.held_out)
    split = encoding.splits[0]
    streams = {split: Streams(cache, encoding.dtype, len(data.train), begins=encoding.bos)}
    sources = []
    for number, (spec, name) in enumerate(zip(data.train, names, strict=False)):
        found, files = ledger.find(cache, name), ledger.files_of(cache, name)
        if found is None or files is None:
            return None
        units = _units_of(files)
        sources.append(LiveSource(number, units, encoding, spec.limit, streams, {split: name}))
        sources[-1].take({split: found})
    return Set("train", tuple(sources), streams, ()) if len(sources) == len(data.train) == len(names) else None


def _units_of(files: Sequence[Mapping[str, Any]]) -> tuple[Unit, ...]:
    """What says where documents come from; it cannot be read."""
    units: dict[int, list[SourceFile]] = {}
    for file in files:
        one = SourceFile(file["path"], file["name"], file["kind"], RowReading(), (0, 0, 0, 0))
        for number in range(file["unit"], file["unit"] + file["units"]):
            units.setdefault(number, []).append(one)
    return tuple(Unit(tuple(units[number]), ()) for number in sorted(units))


def _encoding(recipe: Recipe, codec: LoadedTokenizer | None, held_out: float) -> Encoding:
    """What decides about the tokens. Raises TrainkitError where the tokenizer has no token that is asked for."""
    document = document_of(recipe.data.train[0])
    if document is not None and not document.is_text:
        return Encoding(document.stored_as, "uint8", held_out, bos=False, eos=False)
    assert codec is not None
    bos = load.begins(recipe, codec)
    return Encoding(codec.fingerprint, codec.dtype, held_out, bos, recipe.data.encoding.eos)


def find_usable(source: LiveSource, directory: Path, on_error: str) -> Mapping[Split, Ledger] | None:
    """The ledgers of a source, unless they leave out documents that may not be left out."""
    found = source.find(directory)
    if found is None:
        return None
    first = found[source.encoding.splits[0]]
    pairs = zip(first.shards, first.units, strict=True)
    return found if all(shards.may_be_used(shard, source.units[unit], on_error) for shard, unit in pairs) else None


def check_not_empty(data: Data, one: Set) -> None:
    """Raises TrainkitError where a set holds nothing, or a source nothing that can be read."""
    for source in one.sources:
        _check_readable(data, one, source)
    first: Split = one.sources[0].encoding.splits[0]
    stream = one.streams[first].all
    if not stream.tokens and one.name != "train":
        raise TrainkitError(f"the validation set '{one.name}' holds no text", where="data.validation")
    if not stream.tokens:
        there = [shard for source in one.sources for shard in source.shards]
        empty, refused = sum(shard.empty for shard in there), sum(shard.refused for shard in there)
        raise TrainkitError(
            f"the training data holds no text: {empty:,} empty and {refused:,} unreadable documents"
            + (f"; all others are held out by held_out = {data.held_out}" if data.held_out else ""),
            where="data.train",
            hint="give more text" + (", or a smaller data.held_out" if data.held_out else ""),
        )
    if data.held_out and one.name == "train" and not one.streams["held-out"].all.tokens:
        documents = plural(stream.documents, "document")
        raise TrainkitError(
            f"held_out = {data.held_out} of {documents} holds out none: a document is held out whole or not at all,"
            f" except text files of at least {splits.shortest_divided(data.held_out):,} characters",
            where="data.held_out",
            hint="raise it, give more text, add a [[data.validation]] instead, or set it to 0",
        )


def _check_readable(data: Data, one: Set, source: LiveSource) -> None:
    reasons = shards.group_reasons(reason for shard in source.shards for reason in shard.reasons)
    if not reasons or any(streams.each[source.number].documents for streams in one.streams.values()):
        return
    number = f"train.{source.number}" if one.name == "train" else f"validation.{data.validation_names.index(one.name)}"
    documents = sum(reason.documents for reason in reasons)
    every = "its only document" if documents == 1 else f"all of its {documents:,} documents"
    raise TrainkitError(
        f"{every} cannot be read, so nothing is left of the source: {reasons[0].where}: {reasons[0].why}",
        where=f"data.{number}",
        hint='data.on_error = "skip" leaves out documents, not a whole source: fix or remove the source',
    )
