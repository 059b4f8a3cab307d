"""`trainkit watch`, `send`, `runs` and `verify`: what there is, and a word to it."""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from trainkit.cli.where import find_run, run_directory, runs_in
from trainkit.errors import DONE, FAILED, TrainkitError
from trainkit.events.log import Tail
from trainkit.events.plain import duration, inert, quantity
from trainkit.events.view import View, alive, reduce, state


def watch(run: str, *, once: bool, replay: bool, readonly: bool) -> None:
    """The dashboard on a run; with `once` one frame of it as text.

    Raises:
        TrainkitError: there is no such run, or no terminal to draw in.
    """
    directory = run_directory(run)
    if not once and not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise TrainkitError("the dashboard needs a terminal", hint=f"trainkit watch {run} --once prints one picture")
    from trainkit.dashboard import app

    if once:
        size = shutil.get_terminal_size((120, 40))
        print(app.once(directory, width=size.columns, height=size.lines))
    else:
        app.watch(directory, replay=replay, readonly=readonly)


def send(run: str, command: str) -> str:
    """Give a running trainer a command, and return its answer.

    Raises:
        TrainkitError: no such run or command, no trainer, or it refuses.
    """
    from trainkit.events import control

    reply = control.send(run_directory(run), command)
    if not reply.ok:
        raise TrainkitError(reply.detail, exit_code=FAILED)
    return reply.detail


def runs(directory: Path) -> str:
    """A table of the runs below a directory, the newest last."""
    if not directory.is_dir():
        raise TrainkitError("there is no such directory", where=str(directory), hint="trainkit run RECIPE makes runs/")
    views = [(path, view_of(path)) for path in runs_in(directory)]
    if not views:
        return f"no runs in {directory}"
    views.sort(key=lambda found: found[1].last_event or 0.0)
    now = time.time()
    rows: list[tuple[str, ...]] = [("RUN", "STATE", "STEP", "LOSS", "LAST EVENT")]
    rows += [_row(path, view, now) for path, view in views]
    return "\n".join(aligned(rows))


def verify(run: str) -> int:
    """Print one line for each checkpoint, or for the named one; the exit code tells whether all are whole.

    Raises:
        TrainkitError: no such run or checkpoint.
    """
    from trainkit.checkpoint import store

    directory, step = find_run(run)
    found = store.numbered(directory) if step is None else [store.directory_of(directory) / str(step)]
    if not found or not all(path.is_dir() for path in found):
        steps = ", ".join(path.name for path in store.numbered(directory)) or "none"
        raise TrainkitError(f"no checkpoint to verify; there are: {steps}", where=str(directory))
    damaged = 0
    for path in found:
        problems = store.verify(path)
        damaged += bool(problems)
        print(f"{path}: {'damaged' if problems else 'ok'}")
        for problem in problems:
            print(f"  {inert(problem)}")
    return FAILED if damaged else DONE


def view_of(directory: Path) -> View:
    """What a run's log says."""
    view, tail = View(), Tail(directory)
    while events := tail.poll():
        for event in events:
            reduce(view, event)
    return view


def _row(path: Path, view: View, now: float) -> tuple[str, ...]:
    total = "?" if view.total_steps is None else str(view.total_steps)
    loss = view.last("train/loss")
    age = "" if view.last_event is None else f"{duration(max(0.0, now - view.last_event))} ago"
    said = "" if loss is None else quantity(loss)
    return inert(path.name), state(view, now, alive(view)), f"{view.step}/{total}", said, age


def aligned(rows: Sequence[tuple[str, ...]]) -> list[str]:
    """Lines of columns as wide as their widest cell."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
