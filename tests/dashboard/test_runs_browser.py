"""Many runs: what is read of each, the list with its keys, the leaderboard, opening, comparing and deleting."""

from __future__ import annotations

import asyncio
import errno
import fcntl
import json
import math
import os
import random
import re
import shutil
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import fake_run
import pytest
import viewer
from fake_run import HOSTILE, folded
from hypothesis import example, given, settings
from hypothesis import strategies as st
from pages import frame, notices, until
from places import LIMIT
from textual.pilot import Pilot
from textual.widgets import Input

from trainkit.cli.arguments import directory_of_runs
from trainkit.cli.runs import runs as table_of_runs
from trainkit.dashboard.pages.compare import ComparePage
from trainkit.dashboard.panels.rows import RowTable
from trainkit.dashboard.runs import app as browser
from trainkit.dashboard.runs.app import RunsApp, RunSelection
from trainkit.dashboard.runs.browse import Opened
from trainkit.dashboard.runs.leaderboard import (
    LISTED,
    Arrangement,
    SortOrder,
    leaderboard_rows,
    list_rows,
    metrics,
    spark,
)
from trainkit.errors import TrainkitError
from trainkit.events.schema import Event
from trainkit.rundir import checkpoint_files
from trainkit.rundir import listing as shelves
from trainkit.rundir import summary as summaries
from trainkit.rundir.listing import RunList, neighbours
from trainkit.rundir.summary import LOSS, SummaryReader

Steps = Callable[[Pilot[RunSelection], RunsApp], Awaitable[None]]
#: A process that does not live.
NOBODY = 2**22 + 5
#: As an event, but that no trainkit wrote it.
NO_STEP: Event = {"type": "step", "t": 1.0, "step": 1, "attempt": 1}


def ended(steps: int, *, factor: float = 1.0, status: str = "finished", total: int | None = None) -> list[Event]:
    """A run whose losses are `factor` times those of others, and which has ended."""
    told = fake_run.events(steps, total=total)
    for event in told:
        if event["type"] in ("step", "evaluated"):
            metrics = event["metrics"].items()
            event["metrics"] = {name: value * factor if name.endswith("loss") else value for name, value in metrics}
    last = {"type": "run_finished", "t": told[-1]["t"] + 1, "step": steps, "attempt": 1}
    return [*told, {**last, "status": status, "exit_code": 0, "message": "no memory" if status == "failed" else ""}]


def recipe(run: Path, **values: Any) -> None:
    told = "".join(f"{key} = {json.dumps(value)}  # r.toml:1\n" for key, value in values.items())
    (run / "recipe.toml").write_text(f'schema = 1\n[run]\nname = "{run.name}"\n[optimizer]\n{told}')


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """Four runs that have ended, the loss of each higher than that of the one before."""
    directory = tmp_path / "runs"
    for place, (name, status) in enumerate(
        (("best", "finished"), ("good", "stopped"), ("poor", "failed"), ("worst", "finished"))
    ):
        told = ended(40 - 10 * place, factor=1 + place, status=status, total=40)
        run = fake_run.write(directory / name, [{**event, "t": event["t"] + 1e6 * place} for event in told])
        recipe(run, learning_rate=10.0**-place, momentum=0.9)
    return directory


def browse(
    directory: Path, steps: Steps, *, size: tuple[int, int] = (120, 40), arrangement: Arrangement | None = None,
    readonly: bool = False, listed: RunList | None = None,
) -> RunSelection | None:  # fmt: skip
    """Open the browser, wait until all logs have been read, and go through `steps`; what was chosen."""
    listed = listed or RunList(directory)

    async def drive_it() -> RunSelection | None:
        app = RunsApp(listed, arrangement or Arrangement(), readonly=readonly)
        async with viewer.running(app, size) as pilot:
            while not listed.passes:
                await pilot.pause(0.01)
            app.show()
            await pilot.pause()
            await steps(pilot, app)
        return app.return_value

    return asyncio.run(drive_it())


