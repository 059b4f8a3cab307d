"""Documents with labels: of a text or of two, of words, of an image; and questions with their answers in a text."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field, model_validator

from trainkit.recipe.sections.document_spec import DocumentSpec, Keys
from trainkit.recipe.spec import Width

#: The class in `trainkit.data.documents.labels` of each `label_type`.
_LABEL_KINDS = {"class": "ClassLabels", "number": "NumberLabels", "classes": "ClassSetLabels", "flags": "FlagLabels"}


def _are_numbers(classes: tuple[str, ...]) -> bool:
    """Return whether a class has a number as its name, so that the text of a number may be a name."""
    return any(name.strip().removeprefix("-").isdecimal() for name in classes)


class Labelled(DocumentSpec):
    """One text or a pair of texts with a label, for classification or regression."""

    type: Literal["labelled"]
    texts: Annotated[tuple[str, ...], Field(min_length=1, max_length=2)] = ("text",)
    """Keys of the text, or of the two."""
    label: str | Keys = "label"
    """Key of the label. For `"number"` and `"flags"` it may be a list of keys, one for each number or class."""
    label_type: Literal["class", "number", "classes", "flags"] = "class"
    """What a label is. `"class"`: one class, by its number from 0 on or its name in `classes`. `"number"`: a number to
    predict. `"classes"`: a list of the classes that a text has, by number or name. `"flags"`: the same as 0 or 1 for
    each class."""
    label_width: Width = 1
    """How many numbers a label of type `"number"` has. If more than 1, `label` is the key of a list, or names as many
    keys."""
    classes: tuple[str, ...] = ()
    """The classes by name, in the order of their numbers; empty where labels are numbers."""

    implementation: ClassVar[str] = "trainkit.data.documents.labelled"
    marked: ClassVar[bool] = True
    labelled: ClassVar[bool] = True
    later_keys: ClassVar[frozenset[str]] = frozenset({"label_type", "label_width"})

    @property
    def is_pair(self) -> bool:
        return len(self.texts) > 1

    @property
    def form(self) -> str:
        return "labelled"

    @property
    def keys(self) -> tuple[str, ...]:
        return (*self.texts, *self._label_keys)

    @property
    def number_keys(self) -> tuple[str, ...]:
        return self._label_keys if self.label_type == "flags" or not _are_numbers(self.classes) else ()

    @property
    def label_kind(self) -> str:
        return f"trainkit.data.documents.labels:{_LABEL_KINDS[self.label_type]}"

    @property
    def label_names(self) -> tuple[str, ...]:
        several = self.label_type in ("number", "flags") and not isinstance(self.label, str)
        return self.classes or (self._label_keys if several else ())

    @property
    def _label_keys(self) -> tuple[str, ...]:
        return (self.label,) if isinstance(self.label, str) else self.label

    @model_validator(mode="after")
    def _the_label_fits_its_type(self) -> Labelled:
        keys, kind = self._label_keys, f'label_type = "{self.label_type}"'
        if len(set(keys)) < len(keys):
            raise ValueError(f"label names a key twice: {', '.join(keys)}")
        if not isinstance(self.label, str) and self.label_type in ("class", "classes"):
            raise ValueError(f'{kind} is in one key, and label names {len(keys)}: several are for "flags" or "number"')
        if self.label_type == "number" and self.classes:
            raise ValueError(f"{kind} has no classes: leave classes out")
        if self.label_width > 1 and self.label_type != "number":
            raise ValueError(f'label_width is for label_type = "number", and {kind}: leave it out')
        if self.label_type == "number" and not isinstance(self.label, str) and self.label_width not in (1, len(keys)):
            raise ValueError(f"label names {len(keys)} keys, and label_width = {self.label_width}: leave it out")
        if self.label_type in ("classes", "flags") and not self.label_names:
            raise ValueError(f"{kind} needs the names of the classes, in their order: write classes")
        if self.label_type == "flags" and not isinstance(self.label, str) and len(keys) != len(self.label_names):
            raise ValueError(f"label names {len(keys)} keys, and classes names {len(self.classes)}: one for each class")
        return self

    @property
    def numbers_in_label(self) -> int:
        """Return how many numbers a batch has for each label."""
        if self.label_type == "number":
            return max(len(self._label_keys), self.label_width)
        return 1 if self.label_type == "class" else len(self.label_names)


class Tagged(DocumentSpec):
    """Words with a label each, such as parts of speech or the entities that they name.

    The words are tokenised as one text, with spaces between them; a byte-level tokenizer sees one before the first word
    too, as `add_prefix_space=True` of transformers has it. Blank words are left out."""

    type: Literal["tagged"]
    words: str = "words"
    """Key of the words, a list of strings."""
    labels: str = "labels"
    """Key of their labels: a list of as many numbers from 0 on, or of names in `classes`. A word whose label is null
    or -100 has none."""
    classes: tuple[str, ...] = ()
    """The labels by name, in the order of their numbers; empty where labels are numbers."""
    subwords: Literal["first", "all"] = "first"
    """Which tokens of a word have its label. The others have none, and are not learned."""

    implementation: ClassVar[str] = "trainkit.data.documents.tagged"
    learned_in_part: ClassVar[bool] = True
    marked: ClassVar[bool] = True
    token_labels: ClassVar[bool] = True

    @property
    def form(self) -> str:
        return "tagged"

    @property
    def keys(self) -> tuple[str, ...]:
        return (self.words, self.labels)


class QuestionInContext(DocumentSpec):
    """A question, a context, and the parts of the context that answer it, such as in SQuAD (Rajpurkar et al. 2016).

    A context that is too long for an example becomes several windows, each after the question. The first answer is
    learned, and an evaluation accepts every one."""

    type: Literal["question"]
    question: str = "question"
    """Key of the question."""
    context: str = "context"
    """Key of the text that is searched for the answer."""
    answers: str = "answers"
    """Key of the answers: `{"text": [...], "answer_start": [...]}` or a list of `{"text": ..., "answer_start": ...}`.
    With `start`, key of the text of the only answer."""
    start: str | None = None
    """Key of the first character of the answer in the context, counted from 0. If absent, `answers` holds it."""
    unanswerable: bool = False
    """Whether the context may hold no answer, as in SQuAD 2 (Rajpurkar et al. 2018): the target is then the first
    token. If false, a row without an answer cannot be used."""

    implementation: ClassVar[str] = "trainkit.data.documents.question"
    examples: ClassVar[str] = "trainkit.data.batches.questions:question_examples"
    read_as: ClassVar[str] = "a token of two answers has both"
    learned_in_part: ClassVar[bool] = True
    marked: ClassVar[bool] = True
    token_labels: ClassVar[bool] = True
    encodings: ClassVar[frozenset[str]] = frozenset({"windows"})

    @property
    def is_pair(self) -> bool:
        return True

    @property
    def label_kind(self) -> str:
        return "trainkit.data.documents.question:AnswerLabels"

    @property
    def form(self) -> str:
        return "question"

    @property
    def keys(self) -> tuple[str, ...]:
        return (self.question, self.context, self.answers, *([self.start] if self.start is not None else []))

    @property
    def number_keys(self) -> tuple[str, ...]:
        return () if self.start is None else (self.start,)


class Image(DocumentSpec):
    """An image, with a label or without; scaled so that it covers `size`, and cut to it at the centre."""

    type: Literal["image"]
    image: str = "image"
    """Key of the image: its bytes, or its path, relative to the file that names it."""
    size: tuple[Width, Width] = (224, 224)
    """Height and width in pixels."""
    label: str | Literal[False] = "label"
    """Key of the label; `false` where there is none."""
    classes: tuple[str, ...] = ()
    """The labels by name, in the order of their numbers; empty where labels are numbers."""

    implementation: ClassVar[str] = "trainkit.data.documents.images"
    examples: ClassVar[str] = "trainkit.data.batches.examples:record_examples"
    stored_as: ClassVar[str] = "pixels"
    labelled: ClassVar[bool] = True

    @property
    def form(self) -> str:
        return f"image {self.size}"

    @property
    def keys(self) -> tuple[str, ...]:
        return (self.image, self.label) if self.label else (self.image,)

    @property
    def number_keys(self) -> tuple[str, ...]:
        return (self.label,) if self.label and not _are_numbers(self.classes) else ()

    @model_validator(mode="after")
    def _classes_are_of_labels(self) -> Image:
        if self.classes and not self.label:
            raise ValueError("classes names labels, and with label = false there are none: leave it out")
        return self


#: Those of this file; `Document` in `document_spec.py` lists the files.
DOCUMENTS = (Labelled, Tagged, QuestionInContext, Image)
