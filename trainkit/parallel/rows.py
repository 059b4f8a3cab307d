"""Functions that each device runs on its own rows of a batch, where XLA left alone would move the batch around."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
from jax.sharding import PartitionSpec, get_abstract_mesh
from jaxtyping import Array


def on_own_rows(function: Callable[..., Array], *arguments: Any, whole: tuple[int, ...] = ()) -> Array:
    """`function(*arguments)`, by each device for the rows that it has: the first axis of arguments and result.

    Arguments whose places are in `whole`, which may be pytrees, come to every device as a whole; None stays None. The
    devices are those of the mesh that `jax.set_mesh` put in force; without one, or where the rows cannot be divided
    among them, the function is called as it is.
    """
    mesh = get_abstract_mesh()
    rows = next(x.shape[0] for i, x in enumerate(arguments) if x is not None and i not in whole)
    if mesh.empty or mesh.size == 1 or rows % mesh.size:
        return function(*arguments)
    split = PartitionSpec(mesh.axis_names)
    specs = tuple(PartitionSpec() if i in whole else split for i in range(len(arguments)))
    return jax.shard_map(function, in_specs=specs, out_specs=split, check_vma=False)(*arguments)
