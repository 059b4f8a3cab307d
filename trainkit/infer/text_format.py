"""How the texts of a run begin and end, and how its conversations are written, for every use of its model."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Protocol

from trainkit import files
from trainkit.data.documents.chat_template import ChatTemplate, render, resolve_template
from trainkit.data.hub_files import BESIDE, read_object
from trainkit.data.tokenizer import load
from trainkit.data.tokenizer.vocabulary import LoadedTokenizer
from trainkit.errors import TrainkitError
from trainkit.hub.save import as_json
from trainkit.hub.tokenizer import CONFIG, GENERATION, IDS_ONLY, TEMPLATE, TOKENIZER
from trainkit.infer.settings import settings_in_config
from trainkit.recipe import Recipe
from trainkit.recipe.sections.document_spec import ChatTemplateChoice
from trainkit.recipe.sections.source import document_of

#: The files beside a tokenizer that may name special tokens, and the keys that hold a single token.
CONFIGS = (GENERATION, "config.json")
OTHERS = ("bos_token_id", "pad_token_id")


@dataclass(frozen=True)
class TextFormat:
    """The format of the texts that a model has learned."""

    begin: tuple[int, ...]
    """Tokens before every text."""
    ends: tuple[int, ...]
    """Tokens that end a text."""
    template: str | None
    """The Jinja that writes conversations as training did; None where it wrote none."""


def text_format_of(recipe: Recipe, directory: Path, codec: LoadedTokenizer) -> TextFormat:
    """Return the text format of the run in a directory, from the files in that directory alone.

    Raises:
        TrainkitError: the run was trained on conversations, and their template is missing or cannot be used.
    """
    chat, kept, begin = chat_of(recipe), (directory,), begin_of(recipe, codec)
    template = usable_template(None, kept) if chat is None else template_of(chat, kept)
    ends = ends_of(codec, kept, template)
    return TextFormat(
        begin, ends, None if chat is None or template is None else _with_beginning(template, codec, begin)
    )


def keep_tokenizer(codec: LoadedTokenizer, recipe: Recipe, directory: Path) -> None:
    """Copy the tokenizer into the run, with the files that say how a text ends, and the chat template of training.

    A resumed run has them already and keeps them, whatever has become of the originals. The special tokens of a
    config.json in the directory that the recipe names are written to the run's generation_config.json.
    """
    if (directory / TOKENIZER).exists():
        return
    beside = {name: codec.path.with_name(name) for name in BESIDE}
    kept = {name: source.read_bytes() for name, source in beside.items() if source.is_file()}
    # a config.json beside a single named file may belong to anything
    alone = Path(os.path.expanduser(recipe.text_tokenizer.path or "")).is_file()
    if tokens := _special_ids(codec.path.parent, [GENERATION] if alone else CONFIGS):
        generation = read_object(beside[GENERATION], missing_ok=True)
        generation = generation or ({} if alone else settings_in_config(codec.path.parent))
        # a file that does not come from the model's author does not say how to sample
        made = {} if generation else {IDS_ONLY: True}
        kept[GENERATION] = as_json({**made, **generation, **tokens}).encode()
    if (chat := chat_of(recipe)) is not None:
        kept[TEMPLATE] = resolve_template(chat, codec.path).text.encode()
    # the tokenizer is copied last: if it exists, so do the others
    for name, content in (kept | {TOKENIZER: codec.content}).items():
        files.write(directory / name, content)


def check_texts(recipe: Recipe) -> None:
    """Raise early the errors of `text_format_of` and `keep_tokenizer`, if the tokenizer exists already.

    Raises:
        TrainkitError: a file beside the tokenizer cannot be read, or its chat template cannot be used.
    """
    if recipe.text_tokenizer.path is None or (codec := load.find_cached(recipe, (), {})) is None:
        return
    with TemporaryDirectory() as there:
        keep_tokenizer(codec, recipe, Path(there))
        text_format_of(recipe, Path(there), codec)


def chat_of(recipe: Recipe) -> ChatTemplateChoice | None:
    """Return the chat template that the recipe chooses for its conversations; None where it trains on none."""
    documents = filter(None, map(document_of, recipe.data.train))
    return next((document.chat_template for document in documents if document.chat_template is not None), None)


def begin_of(recipe: Recipe, codec: LoadedTokenizer) -> tuple[int, ...]:
    """Return the tokens that training put before every text."""
    begin = codec.beginning_of_text
    return (begin,) if begin is not None and load.begins(recipe, codec) else ()


def after_source(recipe: Recipe, codec: LoadedTokenizer) -> tuple[int, ...]:
    """Return the tokens that training put after every source; none where it learned to continue texts."""
    reads = recipe.model.kind == "encoder-decoder" and recipe.data.encoding.eos
    return (codec.end_of_text,) if reads else ()


def pad_of(recipe: Recipe, codec: LoadedTokenizer) -> int | None:
    """Return the padding token of the recipe's model.

    None if the model names none, names it for another tokenizer than the recipe's, or has no such row in its embedding
    (torch would not load it).
    """
    model, pad = recipe.language_model, recipe.language_model.pad_token_id
    own = model.pretrained is None or recipe.text_tokenizer.path == model.pretrained
    rows = model.rows(codec.vocab_size)
    return pad if own and pad is not None and -rows <= pad < rows else None


def ends_of(codec: LoadedTokenizer, directories: Sequence[Path], template: ChatTemplate | None) -> tuple[int, ...]:
    """Return the tokens that end a text: end-of-text, those in configs beside the tokenizer, and the end of a chat's
    answer."""
    ends = [codec.end_of_text, *(end for directory in directories for end in _end_ids(directory, *CONFIGS))]
    ends += end_of_answer(template, codec)[0] if template is not None else ()
    return tuple(dict.fromkeys(ends))


def _special_ids(directory: Path, files: Sequence[str]) -> dict[str, Any]:
    """Return the special tokens in the configs of a directory, in the form of one config; earlier files take
    precedence."""
    tokens: dict[str, Any] = {}
    for file in reversed(files):
        content = read_object(directory / file, missing_ok=True)
        tokens |= {key: content[key] for key in OTHERS if content.get(key) is not None}
    ends = _end_ids(directory, *files)
    return {**tokens, "eos_token_id": ends} if ends else tokens


def _end_ids(directory: Path, *files: str) -> list[int]:
    """Return the end tokens that configs in a directory name."""
    ends: list[Any] = []
    for file in files:
        named = read_object(directory / file, missing_ok=True).get("eos_token_id")
        ends += named if isinstance(named, list) else [named]
    return list(dict.fromkeys(end for end in ends if isinstance(end, int)))


def template_of(chat: ChatTemplateChoice | None, directories: Sequence[Path]) -> ChatTemplate | None:
    """Return the chat template beside the tokenizer in the first of these directories that has one, else the recipe's.

    A run keeps the template of its training beside its tokenizer. It precedes a file that the recipe names, which may
    have been changed, moved or deleted since. None if there is none.

    Raises:
        TrainkitError: it cannot be used, or it is missing although `chat` requires it.
    """
    beside = next(filter(_has_template, directories), None)
    if beside is not None and not (chat is not None and _is_of_training(chat, directories[0])):
        return resolve_template(ChatTemplateChoice(), beside / TOKENIZER)
    return None if chat is None else resolve_template(chat, directories[0] / TOKENIZER)


def usable_template(chat: ChatTemplateChoice | None, directories: Sequence[Path]) -> ChatTemplate | None:
    """Return the chat template as `template_of` does, but None if it cannot be used."""
    try:
        return template_of(chat, directories)
    except TrainkitError:
        return None


def _is_of_training(chat: ChatTemplateChoice, run: Path) -> bool:
    """Return whether the recipe's own template is the one of training; earlier versions kept no other."""
    if chat.path is None:
        return chat.jinja is not None
    return not (run / TEMPLATE).is_file() and Path(chat.path).is_file()


