"""The trials of a sweep: their settings, their recipes, and what `trials.jsonl` has recorded of them."""

from __future__ import annotations

import itertools
import json
import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trainkit.errors import TrainkitError
from trainkit.events.log import as_logged, last_end, number, of_kinds
from trainkit.hub.recipe import load
from trainkit.recipe import Recipe
from trainkit.recipe.sections.sweep import Sweep, SweptKey
from trainkit.recipe.toml.files import with_values
from trainkit.recipe.toml.load import Loaded
from trainkit.recipe.toml.modes import FULL
from trainkit.recipe.toml.values import toml_value
from trainkit.rundir.directory import as_typed
from trainkit.rundir.seeds import LOSS, final_value

#: The record of a sweep, in its directory: one JSON object a line, only ever appended to.
NAME = "trials.jsonl"


@dataclass(frozen=True)
class Trial:
    """One run of a sweep: its number from 1, and what its recipe changes."""

    number: int
    settings: dict[str, Any]
    loaded: Loaded

    @property
    def directory(self) -> Path:
        """Return the directory of its run."""
        run = self.loaded.recipe.run
        return Path(run.directory) / str(run.name)

    @property
    def in_words(self) -> str:
        """Return its settings on one line."""
        return ", ".join(f"{key} = {toml_value(value)}" for key, value in self.settings.items())


@dataclass(frozen=True)
class TrialEnd:
    """How a trial ended: `finished` or `failed`, its value, and why it failed."""

    status: str
    value: float = math.nan
    message: str = ""


@dataclass(frozen=True)
class Study:
    """A sweep: its directory, its trials, and how they are ranked."""

    directory: Path
    spec: Sweep
    trials: tuple[Trial, ...]
    metric: str
    mode: str
    platform: str
    recipe: str
    """The fingerprint of the recipe that the trials have in common."""
    ends: dict[int, TrialEnd] = field(default_factory=dict)
    """The trials that have ended, by their numbers."""

    def read(self) -> None:
        """Read which trials have ended. A trial whose directory was deleted has not.

        Raises:
            TrainkitError: the sweep was begun with another recipe.
        """
        self.ends.clear()
        for line in self._lines():
            if "recipe" in line and line != self._header():
                raise TrainkitError(
                    "the sweep was begun with another recipe, or with another [sweep]",
                    where=str(self.directory / NAME),
                    hint="undo the change (trials, at_once, train.until may change), or begin another: --name NAME",
                )
            if "status" in line:
                self.ends[line["trial"]] = TrialEnd(line["status"], number(line["value"]), line["message"])
        for trial in self.trials:
            if not trial.directory.exists():
                self.ends.pop(trial.number, None)

    def begin(self) -> None:
        """Create the directory and its record, where they do not exist yet."""
        self.directory.mkdir(parents=True, exist_ok=True)
        if not any("recipe" in line for line in self._lines()):
            self._append(self._header())

    def record_start(self, trial: Trial) -> None:
        """Record that the run of a trial is created."""
        self._append({"trial": trial.number, "run": trial.directory.name, "settings": trial.settings})

    def record_end(self, trial: Trial) -> TrialEnd | None:
        """Record how a trial ended, and return it; None where it is unfinished and can be resumed."""
        status = last_end(trial.directory)
        if status == "finished":
            end = TrialEnd(status, final_value(trial.directory, self.metric))
        elif status == "failed":
            *_, last = of_kinds(trial.directory, "run_finished")
            end = TrialEnd(status, message=last["message"])
        else:
            return None
        self.ends[trial.number] = end
        record = {"trial": trial.number, "status": end.status, "value": as_logged(end.value), "message": end.message}
        self._append(record)
        return end

    def ranked(self) -> list[tuple[Trial, TrialEnd | None]]:
        """Return all trials, the best first; those without a value come last, in their order."""
        sign = 1 if self.mode == "min" else -1

        def place(trial: Trial) -> tuple[int, float, int]:
            end = self.ends.get(trial.number)
            if end is None or math.isnan(end.value):
                return 1 if end else 2, 0.0, trial.number
            return 0, sign * end.value, trial.number

        return [(trial, self.ends.get(trial.number)) for trial in sorted(self.trials, key=place)]

    def _header(self) -> dict[str, Any]:
        spec = self.spec.model_dump(mode="json", exclude={"trials", "at_once", "metric", "mode"})
        return {"recipe": self.recipe, "metric": self.metric, "mode": self.mode, "sweep": spec}

    def _lines(self) -> Iterator[dict[str, Any]]:
        try:
            text = (self.directory / NAME).read_text(encoding="utf-8")
        except FileNotFoundError:
            return
        for line in text.splitlines():
            try:
                yield json.loads(line)
            except ValueError:
                continue  # torn by a crash

    def _append(self, record: dict[str, Any]) -> None:
        path = self.directory / NAME
        torn = path.exists() and not path.read_bytes().endswith(b"\n") and path.stat().st_size > 0
        with path.open("ab", buffering=0) as file:
            file.write(b"\n" * torn + json.dumps(record).encode() + b"\n")