def listed(app: RunsApp) -> list[str]:
    return [line.name for line in app._lines]


def read(run: Path) -> summaries.RunSummary:
    summary = SummaryReader(run)
    summary.read()
    assert summary.facts is not None
    return summary.facts


def test_the_kept_checkpoints_of_a_run_are_listed(runs: Path) -> None:
    for step in (10, 9, 8):
        (runs / "best" / "checkpoints" / str(step)).mkdir(parents=True)
    for step in (10, 9):
        checkpoint_files.mark(runs / "best" / "checkpoints" / str(step), keep=True)

    async def steps(pilot: Pilot[RunSelection], app: RunsApp) -> None:
        app._rows.choose("best")
        await pilot.pause()
        assert "kept: 9, 10" in frame(app)
        app._rows.choose("good")
        await pilot.pause()
        assert "kept:" not in frame(app)

    browse(runs, steps)
    table = table_of_runs(runs)
    assert "KEPT" in table and next(row for row in table.split("\n") if "9, 10" in row).startswith("best")
    checkpoint_files.mark(runs / "best" / "checkpoints" / "9", keep=False)
    checkpoint_files.mark(runs / "best" / "checkpoints" / "10", keep=False)
    assert "KEPT" not in table_of_runs(runs)


@settings(deadline=None, max_examples=20)
@given(st.integers(0, 3000), st.integers(0, 2**31), st.booleans())
def test_what_is_said_to_be_exact_is_what_the_whole_log_says(
    tmp_path_factory: pytest.TempPathFactory, steps: int, seed: int, resumed: bool
) -> None:
    told = fake_run.events(steps, total=3000)
    if resumed and steps:
        back = random.Random(seed).randrange(steps)
        told += fake_run.events(min(3000, back + 500), attempt=2, resumed_from=back, total=3000)
    random.Random(seed).shuffle(evaluated := [event for event in told if event["type"] == "evaluated"])
    for event, low in zip(evaluated, range(len(evaluated)), strict=True):
        event["metrics"]["validation/held-out/loss"] = low + 0.5
    facts, view = read(fake_run.write(tmp_path_factory.mktemp("run") / "r", told)), folded(told)
    assert (facts.step, facts.total, facts.attempt) == (view.step, view.total_steps, view.attempt)
    assert facts.loss == view.last(LOSS) and facts.last_event == view.last_event
    assert facts.speed == view.tokens_per_second and facts.eta == view.eta
    held_out = view.series.get("validation/held-out/loss")
    assert dict(facts.best) == ({"held-out": held_out.lowest} if held_out else {})
    losses = view.series[LOSS].values if LOSS in view.series else [0.0]
    assert all(min(losses) <= value <= max(losses) for value in facts.curve)


def test_of_a_long_log_only_a_sample_of_the_steps_is_parsed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told = ended(5000)
    run = fake_run.write(tmp_path / "run", told)
    parsed = []
    monkeypatch.setattr(summaries, "TAIL", 1 << 16)
    monkeypatch.setattr(summaries, "_event", lambda line: parsed.append(line) or json.loads(line))
    facts = read(run)
    assert len(parsed) < 500 and facts.step == 5000 and facts.loss == folded(told).last(LOSS)


def test_a_run_that_grows_is_read_on_and_one_that_is_begun_again_from_its_beginning(tmp_path: Path) -> None:
    told = fake_run.events(20, total=40)
    run = fake_run.write(tmp_path / "run", told)
    summary = SummaryReader(run)
    summary.read()
    with (run / fake_run.NAME).open("a") as log:
        step = {"type": "step", "t": 1.8e9, "step": 21, "attempt": 1, "metrics": {LOSS: 0.25}}
        log.write(json.dumps(step) + '\n{"type": "st')
    summary.read()
    assert summary.facts and (summary.facts.step, summary.facts.loss, summary.facts.total) == (21, 0.25, 40)
    fake_run.write(run, fake_run.events(3, total=9))
    summary.read()
    assert summary.facts and (summary.facts.step, summary.facts.total) == (3, 9)


