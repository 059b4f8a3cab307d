"""Sweeps: what they try, in which order, what they record, and that a killed one ends as if it had not been killed."""

from __future__ import annotations

import contextlib
import json
import os
import signal
from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime
from pathlib import Path

import fake_run
import pytest
from small_sweep import GRID, Ended, Killed, board, fake_trainer, finish, killing_trainer, study
from trainer import BARE, Trainer, ending, losses, trainkit, workplace

from trainkit.cli.check import check
from trainkit.cli.sweep import leaderboard_lines
from trainkit.errors import DONE, TrainkitError
from trainkit.events.log import EventLog
from trainkit.events.tail import last_attempt, read
from trainkit.parallel.hosts import ADDRESS
from trainkit.recipe.toml.load import Loaded, load
from trainkit.rundir.directory import create, hold_lock, recipe_of
from trainkit.search import sweep
from trainkit.search.study import Study, study_of
from trainkit.search.sweep import divide_devices, run
from trainkit.search.trials import NAME


def test_a_sweep_ranks_its_trials_and_runs_none_again(tmp_path: Path) -> None:
    found = study(tmp_path)
    reported = finish(found)
    rows = board(found)
    assert rows[0] == ["RUN", "STATE", "train/loss", "STEPS", "optimizer.learning_rate", "model.layers"]
    assert [row[0] for row in rows[1:7]] == [f"tiny-{n:04}" for n in (3, 5, 4, 6, 1, 2)]
    assert rows[1] == ["tiny-0003", "finished", "1.0010", "10", "0.001", "1"]
    assert rows[5] == ["tiny-0001", "failed", "–", "10", "0.0001", "1"]
    assert leaderboard_lines(found)[-1] == "tiny-0002 failed: the loss is nan"
    assert sum("finished: train/loss" in line for line in reported) == 4
    again = study(tmp_path)
    assert finish(again) == [] and leaderboard_lines(again) == leaderboard_lines(found)
    records = [json.loads(line) for line in (found.directory / NAME).read_text().splitlines()]
    assert len(records) == 1 + 2 * 6 and all(last_attempt(trial.directory) == 1 for trial in found.trials)


@pytest.mark.parametrize("at", range(4))
def test_a_sweep_that_was_killed_ends_with_the_leaderboard_of_an_uninterrupted_one(tmp_path: Path, at: int) -> None:
    start, started = killing_trainer(at)
    with pytest.raises(Killed):
        finish(study(tmp_path / "killed"), start)
    with (tmp_path / "killed/runs/tiny-sweep" / NAME).open("a") as file:
        file.write('{"trial": 1, "sta')
    found, whole = study(tmp_path / "killed"), study(tmp_path / "whole")
    finish(found, start)
    finish(whole)
    later = study(tmp_path / "killed")
    later.read()
    assert board(later) == board(found) == board(whole)
    assert sorted(started) == sorted([*(trial.directory.name for trial in found.trials), started[at]])


def test_a_failed_trial_runs_again_once_its_directory_is_gone_and_other_recipes_are_refused(tmp_path: Path) -> None:
    one = '[sweep]\nmode = "max"\n[sweep.parameters]\n"run.seed" = { values = [0, 1] }\n'
    found = study(tmp_path, one)
    finish(found)
    (found.directory / "tiny-0002").rename(tmp_path / "gone")
    assert len(finish(study(tmp_path, one))) == 2
    with pytest.raises(TrainkitError, match="begun with another recipe"):
        finish(study(tmp_path, one.replace("[0, 1]", "[0, 2]")))


def test_random_trials_do_not_depend_on_how_many_there_are(tmp_path: Path) -> None:
    text = """
[sweep]
method = "random"
trials = 40
[sweep.parameters]
"optimizer.learning_rate" = { low = 1e-4, high = 1e-1, log = true }
"model.layers" = { low = 1, high = 3 }
"schedule.type" = { values = ["cosine", "linear"] }
"""
    many = [trial.settings for trial in study(tmp_path / "a", text).trials]
    few = [trial.settings for trial in study(tmp_path / "b", text.replace("40", "5")).trials]
    assert few == many[:5] and len(many) == 40
    assert {setting["model.layers"] for setting in many} == {1, 2, 3}
    assert {setting["schedule.type"] for setting in many} == {"cosine", "linear"}
    rates = [setting["optimizer.learning_rate"] for setting in many]
    assert all(1e-4 <= rate <= 1e-1 for rate in rates) and 10 < sum(rate < 3e-3 for rate in rates) < 30


