"""A run with `until` or `duration` ends in time, whatever its speed does, and decides the same when it is resumed."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import datetime
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest
from pydantic import ValidationError
from sample_recipe import changed, write

from trainkit.errors import TrainkitError
from trainkit.events.commands import FINISH, Command, IssuedCommand, issued_commands, parse_command
from trainkit.events.log import EventLog
from trainkit.optim import learning_rate
from trainkit.recipe.sections.schedule import Wsd
from trainkit.recipe.sections.train import Train
from trainkit.recipe.toml.load import load
from trainkit.rundir.changes import share
from trainkit.train.control import LiveSchedule
from trainkit.train.finish import FinishInTime, seconds_spent
from trainkit.train.state import initial_live

TIMED = (("steps = 20", 'steps = 100000\nduration = "9h"'), ('type = "cosine"', 'type = "wsd"'))
WHOLE = (*TIMED, ("warmup = 0.02", "warmup = 10"))


def simulate(
    seconds: float,
    step_seconds: Callable[[float], float],
    *,
    every: int | None = None,
    work: float = 0.0,
    save: float = 0.0,
    most: int = 10**6,
) -> tuple[float, list[tuple[int, int]], int]:
    """Return when a run ended, what it decided after which step, and its last step. A step takes `step_seconds` of the
    time at which it begins, and `work` is done every so many steps and at the end, where `save` takes time too."""
    now = 1000.0
    finish = FinishInTime(seconds=seconds, most=most, every=(every,), at_end=(every,), clock=lambda: now)
    step, end, orders = 0, most, []
    while step < end:
        now += step_seconds(now - 1000)
        step += 1
        if (found := finish.after(step, end=end)) is not None:
            end = found
            orders.append((step, end))
        if every and (step % every == 0 or step == end):
            now += work
            finish.note_save(save)
    return now - 1000 + save, orders, step


@pytest.mark.parametrize(
    ("seconds", "speed", "options"),
    [
        (3600, lambda t: 0.5, {}),
        (3600, lambda t: 0.5 if t < 3000 else 1.0, {}),  # another job begins, in the middle of the decay
        (3600, lambda t: 0.5 * (2 + np.sin(t / 100)), {}),
        (3600, lambda t: 1.0 if t < 1000 or t > 3400 else 0.3, {"every": 100, "work": 60.0}),
        (60, lambda t: 0.02 if int(t) % 20 < 10 else 0.05, {"every": 200, "work": 1.0}),
        (300, lambda t: 10.0, {}),
        (600, lambda t: 0.5, {"every": 100, "save": 60.0}),
        (3600, lambda t: 0.5 if t < 1000 or t > 1001 else 900.0, {}),  # a pause
    ],
)  # fmt: skip
def test_a_run_ends_within_two_percent_of_its_time_under_any_load(
    seconds: float, speed: Callable[[float], float], options: dict[str, float]
) -> None:
    took, orders, last = simulate(seconds, speed, **options)
    assert abs(took - seconds) <= max(0.02 * seconds, speed(seconds))
    assert orders[-1][1] == last and len(orders) < 60


def test_a_run_whose_last_step_is_done_is_not_made_longer_by_the_time_that_is_left() -> None:
    now = 0.0
    finish = FinishInTime(seconds=300.0, most=1000, clock=lambda: now)
    ends = []
    for step in range(1, 21):
        now = 10.0 * step
        ends.append(finish.after(step, end=20))
    assert any(ends[:-1]) and ends[-1] is None


def test_a_run_takes_no_more_steps_than_it_may() -> None:
    took, _, last = simulate(3600, lambda t: 0.5, most=200)
    assert last == 200 and took == 100


def test_the_rate_stays_without_a_jump_however_often_the_end_is_moved_and_ends_at_its_least() -> None:
    spec = Wsd(type="wsd", warmup=10, decay=0.3, min_ratio=0.1, shape="linear")
    course = LiveSchedule(spec, steps=10**6, live=initial_live(timed=True))
    ends, rates = {20: 200, 100: 150, 120: 300, 200: 260}, []
    for step in range(260):
        if step in ends:
            assert str(ends[step]) in course.end_at(ends[step], step=step)
        decided = [(at, end) for at, end in ends.items() if at <= step]
        rates.append(share(spec, 10**6, step, ends=decided))
    assert course.total_steps == 260
    assert rates[9] == rates[104] == 1.0, "the warm-up is over, and the decay of 45 steps begins at 105"
    assert max(-np.diff(rates[10:])) < 1.6 / (150 - 105), "no step falls faster than that of the shortest decay"
    assert rates[-1] == pytest.approx(0.1, abs=0.02) and min(np.diff(rates[:10])) > 0


def test_a_resumed_run_has_the_decay_of_the_one_before_it() -> None:
    spec = Wsd(type="wsd", warmup=10, decay=0.3)
    course = LiveSchedule(spec, steps=1000, live=initial_live(timed=True))
    for step, end in ((20, 200), (150, 180)):
        course.end_at(end, step=step)
    held = vars(course)["_decay_start"], vars(course)["_decay_end"]
    for step in (100, 160, 179):
        trained = learning_rate(spec, peak=1.0, steps=1000)(jnp.int32(step), *map(jnp.int32, held))
        assert share(spec, 1000, step, ends=[(20, 200), (150, 180)]) == pytest.approx(float(trained), abs=1e-6)
    again = LiveSchedule(spec, steps=1000, live=initial_live(timed=True))
    for step, end in ((20, 200), (150, 180)):
        again.end_at(end, step=step)
    assert again.holds(Command(FINISH, 180), step=150) and not again.holds(Command(FINISH, 200), step=20)
    assert vars(again) == vars(course)
    with pytest.raises(TrainkitError, match="begins the decay itself"):
        course.begin_decay(step=50)


def test_decisions_are_in_the_log_and_repeated_but_cannot_be_sent(tmp_path: Path) -> None:
    log = EventLog(tmp_path, attempt=1)
    log.write("control", step=40, detail="", total_steps=200, **Command(FINISH, 200).fields())
    log.close()
    assert issued_commands(tmp_path) == [IssuedCommand(Command(FINISH, 200), 40, 1)]
    with pytest.raises(TrainkitError, match="there is no command 'finish'"):
        parse_command("finish", 200)


def test_attempts_count_from_compiling_to_their_last_result(tmp_path: Path) -> None:
    compiled = {"type": "compiled", "what": "train step", "seconds": 1}
    saved = {"type": "checkpoint_saved", "kind": "rolling", "path": "", "bytes": 1, "seconds": 1}
    finished = {"type": "run_finished", "status": "stopped", "exit_code": 75, "message": ""}
    lines = [(50, 1, compiled), (60, 1, compiled), (150, 1, saved), (520, 2, compiled), (530, 2, finished)]
    events = [{"t": t, "step": 0, "attempt": attempt, **fields} for t, attempt, fields in lines]
    (tmp_path / "events.jsonl").write_text("".join(f"{json.dumps(event)}\n" for event in events))
    assert seconds_spent(tmp_path) == 100 + 10


@pytest.mark.parametrize(
    ("text", "hours"),
    [("9h", 9), ("90m", 1.5), ("1h30m", 1.5), ("1h 30m", 1.5), ("0.5h", 0.5), ("36s", 0.01)],
)
def test_a_duration_is_hours_minutes_and_seconds(text: str, hours: float) -> None:
    train = Train(steps=10, batch_size=1, duration=text)
    assert train.seconds_left(now=datetime.now(), spent=36.0) == pytest.approx(3600 * hours - 36)


def test_a_time_is_the_next_one_and_stays_that() -> None:
    train = Train(steps=10, batch_size=1, until="08:00")
    left = train.seconds_left(now=datetime.now(), spent=50.0)
    assert 0 < left <= 86_400 + 3600
    again = Train.model_validate(train.model_dump())
    assert again.until == train.until and len(str(again.until)) == len("2030-01-31 08:00")
    assert Train(steps=10, batch_size=1, until="2030-01-31T08:00:05").until == "2030-01-31 08:00:05"
    with pytest.raises(TrainkitError, match="is in the past"):
        Train(steps=10, batch_size=1, until="2020-01-31 08:00").check_time(datetime.now())


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"duration": "9"}, "expected a duration"),
        ({"duration": "0h"}, "expected a duration"),
        ({"duration": ""}, "expected a duration"),
        ({"until": "25:00"}, "expected a local time"),
        ({"until": "tomorrow"}, "expected a local time"),
        ({"until": "08:00", "duration": "9h"}, "until and duration|duration contradict"),
        ({"duration": "9h", "epochs": 2}, "epochs contradict each other"),
        ({"duration": "9h", "steps": None}, "needs steps too"),
    ],
)
def test_nonsense_is_refused(values: dict[str, object], said: str) -> None:
    with pytest.raises(ValidationError, match=said):
        Train.model_validate({"steps": 10, "batch_size": 1, **values})


def test_a_recipe_that_cannot_end_in_time_is_refused_with_its_line(tmp_path: Path) -> None:
    for lines, said in (
        (TIMED, "schedule.warmup = 0.02 is a fraction of the run"),
        ((TIMED[0], ("warmup = 0.02", "warmup = 10")), 'schedule.type = "cosine" has none'),
    ):
        with pytest.raises(TrainkitError, match=said):
            load(write(tmp_path, changed(*lines, ("min_ratio = 0.1", "min_ratio = 0.1"))))


def test_modes_shorten_a_timed_run(tmp_path: Path) -> None:
    path = write(tmp_path, changed(*WHOLE))
    toy, sanity = load(path, mode="toy").recipe, load(path, mode="sanity").recipe
    assert (toy.train.duration, toy.schedule.warmup) == ("5m", 1)
    assert (sanity.train.steps, sanity.train.is_timed) == (20, False)