def test_a_log_that_could_not_be_opened_once_is_read_the_next_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    summary = SummaryReader(fake_run.write(tmp_path / "run", ended(20)))
    monkeypatch.setattr(summaries, "is_replaced", raise_too_many_files)
    summary.read()
    assert summary.facts and summary.facts.problem == "its log cannot be read: Too many open files"
    monkeypatch.undo()
    summary.read()
    assert summary.facts and (summary.facts.problem, summary.facts.step) == ("", 20)


def raise_too_many_files(*arguments: object) -> None:
    raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))


def test_a_run_whose_log_has_not_changed_is_not_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    directory, opened = tmp_path / "runs", []
    for name, told in (("ended", ended(20)), ("crashed", fake_run.events(20, total=40))):
        fake_run.write(directory / name, [{**told[0], "pid": NOBODY}, *told[1:]])
    (directory / "ended" / "lock").touch()
    runs, is_replaced = RunList(directory), summaries.is_replaced
    runs.read()
    assert {name: run.facts.state for name, run in runs.summaries.items() if run.facts} == {
        "ended": "finished", "crashed": "crashed"
    }  # fmt: skip
    # asked of every log that is opened
    monkeypatch.setattr(summaries, "is_replaced", lambda *found: opened.append(found) or is_replaced(*found))
    monkeypatch.setattr(summaries, "reduce", lambda *_: pytest.fail("an event was read again"))
    runs.read()
    assert opened == []
    # a checkpoint that is marked shows although the log has not changed
    (directory / "ended" / "checkpoints" / "9").mkdir(parents=True)
    checkpoint_files.mark(directory / "ended" / "checkpoints" / "9", keep=True)
    runs.read()
    assert opened == [] and runs.summaries["ended"].kept == (9,)
    # a trainer that resumes the run takes the lock before it writes an event
    (directory / "ended" / "lock").write_text(str(os.getpid()))
    runs.read()
    resumed = runs.summaries["ended"].facts
    assert len(opened) == 1 and resumed and resumed.state == "starting"
    monkeypatch.undo()
    fake_run.write(directory / "crashed", fake_run.events(30, total=40))
    runs.read()
    grown = runs.summaries["crashed"].facts
    assert grown and grown.step == 30


def test_a_table_of_runs_measures_no_sizes(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SummaryReader, "measure", lambda *_, **__: pytest.fail("the table shows no sizes"))
    assert "best" in table_of_runs(runs)


@pytest.mark.parametrize("before", [fake_run.events(20, total=40), [NO_STEP]], ids=["a log", "lines of others"])
def test_a_log_that_stands_in_for_another_is_read_from_its_beginning_though_it_is_longer(
    tmp_path: Path, before: list[Event]
) -> None:
    run = fake_run.write(tmp_path / "run", before)
    summary = SummaryReader(run)
    summary.read()
    fake_run.write(tmp_path / "new", fake_run.events(60, total=90))
    (tmp_path / "new" / fake_run.NAME).replace(run / fake_run.NAME)
    for _ in range(2):
        summary.read()
        assert summary.facts and (summary.facts.step, summary.facts.total, summary.facts.broken) == (60, 90, False)
    assert len(summary._view.series[LOSS]) == 60


