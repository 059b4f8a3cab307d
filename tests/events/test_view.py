"""The reducer and the plain projection: what is computed from the log is the log's, however it was written and read."""

from __future__ import annotations

import errno
import json
import math
import os
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import fake_run
import numpy as np
import pytest
from fake_run import HOSTILE, folded
from hypothesis import given, settings
from hypothesis import strategies as st

from trainkit.events import plain_log
from trainkit.events.attempts import current_events, process_alive, process_started
from trainkit.events.log import EventLog
from trainkit.events.reducer import reduce, view_of
from trainkit.events.schema import Event
from trainkit.events.series import Series
from trainkit.events.tail import NAME, STEP, Tail, last_attempt, read
from trainkit.events.view import View, alive, is_resuming, state
from trainkit.rundir.directory import hold_lock
from trainkit.text import NeutralStream, format_count, format_duration, neutralise


def content(view: View) -> dict[str, Any]:
    """What of a view depends on the training alone, not on how many attempts it took."""
    return {
        "step": view.step,
        "series": {name: (list(s.steps), list(s.values)) for name, s in view.series.items()},
        "markers": [marker for marker in view.markers if marker.kind != "resume"],
        "samples": list(view.samples),
        "checkpoints": [c._replace(t=0) for c in view.checkpoints],
    }


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_the_view_of_a_resumed_log_is_that_of_the_uninterrupted_one(data: st.DataObject) -> None:
    total = data.draw(st.integers(1, 40), "steps")
    log: list[Event] = []
    resumed_from: int | None = None
    for attempt in range(1, data.draw(st.integers(1, 3), "interruptions") + 1):
        begun = fake_run.events(total, attempt=attempt, resumed_from=resumed_from, total=total)
        log += begun[: data.draw(st.integers(0, len(begun)), "events before the kill")]
        saved = [c.step for c in folded(log).checkpoints]
        resumed_from = data.draw(st.sampled_from([None, *saved]), "resumed from")
    log += fake_run.events(total, attempt=9, resumed_from=resumed_from, total=total)
    whole = content(folded(fake_run.events(total, total=total)))
    assert content(folded(log)) == whole
    assert content(folded(current_events(log))) == whole


@settings(max_examples=25, deadline=None)
@given(cuts=st.lists(st.integers(0, 8000), max_size=8), limit=st.sampled_from([1, 100, 1 << 24]))
def test_a_log_read_piece_by_piece_gives_the_view_of_the_log_read_at_once(cuts: list[int], limit: int) -> None:
    import tempfile

    text = "".join(json.dumps(event) + "\n" for event in fake_run.events(8)).encode()
    with tempfile.TemporaryDirectory() as directory:
        run, written = Path(directory), 0
        tail, view = Tail(run), View()
        for cut in [*sorted(min(cut, len(text)) for cut in cuts), len(text)]:
            with (run / NAME).open("ab") as file:
                file.write(text[written:cut])
            written = cut
            while batch := tail.poll(limit_bytes=limit):
                for event in batch:
                    reduce(view, event)
    assert content(view) == content(folded(fake_run.events(8)))
    assert len(view.series["train/loss"]) == 8


def test_a_line_longer_than_the_limit_does_not_stop_the_reading(tmp_path: Path) -> None:
    sample = {"type": "sampled", "t": 1.0, "step": 1, "attempt": 1, "prompt": "", "text": "x" * 5000, "seconds": 0.1}
    fake_run.write(tmp_path, [sample, *fake_run.events(1)])
    tail = Tail(tmp_path)
    kinds = [event["type"] for _ in range(20) for event in tail.poll(limit_bytes=64)]
    assert kinds[:2] == ["sampled", "run_started"]


def test_lines_about_a_step_and_no_others_begin_as_readers_look_for_them(tmp_path: Path) -> None:
    log = EventLog(tmp_path, attempt=1)
    for kind, step, fields in fake_run.training(12):
        log.write(kind, step=step, **fields)
    log.write("log", step=12, level="info", message='{"type": "step"')
    log.close()
    lines = (tmp_path / NAME).read_bytes().splitlines()
    steps = [line for line in lines if json.loads(line)["type"] == "step"]
    assert [line for line in lines if line.startswith(STEP)] == steps and 0 < len(steps) < len(lines)


