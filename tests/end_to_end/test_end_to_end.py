"""Whole runs, from the recipe to what is left of them: in real processes, on one fake device and on eight."""

from __future__ import annotations

import json
import math
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
from places import SUPPORT
from trainer import LIMIT, RECIPE, Trainer, environment, losses, trainkit, workplace

from trainkit.data.cache import build
from trainkit.events.tail import NAME, read
from trainkit.recipe.toml.load import load

STEPS = 12
#: Of the same batch on other devices only the order of additions differs.
TOLERANCE = 2e-3
FIRST = RECIPE.replace("steps = 24", f"steps = {STEPS}")

SCRIPT = """
import json, sys
from pathlib import Path
from trainkit.cli.run import run
assert run(Path("tiny.toml"), smoke=True) == 0
print(json.dumps(sorted(sys.modules)), file=sys.stderr)
"""


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return workplace(tmp_path_factory.mktemp("end-to-end"), FIRST)


@pytest.fixture(scope="module")
def plain(place: Path) -> subprocess.CompletedProcess[str]:
    """The run `tiny`, on one device, copied into Aim."""
    done = trainkit(place, "run", "tiny.toml", "--plain", "--set", "track.aim=true")
    assert done.returncode == 0, done.stdout + done.stderr
    return done


@pytest.fixture(scope="module")
def one(place: Path, plain: object) -> Path:
    return place / "runs" / "tiny"


@pytest.fixture(scope="module")
def eight(place: Path) -> Path:
    """The same recipe on eight devices."""
    done = trainkit(place, "run", "tiny.toml", "--plain", "--name", "eight", devices=8)
    assert done.returncode == 0, done.stdout + done.stderr
    return place / "runs" / "eight"


@pytest.fixture(scope="module")
def smoke(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, subprocess.CompletedProcess[str]]:
    directory = workplace(tmp_path_factory.mktemp("smoke"), FIRST)
    return directory, trainkit(directory, "run", "tiny.toml", "--smoke")


def of_kind(run: Path, kind: str) -> list[dict[str, Any]]:
    return [event for event in read(run) if event["type"] == kind]


def validation(run: Path) -> dict[int, float]:
    return {event["step"]: event["metrics"]["validation/held-out/loss"] for event in of_kind(run, "evaluated")}


def alike(found: dict[int, float], expected: dict[int, float]) -> None:
    assert found == pytest.approx(expected, abs=TOLERANCE) and found


# what a run leaves


def test_stdout_of_a_plain_run_is_its_log_and_stderr_is_empty(one: Path, plain: Any) -> None:
    assert plain.stderr == ""
    assert (one / "trainer.log").read_text() == plain.stdout
    for line in plain.stdout.splitlines():
        assert line.startswith("    | ") or (line[2] == line[5] == ":" and line[8:10] == "  "), line
    assert f"finished at step {STEPS}" in plain.stdout.splitlines()[-1]


def test_the_tokenizer_and_the_recipe_are_kept_with_the_run(one: Path, place: Path) -> None:
    recipe = load(place / "tiny.toml").recipe
    kept = json.loads((one / "tokenizer.json").read_text())
    assert len(kept["model"]["vocab"]) == recipe.tokenizer.train.vocab_size
    assert tomllib.loads((one / "recipe.toml").read_text())["train"]["steps"] == STEPS
    assert not [path.name for path in one.iterdir() if path.name.startswith(".")]


def test_what_the_log_says_is_read_back_from_aim_in_another_process(one: Path, place: Path) -> None:
    child = SUPPORT / "aim_child.py"
    done = subprocess.run([sys.executable, child, place], check=True, capture_output=True, text=True, timeout=LIMIT)
    (found,) = json.loads(done.stdout.splitlines()[-1])
    manifest = json.loads((one / "checkpoints" / str(STEPS) / "manifest.json").read_text())
    assert found["hash"] == json.loads((one / "aim.json").read_text())["run"] == manifest["aim_run"]
    assert found["name"] == "tiny" and found["parameters"]["status"] == "finished"
    for name, facets, expected in (
        ("train/loss", {"subset": "train"}, losses(one)),
        ("validation/held-out/loss", {"subset": "validation", "set": "held-out"}, validation(one)),
    ):
        context, steps, values = found["metrics"][name]
        assert context == facets
        assert dict(zip(steps, map(float, values), strict=True)) == expected
    assert len(losses(one)) == STEPS and len(validation(one)) == 2
    assert found["parameters"]["recipe"] == tomllib.loads((one / "recipe.toml").read_text())
    samples = [[event["step"], event["text"]] for event in of_kind(one, "sampled")]
    assert samples and found["texts"]["samples {'prompt': 'the cat'}"] == samples
    assert not of_kind(one, "alert")


