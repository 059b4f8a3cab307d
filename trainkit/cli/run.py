"""`trainkit run`: make a run from a recipe, train it and show it."""

from __future__ import annotations

import contextlib
import os
import sys
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Annotated, Self

import typer

from trainkit.cli.arguments import (
    EXCLUSIVE_OUTPUTS,
    Detach,
    Json,
    Mode,
    Overrides,
    Plain,
    Profile,
    RecipePath,
    Restarts,
    check_machine,
    steps_of,
)
from trainkit.errors import DONE, FAILED, WRONG_INPUT, TrainkitError
from trainkit.printer import complain, show

if TYPE_CHECKING:
    from trainkit.events.schema import Event
    from trainkit.recipe import Recipe
    from trainkit.recipe.toml.load import Loaded
    from trainkit.run.start import Start

EXCLUSIVE = [
    *EXCLUSIVE_OUTPUTS,
    ("--smoke", "--detach", "a smoke test runs in this process"),
    ("--smoke", "--profile", "a smoke test keeps no files"),
    ("--smoke", "--restarts", "a smoke test that fails is not tried again"),
]


def run(
    recipe: RecipePath,
    overrides: Overrides = None,
    mode: Mode = "full",
    name: Annotated[str | None, typer.Option(help="Name of the run; by default the recipe's.")] = None,
    plain: Plain = False,
    json: Json = False,
    detach: Detach = False,
    smoke: Annotated[
        bool,
        typer.Option(
            "--smoke", help="Try the recipe: 2 steps, an evaluation and a checkpoint in a temporary directory."
        ),
    ] = False,
    profile: Profile = None,
    restarts: Restarts = 0,
) -> int:
    """Train a recipe and show the run in the terminal."""
    from trainkit.hub.recipe import load, notes
    from trainkit.parallel import hosts
    from trainkit.recipe.toml.load import check_lengths
    from trainkit.recipe.toml.values import toml_value
    from trainkit.run.start import Start
    from trainkit.rundir.directory import create, discard, recipe_of, run_of_requeued_job
    from trainkit.track.projections import NAMES
    from trainkit.train.signals import hold_signals

    hosts.join()
    if smoke and hosts.count() > 1:
        raise TrainkitError("--smoke works with one process only", hint=f"leave it out, or unset {hosts.ADDRESS}")
    if restarts and hosts.count() > 1:
        raise TrainkitError("--restarts works with one process only", hint="let the launcher start the processes again")
    start = Start(profile=steps_of(profile) if profile is not None else None)
    settings = [*(overrides or []), *([f"run.name={toml_value(name)}"] if name is not None else [])]
    with contextlib.ExitStack() as stack:
        if smoke:
            import tempfile  # it loads hashlib and random

            directory = stack.enter_context(tempfile.TemporaryDirectory(prefix="trainkit-smoke-"))
            lengths = ("train.steps=", "train.epochs=", "train.tokens=")
            settings = [setting for setting in settings if not setting.replace(" ", "").startswith(lengths)]
            settings += ["train.steps=2", *(f"track.{tracker}=false" for tracker in NAMES)]
            settings += [f"run.directory={toml_value(directory)}"]
            plain = not json
        loaded = load(recipe, settings, mode=mode)
        if not smoke:
            check_lengths(loaded, mode)
        else:
            loaded = replace(loaded, recipe=_shorten(loaded.recipe))
        check_machine(loaded, hosts=hosts.count())
        for note in notes(loaded.recipe) if hosts.is_first() else ():
            complain(f"note: {note}")
        if not smoke and (requeued := hosts.from_first(lambda: run_of_requeued_job(loaded))) is not None:
            return _continue(requeued, start, plain=plain, json=json, detach=detach, restarts=restarts)
        if hosts.is_first():
            stack.enter_context(hold_signals())
        run_directory = hosts.from_first(lambda: create(loaded))
        if not hosts.is_first():
            loaded = recipe_of(run_directory)
        try:
            return follow(run_directory, start, loaded, plain=plain, json=json, detach=detach, restarts=restarts)
        except TrainkitError as error:
            if error.exit_code == WRONG_INPUT and hosts.is_first():
                discard(run_directory)
            raise


def _shorten(recipe: Recipe) -> Recipe:
    """Return the recipe with a short evaluation and, where it has them, short samples and an early export."""
    generate = recipe.evaluate.generate and recipe.evaluate.generate.model_copy(
        update={"max_items": 2, "max_tokens": 8}
    )
    evaluate = recipe.evaluate.model_copy(update={"every": 2, "max_batches": 1, "generate": generate})
    sample = recipe.sample and recipe.sample.model_copy(update={"max_tokens": 8})
    export = recipe.export and recipe.export.model_copy(update={"every": 2})
    return recipe.model_copy(update={"evaluate": evaluate, "sample": sample, "export": export})


