"""What a run's files say is shown on every page and obeyed on none."""

from __future__ import annotations

import re
import time
from pathlib import Path

import fake_run
import pytest
from fake_run import HOSTILE
from textual.pilot import Pilot
from viewer import drive, screen_text, settle

from trainkit.dashboard.app import NAMES, Dashboard

pytestmark = pytest.mark.usefixtures("reads_batches")

METRICS = (f"train/{HOSTILE}", f"validation/{HOSTILE}/loss", f"data/epochs/{HOSTILE}", f"memory/device/{HOSTILE}")


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run in which whatever has a name or a text wants to be obeyed."""
    where = {"t": time.time(), "step": 1, "attempt": 1}
    return fake_run.write(tmp_path / "hostile", [
        {"type": "run_started", **where, "step": 0, **fake_run.started(HOSTILE), "versions": {HOSTILE: HOSTILE}},
        {"type": "planned", **where, "total_steps": 9, "plan": {"compute": HOSTILE}, "devices": [HOSTILE]},
        {"type": "step", **where, "metrics": {"train/loss": 2.0, **dict.fromkeys(METRICS, 1.0)}},
        {"type": "sampled", **where, "prompt": HOSTILE, "text": HOSTILE, "seconds": 0.1},
        {"type": "checkpoint_saved", **where, "kind": HOSTILE, "path": HOSTILE, "bytes": 1, "seconds": 0.1},
        {"type": "control", **where, "command": "sample", "argument": HOSTILE, "detail": HOSTILE, "total_steps": None},
        {"type": "alert", **where, "kind": HOSTILE, "message": HOSTILE},
        {"type": "log", **where, "level": "warning", "message": HOSTILE},
        {"type": "step", **where, "step": 2, "metrics": {"train/loss": 2.0, **dict.fromkeys(METRICS, 1.0)}},
    ])  # fmt: skip


@pytest.mark.parametrize("size", [(200, 60), (60, 20)])
def test_no_page_shows_anything_that_a_terminal_would_obey(run: Path, size: tuple[int, int]) -> None:
    (run / "recipe.toml").write_text('schema = 1\n[run]\nname = "\\u001b[2J\\u202e[bold red]boo[/]"  # \\u001b[31m\n')
    seen = ""

    async def steps(pilot: Pilot[None], dashboard: Dashboard) -> None:
        nonlocal seen
        for number, name in enumerate(NAMES, 1):
            await pilot.press(str(number))
            await settle(pilot)
            dashboard.draw_all()
            await pilot.pause()
            frame = screen_text(dashboard)
            obeyed = [line for line in frame.split("\n") if not line.isprintable()]
            assert obeyed == [], name
            sent = "".join(strip.render(dashboard.console) for strip in dashboard.screen._compositor.render_strips())
            assert not re.search(r"\x1b(?!\[[0-9;]*m)", sent), name
            seen += frame
        assert seen.count("[bold red]boo[/]") >= 4, "markup is shown as it is"

    drive(run, steps, size=size)


def test_what_is_copied_is_inert(run: Path) -> None:
    async def steps(pilot: Pilot[None], dashboard: Dashboard) -> None:
        for number, name in enumerate(NAMES, 1):
            await pilot.press(str(number))
            await settle(pilot)
            await pilot.press("y")
            await pilot.pause()
            assert all(c in "\n\t" or c.isprintable() for c in dashboard.clipboard), name

    drive(run, steps, size=(120, 40))