def test_a_line_torn_by_a_crash_loses_itself_and_nothing_else(tmp_path: Path) -> None:
    fake_run.write(tmp_path, fake_run.events(3))
    with (tmp_path / NAME).open("ab") as file:
        file.write(b'{"type": "step", "step": 4, "met')
    log = EventLog(tmp_path, attempt=2)
    log.write("run_started", step=3, **fake_run.started(resumed_from=3))
    log.write("step", step=4, metrics={"train/loss": float("nan")})
    log.close()
    view = folded(Tail(tmp_path).poll())
    assert list(view.series["train/loss"].steps) == [1, 2, 3, 4]
    assert np.isnan(view.last("train/loss"))


def test_a_series_is_seen_by_numpy_without_a_copy_and_costs_16_bytes_a_point() -> None:
    series = Series()
    for step in range(1000):
        series.add(step, step * 0.5)
    seen = np.frombuffer(series.values)
    assert not seen.flags.owndata and seen[-1] == 499.5
    assert series.steps.itemsize + series.values.itemsize == 16


def test_a_repeated_step_replaces_everything_from_it_on() -> None:
    series = Series()
    for step, value in [(1, 1.0), (2, 2.0), (3, 3.0), (2, 9.0), (3, 8.0)]:
        series.add(step, value)
    assert list(series.steps) == [1, 2, 3] and list(series.values) == [1.0, 9.0, 8.0]


def test_the_time_left_counts_steps_and_not_the_evaluations_between_them() -> None:
    events = fake_run.events(100, total=200)
    pause = 0.0
    for event in events:
        event.get("metrics", {}).pop("time/step", None)
        event["t"] += pause
        pause += 60.0 if event["type"] == "evaluated" else 0.0
    assert folded(events).eta == pytest.approx(100 * 0.37, rel=0.05)
    assert View().eta is None


def test_a_run_took_the_time_of_all_its_attempts_and_not_that_between_them() -> None:
    view = View()
    first, second = fake_run.events(100, total=200), fake_run.events(200, attempt=2, resumed_from=50)
    for event in [*first, *second]:
        reduce(view, event)
    assert second[0]["t"] - first[-1]["t"] > 1000
    assert view.took == pytest.approx(sum(events[-1]["t"] - events[0]["t"] for events in (first, second)))


def test_states_follow_from_events_and_the_process() -> None:
    events = fake_run.events(5, total=600)
    now = events[-1]["t"] + 1

    def after(*more: tuple[str, dict[str, Any]], until: int | None = None) -> View:
        told = [{"type": kind, "t": now, "step": 5, "attempt": 1, **fields} for kind, fields in more]
        return folded([*events[:until], *told])

    progress = {"what": "train", "documents": 1, "bytes": 1, "tokens": 1, "total_bytes": None}
    order = {"detail": ""}
    assert state(View(), now, False) == "waiting"
    assert state(after(until=1), now, True) == "starting"
    assert state(after(("cache_progress", {**progress, "done": False}), until=1), now, True) == "caching"
    assert state(after(("cache_progress", {**progress, "done": True}), until=1), now, True) == "starting"
    assert state(after(until=2), now, True) == "compiling"
    assert state(after(), now, True) == "running"
    assert state(after(), now, False) == "crashed"
    assert state(after(), now + 3600, True) == "stalled"
    assert state(after(until=2), events[0]["t"] + 300, True) == "compiling"
    assert state(after(("checkpoint_started", {"kind": "final"})), now, True) == "saving"
    assert state(after(("checkpoint_started", {"kind": "final"})), now + 300, True) == "saving", "nothing else happens"
    assert state(after(("control", {"command": "pause", **order})), now + 3600, True) == "paused"
    resumed = after(("control", {"command": "pause", **order}), ("control", {"command": "continue", **order}))
    assert state(resumed, now, True) == "running"
    assert state(after(("control", {"command": "stop", **order})), now, True) == "stopping"
    for status in ("finished", "stopped", "interrupted", "failed"):
        ended = after(("run_finished", {"status": status, "exit_code": 0, "message": ""}))
        assert state(ended, now + 3600, False) == status


