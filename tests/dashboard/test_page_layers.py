"""The page of layers: a heat map of what the log has as statistics, and how the log is thinned for it."""

from __future__ import annotations

import math
import re
from array import array
from pathlib import Path
from typing import Any

import fake_run
import numpy as np
import pytest
from pages import drive, frame, only
from textual.pilot import Pilot

from trainkit.dashboard.app import Dashboard
from trainkit.dashboard.charts.heatmap import HeatMap, scale_values
from trainkit.dashboard.pages.layers import OUTSIDE, LayersPage, grid_of, parts_of
from trainkit.events.layers import MOST, LayerHistory
from trainkit.events.reducer import view_of
from trainkit.rundir.follow import Replay

LAYERS, EVERY, STEPS = 4, 10, 300


def statistics(step: int) -> dict[str, list[Any]]:
    """The value of layer L at step S is S × 10^-L; one is not a number."""
    sizes: list[Any] = [step * 10.0**-layer for layer in range(LAYERS)]
    if step == 50:
        sizes[2] = "nan"
    return {
        "gradients/l2/blocks.mlp_in.weight": sizes,
        "gradients/l2/token_embedding": [7.0 * step],
        "gradients/l2/final_norm.weight": [1.0],
        "gradients/cosine/last_gradient/blocks.mlp_in.weight": [math.cos(step + layer) for layer in range(LAYERS)],
    }


def write(directory: Path, values: Any = statistics) -> Path:
    told = []
    for event in fake_run.events(STEPS):
        told.append(event)
        if event["type"] == "step" and event["step"] % EVERY == 0:
            kept = {name: event[name] for name in ("t", "step", "attempt")}
            told.append({"type": "statistics", **kept, "values": values(event["step"])})
    return fake_run.write(directory, told)


