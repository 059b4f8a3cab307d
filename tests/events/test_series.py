"""A metric over steps in bounded memory: what is kept of a long run is exact."""

from __future__ import annotations

import math
from bisect import bisect_left

from hypothesis import given
from hypothesis import strategies as st

from trainkit.events.series import Series

VALUES = st.one_of(st.floats(-100, 100), st.sampled_from([math.nan, math.inf, -math.inf, 0.0]))
POINTS = st.lists(st.tuples(st.integers(1, 3), VALUES), max_size=80)


def points(gaps: list[tuple[int, float]]) -> list[tuple[float, float]]:
    step, found = 0, []
    for gap, value in gaps:
        step += gap
        found.append((float(step), value))
    return found


def of(told: list[tuple[float, float]], *, stride: int = 1, limit: int | None = 8) -> Series:
    series = Series(stride=stride, limit=limit)
    for step, value in told:
        series.add(step, value)
    return series


def naive(told: list[tuple[float, float]], series: Series) -> None:
    """Every bucket holds what the points between its ends amount to, and together they hold every point once."""
    assert (series.steps[-1] if len(series) else None) == (told[-1][0] if told else None)
    if series.stride == 1:
        assert list(zip(series.steps, series.values, strict=True)) == told or any(math.isnan(v) for _, v in told)
        assert list(series.steps) == [s for s, _ in told]
        return
    begin = 0
    for i in range(len(series)):
        end = bisect_left(told, series.steps[i], key=lambda p: p[0]) + 1
        bucket = told[begin:end]
        finite = [(v, s) for s, v in bucket if math.isfinite(v)]
        assert series.first_steps[i] == bucket[0][0] and series.steps[i] == bucket[-1][0]
        assert str(series.firsts[i]) == str(bucket[0][1]) and str(series.values[i]) == str(bucket[-1][1])
        assert series.counts[i] == len(finite) and math.isclose(
            series.totals[i], sum(v for v, _ in finite), abs_tol=1e-6
        )
        if finite:
            assert (series.lows[i], series.low_at[i]) == min(finite)
            assert (series.highs[i], -series.high_at[i]) == max((v, -s) for v, s in finite)
        else:
            assert (series.lows[i], series.highs[i]) == (math.inf, -math.inf)
        wrong = [s for s, v in bucket if not math.isfinite(v)]
        assert series.broken[i] == wrong[0] if wrong else math.isnan(series.broken[i])
        begin = end
    assert begin == len(told)


@given(POINTS)
def test_every_point_is_in_one_bucket_and_no_extreme_is_lost(gaps: list[tuple[int, float]]) -> None:
    told = points(gaps)
    series = of(told)
    assert len(series) < 8
    naive(told, series)
    finite = [(v, s) for s, v in told if math.isfinite(v)]
    assert series.lowest == (min(finite) if finite else None)
    assert math.isclose(series.total, math.fsum(v for v, _ in finite), abs_tol=1e-6)


@given(POINTS, POINTS, st.sampled_from([1, 2, 4]))
def test_a_series_extended_by_another_holds_the_points_of_both(
    before: list[tuple[int, float]], after: list[tuple[int, float]], stride: int
) -> None:
    first = points(before)
    second = [(step + 1000, value) for step, value in points(after)]
    series = of(first)
    series.extend(of(second, stride=stride, limit=None))
    naive(first + second, series)
    assert len(series) < 8
    series.add(9999, 1.5)
    naive([*first, *second, (9999.0, 1.5)], series)


@given(POINTS, st.integers(0, 90))
def test_what_is_left_after_a_cut_holds_no_point_of_what_was_given_up(gaps: list[tuple[int, float]], at: int) -> None:
    told, series = points(gaps), of(points(gaps))
    series.cut(at)
    kept = [p for p in told if p[0] <= (series.steps[-1] if len(series) else 0)]
    naive(kept, series)
    assert not len(series) or series.steps[-1] <= at
    lost = [s for s, _ in told if s <= at][len(kept) :]
    assert len(lost) < series.stride, "a gap is shorter than a bucket"
    naive([*kept, (float(at + 1), 2.0)], _added(series, at + 1, 2.0))


def _added(series: Series, step: float, value: float) -> Series:
    series.add(step, value)
    return series


def test_a_repeated_step_replaces_the_later_ones() -> None:
    series = of([(1.0, 1.0), (2.0, 2.0), (3.0, 3.0)])
    series.add(2, 5.0)
    assert (list(series.steps), list(series.values)) == ([1.0, 2.0], [1.0, 5.0])


@given(POINTS, st.sampled_from([2, 4, 8]))
def test_a_bucket_packed_at_once_is_that_of_its_points_one_by_one(gaps: list[tuple[int, float]], stride: int) -> None:
    told = points(gaps)
    series = Series(stride=stride, limit=None)
    for i in range(0, len(told), stride):
        steps, values = zip(*told[i : i + stride], strict=True)
        series.pack(steps, values)
    naive(told, series)
    assert list(series.steps) == list(of(told, stride=stride, limit=None).steps)


@given(POINTS, POINTS, st.integers(-300, 0))
def test_a_series_that_begins_before_another_ends_replaces_what_follows(
    before: list[tuple[int, float]], after: list[tuple[int, float]], overlap: int
) -> None:
    first = points(before)
    begin = (first[-1][0] if first else 0) + overlap
    second = [(begin + step, value) for step, value in points(after)]
    series = of(first, limit=None)
    series.extend(of(second, stride=4, limit=None))
    naive([p for p in first if not second or p[0] < second[0][0]] + second, series)


@given(POINTS, st.integers(0, 90))
def test_a_cut_says_beforehand_from_where_on_points_are_lost(gaps: list[tuple[int, float]], at: int) -> None:
    told, series = points(gaps), of(points(gaps))
    begins = series.bucket_across(at)
    series.cut(at)
    kept = series.steps[-1] if len(series) else -1
    lost = [step for step, _ in told if kept < step <= at]
    assert begins == (lost[0] if lost else None)
