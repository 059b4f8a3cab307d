"""Tokens that a recipe adds to a tokenizer that exists: one for each class, or a separator."""

from __future__ import annotations

import json
from collections.abc import Sequence

from trainkit.data.tokenizer.vocabulary import LoadedTokenizer
from trainkit.errors import TrainkitError

KEY = "tokenizer.new_tokens"


def add_tokens(codec: LoadedTokenizer, names: Sequence[str]) -> LoadedTokenizer:
    """Return the tokenizer with tokens of these names, whose ids follow its last one.

    Each is one id wherever its name stands in a text. So they are not "special" to the tokenizer: the name of a special
    token in a document is text like any other, and evaluation and transformers leave special tokens out of an answer.

    The file is changed as JSON, and not written by the tokenizers library, whose versions may write it differently: the
    fingerprint of the data depends on it.

    Raises:
        TrainkitError: the tokenizer has one of them already, cannot number them after its last id, or does not give
            its name back.
    """
    if not names:
        return codec
    for name in names:
        if (id_ := codec.token_id(name)) is not None:
            raise TrainkitError(
                f"the tokenizer has {name!r} already, as id {id_}", where=KEY, hint="leave it out, or rename it"
            )
    content = json.loads(codec.content)
    ids = range(codec.vocab_size, codec.vocab_size + len(names))
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized", "special"), False)
    added = [{"id": id_, "content": name, **flags} for id_, name in zip(ids, names, strict=True)]
    content["added_tokens"] = [*(content.get("added_tokens") or ()), *added]
    larger = LoadedTokenizer(codec.path, json.dumps(content, ensure_ascii=False).encode(), codec.beside)
    for id_, name in zip(ids, names, strict=True):
        _check(larger, name, id_)
    return larger


def _check(codec: LoadedTokenizer, name: str, id_: int) -> None:
    if (found := codec.token_id(name)) != id_:
        raise TrainkitError(
            f"the ids of the tokenizer have gaps: {name!r} would be id {found}, and not {id_} after its last one",
            where=KEY,
            hint=f"give the tokens ids in {codec.path} itself",
        )
    if codec.encode(name) != [id_] or codec.decode([id_]).strip() != name:
        raise TrainkitError(
            f"the tokenizer does not keep {name!r} as it is: it comes back as {codec.decode(codec.encode(name))!r}",
            where=KEY,
            hint='use ASCII letters, digits and signs, such as "<positive>"',
        )
