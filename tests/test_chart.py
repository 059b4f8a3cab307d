"""The chart: every point counts, at every size, and numbers on its axes are round."""

from __future__ import annotations

import math
from array import array
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trainkit.dashboard import braille, theme, ticks
from trainkit.dashboard.chart import Curve, Mark, draw
from trainkit.events.series import Series

COLORS = theme.THEMES[theme.DEFAULT].variables


def series(values: Sequence[float], steps: Sequence[float] | None = None) -> Series:
    made = Series()
    made.steps = array("d", range(len(values)) if steps is None else steps)
    made.values = array("d", values)
    return made


def picture(
    *curves: Series, width: int = 12, height: int = 3, log: bool = False, marks: Sequence[Mark] = ()
) -> list[str]:
    drawn = [Curve(curve, theme.TRAIN) for curve in curves]
    return [strip.text for strip in draw(drawn, colors=COLORS, width=width, height=height, log=log, marks=marks)]


def dots(lines: Sequence[str]) -> int:
    return sum((ord(c) - 0x2800).bit_count() for line in lines for c in line if 0x2800 < ord(c) < 0x2900)


def test_small_pictures_are_as_drawn_by_hand() -> None:
    stairs = np.arange(4.0)
    reduced = braille.envelope(stairs, stairs, x_range=(0, 3), columns=4)
    drawn = braille.line(reduced, y_range=(0, 3), rows=4, columns=4)
    assert (drawn == np.eye(4, dtype=bool)[::-1]).all()
    assert braille.cells(drawn).tolist() == [[ord("⡠") - 0x2800, ord("⠊") - 0x2800]]
    assert picture(series([0, 1, 2, 3]), width=4, height=1) == ["3 ⡠⠊"]
    assert picture(series([1, 0, 0, 1]), width=4, height=1) == ["1 ⢣⡜"]


@settings(max_examples=60, deadline=None)
@given(
    values=st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=300),
    width=st.integers(2, 40),
    rows=st.sampled_from([4, 8, 40]),
)
def test_the_lowest_and_highest_point_of_every_column_are_drawn(values: list[float], width: int, rows: int) -> None:
    y, columns = np.array(values), 2 * width
    x_range, y_range = (0.0, len(y) - 1.0), (y.min() - 1, y.max() + 1)
    drawn = braille.line(
        braille.envelope(np.arange(float(len(y))), y, x_range=x_range, columns=columns),
        y_range=y_range, rows=rows, columns=columns,
    )  # fmt: skip
    for index, value in enumerate(y):
        share = index / (len(y) - 1) * (columns - 1) if len(y) > 1 else columns // 2
        level = (y_range[1] - value) / (y_range[1] - y_range[0]) * (rows - 1)
        near = drawn[max(0, math.floor(level)) : math.ceil(level) + 1, max(0, math.floor(share)) : math.ceil(share) + 1]
        assert near.any()


@pytest.mark.parametrize("at", [0, 123_456, 999_999])
def test_one_spike_among_a_million_points_is_seen(at: int) -> None:
    values = np.zeros(1_000_000)
    values[at] = 5.0
    spiked = Curve(series(values.tolist()), theme.TRAIN, theme.TRAIN_BAND)
    lines = [strip.text for strip in draw([spiked], colors=COLORS, width=80, height=20)]
    rows_with_dots = [row for row, line in enumerate(lines) if dots([line])]
    assert rows_with_dots[:18] == list(range(18))
    assert "5" in lines[0]


def test_a_line_through_distant_points_has_no_holes() -> None:
    for values in ([0, 9], [9, 0], [0, 9, 0], [3, 3]):
        lines = picture(series(values, [step * 100 for step in range(len(values))]), width=30, height=4)
        columns = [any(0x2800 < ord(line[at]) < 0x2900 for line in lines) for at in range(2, 30)]
        first = columns.index(True)
        assert all(columns[first:]), lines


@pytest.mark.parametrize("value", [0.0, 3.0, -1e-12, 1e30])
@pytest.mark.parametrize("points", [1, 50])
def test_a_point_and_a_constant_lie_in_the_middle(value: float, points: int) -> None:
    lines = picture(series([value] * points), width=30, height=7)
    with_dots = [row for row, line in enumerate(lines) if dots([line])]
    assert len(with_dots) == 1 and with_dots[0] in (2, 3)
    assert dots(lines) == 1 if points == 1 else dots(lines) > 30


