"""The trials of a sweep: their settings and recipes, and the file that records what became of them."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainkit import files
from trainkit.errors import TrainkitError
from trainkit.events.log import as_logged, number
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
            text = (self.directory / NAME).read_text(encoding="utf-8")
        except FileNotFoundError:
            return
        for line in text.splitlines():
            try:
                yield json.loads(line)
            except ValueError:
                continue  # torn by a crash

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

    def trial(self, trial: int, settings: Mapping[str, Any], *, refuse: bool = True) -> Trial:
        """Return the trial with a number and settings.

        Raises:
            TrainkitError: its recipe is wrong; unless `refuse` is false: then the trial has no recipe.
        """
        name = f"{self.base.recipe.run.name}-{trial:04}"
        place = {"run.name": name, "run.directory": str(self.directory)}
        try:
            return Trial(trial, dict(settings), self.directory / name, self.load_with({**place, **settings}))
        except TrainkitError as error:
            if refuse:
                raise self.refusal(error, f"trial {trial}", settings) from error
            return Trial(trial, dict(settings), self.directory / name, None, str(error))

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