# devices


def test_one_device_and_eight_train_alike(one: Path, eight: Path) -> None:
    plans = [of_kind(run, "planned")[0]["plan"] for run in (one, eight)]
    assert [plan["batch"]["replicas"] for plan in plans] == [1, 8]
    assert [plan["batch"]["accumulation"] for plan in plans] == [8, 1]
    alike(losses(eight), losses(one))
    alike(validation(eight), validation(one))


def test_parameters_divided_over_devices_train_as_whole_ones_do(place: Path, one: Path) -> None:
    how = ("--name", "divided", "--set", "parallel.fsdp=4")
    done = trainkit(place, "run", "tiny.toml", "--plain", *how, devices=8)
    assert done.returncode == 0, done.stderr
    run = place / "runs" / "divided"
    plan = of_kind(run, "planned")[0]["plan"]
    assert (plan["data_axis"], plan["fsdp_axis"]) == (2, 4)
    manifest = json.loads((run / "checkpoints" / str(STEPS) / "manifest.json").read_text())
    assert manifest["mesh"] == {"data": 2, "fsdp": 4}
    alike(losses(run), losses(one))
    alike(validation(run), validation(one))


def test_a_run_begun_on_eight_devices_continues_on_one_and_json_prints_its_events(
    place: Path, one: Path, eight: Path
) -> None:
    run = place / "runs" / "moved"
    shutil.copytree(eight, run)
    before = len((run / NAME).read_bytes())
    done = trainkit(place, "resume", "moved/6", "--json")
    assert done.returncode == 0, done.stderr
    logged = (run / NAME).read_bytes()[before:].decode().splitlines()
    printed = done.stdout.splitlines()
    assert [json.loads(line) for line in printed] == [json.loads(line) for line in logged]
    assert (run / "trainer.log").read_text().endswith(done.stdout)
    steps = [json.loads(line)["step"] for line in printed if json.loads(line)["type"] == "step"]
    assert steps == list(range(7, STEPS + 1))
    alike(losses(run), losses(one))
    alike(validation(run), validation(one))


# other ways to run


def test_smoke_leaves_nothing_behind_but_the_token_cache(smoke: Any) -> None:
    directory, done = smoke
    assert done.returncode == 0 and done.stderr == "", done.stderr
    assert {path.name for path in directory.iterdir()} == {"text", "tiny.toml", "cache"}
    for part in ("evaluated held-out at step 2", "sample at step 2", "saved checkpoints/2", "finished at step 2"):
        assert part in done.stdout


def test_a_second_start_compiles_nothing_and_the_trainer_loads_only_what_trains(smoke: Any, tmp_path: Path) -> None:
    directory, _ = smoke
    compiled = tmp_path / "compiled"  # other tests, in another process, have theirs

    def start() -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-c", SCRIPT],
            cwd=directory,
            env=environment() | {"JAX_COMPILATION_CACHE_DIR": str(compiled)},
            capture_output=True,
            text=True,
            timeout=LIMIT,
            check=True,
        )

    def programs() -> set[str]:
        return {path.name for path in compiled.iterdir() if not path.name.endswith("-atime")}

    start()
    before = programs()
    again = start()
    assert programs() == before != set()
    loaded = {name.partition(".")[0] for name in json.loads(again.stderr.splitlines()[-1])}
    assert {"jax", "trainkit"} <= loaded
    assert not loaded & {"textual", "rich", "aim", "datasets", "pyarrow", "torch", "transformers"}


def test_a_detached_run_continues_and_obeys(tmp_path: Path) -> None:
    workplace(tmp_path)
    run = tmp_path / "runs" / "tiny"
    with Trainer(tmp_path, "run", "tiny.toml", "--detach", "--set", "train.steps=1000000") as starter:
        assert starter.end() == 0
        assert not of_kind(run, "step"), "it returned only once training had begun"
        told = (tmp_path / "output.txt").read_text()
        assert "trainkit watch runs/tiny" in told
        pid = int(told.partition("process ")[2].partition(";")[0])
        try:
            starter.process = _Alive(pid)  # type: ignore[assignment]
            assert starter.until(lambda e: e["type"] == "step" and e["step"] >= 3)
            _obeys(tmp_path, run, starter)
        finally:
            _Alive(pid).kill()
    finished = read(run)[-1]
    assert (finished["type"], finished["status"], finished["exit_code"]) == ("run_finished", "stopped", 75)
    manifest = json.loads((run / "checkpoints" / str(finished["step"]) / "manifest.json").read_text())
    assert manifest["step"] == finished["step"]
    (row,) = [line.split() for line in trainkit(tmp_path, "runs").stdout.splitlines()[1:]]
    assert row[:3] == ["tiny", "stopped", f"{finished['step']}/1000000"]
    verified = trainkit(tmp_path, "verify", "tiny")
    assert verified.returncode == 0 and f"checkpoints/{finished['step']}: ok" in verified.stdout
    assert all(line.endswith(": ok") for line in verified.stdout.splitlines())
    picture = trainkit(tmp_path, "watch", "tiny", "--once")
    assert picture.returncode == 0 and "tiny" in picture.stdout and "stopped" in picture.stdout
    assert trainkit(tmp_path, "send", "tiny", "save").returncode == 2


