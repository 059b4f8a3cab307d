"""What is raised as an alert, and that nothing else is."""

from __future__ import annotations

import json
import math
import random
import statistics
import tempfile
from collections.abc import Iterable
from pathlib import Path

import fake_run
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trainkit.events.alerts import CALM, ENOUGH, RISING, SHARES, Alert, Watch, _Window
from trainkit.events.log import EventLog
from trainkit.events.schema import Event
from trainkit.events.tail import NAME, Tail, read

SEEDS = st.integers(0, 2**32)


def steps(name: str, values: Iterable[float | str], *, first: int = 1) -> list[Event]:
    return [
        {"type": "step", "t": 0.0, "step": step, "attempt": 1, "metrics": {name: value}}
        for step, value in enumerate(values, first)
    ]


def evaluations(losses: Iterable[float], name: str = "held-out") -> list[Event]:
    return [
        {
            "type": "evaluated", "t": 0.0, "step": 10 * n, "attempt": 1, "name": name, "seconds": 1.0,
            "metrics": {f"validation/{name}/loss": loss, f"validation/{name}/perplexity": "inf"},
        }
        for n, loss in enumerate(losses, 1)
    ]  # fmt: skip


def planned(total: int) -> Event:
    return {
        "type": "planned", "t": 0.0, "step": 0, "attempt": 1, "total_steps": total, "plan": {}, "devices": []
    }  # fmt: skip


def raised(events: Iterable[Event], watch: Watch | None = None) -> list[Alert]:
    watch = watch or Watch()
    return [alert for event in events for alert in watch.feed(event)]


def kinds(events: Iterable[Event]) -> list[str]:
    return [kind for kind, _ in raised(events)]


def noisy(seed: int, count: int, *, falling: float = 0.0, noise: float = 0.05) -> list[float]:
    chance = random.Random(seed)
    return [2.0 + math.exp(-falling * n) + chance.gauss(0, noise) for n in range(count)]


@settings(max_examples=30, deadline=None)
@given(seed=SEEDS, falling=st.floats(0, 0.02), noise=st.sampled_from([0.0, 1e-4, 0.01, 0.2]))
def test_a_constant_or_slowly_falling_noisy_loss_raises_nothing(seed: int, falling: float, noise: float) -> None:
    assert raised(steps("train/loss", noisy(seed, 800, falling=falling, noise=noise))) == []


@settings(max_examples=30, deadline=None)
@given(seed=SEEDS, before=st.integers(ENOUGH, 400), mads=st.floats(10, 1e4))
def test_a_spike_of_ten_mads_raises_exactly_one(seed: int, before: int, mads: float) -> None:
    losses = noisy(seed, before + 300)
    window = losses[max(0, before - 200) : before]
    median = statistics.median_high(window)
    mad = statistics.median_high(abs(loss - median) for loss in window)
    losses[before] = median + mads * mad
    ((kind, message),) = raised(steps("train/loss", losses))
    assert kind == "loss-spike" and f"step {before + 1} " in message


def test_too_few_losses_are_no_window_to_judge_by() -> None:
    assert raised(steps("train/loss", [*noisy(1, ENOUGH - 1), 1e6])) == []


def test_a_spike_that_stays_is_one_episode_and_a_later_one_another() -> None:
    losses = noisy(1, 1000)
    for n in [*range(300, 310), 320, 700]:
        losses[n] += 3
    assert kinds(steps("train/loss", losses)) == ["loss-spike"] * 2


def test_a_loss_far_below_the_others_is_no_spike() -> None:
    assert raised(steps("train/loss", [*noisy(1, 100), 0.01])) == []


@settings(max_examples=20, deadline=None)
@given(seed=SEEDS, scale=st.floats(1e-6, 1e6))
def test_a_gradient_explodes_by_its_ratio_whatever_its_scale(seed: int, scale: float) -> None:
    chance = random.Random(seed)
    norms = [scale * math.exp(chance.gauss(0, 0.2)) for _ in range(500)]
    assert raised(steps("gradients/norm", norms)) == []
    norms[300] = 50 * scale
    norms[400] = 0.0
    assert kinds(steps("gradients/norm", norms)) == ["gradient-explosion"]


def test_a_steady_norm_that_doubles_does_not_explode() -> None:
    assert raised(steps("gradients/norm", [1.0] * 100 + [2.0])) == []
    assert kinds(steps("gradients/norm", [1.0] * 100 + [2.5])) == ["gradient-explosion"]


def shares(values: Iterable[float]) -> list[Event]:
    events = steps("time/data_wait", values)
    for event in events:
        event["metrics"]["time/step"] = 1.0
    return events


def test_starvation_is_a_median_and_comes_again_only_after_it_was_over() -> None:
    hiccups = [0.9 if n % 3 == 0 else 0.01 for n in range(300)]
    assert raised(shares(hiccups)) == []
    hungry, fed, between = [0.4] * 100, [0.1] * (SHARES + CALM), [0.25] * 200
    assert kinds(shares([*hungry, *between, *hungry])) == ["data-starvation"]
    assert kinds(shares([*hungry, *fed, *hungry])) == ["data-starvation"] * 2
    assert "40%" in raised(shares(hungry))[0][1]


def test_a_learning_rate_of_zero_is_right_at_the_last_step_only() -> None:
    rates = [1e-3, 5e-4, 0.0]
    assert raised([planned(3), *steps("optimizer/learning_rate", rates)]) == []
    assert kinds([planned(9), *steps("optimizer/learning_rate", [*rates, 0.0, 0.0])]) == ["learning-rate-zero"]
    assert raised(steps("optimizer/learning_rate", rates)) == [], "how many steps there are is not known"


