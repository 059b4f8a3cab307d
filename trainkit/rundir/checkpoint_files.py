"""The `checkpoints/` of a run as viewers see them: which exist, what their manifests say, and their marks.

A person marks a checkpoint to be kept with an empty file in its directory, the one thing that a viewer writes into a
run; it is then never removed. The trainer writes the reason into the file where it sets such a mark itself, and marks
the best checkpoint in `checkpoints/best.json`.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, NamedTuple

from trainkit import files
from trainkit.text import format_bytes, format_time

NAME = "keep"
#: The file in `checkpoints/` that names the best checkpoint.
BEST = "best.json"
#: The most bytes of a manifest that are read; the manifests of large models have a few hundred thousand.
MOST_BYTES = 1 << 24
_LABELS = {
    "kind": "kind", "mesh": "mesh", "devices": "devices", "bytes": "size", "leaves": "arrays", "metrics": "metrics",
    "created": "written", "attempt": "attempt", "versions": "versions", "recipe": "recipe", "data": "data",
    "aim_run": "Aim run",
}  # fmt: skip


def is_marked(checkpoint: Path) -> bool:
    """Return whether the checkpoint in this directory is marked to be kept."""
    return os.path.lexists(checkpoint / NAME)


def reason_of_mark(checkpoint: Path) -> str:
    """Return why the trainer has marked a checkpoint; empty where a person has, or nobody."""
    try:
        return (checkpoint / NAME).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def mark(checkpoint: Path, *, keep: bool, reason: str = "") -> None:
    """Set or remove the mark that keeps this checkpoint; a person's has no reason. Raises OSError: FileNotFoundError if
    the checkpoint is gone."""
    if keep:
        file = os.open(checkpoint / NAME, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
        try:
            os.write(file, reason.encode())
        finally:
            os.close(file)
    else:
        os.unlink(checkpoint / NAME)


class BestMark(NamedTuple):
    """Which checkpoint is the best by `checkpoint.best`, and why."""

    step: int
    metric: str
    value: float


def best(run_directory: Path) -> BestMark | None:
    """Return the mark of a run's best checkpoint; None if there is none that can be read."""
    try:
        found = files.read_json(run_directory / "checkpoints" / BEST)
        return BestMark(int(found["step"]), str(found["metric"]), float(found["value"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None


def mark_best(run_directory: Path, mark: BestMark | None) -> None:
    """Write the mark of a run's best checkpoint, or remove it. Raises OSError."""
    path = run_directory / "checkpoints" / BEST
    if mark is None:
        path.unlink(missing_ok=True)
        return
    files.write_json(path, mark._asdict())


def aim_run(run_directory: Path) -> str | None:
    """Return the hash of the Aim run that the newest checkpoint with one names; None if there is none."""
    for step in sorted(present(run_directory) or (), reverse=True):
        try:
            found = files.read_json(run_directory / "checkpoints" / str(step) / "manifest.json").get("aim_run")
        except (OSError, ValueError):
            continue
        if found:
            return str(found)
    return None


def present(run_directory: Path) -> dict[int, bool] | None:
    """Return the steps that have a directory, and whether each has a manifest; None if they cannot be listed."""
    try:
        with os.scandir(run_directory / "checkpoints") as found:
            return {int(e.name): os.path.exists(os.path.join(e.path, "manifest.json")) for e in found if _is_step(e)}
    except FileNotFoundError:
        return {}
    except OSError:
        return None


def kept_steps(run_directory: Path) -> frozenset[int]:
    """Return the steps whose checkpoints are marked to be kept."""
    where = run_directory / "checkpoints"
    return frozenset(step for step in present(run_directory) or () if is_marked(where / str(step)))


def manifest_facts(directory: Path) -> list[tuple[str, str]]:
    """Return the content of a checkpoint's manifest as (label, text) pairs; one pair with the problem if it cannot be
    read."""
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