@pytest.mark.parametrize("size", [(80, 24), (130, 40)])
def test_the_map_shows_every_statistic_and_the_value_under_the_cursor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: tuple[int, int]
) -> None:
    only(monkeypatch, LayersPage)

    async def steps(pilot: Pilot[None], app: Dashboard) -> None:
        assert "gradients/cosine/last_gradient  blocks.mlp_in.weight" in frame(app)
        assert "linear" in frame(app) and "statistic 1 of 2" in frame(app)
        await pilot.press("n")
        assert "gradients/l2  blocks.mlp_in.weight" in frame(app) and "0.0100 " in frame(app) and " log " in frame(app)
        assert all(f"layer {layer}" in frame(app) for layer in range(LAYERS))
        assert f"◆ layer 0 · step {STEPS} · {STEPS}" in frame(app)
        await pilot.press("down", "down", "left")
        assert f"◆ layer 2 · step {STEPS - EVERY} · {(STEPS - EVERY) / 100:g}" in frame(app)
        await pilot.press("home", *["right"] * 4)
        assert "◆ layer 2 · step 50 · nan" in frame(app)
        await pilot.press("t")
        assert f"gradients/l2  {OUTSIDE}" in frame(app) and "token_embedding · step 50 · 350" in frame(app)
        await pilot.press("g", "g")
        assert "linear" in frame(app)
        await pilot.hover(HeatMap, offset=(size[0] // 3, 0))
        await pilot.pause()
        assert "◆ final_norm.weight · step" in frame(app)
        assert app.query_one(LayersPage).copy_text().splitlines()[1] == "10\t1\t70"

    drive(write(tmp_path / "run"), steps, size=size, key="2")


def test_in_a_replay_whose_arrows_seek_other_keys_move_the_cursor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    only(monkeypatch, LayersPage)
    run = write(tmp_path / "run")
    (replay := Replay(run)).playing = False
    replay.seek(STEPS)

    async def steps(pilot: Pilot[None], app: Dashboard) -> None:
        await pilot.press("left_square_bracket")
        assert f"step {STEPS - EVERY} ·" in frame(app) and app.view.step == STEPS
        await pilot.press("right_square_bracket")
        assert f"step {STEPS} ·" in frame(app)
        await pilot.press("question_mark")
        assert re.search(r"\[ +earlier step", frame(app)) and re.search(r"← h +back by", frame(app))

    drive(run, steps, size=(130, 60), key="2", replay=replay)


def test_rows_that_do_not_fit_scroll_with_the_cursor_and_stay_under_the_mouse(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    only(monkeypatch, LayersPage)

    async def steps(pilot: Pilot[None], app: Dashboard) -> None:
        chart = app.query_one(HeatMap)
        for across in range(3):
            await pilot.hover(HeatMap, offset=(40 + across, chart.size.height - 4))
            await pilot.pause()
        row = chart.size.height - 4
        assert chart.at_cursor()[0] == f"layer {row}" and "layer 0 " in frame(app)
        await pilot.press(*["down"] * 24)
        assert chart.at_cursor()[0] == "layer 23" and "layer 23 " in frame(app) and "layer 0 " not in frame(app)
        await pilot.press(*["up"] * 24)
        assert chart.at_cursor()[0] == "layer 0" and "layer 0 " in frame(app)

    run = write(tmp_path / "run", lambda step: {"l2/blocks.a": [float(step + layer) for layer in range(24)]})
    drive(run, steps, size=(80, 24), key="2")


def test_a_run_without_statistics_says_how_a_recipe_asks_for_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    only(monkeypatch, LayersPage)

    async def steps(pilot: Pilot[None], app: Dashboard) -> None:
        assert "no statistics of layers yet" in frame(app) and "[statistics]" in frame(app)
        await pilot.press("n", "t", "g", "left")
        assert "no statistics of layers yet" in frame(app)

    drive(fake_run.write(tmp_path / "run", fake_run.events(20)), steps, key="2")


def test_statistics_that_no_trainer_wrote_are_counted_as_foreign_and_harmless(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    only(monkeypatch, LayersPage)

    def values(step: int) -> dict[str, Any]:
        found: dict[str, Any] = {f"l2/blocks.{fake_run.HOSTILE}": [1.0, "inf"], f"l2/{fake_run.HOSTILE}": [], "x": []}
        return {**found, "l2/blocks.a": 3} if step == EVERY else found

    async def steps(pilot: Pilot[None], app: Dashboard) -> None:
        for _ in range(4):
            await pilot.press("t", "n")
            assert "\x1b" not in frame(app) and "\x07" not in frame(app)

    run = write(tmp_path / "run", values)
    assert len(view_of(run).layers.columns) == STEPS // EVERY - 1
    drive(run, steps, key="2")


def test_a_long_history_keeps_equal_distances_and_the_newest_step() -> None:
    history = LayerHistory()
    for step in range(1, 2001):
        history.add(step, {"a/blocks.b": array("d", [step])})
        kept = [column.step for column in history.columns]
        assert len(kept) <= MOST + 1 and kept[0] == 1 and kept[-1] == step
        assert len(set(np.diff(kept[:-1]).tolist())) <= 1
    assert len(history.columns) > MOST // 2
    history.cut(1000)
    assert max(column.step for column in history.columns) <= 1000
    history.add(1001, {"a/blocks.b": array("d", [1.0])})
    assert history.columns[-1].step == 1001


def test_steps_without_a_statistic_and_layers_that_are_missing_leave_gaps() -> None:
    history = LayerHistory()
    history.add(1, {"a/blocks.b": array("d", [1.0, 2.0])})
    history.add(2, {"c/d": array("d", [5.0])})
    history.add(3, {"a/blocks.b": array("d", [3.0]), "a/e": array("d", [])})
    assert parts_of(history) == {"a": ["blocks.b", OUTSIDE], "c": [OUTSIDE]}
    grid = grid_of(history, "a", "blocks.b")
    assert (grid.steps, grid.labels) == ([1, 3], ["layer 0", "layer 1"])
    np.testing.assert_array_equal(grid.values, [[1.0, 3.0], [2.0, np.nan]])
    assert np.isnan(grid_of(history, "a", OUTSIDE).values).all()


def test_the_scale_is_logarithmic_where_values_of_one_sign_differ_much() -> None:
    wide, signed, near = (np.array([x]) for x in ([1.0, 10.0, 100.0, np.nan], [-1.0, 100.0], [1.0, 2.0]))
    found = scale_values(wide, "auto")
    assert found.log
    np.testing.assert_allclose(found.shares, [[0, 0.5, 1, np.nan]])
    np.testing.assert_allclose(scale_values(wide, "linear").shares, [[0, 1 / 11, 1, np.nan]])
    assert not scale_values(signed, "auto").log and not scale_values(near, "auto").log
    np.testing.assert_allclose(scale_values(signed, "log").shares, [[np.nan, 0.5]])
    np.testing.assert_allclose(scale_values(np.full((1, 2), 3.0), "auto").shares, 0.5)
    assert np.isnan(scale_values(np.full((2, 2), np.inf), "log").shares).all()
