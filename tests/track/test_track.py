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
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from places import LIMIT
from small_sweep import GRID, study
from small_sweep import finish as finish_sweep
from track_run import LOSSES, began, finish, look, read_back, run_directory, train, two_attempts

from trainkit.errors import TrainkitError
from trainkit.events.attempts import current_events
from trainkit.events.schema import Event
from trainkit.events.tail import NAME, Tail, read
from trainkit.recipe.sections.outputs import Track
from trainkit.track import projections, tail
from trainkit.track.projections import NAMES
from trainkit.track.sidecar import Sidecar, Sidecars

HELD_OUT = {"subset": "validation", "set": "held-out"}


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("repository")


def test_a_run_is_read_back_from_aim_and_its_resumption_is_the_same_aim_run(tmp_path: Path, repository: Path) -> None:
    run, spec = run_directory(tmp_path, "whole"), Track(repository=str(repository), experiment="tests")
    log = began(run, 1)
    log.write("planned", step=0, total_steps=30, plan={"parameters": {"all": 7}}, devices=["cpu"])
    train(log, range(1, 4))
    sidecar = Sidecar.start(run, "aim", spec)
    train(log, range(4, 11))
    look(log, 10, loss=3.5)
    train(log, range(11, 31))
    look(log, 30, loss=2.5)
    log.write("alert", step=30, kind="nan", message="not a \x1b[2Jnumber")
    log.write("log", step=30, level="info", message="hello")
    log.write("control", step=30, command="rate", argument=0.5, detail="from step 31 on", total_steps=None)
    finish(log, 30)
    assert sidecar.finish(timeout=LIMIT) is None
    first = read_back(repository)["whole"]
    assert first["hash"] == sidecar.run_id() and first["experiment"] == "tests" and first["ended"]
    assert first["parameters"]["recipe"] == {"schema": 1, "train": {"steps": 30}, "run": {"name": "n"}}
    assert first["parameters"]["plan"] == {"parameters": {"all": 7}, "total_steps": 30, "devices": ["cpu"]}
    assert first["parameters"]["run"]["versions"] == {"jax": "0"} and first["parameters"]["status"] == "finished"
    steps = list(range(1, 31))
    assert first["metrics"] == {
        "train/loss": [{"subset": "train"}, steps, [str(1.0 / step) for step in steps]],
        "throughput/mfu": [{}, steps, ["0.5"] * 30],
        "validation/held-out/loss": [HELD_OUT, [10, 30], ["3.5", "2.5"]],
        "validation/held-out/bits_per_byte": [HELD_OUT, [10, 30], ["nan", "nan"]],
    }
    samples = {"samples {'prompt': 'def '}": "dé f(x):\n\treturn", "samples {'prompt': 'if '}": "if x:"}
    assert first["texts"] == {name: [[10, text], [30, text]] for name, text in samples.items()}
    counts = [-1.0, 1.0, [1, 6, 1, 0]]
    zero = [0.0, 0.0, [8, 0]]
    assert first["distributions"] == {
        "gradients/layers/3 {'layer': 3}": [[10, counts], [30, counts]],
        "gradients/bias {}": [[10, zero], [30, zero]],
    }
    saved = first["artifacts"]["checkpoints/30"]
    assert saved["path"] == str(run / "checkpoints/30") and saved["uri"] == (run / "checkpoints/30").as_uri()
    assert (saved["step"], saved["kind"], saved["bytes"]) == (30, "permanent", 12)
    assert saved["metrics"].items() >= {"train/loss": 1 / 30, "validation/held-out/loss": 2.5}.items()
    messages = [["WARNING", "nan: not a ␛[2Jnumber"], ["INFO", "hello"]]
    assert first["messages"][:2] == messages
    assert [level for level, _ in first["messages"]] == ["WARNING", "INFO", "INFO"]
    assert "rate" in first["messages"][2][1] and "from step 31 on" in first["messages"][2][1]

    log = began(run, 2, resumed_from=20)
    again = Sidecar.start(run, "aim", spec)
    train(log, range(21, 26), factor=3.0)
    finish(log, 25)
    assert again.finish(timeout=LIMIT) is None
    second = read_back(repository)["whole"]
    assert second["hash"] == first["hash"] and second["parameters"]["run"]["attempt"] == 2
    assert second["metrics"] == {
        "train/loss": [{"subset": "train"}, list(LOSSES), [str(loss) for loss in LOSSES.values()]],
        "throughput/mfu": [{}, list(LOSSES), ["0.5"] * 25],
        "validation/held-out/loss": [HELD_OUT, [10], ["3.5"]],
        "validation/held-out/bits_per_byte": [HELD_OUT, [10], ["nan"]],
    }, "what the first attempt did beyond step 20 is no part of the run"
    assert second["texts"] == {name: [[10, text]] for name, text in samples.items()}
    assert second["distributions"] == {
        "gradients/layers/3 {'layer': 3}": [[10, counts]],
        "gradients/bias {}": [[10, zero]],
    }
    assert list(second["artifacts"]) == ["checkpoints/10"] and second["messages"] == first["messages"]


