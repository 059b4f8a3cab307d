"""The keys and the mouse on charts, in the whole dashboard on real logs."""

from __future__ import annotations

import math
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import fake_run
import pytest
from textual.events import MouseDown, MouseMove, MouseScrollDown, MouseScrollUp, MouseUp
from textual.pilot import Pilot
from textual.widgets import ContentSwitcher
from viewer import drive, screen_text, until, write_run

from trainkit.dashboard.app import NAMES, Dashboard
from trainkit.dashboard.charts.chart import Chart
from trainkit.dashboard.keys import Help
from trainkit.dashboard.panels.overview import LossChart
from trainkit.events import reducer
from trainkit.events.series import Series
from trainkit.rundir.follow import Replay

WIDE = (160, 48)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return write_run(tmp_path / "quickstart", steps=300)


def loss(app: Dashboard) -> LossChart:
    return app.query_one(LossChart)


def range_of(app: Dashboard) -> tuple[float, float]:
    assert app.viewport.range is not None
    return app.viewport.range


def test_plus_and_minus_zoom_brackets_pan_and_0_shows_all_and_every_chart_says_so(run: Path) -> None:
    async def steps(pilot: Pilot[None], app: Dashboard) -> None:
        await pilot.press("plus")
        await pilot.pause()
        assert range_of(app) == (150.5, 300)
        assert screen_text(app).count("0: all") >= 2
        assert f"train {app.view.series['train/loss'].values[-1]:.4f}" in screen_text(app), "the last that is shown"
        await pilot.press("left_square_bracket")
        assert range_of(app) == pytest.approx((150.5 - 149.5 / 4, 300 - 149.5 / 4))
        await pilot.press("right_square_bracket")
        assert range_of(app) == pytest.approx((150.5, 300))
        await pilot.press("plus", "minus", "minus")
        assert app.viewport.range is None
        await pilot.press("equals_sign", "0")
        await pilot.pause()
        assert app.viewport.range is None and "0: all" not in screen_text(app)

    drive(run, steps, size=WIDE)


def test_what_is_zoomed_in_does_not_move_while_the_run_continues(run: Path) -> None:
    async def steps(pilot: Pilot[None], app: Dashboard) -> None:
        await pilot.press("plus")
        before = loss(app).picture().window
        for event in fake_run.events(320, total=600)[-20:]:
            reducer.reduce(app.view, event)
        app.show(everything=True)
        await pilot.pause()
        assert loss(app).picture().window == before
        await pilot.press("0")
        shown = loss(app).picture().window
        assert shown is not None and shown.high == 320

    drive(run, steps, size=WIDE)


def test_the_crosshair_stands_at_the_same_step_in_every_chart_and_shows_the_values_there(run: Path) -> None:
    async def steps(pilot: Pilot[None], app: Dashboard) -> None:
        await pilot.press("x")
        await pilot.pause()
        assert app.viewport.cross == 300 and app.viewport.pinned
        await pilot.press("left", "h")
        two = app.viewport.cross
        assert two is not None and 280 < two < 300
        await pilot.press("shift+left")
        ten = app.viewport.cross
        assert ten is not None and two - ten > 4 * (300 - two)
        await pilot.press("L", "H", "shift+right", "right", "l", "right")
        assert app.viewport.cross == 300
        for _ in range(3):
            await pilot.press("shift+left")
        await pilot.pause()
        told, cross = screen_text(app), app.viewport.cross or 0
        assert told.count(f"step {cross:,.0f}") >= 4, told
        for chart in app.charts():
            assert chart.picture().cell(cross) is not None
        assert told.count("│") > 60
        low, high = loss(app).picture().steps(loss(app).picture().cell(cross) or 0)
        steps_there = range(math.ceil(low), math.ceil(high))
        values = [app.view.series["train/loss"].values[step - 1] for step in steps_there]
        assert len(values) > 1 and f"train {min(values):.4f}–{max(values):.4f}" in told
        await pilot.press("escape")
        await pilot.pause()
        assert app.viewport.cross is None and f"step {cross:,.0f}" not in screen_text(app)
        await pilot.press("x", "x")
        assert app.viewport.cross is None

    drive(run, steps, size=WIDE)


