"""What follows from a step that broke: an alert and a black box, and the end of the run where [guard] asks for it."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Mapping
from typing import NamedTuple

from trainkit.errors import FAILED
from trainkit.events.log import EventLog
from trainkit.recipe.sections.guard import Guard
from trainkit.text import plural
from trainkit.train.guard import DRIFT, SCORE, SKIPPED_IN_A_ROW
from trainkit.train.metrics import WATCHED, Broken, check_finite

#: Steps whose metrics a black box holds.
RECENT = 100


class Incident(NamedTuple):
    """A step that broke, and what was done."""

    step: int
    """Completed updates after it: its batch is that of `step` - 1."""
    action: str
    """`stop` or `skip`."""
    message: str
    recent: tuple[tuple[int, Mapping[str, float]], ...]
    """The metrics of the last steps, this one included."""


class Verdicts:
    """Judges the metrics of each step as soon as they are on the host, which is while the next step runs.

    All processes of a run see the same metrics, and so come to the same verdicts.
    """

    def __init__(self, spec: Guard, *, log: EventLog, report: Callable[[Incident], None]) -> None:
        """`report` keeps what is known of an incident, such as in a black box."""
        self._spec, self._log, self._report = spec, log, report
        self._recent: deque[tuple[int, Mapping[str, float]]] = deque(maxlen=RECENT)

    def check(self, step: int, metrics: Mapping[str, float]) -> None:
        """Judge the metrics of a step.

        Raises:
            Broken: the run must end, and its state must not be saved.
        """
        self._recent.append((step, metrics))
        if in_a_row := int(metrics.get(SKIPPED_IN_A_ROW, 0)):
            self._skip(step, metrics, in_a_row)
            return
        try:
            check_finite(step, metrics)
            self._check_losses(step, metrics)
        except Broken as error:
            self._note(step, "stop", error.problem)
            raise

    def _check_losses(self, step: int, metrics: Mapping[str, float]) -> None:
        """Raise Broken if the loss is a spike or has diverged, and [guard] ends the run then."""
        if self._is_spike(metrics):
            raise _broken(step, _spike(metrics))
        if self._spec.divergence is not None and (drift := metrics.get(DRIFT, 0.0)) > self._spec.threshold:
            problem = f"the losses have diverged: their median is {drift:.1f} robust deviations above its lowest value"
            raise _broken(step, problem)

    def _skip(self, step: int, metrics: Mapping[str, float], in_a_row: int) -> None:
        """Report the first of the steps that are skipped in a row, and end the run at one too many."""
        cause = _spike(metrics) if self._is_spike(metrics) else _not_finite(metrics)
        if in_a_row == 1:
            message = f"step {step} was skipped: {cause}; parameters and optimizer are as before"
            self._log.write("alert", step=step, kind="guard", message=message)
            self._note(step, "skip", cause)
        if in_a_row > self._spec.max_skips:
            error = _broken(step, f"{plural(in_a_row, 'step')} in a row would have to be skipped: {cause}")
            self._note(step, "stop", error.problem)
            raise error

    def _is_spike(self, metrics: Mapping[str, float]) -> bool:
        return self._spec.spike is not None and metrics.get(SCORE, 0.0) > self._spec.threshold

    def _note(self, step: int, action: str, message: str) -> None:
        self._report(Incident(step, action, message, tuple(self._recent)))


def _not_finite(metrics: Mapping[str, float]) -> str:
    wrong = [f"{name} is {metrics[name]}" for name in WATCHED if not math.isfinite(metrics.get(name, 0.0))]
    return " and ".join(wrong) or "the update is not finite"


def _spike(metrics: Mapping[str, float]) -> str:
    return f"train/loss is {metrics.get('train/loss', 0.0):g}, a spike (robust z-score {metrics[SCORE]:.1f})"


def _broken(step: int, problem: str) -> Broken:
    return Broken(
        f"{problem}; the run was stopped",
        where=f"step {step}",
        hint="resume from an earlier checkpoint with a lower optimizer.learning_rate or other limits in [guard]",
        exit_code=FAILED,
    )
