"""Products of blocks of rows, each with the matrix of its expert, in one kernel for GPUs (Gale et al. 2022).

The kernels are written in Pallas and compiled by Triton. Shapes as in `moe.py`: J blocks of M rows, E experts, matrices
of D x F.
"""

from __future__ import annotations

from functools import lru_cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

#: The sides of what a program computes with at once: products of Triton need the least, and registers hold the most.
LEAST_TILE, MOST_TILE = 16, 128
#: The largest norm of the difference to products of single blocks, as a share of their norm.
TOLERANCE = 0.02


def can_multiply(x_JMD: Float[Array, "J M D"], weight_EDF: Float[Array, "E D F"]) -> bool:
    """Return whether the kernels multiply these on this process's devices: on GPUs, in 16 bit, if they work there."""
    sides = (*x_JMD.shape[1:], *weight_EDF.shape[1:])
    half = x_JMD.dtype == weight_EDF.dtype and x_JMD.dtype in (jnp.bfloat16, jnp.float16)
    return jax.default_backend() == "gpu" and half and min(map(_tile, sides)) >= LEAST_TILE and not why_broken()


def multiply(
    x_JMD: Float[Array, "J M D"],
    weight_EDF: Float[Array, "E D F"],
    expert_J: Int[Array, " J"],
    *,
    transposed: bool = False,
    interpret: bool = False,
) -> Float[Array, "J M F"]:
    """Return each block times the matrix of its expert or, for rows (J, M, F), times its transpose."""
    from jax.experimental import pallas as pl

    (j, m, width), out = x_JMD.shape, weight_EDF.shape[1 if transposed else 2]
    rows, step, columns = _tile(m), min(_tile(width), 64), _tile(out)
    return pl.pallas_call(
        partial(_multiply_kernel, step=step, columns=columns, transposed=transposed),
        grid=(out // columns, m // rows, j),
        in_specs=[
            pl.BlockSpec((None, rows, width), lambda f, m, j: (j, m, 0)),
            pl.BlockSpec(weight_EDF.shape, lambda f, m, j: (0, 0, 0)),
            pl.BlockSpec((j,), lambda f, m, j: (0,)),
        ],
        out_specs=pl.BlockSpec((None, rows, columns), lambda f, m, j: (j, m, f)),
        out_shape=jax.ShapeDtypeStruct((j, m, out), x_JMD.dtype),
        **_run(interpret),
    )(x_JMD, weight_EDF, expert_J)


def gradient(
    x_JMD: Float[Array, "J M D"],
    dy_JMF: Float[Array, "J M F"],
    expert_J: Int[Array, " J"],
    experts: int,
    *,
    interpret: bool = False,
) -> Float[Array, "E D F"]:
    """Return the gradient of the matrices in float32. The experts of the blocks must never fall."""
    from jax.experimental import pallas as pl

    (j, m, d), f = x_JMD.shape, dy_JMF.shape[2]
    rows, columns, step = _tile(d), _tile(f), min(_tile(m), 64)
    first_E = jnp.searchsorted(expert_J, jnp.arange(experts + 1)).astype(jnp.int32)
    return pl.pallas_call(
        partial(_gradient_kernel, step=step),
        grid=(d // rows, f // columns, experts),
        in_specs=[
            pl.BlockSpec((j, m, rows), lambda d, f, e: (0, 0, d)),
            pl.BlockSpec((j, m, columns), lambda d, f, e: (0, 0, f)),
            pl.BlockSpec((experts + 1,), lambda d, f, e: (0,)),
        ],
        out_specs=pl.BlockSpec((None, rows, columns), lambda d, f, e: (e, d, f)),
        out_shape=jax.ShapeDtypeStruct((experts, d, f), jnp.float32),
        **_run(interpret),
    )(x_JMD, dy_JMF, first_E)


def _multiply_kernel(
    x_ref: Any, weight_ref: Any, expert_ref: Any, y_ref: Any, *, step: int, columns: int, transposed: bool
) -> None:
    """Write some columns of some rows of one block."""
    from jax.experimental import pallas as pl

    expert, own = expert_ref[pl.program_id(2)], pl.ds(pl.program_id(0) * columns, columns)

    def add(i: Array, y: Array) -> Array:
        at = pl.ds(i * step, step)
        weight = weight_ref[expert, own, at].T if transposed else weight_ref[expert, at, own]
        return y + jnp.dot(x_ref[:, at], weight, preferred_element_type=jnp.float32)

    y = jax.lax.fori_loop(0, x_ref.shape[1] // step, add, jnp.zeros(y_ref.shape, jnp.float32))
    y_ref[...] = y.astype(y_ref.dtype)


def _gradient_kernel(x_ref: Any, dy_ref: Any, first_ref: Any, dw_ref: Any, *, step: int) -> None:
    """Write a part of the gradient of one expert, summed over its blocks."""
    from jax.experimental import pallas as pl

    expert, steps = pl.program_id(2), x_ref.shape[1] // step

    def add(number: Array, dw: Array) -> Array:
        block, at = number // steps, pl.ds((number % steps) * step, step)
        return dw + jnp.dot(x_ref[block, at, :].T, dy_ref[block, at, :], preferred_element_type=jnp.float32)

    first, last = first_ref[expert] * steps, first_ref[expert + 1] * steps
    dw_ref[...] = jax.lax.fori_loop(first, last, add, jnp.zeros(dw_ref.shape, jnp.float32))


def _run(interpret: bool) -> dict[str, Any]:
    from jax.experimental.pallas import triton  # deprecated by jax 0.11, to be removed

    return {"compiler_params": triton.CompilerParams(num_warps=8, num_stages=3), "interpret": interpret}


def _tile(size: int) -> int:
    """Return the largest power of two that divides a size, but no more than a program computes with at once."""
    return min(size & -size, MOST_TILE)


def _products(x: Array, weight: Array, dy: Array, expert: Array, *, interpret: bool) -> tuple[Array, Array, Array]:
    """Return one product of each kind."""
    return (
        multiply(x, weight, expert, interpret=interpret),
        multiply(dy, weight, expert, transposed=True, interpret=interpret),
        gradient(x, dy, expert, len(weight), interpret=interpret),
    )


@lru_cache
def why_broken(*, interpret: bool = False) -> str:
    """Return why the kernels cannot be used on this device: what failed, or which numbers are wrong; empty if they
    work. They are compiled and run once, in a few seconds."""
    random, expert_J = np.random.default_rng(0), np.asarray([0, 0, 2, 3], np.int32)
    x_JMD, weight_EDF, dy_JMF = (
        random.standard_normal(shape).astype(jnp.bfloat16) for shape in ((4, 32, 128), (4, 128, 64), (4, 32, 64))
    )
    exact = [x.astype(np.float64) for x in (x_JMD, weight_EDF, dy_JMF)]
    dw_EDF = np.zeros(weight_EDF.shape)
    np.add.at(dw_EDF, expert_J, np.einsum("jmd,jmf->jdf", exact[0], exact[2]))
    wanted = {
        "the product": exact[0] @ exact[1][expert_J],
        "the gradient of rows": exact[2] @ exact[1][expert_J].swapaxes(1, 2),
        "the gradient of matrices": dw_EDF,
    }
    try:
        # compiled first, because this may be called while another function is traced
        program = jax.jit(partial(_products, interpret=interpret)).lower(x_JMD, weight_EDF, dy_JMF, expert_J).compile()
        numbers = [np.asarray(x, np.float64) for x in program(x_JMD, weight_EDF, dy_JMF, expert_J)]
    except Exception as error:  # whatever a compiler raises means that there is no kernel
        return f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0][:200]}"
    for (name, right), ours in zip(wanted.items(), numbers, strict=True):
        share = float(np.linalg.norm(ours - right) / np.linalg.norm(right))
        if not share <= TOLERANCE:  # NaN too
            return f"{name} differs from plain products by {share:.0%}"
    return ""
