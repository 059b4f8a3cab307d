"""The pictures of the README, from runs that somebody has trained, and the keys of docs/dashboard.md, from the code.

uv run python scripts/pictures.py RUN [OTHER…]   # draws RUN, compared with the OTHERs of its directory
uv run python scripts/pictures.py                # writes the keys alone

Those in the README are of `recipes/quickstart.toml` as it is, evaluated more often and with a command or two,
and of a few shorter runs of it with other learning rates.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import re
import socket
import tempfile
from collections.abc import Awaitable, Callable
from itertools import groupby
from pathlib import Path
from typing import Any

from textual.app import App
from textual.pilot import Pilot

from trainkit.dashboard.app import NAMES, Dashboard
from trainkit.dashboard.keys import Key, keys_in_force
from trainkit.dashboard.pages import KEYS, Page
from trainkit.dashboard.runs.app import RunsApp, RunSelection
from trainkit.dashboard.runs.browse import Opened
from trainkit.dashboard.runs.leaderboard import Arrangement
from trainkit.events.attempts import process_started
from trainkit.events.log import EventLog
from trainkit.events.schema import SCHEMA
from trainkit.rundir.follow import Replay
from trainkit.rundir.listing import RunList

DOCS = Path(__file__).resolve().parents[1] / "docs"
GUIDE = DOCS / "dashboard.md"
#: Between these lines of the guide the keys are written.
BEGIN, END = "<!-- keys: scripts/pictures.py writes what follows -->", "<!-- end of the keys -->"

Steps = Callable[[Pilot[Any]], Awaitable[None]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="*", type=Path, metavar="RUN")
    runs = [run.resolve() for run in parser.parse_args().runs]
    if runs:
        os.chdir(runs[0].parent.parent)  # pictures have no path above the directory of the runs
        draw(*(run.relative_to(Path.cwd()) for run in runs))
    write_keys(GUIDE)


def draw(run: Path, *others: Path) -> None:
    """The overview; metrics, zoomed, with a crosshair; the run beside others; all of them."""
    metrics = KEYS["metrics"]
    compared = Opened(RunSelection(run, others), readonly=True, ascii_only=False, remembered=None)
    picture(Dashboard(run), "dashboard", (120, 36), "1")
    picture(Dashboard(run), "metrics", (120, 36), metrics, "plus", "plus", "x", *["left"] * 9)
    picture(compared, "compare", (160, 36))
    picture(RunsApp(RunList(run.parent), Arrangement()), "runs", (120, 8 + len(others)))


def picture(app: App[Any], name: str, size: tuple[int, int], *keys: str) -> None:
    """Press the keys and write what is then on the screen to docs/NAME.svg."""

    async def take(pilot: Pilot[Any]) -> None:
        await rest(pilot)
        (DOCS / f"{name}.svg").write_text(app.export_screenshot(title=f"trainkit: {name}", simplify=True))

    asyncio.run(on(app, take, *keys, size=size))


async def on(app: App[Any], steps: Steps, *keys: str, size: tuple[int, int]) -> None:
    """Open the application without a terminal, press the keys, and go through the steps."""
    async with app.run_test(size=size) as pilot:
        if isinstance(app, Dashboard):
            app.load()
        await pilot.press(*keys)
        await pilot.pause()
        await steps(pilot)


async def rest(pilot: Pilot[Any]) -> None:
    """Until nothing is left to do."""
    app = pilot.app
    for _ in range(5):  # workers that have ended may have started others
        await app.workers.wait_for_complete()
        await pilot.pause(0.2)
    while not all(page.settled for page in app.screen_stack[0].query(Page) if page.display):
        await pilot.pause(0.1)
    if isinstance(app, Dashboard):
        app.draw_all()
        await pilot.pause()


def keys_of(app: App[Any], *pressed: str) -> list[Key]:
    """The keys in force after these have been pressed."""
    found: list[Key] = []

    async def look(pilot: Pilot[Any]) -> None:
        found.extend(keys_in_force(app.screen, only_offered=False))

    asyncio.run(on(app, look, *pressed, size=(80, 24)))
    return found


def key_tables(run: Path) -> str:
    """Every key in force somewhere, as tables of Markdown; `run` may be any run."""
    found = keys_of(Dashboard(run)) + keys_of(Dashboard(run), "x") + keys_of(Dashboard(run, replay=Replay(run)))
    for page_key in (KEYS[name] for name in NAMES[1:]):
        found += [key for key in keys_of(Dashboard(run), page_key) if isinstance(key.node, Page)]
    found += [key._replace(group="the list of runs") for key in keys_of(RunsApp(RunList(run.parent), Arrangement()))]
    groups = list(dict.fromkeys(key.group for key in found))
    rows = sorted({(key.group, key.keys, key.meaning): None for key in found}, key=lambda row: groups.index(row[0]))
    tables = []
    for group, inner in groupby(rows, key=lambda row: row[0]):
        lines = [f"| `{keys.replace('|', r'&#124;')}` | {meaning} |" for _, keys, meaning in inner]
        tables.append("\n".join([f"| **{group}** | |", "|---|---|", *lines]))
    return "\n\n".join(tables)


def write_keys(guide: Path) -> None:
    """Write the keys as they are into the guide."""
    with tempfile.TemporaryDirectory() as directory:
        run = Path(directory) / "runs" / "any"
        run.mkdir(parents=True)
        log = EventLog(run, attempt=1)
        log.write(  # a run at work: others take no orders
            "run_started", step=0, schema=SCHEMA, name=run.name, pid=os.getpid(), host=socket.gethostname(), recipe="",
            process_started=process_started(os.getpid()), resumed_from=None, versions={}, orders=[],
        )  # fmt: skip
        for step in (1, 2, 3):
            log.write("step", step=step, metrics={"train/loss": 1 / step})
        log.close()
        found = f"{BEGIN}\n\n{key_tables(run)}\n\n{END}"
    guide.write_text(re.sub(f"{re.escape(BEGIN)}.*{re.escape(END)}", lambda _: found, guide.read_text(), flags=re.S))


if __name__ == "__main__":
    main()
