"""Which trackers exist and what each needs, what of an event they keep, and how far a run has been copied to them.

Imports no tracker. A number keeps its whole path as its name, as in the log, such as `validation/held-out/loss`. Aim's
context repeats what parts of the path mean, to group and select by:

| path                                | context                                   |
|-------------------------------------|-------------------------------------------|
| `train/…`                           | `{"subset": "train"}`                     |
| `validation/NAME/…`                 | `{"subset": "validation", "set": NAME}`   |
| `…/layers/3`, `…/layers/3/…`        | `{"layer": 3}`                            |
| `data/epochs/NAME`                  | `{"source": NAME}`                        |
| `memory/device/0` and the like      | `{"device": 0}`                           |
| `host/core/0`                       | `{"core": 0}`                             |

- `step` and `evaluated`: metrics. `statistics`: metrics, with the number of the layer in the path, such as
  `gradients/l2/layers/3/mlp_in.weight`. `distributions`: histograms, by the same rule.
- `sampled`: text `samples`, and an image `images` where there is one, context `{"prompt": …}`.
- `checkpoint_saved`: an artifact by reference (`aim_run.py` says why).
- `alert`, `log` and `control`: the run's messages.
- `run_started`, `planned` and `run_finished`: parameters `run`, `plan` and `status`; the resolved recipe is `recipe`;
  of a trial of a sweep, `sweep` has the sweep's `name`, the number of the `trial` and the `parameters` that it sets.

The step is that of training. What lies beyond the step from which a run resumes is deleted; messages stay.
"""

from __future__ import annotations

import importlib.util
import logging
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple, Protocol, get_args

from trainkit import files
from trainkit.errors import FAILED, TrainkitError
from trainkit.events.plain_log import text
from trainkit.events.schema import Event
from trainkit.events.tail import number
from trainkit.recipe.optimizers.parameters import is_stacked
from trainkit.recipe.sections.outputs import Track
from trainkit.rundir import checkpoint_files
from trainkit.text import neutralise

Name = Literal["aim", "tensorboard", "wandb"]
NAMES: tuple[Name, ...] = get_args(Name)

