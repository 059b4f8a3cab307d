"""A tokenizer as training uses it, loaded from its file."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
from tokenizers import Encoding, Tokenizer, pre_tokenizers

from trainkit.data.documents.pieces import Characters, LabelledSpan
from trainkit.data.sources.digests import of_bytes
from trainkit.data.tokenizer.parse import end_of_text, parse, unknown_token, vocab_size
from trainkit.data.tokenizer.special_tokens import (
    NOTHING,
    Beside,
    id_of,
    put_around,
    put_between,
    read_beside,
    special_tokens,
)
from trainkit.errors import TrainkitError

#: What stands for a space in the names of tokens, and for other white space: as it is, as byte-level tokenizers write
#: it, and as a single byte.
_SPACES = "Ġ", "▁"
_WHITE = "\t", "\n", "\r", "ĉ", "Ċ", "č", "<0x09>", "<0x0A>", "<0x0D>"


@dataclass(frozen=True)
class PlacedTokens:
    """The tokens of a text, and the characters that each is from; all are int64 (n,)."""

    ids: np.ndarray
    begins: np.ndarray
    ends: np.ndarray

    def borders(self) -> np.ndarray:
        """Return before which tokens the text can be divided, so that no token has characters of both sides: bool (n,).
        A character that is several tokens is not divided."""
        before = np.maximum.accumulate(np.concatenate([[-1], self.ends]))[:-1]
        following = np.minimum.accumulate(self.begins[::-1])[::-1]
        before_begins = np.concatenate([[-1], self.begins])[:-1]
        borders: np.ndarray = (before <= self.begins) & (following >= self.begins) & (before_begins < self.begins)
        return borders


class LoadedTokenizer:
    """A tokenizer as training uses it: it adds nothing to a text, and removes nothing.

    Attributes:
        path: its `tokenizer.json`.
        content: that file, with the tokens that a recipe adds to it.
        beside: what the files beside it say about its special tokens.
        vocab_size: the highest id plus 1; ids in between may be unused.
        fingerprint: a digest of the file's content, and of which tokens begin and end a text.
        end_of_text: the id that follows every document.
        beginning_of_text: the id that a document begins with if the recipe asks for it; None if there is none.
        padding: the id that fills up rows in other programs; None if there is none.
        mask: the id that hides a token from a masked language model; None if there is none.
        unknown: the id for text that it has no token for, as the tokenizer itself says; None if there is none.
        special_tokens: the ids of its special tokens, by their names.
        begins: whether the tokenizer itself puts `beginning_of_text`, and nothing else, before a text.
    """

    def __init__(self, path: Path, content: bytes, beside: Beside = NOTHING) -> None:
        """`beside` is what the files beside it say about its special tokens.

        Raises TrainkitError if `content`, as read from `path`, is not a tokenizer, or has no end-of-text token, or not
        the one that a file names.
        """
        self.path = path
        self.content, self.beside = content, beside
        self._tokenizer = parse(path, content)
        self.vocab_size = vocab_size(self._tokenizer, path)
        self.end_of_text = end_of_text(self._tokenizer, beside, path)
        self.beginning_of_text = id_of("bos", self._tokenizer, beside)
        self.padding = id_of("pad", self._tokenizer, beside)
        self.unknown = unknown_token(self._tokenizer, content)
        self.special_tokens = special_tokens(self._tokenizer)
        self.begins = put_around(self._tokenizer)[0] == (self.beginning_of_text,)
        self.fingerprint = of_bytes(content, repr((self.beginning_of_text, self.end_of_text)).encode())

    @cached_property
    def between(self) -> tuple[int, ...]:
        """Return the ids that it puts between the texts of a pair by itself."""
        return put_between(self._tokenizer)

    @cached_property
    def mask(self) -> int | None:
        """Return the id that hides a token from a masked language model; None without one. Raises TrainkitError as
        `special_tokens.id_of`."""
        # looked up only when it is needed: most tokenizers have none, and what files say about it may be wrong
        return id_of("mask", self._tokenizer, self.beside)

    @cached_property
    def continuations(self) -> tuple[int, ...] | None:
        """Return the ids that continue a word, judged by their names; None if names do not show it.

        WordPiece marks them with `##`; other tokenizers mark tokens that begin a word, with `Ġ` or `▁`.
        """
        names = self._ordinary_names
        if any(name.startswith("##") for name in names.values()):
            return tuple(id_ for id_, name in names.items() if name.startswith("##"))
        if any(name.startswith(_SPACES) for name in names.values()):
            return tuple(id_ for id_, name in names.items() if not name.startswith((*_SPACES, *_WHITE)))
        return None

    @cached_property
    def white(self) -> tuple[int, ...]:
        """The ids that end with white space, such as a line's end: the next token begins a word, with or without a
        mark. A space alone is a part of the word after it."""
        return tuple(
            id_
            for id_, name in self._ordinary_names.items()
            if name not in _SPACES and name.endswith((*_SPACES, *_WHITE))
        )

    @cached_property
    def _ordinary_names(self) -> dict[int, str]:
        """The names of tokens that are not special, by their ids, which rise."""
        special = set(self.special_tokens.values())
        names = self._tokenizer.get_vocab(with_added_tokens=True)
        return {id_: name for name, id_ in sorted(names.items(), key=lambda pair: pair[1]) if id_ not in special}

    def __reduce__(self) -> tuple[type[LoadedTokenizer], tuple[Path, bytes, Beside]]:
        return LoadedTokenizer, (self.path, self.content, self.beside)

    @cached_property
    def content_digest(self) -> str:
        """Return a digest of the file's content alone: the `fingerprint` of tokenizers in caches of format 2."""
        return hashlib.blake2b(self.content, digest_size=16).hexdigest()

    @property
    def dtype(self) -> str:
        """Return the smallest type that holds its ids: "uint16" or "uint32"."""
        return "uint16" if self.vocab_size <= 1 << 16 else "uint32"

    def encode(self, text: str) -> list[int]:
        """Return the ids of a text. A special token's name in it is text like any other."""
        return self.encode_batch([text])[0]

    def encode_batch(self, texts: Sequence[str], *, special_tokens: bool = False) -> list[list[int]]:
        """Return the ids of each text, using all cores, without holding Python's lock.

        With `special_tokens` the names of special tokens in a text become their ids, as a chat template means them;
        otherwise they are text like any other.
        """
        tokenizer = self._with_special_tokens if special_tokens else self._tokenizer
        return [e.ids for e in tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)]

    def encode_parts(
        self, texts: Sequence[tuple[str, Sequence[Characters]]], *, special_tokens: bool = False
    ) -> Iterator[tuple[list[int], np.ndarray]]:
        """Yield the ids of each text as `encode_batch` gives them, and which of them belong to its parts, bool (n,).

        The tokens of a part are those from the one that holds its first character to the last that holds its last one,
        even if they hold characters around it, as in `apply_chat_template` of transformers with
        `return_assistant_tokens_mask`. There are two differences. A part that ends with a character of several tokens
        has all of these tokens (in transformers only the first). A part that begins or ends with characters that the
        tokenizer leaves out, such as WordPiece spaces, is the rest of it (in transformers it and everything after it
        are lost, or it continues to the end of the text).
        """
        tokenizer = self._with_offsets[special_tokens]
        encodings = tokenizer.encode_batch([text for text, _ in texts], add_special_tokens=False)
        for encoding, (_, parts) in zip(encodings, texts, strict=True):
            placed = _place(encoding)
            within = np.zeros(len(placed.ids), bool)
            for begin, end in parts:
                among = np.flatnonzero((placed.begins < end) & (placed.ends > begin))
                if len(among):
                    within[among[0] : among[-1] + 1] = True
            yield encoding.ids, within

    def encode_labelled(
        self, texts: Sequence[tuple[str, Sequence[LabelledSpan]]], *, words: bool = False
    ) -> Iterator[tuple[list[int], np.ndarray]]:
        """Yield the ids of each text as `encode_batch` gives them, and the label of each token, int16 (n,): that of the
        last span that gives it one, or the bits of all that add some, else -1.

        Args:
            words: whether the texts are words and spaces. A byte-level tokenizer then sees a space before the first.
        """
        tokenizer = self._of_words if words else self._with_offsets[False]
        encodings = tokenizer.encode_batch([text for text, _ in texts], add_special_tokens=False)
        for encoding, (_, spans) in zip(encodings, texts, strict=True):
            placed = _place(encoding)
            labels = np.full(len(placed.ids), -1, np.int16)
            for span in spans:
                among = np.flatnonzero((placed.begins < span.end) & (placed.ends > span.begin))
                among = among if span.every else among[:1]
                labels[among] = np.maximum(labels[among], 0) | span.label if span.adds else span.label
            yield encoding.ids, labels

    def encode_placed(self, text: str, *, special_tokens: bool = False) -> PlacedTokens:
        """Return the ids of a text as `encode_batch` gives them, with their places."""
        # a batch is tokenised without holding Python's lock
        (encoding,) = self._with_offsets[special_tokens].encode_batch([text], add_special_tokens=False)
        return _place(encoding)

    @cached_property
    def _with_offsets(self) -> dict[bool, Tokenizer]:
        """By whether names of special tokens are these tokens."""
        made = {}
        for named in (False, True):
            made[named] = tokenizer = parse(self.path, self.content)
            tokenizer.encode_special_tokens = not named
            # where no special tokens are added all it does is to leave spaces out of the places of tokens
            tokenizer.post_processor = None  # type: ignore[assignment]
        return made

    @cached_property
    def _of_words(self) -> Tokenizer:
        tokenizer = parse(self.path, self.content)
        tokenizer.post_processor = None  # type: ignore[assignment]
        if isinstance(tokenizer.pre_tokenizer, pre_tokenizers.ByteLevel):
            tokenizer.pre_tokenizer.add_prefix_space = True
        return tokenizer

    @cached_property
    def _with_special_tokens(self) -> Tokenizer:
        tokenizer = parse(self.path, self.content)
        tokenizer.encode_special_tokens = False
        return tokenizer

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of some ids, with special tokens by name; bytes that are not UTF-8 become U+FFFD."""
        return self._tokenizer.decode(list(ids), skip_special_tokens=False)

    def token_id(self, name: str) -> int | None:
        """Return the id of a token by its name in the tokenizer; None if there is no such token."""
        return self._tokenizer.token_to_id(name)

    def name(self, id_: int) -> str:
        """Return the name of a token in the tokenizer, which may differ from its text."""
        name = self._tokenizer.id_to_token(id_)
        assert name is not None, id_
        return name


def _place(encoding: Encoding) -> PlacedTokens:
    begins, ends = np.array(encoding.offsets, np.int64).reshape(-1, 2).T
    return PlacedTokens(np.array(encoding.ids, np.int64), begins, ends)


def load(path: Path, *, config: bool = False) -> LoadedTokenizer:
    """Return the tokenizer in a `tokenizer.json`. Raises TrainkitError.

    The files beside it name its special tokens; with `config`, so does a model's config.json.
    """
    try:
        content = path.read_bytes()
    except OSError as error:
        raise TrainkitError(f"cannot read the tokenizer: {error.strerror or error}", where=str(path)) from error
    return LoadedTokenizer(path, content, read_beside(path, config=config))
