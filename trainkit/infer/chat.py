"""A conversation with a model, written as its chat template has it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from trainkit.data.chat_template import ChatTemplate, render
from trainkit.errors import TrainkitError

#: Two answers with words in between that no template writes by itself.
_SAID, _ASKED = "QvwxzJ", "ZkqvwX"


class ChatCodec(Protocol):
    """What a conversation asks of a tokenizer: a template writes the names of special tokens."""

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

    A special token where the template begins with one, else the words that it writes; nothing where these are blank,
    or where it does not write such a conversation.
    """
    asked = {"role": "user", "content": _ASKED}
    try:
        text = render(template, [asked, {"role": "assistant", "content": _SAID}, asked])
    except TrainkitError:
        return (), ()
    between = text.partition(_SAID)[2].partition(_ASKED)[0]
    (special,), (plain,) = (codec.encode_batch([between], special_tokens=special) for special in (True, False))
    if special[:1] != plain[:1]:
        return (special[0],), ()
    words = between.rstrip()
    return (), ((words,) if words.strip() else ())
