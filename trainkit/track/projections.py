"""Which trackers there are, and what each needs. Imports none of them."""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol, get_args

from trainkit.errors import TrainkitError
from trainkit.events.schema import Event
from trainkit.recipe.sections.track import Track

if TYPE_CHECKING:
    from trainkit.track.progress import TrackerProgress

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


def asked(spec: Track) -> list[Name]:
    """The trackers that a recipe asks for."""
    return [name for name in NAMES if getattr(spec, name)]


def installed(name: Name) -> bool:
    """Whether its package is here. A directory of the same name, as W&B makes them, is none."""
    found = importlib.util.find_spec(ABOUT[name].package)
    return found is not None and found.origin is not None


def require(name: Name) -> None:
    """Raise TrainkitError, which names the extra to install, where the package of a tracker is missing."""
    if not installed(name):
        title, package = ABOUT[name]
        how = f"uv sync --extra {name}   or   pip install 'trainkit[{name}]'" if name != "aim" else "pip install aim"
        raise TrainkitError(f"{title} needs {package}, which is not installed", where=f"track.{name}", hint=how)
