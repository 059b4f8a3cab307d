"""The mesh, and how state and batches are sharded over it.

Two axes, both of which split the batch: over `data` parameters are replicated, over `fsdp` parameters, gradients and
optimiser state are sharded (ZeRO-3, Rajbhandari et al. 2020). Over `data` the optimiser state may be sharded too
(ZeRO-1, the same paper). XLA inserts the collectives.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec, get_abstract_mesh
from jaxtyping import Array, PyTree

from trainkit.errors import TrainkitError
from trainkit.parallel.precision import Blocks

DATA, FSDP = "data", "fsdp"
#: Arrays with fewer numbers stay whole: gathering them costs more than it saves.
SMALLEST_SHARDED = 1024


def make_mesh(*, data: int, fsdp: int) -> Mesh:
    """Return a mesh of data x fsdp over the first devices."""
    devices = np.asarray(jax.devices()[: data * fsdp]).reshape(data, fsdp)
    return Mesh(devices, (DATA, FSDP), axis_types=(AxisType.Auto, AxisType.Auto))


def batch_sharding(mesh: Mesh) -> NamedSharding:
    """Return the sharding of arrays (accumulation, sequences, …): the sequences are split over all devices."""
    return NamedSharding(mesh, PartitionSpec(None, (DATA, FSDP)))


def replicated_sharding(mesh: Mesh) -> NamedSharding:
    """Return the sharding of arrays that every device holds in full."""
    return NamedSharding(mesh, PartitionSpec())


def state_shardings(mesh: Mesh, shapes: PyTree[jax.ShapeDtypeStruct], *, zero1: bool = False) -> PyTree[NamedSharding]:
    """Return the sharding of each array of the state. It depends on shapes only, so that moments are sharded as their
    parameters are.

    With `zero1` the arrays of `shapes.optimizer` are sharded over `data` too (ZeRO-1).
    """
    over_fsdp = shardings(mesh, shapes)
    if not zero1:
        return over_fsdp
    return eqx.tree_at(lambda s: s.optimizer, over_fsdp, shardings(mesh, shapes.optimizer, over_data=True))


def shardings(mesh: Mesh, shapes: PyTree[jax.ShapeDtypeStruct], *, over_data: bool = False) -> PyTree[NamedSharding]:
    """Return the sharding of each array over `fsdp`, and with `over_data` over `data` too."""
    data = mesh.shape[DATA] if over_data else 1

    def sharding_of(leaf: jax.ShapeDtypeStruct | Blocks) -> NamedSharding | Blocks:
        if not isinstance(leaf, Blocks):
            return NamedSharding(mesh, partition(leaf.shape, mesh.shape[FSDP], data))
        spec = partition(leaf.codes.shape, mesh.shape[FSDP], data)
        codes: Any = NamedSharding(mesh, spec)
        # a scale is on the device of its block, unless a block is on two devices
        devices = [math.prod(mesh.shape[name] for name in _names(part)) for part in spec]
        whole = any(size % count for size, count in zip(leaf.scales.shape, devices, strict=False))
        scales: Any = replicated_sharding(mesh) if whole else codes
        return Blocks(codes, scales)

    return jax.tree.map(sharding_of, shapes, is_leaf=lambda leaf: isinstance(leaf, Blocks))


def partition(shape: tuple[int, ...], fsdp: int, data: int = 1) -> PartitionSpec:
    """Return the sharding of an array: `fsdp` divides its largest divisible dimension, the later of equal ones.

    Then `data` divides the largest divisible dimension of what one device holds. Small arrays stay whole.
    """
    names: list[tuple[str, ...]] = [()] * len(shape)
    left = list(shape)
    for name, count in ((FSDP, fsdp), (DATA, data)):
        divisible = [(size, axis) for axis, size in enumerate(left) if size % count == 0]
        if count > 1 and divisible and math.prod(shape) >= SMALLEST_SHARDED:
            _, axis = max(divisible)
            names[axis] += (name,)
            left[axis] //= count
    while names and not names[-1]:
        names.pop()
    return PartitionSpec(*((part[0] if len(part) == 1 else part or None) for part in names))


def on_own_rows(function: Callable[..., Array], *arguments: Any, whole: tuple[int, ...] = ()) -> Array:
    """Return `function(*arguments)`, computed by each device on its own rows, where XLA would move the batch around.

    Rows are the first axis of the arguments and of the result, (B, …). The mesh is that of `jax.set_mesh`; without one,
    or if the rows cannot be divided equally among its devices, the function is called as it is.

    Args:
        arguments: arrays, or None.
        whole: the indices of arguments, which may be pytrees, that each device receives in full.
    """
    mesh = get_abstract_mesh()
    rows = next(x.shape[0] for i, x in enumerate(arguments) if x is not None and i not in whole)
    if mesh.empty or mesh.size == 1 or rows % mesh.size:
        return function(*arguments)
    split = PartitionSpec(mesh.axis_names)
    specs = tuple(PartitionSpec() if i in whole else split for i in range(len(arguments)))
    if mesh.shape.get(FSDP, 1) > 1:
        # XLA would gather in float32 what was rounded, and round it then
        arguments = tuple(_as_stored(x, mesh.shape[FSDP]) if i in whole else x for i, x in enumerate(arguments))
    return jax.shard_map(function, in_specs=specs, out_specs=split, check_vma=False)(*arguments)


def _as_stored(tree: PyTree, fsdp: int) -> PyTree:
    """Return the same arrays, divided as the state divides those of their shapes."""
    return jax.tree.map(lambda x: jax.lax.with_sharding_constraint(x, partition(x.shape, fsdp)), tree)


def on_own_matrices(function: Callable[..., Any], arguments: Sequence[tuple[PyTree, ...]], *whole: Any) -> list[Any]:
    """Return `function(*each, *whole)` of each of `arguments`, where each device computes its share of all matrices.

    The arrays of one argument, (…, m, n), and of its result, (…, any), have the same leading axes, which hold separate
    matrices. Those of like shapes are divided together, filled up with zero matrices to a multiple of the devices. The
    mesh is that of `jax.set_mesh`; without one, or on one device, the function is called as it is.

    Args:
        whole: further arguments, which each device receives in full.
    """
    mesh = get_abstract_mesh()
    if mesh.empty or mesh.size == 1 or not arguments:
        return [function(*each, *whole) for each in arguments]
    split = PartitionSpec(mesh.axis_names)
    specs = (split,) * len(arguments[0]) + (PartitionSpec(),) * len(whole)
    on_each = jax.shard_map(function, in_specs=specs, out_specs=split, check_vma=False)
    if min(mesh.shape.values()) > 1:
        # XLA cannot go from a division over two axes of a matrix to one over matrices, and warns that it gathers them
        arguments = jax.lax.with_sharding_constraint(arguments, PartitionSpec())
    results: list[Any] = [None] * len(arguments)
    found: Any = ()
    for numbers in _alike(arguments):
        leads = [jax.tree.leaves(arguments[number])[0].shape[:-2] for number in numbers]
        ends = list(accumulate(math.prod(lead) for lead in leads))
        padding = ((0, -ends[-1] % mesh.size), (0, 0), (0, 0))
        flat = [jax.tree.map(lambda x: x.reshape(-1, *x.shape[-2:]), arguments[number]) for number in numbers]
        joined = jax.tree.map(lambda *x, padding=padding: jnp.pad(jnp.concatenate(x), padding), *flat)
        # one group after another: their gathered arrays need not be in memory together
        joined, _ = jax.lax.optimization_barrier((joined, found))
        # gathered at once: slices of what is divided would move one by one
        found = jax.lax.with_sharding_constraint(on_each(*joined, *whole), PartitionSpec())
        for number, lead, end in zip(numbers, leads, ends, strict=True):
            own = slice(end - math.prod(lead), end)
            results[number] = jax.tree.map(lambda x, own=own, lead=lead: x[own].reshape(*lead, *x.shape[1:]), found)
    return results


def _alike(arguments: Sequence[PyTree]) -> list[list[int]]:
    """Return the numbers of those whose matrices have the same shapes."""
    groups: dict[Any, list[int]] = {}
    for number, each in enumerate(arguments):
        leaves, structure = jax.tree.flatten(each)
        groups.setdefault((structure, *((leaf.shape[-2:], leaf.dtype) for leaf in leaves)), []).append(number)
    return list(groups.values())


def check_layout(params: PyTree[jax.ShapeDtypeStruct], *, fsdp: int) -> None:
    """Raise `TrainkitError` if the arrays that cannot be sharded are more than a device's share of all parameters."""
    sizes = {jax.tree_util.keystr(path, simple=True, separator="."): leaf.shape for path, leaf in _leaves(params)}
    if _shards(sizes.values(), fsdp):
        return
    name, shape = max(
        ((name, shape) for name, shape in sizes.items() if not partition(shape, fsdp)),
        key=lambda named: math.prod(named[1]),
    )
    fitting = [count for count in range(1, 2 * fsdp) if _shards(sizes.values(), count)]
    nearest = sorted(sorted(fitting, key=lambda count: abs(count - fsdp))[:3])
    raise TrainkitError(
        f"fsdp = {fsdp} divides no dimension of {name}, which is {' x '.join(map(str, shape))}",
        where="parallel.fsdp",
        hint=f"the nearest that divide what is large: parallel.fsdp = {', '.join(map(str, nearest))}",
    )


def _shards(shapes: Iterable[tuple[int, ...]], fsdp: int) -> bool:
    sizes = [(math.prod(shape), bool(partition(shape, fsdp))) for shape in shapes]
    return fsdp == 1 or fsdp * sum(size for size, sharded in sizes if not sharded) <= sum(size for size, _ in sizes)


def _leaves(tree: PyTree[jax.ShapeDtypeStruct]) -> list[tuple[Any, jax.ShapeDtypeStruct]]:
    return jax.tree_util.tree_flatten_with_path(tree)[0]


def _names(part: str | tuple[str, ...] | None) -> tuple[str, ...]:
    return () if part is None else (part,) if isinstance(part, str) else part
