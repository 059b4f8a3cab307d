"""The page of all metrics, driven by keys on views made of real events."""

from __future__ import annotations

import asyncio
import math
from array import array
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path
from typing import Any

import fake_run
import pytest
from fake_run import HOSTILE
from hypothesis import given, settings
from hypothesis import strategies as st
from textual.app import ComposeResult
from textual.pilot import Pilot
from textual.widgets import Input, Static
from viewer import running

from trainkit.dashboard import theme
from trainkit.dashboard.charts import chart
from trainkit.dashboard.charts.columns import StepRange
from trainkit.dashboard.charts.keys import ChartKeys
from trainkit.dashboard.charts.plot import Picture
from trainkit.dashboard.charts.titles import goal, summarize
from trainkit.dashboard.pages.metrics import (
    HEIGHT,
    WIDTH,
    MetricCell,
    MetricsPage,
    compile_pattern,
    layout,
    sort_metrics,
)
from trainkit.events.reducer import reduce
from trainkit.events.series import Series
from trainkit.events.view import View
from trainkit.text import one_line

SIZES = [(200, 60), (120, 40), (80, 24), (60, 20), (36, 9), (20, 6), (1, 1)]


class Alone(ChartKeys):
    """The page without the rest of the dashboard."""

    CSS_PATH = str(Path(theme.__file__).with_name("dashboard.tcss"))

    def __init__(self) -> None:
        super().__init__()
        theme.install(self)

    def compose(self) -> ComposeResult:
        yield MetricsPage(Path())


Steps = Callable[[Pilot[None], MetricsPage], Awaitable[None]]


def drive(view: View, steps: Steps, *, size: tuple[int, int] = (120, 40)) -> None:
    async def drive_it() -> None:
        app = Alone()
        async with running(app, size) as pilot:
            page = app.query_one(MetricsPage)
            page.focus()
            page.show_view(view, now=0.0)
            await pilot.pause()
            await steps(pilot, page)

    asyncio.run(drive_it())


def a_run(steps: int = 120) -> View:
    view = View()
    for event in fake_run.events(steps):
        reduce(view, event)
    return view


def series(values: Iterable[float]) -> Series:
    made = Series()
    for step, value in enumerate(values, 1):
        made.add(step, value)
    return made


def many(count: int) -> View:
    return View(series={f"train/metric_{index:03d}": series([1.0, 2.0, index]) for index in range(count)})


def frame(page: MetricsPage) -> str:
    return "\n".join(strip.text for strip in page.screen._compositor.render_strips())


def cells(page: MetricsPage) -> list[str]:
    """The metrics that are mounted, in the order in which they stand."""
    return [cell.key for cell in page.query(MetricCell)]


def test_every_metric_gets_a_chart_with_its_last_and_its_best_value_and_its_change() -> None:
    view = a_run()

    async def steps(pilot: Pilot[None], page: MetricsPage) -> None:
        assert cells(page) == sort_metrics(view.series) and page.selected == "train/loss"
        told = frame(page)
        for name in ("train/loss", "optimizer/learning_rate", "gradients/norm", "memory/host 1.2 GB"):
            assert name in told, name
        losses = view.series["train/loss"].values
        assert f"train/loss {losses[-1]:.4f}" in told and f"best {min(losses):.4f} at" in told
        assert "median 10.9k" in told, "the best would be that of a single step"
        assert sum(0x2800 < ord(c) < 0x2900 for c in told) > 150

    drive(view, steps)


def test_metrics_are_ordered_by_pin_then_group_then_name() -> None:
    names = ["own/x", "host/cpu", "gradients/norm", "train/loss", "validation/b/loss", "train/accuracy", "a"]
    in_order = ["train/accuracy", "train/loss", "validation/b/loss", "gradients/norm", "host/cpu", "a", "own/x"]
    assert sort_metrics(names) == in_order
    assert sort_metrics(names, pinned={"host/cpu", "gone"})[:2] == ["host/cpu", "train/accuracy"]


