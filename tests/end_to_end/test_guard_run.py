"""Steps that break in real runs: what [guard] makes of them, what the black box holds, and that resuming is exact."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from data_room import write_rows
from paired_rows import DECODER, answer_pairs, recipe_text
from trainer import BARE, arrays, ending, killed_at, run_of, trainkit, workplace

from trainkit import files
from trainkit.checkpoint import manifest as manifests
from trainkit.events.schema import Event
from trainkit.events.tail import read

STEPS, BROKEN = 12, 8
#: The update of step `LEAP` is far too large, which the loss of the next step shows.
LONG, LEAP = 40, 34
SPIKE = '[guard]\nspike = "rollback"\nwindow = 30\nleave_out = 4\n'
PLUGIN = f"""
from typing import Literal

from trainkit.recipe.sections.schedule_spec import ScheduleSpec


class Breaking(ScheduleSpec):
    "Constant, but not finite in one step."
    type: Literal["breaking"]

    def rate_after_warmup(self, step, *, peak, steps, decay_start, xp):
        return peak + 0 * xp.log(xp.abs(step - {BROKEN - 1}.0))


class Leaping(ScheduleSpec):
    "Constant, but far too high in one step."
    type: Literal["leaping"]

    def rate_after_warmup(self, step, *, peak, steps, decay_start, xp):
        return peak * xp.where(step == {LEAP - 1}, 1000.0, 1.0)
