"""Commands to a real trainer, and what becomes of them when it is killed: what they changed is repeated to the bit."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import pytest
from trainer import RECIPE, Trainer, arrays, copied, killed_at, losses, trainkit, workplace

from trainkit.checkpoint import manifest
from trainkit.events.commands import Command, IssuedCommand, issued_commands, send
from trainkit.events.log import EventLog
from trainkit.events.plain_log import PlainLog
from trainkit.events.tail import read
from trainkit.recipe.sections.schedule import Cosine
from trainkit.recipe.sections.schedule_spec import NEVER
from trainkit.run.prepare import commands_to_repeat
from trainkit.run.start import Start
from trainkit.train.control import LiveSchedule
from trainkit.train.state import Live

WARMUP, DECAY, PEAK = 4, 12, 1e-2
#: So long that every command comes before its end; the decay ends it.
LONG = 20_000
SCHEDULE = f'type = "wsd"\nwarmup = {WARMUP}\ndecay = {DECAY}\nshape = "linear"'
WSD = RECIPE.replace('type = "cosine"', SCHEDULE).replace("steps = 24", f"steps = {LONG}")


def of_kind(run: Path, kind: str) -> list[dict[str, Any]]:
    return [event for event in read(run) if event["type"] == kind]


def rates(run: Path) -> dict[int, float]:
    return {event["step"]: event["metrics"]["optimizer/learning_rate"] for event in of_kind(run, "step")}


def paused(trainer: Trainer, *, from_step: int) -> int:
    """Let it go to `from_step` at least, and pause it; the step after which it stands."""
    assert trainer.until(lambda e: e["type"] == "step" and e["step"] >= from_step)
    reply = send(trainer.run, "pause")
    assert reply.ok
    return int(reply.detail.removeprefix("paused after step "))


@pytest.fixture(scope="module")
def commanded(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, int, int]:
    """A run that was never interrupted, the step after which its rate was halved, and that of its decay."""
    directory = workplace(tmp_path_factory.mktemp("commanded"), WSD)
    run = directory / "runs" / "tiny"
    with Trainer(directory, "run", "tiny.toml", "--plain") as trainer:
        halved = paused(trainer, from_step=8)
        for words in (["rate", "0.5"], ["sample", "one dog"], ["sample", ""]):
            done = trainkit(directory, "send", "tiny", *words)
            assert (done.returncode, done.stderr) == (0, "")
        assert trainer.until(lambda e: e["type"] == "sampled" and e["prompt"] == "")
        assert send(run, "continue").ok
        decayed = paused(trainer, from_step=halved + 30)
        assert send(run, "decay").detail.endswith(f"the run ends with it, at step {decayed + DECAY}")
        again = trainkit(directory, "send", "tiny", "decay")
        assert again.returncode == 1 and f"begun already, after step {decayed}" in again.stderr
        assert send(run, "continue").ok
        assert trainer.end() == 0, (directory / "output.txt").read_text()
    return run, halved, decayed


@pytest.fixture
def copy(tmp_path: Path, commanded: tuple[Path, int, int]) -> Path:
    """The same run in a place of its own."""
    return copied(commanded[0], tmp_path)


def test_commands_do_what_they_say_and_the_log_records_each(commanded: tuple[Path, int, int]) -> None:
    run, halved, decayed = commanded
    told = [(e["command"], e["argument"], e["step"], e["total_steps"]) for e in of_kind(run, "control")]
    end = decayed + DECAY
    assert told == [
        ("pause", None, halved, None),
        ("rate", 0.5, halved, None),
        ("sample", "one dog", halved, None),
        ("sample", "", halved, None),
        ("continue", None, halved, None),
        ("pause", None, decayed, None),
        ("decay", None, decayed, end),
        ("continue", None, decayed, None),
    ]
    found = rates(run)
    assert max(found) == end and of_kind(run, "run_finished")[0]["status"] == "finished"
    for step in range(1, end + 1):
        share = min(step / WARMUP, 1) * min(1, (end - step + 1) / DECAY)
        assert found[step] == pytest.approx(PEAK * share * (0.5 if step > halved else 1), rel=1e-5), step
    sampled = [e["prompt"] for e in of_kind(run, "sampled") if e["step"] == halved]
    assert sampled[-2:] == ["one dog", ""]
    assert json.loads((run / "checkpoints" / str(end) / "manifest.json").read_text())["kind"] == "final"


def test_the_plain_log_knows_the_new_end_of_the_run(commanded: tuple[Path, int, int]) -> None:
    run, _, decayed = commanded
    plain = PlainLog(every=0)
    lines = [line for event in read(run) for line in plain.feed(event) if "  step " in line]
    assert f"/{LONG}" in lines[0] and f"{decayed + DECAY}/{decayed + DECAY}  " in lines[-1]


def test_killed_before_it_could_repeat_all_commands_it_ends_bit_for_bit_as_if_it_had_not_been(
    tmp_path: Path, commanded: tuple[Path, int, int], copy: Path
) -> None:
    run, halved, decayed = commanded
    end = decayed + DECAY
    killed_at(f"control {halved}", tmp_path, "resume", "runs/tiny/6", "--plain")
    printed = (tmp_path / "output.txt").read_text()
    assert f"rate 0.5 after step {halved}, decay after step {decayed}" in printed and "--forget-commands" in printed
    done = trainkit(tmp_path, "resume", "tiny", "--plain")
    assert done.returncode == 0, done.stderr
    assert losses(copy) == losses(run)
    assert arrays(copy, end) == arrays(run, end)
    assert [(g.command, g.step) for g in issued_commands(copy)] == [(g.command, g.step) for g in issued_commands(run)]
    details = {e["command"]: e["detail"] for e in of_kind(copy, "control")}
    assert details.keys() == {"rate", "decay"}, "what changes nothing is not repeated"
    assert all(", as in attempt " in detail for detail in details.values())


def test_a_run_that_its_decay_ended_is_finished(tmp_path: Path, commanded: tuple[Path, int, int], copy: Path) -> None:
    again = trainkit(tmp_path, "resume", "tiny", "--plain")
    end = commanded[2] + DECAY
    assert again.returncode == 0 and f"the run is finished: its last step was {end}" in again.stderr


def test_resumed_amid_its_decay_a_run_still_ends_with_it(
    tmp_path: Path, commanded: tuple[Path, int, int], copy: Path
) -> None:
    run, _, decayed = commanded
    end = decayed + DECAY
    amid = max(int(path.name) for path in (copy / "checkpoints").iterdir() if int(path.name) < end)
    assert decayed < amid
    done = trainkit(tmp_path, "resume", f"tiny/{amid}", "--plain")
    assert done.returncode == 0, done.stderr
    assert of_kind(copy, "planned")[-1]["total_steps"] == end
    assert arrays(copy, end) == arrays(run, end)


@pytest.mark.usefixtures("commanded")
def test_commands_are_omitted_with_forget_commands(tmp_path: Path, copy: Path) -> None:
    shorter = ["--set", "train.steps=30", "--forget-commands"]
    done = trainkit(tmp_path, "resume", "tiny/6", "--plain", *shorter)
    assert done.returncode == 0, done.stderr
    assert of_kind(copy, "control") == [] and issued_commands(copy) == []
    found = rates(copy)
    assert found[30] == pytest.approx(PEAK / DECAY) and found[18] == pytest.approx(PEAK)
    longer = trainkit(tmp_path, "resume", "tiny/12", "--plain", "--set", "train.steps=31")
    assert longer.returncode == 0 and "repeated" not in longer.stdout, longer.stderr


def test_a_command_that_came_just_after_the_checkpoint_of_its_step_is_repeated(tmp_path: Path) -> None:
    workplace(tmp_path, WSD.replace("keep_every = 6", ""))
    run = tmp_path / "runs" / "tiny"
    with Trainer(tmp_path, "run", "tiny.toml", "--plain") as trainer:
        step = paused(trainer, from_step=6)
        assert send(run, "save").ok and trainer.until(lambda e: e["type"] == "checkpoint_saved")
        assert send(run, "rate", 0.5).ok and send(run, "continue").ok
        assert trainer.until(lambda e: e["type"] == "step" and e["step"] == step + 10)
        trainer.kill()
    before = losses(run)
    with Trainer(tmp_path, "resume", "tiny", "--plain") as trainer:
        assert trainer.until(lambda e: e["type"] == "step" and e["step"] == step + 10)
        trainer.kill()
    after = losses(run)
    assert [after[s] for s in range(step + 1, step + 11)] == [before[s] for s in range(step + 1, step + 11)]
    assert rates(run)[step + 1] == pytest.approx(PEAK / 2)

    # a refused attempt forgets nothing; once an attempt has forgotten it, no later one repeats it
    refused = trainkit(tmp_path, "resume", "tiny", "--plain", "--forget-commands", "--profile", "1:2")
    assert refused.returncode == 2 and [c.step for c in issued_commands(run)] == [step], refused.stderr
    for options in (["--forget-commands"], []):
        with Trainer(tmp_path, "resume", "tiny", "--plain", *options) as trainer:
            assert trainer.until(lambda e: e["type"] == "step" and e["step"] == step + 1)
            trainer.kill()
        assert rates(run)[step + 1] == pytest.approx(PEAK) and issued_commands(run) == []


def test_a_decay_is_refused_where_the_schedule_has_none_and_the_log_has_nothing_of_it(tmp_path: Path) -> None:
    workplace(tmp_path, WSD.replace(SCHEDULE, 'type = "cosine"'))
    with Trainer(tmp_path, "run", "tiny.toml", "--plain") as trainer:
        assert trainer.until(lambda e: e["type"] == "step")
        reply = send(trainer.run, "decay")
        assert not reply.ok and "'cosine'" in reply.detail and "wsd" in reply.detail
    assert of_kind(trainer.run, "control") == []


def test_a_checkpoint_from_before_there_were_such_commands_is_gone_on_from(
    tmp_path: Path, commanded: tuple[Path, int, int], copy: Path
) -> None:
    run, _, decayed = commanded
    old = copy / "checkpoints" / "6"
    facts = manifest.read(old)
    live = [name for name in facts.leaves if name.startswith("live.")]
    assert len(live) == 2
    for name in live:
        del facts.leaves[name]
        shutil.rmtree(old / "arrays" / name)
    manifest.write(old, facts)
    done = trainkit(tmp_path, "resume", "tiny/6", "--plain")
    assert done.returncode == 0, done.stderr
    assert arrays(copy, decayed + DECAY) == arrays(run, decayed + DECAY)


@pytest.mark.parametrize(("in_checkpoint", "forget"), [(False, False), (True, False), (False, True), (True, True)])
def test_a_command_after_the_very_step_of_a_checkpoint_is_repeated_unless_it_is_in_it_or_to_be_forgotten(
    tmp_path: Path, in_checkpoint: bool, forget: bool
) -> None:
    early, same, late = (IssuedCommand(Command("rate", 1 / step), step, 1) for step in (10, 20, 30))
    factor = jnp.asarray(1 / 20 if in_checkpoint else 1 / 10, jnp.float32)
    course = LiveSchedule(Cosine(), steps=100, live=Live(factor, jnp.asarray(NEVER)))
    log = EventLog(tmp_path, attempt=2)
    repeats = commands_to_repeat(Start(issued=(early, same, late), forget_commands=forget), course, first=20, log=log)
    log.close()
    assert repeats == ([] if forget else [late] if in_checkpoint else [same, late])
    assert len(read(tmp_path)) == bool(repeats), "what is repeated is told"
