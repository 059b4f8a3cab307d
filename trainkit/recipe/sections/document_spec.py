"""What every type of document says about itself: what it is made of, how it is stored, and what is learned of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, NamedTuple

from trainkit.recipe.spec import Spec


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

    @property
    def is_pair(self) -> bool:
        """Whether two texts are one sequence, with the tokens between them that the tokenizer puts there."""
        return False

    @property
    def label_kind(self) -> str | None:
        """The class in `trainkit.data.documents.labels` that knows its labels; None where it has none."""
        if self.token_labels:
            return "trainkit.data.documents.labels:TokenLabels"
        return "trainkit.data.documents.labels:ClassLabels" if self.labelled else None

    @property
    def label_names(self) -> tuple[str, ...]:
        """The names of the classes, or of the numbers that a label has, in their order; none where they have none."""
        return getattr(self, "classes", ())

    @property
    def is_text(self) -> bool:
        """Whether a tokenizer makes tokens of the documents."""
        return self.stored_as == "tokens"

    @property
    def form(self) -> str:
        """What the documents of all sources must agree on."""
        return "text"

    @property
    def keys(self) -> tuple[str, ...] | None:
        """The keys of a row that the document is made of; None where they follow from a template, or may be any."""
        return None

    @property
    def templates(self) -> Mapping[str, str]:
        """Its templates, by the name of their setting."""
        return {}

    @property
    def number_keys(self) -> tuple[str, ...]:
        """Keys that hold whole numbers, which CSV writes as text."""
        return ()

    @property
    def chat_template(self) -> ChatTemplateChoice | None:
        """The chat template that its rows are written with; None where they are not."""
        return None

    @property
    def path_keys(self) -> tuple[str, ...]:
        """Its keys that hold a path, which becomes absolute in the recipe of a run."""
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
