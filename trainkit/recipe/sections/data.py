"""[data] and [data.encoding]: where documents come from, how they become examples, and in which order."""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias

from pydantic import Field, model_validator

from trainkit.recipe.sections.source import Files, HuggingFace, PythonStdlib, RowSource, Source, Tokens, document_of
from trainkit.recipe.sections.stages import check_mixture, mixture_stages
from trainkit.recipe.spec import Count, MissingKey, Spec
from trainkit.recipe.union import OneOf


class EncodingSpec(Spec):
    """What every encoding has."""

    bos: bool | Literal["auto"] = "auto"
    """Whether the tokenizer's beginning-of-text token precedes every document. `"auto"`: if the tokenizer itself puts
    it before a text, and the model is `pretrained` or has an encoder."""
    eos: bool = True
    """Whether its end-of-text token follows every document."""


class Concatenate(EncodingSpec):
    """All documents one after the other, cut into examples: every token is a target once per epoch."""

    type: Literal["concatenate"] = "concatenate"
    separate: bool = False
    """Whether attention stops at document boundaries, where positions then restart."""


class Windows(EncodingSpec):
    """Windows over each document. Tokens that an earlier window has predicted are only context (weight 0, which other
    trainers write as label -100)."""

    type: Literal["windows"]
    stride: Count | None = None
    """Tokens from the start of one window to the start of the next. If absent, `sequence_length`: no overlap."""
    min_length: Count = 1
    """Windows of fewer new targets are dropped, and counted."""


class Pack(EncodingSpec):
    """As many whole documents as fit into an example (best fit). Each attends only to itself, and positions restart."""

    type: Literal["pack"]
    too_long: Literal["truncate", "split", "drop"] = "truncate"
    """What happens to a document of more than `sequence_length` positions; what is cut off or dropped is counted."""
    min_length: Count = 1
    """Documents of fewer targets are dropped, and counted."""


class Pad(EncodingSpec):
    """One document per example, padded."""

    type: Literal["pad"]
    buckets: tuple[Count, ...] = ()
    """Lengths to which examples are padded, each to the shortest that holds it; a batch has one length. The longest is
    always `sequence_length`."""
    too_long: Literal["truncate", "split", "drop"] = "truncate"
    """What happens to a document of more than `sequence_length` positions; what is cut off or dropped is counted."""
    min_length: Count = 1
    """Documents of fewer targets are dropped, and counted."""


def is_padded(encoding: EncodingSpec) -> bool:
    """Return whether examples may have positions without a token.

    The last example of concatenated documents may, but does not count.
    """
    return not isinstance(encoding, Concatenate)


Encoding: TypeAlias = Annotated[
    Concatenate | Windows | Pack | Pad, OneOf("concatenate", Concatenate, Windows, Pack, Pad)
]


__all__ = ["Data", "Files", "HuggingFace", "PythonStdlib", "RowSource", "Source", "Tokens", "Window"]


class Window(Spec):
    """Shuffle within windows of this many examples."""

    window: Count
    """Examples in a window. Training on a window may start while later ones are still being tokenised."""


