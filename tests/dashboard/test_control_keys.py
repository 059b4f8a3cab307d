"""Orders from the keyboard: asked for, confirmed, answered, refused."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path

import fake_run
import pytest
from pages import notices
from textual.pilot import Pilot
from textual.widgets import Input, Static
from textual.widgets._footer import FooterKey
from viewer import WAITING, answered, drive, trainer, until, write_run

from trainkit.dashboard.app import NAMES, Dashboard
from trainkit.dashboard.control_keys import farewell, present_rate
from trainkit.dashboard.keys import Ask, Confirm, keys_in_force
from trainkit.events.commands import Command, parse_command
from trainkit.events.control import PendingCommand, Server
from trainkit.events.reducer import reduce
from trainkit.events.tail import NAME
from trainkit.events.view import Marker, View
from trainkit.rundir.follow import Replay


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return write_run(tmp_path / "quickstart")


@pytest.fixture
def commands(run: Path) -> Iterator[list[Command]]:
    with trainer(run) as commands:
        yield commands


@pytest.mark.parametrize(("key", "command"), [("c", "save"), ("e", "evaluate"), ("p", "pause")])
def test_a_key_sends_its_command_and_the_answer_is_shown(
    run: Path, commands: list[Command], key: str, command: str
) -> None:
    async def steps(pilot: Pilot[None], dashboard: Dashboard) -> None:
        await pilot.press(key)
        told = await answered(pilot, dashboard)
        assert told.message == f"{command} it is [bold]" and told.severity == "information"

    drive(run, steps)
    assert commands == [parse_command(command)]


def test_p_on_a_paused_run_lets_it_continue(run: Path, commands: list[Command]) -> None:
    paused = '{"type": "control", "t": 2e9, "step": 300, "attempt": 1, "command": "pause", "detail": ""}\n'
    with (run / NAME).open("a") as file:
        file.write(paused)

    async def steps(pilot: Pilot[None], dashboard: Dashboard) -> None:
        assert dashboard.state == "paused"
        await pilot.press("p")
        await until(lambda: commands, pilot)

    drive(run, steps)
    assert commands == [Command("continue")]


def test_a_command_to_a_run_without_a_trainer_is_an_error_on_the_screen(run: Path) -> None:
    async def steps(pilot: Pilot[None], dashboard: Dashboard) -> None:
        await pilot.press("c")
        assert (await answered(pilot, dashboard)).severity == "error"

    drive(run, steps)


@pytest.mark.parametrize("key", ["q", "ctrl+c", "ctrl+q"])
def test_quitting_detaches_and_says_how_to_come_back(run: Path, commands: list[Command], key: str) -> None:
    async def steps(pilot: Pilot[None], dashboard: Dashboard) -> None:
        await pilot.press(key)
        await pilot.pause()
        assert not dashboard.is_running
        assert f"trainkit watch {run}" in farewell(run, dashboard.state)

    drive(run, steps)
    assert commands == []


def test_a_prompt_typed_here_is_sampled_and_is_there_the_next_time(run: Path, commands: list[Command]) -> None:
    async def steps(pilot: Pilot[None], dashboard: Dashboard) -> None:
        await pilot.press("s", *"def q", "enter")
        assert (await answered(pilot, dashboard)).message == "sample it is [bold]"
        await pilot.press("s")
        await pilot.pause()
        assert dashboard.screen.query_one(Input).value == "def q"
        await pilot.press("escape")

    drive(run, steps)
    assert commands == [Command("sample", "def q")]


def test_a_learning_rate_factor_that_is_none_is_refused_here_in_words(run: Path, commands: list[Command]) -> None:
    async def steps(pilot: Pilot[None], dashboard: Dashboard) -> None:
        await pilot.press("R")
        await pilot.pause()
        told = dashboard.screen.query_one("#explanation", Static)
        assert "The factor is 1 now" in str(told.content)
        for wrong in ("-1", "0", "nan", "fast"):
            dashboard.screen.query_one(Input).value = wrong
            await pilot.press("enter")
            await pilot.pause()
            assert isinstance(dashboard.screen, Ask) and "a number from 1e-06 to 1,000" in str(told.content)
        dashboard.screen.query_one(Input).value = "0.5"
        await pilot.press("enter")
        await until(lambda: commands, pilot)

    drive(run, steps)
    assert commands == [Command("rate", 0.5)]


@pytest.mark.parametrize("key", ["s", "R"])
def test_escape_leaves_a_question_and_sends_nothing(run: Path, commands: list[Command], key: str) -> None:
    async def steps(pilot: Pilot[None], dashboard: Dashboard) -> None:
        await pilot.press(key, "1", "escape")
        await pilot.pause()
        assert not isinstance(dashboard.screen, Ask)
        await pilot.press("c")
        await until(lambda: commands, pilot)

    drive(run, steps)
    assert commands == [Command("save")]


@pytest.mark.parametrize(("key", "command"), [("S", "stop"), ("D", "decay")])
def test_what_ends_a_run_is_asked_for_first_and_enter_alone_is_no(
    run: Path, commands: list[Command], key: str, command: str
) -> None:
    async def steps(pilot: Pilot[None], dashboard: Dashboard) -> None:
        for no in ("n", "escape", "enter", "q"):
            await pilot.press(key)
            await pilot.pause()
            assert isinstance(dashboard.screen, Confirm)
            await pilot.press(no)
            await pilot.pause()
            assert not isinstance(dashboard.screen, Confirm) and dashboard.is_running
        assert commands == []
        await pilot.press(key, "y")
        await until(lambda: commands, pilot)

    drive(run, steps)
    assert commands == [Command(command)]


def test_a_command_that_waits_says_so_at_once_and_the_answer_takes_its_place(run: Path) -> None:
    server = Server(run)

    async def steps(pilot: Pilot[None], dashboard: Dashboard) -> None:
        await pilot.press("c", "e")
        await pilot.pause()
        assert [told.message for told in dashboard._notifications] == [WAITING, WAITING]
        taken: list[PendingCommand] = []
        await until(lambda: taken.extend(server.take()) or len(taken) == 2, pilot)
        for left, command in zip((1, 0), taken, strict=True):
            command.reply(True, f"{command.command.name} done")
            await until(lambda told=f"{command.command.name} done": told in notices(dashboard), pilot)
            assert notices(dashboard).count(WAITING) == left

    try:
        drive(run, steps)
    finally:
        server.close()


def test_where_the_trainer_refuses_its_word_is_shown(run: Path) -> None:
    async def steps(pilot: Pilot[None], dashboard: Dashboard) -> None:
        await pilot.press("D", "y")
        told = await answered(pilot, dashboard)
        assert told.message == "the decay has begun [already]␛[2J" and told.severity == "error"
        assert told.title == "decay: refused"

    with trainer(run, refuses="the decay has begun [already]\x1b[2J"):
        drive(run, steps)


@pytest.mark.parametrize("why", ["readonly", "replay"])
def test_a_read_only_viewer_sends_nothing_and_says_so(run: Path, commands: list[Command], why: str) -> None:
    async def steps(pilot: Pilot[None], dashboard: Dashboard) -> None:
        keys = ["S", "D", "c", "e", "p", "s", "R"]
        await pilot.press(*keys)
        await pilot.pause()
        assert [told.severity for told in dashboard._notifications] == ["warning"] * len(keys)
        assert len(dashboard.screen_stack) == 1

    drive(run, steps, **({"readonly": True} if why == "readonly" else {"replay": Replay(run)}))
    assert commands == []


def footer(dashboard: Dashboard) -> set[str]:
    return {key.description for key in dashboard.screen.query(FooterKey)}


COMMANDS = {"stop", "save", "pause", "evaluate"}


@pytest.mark.parametrize("end", ["finished", "stopped", "failed"])
def test_a_run_that_ends_while_it_is_watched_is_offered_no_commands_any_more(run: Path, end: str) -> None:
    last = {"type": "run_finished", "t": time.time(), "step": 300, "attempt": 1, "status": end, "exit_code": 0}

    async def steps(pilot: Pilot[None], dashboard: Dashboard) -> None:
        assert footer(dashboard) >= COMMANDS
        keys = list(dashboard.screen.query(FooterKey))
        dashboard.refresh_bindings()
        await pilot.pause()
        assert list(dashboard.screen.query(FooterKey)) == keys, "the same keys are not made again"
        with (run / NAME).open("a") as file:
            file.write(json.dumps({**last, "message": ""}) + "\n")
        await until(lambda: not footer(dashboard) & COMMANDS, pilot)
        assert not {key.name for key in keys_in_force(dashboard.screen)} & {*COMMANDS, "sample", "rate", "decay"}
        await pilot.press("S")
        await pilot.press("p")
        await pilot.pause()
        assert len(dashboard.screen_stack) == 1, "nobody is asked whether to stop what has ended"
        advice = "--set train.steps=" if end == "finished" else f"trainkit resume {run}"
        assert [advice in told.message for told in dashboard._notifications] == [True, True]

    drive(run, steps, size=(130, 40))


BEFORE_TRAINING = {"waiting": 0, "starting": 1, "caching": 2, "compiling": 3}


@pytest.mark.parametrize(("state", "written"), BEFORE_TRAINING.items())
def test_before_training_no_command_is_offered_and_the_farewell_says_what_stops_the_run(
    tmp_path: Path, state: str, written: int
) -> None:
    where = {"t": time.time(), "step": 0, "attempt": 1}
    size = {"documents": 1, "bytes": 1, "tokens": 1, "total_bytes": 9}
    begun = [
        {"type": "run_started", **where, **fake_run.started()},
        {"type": "cache_progress", **where, "what": "train", **size, "done": False},
        {"type": "planned", **where, "total_steps": 60, "plan": fake_run.PLAN, "devices": ["cpu"]},
    ]
    run = fake_run.write(tmp_path / "begun", begun[:written])
    (run / "lock").write_text(str(os.getpid()))

    async def steps(pilot: Pilot[None], dashboard: Dashboard) -> None:
        assert dashboard.state == state
        await until(lambda: "help" in footer(dashboard) and not footer(dashboard) & COMMANDS, pilot)
        await pilot.press("S", "p")
        await pilot.pause()
        assert len(dashboard.screen_stack) == 1 and len(dashboard._notifications) == 2
        assert "trainer" in notices(dashboard)
        if state == "compiling":  # once the trainer listens its commands are there, though no step is in the log yet
            with trainer(run) as taken:
                await until(lambda: footer(dashboard) >= COMMANDS, pilot)
                await pilot.press("c")
                await until(lambda: taken == [Command("save")], pilot)
                assert f"trainkit send {run} stop" in farewell(run, dashboard.state)
            await until(lambda: not footer(dashboard) & COMMANDS, pilot)
        if state == "compiling":  # and with the first step
            with (run / NAME).open("a") as file:
                file.write(json.dumps({"type": "step", **where, "step": 1, "metrics": {"train/loss": 1.0}}) + "\n")
            await until(lambda: footer(dashboard) >= COMMANDS, pilot)
            assert f"trainkit send {run} stop" in farewell(run, dashboard.state)

    drive(run, steps, size=(130, 40))
    assert f"kill {os.getpid()}" in farewell(run, state) and "send" not in farewell(run, state)
    (run / "lock").unlink()
    assert "kill" not in farewell(run, state) and f"trainkit watch {run}" in farewell(run, state)


def test_a_crashed_run_is_offered_no_commands(tmp_path: Path) -> None:
    async def steps(pilot: Pilot[None], dashboard: Dashboard) -> None:
        assert dashboard.state == "crashed"
        await until(lambda: not footer(dashboard) & COMMANDS, pilot)
        await pilot.press("p")
        await pilot.pause()
        assert "to continue it: trainkit resume" in notices(dashboard)

    started, *rest = fake_run.events(30, total=60)
    drive(fake_run.write(tmp_path / "crashed", [{**started, "process_started": 1.0}, *rest]), steps, size=(130, 40))


@pytest.mark.parametrize("why", ["readonly", "replay"])
def test_who_may_only_look_is_offered_no_key_that_changes_the_run(run: Path, why: str) -> None:
    async def steps(pilot: Pilot[None], dashboard: Dashboard) -> None:
        assert not footer(dashboard) & COMMANDS
        await pilot.press(str(NAMES.index("checkpoints") + 1))
        await until(lambda: "verify" in footer(dashboard), pilot)
        assert "keep" not in footer(dashboard)

    fake_run.saved(run, 300)
    drive(run, steps, size=(130, 40), **({"readonly": True} if why == "readonly" else {"replay": Replay(run)}))


def test_the_present_factor_is_the_last_that_was_sent() -> None:
    view = View()
    assert present_rate(view) == "1"
    view.markers.extend(Marker(3, "command", text) for text in ("rate 0.5", "rate 0.25", "save"))
    assert present_rate(view) == "0.25"


def test_the_factor_of_a_log_is_the_present_one_until_the_run_continues_from_before_it(tmp_path: Path) -> None:
    where = {"t": 1.0, "attempt": 1}
    none = {"total_steps": None, "detail": ""}
    view = View()
    reduce(view, {"type": "run_started", **where, "step": 0, **fake_run.started()})
    reduce(view, {"type": "control", **where, "step": 3, "command": "rate", "argument": 0.5, **none})
    reduce(view, {"type": "control", **where, "step": 4, "command": "save", "argument": None, **none})
    assert present_rate(view) == "0.5"
    reduce(view, {**where, "type": "run_started", "step": 2, "attempt": 2, **fake_run.started(resumed_from=2)})
    assert present_rate(view) == "1"
