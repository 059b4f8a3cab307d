"""`trainkit plan --plot` draws what the schedule computes, in the width of the terminal."""

from __future__ import annotations

import pytest
from sample_recipe import changed, write

from trainkit.cli.schedule_plot import GUTTER, draw_schedules
from trainkit.recipe.toml.load import load


def heights(lines: list[str]) -> list[int]:
    """The line of the highest dot in each column of characters, from the top; 8 where there is none."""
    rows = [line[GUTTER + 2 :] for line in lines[2:-1]]
    width = max(map(len, rows))
    padded = [row.ljust(width, "\u2800") for row in rows]
    return [next((n for n, row in enumerate(padded) if row[x] != "\u2800"), 8) for x in range(width)]


@pytest.mark.parametrize("width", [80, 130])
@pytest.mark.parametrize("steps", [20, 1000, 3_000_000])
def test_the_plot_is_that_of_the_schedule_and_as_wide_as_the_terminal(tmp_path, width, steps):
    lines = (("warmup = 0.02", "warmup = 0.0"), ("min_ratio = 0.1", "decay = 0.5"))
    text = changed(('type = "cosine"', 'type = "wsd"'), *lines)
    lines = draw_schedules(load(write(tmp_path, text)).recipe, steps=steps, width=width)
    assert all(len(line) <= width for line in lines) and max(map(len, lines)) == width
    assert lines[1].startswith(f"optimizer.learning_rate over {steps:,} steps")
    assert lines[2].split()[0] == "0.001"
    found = heights(lines)
    stable = len(found) // 2 - width // 20
    assert found[:stable] == [0] * stable, "at the peak until the decay"
    assert found[stable:] == sorted(found[stable:]) and found[-1] >= 5, "then down to the end"


def test_a_constant_rate_is_a_line_without_a_break(tmp_path):
    text = changed(('type = "cosine"', 'type = "constant"'), ("min_ratio = 0.1", ""), ("warmup = 0.02", "warmup = 0"))
    lines = draw_schedules(load(write(tmp_path, text)).recipe, steps=1, width=60)
    assert heights(lines) == [0] * (60 - GUTTER - 2)
