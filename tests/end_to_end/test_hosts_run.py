"""A run of several processes: each computes its part of every step, and together they are one run."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import failing_host
import pytest
from failing_host import BROKEN
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


#: With `BROKEN` steps done and a checkpoint before the one that breaks.
BREAKING = BARE.replace("layers = 2", "layers = 1").replace("steps = 24", "steps = 8")
BREAKING = BREAKING.replace("keep_every = 6", "keep_every = [2, 4]") + "[parallel]\nfsdp = 2\n"


def broken(directory: Path, failures: str, guard: str = "") -> tuple[Path, list[tuple[int, str, str]]]:
    """Return the run of two processes in which something breaks, and how each of them ended."""
    place = workplace(directory, f"{BREAKING}{guard}")
    return place / "runs" / "tiny", ends(start(place, "run", "tiny.toml", "--plain", failures=failures))


@pytest.mark.parametrize(("guard", "code"), [("skip", 0), ("rollback", 0), ("stop", 1)])
def test_a_step_that_breaks_on_one_host_is_judged_alike_by_all(tmp_path: Path, guard: str, code: int) -> None:
    run, ended = broken(tmp_path, "poison", f'[guard]\nnon_finite = "{guard}"\nleave_out = 2\n')
    assert [each[0] for each in ended] == [code, code], ended
    boxes = [path.parent.name for path in run.glob("blackbox/*/box.json")]
    assert boxes == [str(BROKEN)], "one process writes it"
    events = read(run)
    assert len([e for e in events if e["type"] == "alert" and e["kind"] == "guard"]) == (guard == "skip")
    left_out = [e["left_out"] for e in events if e["type"] == "rolled_back"]
    assert left_out == ([[BROKEN - 1, BROKEN]] if guard == "rollback" else [])
    assert not any(store.verify(info.directory) for info in store.checkpoints(run))
    if code:
        assert ending(run)[0] == "failed" and all(f"step {BROKEN}: train/loss is nan" in err for *_, err in ended)
        return
    assert ending(run)[:2] == ("finished", 8)
    assert [e["step"] for e in events if e["type"] == "step"] == list(range(1, 9))
    newest = store.newest(run)
    assert newest is not None and newest.step == 8
    # from the checkpoint before the steps that are left out, which both then had
    assert list(newest.manifest.left_out) == [step for steps in left_out for step in steps]


def test_one_stalled_process_ends_both_with_the_stacks_of_each(tmp_path: Path) -> None:
    run, ended = broken(tmp_path, "stall", '[guard]\nstalled_minutes = 0.25\nstalled = "stop"\n')
    assert [code for code, *_ in ended] == [1, 1], ended
    assert all("no step was completed for" in errors for *_, errors in ended), ended
    stacks = {path.name: path.read_text() for path in (run / "blackbox").glob("stacks-*.txt")}
    assert set(stacks) == {"stacks-1.txt", "stacks-1-process-1.txt"}
    assert all("Thread" in text for text in stacks.values())
    assert ending(run)[0] == "failed"


@pytest.mark.parametrize("number", [0, 1])
def test_a_process_that_is_killed_ends_the_other_with_an_error_that_names_it(tmp_path: Path, number: int) -> None:
    run, ended = broken(tmp_path, f"kill_{number}")
    assert ended[number][0] == -signal.SIGKILL
    code, _, errors = ended[1 - number]
    assert code == 1 and f"process {number} on " in errors and "has ended" in errors, ended
    resumed = ends(start(run.parents[1], "resume", "tiny", "--plain"))
    assert [code for code, *_ in resumed] == [0, 0], resumed


def test_a_process_without_memory_says_so_and_the_other_names_it(tmp_path: Path) -> None:
    run, (first, second) = broken(tmp_path, "memory")
    assert first[0] == second[0] == 1
    assert "process 1 on " in first[2] and "has ended" in first[2], first
    assert "process 1 on " in second[2] and "has no memory left" in second[2] and "micro_batch_size" in second[2], (
        second
    )
    assert ending(run)[0] == "failed"
