"""A conversation with a model, written as its chat template has it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from trainkit.data.documents.chat_template import ChatTemplate, render
from trainkit.errors import TrainkitError

#: Two answers with words in between that no template writes by itself.
_SAID, _ASKED = "QvwxzJ", "ZkqvwX"


class ChatCodec(Protocol):
    """What a conversation asks of a tokenizer: a template writes the names of special tokens."""

    @property
    def special_tokens(self) -> Mapping[str, int]: ...

    def encode_batch(self, texts: Sequence[str], /, *, special_tokens: bool = False) -> list[list[int]]: ...


@dataclass
class Conversation:
    """What was said so far."""

    template: ChatTemplate
    codec: ChatCodec
    begin: tuple[int, ...] = ()
    """Tokens before every text."""
    system: str | None = None
    turns: list[dict[str, str]] = field(default_factory=list)
    """`{"role": "user" or "assistant", "content": …}`, in turn."""

    @property
    def messages(self) -> list[dict[str, str]]:
        return [*([{"role": "system", "content": self.system}] if self.system else []), *self.turns]

    def prompt(self, question: str) -> list[int]:
        """The tokens after which the answer to `question` follows. Raises TrainkitError where the template refuses.

        As in training, the name of a special token is that token, also where it is a person that writes it.
        """
        asked = [*self.messages, {"role": "user", "content": question}]
        text = render(self.template, asked, add_generation_prompt=True)
        (ids,) = self.codec.encode_batch([text], special_tokens=True)
        return ids if tuple(ids[: len(self.begin)]) == self.begin else [*self.begin, *ids]

    def add(self, question: str, answer: str) -> None:
        self.turns += [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]


def closing(template: ChatTemplate, codec: ChatCodec) -> tuple[tuple[int, ...], tuple[str, ...]]:
    """What ends an answer, by what the template writes between it and the next question: (tokens, stop strings).

    A special token where no words stand before it, else the words; nothing where these are blank, or where the template
    does not write such a conversation. Where no special token follows an answer that is followed by a question, it is
    the one that follows the last answer, beside the words.
    """
    asked, said = {"role": "user", "content": _ASKED}, {"role": "assistant", "content": _SAID}
    try:
        between = render(template, [asked, said, asked]).partition(_SAID)[2].partition(_ASKED)[0]
    except TrainkitError:
        return (), ()
    words, end = _up_to_special(between, codec)
    if end is not None and not words:
        return (end,), ()
    blank, last = _up_to_special(_after_the_last(template, [asked, said]), codec)
    return (() if blank or last is None else (last,)), ((words,) if words else ())


def _after_the_last(template: ChatTemplate, messages: Sequence[dict[str, str]]) -> str:
    try:
        return render(template, messages).partition(_SAID)[2]
    except TrainkitError:
        return ""


def _up_to_special(text: str, codec: ChatCodec) -> tuple[str, int | None]:
    """What a text says before its first special token, without blanks at its end, and that token."""
    names = sorted(filter(str.strip, codec.special_tokens), key=len, reverse=True)
    found = re.search("|".join(map(re.escape, names)), text) if names else None
    words = (text[: found.start()] if found else text).rstrip()
    return words if words.strip() else "", codec.special_tokens[found[0]] if found else None
