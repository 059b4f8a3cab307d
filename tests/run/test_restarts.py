"""A trainer that fails is started again, unless it was told to end or would fail in the same way."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from places import LIMIT

from trainkit.errors import DONE, FAILED, INTERRUPTED, STOPPED_EARLY, WRONG_INPUT
from trainkit.run import restarts
from trainkit.run.restarts import supervise

#: Writes an attempt into the log, and ends as the next word of the file `ends` says: STEP:EXIT_CODE:REASON.
TRAINER = """
import json, os, pathlib, signal, sys
run = pathlib.Path(sys.argv[1])
end, *left = (run / "ends").read_text().split()
(run / "ends").write_text(" ".join(left))
step, code, reason = end.split(":")
number = 1 + (run / "events.jsonl").read_text().count("run_started") if (run / "events.jsonl").exists() else 1
common = {"t": 1.0, "step": int(step), "attempt": number}
with (run / "events.jsonl").open("a") as log:
    log.write(json.dumps({"type": "run_started", "resumed_from": None, **common}) + "\\n")
    if reason != "silent":
        log.write(json.dumps({"type": "run_finished", "status": "failed", "exit_code": int(code), "message": reason,
                              **common}) + "\\n")
if int(code) < 0:
    os.kill(os.getpid(), -int(code))
sys.exit(int(code))
"""


@pytest.fixture(autouse=True)
def no_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(restarts, "FIRST_WAIT", 0.0)


def outcome(run: Path, ends: str, *, most: int = 5) -> tuple[int, list[str], str]:
    """Return the exit code, what was said, and the ends that no attempt came to."""
    (run / "ends").write_text(ends)
    said: list[str] = []
    code = supervise(run, [sys.executable, "-c", TRAINER, str(run)], restarts=most, say=said.append)
    return code, said, (run / "ends").read_text()


def test_a_run_that_fails_at_different_places_is_restarted_until_it_is_done(tmp_path: Path) -> None:
    code, said, left = outcome(tmp_path, "3:1:disk 7:-9:silent 9:1:disk 9:0:done")
    assert (code, left) == (DONE, "")
    assert [line.partition(": ")[2] for line in said] == [
        "it failed after step 3: disk",
        "it failed after step 7: ended by SIGKILL",
        "it failed after step 9: disk",
    ]


@pytest.mark.parametrize("end", ["4:1:broken", "4:-9:silent", "0:1:broken"])
def test_a_failure_that_repeats_itself_ends_the_run(tmp_path: Path, end: str) -> None:
    code, said, left = outcome(tmp_path, f"2:1:other {end} {end} {end}")
    assert (code, left) == (FAILED, end)
    assert said[-1].startswith("not restarted: it failed twice after step")


def test_whoever_gives_up_names_the_black_box(tmp_path: Path) -> None:
    (tmp_path / "blackbox" / "5").mkdir(parents=True)
    _, said, _ = outcome(tmp_path, "4:1:broken 4:1:broken")
    assert said[-1] == f"to see the step that broke again: trainkit inspect {tmp_path} --blackbox"


@pytest.mark.parametrize("code", [WRONG_INPUT, STOPPED_EARLY, INTERRUPTED, DONE])
def test_a_run_that_was_stopped_or_is_wrong_is_not_restarted(tmp_path: Path, code: int) -> None:
    assert outcome(tmp_path, f"5:{code}:end 5:0:done") == (code, [], "5:0:done")


def test_restarts_are_counted(tmp_path: Path) -> None:
    code, said, left = outcome(tmp_path, "1:1:a 2:1:a 3:1:a 4:0:a", most=2)
    assert (code, left, said[-1]) == (FAILED, "4:0:a", "not restarted: it was restarted 2 times")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP])
def test_a_signal_reaches_the_trainer_once_and_ends_both(tmp_path: Path, number: int) -> None:
    trainer = f"""
import signal, sys, time
got = []
signal.signal({int(number)}, lambda *_: got.append(1))
signal.pthread_sigmask(signal.SIG_UNBLOCK, [{int(number)}])
print("ready", flush=True)
while not got:
    time.sleep(0.01)
sys.exit(130 + len(got) - 1)
"""
    command = [sys.executable, "-m", "trainkit.run.restarts", str(tmp_path), "3", sys.executable, "-c", trainer, "then"]
    with subprocess.Popen([*command, "false"], stdout=subprocess.PIPE, text=True, process_group=0) as supervisor:
        assert supervisor.stdout is not None and supervisor.stdout.readline() == "ready\n"
        supervisor.send_signal(number)
        assert supervisor.wait(LIMIT) == INTERRUPTED


def test_failures_are_read_from_lines_that_a_trainer_wrote(tmp_path: Path) -> None:
    (tmp_path / "events.jsonl").write_text(json.dumps({"type": "run_finished"}) + "\n")
    assert outcome(tmp_path, "1:0:done")[0] == DONE
