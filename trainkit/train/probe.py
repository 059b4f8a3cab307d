"""In which dtype a CPU is faster: a few products and an attention, forward and backward, timed."""

from __future__ import annotations

import time

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from trainkit.models.attention import causal_attention

#: What is timed is no larger than this: a second is enough to tell.
TOKENS, WIDTH, SECONDS = 1024, 1024, 0.4


def seconds_by_dtype(*, heads: int, head_width: int, length: int) -> dict[str, float]:
    """Seconds that something like a block of a transformer takes in each dtype, the best of several; T positions in one
    sequence, H heads of width K. It runs on the first device; compiling included, it takes about two seconds.
    """
    heads = max(1, min(heads, WIDTH // head_width))
    length = min(length, TOKENS)
    rows = max(1, TOKENS // length)
    return {name: _timed(jnp.dtype(name), rows, length, heads, head_width) for name in ("float32", "bfloat16")}


def _timed(dtype: jnp.dtype, rows: int, length: int, heads: int, width: int) -> float:
    d = heads * width

    def loss(x_BTD: Float[Array, "B T D"], inner_DF: Float[Array, "D F"], outer_FD: Float[Array, "F D"]) -> Array:
        q_BTHK = x_BTD.reshape(rows, length, heads, width)
        y_BTHK = causal_attention(q_BTHK, q_BTHK, q_BTHK, None, implementation="lean")
        y_BTD = jax.nn.gelu((x_BTD + y_BTHK.reshape(x_BTD.shape)) @ inner_DF) @ outer_FD
        return jnp.square(y_BTD.astype(jnp.float32)).mean()

    shapes = ((rows, length, d), (d, 4 * d), (4 * d, d))
    arrays = [jax.random.normal(jax.random.key(i), shape, dtype) / 32 for i, shape in enumerate(shapes)]
    run = jax.jit(jax.grad(loss, argnums=(0, 1, 2))).lower(*arrays).compile()
    jax.block_until_ready(run(*arrays))
    times, began = list[float](), time.perf_counter()
    while len(times) < 3 or time.perf_counter() - began < SECONDS:
        started = time.perf_counter()
        jax.block_until_ready(run(*arrays))
        times.append(time.perf_counter() - started)
        if time.perf_counter() - began > 2 * SECONDS:
            break
    return min(times)
