"""What the trainer tells of its speed, on the real meter."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import pytest
import trainer
from hypothesis import given
from hypothesis import strategies as st

from trainkit.events import plain_log
from trainkit.events.log import EventLog
from trainkit.events.tail import read
from trainkit.plan import DataSize, Devices, make_plan
from trainkit.recipe.toml.load import load
from trainkit.track.projections import context
from trainkit.train import metrics as module
from trainkit.train.metrics import MetricsWriter, StepWork
from trainkit.train.step import WEIGHT

WORK = StepWork(flops_per_token=6_000_000, peak_flops=1e12)
SIZE = {"tokens": 64, "samples": 8}
PARTS = ("time/data_wait", "time/dispatch", "time/device")


@pytest.fixture
def log(tmp_path: Path) -> Iterator[EventLog]:
    log = EventLog(tmp_path, attempt=1)
    yield log
    log.close()


def result(loss: float) -> dict[str, jax.Array]:
    names = ("gradients/norm", "parameters/norm", WEIGHT)
    return {"train/loss": jnp.float32(loss)} | {name: jnp.float32(1) for name in names}


def metrics(run: Path) -> list[dict[str, float]]:
    return [event["metrics"] for event in read(run) if event["type"] == "step"]


@given(st.integers(1, 10**6), st.floats(1e-4, 1e3))
def test_every_rate_is_the_same_time_seen_otherwise(tokens: int, seconds: float) -> None:
    told = WORK.rates({"tokens": tokens, "samples": 8}, seconds=seconds)
    flops = tokens * WORK.flops_per_token / seconds
    assert told["throughput/samples_per_second"] == pytest.approx(8 / seconds, rel=1e-3)
    assert told["throughput/model_tflops"] == pytest.approx(flops / 1e12, rel=1e-3)
    assert told["throughput/mfu"] == pytest.approx(flops / WORK.peak_flops, rel=1e-3)


def test_without_a_known_peak_there_is_no_utilisation_and_all_else_is_reported() -> None:
    told = WORK._replace(peak_flops=None).rates({"tokens": 64, "samples": 8}, seconds=1.0)
    assert set(told) == {f"throughput/{name}" for name in ("tokens_per_second", "samples_per_second", "model_tflops")}


def test_the_peak_is_that_of_all_devices_that_train_and_the_recipe_knows_it_better(tmp_path: Path) -> None:
    trainer.workplace(tmp_path / "here")
    recipe = load(tmp_path / "here" / "tiny.toml", ["train.batch_size=16", "parallel.data=2"]).recipe
    h200 = Devices(count=4, platform="gpu", kind="NVIDIA H200", memory_bytes=140 << 30)
    plan = make_plan(recipe, devices=h200, vocab_size=300, data=DataSize(examples=9, tokens=9, documents=9, bytes=9))
    found = StepWork.of(plan, tflops=None)
    assert found.peak_flops == pytest.approx(2 * 989.4e12), "two of the four train, in bfloat16"
    assert found.flops_per_token == plan.flops_per_token
    assert StepWork.of(plan, tflops=1.0).peak_flops == 2e12


class Clock:
    """Seconds that pass only where a test says so."""

    def __init__(self) -> None:
        self.now = 0.0

    def perf_counter(self) -> float:
        return self.now


def test_the_parts_of_a_step_add_up_to_it_and_what_came_between_is_reported_with_the_next(
    tmp_path: Path, log: EventLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock()

    def fetch(metrics: dict[str, jax.Array]) -> dict[str, jax.Array]:
        clock.now += 4
        return metrics

    monkeypatch.setattr(module, "time", clock)
    monkeypatch.setattr(module, "jax", SimpleNamespace(device_get=fetch))
    meter = MetricsWriter(log, data=lambda step: {}, work=WORK)
    meter.restart_clock()
    for step in range(1, 7):
        clock.now += 1  # a batch is waited for
        with meter.measure("dispatch"):
            clock.now += 2
        meter.add(step, result(step), waited=1.0, size=SIZE)
        if step == 3:
            meter.flush()
            with meter.measure("evaluation"):
                clock.now += 50
            started = clock.perf_counter()
            clock.now += 30
            meter.spend("checkpoint", since=started)
            meter.restart_clock()
    meter.flush()
    told = metrics(tmp_path)
    assert [values["train/loss"] for values in told] == [1, 2, 3, 4, 5, 6]
    for values in told:
        assert values["time/step"] == sum(values.get(part, 0) for part in PARTS)
        assert values["throughput/tokens_per_second"] == round(64 / values["time/step"], 1)
    found = [(step, values) for step, values in enumerate(told, 1) if "time/evaluation" in values]
    assert [(step, values["time/evaluation"], values["time/checkpoint"]) for step, values in found] == [(4, 50, 30)]
    assert sum(values["time/step"] for values in told) == 6 * (1 + 2 + 4), "nothing of the steps is lost at the flush"


def test_a_step_that_learned_from_nothing_is_logged_without_a_loss(tmp_path: Path, log: EventLog) -> None:
    meter = MetricsWriter(log, data=lambda step: {}, work=WORK)
    meter.add(1, result(2) | {WEIGHT: jnp.float32(0)}, waited=0.0, size=SIZE)
    meter.add(2, result(3), waited=0.0, size=SIZE)
    meter.flush()
    first, second = (event["metrics"] for event in read(tmp_path) if event["type"] == "step")
    assert "train/loss" not in first and first["gradients/norm"] == 1
    assert second["train/loss"] == 3 and WEIGHT not in first | second


def test_the_utilisation_is_printed_where_it_is_known_and_devices_are_distinguished_in_aim() -> None:
    event = {"type": "step", "step": 3, "metrics": {"throughput/tokens_per_second": 5000.0, "throughput/mfu": 0.4567}}
    assert plain_log.text(event) == "step 3  5,000 tok/s  MFU 45.7%"
    del event["metrics"]["throughput/mfu"]
    assert plain_log.text(event) == "step 3  5,000 tok/s"
    assert context("memory/device_peak/3") == context("temperature/device/3") == {"device": 3}
