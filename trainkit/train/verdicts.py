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
#: The end of messages about a run that was stopped.
STOPPED = "; the run was stopped"


class Incident(NamedTuple):
    """A step that broke, and what was done."""

    step: int
    """Completed updates after it: its batch is that of `step` - 1."""
    action: str
    """`stop`, `skip` or `rollback`."""
    message: str
    recent: tuple[tuple[int, Mapping[str, float]], ...]
    """The metrics of the last steps, this one included."""


class Rollback(NamedTuple):
    """Why a run must go back to a checkpoint, and the steps that it leaves out from then on."""

    step: int
    left_out: tuple[int, ...]
    problem: str


class MustRollBack(Broken):
    """The run must go back to an earlier checkpoint."""

    def __init__(self, rollback: Rollback) -> None:
        super().__init__(rollback.problem, where=f"step {rollback.step}", exit_code=FAILED)
        self.rollback = rollback


class Verdicts:
    """Judges the metrics of each step as soon as they are on the host, which is while the next step runs.

    All processes of a run see the same metrics, and so come to the same verdicts.
    """

    def __init__(self, spec: Guard, *, log: EventLog, report: Callable[[Incident], None], rollbacks: int = 0) -> None:
        """`report` keeps what is known of an incident, such as in a black box. `rollbacks` of the run came before."""
        self._rollbacks = rollbacks
        self._spec, self._log, self._report = spec, log, report
        self._recent: deque[tuple[int, Mapping[str, float]]] = deque(maxlen=RECENT)

    def check(self, step: int, metrics: Mapping[str, float]) -> None:
        """Judge the metrics of a step.

        Raises:
            MustRollBack: the run must go back to an earlier checkpoint.
            Broken: the run must end, and its state must not be saved.
        """
        self._recent.append((step, metrics))
        if in_a_row := int(metrics.get(SKIPPED_IN_A_ROW, 0)):
            self._skip(step, metrics, in_a_row)
            return
        try:
            check_finite(step, metrics)
        except Broken as error:
            raise self._end(step, self._spec.non_finite, error) from None
        if self._is_spike(metrics):
            raise self._end(step, self._spec.spike, _broken(step, _spike(metrics)))
        if self._spec.divergence is not None and (drift := metrics.get(DRIFT, 0.0)) > self._spec.threshold:
            problem = f"the losses have diverged: their median is {drift:.1f} robust deviations above its lowest value"
            at_least = self._spec.window
            raise self._end(step, self._spec.divergence, _broken(step, problem), at_least=at_least)

    def _end(self, step: int, action: str | None, error: Broken, *, at_least: int = 1) -> Broken:
        """Return the error that ends the loop: `error`, or a rollback of `at_least` so many steps."""
        if action != "rollback":
            self._note(step, "stop", error.problem)
            return error
        if self._rollbacks >= self._spec.max_rollbacks:
            self._note(step, "stop", error.problem)
            times = plural(self._rollbacks, "time")
            return _broken(step, f"{error.problem.removesuffix(STOPPED)}, and the run was rolled back {times} already")
        count = max(self._spec.leave_out, at_least)
        left_out = tuple(range(max(1, step - count + 1), step + 1))
        problem = error.problem.removesuffix(STOPPED)
        self._note(step, "rollback", problem)
        return MustRollBack(Rollback(step, left_out, problem))

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
        problem + STOPPED,
        where=f"step {step}",
        hint="resume from an earlier checkpoint with a lower optimizer.learning_rate or other limits in [guard]",
        exit_code=FAILED,
    )
