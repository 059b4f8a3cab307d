"""The trials of a sweep: their settings and recipes, and the file that records what became of them."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainkit import files
from trainkit.errors import FAILED, TrainkitError
from trainkit.events.tail import as_logged, number
from trainkit.hub.recipe import load
from trainkit.recipe.toml.load import Loaded
from trainkit.recipe.toml.positions import dotted_key
from trainkit.recipe.toml.values import flat, toml_value

#: The record of a sweep, in its directory: one JSON object a line, only ever appended to.
NAME = "trials.jsonl"


@dataclass(frozen=True)
class Trial:
    """One run of a sweep: its number from 1, what its recipe changes, and the directory of its run."""

    number: int
    settings: dict[str, Any]
    directory: Path
    loaded: Loaded | None
    """Its recipe; None where that is wrong."""
    problem: str = ""
    """What is wrong with it."""

    @property
    def in_words(self) -> str:
        """Return its settings on one line."""
        return in_words(self.settings)


@dataclass(frozen=True)
class TrialEnd:
    """How a trial ended: `finished`, `pruned` (stopped early, as others were better), `failed`, or `refused` as its
    recipe is wrong."""

    status: str
    value: float = math.nan
    message: str = ""
    """Why it failed or was refused."""
    steps: int | None = None
    """The step of the value; None where an earlier version recorded the end."""
    seconds: float | None = None
    """How long it trained; None where an earlier version recorded the end."""

    def as_json(self) -> dict[str, Any]:
        """Return what the record keeps."""
        return {**vars(self), "value": as_logged(self.value)}

    @classmethod
    def from_json(cls, line: Mapping[str, Any]) -> TrialEnd:
        """Return the end that a line of the record holds."""
        return cls(line["status"], number(line["value"]), line["message"], line.get("steps"), line.get("seconds"))


@dataclass(frozen=True)
class Record:
    """The file `trials.jsonl` in the directory of a sweep."""

    directory: Path

    def lines(self) -> Iterator[dict[str, Any]]:
        """Yield its lines; none where it does not exist."""
        try:
            content = (self.directory / NAME).read_bytes()
        except FileNotFoundError:
            return
        for line in content.split(b"\n"):
            try:
                found = json.loads(line)
            except ValueError:
                continue  # torn by a crash
            if isinstance(found, dict):
                yield found

    def read(self, header: Mapping[str, Any]) -> tuple[dict[int, dict[str, Any]], dict[int, TrialEnd]]:
        """Return the settings of the trials that have begun, and the ends of those that have ended, by their numbers.

        Args:
            header: the first line of the record of a sweep like this one.

        Raises:
            TrainkitError: the sweep was begun with another recipe, or the file is damaged.
        """
        begun: dict[int, dict[str, Any]] = {}
        ends: dict[int, TrialEnd] = {}
        lines = list(self.lines())
        if lines and "recipe" not in lines[0]:
            raise self.damage("its first line, which says what the sweep was begun with, cannot be read")
        for line in lines:
            if "recipe" in line and line != header:
                raise TrainkitError(
                    "the sweep was begun with another recipe, or with another [sweep]",
                    where=str(self.directory / NAME),
                    hint="undo the change (trials, at_once, train.until may change), or begin another: --name NAME",
                )
            try:
                if "settings" in line:
                    begun[int(line["trial"])] = dict(line["settings"])
                if "status" in line:
                    ends[int(line["trial"])] = TrialEnd.from_json(line)
            except (KeyError, TypeError, ValueError) as error:
                raise self.damage(f"one of its lines is {json.dumps(line)[:60]}") from error
        return begun, ends

    def damage(self, problem: str) -> TrainkitError:
        """Return the error of a file that does not say what it must."""
        return TrainkitError(
            f"the record of the sweep is damaged: {problem}",
            where=str(self.directory / NAME),
            hint="put the file back from a copy, or begin another sweep: --name NAME. The trials' runs are intact",
            exit_code=FAILED,
        )

    def append(self, line: Mapping[str, Any]) -> None:
        """Add a line."""
        path = self.directory / NAME
        torn = path.exists() and not path.read_bytes().endswith(b"\n") and path.stat().st_size > 0
        with path.open("ab", buffering=0) as file:
            file.write(b"\n" * torn + json.dumps(line).encode() + b"\n")
        files.sync(path)
        files.sync_directory(self.directory)


@dataclass(frozen=True)
class TrialRecipes:
    """Loads the recipes of trials: those of a recipe with other settings."""

    path: Path
    overrides: Sequence[str]
    mode: str
    base: Loaded
    """The recipe without any trial's settings."""

    @property
    def directory(self) -> Path:
        """Return the directory of the sweep."""
        run = self.base.recipe.run
        return Path(run.directory) / f"{run.name}-sweep"

    def run_of(self, trial: int) -> Path:
        """Return the directory of the run of a trial."""
        return self.directory / f"{self.base.recipe.run.name}-{trial:04}"

    def trial(self, trial: int, settings: Mapping[str, Any], *, refuse: bool = True) -> Trial:
        """Return the trial with a number and settings.

        Raises:
            TrainkitError: its recipe is wrong; unless `refuse` is false: then the trial has no recipe.
        """
        run = self.run_of(trial)
        place = {"run.name": run.name, "run.directory": str(self.directory)}
        try:
            return Trial(trial, dict(settings), run, self.load_with({**place, **settings}))
        except TrainkitError as error:
            if refuse:
                raise self.refusal(error, f"trial {trial}", settings) from error
            return Trial(trial, dict(settings), run, None, str(error))

    def load_with(self, settings: Mapping[str, Any]) -> Loaded:
        """Return the recipe with these settings. Raises TrainkitError if it is wrong."""
        # a new `type` empties its table, so it comes first
        ordered = sorted(settings.items(), key=lambda item: not item[0].endswith(".type"))
        changes = [f"{key}={toml_value(value)}" for key, value in ordered]
        return load(self.path, [*self.overrides, *changes], mode=self.mode)

    def refusal(self, error: TrainkitError, what: str, settings: Mapping[str, Any]) -> TrainkitError:
        """Return the error of a recipe with these settings, with the line of the swept key that it names."""
        named = [key for key in settings if key in f"{error.where} {error.problem}"] or list(settings)
        where = self.base.origins[f"sweep.parameters.{named[0]}"]
        problem = f"{what} ({in_words(settings)}) is refused: {error.problem}"
        return TrainkitError(problem, where=where, hint=error.hint)

    def further_changes(self, trial: Trial) -> dict[str, Any]:
        """Return which other keys of the trial's recipe differ from those of the base, as a new `type` changes them."""
        assert trial.loaded is not None
        base, changed = flat(self.base.recipe), flat(trial.loaded.recipe)
        differ = {dotted_key(key): value for key, value in changed.items() if base.get(key) != value}
        own = {"run.name", "run.directory", *trial.settings}
        return {key: value for key, value in differ.items() if key not in own and value is not None}


def in_words(settings: Mapping[str, Any]) -> str:
    """Return settings on one line."""
    return ", ".join(f"{key} = {toml_value(value)}" for key, value in settings.items())
