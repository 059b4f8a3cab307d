"""[model]: the families, with their closed-form sizes.

What can be computed about a model without building it is computed here, so that a plan needs no jax.
Each family answers the questions of `transformer.py`. They are in `gpt.py` and, the rotary decoders, in `families.py`.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Tag

from trainkit.recipe.families.gpt import Gpt2, Mpt
from trainkit.recipe.families.rotary import Gemma2, Gemma3, Llama, Mistral, Mixtral, Olmo2, Qwen2, Qwen3, Qwen3Moe
from trainkit.recipe.spec import by_type

#: The logits of a block take no more than this, unless the unembedding's own gradient does: see `tokens_in_block`.
LOGIT_BLOCK_BYTES = 64 << 20


def tokens_in_block(*, tokens: int, hidden: int, vocab_size: int) -> int:
    """Of how many tokens the logits are there at once: all of them, or a power of two, which divides most batches.

    Each block adds once to the gradient of the unembedding, (V, D) in float32, which therefore is moved through memory
    as often as there are blocks. A block as large as that gradient keeps this small beside the products, and memory
    less than doubles; a smaller one saves nothing that counts, hence the least size.
    """
    most = max(LOGIT_BLOCK_BYTES, 4 * vocab_size * hidden)
    fitting = max(1, most // (4 * vocab_size))
    return tokens if tokens <= fitting else 1 << (fitting.bit_length() - 1)


Model = Annotated[
    Annotated[Gpt2, Tag("gpt2")]
    | Annotated[Mpt, Tag("mpt")]
    | Annotated[Llama, Tag("llama")]
    | Annotated[Mistral, Tag("mistral")]
    | Annotated[Qwen2, Tag("qwen2")]
    | Annotated[Qwen3, Tag("qwen3")]
    | Annotated[Olmo2, Tag("olmo2")]
    | Annotated[Gemma2, Tag("gemma2")]
    | Annotated[Gemma3, Tag("gemma3")]
    | Annotated[Mixtral, Tag("mixtral")]
    | Annotated[Qwen3Moe, Tag("qwen3-moe")],
    by_type("gpt2"),
]
