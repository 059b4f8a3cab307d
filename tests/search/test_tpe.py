"""Sweeps by TPE: that they learn, prune, stop what they prune, and end as if they had not been killed."""

from __future__ import annotations

import contextlib
import importlib.util
import io
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import fake_run
import optuna
import pytest
from rich.console import Console
from small_sweep import GRID, Ended, Killed, board, fake_trainer, finish, killing_trainer, study
from trainer import BARE, RECIPE

from trainkit.cli.sweep import live_leaderboard
from trainkit.errors import DONE, TrainkitError
from trainkit.events.log import EventLog
from trainkit.rundir.directory import hold_lock
from trainkit.search import sweep
from trainkit.search.parallel_coordinates import HEIGHT, TOP, svg, text_lines
from trainkit.search.progress import Progress
from trainkit.search.study import Study, study_of
from trainkit.search.sweep import run
from trainkit.search.tpe import NAME as STUDY
from trainkit.search.trials import NAME

TPE = """
[sweep]
method = "tpe"
trials = 7
startup = 3
prune = "median"
seed = 1
[sweep.parameters]
"optimizer.learning_rate" = { low = 2e-4, high = 1.0, log = true }
"model.layers" = { low = 1, high = 3 }
"schedule.type" = { values = ["cosine", "linear"] }
"""


def copied(found: Study) -> dict[str, tuple[Any, ...]]:
    """Return what Optuna's own file says of the trials, by the names of their runs."""
    trials = optuna.load_study(study_name="sweep", storage=f"sqlite:///{found.directory / STUDY}").trials
    assert all(trial.state.is_finished() for trial in trials)
    return {trial.user_attrs["run"]: (trial.state.name, trial.value, trial.params["model.layers"]) for trial in trials}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Study:
    """A sweep that nothing interrupted."""
    found = study(tmp_path_factory.mktemp("whole"), TPE)
    finish(found)
    return found


def test_a_sweep_by_tpe_prunes_what_is_worse_than_the_median_and_keeps_its_last_value(whole: Study) -> None:
    states = [end.status for _, end in whole.rank() if end]
    assert len(states) == 7 and set(states) == {"finished", "pruned"} and states == sorted(states)
    pruned = next(trial for trial, end in whole.rank() if end and end.status == "pruned")
    end = whole.ends[pruned.number]
    rate, layers = (pruned.settings[key] for key in ("optimizer.learning_rate", "model.layers"))
    assert end.steps is not None and end.steps < 10 and end.value == pytest.approx(10 - end.steps + rate + layers)
    for trial, end in whole.rank():
        state, *known = copied(whole)[trial.directory.name]
        assert end and known == [pytest.approx(end.value), trial.settings["model.layers"]]
        assert state == {"finished": "COMPLETE", "pruned": "PRUNED"}[end.status]


@pytest.mark.parametrize("at", [1, 5])
def test_a_killed_sweep_by_tpe_ends_with_the_leaderboard_of_an_uninterrupted_one(
    tmp_path: Path, whole: Study, at: int
) -> None:
    start, started = killing_trainer(at)
    with pytest.raises(Killed):
        finish(study(tmp_path, TPE), start)
    found = study(tmp_path, TPE)
    if at == 5:  # the copy for Optuna's own tools is made again where it is wrong
        optuna.load_study(study_name="sweep", storage=f"sqlite:///{found.directory / STUDY}").ask()
    finish(found, start)
    assert board(found) == board(whole) and copied(found) == copied(whole)
    assert len(started) == 8


def test_hyperband_stops_trials_at_its_rungs_never_the_best_and_continues_after_a_kill(tmp_path: Path) -> None:
    text = TPE.replace('"median"', '"hyperband"').replace("trials = 7", "trials = 12")
    whole = study(tmp_path / "whole", text)
    finish(whole)
    pruned = [trial.number for trial, end in whole.rank() if end and end.status == "pruned"]
    assert len(pruned) >= 3 and {whole.ends[number].steps for number in pruned} <= {1, 3, 9}
    # the fake loss falls by 1 in each step, so the order of the trials is the same everywhere
    size = {t.number: t.settings["optimizer.learning_rate"] + t.settings["model.layers"] for t in whole.trials}
    for number in pruned:
        assert any(size[other] < size[number] for other in range(1, number)), "no trial before it was better"
        assert whole.ends[number].value == pytest.approx(10 - (whole.ends[number].steps or 0) + size[number])
    best, end = whole.rank()[0]
    assert end and end.status == "finished" and size[best.number] == min(size.values())

    start, started = killing_trainer(pruned[0])
    with pytest.raises(Killed):
        finish(study(tmp_path / "killed", text), start)
    found = study(tmp_path / "killed", text)
    finish(found, start)
    assert board(found) == board(whole) and len(started) == 13


