"""From spec to model, and what is done with every model."""

from __future__ import annotations

from typing import Protocol, TypedDict, assert_never

import jax
from jaxtyping import Array, Float, Int, PRNGKeyArray, PyTree

from trainkit.models.attention import KeyValues
from trainkit.models.decoder import Decoder
from trainkit.models.gpt2 import Gpt2
from trainkit.models.mpt import Mpt
from trainkit.parallel.devices import AttentionName
from trainkit.recipe import decoder
from trainkit.recipe import model as spec
from trainkit.recipe.train import Remat


class LanguageModel(Protocol):
    """What tasks and generation ask of a family; shapes as in `layers.py`."""

    @property
    def context_length(self) -> int: ...

    @property
    def final_softcap(self) -> float | None:
        """What its logits are bent to stay below, where they are: see `layers.logits`."""

    def hidden(
        self,
        tokens_BT: Int[Array, "B T"],
        *,
        positions_BT: Int[Array, "B T"] | None = None,
        segments_BT: Int[Array, "B T"] | None = None,
        cache: KeyValues | None = None,
    ) -> tuple[Float[Array, "B T D"], KeyValues | None]: ...

    def unembedding(self) -> Float[Array, "V D"]: ...

    def logits(self, hidden_BTD: Float[Array, "*n D"]) -> Float[Array, "*n V"]: ...

    def empty_cache(self, batch: int, length: int) -> KeyValues: ...


class _Common(TypedDict):
    """What every family is made from, beside its spec."""

    vocab_size: int
    sequence_length: int
    implementation: AttentionName
    remat: Remat
    fp8: bool
    key: PRNGKeyArray


def build(
    model: spec.Model,
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
        case spec.Gpt2():
            return Gpt2.init(model, **common)
        case spec.Mpt():
            return Mpt.init(model, **common)
        case decoder.Decoder():
            return Decoder.init(model, **common)
        case _:
            assert_never(model)


def leaf_names(tree: PyTree) -> PyTree[str]:
    """The tree with every leaf replaced by its path, such as `blocks.attention.qkv.weight`."""
    return jax.tree_util.tree_map_with_path(
        lambda path, _: jax.tree_util.keystr(path, simple=True, separator="."), tree
    )