_LEVELS = {"info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}
#: Named groups become context; those that are numbers, numbers.
_CONTEXTS = (
    re.compile(r"(?P<subset>train)/"),
    re.compile(r"(?P<subset>validation)/((?P<set>.+)/)?"),
    re.compile(r"(.*/)?layers/(?P<layer>\d+)(/|$)", re.ASCII),
    re.compile(r"data/epochs/(?P<source>.+)"),
    re.compile(r"\w+/device(_peak)?/(?P<device>\d+)$", re.ASCII),
    re.compile(r"host/core/(?P<core>\d+)$", re.ASCII),
)
NUMBERED = ("layer", "device", "core")


class About(NamedTuple):
    """What a person should know about a tracker."""

    title: str
    package: str
    """What must be installed; except for Aim's, an extra of the tracker's name brings it."""


ABOUT: dict[Name, About] = {
    "aim": About("Aim", "aim"),
    "tensorboard": About("TensorBoard", "tensorboardX"),
    "wandb": About("W&B", "wandb"),
}


@dataclass
class TrackerProgress:
    """How the tracker names a run, and how much of the run's log it has."""

    run: str
    """The tracker's name for the run, the same for every attempt: Aim's hash, W&B's id."""
    repository: str
    """Where it is kept: for Aim the directory that holds `.aim`, for W&B the mode and the project."""
    offset: int = 0
    """Bytes of the event log whose events have been copied."""
    last_step: int = 0
    """The furthest step among them, without messages; an attempt that resumes before it makes some of them obsolete."""
    messages: int = 0
    """The number of messages among them, which are the steps of messages in Aim: a training step may have several."""
    attempt: int = 0
    """The newest attempt in the events copied."""
    pid: int | None = None
    process_started: float | None = None
    """When the trainer of that attempt started."""
    finished: bool = False
    """Whether that attempt recorded its end."""


class Projection(Protocol):
    """A run in one tracker, opened for writing."""

    progress: TrackerProgress
    """How far the log has been copied; `tail.py` keeps it up to date."""

    def set_recipe(self, recipe: dict[str, Any]) -> None:
        """Keep the resolved recipe."""

    def set_sweep(self, sweep: dict[str, Any]) -> None:
        """Keep which trial of a sweep this is: `name`, `trial`, and `parameters`, the tables of the keys that it
        sets."""

    def write(self, event: Event) -> None:
        """Keep what an event says, if anything."""

    def forget_beyond(self, step: int) -> bool:
        """Delete everything about later steps, and return whether the tracker can do that.

        If it cannot, the caller opens it again and copies the log from the beginning.
        """

    def close(self) -> None:
        """Close the run, so that others see everything that was written."""


def enabled_trackers(spec: Track) -> list[Name]:
    """Return the trackers that a recipe turns on."""
    return [name for name in NAMES if getattr(spec, name)]


def is_installed(name: Name) -> bool:
    """Return whether a tracker's package is installed. A mere directory of its name does not count."""
    spec = importlib.util.find_spec(ABOUT[name].package)
    return spec is not None and spec.origin is not None


def require(name: Name) -> None:
    """Raise TrainkitError, which names the extra to install, where the package of a tracker is missing."""
    if not is_installed(name):
        title, package = ABOUT[name]
        how = f"uv sync --extra {name}   or   pip install 'trainkit[{name}]'" if name != "aim" else "pip install aim"
        raise TrainkitError(f"{title} needs {package}, which is not installed", where=f"track.{name}", hint=how)


def read_progress(run_directory: Path, name: Name) -> TrackerProgress | None:
    """Return how far a run has been copied; None if it never was, or if another version wrote the file."""
    try:
        return TrackerProgress(**files.read_json(run_directory / f"{name}.json"))
    except (FileNotFoundError, ValueError, TypeError):
        return None


def known_progress(run_directory: Path, name: Name, repository: Path) -> TrackerProgress | None:
    """Return how far a run has been copied, as `read_progress`; where Aim's file is damaged, from the beginning of the
    log into the Aim run that a checkpoint names, which lies in `repository`.

    Raises TrainkitError where the file is damaged and what the tracker calls the run is unknown: it must not be copied
    into a second one.
    """
    path = run_directory / f"{name}.json"
    progress = read_progress(run_directory, name)
    if progress is not None or not path.exists():
        return progress
    if name == "aim" and (known := checkpoint_files.aim_run(run_directory)) is not None:
        return TrackerProgress(run=known, repository=str(repository.resolve()))
    raise TrainkitError(
        f"it is damaged, and it alone knows which run of {ABOUT[name].title} is this one",
        where=str(path),
        hint="delete it, and the whole run is copied into a new one",
        exit_code=FAILED,
    )


def write_progress(run_directory: Path, name: Name, progress: TrackerProgress) -> None:
    """Replace the file of a tracker's progress."""
    files.write_json(run_directory / f"{name}.json", asdict(progress))


def not_copied(run_directory: Path, size: int) -> list[str]:
    """Return the trackers of a run, by their titles, that have less than `size` bytes of its log."""
    known = {name: read_progress(run_directory, name) for name in NAMES if (run_directory / f"{name}.json").exists()}
    return [ABOUT[name].title for name, progress in known.items() if progress is None or progress.offset != size]


def have_moved(run_directory: Path, moved: Callable[[int], int]) -> None:
    """Record that another log takes the place of a run's: `moved` returns where in it lies what was at a byte. Raises
    OSError."""
    for name in NAMES:
        if (progress := read_progress(run_directory, name)) is not None:
            progress.offset = moved(progress.offset)
            write_progress(run_directory, name, progress)


def all_copied(run_directory: Path, size: int) -> None:
    """Record that all trackers of a run have all `size` bytes of its log. Raises OSError."""
    have_moved(run_directory, lambda _: size)


class Distribution(NamedTuple):
    """Counts of values in bins of equal width between `low` and `high`."""

    low: float
    high: float
    counts: list[int]

    def edges(self) -> list[float]:
        """Return the edges of the bins, one more than bins."""
        bins = len(self.counts)
        return [self.low + (self.high - self.low) * i / bins for i in range(bins)] + [self.high]


def context(path: str) -> dict[str, str | int]:
    """Return the Aim context of a metric or a distribution."""
    values: dict[str, str | int] = {}
    for pattern in _CONTEXTS:
        if match := pattern.match(path):
            known = {key: value for key, value in match.groupdict().items() if value is not None}
            values |= {key: int(value) if key in NUMBERED else value for key, value in known.items()}
    return values


def metrics(event: Event) -> dict[str, float]:
    """Return the metrics of an event as numbers, which may be infinite or nan."""
    if event["type"] == "statistics":
        return {
            name: number(value) for path, values in event["values"].items() for name, value in _layers(path, values)
        }
    if event["type"] not in ("step", "evaluated"):
        return {}
    return {path: number(value) for path, value in event["metrics"].items()}


def _layers(path: str, values: list[Any]) -> Iterator[tuple[str, Any]]:
    """Yield the values of a parameter with their names: those of a stack of layers have the number of the layer."""
    statistic, _, parameter = path.rpartition("/")
    if not is_stacked(parameter):
        yield path, values[0]
        return
    for layer, value in enumerate(values):
        yield f"{statistic}/layers/{layer}/{parameter.partition('.')[2]}", value


def distributions(event: Event) -> dict[str, Distribution]:
    """Return the histograms of an event by name. Raises ValueError if one has no bins or no proper bounds."""
    if event["type"] != "distributions":
        return {}
    histograms = {
        name: Distribution(number(value["low"]), number(value["high"]), [int(count) for count in value["counts"]])
        for name, value in event["values"].items()
    }
    for name, histogram in histograms.items():
        if not (histogram.counts and float("-inf") < histogram.low <= histogram.high < float("inf")):
            raise ValueError(f"{name} is not a distribution")
    return histograms


def message(event: Event) -> tuple[int, str] | None:
    """Return (level of `logging`, text without control characters) of an event that is a message; None of others."""
    match event["type"]:
        case "alert":
            return logging.WARNING, neutralise(f"{event['kind']}: {event['message']}")
        case "log":
            return _LEVELS.get(event["level"], logging.INFO), neutralise(event["message"])
        case "control":
            return logging.INFO, text(event) or ""
    return None


def parameters(event: Event) -> dict[str, Any]:
    """Return what an event says about the run as a whole, by the key under which Aim keeps it."""
    if event["type"] == "run_started":
        keys = ("name", "host", "recipe", "attempt", "resumed_from", "versions")
        return {"run": {key: event[key] for key in keys}}
    if event["type"] == "planned":
        return {"plan": {**event["plan"], "total_steps": event["total_steps"], "devices": event["devices"]}}
    if event["type"] == "run_finished":
        return {"status": event["status"]}
    return {}


def flat(recipe: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str | int | float | bool]]:
    """Yield the values of a recipe with their dotted keys; values other than numbers, texts and booleans as text."""
    for key, value in recipe.items():
        if isinstance(value, Mapping):
            yield from flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value if isinstance(value, str | int | float | bool) else str(value)
