"""Saving while training goes on: a copy on the devices at once, its way to the disk in a thread, one at a time."""

from __future__ import annotations

import platform
import shutil
import time
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding

from trainkit import __version__
from trainkit.checkpoint import arrays, store
from trainkit.checkpoint import manifest as manifests
from trainkit.checkpoint.arrays import Box
from trainkit.checkpoint.manifest import FORMAT, KINDS, Kind, Leaf, Manifest
from trainkit.checkpoint.names import named_leaves
from trainkit.checkpoint.restore import box_of, leaf_of
from trainkit.errors import FAILED, TrainkitError


@dataclass(frozen=True, kw_only=True)
class Provenance:
    """What the manifest says beside the state."""

    recipe: str
    """Fingerprint of the recipe."""
    data: str
    """Fingerprint of the ledger."""
    attempt: int
    base: str | None = None
    """Digest of what the state is trained on top of and does not hold; None where it holds all."""
    aim_run: str | None = None
    metrics: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Saved:
    """A checkpoint that is on disk, whole."""

    step: int
    kind: Kind
    path: str
    """Within the run directory."""
    bytes: int
    seconds: float
    """From the snapshot to the rename."""


class Saver:
    """The writer of a run's checkpoints; there is one, and it holds the run's lock.

    Make it before restoring: it first tidies what a killed writer left. `on_saved` is called from `poll`, `save` and
    `wait`, in the thread that calls those. `held` are the steps whose checkpoints somebody reads: none of them is
    removed; it is called from another thread. Of the rolling ones the newest `keep_last` stay.
    """

    def __init__(
        self,
        run_directory: Path,
        *,
        on_saved: Callable[[Saved], None],
        held: Callable[[], Collection[int]] = frozenset,
        keep_last: int = 2,
    ) -> None:
        self._run = run_directory
        self._on_saved, self._held, self._keep_last = on_saved, held, keep_last
        self._thread = ThreadPoolExecutor(1, "checkpoint")
        self._in_flight: Future[Saved] | None = None
        self._snapshot: dict[str, jax.Array] = {}
        self._written: dict[int, Kind] = {}
        directory = store.directory_of(run_directory)
        try:
            directory.mkdir(parents=True, exist_ok=True)
            store.clean(run_directory)
        except OSError as error:
            raise _cannot_write(directory, error) from error

    def save(self, state: Any, *, step: int, kind: Kind, provenance: Provenance) -> None:
        """Copy `state`, a pytree of `jax.Array`, and write the copy in the background.

        Returns once the copy is under way: the caller may donate `state` to the next step. Waits for the save before
        it. A step that this saver has written already is not written again, only kept as the more precious kind.
        Raises TrainkitError where the save before it failed.
        """
        self.wait()
        started = time.monotonic()
        if step in self._written and store.directory_of(self._run).joinpath(str(step), manifests.NAME).exists():
            self._in_flight = self._thread.submit(self._keep_as, step, kind, started)
            return
        leaves = named_leaves(state)
        manifest = _manifest(leaves, step=step, kind=kind, provenance=provenance)
        try:
            self._snapshot = _copy(leaves, self._snapshot)
        except jax.errors.JaxRuntimeError as error:
            if "RESOURCE_EXHAUSTED" not in str(error):
                raise
            self._save_in_place(leaves, manifest, started)
            return
        self._in_flight = self._thread.submit(self._write, manifest, started)

    def poll(self) -> None:
        """Hand a finished save to `on_saved`; raises TrainkitError where it failed. Does not wait."""
        if self._in_flight and self._in_flight.done():
            self.wait()

    def wait(self) -> None:
        """Return once everything is on disk; raises TrainkitError where that failed."""
        if self._in_flight:
            in_flight, self._in_flight = self._in_flight, None
            saved = in_flight.result()
            self._written[saved.step] = saved.kind
            self._on_saved(saved)

    def close(self) -> None:
        """Wait, end the thread, and give back the memory of the copy."""
        try:
            self.wait()
        finally:
            self._thread.shutdown()
            self._snapshot = {}

    def _save_in_place(self, leaves: dict[str, jax.Array], manifest: Manifest, started: float) -> None:
        """Without room for a copy on the devices, training waits for the disk."""
        self._snapshot = {name: _plain(leaf) for name, leaf in leaves.items()}
        try:
            self._in_flight = self._thread.submit(self._write, manifest, started)
            self.wait()
        finally:
            self._snapshot = {}  # they are the state's own buffers, not ours to reuse

    def _write(self, manifest: Manifest, started: float) -> Saved:
        written = store.temporary(self._run, manifest.step)
        final = store.directory_of(self._run) / str(manifest.step)
        try:
            if not self._has_room(manifest.bytes):
                # an older one goes first rather than that there is no newer one
                store.retain(self._run, saved=manifest.step, keep_last=1, held=self._held())
            if not self._has_room(manifest.bytes):
                raise OSError(f"it needs {_size(manifest.bytes)}")
            self._write_arrays(written / "arrays", manifest.leaves)
            manifests.write(written, manifest)
            # it is read back from the disk before it gets its name, and before an older one goes for it
            arrays.forget_cached(written / "arrays")
            if problems := store.verify(written, gently=True):
                raise OSError(f"what was written cannot be read back: {'; '.join(problems)}")
            store.commit(written, final)
            store.retain(self._run, saved=manifest.step, keep_last=self._keep_last, held=self._held())
        except (OSError, ValueError) as error:
            shutil.rmtree(written, ignore_errors=True)
            raise _cannot_write(final, error) from error
        (device, *_) = next(iter(self._snapshot.values())).devices()
        if device.platform != "cpu":
            # Reusing the buffers saves the CPU its page faults; device memory is better given back.
            self._snapshot = {}
        return self._saved(manifest, started)

    def _has_room(self, needed: int) -> bool:
        return shutil.disk_usage(store.directory_of(self._run)).free >= needed

    def _write_arrays(self, root: Path, leaves: dict[str, Leaf]) -> None:
        root.mkdir(parents=True)
        shards = {name: leaf.sharding.shard_shape(leaf.shape) for name, leaf in self._snapshot.items()}
        created = arrays.create(root, {name: (leaf, shards[name]) for name, leaf in leaves.items()})
        arrays.write(root, created, _parts(self._snapshot))

    def _keep_as(self, step: int, kind: Kind, started: float) -> Saved:
        directory = store.directory_of(self._run) / str(step)
        manifest = manifests.read(directory)
        if KINDS.index(kind) > KINDS.index(manifest.kind):
            manifest = manifest.model_copy(update={"kind": kind})
            try:
                manifests.write(directory, manifest)
            except OSError as error:
                raise _cannot_write(directory, error) from error
        return self._saved(manifest, started)

    def _saved(self, manifest: Manifest, started: float) -> Saved:
        path = store.directory_of(self._run) / str(manifest.step)
        seconds = time.monotonic() - started
        return Saved(manifest.step, manifest.kind, str(path.relative_to(self._run)), manifest.bytes, seconds)


