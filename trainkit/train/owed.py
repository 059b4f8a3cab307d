"""What was due after a step and was cut off: the log tells what has been done."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from trainkit.events.attempts import resumed_step
from trainkit.events.log import of_kinds
from trainkit.events.schema import Event
from trainkit.recipe import Recipe
from trainkit.recipe.sections.outputs import Sample


@dataclass(frozen=True, kw_only=True)
class Owed:
    """What an attempt that goes on from a step has to do before the next one."""

    sets: frozenset[str] = frozenset()
    """Validation sets that are still to be evaluated."""
    statistics: bool = False
    samples: bool = False
    """Those of the recipe."""
    prompts: tuple[str, ...] = ()
    """Those of a person."""

    def __bool__(self) -> bool:
        return bool(self.sets or self.statistics or self.samples or self.prompts)


NOTHING = Owed()


def falls_on(step: int, every: int | None) -> bool:
    return every is not None and step % every == 0


def owed(run_directory: Path, recipe: Recipe, step: int, *, last: bool) -> Owed:
    """What is due after `step`, by the recipe or by order, and was not finished. `last` of the last step of the run."""
    if not step:
        return NOTHING
    evaluate, sample = last or falls_on(step, recipe.evaluate.every), recipe.sample
    evaluated: set[str] = set()
    sampled: set[str] = set()
    prompts: list[str] = []
    looked = False
    for event in _done_at(run_directory, step):
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
                looked = True
    sampling = sample is not None and (last or falls_on(step, sample.every))
    return Owed(
        sets=frozenset(recipe.data.validation_names) - evaluated if evaluate else frozenset(),
        statistics=falls_on(step, recipe.statistics.every) and not looked,
        samples=sample is not None and sampling and not _has_sampled(sample, sampled),
        prompts=() if sample is not None and sample.chat and sampled else tuple(prompts),
    )


def _has_sampled(sample: Sample, sampled: set[str]) -> bool:
    """Whether all prompts of the recipe were continued. The log holds conversations as the chat template wrote them, so
    they are counted."""
    if sample.chat or not all(isinstance(prompt, str) for prompt in sample.prompts):
        return len(sampled) >= len(set(sample.prompts))
    return sampled.issuperset(sample.prompts)


def _done_at(run_directory: Path, step: int) -> list[Event]:
    """What the run's course so far tells of commands and results after `step`."""
    done: list[Event] = []
    for event in of_kinds(run_directory, "run_started", "control", "evaluated", "sampled", "distributions"):
        if event["type"] == "run_started":
            done = done if resumed_step(event) >= step else []
        elif event["step"] == step:
            done.append(event)
    return done