@pytest.mark.parametrize(
    ("metric", "best"),
    [
        ("train/loss", "min"), ("validation/a/perplexity", "min"), ("validation/a/bits_per_byte", "min"),
        ("throughput/tokens_per_second", "max"), ("throughput/mfu", "max"), ("train/accuracy", "max"),
        ("time/step", "min"), ("optimizer/learning_rate", None), ("gradients/norm", None), ("host/cpu", None),
    ],
)  # fmt: skip
def test_what_is_best_follows_from_the_name(metric: str, best: str | None) -> None:
    assert goal(metric) == best


@given(st.integers(0, 200), st.integers(1, 300), st.integers(1, 100))
def test_a_grid_holds_all_charts_or_as_many_as_there_is_room_for(count: int, width: int, height: int) -> None:
    columns, rows = layout(count, width=width, height=height)
    most = max(1, width // WIDTH) * max(1, height // HEIGHT)
    assert 1 <= columns <= max(1, width // WIDTH) and 1 <= rows <= max(1, height // HEIGHT)
    assert columns * rows >= count or columns * rows == most


@given(st.lists(st.floats(), max_size=60))
def test_a_summary_is_of_the_finite_values_only(values: list[float]) -> None:
    made, finite = series(values), [value for value in values if math.isfinite(value)]
    found = summarize(made)
    assert (found is None) == (not finite)
    if found is not None:
        assert (found.low, found.high) == (min(finite), max(finite))
        assert values[int(found.low_at) - 1] == found.low and values[int(found.high_at) - 1] == found.high
    made.add(1e9, 1.0)  # no view of the arrays is left behind, which would keep them from growing


def test_the_change_is_the_last_tenth_against_the_first_of_what_is_shown() -> None:
    made = series([5.0] * 11 + [9.0] * 80 + [1.0] * 10)
    found = summarize(made)
    assert found is not None and found.change == (5.0, 1.0)
    found = summarize(made, StepRange(40, 101))
    assert found is not None and found.change == (9.0, pytest.approx((9 * 0 + 6 * 1) / 6))
    for few, change in (([3.0], None), ([3.0, 4.0], (3.0, 4.0))):
        found = summarize(series(few))
        assert found is not None and found.change == change


@given(st.lists(st.floats(-1e6, 1e6), min_size=20, max_size=200))
def test_a_thinned_series_reports_the_same_as_the_whole_one(values: list[float]) -> None:
    few = Series(limit=16)
    for step, value in enumerate(values, 1):
        few.add(step, value)
    one, other = summarize(few), summarize(series(values))
    assert one is not None and other is not None and one[:5] == other[:5]


@given(st.text())
@settings(max_examples=200)
def test_no_pattern_is_raised(pattern: str) -> None:
    for text in (pattern, f"({pattern}", f"[{pattern}", f"a{{{'9' * 30}}}{pattern}"):
        assert compile_pattern(text), "neither a pattern nor what is wrong with it"


def test_a_filter_shows_what_matches_and_a_wrong_pattern_is_said_in_its_border() -> None:
    async def steps(pilot: Pilot[None], page: MetricsPage) -> None:
        everything = cells(page)
        await pilot.press("slash", *"NORM|^mem")
        await pilot.pause()
        assert cells(page) == ["gradients/norm", "memory/device/0", "memory/host"]
        await pilot.press(*"(")
        assert "not a regular expression: missing )" in frame(page)
        assert cells(page) == ["gradients/norm", "memory/device/0", "memory/host"]
        await pilot.press("backspace", "enter")
        assert page.has_focus and not page.query_one(Input).display and "3 that match NORM|^mem" in frame(page)
        await pilot.press("slash", *"nothing", "enter")
        await pilot.pause()
        assert cells(page) == [] and "none of the 12 metrics match nothing" in frame(page)
        await pilot.press("escape")
        await pilot.pause()
        assert cells(page) == everything

    drive(a_run(), steps)


def test_arrows_and_vi_keys_move_the_selection_within_the_grid() -> None:
    async def steps(pilot: Pilot[None], page: MetricsPage) -> None:
        names = cells(page)
        columns = page.query_one(".grid").styles.grid_size_columns
        assert columns == 3
        for keys, place in (
            ("left", 0), ("up", 0), ("l", 1), ("right", 2), ("j", 5), ("down", 8), ("h", 7), ("k", 4),
            ("end", 11), ("down", 11), ("right", 11), ("home", 0),
        ):  # fmt: skip
            await pilot.press(keys)
            assert page.selected == names[place], keys
            assert f" {page.selected} " in frame(page)

    drive(a_run(), steps)


def test_enter_shows_the_selected_chart_alone_and_escape_brings_the_grid_back() -> None:
    async def steps(pilot: Pilot[None], page: MetricsPage) -> None:
        everything = cells(page)
        await pilot.press("right", "enter")
        await pilot.pause()
        assert cells(page) == [everything[1]]
        only = page.query_one(MetricCell)
        assert only.size.width > 100 and only.size.height > 30 and "◆" in frame(page)
        await pilot.press("down")
        await pilot.pause()
        assert cells(page) == [everything[2]]
        await pilot.press("escape")
        await pilot.pause()
        assert cells(page) == everything and page.selected == everything[2]

    drive(a_run(), steps)


def test_a_pinned_metric_stands_first_and_a_log_scale_is_the_selected_one_s_only() -> None:
    async def steps(pilot: Pilot[None], page: MetricsPage) -> None:
        await pilot.press("end", "f", "g")
        await pilot.pause()
        assert cells(page)[0] == page.selected == "host/cpu" and "★ host/cpu" in frame(page)
        logarithmic = [cell.key for cell in page.query(MetricCell) if cell.look.log]
        assert logarithmic == ["host/cpu"] and frame(page).count("─ log ") == 1
        await pilot.press("f", "g")
        await pilot.pause()
        assert cells(page)[-1] == "host/cpu" and "★" not in frame(page)

    drive(a_run(), steps)


def test_only_what_fits_is_mounted_and_the_grid_follows_the_selection() -> None:
    async def steps(pilot: Pilot[None], page: MetricsPage) -> None:
        assert cells(page) == [f"train/metric_{index:03d}" for index in range(12)]
        assert "1 to 12 of 100 metrics" in frame(page)
        await pilot.press("down", "down", "down", "down")
        await pilot.pause()
        assert cells(page)[0] == "train/metric_003" and page.selected == "train/metric_012"
        standing = list(page.query(MetricCell))
        assert [cell.region.y for cell in standing] == sorted(cell.region.y for cell in standing)
        await pilot.press("end")
        await pilot.pause()
        assert cells(page)[-1] == page.selected == "train/metric_099" and len(cells(page)) <= 12
        await pilot.press("home", "pagedown")
        assert page.selected == "train/metric_012"

    drive(many(100), steps, size=(120, 34))


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of curves of every chart that is drawn."""
    drawn: list[int] = []
    draw = chart.draw

    def counted(curves: list[chart.Curve], **options: Any) -> Picture:
        drawn.append(len(curves))
        return draw(curves, **options)

    monkeypatch.setattr(chart, "draw", counted)
    return drawn


def many_long(metrics: int) -> View:
    """So many metrics of 5,000 points."""
    view = many(metrics)
    for one in view.series.values():
        one.steps, one.values, one.version = array("d", range(5000)), array("d", range(5000)), 5000
    return view


def test_only_charts_in_sight_are_drawn_and_again_only_where_there_is_something_new(drawn: list[int]) -> None:
    view = many_long(50)

    async def steps(pilot: Pilot[None], page: MetricsPage) -> None:
        assert len(cells(page)) == 4 and 4 <= len(drawn) <= 8
        before = len(drawn)
        page.show_view(view, now=1.0)
        await pilot.pause()
        assert len(drawn) == before
        view.series["train/metric_000"].add(5000, 7.0)
        page.show_view(view, now=2.0)
        await pilot.pause()
        assert len(drawn) == before + 1 and "metric_000 7.0000" in frame(page)
        for one in view.series.values():
            one.add(5001, 8.0)
        page.show_view(view, now=3.0)
        await pilot.pause()
        assert len(drawn) == before + 5

    drive(view, steps, size=(80, 18))


def test_copying_takes_the_chosen_metric_with_its_last_and_its_best_value() -> None:
    view = many(4)
    view.series["train/loss"] = series([3.0, 1.0, 2.0])

    async def steps(pilot: Pilot[None], page: MetricsPage) -> None:
        page.show_view(view, now=1.0)
        await pilot.press("home")
        assert page.copy_text() == "train/loss: 2.0000, best 1.0000 at step 2"

    drive(view, steps)
    assert MetricsPage(Path()).copy_text() is None


def test_metrics_that_appear_and_go_keep_the_selection_where_it_was() -> None:
    view = many(4)

    async def steps(pilot: Pilot[None], page: MetricsPage) -> None:
        await pilot.press("end")
        assert page.selected == "train/metric_003"
        view.series["train/a"] = series([1.0])
        page.show_view(view, now=1.0)
        await pilot.pause()
        assert page.selected == "train/metric_003" and cells(page)[0] == "train/a"
        kept = view.series.pop("train/metric_003")
        page.show_view(view, now=2.0)
        assert page.selected == "train/a"
        view.series["train/metric_003"] = kept
        page.show_view(view, now=3.0)
        assert page.selected == "train/metric_003"

    drive(view, steps)


def test_a_run_without_metrics_says_what_will_be_here_and_every_key_is_harmless() -> None:
    async def steps(pilot: Pilot[None], page: MetricsPage) -> None:
        assert "no metrics yet" in frame(page)
        await pilot.press(*"hjklfg", "enter", "pagedown", "end", "home", "slash", "x", "enter", "escape", "escape")
        assert page.selected is None and page.query_one(".empty", Static).display

    drive(View(), steps)


def test_names_that_want_to_be_obeyed_and_values_that_are_none_are_shown_inert() -> None:
    view = View(series={HOSTILE: series([math.nan] * 9), "train/[red]x": series([math.inf, -math.inf, 0.0])})

    async def steps(pilot: Pilot[None], page: MetricsPage) -> None:
        await pilot.press("g", "end", "g")
        await pilot.pause()
        told = frame(page)
        assert all(ord(c) >= 0x20 or c == "\n" for c in told) and "\u202e" not in told
        assert "train/[red]x" in told and "[bold red]boo[/]" in told and one_line(HOSTILE) in told

    drive(view, steps)


def test_every_size_shows_at_least_the_selected_chart_and_nothing_outside() -> None:
    async def steps(pilot: Pilot[None], page: MetricsPage) -> None:
        await pilot.press("end", "left")
        for width, height in [*SIZES, *SIZES[::-1]]:
            await pilot.resize_terminal(width, height)
            await pilot.pause()
            assert width == 1 or page.selected in cells(page)
            for cell in page.query(MetricCell) if width > 1 else ():
                assert page.region.contains_region(cell.region) and cell.region.width >= min(width, WIDTH)

    drive(a_run(), steps)


@pytest.mark.parametrize("size", SIZES[:4])
def test_the_line_above_the_grid_is_not_cut_and_shows_what_the_change_is_where_it_can(size: tuple[int, int]) -> None:
    async def steps(pilot: Pilot[None], page: MetricsPage) -> None:
        line = str(page.query_one(".status", Static).render())
        assert "…" not in line and "train/loss" in line
        assert ("first" in line) == (size[0] >= 80), line

    drive(a_run(), steps, size=size)