def study_of(path: Path, overrides: Sequence[str] = (), *, mode: str = FULL) -> Study:
    """Return the sweep of a recipe, with every trial's recipe checked.

    Raises:
        TrainkitError: the recipe or a trial's recipe is wrong, or there is no `[sweep]`.
    """
    base = load(path, overrides, mode=mode)
    recipe, spec = base.recipe, base.recipe.sweep
    if spec is None:
        raise TrainkitError(
            "there is nothing to sweep: the recipe has no [sweep]",
            where=str(path),
            hint='[sweep.parameters."optimizer.learning_rate"] with values = [1e-3, 3e-3]',
        )
    directory = Path(recipe.run.directory) / f"{recipe.run.name}-sweep"
    trials = []
    for trial, settings in enumerate(settings_of(spec), start=1):
        own = {"run.name": f"{recipe.run.name}-{trial:04}", "run.directory": str(directory)}
        # a new `type` empties its table, so it comes first
        ordered = sorted(settings.items(), key=lambda item: not item[0].endswith(".type"))
        changes = [f"{key}={toml_value(value)}" for key, value in [*own.items(), *ordered]]
        try:
            loaded = load(path, [*overrides, *changes], mode=mode)
        except TrainkitError as error:
            raise _refusal(error, trial, settings, base) from error
        trials.append(Trial(trial, settings, loaded))
    best, sets = recipe.checkpoint.best, recipe.data.validation_names
    usual = best.metric if best else f"validation/{sets[0]}/loss" if sets else LOSS
    same = best is not None and spec.metric in (None, best.metric)
    return Study(
        directory,
        spec,
        tuple(trials),
        metric=spec.metric or usual,
        mode=spec.mode or (best.mode if best and same else "min"),
        platform=recipe.parallel.platform,
        recipe=_fingerprint(recipe),
    )


def _fingerprint(recipe: Recipe) -> str:
    """Return a hash of the recipe without `train.until`: a time of day is another one on the next day.

    The recipe of each trial keeps the time that it was created with.
    """
    return with_values(recipe, train=with_values(recipe.train, until=None)).fingerprint()


def settings_of(spec: Sweep) -> Iterator[dict[str, Any]]:
    """Yield the settings of each trial: a pure function of the sweep, however many trials came before."""
    if spec.method == "grid":
        for values in itertools.product(*(_points(swept) for swept in spec.parameters.values())):
            yield dict(zip(spec.parameters, values, strict=True))
        return
    for trial in range(1, (spec.trials or 0) + 1):
        yield {key: _draw(swept, random.Random(f"{spec.seed}/{trial}/{key}")) for key, swept in spec.parameters.items()}


def _points(swept: SweptKey) -> list[Any]:
    """Return the values of a key that a grid tries."""
    if swept.values is not None:
        return list(swept.values)
    assert swept.low is not None and swept.high is not None
    if swept.points is None:
        return list(range(int(swept.low), int(swept.high) + 1))
    return list(dict.fromkeys(_between(swept, at / (swept.points - 1)) for at in range(swept.points)))


def _draw(swept: SweptKey, chance: random.Random) -> Any:
    """Return a random value of a key."""
    if swept.values is not None:
        return chance.choice(swept.values)
    if swept.is_whole and not swept.log:
        return chance.randint(int(swept.low or 0), int(swept.high or 0))
    return _between(swept, chance.random())


def _between(swept: SweptKey, share: float) -> int | float:
    """Return the value of a range at a share of the way from its lowest to its highest."""
    assert swept.low is not None and swept.high is not None
    low, high = swept.low, swept.high
    value = low * (high / low) ** share if swept.log else low + (high - low) * share
    # nobody wants to read 0.0010000000000000002
    return round(value) if swept.is_whole else min(max(float(f"{value:.6g}"), low), high)


def _refusal(error: TrainkitError, trial: int, settings: dict[str, Any], base: Loaded) -> TrainkitError:
    """Return the error of a trial's recipe, with the line of the swept key that it names."""
    named = [key for key in settings if key in f"{error.where} {error.problem}"] or list(settings)
    where = base.origins[f"sweep.parameters.{named[0]}"]
    shown = ", ".join(f"{key} = {toml_value(value)}" for key, value in settings.items())
    return TrainkitError(f"trial {trial} ({shown}) is refused: {error.problem}", where=where, hint=error.hint)


def title_of(study: Study) -> str:
    """Return the name of a sweep as a person would type it."""
    return as_typed(study.directory)
