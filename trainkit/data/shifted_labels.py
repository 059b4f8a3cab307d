"""A check of labels of words before the first step: whether they belong to the words beside them."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from trainkit.data.cache.build import Cache
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
    words_N, labels_N, documents_N = _labelled(cache)
    if len(words_N) < _FEWEST:
        return
    shares = {0: _usual(words_N, labels_N)}
    for shift in (-1, 1):
        word = np.arange(max(0, -shift), len(words_N) - max(0, shift))
        word = word[documents_N[word] == documents_N[word + shift]]
        shares[shift] = _usual(words_N[word], labels_N[word + shift])
    shift = max((-1, 1), key=lambda one: shares[one])
    if shares[shift] > shares[0] + _CLEARLY:
        section, arrays = cache.train.sections[0], cache.train.arrays(0)
        file, index, *_ = arrays.documents[int(documents_N[0])].item()
        place = place_of(cache, "train", section.source, section.unit, file, index)
        yield DataProblem(
            "warning",
            f"train: labels fit the words {'before' if shift > 0 else 'after'} theirs better than their own:"
            f" {shares[shift]:.0%} are the usual label of that word, and {shares[0]:.0%} of their own: they may be"
            f" shifted by one, such as in {place}",
        )


def _labelled(cache: Cache) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the tokens that have a label, their labels, and the number of the document of each, (N,)."""
    parts, first, count = [], 0, 0
    for number, section in enumerate(cache.train.sections):
        arrays = cache.train.arrays(number)
        values = arrays.label_values[: section.tokens]
        at = np.flatnonzero(values >= 0)[: _MOST - count]
        parts.append((arrays.tokens[at], values[at], first + np.searchsorted(arrays.ends, at, side="right")))
        first, count = first + len(arrays.ends), count + len(at)
    words, labels, documents = (np.concatenate(columns) for columns in zip(*parts, strict=True))
    return words, labels, documents


def _usual(words_N: np.ndarray, labels_N: np.ndarray) -> float:
    """Return the share of labels that are the most frequent one of their word."""
    pairs, counts = np.unique(np.stack([words_N.astype(np.int64), labels_N]), axis=1, return_counts=True)
    _, word = np.unique(pairs[0], return_inverse=True)
    most = np.zeros(word.max(initial=-1) + 1, np.int64)
    np.maximum.at(most, word, counts)
    return float(most.sum() / max(1, len(words_N)))
