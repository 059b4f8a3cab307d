"""What was due after a step and was cut off, according to the log."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from trainkit.events.attempts import resumed_step
from trainkit.events.schema import Event
from trainkit.events.tail import of_kinds
from trainkit.recipe import Recipe
from trainkit.recipe.sections.outputs import Sample


@dataclass(frozen=True, kw_only=True)
class Owed:
    """What was due at a step and is not done: an attempt that continues from the step does it first."""

    sets: frozenset[str] = frozenset()
    """Validation sets to evaluate, and tags of sets to report."""
    statistics: bool = False
    """Whether the distributions of the parameters are to be logged."""
    samples: bool = False
    """Whether the prompts of the recipe are to be continued."""
    prompts: tuple[str, ...] = ()
    """Prompts of `sample` commands."""

    def __bool__(self) -> bool:
        return bool(self.sets or self.statistics or self.samples or self.prompts)


NOTHING = Owed()


def falls_on(step: int, every: int | None) -> bool:
    """Return whether something that is done `every` so many steps (None: never) is due after this step."""
    return every is not None and step % every == 0


def find_owed(run_directory: Path, recipe: Recipe, step: int, *, last: bool) -> Owed:
    """Return what the recipe or a command asked for after `step` and the log lacks.

    `last` says whether it is the run's last step.
    """
    if not step:
        return NOTHING
    evaluate, sample = last or falls_on(step, recipe.evaluate.every), recipe.sample
    evaluated: set[str] = set()
    sampled: set[str] = set()
    prompts: list[str] = []
    distributions = False
    for event in _events_after(run_directory, step):
        match event:
            case {"type": "control", "command": "evaluate"}:
                evaluate, evaluated = True, set()
            case {"type": "control", "command": "sample"}:
                prompts.append(event["argument"])
            case {"type": "evaluated"}:
                evaluated.add(event["name"])
            case {"type": "sampled"}:
                sampled.add(event["prompt"])
                prompts = [prompt for prompt in prompts if prompt != event["prompt"]]
            case {"type": "distributions"}:
                distributions = True
    sets = frozenset((*recipe.data.validation_names, *recipe.evaluate.tags)) - evaluated if evaluate else frozenset()
    sampling = sample is not None and (last or falls_on(step, sample.every))
    return Owed(
        sets=sets,
        statistics=falls_on(step, recipe.statistics.histograms_every) and not distributions,
        samples=sample is not None and sampling and not _has_sampled(sample, sampled),
        prompts=() if sample is not None and sample.chat and sampled else tuple(prompts),
    )


def _has_sampled(sample: Sample, sampled: set[str]) -> bool:
    """Return whether all prompts of the recipe were continued.

    Conversations are counted, because the log holds them as the chat template wrote them.
    """
    if sample.chat or not all(isinstance(prompt, str) for prompt in sample.prompts):
        return len(sampled) >= len(set(sample.prompts))
    return sampled.issuperset(sample.prompts)


def _events_after(run_directory: Path, step: int) -> list[Event]:
    """Return the commands and results right after `step` that count."""
    events: list[Event] = []
    for event in of_kinds(run_directory, "run_started", "control", "evaluated", "sampled", "distributions"):
        if event["type"] == "run_started":
            events = events if resumed_step(event) >= step else []
        elif event["step"] == step:
            events.append(event)
    return events
