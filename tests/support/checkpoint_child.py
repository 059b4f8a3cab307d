"""What the checkpoint tests run in a process of its own: `python checkpoint_child.py COMMAND DIRECTORY`."""

from __future__ import annotations

import resource
import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from trainkit.checkpoint.provenance import Provenance
from trainkit.checkpoint.restore import restore
from trainkit.checkpoint.saver import Saver
from trainkit.errors import TrainkitError

FACTS = Provenance(recipe="r", data="d", attempt=1)


def state_at(step: int) -> dict[str, Any]:
    """A small state that says which step it is of in every leaf."""
    return {
        "params": {
            "w": jnp.arange(64 * 24, dtype=jnp.float32).reshape(64, 24) * step,
            "b": jnp.full(24, step, jnp.bfloat16),
        },
        "key": jax.random.key(step),
        "keys": jax.random.split(jax.random.key(step), 8),
        "step": jnp.int32(step),
        "empty": jnp.zeros((0, 3)),
    }


def bits(tree: Any) -> list[tuple[str, bytes]]:
    """Dtype and bytes of every leaf."""

    def of(leaf: jax.Array) -> tuple[str, bytes]:
        plain = jax.random.key_data(leaf) if jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key) else leaf
        return f"{leaf.dtype}{leaf.shape}", np.asarray(plain).tobytes()

    return [of(leaf) for leaf in jax.tree.leaves(tree)]


def on_mesh(tree: Any, rows: int, columns: int, *, swap: bool) -> Any:
    """Arrays with two axes split over both axes of a mesh, one way or the other; the rest on all devices."""
    mesh = Mesh(np.asarray(jax.devices()).reshape(rows, columns), ("x", "y"))
    halves = PartitionSpec("y", "x") if swap else PartitionSpec("x", "y")
    specs = {"w": halves, "keys": PartitionSpec("x")}

    def put(path: Any, leaf: jax.Array) -> jax.Array:
        spec = specs.get(path[-1].key, PartitionSpec())
        return jax.device_put(leaf, NamedSharding(mesh, spec))

    return jax.tree_util.tree_map_with_path(put, tree)


def reshard(run: Path) -> None:
    """Restore step 1, of one device, on eight; save on eight as step 2; restore that on two other meshes."""
    assert jax.device_count() == 8
    saver = Saver(run, on_saved=lambda saved: None)
    template = on_mesh(state_at(0), 2, 4, swap=False)
    state = restore(run / "checkpoints" / "1", template)
    assert bits(state) == bits(state_at(1))
    assert state["params"]["w"].sharding == template["params"]["w"].sharding
    saver.save(on_mesh(state_at(2), 4, 2, swap=False), step=2, kind="permanent", provenance=FACTS)
    saver.close()
    files = {path.name for path in (run / "checkpoints" / "2" / "arrays" / "params.w").iterdir()}
    assert files == {"zarr.json"} | {f"c.{i}.{j}" for i in range(4) for j in range(2)}, files
    for swap in (False, True):
        template = on_mesh(state_at(0), 2, 4, swap=swap)
        assert bits(restore(run / "checkpoints" / "2", template)) == bits(state_at(2))


def save_forever(run: Path) -> None:
    saver = Saver(run, on_saved=lambda saved: print(saved.step, flush=True))
    for step in range(1, 100_000):
        saver.save(state_at(step), step=step, kind="rolling" if step % 3 else "permanent", provenance=FACTS)


def limited(run: Path) -> None:
    """The disk takes 40 kB a file from the second save on."""
    saver = Saver(run, on_saved=lambda saved: None)
    saver.save(state_at(1), step=1, kind="rolling", provenance=FACTS)
    saver.wait()
    resource.setrlimit(resource.RLIMIT_FSIZE, (40_000, resource.RLIM_INFINITY))
    saver.save({"small": jnp.zeros(10), "w": jnp.ones((1000, 100))}, step=2, kind="rolling", provenance=FACTS)
    try:
        saver.wait()
    except TrainkitError as error:
        print(error.exit_code, error)
    else:
        sys.exit("the write did not fail")
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    saver.save(state_at(3), step=3, kind="final", provenance=FACTS)
    saver.close()


if __name__ == "__main__":
    {"reshard": reshard, "save-forever": save_forever, "limited": limited}[sys.argv[1]](Path(sys.argv[2]))
