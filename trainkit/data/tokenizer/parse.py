"""What a `tokenizer.json` holds, with the errors of a file that no training can use."""

from __future__ import annotations

import json
from pathlib import Path

from tokenizers import Tokenizer, models

from trainkit.data.tokenizer.special_tokens import NAMES, Beside, id_of
from trainkit.errors import TrainkitError
from trainkit.text import one_line, shorten

#: So many ids without a token are no mistake, whatever the size of the vocabulary.
UNUSED_IDS = 65_536


def parse(path: Path, content: bytes) -> Tokenizer:
    """Return the tokenizer in the content of a file, which truncates and pads nothing. Raises TrainkitError."""
    try:
        tokenizer = Tokenizer.from_buffer(content)
    # tokenizers raises ValueError here, and bare Exception elsewhere, for whatever is wrong with the content
    except BaseException as error:
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":  # of Rust
            raise
        raise TrainkitError(
            f"is not a tokenizer of the tokenizers library: {error}",
            where=str(path),
            hint="give a tokenizer.json as Hugging Face's fast tokenizers save it",
        ) from error
    tokenizer.no_truncation()
    tokenizer.no_padding()
    tokenizer.encode_special_tokens = True
    return tokenizer


def vocab_size(tokenizer: Tokenizer, path: Path) -> int:
    """Return the highest id plus 1. Raises TrainkitError if hardly any id below it has a token: it is a mistake."""
    ids = tokenizer.get_vocab(with_added_tokens=True)
    size = max(ids.values(), default=-1) + 1
    if size > UNUSED_IDS + 4 * len(ids):
        last = max(ids, key=lambda name: ids[name])
        raise TrainkitError(
            f"the token {shorten(one_line(last))!r} has the id {size - 1:,}, and there are only {len(ids):,} tokens:"
            " the model would need a row for each id",
            where=str(path),
            hint="bring the file back as it was, or give the token the next free id",
        )
    return size


def end_of_text(tokenizer: Tokenizer, beside: Beside, path: Path) -> int:
    """Return the id of the token that ends a text. Raises TrainkitError if there is none."""
    if (id_ := id_of("eos", tokenizer, beside)) is not None:
        return id_
    raise TrainkitError(
        f"the tokenizer has no end-of-text token; looked for {', '.join(NAMES['eos'])}",
        where=str(path),
        hint='name it in a tokenizer_config.json beside the tokenizer: {"eos_token": "…"}; or train one:'
        " [tokenizer] train = { vocab_size = 4096 }",
    )


def unknown_token(tokenizer: Tokenizer, content: bytes) -> int | None:
    """Return the id that stands for what the tokenizer does not know; None if it knows everything."""
    model = tokenizer.model
    if isinstance(model, models.Unigram):  # the Python binding does not expose it
        unknown: int | None = json.loads(content)["model"]["unk_id"]
        return unknown
    return None if model.unk_token is None else tokenizer.token_to_id(model.unk_token)
