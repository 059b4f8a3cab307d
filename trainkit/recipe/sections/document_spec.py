"""The interface of document types: what a document is made of, how it is stored, and which part of it is learned."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar, NamedTuple, TypeAlias

from pydantic import Field

from trainkit.recipe.spec import Spec
from trainkit.recipe.union import OneOf

Keys = Annotated[tuple[str, ...], Field(min_length=1)]


class ChatTemplateChoice(NamedTuple):
    """Which chat template writes conversations: that of the tokenizer where both are None."""

    jinja: str | None = None
    """The template itself."""
    path: str | None = None
    """The file that holds it."""


class DocumentSpec(Spec):
    """What all types of documents have in common."""

    type: str

    implementation: ClassVar[str]
    """The module whose `make(document, row, index, context)` returns the pieces of a row, or what is wrong with it."""
    examples: ClassVar[str] = "trainkit.data.batches.examples:text_examples"
    """The function that returns the `Examples` of a stream, called as `text_examples` is."""
    stored_as: ClassVar[str] = "tokens"
    """What the cache holds: `tokens`, or bytes of something else, by its name."""
    marked: ClassVar[bool] = False
    """Whether some of its tokens may be no targets, or in second texts."""
    learned_in_part: ClassVar[bool] = False
    """Whether a text may have parts that are no targets: it is tokenised as a whole."""
    sequences: ClassVar[int] = 1
    """Sequences of `data.sequence_length` in an example."""
    sequence_names: ClassVar[tuple[str, ...]] = ()
    """What each of several sequences is, such as the chosen answer."""
    labelled: ClassVar[bool] = False
    """Whether it may have a label, which batches then hold as `labels`."""
    token_labels: ClassVar[bool] = False
    """Whether its tokens may have a label each, which batches then hold as `labels`."""
    encodings: ClassVar[frozenset[str]] = frozenset({"concatenate", "windows", "pack", "pad"})
    """The types of `data.encoding` that make examples of it."""
    later_keys: ClassVar[frozenset[str]] = frozenset()
    """Keys that did not exist at first: caches made before are used as long as these have their default."""
    read_as: ClassVar[str] = ""
    """How its rows become tokens and labels, if an earlier version did it otherwise: no cache made before is taken for
    one of this version."""

    @property
    def has_answers(self) -> bool:
        """Whether its last learned tokens are an answer to those before them."""
        return False

    @property
    def is_pair(self) -> bool:
        """Return whether two texts are one sequence, joined by the tokens that the tokenizer puts between them."""
        return False

    @property
    def label_kind(self) -> str | None:
        """Return the name of the class in `trainkit.data.documents.labels` that handles its labels; None without
        labels."""
        if self.token_labels:
            return "trainkit.data.documents.labels:TokenLabels"
        return "trainkit.data.documents.labels:ClassLabels" if self.labelled else None

    @property
    def label_names(self) -> tuple[str, ...]:
        """Return the names of the classes, or of the numbers in a label, in order; empty if they have none."""
        return getattr(self, "classes", ())

    @property
    def is_text(self) -> bool:
        """Return whether a tokenizer turns the documents into tokens."""
        return self.stored_as == "tokens"

    @property
    def form(self) -> str:
        """Return what must be the same in the documents of all sources."""
        return "text"

    @property
    def keys(self) -> tuple[str, ...] | None:
        """Return the keys of a row that the document is made of; None if they follow from a template, or may be any."""
        return None

    @property
    def templates(self) -> Mapping[str, str]:
        """Return its templates, by the name of their setting."""
        return {}

    @property
    def number_keys(self) -> tuple[str, ...]:
        """Return its keys that hold whole numbers, which CSV stores as text."""
        return ()

    @property
    def chat_template(self) -> ChatTemplateChoice | None:
        """Return the chat template that writes its rows; None if no template does."""
        return None

    @property
    def path_keys(self) -> tuple[str, ...]:
        """Return its keys that hold a path, which becomes absolute in the recipe of a run."""
        return ()


class ChatDocument(DocumentSpec):
    """Messages, `{"role": …, "content": …}` each, which a chat template writes."""

    template: str | None = None
    """A Jinja template, or the path of a file that holds one. If absent, the tokenizer's own (`chat_template.jinja` or
    `tokenizer_config.json` beside it)."""

    learned_in_part: ClassVar[bool] = True
    marked: ClassVar[bool] = True

    @property
    def chat_template(self) -> ChatTemplateChoice:
        given = self.template
        if given is None or "{{" in given or "{%" in given:
            return ChatTemplateChoice(jinja=given)
        return ChatTemplateChoice(path=given)

    @property
    def path_keys(self) -> tuple[str, ...]:
        return ("template",) if self.chat_template.path is not None else ()


#: Any type of document of the recipe language.
Document: TypeAlias = Annotated[
    DocumentSpec,
    OneOf(
        "",
        "trainkit.recipe.sections.document:DOCUMENTS",
        "trainkit.recipe.sections.paired_documents:DOCUMENTS",
        "trainkit.recipe.sections.labelled_documents:DOCUMENTS",
    ),
]
