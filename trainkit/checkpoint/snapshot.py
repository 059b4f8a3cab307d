"""Copies of a state, to be written to the disk while training continues.

On a CPU the copy is made by its devices, whose memory is that of the host. Other devices send the arrays to the host,
one after the other and while they compute: a second copy of the state would take memory that activations need.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

from trainkit.checkpoint.arrays import Box
from trainkit.checkpoint.restore import box_of
from trainkit.parallel.hardware import available_memory
from trainkit.plan import IN_HOST_MEMORY

#: Memory of the host that a device reaches without help of the processor.
PINNED = "pinned_host"
#: The share of the host's available memory that a copy may take.
USABLE_OF_HOST = 0.9
#: The name of an array, where a part of it is, and its numbers.
Part: TypeAlias = tuple[str, Box, np.ndarray]
#: The same before the numbers are read.
Pending: TypeAlias = tuple[str, Box, jax.Array]


def lacks_memory(error: jax.errors.JaxRuntimeError) -> bool:
    """Return whether a device or the host had no memory left."""
    return "RESOURCE_EXHAUSTED" in str(error)


def plain(leaf: jax.Array) -> jax.Array:
    """Return an array that can be written: for PRNG keys, their data."""
    return jax.random.key_data(leaf) if jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key) else leaf


@jax.jit
def _copy(leaves: dict[str, jax.Array]) -> dict[str, jax.Array]:
    return {name: jnp.copy(leaf) for name, leaf in leaves.items()}


def _copy_into(old: dict[str, jax.Array], leaves: dict[str, jax.Array]) -> dict[str, jax.Array]:
    return _copy(leaves)


# XLA writes the copy into the buffers of `old`, which is donated
_recopied_jit = jax.jit(_copy_into, donate_argnums=0, keep_unused=True)


def copy_leaves(leaves: dict[str, jax.Array], old: dict[str, jax.Array]) -> dict[str, jax.Array]:
    """Return a copy on the devices that reuses the buffers of `old` if all of them fit."""
    fits = leaves.keys() == old.keys() and all(_is_alike(leaves[name], old[name]) for name in old)
    return _recopied_jit(old, leaves) if fits else _copy(leaves)


def _is_alike(a: jax.Array, b: jax.Array) -> bool:
    return a.shape == b.shape and a.dtype == b.dtype and a.sharding.is_equivalent_to(b.sharding, a.ndim)


def goes_to_host(leaves: Mapping[str, jax.Array]) -> bool:
    """Return whether a copy of these arrays is made in the host's memory, because the devices have their own."""
    device: Any = next(iter(next(iter(leaves.values())).sharding.addressable_devices))
    return device.platform not in IN_HOST_MEMORY and any(m.kind == PINNED for m in device.addressable_memories())


def send_to_host(leaves: Mapping[str, jax.Array]) -> deque[Pending] | None:
    """Return the parts of this process on their way to the host; None if its memory is too small for all of them.

    This does not wait for the devices. The caller may donate the arrays at once: a step that would overwrite one waits,
    on the device, until that one is sent.
    """
    own = list(_pending(leaves))
    available = available_memory()
    if available is not None and sum(data.nbytes for _, _, data in own) > USABLE_OF_HOST * available:
        return None
    try:
        return deque((name, box, _to_host(data)) for name, box, data in own)
    except jax.errors.JaxRuntimeError as error:  # XLA limits the memory that devices may reach
        if not lacks_memory(error):
            raise
        return None


def drain(sent: deque[Pending]) -> Iterator[Part]:
    """Yield each part once it has arrived. Its memory is free as soon as the caller has no use for it."""
    while sent:
        name, box, data = sent.popleft()
        yield name, box, np.asarray(data)


def parts(leaves: Mapping[str, jax.Array]) -> Iterator[Part]:
    """Yield each part of each leaf once, on the host. On a CPU these are views, which the caller must not keep."""
    to_host = goes_to_host(leaves)
    for name, box, data in _pending(leaves):
        # numbers that JAX has read stay in memory as long as their array, so a copy is read where there is one
        yield name, box, np.asarray(_to_host(data) if to_host else data)


def _pending(leaves: Mapping[str, jax.Array]) -> Iterator[Pending]:
    for name, leaf in leaves.items():
        for shard in leaf.addressable_shards:
            if shard.replica_id == 0:
                yield name, box_of(shard.index, leaf.shape), shard.data


def _to_host(data: jax.Array) -> jax.Array:
    return jax.device_put(data, data.sharding.with_memory_kind(PINNED))
