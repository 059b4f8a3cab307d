"""The step as one writes it by hand in JAX and optax: scan over stacked blocks, `jax.nn.dot_product_attention`,
logits whole, `value_and_grad`. A contender of `step.py`; `step_jax.py probe` measures the device itself.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
import optax
from step_work import (
    BETAS,
    EPS,
    LEARNING_RATE,
    MAX_NORM,
    NORM_EPS,
    ROPE_THETA,
    WEIGHT_DECAY,
    Contender,
    Shape,
    Work,
    batch,
    serve,
    weights,
)

Params = dict[str, jax.Array]


def prepare(work: Work) -> Contender:
    on_gpu = work.platform == "gpu"
    if jax.default_backend() != work.platform:
        raise RuntimeError(f"jax {jax.__version__} computes on {jax.default_backend()}, not on {work.platform}")
    compute = jnp.dtype(work.compute)
    optimizer = optax.chain(
        optax.clip_by_global_norm(MAX_NORM),
        optax.adamw(LEARNING_RATE, *BETAS, eps=EPS, weight_decay=WEIGHT_DECAY, mask=_decayed),
    )
    params = {name: jnp.asarray(array) for name, array in weights(work.shape)}
    state = jax.jit(optimizer.init)(params)

    def update(params: Params, state: optax.OptState, x: jax.Array, y: jax.Array):
        loss, grads = jax.value_and_grad(partial(_loss, work.shape, compute, on_gpu))(params, x, y)
        updates, state = optimizer.update(grads, state, params)
        return optax.apply_updates(params, updates), state, loss

    batches = [tuple(map(jnp.asarray, batch(work.shape, i))) for i in range(work.curve)]
    compiled = jax.jit(update, donate_argnums=(0, 1)).lower(params, state, *batches[0]).compile()

    def step(number: int) -> jax.Array:
        nonlocal params, state
        params, state, loss = compiled(params, state, *batches[number])
        return loss

    return Contender(
        step=step,
        wait=lambda loss: loss.block_until_ready(),
        loss=float,
        peak_bytes=device_peak,
        facts={"jax": jax.__version__, "device": jax.devices()[0].device_kind},
    )


def device_peak() -> int | None:
    """Bytes of the first device's memory at most in use so far; None on a CPU, which counts none."""
    return (jax.devices()[0].memory_stats() or {}).get("peak_bytes_in_use")


def _decayed(params: Params) -> dict[str, bool]:
    return {name: name.startswith("blocks.") and array.ndim == 3 for name, array in params.items()}


def _loss(shape: Shape, compute: jnp.dtype, on_gpu: bool, params: Params, x: jax.Array, y: jax.Array) -> jax.Array:
    params = {name: array.astype(compute) for name, array in params.items()}
    h = params["token_embedding"][x]
    if shape.family == "gpt2":
        h, block, norm = h + params["position_embedding"], _gpt2_block, _layer_norm
    else:
        block, norm = _llama_block, _rms_norm
    attend = partial(
        jax.nn.dot_product_attention,
        is_causal=True,
        implementation="cudnn" if on_gpu and compute.itemsize == 2 else None,
    )
    blocks = {name.removeprefix("blocks."): array for name, array in params.items() if name.startswith("blocks.")}
    h, _ = jax.lax.scan(lambda h, p: (block(shape, attend, p, h), None), h, blocks)
    h = norm(h, params, "final_norm")
    logits = jnp.einsum("btd,vd->btv", h, params["token_embedding"], preferred_element_type=jnp.float32)
    return optax.softmax_cross_entropy_with_integer_labels(logits, y).mean()


def _gpt2_block(shape: Shape, attend: Callable, p: Params, h: jax.Array) -> jax.Array:
    b, t, d = h.shape
    qkv = _linear(_layer_norm(h, p, "attention_norm"), p, "attention.qkv")
    q, k, v = (a.reshape(b, t, shape.heads, -1) for a in jnp.split(qkv, 3, axis=-1))
    h += _linear(attend(q, k, v).reshape(b, t, d), p, "attention.output")
    inner = jax.nn.gelu(_linear(_layer_norm(h, p, "mlp_norm"), p, "mlp_in"), approximate=True)
    return h + _linear(inner, p, "mlp_out")


def _llama_block(shape: Shape, attend: Callable, p: Params, h: jax.Array) -> jax.Array:
    b, t, d = h.shape
    x = _rms_norm(h, p, "attention_norm")
    q, k, v = (
        _linear(x, p, f"attention.{name}").reshape(b, t, -1, d // shape.heads) for name in ("query", "key", "value")
    )
    h += _linear(attend(_rotated(q), _rotated(k), v).reshape(b, t, d), p, "attention.output")
    x = _rms_norm(h, p, "mlp_norm")
    return h + _linear(jax.nn.silu(_linear(x, p, "mlp.gate")) * _linear(x, p, "mlp.up"), p, "mlp.down")


def _linear(x: jax.Array, p: Params, name: str) -> jax.Array:
    y = x @ p[f"{name}.weight"]
    return y + p[f"{name}.bias"] if f"{name}.bias" in p else y


def _layer_norm(x: jax.Array, p: Params, name: str) -> jax.Array:
    y = x.astype(jnp.float32)
    y -= y.mean(-1, keepdims=True)
    y *= jax.lax.rsqrt(jnp.square(y).mean(-1, keepdims=True) + NORM_EPS)
    return (y * p[f"{name}.weight"] + p[f"{name}.bias"]).astype(x.dtype)


def _rms_norm(x: jax.Array, p: Params, name: str) -> jax.Array:
    y = x.astype(jnp.float32)
    y *= jax.lax.rsqrt(jnp.square(y).mean(-1, keepdims=True) + NORM_EPS)
    return (y * p[f"{name}.weight"]).astype(x.dtype)


def _rotated(x: jax.Array) -> jax.Array:
    """Rotary positions (Su et al. 2021): the first half of a head is turned against the second."""
    half = x.shape[-1] // 2
    angles = jnp.arange(x.shape[1])[:, None] * ROPE_THETA ** (-jnp.arange(half) / half)
    cos, sin = jnp.cos(angles)[:, None], jnp.sin(angles)[:, None]
    a, b = jnp.split(x.astype(jnp.float32), 2, axis=-1)
    return jnp.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1).astype(x.dtype)


def probe() -> dict[str, str | float]:
    """What the device reaches: FLOP/s of one large matrix product in float32 on a CPU and in bfloat16 elsewhere, and
    bytes/s read and written by a copy; the best of several."""
    on_cpu = jax.default_backend() == "cpu"
    size, numbers = (2048, 1 << 26) if on_cpu else (8192, 1 << 29)
    a = jnp.ones((size, size), jnp.float32 if on_cpu else jnp.bfloat16)
    x = jnp.ones(numbers, jnp.float32)
    product, copy = jax.jit(lambda a: a @ a), jax.jit(lambda x: x + 1)

    def best(call: Callable[[], jax.Array]) -> float:
        call().block_until_ready()
        times = []
        for _ in range(10):
            began = time.perf_counter()
            call().block_until_ready()
            times.append(time.perf_counter() - began)
        return min(times)

    return {
        "kind": jax.devices()[0].device_kind,
        "flops": 2 * size**3 / best(lambda: product(a)),
        "bytes": 2 * x.nbytes / best(lambda: copy(x)),
    }


if __name__ == "__main__":
    if sys.argv[1:] == ["probe"]:
        print(json.dumps(probe()))
    else:
        serve(prepare)
