"""Documents that become two sequences: an answer that is preferred to another, a judged answer, two texts that belong
together, and a source with its target."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Literal

from pydantic import model_validator

from trainkit.recipe.sections.document_spec import ChatDocument, DocumentSpec
from trainkit.recipe.spec import Width


class Preferred(DocumentSpec):
    """What documents with a chosen and a rejected answer have in common."""

    margin: str | None = None
    """Key of a number by which the chosen answer is better, for `[task] type = "reward"`. If absent, there are no
    margins."""

    implementation: ClassVar[str] = "trainkit.data.documents.preferences"
    examples: ClassVar[str] = "trainkit.data.batches.pairs:pair_examples"
    sequences: ClassVar[int] = 2
    sequence_names: ClassVar[tuple[str, ...]] = ("chosen", "rejected")
    later_keys: ClassVar[frozenset[str]] = frozenset({"margin"})

    @property
    def label_kind(self) -> str | None:
        return None if self.margin is None else "trainkit.data.documents.labels:MarginLabels"

    @property
    def form(self) -> str:
        return "preference" if self.margin is None else "preference with margins"


class PreferencePair(Preferred):
    """A prompt and two answers to it, one of which is preferred. Only the answers are learned.

    Each answer is a sequence of its own, after the prompt. A row with an empty answer, or with two answers that are the
    same, cannot be used."""

    type: Literal["preference"]
    prompt: str = "{prompt}"
    """Template of the prompt. Begin the answers with a space rather than end the prompt with one: most tokenizers put a
    space into the token of the next word."""
    chosen: str = "{chosen}"
    """Template of the better answer."""
    rejected: str = "{rejected}"
    """Template of the worse answer."""

    learned_in_part: ClassVar[bool] = True
    marked: ClassVar[bool] = True

    @property
    def templates(self) -> Mapping[str, str]:
        return {"prompt": self.prompt, "chosen": self.chosen, "rejected": self.rejected}

    @property
    def keys(self) -> tuple[str, ...] | None:
        return None if self.margin is None else (self.margin,)


class PreferenceChat(ChatDocument, Preferred):
    """Two conversations, one of which is preferred, as lists of `{"role": …, "content": …}`. Only what follows their
    shared beginning is learned.

    A row cannot be used if the two conversations are the same, or if one ends with the shared beginning."""

    type: Literal["preference-chat"]
    prompt: str | None = None
    """Key of the messages before both lists. If absent, each list is a whole conversation."""
    chosen: str = "chosen"
    """Key of the better conversation, or of the better end of one."""
    rejected: str = "rejected"
    """Key of the worse one."""


class JudgedAnswer(DocumentSpec):
    """What documents with one answer, which is good or bad, have in common."""

    label: str = "label"
    """Key of the judgement: true for a good answer, false for a bad one; or 1 and 0."""

    implementation: ClassVar[str] = "trainkit.data.documents.judged"
    examples: ClassVar[str] = "trainkit.data.batches.judged:judged_examples"
    labelled: ClassVar[bool] = True
    sequences: ClassVar[int] = 2
    classes: ClassVar[tuple[str, ...]] = ("undesirable", "desirable")

    @property
    def form(self) -> str:
        return "judged"

    @property
    def number_keys(self) -> tuple[str, ...]:
        return (self.label,)


class Judged(JudgedAnswer):
    """A prompt and an answer that is good or bad. Only the answer is learned."""

    type: Literal["judged"]
    prompt: str = "{prompt}"
    """Template of the prompt. Begin `answer` with a space rather than end the prompt with one: most tokenizers put a
    space into the token of the next word."""
    answer: str = "{completion}"
    """Template of the answer."""

    learned_in_part: ClassVar[bool] = True
    marked: ClassVar[bool] = True

    @property
    def templates(self) -> Mapping[str, str]:
        return {"prompt": self.prompt, "answer": self.answer}

    @property
    def keys(self) -> tuple[str, ...]:
        return (self.label,)


class JudgedChat(ChatDocument, JudgedAnswer):
    """A conversation whose last answer is good or bad, as a list of `{"role": …, "content": …}`. Only the answer is
    learned."""

    type: Literal["judged-chat"]
    prompt: str | None = None
    """Key of the messages before the answer. If absent, `answer` is the key of a whole conversation, whose last message
    is the answer."""
    answer: str = "completion"
    """Key of the answer's messages, or of the whole conversation."""


class TwoTexts(DocumentSpec):
    """What documents of two texts have in common: each is a sequence of its own."""

    marked: ClassVar[bool] = True
    sequences: ClassVar[int] = 2

    @property
    def form(self) -> str:
        return self.type

    @property
    def templates(self) -> Mapping[str, str]:
        return {name: getattr(self, name) for name in self.sequence_names}


class PositivePair(TwoTexts):
    """Two texts that belong together, such as a question and a passage that answers it, for `[task] type =
    "embedding"`.

    Each text is tokenised separately, with the tokens that begin and end a document. A row with an empty text cannot be
    used. A row may also have hard negatives: texts that seem to belong to the query and do not."""

    type: Literal["positive-pair"]
    query: str = "{query}"
    """Template of the text to search with, such as `"query: {question}"`."""
    positive: str = "{positive}"
    """Template of the text to find, such as `"passage: {answer}"`."""
    negatives: str | None = None
    """Key of a hard negative, or of a list of them. If absent, there are none. If the template of the positive has one
    key, each negative takes its place, so that both are written alike; else it is written alone."""
    negative_count: Width = 1
    """How many hard negatives of a row are used, the first ones; a row with fewer cannot be used."""

    implementation: ClassVar[str] = "trainkit.data.documents.positive_pair"
    examples: ClassVar[str] = "trainkit.data.batches.pairs:pair_examples"
    later_keys: ClassVar[frozenset[str]] = frozenset({"negatives", "negative_count"})

    @property
    def sequences(self) -> int:  # type: ignore[override]
        return 2 if self.negatives is None else 2 + self.negative_count

    @property
    def sequence_names(self) -> tuple[str, ...]:  # type: ignore[override]
        return ("query", "positive", *(f"negative {number}" for number in range(1, self.sequences - 1)))

    @property
    def templates(self) -> Mapping[str, str]:
        return {"query": self.query, "positive": self.positive}

    @property
    def keys(self) -> tuple[str, ...] | None:
        return None if self.negatives is None else (self.negatives,)

    @property
    def form(self) -> str:
        return self.type if self.negatives is None else f"{self.type} with {self.negative_count}"

    @model_validator(mode="after")
    def _negatives_are_named(self) -> PositivePair:
        if self.negatives is None and self.negative_count != 1:
            raise ValueError(f"negative_count = {self.negative_count} says how many: negatives names their key")
        return self


class SourceTarget(TwoTexts):
    """A text that is read, the source, and the text to write from it, the target; only the target is learned.

    The two are tokenised separately, each with the tokens that begin and end a document. A text that is too long loses
    tokens before its last one. A row with an empty source or target cannot be used."""

    type: Literal["source-target"]
    source: str = "{source}"
    """Template of the text that is read, such as `"summarize: {article}"`."""
    target: str = "{target}"
    """Template of the text that is written, such as `"{summary}"`."""

    implementation: ClassVar[str] = "trainkit.data.documents.source_target"
    examples: ClassVar[str] = "trainkit.data.batches.pairs:source_target_examples"
    sequence_names: ClassVar[tuple[str, ...]] = ("source", "target")


#: Those of this file; `Document` in `document_spec.py` lists the files.
DOCUMENTS = (PreferencePair, PreferenceChat, Judged, JudgedChat, PositivePair, SourceTarget)