def test_zoomed_in_far_the_crosshair_goes_from_step_to_step(run: Path) -> None:
    async def steps(pilot: Pilot[None], app: Dashboard) -> None:
        await pilot.press(*["plus"] * 7, "x", "left", "left")
        assert app.viewport.cross == 298
        value = app.view.series["train/loss"].values[297]
        await pilot.pause()
        assert f"train {value:.4f}" in screen_text(app)

    drive(run, steps, size=WIDE)


@pytest.mark.parametrize("key", ["b", "enter"])
def test_with_a_crosshair_the_batch_of_its_step_is_opened(run: Path, key: str) -> None:
    async def steps(pilot: Pilot[None], app: Dashboard) -> None:
        await pilot.press(key)
        assert app.query_one(ContentSwitcher).current == NAMES[0], "without a crosshair nothing happens"
        await pilot.press("x", "left", key)
        await pilot.pause()
        assert app.query_one(ContentSwitcher).current == "data"
        assert f"batch of step {(app.viewport.cross or 0) - 1:,.0f}" in screen_text(app)
        before = app.viewport.cross
        await pilot.press("left", "escape")
        assert app.viewport.cross == before, "on a page without charts the keys are the page's"

    drive(run, steps, size=WIDE)


def test_marks_under_the_crosshair_are_reported(run: Path) -> None:
    async def steps(pilot: Pilot[None], app: Dashboard) -> None:
        app.viewport.point(300, pinned=True)
        await pilot.pause()
        told = screen_text(app)
        assert "◆ checkpoint rolling" in told and "◦ evaluation held-out" in told

    drive(run, steps, size=WIDE)


def test_l_a_o_and_X_change_how_a_chart_looks_and_it_says_so(run: Path) -> None:
    async def steps(pilot: Pilot[None], app: Dashboard) -> None:
        chart = loss(app)
        await pilot.press("l")
        await pilot.pause()
        assert chart.look.log and "log" in str(chart.border_subtitle)
        told = []
        for _ in range(5):
            await pilot.press("a")
            await pilot.pause()
            told.append(str(chart.border_subtitle))
        for expected, found in zip(("EMA 0.9", "EMA 0.99", "EMA 0.999", "raw"), told, strict=False):
            assert expected in found
        assert "EMA" not in told[4] and "raw" not in told[4]
        await pilot.press("l", "o")
        assert chart.look.whole and not chart.look.log
        await pilot.press("o", "X")
        await pilot.pause()
        window = chart.picture().window
        assert not chart.look.whole and window is not None and window.log and "log steps" in str(chart.border_subtitle)
        await pilot.press("X")
        assert not app.viewport.log_x

    drive(run, steps, size=WIDE)


def test_o_draws_what_was_cut_off(tmp_path: Path) -> None:
    events = fake_run.events(300)
    for event in events:
        if event["type"] == "step" and event["step"] == 150:
            event["metrics"]["train/loss"] = 4000.0
    run = fake_run.write(tmp_path / "spiked", events)

    async def steps(pilot: Pilot[None], app: Dashboard) -> None:
        assert "▲ off scale, o: all" in screen_text(app)
        await pilot.press("o")
        await pilot.pause()
        assert "off scale" not in screen_text(app) and loss(app).picture().cut == (False, False)

    drive(run, steps, size=WIDE)


