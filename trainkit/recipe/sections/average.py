"""[average]: an average of the parameters over the steps, which evaluations, samples and exports use."""

from __future__ import annotations

from abc import abstractmethod
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import Field

from trainkit.recipe.optimizers.spec import OptimizerSpec
from trainkit.recipe.sections.schedule_spec import Span, span_steps
from trainkit.recipe.sections.train import Train
from trainkit.recipe.spec import Count, Spec
from trainkit.recipe.union import OneOf


class AverageSpec(Spec):
    """What every average has. Until `start` it is the parameters themselves."""

    type: str
    start: Span = 0
    """The step at which averaging begins, with the parameters of that step: an integer is steps, a float a fraction of
    the run."""
    every: Count = 1
    """Steps between two parameters that enter the average."""
    evaluate: bool = True
    """Whether evaluations, the best checkpoint, patience, samples and exports use the average; if not, they use the
    parameters, and `--average` chooses the average later."""

    def first_step(self, steps: int) -> int:
        """Return the step at which averaging begins in a run of `steps`."""
        return span_steps(self.start, steps)

    def check(self, train: Train, optimizer: OptimizerSpec) -> None:
        """Raise ValueError if the run's length does not give its start, or the optimizer computes an average itself."""
        if train.is_timed and isinstance(self.start, float):
            raise ValueError(f"average.start = {self.start} is a fraction of a run whose length is a time: give a step")
        if optimizer.averages_itself is not None:
            raise ValueError(
                f'average.type = "{self.type}" has no use beside optimizer.type = "{optimizer.type}", which computes an'
                " average itself: remove the section [average]"
            )

    @abstractmethod
    def share(self, count: Any) -> Any:
        """Return the share of the next parameters in the average, which contains `count` others, at least one."""


class EmaAverage(AverageSpec):
    """An exponential moving average: each step keeps `decay` of it. It begins with the parameters, so without bias."""

    type: Literal["ema"] = "ema"
    decay: Annotated[float, Field(gt=0, lt=1)] = 0.999
    """The share of the average that remains when parameters enter it."""

    def share(self, count: Any) -> Any:
        return 1 - self.decay


class MeanAverage(AverageSpec):
    """The mean of the parameters (Polyak & Juditsky 1992; stochastic weight averaging, Izmailov et al. 2018)."""

    type: Literal["mean"]

    def share(self, count: Any) -> Any:
        return 1 / (count + 1)


Average: TypeAlias = Annotated[AverageSpec, OneOf("ema", EmaAverage, MeanAverage)]
