"""Whole runs on this machine's device, in processes of their own."""

from __future__ import annotations

from pathlib import Path

import pytest
from places import ROOT
from trainer import BARE, arrays, environment, losses, trainkit, workplace

from trainkit.events.tail import read

STEPS = 6
RECIPE = (
    BARE.replace("steps = 24", f"steps = {STEPS}")
    .replace("keep_every = 6", "keep_every = 3")
    .replace("learning_rate = 1e-2", 'learning_rate = 1e-2\nmoments = "int8"')
    .replace('name = "tiny"', 'name = "tiny"\ndeterministic = true')
)


def trained(place: Path, *arguments: str, on_gpu: bool) -> Path:
    """Train, and return the run. On a GPU the process is started as users do it, because a fork cannot use one."""
    done = trainkit(place, *arguments, "--plain", optimised=on_gpu)
    assert done.returncode == 0, done.stdout + done.stderr
    return place / "runs" / "tiny"


def test_steps_repeated_from_a_checkpoint_with_moments_in_8_bit_end_with_the_same_bits(
    tmp_path: Path, on_gpu: bool
) -> None:
    run = trained(workplace(tmp_path, RECIPE), "run", "tiny.toml", on_gpu=on_gpu)
    before = losses(run), arrays(run, STEPS)
    assert sorted(before[0]) == list(range(1, STEPS + 1)) and len(before[1]) > 20
    trained(tmp_path, "resume", f"tiny/{STEPS // 2}", on_gpu=on_gpu)
    assert read(run)[-1]["attempt"] == 2, "the steps were computed again"
    assert (losses(run), arrays(run, STEPS)) == before


@pytest.mark.usefixtures("needs_gpu")
def test_the_quickstart_learns_python(tmp_path: Path) -> None:
    places = [f"run.directory={tmp_path}", f"data.cache={tmp_path / 'cache'}", "track.aim=false", "train.steps=400"]
    overrides = [word for place in places for word in ("--set", place)]
    done = trainkit(tmp_path, "run", str(ROOT / "recipes" / "quickstart.toml"), *overrides, "--plain", optimised=True)
    assert done.returncode == 0, done.stdout + done.stderr
    events = read(tmp_path / "quickstart")
    evaluated = [event["metrics"] for event in events if event["type"] == "evaluated"]
    assert evaluated[-1]["validation/held-out/bits_per_byte"] < 2.5
    assert [event for event in events if event["type"] == "sampled"]
    assert "JAX_PLATFORMS" not in environment(optimised=True), "it was on the CPU"