def test_a_pruned_trial_is_stopped_and_not_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Training(Ended):
        """A process that trains one step each time that somebody looks, until it is asked to stop."""

        def __init__(self, directory: Path, loss: float) -> None:
            self.log, self.loss, self.step, self.status = EventLog(directory, attempt=1), loss, 0, ""
            self.directory = directory
            self.log.write("run_started", step=0, **fake_run.started(directory.name))
            self.log.write("planned", step=0, total_steps=10, plan=fake_run.PLAN, devices=["cpu"])

        def poll(self) -> int | None:  # type: ignore[override]
            if not self.status and self.step < 10:
                self.step += 1
                self.log.write("step", step=self.step, metrics={"train/loss": self.loss})
            elif not self.log_ended():
                self.log.write(
                    "run_finished", step=self.step, status=self.status or "finished", exit_code=0, message=""
                )
                self.log.close()
            return 0 if self.log_ended() else None

        def log_ended(self) -> bool:
            return sweep.last_end(self.directory) is not None

        def terminate(self) -> None:
            self.status = "stopped"

    text = TPE.replace("trials = 7", "trials = 2").replace("startup = 3", "startup = 1")
    found, losses, started = study(tmp_path, text), iter([1.0, 2.0]), []

    def start(directory: Path, environment: Mapping[str, str]) -> Training:
        started.append(Training(directory, next(losses)))
        return started[-1]

    assert len(finish(found, start)) == 4
    assert [found.ends[number].status for number in (1, 2)] == ["finished", "pruned"]
    assert found.ends[2].steps == 1 and found.ends[2].value == 2.0 and started[1].status == "stopped"
    again = study(tmp_path, text)
    assert finish(again) == [] and board(again) == board(found)


def test_a_pruned_trial_that_still_trains_as_the_sweep_was_killed_is_stopped(
    tmp_path: Path, whole: Study, monkeypatch: pytest.MonkeyPatch
) -> None:
    finish(study(tmp_path, TPE))
    found, stopped = study(tmp_path, TPE), []
    number = next(trial.number for trial, end in whole.rank() if end and end.status == "pruned")
    directory = found.directory / f"tiny-{number:04}"
    with contextlib.ExitStack() as trainer:
        trainer.enter_context(hold_lock(directory))

        def send(run: Path, command: str, argument: None) -> None:
            stopped.append((run, command))
            trainer.close()

        monkeypatch.setattr(sweep.commands, "send", send)
        finish(found)
    assert stopped == [(directory, "stop")] and board(found) == board(whole)


def test_a_trial_whose_recipe_is_refused_does_not_end_the_sweep(tmp_path: Path) -> None:
    text = TPE.replace("trials = 7", "trials = 6").replace(
        "[sweep.parameters]", '[sweep.parameters]\n"model.heads" = KEY'
    )
    text = text.replace("KEY", '{ values = [2, 3] }\n"model.hidden" = { values = [32, 33] }')
    found = study(tmp_path, text)
    finish(found)
    wrong = [trial for trial, end in found.rank() if end and end.status == "refused"]
    assert wrong and all(t.settings["model.hidden"] % t.settings["model.heads"] for t in wrong)
    assert not any(trial.directory.exists() for trial in wrong) and len(found.ends) == 6
    again = study(tmp_path, text)
    assert finish(again) == [] and board(again) == board(found)
    assert sum("does not divide" in " ".join(row) for row in board(found)) == len(wrong)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (("trials = 7\n", ""), r'30: .sweep.: method = "tpe" needs trials'),
        (('method = "tpe"', 'method = "random"'), r'32: .*startup goes with method = "tpe", found method = "random"'),
        (('"median"', '"mediun"'), r'33: sweep.prune = "mediun": expected "median" or "hyperband"'),
        (("low = 1, high = 3", "low = 0, high = 3"), r"37: a trial \(model.layers = 0\) is refused"),
        (('"linear"', '"lin"'), r'38: a trial \(schedule.type = "lin"\) is refused'),
        (("high = 3", "high = 3, points = 2"), r'points of "model.layers" goes with method = "grid"'),
    ],
)
def test_a_wrong_sweep_by_tpe_is_refused_before_the_first_trial(
    tmp_path: Path, change: tuple[str, str], problem: str
) -> None:
    with pytest.raises(TrainkitError, match=f"tiny.toml:.*{problem}"):
        study(tmp_path, TPE.replace(*change))
    assert not (tmp_path / "runs").exists()


