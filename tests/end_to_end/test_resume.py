"""Nothing is lost, and resuming changes nothing."""

from __future__ import annotations

import json
import random
import shutil
import signal
import time
from pathlib import Path

import pytest
from trainer import (
    BARE,
    Trainer,
    arrays,
    copied,
    edit_manifest,
    inputs_copied,
    killed_at,
    losses,
    run_of,
    trainkit,
    workplace,
)

from trainkit.checkpoint import manifest as manifests
from trainkit.checkpoint import store
from trainkit.data.problems import DataProblem
from trainkit.errors import TrainkitError
from trainkit.events.damage import damage
from trainkit.events.tail import last_attempt, read
from trainkit.run.attempt import attempt
from trainkit.run.recorded_inputs import find_problems
from trainkit.run.resume import prepare
from trainkit.run.start import Start
from trainkit.rundir.directory import recipe_of
from trainkit.rundir.summary import SummaryReader

STEPS = 24
AVERAGE = '[average]\ntype = "mean"\nstart = 5\nevery = 2\n'


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run from beginning to end, and the workplace that it was made in."""
    directory = workplace(tmp_path_factory.mktemp("uninterrupted"))
    done = trainkit(directory, "run", "tiny.toml", "--plain")
    assert done.returncode == 0, done.stderr
    return directory / "runs" / "tiny"


def ended_alike(run: Path, uninterrupted: Path) -> None:
    assert losses(run) == losses(uninterrupted)
    assert arrays(run, STEPS) == arrays(uninterrupted, STEPS)
    evaluated = [[e["step"], e["metrics"]] for e in read(run) if e["type"] == "evaluated"]
    assert evaluated == [[e["step"], e["metrics"]] for e in read(uninterrupted) if e["type"] == "evaluated"]
    samples = [e["text"] for e in read(run) if e["type"] == "sampled"]
    assert samples == [e["text"] for e in read(uninterrupted) if e["type"] == "sampled"]


@pytest.mark.quick
def test_a_run_trains_evaluates_samples_and_saves(uninterrupted: Path) -> None:
    kinds = [event["type"] for event in read(uninterrupted)]
    assert kinds[0] == "run_started" and kinds[-1] == "run_finished"
    assert kinds.count("step") == STEPS and kinds.count("evaluated") == 3 and kinds.count("sampled") == 2
    by_step = losses(uninterrupted)
    assert by_step[STEPS] < by_step[1] - 1
    saved = sorted(int(path.name) for path in (uninterrupted / "checkpoints").iterdir())
    assert saved == [6, 12, 18, 24]


def test_killed_while_caching_in_a_step_and_in_a_save_it_ends_bit_for_bit_as_if_it_had_not_been(
    tmp_path: Path, uninterrupted: Path
) -> None:
    workplace(tmp_path)
    chance = random.Random()
    in_a_step = chance.randrange(1, STEPS)
    print("killed in step", in_a_step)
    moments = [
        lambda e: e["type"] == "cache_progress",
        lambda e: e["type"] == "step" and e["step"] >= in_a_step,
        lambda e: e["type"] == "checkpoint_started",
        lambda e: e["type"] == "evaluated",
    ]
    for i, moment in enumerate(moments):
        how = ["run", "tiny.toml", "--plain"] if i == 0 else ["resume", "runs/tiny", "--plain"]
        with Trainer(tmp_path, *how) as trainer:
            came = trainer.until(moment)
            time.sleep(chance.uniform(0, 0.03))  # a tiny step takes about 5 ms, a tiny save 100
            trainer.kill()
        if read(tmp_path / "runs" / "tiny")[-1]["type"] == "run_finished":
            break  # it was quicker than the kill, or the moment had come in an earlier attempt
        assert came, (tmp_path / "output.txt").read_text()
    else:
        done = trainkit(tmp_path, "resume", "runs/tiny", "--plain")
        assert done.returncode == 0, done.stderr
    ended_alike(tmp_path / "runs" / "tiny", uninterrupted)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 75), (signal.SIGINT, 130)])
def test_a_signal_finishes_the_step_saves_and_says_how_it_ended(
    tmp_path: Path, uninterrupted: Path, number: int, code: int
) -> None:
    workplace(tmp_path)
    run = tmp_path / "runs" / "tiny"
    with Trainer(tmp_path, "run", "tiny.toml", "--plain", held_at="step 3") as trainer:
        assert trainer.until(lambda e: e["type"] == "step" and e["step"] == 3)
        trainer.release(number)
        assert trainer.end() == code
    finished = read(run)[-1]
    assert finished["type"] == "run_finished" and finished["exit_code"] == code
    stopped_at = finished["step"]
    assert (run / "checkpoints" / str(stopped_at) / "manifest.json").exists()
    done = trainkit(tmp_path, "resume", "tiny", "--json")
    assert done.returncode == 0, done.stderr
    assert f"resuming from step {stopped_at}" in done.stderr
    ended_alike(run, uninterrupted)


def test_a_damaged_newest_checkpoint_is_reported_and_the_one_before_it_is_used(
    tmp_path: Path, uninterrupted: Path
) -> None:
    run = copied(uninterrupted, tmp_path)
    chunk = max((run / "checkpoints/24/arrays").rglob("*"), key=lambda p: p.stat().st_size if p.is_file() else 0)
    torn = bytearray(chunk.read_bytes())
    torn[len(torn) // 2] ^= 1
    chunk.write_bytes(torn)
    done = trainkit(
        tmp_path, "resume", "tiny", "--set", "train.steps=24", "--set", "evaluate.max_batches=99", "--plain"
    )
    assert "finished" in done.stderr and done.returncode == 2
    shutil.rmtree(run / "checkpoints/18")
    edit_manifest(run / "checkpoints/24", lambda text: text.replace('"final"', '"rolling"'))
    done = trainkit(tmp_path, "resume", "tiny", "--plain")
    assert done.returncode == 0, done.stderr
    alerts = [e["message"] for e in read(run) if e["type"] == "alert"]
    assert len(alerts) == 1 and "24" in alerts[0] and "damaged" in alerts[0]
    assert losses(run) == losses(uninterrupted) and arrays(run, 24) == arrays(uninterrupted, 24)


def test_resume_says_what_differs_and_refuses_what_would_be_wrong(tmp_path: Path) -> None:
    workplace(tmp_path)
    assert trainkit(tmp_path, "run", "tiny.toml", "--plain", "--set", "train.steps=3").returncode == 0
    run = tmp_path / "runs" / "tiny"
    before = (run / "recipe.toml").read_text()

    again = trainkit(tmp_path, "resume", "tiny", "--plain")
    assert again.returncode == 0 and "finished" in again.stderr and "train.steps" in again.stderr
    for override in ("train.batch_size=16", "run.seed=3", "model.layers=1", "data.sequence_length=16"):
        refused = trainkit(tmp_path, "resume", "tiny", "--plain", "--set", "train.steps=5", "--set", override)
        assert refused.returncode == 2 and override.split("=")[0] in refused.stderr
    assert (run / "recipe.toml").read_text() == before
    reset = trainkit(tmp_path, "resume", "tiny/9", "--plain", "--set", "train.steps=5")
    assert reset.returncode == 2 and "there are: 3" in reset.stderr

    (tmp_path / "text" / "000.txt").write_text("another text altogether")
    other = trainkit(tmp_path, "resume", "tiny", "--plain", "--set", "train.steps=5", "--raise-rate")
    assert other.returncode == 2 and "the data is not what this run was trained on" in other.stderr


LONGER = ["tiny", "--set", "train.steps=30", "--raise-rate"]


@pytest.mark.parametrize(("status", "resume"), [("finished", ["tiny/12"]), ("stopped", LONGER), ("crashed", LONGER)])
def test_a_refused_resume_leaves_the_run_as_it_was(
    tmp_path: Path, uninterrupted: Path, status: str, resume: list[str]
) -> None:
    run = copied(uninterrupted, tmp_path)
    log = run / "events.jsonl"
    lines = log.read_text().replace('"status": "finished"', f'"status": "{status}"').splitlines(keepends=True)
    log.write_text("".join(line for line in lines if status != "crashed" or '"run_finished"' not in line))
    (tmp_path / "text" / "000.txt").write_text("another text altogether")

    def shown() -> tuple[object, ...]:
        summary = SummaryReader(run)
        summary.read()
        facts = summary.facts
        checkpoints = sorted(path.name for path in (run / "checkpoints").iterdir())
        return facts.state, facts.step, facts.curve, facts.best, losses(run), checkpoints, summary.recipe

    before = shown()
    refused = trainkit(tmp_path, "resume", *resume, "--plain")
    assert refused.returncode == 2 and "the data is not what this run was trained on" in refused.stderr
    assert before[:2] == (status, STEPS)
    assert shown() == before and last_attempt(run) == 2


def test_data_that_teaches_nothing_is_refused_before_the_later_steps_are_dropped(
    tmp_path: Path, uninterrupted: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = copied(uninterrupted, tmp_path)
    monkeypatch.chdir(tmp_path)
    useless = DataProblem("error", "nothing would be learned")
    monkeypatch.setattr("trainkit.run.health.find_problems", lambda cache, recipe: [useless])
    with pytest.raises(TrainkitError, match="nothing would be learned"):
        attempt(run, Start(step=12))
    assert losses(run) == losses(uninterrupted)
    assert not list((run / "checkpoints").glob("set-aside-*"))


def test_resuming_a_longer_run_continues_and_from_an_older_step_sets_the_newer_aside(
    tmp_path: Path, uninterrupted: Path
) -> None:
    run = copied(uninterrupted, tmp_path)
    other = ["--reset-optimizer", "--set", "optimizer.learning_rate=1e-3", "--set", "optimizer.type=schedule-free"]
    back = trainkit(tmp_path, "resume", "runs/tiny/12", "--plain", *other, devices=2)
    assert back.returncode == 0, back.stderr
    assert "optimizer.learning_rate: 0.01 -> 0.001" in back.stderr
    assert "devices: 1 x cpu (data 1, fsdp 1) -> 2 x cpu (data 2, fsdp 1)" in back.stdout
    # Adam without its past takes a whole step along the sign of the gradient, and the next one is averaged
    updates = {e["step"]: e["metrics"]["updates/norm"] for e in read(run) if e["type"] == "step"}
    assert updates[13] > 1.2 * updates[14]
    now, before = losses(run), losses(uninterrupted)
    assert [now[i] for i in range(1, 13)] == [before[i] for i in range(1, 13)] and now[24] != before[24]
    assert now[15] < now[6], "its iterates begin with the parameters"
    assert any(name.startswith("averages.") for name in arrays(run, STEPS))
    aside = [path.relative_to(run / "checkpoints") for path in (run / "checkpoints").glob("set-aside-*/*")]
    assert sorted(path.name for path in aside) == ["18", "24"]


def test_once_the_log_says_that_a_run_went_back_to_a_step_no_later_checkpoint_is_used(
    tmp_path: Path, uninterrupted: Path
) -> None:
    run = copied(uninterrupted, tmp_path)
    killed_at("run_started 12", tmp_path, "resume", "tiny/12", "--plain")
    assert store.newest(run).step == 12


def test_with_the_optimisations_that_users_have_a_killed_run_ends_bit_for_bit_too(tmp_path: Path) -> None:
    after = random.Random().randrange(1, STEPS)
    print("killed in step", after)
    # nothing but the step is compiled, once for all these processes
    recipe = BARE.replace('"tiny"', '"tiny"\ndeterministic = true') + AVERAGE
    whole, killed = (workplace(tmp_path / name, recipe) for name in ("whole", "killed"))
    done = trainkit(whole, "run", "tiny.toml", "--plain", optimised=True)
    assert done.returncode == 0, done.stderr
    with Trainer(killed, "run", "tiny.toml", "--plain", optimised=True) as trainer:
        assert trainer.until(lambda e: e["type"] == "step" and e["step"] >= after)
        trainer.kill()
    done = trainkit(killed, "resume", "runs/tiny", "--plain", optimised=True)
    assert done.returncode == 0 or "the run is finished" in done.stderr
    ended_alike(killed / "runs" / "tiny", whole / "runs" / "tiny")
    assert any(name.startswith("averages.") for name in arrays(whole / "runs" / "tiny", STEPS))
    told = [e["message"] for e in read(killed / "runs" / "tiny") if e["type"] == "log"]
    assert "deterministic: XLA_FLAGS is --xla_gpu_deterministic_ops=true" in told


def test_a_longer_schedule_does_not_raise_the_learning_rate_unless_somebody_says_so(
    tmp_path: Path, uninterrupted: Path
) -> None:
    run = copied(uninterrupted, tmp_path)
    before = (run / "recipe.toml").read_text()
    longer = ["resume", "tiny", "--plain", "--set", "train.steps=40"]
    refused = trainkit(tmp_path, *longer)
    assert refused.returncode == 2 and "--raise-rate" in refused.stderr
    assert "raises the learning rate after step 24: 0.001 -> 0.00425, 4.25 times as much" in refused.stderr
    assert (run / "recipe.toml").read_text() == before
    copy = shutil.copytree(run, run.with_name("level"))
    constant = ["--set", 'schedule={type="constant"}', "--set", "optimizer.learning_rate=0.001"]
    assert all(part in refused.stderr for part in (constant[1], constant[3]))
    level = trainkit(tmp_path, "resume", "level", "--plain", *longer[3:], *constant)
    assert level.returncode == 0 and "learning rate after step 24: 0.001 -> 0.001" in level.stderr, level.stderr
    raised = trainkit(tmp_path, *longer, "--raise-rate")
    assert raised.returncode == 0 and "learning rate after step 24: 0.001 -> 0.00425" in raised.stderr, raised.stderr
    rates = [
        {e["step"]: e["metrics"]["optimizer/learning_rate"] for e in read(r) if e["type"] == "step"}[25]
        for r in (copy, run)
    ]
    assert rates == pytest.approx([1e-3, 4.248e-3], rel=1e-2)


def test_two_trainers_cannot_train_one_run(tmp_path: Path) -> None:
    workplace(tmp_path)
    with Trainer(tmp_path, "run", "tiny.toml", "--plain", "--set", "train.steps=100000") as trainer:
        assert trainer.until(lambda e: e["type"] == "step")
        second = trainkit(tmp_path, "resume", "tiny", "--plain")
        assert second.returncode == 2 and str(trainer.process.pid) in second.stderr and "watch" in second.stderr
        anew = trainkit(tmp_path, "run", "tiny.toml", "--plain")
        assert anew.returncode == 2 and "trainkit resume runs/tiny" in anew.stderr and "--name tiny-2" in anew.stderr


OPTIMIZERS = {
    "muon": "adamw = { learning_rate = 1e-30 }, ",
    "soap": "adamw = { learning_rate = 1e-30 }, ",
    "schedule-free": "",
}


def test_a_run_continues_with_a_new_optimizer_and_a_fresh_state_of_it(tmp_path: Path) -> None:
    """The rates are so low that nothing changes: what is saved later is what the optimizers began with."""
    place = workplace(tmp_path, BARE.replace("layers = 2", "layers = 1").replace("steps = 24", "steps = 2"))
    whole = run_of(place)
    before = arrays(whole, 2)
    for kind, more in OPTIMIZERS.items():
        run = copied(whole, tmp_path / kind)
        change = f'optimizer={{ type = "{kind}", {more}learning_rate = 1e-30 }}'
        changes = ["--set", change, "--set", "train.steps=4"]
        done = trainkit(tmp_path / kind, "resume", "runs/tiny", *changes, "--reset-optimizer", "--plain")
        assert done.returncode == 0, done.stderr
        after = arrays(run, 4)
        params = {name for name in before if name.startswith("params.")}
        assert params and all(before[name] == after[name] for name in params)
        state = {name for name in after if name.startswith("optimizer.")}
        assert state and not state <= before.keys()
        assert len(losses(run)) == 4
    iterates = {name.split(".iterate.")[1]: array for name, array in after.items() if ".iterate." in name}
    wanted = {name.removeprefix("params."): before[name] for name in params}
    assert iterates == wanted, "schedule-free begins where the run was"
    average = ["--set", 'run.parameters_from="runs/tiny"', "--set", "run.average_from=true"]
    refused = trainkit(place, "check", "tiny.toml", *average)
    assert refused.returncode == 2 and "hold no average of the parameters" in refused.stderr


def test_a_run_can_begin_with_the_parameters_of_another_one_and_another_optimizer(
    tmp_path: Path, uninterrupted: Path
) -> None:
    """The rate is so low that nothing changes: what is saved after a step is what the run began with."""
    inputs_copied(uninterrupted.parents[1], tmp_path)
    settings = [
        "run.name=second", "run.directory=more", f'run.parameters_from="{uninterrupted}/12"', "train.steps=1",
        'optimizer={ type = "lion", learning_rate = 1e-30 }', "checkpoint.keep_every=1",
    ]  # fmt: skip
    overrides = [part for setting in settings for part in ("--set", setting)]
    other = trainkit(tmp_path, "check", "tiny.toml", *overrides, "--set", "model.hidden=16")
    assert other.returncode == 2 and "error: --set: run.parameters_from: " in other.stderr, other.stderr
    assert "blocks.mlp_in.weight: the checkpoint has 2 x 32 x 128, the model 2 x 16 x 64" in other.stderr
    done = trainkit(tmp_path, "run", "tiny.toml", *overrides, "--plain")
    assert done.returncode == 0, done.stderr
    run = tmp_path / "more" / "second"
    before, after = arrays(uninterrupted, 12), arrays(run, 1)
    params = [name for name in before if name.startswith("params.")]
    assert params and all(before[name] == after[name] for name in params)
    assert set(before) != set(after), "the optimizer state is Lion's"
    found = manifests.read(run / "checkpoints" / "1").began_with
    assert found and any(found in event.get("message", "") for event in read(run))


def test_a_resume_that_finds_only_damaged_checkpoints_changes_no_recipe(tmp_path: Path, uninterrupted: Path) -> None:
    run = copied(uninterrupted, tmp_path)
    before = (run / "recipe.toml").read_text()
    for info in store.checkpoints(run):
        edit_manifest(info.directory, lambda text: text[: len(text) // 2])
    with pytest.raises(TrainkitError, match="all are damaged: 6, 12, 18, 24"):
        prepare(
            run, step=None, overrides=["train.steps=30"], reset_optimizer=False, forget_commands=False, raise_rate=True
        )
    assert (run / "recipe.toml").read_text() == before


def prepared(run: Path) -> tuple[str, ...]:
    """The lines that `trainkit resume RUN/12` prints before it trains."""
    return prepare(run, step=12, overrides=(), reset_optimizer=False, forget_commands=False, raise_rate=False).notes


EDITS = [
    ("run.seed", "seed = 0", "seed = 3"),
    ("train.batch_size", "batch_size = 8", "batch_size = 16"),
    ("model.heads", "\nheads = 2", "\nheads = 4"),
]


@pytest.mark.parametrize(("said", "old", "new"), EDITS)
def test_an_edited_recipe_is_refused_as_an_override_would_be(
    tmp_path: Path, uninterrupted: Path, said: str, old: str, new: str
) -> None:
    run = copied(uninterrupted, tmp_path)
    recipe = run / "recipe.toml"
    moved = prepared(run)
    assert any("data.train.0.path" in note and str(tmp_path) in note for note in moved), "a moved run is no other run"
    assert old in recipe.read_text()
    recipe.write_text(recipe.read_text().replace(old, new, 1))
    with pytest.raises(TrainkitError, match=said) as refused:
        prepared(run)
    assert "cannot change within a run" in refused.value.problem
    recipe.write_text(recipe.read_text().replace(new, old, 1))
    assert prepared(run) == moved


def test_an_edit_is_refused_although_the_copy_in_the_newest_checkpoint_is_damaged_or_gone(
    tmp_path: Path, uninterrupted: Path
) -> None:
    run = copied(uninterrupted, tmp_path)
    copy = run / "checkpoints/24/recipe.toml"
    for path in (run / "recipe.toml", copy):
        path.write_text(path.read_text().replace("seed = 0", "seed = 3", 1))
    with pytest.raises(TrainkitError, match=r"run\.seed: 0 -> 3"):
        prepared(run)
    copy.unlink()
    with pytest.raises(TrainkitError, match=r"run\.seed: 0 -> 3"):
        prepared(run)
    for other in (run / "checkpoints").glob("*/recipe.toml"):
        other.unlink()
    assert any("the changed keys are unknown" in note for note in prepared(run))


def test_a_run_of_an_earlier_version_is_not_taken_for_an_edited_one(tmp_path: Path, uninterrupted: Path) -> None:
    run = copied(uninterrupted, tmp_path)
    known = manifests.read(run / "checkpoints/24").recipe
    for path in (run / "checkpoints").glob("*/manifest.json"):
        old = {"checksums": {}, "log": None, "tokenizer": None, "recipe": "made before a key was added"}
        edit_manifest(path.parent, lambda text, old=old: json.dumps(json.loads(text) | old))
        (path.parent / "recipe.toml").unlink()
    (run / "events.mark").unlink()
    log = run / "events.jsonl"
    log.write_text(log.read_text().replace(f'"recipe": "{known}"', '"other": ""'))
    assert any("whether recipe.toml was edited since then is unknown" in note for note in prepared(run))
    assert find_problems(run) == []


def test_an_edit_that_may_change_is_said_and_one_that_an_attempt_began_with_is_not(
    tmp_path: Path, uninterrupted: Path
) -> None:
    run = copied(uninterrupted, tmp_path)
    recipe = run / "recipe.toml"
    recipe.write_text(recipe.read_text().replace("learning_rate = 0.01", "learning_rate = 0.02"))
    notes = prepared(run)
    assert "recipe: optimizer.learning_rate: 0.01 -> 0.02" in notes
    with (run / "events.jsonl").open("a") as log:  # an attempt that began with it, and saved nothing
        started = next(event for event in read(run) if event["type"] == "run_started")
        log.write(json.dumps({**started, "attempt": 2, "recipe": recipe_of(run).recipe.fingerprint()}) + "\n")
    assert not any("recipe: " in note for note in prepared(run))


def test_a_recipe_or_a_tokenizer_that_is_damaged_ends_a_resume_with_its_name(
    tmp_path: Path, uninterrupted: Path
) -> None:
    run = copied(uninterrupted, tmp_path)
    recipe, whole = run / "recipe.toml", (run / "recipe.toml").read_text()
    recipe.write_text("")
    with pytest.raises(TrainkitError) as refused:
        prepared(run)
    assert f"checkpoints/24/recipe.toml {recipe}" in refused.value.hint
    recipe.write_text(whole)
    tokenizer = run / "tokenizer.json"
    content = bytearray(tokenizer.read_bytes())
    content[len(content) // 2] ^= 1
    tokenizer.write_bytes(content)
    with pytest.raises(TrainkitError, match="tokenizer is missing, damaged or another one") as refused:
        prepared(run)
    assert refused.value.where == str(tokenizer)


def test_a_log_that_lost_its_middle_or_has_other_digits_is_an_alert_of_the_next_attempt(
    tmp_path: Path, uninterrupted: Path
) -> None:
    run = copied(uninterrupted, tmp_path)
    info = store.newest(run)
    assert info is not None and info.manifest.log is not None
    assert damage(run, info.manifest.log, step=info.step, attempt=1) is None
    lines = (run / "events.jsonl").read_text().splitlines(keepends=True)
    kept = [
        line for line in lines if not any('"type": "step", "t"' in line and f'"step": {n},' in line for n in (7, 8))
    ]
    assert len(kept) == len(lines) - 2
    (run / "events.jsonl").write_text("".join(kept))
    assert "2 of the steps up to 24 are missing, the first is 7" in str(
        damage(run, info.manifest.log, step=24, attempt=1)
    )
    (run / "events.jsonl").write_text("".join(lines).replace('"train/loss": ', '"train/loss": 1', 1))
    assert "values differ" in str(damage(run, info.manifest.log, step=24, attempt=1))
    assert any("values differ" in problem for problem in find_problems(run))
    steps_of_checkpoints = [line for line in lines if '"type": "step", "t"' in line and '"step": 12,' in line]
    damaged = "".join(line for line in lines if line not in steps_of_checkpoints)
    damaged = damaged.replace(f'"train/loss": {losses(uninterrupted)[6]}', '"train/loss": 9.5')
    (run / "events.jsonl").write_text(damaged)
    done = trainkit(tmp_path, "resume", "tiny/18", "--plain")
    assert done.returncode == 0, done.stderr
    (alert,) = [event for event in read(run) if event["type"] == "alert"]
    assert alert["kind"] == "log" and "of the steps 6, 12 is in the log again" in alert["message"]
    assert losses(run) == losses(uninterrupted)
    assert (run / "events.damaged-1.jsonl").read_text() == damaged
    assert arrays(run, STEPS) == arrays(uninterrupted, STEPS)
    assert find_problems(run) == [], "the checkpoints since then know the log as it is now"
