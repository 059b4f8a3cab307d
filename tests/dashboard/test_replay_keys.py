"""The keys of a replay: halt, pace, and another moment."""

from __future__ import annotations

from pathlib import Path

import fake_run
import pytest
from textual.pilot import Pilot
from viewer import drive

from trainkit.dashboard.app import Dashboard
from trainkit.dashboard.keys import Ask
from trainkit.dashboard.pages import KEYS
from trainkit.rundir.follow import Replay


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return fake_run.write(tmp_path / "quickstart", fake_run.events(120, total=120))


def test_keys_halt_change_the_pace_and_go_to_another_moment(run: Path) -> None:
    replay = Replay(run, speed=1.0)

    async def steps(pilot: Pilot[None], app: Dashboard) -> None:
        await pilot.press("space")
        assert not replay.playing
        await pilot.press("full_stop", "full_stop", "comma")
        assert replay.speed == 2.0
        await pilot.press("G", *"77", "enter")
        await pilot.pause()
        assert app.view.step == 77 and not isinstance(app.screen, Ask)
        await pilot.press("right")
        assert app.view.step == 78
        await pilot.press("left", "left")
        assert app.view.step == 76

    drive(run, steps, replay=replay)


def test_on_every_page_the_keys_of_a_replay_are_its_own(run: Path) -> None:
    replay = Replay(run, speed=1.0)

    async def steps(pilot: Pilot[None], app: Dashboard) -> None:
        await pilot.press("space")
        for page, key in KEYS.items():
            await pilot.press(key, "full_stop", "G", *"77", "enter")
            await pilot.pause()
            assert not replay.playing and replay.speed == 2.0, page
            await pilot.press("right", "right", "left", "comma")
            assert (app.view.step, replay.speed) == (78, 1.0), page

    drive(run, steps, replay=replay)
