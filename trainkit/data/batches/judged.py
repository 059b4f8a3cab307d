"""Examples of judged answers: two sequences each, a prompt with its answer and the same prompt with another answer.

The other answer is that of the previous example in the shard, and for the first example that of the last one. trl's
KTOTrainer does the same within each of its batches.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from trainkit.data.batches.layout import Batch
from trainkit.data.batches.packing import PackedSpans, PackingCounts
from trainkit.data.batches.spans import SpanExamples
from trainkit.data.cache.section import SourceSpan
from trainkit.data.cache.shards import LEARNED
from trainkit.data.cache.stream import Stream
from trainkit.recipe.sections.data import Data, Pad
from trainkit.recipe.sections.document_spec import DocumentSpec


def judged_examples(
    stream: Stream, document: DocumentSpec, data: Data, cache: Path, *, shifted: bool = True
) -> JudgedAnswers:
    """Return the examples of judged answers."""
    assert shifted, "the targets of an answer are the next tokens"
    return JudgedAnswers(stream, document, data.encoding, data.positions, cache)


class JudgedAnswers(SpanExamples):
    """Example i has three spans: its prompt, its answer, and another answer.

    A document is left out if it is too short or too long for the encoding, or if nothing is left of its answer."""

    def read(self, which: np.ndarray, length: int) -> Batch:
        shape, dtype = (len(which), 2, length), self._stream.dtype
        batch = {"tokens": np.zeros(shape, dtype), "targets": np.zeros(shape, dtype)}
        batch |= {"weights": np.zeros(shape, np.float32), "filled": np.zeros(shape[:2], np.int32)}
        batch |= {"example": which.astype(np.uint32), "labels": np.zeros(len(which), np.int32)}
        for row, example in enumerate(which.tolist()):
            prompt, *answers = self._spans(example)
            arrays = self._stream.arrays(prompt.section)
            batch["labels"][row] = arrays.label_at(prompt.start)
            asked = arrays.tokens[prompt.start : prompt.start + prompt.length]
            for side, answer in enumerate(answers):
                tokens = np.concatenate([asked, arrays.tokens[answer.start : answer.start + answer.length]])
                used = min(len(tokens) - 1, length)
                batch["tokens"][row, side, :used], batch["targets"][row, side, :used] = tokens[:used], tokens[1:][:used]
                # the first token of a sequence is never a target, even without a prompt
                batch["weights"][row, side, max(prompt.length - 1, 0) : used] = 1
                batch["filled"][row, side] = used
        return batch

    def sizes(self) -> np.ndarray:
        """Return the positions that each of the two sequences takes, (examples, 2)."""
        self._frame()
        spans_N3 = np.concatenate([np.zeros((0, 3), np.int64), *(one.lengths.reshape(-1, 3) for one in self._frames)])
        return np.minimum(spans_N3[:, :1] + spans_N3[:, 1:] - 1, self._length)

    def spans(self, which: int) -> Iterator[tuple[SourceSpan, ...]]:
        prompt, *answers = self._spans(which)
        first = self._stream.first_of(prompt.section)
        for answer in answers:
            used = min(prompt.length + answer.length, self._length + 1)
            ranges = [(prompt.start, min(prompt.length, used)), (answer.start, max(used - prompt.length, 0))]
            if answer.start == prompt.start + prompt.length:  # its own: a part of one document
                ranges = [(prompt.start, used)]
            yield tuple(p for start, count in ranges if count for p in self._stream.places(first + start, count))

    def _spans_of(self, number: int) -> PackedSpans:
        section, arrays = self._stream.sections[number], self._stream.arrays(number)
        assert arrays.marks is not None and isinstance(self._spec, Pad)
        return judged_spans(self._spec, self._length, arrays.ends[: section.entries], arrays.marks)


def judged_spans(spec: Pad, length: int, ends: np.ndarray, marks: np.ndarray) -> PackedSpans:
    """Return three spans for each document of a shard that is used: its prompt, its answer, and another answer.

    Lengths are in tokens. A sequence of n tokens takes n - 1 positions.

    Args:
        ends: where each document ends, (documents,).
        marks: of each token, whether it is learned: the answers are.
    """
    ends = ends.astype(np.int64)
    starts = np.concatenate([[0], ends[:-1]]).astype(np.int64)
    before = np.concatenate([[0], np.cumsum(marks & LEARNED > 0)])
    answers = before[ends] - before[starts]
    borders, whole = ends - answers, np.maximum(ends - starts - 1, 0)
    kept = np.minimum(whole, length)
    used = (whole >= spec.min_length) & (answers > 0) & (borders < starts + 1 + kept)
    if spec.too_long == "drop":
        used &= whole <= length
    prompts_N2, answers_N2 = (
        np.stack([begins, sizes], 1)[used] for begins, sizes in ((starts, borders - starts), (borders, answers))
    )
    # an answer that is cut off in its own sequence may be whole after a shorter prompt
    spans_N32 = np.stack([prompts_N2, answers_N2, np.roll(answers_N2, 1, axis=0)], 1)
    counts = PackingCounts(
        documents=len(ends),
        dropped=int((~used).sum()),
        truncated=int((used & (whole > length)).sum()),
        lost=int(whole.sum() - kept[used].sum()),
        targets=int(whole.sum()),
    )
    examples = int(used.sum())
    offsets, flat_N2 = np.arange(examples + 1) * 3, spans_N32.reshape(-1, 2)
    return PackedSpans(offsets, flat_N2[:, 0], flat_N2[:, 1], np.zeros(3 * examples, np.int64), counts)