class Data(Spec):
    """Where documents come from, how they become examples, and in which order."""

    sequence_length: Count | None = None
    """Positions in an example; needed if documents are text."""
    encoding: Encoding = Concatenate.model_construct()
    """How texts become examples. A document of another kind is an example as it is."""
    train: Annotated[tuple[Source, ...], Field(min_length=1)]
    """Training data: one `[[data.train]]` per source."""
    validation: tuple[Source, ...] = ()
    """Validation data beside the held-out part: one `[[data.validation]]` per set."""
    held_out: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Share of the training data kept out of training, as the validation set `held-out`. A document is kept out as a
    whole or not at all, except a long text file (32,768 characters; more for a share below 0.03 or above 0.97): about
    this share of it is kept out, in parts of 1,000 to 32,768 characters cut at line ends, so that one file is enough.
    What is kept out depends only on the name and place of each document: adding documents, or text at the end of a
    long one, moves nothing between the two."""
    shuffle: Literal["full", False] | Window = "full"
    """`"full"`: a new permutation of all examples each epoch; `{ window = N }`: within windows of N; `false`: in stored
    order."""
    cache: str = "cache"
    """Directory of the token cache, shared by all recipes."""
    on_error: Literal["stop", "skip"] = "stop"
    """Whether a document that cannot be read stops caching, or is skipped, counted and reported."""

    @model_validator(mode="after")
    def _weights_are_given_to_all_or_none(self) -> Data:
        if len({source.weight is None for source in self.train}) == 2:
            raise ValueError("either every [[data.train]] has a weight or none has")
        return self

    @model_validator(mode="after")
    def _a_source_always_has_a_weight(self) -> Data:
        if self.train[0].weight is not None:
            check_mixture(mixture_stages(self.train), key="data.train.0.weight")
        return self

    @model_validator(mode="after")
    def _documents_are_of_one_kind(self) -> Data:
        if len({_form(source) for source in (*self.train, *self.validation)}) > 1:
            raise ValueError(
                "all sources must have the same kind of documents: give all of them the same `document`, or none"
            )
        if self.is_text and self.sequence_length is None:
            raise MissingKey("sequence_length", "the documents are text")
        return self

    @model_validator(mode="after")
    def _the_encoding_fits_the_documents(self) -> Data:
        # the recipe of a run holds every default
        if not self.is_text and self.encoding != Concatenate():
            kind = next(document.type for source in self.train if (document := document_of(source)))
            raise ValueError(
                f"data.encoding divides texts into examples, and a document of type '{kind}' is an example as it is:"
                " leave it out"
            )
        if self.sequences > 1 and not (isinstance(self.encoding, Pad) and self.encoding.too_long != "split"):
            raise ValueError(
                "each sequence of a document with several, such as two answers, is a row of its own that is cut off or"
                ' dropped if it is too long: write data.encoding = { type = "pad" } (too_long = "truncate" or "drop")'
            )
        document = document_of(self.train[0])
        if document is not None and self.is_text and self.encoding.type not in document.encodings:
            raise ValueError(
                f'documents of type "{document.type}" are divided into examples by data.encoding.type ='
                f" {' or '.join(f'{chr(34)}{one}{chr(34)}' for one in sorted(document.encodings))},"
                f' and it is "{self.encoding.type}"'
            )
        if self.has_token_labels and isinstance(self.encoding, Concatenate):
            raise ValueError(
                "documents whose tokens have labels are examples by themselves, which data.encoding.type ="
                ' "concatenate" does not make of them: use "pad", "pack" or "windows"'
            )
        return self

    @model_validator(mode="after")
    def _the_encoding_fits_the_length(self) -> Data:
        if isinstance(self.encoding, Pad) and self.encoding.buckets:
            if max(self.encoding.buckets) > self.positions:
                raise ValueError(f"encoding.buckets must be at most sequence_length = {self.sequence_length}")
            if isinstance(self.shuffle, Window) or any(source.weight is not None for source in self.train):
                raise ValueError('encoding.buckets need shuffle = "full" or false, and no weights')
        stride = self.encoding.stride if isinstance(self.encoding, Windows) else None
        if stride is not None and stride > self.positions:
            raise ValueError(
                f"data.encoding.stride = {stride} would skip the tokens between windows: make it at most"
                f" sequence_length = {self.sequence_length}"
            )
        return self

    @model_validator(mode="after")
    def _weights_and_names_have_an_effect(self) -> Data:
        for number, source in enumerate(self.validation):
            if source.weight is not None:
                raise ValueError(
                    f"data.validation.{number}.weight has no effect, because each validation set is evaluated"
                    " separately: remove it"
                )
        for number, source in enumerate(self.train):
            if source.name is not None and source.weight is None:
                raise ValueError(
                    f'data.train.{number}.name = "{source.name}" is not used, because sources without weights are'
                    " one text: remove it, or give every [[data.train]] a weight"
                )
        names = self.validation_names
        for name in names:
            if names.count(name) > 1:
                raise ValueError(f"two validation sets are called '{name}': give each [[data.validation]] its own name")
        return self

    @property
    def is_text(self) -> bool:
        """Return whether the documents become tokens; documents of other kinds are examples themselves."""
        documents = [document_of(source) for source in (*self.train, *self.validation)]
        return any(document is None or document.is_text for document in documents)

    @property
    def positions(self) -> int:
        """Return the positions in a sequence; 1 if documents are not text."""
        return self.sequence_length or 1

    @property
    def sequences(self) -> int:
        """Return how many sequences of `sequence_length` an example has."""
        document = document_of(self.train[0])
        return 1 if document is None else document.sequences

    @property
    def has_token_labels(self) -> bool:
        """Return whether the tokens of the documents may have labels."""
        document = document_of(self.train[0])
        return document is not None and document.token_labels

    @property
    def validation_names(self) -> list[str]:
        """Return the names of the validation sets, in order; the held-out part of the training data is `held-out`."""
        names = [source.name or f"validation-{i}" for i, source in enumerate(self.validation)]
        if len(self.validation) == 1 and self.validation[0].name is None:
            names = ["validation"]
        return names + (["held-out"] if self.held_out else [])

    @property
    def validation_sources(self) -> dict[str, tuple[Source, ...]]:
        """Return the sources of each validation set, by its name."""
        sources = [*((source,) for source in self.validation), *([self.train] if self.held_out else [])]
        return dict(zip(self.validation_names, sources, strict=True))


def _form(source: Source) -> str:
    document = document_of(source)
    return "text" if document is None else document.form