def test_the_sweep_is_no_part_of_a_run(tmp_path: Path) -> None:
    found = study(tmp_path)
    (tmp_path / "plain.toml").write_text(BARE)
    plain = load(tmp_path / "plain.toml", [f'run.directory="{tmp_path}/runs"']).recipe
    assert found.recipes.base.recipe.fingerprint() == plain.fingerprint()
    finish(found)
    assert "[sweep" not in (found.trials[0].directory / "recipe.toml").read_text()


@pytest.mark.parametrize(
    ("sweep", "problem"),
    [
        ('"optimizer.learning_rat" = { values = [1e-3] }', "no such key\nhint: did you mean learning_rate"),
        ('"model.layers" = { values = [1, "two"] }', 'trial 2 .* model.layers = "two": expected a whole number'),
        ('"model.layers" = { low = 2, high = 2 }', "low = 2 must be less than high = 2"),
        ('"optimizer.learning_rate" = { low = 0.0, high = 1.0, log = true, points = 3 }', "log = true needs"),
        ('"optimizer.learning_rate" = { low = 1e-3, high = 1.0 }', "give points"),
        ('"run.name" = { values = ["a"] }', "cannot be swept"),
        ('"run.seed" = { low = 1, hi = 2 }', "did you mean high?"),
        ('"run.seed" = 3', "expected a table of values"),
        ("", "there is nothing to sweep: add"),
    ],
)
def test_a_wrong_sweep_is_refused_with_its_line_before_the_first_trial(
    tmp_path: Path, sweep: str, problem: str
) -> None:
    table = BARE.count("\n") + 1
    with pytest.raises(TrainkitError, match=rf"(?s)tiny.toml:(?:{table}|{table + 1}): .*{problem}"):
        study(tmp_path, "[sweep.parameters]\n" + sweep)
    assert not (tmp_path / "runs").exists()


def test_check_refuses_a_sweep_over_a_key_that_does_not_exist_or_a_wrong_value(tmp_path: Path) -> None:
    study(tmp_path)
    recipe = tmp_path / "tiny.toml"
    (tmp_path / "some.txt").write_text("some text")
    good = recipe.read_text().replace("text/*.txt", str(tmp_path / "some.txt"))
    recipe.write_text(good)
    assert check(recipe).startswith("ok: ")
    for right, wrong, said in (
        ("optimizer.learning_rate", "optimizer.lerning_rate", "no such key"),
        ("low = 1, high = 2 }", "low = 0, high = 2 }", "model.layers = 0: expected a whole number from 1 to 10,000"),
    ):
        recipe.write_text(good.replace(right, wrong))
        with pytest.raises(TrainkitError, match=f"a trial .* is refused: .*{said}") as refused:
            check(recipe)
        line = next(n for n, text in enumerate(recipe.read_text().splitlines(), 1) if wrong in text)
        assert refused.value.where.endswith(f"tiny.toml:{line}")


def test_a_metric_that_is_never_computed_and_a_recipe_without_a_sweep_are_refused(tmp_path: Path) -> None:
    with pytest.raises(TrainkitError, match=r'sweep.metric = "validation/x/loss" is never computed'):
        study(tmp_path, f'[sweep]\nmetric = "validation/x/loss"\n{GRID}')
    with pytest.raises(TrainkitError, match=r"the recipe has no \[sweep\]"):
        study(tmp_path, "")


def test_a_trial_that_still_trains_is_waited_for(tmp_path: Path) -> None:
    found, started = study(tmp_path), []
    first = found.trials[2]
    create(first.loaded)
    with contextlib.ExitStack() as trainer:
        trainer.enter_context(hold_lock(first.directory))

        def report(line: str) -> None:
            if line.endswith("it is running already"):
                fake_trainer(first.directory, {})
                trainer.close()

        def start(directory: Path, environment: Mapping[str, str]) -> Ended:
            started.append(directory.name)
            return fake_trainer(directory, environment)

        assert run(found, report, start=start, pause=0) == DONE
    assert len(started) == 5 and first.directory.name not in started and found.ends[3].status == "finished"


