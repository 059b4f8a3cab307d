"""Exports while training goes on: from checkpoints on disk, by processes of their own, of which nothing else hangs."""

from __future__ import annotations

import json
import os
import shutil
import signal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import small
from fake_run import started
from sample_recipe import write
from trainer import BARE, Trainer, trainkit, workplace

from trainkit.checkpoint import store
from trainkit.checkpoint.provenance import Provenance
from trainkit.cli import run as cli_run
from trainkit.errors import DONE, STOPPED_EARLY, TrainkitError
from trainkit.events.commands import Command, send
from trainkit.events.log import EventLog
from trainkit.events.plain_log import text
from trainkit.events.reducer import view_of
from trainkit.events.schema import Event
from trainkit.events.tail import read
from trainkit.export import background
from trainkit.export.background import MOST_WAITING, NICENESS, OUTPUT, Exporting, _result
from trainkit.export.model import made_by
from trainkit.hub import peft
from trainkit.hub.load import read_spec
from trainkit.recipe import Recipe
from trainkit.recipe.sections.outputs import Checkpoint
from trainkit.recipe.toml.load import Loaded, load
from trainkit.rundir.directory import EXPORTS, as_typed, recipe_of
from trainkit.train.checkpointing import Checkpointing
from trainkit.train.control import Commands
from trainkit.train.signals import Signals

PLAIN = BARE.replace("[checkpoint]\nkeep_every = 6\n", "")
STEPS, EVERY = 24, 9