def test_a_process_is_distinguished_from_another_that_was_given_its_number() -> None:
    started = process_started(os.getpid())
    assert process_alive(os.getpid(), started) and process_alive(os.getpid(), None)
    if started is not None:
        assert not process_alive(os.getpid(), started - 60)
    child = subprocess.Popen([sys.executable, "-c", ""])
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    if started is not None:
        assert not process_alive(child.pid, None), "a zombie does not train"
    child.wait()
    assert not process_alive(child.pid, None)
    for nobody in (0, -1, 1 << 31, 1 << 52):
        assert not process_alive(nobody, None)


def test_a_trainer_on_another_host_counts_as_alive_and_this_one_is_looked_up() -> None:
    view = folded(fake_run.events(1))
    assert alive(view)
    view.process_started = (view.process_started or 0) - 1000
    assert alive(view) is (process_started(os.getpid()) is None)
    view.host = "elsewhere.invalid"
    assert alive(view)


@pytest.mark.parametrize("end", [(), ({"type": "run_finished", "status": "stopped", "exit_code": 75, "message": ""},)])
def test_a_run_that_another_process_is_about_to_resume_is_starting(tmp_path: Path, end: tuple[Event, ...]) -> None:
    before = folded([*fake_run.events(3), *({**event, "t": 1.0, "step": 3, "attempt": 1} for event in end)])
    before.pid = 1 << 22  # more than Linux gives to a process
    now = before.last_event or 0.0
    ended = "stopped" if end else "crashed"
    assert not is_resuming(before, tmp_path) and state(before, now, alive(before)) == ended
    with hold_lock(tmp_path):
        assert state(before, now, alive(before), is_resuming(before, tmp_path)) == "starting"
        assert not is_resuming(folded(fake_run.events(3)), tmp_path), "this process's own attempt is in the log"
    assert not is_resuming(before, tmp_path), "the lock names nobody once it is let go"
    (tmp_path / "lock").write_text(str(os.getpid()))
    os.utime(tmp_path / "lock", (1.0, 1.0))
    if process_started(os.getpid()) is not None:
        assert not is_resuming(before, tmp_path), "the process that has this number now began later"


def test_how_long_a_step_takes_is_reported_by_finite_numbers_alone() -> None:
    events = fake_run.events(9, total=20)
    steps = [event for event in events if event["type"] == "step"]
    for event, odd in zip(steps, ["nan", "inf", math.inf], strict=False):
        event["metrics"]["time/step"] = odd
    eta = folded(events).eta
    assert eta is not None and math.isfinite(eta)


def test_an_end_or_a_level_that_no_trainer_writes_is_never_in_a_view() -> None:
    where = {"t": 1.0, "step": 3, "attempt": 1}
    told = folded([*fake_run.events(3), {"type": "log", **where, "level": "LOUD", "message": "m"}])
    assert (told.log[-1].level, told.log[-1].text) == ("info", "LOUD m")
    with pytest.raises(ValueError, match="this is not how a run ends"):
        reduce(told, {"type": "run_finished", **where, "status": "exploded", "exit_code": 0, "message": ""})
    assert told.finished is None


@pytest.mark.parametrize(
    "wrong",
    [
        {"parameters": "many"}, {"tokens_per_step": [1]}, {"sequence_length": math.inf}, {"bytes": {"gradients": None}},
        {"bytes": 7}, {"batch": {"micro": 1}}, {"devices": {}}, {"devices": {"memory_bytes": {}}}, {"batch": 3},
    ],
)  # fmt: skip
def test_a_plan_that_no_page_could_show_is_never_in_a_view(wrong: dict[str, Any], tmp_path: Path) -> None:
    started, planned, *steps = fake_run.events(3)
    told = view_of(fake_run.write(tmp_path / "run", [started, {**planned, "plan": fake_run.PLAN | wrong}, *steps]))
    assert told.plan == {} and told.devices == [] and told.step == 3


