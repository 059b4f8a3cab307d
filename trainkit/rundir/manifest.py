"""What lies in a run's `checkpoints/`, as it is shown: which there are, and what a manifest says. Imports no jax."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from trainkit.rundir import marks
from trainkit.text import format_bytes, format_time

#: Bytes of a manifest that are read at most; those of large models have a few hundred thousand.
MOST_BYTES = 1 << 24


def present(run_directory: Path) -> dict[int, bool] | None:
    """The steps that have a directory, and whether there is a manifest in it; None where that cannot be seen."""
    try:
        with os.scandir(run_directory / "checkpoints") as found:
            return {int(e.name): os.path.exists(os.path.join(e.path, "manifest.json")) for e in found if _is_step(e)}
    except FileNotFoundError:
        return {}
    except OSError:
        return None


def kept(run_directory: Path) -> frozenset[int]:
    """The steps whose checkpoints a person has marked to be kept."""
    where = run_directory / "checkpoints"
    return frozenset(step for step in present(run_directory) or () if marks.is_marked(where / str(step)))


def manifest_facts(directory: Path) -> list[tuple[str, str]]:
    """What a checkpoint's manifest says, as (label, text); one fact that says what is wrong where it cannot be read."""
    try:
        with (directory / "manifest.json").open("rb") as file:
            manifest = json.loads(file.read(MOST_BYTES))
    except OSError as error:
        return [("manifest", f"it cannot be read: {error.strerror}")]
    except (ValueError, RecursionError) as error:
        return [("manifest", f"it is not JSON: {error}")]
    if not isinstance(manifest, dict):
        return [("manifest", "it is not a table")]
    facts = [(_LABELS[key], _said(key, manifest[key])) for key in _LABELS if key in manifest]
    return [(label, text) for label, text in facts if text]


_LABELS = {
    "kind": "kind", "mesh": "mesh", "devices": "devices", "bytes": "size", "leaves": "arrays", "metrics": "metrics",
    "created": "written", "attempt": "attempt", "versions": "versions", "recipe": "recipe", "data": "data",
    "aim_run": "Aim run",
}  # fmt: skip


def _said(key: str, value: Any) -> str:
    match key, value:
        case "devices", list():
            return ", ".join(f"{value.count(kind)} × {kind}" for kind in dict.fromkeys(map(str, value)))
        case "mesh", dict():
            return " × ".join(f"{axis} {size}" for axis, size in value.items()) or "none: one device"
        case "leaves", dict():
            return f"{len(value):,}"
        case "bytes", int() if 0 <= value < 1 << 63:
            return format_bytes(value)
        case "created", int() | float():
            return format_time(value)
        case _, dict():
            return ", ".join(f"{name} {inner}" for name, inner in value.items())
        case _, None:
            return ""
        case _:
            return str(value)


def _is_step(entry: os.DirEntry[str]) -> bool:
    return entry.name.isascii() and entry.name.isdecimal() and entry.is_dir()
