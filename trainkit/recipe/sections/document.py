"""What a row of a source becomes: plain text, a template, a prompt with its answer, a conversation, labelled text,
an image."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, Tag, model_validator

from trainkit.recipe.spec import Count, Spec, by_type

Keys = Annotated[tuple[str, ...], Field(min_length=1)]


class Template(Spec):
    """A text with keys of the row in braces.

    What stands between `{?key}` and `{/key}` is written only where the row has a value for the key; between `{!key}`
    and `{/key}`, only where it has none: where the key is absent, null or blank."""

    type: Literal["template"]
    template: str
    """Such as `"{instruction}{?input}\\n{input}{/input}\\n{output}"`; `{{` and `}}` are braces."""


class Prompt(Spec):
    """A prompt and its response; only the response is learned."""

    type: Literal["prompt"]
    prompt: str
    """Template of what is given, such as `"### Question\\n{question}\\n### Answer\\n"`. Begin `response` with a space
    rather than end this with one: most tokenizers have it in the token of the word behind it."""
    response: str
    """Template of what is learned, such as `"{answer}"`."""


class Chat(Spec):
    """A conversation: a list of `{"role": …, "content": …}`, written with a chat template. A message with
    `"train": false` or `"weight": 0` is not learned."""

    type: Literal["chat"]
    key: str = "messages"
    """The key of the row that holds the list."""
    template: str | None = None
    """A Jinja template, or the path of a file that holds one; that of the tokenizer where not given
    (`chat_template.jinja` or `tokenizer_config.json` beside it)."""
    learn: Literal["assistant", "last", "all"] = "assistant"
    """Which turns are learned: every one of the assistant, the assistant's last one, or the whole text."""

    @property
    def template_path(self) -> str | None:
        """The path in `template`; None where that is Jinja itself, or not given."""
        given = self.template
        return None if given is None or "{{" in given or "{%" in given else given


class Labelled(Spec):
    """One text or a pair of texts with a label, for classification."""

    type: Literal["labelled"]
    texts: Annotated[tuple[str, ...], Field(min_length=1, max_length=2)] = ("text",)
    """Keys of the text, or of the two."""
    label: str = "label"
    """Key of the label: a number from 0 on, or one of `classes`."""
    classes: tuple[str, ...] = ()
    """The labels by name, in the order of their numbers; empty where labels are numbers."""


class Image(Spec):
    """An image, with a label or without; scaled so that it covers `size`, and cut to it at the centre."""

    type: Literal["image"]
    image: str = "image"
    """Key of the image: its bytes, or its path, relative to the file that names it."""
    size: tuple[Count, Count] = (224, 224)
    """Height and width in pixels."""
    label: str | Literal[False] = "label"
    """Key of the label; `false` where there is none."""
    classes: tuple[str, ...] = ()
    """The labels by name, in the order of their numbers; empty where labels are numbers."""

    @model_validator(mode="after")
    def _classes_are_of_labels(self) -> Image:
        if self.classes and not self.label:
            raise ValueError("classes names labels, and with label = false there are none: leave it out")
        return self


Document = Annotated[
    Annotated[Template, Tag("template")]
    | Annotated[Prompt, Tag("prompt")]
    | Annotated[Chat, Tag("chat")]
    | Annotated[Labelled, Tag("labelled")]
    | Annotated[Image, Tag("image")],
    by_type(""),
]
