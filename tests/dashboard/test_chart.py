"""The chart: every point counts, at every size, and numbers on its axes are round."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest
from chart_series import series, thinned
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.style import Style

from trainkit.dashboard import theme
from trainkit.dashboard.charts import ticks
from trainkit.dashboard.charts.columns import StepRange, braille_cells, envelope, line_dots, points
from trainkit.dashboard.charts.curves import ChartOptions, Curve, moving_average, trend
from trainkit.dashboard.charts.plot import Picture, draw
from trainkit.events.series import Series
from trainkit.events.view import Marker

COLORS = theme.THEMES[theme.DEFAULT].variables


def picture(
    *curves: Series, width: int = 12, height: int = 3, log: bool = False, marks: Sequence[Marker] = ()
) -> list[str]:
    drawn = [Curve(curve, theme.TRAIN) for curve in curves]
    return lines_of(draw(drawn, colors=COLORS, width=width, height=height, look=ChartOptions(log=log), marks=marks))


def lines_of(drawn: Picture, cross: float | None = None) -> list[str]:
    return [strip.text for strip in drawn.strips(cross, Style())]


def dots(lines: Sequence[str]) -> int:
    return sum((ord(c) - 0x2800).bit_count() for line in lines for c in line if 0x2800 < ord(c) < 0x2900)


def test_marks_of_several_kinds_at_one_step_are_all_in_sight() -> None:
    kinds = {"evaluation": "◦", "checkpoint": "◆", "command": "▸"}
    marks = [Marker(step, kind, "") for step in (25, 50, 75) for kind in kinds]
    marks += [Marker(step, "alert", "") for step in (25, 75)]
    axis = picture(series([1.0] * 100), width=80, height=10, marks=marks)[-2]
    assert [axis.count(sign) for sign in (*kinds.values(), "!")] == [3, 3, 3, 2]


def test_small_pictures_are_as_drawn_by_hand() -> None:
    reduced = envelope(points(series([0, 1, 2, 3])), window=StepRange(0, 3), columns=4)
    drawn = line_dots(reduced, y_range=(0, 3), rows=4, columns=4)
    assert (drawn == np.eye(4, dtype=bool)[::-1]).all()
    assert braille_cells(drawn).tolist() == [[ord("⡠") - 0x2800, ord("⠊") - 0x2800]]
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
    window, y_range = StepRange(0.0, len(y) - 1.0), (y.min() - 1, y.max() + 1)
    reduced = envelope(points(series(values)), window=window, columns=columns)
    drawn = line_dots(reduced, y_range=y_range, rows=rows, columns=columns)
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
    lines = lines_of(draw([spiked], colors=COLORS, width=80, height=20))
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
    assert any("no data" in line for line in picture(width=20))


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
    marks = [Marker(3, "checkpoint", "rolling")]
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


NUMBERS = st.floats(-1e3, 1e3)


@settings(max_examples=60, deadline=None)
@given(values=st.lists(NUMBERS, min_size=64, max_size=400), columns=st.integers(2, 10))
def test_a_thinned_series_is_drawn_as_the_whole_one_is_to_within_a_dot(values: list[float], columns: int) -> None:
    whole, few = series(values), thinned(values, limit=64)
    window, rows = StepRange(0, len(values) - 1), 32
    y_range = (min(values) - 1, max(values) + 1)
    drawn = [
        line_dots(envelope(points(one), window=window, columns=columns), y_range=y_range, rows=rows, columns=columns)
        for one in (whole, few)
    ]
    assert few.stride > 1 and len(few) >= 3 * columns
    for a, b in (drawn, drawn[::-1]):
        padded = np.pad(b, 1)
        near = np.lib.stride_tricks.sliding_window_view(padded, (3, 3)).any(axis=(2, 3))
        assert not (a & ~near).any()


@settings(max_examples=60, deadline=None)
@given(
    values=st.lists(st.one_of(NUMBERS, st.just(math.nan)), min_size=1, max_size=300),
    cut=st.tuples(st.floats(0, 0.4), st.floats(0.6, 1)),
    log=st.booleans(),
)
def test_no_extreme_and_no_gap_of_a_thinned_series_is_lost(
    values: list[float], cut: tuple[float, float], log: bool
) -> None:
    last = len(values) - 1
    low, high = math.floor(cut[0] * last), math.ceil(cut[1] * last)
    for one in (series(values), thinned(values, limit=8)):
        window = StepRange(low, high)
        drawn = envelope(points(one, low=low, high=high, log=log), window=window, columns=12)
        inside = values[low : high + 1]
        good = [v for v in inside if v > 0 or (not log and math.isfinite(v))]
        if good and one.stride == 1:
            highest = math.log10(max(good)) if log else max(good)
            assert drawn.high.max() == pytest.approx(highest) or drawn.high.max() > highest
        if low == 0 and high == last and good:
            assert drawn.high.max() == pytest.approx(math.log10(max(good)) if log else max(good))
        if not log:
            assert (len(drawn.broken) > 0) >= any(math.isnan(v) for v in inside) or one.stride > 1
            if any(math.isnan(v) for v in values) and low == 0 and high == last:
                assert len(drawn.broken)


@settings(max_examples=60, deadline=None)
@given(values=st.lists(NUMBERS, min_size=1, max_size=200), decay=st.sampled_from([0.9, 0.99, 0.999]))
def test_the_moving_average_is_the_one_that_is_computed_point_by_point(values: list[float], decay: float) -> None:
    found = moving_average(series(values), decay)
    average = weight = 0.0
    for value, told in zip(values, found.y, strict=True):
        average, weight = decay * average + (1 - decay) * value, decay * weight + 1 - decay
        assert told == pytest.approx(average / weight, rel=1e-6, abs=1e-6)
    assert found.y[0] == pytest.approx(values[0])


def test_the_moving_average_of_buckets_is_that_of_their_points_and_takes_exact_points_where_it_has_them() -> None:
    values = [math.sin(i / 40) + 2 for i in range(1000)]
    whole, few = moving_average(series(values), 0.99), moving_average(thinned(values, limit=128), 0.99)
    assert np.allclose(few.y, np.interp(few.x, whole.x, whole.y), atol=0.02)
    exact = series(values[600:700], range(600, 700))
    joined = moving_average(thinned(values, limit=128), 0.99, exact=exact)
    assert joined.x[-1] == 699 and np.allclose(joined.y[-100:], whole.y[600:700], atol=0.02)
    assert len(moving_average(series([math.nan]), 0.9).y) == 0


def test_the_trend_of_buckets_is_that_of_their_points() -> None:
    values = [8 * math.exp(-i / 200) + 2 + math.sin(i) / 4 for i in range(2000)]
    both = series(values), thinned(values, limit=512)
    smooth = [trend(envelope(points(one), window=StepRange(0, 1999), columns=80)) for one in both]
    assert (smooth[0].columns == smooth[1].columns).all() and np.allclose(smooth[0].low, smooth[1].low, atol=0.15)


def test_a_line_that_enters_and_leaves_the_window_is_drawn_across_it() -> None:
    far = series([1, 3], [0, 100])
    drawn = envelope(points(far, low=40, high=60), window=StepRange(40, 60), columns=20)
    assert drawn.columns.tolist() == [0, 19]
    assert drawn.first.tolist() == pytest.approx([1.8, 2.2])
    gap = series([1, math.nan, 3], [0, 50, 100])
    assert not len(envelope(points(gap, low=40, high=60), window=StepRange(40, 60), columns=20).columns)


def test_on_logarithmic_steps_decades_are_equally_wide_and_what_is_before_step_1_is_left_out() -> None:
    rising = series([float(i) for i in range(1001)])
    drawn = draw([Curve(rising, theme.TRAIN)], colors=COLORS, width=66, height=12, log_x=True)
    assert drawn.window == StepRange(1, 1000, True)
    cells = [drawn.cell(step) for step in (1, 10, 100, 1000)]
    assert all(cell is not None for cell in cells)
    assert np.ptp(np.diff([cell or 0 for cell in cells])) <= 1
    assert drawn.cell(0) is None
    labels = lines_of(drawn)[-1].split()
    assert {"1", "10", "100"} <= set(labels)


def test_an_outlier_is_cut_off_only_where_that_is_marked_and_drawn_where_the_whole_is_wanted() -> None:
    values = [math.sin(i / 9) for i in range(400)]
    values[200], values[300] = 500.0, -500.0
    spiked = [Curve(series(values), theme.TRAIN)]
    drawn = {
        whole: draw(spiked, colors=COLORS, width=80, height=16, look=ChartOptions(whole=whole))
        for whole in (True, False)
    }
    assert drawn[False].cut == (True, True) and drawn[True].cut == (False, False)
    lines = lines_of(drawn[False])
    assert lines[0].count("▲") == 1 and lines[13].count("▼") == 1
    assert lines[0].index("▲") - drawn[False].gutter == drawn[False].cell(200)
    assert dots(lines) > 3 * dots(lines_of(drawn[True])) / 2
    assert not any("▲" in line or "▼" in line for line in lines_of(drawn[True]))


def test_few_points_and_a_loss_that_falls_are_shown_whole_and_no_curve_is_cut_off_for_another() -> None:
    few = [1.0, 2.0, 1.5, 90.0]
    falling = [2 + 9 * math.exp(-i / 40) for i in range(400)]
    for values in (few, falling):
        assert draw([Curve(series(values), theme.TRAIN)], colors=COLORS, width=80, height=16).cut == (False, False)
    above = [Curve(series([1.0] * 200 + [1.1] * 200), theme.TRAIN), Curve(series([50.0, 60.0], [100, 300]), theme.RATE)]
    assert draw(above, colors=COLORS, width=80, height=16).cut == (False, False)


def test_the_most_important_mark_of_a_cell_is_the_one_that_is_seen() -> None:
    line = series([float(i) for i in range(101)])
    told = [Marker(50, kind, "") for kind in ("alert", "evaluation", "resume", "checkpoint", "command")]
    for without, sign in ((0, "!"), (1, "»"), (2, "▸"), (3, "◆"), (4, "◦")):
        order = {"alert": 0, "resume": 1, "command": 2, "checkpoint": 3, "evaluation": 4}
        marks = [mark for mark in told if order[mark.kind] >= without]
        assert sign in picture(line, width=40, height=12, marks=marks)[-2]


def test_the_crosshair_passes_behind_the_dots_at_its_step_in_every_row() -> None:
    drawn = draw([Curve(series([float(i) for i in range(101)]), theme.TRAIN)], colors=COLORS, width=50, height=12)
    lines, cell = lines_of(drawn, cross=50.0), drawn.cell(50.0)
    assert cell is not None
    column = [line[drawn.gutter + cell] for line in lines[:10]]
    assert column.count("│") + sum(dots([c]) > 0 for c in column) == 10 and 1 <= dots(column) <= 8
    assert lines_of(drawn) == lines_of(drawn, cross=500.0), "a step that is not shown has no crosshair"
    low, high = drawn.steps(cell)
    assert low <= 50 < high


def test_without_colours_later_curves_are_drawn_with_a_letter_each() -> None:
    curves = [Curve(series([1, 2], [0, 9]), theme.TRAIN), *(Curve(series([n, n], [0, 9]), theme.RATE) for n in (3, 4))]
    for letters in (True, False):
        text = "".join(lines_of(draw(curves, colors=COLORS, width=30, height=12, letters=letters))[:10])
        assert ("a" in text and "b" in text) == letters and dots([text]) > 20


@pytest.mark.parametrize(
    ("unit", "low", "high", "told"),
    [
        ("%", 0.0, 1.0, "50%"),
        ("B", 0.0, 4e9, "2GB"),
        ("B", 0.0, 5000.0, "2kB"),
        ("", 0.0, 4e6, "2M"),
        ("", 0, 4e4, "20k"),
    ],
)
def test_shares_bytes_and_large_numbers_are_shown_in_their_units(
    unit: ticks.Unit, low: float, high: float, told: str
) -> None:
    assert told in [text for _, text in ticks.linear(low, high, most=4, unit=unit)]
