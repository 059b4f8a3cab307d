"""The checkpoints page on a log and on directories as a trainer leaves them."""

from __future__ import annotations

import asyncio
import gc
import json
import math
import shutil
import warnings
from pathlib import Path

import fake_run
import pytest
from fake_run import HOSTILE, folded, manifest, saved
from pages import drive, frame, notices, only, settle, until
from textual.content import Content
from textual.pilot import Pilot
from textual.widgets import Static

from trainkit.checkpoint.manifest import write
from trainkit.dashboard.app import Dashboard
from trainkit.dashboard.pages import checkpoints
from trainkit.dashboard.pages.checkpoints import CheckpointsPage
from trainkit.dashboard.panels.rows import RowTable
from trainkit.events.schema import Event
from trainkit.rundir.checkpoint_files import manifest_facts, present
from trainkit.rundir.follow import Replay


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """300 of 600 steps; of the three rolling checkpoints two are there, one was made permanent."""
    only(monkeypatch, CheckpointsPage)
    monkeypatch.setattr(checkpoints, "REST", 0.0)
    monkeypatch.chdir(tmp_path)
    run = Path("runs") / "quick start"
    saved(run, 200)
    saved(run, 300)
    return fake_run.write(run, events())


def events() -> list[Event]:
    told = fake_run.events(300, total=600)
    again = next(event for event in told if event["type"] == "checkpoint_saved" and event["step"] == 200)
    return [*told[: told.index(again) + 1], {**again, "kind": "permanent"}, *told[told.index(again) + 1 :]]


def row(dashboard: Dashboard, step: int) -> str:
    return next(line for line in frame(dashboard).split("\n") if line.strip("│ ").startswith(f"{step} "))


def detail(dashboard: Dashboard) -> str:
    return str(dashboard.query_one(".detail Static", Static).render())


def test_each_step_has_one_row_with_its_loss_its_kind_and_whether_it_is_there(run: Path) -> None:
    async def steps(pilot: Pilot[None], dashboard: Dashboard) -> None:
        view = folded(events())
        for step, told in ((100, "replaced"), (200, "permanent"), (300, "yes")):
            place = list(view.series["validation/held-out/loss"].steps).index(step)
            loss = view.series["validation/held-out/loss"].values[place]
            assert told in row(dashboard, step) and f"{loss:.4f}" in row(dashboard, step)
        assert "2 on disk of 3 written" in frame(dashboard)
        assert [step for step in (100, 200, 300) if "★" in row(dashboard, step)] == [300]
        await pilot.press("o")
        await pilot.pause()
        assert "replaced" not in frame(dashboard)

    drive(run, steps)


def test_the_best_is_the_best_of_those_that_are_there(run: Path) -> None:
    shutil.rmtree(run / "checkpoints" / "300")

    async def steps(pilot: Pilot[None], dashboard: Dashboard) -> None:
        assert "★" in row(dashboard, 200) and "★" not in row(dashboard, 300)

    drive(run, steps)


def test_a_loss_that_is_no_number_is_never_the_best(run: Path) -> None:
    told = events()
    for event in told:
        if event["type"] == "evaluated" and event["step"] == 300:
            event["metrics"]["validation/held-out/loss"] = "NaN"
    fake_run.write(run, told)

    async def steps(pilot: Pilot[None], dashboard: Dashboard) -> None:
        assert "nan" in row(dashboard, 300) and "★" in row(dashboard, 200)

    drive(run, steps)


def test_y_copies_a_command_that_a_shell_takes_apart_rightly(run: Path) -> None:
    async def steps(pilot: Pilot[None], dashboard: Dashboard) -> None:
        await pilot.press("j", "y")
        assert dashboard.clipboard == "trainkit resume 'runs/quick start/200'"
        await pilot.press("k", "Y")
        assert dashboard.clipboard == "trainkit verify 'runs/quick start/300'"
        await pilot.press("E")
        assert dashboard.clipboard == "trainkit export 'runs/quick start/300' 'quick start-300'"
        await pilot.press("G", "y")
        assert dashboard.clipboard.startswith("trainkit export "), "a replaced one has no command"

    drive(run, steps)