def test_a_log_is_replayed_without_what_was_given_up_and_a_second_time_changes_nothing(
    tmp_path: Path, repository: Path
) -> None:
    run, spec = two_attempts(tmp_path, "replayed"), Track(repository=str(repository))
    done = tail.follow(run, "aim", spec)
    before = read_back(repository)
    first = before["replayed"]
    assert first["metrics"]["train/loss"][1:] == [list(LOSSES), [str(loss) for loss in LOSSES.values()]]
    assert first["metrics"]["validation/held-out/loss"][1:] == [[10], ["2.5"]]
    assert list(first["artifacts"]) == ["checkpoints/10"]
    assert tail.follow(run, "aim", spec) == done and done.last_step == 25
    assert read_back(repository) == before


def test_aim_selects_the_trials_of_a_sweep_by_its_name_and_by_what_they_set(tmp_path: Path, repository: Path) -> None:
    found = study(tmp_path, GRID)
    finish_sweep(found)
    for trial in found.trials[2:]:
        tail.follow(trial.directory, "aim", Track(repository=str(repository)))
    query = 'run.sweep.name == "tiny-sweep" and run.sweep.parameters.model.layers == 2'
    selected = {name: run["parameters"]["sweep"] for name, run in read_back(repository, query).items()}
    rates = {"tiny-0004": 1e-3, "tiny-0006": 1e-2}
    assert selected == {
        name: {
            "name": "tiny-sweep",
            "trial": int(name[-1]),
            "parameters": {"optimizer": {"learning_rate": rate}, "model": {"layers": 2}},
        }
        for name, rate in rates.items()
    }


def test_a_recipe_that_was_changed_on_resumption_takes_the_place_of_the_one_before(
    tmp_path: Path, repository: Path
) -> None:
    run, spec = two_attempts(tmp_path, "changed"), Track(repository=str(repository))
    tail.follow(run, "aim", spec)
    (run / "recipe.toml").write_text("schema = 1\n[train]\nepochs = 2\n")
    tail.follow(run, "aim", spec)
    assert read_back(repository)["changed"]["parameters"]["recipe"] == {"schema": 1, "train": {"epochs": 2}}


def test_a_rolling_checkpoint_takes_the_place_of_those_that_have_gone_from_the_disk(
    tmp_path: Path, repository: Path
) -> None:
    run = run_directory(tmp_path, "rolling")
    log = began(run, 1)
    for there in (2, 3, 4, 5):
        (run / "checkpoints" / str(there)).mkdir(parents=True)
    for step, kind in ((1, "rolling"), (2, "permanent"), (3, "rolling"), (4, "rolling"), (5, "final")):
        log.write("checkpoint_saved", step=step, kind=kind, path=f"checkpoints/{step}", bytes=1, seconds=0.1)
    finish(log, 4)
    tail.follow(run, "aim", Track(repository=str(repository)))
    found = read_back(repository)["rolling"]["artifacts"]
    kept = {2: "permanent", 3: "rolling", 4: "rolling", 5: "final"}
    assert {it["step"]: it["kind"] for it in found.values()} == kept


