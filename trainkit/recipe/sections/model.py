"""[model]: the families, with their closed-form sizes.

What can be computed about a model without building it is computed here, so that a plan needs no jax.
Each family answers the questions of `transformer.py`. They are in `gpt.py` and, the rotary decoders, in `families.py`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from trainkit.recipe.families.bert import Bert
from trainkit.recipe.families.gpt import Gpt2, Mpt
from trainkit.recipe.families.rotary import Gemma2, Gemma3, Llama, Mistral, Mixtral, Olmo2, Qwen2, Qwen3, Qwen3Moe
from trainkit.recipe.families.transformer import Transformer
from trainkit.recipe.spec import union_of

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


#: Every model of the recipe language.
MODELS = (Gpt2, Mpt, Llama, Mistral, Qwen2, Qwen3, Olmo2, Gemma2, Gemma3, Mixtral, Qwen3Moe, Bert)

if TYPE_CHECKING:
    Model: TypeAlias = Transformer
else:
    Model = union_of("gpt2", *MODELS)
