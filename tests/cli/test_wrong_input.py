"""What is wrong is told with its place and what to do, ends with the right code, and leaves nothing half-made."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from trainer import LIMIT, RECIPE, command, copied, environment, losses, trainkit, workplace

from trainkit.errors import FAILED, WRONG_INPUT
from trainkit.events.tail import NAME, last_end, read
from trainkit.rundir.summary import SummaryReader

Call = Callable[..., tuple[int, str, str]]
SOURCE = 'path = "text/*.txt"'


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A workplace with a run of three steps, and a document in it that cannot be read and may be skipped."""
    recipe = RECIPE.replace("steps = 24", "steps = 3").replace("held_out", 'on_error = "skip"\nheld_out')
    directory = workplace(tmp_path_factory.mktemp("trained"), recipe, documents=30)
    (directory / "text" / "latin.txt").write_bytes(b"caf\xe9")
    (directory / "text" / "nothing.txt").touch()
    done = trainkit(directory, "run", "tiny.toml", "--plain")
    assert done.returncode == 0, done.stderr
    (directory / "stdout").write_text(done.stdout)
    return directory


def there(directory: Path) -> set[str]:
    """All but the token cache, of which any state is good, and the empty `runs`."""
    found = {str(path.relative_to(directory)) for path in directory.rglob("*")}
    return {name for name in found if name.split("/")[0] != "cache" and name != "runs"}


def line_of(path: Path, part: str) -> int:
    return next(i for i, line in enumerate(path.read_text().splitlines(), 1) if part in line)


def told(err: str) -> None:
    """One error, with a hint, and no traceback."""
    assert err.startswith("error: ") and "\nhint: " in err, err
    assert "Traceback" not in err and "bug in trainkit" not in err


# the data


def _json_line(directory: Path) -> None:
    lines = [json.dumps({"text": "the cat sat on a mat"}), "{broken", json.dumps({"text": "one dog"})]
    (directory / "rows.jsonl").write_text("\n".join(lines))


def _other_key(directory: Path) -> None:
    (directory / "rows.jsonl").write_text(json.dumps({"content": "the cat sat on a mat"}))


def _empty(directory: Path) -> None:
    (directory / "empty.txt").touch()


def _latin(directory: Path) -> None:
    (directory / "latin.txt").write_bytes(b"the caf\xe9")


def _nothing(directory: Path) -> None:
    pass


WRONG_DATA = {
    "a glob that matches nothing": (_nothing, "txt/*.md", "txt/*.md", "no file matches", "holds runs, text, tiny.toml"),
    "a file that is missing": (_nothing, "no.txt", "no.txt", "no such file", "holds runs, text, tiny.toml"),
    "an empty text file": (_empty, "empty.txt", "tiny.toml:16: data.train", "hold no text", "not empty"),
    "a file that is not UTF-8": (_latin, "latin.txt", "latin.txt:byte 7", "is not UTF-8", 'data.on_error = "skip"'),
    "a line that is not JSON": (_json_line, "rows.jsonl", "rows.jsonl:2", "is not JSON", 'data.on_error = "skip"'),
    "a missing key": (
        _other_key,
        "rows.jsonl",
        "rows.jsonl:1",
        "has no 'text'",
        'did you mean "content"? text_key names it',
    ),
}


@pytest.mark.parametrize("wrong", WRONG_DATA)
def test_data_that_cannot_be_used_is_reported_with_its_place_and_leaves_no_run(
    call: Call, tmp_path: Path, wrong: str
) -> None:
    make, path, where, problem, hint = WRONG_DATA[wrong]
    workplace(tmp_path, RECIPE.replace(SOURCE, f'path = "{path}"'), documents=5)
    make(tmp_path)
    before = there(tmp_path)
    code, out, err = call("run", "tiny.toml", "--plain")
    assert code == WRONG_INPUT and problem not in out
    told(err)
    head, _, advice = err.partition("\nhint: ")
    assert where in head and problem in head and hint in advice, err
    assert there(tmp_path) == before
    code, out, err = call("cache-data", "tiny.toml")
    assert (code, out) == (WRONG_INPUT, "") and problem in err
    assert there(tmp_path) == before


