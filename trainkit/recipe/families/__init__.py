"""The model families: of each the spec, its defaults and its Hugging Face table in one file.

A new family is a file beside this one and a line in `FAMILIES`: the `[model]` section and the hub look it up there.
"""

from trainkit.recipe.families import (
    bart,
    bert,
    deberta_v3,
    distilbert,
    gemma2,
    gemma3,
    gpt2,
    llama,
    mistral,
    mixtral,
    modernbert,
    mpt,
    olmo2,
    qwen2,
    qwen3,
    qwen3_moe,
    roberta,
    t5,
)
from trainkit.recipe.families.hugging_face import Family

FAMILIES: tuple[Family, ...] = (
    gpt2.FAMILY,
    mpt.FAMILY,
    llama.FAMILY,
    mistral.FAMILY,
    qwen2.FAMILY,
    qwen3.FAMILY,
    olmo2.FAMILY,
    gemma2.FAMILY,
    gemma3.FAMILY,
    mixtral.FAMILY,
    qwen3_moe.FAMILY,
    bert.FAMILY,
    roberta.FAMILY,
    distilbert.FAMILY,
    modernbert.FAMILY,
    deberta_v3.FAMILY,
    t5.FAMILY,
    bart.FAMILY,
)