def _obeys(directory: Path, run: Path, trainer: Trainer) -> None:
    def send(command: str) -> str:
        done = trainkit(directory, "send", "tiny", command)
        assert (done.returncode, done.stderr) == (0, "")
        return done.stdout

    saved = int(send("save").removeprefix("saving step "))
    assert trainer.until(lambda e: e["type"] == "checkpoint_saved" and e["step"] == saved)
    paused = int(send("pause").removeprefix("paused after step "))
    evaluated = int(send("evaluate").removeprefix("evaluating step "))
    assert evaluated == paused
    assert trainer.until(lambda e: e["type"] == "evaluated" and e["step"] == paused)
    assert max(losses(run)) == paused
    assert send("continue") == f"continuing after step {paused}\n"
    assert trainer.until(lambda e: e["type"] == "step" and e["step"] > paused)
    assert send("stop").startswith("stopping after step ")
    assert trainer.until(lambda e: e["type"] == "run_finished")
    commands = [event["command"] for event in of_kind(run, "control")]
    assert commands == ["save", "pause", "evaluate", "continue", "stop"]


class _Alive:
    """A process that is not our child, as far as `Trainer` needs to know it."""

    def __init__(self, pid: int) -> None:
        self._pid = pid

    def poll(self) -> int | None:
        try:
            os.kill(self._pid, 0)
        except ProcessLookupError:
            return 0
        return None

    def kill(self) -> None:
        if self.poll() is None:
            os.kill(self._pid, 9)

    def wait(self, _: float) -> int:
        return 0


# numbers


def test_bfloat16_trains_about_as_well_and_tokens_are_a_length(place: Path, one: Path) -> None:
    length = ("--set", f"train.tokens={STEPS * 8 * 32 - 5}", "--name", "half")
    done = trainkit(place, "run", "tiny.toml", "--plain", *length, "--set", "precision.compute=bfloat16")
    assert done.returncode == 0, done.stderr
    run = place / "runs" / "half"
    planned = of_kind(run, "planned")[0]
    assert (planned["total_steps"], planned["plan"]["compute"]) == (STEPS, "bfloat16")
    found, expected = losses(run), losses(one)
    assert found[STEPS] == pytest.approx(expected[STEPS], abs=0.1) and found != expected


def test_a_run_that_breaks_stops_by_itself_and_saves_nothing_broken(place: Path, one: Path) -> None:
    rates = ("optimizer.learning_rate=1e4", "optimizer.weight_decay=1e3", "schedule.warmup=0")
    broken = (*rates, "checkpoint.keep_every=1", "train.epochs=0.5")
    sets = [part for override in broken for part in ("--set", override)]
    done = trainkit(place, "run", "tiny.toml", "--plain", "--name", "broken", *sets)
    assert done.returncode == 1 and "Traceback" not in done.stderr
    failed = re.search(r"error: step (\d): \S+ is (inf|nan)", done.stderr)
    assert failed and "optimizer.learning_rate" in done.stderr, done.stderr
    run = place / "runs" / "broken"
    finished = read(run)[-1]
    assert (finished["status"], finished["exit_code"]) == ("failed", 1) and f"step {failed[1]}" in finished["message"]
    assert all(int(path.name) < int(failed[1]) for path in (run / "checkpoints").iterdir())

    found = build.find(
        load(
            place / "tiny.toml", [f"data.cache={str(place / 'cache')!r}", f'data.train.0.path="{place}/text/*.txt"']
        ).recipe
    )
    assert found is not None
    examples = math.ceil((found.train.tokens - 1) / 32)
    assert of_kind(run, "planned")[0]["total_steps"] == math.ceil(0.5 * examples / 8)
