"""Training on preferences from a recipe: the frozen reference, what is learned, and what survives a kill."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import trainer
from data_room import write_rows
from paired_rows import answer_pairs, recipe_text
from reference import Reference as TorchReference
from trainer import Trainer, arrays, evaluations, killed_at, losses, run_of, trainkit

from trainkit import files
from trainkit.data.batches.dataset import TrainSet
from trainkit.data.cache import build as caches
from trainkit.errors import WRONG_INPUT
from trainkit.events.log import EventLog
from trainkit.events.tail import read
from trainkit.hub.load import base_digest
from trainkit.parallel.devices import local
from trainkit.plan import make_plan
from trainkit.rundir.directory import recipe_of
from trainkit.train.build import build, new_state
from trainkit.train.reference import Reference

RECIPE = recipe_text(
    task='type = "preference"\nbeta = 0.2',
    document='type = "preference", chosen = " {chosen}", rejected = " {rejected}"',
    steps=12,
    rate=1e-3,
    train="batch_size = 8\nmicro_batch_size = 4",
    more="[checkpoint]\nkeep_every = 4",
)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("preferences")
    write_rows(directory / "rows.jsonl", answer_pairs(62))
    (directory / "tiny.toml").write_text(RECIPE)
    return directory


def copied(place: Path, to: Path, change: tuple[str, str] = ("", "")) -> Path:
    shutil.copy(place / "rows.jsonl", to)
    (to / "tiny.toml").write_text(RECIPE.replace(*change) if change[0] else RECIPE)
    return to


@pytest.fixture(scope="module")
def uninterrupted(place: Path) -> Path:
    return run_of(place)


def said(run: Path, *, attempt: int) -> list[str]:
    return [event["message"] for event in read(run) if event["type"] == "log" and event["attempt"] == attempt]


def references(place: Path) -> list[bytes]:
    return sorted(path.read_bytes() for path in (place / "cache" / "reference").glob("*.f32"))


def test_the_loss_falls_from_that_of_the_reference_and_held_out_pairs_are_ranked_right(uninterrupted: Path) -> None:
    found = losses(uninterrupted)
    assert found[1] == pytest.approx(np.log(2), abs=1e-5), "the model begins as its own reference"
    assert found[12] < 0.5
    last = evaluations(uninterrupted)[12]
    assert last["validation/held-out/reward_accuracy"] == 1
    margin = last["validation/held-out/chosen_reward"] - last["validation/held-out/rejected_reward"]
    assert last["validation/held-out/reward_margin"] == pytest.approx(margin, abs=1e-4)
    (first, *_) = (event["metrics"] for event in read(uninterrupted) if event["type"] == "step")
    assert first["train/reward_margin"] == pytest.approx(0, abs=1e-4)


def test_the_cached_reference_is_what_the_initial_model_says(
    place: Path, uninterrupted: Path, tmp_path: Path, monkeypatch
) -> None:
    monkeypatch.chdir(place)
    recipe = recipe_of(uninterrupted, ["train.micro_batch_size=1"]).recipe
    cache = caches.build(recipe)
    data = TrainSet(cache, recipe)
    plan = make_plan(recipe, devices=local("cpu"), vocab_size=cache.tokenizer.vocab_size, data=data.size())
    built = build(recipe, plan)
    model = new_state(built, jax.random.key(recipe.run.seed), None).params
    parts: list[str | None] = []

    def noted(*arguments: Any, part: str | None = None) -> Any:
        parts.append(part)
        return new_state(*arguments, part=part)

    monkeypatch.setattr("trainkit.train.reference.new_state", noted)
    log = EventLog(tmp_path, attempt=1)
    trained: Any = SimpleNamespace(params=None, frozen=jax.tree.map(lambda _: None, model), step=1)
    again = Reference(uninterrupted, recipe, built, trained, log)
    assert base_digest(again.model, recipe) == again.recorded.parameters, "bit for bit"
    assert parts == ["params"], "a second optimizer state is not made"
    files = {path.stat().st_size: path for path in (place / "cache" / "reference").glob("*.f32")}
    kept = np.fromfile(files[8 * data.examples], "<f4").reshape(-1, 2)
    for step in range(3):
        batch = data.batch(step)
        direct = built.task.reference(model, {name: jnp.asarray(array) for name, array in batch.items()})["reference"]
        np.testing.assert_allclose(kept[batch["example"]], direct, rtol=1e-5, atol=1e-4)


def test_an_exported_model_that_learned_preferences_answers_the_same_in_transformers(
    uninterrupted: Path, reference: TorchReference
) -> None:
    place, tokens = uninterrupted.parent.parent, 6
    done = trainkit(place, "export", "tiny", "out")
    assert done.returncode == 0, done.stderr
    prompts = ["the cat", "rain fell on roads", "one"]
    theirs = reference.answer(place / "out", prompts, tokens=tokens)["answers"]
    done = trainkit(place, "generate", "tiny", *prompts, "--temperature", "0", "--max-tokens", str(tokens), "--json")
    assert done.returncode == 0, done.stderr
    ours = [json.loads(line) for line in done.stdout.splitlines()]
    assert [(answer["text"], answer["tokens"]) for answer in ours] == [
        (answer["text"], len(answer["ids"])) for answer in theirs
    ]
    assert all("yes" in answer["text"] and "no" not in answer["text"] for answer in theirs)


def test_eval_computes_the_reference_of_what_it_evaluates(place: Path, uninterrupted: Path, tmp_path: Path) -> None:
    run = trainer.copied(uninterrupted, tmp_path)
    for path in (tmp_path / "cache" / "reference").glob("*"):
        path.unlink()

    def evaluate(what: str, *options: str) -> dict[str, dict[str, float]]:
        done = trainkit(tmp_path, "eval", what, "--json", *options)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)["metrics"]

    found = evaluate("tiny")["held-out"]
    (computed,) = references(tmp_path)
    assert computed in references(place), "the columns are those of training"
    assert found == pytest.approx({name: value for name, value in evaluations(run)[12].items()}, abs=1e-6)
    shutil.copy(tmp_path / "rows.jsonl", tmp_path / "other.jsonl")
    assert evaluate("tiny/4", "--data", "other.jsonl")["other"]["validation/other/reward_accuracy"] > 0.5


def test_a_changed_reference_is_refused_before_the_log_is_cut(
    uninterrupted: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = trainer.copied(uninterrupted, tmp_path)
    for path in (tmp_path / "cache" / "reference").glob("*"):
        path.unlink()
    record = files.read_json(run / "reference.json")
    record["settings"]["model.heads"] = 4
    files.write_json(run / "reference.json", record)
    done = trainkit(tmp_path, "resume", "tiny/4", "--plain")
    assert done.returncode == WRONG_INPUT and "other values of model.heads" in done.stderr
    assert losses(run).keys() == set(range(1, 13)) and (run / "checkpoints" / "12").exists()


def test_a_run_that_was_killed_ends_bit_for_bit_as_one_that_was_not_with_and_without_the_reference_in_the_cache(
    place: Path, uninterrupted: Path, tmp_path: Path
) -> None:
    copied(place, tmp_path)
    with Trainer(tmp_path, "run", "tiny.toml", "--plain") as trainer:
        assert trainer.until(lambda e: e["type"] == "log" and "computing what the frozen" in e["message"])
        trainer.kill()  # before any step: what is half done is done again
    killed_at("checkpoint_saved 4", tmp_path, "resume", "tiny", "--plain")
    (whole, *others) = sorted((tmp_path / "cache" / "reference").glob("*.f32"))
    whole.write_bytes(whole.read_bytes()[:-4] + b"\0\0\0\0")  # damaged: its checksum is another one
    for other in others:
        other.unlink()
    done = trainkit(tmp_path, "resume", "tiny", "--plain")
    assert done.returncode == 0, done.stderr
    run = tmp_path / "runs" / "tiny"
    assert sum("not complete in the cache, or damaged" in message for message in said(run, attempt=3)) == 1 + len(
        others
    )
    assert references(tmp_path) == references(place), "made again by the parameters that the run began with"
    assert arrays(run, 12) == arrays(uninterrupted, 12)
    assert evaluations(run) == evaluations(uninterrupted)


def test_eight_devices_and_other_micro_batches_train_as_one(place: Path, uninterrupted: Path, tmp_path: Path) -> None:
    run = run_of(copied(place, tmp_path), "--set", "train.micro_batch_size=1", devices=8)
    for step, loss in losses(run).items():
        assert loss == pytest.approx(losses(uninterrupted)[step], abs=2e-4)
    for name, value in evaluations(run)[12].items():
        assert value == pytest.approx(evaluations(uninterrupted)[12][name], abs=5e-3), name


def test_beside_an_adapter_the_reference_is_the_base_alone(place: Path, tmp_path: Path) -> None:
    copied(place, tmp_path, ("[data]", '[adapter]\ntype = "lora"\nrank = 4\n[data]'))
    run = run_of(tmp_path, "--set", "optimizer.learning_rate=1e-2")
    assert losses(run)[1] == pytest.approx(np.log(2), abs=1e-5)
    assert losses(run)[12] < 0.6
    before = references(tmp_path)
    shutil.rmtree(tmp_path / "cache" / "reference")
    done = trainkit(tmp_path, "resume", "tiny", "--plain", "--set", "train.steps=16", "--raise-rate")
    assert done.returncode == 0, done.stderr
    assert references(tmp_path) == before


def test_conversations_that_a_template_writes_as_the_same_text_train_the_same_model(
    place: Path, uninterrupted: Path, tmp_path: Path
) -> None:
    pairs = [json.loads(line) for line in (place / "rows.jsonl").read_text().splitlines()]
    with (tmp_path / "rows.jsonl").open("w") as file:
        for pair in pairs:
            asked = {"role": "user", "content": pair["prompt"]}
            chats = {k: [asked, {"role": "assistant", "content": pair[k]}] for k in ("chosen", "rejected")}
            file.write(json.dumps(chats) + "\n")
    template = "{% for m in messages %}{{ ' ' if m.role == 'assistant' }}{{ m.content }}{% endfor %}"
    (tmp_path / "chat.jinja").write_text(template)
    recipe = RECIPE.replace(
        'type = "preference", chosen = " {chosen}", rejected = " {rejected}"',
        'type = "preference-chat", template = "chat.jinja"',
    ).replace("train = { vocab_size = 300 }", f'path = "{uninterrupted}/tokenizer.json"')
    (tmp_path / "tiny.toml").write_text(recipe)
    run = run_of(tmp_path)
    assert losses(run) == losses(uninterrupted) and evaluations(run) == evaluations(uninterrupted)
    assert arrays(run, 12) == arrays(uninterrupted, 12)


def test_a_loss_without_a_reference_computes_none(place: Path, tmp_path: Path) -> None:
    copied(place, tmp_path, ("beta = 0.2", 'loss = "simpo"\nbeta = 2.0\nmargin = 0.5'))
    run = run_of(tmp_path)
    assert not (tmp_path / "cache" / "reference").exists() and not (run / "reference.json").exists()
    assert losses(run)[12] < losses(run)[1]
