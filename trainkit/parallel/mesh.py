"""The mesh and how state and batches lie on it.

Two axes, both of which split the batch: over `data` parameters are replicated, over `fsdp` parameters, gradients and
optimiser state are sharded (ZeRO-3, Rajbhandari et al. 2020). XLA inserts the collectives.
"""

from __future__ import annotations

import math

import jax
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec
from jaxtyping import PyTree

DATA, FSDP = "data", "fsdp"
#: Arrays with fewer numbers stay whole: gathering them costs more than it saves.
SMALLEST_SHARDED = 1024


def make_mesh(*, data: int, fsdp: int) -> Mesh:
    """A mesh of data x fsdp over the first devices."""
    devices = np.asarray(jax.devices()[: data * fsdp]).reshape(data, fsdp)
    return Mesh(devices, (DATA, FSDP), axis_types=(AxisType.Auto, AxisType.Auto))


def batch_sharding(mesh: Mesh) -> NamedSharding:
    """For arrays (accumulation, sequences, …): the sequences are split over all devices."""
    return NamedSharding(mesh, PartitionSpec(None, (DATA, FSDP)))


def replicated(mesh: Mesh) -> NamedSharding:
    return NamedSharding(mesh, PartitionSpec())


def state_shardings(mesh: Mesh, shapes: PyTree[jax.ShapeDtypeStruct]) -> PyTree[NamedSharding]:
    """Where each array of the state lies. The rule knows shapes only, so that moments lie as their parameters do."""
    return jax.tree.map(lambda leaf: NamedSharding(mesh, partition(leaf.shape, mesh.shape[FSDP])), shapes)


def partition(shape: tuple[int, ...], fsdp: int) -> PartitionSpec:
    """Shard the largest dimension that `fsdp` divides, the later of equals; none of a small array."""
    candidates = [(size, axis) for axis, size in enumerate(shape) if size % fsdp == 0]
    if fsdp == 1 or math.prod(shape) < SMALLEST_SHARDED or not candidates:
        return PartitionSpec()
    _, axis = max(candidates)
    return PartitionSpec(*[None] * axis, FSDP)
