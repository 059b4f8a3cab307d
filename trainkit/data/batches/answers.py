"""The prompts and answers in the rows of a batch, for evaluations that let a model answer."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

import numpy as np


class PromptAnswer(NamedTuple):
    """The last answer of a document, and all tokens before it."""

    row: int
    document: int
    """Its number among the documents of the row, from 0."""
    prompt: list[int]
    answer: list[int]


def last_answers(batch: Mapping[str, np.ndarray]) -> Iterator[PromptAnswer]:
    """Yield the last answer of each document in a batch whose targets are the next tokens: its last run of learned
    tokens. A document without one is left out."""
    for row in range(len(batch["tokens"])):
        for document, place in enumerate(_documents(batch, row)):
            targets, learned = batch["targets"][row, place], batch["weights"][row, place] > 0
            if not learned.any():
                continue
            end = int(np.flatnonzero(learned)[-1]) + 1
            masked = np.flatnonzero(~learned[:end])
            begin = int(masked[-1]) + 1 if len(masked) else 0
            prompt = batch["tokens"][row, place][: begin + 1]  # the input at `begin` is the last before the answer
            yield PromptAnswer(row, document, prompt.tolist(), targets[begin:end].tolist())


def _documents(batch: Mapping[str, np.ndarray], row: int) -> Iterator[slice]:
    """Yield the positions of each document in a row of packed documents, or of one padded document."""
    if "segments" not in batch:
        yield slice(0, int(batch["filled"][row]))
        return
    segments_T = batch["segments"][row]
    for number in range(1, int(segments_T.max(initial=0)) + 1):
        own = np.flatnonzero(segments_T == number)
        yield slice(int(own[0]), int(own[-1]) + 1)
