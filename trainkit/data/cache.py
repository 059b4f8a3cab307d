"""The token cache of a recipe: built where something is missing, found where it is not.

    CACHE/digests/     what the source files hold, so that they are read once
    CACHE/tokenizers/  those that were trained or fetched
    CACHE/shards/      tokens, by the hash of what they were made from
    CACHE/ledgers/     which shards, in which order, make up a source

Everything in it is named by what it was made from. So nothing in it ever becomes wrong, only unused; all recipes can
share one cache; what a killed process had finished is found by the next; and deleting any of it is safe.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from trainkit.data import jobs, ledger, reading, shards, splits, storage, tokenizer
from trainkit.data.encode import encode
from trainkit.data.jobs import Stop
from trainkit.data.ledger import Ledger
from trainkit.data.progress import Progress, Reporter
from trainkit.data.reading import Listing
from trainkit.data.shards import Encoding, Shard, Unit
from trainkit.data.sources import SourceFile
from trainkit.data.splits import Split
from trainkit.data.stream import Stream
from trainkit.data.tokenizer import LoadedTokenizer
from trainkit.errors import TrainkitError
from trainkit.recipe import Recipe
from trainkit.recipe.data import Data

__all__ = ["Cache", "Progress", "build", "find"]


@dataclass(frozen=True)
class Cache:
    """The tokens of a recipe.

    Attributes:
        train: all training sources, one after the other.
        sources: each training source, in the recipe's order.
        validation: by name, in the recipe's order, `held-out` last.
        skipped_documents: how many documents could not be read.
        skipped: of these the first few of each shard: (where, why).
        empty_documents: how many had no text, and were left out.
    """

    tokenizer: LoadedTokenizer
    train: Stream
    sources: tuple[Stream, ...]
    validation: Mapping[str, Stream]
    fingerprint: str
    """Of the training tokens in their order, and of the tokenizer: what a run that goes on must find again."""
    skipped_documents: int
    skipped: tuple[tuple[str, str], ...]
    empty_documents: int


@dataclass(frozen=True)
class _Set:
    """The sources of one set of the recipe; `ledgers[split]` are in their order."""

    name: str
    files: tuple[tuple[SourceFile, ...], ...]
    held_out: float


Ledgers = dict[Split, list[Ledger]]


def build(recipe: Recipe, *, workers: int | None = None, progress: Callable[[Progress], None] | None = None) -> Cache:
    """The cache, after making what is missing of it. The same, to the byte, whatever the number of `workers`.

    Ctrl-C ends it within about a second; what was finished is kept, and is not done again.

    Args:
        workers: units of files that are tokenised at once; as many as there are cores, but at most 4, where not given.
        progress: called a few times a second, in this thread.

    Raises:
        TrainkitError: the sources, the tokenizer or a document cannot be used, the cache cannot be written, or a set is
            empty.
    """
    workers = workers or min(4, os.cpu_count() or 1)
    cache = Path(recipe.data.cache)
    listing = reading.survey(cache, (*recipe.data.train, *recipe.data.validation), progress)
    files = [file for group in listing.files[: len(recipe.data.train)] for file in group]
    codec = tokenizer.for_files(recipe, files, listing.digests, progress=progress)
    storage.sweep(cache / "shards")
    made = [_make(recipe.data, s, listing, codec, workers=workers, progress=progress) for s in _sets(recipe, listing)]
    return _assemble(recipe, codec, made)


def find(recipe: Recipe) -> Cache | None:
    """The cache if it is complete and up to date, else None; makes nothing.

    Raises:
        TrainkitError: the sources or the tokenizer cannot be used, or a set is empty.
    """
    cache = Path(recipe.data.cache)
    listing = reading.recall(cache, (*recipe.data.train, *recipe.data.validation))
    if listing is None:
        return None
    files = [file for group in listing.files[: len(recipe.data.train)] for file in group]
    codec = tokenizer.cached(recipe, files, listing.digests)
    if codec is None:
        return None
    made = []
    for part in _sets(recipe, listing):
        encoding = Encoding(codec.fingerprint, codec.dtype, part.held_out)
        ledgers = [_find(recipe.data, tuple(shards.units(group, listing.digests)), encoding) for group in part.files]
        if any(found is None for found in ledgers):
            return None
        made.append(_by_split(encoding, [found for found in ledgers if found is not None]))
    return _assemble(recipe, codec, made)


def _sets(recipe: Recipe, listing: Listing) -> list[_Set]:
    """The training set, then the validation sets that have sources of their own."""
    data = recipe.data
    trained = len(data.train)
    own = zip(data.validation_names, listing.files[trained:], strict=False)  # "held-out" comes last and has none
    return [
        _Set("train", listing.files[:trained], data.held_out),
        *(_Set(name, (files,), 0.0) for name, files in own),
    ]


def _make(
    data: Data,
    part: _Set,
    listing: Listing,
    codec: LoadedTokenizer,
    *,
    workers: int,
    progress: Callable[[Progress], None] | None,
) -> Ledgers:
    cache = Path(data.cache)
    encoding = Encoding(codec.fingerprint, codec.dtype, part.held_out)
    groups = [tuple(shards.units(files, listing.digests)) for files in part.files]
    reporter = Reporter(part.name, _text_bytes(part), progress)
    known = [_find(data, units, encoding) for units in groups]
    ready: dict[str, dict[Split, Shard]] = {}
    missing: dict[str, Unit] = {}
    for units, there in zip(groups, known, strict=True):
        for one in (there or {}).values():
            reporter.add(documents=one.documents, bytes=one.bytes, tokens=one.tokens)
        for unit in () if there else units:
            if (found := _shards(data, unit, encoding)) is None:
                missing[unit.key(encoding.splits[0], encoding)] = unit
                continue
            ready[unit.key(encoding.splits[0], encoding)] = found
            for shard in found.values():
                reporter.add(documents=shard.documents, bytes=shard.bytes, tokens=shard.tokens)

    def job(unit: Unit, stop: Stop) -> dict[Split, Shard]:
        return encode(
            unit, encoding, cache=cache, tokenizer=codec, on_error=data.on_error, reporter=reporter, stop=stop
        )

    todo = [partial(job, unit) for unit in missing.values()]
    ready |= dict(zip(missing, jobs.run(todo, workers=workers, tick=reporter.tick), strict=True))
    ledgers = [one or _write(cache, units, encoding, ready) for units, one in zip(groups, known, strict=True)]
    reporter.done()
    return _by_split(encoding, ledgers)


def _write(
    cache: Path, units: Sequence[Unit], encoding: Encoding, ready: Mapping[str, Mapping[Split, Shard]]
) -> dict[Split, Ledger]:
    """The ledgers of one source whose shards are all there."""
    found = [ready[unit.key(encoding.splits[0], encoding)] for unit in units]
    made = {}
    for split in encoding.splits:
        its_shards = tuple(of_unit[split] for of_unit in found)
        made[split] = Ledger(split, encoding.tokenizer, encoding.dtype, its_shards)
        ledger.save(cache, made[split], units)
    return made


def _find(data: Data, units: Sequence[Unit], encoding: Encoding) -> dict[Split, Ledger] | None:
    found = {split: ledger.find(Path(data.cache), units, split, encoding) for split in encoding.splits}
    present = {split: one for split, one in found.items() if one is not None}
    first = present.get(encoding.splits[0])
    if len(present) < len(found) or first is None:
        return None
    usable = all(_may_skip(data, unit) or not shard.skipped for unit, shard in zip(units, first.shards, strict=True))
    return present if usable else None


def _shards(data: Data, unit: Unit, encoding: Encoding) -> dict[Split, Shard] | None:
    """The shards of a unit if all are there. What was made skipping documents will not do where none may be skipped."""
    found = {s: shards.find(Path(data.cache), unit.key(s, encoding), encoding.dtype) for s in encoding.splits}
    present = {split: shard for split, shard in found.items() if shard is not None}
    if len(present) < len(found) or (present[encoding.splits[0]].skipped and not _may_skip(data, unit)):
        return None
    return present


def _may_skip(data: Data, unit: Unit) -> bool:
    return data.on_error == "skip" or all(file.kind == "python" for file in unit.files)


def _by_split(encoding: Encoding, ledgers: Sequence[Mapping[Split, Ledger]]) -> Ledgers:
    return {split: [one[split] for one in ledgers] for split in encoding.splits}


def _text_bytes(part: _Set) -> int | None:
    files = [file for group in part.files for file in group]
    plain = all(file.kind in ("text", "python") and file.path.suffix not in (".gz", ".zst") for file in files)
    return sum(file.size for file in files) if plain else None


def _assemble(recipe: Recipe, codec: LoadedTokenizer, made: Sequence[Ledgers]) -> Cache:
    data, cache = recipe.data, Path(recipe.data.cache)
    trained, *own = made
    first = trained["train" if data.held_out else "all"]
    validation = {
        name: Stream(cache, ledgers["all"]) for name, ledgers in zip(data.validation_names, own, strict=False)
    }
    if data.held_out:
        validation["held-out"] = Stream(cache, trained["held-out"])
    every = [one for ledgers in made for group in ledgers.values() for one in group]
    every_shard = list({shard.key: shard for one in every for shard in one.shards}.values())
    result = Cache(
        tokenizer=codec,
        train=Stream(cache, first),
        sources=tuple(Stream(cache, [one]) for one in first),
        validation=validation,
        fingerprint=shards.of_value([codec.fingerprint, [one.fingerprint for one in first]]),
        skipped_documents=sum(shard.skipped for shard in every_shard),
        skipped=tuple(example for shard in every_shard for example in shard.examples),
        empty_documents=sum(shard.empty for shard in every_shard),
    )
    _check_not_empty(recipe, result)
    return result


def _check_not_empty(recipe: Recipe, cache: Cache) -> None:
    data = recipe.data
    if not cache.train.tokens:
        found = f"{cache.empty_documents:,} empty and {cache.skipped_documents:,} unreadable documents"
        raise TrainkitError(
            f"the training data holds no text: {found}"
            + (f"; of the others each is held out by held_out = {data.held_out}" if data.held_out else ""),
            where="data.train",
            hint="give more text" + (", or a smaller data.held_out" if data.held_out else ""),
        )
    for name, stream in cache.validation.items():
        if not stream.tokens and name == "held-out":
            documents = f"{cache.train.documents:,} document{'s' if cache.train.documents > 1 else ''}"
            raise TrainkitError(
                f"held_out = {data.held_out} of {documents} holds none out: each is held out whole or not at all, but"
                f" for text files of at least {splits.shortest_divided(data.held_out):,} characters",
                where="data.held_out",
                hint="raise it, give more text, give a [[data.validation]] of its own instead, or set it to 0",
            )
        if not stream.tokens:
            raise TrainkitError(f"the validation set '{name}' holds no text", where="data.validation")
