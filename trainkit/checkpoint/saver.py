"""Saving while training continues: the state is copied (see `snapshot`), and a thread writes the copy to the disk."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import time
from collections import deque
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import jax

from trainkit import files
from trainkit.checkpoint import arrays, store
from trainkit.checkpoint import manifest as manifests
from trainkit.checkpoint.arrays import FILES_PER_ARRAY
from trainkit.checkpoint.leaves import named_leaves
from trainkit.checkpoint.manifest import KINDS, Kind, Leaf, Manifest
from trainkit.checkpoint.provenance import Provenance, make_manifest
from trainkit.checkpoint.snapshot import (
    Part,
    copy_leaves,
    drain,
    goes_to_host,
    lacks_memory,
    parts,
    plain,
    send_to_host,
)
from trainkit.errors import FAILED, TrainkitError
from trainkit.events.disk_space import find_room
from trainkit.events.tail import NAME as LOG
from trainkit.parallel import agreement, hosts
from trainkit.rundir.directory import RECIPE

#: The arrays of a checkpoint, each with the shape of a shard.
Created: TypeAlias = dict[str, tuple[Leaf, tuple[int, ...]]]


@dataclass(frozen=True)
class Saved:
    """A checkpoint that is on disk in full."""

    step: int
    kind: Kind
    path: str
    """Within the run directory."""
    bytes: int
    seconds: float
    """From the snapshot to the rename."""


class Saver:
    """The only writer of a run's checkpoints; its process holds the run's lock.

    Create it before restoring: it first removes what a killed writer left.
    """

    def __init__(
        self,
        run_directory: Path,
        *,
        on_saved: Callable[[Saved], None],
        held: Callable[[], Collection[int]] = frozenset,
        keep_last: int = 2,
    ) -> None:
        """`on_saved` is called from `poll`, `save` and `wait`, in their thread. `held`, which another thread calls,
        returns the steps whose checkpoints are being read and must stay. The newest `keep_last` rolling checkpoints
        stay too.
        """
        self._run = run_directory
        self._on_saved, self._held, self._keep_last = on_saved, held, keep_last
        self._thread = ThreadPoolExecutor(1, "checkpoint")
        self._in_flight: Future[Saved] | None = None
        #: The copy on a CPU, whose buffers the next one reuses; what is to be written of any copy.
        self._snapshot: dict[str, jax.Array] = {}
        self._parts: Iterator[Part] = iter(())
        self._written: dict[int, Kind] = {}
        #: The id of the process that names drafts, and the number of saves so far.
        self._writer, self._saves = hosts.from_first(self._prepare), 0

    def _prepare(self) -> int:
        """Remove what a killed writer left, and return the id of this process."""
        directory = store.directory_of(self._run)
        try:
            directory.mkdir(parents=True, exist_ok=True)
            store.clean(self._run)
        except OSError as error:
            raise _cannot_write(directory, error) from error
        return os.getpid()

    def save(self, state: Any, *, step: int, kind: Kind, provenance: Provenance) -> None:
        """Copy `state`, a pytree of `jax.Array`, and write the copy in the background.

        Waits for the previous save. The caller may donate `state` to the next step once this returns. A step that
        this saver has already written is not written again: its kind becomes the one that is kept longer.

        Raises:
            TrainkitError: the previous save failed.
        """
        self.wait()
        self._saves += 1
        started = time.monotonic()
        path = store.directory_of(self._run) / str(step) / manifests.NAME
        if step in self._written and hosts.from_first(path.exists):
            self._in_flight = self._thread.submit(self._keep_as, step, kind, started)
            return
        leaves = named_leaves(state)
        manifest = make_manifest(leaves, step=step, kind=kind, provenance=provenance)
        leaves = {name: plain(leaf) for name, leaf in leaves.items()}
        created = {name: (leaf, _shard_shape(leaves[name])) for name, leaf in manifest.leaves.items()}
        copied = agreement.agree("snapshot", ready=self._copy(leaves))
        if not copied:  # in all processes, even if only one has no memory
            self._snapshot, self._parts = {}, parts(leaves)
        self._in_flight = self._thread.submit(self._write, manifest, created, provenance.recipe_text, started)
        if not copied:  # training waits for the disk
            self.wait()

    def poll(self) -> None:
        """Call `on_saved` if a save has finished. Does not wait. Raises TrainkitError if the save failed."""
        if self._in_flight and hosts.from_first(self._in_flight.done):
            self.wait()

    def wait(self) -> None:
        """Return once everything is on disk. Raises TrainkitError if the save failed."""
        if self._in_flight:
            in_flight, self._in_flight = self._in_flight, None
            saved = in_flight.result()
            self._written[saved.step] = saved.kind
            self._on_saved(saved)

    def close(self) -> None:
        """Wait for the save, end the thread, and free the memory of the copy."""
        try:
            self.wait()
        finally:
            self._thread.shutdown()
            self._snapshot = {}

    def _copy(self, leaves: dict[str, jax.Array]) -> bool:
        """Copy the leaves, or begin to; return whether this process had the memory."""
        if goes_to_host(leaves):
            sent = send_to_host(leaves)
            self._parts = drain(sent or deque())
            return sent is not None
        try:
            self._snapshot = copy_leaves(leaves, self._snapshot)
        except jax.errors.JaxRuntimeError as error:
            if not lacks_memory(error):
                raise
            return False
        self._parts = parts(self._snapshot)
        return True

    def _write(self, manifest: Manifest, created: Created, recipe: str, started: float) -> Saved:
        """Write the checkpoint; where several processes train, each writes its own parts."""
        written = store.temporary(self._run, manifest.step, self._writer)
        final = store.directory_of(self._run) / str(manifest.step)
        root = written / "arrays"
        try:
            opened: dict[str, Any] = {}
            self._in_turn("begun", lambda: opened.update(self._begin(root, manifest, created)), first=True)
            self._in_turn("written", lambda: self._write_parts(root, created, opened))
            self._in_turn("committed", lambda: self._commit(written, final, manifest, recipe), first=True)
        except (OSError, ValueError) as error:
            if hosts.is_first():
                shutil.rmtree(written, ignore_errors=True)
            raise _cannot_write(final, error) from error
        finally:
            self._parts = iter(())  # after an error it holds memory
        return self._finish_save(manifest, started)

    def _in_turn(self, part: str, write: Callable[[], None], *, first: bool = False) -> None:
        """Write in every process, or only in the `first` one, and return once all processes have called this.

        Raises OSError, which names the process, if writing failed in any of them. A single process raises its own
        OSError, ValueError or TrainkitError.
        """
        problem: Exception | None = None
        try:
            if hosts.is_first() or not first:
                write()
        except Exception as error:  # whatever it is, the others wait for this process
            problem = error
        said = agreement.first_problem(f"save/{self._saves}/{part}", arrays.message_of(problem) if problem else None)
        if said is not None:
            # an error of another kind, as of a lack of memory, is a failed save too, which is tried again
            as_it_is = hosts.count() == 1 and isinstance(problem, OSError | ValueError | TrainkitError)
            raise problem if problem and as_it_is else OSError(said) from problem

    def _begin(self, root: Path, manifest: Manifest, created: Created) -> Any:
        """Make room on the disk, create the arrays and return them."""
        if not self._run.is_dir():  # it is not made again: nobody would look for a checkpoint there
            raise FileNotFoundError(errno.ENOENT, "the run's directory was deleted or moved")
        if self._find_lack(manifest):
            # better to remove an older checkpoint first than to have no newer one
            store.retain(self._run, saved=manifest.step, keep_last=1, held=self._held())
        if lack := self._find_lack(manifest):
            raise OSError(lack)
        root.mkdir(parents=True)
        return arrays.create(root, created)

    def _write_parts(self, root: Path, created: Created, opened: dict[str, Any]) -> None:
        arrays.write(root, opened or arrays.create(root, created, exist=True), self._parts)

    def _commit(self, written: Path, final: Path, manifest: Manifest, recipe: str) -> None:
        """Check what was written, give it its name, and remove older checkpoints."""
        # what a resume reads besides the checkpoint must not be older on the disk than its manifest: after a power cut
        # `store.clean` takes a draft that has one for a checkpoint
        with contextlib.suppress(FileNotFoundError):
            files.sync(self._run / LOG)
        files.sync_directory(self._run)
        checksums = {name: arrays.checksum_of(written / "arrays" / name) for name in manifest.leaves}
        if recipe:
            files.write(written / RECIPE, recipe)
            checksums[RECIPE] = files.checksum_of(written / RECIPE)
        manifests.write(written, manifest.model_copy(update={"checksums": checksums}))
        # read back from the disk before it gets its name, and before an older checkpoint is removed
        arrays.forget_cached(written / "arrays")
        if problems := store.verify(written, gently=True):
            raise OSError(f"what was written cannot be read back: {'; '.join(problems)}")
        store.commit(written, final)
        store.retain(self._run, saved=manifest.step, keep_last=self._keep_last, held=self._held())

    def _find_lack(self, manifest: Manifest) -> str:
        """Return what a checkpoint needs and the disk does not have; empty if there is room."""
        room, needed = find_room(store.directory_of(self._run), soft=False), FILES_PER_ARRAY * len(manifest.leaves)
        if room.bytes < manifest.bytes:
            return f"it needs {_size(manifest.bytes)}"
        return f"it needs {needed:,} files, and there is room for {room.files:,.0f}" if room.files < needed else ""

    def _keep_as(self, step: int, kind: Kind, started: float) -> Saved:
        directory = store.directory_of(self._run) / str(step)
        read: list[Manifest] = []

        def write() -> None:
            manifest = manifests.read(directory)
            longer = max(kind, manifest.kind, key=KINDS.index)
            read.append(manifest.model_copy(update={"kind": longer}))
            if hosts.is_first():
                manifests.write(directory, read[0])

        try:
            self._in_turn("kept", write)
        except (OSError, ValueError) as error:
            raise _cannot_write(directory, error) from error
        return self._finish_save(read[0], started)

    def _finish_save(self, manifest: Manifest, started: float) -> Saved:
        path = store.directory_of(self._run) / str(manifest.step)
        seconds = time.monotonic() - started
        return Saved(manifest.step, manifest.kind, str(path.relative_to(self._run)), manifest.bytes, seconds)


def _shard_shape(leaf: jax.Array) -> tuple[int, ...]:
    return leaf.sharding.shard_shape(leaf.shape)


def _cannot_write(path: Path, error: Exception) -> TrainkitError:
    try:
        room = find_room(path, soft=False)
        free = f"{_size(room.bytes)} are free there"
    except OSError:
        free = "the space left there is unknown"
    return TrainkitError(
        f"the checkpoint cannot be written: {arrays.message_of(error)}; {free}",
        where=str(path),
        hint="make room or make it writable, then: trainkit resume RUN; earlier checkpoints are untouched",
        exit_code=FAILED,
    )


def _size(count: float) -> str:
    return f"{count / 1e9:.2f} GB" if count >= 1e8 else f"{count / 1e6:.2f} MB"
