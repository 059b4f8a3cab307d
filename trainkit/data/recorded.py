"""Which data a run was trained on, as its directory records it, so that no other data is taken for it.

A run that began with an earlier format of shards recorded a fingerprint that today's rules do not give, though most
data gives the same tokens as then. The old fingerprint follows from the same files, tokenizer and encoding, so it can
still be computed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np

from trainkit import files
from trainkit.data import storage
from trainkit.data.batches.order import MIXTURE_BLOCK
from trainkit.data.cache import ledger, shards
from trainkit.data.cache.build import begin, build, may_start_early
from trainkit.data.cache.sets import set_of_ledgers
from trainkit.data.cache.stream import Stream
from trainkit.data.cache.token_cache import Cache
from trainkit.data.documents.pieces import PIECE
from trainkit.data.jobs import Tell
from trainkit.data.sources.digests import of_value
from trainkit.data.tokenizer.special_tokens import NAMES, Role
from trainkit.data.tokenizer.vocabulary import load
from trainkit.errors import TrainkitError
from trainkit.recipe import Recipe
from trainkit.recipe.sections.document import Chat, Prompt
from trainkit.recipe.sections.source import HuggingFace, RowSource, Source, Tokens, document_of
from trainkit.recipe.sections.stages import mixture_stages
from trainkit.redaction import redact

NAME = "data.json"
#: Files that an error names.
_NAMED = 3


@dataclass(frozen=True)
class Recorded:
    """The fingerprint of a run's data, the ledgers that it is made of, and those of its evaluation sets."""

    fingerprint: str
    ledgers: tuple[str, ...] = ()
    others: tuple[str, ...] = ()


class _OtherData(TrainkitError):
    """The sources are not what the run was trained on."""

    def __init__(self, problem: str, run: Path, *, only_gone: bool) -> None:
        super().__init__(
            f"{problem}: this is not the data that the run was trained on",
            where=str(run),
            hint="restore the original source files and tokenizer; to see other data: trainkit inspect RECIPE",
        )
        self.only_gone = only_gone


def keep(cache: Cache, run: Path) -> None:
    """Record in the run's directory which data it is trained on. Raises OSError."""
    files.write_json(run / NAME, asdict(Recorded(cache.fingerprint, cache.ledgers, cache.other_ledgers)))


def with_own_tokenizer(recipe: Recipe, run: Path) -> Recipe:
    """Return the recipe with the tokenizer that was trained for the run, if there is one.

    Training again, with another version or on another sample of the same text, could give another tokenizer.
    """
    path = run / "tokenizer.json"
    if recipe.tokenizer is None or recipe.tokenizer.train is None or not path.is_file():
        return recipe
    own = recipe.tokenizer.model_copy(update={"train": None, "path": str(path)})
    return recipe.model_copy(update={"tokenizer": own})


def read(run: Path) -> Recorded | None:
    """Return what a run recorded; None if an earlier version began the run."""
    try:
        record = files.read_json(run / NAME)
        others = record.get("others", ())  # an earlier version wrote none
        return Recorded(str(record["fingerprint"]), tuple(map(str, record["ledgers"])), tuple(map(str, others)))
    except (OSError, ValueError, KeyError, TypeError):
        return None


def open_again(
    recipe: Recipe,
    run: Path,
    recorded: Recorded,
    *,
    accept: Callable[[Cache], bool] = lambda cache: False,
    progress: Tell = None,
) -> Cache:
    """Return the cache that a run was trained on, after tokenising what is missing as `begin` and `build` do.

    If sources are gone but the cache is complete, it is used without them.

    Args:
        accept: whether to take a cache with another fingerprint than the recorded one.

    Raises:
        TrainkitError: the sources or the tokenizer have changed since, or are gone and the cache is incomplete.
    """
    make = begin if may_start_early(recipe) else build
    try:
        return make(recipe, progress=progress, check=partial(_check_same, run, recorded, accept))
    except TrainkitError as error:
        changed = isinstance(error, _OtherData) and not error.only_gone
        cache = None if changed else _whole(recipe, run, recorded)
        if cache is None:
            raise
        return cache


def _check_same(run: Path, recorded: Recorded, accept: Callable[[Cache], bool], cache: Cache) -> None:
    if cache.fingerprint != recorded.fingerprint and not accept(cache):
        differences, only_gone = _differences(recorded, cache)
        raise _OtherData(
            differences or "the tokenizer, or how documents are read, has changed", run, only_gone=only_gone
        )


def _differences(recorded: Recorded, cache: Cache) -> tuple[str, bool]:
    """Return which files differ from those of the run, and whether they are merely gone."""
    differences: list[str] = []
    gone = 0
    for name, units in zip(recorded.ledgers, cache.units["train"], strict=False):
        before = {redact(file["name"]): file for file in ledger.files_of(cache.directory, name) or ()}
        now = {redact(f.name): (f, c) for unit in units for f, c in zip(unit.files, unit.contents, strict=True)}
        for name, file in before.items():
            if name not in now:
                differences.append(f"{file['path']} is gone")
                gone += 1
            elif now[name][1].digest != file["digest"]:
                differences.append(f"{file['path']} has changed")
        differences += [f"{now[name][0].path} was added" for name in now if before and name not in before]
    more = f" and {len(differences) - _NAMED} more" if len(differences) > _NAMED else ""
    return ", ".join(differences[:_NAMED]) + more, 0 < gone == len(differences)


def _whole(recipe: Recipe, run: Path, recorded: Recorded) -> Cache | None:
    """Return the cache by its ledgers alone; None if it, or the run's tokenizer, is not as it was."""
    codec = None
    if recipe.data.is_text:
        if not (run / "tokenizer.json").is_file():
            return None
        codec = load(run / "tokenizer.json")
    in_use = storage.Use(Path(recipe.data.cache))
    training_set = set_of_ledgers(recipe, codec, recorded.ledgers)
    cache = training_set and Cache(recipe, codec, [training_set], in_use)
    return cache if cache and cache.fingerprint == recorded.fingerprint else None


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
        hint = "bring the source files and the tokenizer back as they were, or begin a new run"
        documents = (document_of(source) for source in recipe.data.train)
        for read_as in dict.fromkeys(document.read_as for document in documents if document and document.read_as):
            hint += f"; an earlier version of trainkit read the same files differently (now {read_as})"
        raise TrainkitError(
            f"the data is not what this run was trained on: its checkpoint has the fingerprint {recorded},"
            f" the data {cache.fingerprint}",
            where=str(where),
            hint=hint,
        )
    if changes:
        raise TrainkitError(
            "the data is not what this run was trained on, or this version of trainkit reads it differently:\n"
            + "\n".join(f"  {change}" for change in changes),
            where=str(where),
            hint="resume with the version of trainkit that began the run, or begin a new run",
        )


def format_of(cache: Cache, recorded: str) -> int | None:
    """Return the earlier format in which this data has the fingerprint `recorded`; None if there is none."""
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
        for begin, weights in mixture_stages(recipe.data.train).items():
            if _was_rounded(weights):
                yield f"the weights of data.train from step {begin} on were rounded to {MIXTURE_BLOCK}ths"


def _has_long_text(cache: Cache) -> bool:
    """Return whether a training text is longer than a piece; waits until all texts are tokenised."""
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
    """Return whether a source's share of a block of examples is not a whole number: shares used to be rounded."""
    shares = [weight / sum(weights) * MIXTURE_BLOCK for weight in weights]
    return any(abs(share - round(share)) > 1e-6 for share in shares)
