"""What this process has to compute on, and the best way to compute on it."""

from __future__ import annotations

from typing import Literal, TypeAlias

import jax
import jax.numpy as jnp

from trainkit.plan import Devices

#: What `jax.nn.dot_product_attention` is told to use.
AttentionImplementation: TypeAlias = Literal["xla", "cudnn"]


def local() -> Devices:
    """The devices of this machine as the plan wants to know them; memory in bytes where the device tells."""
    devices = jax.devices()
    statistics = devices[0].memory_stats() or {}
    return Devices(
        count=len(devices),
        platform=devices[0].platform,
        kind=devices[0].device_kind,
        memory_bytes=statistics.get("bytes_limit"),
    )


def attention_implementation(
    platform: str, compute: jnp.dtype, head_width: int, sequence_length: int | None = None
) -> AttentionImplementation:
    """`"cudnn"` (flash attention) where it exists, else `"xla"`; the same for batches with `segments` and without.

    It exists on an NVIDIA GPU, in 16 bit, for heads of at most 128 in eights, and, in training, for rows of an even
    number of positions (jax 0.10; `None` is taken for even). Segments reach it as a bias of one (T, T) matrix for each
    row: no longer free, but still without the matrix for each head that `"xla"` keeps.
    """
    half = compute in (jnp.bfloat16, jnp.float16)
    even = sequence_length is None or sequence_length % 2 == 0
    return "cudnn" if platform == "gpu" and half and even and head_width % 8 == 0 and head_width <= 128 else "xla"