def test_v_chooses_the_next_chart_and_what_is_done_is_done_to_that(run: Path) -> None:
    async def steps(pilot: Pilot[None], app: Dashboard) -> None:
        await pilot.press("v", "v", "l")
        chosen = app.chosen_chart()
        assert chosen is not None and chosen is not loss(app) and chosen.look.log and not loss(app).look.log
        await pilot.press("x", "enter")
        assert app.query_one(ContentSwitcher).current == NAMES[0], "enter is for the loss alone"
        await pilot.press("escape")
        await pilot.click(LossChart, offset=(50, 5))
        assert app.chosen_chart() is loss(app), "so does a click"
        await pilot.press("escape", "2", "v")
        await pilot.pause()
        assert app.chosen_chart() is app.charts()[1], "in the grid as well"

    drive(run, steps, size=WIDE)


def test_w_writes_the_chart_into_the_working_directory_and_says_where(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    before = sorted(run.rglob("*"))

    async def steps(pilot: Pilot[None], app: Dashboard) -> None:
        await pilot.press("w")
        await pilot.pause()
        written = tmp_path / "quickstart-train-loss-300.svg"
        assert ElementTree.parse(written).getroot().tag.endswith("svg")
        (told,) = app._notifications
        assert str(written) in told.message and told.severity == "information"
        monkeypatch.chdir("/proc")
        await pilot.press("w")
        await pilot.pause()
        assert [n.severity for n in app._notifications] == ["information", "error"]

    drive(run, steps, size=WIDE)
    assert sorted(run.rglob("*")) == before


def test_a_chart_over_something_else_than_steps_is_not_written_as_one_over_steps(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    async def steps(pilot: Pilot[None], app: Dashboard) -> None:
        await pilot.press(str(NAMES.index("compare") + 1), "t")
        await pilot.pause()
        await pilot.press("w")
        await pilot.pause()
        (written,) = tmp_path.glob("quickstart-train-loss-*.svg")
        told = [element.text for element in ElementTree.parse(written).iter() if element.text]
        assert "quickstart · train/loss over tokens" in told and "step" not in told

    drive(run, steps, size=WIDE)


def test_in_the_grid_arrows_choose_a_chart_and_with_a_crosshair_move_it(run: Path) -> None:
    async def steps(pilot: Pilot[None], app: Dashboard) -> None:
        await pilot.press("2", "right")
        await pilot.pause()
        chosen = app.chosen_chart()
        assert chosen is app.charts()[1] and app.viewport.cross is None
        await pilot.press("x", "left")
        assert app.chosen_chart() is chosen and (app.viewport.cross or 300) < 300
        await pilot.press("escape", "left")
        await pilot.pause()
        assert app.chosen_chart() is app.charts()[0] and app.viewport.cross is None
        await pilot.press("slash", *"lx")
        assert app.viewport.cross is None, "what is typed is typed"

    drive(run, steps, size=WIDE)


def test_in_a_replay_arrows_seek_and_with_a_crosshair_move_it(run: Path) -> None:
    async def steps(pilot: Pilot[None], app: Dashboard) -> None:
        await pilot.press("space")
        before = app.view.step
        await pilot.press("left")
        sought = app.view.step
        assert sought < before
        await pilot.press("x", "left")
        assert app.view.step == sought and (app.viewport.cross or sought) < sought
        await pilot.press("escape", "right")
        assert app.view.step > sought

    replay = Replay(run)
    replay.seek(200)
    drive(run, steps, size=WIDE, replay=replay)


def test_the_mouse_points_sets_zooms_pans_and_drags(run: Path) -> None:
    async def steps(pilot: Pilot[None], app: Dashboard) -> None:
        chart, at = loss(app), (70, 5)
        await pilot.hover(LossChart, offset=at)
        hovered = app.viewport.cross
        assert hovered is not None and not app.viewport.pinned
        await pilot.press("left")
        assert app.viewport.cross == hovered, "keys move only a crosshair that was set"
        await pilot.hover("Header")
        assert app.viewport.cross is None
        await pilot.click(LossChart, offset=at)
        assert app.viewport.pinned and app.viewport.cross == hovered
        await pilot._post_mouse_events([MouseScrollUp], LossChart, offset=at, button=0)
        zoomed = range_of(app)
        assert zoomed[0] < hovered < zoomed[1] and zoomed[1] - zoomed[0] < 299
        await pilot._post_mouse_events([MouseScrollUp], LossChart, offset=at, button=0, shift=True)
        assert range_of(app)[0] < zoomed[0]
        await pilot._post_mouse_events([MouseScrollDown], LossChart, offset=at, button=0, shift=True)
        assert range_of(app) == pytest.approx(zoomed)
        await pilot._post_mouse_events([MouseDown], LossChart, offset=at, button=1)
        await pilot._post_mouse_events([MouseMove], LossChart, offset=(50, 5), button=1)
        await pilot._post_mouse_events([MouseUp], LossChart, offset=(50, 5), button=1)
        assert range_of(app)[0] > zoomed[0] and app.viewport.cross == hovered
        await pilot._post_mouse_events([MouseScrollDown] * 1, LossChart, offset=at, button=0)
        await pilot._post_mouse_events([MouseScrollDown] * 1, LossChart, offset=at, button=0)
        assert app.viewport.range is None and chart.in_sight

    drive(run, steps, size=WIDE)


def test_a_close_look_at_a_thinned_run_shows_its_exact_points(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reducer, "Series", lambda limit: Series(limit=limit and 64))

    async def steps(pilot: Pilot[None], app: Dashboard) -> None:
        assert app.view.series["train/loss"].stride > 1
        await pilot.press("plus", "plus", "plus", "x", "left")
        await until(lambda: app.viewport.exact, pilot)
        low, high = range_of(app)
        exact = app.viewport.exact["train/loss"]
        assert exact.stride == 1 and exact.steps[0] <= low and exact.steps[-1] >= high
        await pilot.press(*["plus"] * 5)
        await pilot.pause()
        cross = int(app.viewport.cross or 0)
        assert f"train {exact.values[list(exact.steps).index(cross)]:.4f}" in screen_text(app)
        reducer.reduce(app.view, {**fake_run.events(1, attempt=2, resumed_from=250)[0]})
        app.show(everything=True)
        assert app.viewport.exact is not exact and not app.viewport.exact.get("train/loss")

    drive(run, steps, size=WIDE)


def test_the_help_shows_the_keys_of_the_charts_and_under_it_they_do_nothing(run: Path) -> None:
    async def steps(pilot: Pilot[None], app: Dashboard) -> None:
        await pilot.press("question_mark")
        await pilot.pause()
        assert isinstance(app.screen, Help)
        assert "zoom in" in screen_text(app)
        await pilot.press("plus", "x")
        assert app.viewport.range is None and app.viewport.cross is None

    drive(run, steps, size=(160, 80))


@pytest.mark.parametrize("size", [(60, 20), (20, 5), (1, 1)])
def test_at_every_size_every_key_is_harmless(run: Path, size: tuple[int, int]) -> None:
    async def steps(pilot: Pilot[None], app: Dashboard) -> None:
        for page in "123":
            await pilot.press(page, "plus", "x", "left", "shift+right", "a", "o", "X", "l", "v", "0", "escape", "X")
        await pilot.pause()
        assert app.is_running and all(chart.size.area for chart in app.query(Chart) if chart.in_sight)

    drive(run, steps, size=size)


def test_the_signs_of_a_legend_follow_the_theme_at_once(tmp_path: Path) -> None:
    async def steps(pilot: Pilot[None], app: Dashboard) -> None:
        app.draw_all()
        await pilot.pause()
        loss = app.query_one("#loss", Chart)
        assert "━ train" in str(loss._border_title) and "━ held-out" in str(loss._border_title)
        app.theme = "plain"
        await pilot.pause()
        assert "a held-out" in str(loss._border_title) and "━" not in str(loss._border_title)
        app.theme = "dark"
        await pilot.pause()
        assert "━ held-out" in str(loss._border_title)

    drive(write_run(tmp_path / "quickstart"), steps, size=(120, 40))
