"""What in a run's events somebody should look at: a detector that is fed with events and says what is new and wrong.

Losses and gradient norms are judged by the modified z-score of Iglewicz and Hoaglin (How to Detect and Handle Outliers,
1993, section 3.3): 0.6745 (x - median) / MAD over a window of the last values, where the MAD is the median distance
from the median. Neither the median nor the MAD is moved by the very spikes that are looked for. They label what lies
beyond 3.5 as outliers, which of Gaussian noise is one value above in 4,300: right for one sample, and an alert an hour
for a log. So an alert needs `SPIKE`, and what lies below their 3.5 is `NORMAL` again.
"""

from __future__ import annotations

import math
import statistics
from bisect import bisect_left, insort
from collections import deque
from collections.abc import Mapping

from trainkit.events.attempts import kept_until
from trainkit.events.schema import Event
from trainkit.events.tail import number
from trainkit.text import format_quantity

#: (kind, message), the fields of an `alert` event.
Alert = tuple[str, str]

#: Modified z-scores from which on a value is a spike, and below which it is normal (8.9 and 5.2 MADs).
SPIKE, NORMAL = 6.0, 3.5
#: Values that a new one is compared with: at most, and at least.
WINDOW, ENOUGH = 200, 30
#: The least MAD, so that a steady run's next wiggle is no spike: a share of the median loss, for log norms an amount.
#: A spike is then at least 0.9 % above the median loss, or 2.4 times the median norm.
LEAST_LOSS, LEAST_LOG_NORM = 1e-3, 0.1
#: Steps whose median share of waiting for data is judged; the shares that are starvation and that are normal.
SHARES, STARVED, FED = 50, 0.3, 0.2
#: Evaluations in a row that have to be above the best one of their set, and by what share of it.
RISING, ABOVE = 3, 0.01
#: Values in a row that have to be normal before the same kind of alert can be raised again.
CALM = 50


class Watch:
    """Finds problems in a stream of events, given in the order of the log, in constant time per event.

    The kinds are `loss-spike`, `gradient-explosion`, `data-starvation`, `learning-rate-zero`, `validation-rising` (for
    each set separately) and `not-finite`. Each is raised once, when it begins, and again only after a while without it.
    An attempt begins with empty windows. Evaluations up to the step that it resumed from are remembered, if they were
    fed.
    """

    def __init__(self) -> None:
        self._total_steps: int | None = None
        self._sets: dict[str, _Evaluations] = {}
        self._forget_steps()

    def feed(self, event: Event) -> list[Alert]:
        """Take the next event, and return the alerts that it causes, usually none. Events of type `alert` change
        nothing."""
        if (done := kept_until(event)) is not None:
            self._forget_steps()
            for evaluations in self._sets.values():
                evaluations.cut(done)
        match event["type"]:
            case "planned":
                self._total_steps = event["total_steps"]
            case "step":
                return self._step(event["step"], {name: number(value) for name, value in event["metrics"].items()})
            case "evaluated":
                values = {name: number(value) for name, value in event["metrics"].items()}
                return self._finite(event["step"], values) + self._evaluated(event["step"], event["name"], values)
        return []

    def _forget_steps(self) -> None:
        self._losses, self._norms = _Window(WINDOW), _Window(WINDOW)
        self._shares = _Window(SHARES)
        kinds = ("loss-spike", "gradient-explosion", "data-starvation", "learning-rate-zero", "not-finite")
        self._episodes = {kind: _Episode(CALM) for kind in kinds}

    def _step(self, step: int, values: Mapping[str, float]) -> list[Alert]:
        alerts = self._finite(step, values)
        finite = {name: value for name, value in values.items() if math.isfinite(value)}
        if "train/loss" in finite:
            alerts += self._loss(step, finite["train/loss"])
        if "gradients/norm" in finite and finite["gradients/norm"] > 0:
            alerts += self._norm(step, finite["gradients/norm"])
        if "time/data_wait" in finite and "time/step" in finite and finite["time/step"] > 0:
            alerts += self._share(step, finite["time/data_wait"] / finite["time/step"])
        if "optimizer/learning_rate" in finite and self._total_steps is not None and step < self._total_steps:
            alerts += self._rate(step, finite["optimizer/learning_rate"])
        return alerts

    def _finite(self, step: int, values: Mapping[str, float]) -> list[Alert]:
        # a perplexity is infinite long before its loss is, and gradients in float16 while their scale is sought
        usual = ("train/loss", "gradients/norm") if "precision/loss_scale" in values else ()
        broken = [name for name, value in values.items() if not math.isfinite(value)]
        wrong = [name for name in broken if not name.endswith("/perplexity") and name not in usual]
        if not self._episodes["not-finite"].begins(wrong=bool(wrong), normal=not wrong):
            return []
        return [("not-finite", f"step {step}: " + ", ".join(f"{name} is {values[name]}" for name in wrong))]

    def _loss(self, step: int, loss: float) -> list[Alert]:
        median = self._losses.median
        score = self._losses.score(loss, least=LEAST_LOSS * abs(median))
        self._losses.add(loss)
        if not self._episodes["loss-spike"].begins(wrong=score > SPIKE, normal=score < NORMAL):
            return []
        comparison = f"{format_quantity(loss)}, and the median of the last steps is {format_quantity(median)}"
        return [("loss-spike", f"the loss of step {step} is {comparison} (robust z-score {score:.1f})")]

    def _norm(self, step: int, norm: float) -> list[Alert]:
        median = math.exp(self._norms.median)
        score = self._norms.score(math.log(norm), least=LEAST_LOG_NORM)
        self._norms.add(math.log(norm))
        if not self._episodes["gradient-explosion"].begins(wrong=score > SPIKE, normal=score < NORMAL):
            return []
        comparison = f"{format_quantity(norm)}, {norm / median:.1f} times the median of the last steps"
        return [
            ("gradient-explosion", f"the gradient's norm at step {step} is {comparison} (robust z-score {score:.1f})")
        ]

    def _share(self, step: int, share: float) -> list[Alert]:
        self._shares.add(min(1.0, share))
        if len(self._shares) < SHARES:
            return []
        median = self._shares.median
        if not self._episodes["data-starvation"].begins(wrong=median > STARVED, normal=median < FED):
            return []
        return [("data-starvation", f"at step {step} the devices wait for data {median:.0%} of the time")]

    def _rate(self, step: int, rate: float) -> list[Alert]:
        if not self._episodes["learning-rate-zero"].begins(wrong=rate == 0, normal=rate != 0):
            return []
        return [
            ("learning-rate-zero", f"the learning rate of step {step} of {self._total_steps} is 0: nothing is learned")
        ]

    def _evaluated(self, step: int, name: str, values: Mapping[str, float]) -> list[Alert]:
        metric = f"validation/{name}/loss"
        if metric not in values or not math.isfinite(values[metric]):
            return []
        if name not in self._sets:
            self._sets[name] = _Evaluations()
        evaluations = self._sets[name]
        if not evaluations.add(step, values[metric]):
            return []
        newest, best = format_quantity(values[metric]), format_quantity(evaluations.best)
        comparison = f"the last {RISING} losses are above the best one, {best}; at step {step} it is {newest}"
        return [("validation-rising", f"{name}: {comparison}")]


