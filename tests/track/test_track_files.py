"""TensorBoard, W&B and tables: what the log says is read back from their files, once, however often it is copied."""

from __future__ import annotations

import csv
import json
import math
import subprocess
import sys
import time
from pathlib import Path

import pytest
from places import LIMIT as PATIENCE
from pyarrow import parquet
from tensorboardX.proto.event_pb2 import SessionLog
from track_run import (
    LOSSES,
    RECIPE,
    began,
    finish,
    history,
    run_directory,
    scalars,
    tensorboard_records,
    texts,
    train,
    two_attempts,
    wandb_records,
)

from trainkit.cli.track import Tracker
from trainkit.errors import TrainkitError
from trainkit.events.series import LIMIT
from trainkit.events.tail import NAME
from trainkit.recipe.sections.outputs import Track, WandB
from trainkit.track import projections, tail
from trainkit.track.projections import Name
from trainkit.track.sidecar import Sidecar

SPEC = Track(tensorboard=True, wandb=True)


def test_tensorboard_has_what_is_part_of_the_run_and_a_second_copy_doubles_nothing(tmp_path: Path) -> None:
    run = two_attempts(tmp_path, "run")
    for _ in range(2):
        done = tail.follow(run, "tensorboard", SPEC)
        assert done.last_step == 25
        found = scalars(run)
        assert found.keys() == {
            "train/loss",
            "throughput/mfu",
            "validation/held-out/loss",
            "validation/held-out/bits_per_byte",
        }
        assert found["train/loss"] == [(step, pytest.approx(loss)) for step, loss in LOSSES.items()]
        assert found["validation/held-out/loss"] == [(10, 2.5)]
    records = tensorboard_records(run)
    assert records[0].file_version == "brain.Event:2" and records[1].session_log.status == SessionLog.START
    assert texts(run)["samples/1/text_summary"] == [(10, "    def \n\n---\n\n    dé f(x):\n    \treturn")]
    assert texts(run)["samples/2/text_summary"] == [(10, "    if \n\n---\n\n    if x:")]
    ((_, recipe),) = texts(run)["recipe/text_summary"]
    assert recipe.replace("    ", "").strip() == RECIPE.strip()
    tags = {value.tag for record in records for value in record.summary.value}
    assert "_hparams_/session_start_info" in tags


def test_a_histogram_is_kept_with_its_bins(tmp_path: Path) -> None:
    run = two_attempts(tmp_path, "run")
    tail.follow(run, "tensorboard", SPEC)
    ((step, found),) = [
        (record.step, value.histo)
        for record in tensorboard_records(run)
        for value in record.summary.value
        if value.tag == "gradients/layers/3"
    ]
    assert (step, found.min, found.max, found.num, found.sum) == (10, -1.0, 1.0, 8, pytest.approx(-2.0))
    assert list(found.bucket_limit) == [-0.5, 0.0, 0.5, 1.0] and list(found.bucket) == [1, 6, 1, 0]
    tail.follow(run, "wandb", SPEC)
    (row,) = [row for row in history(run) if "gradients/layers/3/bins" in row]
    assert row["step"] == 10 and row["gradients/layers/3/_type"] == "histogram"
    assert row["gradients/layers/3/bins"] == [-1.0, -0.5, 0.0, 0.5, 1.0]
    assert row["gradients/layers/3/values"] == [1, 6, 1, 0]


def test_a_w_and_b_run_is_written_without_a_network_and_is_the_same_one_each_time(tmp_path: Path) -> None:
    run = two_attempts(tmp_path, "run")
    ids = set()
    for _ in range(2):
        ids.add(tail.follow(run, "wandb", SPEC).run)
        rows = history(run)
        losses = [(row["step"], row["train/loss"]) for row in rows if "train/loss" in row]
        assert losses == list(LOSSES.items())
        bits = [
            (row["step"], row["validation/held-out/bits_per_byte"]) for row in rows if "validation/held-out/loss" in row
        ]
        assert [(step, math.isnan(value)) for step, value in bits] == [(10, True)]
    (run_id,) = ids
    (record,) = [record.run for record in wandb_records(run) if record.WhichOneof("record_type") == "run"]
    assert (record.run_id, record.display_name, record.project) == (run_id, "run", "trainkit")
    (metric,) = [record.metric for record in wandb_records(run) if record.WhichOneof("record_type") == "metric"]
    assert (metric.glob_name, metric.step_metric) == ("*", "step")
    configured = {
        item.key: json.loads(item.value_json)
        for record in wandb_records(run)
        for item in (*record.run.config.update, *record.config.update)
    }
    assert configured["train"] == {"steps": 30} and configured["run"] == {"name": "n"}
    tables = [json.loads(path.read_text()) for path in (run / "wandb").rglob("*.table.json")]
    cells = [[10, "def ", "dé f(x):\n\treturn"], [10, "if ", "if x:"]]
    assert sorted(row for table in tables for row in table["data"]) == cells