def _continue(directory: Path, start: Start, *, plain: bool, json: bool, detach: bool, restarts: int) -> int:
    """Continue the run of a job that its batch system has started again; return the exit code."""
    from trainkit.events.tail import last_end
    from trainkit.parallel import hosts
    from trainkit.run.resume import prepare
    from trainkit.rundir.directory import recipe_of

    if hosts.from_first(lambda: last_end(directory)) == "finished":
        complain(f"the run of this job is finished: {directory}")
        return DONE

    def notes() -> tuple[str, ...]:
        resumption = prepare(
            directory, step=None, overrides=(), reset_optimizer=False, forget_commands=False, raise_rate=False
        )
        return resumption.notes

    said = hosts.from_first(notes)
    for note in said if hosts.is_first() else ():
        complain(f"this job was requeued: {note}")
    return follow(directory, start, recipe_of(directory), plain=plain, json=json, detach=detach, restarts=restarts)


def follow(
    directory: Path, start: Start, loaded: Loaded, *, plain: bool, json: bool, detach: bool, restarts: int = 0
) -> int:
    """Train the run in `directory`, show it, and return the exit code.

    With the dashboard, or in the background, the trainer is a process of its own. With lines, which are also the
    output where no dashboard can be drawn, it is this process, or with `restarts` a child of it.
    """
    from trainkit.dashboard import terminal
    from trainkit.parallel import hosts

    if hosts.count() > 1 and detach:
        raise TrainkitError("--detach works with one process only", hint="leave it out: a launcher started this one")
    if not hosts.is_first():
        from trainkit.run.attempt import attempt

        return attempt(directory, replace(start, profile=None), loaded=loaded)
    if not detach and (plain or json or hosts.count() > 1 or terminal.why_unavailable()):
        from trainkit.run.attempt import attempt

        if restarts:
            return _with_restarts(directory, start, json=json, restarts=restarts)
        with EventPrinter(directory, as_json=json) as printer:
            return attempt(directory, start, loaded=loaded, echo=printer)
    from trainkit.run.attempt import spawn
    from trainkit.rundir.directory import as_typed

    trainer = spawn(directory, start, restarts=restarts)
    if detach:
        how = f"trainkit watch {as_typed(directory)}"
        complain(f"{directory.name} is training as process {trainer.pid}; to watch it: {how}")
        return DONE
    terminal.watch(directory)
    code = trainer.poll()
    if code == WRONG_INPUT:
        from trainkit.events.tail import of_kinds

        *_, end = of_kinds(directory, "run_finished")
        raise TrainkitError(end["message"])  # it has the place and the fix
    return DONE if code is None else code


def _with_restarts(directory: Path, start: Start, *, json: bool, restarts: int) -> int:
    """Train the run in a child that prints lines, and start it again if it fails; return the exit code."""
    from trainkit.run.restarts import supervise
    from trainkit.rundir.directory import discard

    resume = [sys.executable, "-m", "trainkit", "resume", str(directory), "--json" if json else "--plain"]
    profile = ["--profile", ":".join(map(str, start.profile))] if start.profile else []
    code = supervise(directory, [*resume, *profile], restarts=restarts, again=resume)
    if code == WRONG_INPUT:
        discard(directory)
    return code


class EventPrinter:
    """Prints each event that it is called with as lines for people or as JSON, and adds them to `trainer.log`.

    `trainkit.cli` prints the error that ends a run, on stderr; this class does not. If stdout takes no more, because
    its reader has gone or a disk is full, the run continues without it.
    """

    def __init__(self, directory: Path, *, as_json: bool) -> None:
        from trainkit.events.plain_log import PlainLog
        from trainkit.run.attempt import LOG

        self._plain = None if as_json else PlainLog()
        self._path = directory / LOG
        self._has_reader = True

    def __enter__(self) -> Self:
        # unbuffered: a full disk would refuse what is left in a buffer a second time, at exit
        self._file = self._path.open("ab", buffering=0)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()

    def __call__(self, event: Event) -> None:
        from trainkit.events.plain_log import as_json

        lines = self._plain.feed(event) if self._plain else [as_json(event)]
        is_error = event["type"] == "run_finished" and event["exit_code"] in (FAILED, WRONG_INPUT)
        shown = len(lines) - 1 if self._plain and is_error else len(lines)
        for number, line in enumerate(lines):
            with contextlib.suppress(OSError):  # a copy of what the log has
                self._file.write(f"{line}\n".encode(errors="replace"))
            if self._has_reader and number < shown:
                try:
                    show(line)
                except OSError:  # the reader or the terminal has gone, or the disk is full
                    self._has_reader = False
                    # also for what is left in the buffer, which the interpreter flushes when it exits
                    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