def test_the_last_evaluation_of_a_trial_whose_end_was_moved_is_not_compared_on_the_way(tmp_path: Path) -> None:
    log = EventLog(tmp_path, attempt=1)
    log.write("run_started", step=0, **fake_run.started("tiny"))
    log.write("planned", step=0, total_steps=1_000_000, plan=fake_run.PLAN, devices=["cpu"])
    progress = Progress(tmp_path, metric := "validation/held-out/loss")
    for step, loss in ((5, 3.0), (10, 2.0)):
        if step == 10:
            log.write("control", step=7, command="finish", argument=10, detail="", total_steps=10)
        log.write("evaluated", step=step, name="held-out", metrics={metric: loss}, seconds=1.0)
    log.close()
    progress.read()
    assert progress.reports() == [(5, 3.0)]


def test_pruning_by_the_training_loss_is_refused_where_the_steps_are_unknown(tmp_path: Path) -> None:
    text = TPE.replace('prune = "median"', 'prune = "median"\nmetric = "train/loss"')
    (tmp_path / "tiny.toml").write_text(BARE + text)
    timed = ['train.duration="1h"', 'schedule={type="wsd", warmup=0}']
    with pytest.raises(TrainkitError, match=r'tiny.toml:\d+: sweep.prune = "median" .* by train/loss'):
        study_of(tmp_path / "tiny.toml", timed)


def test_pruning_by_evaluations_of_which_there_are_none_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("small_sweep.BARE", RECIPE.replace("[evaluate]\nevery = 10\n", ""))
    with pytest.raises(TrainkitError, match=r'tiny.toml:\d+: sweep.prune = "median" .* set evaluate.every'):
        study(tmp_path, TPE)


def test_without_optuna_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(
        TrainkitError, match=r'(?s)tiny.toml:\d+: sweep.method = "tpe" needs optuna.*trainkit\[optuna\]'
    ):
        study(tmp_path, TPE)
    assert not (tmp_path / "runs").exists()


def test_a_dry_run_lists_the_trials_that_depend_on_no_results(tmp_path: Path, whole: Study) -> None:
    listed = study(tmp_path, TPE).preview()
    assert [trial.settings for trial in listed] == [trial.settings for trial in whole.trials[:3]]
    assert not (tmp_path / "runs").exists()
    records = [json.loads(line) for line in (whole.directory / NAME).read_text().splitlines()]
    assert [record["trial"] for record in records if "settings" in record] == list(range(1, 8))


def test_parallel_coordinates_have_a_line_for_each_trial_and_a_drawing_where_it_fits(whole: Study) -> None:
    picture = ElementTree.fromstring(svg(whole))
    lines = picture.findall("{http://www.w3.org/2000/svg}polyline")
    assert len(lines) == 7 and sum("stroke-dasharray" in line.attrib for line in lines) == sum(
        end.status == "pruned" for end in whole.ends.values()
    )
    points = [[float(y) for y in re.findall(r",(\S+)", line.attrib["points"])] for line in lines]
    assert all(TOP <= y <= TOP + HEIGHT for crossings in points for y in crossings)
    best = next(trial for trial, _ in whole.rank())
    layers, kind = best.settings["model.layers"], best.settings["schedule.type"]
    assert points[-1][1:3] == [TOP + HEIGHT * (3 - layers) / 2, TOP + HEIGHT * (kind == "cosine")]
    drawn = text_lines(whole, 80)
    assert "schedule.type" in drawn[0] and {len(line) for line in drawn[2:-1]} == {58} and max(map(len, drawn)) <= 80
    assert "linear" in drawn[1] and "0.0002" in drawn[-1] and text_lines(whole, 30) == []


def test_the_leaderboard_is_live_in_a_terminal(tmp_path: Path) -> None:
    screen = io.StringIO()
    found = study(tmp_path, GRID)
    with live_leaderboard(found, Console(file=screen, force_terminal=True, width=120, height=6)) as (report, look):
        assert run(found, report, start=fake_trainer, look=look, pause=0) == DONE
    shown = screen.getvalue()
    assert "trial 6 of 6" in shown and re.search(r"tiny-0001 +failed +– +10 ", shown)
    first = shown[: shown.index("trial 2 of 6")]
    assert first.count("waiting") == 2  # the head, the one that ended and as many others as fit