def test_kinds_of_event_that_this_version_does_not_know_are_ignored() -> None:
    unknown = {"type": "from_the_future", "t": 1.0, "step": 1, "attempt": 1}
    assert plain_log.line(unknown) is None
    before = content(folded(fake_run.events(3)))
    assert content(folded([*fake_run.events(3), unknown])) == before


#: What Unicode has to keep letters apart and to join them; no cell of their own, and no command to a terminal.
JOINERS = "\u200c\u200d"


@given(st.text())
def test_nothing_that_a_terminal_obeys_gets_through(text: str) -> None:
    for shown in (neutralise(text), neutralise(HOSTILE + text), neutralise(text, flowing=True)):
        assert all(c == "\n" or c.isprintable() or c in JOINERS for c in shown)
    assert neutralise("naïve 日本 [bold]\n  x") == "naïve 日本 [bold]\n  x"


@pytest.mark.parametrize(
    ("text", "counted", "flowing"),
    [
        ("می\u200cخواهم", "می\u200cخواهم", "می\u200cخواهم"),
        ("क्\u200dष 🏽\u200d🚀 ❤\ufe0f\u200d🔥", "क्�ष 🏽�🚀 ❤\ufe0f�🔥", "क्\u200dष 🏽\u200d🚀 ❤\ufe0f\u200d🔥"),
        ("\u200dم\u200c", "�م�", "�م�"),
        ("م\u200c\u200cخ م\u200c خ", "م��خ م� خ", "م��خ م� خ"),
        ("ad\u200cmin ad\u200dmin x\u200cم", "ad�min ad�min x�م", "ad�min ad�min x�م"),
        ("م\u202eخ م\x1b\u200cخ", "م�خ م␛�خ", "م�خ م␛�خ"),
    ],
    ids=["Persian", "joined", "at the ends", "in a row", "beside ASCII", "beside what is obeyed"],
)
def test_what_joins_letters_and_emoji_or_keeps_them_apart_stays_between_them_alone(
    text: str, counted: str, flowing: str
) -> None:
    assert (neutralise(text), neutralise(text, flowing=True)) == (counted, flowing)


@given(st.lists(st.text("a\r\n\t\x1b مخ🚀" + JOINERS, max_size=4)))
def test_a_text_in_pieces_is_inert_as_the_whole_text_is_but_for_what_is_not_seen_at_its_end(given: list[str]) -> None:
    pieces, whole = NeutralStream(), "".join(given)
    assert "".join(map(pieces.add, given)) == neutralise(whole.rstrip("\r" + JOINERS), flowing=True)


def test_a_hostile_sample_is_inert_in_lines_in_json_and_in_the_view() -> None:
    event = {"type": "sampled", "t": 1.0, "step": 1, "attempt": 1, "prompt": HOSTILE, "text": HOSTILE, "seconds": 0.1}
    shown = [plain_log.line(event) or "", folded([event]).samples[0].text]
    for text in [*shown, plain_log.as_json(event)]:
        assert "\x1b" not in text and "\x9b" not in text and "\u202e" not in text
        text.encode()
    assert "␛[2J" in shown[1] and "[bold red]boo[/]" in shown[1]
    assert json.loads(plain_log.as_json(event)) == event


def test_plain_lines_hold_the_first_and_last_step_and_few_between() -> None:
    printer = plain_log.PlainLog(every=10.0)
    lines = [line for event in fake_run.events(600) for line in printer.feed(event)]
    steps = [line for line in lines if "  step " in line]
    assert "step   1/600" in steps[0] and "step 600/600" in steps[-1]
    assert len(steps) == pytest.approx(600 * 0.37 / 10, abs=3)
    assert "loss" in steps[1] and "lr " in steps[1] and "norm" in steps[1] and "tok/s" in steps[1] and "ETA" in steps[1]
    evaluated = next(line for line in lines if "evaluated" in line)
    assert "loss" in evaluated and "perplexity" in evaluated and "bits per byte" in evaluated
    assert any("    | def main(argv=None):" in line for line in lines)