def test_what_was_skipped_is_counted_and_named_in_the_log_and_by_cache_data(trained: Path) -> None:
    (warning,) = [e for e in read(trained / "runs/tiny") if e["type"] == "log" and e["level"] == "warning"]
    assert re.fullmatch(r"1 document .*skipped as unreadable: latin.txt:byte 3: is not UTF-8.*", warning["message"])
    assert f"WARNING {warning['message']}" in (trained / "stdout").read_text()
    assert "1 document has no text and was left out" in (trained / "stdout").read_text()
    done = trainkit(trained, "cache-data", "tiny.toml")
    assert done.returncode == 0
    assert re.search(r"1 document .*skipped as unreadable: latin.txt:byte 3", done.stdout)
    assert "latin.txt:byte 3: is not UTF-8" in done.stdout


# the recipe and the machine


def test_a_group_that_matches_nothing_is_found_before_anything_is_tokenised(call: Call, tmp_path: Path) -> None:
    workplace(tmp_path, RECIPE + '[[optimizer.groups]]\nmatch = "layers.*"\n', documents=5)
    before = there(tmp_path)
    code, out, err = call("run", "tiny.toml", "--plain")
    assert code == WRONG_INPUT
    line = line_of(tmp_path / "tiny.toml", "match") - 1  # that of the table
    assert err.startswith(f"error: tiny.toml:{line}: optimizer.groups.0: match = 'layers.*' matches no parameter")
    assert "blocks.attention.qkv.weight" in err
    assert "cached" not in out and there(tmp_path) == before and not (tmp_path / "cache/shards").exists()


def test_a_batch_that_cannot_be_split_is_reported_with_its_line_and_batches_that_can(
    call: Call, tmp_path: Path
) -> None:
    workplace(tmp_path, RECIPE.replace("batch_size = 8", "batch_size = 12", 1), documents=5)
    before = there(tmp_path)
    code, out, err = call("run", "tiny.toml", "--plain")
    assert code == WRONG_INPUT
    told(err)
    line = line_of(tmp_path / "tiny.toml", "batch_size")
    assert err.startswith(f"error: tiny.toml:{line}: train.batch_size: batch_size = 12 ")
    assert "8 devices" in err and "hint: train.batch_size = 8 or 16" in err
    assert "cached" not in out and there(tmp_path) == before


def test_a_schedule_that_is_longer_than_the_run_is_reported_with_its_line_unless_the_run_is_a_trial(
    call: Call, tmp_path: Path
) -> None:
    workplace(tmp_path, RECIPE, documents=5)
    code, _, err = call("run", "tiny.toml", "--plain", "--set", "schedule.warmup=900")
    assert code == WRONG_INPUT and not (tmp_path / "runs").exists()
    assert err.startswith("error: --set: schedule.warmup: schedule.warmup = 900 is more than the ")
    assert call("check", "tiny.toml", "--set", "schedule.warmup=900")[0] == WRONG_INPUT
    assert call("check", "tiny.toml", "--set", "schedule.warmup=900", "--mode", "sanity")[0] == 0


@pytest.mark.parametrize("option", ["--plain", "--detach"])
def test_a_recipe_that_is_not_there_makes_no_run(call: Call, tmp_path: Path, option: str) -> None:
    code, out, err = call("run", "none.toml", option)
    assert (code, out) == (WRONG_INPUT, "") and err.startswith("error: none.toml: there is no such file")
    assert there(tmp_path) == set()


# runs


def test_a_name_that_is_taken_is_answered_with_resume_and_a_free_one(call: Call, tmp_path: Path) -> None:
    workplace(tmp_path, documents=5)
    for taken in ("tiny", "tiny-2"):
        (tmp_path / "runs" / taken).mkdir(parents=True)
    before = there(tmp_path)
    code, out, err = call("run", "tiny.toml", "--plain")
    assert (code, out) == (WRONG_INPUT, "")
    told(err)
    assert "trainkit resume runs/tiny" in err and "--name tiny-3" in err
    assert there(tmp_path) == before


