"""`aim.json`: to which Aim run a run belongs, and how far its log has been copied there."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

NAME = "aim.json"


@dataclass
class Progress:
    run: str
    """Hash of the Aim run, the same for every attempt."""
    repository: str
    """Directory that holds `.aim`."""
    offset: int = 0
    """Bytes of the event log whose events are in Aim."""
    last_step: int = 0
    """The furthest step of training among them."""
    messages: int = 0
    """Alerts and log lines among them: their steps in Aim, where several may happen at one step of training."""
    attempt: int = 0
    """The newest attempt seen."""
    pid: int | None = None
    process_started: float | None = None
    """Of the trainer of that attempt."""
    finished: bool = False
    """Whether that attempt has ended and said so."""


def read(run_directory: Path) -> Progress | None:
    """None where there is none, or where it is not one that this version wrote."""
    try:
        found: Any = json.loads((run_directory / NAME).read_text(encoding="utf-8"))
        return Progress(**found)
    except (FileNotFoundError, ValueError, TypeError):
        return None


def write(run_directory: Path, progress: Progress) -> None:
    """Replace it at once."""
    fresh = run_directory / f".{NAME}"
    fresh.write_text(json.dumps(asdict(progress)), encoding="utf-8")
    fresh.replace(run_directory / NAME)
