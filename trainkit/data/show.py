"""Batches as text: which parts are learned, and where they come from."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from trainkit.data.batches.dataset import BatchRow, TrainSet
from trainkit.data.batches.layout import Batch
from trainkit.data.cache.section import SourceSpan
from trainkit.data.cache.token_cache import Cache
from trainkit.data.documents.labels import labels_of
from trainkit.recipe.sections.source import document_of
from trainkit.redaction import redact


@dataclass(frozen=True)
class ShownPiece:
    """A part of a row: tokens `first` … `end - 1` of the document at `where`.

    `runs` are (text, whether it is learned), in order; together they are all of it. The label of a token follows its
    text in brackets.
    """

    where: str
    first: int
    end: int
    runs: tuple[tuple[str, bool], ...]
    part: str = ""
    """What the sequence is where a row has several, such as the chosen answer."""


@dataclass(frozen=True)
class ShownRow:
    """A row of a batch.

    Attributes:
        label: None if it has none: the name of a class, or its number if it has no name; a number or several; or names.
    """

    step: int
    row: int
    source: str
    example: int
    label: Any
    pieces: tuple[ShownPiece, ...]


def as_shared(row: ShownRow) -> dict[str, Any]:
    """Return a row as JSON values, without secrets in the places that its text comes from; the text itself is data."""
    fields = asdict(row)
    pieces = [piece | {"where": redact(piece["where"])} for piece in fields["pieces"]]
    return fields | {"source": redact(row.source), "pieces": pieces}


class HiddenTokens(NamedTuple):
    """A batch in which a step hides some tokens."""

    inputs_BT: np.ndarray
    """The tokens as the model reads them."""
    weights_BT: np.ndarray
    """Above 0 for the tokens that are chosen, and learned."""
    mask: int
    """The id of the mask token."""


Hide: TypeAlias = Callable[[Batch, int], HiddenTokens]
"""Returns a batch as the model reads it in a step."""


def show(cache: Cache, data: TrainSet, step: int, hide: Hide | None = None) -> Iterator[ShownRow]:
    """Yield the rows of the batch of the update from `step` to `step` + 1, exactly as training sees them.

    With `hide`, only the tokens that it chooses are learned; what the model reads in their place follows in brackets:
    `[masked]`, `[kept]`, or `[random TEXT]`.
    """
    batch = data.batch(step)
    hidden = None if hide is None else hide(batch, step)
    if hidden is not None:
        batch = {**batch, "weights": hidden.weights_BT}
    document = document_of(data.streams()[0][2])
    labels = labels_of(document)
    of_tokens = labels is not None and labels.per == "token"
    named = labels is not None and labels.named
    classes = document.label_names if document is not None and of_tokens and named else None
    for number, row in enumerate(data.rows(step)):
        is_text = "tokens" in batch
        names = _label_names(batch, number, classes) if hidden is None else _fates(cache, batch, number, hidden)
        pieces = tuple(_pieces(cache, row, batch, number, names) if is_text else _record(cache, row, batch, number))
        if document is not None and len(document.sequence_names) == len(pieces):
            pieces = tuple(replace(p, part=name) for p, name in zip(pieces, document.sequence_names, strict=True))
        label = (
            None if labels is None or of_tokens or "labels" not in batch else labels.as_json(batch["labels"][number])
        )
        yield ShownRow(step, number, row.source, row.example, label, pieces)


def _record(cache: Cache, row: BatchRow, batch: Batch, number: int) -> Iterator[ShownPiece]:
    """Yield where a document that is not text comes from, and its numbers."""
    numbers = {name: array[number] for name, array in batch.items() if array.dtype == np.float32 and name != "weights"}
    text = ", ".join(f"{name} = {np.array2string(array, precision=5)}" for name, array in numbers.items())
    runs = ((text, True),) if text else ()
    yield from (ShownPiece(_where(cache, place), 0, 0, runs) for places in row.spans for place in places)


def _pieces(cache: Cache, row: BatchRow, batch: Batch, number: int, labels_T: Sequence[str]) -> Iterator[ShownPiece]:
    position, pairs = 0, batch["tokens"].ndim == 3
    for span, places in enumerate(row.spans):
        tokens_T, weights_T, targets_T = (
            batch[name][number, span] if pairs else batch[name][number]
            for name in ("tokens", "weights", "targets" if "targets" in batch else "tokens")
        )
        position = 0 if pairs else position  # each sequence of a pair is a row by itself
        shift = int("targets" in batch)
        positions = sum(place.end - place.first for place in places) - shift
        mine = slice(position, position + positions)
        tokens, learned = tokens_T[mine], weights_T[mine] > 0
        if shift:  # the last target is no input
            tokens = np.append(tokens, targets_T[mine][-1:])
            learned = np.append([False], learned)
        labels = [*labels_T[mine], ""]
        position += positions
        start = 0
        for place in places:
            end = start + place.end - place.first
            runs = tuple(_runs(cache, tokens[start:end], learned[start:end], labels[start:end]))
            yield ShownPiece(_where(cache, place), place.first, place.end, runs)
            start = end


def _label_names(batch: Batch, number: int, classes: Sequence[str] | None) -> list[str]:
    """Return the label of each token of a row, by its name or number; empty where it has none, as all tokens have
    where `classes` is None."""
    if classes is None:
        return [""] * batch["tokens"].shape[-1] if "tokens" in batch else []
    labels = batch["labels"][number].tolist()
    return ["" if label < 0 else classes[label] if label < len(classes) else str(label) for label in labels]


def _fates(cache: Cache, batch: Batch, number: int, hidden: HiddenTokens) -> list[str]:
    """Return what the model reads in the place of each token of a row that is chosen; empty for the others."""
    tokens_T, inputs_T = batch["tokens"][number].tolist(), hidden.inputs_BT[number].tolist()
    fates = [""] * len(tokens_T)
    for at in np.flatnonzero(hidden.weights_BT[number] > 0).tolist():
        random = f"random {cache.text_tokenizer.decode([inputs_T[at]]).strip()}"
        fates[at] = "masked" if inputs_T[at] == hidden.mask else "kept" if inputs_T[at] == tokens_T[at] else random
    return fates


def _runs(cache: Cache, tokens: np.ndarray, learned: np.ndarray, labels: Sequence[str]) -> Iterator[tuple[str, bool]]:
    """Yield the text of all tokens, divided where learned tokens begin or end and around tokens with a label.

    It is decoded as a whole, because many tokenizers omit the first space of a part.
    """
    ids, begin, waiting = tokens.tolist(), 0, ""
    text = cache.text_tokenizer.decode(ids)
    cut = [learned[i] != learned[i - 1] or bool(labels[i] or labels[i - 1]) for i in range(1, len(ids))]
    for start, end in pairwise([0, *(np.flatnonzero(cut) + 1).tolist(), len(ids)]):
        waiting = labels[start] or waiting
        # a character whose bytes are on both sides is shown with the latter
        until = _alike(cache.text_tokenizer.decode(ids[:end]), text) if end < len(ids) else len(text)
        if until > begin:
            yield text[begin:until] + (f"[{waiting}]" if waiting else ""), bool(learned[start] or waiting)
            begin, waiting = until, ""


def _alike(text: str, other: str) -> int:
    """Return how many characters both texts begin with."""
    pairs = enumerate(zip(text, other, strict=False))
    return next((place for place, (a, b) in pairs if a != b), min(len(text), len(other)))


def _where(cache: Cache, place: SourceSpan) -> str:
    section = place.section
    return place_of(cache, "train", section.source, section.unit, place.file, place.index)


def place_of(cache: Cache, set_name: str, source: int, unit: int, file: int, index: int) -> str:
    """Return where to find a document: its file, with the line or row if the file has several."""
    place = cache.units[set_name][source][unit].files[file].place_of(index)
    return place.removeprefix(os.path.join(os.getcwd(), ""))