def test_resume_says_which_runs_and_checkpoints_there_are(
    call: Call, trained: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(trained)
    before = there(trained)
    code, out, err = call("resume", "tyni", "--plain")
    assert (code, out) == (WRONG_INPUT, "")
    told(err)
    assert "there is no run 'tyni'" in err and "did you mean tiny?" in err
    code, out, err = call("resume", "tiny/2", "--plain", "--set", "train.steps=9", "--raise-rate")
    assert (code, out) == (WRONG_INPUT, "") and "Traceback" not in err
    assert err == "error: runs/tiny: there is no checkpoint of step 2; there are: 3\n"
    assert there(trained) == before


def test_a_refused_resume_leaves_the_recipe_and_that_the_run_is_finished(trained: Path, tmp_path: Path) -> None:
    run = copied(trained / "runs" / "tiny", tmp_path)
    shutil.rmtree(tmp_path / "text")
    recipe, recipes = (run / "recipe.toml").read_text(), set(run.glob("recipe*"))
    shown = SummaryReader(run)
    for attempt in (2, 3):
        done = trainkit(tmp_path, "resume", "tiny", "--plain", "--set", "train.steps=5", "--raise-rate")
        assert done.returncode == WRONG_INPUT and "text/*.txt" in done.stderr
        assert (run / "recipe.toml").read_text() == recipe and set(run.glob("recipe*")) == recipes
        shown.read()
        assert shown.facts is not None and shown.facts.attempt == attempt
        assert (shown.facts.state, shown.facts.step) == ("finished", 3) and last_end(run) == "finished"
        assert shown.recipe is not None and shown.recipe["train.steps"] == "3"
        end = read(run)[-1]
        assert end["exit_code"] == WRONG_INPUT and "text/*.txt" in end["message"]
    assert "finished" in trainkit(tmp_path, "resume", "tiny", "--plain").stderr


def test_a_torn_last_line_of_the_log_and_a_damaged_recipe(trained: Path, tmp_path: Path) -> None:
    shutil.copytree(trained, tmp_path, dirs_exist_ok=True)
    run = tmp_path / "runs" / "tiny"
    resolved = (run / "recipe.toml").read_text().replace(str(trained), str(tmp_path))
    (run / "recipe.toml").write_text(resolved.replace("steps = 3 ", "steps = = 3 "))
    before = there(tmp_path)
    done = trainkit(tmp_path, "resume", "tiny", "--plain")
    line = line_of(run / "recipe.toml", "= =")
    assert done.returncode == WRONG_INPUT and done.stdout == "" and "Traceback" not in done.stderr
    assert done.stderr.startswith(f"error: runs/tiny/recipe.toml:{line}:") and "not TOML" in done.stderr
    assert there(tmp_path) - before <= {"runs/tiny/lock"}

    (run / "recipe.toml").write_text(resolved)
    with (run / NAME).open("a") as log:
        log.write('{"type": "step", "t": 17')
    done = trainkit(tmp_path, "resume", "tiny", "--plain", "--set", "train.steps=5", "--raise-rate")
    assert done.returncode == 0, done.stderr
    assert [event["step"] for event in read(run) if event["type"] == "step"] == [1, 2, 3, 4, 5]
    assert read(run)[-1]["type"] == "run_finished" and read(run)[-1]["attempt"] == 2


# the disk


class Disk:
    """A file system in memory, as large as wanted."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.mkdir()
        self._mount("-t", "tmpfs", "-o", "size=1m", "tmpfs", str(path))

    def remount(self, option: str) -> None:
        self._mount("-o", f"remount,{option}", str(self.path))

    def close(self) -> None:
        subprocess.run(["umount", "--lazy", str(self.path)], check=True)

    def _mount(self, *arguments: str) -> None:
        done = subprocess.run(["mount", *arguments], capture_output=True, text=True, check=False)
        if done.returncode:
            pytest.skip(f"no disk could be made for this: {done.stderr.strip()}")


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    if os.geteuid() != 0 or sys.platform != "linux":
        pytest.skip("only root may make a disk that is full: it was not tested")
    disk = Disk(tmp_path / "runs")
    yield disk
    disk.close()


def test_a_disk_that_takes_no_run_is_named_and_has_nothing_left_on_it(call: Call, tmp_path: Path, disk: Disk) -> None:
    workplace(tmp_path, documents=5)
    filler = disk.path / "filler"
    with filler.open("wb", buffering=0) as file, pytest.raises(OSError, match="No space"):
        while True:
            file.write(bytes(1 << 16))
    code, out, err = call("run", "tiny.toml", "--plain")
    assert (code, out) == (WRONG_INPUT, "")
    told(err)
    assert str(disk.path) in err and "No space left on device" in err and "run.directory" in err
    assert [path.name for path in disk.path.iterdir()] == ["filler"]
    filler.unlink()
    disk.remount("ro")
    code, out, err = call("run", "tiny.toml", "--plain")
    assert (code, out) == (WRONG_INPUT, "")
    told(err)
    assert str(disk.path) in err and "Read-only file system" in err
    assert not list(disk.path.iterdir())


def test_without_room_for_a_checkpoint_the_earlier_ones_stay_and_the_run_continues_once_there_is(
    tmp_path: Path, disk: Disk
) -> None:
    workplace(tmp_path)
    disk.remount("size=1500k")
    done = trainkit(tmp_path, "run", "tiny.toml", "--plain")
    assert done.returncode == FAILED
    told(done.stderr)
    run = disk.path / "tiny"
    saved = sorted(int(path.name) for path in (run / "checkpoints").iterdir())
    assert 1 <= len(saved) <= 3
    # the permanent ones that there is no room for are alerts; only the last one has to be there
    alerts = [event["message"] for event in read(run) if event["type"] == "alert" and event["kind"] == "checkpoint"]
    assert [f"checkpoints/{step}: the checkpoint cannot be written" in "".join(alerts) for step in (12, 18)] == [
        12 not in saved,
        18 not in saved,
    ]
    assert f"{run}/checkpoints/24: the checkpoint cannot be written" in done.stderr and "trainkit resume" in done.stderr
    assert read(run)[-1]["status"] == "failed" and losses(run).keys() == set(range(1, 25))
    verified = trainkit(tmp_path, "verify", "tiny")
    assert verified.returncode == 0 and verified.stdout.count(": ok") == len(saved)

    disk.remount("ro")
    refused = trainkit(tmp_path, "resume", "tiny", "--plain")
    assert refused.returncode == FAILED
    told(refused.stderr)
    assert "Read-only file system" in refused.stderr

    disk.remount("rw,size=8m")
    done = trainkit(tmp_path, "resume", "tiny", "--plain")
    assert done.returncode == 0, done.stderr
    assert f"resuming from step {saved[-1]}" in done.stderr
    assert [event["step"] for event in read(run) if event["type"] == "step"] == list(range(1, 25))


def test_a_log_that_cannot_grow_ends_the_run_with_its_place(trained: Path, tmp_path: Path) -> None:
    most = 100_000
    shutil.copytree(trained, tmp_path, dirs_exist_ok=True)
    script = f"import os, resource, sys\nresource.setrlimit(resource.RLIMIT_FSIZE, ({most}, {most}))\n"
    script += "os.execv(sys.argv[1], sys.argv[1:])"
    long = [
        f"--set={key}=1000000" for key in ("train.steps", "checkpoint.keep_every", "evaluate.every", "sample.every")
    ]
    done = subprocess.run(
        [sys.executable, "-c", script, *command("run", "tiny.toml", "--plain", "--name", "long", *long)],
        cwd=tmp_path,
        env=environment() | {"JAX_ENABLE_COMPILATION_CACHE": "false"},
        capture_output=True,
        text=True,
        timeout=LIMIT,
        check=False,
    )
    assert done.returncode == FAILED
    told(done.stderr)
    assert f"{tmp_path}/runs/long: the run cannot be written: File too large" in done.stderr
    assert "trainkit resume runs/long" in done.stderr
    steps = [event["step"] for event in read(tmp_path / "runs" / "long") if event["type"] == "step"]
    assert steps == list(range(1, len(steps) + 1)) and len(steps) > 50
