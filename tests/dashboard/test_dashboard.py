"""The dashboard on real logs with a real control socket: keys, sizes, and text that wants to be obeyed."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import fake_run
import pytest
from fake_run import HOSTILE
from textual.pilot import Pilot
from textual.widget import Widget
from viewer import drive, until, write_run

from trainkit.dashboard.app import Dashboard
from trainkit.dashboard.keys import Help
from trainkit.dashboard.panels.header import _age
from trainkit.dashboard.terminal import once, watch
from trainkit.errors import TrainkitError
from trainkit.events.tail import NAME

WATCH = [
    sys.executable, "-c",
    "import sys, pathlib; from trainkit.dashboard.terminal import watch; watch(pathlib.Path(sys.argv[1]))",
]  # fmt: skip
SIZES = [(200, 60), (120, 40), (110, 24), (80, 24), (60, 20), (30, 8), (1, 1)]


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run in the middle of its training."""
    return write_run(tmp_path / "quickstart")


def shown(widget: Widget) -> bool:
    return widget.display and widget.size.area > 0


def test_one_frame_shows_the_name_the_state_the_progress_and_the_loss(run: Path) -> None:
    frame = once(run, width=120, height=40)
    for told in ("quickstart", "● running", "step 300 / 600", "50%", "ETA", "tok/s", "ago"):
        assert told in frame, told
    for told in ("loss", "train", "held-out", "learning rate", "gradient norm", "3.20M", "16 = 8 × 2", "samples"):
        assert told in frame, told
    assert "evaluated held-out at step 300" in frame and "def main(argv=None):" in frame
    assert sum(0x2800 < ord(c) < 0x2900 for c in frame) > 150


@pytest.mark.parametrize(("width", "height"), SIZES)
def test_a_frame_has_the_size_asked_for_and_no_line_is_wider(run: Path, width: int, height: int) -> None:
    lines = once(run, width=width, height=height).split("\n")
    assert len(lines) == height and max(map(len, lines)) <= width


def test_a_run_without_tokens_shows_its_samples_per_second(tmp_path: Path) -> None:
    events = fake_run.events(20)
    for event in events:
        if event["type"] == "step":
            event["metrics"]["throughput/samples_per_second"] = 512.0
            del event["metrics"]["throughput/tokens_per_second"]
    frame = once(fake_run.write(tmp_path / "run", events))
    assert frame.count("samples/s") == 2 and "512.0" in frame and "tok" not in frame.partition("log")[0]


def test_resizing_from_wide_to_tiny_and_back_keeps_the_loss_in_sight(run: Path) -> None:
    async def steps(pilot: Pilot[None], dashboard: Dashboard) -> None:
        for width, height in [*SIZES, *SIZES[::-1]]:
            await pilot.resize_terminal(width, height)
            await pilot.pause()
            if width < 60:
                continue
            assert shown(dashboard.query_one("#loss")) and shown(dashboard.query_one("#log-panel"))
            assert shown(dashboard.query_one("#rate")) == (width >= 80)
            assert shown(dashboard.query_one("#samples-panel")) == (width >= 110)

    drive(run, steps, size=(200, 60))


def test_where_there_is_room_for_one_panel_tab_shows_the_next(run: Path) -> None:
    async def steps(pilot: Pilot[None], dashboard: Dashboard) -> None:
        for expected in ("log", "samples", "machine", "log"):
            ids = {name: f"{name}-panel" for name in ("log", "samples", "machine")}
            panels = {name: dashboard.query_one(f"#{id}") for name, id in ids.items()}
            assert [name for name, panel in panels.items() if shown(panel)] == [expected]
            await pilot.press("tab")
            await pilot.pause()

    drive(run, steps, size=(60, 20))


