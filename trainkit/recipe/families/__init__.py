"""The model families: of each the spec, its defaults and its Hugging Face table in one file.

A new family is a file beside this one and a line in `NAMES`: the `[model]` section and the hub look it up there.
"""

from __future__ import annotations

from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from trainkit.recipe.families.hugging_face import Family

#: The files of the families, each named as the `type` of its spec, with `_` for `-`.
NAMES = (
    "gpt2",
    "mpt",
    "llama",
    "mistral",
    "qwen2",
    "qwen3",
    "olmo2",
    "gemma2",
    "gemma3",
    "mixtral",
    "qwen3_moe",
    "bert",
    "roberta",
    "distilbert",
    "modernbert",
    "deberta_v3",
    "t5",
    "bart",
)


@cache
def families() -> tuple[Family, ...]:
    """Import and return all families."""
    return tuple(import_module(f"{__name__}.{name}").FAMILY for name in NAMES)
