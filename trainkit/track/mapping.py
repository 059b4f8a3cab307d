"""What of an event is kept where. Pure: knows no tracker and no disk.

One rule for names: a number is kept under its whole path, the same as in the log, such as `validation/held-out/loss`;
nothing is taken out of it. What a part of the path means is said a second time in Aim's context, to group and select
by:

| path                                | context                                   |
|-------------------------------------|-------------------------------------------|
| `train/…`                           | `{"subset": "train"}`                     |
| `validation/NAME/…`                 | `{"subset": "validation", "set": NAME}`   |
| `…/layers/3`, `…/layers/3/…`        | `{"layer": 3}`                            |
| `data/epochs/NAME`                  | `{"source": NAME}`                        |
| `memory/device/0` and the like      | `{"device": 0}`                           |
| `host/core/0`                       | `{"core": 0}`                             |

- `step` and `evaluated`: metrics. `distributions`: histograms, by the same rule.
- `sampled`: text `samples`, and an image `images` where there is one, context `{"prompt": …}`.
- `checkpoint_saved`: an artifact by reference (`aim_run.py` says why).
- `alert`, `log` and `control`: the run's messages.
- `run_started`, `planned` and `run_finished`: parameters `run`, `plan` and `status`; the resolved recipe is `recipe`.

The step is that of training. What lies beyond the step from which a run is resumed is deleted; messages stay.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from trainkit.events.log import number
from trainkit.events.plain_log import text
from trainkit.events.schema import Event
from trainkit.text import neutralise

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


class Distribution(NamedTuple):
    """Counts of values in bins of equal width between `low` and `high`."""

    low: float
    high: float
    counts: list[int]

    def edges(self) -> list[float]:
        """The borders of the bins, one more than there are bins."""
        bins = len(self.counts)
        return [self.low + (self.high - self.low) * i / bins for i in range(bins)] + [self.high]


def context(path: str) -> dict[str, str | int]:
    """The Aim context of a metric or a distribution."""
    found: dict[str, str | int] = {}
    for pattern in _CONTEXTS:
        if match := pattern.match(path):
            known = {key: value for key, value in match.groupdict().items() if value is not None}
            found |= {key: int(value) if key in NUMBERED else value for key, value in known.items()}
    return found


def metrics(event: Event) -> dict[str, float]:
    """The metrics of an event as numbers, not finite ones too."""
    if event["type"] not in ("step", "evaluated"):
        return {}
    return {path: number(value) for path, value in event["metrics"].items()}


def distributions(event: Event) -> dict[str, Distribution]:
    """The histograms of an event by name. Raises ValueError where one has no bins, or bounds that are none."""
    if event["type"] != "distributions":
        return {}
    found = {
        name: Distribution(number(value["low"]), number(value["high"]), [int(count) for count in value["counts"]])
        for name, value in event["values"].items()
    }
    for name, it in found.items():
        if not (it.counts and float("-inf") < it.low <= it.high < float("inf")):
            raise ValueError(f"{name} is no distribution")
    return found


def message(event: Event) -> tuple[int, str] | None:
    """(level of `logging`, text) of an event that is a message; nothing in the text is obeyed by a terminal."""
    match event["type"]:
        case "alert":
            return logging.WARNING, neutralise(f"{event['kind']}: {event['message']}")
        case "log":
            return _LEVELS.get(event["level"], logging.INFO), neutralise(event["message"])
        case "control":
            return logging.INFO, text(event) or ""
    return None


def parameters(event: Event) -> dict[str, Any]:
    """What an event says of the run as a whole, by the key under which Aim keeps it."""
    if event["type"] == "run_started":
        keys = ("name", "host", "recipe", "attempt", "resumed_from", "versions")
        return {"run": {key: event[key] for key in keys}}
    if event["type"] == "planned":
        return {"plan": {**event["plan"], "total_steps": event["total_steps"], "devices": event["devices"]}}
    if event["type"] == "run_finished":
        return {"status": event["status"]}
    return {}


def flat(recipe: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str | int | float | bool]]:
    """The values of a recipe by their dotted keys; what is no number, text or truth value as text."""
    for key, value in recipe.items():
        if isinstance(value, Mapping):
            yield from flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value if isinstance(value, str | int | float | bool) else str(value)