@pytest.fixture(autouse=True)
def prompt_exports(monkeypatch: pytest.MonkeyPatch) -> None:
    """Exports that get their share of the processors, which other tests fill."""
    monkeypatch.setattr(background, "NICENESS", os.getpriority(os.PRIO_PROCESS, 0))


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where a run has been trained, and exported twice in between and at its end."""
    recipe = f'{PLAIN}[export]\nevery = {EVERY}\ndtype = "bfloat16"\n'
    place = workplace(tmp_path_factory.mktemp("exporting"), recipe)
    done = trainkit(place, "run", "tiny.toml", "--plain")
    assert done.returncode == DONE, done.stderr
    return place


def exports(run: Path) -> list[int]:
    return sorted(int(path.name) for path in (run / EXPORTS).iterdir() if path.name.isdecimal())


def of_kind(run: Path, kind: str) -> list[Event]:
    return [event for event in read(run) if event["type"] == kind]


def recipe(tmp_path: Path, *overrides: str) -> Recipe:
    return load(write(tmp_path), overrides).recipe


# in a run


def test_a_run_is_exported_at_its_steps_and_at_its_end_and_the_log_says_so(place: Path) -> None:
    run = place / "runs" / "tiny"
    assert exports(run) == [EVERY, 2 * EVERY, STEPS] == [9, 18, 24]
    events = list(read(run))
    exported = [event for event in events if event["type"] == "exported"]
    assert [(e["step"], e["path"], e["format"]) for e in exported] == [(n, f"exports/{n}", "hf") for n in (9, 18, 24)]
    for event in exported:
        written = run / event["path"]
        assert event["bytes"] == sum(file.stat().st_size for file in written.iterdir())
        assert event["difference"] <= 1e-5 and read_spec(written).layers == 2
        assert text(event) in [line.text for line in view_of(run).log]
    # nothing is left behind, and nothing comes after the end
    assert not list((run / EXPORTS).glob(".*")) and events[-1]["type"] == "run_finished"
    assert not of_kind(run, "alert")
    waiting = [e["step"] for e in of_kind(run, "log") if e["message"].startswith("waiting for the export of")]
    assert waiting and set(waiting) == {STEPS}, "how far the run is is not what was exported last"


def test_an_export_of_training_is_what_the_command_makes_of_the_checkpoint(place: Path) -> None:
    done = trainkit(place, "export", "tiny/24", "by-hand", "--dtype", "bfloat16", "--json")
    assert done.returncode == DONE, done.stderr
    ours, theirs = (
        {file.name: file.read_bytes() for file in directory.iterdir() if file.name != "README.md"}
        for directory in (place / "by-hand", place / "runs" / "tiny" / EXPORTS / "24")
    )
    assert ours == theirs and json.loads(done.stdout)["step"] == 24


def test_checkpoints_that_were_written_to_be_exported_replace_each_other_as_rolling_ones_do(place: Path) -> None:
    kinds = {info.step: info.manifest.kind for info in store.checkpoints(place / "runs" / "tiny")}
    assert kinds == {9: "rolling", 18: "rolling", 24: "final"}
    assert [e["step"] for e in of_kind(place / "runs" / "tiny", "checkpoint_saved")] == [9, 18, 24]


def test_a_run_that_is_asked_to_end_waits_for_its_exports_and_one_that_continues_makes_those_that_are_missing(
    tmp_path: Path,
) -> None:
    place = workplace(tmp_path / "stopped", f"{PLAIN}[checkpoint]\nkeep_every = 12\n[export]\nevery = 12\n")
    with Trainer(place, "run", "tiny.toml", "--plain", held_at="checkpoint_started 12") as trainer:
        assert trainer.until(lambda e: e["type"] == "checkpoint_started" and e["step"] == 12)
        trainer.release(signal.SIGTERM)
        assert trainer.until(lambda e: e["type"] == "log" and e["message"].startswith("waiting for the export of"))
        # it can be talked to meanwhile
        assert send(trainer.run, "save") == (False, "training has ended: the trainer is waiting for exports")
        assert trainer.until(lambda e: e["type"] == "exported" and e["step"] == 12)
        assert trainer.end() == STOPPED_EARLY
    run = trainer.run
    assert exports(run) == [12], "only at its steps and at the last one"
    # as if it had been killed in its middle
    (run / EXPORTS / "12").rename(run / EXPORTS / ".12-x")
    assert trainkit(place, "resume", "tiny", "--plain").returncode == DONE
    assert exports(run) == [12, 24] and not list((run / EXPORTS).glob(".*"))
    assert "export" not in [event["kind"] for event in of_kind(run, "alert")]


def test_an_adapter_is_exported_for_peft_where_nothing_else_is_said(tmp_path: Path) -> None:
    text = PLAIN.replace("steps = 24", "steps = 2").replace("[tokenizer]", "[adapter]\nrank = 2\n[tokenizer]")
    place = workplace(tmp_path / "adapter", f"{text}[export]\n")
    done = trainkit(place, "run", "tiny.toml", "--plain")
    assert done.returncode == DONE, done.stderr
    (event,) = of_kind(place / "runs" / "tiny", "exported")
    assert (event["step"], event["format"], event["difference"]) == (2, "peft", 0.0)
    assert (place / "runs" / "tiny" / "exports" / "2" / peft.WEIGHTS).is_file()


# what goes wrong


def exporting(run: Path, *, first: int, log: EventLog) -> Exporting:
    return Exporting(run, recipe_of(run).recipe, first=first, log=log)


def test_an_export_that_fails_is_an_alert_with_what_it_said_and_the_next_one_is_made(place: Path) -> None:
    run = shutil.copytree(place / "runs" / "tiny", place / "runs" / "damaged")
    for step in ("18", "24"):
        shutil.rmtree(run / EXPORTS / step)
    shutil.rmtree(run / "checkpoints" / "18" / "arrays")
    log = EventLog(run, attempt=2)
    ours = exporting(run, first=24, log=log)
    ours.finish(interrupted=lambda: False)
    log.close()
    (alert,) = of_kind(run, "alert")
    assert alert["kind"] == "export" and alert["attempt"] == 2
    assert alert["message"].startswith("step 18 was not exported: ") and "(exit 1)" in alert["message"]
    assert "checkpoints/18" in alert["message"] and "; hint: " in alert["message"]
    assert exports(run) == [9, 24] and ours.needed_steps() == ()


def test_what_was_given_up_is_set_aside_and_exported_again(place: Path) -> None:
    run = shutil.copytree(place / "runs" / "tiny", place / "runs" / "given-up")
    store.set_aside(store.directory_of(run), beyond=18)
    log = EventLog(run, attempt=2)
    ours = exporting(run, first=18, log=log)
    log.close()
    assert exports(run) == [9, 18] and (run / EXPORTS / "set-aside-1" / "24").is_dir()
    assert ours.needed_steps() == () and not ours.wants(18) and ours.wants(27)
    assert "set aside: the export of step 24" in [event["message"] for event in of_kind(run, "log")]


def test_a_checkpoint_beyond_the_step_from_which_a_run_continues_is_exported_once_it_is_written_again(
    place: Path,
) -> None:
    run = shutil.copytree(place / "runs" / "tiny", place / "runs" / "damaged-newest")
    log = EventLog(run, attempt=2)
    ours = exporting(run, first=9, log=log)  # those of 18 and 24 were passed over
    assert ours.needed_steps() == () and exports(run) == [9] and ours.wants(18)
    ours.take(18, last=False)
    ours.take(24, last=True)
    assert ours.needed_steps() == (18, 24)
    log.close()


class Run:
    """Saves of a run that is none: whatever is to be exported of it fails, and fails soon."""

    def __init__(self, directory: Path, *overrides: str) -> None:
        self.directory = directory / "run"
        self.directory.mkdir()
        self.log = EventLog(self.directory, attempt=1)
        self.exporting = Exporting(self.directory, recipe(directory, *overrides), first=0, log=self.log)
        made_by = Provenance(recipe="r", data="d", attempt=1)
        spec = Checkpoint(every_minutes=None)
        self.checkpointing = Checkpointing(
            self.directory, spec, provenance=lambda last: made_by, log=self.log, reader=self.exporting
        )

    def save(self, step: int, *, last: bool = False) -> None:
        self.checkpointing.save_and_wait(small.state(), step, last=last)

    def steps(self) -> list[int]:
        return [info.step for info in store.checkpoints(self.directory)]

    def finish(self, **how: Any) -> list[Event]:
        self.checkpointing.close()
        self.exporting.finish(**how)
        self.log.close()
        return list(read(self.directory))


def test_a_checkpoint_stays_until_its_export_has_ended_however_it_ends(tmp_path: Path) -> None:
    run = Run(tmp_path, "export.every=10", "checkpoint.keep_last=1")
    assert run.checkpointing.is_due(10) and not run.checkpointing.is_due(11)
    for step in (10, 20):
        run.save(step)
        assert not run.checkpointing.is_due(step), "it is there"
    run.save(25)
    assert run.steps() == [10, 20, 25] and run.exporting.needed_steps() == (10, 20)
    events = run.finish(interrupted=lambda: False)
    assert run.steps() == [25]
    why = f"{run.directory}/recipe.toml: there is no such file (exit 2); "
    alerts = [e["message"] for e in events if e["type"] == "alert"]
    assert [alert.split("hint: ")[0] for alert in alerts] == [f"step {n} was not exported: {why}" for n in (10, 20)]
    assert all(alert.endswith(f"; its output is in {as_typed(run.directory / OUTPUT)}") for alert in alerts)


def test_a_run_that_stops_waiting_reports_missing_exports_and_keeps_their_checkpoints(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(background, "NICENESS", NICENESS)
    run = Run(tmp_path, "export.every=10")
    for step in (10, 20, 30):
        run.save(step)
    (*_, told) = run.finish(interrupted=lambda: True)
    assert told["level"] == "warning" and told["message"].startswith(
        "the run did not wait for the export of steps 10, 20, 30;"
    )
    assert run.steps() == [10, 20, 30]
    # behind everything else on the machine, and away from its devices
    assert run.exporting._running
    process = run.exporting._running.process
    assert os.getpriority(os.PRIO_PROCESS, process.pid) == NICENESS == 19
    if Path("/proc/self/environ").exists():
        # one that has ended already has none
        environment = Path(f"/proc/{process.pid}/environ").read_bytes()
        assert not environment or b"JAX_PLATFORMS=cpu" in environment.split(b"\0")
    process.kill()
    process.wait()


def test_the_wait_for_exports_ends_by_a_further_signal_a_command_to_stop_or_soon_after_a_sigterm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    term, interrupt, hour = int(signal.SIGTERM), int(signal.SIGINT), 3600.0
    for before, patience, then, ended in (
        ([], hour, [], False),
        ([], hour, [term], True),
        ([term], hour, [], False),
        ([term], hour, [term], True),
        ([interrupt], hour, [term], True),
        ([term], 0.0, [], True),
        ([interrupt], 0.0, [], False),
        ([], 0.0, ["stop"], True),
        ([], 0.0, ["save"], False),
    ):
        sent, answers = list[Command](), list[tuple[bool, str]]()

        def take(sent: list[Command] = sent, answers: list[tuple[bool, str]] = answers) -> list[Any]:
            return [SimpleNamespace(command=sent.pop(), reply=lambda *said: answers.append(said)) for _ in tuple(sent)]

        heard = Signals()
        heard.training_begins()
        for number in before:
            heard._receive(number, None)
        commands: Any = Commands(server=SimpleNamespace(take=take), signal=heard, log=None, schedule=None)  # type: ignore[arg-type]
        told = commands.until_stopped("busy", patience=patience)
        for each in then:
            heard._receive(each, None) if isinstance(each, int) else sent.append(Command(each))
        assert told() is ended, (before, patience, then)
        assert [ok for ok, _ in answers] == [each == "stop" for each in then if isinstance(each, str)]


def test_of_exports_that_cannot_keep_up_the_oldest_is_left_out_with_its_checkpoint(tmp_path: Path) -> None:
    run = Run(tmp_path, "export.every=1")
    for step in range(1, MOST_WAITING + 2):
        run.save(step)
    (told,) = [event["message"] for event in read(run.directory) if event["type"] == "log"]
    assert told.startswith(f"step 1 is not exported: {MOST_WAITING} others wait") and "make it larger" in told
    assert run.exporting.needed_steps() == tuple(range(2, MOST_WAITING + 2))
    run.save(MOST_WAITING + 2)
    assert 1 not in run.steps() and {*range(2, MOST_WAITING + 3)} <= {*run.steps()}
    # what an attempt finds is not what it made too much of
    events = len(read(run.directory))
    again = Exporting(run.directory, recipe(tmp_path, "export.every=1"), first=MOST_WAITING + 2, log=run.log)
    assert len(again.needed_steps()) == MOST_WAITING + 1 and len(read(run.directory)) == events
    run.checkpointing.close()
    run.log.close()


def test_a_run_that_goes_back_ends_or_sets_aside_the_exports_of_the_steps_that_it_abandons(tmp_path: Path) -> None:
    run = Run(tmp_path, "export.every=10")
    for step in (10, 20, 30):
        run.save(step)
    for step in (10, 20):
        (run.directory / EXPORTS / str(step)).mkdir(parents=True)
    run.exporting.poll()
    running = run.exporting._running
    assert running and running.step == 30
    run.exporting.go_back(beyond=15)
    assert running.process.returncode == -signal.SIGKILL and run.exporting.needed_steps() == ()
    assert exports(run.directory) == [10] and (run.directory / EXPORTS / "set-aside-1" / "20").is_dir()
    assert not run.exporting.wants(10) and run.exporting.wants(20) and run.exporting.wants(30)
    run.finish(interrupted=lambda: False)


def test_an_export_that_is_killed_is_an_alert_that_says_what_to_do(tmp_path: Path) -> None:
    run = Run(tmp_path, "export.every=10")
    run.save(10)
    run.exporting.poll()
    assert run.exporting._running
    run.exporting._running.process.kill()
    (alert,) = [e["message"] for e in run.finish(interrupted=lambda: False) if e["type"] == "alert"]
    assert "it was killed, as systems do that run out of memory" in alert and OUTPUT in alert and "(exit -9)" in alert


def test_what_an_export_that_outlived_its_attempt_has_made_is_not_made_again_and_what_it_says_is_its_own(
    tmp_path: Path,
) -> None:
    run = Run(tmp_path, "export.every=10")
    for step in (10, 20):
        run.save(step)
    run.exporting.poll()
    for step in (10, 20):  # the first is being made here as well
        (run.directory / EXPORTS / str(step)).mkdir(parents=True)
    events = run.finish(interrupted=lambda: False)
    told = [event["message"] for event in events if event["type"] in ("alert", "log")]
    # while the first of them takes long, that it is waited for is said again
    assert [message for message in told if not message.startswith("waiting for")] == [
        f"step {step} has been exported by a process of an earlier attempt" for step in (10, 20)
    ]
    log = EventLog(run.directory, attempt=2)
    with (run.directory / OUTPUT).open("a") as other:
        Exporting(run.directory, recipe(tmp_path, "export.every=10"), first=20, log=log)
        other.write("error: of another")
    assert "of another" not in (run.directory / OUTPUT).read_text() != ""
    log.close()


def test_what_the_disk_refuses_is_an_alert_and_training_continues(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Run(tmp_path, "export.every=10")
    run.save(11, last=True)

    def refused(*_: Any, **__: Any) -> None:
        raise OSError("read-only")

    with monkeypatch.context() as patch:
        patch.setattr("trainkit.checkpoint.store.set_aside", refused)
        patch.setattr(store, "retain", refused)
        Exporting(run.directory, recipe(tmp_path, "export.every=10"), first=11, log=run.log)
        events = run.finish(interrupted=lambda: True)
    assert [e["message"] for e in events if e["type"] == "alert"] == [
        "exports of steps that are trained again: read-only",
        "checkpoints that were kept for their export: read-only",
    ]
    assert run.exporting._running
    run.exporting._running.process.wait()
    for said in (['{"files": []}'], ['{"bytes": 1, "differ'], ["[1]"]):
        assert _result(said) is None
    assert _result(["so", '{"bytes": 1, "difference": 0.5}', "and so on"]) == (1, 0.5)


def test_a_model_card_shows_only_evaluations_that_count(tmp_path: Path) -> None:
    loaded = load(write(tmp_path))
    for attempt, resumed_from, step in ((1, None, 10), (2, 5, 8)):
        log = EventLog(tmp_path, attempt=attempt)
        log.write("run_started", step=resumed_from or 0, **started(resumed_from=resumed_from))
        log.write("evaluated", step=step, name="held-out", metrics={"validation/held-out/loss": step}, seconds=1.0)
        log.close()
    assert made_by(tmp_path, loaded, 20).evaluations == {"held-out": {"loss": 8}}
    assert made_by(tmp_path, loaded, 7).evaluations == {}


def test_a_model_card_shows_the_commands_that_changed_what_the_model_had_learned_by_its_step(tmp_path: Path) -> None:
    loaded = load(write(tmp_path))
    log = EventLog(tmp_path, attempt=1)
    log.write("run_started", step=0, **started())
    for step, command, argument in ((4, "rate", 0.5), (6, "save", None), (9, "decay", None)):
        log.write("control", step=step, command=command, argument=argument, detail="", total_steps=None)
    log.close()
    told = ["after step 4: learning rate 0.5 times the schedule's", "after step 9: the decay of the schedule began"]
    assert made_by(tmp_path, loaded, 20).commands == told
    assert made_by(tmp_path, loaded, 8).commands == told[:1]
    assert made_by(tmp_path, loaded, 4).commands == [], "that command came after it"


# what a recipe says


def test_a_trial_exports_once_where_the_recipe_exports(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tried = []

    def create(loaded: Loaded) -> Path:
        tried.append(loaded.recipe)
        raise TrainkitError("enough")

    monkeypatch.setattr("trainkit.rundir.directory.create", create)
    for overrides in ([], ["export.every=1"], ['export.dtype="bfloat16"']):
        with pytest.raises(TrainkitError, match="enough"):
            cli_run.run(write(tmp_path), overrides, smoke=True)
    assert [each.export and each.export.every for each in tried] == [None, 2, 2]
    assert {each.train.steps for each in tried} == {2}


def test_what_is_exported_follows_from_what_there_is_where_nothing_is_said(tmp_path: Path) -> None:
    adapter = 'adapter={ type = "lora" }'
    assert recipe(tmp_path).export is None
    for said, expected in (
        (["export.every=2"], "hf"),
        ([adapter, "export.every=2"], "peft"),
        ([adapter, 'export.format="hf"'], "hf"),
    ):
        assert recipe(tmp_path, *said).export_format == expected


@pytest.mark.parametrize(
    ("overrides", "problem"),
    [
        (['export.format="peft"'], "is an adapter alone, and there is none"),
        (['adapter={ type = "lora" }', 'export.dtype="bfloat16"'], "is float32 as it was trained"),
        (["export.every=0"], "every"),
    ],
    ids=["no adapter", "dtype", "never"],
)
def test_an_export_that_cannot_be_is_refused_before_anything_is_trained(
    tmp_path: Path, overrides: list[str], problem: str
) -> None:
    with pytest.raises(TrainkitError, match=problem):
        recipe(tmp_path, *overrides)
