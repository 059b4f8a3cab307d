"""A run of several processes: each computes its part of every step, and together they are one run."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import failing_host
import pytest
from held import HELD_AT, held_command
from ports import free_port
from trainer import BARE, LIMIT, RECIPE, ending, environment, losses, trainkit, workplace

from trainkit.checkpoint import store
from trainkit.events.tail import read

HOSTS = (
    RECIPE.replace("steps = 24", "steps = 12")
    .replace("layers = 2", "layers = 1")
    .replace("every = 10", "every = 6")
    .replace("[sample]\nevery = 12", "[statistics]\nevery = 6\n[parallel]\nfsdp = 2\n")
    .replace('prompts = ["the cat"]\nmax_tokens = 8\n', "")
)


def start(directory: Path, *arguments: str, failures: str = "", held_at: str = "") -> list[subprocess.Popen[str]]:
    """Start a command as two processes with a device each, with `failures` of `failing_host`; without, the first stands
    still at an event, if one is named."""
    around = environment() | {"JAX_COORDINATOR_ADDRESS": f"localhost:{free_port()}", "JAX_NUM_PROCESSES": "2"}
    around |= {"JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": "1", HELD_AT: held_at}
    return [
        subprocess.Popen(
            [sys.executable, failing_host.__file__, failures, *arguments] if failures else held_command(*arguments),
            cwd=directory,
            env=around | {"JAX_PROCESS_ID": str(number)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for number in range(2)
    ]


def ends(processes: list[subprocess.Popen[str]]) -> list[tuple[int, str, str]]:
    """Return the exit code, stdout and stderr of each process."""
    printed = [process.communicate(timeout=LIMIT) for process in processes]
    return [(process.returncode, *texts) for process, texts in zip(processes, printed, strict=True)]


def test_two_hosts_train_as_one_and_a_signal_to_either_ends_both_with_a_checkpoint(tmp_path: Path) -> None:
    alone = workplace(tmp_path / "one", HOSTS)
    done = trainkit(alone, "run", "tiny.toml", "--plain", devices=2)
    assert done.returncode == 0, done.stderr
    together = workplace(tmp_path / "two", HOSTS)
    run = together / "runs" / "tiny"
    processes = start(together, "run", "tiny.toml", "--plain", held_at="step 1")
    until = time.monotonic() + LIMIT
    while not ((run / "events.jsonl").exists() and losses(run)) and time.monotonic() < until:
        assert processes[0].poll() is None, ends(processes)
        time.sleep(0.02)
    processes[1].send_signal(signal.SIGTERM)
    processes[0].send_signal(signal.SIGCONT)
    stopped = ends(processes)
    assert [code for code, _, _ in stopped] == [75, 75], stopped
    last = max(losses(run))
    assert last < 12 and [info.step for info in store.checkpoints(run)][-1] == last
    resumed = ends(start(together, "resume", "tiny", "--plain"))
    assert [code for code, _, _ in resumed] == [0, 0], resumed
    assert f"resuming from step {last}" in resumed[0][2] and "resuming" not in resumed[1][2]
    assert "step 12/12" in resumed[0][1] and "step" not in resumed[1][1], "one process prints"

    events, before = read(run), read(alone / "runs" / "tiny")
    assert [event["step"] for event in events if event["type"] == "step"] == list(range(1, 13))
    assert losses(run) == pytest.approx(losses(alone / "runs" / "tiny"), abs=1e-4)
    evaluated, wanted = ([e["metrics"] for e in log if e["type"] == "evaluated"] for log in (events, before))
    for found, value in zip(evaluated, wanted, strict=True):
        assert found == pytest.approx(value, abs=1e-3)
    assert [e["status"] for e in events if e["type"] == "run_finished"][-1] == "finished"
    assert len([e for e in events if e["type"] == "distributions"]) == 2
    assert not any(store.verify(info.directory) for info in store.checkpoints(run))
    # each host wrote the half that it holds
    parts = (run / "checkpoints" / "12" / "arrays" / "params.token_embedding").glob("c.*")
    assert len(list(parts)) == 2


def test_an_error_of_the_first_process_ends_the_others(tmp_path: Path) -> None:
    directory = workplace(tmp_path, HOSTS.replace("text/*.txt", "none/*.txt"))
    first, second = ends(start(directory, "run", "tiny.toml", "--plain"))
    assert (first[0], second[0]) == (2, 2) and "no file matches" in first[2] and "no file matches" not in second[2]
    assert not (directory / "runs" / "tiny").exists()


def test_an_error_of_one_process_ends_all_with_a_checkpoint_of_the_last_step_and_its_name(tmp_path: Path) -> None:
    recipe = BARE.replace("layers = 2", "layers = 1").replace("keep_every = 6", "keep_every = [2, 4]")
    directory = workplace(tmp_path, f"{recipe}[parallel]\nfsdp = 2\n")
    run = directory / "runs" / "tiny"

    def steps_on_disk() -> list[int]:
        return [info.step for info in store.checkpoints(run) if not store.verify(info.directory)]

    ended = ends(start(directory, "run", "tiny.toml", "--plain", failures="copy,write,batch"))
    for code, _, errors in ended:
        assert code == 1 and "process 1 on " in errors and "OSError: this disk cannot be read" in errors, ended
    assert ending(run)[:2] == ("failed", 7), ended
    assert steps_on_disk() == [2, 7], "that of step 2 is written without a copy, that of step 4 by no process"
    (alert,) = (e["message"] for e in read(run) if e["type"] == "alert" and e["kind"] == "checkpoint")
    assert "process 1: this disk is full" in alert

    ended = ends(start(directory, "resume", "tiny", "--plain", failures="log"))
    for code, _, errors in ended:
        assert code == 1 and "process 0 on " in errors and "this log cannot be written" in errors, ended
    # step 10 usually computes while step 9 is logged; it does not if it has to wait for its batch
    assert steps_on_disk() in ([2, 7, 9], [2, 7, 10])