def test_what_is_not_a_number_is_left_out_and_marked() -> None:
    values = [math.nan if 40 <= i < 60 else math.sin(i / 10) for i in range(100)]
    lines = picture(series(values), width=60, height=8)
    gap = [at for at in range(60) if any(line[at] == "×" for line in lines)]
    assert 8 <= len(gap) <= 14
    middle = gap[len(gap) // 2]
    assert not any(dots([line[middle]]) for line in lines), "the line goes on through the gap"
    assert dots(lines) > 50


def test_a_single_nan_between_points_breaks_the_line_there_only() -> None:
    whole, broken = [1.0] * 20, [1.0] * 20
    broken[10] = math.nan
    assert 0 < dots(picture(series(whole), width=60)) - dots(picture(series(broken), width=60)) <= 14


def test_infinities_and_nothing_but_nan_can_be_shown() -> None:
    assert any("×" in line for line in picture(series([1, math.inf, 2, -math.inf])))
    assert any("×" in line for line in picture(series([math.nan, math.nan])))
    assert any("no data yet" in line for line in picture(width=20))


def test_on_a_log_scale_what_is_not_positive_is_marked_and_decades_are_equally_far() -> None:
    falling = [10.0 ** (3 - i / 100) for i in range(601)]
    lines = picture(series(falling), width=60, height=26, log=True)
    labelled = {
        line.split()[0]: row for row, line in enumerate(lines) if line[0] != " " or line.split()[0][0].isdigit()
    }
    rows = [labelled[text] for text in ("100", "10", "1", "0.1", "0.01") if text in labelled]
    assert len(rows) >= 3 and np.ptp(np.diff(rows)) <= 1
    assert any("×" in line for line in picture(series([1, 0, 2, -1]), log=True))


@settings(max_examples=80, deadline=None)
@given(
    values=st.lists(st.floats(allow_nan=True, allow_infinity=True, width=32), max_size=20),
    width=st.integers(1, 50),
    height=st.integers(0, 14),
    log=st.booleans(),
)
def test_any_data_at_any_size_fills_exactly_its_place(values: list[float], width: int, height: int, log: bool) -> None:
    marks = [Mark(3, "◆", theme.BUSY)]
    lines = picture(series(values), series([1.0]), width=width, height=height, log=log, marks=marks)
    assert len(lines) == height and all(len(line) == width for line in lines)


@settings(deadline=None)
@given(span=st.floats(1e-6, 1e9), away=st.floats(-1e4, 1e4), most=st.integers(2, 12), whole=st.booleans())
def test_ticks_are_round_inside_and_few(span: float, away: float, most: int, whole: bool) -> None:
    low, high = away * span, (away + 1) * span
    found = (ticks.steps if whole else ticks.linear)(low, high, most=most)
    assert len(found) <= most
    assert all(low - 1e-6 * span <= value <= high + 1e-6 * span for value, _ in found)
    if whole:
        assert all(value == int(value) for value, _ in found)
    elif len(found) > 1:
        step = found[1][0] - found[0][0]
        mantissa = step / 10 ** math.floor(math.log10(step) + 1e-6)
        assert min(abs(mantissa - m) for m in (1, 2, 5)) < 0.01


def test_labels_differ_from_their_neighbours_and_are_short() -> None:
    for low, high in [(0, 1), (1.9, 8.4), (0, 4e-3), (0, 3e-5), (9_990, 10_050), (0, 2e6), (1e6, 1.0001e6)]:
        labels = [text for _, text in ticks.linear(low, high, most=6)]
        assert len(set(labels)) == len(labels) >= 2 and max(map(len, labels)) <= 8, labels


@pytest.mark.parametrize(
    ("value", "told"), [(0, "0"), (2e-4, "2e-4"), (1.33e-4, "1.33e-4"), (0.004, "0.004"), (1.5, "1.5"), (20_000, "20k")]
)
def test_short_numbers_are_short(value: float, told: str) -> None:
    assert ticks.short(value) == told


@pytest.mark.parametrize("height", range(2, 30))
def test_no_label_takes_the_place_of_another(height: int) -> None:
    for top in (4e-3, 3.4, 11_400.0):
        lines = picture(series([top * i / 50 for i in range(51)]), width=40, height=height)
        rows = height - (2 if height >= 8 else 1 if height >= 5 else 0)
        labelled = [float(line.split()[0].replace("k", "e3")) for line in lines[:rows] if line.split()[0][0].isdigit()]
        assert len(labelled) >= 2
        if len(labelled) > 2:
            assert np.ptp(np.diff(labelled)) < 1e-6 * top
