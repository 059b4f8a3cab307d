"""`trainkit run`: a recipe becomes a run, and the run is trained and followed."""

from __future__ import annotations

import contextlib
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal

from trainkit.dashboard import terminal
from trainkit.errors import DONE, WRONG_INPUT, TrainkitError
from trainkit.events.log import read
from trainkit.hub.recipe import load, notes
from trainkit.recipe import Recipe
from trainkit.recipe.toml.load import Loaded
from trainkit.recipe.toml.values import toml_value
from trainkit.run.attempt import attempt
from trainkit.run.start import Start, steps_of
from trainkit.rundir.directory import as_typed, create, discard
from trainkit.track.projections import NAMES

Output = Literal["dashboard", "plain", "json"]

#: What `--smoke` puts over a recipe: every part once, nothing kept.
SMOKE = ("train.steps=2", *(f"track.{name}=false" for name in NAMES))


def run(
    recipe: Path,
    overrides: Sequence[str],
    name: str | None,
    output: Output | None,
    detach: bool,
    smoke: bool,
    profile: str | None,
) -> int:
    """Make the run and train it; the exit code."""
    start = Start(profile=steps_of(profile) if profile is not None else None)
    given = [*overrides, *([f"run.name={toml_value(name)}"] if name is not None else [])]
    with contextlib.ExitStack() as stack:
        if smoke:
            directory = stack.enter_context(tempfile.TemporaryDirectory(prefix="trainkit-smoke-"))
            given += [*SMOKE, f"run.directory={toml_value(directory)}"]
            output, detach = output or "plain", False
        loaded = load(recipe, given)
        if smoke:
            loaded = replace(loaded, recipe=_shortened(loaded.recipe))
        for note in notes(loaded.recipe):
            print(f"note: {note}", file=sys.stderr)
        made = create(loaded)
        try:
            return follow(made, start, loaded, output, detach)
        except TrainkitError as error:
            if error.exit_code == WRONG_INPUT:
                discard(made)
            raise


def _shortened(recipe: Recipe) -> Recipe:
    """Return the recipe with a short evaluation and, where it has them, short samples and an early export."""
    evaluate = recipe.evaluate.model_copy(update={"every": 2, "max_batches": 1})
    sample = recipe.sample and recipe.sample.model_copy(update={"max_tokens": 8})
    export = recipe.export and recipe.export.model_copy(update={"every": 2})
    return recipe.model_copy(update={"evaluate": evaluate, "sample": sample, "export": export})


def follow(directory: Path, start: Start, loaded: Loaded, output: Output | None, detach: bool) -> int:
    """Train the run in `directory` and show it: in a process of its own under the dashboard, or here as lines, which is
    what is done by itself where the dashboard cannot be drawn."""
    if not detach and (output or ("plain" if terminal.lacking() else "dashboard")) != "dashboard":
        from trainkit.cli.lines import EventPrinter

        with EventPrinter(directory, as_json=output == "json") as lines:
            return attempt(directory, start, loaded=loaded, echo=lines)
    from trainkit.run.process import spawn

    trainer = spawn(directory, start)
    if detach:
        how = f"trainkit watch {as_typed(directory)}"
        print(f"{directory.name} is training as process {trainer.pid}; look at it: {how}", file=sys.stderr)
        return DONE
    terminal.watch(directory)
    code = trainer.poll()
    if code == WRONG_INPUT:
        # where it was and how to mend it are in the message
        raise TrainkitError(next(e["message"] for e in reversed(read(directory)) if e["type"] == "run_finished"))
    return DONE if code is None else code
