"""The end of a run is cut off: what was due is done by the attempt that goes on, and nothing trained is lost."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest
from trainer import RECIPE, Trainer, arrays, copied, trainkit, workplace

from trainkit.checkpoint import store
from trainkit.events.commands import Command
from trainkit.events.log import EventLog
from trainkit.events.tail import read
from trainkit.recipe.sections.outputs import ChatMessage
from trainkit.recipe.toml.load import load
from trainkit.rundir.owed import Owed, find_owed

STEPS = 4
#: Its last evaluation has many batches.
SLOW = (
    RECIPE.replace("steps = 24", f"steps = {STEPS}")
    .replace("held_out = 0.1", "held_out = 0.6")
    .replace("[evaluate]\nevery = 10", "[evaluate]\nbatch_size = 1")
)


def results(run: Path) -> list[tuple[str, int, object]]:
    told = {"evaluated": "metrics", "sampled": "text"}
    return [(e["type"], e["step"], e[told[e["type"]]]) for e in read(run) if e["type"] in told]


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = workplace(tmp_path_factory.mktemp("uninterrupted"), SLOW)
    done = trainkit(directory, "run", "tiny.toml", "--plain")
    assert done.returncode == 0, done.stderr
    return directory / "runs" / "tiny"


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 75), (signal.SIGINT, 130), (signal.SIGKILL, -9)])
def test_an_evaluation_that_is_cut_off_at_the_last_step_is_done_by_the_attempt_that_continues(
    tmp_path: Path, uninterrupted: Path, number: int, code: int
) -> None:
    workplace(tmp_path, SLOW)
    run = tmp_path / "runs" / "tiny"
    with Trainer(tmp_path, "run", "tiny.toml", "--plain", held_at=f"evaluation_started {STEPS}") as trainer:
        assert trainer.until(lambda e: e["type"] == "evaluation_started")
        assert [e["step"] for e in read(run) if e["type"] == "checkpoint_saved"] == [STEPS], "before it is evaluated"
        trainer.release(number)
        assert trainer.end() == code, (tmp_path / "output.txt").read_text()
    assert results(run) == [], "it was too short to be cut off"
    if code > 0:
        assert read(run)[-1]["exit_code"] == code
    assert [(info.step, info.manifest.kind) for info in store.checkpoints(run)] == [(STEPS, "final")]
    done = trainkit(tmp_path, "resume", "tiny", "--plain")
    assert done.returncode == 0, done.stderr
    assert results(run) == results(uninterrupted) != []
    assert arrays(run, STEPS) == arrays(uninterrupted, STEPS)
    assert read(run)[-1]["status"] == "finished"
    again = trainkit(tmp_path, "resume", "tiny", "--plain")
    assert again.returncode == 0 and "the run is finished" in again.stderr, "a loop of retries ends"


def test_a_run_that_was_killed_before_it_said_that_it_is_finished_says_so_once_resumed(
    tmp_path: Path, uninterrupted: Path
) -> None:
    run = copied(uninterrupted, tmp_path)
    log = run / "events.jsonl"
    log.write_text("".join(line for line in log.open() if '"run_finished"' not in line))
    done = trainkit(tmp_path, "resume", "tiny", "--plain")
    assert done.returncode == 0, done.stderr
    assert read(run)[-1]["status"] == "finished"
    assert results(run) == results(uninterrupted) and arrays(run, STEPS) == arrays(uninterrupted, STEPS)


def test_an_error_of_caching_in_the_background_ends_the_run_at_once_with_a_checkpoint(tmp_path: Path) -> None:
    recipe = RECIPE.replace("held_out = 0.1", "held_out = 1e-7\nshuffle = { window = 8 }")
    recipe = recipe.replace("steps = 24", "steps = 1000000").replace("text/*.txt", "rows.jsonl")
    workplace(tmp_path, recipe, documents=0)
    text = "the cat sat on a mat and saw one dog run far from home " * 60
    rows = [json.dumps({"text": f"{number} {text}"}) for number in range(2000)]
    (tmp_path / "rows.jsonl").write_text("\n".join(rows))
    done = trainkit(tmp_path, "run", "tiny.toml", "--plain")
    assert done.returncode == 2 and "holds out none" in done.stderr, done.stderr
    run = tmp_path / "runs" / "tiny"
    last = max(event["step"] for event in read(run) if event["type"] == "step")
    assert store.newest(run).step == last


def test_the_log_shows_what_is_owed(tmp_path: Path) -> None:
    workplace(tmp_path)
    recipe = load(tmp_path / "tiny.toml", ["statistics.every=5", 'evaluate.tags={all=["held-out"]}']).recipe
    # it evaluates every 10 steps and samples every 12
    log = EventLog(tmp_path, attempt=1)

    def at(step: int, *, last: bool = False) -> Owed:
        return find_owed(tmp_path, recipe, step, last=last)

    def begin(resumed_from: int | None) -> None:
        about = {"name": "x", "pid": 1, "process_started": None, "host": "", "recipe": "", "versions": {}, "orders": []}
        log.write("run_started", step=resumed_from or 0, schema=1, resumed_from=resumed_from, **about)

    def carry_out(given: Command, step: int) -> None:
        log.write("control", step=step, detail="", total_steps=None, command=given.name, argument=given.argument)

    def evaluated(step: int, *names: str) -> None:
        for name in names or ("held-out", "all"):
            log.write("evaluated", step=step, name=name, metrics={}, seconds=1.0)

    held_out = frozenset({"held-out", "all"})
    begin(None)
    assert not at(0) and not at(7)
    assert at(10) == Owed(sets=held_out, statistics=True)
    assert at(12) == Owed(samples=True)
    assert at(7, last=True) == Owed(sets=held_out, samples=True)
    evaluated(10, "held-out")
    assert at(10).sets == {"all"}, "it was cut off before the sets of the tag were reported together"
    evaluated(10)
    assert at(10) == Owed(statistics=True)
    log.write("distributions", step=10, values={})
    assert not at(10)
    carry_out(Command("evaluate"), 10)
    carry_out(Command("sample", "one dog"), 10)
    assert at(10) == Owed(sets=held_out, prompts=("one dog",))
    evaluated(10)
    log.write("sampled", step=10, prompt="one dog", text="", seconds=1.0)
    assert not at(10)
    begin(10)
    assert not at(10), "it was done before the checkpoint of its step"
    begin(9)
    assert at(10) == Owed(sets=held_out, statistics=True), "step 10 has to be done again, and all that is due there"
    log.close()


def test_conversations_that_were_sampled_are_not_owed_though_the_log_holds_them_as_the_template_wrote_them(
    tmp_path: Path,
) -> None:
    workplace(tmp_path)
    prompts = ("a dog", (ChatMessage(role="user", content="a cat"),))
    tiny = load(tmp_path / "tiny.toml").recipe
    assert tiny.sample is not None
    recipe = tiny.model_copy(update={"sample": tiny.sample.model_copy(update={"prompts": prompts, "chat": True})})
    log = EventLog(tmp_path, attempt=1)
    for prompt in ("<user>a dog", "<user>a cat"):
        assert find_owed(tmp_path, recipe, 12, last=False).samples
        log.write("sampled", step=12, prompt=prompt, text="", seconds=1.0)
    assert not find_owed(tmp_path, recipe, 12, last=False)
    log.close()