def test_validation_rises_when_three_in_a_row_are_above_the_best_by_more_than_a_percent() -> None:
    for losses in ([3, 2, 2.1, 2.1, 2.01], [3, 2, 2.019, 2.019, 2.019, 2.019], [2, 2.1, 2.1, 2.0, 2.1, 2.1], [3, 4]):
        assert raised(evaluations(losses)) == []
    ((kind, message),) = raised(evaluations([3, 2, 2.1, 2.1, 2.1, 2.2, 2.3]))
    assert kind == "validation-rising" and "held-out" in message and "step 50" in message
    assert kinds(evaluations([2, *[2.1] * RISING, *[2.0] * RISING, *[2.1] * RISING])) == ["validation-rising"] * 2


def test_each_set_is_judged_by_itself() -> None:
    events = [
        event
        for pair in zip(evaluations([2, 3, 3, 3], "a"), evaluations([9, 8, 7, 6], "b"), strict=True)
        for event in pair
    ]
    assert kinds(events) == ["validation-rising"]


def test_an_evaluation_that_is_reported_again_at_its_step_counts_once() -> None:
    first, second = evaluations([2, 3])
    assert raised([first, second, second, second, second]) == []


@pytest.mark.parametrize("value", ["nan", "inf", "-inf"])
def test_a_value_that_is_not_finite_is_named_and_moves_no_window(value: str) -> None:
    losses = noisy(1, 200)
    assert raised(steps("train/loss", [*losses[:100], value, value, *losses[100:]])) == [
        ("not-finite", f"step 101: train/loss is {value}")
    ]


def test_an_attempt_judges_as_a_trainer_of_its_own_would() -> None:
    spiked = [*noisy(1, 60), 9.0]
    attempts = [
        [{"type": "run_started", "t": 0.0, "step": 0, "attempt": n, **fake_run.started(resumed_from=done)}, *told]
        for n, done, told in ((1, None, steps("train/loss", spiked)), (2, 40, steps("train/loss", spiked, first=41)))
    ]
    assert raised(attempts[0] + attempts[1]) == raised(attempts[0]) + raised(attempts[1])
    assert len(raised(attempts[1])) == 1


def test_a_resumed_run_remembers_the_best_evaluation_before_it_and_forgets_those_it_does_again() -> None:
    resumed: Event = {"type": "run_started", "t": 0.0, "step": 20, "attempt": 2, **fake_run.started(resumed_from=20)}
    told = evaluations([3, 2, 2.5, 2.5, 2.5])
    assert kinds([*told, resumed, *told[2:]]) == ["validation-rising"] * 2
    lucky = evaluations([3, 2, 1.0])
    assert kinds([*lucky, resumed, *evaluations([3, 2, 2, 2, 2])[2:]]) == [], "1.0 has not happened"


def test_a_plausible_run_raises_nothing() -> None:
    assert raised(fake_run.events(600)) == []


@settings(max_examples=20, deadline=None)
@given(data=st.data(), seed=SEEDS)
def test_the_answers_do_not_depend_on_how_the_log_was_cut_into_chunks(data: st.DataObject, seed: int) -> None:
    losses: list[float | str] = [*noisy(seed, 120)]
    losses[80], losses[100] = 7.0, "nan"
    events = [planned(999), *steps("train/loss", losses), *evaluations([2, 3, 3, 3])]
    log = b"".join(json.dumps(event).encode() + b"\n" for event in events)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(log)), max_size=12)))
    limit = data.draw(st.integers(1, 5000))
    watch, found = Watch(), []
    with tempfile.TemporaryDirectory() as directory:
        tail = Tail(Path(directory))
        for start, end in zip([0, *cuts], [*cuts, len(log)], strict=True):
            with (Path(directory) / NAME).open("ab") as file:
                file.write(log[start:end])
            while batch := tail.poll(limit_bytes=limit):
                found += raised(batch, watch)
    assert found == raised(events)
    assert [kind for kind, _ in found] == ["loss-spike", "not-finite", "validation-rising"]


@settings(max_examples=60, deadline=None)
@given(st.lists(st.floats(-100, 100) | st.integers(-2, 2).map(float), min_size=1, max_size=40), st.integers(1, 12))
def test_a_window_knows_the_median_and_the_mad_of_its_last_values(values: list[float], size: int) -> None:
    window = _Window(size)
    for n, value in enumerate(values, 1):
        window.add(value)
        last = values[max(0, n - size) : n]
        median = statistics.median_high(last)
        assert len(window) == len(last) and window.median == median
        assert window.mad == statistics.median_high(abs(value - median) for value in last)


def test_the_log_writes_what_is_found_right_after_the_event_in_which_it_is(tmp_path):
    log = EventLog(tmp_path, attempt=1, watch=Watch().feed)
    for step in range(1, 41):
        log.write("step", step=step, metrics={"train/loss": 2.0 + step % 3 / 100})
    log.write("step", step=41, metrics={"train/loss": 50.0})
    log.write("step", step=42, metrics={"train/loss": 2.0})
    log.close()
    kinds = [(event["type"], event["step"]) for event in read(tmp_path)]
    assert kinds[-3:] == [("step", 41), ("alert", 41), ("step", 42)]
    assert [event["kind"] for event in read(tmp_path) if event["type"] == "alert"] == ["loss-spike"]
