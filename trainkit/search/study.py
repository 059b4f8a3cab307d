"""A sweep as a whole: which trials there are, how each ended, and how they are ranked."""

from __future__ import annotations

import importlib.util
import itertools
import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import reduce
from operator import getitem
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainkit.errors import TrainkitError
from trainkit.events.tail import last_end, of_kinds
from trainkit.hub.recipe import load
from trainkit.recipe import Recipe
from trainkit.recipe.sections.sweep import Sweep
from trainkit.recipe.toml.files import with_values
from trainkit.recipe.toml.load import Loaded
from trainkit.recipe.toml.modes import FULL
from trainkit.rundir.directory import as_typed, read_sweep
from trainkit.rundir.seeds import LOSS, final_value
from trainkit.search.progress import Progress
from trainkit.search.space import draw, extremes, settings_of
from trainkit.search.trials import Record, Trial, TrialEnd, TrialRecipes

if TYPE_CHECKING:
    from trainkit.search.tpe import Tpe

#: How often a value that is refused alone is tried with random values of the other keys.
COMPANY = 5


@dataclass
class Study:
    """A sweep: its trials, in the order of their numbers, and how they are ranked."""

    spec: Sweep
    recipes: TrialRecipes
    trials: list[Trial]
    """Those whose settings are known: with `tpe`, later ones depend on the results of earlier ones."""
    metric: str
    mode: str
    ends: dict[int, TrialEnd] = field(default_factory=dict)
    """The trials that have ended, by their numbers."""
    _sampler: Tpe | None = None
    _progress: dict[int, Progress] = field(default_factory=dict)
    _reported: dict[int, int] = field(default_factory=dict)
    """How many reports of a trial the sampler has."""
    _begun: set[int] = field(default_factory=set)

    @property
    def directory(self) -> Path:
        """Return its directory, which holds the directories of the runs."""
        return self.recipes.directory

    @property
    def total(self) -> int:
        """Return how many trials there will be."""
        return max(len(self.trials), self.spec.trials or 0)

    def read(self) -> None:
        """Read which trials have begun and ended. A trial whose directory was deleted has not.

        Raises:
            TrainkitError: the sweep was begun with another recipe, or the record is damaged and the runs do not say the
                same.
        """
        begun, self.ends = Record(self.directory).read(self._header())
        self._begun = set(begun)
        if self.spec.method == "tpe":
            self.trials, number = [], 1
            while number <= max([0, *begun, *self.ends]) or self.recipes.run_of(number).exists():
                settings = begun[number] if number in begun else self._settings_of_run(number)
                self.trials.append(self.recipes.trial(number, settings, refuse=False))
                number += 1
        for trial in self.trials:
            if trial.number in self.ends and not (trial.loaded is None or trial.directory.exists()):
                del self.ends[trial.number]

    def _settings_of_run(self, number: int) -> dict[str, Any]:
        """Return the settings of a trial that the record has lost, from its run. Raises TrainkitError without them."""
        found = read_sweep(self.recipes.run_of(number))
        try:
            tables = found["parameters"] if found else {}
            return {key: reduce(getitem, key.split("."), tables) for key in self.spec.parameters}
        except (KeyError, TypeError) as error:
            raise Record(self.directory).damage(f"it does not say what trial {number} tries") from error

    def begin(self) -> None:
        """Read it from its directory, which is created where it does not exist yet, and prepare to propose trials.

        Raises:
            TrainkitError: the sweep was begun with another recipe.
        """
        self.directory.mkdir(parents=True, exist_ok=True)
        record = Record(self.directory)
        if not any("recipe" in line for line in record.lines()):
            record.append(self._header())
        self.read()
        if self.spec.method == "tpe":
            from trainkit.search.tpe import Tpe

            self._sampler = Tpe(self.spec, self.mode)
            for trial in self.trials:
                self._replay(trial, self._sampler)
                if trial.loaded is None and trial.number not in self.ends and not trial.directory.exists():
                    self._record(trial, TrialEnd("refused", message=trial.problem))
            self._sampler.write(self.directory)

    def preview(self) -> list[Trial]:
        """Return the trials that depend on no results."""
        if self.spec.method != "tpe":
            return self.trials
        from trainkit.search.tpe import Tpe

        sampler, count = Tpe(self.spec, self.mode), min(self.spec.startup, self.total)
        return [self.recipes.trial(n, sampler.ask(n), refuse=False) for n in range(1, count + 1)]

    def propose(self) -> Trial | None:
        """Return another trial, which depends on the results so far; None where there is none."""
        while self._sampler is not None and len(self.trials) < self.total:
            number = len(self.trials) + 1
            trial = self.recipes.trial(number, self._sampler.ask(number), refuse=False)
            self.trials.append(trial)
            self.record_start(trial)
            if trial.loaded is not None:
                return trial
            self._record(trial, TrialEnd("refused", message=trial.problem))
        return None

    def record_start(self, trial: Trial) -> None:
        """Record the settings of a trial, before its run is created."""
        if trial.number not in self._begun:
            self._begun.add(trial.number)
            line = {"trial": trial.number, "run": trial.directory.name, "settings": trial.settings}
            Record(self.directory).append(line)

    def prunes(self, trial: Trial) -> bool:
        """Return whether a trial that runs, or has just ended, is to be stopped here, and record that end."""
        if self._sampler is None or self.spec.prune is None or trial.number in self.ends:
            return False
        progress = self.progress(trial)
        for place, report in enumerate(progress.reports(), start=1):
            if place > self._reported.get(trial.number, 0):
                self._reported[trial.number] = place
                if self._sampler.report(trial.number, place, report.value):
                    self._record(trial, TrialEnd("pruned", report.value, "", report.step, progress.seconds))
                    return True
        return False

    def record_end(self, trial: Trial) -> TrialEnd | None:
        """Record how a trial whose process has ended did; return it, or None where it can be continued."""
        if trial.number in self.ends:
            return self.ends[trial.number]
        status, progress = last_end(trial.directory), self.progress(trial)
        if status == "finished":
            value = final_value(trial.directory, self.metric)
            end = TrialEnd(status, value, "", progress.step, progress.seconds)
        elif status == "failed":
            *_, last = of_kinds(trial.directory, "run_finished")
            end = TrialEnd(status, math.nan, last["message"], progress.step, progress.seconds)
        else:
            return None
        self._record(trial, end)
        return end

    def progress(self, trial: Trial) -> Progress:
        """Return how far a trial is now."""
        progress = self._progress.setdefault(trial.number, Progress(trial.directory, self.metric))
        progress.read()
        return progress

    def rank(self) -> list[tuple[Trial, TrialEnd | None]]:
        """Return all trials: first those at their end, the best first, then pruned ones, those without a value, and
        those that have not ended."""
        sign = 1 if self.mode == "min" else -1

        def place(trial: Trial) -> tuple[int, float, int]:
            end = self.ends.get(trial.number)
            if end is None or math.isnan(end.value):
                return 2 if end else 3, 0.0, trial.number
            return int(end.status == "pruned"), sign * end.value, trial.number

        return [(trial, self.ends.get(trial.number)) for trial in sorted(self.trials, key=place)]

    def _replay(self, trial: Trial, sampler: Tpe) -> None:
        """Give the sampler what a trial has shown, as it was given when the trial ran."""
        sampler.ask(trial.number, trial.settings)
        end = self.ends.get(trial.number)
        if end is None:
            return
        reports = self.progress(trial).reports() if self.spec.prune is not None else []
        for place, report in enumerate(reports, start=1):
            if end.steps is None or report.step <= end.steps:
                sampler.report(trial.number, place, report.value)
        sampler.tell(trial.number, end.status, end.value, run=trial.directory.name)

    def _record(self, trial: Trial, end: TrialEnd) -> None:
        self.ends[trial.number] = end
        Record(self.directory).append({"trial": trial.number, **end.as_json()})
        self._progress.pop(trial.number, None)
        if self._sampler is not None:
            self._sampler.tell(trial.number, end.status, end.value, run=trial.directory.name)
            self._sampler.write(self.directory)

    def _header(self) -> dict[str, Any]:
        own = {"trials", "at_once", "metric", "mode"} | (set() if self.spec.method == "tpe" else {"startup", "prune"})
        spec = self.spec.model_dump(mode="json", exclude=own)
        return {
            "recipe": _fingerprint(self.recipes.base.recipe),
            "metric": self.metric,
            "mode": self.mode,
            "sweep": spec,
        }


