"""The newest evaluation of a task that writes no text: classes, confusions and worst predictions, from its files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import fake_run
import numpy as np
import pyarrow
import pytest
from pages import drive, frame, only, until
from pyarrow import parquet
from textual.pilot import Pilot

from trainkit.dashboard.app import Dashboard
from trainkit.dashboard.pages.samples import SamplesPage
from trainkit.dashboard.panels.evaluation import MOST_WORST, Evaluations, evaluation_lines
from trainkit.dashboard.results import read_results


def write_result(run: Path, step: int, table: dict[str, Any] | None = None, name: str = "dev") -> Path:
    """Write what an evaluation of a set leaves in `results/`."""
    directory = run / "results"
    directory.mkdir(parents=True, exist_ok=True)
    metrics = {f"validation/{name}/loss": 0.5, f"validation/{name}/f1": 0.75, f"validation/{name}/f1/a": 0.1}
    (directory / f"{name}-{step}.json").write_text(json.dumps({"set": name, "step": step, "metrics": metrics}))
    if table is not None:
        parquet.write_table(pyarrow.table(table), directory / f"{name}-{step}.parquet")
    return directory / f"{name}-{step}.parquet"


def predictions(classes: int, items: int = 400) -> dict[str, Any]:
    """Return predictions that are right in two of three cases, by classes `c00`, `c01` …"""
    generator = np.random.default_rng(0)
    label = generator.integers(classes, size=items)
    predicted = np.where(generator.random(items) < 0.67, label, generator.integers(classes, size=items))
    scores = generator.normal(size=(items, classes))
    scores[np.arange(items), predicted] = scores.max(-1) + generator.random(items)
    return {
        "source": ["data/reviews.jsonl"] * items,
        "row": list(range(items)),
        "label": [f"c{number:02}" for number in label],
        "predicted": [f"c{number:02}" for number in predicted],
        "scores": scores.astype(np.float32).tolist(),
    }


def shown(run: Path, width: int) -> list[str]:
    found = Evaluations(run)
    found.read()
    return [line.plain for line in evaluation_lines(found, width)]


@pytest.mark.parametrize(("classes", "width"), [(2, 78), (2, 128), (50, 78), (50, 128)])
def test_what_is_shown_of_few_and_of_many_classes_fits_the_terminal(tmp_path, classes, width):
    write_result(tmp_path, 10, predictions(classes))
    lines = shown(tmp_path, width)
    assert max(map(len, lines)) <= width
    text = "\n".join(lines)
    assert "loss 0.5000 · f1 0.7500" in text and "f1/a" not in text
    assert ("predicted across" in text) == (classes == 2)
    assert ("confusions" in text) == (classes == 50)


def test_the_text_of_a_wrong_prediction_is_shown_on_one_line_that_fits(tmp_path):
    table = predictions(2, 40) | {"text": [f"review {row}\nwas \x1b[31m{'very ' * 30}good" for row in range(40)]}
    write_result(tmp_path, 10, table)
    for width in (78, 128):
        lines = shown(tmp_path, width)
        (head,) = [at for at, line in enumerate(lines) if line.startswith("worst predictions")]
        row = lines[head + 1].rsplit(" ", 1)[-1]
        assert lines[head + 2].startswith(f"        review {row} was ␛[31mvery") and len(lines[head + 2]) == width


def test_the_texts_that_differ_most_from_their_targets_come_first(tmp_path):
    texts = {"target": ["a b c", "a b c", "a b"], "generated": ["a b c", "a b d", "x y"], "text": ["p", "q", "r"]}
    write_result(tmp_path, 10, {"source": ["x.jsonl"] * 3, "row": [0, 1, 2], **texts})
    ((result,), (first, second)) = ((found := read_results(tmp_path)), found[0].worst)
    assert (first.label, first.predicted, first.text) == ("a b", "x y", "r")
    assert (second.place, round(second.wrong, 2)) == ("x.jsonl:row 1", 0.2) and not result.confused


def test_the_worst_text_of_a_large_set_is_found_wherever_it_is(tmp_path):
    texts = {"target": ["a b c"] * 2000, "generated": ["a b d"] * 1900 + ["a b c"] * 99 + ["x y z"]}
    write_result(tmp_path, 10, {"source": ["x.jsonl"] * 2000, "row": list(range(2000)), **texts})
    (result,) = read_results(tmp_path)
    assert len(result.worst) == 200 and result.worst[0].place == "x.jsonl:row 1999"


def test_precision_recall_and_f1_of_a_class_follow_from_the_predictions(tmp_path):
    pairs = [("a", "a")] * 6 + [("a", "b")] * 2 + [("b", "a")] * 4 + [("b", "b")] * 8
    write_result(
        tmp_path,
        10,
        {
            "source": ["x"] * 20,
            "row": list(range(20)),
            "label": [label for label, _ in pairs],
            "predicted": [predicted for _, predicted in pairs],
            "scores": [[0.0, 0.0]] * 20,
        },
    )
    (row,) = [line.split() for line in shown(tmp_path, 78) if line.startswith("a ") and "█" in line]
    assert row[1] == f"{2 * 0.6 * 0.75 / 1.35:.2f}" and row[3:] == ["0.60", "0.75", "8"]


def test_the_surest_mistakes_come_first_and_right_predictions_are_none(tmp_path):
    table = predictions(3)
    write_result(tmp_path, 10, table)
    (result,) = read_results(tmp_path)
    likely = [each.wrong for each in result.worst]
    assert likely == sorted(likely, reverse=True)
    assert len(likely) == sum(a != b for a, b in zip(table["label"], table["predicted"], strict=True))
    assert all(each.label != each.predicted and "reviews.jsonl:row" in each.place for each in result.worst)


def test_numbers_have_the_largest_distances_first(tmp_path):
    write_result(
        tmp_path, 10, {"source": ["x"] * 3, "row": [0, 1, 2], "target": [1.0, 2.0, 3.0], "predicted": [1.5, 6.0, 3.0]}
    )
    (result,) = read_results(tmp_path)
    assert [each.wrong for each in result.worst] == [4.0, 0.5, 0.0]


def test_the_newest_step_of_each_set_is_read_and_damaged_files_are_left_out(tmp_path):
    write_result(tmp_path, 10, predictions(2))
    write_result(tmp_path, 20).write_bytes(b"not parquet")
    write_result(tmp_path, 5, name="other")
    (tmp_path / "results" / "bad-30.json").write_text("{")
    first, other = read_results(tmp_path)
    assert (first.name, first.step, not first.confused, first.metrics["f1"]) == ("dev", 20, True, 0.75)
    assert (other.name, other.step) == ("other", 5)


def test_results_after_the_last_step_and_columns_without_items_are_left_out(tmp_path):
    none = {name: [] for name in ("source", "row", "label", "predicted", "scores")}
    write_result(tmp_path, 10, none)
    write_result(tmp_path, 20, predictions(2))
    (result,) = read_results(tmp_path, until=15)
    assert (result.step, result.worst) == (10, ())


def test_a_long_evaluation_is_scrolled_to_its_last_worst_prediction_in_a_small_terminal(tmp_path, monkeypatch):
    only(monkeypatch, SamplesPage)
    evaluated = {"type": "evaluated", "t": 1.7e9, "step": 30, "attempt": 1, "name": "dev", "seconds": 0.1}
    run = fake_run.write(tmp_path / "run", [*fake_run.events(5)[:2], evaluated | {"metrics": {"validation/dev/f1": 1}}])
    write_result(run, 30, predictions(2) | {"text": [f"review {row}" for row in range(400)]})
    first, *_, last = [each.text for each in read_results(run)[0].worst[:MOST_WORST]]

    async def steps(pilot: Pilot[None], dashboard: Dashboard) -> None:
        await until(f" {first} ", pilot)
        assert f" {last} " not in frame(dashboard) and "j k scroll" in frame(dashboard)
        await pilot.press(*"j" * 60)
        await until(f" {last} ", pilot)
        await pilot.press(*"k" * 60)
        await until("no best checkpoint", pilot)

    drive(run, steps, size=(80, 24))


def test_a_run_without_samples_shows_its_newest_evaluation_and_how_many_scheduled_ones_it_waits(tmp_path, monkeypatch):
    only(monkeypatch, SamplesPage)
    evaluated = {"type": "evaluated", "t": 1.7e9, "attempt": 1, "name": "dev", "seconds": 0.1}
    events = [evaluated | {"step": step, "metrics": {"validation/dev/f1": 0.7}} for step in (10, 20, 25, 30)]
    run = fake_run.write(tmp_path / "run", [*fake_run.events(5, total=600)[:2], *events])
    write_result(run, 30, predictions(2))
    (run / "recipe.toml").write_text("[evaluate]\nevery = 10\npatience = 3\n")
    (run / "checkpoints").mkdir(exist_ok=True)
    (run / "checkpoints" / "best.json").write_text(
        json.dumps({"step": 10, "metric": "validation/dev/f1", "value": 0.7})
    )

    async def steps(pilot: Pilot[None], dashboard: Dashboard) -> None:
        for text in ("best checkpoint: step 10", "2 of 3 evaluations", "dev at step 30"):
            await until(text, pilot)

    drive(run, steps)
