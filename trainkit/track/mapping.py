"""What of an event goes where in Aim. Pure: knows neither aim nor the disk.

- `step` and `evaluated`: one metric a path, under the path itself, such as `train/loss`. Its context is
  `{"subset": "train"}` or `{"subset": "validation"}` where the path begins so, and empty elsewhere.
- `sampled`: text `samples`, context `{"prompt": …}`.
- `alert` and `log`: the run's messages.
- `run_started`, `planned` and `run_finished`: parameters `run`, `plan` and `status`; the resolved recipe is `recipe`.

The step in Aim is the step of training. Metrics and texts beyond the step from which a run is resumed are deleted.
"""

from __future__ import annotations

import logging
from typing import Any

from trainkit.events.log import number
from trainkit.events.schema import Event

SUBSETS = ("train", "validation")
_LEVELS = {"info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}


def context(path: str) -> dict[str, str]:
    """The Aim context of a metric."""
    subset = path.split("/", 1)[0]
    return {"subset": subset} if subset in SUBSETS else {}


def metrics(event: Event) -> dict[str, float]:
    """The metrics of an event as numbers, not finite ones too: Aim keeps those."""
    if event["type"] not in ("step", "evaluated"):
        return {}
    return {path: number(value) for path, value in event["metrics"].items()}


def message(event: Event) -> tuple[int, str] | None:
    """(level of `logging`, text) of an event that is a message."""
    if event["type"] == "alert":
        return logging.WARNING, f"{event['kind']}: {event['message']}"
    if event["type"] == "log":
        return _LEVELS.get(event["level"], logging.INFO), event["message"]
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
