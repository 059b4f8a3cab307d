"""The token cache of a recipe: found if it is complete, else built.

    CACHE/format.json  which version of trainkit's cache this is
    CACHE/digests/     digests of the source files, so that they are read once
    CACHE/tokenizers/  trained and fetched tokenizers
    CACHE/shards/      tokens, by the hash of what they were made from
    CACHE/frames/      where in the shards examples begin and end
    CACHE/apart/       held-out shards without copies of training documents: see `sets.py`
    CACHE/reference/   numbers of frozen reference models for examples: see `columns.py`
    CACHE/ledgers/     which shards, in which order, make up a source
    CACHE/hub/         the commits at which datasets of the Hugging Face hub were first seen
    CACHE/rejected/    lists of the documents that could not be used
    CACHE/locks/       units that some process is working on
    CACHE/in-use       locked by each process that uses the cache: see `../prune.py`

Everything is named by what it was made from. So nothing ever becomes wrong, only unused; all recipes can share one
cache; the next process finds what a killed one had finished; several processes share the work; and deleting any of it
is safe.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from trainkit.data import storage
from trainkit.data.cache import shards
from trainkit.data.cache.apart import find_apart, make_apart
from trainkit.data.cache.encode import CacheWork, Engine, threads
from trainkit.data.cache.live_cache import LiveSource
from trainkit.data.cache.sets import Set, check_not_empty, find_usable, sets_of
from trainkit.data.cache.shards import Parts
from trainkit.data.cache.token_cache import Cache
from trainkit.data.jobs import Reporter, Stop, Tell
from trainkit.data.sources import digests
from trainkit.data.tokenizer import load
from trainkit.data.tokenizer.vocabulary import LoadedTokenizer
from trainkit.files import make_directory
from trainkit.plan import steps_need_data
from trainkit.recipe import Recipe
from trainkit.recipe.sections.data import Data, Pad

#: Called with a cache before anything is tokenised; what it raises ends the work.
Check = Callable[[Cache], None]


def build(recipe: Recipe, *, engine: Engine | None = None, progress: Tell = None, check: Check | None = None) -> Cache:
    """Return the complete cache, after tokenising what is missing. Its bytes do not depend on the `engine`.

    Ctrl-C ends it within about a second; finished shards are kept.

    Args:
        engine: what tokenises; by default threads of this process.
        progress: called a few times a second, in this thread.
        check: called with the cache before anything is tokenised; what it raises ends the work.

    Raises:
        TrainkitError: the sources, the tokenizer or a document cannot be used, the cache cannot be written, or a set is
            empty.
    """
    cache, sets = _prepare(recipe, progress, check)
    engine = engine or threads()
    with cache.in_use.unless_failed():
        for group in sets:
            _make(recipe.data, group, cache, engine=engine, progress=progress)
    return cache


def begin(recipe: Recipe, *, progress: Tell = None, check: Check | None = None) -> Cache:
    """Return the cache while its training set, with the held-out part, is still tokenised in the background.

    `progress` is then called in that thread. Its errors are raised to those who wait for tokens, and by `Cache.check`.
    """
    cache, (trained, *own) = _prepare(recipe, progress, check)
    engine = threads()
    for group in own:
        _make(recipe.data, group, cache, engine=engine, progress=progress)
    make = partial(_make, recipe.data, trained, cache, engine=engine, progress=progress)
    if all(find_usable(source, cache.directory, recipe.data.on_error) for source in trained.sources):
        make()
    else:
        cache.make_in_background(make)
    return cache


def may_start_early(recipe: Recipe) -> bool:
    """Return whether training can begin while its data is still being tokenised.

    That depends on the recipe alone, so that the order of the data is the same either way.
    """
    whole = recipe.data.shuffle == "full" or steps_need_data(recipe)
    return not whole and not (isinstance(recipe.data.encoding, Pad) and recipe.data.encoding.buckets)


def find(recipe: Recipe) -> Cache | None:
    """Return the cache if it is complete and up to date, else None; tokenises nothing.

    Raises:
        TrainkitError: the sources or the tokenizer cannot be used, or a set is empty.
    """
    directory, in_use = Path(recipe.data.cache), storage.Use(Path(recipe.data.cache))
    storage.check_format(directory, shards.FORMATS)
    if (known := _known_sets(recipe)) is None:
        return None
    codec, sets = known
    for group in sets:
        for source in group.sources:
            ledgers = find_usable(source, directory, recipe.data.on_error)
            if ledgers is None:
                return None
            source.take(ledgers)
        check_not_empty(recipe.data, group)
        if group.apart is not None and not find_apart(directory, group):
            return None
    return Cache(recipe, codec, sets, in_use)


def ledgers_of(recipe: Recipe) -> set[str]:
    """Return the names of all ledgers of a recipe, whether they exist or not; none if its sources were never read.

    Raises TrainkitError if the sources or the tokenizer cannot be used.
    """
    _, sets = _known_sets(recipe) or (None, [])
    return {name for group in sets for source in group.sources for name in source.names.values()}


def _known_sets(recipe: Recipe) -> tuple[LoadedTokenizer | None, list[Set]] | None:
    """Return the tokenizer and the sets of a recipe without writing anything; None if its sources or its tokenizer were
    never read."""
    listing = digests.recall(Path(recipe.data.cache), (*recipe.data.train, *recipe.data.validation))
    if listing is None:
        return None
    codec = load.find_cached(recipe, listing.files[: len(recipe.data.train)], listing.contents)
    return None if codec is None and recipe.data.is_text else (codec, sets_of(recipe, listing, codec))


def _prepare(recipe: Recipe, progress: Tell, check: Check | None = None) -> tuple[Cache, Sequence[Set]]:
    """Return the cache and its sets after reading the sources and finding or training the tokenizer."""
    directory = Path(recipe.data.cache)
    storage.check_format(directory, shards.FORMATS)
    with storage.refusals(directory):
        make_directory(directory)
    in_use = storage.Use(directory)
    with in_use.unless_failed():
        listing = digests.survey(directory, (*recipe.data.train, *recipe.data.validation), progress)
        codec = load.for_files(recipe, listing.files[: len(recipe.data.train)], listing.contents, progress=progress)
        sets = sets_of(recipe, listing, codec)
        cache = Cache(recipe, codec, sets, in_use)
        if check:
            check(cache)
        storage.write_format(directory, shards.FORMAT)
        storage.sweep(directory / "shards")
    return cache, sets


def _make(data: Data, group: Set, cache: Cache, *, engine: Engine, progress: Tell) -> None:
    """Take the cached units of a set and tokenise the others, so that its streams grow from their beginning."""
    directory = cache.directory
    reporter = Reporter(group.name, sum(unit.size for source in group.sources for unit in source.units), progress)
    todo: list[tuple[LiveSource, int]] = []
    for source in group.sources:
        if (ledgers := find_usable(source, directory, data.on_error)) is not None:
            source.take(ledgers)
            reporter.add_shards(source.shards)
            reporter.add_done(source.shards, source=sum(unit.size for unit in source.units))
        else:
            todo += [(source, unit) for unit in range(len(source.units))]
    # with weights, all sources are needed from the start; without, one after the other
    mixed = any(spec.weight is not None for spec in data.train)
    todo.sort(key=lambda t: (t[1] + 0.5) / len(t[0].units) / max(group.weights[t[0].number], 1e-9) if mixed else 0)

    def on_result(index: int, parts: Parts | None) -> None:
        source, number = todo[index]
        if parts is not None:
            source.add(directory, number, parts)

    engine(
        [
            CacheWork(source.units[number], source.encoding, directory, cache.tokenizer, data.on_error)
            for source, number in todo
        ],
        wanted=lambda index: not todo[index][0].complete,
        on_result=on_result,
        reporter=reporter,
        stop=cache.stop if group.name == "train" else Stop(),
    )
    reporter.finish()
    check_not_empty(data, group)
    if group.apart is not None:
        make_apart(directory, group, cache.tokenizer)
