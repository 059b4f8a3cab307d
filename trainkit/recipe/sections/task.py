"""[task]: what is learned from the documents, and which documents and models each task needs.

Tasks with classes, pairs of answers or vectors have files of their own beside this one. The loss of a task is in the
module that its spec names as `implementation`; nothing outside that module and its spec knows a task by name.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, ClassVar, Literal, TypeAlias

from pydantic import Field, model_validator

from trainkit.recipe.families.model import Head, Kind, ModelSpec
from trainkit.recipe.sections.data import Concatenate, Data, Pack, Pad, Windows
from trainkit.recipe.sections.source import Source, Tokens, document_of
from trainkit.recipe.sections.task_spec import TEXTS, TaskSpec
from trainkit.recipe.spec import Count, Fraction, LossWeight, Number
from trainkit.recipe.union import OneOf


class NextTokens(TaskSpec):
    """What tasks that predict each token from those before it have in common."""

    label_smoothing: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Share of each target that is spread evenly over the vocabulary (Szegedy et al. 2016), as in transformers. It
    changes the gradient, not the logged loss."""
    z_loss: LossWeight = 0.0
    """Weight of the squared logarithm of the softmax's divisor, which keeps logits near 0 (Chowdhery et al. 2022, PaLM,
    uses 1e-4). It changes the gradient, not the logged loss."""
    embedding_noise: LossWeight = 0.0
    """Alpha of NEFTune (Jain et al. 2023); 5 is usual. Training adds uniform noise of up to alpha / sqrt(positions of a
    row x hidden) to the embeddings of tokens."""

    implementation: ClassVar[str] = "trainkit.tasks.causal_lm"
    models: ClassVar[frozenset[Kind]] = frozenset({"causal"})
    reports: ClassVar[frozenset[str]] = frozenset({"loss", "perplexity", "bits_per_byte"})
    writes: ClassVar[bool] = True

    def reports_on(self, sources: Iterable[Source], data: Data) -> frozenset[str]:
        """Return the names of its values; `bits_per_byte` only if every byte of a text is predicted."""
        documents = [document_of(source) for source in sources if not isinstance(source, Tokens)]
        whole = isinstance(data.encoding, Concatenate) and documents and not any(d and d.marked for d in documents)
        return self.reports if whole else self.reports - {"bits_per_byte"}

    @property
    def noise(self) -> float:
        """Return `embedding_noise`."""
        return self.embedding_noise

    def check_generation(self, beams: int, data: Data) -> None:
        """Raise ValueError where validation sets have no prompts with answers of their own, or beams are asked for."""
        if beams > 1:
            raise ValueError(
                f'evaluate.generate.beams = {beams}, and task.type = "{self.type}" continues texts without beams:'
                " omit it"
            )
        if not isinstance(data.encoding, Pack | Pad):
            raise ValueError(
                f'[evaluate.generate] needs whole documents, and data.encoding.type = "{data.encoding.type}":'
                ' use "pack" or "pad"'
            )
        for name, sources in data.validation_sources.items():
            for document in map(document_of, sources):
                if document is None or not document.has_answers:
                    kind = "text" if document is None else document.type
                    raise ValueError(
                        f"[evaluate.generate] writes answers to prompts, and the documents of the validation set {name}"
                        f" have none (type {kind}): use documents of type prompt or chat, or omit it"
                    )

    def check_sizes(self, model: ModelSpec, data: Data) -> None:
        """Raise ValueError if labels cannot be smoothed without computing all logits."""
        if self.label_smoothing and getattr(model, "softcap_of_logits", None) is not None:
            raise ValueError(
                f'task.label_smoothing does not work with model.type = "{model.type}", whose logits are capped:'
                " leave it out"
            )


class CausalLM(NextTokens):
    """Predict each token from those before it."""

    type: Literal["causal-lm"] = "causal-lm"

    documents: ClassVar[frozenset[str]] = TEXTS


class Sft(NextTokens):
    """Predict the tokens of answers in conversations, or in prompts with responses: `causal-lm` for documents in which
    only a part is learned."""

    type: Literal["sft"]

    documents: ClassVar[frozenset[str]] = frozenset({"prompt", "chat"})