def test_v_verifies_the_chosen_one_and_shows_what_is_wrong_with_each_array(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin, verify = asyncio.Event(), checkpoints.verify_checkpoint

    async def held(directory: Path) -> list[Content]:
        await begin.wait()
        return await verify(directory)

    monkeypatch.setattr(checkpoints, "verify_checkpoint", held)

    async def steps(pilot: Pilot[None], dashboard: Dashboard) -> None:
        await pilot.press("v", "v")
        await pilot.pause()
        assert "reading every byte" in detail(dashboard)
        await pilot.press("j")
        await pilot.pause()
        assert "reading every byte" not in detail(dashboard), "it is another one that is being verified"
        begin.set()
        await pilot.press("k")
        await until("damaged", pilot)
        assert "params.x: " in detail(dashboard), "there are no arrays beside this manifest"
        await pilot.press("G", "v")
        await pilot.pause()
        assert "reading" not in detail(dashboard), "a replaced one is not there to be verified"

    drive(run, steps)


def test_m_has_a_checkpoint_kept_and_no_longer(run: Path) -> None:
    async def steps(pilot: Pilot[None], dashboard: Dashboard) -> None:
        assert "m keeps it" in detail(dashboard)
        for kept in (True, False):
            await pilot.press("m")
            await settle(pilot)
            assert (run / "checkpoints" / "300" / "keep").exists() is kept
            assert ("yes, kept" in row(dashboard, 300)) is kept and "kept" not in row(dashboard, 200)
            assert ("m removes the mark" in detail(dashboard)) is kept
        await pilot.press("G", "m")
        await settle(pilot)
        assert not (run / "checkpoints" / "100").exists(), "a replaced one is not there to be kept"

    drive(run, steps)


def test_a_mark_that_somebody_else_made_is_seen_and_one_that_cannot_be_made_is_reported(run: Path) -> None:
    (run / "checkpoints" / "200" / "keep").mkdir()

    async def steps(pilot: Pilot[None], dashboard: Dashboard) -> None:
        assert "kept" in row(dashboard, 200) and "kept" not in row(dashboard, 300)
        await pilot.press("j", "m")
        await settle(pilot)
        assert "200 cannot be marked" in notices(dashboard) and "kept" in row(dashboard, 200)

    drive(run, steps)


@pytest.mark.parametrize("why", ["readonly", "replay"])
def test_who_may_only_look_marks_nothing(run: Path, why: str) -> None:
    async def steps(pilot: Pilot[None], dashboard: Dashboard) -> None:
        if dashboard.replay:
            dashboard.replay.seek(300)
            dashboard.load()
            await settle(pilot)
        await pilot.press("m")
        await settle(pilot)
        assert not (run / "checkpoints" / "300" / "keep").exists() and notices(dashboard)

    drive(run, steps, **({"readonly": True} if why == "readonly" else {"replay": Replay(run)}))


def test_the_manifest_of_the_chosen_one_is_reported(run: Path) -> None:
    async def steps(pilot: Pilot[None], dashboard: Dashboard) -> None:
        for told in ("data 2 × fsdp 1", "2 × cpu", "jax 0.10.2", "1.7 MB", "3b789e", "trainkit resume"):
            assert told in detail(dashboard), told
        await pilot.press("j")
        await settle(pilot)
        assert "sets later checkpoints aside" in detail(dashboard) and "2 × cpu" in detail(dashboard)
        await pilot.press("j")
        await settle(pilot)
        assert "replaced by newer ones" in detail(dashboard) and "2 × cpu" not in detail(dashboard)

    drive(run, steps)


def test_what_happens_on_the_disk_is_seen_at_the_next_look(run: Path) -> None:
    async def steps(pilot: Pilot[None], dashboard: Dashboard) -> None:
        (run / "checkpoints" / "200" / "manifest.json").unlink()
        shutil.rmtree(run / "checkpoints" / "300")
        page = dashboard.query_one(CheckpointsPage)
        page.show_view(folded(events()), now=4e9)
        await settle(pilot)
        assert "no manifest" in row(dashboard, 200) and "replaced" in row(dashboard, 300)
        assert dashboard.query_one(RowTable).chosen == "300" and "★" not in row(dashboard, 200)

    drive(run, steps)


def test_a_run_without_checkpoints_says_when_there_will_be_some(run: Path) -> None:
    fake_run.write(run, fake_run.events(3, total=600))

    async def steps(pilot: Pilot[None], dashboard: Dashboard) -> None:
        assert "no checkpoints yet: [checkpoint] in the recipe" in frame(dashboard)
        footer = frame(dashboard).split("\n")[-1]
        assert "copy resume" not in footer and "verify" not in footer and "only on disk" not in footer
        await pilot.press("j", "k", "G", "o", "y", "Y")
        assert not dashboard.clipboard

    drive(run, steps)


@pytest.mark.parametrize("size", [(200, 60), (30, 8)])
def test_hostile_manifests_and_logs_are_inert_at_every_size(run: Path, size: tuple[int, int]) -> None:
    (run / "checkpoints" / "300" / "manifest.json").write_text(
        json.dumps({"kind": HOSTILE, "mesh": {HOSTILE: HOSTILE}})
    )
    told = [{**event, "kind": HOSTILE} if event["type"] == "checkpoint_saved" else event for event in events()]
    fake_run.write(run, told)

    async def steps(pilot: Pilot[None], dashboard: Dashboard) -> None:
        await pilot.press("j", "k")
        await settle(pilot)
        assert all(c == "\n" or c.isprintable() for c in frame(dashboard) + detail(dashboard))
        assert "[bold red]boo[/]" in detail(dashboard)

    drive(run, steps, size=size)


@pytest.mark.parametrize(
    "text", ["", "[]", "{", "[" * 100_000, '{"bytes": [], "created": 1e300, "devices": 3, "leaves": null}', "\xff"]
)
def test_a_damaged_manifest_is_described_never_fatal(tmp_path: Path, text: str) -> None:
    (tmp_path / "manifest.json").write_bytes(text.encode("latin-1"))
    facts = manifest_facts(tmp_path)
    assert facts and all(isinstance(part, str) for fact in facts for part in fact)


def test_a_manifest_as_the_trainer_writes_it_is_shown_in_full(tmp_path: Path) -> None:
    write(tmp_path, manifest(7, mesh={}, metrics={"validation/x/loss": math.nan}))
    facts = dict(manifest_facts(tmp_path))
    assert facts["mesh"] == "none: one device" and facts["arrays"] == "1" and "NaN" in facts["metrics"]
    assert "Aim run" not in facts


def test_only_directories_with_a_step_for_a_name_are_checkpoints(tmp_path: Path) -> None:
    for name in ("5", "12", ".tmp-9-1", "set-aside-1", "x", "²"):
        (tmp_path / "checkpoints" / name).mkdir(parents=True)
    (tmp_path / "checkpoints" / "5" / "manifest.json").write_text("{}")
    (tmp_path / "checkpoints" / "7").write_text("a file")
    assert present(tmp_path) == {5: True, 12: False}
    assert present(tmp_path / "nowhere") == {}
    (tmp_path / "odd").mkdir()
    (tmp_path / "odd" / "checkpoints").write_text("a file")
    assert present(tmp_path / "odd") is None


def test_a_long_manifest_can_be_scrolled_with_keys_on_a_small_screen(run: Path) -> None:
    async def steps(pilot: Pilot[None], dashboard: Dashboard) -> None:
        below = dashboard.query_one(".detail")
        await pilot.press("J", "J")
        await pilot.pause()
        assert below.scroll_offset.y == 2
        await pilot.press("K")
        await pilot.pause()
        assert below.scroll_offset.y == 1

    drive(run, steps, size=(60, 20))


def test_who_walks_through_the_rows_fast_leaves_no_reading_that_was_never_begun(run: Path) -> None:
    async def steps(pilot: Pilot[None], dashboard: Dashboard) -> None:
        page = dashboard.query_one(CheckpointsPage)
        for now in range(1, 4):
            page.show_view(folded(events()), now=now * 1e9)
            for step in (100, 200, 300):
                page._read(step)
        await pilot.press(*"jjkkGg")
        await settle(pilot)
        assert "2 × cpu" in detail(dashboard)

    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        drive(run, steps)
        gc.collect()
    assert not [warning for warning in told if warning.category is RuntimeWarning], told


def test_a_name_of_a_validation_set_of_two_lines_leaves_the_head_on_one(run: Path) -> None:
    told = [json.loads(json.dumps(event).replace("held-out", "held\\nout")) for event in events()]
    fake_run.write(run, told)

    async def steps(pilot: Pilot[None], dashboard: Dashboard) -> None:
        assert "held␊out" in frame(dashboard)

    drive(run, steps)