def spoil(directory: Path) -> Iterator[tuple[str, str, bool]]:
    """Make directories that are no runs, or broken ones: name, what is said of it, whether it is of no use."""
    step = NO_STEP
    logs = {
        "empty-log": ("", "its log is empty", False),
        "torn": ('{"type": "run_sta', "its log is empty", False),
        "other-json": ("[1]\n{}\nnull\n", "its log holds no event", False),
        "foreign": (json.dumps(step) + "\n", "its log has lines that trainkit did not write", True),
        "foreign-types": (json.dumps({**step, "step": "x", "metrics": {}}) + "\n", "trainkit did not write", True),
        "foreign-time": (json.dumps({**step, "t": None, "metrics": {}}) + "\n", "trainkit did not write", True),
        "foreign-attempt": (json.dumps({**step, "attempt": "x", "metrics": {}}) + "\n", "trainkit did not write", True),
        "foreign-total": (
            json.dumps({**step, "type": "planned", "total_steps": "x", "plan": {}, "devices": []}) + "\n",
            "trainkit did not write",
            True,
        ),
        "deep": ("[" * 100_000 + "\n", "its log holds no event", False),
        "binary": ("\x00\ufffd" * 99 + "\n", "its log holds no event", False),
    }
    for name, (text, told, broken) in logs.items():
        (directory / name).mkdir(parents=True)
        (directory / name / fake_run.NAME).write_text(text)
        yield name, told, broken
    newer = fake_run.events(5)
    newer[0].update(schema=99, pid=NOBODY)
    fake_run.write(directory / "newer", [*newer, {"type": "quantum", "t": 1.7e9, "step": 5, "attempt": 1}])
    yield "newer", "written by a newer trainkit (schema 99)", False
    (directory / "not-yet").mkdir()
    (directory / "not-yet" / "recipe.toml").write_text("schema = [")
    yield "not-yet", "no log yet", False
    (directory / "nothing").mkdir()
    yield "nothing", "no run: neither log nor recipe", True
    (directory / "log-is-a-directory" / fake_run.NAME).mkdir(parents=True)
    yield "log-is-a-directory", "its log cannot be read", True
    (directory / "nowhere").symlink_to(directory / "gone")
    yield "nowhere", "a broken link", True


def test_what_is_no_run_or_a_broken_one_is_listed_with_what_is_wrong(tmp_path: Path) -> None:
    expected = list(spoil(tmp_path / "runs"))
    found = RunList(tmp_path / "runs")
    found.read()
    assert found.summaries.keys() == {name for name, _, _ in expected}
    for name, told, broken in expected:
        facts = found.summaries[name].facts
        assert facts and told in facts.problem and facts.broken == broken, name

    async def steps(pilot: Pilot[RunSelection], app: RunsApp) -> None:
        for key in ("s",) * len(LISTED) + ("r", "L", "m", "L", "enter"):
            await pilot.press(key)
            await pilot.pause()
            assert len(listed(app)) == len(expected)
        for _ in expected:
            name = app.query_one(RowTable).chosen or ""
            assert found.summaries[name].facts.problem in frame(app)  # type: ignore[union-attr]
            await pilot.press("j")
            await pilot.pause()

    arrangement = Arrangement(order=SortOrder("state"))
    browse(tmp_path / "runs", steps, arrangement=arrangement)


def test_a_run_that_no_process_trains_any_more_is_said_to_have_crashed_and_a_living_one_to_run(tmp_path: Path) -> None:
    told = fake_run.events(9, total=20)
    told = [{**event, "t": time.time()} for event in told]
    fake_run.write(tmp_path / "lives", told)
    fake_run.write(tmp_path / "died", [{**told[0], "pid": NOBODY}, *told[1:]])
    assert read(tmp_path / "lives").state == "running" and read(tmp_path / "lives").eta is not None
    assert read(tmp_path / "died").state == "crashed" and read(tmp_path / "died").eta is None


def test_every_column_sorts_the_list_and_its_head_says_so(runs: Path) -> None:
    by_key = {
        "age": ["worst", "poor", "good", "best"],
        "run": ["best", "good", "poor", "worst"],
        "state": ["best", "worst", "good", "poor"],
        "step": ["best", "good", "poor", "worst"],
        "best": ["best", "good", "poor", "worst"],
        "loss": ["best", "good", "poor", "worst"],
        "ETA": ["best", "good", "poor", "worst"],
    }

    async def steps(pilot: Pilot[RunSelection], app: RunsApp) -> None:
        for column in LISTED:
            if column in by_key:
                assert listed(app) == by_key[column], column
            arrow = {"best": "best held-out ▾"}.get(column, f"{column} ▾")
            assert arrow in frame(app)
            await pilot.press("s")
            await pilot.pause()
        await pilot.press("S", "S", "S", "r")
        await pilot.pause()
        assert "loss ▴" in frame(app) and listed(app) == by_key["loss"][::-1]

    browse(runs, steps, size=(160, 40))


