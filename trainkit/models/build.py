"""From spec to model, and what is done with every model."""

from __future__ import annotations

from typing import TypedDict, assert_never

import jax
from jaxtyping import PRNGKeyArray, PyTree

from trainkit.models.decoder import DecoderModel
from trainkit.models.gpt import GptModel
from trainkit.models.stack import LanguageModel
from trainkit.parallel.devices import AttentionName
from trainkit.recipe.families import decoder, gpt
from trainkit.recipe.sections.model import Model
from trainkit.recipe.sections.train import Remat


class _Common(TypedDict):
    """What every family is made from, beside its spec."""

    vocab_size: int
    sequence_length: int
    implementation: AttentionName
    remat: Remat
    fp8: bool
    key: PRNGKeyArray


def build(
    model: Model,
    *,
    vocab_size: int,
    sequence_length: int,
    implementation: AttentionName,
    remat: Remat = "none",
    fp8: bool = False,
    key: PRNGKeyArray,
) -> LanguageModel:
    """A freshly initialised model, in float32.

    With `fp8`, the products of its linear layers are made of 8-bit operands: see `models/fp8.py`.
    """
    common = _Common(
        vocab_size=vocab_size,
        sequence_length=sequence_length,
        implementation=implementation,
        remat=remat,
        fp8=fp8,
        key=key,
    )
    match model:
        case gpt.Gpt():
            return GptModel.init(model, **common)
        case decoder.Decoder():
            return DecoderModel.init(model, **common)
        case _:
            assert_never(model)


def leaf_names(tree: PyTree) -> PyTree[str]:
    """The tree with every leaf replaced by its path, such as `blocks.attention.qkv.weight`."""
    return jax.tree_util.tree_map_with_path(
        lambda path, _: jax.tree_util.keystr(path, simple=True, separator="."), tree
    )