def size_of(state: Any) -> int:
    """Bytes that a checkpoint of a pytree of arrays takes, however they are shared among devices."""
    return sum(_plain(leaf).nbytes for leaf in jax.tree.leaves(state))


def _plain(leaf: jax.Array) -> jax.Array:
    return jax.random.key_data(leaf) if jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key) else leaf


@jax.jit
def _copied(leaves: dict[str, jax.Array]) -> dict[str, jax.Array]:
    return {name: jnp.copy(_plain(leaf)) for name, leaf in leaves.items()}


def _recopied(old: dict[str, jax.Array], leaves: dict[str, jax.Array]) -> dict[str, jax.Array]:
    return _copied(leaves)


# `old` is only donated: XLA writes the copy into its buffers
_recopied_jit = jax.jit(_recopied, donate_argnums=0, keep_unused=True)


def _copy(leaves: dict[str, jax.Array], old: dict[str, jax.Array]) -> dict[str, jax.Array]:
    """A copy that shares no buffer with `leaves`, keys as their data, in the buffers of `old` where they fit."""
    fits = leaves.keys() == old.keys() and all(_alike(_plain(leaves[name]), old[name]) for name in old)
    return _recopied_jit(old, leaves) if fits else _copied(leaves)


def _alike(a: jax.Array, b: jax.Array) -> bool:
    return a.shape == b.shape and a.dtype == b.dtype and a.sharding.is_equivalent_to(b.sharding, a.ndim)


def _parts(snapshot: dict[str, jax.Array]) -> Iterator[tuple[str, Box, np.ndarray]]:
    """Each part of each leaf once, on the host. On CPU these are views, which the caller must let go of."""
    for name, leaf in snapshot.items():
        for shard in leaf.addressable_shards:
            if shard.replica_id == 0:
                yield name, box_of(shard.index, leaf.shape), np.asarray(shard.data)


def _manifest(leaves: dict[str, jax.Array], *, step: int, kind: Kind, provenance: Provenance) -> Manifest:
    assert leaves, "there is nothing to save"
    strange = [name for name, leaf in leaves.items() if not isinstance(leaf, jax.Array)]
    assert not strange, f"not arrays: {strange}"
    stored = {name: leaf_of(leaf) for name, leaf in leaves.items()}
    shardings = [leaf.sharding for leaf in leaves.values()]
    devices: set[jax.Device] = set().union(*(sharding.device_set for sharding in shardings))
    meshes = [dict(sharding.mesh.shape) for sharding in shardings if isinstance(sharding, NamedSharding)]
    return Manifest(
        format=FORMAT,
        step=step,
        kind=kind,
        created=time.time(),
        attempt=provenance.attempt,
        recipe=provenance.recipe,
        data=provenance.data,
        base=provenance.base,
        aim_run=provenance.aim_run,
        metrics=provenance.metrics,
        versions=_versions(),
        devices=sorted(device.device_kind for device in devices),
        mesh=meshes[0] if meshes else {},
        bytes=size_of(leaves),
        leaves=stored,
    )


def _versions() -> dict[str, str]:
    packages = ("jax", "jaxlib", "numpy", "tensorstore")
    return {"trainkit": __version__, "python": platform.python_version()} | {name: version(name) for name in packages}


def _cannot_write(path: Path, error: Exception) -> TrainkitError:
    try:
        free = f"{_size(shutil.disk_usage(path if path.exists() else path.parent).free)} are free there"
    except OSError:
        free = "the space left there is unknown"
    return TrainkitError(
        f"the checkpoint cannot be written: {arrays.said(error)}; {free}",
        where=str(path),
        hint="make room or make it writable, then: trainkit resume RUN; earlier checkpoints are untouched",
        exit_code=FAILED,
    )


def _size(count: int) -> str:
    return f"{count / 1e9:.2f} GB" if count >= 1e8 else f"{count / 1e6:.2f} MB"
