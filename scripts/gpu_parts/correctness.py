"""Whether what a GPU computes is right, and the same each time."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree

from gpu_parts.place import ROOT, Place, Row

STEPS, SAVED, KILLED = 48, 6, 7
RECIPE = """
schema = 1
[run]
name = "bits"
deterministic = {deterministic}
[model]
type = "llama"
layers = {layers}
hidden = {hidden}
heads = {heads}
kv_heads = {kv_heads}
intermediate = {intermediate}
[tokenizer]
train = {{ vocab_size = 2048 }}
[data]
sequence_length = {length}
encoding = {{ type = "pack" }}
[[data.train]]
path = "text/*.txt"
[train]
steps = {steps}
batch_size = 8
micro_batch_size = 4
[optimizer]
learning_rate = 1e-3
moments = "int8"
[checkpoint]
keep_every = {saved}
[track]
aim = false
"""
LARGE = {"layers": 8, "hidden": 512, "heads": 8, "kv_heads": 2, "intermediate": 1536, "length": 1024}
TINY = {"layers": 1, "hidden": 32, "heads": 2, "kv_heads": 1, "intermediate": 64, "length": 32}


def check_numbers(place: Place) -> Iterator[Row]:
    """Yield a row for each test of tests/gpu that failed or was skipped, and one for all."""
    report = place.directory / "report.xml"
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-n",
        "0",
        "-m",
        "gpu",
        "--rootdir",
        str(ROOT),
        f"--junitxml={report}",
    ]
    done = place.call([*command, "-c", str(ROOT / "pyproject.toml"), str(ROOT / "tests" / "gpu")])
    if not report.exists():
        yield Row("pytest -m gpu", done.last_line, "a report", False)
        return
    count = {"passed": 0, "failed": 0, "skipped": 0}
    for case in ElementTree.parse(report).iter("testcase"):
        bad = [child for child in case if child.tag in ("failure", "error")]
        skipped = case.find("skipped")
        count["failed" if bad else "passed" if skipped is None else "skipped"] += 1
        for problem in bad:
            yield Row(case.get("name", ""), (problem.get("message") or "failed")[:300], "passes", False)
        if skipped is not None and not place.small:
            yield Row(case.get("name", ""), f"skipped: {skipped.get('message')}")
    found = ", ".join(f"{number} {name}" for name, number in count.items())
    yield Row("pytest -m gpu", found, "no failure, some passed", not count["failed"] and count["passed"] > 0)


def check_bits(place: Place) -> Iterator[Row]:
    """Yield whether two runs, and one that was killed and resumed, ended with the same bits."""
    write_text(place.directory)
    for deterministic in (True, False):
        name = "deterministic" if deterministic else "free"
        sizes = TINY if place.small else LARGE
        recipe = place.directory / f"{name}.toml"
        recipe.write_text(
            RECIPE.format(**sizes, steps=STEPS, saved=SAVED, deterministic=json.dumps(deterministic)), "utf-8"
        )
        for number in ("first", "second"):
            done = place.trainkit("run", str(recipe), "--plain", "--name", f"{name}-{number}")
            if done.code != 0:
                yield Row(f"{name}: the {number} run", done.last_line, "exit code 0", False)
                return
        kill(place, recipe, f"{name}-killed")
        done = place.trainkit("resume", f"{name}-killed", "--plain")
        if done.code != 0:
            yield Row(f"{name}: the resumed run", done.last_line, "exit code 0", False)
            return
        first = end_of(place.directory / "runs" / f"{name}-first")
        for other in ("second", "killed"):
            differing = differences(first, end_of(place.directory / "runs" / f"{name}-{other}"))
            found = "the same bits" if not differing else f"{len(differing)} differ, such as {differing[0]}"
            # without `deterministic` nothing is promised on a GPU: it is only reported
            good = not differing if deterministic or place.small else None
            yield Row(f"{name}: the first run and the {other} one", found, "the same bits", good)


def kill(place: Place, recipe: Path, name: str) -> None:
    """Start a run, and kill it once a step after its first checkpoint is in the log."""
    log = place.directory / "runs" / name / "events.jsonl"
    command = [sys.executable, "-m", "trainkit", "run", str(recipe), "--plain", "--name", name]
    quiet = subprocess.DEVNULL
    with subprocess.Popen(command, cwd=place.directory, stdout=quiet, stderr=quiet) as process:
        while process.poll() is None and place.seconds_left:
            if last_step(log) >= KILLED:
                process.send_signal(signal.SIGKILL)
                break
            time.sleep(0.02)
        process.wait()


def last_step(log: Path) -> int:
    """Return the last step that a log has; 0 without one."""
    from trainkit.events.tail import read

    return max((e["step"] for e in read(log.parent) if e["type"] == "step"), default=0) if log.exists() else 0


def end_of(run: Path) -> dict[str, str]:
    """Return the losses by step, and the checksums of the arrays of the last checkpoint."""
    from trainkit.events.tail import read

    losses = {f"loss {e['step']}": repr(e["metrics"]["train/loss"]) for e in read(run) if e["type"] == "step"}
    manifest = json.loads((run / "checkpoints" / str(STEPS) / "manifest.json").read_text("utf-8"))
    return losses | {name: checksum for name, checksum in manifest["checksums"].items() if name != "recipe.toml"}


def differences(one: dict[str, str], other: dict[str, str]) -> list[str]:
    """Return what is not the same in both."""
    return [name for name in {**one, **other} if one.get(name) != other.get(name)]


def write_text(directory: Path) -> None:
    """Write text to train on: a part of Python's standard library."""
    (directory / "text").mkdir()
    for source in sorted(Path(subprocess.__file__).parent.glob("*.py"))[:40]:
        (directory / "text" / f"{source.stem}.txt").write_text(source.read_text("utf-8", "replace"), "utf-8")