def test_the_help_comes_and_goes_and_polling_continues_under_it(run: Path) -> None:
    async def steps(pilot: Pilot[None], dashboard: Dashboard) -> None:
        await pilot.press("question_mark")
        await pilot.pause()
        assert isinstance(dashboard.screen, Help)
        with (run / NAME).open("a") as file:
            for event in fake_run.events(310, total=600)[-10:]:
                file.write(fake_run.json.dumps(event) + "\n")
        await until(lambda: dashboard._source.view.step == 310, pilot)
        await pilot.press("escape")
        await pilot.pause()
        assert not isinstance(dashboard.screen, Help)

    drive(run, steps)


def test_a_log_that_is_not_there_yet_is_waited_for(tmp_path: Path) -> None:
    async def steps(pilot: Pilot[None], dashboard: Dashboard) -> None:
        assert dashboard.state == "waiting"
        fake_run.write(tmp_path, fake_run.events(5, total=600))
        await until(lambda: dashboard._source.view.step == 5, pilot)

    drive(tmp_path, steps)


def test_a_run_that_is_begun_again_while_it_is_watched_is_shown_from_its_beginning(run: Path) -> None:
    async def steps(pilot: Pilot[None], dashboard: Dashboard) -> None:
        fake_run.write(run, fake_run.events(5, total=7))
        await until(lambda: (dashboard.view.step, dashboard.view.total_steps) == (5, 7), pilot)
        assert len(dashboard.view.series["train/loss"]) == 5

    drive(run, steps)


def test_hostile_names_samples_and_messages_are_shown_and_not_obeyed(tmp_path: Path) -> None:
    where = {"t": time.time(), "step": 0, "attempt": 1}
    nan = {"train/loss": "nan", f"validation/{HOSTILE}/loss": 1.0}
    run = fake_run.write(tmp_path / "hostile", [
        {"type": "run_started", **where, **fake_run.started(HOSTILE)},
        {"type": "planned", **where, "total_steps": 9, "plan": {}, "devices": [HOSTILE]},
        {"type": "step", **where, "step": 1, "metrics": nan},
        {"type": "sampled", **where, "step": 1, "prompt": HOSTILE, "text": HOSTILE, "seconds": 0.1},
        {"type": "alert", **where, "step": 1, "kind": HOSTILE, "message": HOSTILE},
        {"type": "log", **where, "step": 1, "level": "warning", "message": HOSTILE},
    ])  # fmt: skip
    frame = once(run, width=160, height=48)
    assert all(c == "\n" or c.isprintable() for c in frame)
    assert frame.count("[bold red]boo[/]") >= 3, "markup is shown as it is"


def test_without_a_terminal_it_refuses_and_writes_no_escape(run: Path) -> None:
    done = subprocess.run([*WATCH, run], capture_output=True, stdin=subprocess.DEVNULL, text=True)
    assert done.returncode != 0 and "\x1b" not in done.stdout + done.stderr
    assert "not a terminal" in done.stderr and "--once" in done.stderr


def test_a_run_that_is_not_there_is_an_error_in_words(tmp_path: Path) -> None:
    for show in (watch, once):
        with pytest.raises(TrainkitError, match="no such run"):
            show(tmp_path / "missing")


def test_importing_the_package_alone_imports_no_textual_and_the_dashboard_no_jax() -> None:
    program = "import sys, trainkit.dashboard; assert 'textual' not in sys.modules; import trainkit.dashboard.app; "
    program += "assert 'textual' in sys.modules and 'jax' not in sys.modules"
    subprocess.run([sys.executable, "-c", program], check=True)


def test_a_tick_of_the_clock_while_the_app_closes_draws_nothing_and_fails_nothing(run: Path) -> None:
    async def steps(pilot: Pilot[None], dashboard: Dashboard) -> None:
        await dashboard.screen_stack[0].query("*").remove()
        dashboard.poll()

    drive(run, steps, size=(120, 40))


def test_the_age_of_the_last_event_changes_once_a_second_at_most() -> None:
    told = [_age(seconds) for seconds in (-1.0, 0.0, 3.0, 3.9, 9.99, 65.2)]
    assert told == ["0 s", "0 s", "3 s", "3 s", "9 s", "1m 05s"]
