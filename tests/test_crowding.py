"""The viewer draws less often by itself where the machine is crowded; keys and words are shown at once all the same."""

from __future__ import annotations

from pathlib import Path

import pytest
from textual.pilot import Pilot
from viewer import drive, screen_text, until, write_run

from trainkit.dashboard import app
from trainkit.dashboard.app import Dashboard
from trainkit.dashboard.crowding import AWAKING, CALM, SHARE, WINDOW, Crowding, Turn
from trainkit.dashboard.panels.charts import LossChart
from trainkit.dashboard.replay import Replay
from trainkit.dashboard.source import Source
from trainkit.events.log import EventLog
from trainkit.events.view import View


@pytest.fixture
def _calm() -> None:
    """Here the machine is as these tests say."""


class Kernel:
    """What it tells of a process, and a clock beside it."""

    def __init__(self) -> None:
        self.ran = self.waited = self.times = 0
        self.now = 0.0

    def read(self) -> str:
        return f"{self.ran} {self.waited} {self.times}\n"

    def passes(self, *, ran: float, waited: float, seconds: float = WINDOW) -> None:
        self.now += seconds
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
    kernel.passes(ran=0.060, waited=0.004, seconds=CALM)
    assert crowding.crowded(), "what is a little better is not yet over: it would swing to and fro"
    kernel.passes(ran=0.06, waited=0.0)
    assert crowding.crowded(), "nor is what was better for a moment"
    kernel.passes(ran=0.06, waited=0.001, seconds=CALM)
    assert not crowding.crowded()


def test_what_an_idle_processor_takes_to_begin_is_no_waiting() -> None:
    kernel = Kernel()
    crowding = Crowding(kernel.read, lambda: kernel.now)
    kernel.times = 10
    kernel.passes(ran=0.001, waited=10 * AWAKING / 1e9)
    assert not crowding.crowded(), "who hardly runs would else wait for a large share of it"


def test_on_a_crowded_machine_the_next_turn_comes_once_the_last_one_is_a_small_share_of_the_time() -> None:
    now, spent = 0.0, 0.0
    turn = Turn(1.0, crowded=(15.0, 60.0), clock=lambda: now, spent=lambda: spent)
    assert turn.has_come(crowded=True)
    for cost, seconds in ((0.0, 15.0), (30 * SHARE, 30.0), (1.0, 60.0)):
        turn.take()
        spent += cost
        now += 1.0
        assert turn.has_come(crowded=False) and not turn.has_come(crowded=True)
        now += seconds - 1.5
        assert not turn.has_come(crowded=True)
        now += 0.5
        assert turn.has_come(crowded=True)


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
    for name, seconds in {"REST": 0.05, "CLOCK": (0.1, 0.1), "WORDS": (0.1, 0.1)}.items():
        monkeypatch.setattr(app, name, seconds)
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
        assert not drawn, "and so does it beside a word"
        log.write("step", step=302, metrics={"train/loss": 2.0})
        await until(lambda: dashboard.view.step == 302, pilot)
        await pilot.press("2", "1")
        assert drawn[-1] == 302, "who presses a key sees what there is"
        log.write("step", step=303, metrics={"train/loss": 2.0, "train/new": 1.0})
        await until(lambda: drawn[-1] == 303, pilot)  # the first of a metric is not waited for

    drive(run, steps)


def test_a_replay_is_drawn_at_its_pace_on_a_crowded_machine_too_and_a_key_shows_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = write_run(tmp_path / "quickstart")
    monkeypatch.setattr(Crowding, "crowded", lambda crowding: True)

    async def steps(pilot: Pilot[None], dashboard: Dashboard) -> None:
        before = dashboard.view.step
        last = 50  # which it may have come near before the first look
        await until(lambda: dashboard.view.step >= min(before + 20, last), pilot)
        await pilot.press("space")
        assert "replay halted" in screen_text(dashboard)

    drive(run, steps, replay=Replay(run, speed=30.0))


def test_steps_alone_are_no_word_to_be_read_and_are_left_for_later(tmp_path: Path) -> None:
    log, source = EventLog(tmp_path, attempt=1), Source(tmp_path)
    for step in range(3):
        log.write("step", step=step, metrics={})
    assert not source.says_more() and source.view.step == 0
    log.write("log", step=3, level="info", message="a word")
    assert source.says_more()
    while source.advance(seconds=1):
        pass
    assert source.view.step == 2 and source.view.told == 1 and not source.says_more()
