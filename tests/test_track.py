"""The Aim sidecar: what the log says is what Aim's SDK reads back, and its failure harms nothing."""

from __future__ import annotations

import fcntl
import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from trainkit.errors import TrainkitError
from trainkit.events.log import EventLog
from trainkit.events.process import process_started
from trainkit.recipe.upkeep import Track
from trainkit.track import mapping, progress, tail
from trainkit.track.sidecar import Sidecar

CHILD = Path(__file__).with_name("aim_child.py")


def began(run: Path, attempt: int, *, resumed_from: int | None = None, pid: int | None = None) -> EventLog:
    """A log whose trainer is this process, or that of `pid`."""
    pid = pid or os.getpid()
    log = EventLog(run, attempt=attempt)
    who: dict[str, Any] = {"pid": pid, "process_started": process_started(pid), "host": "here"}
    facts: dict[str, Any] = {"schema": 1, "name": run.name, "recipe": "f00", "versions": {"jax": "0"}}
    log.write("run_started", step=resumed_from or 0, resumed_from=resumed_from, **who, **facts)
    return log


def finish(log: EventLog, step: int) -> None:
    log.write("run_finished", step=step, status="finished", exit_code=0, message="")
    log.close()


def train(log: EventLog, steps: range, *, factor: float = 1.0) -> None:
    for step in steps:
        log.write("step", step=step, metrics={"train/loss": factor / step, "throughput/mfu": 0.5})


def read_back(repository: Path) -> dict[str, Any]:
    """Runs by name, through the SDK in a fresh process."""
    done = subprocess.run([sys.executable, CHILD, repository], check=True, capture_output=True, text=True)
    return {run["name"]: run for run in json.loads(done.stdout.splitlines()[-1])}


def run_directory(parent: Path, name: str) -> Path:
    run = parent / name
    run.mkdir()
    (run / "recipe.toml").write_text('schema = 1\n[train]\nsteps = 30\n[run]\nname = "n"\n')
    return run


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("repository")


def test_a_run_is_read_back_from_aim_and_its_resumption_is_the_same_aim_run(tmp_path: Path, repository: Path) -> None:
    run, spec = run_directory(tmp_path, "whole"), Track(repository=str(repository), experiment="tests")
    log = began(run, 1)
    log.write("planned", step=0, total_steps=30, plan={"parameters": {"all": 7}}, devices=["cpu"])
    train(log, range(1, 4))
    sidecar = Sidecar.start(run, spec)
    train(log, range(4, 31))
    bits = {"validation/held-out/loss": 2.5, "validation/held-out/bits_per_byte": float("nan")}
    log.write("evaluated", step=30, name="held-out", metrics=bits, seconds=0.1)
    log.write("sampled", step=30, prompt="def ", text="dé f(x):", seconds=0.1)
    log.write("sampled", step=30, prompt="if ", text="if x:", seconds=0.1)
    log.write("alert", step=30, kind="nan", message="not a number")
    log.write("log", step=30, level="info", message="hello")
    finish(log, 30)
    assert sidecar.finish(timeout=120) is None
    assert "aim" not in sys.modules, "the trainer's process must not pay for aim"
    first = read_back(repository)["whole"]
    assert first["hash"] == sidecar.run_hash() and first["experiment"] == "tests" and first["ended"]
    assert first["parameters"]["recipe"] == {"schema": 1, "train": {"steps": 30}, "run": {"name": "n"}}
    assert first["parameters"]["plan"] == {"parameters": {"all": 7}, "total_steps": 30, "devices": ["cpu"]}
    assert first["parameters"]["run"]["versions"] == {"jax": "0"} and first["parameters"]["status"] == "finished"
    steps = list(range(1, 31))
    assert first["metrics"] == {
        "train/loss": [{"subset": "train"}, steps, [str(1.0 / step) for step in steps]],
        "throughput/mfu": [{}, steps, ["0.5"] * 30],
        "validation/held-out/loss": [{"subset": "validation"}, [30], ["2.5"]],
        "validation/held-out/bits_per_byte": [{"subset": "validation"}, [30], ["nan"]],
    }
    assert first["texts"] == {
        "samples {'prompt': 'def '}": [[30, "dé f(x):"]],
        "samples {'prompt': 'if '}": [[30, "if x:"]],
    }
    assert first["messages"] == [["WARNING", "nan: not a number"], ["INFO", "hello"]]

    log = began(run, 2, resumed_from=20)
    again = Sidecar.start(run, spec)
    train(log, range(21, 26), factor=3.0)
    finish(log, 25)
    assert again.finish(timeout=120) is None
    second = read_back(repository)["whole"]
    assert second["hash"] == first["hash"] and second["parameters"]["run"]["attempt"] == 2
    expected = [str(1.0 / step) for step in range(1, 21)] + [str(3.0 / step) for step in range(21, 26)]
    assert second["metrics"] == {
        "train/loss": [{"subset": "train"}, list(range(1, 26)), expected],
        "throughput/mfu": [{}, list(range(1, 26)), ["0.5"] * 25],
        "validation/held-out/loss": [{"subset": "validation"}, [], []],
        "validation/held-out/bits_per_byte": [{"subset": "validation"}, [], []],
    }, "what the first attempt did beyond step 20 is no part of the run"
    assert not any(second["texts"].values()) and second["messages"] == first["messages"]


