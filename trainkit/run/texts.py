"""How the texts of a run begin and end, and how its conversations are written: asked here for every use of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainkit.data.chat_template import ChatTemplate, render, resolve_template
from trainkit.data.hub import BESIDE
from trainkit.data.objects import read_object
from trainkit.data.vocabulary import LoadedTokenizer
from trainkit.errors import TrainkitError
from trainkit.hub.tokenizer import CONFIG, GENERATION, TEMPLATE, TOKENIZER
from trainkit.infer.chat import closing
from trainkit.recipe import Recipe
from trainkit.recipe.document import Chat


@dataclass(frozen=True)
class Texts:
    """What a model has learned of them."""

    begin: tuple[int, ...]
    """Tokens before every text."""
    ends: tuple[int, ...]
    """Tokens that end a text."""
    template: str | None
    """The Jinja that writes conversations as training did; None where it wrote none."""


def texts_of(recipe: Recipe, directory: Path, codec: LoadedTokenizer) -> Texts:
    """Those of the run in a directory.

    Raises:
        TrainkitError: it has learned conversations, and their template is not there any more or cannot be used.
    """
    chat, directories, begin = chat_of(recipe), directories_of(recipe, directory), begin_of(recipe, codec)
    template = usable_template(None, directories) if chat is None else template_of(chat, directories)
    ends = ends_of(codec, directories, template)
    return Texts(begin, ends, None if chat is None or template is None else _begun(template, codec, begin))


def keep_tokenizer(codec: LoadedTokenizer, recipe: Recipe, directory: Path) -> None:
    """Put it in place whole, with what belongs to it: how it ends a text, and the chat template, as conversations were
    written. Where the run goes on, the data has been found to be the same, and so this too."""
    beside = {name: codec.path.with_name(name) for name in BESIDE} | {TOKENIZER: codec.path}
    kept = {name: source.read_bytes() for name, source in beside.items() if source.is_file()}
    if (chat := chat_of(recipe)) is not None:
        kept[TEMPLATE] = resolve_template(chat, codec.path).text.encode()
    for name, content in kept.items():
        draft = directory / f".{name}"
        draft.write_bytes(content)
        draft.replace(directory / name)


def chat_of(recipe: Recipe) -> Chat | None:
    """How the recipe has conversations written; None where it has none."""
    documents = (getattr(source, "document", None) for source in recipe.data.train)
    return next((found for found in documents if isinstance(found, Chat)), None)


def directories_of(recipe: Recipe, directory: Path) -> tuple[Path, ...]:
    """Where files of the tokenizer are: the run's own first, then, where they are still there, those it came with."""
    given = Path(recipe.tokenizer.path or "")
    # a resolved recipe names in full what was there, and a relative path is a name on the hub
    if not given.is_absolute() or not given.exists():
        return (directory,)
    return directory, given if given.is_dir() else given.parent


def begin_of(recipe: Recipe, codec: LoadedTokenizer) -> tuple[int, ...]:
    """The tokens that training put before every text."""
    return (codec.beginning_of_text,) if recipe.data.encoding.bos and codec.beginning_of_text is not None else ()


def ends_of(codec: LoadedTokenizer, directories: Sequence[Path], template: ChatTemplate | None) -> tuple[int, ...]:
    """The end-of-text token, what configs beside the tokenizer have for that, and what ends an answer in a chat."""
    ends: list[Any] = [codec.end_of_text]
    for directory in directories:
        for file in (GENERATION, "config.json"):
            found = read_object(directory / file, missing_ok=True).get("eos_token_id")
            ends += found if isinstance(found, list) else [found]
    ends += closing(template, codec)[0] if template is not None else ()
    return tuple(dict.fromkeys(end for end in ends if isinstance(end, int)))


def template_of(chat: Chat | None, directories: Sequence[Path]) -> ChatTemplate | None:
    """The chat template beside the tokenizer, in the first of these directories that has one, else the recipe's.

    A run keeps the template of its training beside its tokenizer, which so goes before what the recipe names: that may
    have been changed, moved or deleted. None where there is none.

    Raises:
        TrainkitError: it cannot be used, or `chat` says that there is one, and there is none.
    """
    beside = next(filter(_has_template, directories), None)
    if beside is not None:
        return resolve_template(Chat(type="chat"), beside / TOKENIZER)
    return None if chat is None else resolve_template(chat, directories[0] / TOKENIZER)


def usable_template(chat: Chat | None, directories: Sequence[Path]) -> ChatTemplate | None:
    """The same for who can do without: None also where it cannot be used."""
    try:
        return template_of(chat, directories)
    except TrainkitError:
        return None


def _has_template(directory: Path) -> bool:
    config = read_object(directory / CONFIG, missing_ok=True)
    return (directory / TEMPLATE).is_file() or bool(config.get("chat_template"))


def _begun(template: ChatTemplate, codec: LoadedTokenizer, begin: tuple[int, ...]) -> str:
    """The template's Jinja, that writes as well what training put before a conversation where it did not."""
    try:
        text = render(template, [{"role": "user", "content": "a"}])
    except TrainkitError:  # of one message it writes nothing
        return template.text
    (ids,) = codec.encode_batch([text], special_tokens=True)
    return template.text if tuple(ids[: len(begin)]) == begin else "{{ bos_token }}" + template.text
