"""A step that breaks in a real run: what [guard] makes of it, what the black box holds, and that resuming is exact."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
from trainer import BARE, arrays, edit_manifest, killed_and_resumed, losses, run_of, trainkit, workplace

from trainkit import files
from trainkit.checkpoint import manifest as manifests
from trainkit.events.log import SilentLog, read
from trainkit.run.rollback import set_bad_aside

STEPS, BROKEN = 12, 8
#: The update of step `BROKEN` is not finite.
PLUGIN = f"""
from typing import Literal

from trainkit.recipe.sections.schedule_spec import ScheduleSpec


class Breaking(ScheduleSpec):
    "Constant, but for one step."
    type: Literal["breaking"]

    def rate_after_warmup(self, step, *, peak, steps, decay_start, xp):
        return peak + 0 * xp.log(xp.abs(step - {BROKEN - 1}.0))
"""
RECIPE = BARE.replace('type = "cosine"', 'type = "breaking"').replace("steps = 24", f"steps = {STEPS}")
RECIPE = RECIPE.replace("[checkpoint]\n", '[plugins]\nfiles = ["breaking.py"]\n[checkpoint]\n').replace(
    "= 1e-2", "= 1e-3"
)


def place(directory: Path, guard: str) -> Path:
    (workplace(directory, RECIPE + guard) / "breaking.py").write_text(PLUGIN)
    return directory


def alerts(run: Path) -> list[tuple[int, str]]:
    return [(e["step"], e["message"]) for e in read(run) if e["type"] == "alert" and e["kind"] == "guard"]


def test_a_skipped_step_is_announced_and_leaves_a_black_box_and_a_resumed_run_skips_it_too(tmp_path: Path) -> None:
    guard = '[guard]\nnon_finite = "skip"\n'
    run = run_of(place(tmp_path / "whole", guard))
    assert [step for step, _ in alerts(run)] == [BROKEN]
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

    done = trainkit(tmp_path / "whole", "inspect", "tiny", "--blackbox")
    assert done.returncode == 0, done.stderr
    head = done.stdout.splitlines()
    assert head[0].startswith(f"step {BROKEN} (skip): the update is not finite")
    assert head[1] == "computed again from step 6: as in the run, bit for bit"
    assert head[2].startswith("the first infinity is the result of log, at") and "breaking.py" in head[2]
    assert head[3].startswith("the first NaN is the result of mul, at")
    assert (box / "origin.jsonl").exists() and f"step {BROKEN - 1} -> {BROKEN}: 8 rows" in done.stdout
    missing = trainkit(tmp_path / "whole", "inspect", "tiny", "--blackbox", "--step", "3")
    assert missing.returncode == 2 and "no black box of step 3; there are: 8" in missing.stderr

    resumed = killed_and_resumed(place(tmp_path / "resumed", guard), saved=6)
    assert losses(resumed) == losses(run) and arrays(resumed, STEPS) == arrays(run, STEPS)


def test_a_rolled_back_run_leaves_steps_out_and_ends_the_same_if_it_is_killed_and_resumed(tmp_path: Path) -> None:
    guard = '[guard]\nnon_finite = "rollback"\nleave_out = 2\n'
    run = run_of(place(tmp_path / "whole", guard))
    (event,) = (e for e in read(run) if e["type"] == "rolled_back")
    assert event["left_out"] == [BROKEN - 1, BROKEN]
    last = {e["step"]: e["metrics"] for e in read(run) if e["type"] == "step"}
    assert [step for step, metrics in last.items() if "guard/left_out" in metrics] == event["left_out"]
    assert all(np.isfinite(m["train/loss"]) for step, m in last.items() if step not in event["left_out"])
    started = [e["resumed_from"] for e in read(run) if e["type"] == "run_started"]
    assert started in ([None, 6], [None, None]), "from the last good checkpoint, if it was on the disk already"
    assert manifests.read(run / "checkpoints" / str(STEPS)).left_out == (BROKEN - 1, BROKEN)

    done = trainkit(tmp_path / "whole", "verify", "tiny", "--replay", "6")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.endswith("steps 7 to 12, computed again: the same bits\n  also in checkpoint 12\n")
    log = run / "events.jsonl"
    steps = [line for line in log.read_text().splitlines() if '"type": "step"' in line and '"step": 9' in line]
    loss = str(last[9]["train/loss"])
    log.write_text(log.read_text().replace(steps[-1], steps[-1].replace(loss, "1.5")))
    done = trainkit(tmp_path / "whole", "verify", "tiny/6", "--replay", "3")
    assert done.returncode == 1 and f"step 9: train/loss was 1.5 and is {loss}" in done.stdout

    # a checkpoint of before the rollback, which a kill left between its event and its end
    resumed = killed_and_resumed(place(tmp_path / "resumed", guard), saved=6)
    assert arrays(resumed, STEPS) == arrays(run, STEPS)
    shutil.rmtree(resumed / "checkpoints" / str(STEPS))
    before = resumed / "checkpoints" / "11"
    shutil.copytree(resumed / "checkpoints" / "6", before)
    edit_manifest(before, lambda text: text.replace('"step":6', '"step":11').replace('"step": 6', '"step": 11'))
    set_bad_aside(resumed, SilentLog(attempt=9))
    assert not before.exists() and (resumed / "checkpoints" / "set-aside-1" / "11").is_dir()
    assert trainkit(tmp_path / "resumed", "resume", "tiny", "--plain").returncode == 0
    assert arrays(resumed, STEPS) == arrays(run, STEPS)
