"""[data] and [data.encoding]: where documents come from, how they become examples, and in which order."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, Tag, model_validator

from trainkit.recipe.sections.source import Files, HuggingFace, PythonStdlib, RowSource, Source, Tokens, document_of
from trainkit.recipe.spec import Count, MissingKey, Spec, by_type


class EncodingSpec(Spec):
    """What all encodings have in common."""

    bos: bool | Literal["auto"] = "auto"
    """Whether the tokenizer's beginning-of-text token goes before every document. `"auto"`: where the
    tokenizer puts it before a text by itself, and the model is `pretrained` or an encoder."""
    eos: bool = True
    """Whether its end-of-text token follows every document."""


class Concatenate(EncodingSpec):
    """All documents one after the other, cut into examples: every token is a target once an epoch."""

    type: Literal["concatenate"] = "concatenate"
    separate: bool = False
    """Whether attention stops at the borders of documents; positions restart there."""


class Windows(EncodingSpec):
    """Windows over each document by itself. What an earlier window has predicted is context only (weight 0, what others
    write as label -100)."""

    type: Literal["windows"]
    stride: Count | None = None
    """Tokens from one window's begin to the next one's; `sequence_length` where not given: no overlap."""
    min_length: Count = 1
    """Windows of fewer new targets are dropped, and counted."""


class Pack(EncodingSpec):
    """Whole documents, as many as fit an example (best fit); each attends to itself only, and positions restart."""

    type: Literal["pack"]
    too_long: Literal["truncate", "split", "drop"] = "truncate"
    """What happens to a document of more than `sequence_length` positions; what is cut off or dropped is counted."""
    min_length: Count = 1
    """Documents of fewer targets are dropped, and counted."""


class Pad(EncodingSpec):
    """One document an example, padded."""

    type: Literal["pad"]
    buckets: tuple[Count, ...] = ()
    """Lengths to which examples are padded, each to the shortest that holds it; a batch has one length. The longest is
    `sequence_length`, which need not be named."""
    too_long: Literal["truncate", "split", "drop"] = "truncate"
    """What happens to a document of more than `sequence_length` positions; what is cut off or dropped is counted."""
    min_length: Count = 1
    """Documents of fewer targets are dropped, and counted."""


def is_padded(encoding: EncodingSpec) -> bool:
    """Whether examples may have positions without a token; of concatenated documents the very last one may, which does
    not count."""
    return not isinstance(encoding, Concatenate)


Encoding = Annotated[
    Annotated[Concatenate, Tag("concatenate")]
    | Annotated[Windows, Tag("windows")]
    | Annotated[Pack, Tag("pack")]
    | Annotated[Pad, Tag("pad")],
    by_type("concatenate"),
]


__all__ = ["Data", "Files", "HuggingFace", "PythonStdlib", "RowSource", "Source", "Tokens", "Window"]


class Window(Spec):
    """Shuffle within windows of so many examples."""

    window: Count
    """Examples in a window; training on one may start while later ones are still tokenised."""


class Data(Spec):
    sequence_length: Count | None = None
    """Positions in an example; needed where documents are text."""
    encoding: Encoding = Concatenate.model_construct()
    """How texts become examples. A document of another kind is an example as it is."""
    train: Annotated[tuple[Source, ...], Field(min_length=1)]
    """What is trained on: one `[[data.train]]` a source."""
    validation: tuple[Source, ...] = ()
    """What is evaluated on beside the held-out part: one `[[data.validation]]` a set."""
    held_out: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Share of the training data kept out of training, as the validation set `held-out`. A document is kept out whole
    or not at all, but of a long text file (32,768 characters; more for a share below 0.03 or above 0.97) about this
    share is, in parts of 1,000 to 32,768 characters, cut at line ends; so one file is enough. What is kept out depends
    on each document's own name and place only: adding documents, or text at the end of a long one, moves nothing
    between the two."""
    shuffle: Literal["full", False] | Window = "full"
    """`"full"`: a permutation of all examples, new each epoch; `{ window = N }`: within windows of N; `false`: as
    stored."""
    cache: str = "cache"
    """Directory of the token cache; shared by all recipes."""
    on_error: Literal["stop", "skip"] = "stop"
    """A document that cannot be read stops the caching, or is skipped, counted and reported."""

    @model_validator(mode="after")
    def _names_and_weights(self) -> Data:
        if len({source.weight is None for source in self.train}) == 2:
            raise ValueError("either every [[data.train]] has a weight or none has")
        if len({_form(source) for source in (*self.train, *self.validation)}) > 1:
            raise ValueError("all sources make documents of one kind: give all the same document, or none")
        if self.is_text and self.sequence_length is None:
            raise MissingKey("sequence_length", "the documents are text")
        # the recipe of a run holds every default
        if not self.is_text and self.encoding != Concatenate():
            kind = next(document.type for source in self.train if (document := document_of(source)))
            raise ValueError(
                f"data.encoding divides texts into examples, and a document of type '{kind}' is an example as it is:"
                " leave it out"
            )
        if self.sequences > 1 and not (isinstance(self.encoding, Pad) and self.encoding.too_long != "split"):
            raise ValueError(
                "the sequences of a document with several, such as two answers, are rows of their own, cut off or left"
                ' out where they are too long: data.encoding = { type = "pad" } (too_long = "truncate" or "drop")'
            )
        if self.has_token_labels and isinstance(self.encoding, Concatenate):
            raise ValueError(
                "documents whose tokens have labels are examples by themselves, which data.encoding.type ="
                ' "concatenate" does not make of them: use "pad", "pack" or "windows"'
            )
        if isinstance(self.encoding, Pad) and self.encoding.buckets:
            if max(self.encoding.buckets) > self.positions:
                raise ValueError(f"encoding.buckets are at most sequence_length = {self.sequence_length}")
            if isinstance(self.shuffle, Window) or any(source.weight is not None for source in self.train):
                raise ValueError('encoding.buckets need shuffle = "full" or false, and no weights')
        for number, source in enumerate(self.validation):
            if source.weight is not None:
                raise ValueError(
                    f"data.validation.{number}.weight shares out nothing: each validation set is evaluated by itself;"
                    " leave it out"
                )
        for number, source in enumerate(self.train):
            if source.name is not None and source.weight is None:
                raise ValueError(
                    f'data.train.{number}.name = "{source.name}" is shown nowhere, since sources without weights are'
                    " one text: leave it out, or give every [[data.train]] a weight"
                )
        stride = self.encoding.stride if isinstance(self.encoding, Windows) else None
        if stride is not None and stride > self.positions:
            raise ValueError(
                f"data.encoding.stride = {stride} would leave out the tokens between windows: make it at most"
                f" sequence_length = {self.sequence_length}"
            )
        names = self.validation_names
        for name in names:
            if names.count(name) > 1:
                raise ValueError(f"two validation sets are called '{name}': give each [[data.validation]] its own name")
        return self

    @property
    def is_text(self) -> bool:
        """Whether the documents become tokens; other documents are examples as they are."""
        documents = [document_of(source) for source in (*self.train, *self.validation)]
        return any(document is None or document.is_text for document in documents)

    @property
    def positions(self) -> int:
        """Positions in a sequence; 1 where documents are not text."""
        return self.sequence_length or 1

    @property
    def sequences(self) -> int:
        """Sequences of `sequence_length` in an example."""
        document = document_of(self.train[0])
        return 1 if document is None else document.sequences

    @property
    def has_token_labels(self) -> bool:
        """Whether the tokens of the documents may have labels."""
        document = document_of(self.train[0])
        return document is not None and document.token_labels

    @property
    def validation_names(self) -> list[str]:
        """Names of the validation sets, in order; the held-out part of the training data is `held-out`."""
        names = [source.name or f"validation-{i}" for i, source in enumerate(self.validation)]
        if len(self.validation) == 1 and self.validation[0].name is None:
            names = ["validation"]
        return names + (["held-out"] if self.held_out else [])


def _form(source: Source) -> str:
    document = document_of(source)
    return "text" if document is None else document.form