def test_a_sample_may_have_an_image_from_the_runs_directory_and_from_nowhere_else(
    tmp_path: Path, repository: Path
) -> None:
    run = run_directory(tmp_path, "images")
    Image.new("RGB", (4, 3)).save(run / "a.png")
    Image.new("RGB", (9, 9)).save(tmp_path / "secret.png")
    (run / "torn.png").write_bytes((run / "a.png").read_bytes()[:20])
    log = began(run, 1)
    with (run / NAME).open("a") as file:
        elsewhere = str(tmp_path / "secret.png")
        for step, image in enumerate(("a.png", "../secret.png", elsewhere, "none.png", "torn.png"), 1):
            about = {"type": "sampled", "t": 1.0, "step": step, "attempt": 1, "prompt": "p", "text": "", "seconds": 0.1}
            file.write(json.dumps({**about, "image": image}) + "\n")
    finish(log, 5)
    with pytest.raises(TrainkitError, match=r"4 of the events cannot be copied; the first: .*'\.\./secret.png' is not"):
        tail.follow(run, "aim", Track(repository=str(repository)))
    found = read_back(repository)["images"]
    assert found["images"] == {"images {'prompt': 'p'}": [[1, [4, 3, "p"]]]}
    assert [step for step, _ in found["texts"]["samples {'prompt': 'p'}"]] == [1, 2, 3, 4, 5]


def test_a_killed_sidecar_is_continued_without_gaps_or_doubles_and_ends_with_its_trainer(
    tmp_path: Path, repository: Path
) -> None:
    run, spec = run_directory(tmp_path, "killed"), Track(repository=str(repository))
    trainer = subprocess.Popen(["sleep", "1000"])
    log = began(run, 1, pid=trainer.pid)
    log.write("alert", step=0, kind="first", message="one")
    train(log, range(1, 6000))
    sidecar = Sidecar.start(run, "aim", spec)
    assert sidecar._process is not None
    deadline = time.monotonic() + LIMIT
    while (found := projections.read_progress(run, "aim")) is None or found.offset == 0:
        assert time.monotonic() < deadline and sidecar.poll() is None
        time.sleep(0.01)
    os.kill(sidecar._process.pid, signal.SIGKILL)
    assert "exit -9" in (sidecar.finish(timeout=LIMIT) or "")
    (repository / ".aim" / "locks" / f"{found.run}.softlock").write_text("")  # as a kill between two writes leaves it
    train(log, range(6000, 6100))
    log.write("alert", step=6099, kind="last", message="two")
    log.close()
    trainer.kill()
    trainer.wait()
    again = Sidecar.start(run, "aim", spec)
    assert again.finish(timeout=LIMIT) is None, (run / "aim.log").read_text()
    told = [run for name, run in read_back(repository).items() if name == "killed"]
    assert [run["hash"] for run in told] == [found.run] and told[0]["ended"]
    assert told[0]["metrics"]["train/loss"][1] == list(range(1, 6100))
    assert told[0]["messages"] == [["WARNING", "first: one"], ["WARNING", "last: two"]]


def test_events_that_are_not_understood_are_counted_and_the_others_copied(tmp_path: Path, repository: Path) -> None:
    run = run_directory(tmp_path, "strange")
    log = began(run, 1)
    train(log, range(1, 3))
    huge = {"metrics": {"train/loss": 10**400}}
    strange = ({"metrics": 7}, {}, {"step": "x", "metrics": {}}, {"metrics": {"train/loss": "much"}}, huge)
    with (run / NAME).open("a") as file:
        for fields in strange:
            file.write(json.dumps({"type": "step", "t": 1.0, "step": 2, "attempt": 1, **fields}) + "\n")
    train(log, range(3, 5))
    finish(log, 4)
    with pytest.raises(TrainkitError, match="3 of the events cannot be copied"):
        tail.follow(run, "aim", Track(repository=str(repository)))
    assert read_back(repository)["strange"]["metrics"]["train/loss"][1] == [1, 2, 3, 4]


def test_a_repository_that_cannot_be_opened_is_reported_once_and_nothing_else_happens(tmp_path: Path) -> None:
    run = run_directory(tmp_path, "run")
    (tmp_path / ".aim").write_text("a file in its place")
    log = began(run, 1)
    sidecar = Sidecar.start(run, "aim", Track(repository=str(tmp_path)))
    message = sidecar.finish(timeout=LIMIT)
    assert message is not None and message.startswith("the Aim sidecar failed (exit 1): ")
    assert f"{tmp_path}/.aim: the Aim repository cannot be opened: FileExistsError" in message
    assert sidecar.poll() is None and sidecar.run_id() is None
    assert sidecar.finish(timeout=1) is None
    finish(log, 0)
    assert (tmp_path / ".aim").read_text() == "a file in its place"


def test_without_a_package_there_is_one_message_and_no_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    sidecars = Sidecars.start(tmp_path, Track())
    ((name, problem),) = sidecars.poll()
    assert name == "aim" and "aim is not installed" in problem
    assert sidecars.poll() == [] == sidecars.finish(timeout=0) and sidecars.aim_run(patience=0) is None
    assert list(tmp_path.iterdir()) == []


