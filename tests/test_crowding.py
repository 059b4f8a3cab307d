"""The viewer draws less often by itself where the machine is crowded; keys and words are shown at once all the same."""

from __future__ import annotations

from pathlib import Path

import pytest
from textual.pilot import Pilot
from viewer import drive, screen_text, until, write_run

from trainkit.dashboard.app import Dashboard
from trainkit.dashboard.crowding import WINDOW, Crowding
from trainkit.dashboard.panels.charts import LossChart
from trainkit.events.log import EventLog
from trainkit.events.view import View


@pytest.fixture
def _calm() -> None:
    """Here the machine is as these tests say."""


class Kernel:
    """What it tells of a process, and a clock beside it."""

    def __init__(self) -> None:
        self.ran = self.waited = 0
        self.now = 0.0

    def read(self) -> str:
        return f"{self.ran} {self.waited} 7\n"

    def passes(self, *, ran: float, waited: float) -> None:
        self.now += WINDOW
        self.ran += int(ran * 1e9)
        self.waited += int(waited * 1e9)


def test_a_machine_is_crowded_while_the_viewer_has_to_wait_for_it() -> None:
    kernel = Kernel()
    crowding = Crowding(kernel.read, lambda: kernel.now)
    assert not crowding.crowded()
    kernel.passes(ran=0.06, waited=0.0001)
    assert not crowding.crowded()
    kernel.passes(ran=0.06, waited=0.02)
    assert crowding.crowded()
    kernel.passes(ran=0.060, waited=0.004)
    assert crowding.crowded(), "what is a little better is not yet over: it would swing to and fro"
    kernel.passes(ran=0.06, waited=0.001)
    assert not crowding.crowded()


def test_a_moment_says_nothing_a_window_does() -> None:
    kernel = Kernel()
    crowding = Crowding(kernel.read, lambda: kernel.now)
    kernel.now, kernel.ran, kernel.waited = WINDOW / 2, 10_000_000, 10_000_000
    assert not crowding.crowded()
    kernel.now = WINDOW
    assert crowding.crowded()


@pytest.mark.parametrize("told", ["", "1 2", "one two three"])
def test_where_the_kernel_tells_nothing_nothing_is_crowded(told: str) -> None:
    kernel = Kernel()
    crowding = Crowding(lambda: told, lambda: kernel.now)
    kernel.passes(ran=1, waited=1)
    assert not crowding.crowded()


def test_where_there_is_no_such_file_nothing_is_crowded(tmp_path: Path) -> None:
    kernel = Kernel()
    crowding = Crowding((tmp_path / "none").read_text, lambda: kernel.now)
    kernel.passes(ran=1, waited=1)
    assert not crowding.crowded()


def test_on_a_crowded_machine_steps_wait_for_their_turn_and_words_and_keys_do_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = write_run(tmp_path / "quickstart")
    monkeypatch.setattr(Crowding, "crowded", lambda crowding: True)
    drawn: list[int] = []

    async def steps(pilot: Pilot[None], dashboard: Dashboard) -> None:
        show = LossChart.show_view

        def counted(chart: LossChart, view: View) -> None:
            drawn.append(view.step)
            show(chart, view)

        monkeypatch.setattr(LossChart, "show_view", counted)
        log = EventLog(run, attempt=1)
        log.write("step", step=301, metrics={"train/loss": 2.0})
        await until(lambda: dashboard.view.step == 301, pilot)
        assert not drawn, "a step alone waits"
        log.write("log", step=301, level="info", message="a word to be read")
        await until(lambda: "a word to be read" in screen_text(dashboard), pilot)
        assert drawn == [301]
        log.write("step", step=302, metrics={"train/loss": 2.0})
        await until(lambda: dashboard.view.step == 302, pilot)
        await pilot.press("2", "1")
        assert drawn[-1] == 302, "who presses a key sees what there is"

    drive(run, steps)