def test_an_interrupt_stops_the_trials_that_run_and_starts_no_other(tmp_path: Path) -> None:
    class Running(Ended):
        stopped = asked = False

        def poll(self) -> int | None:  # type: ignore[override]
            if not self.asked:
                self.asked = True
                raise KeyboardInterrupt
            return 75 if self.stopped else None

        def terminate(self) -> None:
            self.stopped = True

    processes: list[Running] = []

    def start(directory: Path, environment: Mapping[str, str]) -> Running:
        processes.append(Running())
        return processes[-1]

    found = study(tmp_path)
    with pytest.raises(KeyboardInterrupt):
        run(found, lambda line: None, start=start, pause=0)
    assert [process.stopped for process in processes] == [True]
    finish(found)
    assert len(found.ends) == len(found.trials) == 6


def test_an_error_while_a_trial_is_created_stops_those_that_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Running(Ended):
        stopped = False

        def poll(self) -> int | None:  # type: ignore[override]
            return 75 if self.stopped else None

        def terminate(self) -> None:
            self.stopped = True

    first = Running()
    created: list[Path] = []

    def create_one(loaded: Loaded) -> Path:
        if created:
            raise TrainkitError("cannot create the run's directory: No space left on device")
        created.append(create(loaded))
        return created[0]

    monkeypatch.setattr(sweep, "create", create_one)
    monkeypatch.setattr(sweep, "cores", lambda: 2)
    with pytest.raises(TrainkitError, match="No space left"):
        run(study(tmp_path, "[sweep]\nat_once = 2\n" + GRID), lambda line: None, start=lambda *_: first, pause=0)
    assert first.stopped


def test_a_sweep_with_a_time_of_day_continues_on_the_next_day(tmp_path: Path) -> None:
    recipe = tmp_path / "tiny.toml"
    recipe.write_text(BARE + GRID)
    settings = [f'run.directory="{tmp_path}/runs"', 'schedule={type="wsd", warmup=0}']
    found = [study_of(recipe, [*settings, f'train.until="2130-01-0{day} 08:00"']) for day in (1, 2)]
    today, tomorrow = found
    assert today.trials[0].loaded and tomorrow.trials[1].loaded
    create(today.trials[0].loaded)
    today.begin()
    tomorrow.read()
    assert recipe_of(tomorrow.trials[0].directory).recipe.train.until == "2130-01-01 08:00"
    assert tomorrow.trials[1].loaded.recipe.train.until == "2130-01-02 08:00"


def timed(directory: Path, until: str | None) -> Study:
    recipe = directory / "tiny.toml"
    recipe.write_text(BARE + GRID)
    settings = [f'run.directory="{directory}/runs"', 'schedule={type="wsd", warmup=0}']
    return study_of(recipe, [*settings, f'train.until="{until}"'] if until else settings)


def until_of(directory: Path) -> str | None:
    return recipe_of(directory).recipe.train.until


OVER, LATER = "2001-01-01 08:00", "2130-01-01 08:00"


def test_a_trial_that_was_cut_off_and_whose_time_is_over_continues_until_the_next_one(tmp_path: Path) -> None:
    found, given = timed(tmp_path, LATER), {}
    create(timed(tmp_path, OVER).trials[1].loaded)  # type: ignore[arg-type]
    log = EventLog(cut_off := found.trials[1].directory, attempt=1)
    log.write("run_started", step=0, **fake_run.started(cut_off.name))
    log.close()

    def start(directory: Path, environment: Mapping[str, str]) -> Ended:
        given[directory.name] = until_of(directory)
        return fake_trainer(directory, environment)

    said = finish(found, start)
    assert set(given.values()) == {LATER} and len(given) == 6
    (about,) = [line for line in said if line.startswith("trial 2 of 6") and "continued" in line]
    assert f"continued until {LATER}, as its time was over" in about
    assert [end.status for _, end in found.rank() if end] == ["finished"] * 4 + ["failed"] * 2


def test_a_trial_whose_time_is_over_is_not_continued_by_a_recipe_without_a_time(tmp_path: Path) -> None:
    create(timed(tmp_path, OVER).trials[0].loaded)  # type: ignore[arg-type]
    with pytest.raises(TrainkitError, match=r"trial 1 was cut off.*has no train\.until now"):
        finish(timed(tmp_path, None))