def test_a_run_is_copied_by_one_process_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tail, "PATIENCE", 0.3)
    with (tmp_path / "aim.lock").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(TrainkitError, match="another process is copying this run into Aim"):
            tail.follow(tmp_path, "aim", Track(repository=str(tmp_path)))
    assert not (tmp_path / ".aim").exists()


def test_a_sidecar_that_keeps_up_with_a_fast_trainer_pauses_each_time_it_has_flushed_its_progress(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = run_directory(tmp_path, "fast")
    log, steps, pauses = began(run, 1), iter(range(1, 10)), []

    def noted(*_: object) -> None:
        """The trainer logs one more step whenever the sidecar has noted its progress."""
        step = next(steps, None)
        if step is not None:
            train(log, range(step, step + 1))
        elif read(run)[-1]["type"] != "run_finished":
            finish(log, 9)

    monkeypatch.setattr(tail, "write_progress", noted)
    monkeypatch.setattr(time, "sleep", pauses.append)
    projection = SimpleNamespace(progress=projections.TrackerProgress("n", "here"), write=lambda event: None)
    assert tail._Copy(run, "aim", projection).to_the_end()  # type: ignore[arg-type]
    assert len(pauses) >= 9


def test_a_sidecar_that_needs_too_long_is_left_to_end_by_itself(tmp_path: Path) -> None:
    process = subprocess.Popen(["sleep", "1000"])
    sidecar = Sidecar(tmp_path, "aim", process, None)
    assert f"by process {process.pid}" in (sidecar.finish(timeout=0.05) or "")
    assert process.poll() is None
    process.kill()
    process.wait()


def test_a_sidecar_whose_run_has_been_deleted_is_a_message_too(tmp_path: Path) -> None:
    sidecar = Sidecar(tmp_path / "gone", "aim", subprocess.Popen(["false"]), None)
    assert sidecar.finish(timeout=LIMIT) == "the Aim sidecar failed (exit 1): it printed nothing"


@pytest.mark.parametrize(
    ("path", "context"),
    [
        ("train/loss", {"subset": "train"}),
        ("validation/held-out/loss", HELD_OUT),
        ("validation/a/b/loss", {"subset": "validation", "set": "a/b"}),
        ("validation/loss", {"subset": "validation"}),
        ("gradients/norm/layers/3", {"layer": 3}),
        ("train/layers/12/norm", {"subset": "train", "layer": 12}),
        ("data/epochs/books/old", {"source": "books/old"}),
        ("memory/device/0", {"device": 0}),
        ("power/device/1", {"device": 1}),
        ("host/core/3", {"core": 3}),
        ("parameters/layers/0/attention.qkv.weight", {"layer": 0}),
        ("memory/host", {}),
        ("optimizer/learning_rate", {}),
        ("trainer", {}),
        ("gradients/norm/layers/all", {}),
    ],
)
def test_what_a_part_of_a_path_means_is_its_context(path: str, context: dict[str, str | int]) -> None:
    assert projections.context(path) == context


def test_metrics_keep_their_whole_paths_and_are_numbers() -> None:
    event = {"type": "step", "t": 0.0, "step": 1, "attempt": 1, "metrics": {"a/b": "inf", "c": 2}}
    assert projections.metrics(event) == {"a/b": float("inf"), "c": 2.0}
    assert projections.metrics({"type": "log", "metrics": {"a": 1}}) == {}
    values = {"updates/ratio/blocks.mlp_in.weight": [1.0, "nan"], "gradients/l2/output.weight": [3.0]}
    found = projections.metrics({"type": "statistics", "values": values})
    assert list(found) == [
        "updates/ratio/layers/0/mlp_in.weight", "updates/ratio/layers/1/mlp_in.weight", "gradients/l2/output.weight",
    ]  # fmt: skip
    assert projections.context("updates/ratio/layers/1/mlp_in.weight") == {"layer": 1}


@pytest.mark.parametrize("bad", [{"low": 1, "high": 0}, {"low": "nan", "high": 1}, {"high": "inf"}, {"counts": []}])
def test_a_histogram_without_bins_or_bounds_is_none(bad: dict[str, object]) -> None:
    good = {"low": 0.0, "high": 1.0, "counts": [1, 2]}
    assert projections.distributions({"type": "distributions", "values": {"a": good}})["a"].edges() == [0.0, 0.5, 1.0]
    with pytest.raises(ValueError, match="a is not a distribution"):
        projections.distributions({"type": "distributions", "values": {"a": good | bad}})


STEPS = st.integers(0, 6)


@given(
    attempts=st.lists(
        st.tuples(STEPS | st.none(), st.lists(st.sampled_from(["step", "alert"]), max_size=6)), max_size=5
    ),
    skipped=st.integers(0, 3),
)
def test_read_in_pieces_or_at_once_a_log_has_the_same_course(
    tmp_path_factory: pytest.TempPathFactory, attempts: list[tuple[int | None, list[str]]], skipped: int
) -> None:
    run = tmp_path_factory.mktemp("course")
    events: list[Event] = []
    for number, (resumed_from, kinds) in enumerate(attempts, 1):
        step = resumed_from or 0
        about = {"t": 0.0, "attempt": number}
        events.append({"type": "run_started", "step": step, "resumed_from": resumed_from, **about})
        events += [{"type": kind, "step": step + i, **about} for i, kind in enumerate(kinds, 1)]
    lines = [json.dumps(event) + "\n" for event in events]
    (run / NAME).write_text("".join(lines))
    offset = len("".join(lines[:skipped]))
    course = tail.events_to_copy(run, offset)
    kept = [event for event in Tail(run, offset=offset).poll() if course.keeps(event)]
    assert kept == current_events(events[skipped:])


def test_progress_is_written_whole_and_a_torn_one_is_none(tmp_path: Path) -> None:
    assert projections.read_progress(tmp_path, "aim") is None
    known = projections.TrackerProgress(run="abc", repository="/r", offset=12, pid=3, process_started=4.5)
    projections.write_progress(tmp_path, "aim", known)
    assert projections.read_progress(tmp_path, "aim") == known and projections.read_progress(tmp_path, "wandb") is None
    path = tmp_path / "aim.json"
    path.write_text(path.read_text()[:-5])
    assert projections.read_progress(tmp_path, "aim") is None
    path.write_text('{"something": "else"}')
    assert projections.read_progress(tmp_path, "aim") is None


def test_a_damaged_file_of_progress_makes_no_second_aim_run(tmp_path: Path) -> None:
    known = projections.TrackerProgress(run="abc", repository=str(tmp_path), offset=12)
    projections.write_progress(tmp_path, "aim", known)
    path = tmp_path / "aim.json"
    whole = path.read_bytes()
    for bit in range(0, 8 * len(whole), 13):
        torn = bytearray(whole)
        torn[bit // 8] ^= 1 << bit % 8
        path.write_bytes(torn)
        with pytest.raises(TrainkitError, match="it alone knows which run of Aim") as refused:
            projections.known_progress(tmp_path, "aim", tmp_path)
        assert refused.value.where == str(path) and "delete it" in refused.value.hint
    path.write_text("")
    for step, run in ((3, "abc"), (5, None)):
        (tmp_path / "checkpoints" / str(step)).mkdir(parents=True)
        (tmp_path / "checkpoints" / str(step) / "manifest.json").write_text(json.dumps({"aim_run": run}))
    again = projections.known_progress(tmp_path, "aim", tmp_path)
    assert again == projections.TrackerProgress(run="abc", repository=str(tmp_path.resolve())), "copied from the start"
    path.unlink()
    assert projections.known_progress(tmp_path, "aim", tmp_path) is None


ALL = """
import sys
from pathlib import Path
from trainkit.recipe.sections.outputs import Track
from trainkit.track.projections import NAMES
from trainkit.track.sidecar import Sidecars
run = Path(sys.argv[1])
sidecars = Sidecars.start(run, Track(repository=sys.argv[2], tensorboard=True, wandb=True))
assert sidecars.finish(timeout=240) == [], sidecars
assert len(sidecars.aim_run(patience=0)) == 24
assert not {"aim", "tensorboardX", "wandb", "jax", "numpy"} & sys.modules.keys()
"""


def test_all_trackers_at_once_are_processes_of_their_own_and_the_trainers_side_imports_none(
    tmp_path: Path, repository: Path
) -> None:
    run = two_attempts(tmp_path, "all")
    subprocess.run([sys.executable, "-c", ALL, run, repository], check=True)
    assert {projections.read_progress(run, name).last_step for name in NAMES} == {25}  # type: ignore[union-attr]
