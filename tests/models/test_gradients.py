"""Gradients are sums over tokens, micro-batches and devices; in whatever dtype is computed, these sums are float32."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from trainkit import models, optim
from trainkit.models.adapters import adapt
from trainkit.models.master_weights import Weight, add, exact, in_compute_dtype, lookup, product
from trainkit.parallel.mesh import batch_sharding, make_mesh, replicated_sharding, state_shardings
from trainkit.recipe.families.gpt2 import Gpt2
from trainkit.recipe.families.llama import Llama
from trainkit.recipe.families.mixtral import Mixtral
from trainkit.recipe.families.qwen2 import Qwen2
from trainkit.recipe.optimizers.adam import AdamW
from trainkit.recipe.sections.adapter import Adapter
from trainkit.recipe.sections.schedule import Constant
from trainkit.recipe.sections.task import CausalLM
from trainkit.tasks import build as build_task
from trainkit.train.state import State, init
from trainkit.train.step import Step, make_step

VOCAB, LENGTH, HIDDEN = 211, 64, 16
_SIZES: dict[str, Any] = {"layers": 2, "hidden": HIDDEN, "heads": 2}
_DECODER: dict[str, Any] = {**_SIZES, "kv_heads": 1, "intermediate": 24}
SPECS = {
    "gpt2, tied": Gpt2(**_SIZES),
    "llama": Llama(**_DECODER),
    "qwen2, tied, with biases": Qwen2(**_DECODER, tied=True),
    "mixtral": Mixtral(**_DECODER, experts=3, experts_per_token=2),
}


def zipf(*shape: int) -> np.ndarray:
    """Token i is drawn in proportion to 1 / (i + 1): the first is one in six."""
    share = 1 / np.arange(1, VOCAB + 1)
    return np.random.default_rng(0).choice(VOCAB, shape, p=share / share.sum())


def batch(rows: int, *, accumulation: int = 1, packed: bool = False) -> dict[str, np.ndarray]:
    ids = zipf(rows, LENGTH + 1)
    whole: dict[str, np.ndarray] = {"tokens": ids[:, :-1], "targets": ids[:, 1:]}
    whole["weights"] = np.ones((rows, LENGTH), np.float32)
    if packed:
        place = np.broadcast_to(np.arange(LENGTH, dtype=np.int32), (rows, LENGTH))
        whole |= {"segments": 1 + place // 20, "positions": place % 20}
    return {name: array.reshape(accumulation, -1, LENGTH) for name, array in whole.items()}


def of(
    spec: Any, compute: str, *, params: str = "float32", fp8: bool = False, adapter: Adapter | None = None
) -> tuple[Step, Any, Any]:
    """(step, state as a function of a key, names of what is trained)."""

    def model(key: jax.Array) -> Any:
        made = models.build(
            spec, vocab_size=VOCAB, sequence_length=LENGTH, implementation="blockwise", fp8=fp8, key=key
        )
        made = models.cast(made, jnp.dtype(params))
        return made if adapter is None else adapt(made, adapter, key=key)

    # adamw's first moment is the gradient, times 0.1
    whole = jax.eval_shape(model, jax.random.key(0))
    trained = eqx.filter(whole, models.adapters.trainable(whole))
    names = models.leaf_names(trained)
    optimizer = optim.build(AdamW(learning_rate=1e-3), names, trained, adapter=adapter)
    rate = optim.learning_rate(Constant(type="constant"), peak=1e-3, steps=10)
    dtype = jnp.dtype(compute)
    step = make_step(
        task=build_task(CausalLM()), optimizer=optimizer, learning_rate=rate, compute=dtype, max_grad_norm=0
    )
    return step, partial(init, model=model, optimizer=optimizer, compute=dtype), names


def gradients(spec: Any, compute: str, some: dict[str, np.ndarray], **options: Any) -> dict[str, np.ndarray]:
    step, initial, names = of(spec, compute, **options)
    state: State = jax.jit(initial)(jax.random.key(0))
    after, _ = jax.jit(step)(state, some)
    moments = jax.tree.leaves(after.optimizer[0].mu)
    return {n: 10 * np.asarray(m, np.float64) for n, m in zip(jax.tree.leaves(names), moments, strict=True)}


def off_by(ours: np.ndarray, exactly: np.ndarray) -> float:
    return float(np.linalg.norm(ours - exactly) / np.linalg.norm(exactly))


def test_a_gradient_in_bfloat16_is_the_float64_sum_over_all_tokens() -> None:
    tokens = 64 << 10
    ids, rows = zipf(tokens), np.random.default_rng(1)
    x, dy = (jnp.asarray(rows.normal(0.3, 1, (tokens, HIDDEN)), jnp.bfloat16) for _ in range(2))
    x64, dy64 = np.asarray(x, np.float64), np.asarray(dy, np.float64)
    table = np.zeros((VOCAB, HIDDEN))
    np.add.at(table, ids, dy64)
    functions: dict[str, Any] = {
        "lookup": lambda w, ids, x: lookup(w, ids),
        "bias": lambda w, ids, x: add(x, w),
        "scale": lambda w, ids, x: (x * exact(w)).astype(x.dtype),
        "product": lambda w, ids, x: product(x, w),
    }
    expected = {"lookup": table, "bias": dy64.sum(0), "scale": (x64 * dy64).sum(0), "product": x64.T @ dy64}

    @jax.jit
    def summed(masters: dict[str, jax.Array], ids: jax.Array, x: jax.Array, dy: jax.Array) -> dict[str, jax.Array]:
        def loss(masters: dict[str, jax.Array]) -> jax.Array:
            found = [
                functions[name](in_compute_dtype(array, jnp.dtype("bfloat16")), ids, x)
                for name, array in masters.items()
            ]
            assert {y.dtype for y in found} == {jnp.dtype("bfloat16")}
            return sum((y.astype(jnp.float32) * dy.astype(jnp.float32)).sum() for y in found)

        return jax.grad(loss)(masters)

    found = summed({name: jnp.ones(array.shape) for name, array in expected.items()}, ids, x, dy)
    for name, exactly in expected.items():
        ours = np.asarray(found[name], np.float64)
        assert off_by(ours, exactly) < 1e-4, name
        worst = np.abs(ours - exactly) / np.maximum(np.abs(exactly), 1)
        assert worst.max() < 1e-2, name


@pytest.mark.parametrize("name", SPECS)
def test_every_gradient_in_bfloat16_is_near_that_in_float32_over_many_tokens_of_uneven_frequency(name: str) -> None:
    some = batch(128, packed=name == "gpt2, tied")  # whose positions are looked up, and then not in order
    exactly, ours = (gradients(SPECS[name], compute, some) for compute in ("float32", "bfloat16"))
    far = {leaf: off for leaf in exactly if (off := off_by(ours[leaf], exactly[leaf])) > 0.03}
    assert not far
    table = "token_embedding"
    assert off_by(ours[table][0], exactly[table][0]) < 0.02


def test_micro_batches_in_bfloat16_add_up_to_the_whole_batch_also_of_parameters_in_bfloat16() -> None:
    of_one, of_many = (
        gradients(SPECS["gpt2, tied"], "bfloat16", batch(128, accumulation=n), params="bfloat16") for n in (1, 64)
    )
    assert max(off_by(of_many[leaf], of_one[leaf]) for leaf in of_one) < 5e-3


def test_adapters_have_gradients_as_near_and_their_base_has_none() -> None:
    spec, some = SPECS["qwen2, tied, with biases"], batch(128)
    adapter = Adapter(rank=4, alpha=8, targets="all-linear", variant="dora")
    exactly, ours = (gradients(spec, compute, some, adapter=adapter) for compute in ("float32", "bfloat16"))
    # `a` has no gradient before the first update: `b` is zero
    assert max(off_by(ours[leaf], exactly[leaf]) for leaf in exactly if not leaf.endswith(".a")) < 0.03


def test_fp8_sums_gradients_in_float32() -> None:
    x = jax.random.normal(jax.random.key(0), (4096, HIDDEN), jnp.bfloat16)
    layer = models.layers.Linear.init(jax.random.key(1), HIDDEN, 24, scale=0.1, fp8=True)
    masters = replace(layer, bias=jnp.ones(24))

    def loss(masters: Any) -> jax.Array:
        return in_compute_dtype(masters, jnp.dtype("bfloat16"))(x).astype(jnp.float32).sum()

    gradient = jax.jit(jax.grad(loss))(masters)
    np.testing.assert_array_equal(gradient.bias, 4096)
    assert gradient.weight.dtype == jnp.float32


def test_a_weight_costs_nothing_but_its_gradient() -> None:
    array = jnp.ones((HIDDEN, HIDDEN))
    assert in_compute_dtype(array, jnp.dtype("float32")) is array
    paired = in_compute_dtype(array, jnp.dtype("bfloat16"))
    assert isinstance(paired, Weight) and paired.master is array and paired.rounded.dtype == jnp.bfloat16


@pytest.mark.parametrize("name", SPECS)
def test_devices_add_up_gradients_in_float32_when_they_compute_in_bfloat16(name: str, tmp_path: Path) -> None:
    """As the partitioner leaves it: a CPU then makes float32 of every sum in bfloat16, and would hide one."""
    step, initial, _ = of(SPECS[name], "bfloat16")
    mesh = make_mesh(data=8, fsdp=1)
    shapes = jax.eval_shape(initial, jax.random.key(0))
    lie = state_shardings(mesh, shapes)
    placed = jax.tree.map(lambda leaf, at: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=at), shapes, lie)
    rows = batch_sharding(mesh)
    inputs = {
        name: jax.ShapeDtypeStruct(a.shape, np.float32 if name == "weights" else np.int32, sharding=rows)
        for name, a in batch(8).items()
    }
    with jax.set_mesh(mesh):
        lowered = jax.jit(step, out_shardings=(lie, replicated_sharding(mesh))).lower(placed, inputs)
        lowered.compile({"xla_dump_to": str(tmp_path), "xla_dump_hlo_pass_re": "spmd.*"})
    after = [path.read_text() for path in tmp_path.glob("*.after_spmd-partitioning*.txt")]
    sums = [found for text in after for found in re.findall(r"= (.*?) (?:all-reduce|reduce-scatter)\(", text)]
    assert any(f"f32[{VOCAB},{HIDDEN}]" in found for found in sums)
    assert not [found for found in sums if "bf16" in found]
