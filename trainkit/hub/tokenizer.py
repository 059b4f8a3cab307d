"""The tokenizer files of an export, which `transformers` reads, with the special tokens of training."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, models, processors

from trainkit.data.hub_files import read_object
from trainkit.data.tokenizer import special_tokens
from trainkit.data.tokenizer.vocabulary import LoadedTokenizer
from trainkit.hub.save import as_json

TOKENIZER, CONFIG, GENERATION = "tokenizer.json", "tokenizer_config.json", "generation_config.json"
#: Marks a generation_config.json that trainkit wrote only to hold token ids, not settings for sampling.
IDS_ONLY = "trainkit_ids_only"
TEMPLATE, NAMES = "chat_template.jinja", "special_tokens_map.json"


def put_around(path: Path) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the special tokens that the tokenizer in a file puts before and after a text."""
    own = Tokenizer.from_file(str(path))
    own.no_padding()
    own.no_truncation()
    return special_tokens.put_around(own)


def write(
    out: Path,
    source: Path,
    codec: LoadedTokenizer,
    *,
    begin: Sequence[int],
    ends: Sequence[int],
    template: str | None,
    context_length: int,
    pad: int | None,
    encoder: bool = False,
    token_types: bool = False,
    name_pad: bool = False,
    after: Sequence[int] = (),
    start: int | None = None,
) -> dict[str, Any]:
    """Write the tokenizer's files, and return the token ids for config.json.

    Args:
        source: the run's directory, with the files that came with its tokenizer.
        begin: the tokens that training put before a text; the tokenizer that is written puts them there by itself.
        ends: the tokens that end a text, that of training first.
        pad: the token that the exported config names for padding; None for the tokenizer's own `pad_token`.
        encoder: whether the model reads texts with the tokens that the tokenizer itself puts around them.
        token_types: whether the model has embeddings that distinguish the texts of a pair.
        name_pad: whether the tokenizer pads with `pad` if it has no padding token itself.
        after: the tokens that training put after a source; the tokenizer that is written does the same.
        start: the token that a decoder of sources begins with.
        template: the chat template of training; None for the one in `source`.

    Raises:
        TrainkitError: a file of `source` cannot be read.
    """
    own = (source / TOKENIZER).read_bytes() if encoder else _around(source / TOKENIZER, begin, after)
    (out / TOKENIZER).write_bytes(own)
    if template is None and (source / TEMPLATE).is_file():
        (out / TEMPLATE).write_bytes((source / TEMPLATE).read_bytes())
    config = {**_config(codec, context_length, encoder=encoder), **read_object(source / CONFIG, missing_ok=True)}
    # exports never refer to code
    config.pop("auto_map", None)
    if token_types:
        config.setdefault("model_input_names", ["input_ids", "token_type_ids", "attention_mask"])
    if name_pad and pad is not None:
        config.setdefault("pad_token", codec.name(pad))
    if template is not None:
        config["chat_template"] = template
    # some tokenizers of transformers use these, whatever the tokenizer's own file says
    config |= {"add_bos_token": bool(begin), "add_eos_token": bool(after), **_named(config, codec, begin, ends)}
    (out / CONFIG).write_text(as_json(config), encoding="utf-8")
    if names := read_object(source / NAMES, missing_ok=True):
        others = {key: name for key, name in _named(names, codec, begin, ends).items() if key in names}
        (out / NAMES).write_text(as_json({**names, **others}), encoding="utf-8")
    tokens = {
        "eos_token_id": ends[0] if len(ends) == 1 else list(ends),
        "bos_token_id": codec.beginning_of_text,
        "pad_token_id": _pad_token(config, codec) if pad is None else pad,
    }
    tokens |= {} if start is None else {"decoder_start_token_id": start}
    known = {key: value for key, value in tokens.items() if value is not None}
    generation = read_object(source / GENERATION, missing_ok=True)
    generation.pop(IDS_ONLY, None)
    padded = {"pad_token_id": generation["pad_token_id"]} if generation.get("pad_token_id") is not None else {}
    (out / GENERATION).write_text(as_json({**generation, **known, **padded}), encoding="utf-8")
    # a missing token is null in config.json, because transformers would use a default of the family
    return tokens


def _pad_token(config: dict[str, Any], codec: LoadedTokenizer) -> int | None:
    """Return the tokenizer's own padding token, or the one that its exported config names."""
    name = _content(config.get("pad_token"))
    return codec.padding if codec.padding is not None or name is None else codec.token_id(name)


def _around(path: Path, begin: Sequence[int], after: Sequence[int]) -> bytes:
    """Return the file of a tokenizer, changed if necessary to put these tokens before and after a text."""
    if put_around(path) == (tuple(begin), tuple(after)):
        return path.read_bytes()
    content = read_object(path)
    before = content.get("post_processor") or {}
    parts = [part for part in before.get("processors", [before]) if part.get("type") == "ByteLevel"]
    if begin or after:
        own, bare = Tokenizer.from_file(str(path)), Tokenizer(models.BPE())
        first, last = ([own.id_to_token(token) for token in tokens] for tokens in (begin, after))
        bare.post_processor = processors.TemplateProcessing(
            single=[*first, "$A", *last],
            pair=[*first, "$A", *last, *(f"{name}:1" for name in first), "$B:1", *(f"{name}:1" for name in last)],
            special_tokens=list(zip([*first, *last], [*begin, *after], strict=True)),
        )
        parts.append(json.loads(bare.to_str())["post_processor"])
    content["post_processor"] = {"type": "Sequence", "processors": parts} if len(parts) > 1 else next(iter(parts), None)
    return json.dumps(content, ensure_ascii=False, indent=2).encode()


def _named(config: dict[str, Any], codec: LoadedTokenizer, begin: Sequence[int], ends: Sequence[int]) -> dict[str, str]:
    """Return the keys that a config needs so that `bos_token` is the token that begins a text, and `eos_token` one that
    ends it."""
    named = {}
    if begin and _content(config.get("bos_token")) != codec.name(begin[0]):
        named["bos_token"] = codec.name(begin[0])
    if _content(config.get("eos_token")) not in [codec.name(end) for end in ends]:
        named["eos_token"] = codec.name(codec.end_of_text)
    return named


def _content(token: Any) -> str | None:
    """Return the name of a token in a config, which may be an object that contains it."""
    name = token.get("content") if isinstance(token, dict) else token
    return name if isinstance(name, str) else None


def _config(codec: LoadedTokenizer, context_length: int, *, encoder: bool) -> dict[str, Any]:
    tokens = {
        "eos_token": codec.end_of_text,
        "bos_token": codec.beginning_of_text,
        "unk_token": codec.unknown,
        "pad_token": codec.padding,
        "mask_token": codec.mask,
    }
    if encoder:
        tokens |= {"cls_token": codec.beginning_of_text, "sep_token": codec.end_of_text}
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
        "model_max_length": context_length,
        **{name: codec.name(token) for name, token in tokens.items() if token is not None},
    }
