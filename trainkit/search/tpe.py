"""The tree-structured Parzen estimator (Bergstra et al. 2011) and pruning, by Optuna, an extra. Only here is it
imported.

The records of a sweep and the logs of its runs are the truth. Optuna's study in memory takes them from the beginning,
in the same order, each time a sweep starts or continues; random numbers depend on the seed of the sweep and the number
of the trial alone. So a killed sweep with one trial at a time continues as if it had not been killed. `study.db`, for
Optuna's own tools, has a copy of every trial that has ended; a copy that disagrees with the records is made again.
"""

from __future__ import annotations

import hashlib
import math
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.pruners import BasePruner, HyperbandPruner, MedianPruner, NopPruner
from optuna.trial import FrozenTrial, TrialState

from trainkit.recipe.sections.sweep import Sweep, SweptKey
from trainkit.recipe.toml.values import toml_value
from trainkit.search.space import as_recipe_value

#: The copy of the study in the directory of a sweep, and the attribute of a trial there that names its run.
NAME, RUN = "study.db", "run"


class _Sampler(optuna.samplers.TPESampler):
    """TPE whose numbers are as short as a recipe has them."""

    def __init__(self, spec: Sweep, trial: int) -> None:
        seed = int.from_bytes(hashlib.sha256(f"{spec.seed}/{trial}".encode()).digest()[:4], "big")
        with warnings.catch_warnings(action="ignore", category=optuna.exceptions.ExperimentalWarning):
            super().__init__(seed=seed, n_startup_trials=spec.startup, constant_liar=spec.at_once > 1)
        self._parameters = spec.parameters

    def sample_independent(self, study: Any, trial: Any, param_name: str, param_distribution: BaseDistribution) -> Any:
        value = super().sample_independent(study, trial, param_name, param_distribution)
        if isinstance(param_distribution, CategoricalDistribution):
            return value
        return as_recipe_value(self._parameters[param_name], value)


class Tpe:
    """Chooses the settings of trials, and which of them stop early. Trials have numbers from 1."""

    def __init__(self, spec: Sweep, mode: str) -> None:
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self._spec, self._worst = spec, math.inf if mode == "min" else -math.inf
        # Hyperband divides trials by the name
        direction = "minimize" if mode == "min" else "maximize"
        self._study = optuna.create_study(study_name="sweep", direction=direction, pruner=_pruner(spec))
        self._copy: optuna.Study | None = None
        self._copied: set[str] = set()
        self._running: dict[int, optuna.Trial] = {}
        self._distributions = {key: _distribution(swept) for key, swept in spec.parameters.items()}

    def ask(self, number: int, settings: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Begin the trial after the last one, with these settings if it has begun before, and return its settings."""
        self._study.sampler = _Sampler(self._spec, number)
        if settings is not None:
            self._study.enqueue_trial({key: self._encode(key, value) for key, value in settings.items()})
        trial = self._study.ask(self._distributions)
        assert trial.number == number - 1
        self._running[number] = trial
        return {key: self._decode(key, value) for key, value in trial.params.items()}

    def report(self, number: int, place: int, value: float) -> bool:
        """Take the metric of a trial at its evaluation `place`, from 1, and return whether to stop the trial."""
        trial = self._running[number]
        trial.report(self._worst if math.isnan(value) else value, place)
        return trial.should_prune()

    def tell(self, number: int, status: str, value: float, *, run: str) -> None:
        """Take the end of a trial. One whose metric is not a number is the worst; one that failed teaches nothing."""
        trial = self._running.pop(number)
        trial.set_user_attr(RUN, run)
        if status == "finished":
            self._study.tell(trial, self._worst if math.isnan(value) else value)
        else:
            self._study.tell(trial, state=TrialState.PRUNED if status == "pruned" else TrialState.FAIL)

    def write(self, directory: Path) -> None:
        """Write the trials that have ended to `study.db` of a directory, those that it does not have yet."""
        ended = {trial.user_attrs[RUN]: trial for trial in self._study.trials if trial.state.is_finished()}
        if self._copy is None:
            self._copy = self._open_copy(directory / NAME, ended)
        self._copy.add_trials(trial for run, trial in ended.items() if run not in self._copied)
        self._copied |= set(ended)

    def _open_copy(self, file: Path, ended: Mapping[str, FrozenTrial]) -> optuna.Study:
        """Return the study in a file, which is made again where a trial in it is not as it ended."""
        copy = optuna.create_study(
            storage=f"sqlite:///{file.resolve()}",
            study_name=self._study.study_name,
            direction=self._study.direction,
            load_if_exists=True,
        )
        copied = {trial.user_attrs.get(RUN, ""): trial for trial in copy.trials}
        if any(_content(trial) != _content(ended.get(run)) for run, trial in copied.items()):
            for left in file.parent.glob(f"{NAME}*"):
                left.unlink()
            return self._open_copy(file, ended)
        self._copied = set(copied)
        return copy

    def _encode(self, key: str, value: Any) -> Any:
        return value if self._spec.parameters[key].values is None else toml_value(value)

    def _decode(self, key: str, value: Any) -> Any:
        listed = self._spec.parameters[key].values
        return value if listed is None else next(one for one in listed if toml_value(one) == value)


def _content(trial: FrozenTrial | None) -> tuple[Any, ...] | None:
    return trial and (trial.state, trial.value, trial.params, trial.intermediate_values)


def _distribution(swept: SweptKey) -> BaseDistribution:
    if swept.values is not None:
        return CategoricalDistribution([toml_value(value) for value in swept.values])
    assert swept.low is not None and swept.high is not None
    if swept.is_whole:
        return IntDistribution(int(swept.low), int(swept.high), log=swept.log)
    return FloatDistribution(swept.low, swept.high, log=swept.log)


def _pruner(spec: Sweep) -> BasePruner:
    match spec.prune:
        case "median":
            return MedianPruner(n_startup_trials=spec.startup)
        case "hyperband":
            return HyperbandPruner()
    return NopPruner()
