"""A chart as SVG: well-formed, with everything in it that misleads nobody."""

from __future__ import annotations

import math
import xml.etree.ElementTree as ElementTree
from collections.abc import Sequence

import pytest
from chart_series import series, thinned
from fake_run import HOSTILE
from hypothesis import given, settings
from hypothesis import strategies as st

from trainkit.dashboard import theme
from trainkit.dashboard.charts.columns import StepRange
from trainkit.dashboard.charts.curves import SMOOTHINGS, ChartOptions, Curve, extent
from trainkit.dashboard.charts.svg import HEIGHT, WIDTH, svg
from trainkit.events.view import Marker

SVG = "{http://www.w3.org/2000/svg}"
COLORS = theme.THEMES[theme.DEFAULT].variables


PLAIN = ChartOptions()


def drawn(
    curves: Sequence[Curve], *, window: StepRange | None = None, look: ChartOptions = PLAIN, **options: object
) -> str:
    shown = window or extent(curves, log=False) or StepRange(0, 0)
    return svg(curves, window=shown, look=look, colors=COLORS, title="run  train/loss", **options)  # type: ignore[arg-type]


def texts(told: str) -> str:
    return " ".join(element.text or "" for element in ElementTree.fromstring(told).iter(f"{SVG}text"))


def test_it_has_axes_a_title_a_legend_marks_and_a_line_of_each_curve() -> None:
    loss = series([8 * math.exp(-i / 100) + 2 for i in range(500)])
    curves = [
        Curve(loss, theme.TRAIN, theme.TRAIN_BAND, metric="train/loss", label="train"),
        Curve(series([4.0, 3.0], [100, 400]), theme.RATE, metric="validation/a/loss", label="held-out"),
    ]
    told = drawn(curves, marks=[Marker(250, "checkpoint", "rolling"), Marker(9999, "alert", "")])
    found = texts(told)
    for word in ("run  train/loss", "train 2.0", "held-out 3.0", "best 3.0000 at step 400", "step", "400", "◆"):
        assert word in found, word
    assert "!" not in found, "a mark that is not among the steps shown"
    for curve in curves:
        assert COLORS[curve.color.removeprefix("$")] in told


@settings(max_examples=40, deadline=None)
@given(
    values=st.lists(st.floats(allow_nan=True, allow_infinity=True, width=32), min_size=1, max_size=40),
    log=st.booleans(), smoothing=st.sampled_from(SMOOTHINGS), whole=st.booleans(), few=st.booleans(),
)  # fmt: skip
def test_any_data_make_a_picture_that_can_be_read_and_stays_in_sight(
    values: list[float], log: bool, smoothing: str, whole: bool, few: bool
) -> None:
    one = thinned(values, limit=8) if few else series(values)
    look = ChartOptions(log, smoothing, whole)  # type: ignore[arg-type]
    told = drawn([Curve(one, theme.TRAIN, theme.TRAIN_BAND, metric="train/loss")], look=look)
    root = ElementTree.fromstring(told)
    assert "nan" not in "".join(element.get("d", "") for element in root.iter())
    for element in root.iter(f"{SVG}text"):
        assert -WIDTH < float(element.get("x", "nan")) < 2 * WIDTH and 0 < float(element.get("y", "nan")) <= HEIGHT


def test_what_is_cut_off_and_what_is_no_number_is_marked_and_smoothing_is_reported() -> None:
    values = [math.sin(i / 9) for i in range(400)]
    values[100], values[200] = 900.0, math.nan
    curve = Curve(series(values), theme.TRAIN, theme.TRAIN_BAND, metric="a/b")
    found = texts(drawn([curve], look=ChartOptions(smoothing="0.99")))
    assert "▲" in found and "×" in found and "EMA 0.99" in found
    assert "▲" not in texts(drawn([curve], look=ChartOptions(whole=True)))


def test_what_a_legend_shows_is_the_last_exact_point_that_is_shown_and_the_axis_says_what_it_counts() -> None:
    exact = {"a/b": series([3.0, 2.0, 1.5], [10, 11, 12])}
    curve = Curve(thinned([9.0] * 64, limit=8), theme.TRAIN, metric="a/b")
    found = texts(drawn([curve], window=StepRange(10, 12), exact=exact, over="tokens"))
    assert "a/b 1.5" in found and "tokens" in found and "step" not in found


@pytest.mark.parametrize("name", [HOSTILE, "<script>&amp;]]>"])
def test_names_are_inert(name: str) -> None:
    told = drawn([Curve(series([1.0, 2.0]), theme.TRAIN, metric=name, label=name)])
    assert ElementTree.fromstring(told).tag == f"{SVG}svg" and "\x1b" not in told and "<script>" not in told
