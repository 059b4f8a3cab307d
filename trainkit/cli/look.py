"""`trainkit watch`, `send`, `runs` and `verify`: what there is, and a word to it."""

from __future__ import annotations

import shutil
import time
from pathlib import Path

from trainkit.cli.where import find_run, run_directory
from trainkit.errors import DONE, FAILED, TrainkitError
from trainkit.rundir.listing import RunList
from trainkit.rundir.summary import RunSummary, is_run
from trainkit.text import align, format_duration, format_quantity, neutralise


def watch(run: str, *, replay: bool, readonly: bool, ascii_only: bool, page: str) -> None:
    """The dashboard on a run.

    Raises:
        TrainkitError: there is no such run, or no terminal to draw in.
    """
    from trainkit.dashboard import terminal

    terminal.watch(run_directory(run), replay=replay, readonly=readonly, ascii_only=ascii_only, page=page)


def browse(directory: Path, *, readonly: bool, ascii_only: bool) -> None:
    """The runs of a directory in the terminal.

    Raises:
        TrainkitError: no terminal to draw in.
    """
    from trainkit.dashboard import terminal

    terminal.require_terminal(f"the same as a table: trainkit runs {directory}")

    def show() -> None:
        from trainkit.dashboard.runs.browse import show

        show(directory, readonly=readonly, ascii_only=ascii_only)

    terminal.guarded(show)


def picture(run: str, *, size: str, page: str, ascii_only: bool) -> str:
    """One frame of the dashboard as text; as large as `size` says ("120x40"), else as the terminal is.

    Raises:
        TrainkitError: there is no such run or page, or this is no size.
    """
    from trainkit.dashboard.filters import wants_ascii
    from trainkit.dashboard.picture import once

    columns, lines = shutil.get_terminal_size((120, 40))
    if size:
        width, _, height = size.partition("x")
        if not (width.isdecimal() and height.isdecimal() and 0 < int(width) <= 1000 and 0 < int(height) <= 1000):
            raise TrainkitError(f"{size!r} is no size", hint="columns x lines, such as 120x40")
        columns, lines = int(width), int(height)
    return once(run_directory(run), width=columns, height=lines, page=page, ascii_only=ascii_only or wants_ascii())


def serve(run: str, *, port: int, replay: bool, orders: bool, ascii_only: bool, page: str) -> None:
    """Show the dashboard in a browser of this machine, until ctrl-c.

    Raises:
        TrainkitError: there is no such run or page, the port is taken, or the extra `serve` is not installed.
    """
    try:
        from trainkit.dashboard.serve import serve
    except ModuleNotFoundError as error:
        if error.name not in ("aiohttp", "textual_serve"):
            raise
        raise TrainkitError(
            f"{error.name} is not installed", hint="uv sync --extra serve   (or: pip install 'trainkit[serve]')"
        ) from None

    serve(run_directory(run), port=port, replay=replay, orders=orders, ascii_only=ascii_only, page=page)


def send(run: str, command: str, argument: str | None) -> str:
    """Give a running trainer an order, and return its answer.

    Raises:
        TrainkitError: no such run or command, a wrong argument, no trainer, or it refuses.
    """
    from trainkit.events import client

    reply = client.send(run_directory(run), command, argument)
    if not reply.ok:
        raise TrainkitError(reply.detail, hint=f"how the run stands: trainkit watch {run} --once", exit_code=FAILED)
    return neutralise(reply.detail)


def runs(directory: Path) -> str:
    """A table of the runs below a directory, the newest last."""
    if not directory.is_dir():
        raise TrainkitError("there is no such directory", where=str(directory), hint="trainkit run RECIPE makes runs/")
    listed = RunList(directory)
    listed.read()
    found = [
        (name, g.facts, g.kept) for name, g in listed.summaries.items() if g.facts is not None and is_run(g.directory)
    ]
    if not found:
        return f"no runs in {directory}"
    found.sort(key=lambda run: run[1].last_event or 0.0)
    now = time.time()
    rows: list[tuple[str, ...]] = [("RUN", "STATE", "STEP", "LOSS", "LAST EVENT", "KEPT")]
    rows += [(*_row(name, facts, now), ", ".join(map(str, kept))) for name, facts, kept in found]
    if not any(kept for _, _, kept in found):
        rows = [row[:-1] for row in rows]
    return "\n".join(align(rows))


def verify(run: str) -> int:
    """Print one line for each checkpoint, or for the named one; the exit code tells whether all are whole.

    Raises:
        TrainkitError: no such run or checkpoint.
    """
    from trainkit.checkpoint import store

    directory, step = find_run(run)
    found = store.step_directories(directory) if step is None else [store.directory_of(directory) / str(step)]
    if not found or not all(path.is_dir() for path in found):
        steps = ", ".join(path.name for path in store.step_directories(directory)) or "none"
        raise TrainkitError(f"no checkpoint to verify; there are: {steps}", where=str(directory))
    damaged = 0
    for path in found:
        problems = store.verify(path)
        damaged += bool(problems)
        print(f"{path}: {'damaged' if problems else 'ok'}")
        for problem in problems:
            print(f"  {neutralise(problem)}")
    return FAILED if damaged else DONE


def _row(name: str, facts: RunSummary, now: float) -> tuple[str, ...]:
    if facts.broken:
        return neutralise(name), f"({facts.problem})", "", "", ""
    total = "?" if facts.total is None else str(facts.total)
    age = "" if facts.last_event is None else f"{format_duration(max(0.0, now - facts.last_event))} ago"
    said = "" if facts.loss is None else format_quantity(facts.loss)
    return neutralise(name), facts.state or "waiting", f"{facts.step}/{total}", said, age