def test_the_list_shows_state_step_best_loss_and_age_of_each_run(runs: Path) -> None:
    async def steps(pilot: Pilot[RunSelection], app: RunsApp) -> None:
        row = next(line for line in frame(app).split("\n") if "poor" in line and "failed" in line)
        view = folded(ended(20, factor=3, total=40))
        series = view.series["validation/held-out/loss"]
        assert series.lowest and f"{series.lowest.value:.4f}" in row and "20/40" in row and re.search(r"\d+ d", row)
        assert any(block in row for block in "▁▂▃▄▅▆▇█")
        await pilot.press("g", "j")
        await pilot.pause()
        assert "no memory" in frame(app), "how the chosen one ended"
        while "kB" not in frame(app):
            await pilot.pause(0.02)
            app.show()

    browse(runs, steps, size=(200, 40))


def test_the_filter_finds_names_states_and_values_of_the_recipe_and_escape_shows_all(runs: Path) -> None:
    async def steps(pilot: Pilot[RunSelection], app: RunsApp) -> None:
        for wanted, found in (("oo", {"good", "poor"}), ("FAILED", {"poor"}), ("learning_rate = 0.01", {"poor"})):
            await pilot.press("slash")
            app.query_one(Input).value = wanted
            await pilot.press("enter")
            await pilot.pause()
            assert set(listed(app)) == found
            await pilot.press("escape")
            await pilot.pause()
            assert len(listed(app)) == 4 and not app.query_one(Input).display
        await pilot.press("slash", *"zzz", "enter")
        await pilot.pause()
        assert "no run matches “zzz”" in frame(app)

    browse(runs, steps)


def test_enter_and_a_double_click_open_the_chosen_run(runs: Path) -> None:
    async def by_key(pilot: Pilot[RunSelection], app: RunsApp) -> None:
        await pilot.press("j", "G", "k", "enter")

    async def by_mouse(pilot: Pilot[RunSelection], app: RunsApp) -> None:
        await pilot.click("OptionList", offset=(5, 1), times=2)

    assert browse(runs, by_key) == RunSelection(runs / "good")
    assert browse(runs, by_mouse) == RunSelection(runs / "poor")


def test_c_opens_the_first_of_the_marked_runs_compared_with_the_others(runs: Path) -> None:
    async def steps(pilot: Pilot[RunSelection], app: RunsApp) -> None:
        await pilot.press("c")
        assert "mark at least two runs first" in notices(app)
        await pilot.press("space", "j", "space")
        await pilot.pause()
        assert "2 marked" in frame(app) and frame(app).count("◉") == 2
        await pilot.press("c")

    arrangement = Arrangement()
    choice = browse(runs, steps, arrangement=arrangement)
    assert choice == RunSelection(runs / "worst", (runs / "good",))
    assert arrangement.marked == {"worst", "good"}, "kept for when one comes back"

    async def unmark(pilot: Pilot[RunSelection], app: RunsApp) -> None:
        await pilot.press("escape")
        await pilot.pause()
        assert "marked" not in frame(app).split("\n")[0] and "◉" not in frame(app)
        await pilot.press("q")

    assert browse(runs, unmark, arrangement=arrangement) is None


