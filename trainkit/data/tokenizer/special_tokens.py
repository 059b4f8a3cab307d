"""Which tokens begin and end a text and fill up a row, by the files beside a tokenizer and by the tokenizer itself.

The first of these that names a token decides: tokenizer_config.json, special_tokens_map.json, generation_config.json,
config.json, the token that the tokenizer itself puts before or after a text, and last the usual names. A vocabulary may
contain such a name as an ordinary token: Gemma's has HTML's `<s>` and `</s>` beside its own `<bos>` and `<eos>`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from tokenizers import Tokenizer

from trainkit.data.hub_files import read_object
from trainkit.errors import TrainkitError

Role = Literal["bos", "eos", "pad", "mask"]

END_OF_TEXT, MASK = "<|endoftext|>", "<|mask|>"
#: Files that name tokens, and files that have their ids, in order.
NAMING, NUMBERING = ("tokenizer_config.json", "special_tokens_map.json"), ("generation_config.json", "config.json")
#: The usual names of such tokens, most specific first.
NAMES: Mapping[Role, tuple[str, ...]] = {
    "eos": (
        END_OF_TEXT,
        "<|end_of_text|>",
        "</s>",
        "<eos>",
        "<|eos|>",
        "[EOS]",
        "<EOS>",
        "<|end|>",
        "<|im_end|>",
        "<｜end▁of▁sentence｜>",
        "[SEP]",
    ),
    "bos": ("<|begin_of_text|>", "<s>", "<bos>", "[BOS]", "<BOS>", "<|startoftext|>", "[CLS]", END_OF_TEXT),
    "pad": ("<pad>", "[PAD]", "<|padding|>", "<|pad|>", "<PAD>"),
    "mask": ("[MASK]", "<mask>", MASK, "<MASK>"),
}


@dataclass(frozen=True)
class Said:
    """What a file says about a token: its name, its id, or that there is none."""

    token: str | int | None
    where: str


#: In the order of the files.
Beside = Mapping[Role, tuple[Said, ...]]
NOTHING: Beside = {"bos": (), "eos": (), "pad": (), "mask": ()}


def read_beside(tokenizer: Path, *, config: bool) -> Beside:
    """Return what the files beside a tokenizer.json say. A model's config.json is read only with `config`, since beside
    a file that a recipe names directly it may belong to anything. Raises TrainkitError if a file cannot be read."""
    by_role: dict[Role, list[Said]] = {"bos": [], "eos": [], "pad": [], "mask": []}
    for file in (*NAMING, *(NUMBERING if config else NUMBERING[:1])):
        path = tokenizer.with_name(file)
        content = read_object(path, missing_ok=True)
        for role, said in by_role.items():
            key = f"{role}_token" if file in NAMING else f"{role}_token_id"
            if key in content:
                said += [Said(token, f"{path}:{key}") for token in _tokens(content[key], numbers=file in NUMBERING)]
    return {role: tuple(said) for role, said in by_role.items()}


def _tokens(value: Any, *, numbers: bool) -> list[str | int | None]:
    """Return the names or ids in a value: a name, `{"content": name}`, an id or a list of ids. A config without an id
    says nothing."""
    if numbers:
        each = value if isinstance(value, list) else [value]
        return [id_ for id_ in each if isinstance(id_, int) and not isinstance(id_, bool)]
    name = value.get("content") if isinstance(value, dict) else value
    return [name] if name is None or isinstance(name, str) else []


def _is_text(token: str) -> bool:
    """Return whether a token can be written as UTF-8: JSON may hold half of a surrogate pair."""
    return token.isascii() or not any("\ud800" <= character <= "\udfff" for character in token)


def id_of(role: Role, tokenizer: Tokenizer, beside: Beside) -> int | None:
    """Return the id of the token for a role, or None. Raises TrainkitError if a file names a token that is missing."""
    denied = False
    for said in beside[role]:
        if isinstance(said.token, str):
            id_ = tokenizer.token_to_id(said.token) if _is_text(said.token) else None
            if id_ is None:
                raise TrainkitError(
                    f"names the token {said.token!r}, which the tokenizer does not have",
                    where=said.where,
                    hint="name a token of tokenizer.json, or add it there; write null if there is none",
                )
            return id_
        if said.token is None:
            denied = True
        # ids of a config may be its class's defaults, for a larger vocabulary, and -1 stands for none
        elif (
            (role == "eos" or not denied)
            and 0 <= said.token < 1 << 32
            and tokenizer.id_to_token(said.token) is not None
        ):
            return said.token
    # a text must end with some token
    return None if denied and role != "eos" else _own(role, tokenizer)


def _own(role: Role, tokenizer: Tokenizer) -> int | None:
    before, after = put_around(tokenizer)
    put = {"bos": before, "eos": after}.get(role, ())
    if len(put) == 1:
        return put[0]
    special, vocabulary = special_tokens(tokenizer), tokenizer.get_vocab(with_added_tokens=True)
    return next((among[name] for among in (special, vocabulary) for name in NAMES[role] if name in among), None)


def special_tokens(tokenizer: Tokenizer) -> dict[str, int]:
    """Return the ids of the tokens that the tokenizer itself calls special, by their names."""
    return {token.content: id_ for id_, token in tokenizer.get_added_tokens_decoder().items() if token.special}


def put_around(tokenizer: Tokenizer) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the special tokens that a tokenizer puts before a text, and those it puts after it."""
    whole, bare = tokenizer.encode("a").ids, tokenizer.encode("a", add_special_tokens=False).ids
    if not bare:  # around an empty text, tokens before it look the same as tokens after it
        return (), ()
    place = _find(bare, whole)
    return tuple(whole[:place]), tuple(whole[place + len(bare) :])


def put_between(tokenizer: Tokenizer) -> tuple[int, ...]:
    """Return the special tokens that a tokenizer, which neither pads nor cuts, puts between the texts of a pair."""
    first, second = (tokenizer.encode(text, add_special_tokens=False).ids for text in "ab")
    if not first or not second:
        return ()
    whole = tokenizer.encode("a", "b").ids
    rest = whole[_find(first, whole) + len(first) :]
    return tuple(rest[: _find(second, rest)])


def _find(part: list[int], whole: list[int]) -> int:
    """Return where a part of a list begins."""
    return next(n for n in range(len(whole) + 1) if whole[n : n + len(part)] == part)
