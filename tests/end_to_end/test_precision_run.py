"""Runs in few bits, from a recipe to a checkpoint and on from it."""

from __future__ import annotations

import re
from pathlib import Path

from trainer import BARE, arrays, losses, trainkit, workplace

from trainkit.checkpoint import manifest
from trainkit.events.tail import read

FEW = BARE.replace("steps = 24", "steps = 4").replace("[optimizer]", '[optimizer]\nmoments = "int8"')
FEW += '[precision]\nparams = "bfloat16"\ncompute = "float16"\n'


def longer(directory: Path, steps: int, *overrides: str, devices: int = 1):
    given = [part for override in (f"train.steps={steps}", *overrides) for part in ("--set", override)]
    return trainkit(directory, "resume", "tiny", "--plain", *given, devices=devices)


def test_a_run_in_few_bits_continues_as_if_it_had_not_ended_and_may_change_what_it_computes_in(tmp_path: Path) -> None:
    run = workplace(tmp_path / "halves", FEW) / "runs" / "tiny"
    done = trainkit(run.parent.parent, "run", "tiny.toml", "--plain", "--set", "schedule.type=constant")
    assert done.returncode == 0, done.stderr
    stored = manifest.read(run / "checkpoints" / "4").leaves
    assert stored["params.token_embedding"].dtype == "bfloat16" and "loss_scale.value" in stored
    assert stored["optimizer.0.nu.token_embedding.codes"].dtype == "uint8"
    refused = longer(run.parent.parent, 6, "optimizer.moments=bfloat16")
    assert refused.returncode == 2 and "--reset-optimizer" in refused.stderr

    assert longer(run.parent.parent, 8).returncode == 0
    whole = workplace(tmp_path / "whole", FEW) / "runs" / "tiny"
    options = ["--set", "schedule.type=constant", "--set", "train.steps=8"]
    done = trainkit(whole.parent.parent, "run", "tiny.toml", "--plain", *options)
    assert done.returncode == 0, done.stderr
    assert losses(run) == losses(whole) and arrays(run, 8) == arrays(whole, 8)

    options = ["precision.compute=float32", "parallel.zero1=true", "precision.rounding=nearest", "average.decay=0.9"]
    other = longer(run.parent.parent, 10, *options, devices=2)
    assert other.returncode == 0, other.stderr
    assert 'precision.compute: "float16" -> "float32"' in other.stderr
    stored = manifest.read(run / "checkpoints" / "10").leaves
    assert not any(name.startswith("loss_scale") for name in stored)
    assert stored["averages.token_embedding"].dtype == "float32" and "average_count" in stored
    recipe = (run / "recipe.toml").read_text()
    (run / "recipe.toml").write_text(re.sub(r"(?m)^\[average\]\n(.+\n)+", "", recipe))
    back = longer(run.parent.parent, 12, "precision.compute=float16")
    assert back.returncode == 0, back.stderr
    assert not any(name.startswith("average") for name in manifest.read(run / "checkpoints" / "12").leaves)
    steps = [event["metrics"] for event in read(run) if event["type"] == "step"]
    assert steps[-1]["precision/loss_scale"] == 2.0**16 and "precision/loss_scale" not in steps[9]


def test_a_recipe_that_asks_for_a_gpu_is_refused_on_a_machine_without_one(tmp_path: Path) -> None:
    workplace(tmp_path)
    for command in (["run", "tiny.toml", "--plain"], ["plan", "tiny.toml"]):
        found = trainkit(tmp_path, *command, "--set", "parallel.platform=gpu")
        assert found.returncode == 2, found.stderr
        assert "there is no GPU to train on" in found.stderr and "trainkit doctor" in found.stderr
        assert "parallel.platform" in found.stderr
    assert not (tmp_path / "runs" / "tiny").exists()
