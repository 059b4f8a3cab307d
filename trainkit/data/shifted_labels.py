"""A check of labels of words before the first step: whether they belong to the words beside them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from trainkit.data.cache.token_cache import Cache
from trainkit.data.documents.labels import labels_of
from trainkit.data.problems import DataProblem
from trainkit.data.show import place_of
from trainkit.recipe import Recipe
from trainkit.recipe.sections.source import document_of

#: The fewest labelled words that are compared, and the most.
_FEWEST, _MOST = 200, 1 << 20
#: How much larger the share of usual labels must be with the words beside.
_CLEARLY = 0.1


def shifted_labels(cache: Cache, recipe: Recipe) -> Iterator[DataProblem]:
    """Yield a warning if a word says clearly less about its own label than about that of the word before or after it.

    What a word says is the share of labels that are the most frequent one of their word.
    """
    labels = labels_of(document_of(recipe.data.train[0]))
    if labels is None or labels.per != "token" or not labels.named:
        return
    parts = list(_labelled_tokens(cache))
    if sum(len(part.words_N) for part in parts) < _FEWEST:
        return
    words_N = np.concatenate([part.words_N for part in parts])
    labels_N = np.concatenate([part.labels_N for part in parts])
    documents_N = np.concatenate([part.documents_N for part in parts])
    shares = {0: _usual(words_N, labels_N)}
    for shift in (-1, 1):
        word = np.arange(max(0, -shift), len(words_N) - max(0, shift))
        word = word[documents_N[word] == documents_N[word + shift]]
        shares[shift] = _usual(words_N[word], labels_N[word + shift])
    shift = max((-1, 1), key=lambda one: shares[one])
    if shares[shift] > shares[0] + _CLEARLY:
        span = next(cache.train.places(parts[0].begin, 1))
        place = place_of(cache, "train", span.section.source, span.section.unit, span.file, span.index)
        yield DataProblem(
            "warning",
            f"train: labels fit the words {'before' if shift > 0 else 'after'} theirs better than their own:"
            f" {shares[shift]:.0%} are the usual label of that word, and {shares[0]:.0%} of their own: they may be"
            f" shifted by one, such as in {place}",
        )


class _LabelledTokens(NamedTuple):
    """The tokens of a shard that have a label, each array (N,)."""

    words_N: np.ndarray
    """Their ids."""
    labels_N: np.ndarray
    documents_N: np.ndarray
    """The number of the document of each, over all shards."""
    begin: int
    """The place of the first one in the stream."""


def _labelled_tokens(cache: Cache) -> Iterator[_LabelledTokens]:
    """Yield the tokens of each shard that have a label, up to `_MOST` of them together."""
    documents, left = 0, _MOST
    for number, section in enumerate(cache.train.sections):
        arrays = cache.train.file_arrays(number)
        values = arrays.label_values[: section.tokens]
        at = np.flatnonzero(values >= 0)[:left]
        if len(at):
            own = documents + np.searchsorted(arrays.ends, at, side="right")
            yield _LabelledTokens(arrays.tokens[at], values[at], own, cache.train.first_of(number) + int(at[0]))
        documents, left = documents + len(arrays.ends), left - len(at)
        if not left:
            return


def _usual(words_N: np.ndarray, labels_N: np.ndarray) -> float:
    """Return the share of labels that are the most frequent one of their word."""
    pairs, counts = np.unique(words_N.astype(np.int64) << 16 | labels_N, return_counts=True)  # labels are below 2^15
    _, word = np.unique(pairs >> 16, return_inverse=True)
    most = np.zeros(word.max(initial=-1) + 1, np.int64)
    np.maximum.at(most, word, counts)
    return float(most.sum() / max(1, len(words_N)))
