"""What an export says of its tokenizer: files that `transformers` reads, with the tokens of training in them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trainkit.data.vocabulary import LoadedTokenizer
from trainkit.errors import TrainkitError
from trainkit.hub.save import as_json

TOKENIZER, CONFIG, GENERATION = "tokenizer.json", "tokenizer_config.json", "generation_config.json"
#: Copied as they are where the run has them.
AS_THEY_ARE = ("special_tokens_map.json", "chat_template.jinja")


def ids(codec: LoadedTokenizer, source: Path) -> dict[str, Any]:
    """`eos_token_id` and `bos_token_id` for config.json and generation_config.json.

    The token that ended every document in training ends a text, beside what the checkpoint before had for that.
    """
    before = read(source / GENERATION).get("eos_token_id")
    ends = before if isinstance(before, list) else [] if before is None else [before]
    ends = list(dict.fromkeys([codec.end_of_text, *ends]))
    begin = {} if codec.beginning_of_text is None else {"bos_token_id": codec.beginning_of_text}
    return {"eos_token_id": ends[0] if len(ends) == 1 else ends, **begin}


def write(
    out: Path, source: Path, codec: LoadedTokenizer, *, template: str | None, context_length: int
) -> dict[str, Any]:
    """Write the tokenizer's files; `template` is the chat template that training wrote conversations with.

    `source` is the run's directory, with the files that came with its tokenizer. The token ids are given back.

    Raises:
        TrainkitError: a file of `source` cannot be read.
    """
    (out / TOKENIZER).write_bytes((source / TOKENIZER).read_bytes())
    for name in AS_THEY_ARE:
        if (source / name).is_file() and not (template is not None and name.endswith(".jinja")):
            (out / name).write_bytes((source / name).read_bytes())
    found = {**_config(codec, context_length), **read(source / CONFIG)}
    # code of anyone's is never asked for
    found.pop("auto_map", None)
    if template is not None:
        found["chat_template"] = template
    (out / CONFIG).write_text(as_json(found), encoding="utf-8")
    said = ids(codec, source)
    (out / GENERATION).write_text(as_json({**read(source / GENERATION), **said}), encoding="utf-8")
    return said


def _config(codec: LoadedTokenizer, context_length: int) -> dict[str, Any]:
    tokens = {"eos_token": codec.end_of_text, "bos_token": codec.beginning_of_text, "unk_token": codec.unknown}
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
        "model_max_length": context_length,
        **{name: codec.decode([token]) for name, token in tokens.items() if token is not None},
    }


def read(path: Path) -> Mapping[str, Any]:
    """The object in a file; empty where there is no such file. Raises TrainkitError."""
    try:
        found = json.loads(path.read_bytes())
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise TrainkitError(f"it cannot be read: {error}", where=str(path)) from error
    if not isinstance(found, dict):
        raise TrainkitError("it is no JSON object", where=str(path))
    return found
