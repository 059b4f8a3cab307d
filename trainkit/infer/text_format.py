"""How the texts of a run begin and end, and how its conversations are written: asked here for every use of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from trainkit.data.documents.chat_template import ChatTemplate, render, resolve_template
from trainkit.data.hub_files import BESIDE, read_object
from trainkit.data.tokenizer import load
from trainkit.data.tokenizer.vocabulary import LoadedTokenizer
from trainkit.errors import TrainkitError
from trainkit.hub.save import as_json
from trainkit.hub.tokenizer import CONFIG, GENERATION, IDS_ONLY, TEMPLATE, TOKENIZER
from trainkit.infer.chat import closing
from trainkit.recipe import Recipe
from trainkit.recipe.sections.document import Chat

#: What may have ids of special tokens beside a tokenizer, and those of them of which there is one.
CONFIGS = (GENERATION, "config.json")
OTHERS = ("bos_token_id", "pad_token_id")


@dataclass(frozen=True)
class TextFormat:
    """What a model has learned of them."""

    begin: tuple[int, ...]
    """Tokens before every text."""
    ends: tuple[int, ...]
    """Tokens that end a text."""
    template: str | None
    """The Jinja that writes conversations as training did; None where it wrote none."""


def text_format_of(recipe: Recipe, directory: Path, codec: LoadedTokenizer) -> TextFormat:
    """Those of the run in a directory, by what it has kept alone.

    Raises:
        TrainkitError: it has learned conversations, and their template is missing or cannot be used.
    """
    chat, kept, begin = chat_of(recipe), (directory,), begin_of(recipe, codec)
    template = usable_template(None, kept) if chat is None else template_of(chat, kept)
    ends = ends_of(codec, kept, template)
    return TextFormat(
        begin, ends, None if chat is None or template is None else _with_beginning(template, codec, begin)
    )


def keep_tokenizer(codec: LoadedTokenizer, recipe: Recipe, directory: Path) -> None:
    """Put it into the run, with what belongs to it: how it ends a text, and the chat template, as conversations were
    written. A run that resumes has it already, and keeps what it has, whatever has become of where that is from.

    What a config.json in the directory that the recipe names says of special tokens is in the run's
    generation_config.json.
    """
    if (directory / TOKENIZER).exists():
        return
    beside = {name: codec.path.with_name(name) for name in BESIDE}
    kept = {name: source.read_bytes() for name, source in beside.items() if source.is_file()}
    # beside a file that is named by itself may lie the config.json of anything
    alone = Path(recipe.text_tokenizer.path or "").expanduser().is_file()
    if said := _special_ids(codec.path.parent, [GENERATION] if alone else CONFIGS):
        generation = read_object(beside[GENERATION], missing_ok=True)
        # a file that the model's maker did not write says nothing of how to sample
        made = {} if generation else {IDS_ONLY: True}
        kept[GENERATION] = as_json({**made, **generation, **said}).encode()
    if (chat := chat_of(recipe)) is not None:
        kept[TEMPLATE] = resolve_template(chat, codec.path).text.encode()
    # the tokenizer is the last: where it is, all is
    for name, content in (kept | {TOKENIZER: codec.path.read_bytes()}).items():
        draft = directory / f".{name}"
        draft.write_bytes(content)
        draft.replace(directory / name)


def check_texts(recipe: Recipe) -> None:
    """Raise what the two above would, before it is too late to be of use, where the tokenizer is there already.

    Raises:
        TrainkitError: what lies beside the tokenizer cannot be read, or its chat template cannot be used.
    """
    if recipe.text_tokenizer.path is None or (codec := load.cached(recipe, (), {})) is None:
        return
    with TemporaryDirectory() as there:
        keep_tokenizer(codec, recipe, Path(there))
        text_format_of(recipe, Path(there), codec)


def chat_of(recipe: Recipe) -> Chat | None:
    """How the recipe has conversations written; None where it has none."""
    documents = (getattr(source, "document", None) for source in recipe.data.train)
    return next((found for found in documents if isinstance(found, Chat)), None)


def begin_of(recipe: Recipe, codec: LoadedTokenizer) -> tuple[int, ...]:
    """The tokens that training put before every text."""
    begin = codec.beginning_of_text
    return (begin,) if begin is not None and load.begins(recipe, codec) else ()


def pad_of(recipe: Recipe, codec: LoadedTokenizer) -> int | None:
    """The token that the recipe's model says it is padded with; None where it says none, where it means it of another
    tokenizer than the recipe's, and where the embedding has no such row, with which torch would not load it."""
    model, pad = recipe.language_model, recipe.language_model.pad_token_id
    own = model.pretrained is None or recipe.text_tokenizer.path == model.pretrained
    rows = model.rows(codec.vocab_size)
    return pad if own and pad is not None and -rows <= pad < rows else None


