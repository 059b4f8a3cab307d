"""A trainer that does nothing says what it does instead."""

from __future__ import annotations

import threading
from pathlib import Path

from trainkit.events.log import EventLog
from trainkit.events.tail import read
from trainkit.train.watchdog import MOST, Watchdog, report_stall


def test_each_stall_is_reported_once_and_only_where_steps_are_due() -> None:
    now, reports = [0.0], list[float]()
    dog = Watchdog(None, reports.append, clock=lambda: now[0])
    dog._seconds = 60  # without a thread, so that the test looks itself

    def look(after: float) -> list[float]:
        now[0] += after
        dog.look()
        return reports

    assert look(59) == [] and look(1) == [60] and look(600) == [60]
    dog.note_step()
    with dog.aside():
        assert look(600) == [60]
    assert look(59) == [60] and look(2) == [60, 61]
    for _ in range(MOST):
        dog.note_step()
        look(60)
    assert len(reports) == MOST


def test_a_stall_leaves_the_stacks_of_all_threads_and_an_alert(tmp_path: Path) -> None:
    stuck, stalled = threading.Event(), threading.Event()

    def hang_here() -> None:
        stuck.wait()

    thread = threading.Thread(target=hang_here)
    thread.start()
    log = EventLog(tmp_path, attempt=1)

    def report(waited: float) -> None:
        report_stall(tmp_path / "blackbox", log, waited)
        stalled.set()

    dog = Watchdog(0.01, report)
    assert stalled.wait(60)
    stuck.set()
    dog.close()
    thread.join()
    log.close()
    (alert,) = (event for event in read(tmp_path) if event["type"] == "alert")
    assert alert["kind"] == "stalled" and "blackbox/stacks-1.txt" in alert["message"]
    assert "hang_here" in (tmp_path / "blackbox" / "stacks-1.txt").read_text()
