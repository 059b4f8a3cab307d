"""What attention holds besides activations is in the plan as it is in the compiled step."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax._src.cudnn.fused_attention_stablehlo import combine_bias_and_mask

from trainkit.data.batches.layout import longest_layout
from trainkit.models import flash_check
from trainkit.parallel import devices
from trainkit.plan import Choice, Devices, KeptByAttention, Plan, replan
from trainkit.plan.split import USABLE_OF_GPU
from trainkit.recipe import Recipe
from trainkit.train.build import build
from trainkit.train.planning import plan_for
from trainkit.train.program import compile_program

LENGTH, ROWS = 512, 4
H100 = Devices(count=1, platform="gpu", kind="NVIDIA H100", memory_bytes=80 << 30)


def opaque(like: Any, *arrays: Any) -> Any:
    """A call of which the compiler sees the operands alone, as it does of cuDNN's kernels. It is never run."""
    shapes = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), like)
    return jax.pure_callback(lambda *_: None, shapes, *arrays)


@jax.custom_vjp
def kernel(q: Any, k: Any, v: Any, bias: Any) -> Any:
    return opaque(q, q, k, v, bias)


kernel.defvjp(
    lambda q, k, v, bias: (kernel(q, k, v, bias), (q, k, v, bias)),
    lambda kept, dy: (*opaque(kept[:3], *kept, dy), jnp.zeros_like(kept[3])),
)


def attend(q: Any, k: Any, v: Any, *, mask: Any = None, **_: Any) -> Any:
    """`jax.nn.dot_product_attention` by cuDNN, of which only the kernels are missing: JAX makes a bias of the mask."""
    none = jnp.zeros((1, 1, 1, 1), q.dtype)
    return kernel(q, k, v, none if mask is None else combine_bias_and_mask(None, mask, q.dtype))


def recipe(encoding: str, **train: Any) -> Recipe:
    values = {
        "schema": 1,
        "model": {"type": "llama", "layers": 2, "hidden": 32, "heads": 2, "kv_heads": 2, "intermediate": 32},
        "tokenizer": {"train": {"vocab_size": 300}},
        "data": {"sequence_length": LENGTH, "train": ({"type": "python-stdlib"},), "encoding": {"type": encoding}},
        "train": {"steps": 10, "batch_size": 16, **train},
        "optimizer": {"learning_rate": 1e-3},
        "precision": {"compute": "bfloat16"},
    }
    return Recipe.model_validate(values)


@pytest.fixture
def broken(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """An H100 as this machine's device; why trainkit's kernels do not work there, if the list holds a reason."""
    reasons: list[str] = []
    monkeypatch.setattr(devices, "capabilities", lambda: devices.Capabilities("gpu", "NVIDIA H100", (9, 0)))
    monkeypatch.setattr(flash_check, "why_broken", lambda **_: "".join(reasons))
    return reasons


def planned(made: Recipe, on: Devices = H100) -> Plan:
    return plan_for(made, devices=on, vocab_size=300, data=None)


def planned_and_compiled(encoding: str) -> tuple[int, int]:
    """The bytes of a mask in the plan, and all temporary bytes of the step as compiled."""
    made = recipe(encoding, micro_batch_size=ROWS, remat="blocks")
    plan, layouts = planned(made), {LENGTH: longest_layout(made.data, batch_size=16, vocab_size=300)}
    memory = compile_program(build(made, plan), plan, layouts).memory
    assert memory is not None and ("attention_mask" in memory.temporary) == ("attention_mask" in plan.bytes)
    return plan.bytes.get("attention_mask", 0), sum(memory.temporary.values())


def test_the_bias_of_packed_rows_for_cudnn_is_in_the_plan_as_in_the_compiled_step(
    monkeypatch: pytest.MonkeyPatch, broken: list[str]
) -> None:
    broken.append("no Triton")
    monkeypatch.setattr(jax.nn, "dot_product_attention", attend)
    (planned_bias, with_bias), (none, without) = map(planned_and_compiled, ("pack", "concatenate"))
    one = 2 * ROWS * LENGTH**2
    # compiled for an H100 there are two, of which the compiler for CPUs needs one
    assert (planned_bias, none) == (2 * one, 0)
    assert with_bias - without == pytest.approx(one, rel=0.1)


def test_without_working_kernels_a_plan_for_packed_rows_has_a_bias_and_smaller_micro_batches(broken: list[str]) -> None:
    made = recipe("pack", remat="none")
    by_kernel = planned(made)
    assert by_kernel.attention == KeptByAttention(probabilities=False) and "attention_mask" not in by_kernel.bytes
    room = replace(H100, memory_bytes=int(1.01 * by_kernel.total_bytes / USABLE_OF_GPU))
    assert planned(made, room).batch.micro == by_kernel.batch.micro == 16
    broken.append("no Triton")
    by_cudnn = planned(made, room)
    assert by_cudnn.attention == KeptByAttention(probabilities=False, mask_bytes=4)
    assert by_cudnn.batch.micro < 16 and by_cudnn.fits
    again = replan(made, by_cudnn, Choice(micro=8, remat="none"))
    assert again.bytes["attention_mask"] == 4 * 8 * LENGTH**2, "other choices are compared with the bias too"


def test_a_plan_for_attention_without_a_kernel_has_its_probabilities(broken: list[str]) -> None:
    values = recipe("concatenate", micro_batch_size=4, remat="none").model_dump(by_alias=True)
    gemma = {"type": "gemma2", "layers": 2, "hidden": 32, "heads": 2, "kv_heads": 2, "intermediate": 32}
    made = Recipe.model_validate(values | {"model": gemma})
    flash = planned(made)
    broken.append("no Triton")  # soft caps are in no other kernel
    blockwise = planned(made)
    assert (flash.attention.probabilities, blockwise.attention.probabilities) == (False, True)
    assert blockwise.bytes["activations"] > flash.bytes["activations"] + 2 * 2 * 4 * LENGTH**2
