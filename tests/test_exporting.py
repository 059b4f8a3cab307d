"""Exports while training goes on: from checkpoints on disk, by processes of their own, of which nothing else hangs."""

from __future__ import annotations

import json
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest
import small
from sample_recipe import write
from trainer import RECIPE, Trainer, trainkit, workplace

from trainkit.checkpoint import store
from trainkit.checkpoint.saver import Facts
from trainkit.errors import DONE, STOPPED_EARLY, TrainkitError
from trainkit.events.log import EventLog, read
from trainkit.events.plain import text
from trainkit.events.reducer import view_of
from trainkit.events.schema import Event
from trainkit.hub import peft
from trainkit.hub.load import read_spec
from trainkit.recipe import Recipe
from trainkit.recipe.load import load
from trainkit.recipe.upkeep import Checkpoint
from trainkit.run.directory import recipe_of
from trainkit.run.exporting import BEHIND, EXPORTS, Exporting
from trainkit.train.saving import Saving

BARE = (
    RECIPE.replace("[evaluate]\nevery = 10\n", "")
    .replace('[sample]\nevery = 12\nprompts = ["the cat"]\nmax_tokens = 8\n', "")
    .replace("[checkpoint]\nkeep_every = 6\n", "")
)
STEPS, EVERY = 24, 9


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where a run has been trained, and exported twice in between and at its end."""
    recipe = f'{BARE}[export]\nevery = {EVERY}\ndtype = "bfloat16"\n'
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
    assert kinds == {18: "rolling", 24: "final"}
    assert [e["step"] for e in of_kind(place / "runs" / "tiny", "checkpoint_saved")] == [9, 18, 24]


def test_a_run_that_is_told_to_end_waits_for_its_exports_and_one_that_goes_on_makes_those_that_are_missing(
    tmp_path: Path,
) -> None:
    long = BARE.replace("steps = 24", "steps = 600").replace("micro_batch_size = 1", "micro_batch_size = 8")
    place = workplace(tmp_path / "stopped", f"{long}[checkpoint]\nkeep_every = 300\n[export]\nevery = 300\n")
    with Trainer(place, "run", "tiny.toml", "--plain") as trainer:
        assert trainer.until(lambda e: e["type"] == "checkpoint_saved" and e["step"] == 300)
        trainer.process.send_signal(signal.SIGTERM)
        assert trainer.until(lambda e: e["type"] == "exported" and e["step"] == 300)
        assert trainer.end() == STOPPED_EARLY
    run = trainer.run
    assert exports(run) == [300], "only at its steps and at the last one"
    # as if it had been killed in its middle
    (run / EXPORTS / "300").rename(run / EXPORTS / ".300-x")
    assert trainkit(place, "resume", "tiny", "--plain").returncode == DONE
    assert exports(run) == [300, 600] and not list((run / EXPORTS).glob(".*"))
    assert "export" not in [event["kind"] for event in of_kind(run, "alert")]


def test_an_adapter_is_exported_for_peft_where_nothing_else_is_said(tmp_path: Path) -> None:
    text = BARE.replace("steps = 24", "steps = 2").replace("[tokenizer]", "[adapter]\nrank = 2\n[tokenizer]")
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
    shutil.rmtree(run / EXPORTS)
    (run / EXPORTS).mkdir()
    shutil.rmtree(run / "checkpoints" / "18" / "arrays")
    log = EventLog(run, attempt=2)
    ours = exporting(run, first=24, log=log)
    ours.finish(interrupted=lambda: False)
    log.close()
    (alert,) = of_kind(run, "alert")
    assert alert["kind"] == "export" and alert["attempt"] == 2
    assert alert["message"].startswith("step 18 was not exported: ") and "(exit 1)" in alert["message"]
    assert "checkpoints/18" in alert["message"]
    assert exports(run) == [24] and ours.held() == ()


def test_what_was_given_up_is_set_aside_and_exported_again(place: Path) -> None:
    run = shutil.copytree(place / "runs" / "tiny", place / "runs" / "given-up")
    store.set_aside(run, beyond=18)
    log = EventLog(run, attempt=2)
    ours = exporting(run, first=18, log=log)
    log.close()
    assert exports(run) == [9, 18] and (run / EXPORTS / "set-aside-1" / "24").is_dir()
    assert ours.held() == () and not ours.wants(18) and ours.wants(27)
    assert "set aside: the export of step 24" in [event["message"] for event in of_kind(run, "log")]


class Run:
    """Saves of a run that is none: whatever is to be exported of it fails, and fails soon."""

    def __init__(self, directory: Path, *overrides: str) -> None:
        self.directory = directory / "run"
        self.directory.mkdir()
        self.log = EventLog(self.directory, attempt=1)
        self.exporting = Exporting(self.directory, recipe(directory, *overrides), first=0, log=self.log)
        facts = Facts(recipe="r", data="d", attempt=1)
        spec = Checkpoint(every_minutes=None)
        self.saving = Saving(self.directory, spec, facts=lambda last: facts, log=self.log, reader=self.exporting)

    def save(self, step: int, **why: bool) -> None:
        why = {"last": False, "requested": False, "stopping": False} | why
        self.saving.save(small.state(), step, **why)
        self.saving.settle()

    def steps(self) -> list[int]:
        return [info.step for info in store.checkpoints(self.directory)]

    def finish(self, **how: Any) -> list[Event]:
        self.saving.finish()
        self.exporting.finish(**how)
        self.log.close()
        return list(read(self.directory))


def test_a_checkpoint_stays_until_its_export_has_ended_however_it_ends(tmp_path: Path) -> None:
    run = Run(tmp_path, "export.every=10")
    assert run.saving.is_due(10) and not run.saving.is_due(11)
    for step in (10, 20):
        run.save(step)
        assert not run.saving.is_due(step), "it is there"
    run.save(25, stopping=True)
    assert run.steps() == [10, 20, 25] and run.exporting.held() == (10, 20)
    events = run.finish(interrupted=lambda: False)
    assert run.steps() == [25]
    assert [e["message"] for e in events if e["type"] == "alert"] == [
        f"step {step} was not exported: {run.directory}/recipe.toml: there is no such file (exit 2)"
        for step in (10, 20)
    ]


def test_who_does_not_wait_any_longer_is_told_what_is_not_there_and_keeps_its_checkpoints(tmp_path: Path) -> None:
    run = Run(tmp_path, "export.every=10")
    for step in (10, 20, 30):
        run.save(step)
    (*_, told) = run.finish(interrupted=lambda: True)
    assert told["level"] == "warning" and told["message"].startswith("not waited for: the export of steps 10, 20, 30;")
    assert run.steps() == [10, 20, 30]
    assert run.exporting._running
    run.exporting._running.process.wait()


def test_exports_that_cannot_keep_up_are_told_of(tmp_path: Path) -> None:
    run = Run(tmp_path, "export.every=1")
    for step in range(1, BEHIND + 1):
        run.save(step)
    (told,) = [event["message"] for event in read(run.directory) if event["type"] == "log"]
    assert told.startswith(f"{BEHIND} exports wait")
    run.finish(interrupted=lambda: True)


# what a recipe says


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