def test_leaving_a_run_that_was_opened_leads_back_and_its_choice_is_compared(runs: Path) -> None:
    async def drive_it(key: str) -> None:
        opened = Opened(RunSelection(runs / "best", (runs / "poor",)), readonly=True, ascii_only=False, remembered=None)
        async with viewer.running(opened, (120, 40)) as pilot:
            opened.load()
            await until("optimizer.learning_rate", pilot)
            assert opened.query_one(ComparePage).display and "poor" in frame(opened)
            if key == "escape":
                await pilot.press("slash", "escape")
                assert opened.is_running, "the filter had the key"
            await pilot.press(key)
        assert opened._exit and opened.signal is None

    for key in ("escape", "q"):
        asyncio.run(drive_it(key))


def test_who_comes_back_finds_the_run_that_he_left_chosen(runs: Path) -> None:
    async def steps(pilot: Pilot[RunSelection], app: RunsApp) -> None:
        assert app.query_one(RowTable).chosen == "good"

    listed = RunList(runs)
    listed.read()
    browse(runs, steps, listed=listed, arrangement=Arrangement(chosen="good"))


def test_the_leaderboard_ranks_by_the_metric_and_shows_only_keys_that_differ(runs: Path) -> None:
    fake_run.write(runs / "no-evaluation", fake_run.events(1, total=40)[:3])

    async def steps(pilot: Pilot[RunSelection], app: RunsApp) -> None:
        assert " sort " in frame(app).split("\n")[-1]
        await pilot.press("L")
        await pilot.pause()
        assert listed(app) == ["best", "good", "poor", "worst", "no-evaluation"]
        told = frame(app)
        assert "leaderboard by validation/held-out/loss" in told and "optimizer.learning_rate" in told
        assert "optimizer.momentum" not in told and "run.name" not in told
        assert " sort " not in told.split("\n")[-1], "it has an order of its own"
        ranks = [line.cells[1][0] for line in app._lines]
        assert ranks == ["1", "2", "3", "4", "–"], "who was not evaluated has no rank"
        await pilot.press("m")
        await pilot.pause()
        assert "leaderboard by train/loss" in frame(app) and "–" not in [line.cells[1][0] for line in app._lines]
        await pilot.press("m")
        await pilot.pause()
        assert "leaderboard by tokens/s" in frame(app)
        await pilot.press("M", "M", "L")
        await pilot.pause()
        assert "leaderboard" not in frame(app).split("\n")[1] and app._arranged.metric == "validation/held-out/loss"

    browse(runs, steps)


def test_a_loss_that_is_no_number_has_no_rank_and_is_never_the_best(tmp_path: Path) -> None:
    for name, loss in (("a", "nan"), ("b", 3.0), ("c", "-inf"), ("d", 2.0)):
        told = fake_run.events(3)
        told[-1]["metrics"] = {}
        told += [{"type": "step", "t": 1.7e9, "step": 4, "attempt": 1, "metrics": {LOSS: loss}}]
        fake_run.write(tmp_path / name, told)
    listed = RunList(tmp_path)
    listed.read()
    metric = next(metric for metric in metrics(listed.summaries.values()) if metric.name == LOSS)
    _, found = leaderboard_rows(list(listed.summaries.values()), metric, marked=())
    assert [(line.name, line.cells[1][0]) for line in found] == [("d", "1"), ("b", "2"), ("a", "–"), ("c", "–")]
    shown = list_rows(list(listed.summaries.values()), SortOrder("best"), metric, now=0.0, marked=())
    assert [line.name for line in shown if any("★" in text for text, _ in line.cells)] == ["d"]


def test_a_run_is_deleted_only_after_a_yes_and_with_all_that_is_in_it(runs: Path) -> None:
    (runs / "worst" / "checkpoints" / "7").mkdir(parents=True)

    async def steps(pilot: Pilot[RunSelection], app: RunsApp) -> None:
        for no in ("enter", "n", "escape"):
            await pilot.press("x")
            await pilot.pause()
            assert "Delete the run worst?" in frame(app)
            await pilot.press(no)
            await pilot.pause()
            assert (runs / "worst").is_dir()
        await pilot.press("delete", "y")
        while "worst" in app._runs.summaries:
            await pilot.pause(0.02)

    browse(runs, steps)
    assert sorted(os.listdir(runs)) == ["best", "good", "poor"]