def test_a_time_of_day_that_passes_while_others_train_is_that_of_the_next_day(tmp_path: Path) -> None:
    found = timed(tmp_path, "08:00")
    for number, trial in enumerate(found.trials):
        loaded = found.recipes.load_with({**trial.settings, "run.name": trial.directory.name, "train.until": OVER})
        found.trials[number] = replace(trial, loaded=loaded)
    finish(found)
    untils = {until_of(trial.directory) for trial in found.trials}
    assert len(untils) <= 2 and all(until and datetime.fromisoformat(until) > datetime.now() for until in untils)


def test_a_date_that_is_over_stops_the_sweep_before_a_trial_fails_for_it(tmp_path: Path) -> None:
    found = timed(tmp_path, OVER)
    with pytest.raises(TrainkitError, match="is in the past") as refused:
        finish(found)
    assert refused.value.where == "--set train.until" or "train.until" in str(refused.value.where)
    assert not found.ends and not found.trials[0].directory.exists()
    later = timed(tmp_path, LATER)
    finish(later)
    assert len(later.ends) == 6


def test_trials_at_once_divide_the_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1,2,3,7")
    found = divide_devices(2, "auto")
    assert found == [{"CUDA_VISIBLE_DEVICES": "0,1"}, {"CUDA_VISIBLE_DEVICES": "2,3"}]
    assert [sweep._on(part) for part in found] == ["; on GPUs 0,1", "; on GPUs 2,3"]
    monkeypatch.setattr(sweep, "cores", lambda: 3)
    with monkeypatch.context() as hidden:
        hidden.setenv("CUDA_VISIBLE_DEVICES", "-1")
        assert divide_devices(3, "auto") == [{}, {}, {}]
    assert divide_devices(3, "cpu") == [{}, {}, {}] and divide_devices(1, "gpu") == [{}]
    with pytest.raises(TrainkitError, match="there are 5 GPUs"):
        divide_devices(6, "auto")
    with pytest.raises(TrainkitError, match="there are 3 CPU cores"):
        divide_devices(4, "cpu")


def test_a_sweep_over_several_machines_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ADDRESS, "10.0.0.1:1234")
    with pytest.raises(TrainkitError, match="one machine only"):
        finish(study(tmp_path))


#: `trainkit`, whose second trial stands still once it has saved step 6.
HELD = """
import subprocess
from held import HELD_AT, held_command
from trainkit.cli import program
attempt, start = "trainkit.run.attempt", subprocess.Popen
def held(command, **options):
    if attempt not in command:
        return start(command, **options)
    arguments = command[command.index(attempt) + 1 :]
    if arguments[0].endswith("tiny-0002"):
        options["env"][HELD_AT] = "checkpoint_saved 6"
    module = f"import runpy; runpy.run_module({attempt!r}, run_name='__main__')"
    return start(held_command(*arguments, program=module), **options)
subprocess.Popen = held
program()
"""


def test_a_real_sweep_killed_in_its_second_trial_continues_that_trial_from_its_checkpoint(tmp_path: Path) -> None:
    text = BARE.replace("steps = 24", "steps = 12")
    text += '[sweep.parameters]\n"optimizer.learning_rate" = { values = [1e-3, 1e-2] }\n'
    place = workplace(tmp_path, text, documents=10)
    with Trainer(place, "sweep", "tiny.toml", run="tiny-sweep/tiny-0002", program=HELD) as sweep:
        assert sweep.until(lambda event: event["type"] == "checkpoint_saved" and event["step"] == 6)
        sweep.kill()
        os.kill(int((sweep.run / "lock").read_text()), signal.SIGKILL)
    done = trainkit(place, "sweep", "tiny.toml")
    assert done.returncode == 0, done.stderr
    assert "trial 2 of 2: optimizer.learning_rate = 0.01; continued" in done.stderr and "trial 1" not in done.stderr
    board = [line.split()[:2] for line in done.stdout.splitlines()[1:]]
    assert board == [["tiny-0002", "finished"], ["tiny-0001", "finished"]]
    whole = trainkit(place, "run", "tiny.toml", "--plain", "--set", "optimizer.learning_rate=0.01")
    assert whole.returncode == 0, whole.stderr
    assert losses(sweep.run) == losses(place / "runs" / "tiny") and ending(sweep.run)[0] == "finished"
    assert [e["resumed_from"] for e in read(sweep.run) if e["type"] == "run_started"][-1] in (6, 12)
    assert trainkit(place, "sweep", "tiny.toml", "--leaderboard").stdout == done.stdout
