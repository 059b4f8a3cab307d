"""Checks of the data before the first step: nothing to learn, unknown tokens, text that is cut off, duplicates.

(Ids that the tokenizer does not have are refused when they are read.)
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Literal

import numpy as np

from trainkit.data.batches.dataset import counts_of
from trainkit.data.batches.evaluation_set import validation_sources
from trainkit.data.batches.examples import examples_of
from trainkit.data.batches.pairs import Pairs
from trainkit.data.cache.shards import LEARNED
from trainkit.data.cache.stream import Stream
from trainkit.data.cache.token_cache import Cache
from trainkit.data.documents.labels import labels_of
from trainkit.data.label_checks import absent_classes, one_class, outside_classes
from trainkit.data.problems import DataProblem
from trainkit.data.question_checks import question_problems
from trainkit.data.shifted_labels import shifted_labels
from trainkit.data.show import place_of
from trainkit.recipe import Recipe
from trainkit.recipe.sections.source import document_of

#: Shares above which a check warns.
UNKNOWN, CUT_OFF, DUPLICATES, SHARED = 0.001, 0.05, 0.01, 0.001
#: Levels of problems, the worst first.
_LEVELS = ("error", "warning", "info")
#: Share of learned tokens below which a check warns.
LITTLE = 0.01
#: Pairs that are compared at once.
_READ_AT_ONCE = 1024
#: The most documents whose hashes are compared; if there are more, only those whose hashes begin with enough zeros.
_COMPARED = 1 << 22


def find_problems(cache: Cache, recipe: Recipe) -> list[DataProblem]:
    """Return what the checks find in the cache so far; errors first."""
    problems = [*_left_out(cache), *_learned(cache, recipe), *_unknown(cache), *outside_classes(cache, recipe)]
    problems += _ends_of_turns(cache, recipe)
    problems += question_problems(cache, recipe)
    if cache.train.complete:
        problems += [*_cut_off(cache, recipe), *_duplicates(cache), *one_class(cache, recipe)]
        problems += [*absent_classes(cache, recipe), *shifted_labels(cache, recipe)]
        problems += _same_when_cut_off(cache, recipe)
    return sorted(problems, key=lambda problem: _LEVELS.index(problem.level))


def find_evaluation_problems(cache: Cache, recipe: Recipe, name: str) -> list[DataProblem]:
    """Return what the checks find in a complete training set that is evaluated instead, as the set `name`; errors
    first."""
    problems = [*_left_out(cache), *_unknown(cache), *outside_classes(cache, recipe), *_cut_off(cache, recipe)]
    problems += question_problems(cache, recipe, learns=False)
    named = [replace(each, message=each.message.replace("train: ", f"{name}: ", 1)) for each in problems]
    return sorted(named, key=lambda problem: _LEVELS.index(problem.level))


def _left_out(cache: Cache) -> Iterator[DataProblem]:
    left_out = cache.left_out
    streams = [stream for _, stream in _streams(cache)]
    documents = sum(stream.documents for stream in streams) + left_out.refused
    size = sum(stream.bytes for stream in streams) + sum(reason.bytes for reason in left_out.reasons)
    for reason in left_out.reasons:
        number, of = reason.documents, f"{reason.documents / documents:.1%} of all"
        if reason.bytes:
            of += f", {reason.bytes / size:.1%} of the bytes"
        subject = f"1 document ({of}) was" if number == 1 else f"{number:,} documents ({of}) were"
        example = f"{reason.where}" if number == 1 else f"such as {reason.where}"
        why = next((why for where, why in left_out.examples if where == reason.where), reason.why)
        yield DataProblem("warning", f"{subject} skipped as unreadable: {example}: {why}")
    if number := left_out.filtered:
        subject = "1 document is" if number == 1 else f"{number:,} documents are"
        yield DataProblem("info", f"{subject} too short or too long (min_characters, max_characters) and left out")
    if number := left_out.empty:
        subject = "1 document has no text and was" if number == 1 else f"{number:,} documents have no text and were"
        yield DataProblem("info", f"{subject} left out")


def _learned(cache: Cache, recipe: Recipe) -> Iterator[DataProblem]:
    labels = labels_of(document_of(recipe.data.train[0]))
    if labels is not None and not labels.named:  # few tokens of a text answer a question
        return
    for name, stream in _streams(cache):
        learned = sum(section.shard.learned for section in stream.sections)
        if not stream.tokens or learned >= LITTLE * stream.tokens:
            continue
        level: Literal["error", "warning"] = "warning" if learned else "error"
        number = f"only {learned:,}" if learned else "none"
        masked = f"of {stream.tokens:,} tokens {number} are learned: the others are masked"
        yield DataProblem(level, f"{name}: {masked}; {_beginning(cache, stream)}")


def _unknown(cache: Cache) -> Iterator[DataProblem]:
    if cache.tokenizer is None or cache.tokenizer.unknown is None:
        return
    for name, stream in _streams(cache):
        unknown = sum(section.shard.unknown for section in stream.sections)
        if unknown <= UNKNOWN * stream.tokens:
            continue
        number = next(i for i, section in enumerate(stream.sections) if section.shard.unknown)
        tokens = stream.file_arrays(number).tokens
        place = int(np.flatnonzero(tokens == cache.tokenizer.unknown)[0])
        around = cache.tokenizer.decode(tokens[max(0, place - 8) : place + 8].tolist())
        share = unknown / stream.tokens
        yield DataProblem(
            "warning",
            f"{name}: {unknown:,} of {stream.tokens:,} tokens ({share:.1%}) are unknown to the tokenizer,"
            f" as in {around!r}",
        )


def _cut_off(cache: Cache, recipe: Recipe) -> Iterator[DataProblem]:
    sources = [recipe.data.train[0], *validation_sources(recipe)]
    for (name, stream), source in zip(_streams(cache), sources, strict=True):
        counts = counts_of(stream, source, recipe, cache.directory) if stream.complete else None
        if counts is None or not counts.lost:
            continue
        share = counts.lost / max(1, counts.targets)
        what = [f"{n:,} {how}" for n, how in ((counts.truncated, "cut off"), (counts.dropped, "dropped")) if n]
        yield DataProblem(
            "warning" if share > CUT_OFF else "info",
            f"{name}: of {counts.documents:,} documents {' and '.join(what) or 'the ends of some are left out'};"
            f" {counts.lost:,} of {counts.targets:,} targets ({share:.1%}) are lost",
        )


def _same_when_cut_off(cache: Cache, recipe: Recipe) -> Iterator[DataProblem]:
    """Yield how many pairs have two equal sequences, since both are cut off before they differ."""
    source, length = recipe.data.train[0], recipe.data.positions
    examples = examples_of(cache.train, source, recipe.data, cache.directory, shifted=recipe.task.shifted)
    if type(examples) is not Pairs:
        return
    same: list[int] = []
    cut_off = np.flatnonzero((examples.sizes() == length).all(1))
    for begin in range(0, len(cut_off), _READ_AT_ONCE):
        which = cut_off[begin : begin + _READ_AT_ONCE]
        batch = examples.read(which, length)
        arrays = [batch[name] for name in ("tokens", "targets") if name in batch]
        equal = np.logical_and.reduce([(array[:, 0] == array[:, 1]).all(1) for array in arrays])
        same += which[equal].tolist()
    if same:
        place = next(examples.spans(same[0]))[0]
        section = place.section
        where = place_of(cache, "train", section.source, section.unit, place.file, place.index)
        subject = "1 pair has" if len(same) == 1 else f"{len(same):,} pairs have"
        yield DataProblem(
            "warning",
            f"train: {subject} two equal sequences, cut off to data.sequence_length = {length} before they differ,"
            f" such as {where}: nothing is learned from them",
        )


def _ends_of_turns(cache: Cache, recipe: Recipe) -> Iterator[DataProblem]:
    """Yield an error if a special token follows the answers of conversations and is never learned, so that the model
    would never learn to end its turn. Only the beginning of the data is checked."""
    if not any(d is not None and d.chat_template is not None for d in map(document_of, recipe.data.train)):
        return
    special = list(cache.text_tokenizer.special_tokens.values())
    found, seen = "", 0
    for number, section in enumerate(cache.train.sections):
        arrays = cache.train.file_arrays(number)
        if arrays.marks is None or seen >= _COMPARED:
            break
        tokens, learned = arrays.tokens[:_COMPARED], arrays.marks[:_COMPARED] & LEARNED > 0
        seen += len(tokens)
        is_special = np.isin(tokens, special)
        if (learned & is_special).any():
            return
        followers = np.flatnonzero(learned[:-1] & ~learned[1:] & is_special[1:]) + 1
        followers = followers[~np.isin(followers, arrays.ends)]  # another document begins there
        if len(followers) and not found:
            at = int(followers[0])
            record = arrays.documents[int(np.searchsorted(arrays.ends, at, side="right"))]
            place = place_of(cache, "train", section.source, section.unit, int(record["file"]), int(record["index"]))
            found = f"{cache.text_tokenizer.decode([int(tokens[at])])!r} follows an answer at {place}"
    if found:
        yield DataProblem(
            "error",
            f"train: no answer learns to end its turn: {found}, and is masked there and everywhere: put it into the"
            " template's {% generation %} block, after the message",
        )


def _duplicates(cache: Cache) -> Iterator[DataProblem]:
    shift = max(0, cache.train.documents.bit_length() - _COMPARED.bit_length())
    hashes = _hashes(cache.train, shift)
    if not len(hashes):
        return
    values, counts = np.unique(hashes, return_counts=True)
    repeated = int((counts - 1).sum())
    if repeated > DUPLICATES * len(hashes):
        example = values[np.argmax(counts)]
        places = _places_of(cache, cache.train, example)
        yield DataProblem(
            "warning",
            f"train: {repeated:,} of {len(hashes):,} documents ({repeated / len(hashes):.1%}) repeat an earlier one,"
            f" such as {' and '.join(places)}",
        )
    if copies := cache.copies:
        subject = f"{copies:,} document{'s are exact copies' if copies > 1 else ' is an exact copy'}"
        was = "were" if copies > 1 else "was"
        message = f"held-out: {subject} of training documents and {was} left out of the evaluation"
        if not all(section.shard.measured for section in cache.validation["held-out"].sections):
            message += "; an earlier version made this cache, so bits_per_byte uses an estimate of the bytes of the"
            message += " others: trainkit cache-data RECIPE --rebuild counts them"
        yield DataProblem("info", message)
    for name, stream in cache.validation.items():
        if not stream.complete:
            continue
        theirs = _hashes(stream, shift)
        shared = np.isin(theirs, values)
        if shared.sum() > SHARED * len(theirs):
            (place, *_) = _places_of(cache, stream, theirs[shared][0], name)
            yield DataProblem(
                "warning",
                f"{name}: {int(shared.sum()):,} of {len(theirs):,} documents are also in the training data,"
                f" such as {place}",
            )


def _hashes(stream: Stream, shift: int) -> np.ndarray:
    """Return the hashes of documents that begin with `shift` zero bits: a sample that depends on the hashes alone."""
    hashes_of = [np.zeros(0, np.uint64)]
    for number, section in enumerate(stream.sections):
        hashes = stream.file_arrays(number).documents["hash"][: section.entries]
        hashes_of.append(hashes[hashes >> np.uint64(64 - shift) == 0] if shift else hashes)
    return np.concatenate(hashes_of)


def _places_of(cache: Cache, stream: Stream, value: np.uint64, name: str = "train") -> list[str]:
    """Return where the first two documents with a hash are."""
    places: list[str] = []
    for number, section in enumerate(stream.sections):
        documents = stream.file_arrays(number).documents[: section.entries]
        for at in np.flatnonzero(documents["hash"] == value).tolist():
            file, index = int(documents["file"][at]), int(documents["index"][at])
            places.append(place_of(cache, name, section.source, section.unit, file, index))
            if len(places) == 2:
                return places
    return places


def _streams(cache: Cache) -> list[tuple[str, Stream]]:
    return [("train", cache.train), *cache.validation.items()]


def _beginning(cache: Cache, stream: Stream) -> str:
    arrays = stream.file_arrays(0)
    end = min(int(arrays.ends[0]) if len(arrays.ends) else 64, 64)
    learned = "" if arrays.marks is None else f" (learned: {int((arrays.marks[:end] & LEARNED).sum())} of {end})"
    return f"the first document begins {cache.text_tokenizer.decode(arrays.tokens[:end].tolist())!r}{learned}"