def test_a_run_that_is_stopped_early_still_shows_its_last_step() -> None:
    printer = plain_log.PlainLog(every=1000.0)
    end = {"type": "run_finished", "t": 2e9, "step": 37, "attempt": 1}
    events = [*fake_run.events(37, total=600), {**end, "status": "stopped", "exit_code": 75, "message": ""}]
    lines = [line for event in events for line in printer.feed(event)]
    assert "step  37/600" in lines[-2] and lines[-1].endswith("stopped at step 37")


def test_the_clock_of_plain_lines_never_goes_back_though_the_last_step_is_reported_after_its_checkpoint() -> None:
    printer = plain_log.PlainLog(every=1000.0)
    events = fake_run.events(37, total=600)
    last = events[-1]["t"]
    saved = {"kind": "rolling", "path": "checkpoints/37", "bytes": 1, "seconds": 1.0}
    events.append({"type": "checkpoint_saved", "t": last + 5, "step": 37, "attempt": 1, **saved})
    end = {"status": "stopped", "exit_code": 75, "message": ""}
    events.append({"type": "run_finished", "t": last + 6, "step": 37, "attempt": 1, **end})
    lines = [line for event in events for line in printer.feed(event)]
    clocks = [found[0] for line in lines if (found := re.match(r"\d\d:\d\d:\d\d", line))]
    assert "step  37/600" in lines[-2] and clocks == sorted(clocks)


def test_a_line_of_the_log_is_never_earlier_than_the_one_before(tmp_path: Path) -> None:
    log = EventLog(tmp_path, attempt=1)
    with ThreadPoolExecutor(8) as pool:
        for step in range(400):
            pool.submit(log.write, "log", step=step, level="info", message="x" * 2000)
    log.close()
    times = [json.loads(line)["t"] for line in (tmp_path / NAME).read_text().splitlines()]
    assert len(times) == 400 and times == sorted(times)


@pytest.mark.parametrize(
    ("seconds", "told"),
    [
        (0.04, "0.0 s"),
        (9.94, "9.9 s"),
        (9.96, "10 s"),
        (59.7, "1m 00s"),
        (3599.6, "1h 00m"),
        (90061, "1d 01h"),
        (math.nan, "nan s"),
        (math.inf, "inf s"),
    ],
)
def test_durations_have_two_units_at_most(seconds: float, told: str) -> None:
    assert format_duration(seconds) == told


@pytest.mark.parametrize(
    ("value", "told"),
    [
        (7, "7"),
        (950, "950"),
        (4096, "4,096"),
        (11_132, "11.1k"),
        (3_200_000, "3.20M"),
        (1.449e9, "1.45B"),
        (math.nan, "nan"),
    ],
)
def test_counts_have_three_digits_and_a_unit(value: float, told: str) -> None:
    assert format_count(value) == told


def test_an_event_after_a_line_that_a_full_disk_tore_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = EventLog(tmp_path, attempt=1)
    whole_write = os.write
    taken: list[int] = []

    def write(fd: int, data: bytes) -> int:
        if taken:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        taken.append(whole_write(fd, data[:20]))
        return taken[0]

    monkeypatch.setattr(os, "write", write)
    with pytest.raises(OSError, match="No space left"):
        log.write("log", step=1, level="info", message="torn")
    monkeypatch.setattr(os, "write", whole_write)
    log.write("log", step=1, level="info", message="whole")
    assert [event["message"] for event in read(tmp_path)] == ["whole"]


@pytest.mark.parametrize(
    "wrong",
    [
        {"step": -1}, {"step": 10**400}, {"t": 1e400}, {"t": -1}, {"t": 10**12}, {"attempt": 10**30}, {"step": 1.5},
        {"seconds": 1e400}, {"seconds": -1.0}, {"metrics": 7},
    ],
)  # fmt: skip
def test_an_event_with_a_number_that_nothing_can_have_is_skipped(tmp_path: Path, wrong: dict[str, Any]) -> None:
    good = {"type": "evaluated", "t": 1.0, "step": 1, "attempt": 1, "name": "x", "metrics": {}, "seconds": 0.1}
    (tmp_path / NAME).write_text("".join(json.dumps(event) + "\n" for event in (good, good | wrong, good)))
    assert read(tmp_path) == [good, good]