class MaskedLM(TaskSpec):
    """Predict tokens that are hidden from the model (BERT, Devlin et al. 2019, section 3.1).

    Special tokens and what a document does not learn are never chosen. Which tokens are chosen is the same at every
    evaluation."""

    type: Literal["masked-lm"]
    probability: Fraction = 0.15
    """Share of the tokens that are chosen, and so are targets."""
    masked: Fraction = 0.8
    """Share of the chosen tokens that the mask token replaces."""
    random: Fraction = 0.1
    """Share of the chosen tokens that a random token replaces; the rest stay as they are."""
    unit: Literal["token", "word", "span"] = "token"
    """What is chosen as a whole: single tokens, all tokens of a word (Cui et al. 2019), or spans of up to 10 tokens
    (Joshi et al. 2020, SpanBERT), in which all tokens are replaced in the same way."""
    static: bool = False
    """Whether to choose the same tokens of an example in every epoch, as in BERT, or others each time (Liu et al. 2019,
    RoBERTa)."""

    implementation: ClassVar[str] = "trainkit.tasks.masked_lm"
    documents: ClassVar[frozenset[str]] = TEXTS
    models: ClassVar[frozenset[Kind]] = frozenset({"encoder"})
    reports: ClassVar[frozenset[str]] = frozenset({"loss", "accuracy"})
    shifted: ClassVar[bool] = False
    masks: ClassVar[bool] = True

    @property
    def needs_words(self) -> bool:
        """Return whether the tokenizer must show where words begin."""
        return self.unit == "word"

    @model_validator(mode="after")
    def _shares_fit(self) -> MaskedLM:
        if self.unit == "span" and self.probability == 1:
            raise ValueError('task.probability = 1 chooses every token, which leaves no spans: unit = "token"')
        if self.probability == 0:
            raise ValueError("task.probability = 0 chooses no token, so there is nothing to learn: 0.15 is usual")
        if self.masked + self.random > 1 + 1e-9:
            total = f"{self.masked:g} + {self.random:g}"
            raise ValueError(f"task.masked + task.random = {total} is more than 1: the rest is what is kept")
        return self


class Seq2Seq(TaskSpec):
    """Write a target from a source: predict each token of the target from the source and the tokens before it."""

    type: Literal["seq2seq"]
    label_smoothing: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Share of each target that is spread evenly over the vocabulary (Szegedy et al. 2016, section 7). It changes the
    gradient, not the logged loss."""

    implementation: ClassVar[str] = "trainkit.tasks.seq2seq"
    documents: ClassVar[frozenset[str]] = frozenset({"source-target"})
    models: ClassVar[frozenset[Kind]] = frozenset({"encoder-decoder"})
    reports: ClassVar[frozenset[str]] = frozenset({"loss", "perplexity", "accuracy"})
    shifted: ClassVar[bool] = False
    writes: ClassVar[bool] = True


class QuestionAnswering(TaskSpec):
    """Find the first and the last token of the answer to a question in a text (Devlin et al. 2019, section 4.2).

    The loss is the mean of two cross-entropies over the tokens of a window, of where the answer begins and ends. The
    target of a window that does not hold the whole answer is the first token."""

    type: Literal["question-answering"]
    max_answer_length: Count = 30
    """Largest number of tokens of an answer that an evaluation finds."""
    null_threshold: Number = 0.0
    """Where questions may be `unanswerable`: an evaluation gives an answer unless the scores of the first token are
    higher by more than this."""
    new_head: bool = False
    """Whether the last layer of the head starts from random weights although `model.pretrained` has one."""

    implementation: ClassVar[str] = "trainkit.tasks.question_answering"
    documents: ClassVar[frozenset[str]] = frozenset({"question"})
    models: ClassVar[frozenset[Kind]] = frozenset({"encoder"})
    shifted: ClassVar[bool] = False
    predictions: ClassVar[frozenset[str]] = frozenset({"tokens", "answers", "first", "last", "score", "null_score"})
    text_report: ClassVar[str | None] = "trainkit.evaluation.answers:answer_report"

    def reports_on(self, sources: Iterable[Source], data: Data) -> frozenset[str]:
        """Return the names of its values: those of `Task.report` and of its report on texts."""
        return self.reports | {"exact_match", "f1"}

    def head(self, data: Data) -> Head:
        """Return a head with two scores for each token."""
        return Head("span", 2, new=self.new_head)

    def check_sizes(self, model: ModelSpec, data: Data) -> None:
        """Raise ValueError if the ends of some contexts are in no window."""
        if isinstance(data.encoding, Windows) and data.encoding.min_length > 1:
            raise ValueError(
                f"data.encoding.min_length = {data.encoding.min_length} leaves out windows at the end of contexts, and"
                " an evaluation counts only questions that have all windows: omit it"
            )


#: Any task of the recipe language.
Task: TypeAlias = Annotated[
    TaskSpec,
    OneOf(
        "causal-lm",
        CausalLM,
        Sft,
        MaskedLM,
        "trainkit.recipe.sections.embedding_task:Embedding",
        "trainkit.recipe.sections.preference_tasks:TASKS",
        Seq2Seq,
        "trainkit.recipe.sections.classification_tasks:TASKS",
        QuestionAnswering,
    ),
]
