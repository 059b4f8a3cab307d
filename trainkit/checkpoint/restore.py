"""From disk to the devices: leaves are found by name and laid out as the template says, whatever mesh wrote them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

import jax
import numpy as np
from jax.sharding import Sharding, SingleDeviceSharding

from trainkit.checkpoint import arrays, store
from trainkit.checkpoint import manifest as manifests
from trainkit.checkpoint.arrays import Box, describe
from trainkit.checkpoint.manifest import DamagedCheckpoint, Leaf, Manifest
from trainkit.checkpoint.names import named_leaves
from trainkit.errors import FAILED, TrainkitError

T = TypeVar("T")
#: An array as it should be: its shape, dtype and sharding count, its contents do not.
Template: TypeAlias = jax.Array | jax.ShapeDtypeStruct


def restore(directory: Path, template: Any, *, under: str = "") -> Any:
    """The state in a checkpoint, in the shape of `template`.

    Args:
        directory: `runs/NAME/checkpoints/STEP`.
        template: a pytree of arrays or `jax.ShapeDtypeStruct`; each leaf goes where its sharding says, to the first
            device where it has none.
        under: restores a part, `params` for example: `template` is then that part, and the rest is not read.

    Raises:
        TrainkitError: the template has other leaves, shapes, dtypes or PRNGs than the checkpoint; names all of them.
        DamagedCheckpoint: something is missing or fails its checksum.
    """
    manifest = manifests.read(directory)
    targets = named_leaves(template, under=under)
    stored = {name: leaf for name, leaf in manifest.leaves.items() if _within(name, under)}
    _check(directory, targets, stored)
    opened, problems = arrays.open_all(directory / "arrays", stored)
    if problems:
        raise DamagedCheckpoint("; ".join(problems), where=str(directory))
    try:
        restored = _read(opened, targets, stored)
    except ValueError as error:
        raise DamagedCheckpoint(arrays.said(error), where=str(directory)) from error
    return jax.tree.unflatten(jax.tree.structure(template), [restored[name] for name in targets])


def restore_newest(
    run_directory: Path, read: Callable[[Path], T], *, on_damaged: Callable[[Path, TrainkitError], None]
) -> tuple[T, Manifest] | None:
    """What `read` makes of the newest checkpoint that is whole, with its manifest; None where the run has none.

    `read` is `restore` with a template, or several of them. `on_damaged` is told of every directory from which it
    raises DamagedCheckpoint, newest first. Raises TrainkitError where none is whole, and what else `read` raises.
    """
    directories = store.step_directories(run_directory)
    for directory in reversed(directories):
        try:
            return read(directory), manifests.read(directory)
        except DamagedCheckpoint as error:
            on_damaged(directory, error)
    if directories:
        steps = ", ".join(directory.name for directory in directories)
        raise TrainkitError(
            f"no checkpoint is whole; all are damaged: {steps}",
            where=str(run_directory),
            hint="start anew under another name: trainkit run RECIPE --name NAME",
            exit_code=FAILED,
        )
    return None


def leaf_of(template: Template) -> Leaf:
    """What a leaf is on disk."""
    if jax.dtypes.issubdtype(template.dtype, jax.dtypes.prng_key):
        impl = []

        def trace(key: jax.Array) -> jax.Array:
            impl.append(str(jax.random.key_impl(key)))  # says so of a tracer, not of a ShapeDtypeStruct
            return jax.random.key_data(key)

        data = jax.eval_shape(trace, template)
        return Leaf(shape=data.shape, dtype=str(data.dtype), kind="key", impl=impl[0])
    return Leaf(shape=template.shape, dtype=str(template.dtype))


def box_of(index: tuple[slice, ...], shape: tuple[int, ...]) -> Box:
    """The part of an array that an index of `jax.sharding` means."""
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
    """Read each distinct part once, however many devices hold it; hand each leaf to the devices when it is complete."""
    parts: dict[str, dict[Box, np.ndarray]] = {}
    restored: dict[str, jax.Array] = {}

    def arrived(label: tuple[str, Box, bool], part: np.ndarray) -> None:
        name, box, last = label
        parts.setdefault(name, {})[box] = part
        if last:
            restored[name] = _place(parts.pop(name), targets[name], stored[name])

    with arrays.WriteWindow(arrived) as window:
        for name, leaf in stored.items():
            boxes = _boxes(targets[name], leaf)
            for i, box in enumerate(boxes):
                size = leaf_bytes(opened[name], box)
                window.add(arrays.read_part(opened[name], box), size, (name, box, i == len(boxes) - 1))
    return restored


def leaf_bytes(array: Any, box: Box) -> int:
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
        return jax.device_put(jax.random.wrap_key_data(jax.numpy.asarray(data), impl=leaf.impl), sharding)

    def part(index: tuple[slice, ...] | None) -> np.ndarray:
        assert index is not None, "a device of this process holds no part"
        return parts[box_of(index, leaf.shape)]

    return jax.make_array_from_callback(leaf.shape, sharding, part)


def _sharding(template: Template) -> Sharding:
    return template.sharding or SingleDeviceSharding(jax.devices()[0])