def _has_template(directory: Path) -> bool:
    config = read_object(directory / CONFIG, missing_ok=True)
    return (directory / TEMPLATE).is_file() or bool(config.get("chat_template"))


def _with_beginning(template: ChatTemplate, codec: LoadedTokenizer, begin: tuple[int, ...]) -> str:
    """Return the template's Jinja, extended where necessary by the tokens that training put before a conversation."""
    try:
        text = render(template, [{"role": "user", "content": "a"}])
    except TrainkitError:  # it writes nothing for a single message
        return template.text
    (ids,) = codec.encode_batch([text], special_tokens=True)
    return template.text if tuple(ids[: len(begin)]) == begin else "{{ bos_token }}" + template.text


#: An answer and a question that no template contains.
_SAID, _ASKED = "QvwxzJ", "ZkqvwX"


class ChatCodec(Protocol):
    """The parts of a tokenizer that a conversation uses: a template writes the names of special tokens."""

    @property
    def special_tokens(self) -> Mapping[str, int]: ...

    def encode_batch(self, texts: Sequence[str], /, *, special_tokens: bool = False) -> list[list[int]]: ...


@dataclass
class Conversation:
    """A conversation so far, and its tokens as training wrote them."""

    template: ChatTemplate
    codec: ChatCodec
    begin: tuple[int, ...] = ()
    """Tokens before every text."""
    system: str | None = None
    turns: list[dict[str, str]] = field(default_factory=list)
    """`{"role": "user" or "assistant", "content": …}`, in turn."""

    @property
    def messages(self) -> list[dict[str, str]]:
        """Return the messages so far, as `{"role": …, "content": …}`."""
        return [*([{"role": "system", "content": self.system}] if self.system else []), *self.turns]

    def prompt(self, question: str) -> list[int]:
        """Return the tokens of the conversation up to the answer to `question`. Raises TrainkitError if the template
        refuses.

        As in training, the name of a special token becomes that token, even in a person's text.
        """
        asked = [*self.messages, {"role": "user", "content": question}]
        text = render(self.template, asked, add_generation_prompt=True)
        (ids,) = self.codec.encode_batch([text], special_tokens=True)
        return ids if tuple(ids[: len(self.begin)]) == self.begin else [*self.begin, *ids]

    def add(self, question: str, answer: str) -> None:
        """Add a question and its answer."""
        self.turns += [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]


