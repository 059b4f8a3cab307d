"""A run whose batches change ends bit for bit alike if it is killed and resumed, and counts what it sees."""

from __future__ import annotations

from pathlib import Path

import pytest
from trainer import BARE, Trainer, arrays, losses, trainkit, workplace

from trainkit.events.tail import read

SOURCES = """
[[data.train]]
path = "text/0[0-2]*.txt"
name = "first"
weight = 1.0
[[data.train]]
path = "text/0[3-5]*.txt"
name = "second"
weight = 1.0
"""
SCHEDULES = """
[schedules]
batch_tokens = [[0, 64], [640, 128]]
sequence_length = [[0, 8], [6, 32]]
mixture = { first = [[3, 1.0], [12, 0.0]] }
[schedules.momentum]
type = "piecewise-linear"
points = [[0, 0.5], [8, 1.0]]
"""
STEPS = 14
RECIPE = BARE.replace('\n[[data.train]]\npath = "text/*.txt"\n', SOURCES).replace("layers = 2", "layers = 1")
RECIPE = RECIPE.replace("steps = 24\nbatch_size = 8", f"steps = {STEPS}\nbatch_size = 4") + SCHEDULES
RECIPE = RECIPE.replace("keep_every = 6", "keep_every = 4")


def test_a_killed_run_whose_batches_change_ends_bit_for_bit_as_if_it_had_not_been(tmp_path: Path) -> None:
    whole, killed = (workplace(tmp_path / name, RECIPE) for name in ("whole", "killed"))
    done = trainkit(whole, "run", "tiny.toml", "--plain")
    assert done.returncode == 0, done.stderr
    with Trainer(killed, "run", "tiny.toml", "--plain") as trainer:
        assert trainer.until(lambda event: event["type"] == "checkpoint_saved" and event["step"] == 8)
        trainer.kill()
    done = trainkit(killed, "resume", "runs/tiny", "--plain")
    assert done.returncode == 0 or "the run is finished" in done.stderr
    runs = [place / "runs" / "tiny" for place in (whole, killed)]
    assert losses(runs[0]) == losses(runs[1]) and arrays(runs[0], STEPS) == arrays(runs[1], STEPS)
    (plan,) = [event["plan"] for event in read(runs[0]) if event["type"] == "planned"]
    assert plan["total_tokens"] == 32 * (10 * 2 + 4 * 4)
    metrics = {event["step"]: event["metrics"] for event in read(runs[0]) if event["type"] == "step"}
    seen = {
        name: [metrics[step][f"schedules/{name}"] for step in range(1, STEPS + 1)]
        for name in ("batch_size", "sequence_length", "mixture/first")
    }
    assert seen["batch_size"] == [2] * 10 + [4] * 4 and seen["sequence_length"] == [8] * 6 + [32] * 8
    shares = seen["mixture/first"]
    assert shares[:3] == [0.5] * 3 and shares[12:] == [0, 0] and shares == sorted(shares, reverse=True)
    assert metrics[1]["optimizer/betas/0"] == pytest.approx(0.45) and metrics[9]["optimizer/betas/0"] == pytest.approx(
        0.9
    )
    for step in range(2, STEPS + 1):
        rates = metrics[step]
        tokens = rates["throughput/tokens_per_second"] * rates["time/step"]
        samples = rates["throughput/samples_per_second"] * rates["time/step"]
        assert tokens == pytest.approx(32 * seen["batch_size"][step - 1], rel=0.01)
        assert samples == pytest.approx(tokens / seen["sequence_length"][step - 1], rel=0.01)