def study_of(path: Path, overrides: Sequence[str] = (), *, mode: str = FULL) -> Study:
    """Return the sweep of a recipe. Every trial's recipe is checked, or with `tpe` every value and end of a range.

    Raises:
        TrainkitError: the recipe or a trial's recipe is wrong, there is no `[sweep]`, or Optuna is not installed.
    """
    base = load(path, overrides, mode=mode)
    recipe, spec = base.recipe, base.recipe.sweep
    if spec is None:
        raise TrainkitError(
            "there is nothing to sweep: the recipe has no [sweep]",
            where=str(path),
            hint='[sweep.parameters."optimizer.learning_rate"] with values = [1e-3, 3e-3]',
        )
    recipes = TrialRecipes(path, overrides, mode, base)
    if spec.method == "tpe":
        _require_optuna(base)
        check_values(recipes, spec)
        trials = []
    else:
        trials = [recipes.trial(number, settings) for number, settings in enumerate(settings_of(spec), start=1)]
    best, sets = recipe.checkpoint.best, recipe.data.validation_names
    usual = best.metric if best else f"validation/{sets[0]}/loss" if sets else LOSS
    same = best is not None and spec.metric in (None, best.metric)
    chosen = spec.mode or (best.mode if best and same else "min")
    return Study(spec, recipes, trials, metric=spec.metric or usual, mode=chosen)


def _fingerprint(recipe: Recipe) -> str:
    """Return a hash of the recipe without `train.until`: a time of day is another one on the next day.

    The recipe of each trial keeps the time that it was created with.
    """
    return with_values(recipe, train=with_values(recipe.train, until=None)).fingerprint()


def _require_optuna(base: Loaded) -> None:
    if importlib.util.find_spec("optuna") is None:
        raise TrainkitError(
            'sweep.method = "tpe" needs optuna, which is not installed',
            where=base.origins["sweep.method"],
            hint="uv sync --extra optuna   or   pip install 'trainkit[optuna]'",
        )


def check_values(recipes: TrialRecipes, spec: Sweep) -> None:
    """Raise TrainkitError if a value, or an end of a range, of a key is wrong, whatever values the other keys have."""
    for settings in extremes(spec):
        others = {key: swept for key, swept in spec.parameters.items() if key not in settings}
        company = (
            {key: draw(swept, random.Random(f"{n}/{key}")) for key, swept in others.items()} for n in range(COMPANY)
        )
        wrong: TrainkitError | None = None
        for rest in itertools.chain([{}], company if others else []):
            try:
                recipes.load_with({**rest, **settings})
                break
            except TrainkitError as error:
                wrong = wrong or error
        else:
            assert wrong is not None
            raise recipes.refusal(wrong, "a trial", settings) from wrong


def title_of(study: Study) -> str:
    """Return the name of a sweep as a person would type it."""
    return as_typed(study.directory)
