"""Sums of values by the row of a table that each belongs to, such as the gradient of an embedding.

N = values, V = rows of the table, D = numbers of a row, K = values in a block, J = blocks.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

#: Sorted values whose sums by row are one product, and how many are sorted into place at once.
BLOCK, AT_ONCE = 64, 8192


def add_rows(
    total_VD: Float[Array, "V D"], rows_N: Int[Array, " N"], values_ND: Float[Array, "N D"]
) -> Float[Array, "V D"]:
    """Return the table with each value added to its row, in float32.

    A GPU adds to one address for one thread after the other, and in a text every tenth token may be the same. There the
    values are sorted by row, and those of a block that belong to one row are summed by a product before they are added.
    """
    if jax.default_backend() != "gpu" or len(rows_N) < BLOCK:
        return total_VD.at[rows_N].add(values_ND.astype(jnp.float32))
    rows_N = rows_N.astype(jnp.int32)
    order_N = jnp.argsort(rows_N)
    size = min(AT_ONCE, -(-len(rows_N) // BLOCK) * BLOCK)
    # what fills up the last block belongs to no row
    order_CN = jnp.pad(order_N, (0, -len(order_N) % size), constant_values=len(order_N)).reshape(-1, size)

    def add(total_VD: Array, order_N: Array) -> tuple[Array, None]:
        rows_JK = rows_N.at[order_N].get(mode="fill", fill_value=len(total_VD)).reshape(-1, BLOCK)
        values_JKD = values_ND.at[order_N].get(mode="fill", fill_value=0).reshape(-1, BLOCK, values_ND.shape[-1])
        same_JKK = (rows_JK[:, :, None] == rows_JK[:, None, :]).astype(values_ND.dtype)
        sums_JKD = jnp.einsum(
            "jik,jkd->jid", same_JKK, values_JKD, precision="highest", preferred_element_type=jnp.float32
        )
        before_JK = jnp.pad(rows_JK[:, :-1], ((0, 0), (1, 0)), constant_values=-1)
        first_JK = jnp.where(rows_JK != before_JK, rows_JK, len(total_VD))
        return total_VD.at[first_JK.reshape(-1)].add(sums_JKD.reshape(-1, values_ND.shape[-1]), mode="drop"), None

    return jax.lax.scan(add, total_VD, order_CN)[0]