def ends_of(codec: LoadedTokenizer, directories: Sequence[Path], template: ChatTemplate | None) -> tuple[int, ...]:
    """The end-of-text token, what configs beside the tokenizer have for that, and what ends an answer in a chat."""
    ends = [codec.end_of_text, *(end for directory in directories for end in _end_ids(directory, *CONFIGS))]
    ends += closing(template, codec)[0] if template is not None else ()
    return tuple(dict.fromkeys(ends))


def _special_ids(directory: Path, files: Sequence[str]) -> dict[str, Any]:
    """What configs in a directory say of special tokens, the first of them first, as one of them says it."""
    found: dict[str, Any] = {}
    for file in reversed(files):
        content = read_object(directory / file, missing_ok=True)
        found |= {key: content[key] for key in OTHERS if content.get(key) is not None}
    ends = _end_ids(directory, *files)
    return {**found, "eos_token_id": ends} if ends else found


def _end_ids(directory: Path, *files: str) -> list[int]:
    """The end tokens that configs in a directory name."""
    found: list[Any] = []
    for file in files:
        said = read_object(directory / file, missing_ok=True).get("eos_token_id")
        found += said if isinstance(said, list) else [said]
    return list(dict.fromkeys(end for end in found if isinstance(end, int)))


def template_of(chat: Chat | None, directories: Sequence[Path]) -> ChatTemplate | None:
    """The chat template beside the tokenizer, in the first of these directories that has one, else the recipe's.

    A run keeps the template of its training beside its tokenizer, which so goes before a file that the recipe names:
    that may have been changed, moved or deleted. None where there is none.

    Raises:
        TrainkitError: it cannot be used, or `chat` says that there is one, and there is none.
    """
    beside = next(filter(_has_template, directories), None)
    if beside is not None and not (chat is not None and _is_of_training(chat, directories[0])):
        return resolve_template(Chat(type="chat"), beside / TOKENIZER)
    return None if chat is None else resolve_template(chat, directories[0] / TOKENIZER)


def usable_template(chat: Chat | None, directories: Sequence[Path]) -> ChatTemplate | None:
    """The same for who can do without: None also where it cannot be used."""
    try:
        return template_of(chat, directories)
    except TrainkitError:
        return None


def _is_of_training(chat: Chat, run: Path) -> bool:
    """Whether the recipe's own template is that of the training of the run: earlier versions kept no other one."""
    if chat.template_path is None:
        return chat.template is not None
    return not (run / TEMPLATE).is_file() and Path(chat.template_path).is_file()


def _has_template(directory: Path) -> bool:
    config = read_object(directory / CONFIG, missing_ok=True)
    return (directory / TEMPLATE).is_file() or bool(config.get("chat_template"))


def _with_beginning(template: ChatTemplate, codec: LoadedTokenizer, begin: tuple[int, ...]) -> str:
    """The template's Jinja, that writes as well what training put before a conversation where it did not."""
    try:
        text = render(template, [{"role": "user", "content": "a"}])
    except TrainkitError:  # of one message it writes nothing
        return template.text
    (ids,) = codec.encode_batch([text], special_tokens=True)
    return template.text if tuple(ids[: len(begin)]) == begin else "{{ bos_token }}" + template.text