def test_a_deletion_that_has_begun_is_finished_though_the_browser_is_left(
    runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, left = threading.Event(), threading.Event()

    def slowly(path: Path) -> None:
        begun.set()
        left.wait(LIMIT)
        rmtree(path)

    rmtree = shutil.rmtree
    monkeypatch.setattr(shelves.shutil, "rmtree", slowly)

    async def steps(pilot: Pilot[RunSelection], app: RunsApp) -> None:
        await pilot.press("x", "y")
        while not begun.is_set():
            await pilot.pause(0.01)
        await pilot.press("q")
        left.set()

    browse(runs, steps)
    assert sorted(os.listdir(runs)) == ["best", "good", "poor"]


def test_a_run_at_work_is_not_deleted_nor_what_is_no_run_nor_by_who_may_only_look(runs: Path) -> None:
    listed = RunList(runs)
    fake_run.write(runs / "lives", fake_run.events(3, total=9))
    (runs / "notes").mkdir()
    for name, why in (("lives", "it is being trained"), ("notes", "this is not a run")):
        with pytest.raises(TrainkitError, match=why):
            listed.delete(name)
    lock = os.open(runs / "best" / "lock", os.O_RDWR | os.O_CREAT)
    fcntl.flock(lock, fcntl.LOCK_EX)
    with pytest.raises(TrainkitError, match="it is being trained"):
        listed.delete("best")
    os.close(lock)
    listed.delete("best")
    assert sorted(os.listdir(runs)) == ["good", "lives", "notes", "poor", "worst"]

    async def steps(pilot: Pilot[RunSelection], app: RunsApp) -> None:
        await pilot.press("x")
        assert "this viewer is read-only" in notices(app)

    browse(runs, steps, readonly=True)


def test_a_link_is_unlinked_and_links_inside_a_run_are_not_followed(runs: Path, tmp_path: Path) -> None:
    outside = fake_run.write(tmp_path / "outside", ended(5))
    (outside / "precious").write_text("x")
    (runs / "linked").symlink_to(outside)
    (runs / "poor" / "data").symlink_to(outside)
    listed = RunList(runs)
    listed.delete("linked")
    listed.delete("poor")
    assert sorted(os.listdir(runs)) == ["best", "good", "worst"]
    assert (outside / "precious").read_text() == "x"
    with pytest.raises(AssertionError):
        listed.delete("../outside")


def test_the_neighbours_of_a_run_are_the_other_runs_beside_it(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (runs / "notes").mkdir()
    monkeypatch.chdir(runs / "best")
    for named in (runs / "best", Path("."), Path("../best")):
        assert {run.name for run in neighbours(Path(os.path.normpath(named.absolute())))} == {"good", "poor", "worst"}


def test_watch_means_the_runs_of_a_directory_unless_it_is_a_run_or_the_name_of_one(
    runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(runs.parent)
    (runs.parent / "best").mkdir()
    fake_run.write(runs.parent / "best" / "inner", ended(1))
    (runs.parent / "docs").mkdir()
    assert directory_of_runs(None) == directory_of_runs("runs") == Path("runs")
    assert directory_of_runs(str(runs)) == runs
    for run in ("best", "runs/best", str(runs / "good"), "docs", "nowhere"):
        assert directory_of_runs(run) is None, run
    monkeypatch.chdir(runs.parent / "docs")
    with pytest.raises(TrainkitError, match="there is no directory runs/ in "):
        directory_of_runs(None)


def test_two_hundred_runs_fill_in_while_the_keys_work(tmp_path: Path) -> None:
    told = [json.dumps(event) for event in ended(30)]
    for number in range(200):
        run = tmp_path / f"run-{number:03d}"
        run.mkdir()
        (run / fake_run.NAME).write_text("\n".join(told).replace("quickstart", run.name) + "\n")
        recipe(run, learning_rate=number)

    async def steps(pilot: Pilot[RunSelection], app: RunsApp) -> None:
        assert "200 runs" in frame(app) and len(listed(app)) == 200
        await pilot.press("s", "G")
        await pilot.pause()
        assert app.query_one(RowTable).chosen == "run-199"
        await pilot.press("slash", *"run-07", "enter", "L")
        await pilot.pause()
        assert len(listed(app)) == 10

    browse(tmp_path, steps)


@pytest.mark.parametrize("size", [(200, 60), (80, 24), (20, 5)])
def test_hostile_names_and_logs_are_inert_at_every_size(tmp_path: Path, size: tuple[int, int]) -> None:
    name = HOSTILE.replace("\ud800", "").replace("/", "∕")
    told = ended(20, status="failed")
    told[0]["name"], told[-1]["message"] = HOSTILE, HOSTILE
    for event in told:
        if event["type"] == "evaluated":
            event["metrics"] = {f"validation/{HOSTILE}/loss": 1.0}
    for place in range(2):
        run = fake_run.write(tmp_path / f"{name}{place}", told)
        key = json.dumps(HOSTILE.replace("\ud800", "").replace("\x7f", ""))
        (run / "recipe.toml").write_text(f"[{key}]\na = {place}\n")

    async def steps(pilot: Pilot[RunSelection], app: RunsApp) -> None:
        for key in ("L", "m", "s", "L", "space", "x", "escape", "question_mark", "escape"):
            await pilot.press(key)
            await pilot.pause()
            assert all(c == "\n" or c.isprintable() for c in frame(app)), key

    browse(tmp_path, steps, size=size)


def test_an_empty_directory_says_how_to_begin_and_its_keys_do_no_harm(tmp_path: Path) -> None:
    async def steps(pilot: Pilot[RunSelection], app: RunsApp) -> None:
        await until("no runs in", pilot)
        told = " ".join(frame(app).replace("│", " ").split())  # where the directory's name is long, it is wrapped
        assert "start one: trainkit run RECIPE" in told
        await pilot.press("enter", "space", "c", "x", "delete", "j", "k", "g", "G", "pagedown", "pageup", "escape")
        await pilot.press("s", "S", "r", "L", "m", "M", "slash", "escape", "T")
        await pilot.press("question_mark")
        await pilot.pause()
        assert "leaderboard" in frame(app), "the help is made of the keys in force"

    assert browse(tmp_path, steps) is None


@given(st.lists(st.floats(), max_size=20))
@example([-1.7e308, 1.7e308])
def test_a_spark_has_a_block_for_each_value_the_highest_where_that_is(curve: list[float]) -> None:
    told = spark(curve)
    crosses = [block == "×" for block in told[: len(curve)]]
    assert crosses == [not math.isfinite(value) for value in curve]
    finite = [value for value in curve if math.isfinite(value)]
    if finite and max(finite) > min(finite) and math.isfinite(max(finite) - min(finite)):
        assert told[curve.index(max(finite))] == "█" and told[curve.index(min(finite))] == "▁"


def test_while_nothing_changes_nothing_is_drawn(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = time.time()
    # ages are told in minutes: one must not end meanwhile
    monkeypatch.setattr(browser, "time", SimpleNamespace(time=lambda: now))

    async def steps(pilot: Pilot[RunSelection], app: RunsApp) -> None:
        def all_is_drawn() -> bool:
            return app._seen == app._known() and all(run.size is not None for run in listed.summaries.values())

        await viewer.until(all_is_drawn, pilot)
        monkeypatch.setattr(RunsApp, "show", lambda *_: pytest.fail("it was drawn"))
        passes = listed.passes
        await viewer.until(lambda: listed.passes > passes + 1, pilot)
        app._look_on()

    listed = RunList(runs)
    browse(runs, steps, listed=listed)