def test_lines_that_are_no_events_do_not_end_the_reading(tmp_path: Path) -> None:
    fake_run.write(tmp_path, fake_run.events(2))
    (tmp_path / NAME).write_text("nonsense\n" * 100 + (tmp_path / NAME).read_text())
    assert [event["type"] for event in Tail(tmp_path).poll(limit_bytes=64)] == ["run_started"]


def test_a_log_that_has_become_shorter_is_known_to_be_another(tmp_path: Path) -> None:
    fake_run.write(tmp_path, fake_run.events(3))
    tail = Tail(tmp_path)
    assert tail.poll() and not tail.replaced
    assert not tail.poll() and not tail.replaced
    fake_run.write(tmp_path, fake_run.events(1))
    assert not tail.poll() and tail.replaced


def test_a_log_that_stands_in_for_another_is_known_to_be_another_though_it_is_longer(tmp_path: Path) -> None:
    fake_run.write(tmp_path, fake_run.events(3))
    tail = Tail(tmp_path)
    assert tail.poll()
    fake_run.write(tmp_path / "new", fake_run.events(30))
    (tmp_path / "new" / NAME).replace(tmp_path / NAME)
    tail.poll()
    assert tail.replaced


def test_a_look_at_a_log_that_has_not_grown_opens_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_run.write(tmp_path, fake_run.events(3))
    tail = Tail(tmp_path)
    assert tail.poll()
    monkeypatch.setattr(Path, "open", lambda *_: pytest.fail("it was opened"))
    assert not tail.poll() and not tail.replaced


def test_attempts_are_counted_on_after_a_last_line_of_any_length(tmp_path: Path) -> None:
    assert last_attempt(tmp_path) == 0
    log = EventLog(tmp_path, attempt=3)
    log.write("run_started", step=0, **fake_run.started())
    values = {f"parameters/{n}": {"low": 0.0, "high": 1.0, "counts": [1] * 64} for n in range(1000)}
    log.write("distributions", step=1, values=values)
    log.close()
    assert last_attempt(tmp_path) == 3
    (tmp_path / NAME).write_text("no event\n" * 20_000)
    assert last_attempt(tmp_path) == 0


def test_a_clock_that_is_put_back_silences_no_steps() -> None:
    printer = plain_log.PlainLog(every=10.0)
    events = fake_run.events(100, total=600)
    for event in events[60:]:
        event["t"] -= 3600
    steps = [line for event in events for line in printer.feed(event) if "  step " in line]
    assert len(steps) == pytest.approx(100 * 0.37 / 10 + 1, abs=1)
    progress = {"type": "cache_progress", "step": 0, "attempt": 1, "what": "x", "documents": 1, "bytes": 1, "tokens": 1}
    told = [printer.feed({**progress, "t": t, "total_bytes": None, "done": False}) for t in (5e9, 5e9 - 3600)]
    assert [len(lines) for lines in told] == [0, 1]


def test_what_no_trainer_wrote_is_left_out_of_a_view_and_the_rest_is_in_it(tmp_path: Path) -> None:
    where = {"t": 1.0, "step": 2, "attempt": 1}
    wrong = [{}, {"metrics": {"a": None}}, {"metrics": {"a": "much"}}, {"metrics": {"a": 10**400}}]
    events = fake_run.events(4)
    foreign = [{"type": "step", **where, **fields} for fields in wrong] + [{"type": "run_started", **where}]
    run = fake_run.write(tmp_path / "run", [*events[:4], *foreign, *events[4:]])
    view = view_of(run)
    assert list(view.series["train/loss"].steps) == [1, 2, 3, 4]
    assert all(view.series.values()), "there is no metric of which nothing is known"