"""
RECIPE = BARE.replace("[checkpoint]\n", '[plugins]\nfiles = ["breaking.py"]\n[checkpoint]\n').replace(
    "= 1e-2", "= 1e-3"
)


def place(directory: Path, guard: str, *, schedule: str = "breaking", steps: int = STEPS, keep_every: int = 6) -> Path:
    recipe = RECIPE.replace("cosine", schedule).replace("steps = 24", f"steps = {steps}")
    recipe = recipe.replace("keep_every = 6", f"keep_every = {keep_every}")
    (workplace(directory, recipe + guard) / "breaking.py").write_text(PLUGIN)
    return directory


def leaping(directory: Path) -> Path:
    return place(directory, SPIKE, schedule="leaping", steps=LONG, keep_every=11)


@pytest.fixture(scope="module")
def rolled_back(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return run_of(leaping(tmp_path_factory.mktemp("rolled-back")))


def losses(run: Path) -> dict[int, float]:
    """Return the losses of the steps that were not left out."""
    steps = of_kind(run, "step")
    return {event["step"]: event["metrics"]["train/loss"] for event in steps if "train/loss" in event["metrics"]}


def of_kind(run: Path, kind: str) -> list[Event]:
    return [event for event in read(run) if event["type"] == kind]


def test_a_skipped_step_is_announced_and_leaves_a_black_box_and_a_resumed_run_skips_it_too(tmp_path: Path) -> None:
    run = run_of(place(tmp_path, '[guard]\nnon_finite = "skip"\n'))
    alerts = {event["kind"]: event["step"] for event in of_kind(run, "alert")}
    assert alerts["guard"] == BROKEN and "recompilation" not in alerts
    assert set(losses(run)) == set(range(1, STEPS + 1)) and np.isfinite(list(losses(run).values())).all()
    box = run / "blackbox" / str(BROKEN)
    found = files.read_json(box / "box.json")
    assert (found["step"], found["action"]) == (BROKEN, "skip")
    assert set(found["keys"]) == {"loss", "dropout", "optimizer", "rounding"}
    with np.load(box / "batch.npz") as batch:
        rows = [json.loads(line) for line in (box / "batch.jsonl").read_text().splitlines()]
        assert len(rows) == len(batch["tokens"]) == 8 and rows[0]["step"] == BROKEN - 1
    steps = [json.loads(line)["step"] for line in (box / "metrics.jsonl").read_text().splitlines()]
    assert steps == list(range(1, BROKEN + 1))

    done = trainkit(tmp_path, "inspect", "tiny", "--blackbox")
    assert done.returncode == 0, done.stderr
    head = done.stdout.splitlines()
    assert head[0].startswith(f"step {BROKEN} (skip): the update is not finite")
    assert head[1] == "computed again from step 6: as in the run, bit for bit"
    assert head[2].startswith("the first infinity is the result of log, at") and "breaking.py" in head[2]
    assert head[3].startswith("the first NaN is the result of mul, at")
    assert (box / "origin.jsonl").exists() and f"step {BROKEN - 1} -> {BROKEN}: 8 rows" in done.stdout

    before, last = losses(run), arrays(run, STEPS)
    done = trainkit(tmp_path, "resume", "tiny/6", "--plain", "--set", "guard.threshold=7.0")  # which nothing compares
    assert done.returncode == 0 and "[guard] changed: it judges the steps from here on" in done.stderr
    assert losses(run) == before and arrays(run, STEPS) == last


def test_a_spike_is_rolled_back_without_its_steps_and_every_bit_can_be_computed_again(rolled_back: Path) -> None:
    (event,) = of_kind(rolled_back, "rolled_back")
    assert event["left_out"] == [32, 33, 34, 35] and "a spike (robust z-score" in event["message"]
    last = {event["step"]: event["metrics"] for event in of_kind(rolled_back, "step")}
    assert [step for step, metrics in last.items() if "guard/left_out" in metrics] == event["left_out"]
    assert max(last[step]["train/loss"] for step in range(36, LONG + 1)) < last[1]["train/loss"]
    assert {event["resumed_from"] for event in of_kind(rolled_back, "run_started")} <= {None, 11, 22}, (
        "from the last good checkpoint that was on the disk"
    )
    assert manifests.read(rolled_back / "checkpoints" / "33").left_out == (32, 33)
    assert (rolled_back / "checkpoints" / "set-aside-1" / "33").is_dir(), "it had the updates of 32 and 33"

    room = rolled_back.parent.parent
    done = trainkit(room, "verify", "tiny", "--replay", "18")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.endswith("steps 23 to 40, computed again: the same bits\n  also in checkpoint 33, 40\n")
    log = rolled_back / "events.jsonl"
    whole = log.read_text()
    *_, line = (line for line in whole.splitlines() if '"type": "step"' in line and '"step": 38' in line)
    loss = str(last[38]["train/loss"])
    log.write_text(whole.replace(line, line.replace(loss, "1.5")))
    done = trainkit(room, "verify", "tiny/33", "--replay", "6")
    log.write_text(whole)
    assert done.returncode == 1 and f"step 38: train/loss was 1.5 and is {loss}" in done.stdout


def test_a_run_killed_in_the_middle_of_a_rollback_ends_with_the_same_bits_once_resumed(
    rolled_back: Path, tmp_path: Path
) -> None:
    killed_at("rolled_back 35", leaping(tmp_path), "run", "tiny.toml", "--plain")
    run = tmp_path / "runs" / "tiny"
    assert manifests.read(run / "checkpoints" / "33").left_out == (), "it was not set aside yet"
    assert trainkit(tmp_path, "resume", "tiny", "--plain").returncode == 0
    assert losses(run) == losses(rolled_back) and arrays(run, LONG) == arrays(rolled_back, LONG)


def test_the_guard_of_eight_devices_decides_as_that_of_one(rolled_back: Path, tmp_path: Path) -> None:
    run = run_of(leaping(tmp_path), devices=8)
    (ours,), (theirs,) = of_kind(run, "rolled_back"), of_kind(rolled_back, "rolled_back")
    assert ours["left_out"] == theirs["left_out"]
    assert losses(run) == pytest.approx(losses(rolled_back), rel=1e-3)


def test_an_adapter_in_float16_that_learns_preferences_is_guarded_and_computed_again(tmp_path: Path) -> None:
    write_rows(tmp_path / "rows.jsonl", answer_pairs(40))
    (tmp_path / "breaking.py").write_text(PLUGIN)
    recipe = recipe_text(
        task='type = "preference"',
        document='type = "preference", chosen = " {chosen}", rejected = " {rejected}"',
        steps=10,
        rate=1e-3,
        model=DECODER.replace("[tokenizer]", "[adapter]\nrank = 2\n[tokenizer]"),
        more='[schedule]\ntype = "breaking"\n[plugins]\nfiles = ["breaking.py"]\n[precision]\ncompute = "float16"\n'
        '[checkpoint]\nkeep_every = 6\n[guard]\nnon_finite = "skip"\nspike = "skip"\n',
    )
    (tmp_path / "tiny.toml").write_text(recipe)
    run = run_of(tmp_path)
    assert [event["step"] for event in of_kind(run, "alert") if event["kind"] == "guard"] == [BROKEN]
    box = run / "blackbox" / str(BROKEN)
    rows = [json.loads(line) for line in (box / "batch.jsonl").read_text().splitlines()]
    assert len(rows) == len(np.load(box / "batch.npz")["tokens"]) and "yes" in str(rows)
    done = trainkit(tmp_path, "verify", "tiny", "--replay", "4")
    assert done.stdout.endswith("steps 7 to 10, computed again: the same bits\n  also in checkpoint 10\n"), done.stderr


def test_a_stalled_run_that_is_to_stop_ends_and_says_so(tmp_path: Path) -> None:
    never = ["--set", "guard.stalled_minutes=1e-9", "--set", "guard.stalled=stop"]  # no step takes so little time
    done = trainkit(workplace(tmp_path, BARE), "run", "tiny.toml", "--plain", *never)
    assert done.returncode == 1 and "no step was completed for" in done.stderr
    run = tmp_path / "runs" / "tiny"
    assert ending(run)[0] == "failed" and "resume continues" in ending(run)[2]
    assert "Thread" in (run / "blackbox" / "stacks-1.txt").read_text()
