"""`aim.json` and its like: which run of a tracker a run is, and how far its log has been copied there."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from trainkit.track.projections import Name


@dataclass
class TrackerProgress:
    run: str
    """What the tracker calls the run, the same for every attempt: of Aim the hash, of W&B the id."""
    repository: str
    """Where it is kept: of Aim the directory that holds `.aim`, of W&B the mode and the project."""
    offset: int = 0
    """Bytes of the event log whose events have been copied."""
    last_step: int = 0
    """The furthest step among them, messages not counted: what a course that is given up leaves to be forgotten."""
    messages: int = 0
    """Alerts, commands and log lines among them: their steps in Aim, as several may happen at one step of training."""
    attempt: int = 0
    """The newest attempt seen."""
    pid: int | None = None
    process_started: float | None = None
    """Of the trainer of that attempt."""
    finished: bool = False
    """Whether that attempt has ended and said so."""


def read(run_directory: Path, name: Name) -> TrackerProgress | None:
    """None where there is none, or where it is not one that this version wrote."""
    try:
        found: Any = json.loads((run_directory / f"{name}.json").read_text(encoding="utf-8"))
        return TrackerProgress(**found)
    except (FileNotFoundError, ValueError, TypeError):
        return None


def write(run_directory: Path, name: Name, progress: TrackerProgress) -> None:
    """Replace it at once."""
    fresh = run_directory / f".{name}.json"
    fresh.write_text(json.dumps(asdict(progress)), encoding="utf-8")
    fresh.replace(run_directory / f"{name}.json")
