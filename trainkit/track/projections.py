"""Which trackers exist, what each needs, and `aim.json` and its like: how far a run has been copied. Imports none of
them."""

from __future__ import annotations

import importlib.util
import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple, Protocol, get_args

from trainkit.errors import TrainkitError
from trainkit.events.schema import Event
from trainkit.recipe.sections.outputs import Track

Name = Literal["aim", "tensorboard", "wandb"]
NAMES: tuple[Name, ...] = get_args(Name)


class About(NamedTuple):
    title: str
    package: str
    """What has to be installed; those but Aim's come with an extra of the projection's name."""


ABOUT: dict[Name, About] = {
    "aim": About("Aim", "aim"),
    "tensorboard": About("TensorBoard", "tensorboardX"),
    "wandb": About("W&B", "wandb"),
}


@dataclass
class TrackerProgress:
    """Which run of a tracker a run is, and how much of its log the tracker has."""

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


class Projection(Protocol):
    """A run in one tracker, opened for writing."""

    progress: TrackerProgress
    """How far the log has been copied: the place from which to go on, and kept up to date by whoever copies."""

    def set_recipe(self, recipe: dict[str, Any]) -> None:
        """Keep the resolved recipe."""

    def write(self, event: Event) -> None:
        """Keep what an event says, if anything."""

    def forget_beyond(self, step: int) -> bool:
        """Delete what was written of later steps: a course that was given up.

        False where the tracker cannot: then it is to be opened again, and told everything from the beginning.
        """

    def close(self) -> None:
        """Let others see all that was written."""


def enabled(spec: Track) -> list[Name]:
    """Return the trackers that a recipe turns on."""
    return [name for name in NAMES if getattr(spec, name)]


def installed(name: Name) -> bool:
    """Return whether a tracker's package is installed. A directory of that name, such as W&B makes, does not count."""
    found = importlib.util.find_spec(ABOUT[name].package)
    return found is not None and found.origin is not None


def require(name: Name) -> None:
    """Raise TrainkitError, which names the extra to install, where the package of a tracker is missing."""
    if not installed(name):
        title, package = ABOUT[name]
        how = f"uv sync --extra {name}   or   pip install 'trainkit[{name}]'" if name != "aim" else "pip install aim"
        raise TrainkitError(f"{title} needs {package}, which is not installed", where=f"track.{name}", hint=how)


def read_progress(run_directory: Path, name: Name) -> TrackerProgress | None:
    """Return how far a tracker has been brought; None where it never was, or another version wrote the file."""
    try:
        found: Any = json.loads((run_directory / f"{name}.json").read_text(encoding="utf-8"))
        return TrackerProgress(**found)
    except (FileNotFoundError, ValueError, TypeError):
        return None


def write_progress(run_directory: Path, name: Name, progress: TrackerProgress) -> None:
    """Replace the file of the tracker's progress in one go."""
    fresh = run_directory / f".{name}.json"
    fresh.write_text(json.dumps(asdict(progress)), encoding="utf-8")
    fresh.replace(run_directory / f"{name}.json")
