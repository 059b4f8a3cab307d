"""The families whose checkpoints can be read and written."""

from trainkit.hub.config import Family
from trainkit.hub.families import bert, experts, gemma, gpt2, llama, mpt, olmo2, qwen

FAMILIES: tuple[Family, ...] = (
    gpt2.GPT2,
    llama.LLAMA,
    llama.MISTRAL,
    qwen.QWEN2,
    qwen.QWEN3,
    olmo2.OLMO2,
    gemma.GEMMA2,
    gemma.GEMMA3,
    experts.MIXTRAL,
    experts.QWEN3_MOE,
    mpt.MPT,
    bert.BERT,
)
