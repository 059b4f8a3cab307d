"""What a row of a source becomes: plain text, a template, a prompt with its answer, a conversation, a pair of answers,
a judged answer, two texts that belong together, a source with its target, labelled text, labelled words, a question
about a text, an image, columns of numbers.

Documents with labels, and those of two sequences, have files of their own beside this one. Everything that differs
between types of documents stands in its spec and in the module that the spec names as its `implementation`; nothing
else knows a type by name.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Literal

from pydantic import model_validator

from trainkit.recipe.sections.document_spec import ChatDocument, DocumentSpec, Keys


class Template(DocumentSpec):
    """A text with keys of the row in braces.

    What stands between `{?key}` and `{/key}` is written only where the row has a value for the key; between `{!key}`
    and `{/key}`, only where it has none: where the key is absent, null or blank."""

    type: Literal["template"]
    template: str
    """Such as `"{instruction}{?input}\\n{input}{/input}\\n{output}"`; `{{` and `}}` are braces."""

    implementation: ClassVar[str] = "trainkit.data.documents.templates"

    @property
    def templates(self) -> Mapping[str, str]:
        return {"template": self.template}


class Prompt(DocumentSpec):
    """A prompt and its response; only the response is learned."""

    type: Literal["prompt"]
    prompt: str
    """Template of what is given, such as `"### Question\\n{question}\\n### Answer\\n"`. Begin `response` with a space
    rather than end this with one: most tokenizers have it in the token of the word behind it."""
    response: str
    """Template of what is learned, such as `"{answer}"`."""

    implementation: ClassVar[str] = "trainkit.data.documents.templates"
    learned_in_part: ClassVar[bool] = True
    marked: ClassVar[bool] = True

    @property
    def has_answers(self) -> bool:
        return True

    @property
    def templates(self) -> Mapping[str, str]:
        return {"prompt": self.prompt, "response": self.response}


class Chat(ChatDocument):
    """A conversation: a list of `{"role": …, "content": …}`, written with a chat template. A message with
    `"train": false` or `"weight": 0` is not learned."""

    type: Literal["chat"]
    key: str = "messages"
    """The key of the row that holds the list."""
    learn: Literal["assistant", "last", "all"] = "assistant"
    """Which turns are learned: every one of the assistant, the assistant's last one, or the whole text."""

    implementation: ClassVar[str] = "trainkit.data.documents.conversations"

    @property
    def has_answers(self) -> bool:
        return self.learn != "all"


class Columns(DocumentSpec):
    """Numbers of a row: some are the features, one is the target. In a CSV file they may be written as text."""

    type: Literal["columns"]
    features: Keys
    """Keys of the numbers that a model is given, in their order."""
    target: str
    """Key of the number that it predicts."""

    implementation: ClassVar[str] = "trainkit.data.documents.columns"
    examples: ClassVar[str] = "trainkit.data.batches.examples:record_examples"
    stored_as: ClassVar[str] = "columns"

    @property
    def form(self) -> str:
        return f"columns {len(self.features)}"

    @property
    def keys(self) -> tuple[str, ...]:
        return (*self.features, self.target)

    @model_validator(mode="after")
    def _keys_differ(self) -> Columns:
        for key in self.keys:
            if self.keys.count(key) > 1:
                raise ValueError(f"'{key}' is named twice in features and target: name each key once")
        return self


#: Those of this file; `Document` in `document_spec.py` lists the files.
DOCUMENTS = (Template, Prompt, Chat, Columns)
