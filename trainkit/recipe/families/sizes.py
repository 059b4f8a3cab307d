"""Arithmetic that the families of `[model]` share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, TypeAlias

#: Dimensions of one parameter.
Shape: TypeAlias = tuple[int, ...]
#: What is kept for the backward pass, from everything to next to nothing on the device.
Remat = Literal["none", "dots", "blocks", "offload"]
#: The logits of a block take no more than this, unless the unembedding's own gradient does: see `tokens_in_block`.
LOGIT_BLOCK_BYTES = 64 << 20


def linear(name: str, inputs: int, outputs: int, *, bias: bool = False) -> dict[str, Shape]:
    """Return the parameters of a linear layer by path."""
    weight: dict[str, Shape] = {f"{name}.weight": (inputs, outputs)}
    return weight | ({f"{name}.bias": (outputs,)} if bias else {})


def norm(name: str, width: int, *, bias: bool = False) -> dict[str, Shape]:
    """Return the parameters of a norm by path."""
    weight: dict[str, Shape] = {f"{name}.weight": (width,)}
    return weight | ({f"{name}.bias": (width,)} if bias else {})


def stack(layers: int, block: Mapping[str, Shape]) -> dict[str, Shape]:
    """Return the parameters of all blocks, which have a leading axis of layers, from those of one."""
    return {f"blocks.{name}": (layers, *shape) for name, shape in block.items()}


def kept_numbers(*, layers: int, hidden: int, everything: int, dots: int, remat: Remat | Literal["auto"]) -> int:
    """Numbers kept per token for the backward pass: for each block, and once what one block has when run again.

    The last hidden state has a gradient of its own by then: see `models/loss.py`. Its logits are not of this kind.
    """
    by_policy = {"auto": everything, "none": everything, "dots": dots, "blocks": hidden, "offload": 0}
    again = everything if remat in ("blocks", "dots", "offload") else 0
    return layers * by_policy[remat] + again + 2 * hidden


def visible(*, sequence_length: int, window: int | None) -> int:
    """Positions seen by all positions of a text together: each sees itself and those before it in the window."""
    within = min(window or sequence_length, sequence_length)
    return within * (within + 1) // 2 + (sequence_length - within) * within


def tokens_in_block(*, tokens: int, hidden: int, vocab_size: int) -> int:
    """Of how many tokens the logits are there at once: all of them, or a power of two, which divides most batches.

    Each block adds once to the gradient of the unembedding, (V, D) in float32, which therefore is moved through memory
    as often as there are blocks. A block as large as that gradient keeps this small beside the products, and memory
    less than doubles; a smaller one saves nothing that counts, hence the least size.
    """
    most = max(LOGIT_BLOCK_BYTES, 4 * vocab_size * hidden)
    fitting = max(1, most // (4 * vocab_size))
    return tokens if tokens <= fitting else 1 << (fitting.bit_length() - 1)


def check_heads(heads: int, hidden: int) -> None:
    """Raises ValueError where heads cannot share the hidden width evenly."""
    if hidden % heads:
        nearest = nearest_divisors(hidden, heads)
        raise ValueError(f"heads = {heads} does not divide hidden = {hidden}; the nearest that do: {nearest}")


def check_groups(kv_heads: int, heads: int) -> None:
    """Raises ValueError where query heads cannot share the heads of keys and values evenly."""
    if heads % kv_heads:
        nearest = nearest_divisors(heads, kv_heads)
        raise ValueError(f"kv_heads = {kv_heads} does not divide heads = {heads}; the nearest that do: {nearest}")


def nearest_divisors(of: int, near: int) -> str:
    fits = [n for n in range(1, of + 1) if of % n == 0]
    return ", ".join(map(str, sorted(sorted(fits, key=lambda n: abs(n - near))[:3])))
