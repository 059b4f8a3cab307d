"""Which events count after a resume: every reader of a log agrees with a model that asks each event by itself."""

from __future__ import annotations

from pathlib import Path

import fake_run
from hypothesis import given, settings
from hypothesis import strategies as st

from trainkit.events.alerts import Watch
from trainkit.events.attempts import MESSAGES, CurrentEvents, current_events
from trainkit.events.commands import issued_commands
from trainkit.events.reducer import reduce
from trainkit.events.schema import Event
from trainkit.events.tail import read
from trainkit.events.view import View
from trainkit.rundir.follow import LogFollower
from trainkit.track.tail import events_to_copy

FIELDS = {
    "step": {"metrics": {"train/loss": 1.0}},
    "evaluated": {"name": "held-out", "metrics": {"validation/held-out/loss": 1.0}, "seconds": 1.0},
    "checkpoint_saved": {"kind": "rolling", "path": "", "bytes": 1, "seconds": 1.0},
    "sampled": {"prompt": "a", "text": "b", "seconds": 1.0},
    "alert": {"kind": "disk", "message": ""},
    "log": {"level": "info", "message": ""},
    "control": {"command": "rate", "argument": 0.5, "detail": "", "total_steps": None},
}
STEPS = st.integers(0, 6)
#: For each attempt the step from which it resumes and the kinds of its events, which rise by a step each.
LOGS = st.lists(st.tuples(STEPS | st.none(), st.lists(st.sampled_from(sorted(FIELDS)), max_size=7)), max_size=6)


def log_of(attempts: list[tuple[int | None, list[str]]]) -> list[Event]:
    events: list[Event] = []
    for number, (resumed_from, kinds) in enumerate(attempts, 1):
        first = resumed_from or 0
        about = {"t": float(len(events)), "attempt": number}
        events.append({"type": "run_started", "step": first, **about, **fake_run.started(resumed_from=resumed_from)})
        events += [{"type": kind, "step": first + i, **about, **FIELDS[kind]} for i, kind in enumerate(kinds)]
    return events


def counts(events: list[Event], index: int, always: frozenset[str] = MESSAGES) -> bool:
    """The rule for one event: no later attempt begins anew or resumes from a step before it."""
    event = events[index]
    resumes = [later["resumed_from"] for later in events[index + 1 :] if later["type"] == "run_started"]
    return event["type"] in always or all(step is not None and event["step"] <= step for step in resumes)


@given(LOGS)
def test_an_event_counts_unless_a_later_attempt_does_its_step_again(attempts):
    events = log_of(attempts)
    assert current_events(events) == [event for i, event in enumerate(events) if counts(events, i)]


@given(LOGS, st.integers(0, 50))
def test_events_written_after_the_log_was_read_all_count(attempts, known):
    events = log_of(attempts)
    known = min(known, len(events))
    current = CurrentEvents(events[:known])
    kept = [event for event in events if current.keeps(event)]
    assert kept == [event for i, event in enumerate(events) if i >= known or counts(events[:known], i)]


@settings(max_examples=60, deadline=None)
@given(LOGS)
def test_every_reader_of_a_log_has_the_events_that_count_and_no_others(tmp_path_factory, attempts):
    events = log_of(attempts)
    run = fake_run.write(tmp_path_factory.mktemp("attempts") / "run", events)
    counted = [event for i, event in enumerate(events) if counts(events, i)]
    assert read(run) == counted

    copied = events_to_copy(run)
    commands = frozenset({*MESSAGES, "control"})
    assert [e for e in events if copied.keeps(e)] == [e for i, e in enumerate(events) if counts(events, i, commands)]

    folded, followed = View(), LogFollower(run)
    for event in events:
        reduce(folded, event)
    followed.advance(seconds=60)
    for view in (folded, followed.view):
        assert [c.step for c in view.checkpoints] == [e["step"] for e in counted if e["type"] == "checkpoint_saved"]
        assert [s.step for s in view.samples] == [e["step"] for e in counted if e["type"] == "sampled"]
    steps = {event["step"] for event in counted if event["type"] == "step"}
    assert set(followed.view.series["train/loss"].steps if steps else []) == steps

    # a command given at step 0 is given again, also by an attempt that begins anew
    anew = [{**event, "resumed_from": event["resumed_from"] or 0} if "orders" in event else event for event in events]
    orders = {event["step"] for i, event in enumerate(anew) if event["type"] == "control" and counts(anew, i)}
    assert [given.step for given in issued_commands(run)] == sorted(orders)


@given(st.integers(1, 6), STEPS | st.none())
def test_losses_that_rose_alert_again_only_if_they_count_after_a_resume(best, resumed_from):
    """Evaluations rise above the best one, at step `best`; an attempt that does `best` again has nothing to compare."""

    def evaluated(step: int, loss: float) -> Event:
        fields = FIELDS["evaluated"] | {"metrics": {"validation/held-out/loss": loss}}
        return {"type": "evaluated", "t": 0.0, "step": step, "attempt": 1, **fields}

    events = [*log_of([(None, [])]), evaluated(best, 1.0), *log_of([(resumed_from, [])])]
    watch = Watch()
    for event in events:
        watch.feed(event)
    alerts = [watch.feed(evaluated(step, 2.0)) for step in range(7, 10)]
    assert bool(alerts[-1]) == counts(events, 1)


def test_the_drawn_events_are_such_as_a_trainer_writes(tmp_path: Path):
    events = log_of([(None, sorted(FIELDS))])
    assert read(fake_run.write(tmp_path / "run", events)) == events
