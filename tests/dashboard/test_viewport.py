"""Which steps are shown: whatever is pressed, in whatever order, it is a part of what there is."""

from __future__ import annotations

import math

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from textual.app import App

from trainkit.dashboard.charts.columns import StepRange
from trainkit.dashboard.charts.curves import ChartOptions
from trainkit.dashboard.charts.viewport import LEAST, Viewport, viewport_of
from trainkit.events.series import Series

MOVES = st.lists(
    st.tuples(st.sampled_from(["in", "out", "left", "right", "cross", "all"]), st.floats(0, 1)), max_size=30
)


@settings(max_examples=200, deadline=None)
@example(moves=[("in", 1.0), ("left", 1.0)], first=0.0, span=10.0, log=True)
@given(moves=MOVES, first=st.sampled_from([0.0, 1.0, 700.0]), span=st.floats(10, 1e6), log=st.booleans())
def test_however_one_moves_it_is_a_part_of_all_steps_and_not_too_few(
    moves: list[tuple[str, float]], first: float, span: float, log: bool
) -> None:
    viewport, whole = Viewport(), StepRange(max(first, 1.0 if log else 0.0), max(first, 1.0) + span, log)
    for move, share in moves:
        match move:
            case "in" | "out":
                around = whole.low + share * (whole.high - whole.low) if share < 0.5 else None
                viewport.zoom(0.5 if move == "in" else 2.0, whole, around=around)
            case "left" | "right":
                viewport.pan(-share if move == "left" else share, whole)
            case "cross":
                viewport.point(whole.low + share * (whole.high - whole.low), pinned=True)
            case _:
                viewport.reset()
        if viewport.range is not None:
            low, high = viewport.range
            assert whole.low <= low < high <= whole.high and high - low >= 0.99 * LEAST


def test_zooming_keeps_the_step_under_the_crosshair_where_it_is_and_else_the_right_end() -> None:
    viewport, whole = Viewport(), StepRange(0, 1000)
    viewport.zoom(0.5, whole)
    assert viewport.range == (500, 1000)
    viewport.reset()
    viewport.point(250, pinned=True)
    viewport.zoom(0.5, whole)
    assert viewport.range == (125, 625)
    shown = viewport.window(whole)
    assert shown is not None and shown.share_of(250) == pytest.approx(whole.share_of(250))
    viewport.zoom(2.0, whole)
    assert viewport.range is None, "all of it again, and what is to come"
    viewport.zoom(0.5, whole, around=0)
    viewport.zoom(2.0, whole, around=500)
    assert viewport.range is None, "what lies beyond one end is made up for at the other"


def test_panning_moves_by_a_share_and_stops_at_the_ends() -> None:
    viewport, whole = Viewport(), StepRange(0, 1000)
    viewport.pan(0.5, whole)
    assert viewport.range is None, "all is shown already"
    viewport.zoom(0.25, whole, around=500)
    low, high = viewport.range or (0, 0)
    viewport.pan(-0.5, whole)
    assert viewport.range == pytest.approx((low - 125, high - 125))
    viewport.pan(-9, whole)
    assert viewport.range == pytest.approx((0, 250))
    viewport.pan(9, whole)
    assert viewport.range == pytest.approx((750, 1000))


def test_the_mouse_that_passes_by_moves_no_crosshair_that_was_set() -> None:
    viewport = Viewport()
    viewport.point(7.4)
    assert viewport.cross == 7 and not viewport.pinned
    viewport.point(9, pinned=True)
    viewport.point(20)
    assert viewport.cross == 9
    viewport.point(None)
    assert viewport.cross is None and not viewport.pinned


def test_exact_points_are_given_for_the_steps_they_are_of_until_they_are_forgotten() -> None:
    viewport, made = Viewport(), Series()
    made.add(5, 1.0)
    viewport.give({"a": made, "empty": Series()}, 0, 10)
    assert viewport.exact_for(StepRange(2, 8)) == {"a": made} and viewport.exact_for(StepRange(2, 11)) == {}
    assert viewport.asked_for(0, 10) and not viewport.asked_for(0, 11)
    viewport.forget()
    assert viewport.exact_for(StepRange(2, 8)) == {} and not viewport.asked_for(0, 10)


JSON = st.recursive(st.none() | st.booleans() | st.text() | st.floats(), lambda inner: st.lists(inner), max_leaves=4)


@given(found=JSON | st.dictionaries(st.text(), JSON | st.just([True, "0.99", False]) | st.just([1, "0.99", 0])))
def test_looks_come_back_and_of_foreign_ones_only_what_is_understood(found: object) -> None:
    viewport, other = Viewport(), Viewport()
    viewport.adopt(found)
    assert all(look == ChartOptions(True, "0.99", False) for look in viewport.looks.values())
    viewport.change_look("train/loss", ChartOptions(log=True))
    other.adopt(viewport.preferences())
    assert other.looks == viewport.looks
    viewport.change_look("train/loss", ChartOptions())
    assert "train/loss" not in viewport.looks


def test_an_application_has_one_viewport() -> None:
    one, other = App[None](), App[None]()
    assert viewport_of(one) is viewport_of(one) is not viewport_of(other)


def test_on_logarithmic_steps_zoom_and_pan_are_in_decades() -> None:
    viewport, whole = Viewport(), StepRange(1, 10_000, True)
    viewport.zoom(0.5, whole)
    assert viewport.range == pytest.approx((100, 10_000))
    viewport.pan(-0.5, whole)
    assert viewport.range == pytest.approx((10, 1000))
    shown = viewport.window(whole)
    assert shown is not None and math.isclose(shown.step(0.5), 100)
