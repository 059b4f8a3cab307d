"""Arithmetic that the families of `[model]` share."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Literal, TypeAlias

#: Dimensions of one parameter.
Shape: TypeAlias = tuple[int, ...]
#: What is kept for the backward pass, from everything to almost nothing on the device.
Remat = Literal["none", "dots", "blocks", "offload"]
#: The logits of a block take at most this on a CPU and on other devices, or as much as the unembedding's gradient: see
#: `tokens_in_block`. A GPU computes about 200 FLOP while its memory moves one byte: a block of N tokens takes 6 N FLOP
#: for each number of the gradient, and moves 8 bytes for it. So N must be far above 250, in a vocabulary of 128k too.
LOGIT_BLOCK_BYTES, LOGIT_BLOCK_BYTES_OF_ACCELERATOR = 64 << 20, 512 << 20


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
    """Return the numbers per token kept for the backward pass: of each block, and once of a block that is run again.

    The gradient of the last hidden state is included (see `models/loss.py`), the logits are not.
    """
    by_policy = {"auto": everything, "none": everything, "dots": dots, "blocks": hidden, "offload": 0}
    again = everything if remat in ("blocks", "dots", "offload") else 0
    return layers * by_policy[remat] + again + 2 * hidden


def visible(*, sequence_length: int, window: int | None) -> int:
    """Return the pairs of a position and a position that it sees: itself and those before it within the window."""
    within = min(window or sequence_length, sequence_length)
    return within * (within + 1) // 2 + (sequence_length - within) * within


def tokens_in_block(*, tokens: int, hidden: int, vocab_size: int, platform: str) -> int:
    """Return for how many tokens the logits are in memory at once: all, or a power of two, which divides most batches.

    Each block adds to the gradient of the unembedding, (V, D) in float32, which therefore moves through memory once per
    block. With logits as large as that gradient this takes little time beside the products, and memory less than
    doubles. Smaller blocks would save too little memory, hence the minimum.
    """
    least = LOGIT_BLOCK_BYTES if platform == "cpu" else LOGIT_BLOCK_BYTES_OF_ACCELERATOR
    most = max(least, 4 * vocab_size * hidden)
    fitting = max(1, most // (4 * vocab_size))
    return tokens if tokens <= fitting else 1 << (fitting.bit_length() - 1)


def check_heads(heads: int, hidden: int) -> None:
    """Raise ValueError if `heads` does not divide `hidden`."""
    if hidden % heads:
        nearest = nearest_divisors(hidden, heads)
        raise ValueError(f"heads = {heads} does not divide hidden = {hidden}; the nearest that do: {nearest}")


def check_groups(kv_heads: int, heads: int) -> None:
    """Raise ValueError if `kv_heads` does not divide `heads`."""
    if heads % kv_heads:
        nearest = nearest_divisors(heads, kv_heads)
        raise ValueError(f"kv_heads = {kv_heads} does not divide heads = {heads}; the nearest that do: {nearest}")


def nearest_divisors(of: int, near: int) -> str:
    """Return the three divisors of a number that are nearest to another, as text."""
    return ", ".join(map(str, sorted(sorted(divisors(of), key=lambda n: abs(n - near))[:3])))


def divisors(number: int) -> list[int]:
    """Return all divisors of a number in ascending order."""
    small = [n for n in range(1, math.isqrt(number) + 1) if number % n == 0]
    return sorted({*small, *(number // n for n in small)})