class _Episode:
    """Lasts from the first wrong value until `calm` values in a row were normal."""

    def __init__(self, calm: int) -> None:
        self._calm, self._normal, self._going_on = calm, 0, False

    def begins(self, *, wrong: bool, normal: bool) -> bool:
        """Take the next value, and return whether an episode begins with it. If it is neither, nothing changes."""
        if not self._going_on:
            self._going_on, self._normal = wrong, 0
            return wrong
        self._normal = self._normal + 1 if normal else 0
        self._going_on = self._normal < self._calm
        return False


class _Window:
    """The last `size` values, also sorted: O(log size) comparisons per value."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._values: deque[float] = deque()
        self._sorted: list[float] = []

    def __len__(self) -> int:
        return len(self._values)

    def add(self, value: float) -> None:
        if len(self._values) == self._size:
            del self._sorted[bisect_left(self._sorted, self._values.popleft())]
        self._values.append(value)
        insort(self._sorted, value)

    @property
    def median(self) -> float:
        """Return the median, the upper one of two; 0 without values."""
        return self._sorted[len(self._sorted) // 2] if self._sorted else 0.0

    @property
    def mad(self) -> float:
        """Return the median distance from the median, the upper one of two.

        The nearest values are neighbours in the sorted list; the bisection finds where they begin.
        """
        median, nearest = self.median, len(self._sorted) // 2 + 1
        low, high = 0, len(self._sorted) - nearest
        while low < high:
            middle = (low + high) // 2
            if median - self._sorted[middle] > self._sorted[middle + nearest] - median:
                low = middle + 1
            else:
                high = middle
        return max(median - self._sorted[low], self._sorted[low + nearest - 1] - median)

    def score(self, value: float, *, least: float) -> float:
        """The modified z-score of a value that is not in the window; 0 while there are too few to compare with."""
        if len(self._sorted) < ENOUGH:
            return 0.0
        normal = statistics.NormalDist().inv_cdf(0.75)  # 0.6745, the MAD of a standard normal
        return normal * (value - self.median) / max(self.mad, least, 1e-300)


class _Evaluations:
    """The losses of one set; those beyond a step can be removed again."""

    def __init__(self) -> None:
        #: (step, loss, the best loss so far)
        self._told: list[tuple[int, float, float]] = []
        self._episode = _Episode(RISING)

    @property
    def best(self) -> float:
        return self._told[-1][2]

    def add(self, step: int, loss: float) -> bool:
        """Take an evaluation, which replaces an earlier one of the same step, and return whether an alert is due."""
        self._drop(step - 1)
        self._told.append((step, loss, min(loss, self.best) if self._told else loss))
        limit = self.best + ABOVE * abs(self.best)
        rising = len(self._told) > RISING and all(loss > limit for _, loss, _ in self._told[-RISING:])
        return self._episode.begins(wrong=rising, normal=loss <= limit)

    def cut(self, after: int) -> None:
        """Remove the evaluations beyond step `after`, and the alert."""
        self._drop(after)
        self._episode = _Episode(RISING)

    def _drop(self, after: int) -> None:
        while self._told and self._told[-1][0] > after:
            self._told.pop()
