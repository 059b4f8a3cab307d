"""The compare page: curves of several runs over steps, tokens and time, and the table of what came of them."""

from __future__ import annotations

import gc
import json
import re
import warnings
from pathlib import Path

import fake_run
import numpy as np
import pytest
from fake_run import HOSTILE, folded
from hypothesis import given
from hypothesis import strategies as st
from pages import drive, frame, notices, only, settle
from textual.pilot import Pilot
from textual.widgets import Input

from trainkit.dashboard.app import Dashboard
from trainkit.dashboard.charts.chart import Chart
from trainkit.dashboard.pages.compare import ComparePage
from trainkit.dashboard.panels.comparison import COLORS
from trainkit.events.schema import Event
from trainkit.events.series import Series
from trainkit.events.view import View
from trainkit.rundir.compare import Other, along, results, training_seconds


def told(steps: int, *, factor: float = 1.0, seconds: float = 0.5, tokens: int = 4096) -> list[Event]:
    events = fake_run.events(steps)
    for event in events:
        if event["type"] == "step":
            event["metrics"]["train/loss"] *= factor
            event["metrics"]["time/step"] = seconds
        if event["type"] == "planned":
            event["plan"] = {**event["plan"], "tokens_per_step": tokens}
    return events


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run beside a slower one with larger batches and twice its loss, a short one, and what is none."""
    only(monkeypatch, ComparePage)
    for name, events, rate in (
        ("here", told(60), 0.1),
        ("slow", told(40, factor=2, seconds=2.0, tokens=8192), 0.2),
        ("short", told(5), 0.1),
    ):
        directory = fake_run.write(tmp_path / name, events)
        (directory / "recipe.toml").write_text(f'[run]\nname = "{name}"\n[optimizer]\nlearning_rate = {rate}\n')
    (tmp_path / "notes").mkdir()
    return tmp_path / "here"


def shown_chart(dashboard: Dashboard) -> Chart:
    (chart,) = (chart for chart in dashboard.query_one(ComparePage).query(Chart) if chart.display)
    return chart


def spans(dashboard: Dashboard) -> dict[str, float]:
    """Where the curve of each run ends."""
    return {curve.label: curve.series.steps[-1] for curve in shown_chart(dashboard).curves}


async def choose(name: str, pilot: Pilot[None], dashboard: Dashboard, key: str = "enter") -> None:
    rows = dashboard.query_one(ComparePage)._list
    rows.choose(name)
    await pilot.press(key)
    await settle(pilot)


@pytest.mark.parametrize("size", [(200, 60), (60, 20)])
def test_enter_and_space_add_the_curve_of_a_run_and_take_it_away(run: Path, size: tuple[int, int]) -> None:
    async def steps(pilot: Pilot[None], dashboard: Dashboard) -> None:
        assert spans(dashboard) == {"here": 60} and "1 of 3 runs, enter adds one" in frame(dashboard)
        await choose("slow", pilot, dashboard)
        assert spans(dashboard) == {"here": 60, "slow": 40} and "2 of 3 runs" in frame(dashboard)
        await choose("short", pilot, dashboard, "space")
        assert spans(dashboard) == {"here": 60, "slow": 40, "short": 5}
        await choose("slow", pilot, dashboard)
        await choose("here", pilot, dashboard)
        assert spans(dashboard) == {"here": 60, "short": 5}, "this run stays"
        colors = {curve.label: curve.color for curve in shown_chart(dashboard).curves}
        assert len(set(colors.values())) == 2

    drive(run, steps, size=size)


def test_t_draws_the_curves_over_tokens_and_over_the_time_of_training(run: Path) -> None:
    async def steps(pilot: Pilot[None], dashboard: Dashboard) -> None:
        await choose("slow", pilot, dashboard)
        for axis, expected in (
            ("tokens", {"here": 60 * 4096, "slow": 40 * 8192}),
            ("training time", {"here": 30, "slow": 80}),
            ("steps", {"here": 60, "slow": 40}),
        ):
            await pilot.press("t")
            await pilot.pause()
            assert spans(dashboard) == pytest.approx(expected) and f"train/loss over {axis}" in frame(dashboard)

    drive(run, steps)


def test_m_and_the_arrows_go_through_the_metrics_of_all_the_runs(run: Path) -> None:
    with (run.parent / "slow" / fake_run.NAME).open("a") as log:
        step = {"type": "step", "t": 1.8e9, "step": 41, "attempt": 1, "metrics": {"train/only_there": 1.0}}
        log.write(json.dumps(step) + "\n")

    async def steps(pilot: Pilot[None], dashboard: Dashboard) -> None:
        await choose("slow", pilot, dashboard)
        page = dashboard.query_one(ComparePage)
        for key, metric in (
            ("m", "train/only_there"), ("right", "validation/held-out/bits_per_byte"), ("left", "train/only_there"),
            ("M", "train/loss"), ("M", "host/cpu"),
        ):  # fmt: skip
            await pilot.press(key)
            await pilot.pause()
            assert page._metric == metric and f"{metric} over steps" in frame(dashboard)
            if metric == "train/only_there":
                assert "not measured by here" in frame(dashboard)

    drive(run, steps, size=(200, 50))


def test_the_table_shows_the_results_and_the_keys_that_differ_as_trainkit_compare_does(run: Path) -> None:
    async def steps(pilot: Pilot[None], dashboard: Dashboard) -> None:
        await choose("slow", pilot, dashboard)
        lines = [line.split("│")[-2].split() for line in frame(dashboard).split("\n") if line.count("│") > 1]
        rows = {line[0]: line[1:] for line in lines if line}
        assert rows["step"] == ["60/60", "40/40"] and rows["optimizer.learning_rate"] == ["0.1", "0.2"]
        assert rows["trained"] == ["for", "30.0", "s", "80.0", "s"] and "run.name" not in rows
        await pilot.press("y")
        assert "optimizer.learning_rate\t0.1\t0.2" in dashboard.clipboard
        results_rows = dashboard.query_one(ComparePage)._results
        for key, chosen in (("J", "1"), ("J", "2"), ("K", "1")):
            await pilot.press(key)
            assert results_rows.chosen == chosen

    drive(run, steps, size=(160, 50))


def test_where_there_is_no_room_for_both_v_shows_the_table_or_the_chart(run: Path) -> None:
    async def steps(pilot: Pilot[None], dashboard: Dashboard) -> None:
        assert "tokens/s" not in frame(dashboard)
        await pilot.press("v")
        await pilot.pause()
        assert "tokens/s" in frame(dashboard) and shown_chart(dashboard).size.height == 0
        await pilot.press("v")
        await pilot.pause()
        assert "tokens/s" not in frame(dashboard) and shown_chart(dashboard).size.height > 3

    drive(run, steps, size=(60, 20))


def test_the_filter_leaves_the_chosen_runs_and_escape_shows_all(run: Path) -> None:
    async def steps(pilot: Pilot[None], dashboard: Dashboard) -> None:
        page = dashboard.query_one(ComparePage)
        await choose("slow", pilot, dashboard)
        await pilot.press("slash", *"zz", "enter")
        await pilot.pause()
        assert [row.id for row in page._list._rows] == ["here", "slow"]
        await pilot.press("escape")
        await pilot.pause()
        assert [row.id for row in page._list._rows] == ["here", "slow", "short"]
        assert not page.query_one(Input).display and page.has_focus
        for key, row in (("G", "short"), ("k", "slow"), ("g", "here"), ("j", "slow")):
            await pilot.press(key)
            assert page._list.chosen == row

    drive(run, steps)


def test_a_run_that_grows_is_followed(run: Path) -> None:
    async def steps(pilot: Pilot[None], dashboard: Dashboard) -> None:
        await choose("short", pilot, dashboard)
        assert spans(dashboard)["short"] == 5
        fake_run.write(run.parent / "short", told(9))
        dashboard.load()
        await pilot.pause()
        assert spans(dashboard)["short"] == 9

    drive(run, steps)


def test_a_broken_run_is_said_to_be_broken_and_the_others_are_still_drawn(run: Path) -> None:
    foreign = {"type": "step", "t": 1.0, "step": 1, "attempt": 1}
    fake_run.write(run.parent / "foreign", [foreign])
    (run.parent / "foreign" / "recipe.toml").write_text("no toml")

    async def steps(pilot: Pilot[None], dashboard: Dashboard) -> None:
        await choose("foreign", pilot, dashboard)
        await choose("slow", pilot, dashboard)
        assert "1 line of its log" in frame(dashboard) and spans(dashboard) == {"here": 60, "slow": 40}

    drive(run, steps)


def test_no_more_are_chosen_than_there_are_colours(run: Path) -> None:
    for place in range(len(COLORS)):
        fake_run.write(run.parent / f"more-{place}", told(3))

    async def steps(pilot: Pilot[None], dashboard: Dashboard) -> None:
        for place in range(len(COLORS) - 1):
            await choose(f"more-{place}", pilot, dashboard)
        colors = [curve.color for curve in shown_chart(dashboard).curves]
        assert len(set(colors)) == len(colors) == len(COLORS)
        await choose("slow", pilot, dashboard)
        assert "runs can be compared" in notices(dashboard)
        assert "slow" not in spans(dashboard)

    drive(run, steps)


@pytest.mark.parametrize("size", [(200, 60), (30, 9)])
def test_hostile_names_metrics_and_recipes_are_inert_at_every_size(run: Path, size: tuple[int, int]) -> None:
    name = HOSTILE.replace("\ud800", "").replace("/", "∕")
    events = told(3)
    events[-1] = {**events[-1], "type": "step", "metrics": {f"train/{HOSTILE}": 1.0}}
    other = fake_run.write(run.parent / name, events)
    key = json.dumps(HOSTILE.replace("\ud800", "").replace("\x7f", ""))
    (other / "recipe.toml").write_text(f"[{key}]\n{key} = {key}\n")

    async def steps(pilot: Pilot[None], dashboard: Dashboard) -> None:
        await choose(name, pilot, dashboard)
        for pressed in ("m", "t", "t", "v", "y"):
            await pilot.press(pressed)
            await pilot.pause()
            assert all(c == "\n" or c.isprintable() for c in frame(dashboard))
        assert all(c in "\n\t" or c.isprintable() for c in dashboard.clipboard)

    drive(run, steps, size=size)


@given(st.lists(st.floats(0.01, 100), min_size=1, max_size=300), st.integers(2, 64))
def test_the_time_of_training_is_the_sum_of_the_steps_however_finely_they_are_kept(
    seconds: list[float], limit: int
) -> None:
    times = Series(limit=limit)
    for step, value in enumerate(seconds, 1):
        times.add(step, value)
    steps, passed = training_seconds(times)
    sums = np.concatenate([[0.0], np.cumsum(seconds)])
    assert passed == pytest.approx(sums[steps.astype(int)]) and passed[-1] == pytest.approx(times.total)


def test_what_a_resumed_attempt_did_again_and_the_pause_before_it_count_once() -> None:
    again = fake_run.events(60, attempt=2, resumed_from=30)
    events = [*told(50), *again]
    for event in again:
        event["t"] += 1e6
        if event["type"] == "step":
            event["metrics"]["time/step"] = 1.0
    view = folded(events)
    over_time = along(view.series["train/loss"], view, "training time")
    assert over_time is not None and over_time.steps[-1] == pytest.approx(30 * 0.5 + 30 * 1.0)


def test_a_series_over_another_axis_keeps_its_values_and_extremes_at_their_new_places() -> None:
    view = View(plan={"tokens_per_step": 10})
    series = Series(limit=16)
    for step in range(1, 200):
        series.add(step, float("nan") if step == 50 else (step * 37) % 101)
    moved = along(series, view, "tokens")
    assert moved is not None and moved.stride == series.stride > 1 and moved.version == series.version
    assert moved.lowest and series.lowest and moved.lowest.value == series.lowest.value
    assert moved.lowest.step == 10 * series.lowest.step and moved.total == series.total
    assert np.nansum(moved.broken) == 500
    stages = [{"begin": 0, "batch_size": 2}, {"begin": 10, "batch_size": 4}]
    changing = View(plan={"tokens_per_step": 30, "steps": 20, "total_tokens": 600, "stages": stages})
    grown = along(series, changing, "tokens")
    assert grown is not None
    at = np.asarray(series.steps, np.float64)
    np.testing.assert_allclose(grown.steps, 20 * np.minimum(at, 10) + 40 * np.clip(at - 10, 0, 10))
    assert along(series, View(), "tokens") is None and along(series, view, "training time") is None
    assert along(series, View(plan={"tokens_per_step": "many"}), "tokens") is None


def test_runs_without_anything_have_results_too() -> None:
    assert all(value in ("–", "0/?") for _, *values in results([View(), View()]) for value in values)


def test_without_colours_the_list_has_the_letter_that_a_curve_is_drawn_with(run: Path) -> None:
    async def steps(pilot: Pilot[None], dashboard: Dashboard) -> None:
        await choose("slow", pilot, dashboard)
        dashboard.theme = "plain"
        dashboard.draw_all()
        await pilot.pause()
        row = next(row for row in dashboard.query_one(ComparePage)._list._rows if row.id == "slow")
        assert row.cells[0].plain == "a" and shown_chart(dashboard).letters

    drive(run, steps)


def test_the_results_are_never_cut_within_a_value(run: Path) -> None:
    async def steps(pilot: Pilot[None], dashboard: Dashboard) -> None:
        for name in ("slow", "short"):
            await choose(name, pilot, dashboard)
        for width in (160, 120, 100, 80, 60):
            await pilot.resize_terminal(width, 40)
            await pilot.pause()
            lines = [line for line in frame(dashboard).split("\n") if "loss, best" in line]
            values = [found for line in lines for found in re.findall(r"(\d\.\d{4})( at \d+)?", line)]
            assert len(values) >= 2 and not any("…" in line.split("loss, best")[1] for line in lines), lines
            assert len({bool(step) for _, step in values}) == 1, "the steps are told of all or of none"

    drive(run, steps, size=(160, 40))


def test_runs_for_which_the_table_has_no_room_are_named(run: Path) -> None:
    async def steps(pilot: Pilot[None], dashboard: Dashboard) -> None:
        await choose("slow", pilot, dashboard)
        await choose("short", pilot, dashboard)
        assert "no room for" not in frame(dashboard)
        await pilot.resize_terminal(44, 40)
        await pilot.pause()
        assert "no room for short" in frame(dashboard)

    drive(run, steps, size=(60, 40))


def test_who_chooses_fast_leaves_no_reading_that_was_never_begun(run: Path) -> None:
    async def steps(pilot: Pilot[None], dashboard: Dashboard) -> None:
        page = dashboard.query_one(ComparePage)
        for now in range(1, 4):
            page.show_view(View(), now=now * 1e9)
            page.compare_with([run.parent / "slow"])
        await settle(pilot)

    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        drive(run, steps)
        gc.collect()
    assert not [warning for warning in told if warning.category is RuntimeWarning], told


def test_however_many_runs_are_chosen_at_once_one_timer_reads_them(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def steps(pilot: Pilot[None], dashboard: Dashboard) -> None:
        page, timers = dashboard.query_one(ComparePage), []
        monkeypatch.setattr(Other, "advance", lambda other: None)  # they are never read out
        monkeypatch.setattr(page, "set_timer", lambda delay, callback: timers.append(callback) or callback)
        for name in ("slow", "short"):
            page.compare_with([run.parent / name])
        assert len(timers) == 1
        timers[0]()
        assert len(timers) == 2, "it goes on by itself"

    drive(run, steps)