def end_of_answer(template: ChatTemplate, codec: ChatCodec) -> tuple[tuple[int, ...], tuple[str, ...]]:
    """Return what ends an answer, (tokens, stop strings), from what the template writes before the next question.

    That is a special token if no words precede it, else the words. It is nothing if these are blank, or if the template
    cannot write such a conversation. If no special token follows an answer before another question, the one after the
    last answer counts too, beside the words.
    """
    question, answer = {"role": "user", "content": _ASKED}, {"role": "assistant", "content": _SAID}
    try:
        between = render(template, [question, answer, question]).partition(_SAID)[2].partition(_ASKED)[0]
    except TrainkitError:
        return (), ()
    words, end = _up_to_special(between, codec)
    if end is not None and not words:
        return (end,), ()
    blank, last = _up_to_special(_after_the_last(template, [question, answer]), codec)
    return (() if blank or last is None else (last,)), ((words,) if words else ())


def _after_the_last(template: ChatTemplate, messages: Sequence[dict[str, str]]) -> str:
    try:
        return render(template, messages).partition(_SAID)[2]
    except TrainkitError:
        return ""


def _up_to_special(text: str, codec: ChatCodec) -> tuple[str, int | None]:
    """Return the text before the first special token, without trailing blanks, and that token."""
    names = sorted(filter(str.strip, codec.special_tokens), key=len, reverse=True)
    found = re.search("|".join(map(re.escape, names)), text) if names else None
    words = (text[: found.start()] if found else text).rstrip()
    return words if words.strip() else "", codec.special_tokens[found[0]] if found else None
