"""The page of the data: batches as `trainkit inspect` prints them, the mixture, the wait for data."""

from __future__ import annotations

import json
import re
import threading
import time
from pathlib import Path

import fake_run
import pytest
import viewer
from fake_run import HOSTILE
from pages import drive, frame, only, until
from places import LIMIT
from textual.pilot import Pilot
from textual.widgets import Input
from trainer import RECIPE, workplace

from trainkit.dashboard import theme
from trainkit.dashboard.app import Dashboard
from trainkit.dashboard.batches import Batch, BatchReader, DisplayedRow, ShownSpan
from trainkit.dashboard.pages.data import MOST_CHARACTERS, NO_STEP, DataPage, batch_lines, epochs_of, wait_share
from trainkit.events.reducer import reduce
from trainkit.events.view import View

pytestmark = pytest.mark.usefixtures("reads_batches")


@pytest.fixture(autouse=True)
def only_this_page(monkeypatch: pytest.MonkeyPatch) -> None:
    only(monkeypatch, DataPage)


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run that has done 5 steps on questions, whose answers are learned."""
    rows = [{"q": f"what is {i}", "a": f"it is [b]{i}[/]"} for i in range(60)]
    document = 'document = { type = "prompt", prompt = "{q}?", response = " {a}." }'
    workplace(tmp_path, RECIPE.replace('path = "text/*.txt"', f'path = "qa.jsonl"\n{document}'), documents=0)
    (tmp_path / "qa.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    monkeypatch.chdir(tmp_path)
    directory = fake_run.write(tmp_path / "runs" / "tiny", fake_run.events(5, total=24))
    (directory / "recipe.toml").write_text((tmp_path / "tiny.toml").read_text())
    return directory


def test_the_batch_of_the_last_update_is_read_and_the_keys_go_to_others(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin, inspect = threading.Event(), BatchReader._inspect
    monkeypatch.setattr(BatchReader, "_inspect", lambda reader, step: begin.wait() and inspect(reader, step))

    async def steps(pilot: Pilot[None], dashboard: Dashboard) -> None:
        try:
            assert "reading the batch of step 4 …" in frame(dashboard)
        finally:
            begin.set()
        await until("update 4 → 5", pilot)
        await until("qa.jsonl:", pilot)
        assert "it is [b]" in frame(dashboard), "markup is shown as it is"
        page = dashboard.query_one(DataPage)
        for key, step in (("left", 3), ("]", 4), ("pagedown", 23), ("pageup", 0), ("[", 0)):
            await pilot.press(key)
            assert page._step == step
        await until("update 0 → 1", pilot)
        await pilot.press("g", *"4", "enter")
        await pilot.pause()
        assert page._step == 4 and page.has_focus and "update 4 → 5" in frame(dashboard), "read once"

    drive(run, steps)


def test_copying_takes_the_row_in_sight_with_where_it_is_from(run: Path) -> None:
    async def steps(pilot: Pilot[None], dashboard: Dashboard) -> None:
        page = dashboard.query_one(DataPage)
        await until("update 4 → 5", pilot)
        await until("qa.jsonl:", pilot)
        first = page.copy_text() or ""
        assert first.startswith("step 4 row 0 · ") and "it is [b]" in first and "qa.jsonl:" in first
        dashboard.query_one("#batch").scroll_end(animate=False)
        last = first
        for _ in range(500):  # it scrolls after the next refresh
            if not (last := page.copy_text() or "").startswith("step 4 row 0"):
                break
            await pilot.pause(0.02)
        assert last.startswith("step 4 row ") and not last.startswith("step 4 row 0")

    drive(run, steps, size=(60, 20))


def test_t_follows_the_newest_step_and_a_move_ends_it(run: Path) -> None:
    async def steps(pilot: Pilot[None], dashboard: Dashboard) -> None:
        page = dashboard.query_one(DataPage)
        await pilot.press("left", "left", "t")
        assert page._step == 4 and page._follow
        await pilot.press("left")
        assert page._step == 3 and not page._follow

    drive(run, steps, size=(60, 20))


def test_a_batch_that_cannot_be_read_says_why_and_can_be_asked_for_again(run: Path) -> None:
    recipe = (run / "recipe.toml").read_text()
    (run / "recipe.toml").write_text(recipe.replace("qa.jsonl", "[bold]gone.jsonl"))

    async def steps(pilot: Pilot[None], dashboard: Dashboard) -> None:
        await until("the batch of step 4 cannot be shown", pilot)
        # a long path is broken where the line ends
        await viewer.until(lambda: "[bold]gone.jsonl" in re.sub(r"[\s│]", "", frame(dashboard)), pilot)
        (run / "recipe.toml").write_text(recipe)
        await pilot.press("g", "4", "enter")
        await until("update 4 → 5", pilot)

    drive(run, steps)


@pytest.mark.parametrize("size", [(120, 40), (60, 20)])
def test_before_the_first_update_nothing_is_read_and_it_says_what_will_be_here(
    tmp_path: Path, size: tuple[int, int]
) -> None:
    async def steps(pilot: Pilot[None], dashboard: Dashboard) -> None:
        assert NO_STEP[:12] in frame(dashboard)
        assert dashboard.query_one(DataPage)._reader._reading is None
        await pilot.press("j", "k", "t", "t", "g", "escape")
        assert dashboard.query_one(DataPage).has_focus

    drive(tmp_path, steps, size=size)


def test_a_reader_that_is_closed_ends_its_child(run: Path) -> None:
    reader = BatchReader(run, lambda: None)
    assert reader.get(3) is None
    while reader._child is None:
        time.sleep(0.01)
    child = reader._child
    reader.close()
    assert child.wait(LIMIT) != 0


def test_what_is_learned_is_bright_and_the_rest_dim_and_no_line_is_too_wide() -> None:
    pieces = (ShownSpan("qa.jsonl:1", 0, 9, (("what is it? ", False), ("it is 日本語 " * 9, True))),)
    lines = list(batch_lines([DisplayedRow(0, "qa", 7, 3, pieces)], 30, {"qa": theme.NORM}))
    assert max(line.cell_length for line in lines) <= 30
    styles = {span.style for line in lines for span in line.spans}
    assert {theme.BRIGHT, theme.DIM, theme.NORM} <= styles


def test_a_batch_of_long_rows_is_cut_and_says_so() -> None:
    rows = [
        DisplayedRow(i, "s", i, None, (ShownSpan("f.txt", 0, 9, (("word " * MOST_CHARACTERS, True),)),))
        for i in range(2)
    ]
    lines = list(batch_lines(rows, 80, {}))
    assert sum(len(line) for line in lines) < 1.2 * MOST_CHARACTERS
    assert "are not shown" in lines[-1].plain


def test_the_mixture_is_the_last_epochs_of_each_source_and_the_wait_a_share_of_the_steps(tmp_path: Path) -> None:
    view = View()
    for step in range(1, 4):
        metrics = {"time/step": 0.5, "time/data_wait": 0.1, f"data/epochs/{HOSTILE}": 0.1 * step, "data/epochs/b": 2.0}
        reduce(view, {"type": "step", "t": 1.0 * step, "step": step, "attempt": 1, "metrics": metrics})
    assert wait_share(view) == pytest.approx(0.2) and wait_share(View()) is None
    (hostile, seen), other = epochs_of(view).items()
    assert hostile.isprintable() and seen == pytest.approx(0.3) and other == ("b", 2.0)


def test_the_reader_shows_an_error_in_words_and_nothing_of_a_traceback(tmp_path: Path) -> None:
    reader = BatchReader(tmp_path / "none", lambda: None)
    batch = reader._inspect(0)
    assert isinstance(batch, Batch) and "there is no run" in batch.error and "Traceback" not in batch.error


@pytest.mark.parametrize("answer", ["", "-", "+-3", "9" * 5000])
def test_an_answer_that_is_no_step_changes_nothing(tmp_path: Path, answer: str) -> None:
    async def steps(pilot: Pilot[None], dashboard: Dashboard) -> None:
        page = dashboard.query_one(DataPage)
        await pilot.press("g")
        page.query_one(Input).value = answer
        await pilot.press("enter")
        assert page._step is None and page.is_attached

    drive(tmp_path, steps)


def test_a_wait_that_is_no_number_is_no_share() -> None:
    view = View()
    metrics = {"time/step": 0.5, "time/data_wait": "nan"}
    reduce(view, {"type": "step", "t": 1.0, "step": 1, "attempt": 1, "metrics": metrics})
    assert wait_share(view) is None
