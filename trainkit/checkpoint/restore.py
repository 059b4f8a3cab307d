"""Restoring: leaves are found by name and sharded as the template says, whatever mesh wrote them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import jax
import numpy as np
from jax.sharding import Sharding, SingleDeviceSharding

from trainkit.checkpoint import arrays, store
from trainkit.checkpoint import manifest as manifests
from trainkit.checkpoint.arrays import Box, describe
from trainkit.checkpoint.leaves import Template, leaf_of, named_leaves
from trainkit.checkpoint.manifest import DamagedCheckpoint, Leaf, Manifest
from trainkit.errors import FAILED, TrainkitError
from trainkit.parallel import agreement, hosts

T = TypeVar("T")


def restore(directory: Path, template: Any, *, under: str = "") -> Any:
    """Return the state in a checkpoint, in the structure of `template`.

    Args:
        directory: `runs/NAME/checkpoints/STEP`.
        template: a pytree of arrays or `jax.ShapeDtypeStruct`. A leaf without a sharding goes to the first device.
        under: the part to restore, such as `params`; `template` is then that part, and the rest is not read.

    Raises:
        TrainkitError: leaves, shapes, dtypes or PRNGs differ from the template's; the message names all of them.
        DamagedCheckpoint: a file is missing or fails its checksum.
    """
    manifest = manifests.read(directory)
    targets = named_leaves(template, under=under)
    stored = {name: leaf for name, leaf in manifest.leaves.items() if _within(name, under)}
    _check(directory, targets, stored)
    opened, problems = arrays.open_all(directory / "arrays", stored, manifest.checksums)
    if problems:
        raise DamagedCheckpoint("; ".join(problems), where=str(directory))
    try:
        restored = _read(opened, targets, stored)
    except ValueError as error:
        raise DamagedCheckpoint(arrays.message_of(error), where=str(directory)) from error
    return jax.tree.unflatten(jax.tree.structure(template), [restored[name] for name in targets])


def restore_newest(
    run_directory: Path, read: Callable[[Path], T], *, on_damaged: Callable[[Path, TrainkitError], None]
) -> tuple[T, Manifest] | None:
    """Return what `read` restores from the newest whole checkpoint, and its manifest; None if the run has none.

    `on_damaged` is called for each directory from which `read` raises DamagedCheckpoint, the newest first.

    Raises:
        TrainkitError: every checkpoint is damaged; and whatever else `read` raises.
    """
    directories = hosts.from_first(lambda: store.step_directories(run_directory))
    for directory in reversed(directories):
        restored, problem = None, None
        try:
            restored = read(directory), manifests.read(directory)
        except DamagedCheckpoint as error:
            problem = error.problem
        # each process reads its own parts: the checkpoint is whole only if all of them can
        problem = agreement.first_problem(f"restored/{directory.name}", problem)
        if restored is not None and problem is None:
            return restored
        on_damaged(directory, DamagedCheckpoint(problem or "", where=str(directory)))
    if directories:
        steps = ", ".join(directory.name for directory in directories)
        raise TrainkitError(
            f"no checkpoint is whole; all are damaged: {steps}",
            where=str(run_directory),
            hint="start again under another name: trainkit run RECIPE --name NAME",
            exit_code=FAILED,
        )
    return None


def box_of(index: tuple[slice, ...], shape: tuple[int, ...]) -> Box:
    """Return the part of an array that an index of `jax.sharding` selects."""
    return tuple(part.indices(size)[:2] for part, size in zip(index, shape, strict=True))


def _within(name: str, under: str) -> bool:
    return not under or name == under or name.startswith(f"{under}.")


def _check(directory: Path, targets: dict[str, Template], stored: dict[str, Leaf]) -> None:
    wanted = {name: leaf_of(template) for name, template in targets.items()}
    lines = [f"{name}: {_show(leaf)} is not in the checkpoint" for name, leaf in wanted.items() if name not in stored]
    lines += [f"{name}: {_show(leaf)} is not in the state" for name, leaf in stored.items() if name not in wanted]
    lines += [
        f"{name}: the checkpoint has {_show(stored[name])}, the state {_show(leaf)}"
        for name, leaf in wanted.items()
        if name in stored and stored[name] != leaf
    ]
    if lines:
        raise TrainkitError(
            "the checkpoint does not fit the state:\n" + "\n".join(f"  {line}" for line in sorted(lines)),
            where=str(directory),
            hint="model, optimizer and precision must be those of the run that wrote it",
        )


def _show(leaf: Leaf) -> str:
    return f"key<{leaf.impl}>" if leaf.kind == "key" else describe(leaf.shape, leaf.dtype)


def _read(opened: dict[str, Any], targets: dict[str, Template], stored: dict[str, Leaf]) -> dict[str, jax.Array]:
    """Read each distinct part once, however many devices hold it, and place each leaf once all its parts are read."""
    parts: dict[str, dict[Box, np.ndarray]] = {}
    restored: dict[str, jax.Array] = {}

    def place_if_complete(label: tuple[str, Box, bool], part: np.ndarray) -> None:
        name, box, last = label
        parts.setdefault(name, {})[box] = part
        if last:
            restored[name] = _place(parts.pop(name), targets[name], stored[name])

    with arrays.WriteWindow(place_if_complete) as window:
        for name, leaf in stored.items():
            boxes = _boxes(targets[name], leaf)
            for i, box in enumerate(boxes):
                size = _part_bytes(opened[name], box)
                window.add(arrays.read_part(opened[name], box), size, (name, box, i == len(boxes) - 1))
    return restored


def _part_bytes(array: Any, box: Box) -> int:
    return int(np.prod([stop - start for start, stop in box], dtype=np.int64)) * array.dtype.numpy_dtype.itemsize


def _boxes(template: Template, leaf: Leaf) -> list[Box]:
    if leaf.kind == "key":
        return [tuple((0, size) for size in leaf.shape)]
    indices = _sharding(template).addressable_devices_indices_map(leaf.shape).values()
    return list(dict.fromkeys(box_of(index, leaf.shape) for index in indices if index is not None))


def _place(parts: dict[Box, np.ndarray], template: Template, leaf: Leaf) -> jax.Array:
    sharding = _sharding(template)
    if leaf.kind == "key":
        (data,) = parts.values()
        placed = jax.make_array_from_callback(data.shape, sharding, lambda index: data[index])
        return jax.device_put(jax.random.wrap_key_data(placed, impl=leaf.impl), sharding)

    def part(index: tuple[slice, ...] | None) -> np.ndarray:
        assert index is not None, "every device of this process holds a part"
        return parts[box_of(index, leaf.shape)]

    return jax.make_array_from_callback(leaf.shape, sharding, part)


def _sharding(template: Template) -> Sharding:
    return template.sharding or SingleDeviceSharding(jax.devices()[0])
