"""A tokenizer as it is used here, loaded from its file."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path

from tokenizers import Tokenizer

from trainkit.errors import TrainkitError

END_OF_TEXT = "<|endoftext|>"
#: What the token that ends a document is called in tokenizers at large, most specific first.
_ENDS = (
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
)
#: What the token that begins a document is called, most specific first.
_BEGINS = ("<|begin_of_text|>", "<s>", "<bos>", "[BOS]", "<BOS>", "<|startoftext|>", "[CLS]", END_OF_TEXT)
_UNKNOWN = ("<unk>", "[UNK]", "<|unk|>", "<UNK>")


class LoadedTokenizer:
    """A tokenizer as text goes through it in training: nothing is added to a text, cut off or taken out of it.

    Attributes:
        path: its `tokenizer.json`.
        vocab_size: the highest id and 1; ids in between may be unused.
        fingerprint: of the file's content.
        end_of_text: the id that follows every document.
        beginning_of_text: the id that a document begins with where the recipe asks for it; None where there is none.
        unknown: the id of what it has no token for; None where there is nothing that it has no tokens for.
    """

    def __init__(self, path: Path, content: bytes) -> None:
        """Raises TrainkitError where `content`, as read from `path`, is no tokenizer, or has no end-of-text token."""
        self.path = path
        self.fingerprint = hashlib.blake2b(content, digest_size=16).hexdigest()
        self._content = content
        self._tokenizer = _parse(path, content)
        vocabulary = self._tokenizer.get_vocab(with_added_tokens=True)
        self.vocab_size = max(vocabulary.values(), default=-1) + 1
        self.end_of_text = _end_of_text(vocabulary, path)
        self.beginning_of_text = next((vocabulary[name] for name in _BEGINS if name in vocabulary), None)
        self.unknown = next((vocabulary[name] for name in _UNKNOWN if name in vocabulary), None)

    def __reduce__(self) -> tuple[type[LoadedTokenizer], tuple[Path, bytes]]:
        return LoadedTokenizer, (self.path, self._content)

    @property
    def dtype(self) -> str:
        """The smallest that holds its ids: "uint16" or "uint32"."""
        return "uint16" if self.vocab_size <= 1 << 16 else "uint32"

    def encode(self, text: str) -> list[int]:
        """The ids of a text. A special token's name in it is text like any other."""
        return self.encode_batch([text])[0]

    def encode_batch(self, texts: Sequence[str], *, special_tokens: bool = False) -> list[list[int]]:
        """The ids of each text, on all cores, without holding Python's lock.

        With `special_tokens` their names in a text become their ids, as a chat template means them; else they are text
        like any other.
        """
        tokenizer = self._with_special_tokens if special_tokens else self._tokenizer
        return [e.ids for e in tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)]

    @cached_property
    def _with_special_tokens(self) -> Tokenizer:
        tokenizer = _parse(self.path, self._content)
        tokenizer.encode_special_tokens = False
        return tokenizer

    def decode(self, ids: Sequence[int]) -> str:
        """The text of some ids, special tokens by their names; bytes that are no UTF-8 become U+FFFD."""
        return self._tokenizer.decode(list(ids), skip_special_tokens=False)


def load(path: Path) -> LoadedTokenizer:
    """The tokenizer in a `tokenizer.json`. Raises TrainkitError."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise TrainkitError(f"cannot read the tokenizer: {error.strerror or error}", where=str(path)) from error
    return LoadedTokenizer(path, content)


def _parse(path: Path, content: bytes) -> Tokenizer:
    try:
        tokenizer = Tokenizer.from_buffer(content)
    # tokenizers raises ValueError here, and bare Exception elsewhere, for whatever is wrong with the content
    except Exception as error:
        raise TrainkitError(
            f"is no tokenizer of the tokenizers library: {error}",
            where=str(path),
            hint="a tokenizer.json is what Hugging Face's fast tokenizers save",
        ) from error
    tokenizer.no_truncation()
    tokenizer.no_padding()
    tokenizer.encode_special_tokens = True
    return tokenizer


def _end_of_text(vocabulary: dict[str, int], path: Path) -> int:
    for name in _ENDS:
        if name in vocabulary:
            return vocabulary[name]
    raise TrainkitError(
        f"the tokenizer has no end-of-text token; looked for {', '.join(_ENDS)}",
        where=str(path),
        hint="add one of these to its special tokens, or train one: [tokenizer] train = { vocab_size = 4096 }",
    )