def test_a_killed_sidecar_is_continued_without_gaps_or_doubles_and_ends_with_its_trainer(
    tmp_path: Path, repository: Path
) -> None:
    run, spec = run_directory(tmp_path, "killed"), Track(repository=str(repository))
    trainer = subprocess.Popen(["sleep", "1000"])
    log = began(run, 1, pid=trainer.pid)
    log.write("alert", step=0, kind="first", message="one")
    train(log, range(1, 6000))
    sidecar = Sidecar.start(run, spec)
    assert sidecar._process is not None
    deadline = time.monotonic() + 120
    while (found := progress.read(run)) is None or found.offset == 0:
        assert time.monotonic() < deadline and sidecar.poll() is None
        time.sleep(0.01)
    os.kill(sidecar._process.pid, signal.SIGKILL)
    assert "exit -9" in (sidecar.finish(timeout=60) or "")
    (repository / ".aim" / "locks" / f"{found.run}.softlock").write_text("")  # as a kill between two writes leaves it
    train(log, range(6000, 6100))
    log.write("alert", step=6099, kind="last", message="two")
    log.close()
    trainer.kill()
    trainer.wait()
    again = Sidecar.start(run, spec)
    assert again.finish(timeout=120) is None, (run / "aim.log").read_text()
    told = [run for name, run in read_back(repository).items() if name == "killed"]
    assert [run["hash"] for run in told] == [found.run] and told[0]["ended"]
    assert told[0]["metrics"]["train/loss"][1] == list(range(1, 6100))
    assert told[0]["messages"] == [["WARNING", "first: one"], ["WARNING", "last: two"]]


def test_a_repository_that_cannot_be_opened_is_reported_once_and_nothing_else_happens(tmp_path: Path) -> None:
    run = run_directory(tmp_path, "run")
    (tmp_path / ".aim").write_text("a file in its place")
    log = began(run, 1)
    sidecar = Sidecar.start(run, Track(repository=str(tmp_path)))
    message = sidecar.finish(timeout=120)
    assert message is not None and message.startswith("the Aim sidecar failed (exit 1): ")
    assert f"{tmp_path}/.aim: the Aim repository cannot be opened: FileExistsError" in message
    assert sidecar.poll() is None and sidecar.run_hash() is None
    assert sidecar.finish(timeout=1) is None
    finish(log, 0)
    assert (tmp_path / ".aim").read_text() == "a file in its place"


def test_without_aim_there_is_one_message_and_no_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    sidecar = Sidecar.start(tmp_path, Track())
    assert "aim is not installed" in (sidecar.poll() or "")
    assert sidecar.poll() is None and sidecar.finish(timeout=0) is None
    assert list(tmp_path.iterdir()) == []


def test_a_run_is_copied_by_one_process_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tail, "PATIENCE", 0.3)
    with (tmp_path / "aim.lock").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(TrainkitError, match="another process is copying this run into Aim"):
            tail.follow(tmp_path, repository=tmp_path, experiment="e")
    assert not (tmp_path / ".aim").exists()


def test_a_sidecar_that_needs_too_long_is_left_to_end_by_itself(tmp_path: Path) -> None:
    process = subprocess.Popen(["sleep", "1000"])
    sidecar = Sidecar(tmp_path, process, None)
    assert f"by process {process.pid}" in (sidecar.finish(timeout=0.05) or "")
    assert process.poll() is None
    process.kill()
    process.wait()


def test_metrics_keep_their_paths_and_only_the_subset_is_context() -> None:
    assert mapping.context("train/loss") == {"subset": "train"}
    assert mapping.context("validation/held-out/loss") == {"subset": "validation"}
    assert mapping.context("optimizer/learning_rate") == {} and mapping.context("trainer") == {}
    event = {"type": "step", "t": 0.0, "step": 1, "attempt": 1, "metrics": {"a/b": "inf", "c": 2}}
    assert mapping.metrics(event) == {"a/b": float("inf"), "c": 2.0}
    assert mapping.metrics({"type": "log", "metrics": {"a": 1}}) == {}


def test_progress_is_written_whole_and_a_torn_one_is_none(tmp_path: Path) -> None:
    assert progress.read(tmp_path) is None
    known = progress.Progress(run="abc", repository="/r", offset=12, pid=3, process_started=4.5)
    progress.write(tmp_path, known)
    assert progress.read(tmp_path) == known
    path = tmp_path / "aim.json"
    path.write_text(path.read_text()[:-5])
    assert progress.read(tmp_path) is None
    path.write_text('{"something": "else"}')
    assert progress.read(tmp_path) is None


def test_the_trainers_side_imports_no_aim() -> None:
    code = "import sys, trainkit.track.sidecar; assert not {'aim', 'jax', 'numpy'} & sys.modules.keys()"
    subprocess.run([sys.executable, "-c", code], check=True)
