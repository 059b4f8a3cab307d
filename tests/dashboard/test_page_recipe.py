"""The recipe page on run directories as `trainkit run` and `trainkit resume` leave them."""

from __future__ import annotations

import json
from pathlib import Path

import fake_run
import pytest
from fake_run import HOSTILE
from hypothesis import given
from hypothesis import strategies as st
from pages import drive, frame, only, settle
from textual.pilot import Pilot
from textual.widgets import Input, Static

from trainkit.dashboard.app import Dashboard
from trainkit.dashboard.pages.recipe import RecipePage
from trainkit.dashboard.panels.rows import Column, RowTable, TableRow, cell
from trainkit.recipe.toml.load import load
from trainkit.recipe.toml.values import flat
from trainkit.rundir.directory import create, recipe_of, replace_recipe
from trainkit.rundir.recipes import read

RECIPE = """
schema = 1
[model]
type = "gpt2"
layers = 2
hidden = 64
heads = 2
[tokenizer.train]
vocab_size = 1000
[data]
sequence_length = 64
[[data.train]]
path = "corpus.jsonl"
[train]
steps = 30
batch_size = 8
[optimizer]
type = "adamw"
learning_rate = 0.001
"""


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run that was begun with one override and gone on with after two others."""
    only(monkeypatch, RecipePage)
    monkeypatch.chdir(tmp_path)
    Path("r.toml").write_text(RECIPE)
    run = create(load(Path("r.toml"), ["train.max_grad_norm=0.5"]))
    replace_recipe(run, recipe_of(run, ["train.steps=60"]), attempt=1)
    replace_recipe(run, recipe_of(run, ["optimizer.learning_rate=5e-4"]), attempt=2)
    return fake_run.write(run, fake_run.events(20))


def test_every_value_is_read_with_the_origin_that_the_resolved_recipe_notes(run: Path) -> None:
    loaded = recipe_of(run)
    entries = {entry.key: entry for entry in read(run).entries}
    values = {key: value for key, value in flat(loaded.recipe).items() if value is not None}
    assert entries.keys() == {".".join(map(str, key)) for key in values}
    assert {key: entry.origin for key, entry in entries.items()} == {key: loaded.origins[key] for key in entries}
    assert entries["train.steps"].origin == "--set" and entries["model.layers"].origin == "r.toml:5"
    assert entries["train.steps"].meaning == (
        "Length of the run in steps (optimiser updates); beside `until` or `duration`, the most that it may take."
    )


def test_the_changes_are_shown_attempt_by_attempt_the_newest_first(run: Path) -> None:
    told = [(attempt, [(c.key, c.old, c.new) for c in changes]) for attempt, changes in read(run).changes]
    values = [
        (attempt, [(key, old.value, new.value) for key, old, new in found if old and new]) for attempt, found in told
    ]
    assert values == [
        (2, [("optimizer.learning_rate", "0.001", "0.0005")]),
        (1, [("train.steps", "30", "60")]),
    ]


def test_a_key_that_only_one_recipe_has_is_a_difference(run: Path) -> None:
    before = (run / "recipe.before-2.toml").read_text()
    (run / "recipe.before-2.toml").write_text(before.replace("max_grad_norm", "other"))
    changed = {c.key: (c.old is None, c.new is None) for c in read(run).changes[0][1]}
    assert changed["train.max_grad_norm"] == (True, False) and changed["train.other"] == (False, True)


@pytest.mark.parametrize("text", ["model = ", "\xff", "a = [[[" + "[" * 5000], ids=["torn", "bytes", "deep"])
def test_a_recipe_that_is_no_toml_is_said_to_be_none(run: Path, text: str) -> None:
    (run / "recipe.toml").write_bytes(text.encode("latin-1"))
    assert read(run).problem.startswith("recipe.toml: it is not TOML")

    async def steps(pilot: Pilot[None], dashboard: Dashboard) -> None:
        assert "it is not TOML" in frame(dashboard)
        await pilot.press("j", "o", "d")

    drive(run, steps)


def test_a_run_without_a_recipe_says_so_and_its_keys_do_no_harm(run: Path) -> None:
    (run / "recipe.toml").unlink()

    async def steps(pilot: Pilot[None], dashboard: Dashboard) -> None:
        assert "recipe.toml: it cannot be read" in frame(dashboard)
        await pilot.press("j", "o", "d", "slash", "x", "escape")

    drive(run, steps)


def test_keys_filter_leave_out_defaults_and_go_back_through_the_changes(run: Path) -> None:
    async def steps(pilot: Pilot[None], dashboard: Dashboard) -> None:
        assert "run.seed" in frame(dashboard) and "r.toml:5" in frame(dashboard)
        await pilot.press("o")
        await pilot.pause()
        assert "run.seed" not in frame(dashboard) and "model.layers" in frame(dashboard)
        await pilot.press("d")
        await pilot.pause()
        assert "1 difference after attempt 2" in frame(dashboard) and "0.0005" in frame(dashboard)
        await pilot.press("d")
        await pilot.pause()
        assert "1 difference after attempt 1" in frame(dashboard) and "train.steps" in frame(dashboard)
        await pilot.press("d", "slash", *"rate", "enter")
        await pilot.pause()
        assert dashboard.query_one(RowTable).chosen == "optimizer.learning_rate" and "model.layers" not in frame(
            dashboard
        )
        await pilot.press("escape")
        await pilot.pause()
        assert not dashboard.query_one(Input).display and "run.seed" in frame(dashboard)

    drive(run, steps)


def test_another_run_is_asked_for_and_only_what_differs_from_it_is_shown(run: Path) -> None:
    other = create(load(Path("r.toml"), ["run.name='other'", "train.steps=7", "optimizer.weight_decay=0.2"]))
    (other.parent / "no-run").mkdir()

    async def steps(pilot: Pilot[None], dashboard: Dashboard) -> None:
        await pilot.press("u", *"zz")
        await pilot.pause()
        assert "no run matches" in frame(dashboard)
        await pilot.press("enter", "backspace", "backspace", "down", "up", "pagedown", "pageup")
        await pilot.pause()
        assert "other" in frame(dashboard) and "no-run" not in frame(dashboard)
        await pilot.press("enter")
        await settle(pilot)
        told = frame(dashboard)
        assert "4 differences from other" in told
        assert all(key in told for key in ("train.steps", "train.max_grad_norm", "optimizer.learning_rate"))
        assert "run.name" not in told and "model.layers" not in told
        await pilot.press("u", "escape")
        await pilot.pause()
        assert "4 differences from other" in frame(dashboard), "no answer changes nothing"
        await pilot.press("escape")
        await pilot.pause()
        assert "differences from" not in frame(dashboard)
        (other / "recipe.toml").write_text("nothing")
        await pilot.press("u", "enter")
        await settle(pilot)
        assert "differences from" not in frame(dashboard)

    drive(run, steps)


def test_the_chosen_key_is_explained_below_the_table(run: Path) -> None:
    async def steps(pilot: Pilot[None], dashboard: Dashboard) -> None:
        await pilot.press("slash", *"batch_size", "enter")
        await pilot.press("j")
        await pilot.pause()
        told = str(dashboard.query_one(".detail Static", Static).render())
        chosen = dashboard.query_one(RowTable).chosen
        assert chosen is not None and told.startswith(f"{chosen} = ") and "written at" in told

    drive(run, steps)


def test_a_new_attempt_shows_its_new_recipe(run: Path) -> None:
    async def steps(pilot: Pilot[None], dashboard: Dashboard) -> None:
        replace_recipe(run, recipe_of(run, ["train.steps=4242"]), attempt=3)
        events = [*fake_run.events(20), *fake_run.events(22, attempt=2, resumed_from=20)[:2]]
        fake_run.write(run, events)
        dashboard.load()
        await settle(pilot)
        await pilot.press("slash", *"train.steps", "enter")
        await pilot.pause()
        assert "4242" in frame(dashboard)

    drive(run, steps)


def test_looking_at_a_run_runs_none_of_its_plugins(run: Path) -> None:
    (run / "mine.py").write_text(
        f"import pathlib\npathlib.Path({str(run / 'ran')!r}).touch()\nraise KeyboardInterrupt\n"
    )
    text = (run / "recipe.toml").read_text().replace('type = "adamw"', 'type = "mine"')
    (run / "recipe.toml").write_text(f'{text}\n[plugins]\nfiles = ["{run}/mine.py"]\n')

    async def steps(pilot: Pilot[None], dashboard: Dashboard) -> None:
        await pilot.press("u", "enter")
        await settle(pilot)
        assert "differences from other" in frame(dashboard)
        await pilot.press("escape", "slash", *"optimizer.weight_decay", "enter", "j")
        await pilot.pause()
        detail = str(dashboard.query_one(".detail Static", Static).render())
        assert detail.startswith("optimizer.weight_decay = 0.") and detail.count("\n") == 1, "what it means is unknown"

    create(load(Path("r.toml"), ["run.name='other'"]))
    drive(run, steps)
    assert not (run / "ran").exists()


@pytest.mark.parametrize("size", [(200, 60), (60, 20), (30, 8)])
def test_hostile_values_are_inert_at_every_size(run: Path, size: tuple[int, int]) -> None:
    with (run / "recipe.toml").open("a", encoding="utf-8") as file:
        name = json.dumps(HOSTILE.replace("\ud800", "").replace("\x7f", ""))
        file.write(f"\n[{name}]\n{name} = {name}  # [bold]\u202e\x9b31m\n")
    assert not read(run).problem

    async def steps(pilot: Pilot[None], dashboard: Dashboard) -> None:
        await pilot.press("G")
        await pilot.pause()
        assert all(c == "\n" or c.isprintable() for c in frame(dashboard))
        assert size[1] < 20 or "[bold red]boo[/]" in frame(dashboard)

    drive(run, steps, size=size)


@given(
    st.lists(st.tuples(st.text(max_size=60), st.text(max_size=30), st.text(max_size=30)), min_size=1, max_size=5),
    st.integers(10, 100),
)
def test_no_line_of_a_table_is_wider_than_there_is_room_for(rows: list[tuple[str, str, str]], width: int) -> None:
    from trainkit.dashboard.panels.rows import _fit_columns, _line

    columns = [Column("a", least=4), Column("b", drop=1, least=4, right=True), Column("c", drop=2, least=4)]
    cells = [[cell(text) for text in row] for row in rows]
    kept = _fit_columns(columns, cells, width)
    widths = {_line(row, columns, kept).cell_length for row in cells}
    assert len(widths) == 1 and widths.pop() <= width


def test_who_walks_stays_on_his_row_when_rows_come_and_who_is_on_the_first_stays_there(run: Path) -> None:
    async def steps(pilot: Pilot[None], dashboard: Dashboard) -> None:
        rows, columns = dashboard.query_one(RowTable), [Column("a")]
        old = [TableRow(name, [cell(name)]) for name in "cba"]
        rows.show(columns, old, empty="")
        rows.move("cursor_down")
        rows.show(columns, [TableRow("d", [cell("d")]), *old], empty="")
        assert rows.chosen == "b"
        rows.move("first")
        rows.show(columns, [TableRow("e", [cell("e")]), *old], empty="")
        assert rows.chosen == "e"
        rows.show(columns, [], empty="none")
        assert rows.chosen is None

    drive(run, steps)
