"""The yardstick: a transformer trained on the standard library's source by a script that does nothing else.

No recipe, no log, no checkpoint, no dashboard. `quickstart.py` and `start.py` hold trainkit against it.

    uv run python scripts/bench/bare.py --seconds 180          # bits per byte on held-out files after that time
    uv run python scripts/bench/bare.py --first-step           # seconds from process start to the end of the first step
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import os
import sys
import sysconfig
import time
from pathlib import Path

STARTED = float(os.environ.get("BENCH_STARTED", time.time()))
VOCAB, LAYERS, WIDTH, HEADS, LENGTH, BATCH, PEAK = 2048, 4, 128, 4, 256, 8, 4e-3
HELD_OUT = 0.03
SKIPPED = {"site-packages", "dist-packages", "test", "tests", "idle_test", "__pycache__"}


def documents() -> tuple[list[str], list[str]]:
    """(training, held-out) texts of the standard library; the same files are held out as in the quickstart recipe."""
    root = Path(sysconfig.get_path("stdlib"))
    train, held = [], []
    for path in sorted(root.rglob("*.py")):
        name = path.relative_to(root)
        if SKIPPED & set(name.parts):
            continue
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue
        draw = hashlib.blake2b(f"{name.as_posix()}\0{0}".encode(), digest_size=8, key=b"trainkit held-out").digest()
        (held if int.from_bytes(draw, "little") < HELD_OUT * 2**64 else train).append(text)
    trained = set(train)
    return train, [text for text in held if text not in trained]


def tokens_of(texts: list[str], tokenizer, end: int):
    import numpy as np

    return np.concatenate([[*e.ids, end] for e in tokenizer.encode_batch_fast(texts)]).astype(np.uint16)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=180.0)
    parser.add_argument("--steps", type=int, help="train so many steps, however long they take")
    parser.add_argument("--first-step", action="store_true")
    parser.add_argument("--compile-cache")
    arguments = parser.parse_args()

    import equinox as eqx
    import jax
    import jax.numpy as jnp
    import numpy as np
    import optax

    if arguments.compile_cache:
        jax.config.update("jax_compilation_cache_dir", arguments.compile_cache)
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
        jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)

    class Block(eqx.Module):
        norm1: jax.Array
        qkv: jax.Array
        out: jax.Array
        norm2: jax.Array
        up: jax.Array
        down: jax.Array

    class Model(eqx.Module):
        embedding: jax.Array
        positions: jax.Array
        blocks: Block
        norm: jax.Array

    def init(key):
        keys = iter(jax.random.split(key, 6))

        def normal(*shape, scale=0.02):
            return jax.random.normal(next(keys), shape) * scale

        small = 0.02 / math.sqrt(2 * LAYERS)
        blocks = Block(
            jnp.ones((LAYERS, WIDTH)),
            normal(LAYERS, WIDTH, 3 * WIDTH),
            normal(LAYERS, WIDTH, WIDTH, scale=small),
            jnp.ones((LAYERS, WIDTH)),
            normal(LAYERS, WIDTH, 4 * WIDTH),
            normal(LAYERS, 4 * WIDTH, WIDTH, scale=small),
        )
        return Model(normal(VOCAB, WIDTH), normal(LENGTH, WIDTH), blocks, jnp.ones(WIDTH))

    def norm(x, weight):
        x = x - x.mean(-1, keepdims=True)
        return x * jax.lax.rsqrt(jnp.square(x).mean(-1, keepdims=True) + 1e-5) * weight

    def losses(model, x, y):
        h = model.embedding[x] + model.positions

        def layer(h, block):
            b, t, _ = h.shape
            q, k, v = (
                a.reshape(b, t, HEADS, WIDTH // HEADS) for a in jnp.split(norm(h, block.norm1) @ block.qkv, 3, -1)
            )
            h += jax.nn.dot_product_attention(q, k, v, is_causal=True).reshape(b, t, WIDTH) @ block.out
            return h + jax.nn.gelu(norm(h, block.norm2) @ block.up) @ block.down, None

        h, _ = jax.lax.scan(layer, h, model.blocks)
        logits = norm(h, model.norm) @ model.embedding.T
        return optax.softmax_cross_entropy_with_integer_labels(logits, y)

    def rate_at(progress):
        return PEAK * jnp.minimum(progress / 0.05, 0.525 + 0.475 * jnp.cos(jnp.pi * progress))

    optimizer = optax.chain(
        optax.clip_by_global_norm(1.0),
        optax.scale_by_adam(0.9, 0.95),
        optax.add_decayed_weights(0.1, mask=lambda p: jax.tree.map(lambda a: a.ndim > 1, p)),
    )

    @jax.jit
    def start(key):
        model = init(key)
        return model, optimizer.init(model)

    def update(model, state, x, y, progress):
        loss, grads = jax.value_and_grad(lambda m: losses(m, x.astype(jnp.int32), y.astype(jnp.int32)).mean())(model)
        directions, state = optimizer.update(grads, state, model)
        rate = rate_at(progress)
        return jax.tree.map(lambda p, d: p - rate * d, model, directions), state, loss

    step = jax.jit(update, donate_argnums=(0, 1))
    evaluate = jax.jit(lambda m, x, y: losses(m, x.astype(jnp.int32), y.astype(jnp.int32)).sum())

    if arguments.first_step:
        model, state = start(jax.random.key(0))
        x = np.zeros((BATCH, LENGTH), np.uint16)
        model, state, loss = step(model, state, x, x, 0.01)
        loss.block_until_ready()
        print(json.dumps({"first_step_seconds": time.time() - STARTED}))
        return

    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    train_texts, held_texts = documents()
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB,
        special_tokens=["<|end|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(train_texts, trainer)
    end = tokenizer.token_to_id("<|end|>")
    train, held = tokens_of(train_texts, tokenizer, end), tokens_of(held_texts, tokenizer, end)
    held_bytes = sum(len(text.encode()) for text in held_texts)
    prepared = time.time() - STARTED

    random = np.random.default_rng(0)
    model, state = start(jax.random.key(0))
    done, steps_started, first = 0, time.time(), 0.0
    while True:
        elapsed = time.time() - STARTED
        if done == arguments.steps or (arguments.steps is None and elapsed >= arguments.seconds):
            break
        starts = random.integers(0, len(train) - LENGTH - 1, BATCH)
        rows = train[starts[:, None] + np.arange(LENGTH + 1)]
        share = done / arguments.steps if arguments.steps else (elapsed - prepared) / (arguments.seconds - prepared)
        progress = np.float32(share)
        model, state, loss = step(model, state, rows[:, :-1], rows[:, 1:], progress)
        done += 1
        if done == 1:
            loss.block_until_ready()
            first = time.time() - STARTED
            steps_started = time.time()
        elif done % 2 == 0:
            loss.block_until_ready()
    jax.block_until_ready(model)
    rate = (done - 1) * BATCH * LENGTH / (time.time() - steps_started)
    count = (len(held) - 1) // LENGTH
    x, y = held[: count * LENGTH].reshape(count, LENGTH), held[1 : count * LENGTH + 1].reshape(count, LENGTH)
    total = sum(float(evaluate(model, x[i : i + 8], y[i : i + 8])) for i in range(0, count // 8 * 8, 8))
    nats = total / (count // 8 * 8 * LENGTH)
    report = {
        "bits_per_byte": nats / math.log(2) * len(held) / held_bytes,
        "loss": nats,
        "steps": done,
        "tokens_per_second": rate,
        "prepared_seconds": prepared,
        "first_step_seconds": first,
        "train_tokens": len(train),
        "held_out_bytes": held_bytes,
    }
    json.dump(report, sys.stdout)
    print()


if __name__ == "__main__":
    main()
