"""The named arrays of a batch: what the encoders here make, and the losses in `tasks/` take.

B examples, T positions (`data.sequence_length`, or a bucket of `pad`). An example is one sequence; of preference
documents it is two, the chosen answer and the rejected one, and of a source with its target these two: (B, T) is
(B, 2, T), and `filled` is (B, 2). Of a judged answer they are its prompt with this answer, and with another one.
Of a positive pair with n hard negatives they are 2 + n sequences.

| name        | shape        | dtype                       | meaning                                                   |
|-------------|--------------|-----------------------------|-----------------------------------------------------------|
| `tokens`    | (B, T)       | as stored, uint16 or uint32 | inputs; cast on the device, so that fewer bytes go there  |
| `targets`   | (B, T)       | as `tokens`                 | at each position the next token, where a task is shifted  |
| `example`   | (B,)         | uint32                      | where it is not, and of pairs: which of its source, for   |
|             |              |                             | random numbers                                            |
| `reference` | (B, 2)       | float32                     | of preference documents, where a task compares with a     |
|             |              |                             | frozen model: its log-likelihoods of the answers          |
| `weights`   | (B, T)       | float32                     | how much each target counts; 0 where it is not to be      |
|             |              |                             | learned, or where there is only padding                   |
| `segments`  | (B, T)       | int32                       | where attention keeps within documents: which of the row, |
|             |              |                             | from 1; 0 is padding                                      |
| `positions` | (B, T)       | int32                       | with `segments`: position within the document, from 0     |
| `filled`    | (B,)         | int32                       | without `segments`: positions that are no padding         |
| `labels`    | (B,)         | int32                       | of labelled documents and images; -1 where there is none. |
|             |              |                             | Of judged answers: 1 of good ones, 0 of bad ones          |
| `labels`    | (B,), (B, W) | float32                     | of documents whose label is a number, or several; NaN     |
|             |              |                             | where there is none                                       |
| `labels`    | (B, C)       | int32                       | of documents with several classes at once: 1 for those of |
|             |              |                             | the document, 0 for others; -1 where there is none        |
| `labels`    | (B, T)       | int32                       | of documents whose tokens have labels: that of the token  |
|             |              |                             | in `tokens`, -1 where it has none                         |
| `labels`    | (B, T)       | int32                       | of questions: bits, the first of the tokens of the        |
|             |              |                             | target, the others of those of each answer; 0 in the rest |
|             |              |                             | of the context, -1 elsewhere                              |
| `second`    | (B, T)       | uint8                       | with `labels` of texts: 1 in the second text of a pair    |
| `images`    | (B, H, W, 3) | uint8                       | of images, which have no tokens; RGB                      |
| `features`  | (B, F)       | float32                     | of columns, which have no tokens: the numbers given       |
| `target`    | (B,)         | float32                     | of columns: the number to predict                         |

The `weights` of columns are (B,): 1, and 0 in rows that only fill up a batch.

A run has the same names in all its batches. Arrays may share memory; none is ever written to again.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

import numpy as np

from trainkit.data.documents.labels import labels_of
from trainkit.recipe.sections.data import Concatenate, Data, Encoding, Pack
from trainkit.recipe.sections.document_spec import DocumentSpec
from trainkit.recipe.sections.source import document_of
from trainkit.recipe.spec import implementation_of

Batch: TypeAlias = dict[str, np.ndarray]
#: Name to (shape, dtype).
Layout: TypeAlias = dict[str, tuple[tuple[int, ...], np.dtype]]


def has_segments(encoding: Encoding) -> bool:
    """Return whether attention stays within documents, several of which may be in a row."""
    return isinstance(encoding, Pack) or (isinstance(encoding, Concatenate) and encoding.separate)


def longest_layout(
    data: Data,
    *,
    batch_size: int,
    vocab_size: int,
    shifted: bool = True,
    reference: Mapping[str, tuple[int, ...]] = {},
) -> Layout:
    """Return the layout of the longest batches, before anything is cached.

    Args:
        reference: the arrays that a frozen reference model adds: see `TaskSpec.reference`.
    """
    real, whole = np.dtype(np.float32), np.dtype(np.int32)
    said: Layout = {name: ((batch_size, *of_one), real) for name, of_one in reference.items()}
    if not data.is_text:
        return _record_layout(document_of(data.train[0]), batch_size) | said
    rows = (batch_size,) if data.sequences == 1 else (batch_size, data.sequences)
    shape, token = (*rows, data.positions), np.dtype(np.uint16 if vocab_size <= 1 << 16 else np.uint32)
    layout: Layout = {"tokens": (shape, token), "weights": (shape, real), **said}
    if shifted:
        layout["targets"] = shape, token
    if not shifted or data.sequences > 1:
        layout["example"] = (batch_size,), np.dtype(np.uint32)
    document = document_of(data.train[0])
    labels = labels_of(document)
    if labels is not None and not isinstance(data.encoding, Concatenate):
        layout["labels"] = shape if labels.per == "token" else (batch_size, *labels.shape), labels.dtype
        if data.sequences == 1:
            layout["second"] = shape, np.dtype(np.uint8)
    if has_segments(data.encoding):
        layout |= {"segments": (shape, whole), "positions": (shape, whole)}
    else:
        layout["filled"] = rows, whole
    return layout


def _record_layout(document: DocumentSpec | None, batch_size: int) -> Layout:
    assert document is not None
    implementation = implementation_of(document)
    rows = np.zeros((batch_size, implementation.width(document)), np.uint8)
    layout: Layout = {name: (a.shape, a.dtype) for name, a in implementation.decode(document, rows).items()}
    labels = labels_of(document)
    return layout if labels is None else layout | {"labels": ((batch_size, *labels.shape), labels.dtype)}
