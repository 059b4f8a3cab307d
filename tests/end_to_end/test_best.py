"""The best checkpoint and early stopping: from the log alone, and so the same after kills and resumes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from trainer import RECIPE, arrays, copied, ending, killed_at, trainkit, workplace

from trainkit.checkpoint import manifest as manifests
from trainkit.checkpoint import restore, store
from trainkit.cli.verify import verify
from trainkit.data.cache import build as caches
from trainkit.data.cache.token_cache import Cache
from trainkit.errors import TrainkitError
from trainkit.evaluation.evaluate_run import evaluate_run
from trainkit.events.tail import read
from trainkit.export.model import export
from trainkit.infer.trained_model import open_run
from trainkit.recipe import Recipe
from trainkit.recipe.toml.load import load
from trainkit.run.resume import prepare
from trainkit.rundir import checkpoint_files
from trainkit.train.best import BestSoFar

METRIC = "validation/held-out/loss"
#: The loss falls throughout, so that its highest value, the "best", is that of the first evaluation.
EARLY = (
    RECIPE.replace("every = 10\n", "every = 3\npatience = 3\n")
    .replace("keep_every = 6\n", f'keep_every = 8\nkeep_last = 1\nbest = {{ metric = "{METRIC}", mode = "max" }}\n')
    .replace("every = 12\n", "")
)


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = workplace(tmp_path_factory.mktemp("best") / "here", EARLY)
    done = trainkit(directory, "run", "tiny.toml", "--plain")
    assert done.returncode == 0, done.stderr
    return directory


def test_a_run_that_no_longer_improves_ends_and_says_why(stopped: Path) -> None:
    run = stopped / "runs" / "tiny"
    status, step, message = ending(run)
    assert (status, step) == ("finished", 12)
    assert f"stopped early: {METRIC} was no better in the last 3 evaluations than" in message and "step 3" in message
    assert {i.step: i.manifest.kind for i in store.checkpoints(run)} == {3: "rolling", 8: "permanent", 12: "final"}
    assert [event["step"] for event in read(run) if event["type"] == "sampled"] == [12]
    again = trainkit(stopped, "resume", "runs/tiny", "--plain")
    assert again.returncode == 0 and "stopped early" in again.stderr
    assert "to train it longer: --set evaluate.patience=…   to" in again.stderr


def test_a_run_whose_patience_and_steps_are_both_used_up_asks_for_more_of_both(stopped: Path, tmp_path: Path) -> None:
    run = copied(stopped / "runs" / "tiny", tmp_path)
    log = (run / "events.jsonl").read_text()
    (run / "events.jsonl").write_text(log.replace('"total_steps": 24', '"total_steps": 12'))
    with pytest.raises(TrainkitError, match="it stopped early") as refused:
        prepare(run, step=None, overrides=(), reset_optimizer=False, forget_commands=False, raise_rate=False)
    assert "--set evaluate.patience=… --set train.steps=… --raise-rate" in refused.value.hint


def test_the_best_checkpoint_is_kept_named_and_reachable(stopped: Path) -> None:
    run = stopped / "runs" / "tiny"
    values = {e["step"]: e["metrics"][METRIC] for e in read(run) if e["type"] == "evaluated"}
    assert checkpoint_files.best(run) == (3, METRIC, values[3]) and values[3] == max(values.values())
    assert store.find(run, 3).manifest.metrics[METRIC] == values[3]
    assert any("checkpoint 3 is the best so far" in e["message"] for e in read(run) if e["type"] == "log")
    evaluated = trainkit(stopped, "eval", "tiny/best", "--json")
    assert json.loads(evaluated.stdout)["metrics"]["held-out"][METRIC] == values[3], evaluated.stderr
    with pytest.raises(TrainkitError, match=r'--predictions: task.type = "causal-lm" makes no predictions'):
        evaluate_run(run, None, predictions=True, warn=pytest.fail)
    verified = trainkit(stopped, "verify", "tiny/best")
    assert verified.stdout.split() == ["runs/tiny/checkpoints/3:", "ok"]


def test_kills_between_an_evaluation_and_its_checkpoint_change_neither_the_best_nor_the_end(
    stopped: Path, tmp_path: Path
) -> None:
    directory = workplace(tmp_path / "killed", EARLY)
    run = directory / "runs" / "tiny"
    for arguments, kind, step in (
        (("run", "tiny.toml"), "evaluated", 3),
        (("resume", "runs/tiny"), "evaluated", 6),
        (("resume", "runs/tiny"), "checkpoint_saved", 8),
    ):
        killed_at(f"{kind} {step}", directory, *arguments, "--plain")
    done = trainkit(directory, "resume", "runs/tiny", "--plain")
    assert done.returncode == 0, done.stderr
    whole = stopped / "runs" / "tiny"
    assert ending(run) == ending(whole) and checkpoint_files.best(run) == checkpoint_files.best(whole)
    assert arrays(run, 12) == arrays(whole, 12) and arrays(run, 3) == arrays(whole, 3)


def test_with_more_patience_a_stopped_run_continues_from_its_best_checkpoint(stopped: Path, tmp_path: Path) -> None:
    directory = workplace(tmp_path / "more", EARLY)
    assert trainkit(directory, "run", "tiny.toml", "--plain").returncode == 0
    longer = ("--set", "evaluate.patience=4", "--set", "checkpoint.best.mode=min")
    done = trainkit(directory, "resume", "runs/tiny/best", *longer, "--plain")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("attempt 2") == 1 and "continuing from step 3\n" in done.stdout
    run = directory / "runs" / "tiny"
    mark, (status, step, message) = checkpoint_files.best(run), ending(run)
    assert mark and mark.step > 12 and (status, step, message) == ("finished", 24, "")
    steps = {info.step for info in store.checkpoints(run)}
    assert {mark.step, 24} <= steps and not {3, 6, 9} & steps, "what is no longer the best is removed"


def recipe_of(directory: Path, *changes: str) -> Recipe:
    (directory / "tiny.toml").write_text(EARLY)
    return load(directory / "tiny.toml", changes).recipe


def test_only_scheduled_evaluations_use_up_patience_and_nan_is_never_the_best(tmp_path: Path) -> None:
    best = BestSoFar(recipe_of(tmp_path, "checkpoint.best.mode=min"))

    def take(step: int, value: float) -> bool:
        return best.take(step, {"held-out": {METRIC: value}}) is not None

    assert not take(3, float("nan")) and take(6, 2.0) and not take(7, 2.0) and not take(8, 3.0)
    assert not take(9, float("nan")) and not take(9, 2.5) and not take(12, 2.0) and not best.exhausted
    assert best.take(15, {"another": {METRIC: 0.0}}) is None and not best.exhausted
    assert not take(15, 9.0) and best.exhausted and "step 6" in best.reason


def test_the_best_may_be_that_of_several_sets_together(tmp_path: Path) -> None:
    name = METRIC.replace("held-out", "all")
    best = BestSoFar(recipe_of(tmp_path, 'evaluate.tags={all=["held-out"]}', f"checkpoint.best.metric={name}"))
    assert best.take(3, {"held-out": {METRIC: 2.0}, "all": {name: 1.0}}) is not None and best.mark.value == 1.0


WRONG = {
    "checkpoint.best.metric=validation/held-out/f1": "is never computed: evaluations of task.type",
    "checkpoint.best.metric=validation/other/loss": "is never computed",
    "checkpoint.best.mode=most": 'expected "min" or "max"',
    "data.held_out=0.0": "needs a validation set",
    'evaluate.tags={held-out=["held-out"]}': "is the name of a validation set too",
    'evaluate.tags={all=["dev"]}': 'names "dev", which is no validation set: there are held-out',
    "evaluate.tags={all=[]}": "name each of its validation sets once",
}


@pytest.mark.parametrize("change", WRONG)
def test_a_best_metric_that_is_never_computed_is_refused(tmp_path: Path, change: str) -> None:
    with pytest.raises(TrainkitError) as raised:
        recipe_of(tmp_path, change)
    assert WRONG[change] in str(raised.value)


@pytest.mark.parametrize(
    ("change", "computed"),
    {
        "task.type=causal-lm": True,
        'data.encoding={type="pack"}': False,
        'data.train=[{path="a.npy", type="tokens"}]': False,
        'data.train=[{path="a.jsonl", document={type="prompt", prompt="{a}", response="{b}"}}]': False,
    }.items(),
)
def test_bits_per_byte_can_be_the_best_metric_where_every_byte_of_a_text_is_predicted(
    tmp_path: Path, change: str, computed: bool
) -> None:
    changes = (change, "checkpoint.best.metric=validation/held-out/bits_per_byte")
    if computed:
        recipe_of(tmp_path, *changes)
    else:
        with pytest.raises(TrainkitError, match=r"bits_per_byte.* is never computed"):
            recipe_of(tmp_path, *changes)


@pytest.mark.parametrize(("line", "missing"), [("every = 3\n", "evaluate.every"), ("best = ", "checkpoint.best")])
def test_patience_without_what_it_counts_is_refused(tmp_path: Path, line: str, missing: str) -> None:
    text = "".join(each for each in EARLY.splitlines(keepends=True) if not each.startswith(line))
    (tmp_path / "tiny.toml").write_text(text)
    with pytest.raises(TrainkitError) as raised:
        load(tmp_path / "tiny.toml")
    assert missing in str(raised.value)


def test_an_evaluation_of_the_newest_checkpoint_continues_with_a_newer_one_when_the_trainer_removes_it(
    stopped: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = copied(stopped / "runs" / "tiny", tmp_path)
    monkeypatch.chdir(tmp_path)
    newest, really_build = run / "checkpoints" / "12", caches.build

    def build(*arguments: Any, **options: Any) -> Cache:
        if newest.exists():
            manifest = manifests.read(newest).model_copy(update={"step": 13})
            manifests.write(newest.rename(run / "checkpoints" / "13"), manifest)
        return really_build(*arguments, **options)

    monkeypatch.setattr(caches, "build", build)
    step, results = evaluate_run(run, None, warn=pytest.fail)
    assert step == 13 and METRIC in results["held-out"]
    with pytest.raises(TrainkitError, match="no checkpoint of step 12; there are: 3, 8, 13"):
        evaluate_run(run, 12, warn=pytest.fail)


def test_generate_export_and_verify_continue_with_what_the_trainer_leaves(
    stopped: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = copied(stopped / "runs" / "tiny", tmp_path)
    really_restore, really_verify = restore.restore, store.verify

    def replace_newest() -> None:
        if (info := store.newest(run)) and info.step in left:
            left.remove(info.step)
            manifest = info.manifest.model_copy(update={"step": info.step + 1})
            manifests.write(info.directory.rename(info.directory.with_name(str(info.step + 1))), manifest)

    def restored(*arguments: Any, **options: Any) -> Any:
        replace_newest()
        return really_restore(*arguments, **options)

    def verified(path: Path) -> list[str]:
        replace_newest()
        return really_verify(path)

    monkeypatch.setattr(restore, "restore", restored)
    monkeypatch.setattr(store, "verify", verified)
    left = [12]
    assert open_run(run).where == run and not left
    left = [13]
    assert export(run, None, tmp_path / "out", dtype="float32").step == 14 and not left
    left = [14]
    assert verify(str(run)) == 0
    assert f"{run / 'checkpoints' / '14'}: removed by the trainer meanwhile" in capsys.readouterr().out