def test_messages_of_an_abandoned_attempt_do_not_repeat_everything(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = run_directory(tmp_path, "run")
    log = began(run, 1)
    train(log, range(1, 31))
    log.write("alert", step=30, kind="odd", message="beyond what is gone on from")
    began(run, 2, resumed_from=28)
    log = began(run, 3, resumed_from=20)
    train(log, range(21, 26), factor=3.0)
    finish(log, 25)
    opened: list[Name] = []
    open_it = tail._open

    def count(directory: Path, name: Name, spec: Track) -> projections.Projection:
        opened.append(name)
        assert len(opened) < 3, "it would never end"
        return open_it(directory, name, spec)

    monkeypatch.setattr(tail, "_open", count)
    assert tail.follow(run, "tensorboard", SPEC).last_step == 25
    assert opened == ["tensorboard"]


@pytest.mark.parametrize("name", ["tensorboard", "wandb"])
def test_an_attempt_abandoned_while_it_is_followed_is_copied_again(tmp_path: Path, name: Name) -> None:
    run = run_directory(tmp_path, "run")
    trainer = subprocess.Popen(["sleep", "1000"])
    log = began(run, 1, pid=trainer.pid)
    train(log, range(1, 31))
    sidecar = Sidecar.start(run, name, SPEC)
    try:
        while (found := projections.read_progress(run, name)) is None or found.last_step < 30:
            assert sidecar.poll() is None, (run / f"{name}.log").read_text()
            time.sleep(0.01)
        log = began(run, 2, resumed_from=20, pid=trainer.pid)
        train(log, range(21, 26), factor=3.0)
        finish(log, 25)
        assert sidecar.finish(timeout=PATIENCE) is None, (run / f"{name}.log").read_text()
    finally:
        trainer.kill()
        trainer.wait()
    if name == "tensorboard":
        assert scalars(run)["train/loss"] == [(step, pytest.approx(loss)) for step, loss in LOSSES.items()]
    else:
        assert [(row["step"], row["train/loss"]) for row in history(run)] == list(LOSSES.items())


def test_without_credentials_online_w_and_b_is_a_problem_reported_in_a_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("WANDB_BASE_URL", "http://127.0.0.1:9")
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    run = two_attempts(tmp_path, "run")
    sidecar = Sidecar.start(run, "wandb", Track(wandb=WandB(mode="online")))
    problem = sidecar.finish(timeout=PATIENCE)
    assert problem is not None and problem.startswith("the W&B sidecar failed (exit 1): ")
    assert 'mode = "offline"' in problem and "\n" not in problem


def test_a_directory_that_w_and_b_made_is_not_taken_for_its_package(tmp_path: Path) -> None:
    (tmp_path / "nowhere_installed").mkdir()
    code = (
        "from trainkit.track import projections as p; p.ABOUT['wandb'] = p.About('W&B', 'nowhere_installed')\n"
        "assert not p.is_installed('wandb') and p.is_installed('aim')"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=tmp_path)


def test_a_missing_package_is_reported_with_the_extra_that_brings_it(monkeypatch: pytest.MonkeyPatch) -> None:
    projections.require("tensorboard")
    monkeypatch.setitem(projections.ABOUT, "tensorboard", projections.About("TensorBoard", "not_here"))
    with pytest.raises(TrainkitError, match="TensorBoard needs not_here") as caught:
        projections.require("tensorboard")
    assert caught.value.where == "track.tensorboard" and "trainkit[tensorboard]" in caught.value.hint
    assert projections.enabled_trackers(Track(aim=False)) == []
    assert tuple(Tracker) == projections.NAMES
    assert projections.enabled_trackers(Track(wandb=WandB(project="p"), tensorboard=True)) == [
        "aim",
        "tensorboard",
        "wandb",
    ]


def test_a_run_that_cannot_be_written_to_is_an_error_in_words(tmp_path: Path) -> None:
    run = two_attempts(tmp_path, "run")
    (run / "tensorboard.lock").mkdir()
    with pytest.raises(TrainkitError, match=r"TensorBoard cannot be brought up to date: .*Is a directory"):
        tail.follow(run, "tensorboard", SPEC)


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_a_table_has_evaluations_too_and_nothing_that_was_given_up(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"numbers{suffix}"
    assert tail.write_table(two_attempts(tmp_path, "run"), path) == 25
    if suffix == ".csv":
        with path.open(newline="") as file:
            rows = [{key: float(value) for key, value in row.items() if value} for row in csv.DictReader(file)]
    else:
        found = parquet.read_table(path).to_pylist()
        rows = [{key: value for key, value in row.items() if value is not None} for row in found]
    assert {row["step"]: row["train/loss"] for row in rows} == LOSSES
    evaluated = [row for row in rows if "validation/held-out/loss" in row]
    assert [(row["step"], row["validation/held-out/loss"]) for row in evaluated] == [(10, 2.5)]
    assert math.isnan(evaluated[0]["validation/held-out/bits_per_byte"])


def test_a_table_has_every_step_of_a_long_run_and_nothing_that_no_trainer_wrote(tmp_path: Path) -> None:
    run, steps = run_directory(tmp_path, "run"), LIMIT + 300
    log = began(run, 1)
    train(log, range(1, steps + 1))
    finish(log, steps)
    with (run / NAME).open("a") as file:
        file.write(json.dumps({"type": "step", "t": 1.0, "step": 9, "attempt": 1, "metrics": {"a": None}}) + "\n")
    path = tmp_path / "numbers.csv"
    assert tail.write_table(run, path) == steps
    with path.open(newline="") as file:
        assert [int(row["step"]) for row in csv.DictReader(file)] == list(range(1, steps + 1))
