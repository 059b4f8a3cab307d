"""Reversing strings by a recipe: a T5 is trained with dropout, killed, evaluated by what it writes, and exported."""

from __future__ import annotations

import json
import random
import shutil
from itertools import product
from pathlib import Path

import pyarrow.parquet
import pytest
from reference import Reference
from tokenizers import Tokenizer, pre_tokenizers, processors
from tokenizers import models as tokenizer_models
from trainer import arrays, killed_and_resumed, losses, run_of, trainkit

from trainkit.events.tail import read

LETTERS = "abcdefgh"
RECIPE = """
schema = 1
[run]
name = "tiny"
[model]
type = "t5"
layers = 1
hidden = 32
heads = 4
intermediate = 64
dropout = 0.02
[tokenizer]
path = "tokenizer.json"
[task]
type = "seq2seq"
[data]
sequence_length = 8
encoding = { type = "pad" }
[[data.train]]
path = "train.jsonl"
document = { type = "source-target", source = "reverse {text}", target = "{answer}" }
[[data.validation]]
name = "test"
path = "test.jsonl"
document = { type = "source-target", source = "reverse {text}", target = "{answer}" }
[train]
steps = 160
batch_size = 32
micro_batch_size = 16
[optimizer]
learning_rate = 1e-2
[checkpoint]
keep_every = 80
best = { metric = "validation/test/exact_match", mode = "max" }
[evaluate]
every = 80
predictions = true
metrics = [{ type = "exact-match" }, { type = "token-f1" }, { type = "chrf" }]
[evaluate.generate]
max_tokens = 6
max_items = 9
beams = 2
[sample]
prompts = ["reverse a b"]
temperature = 0.0
[track]
aim = false
"""


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Strings of two letters and the same backwards, and a tokenizer that ends texts as T5 does."""
    directory, chance = tmp_path_factory.mktemp("seq2seq"), random.Random(0)
    strings = list(product(LETTERS, repeat=2))
    chance.shuffle(strings)
    for name, some in (("test", strings[:11]), ("train", strings)):
        rows = ({"text": " ".join(letters), "answer": " ".join(reversed(letters))} for letters in some)
        (directory / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    words = {word: number for number, word in enumerate(["<pad>", "</s>", "<unk>", "reverse", *LETTERS])}
    tokenizer = Tokenizer(tokenizer_models.WordLevel(words, unk_token="<unk>"))
    tokenizer.add_special_tokens(["<pad>", "</s>", "<unk>"])
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 1)])
    tokenizer.save(str(directory / "tokenizer.json"))
    (directory / "tiny.toml").write_text(RECIPE)
    return directory


@pytest.fixture(scope="module")
def uninterrupted(place: Path) -> Path:
    return run_of(place)


def evaluations(run: Path) -> dict[int, dict[str, float]]:
    return {event["step"]: event["metrics"] for event in read(run) if event["type"] == "evaluated"}


def copied(place: Path, to: Path) -> Path:
    shutil.copytree(place, to, dirs_exist_ok=True, ignore=shutil.ignore_patterns("runs", "cache", "out"))
    return to


def test_strings_are_reversed_as_the_samples_and_the_predictions_show(uninterrupted: Path) -> None:
    last = evaluations(uninterrupted)[160]
    assert last["validation/test/exact_match"] > 0.7 and last["validation/test/accuracy"] > 0.9, last
    (sampled,) = [event for event in read(uninterrupted) if event["type"] == "sampled"]
    assert sampled["text"] == "b a"
    table = pyarrow.parquet.read_table(uninterrupted / "results" / "test-160.parquet").to_pydict()
    assert len(table["row"]) == 9, "as many as max_items"
    assert table["row"] == sorted(set(table["row"])) and set(table["source"]) == {
        str(uninterrupted.parent.parent / "test.jsonl")
    }
    same = sum(map(str.__eq__, table["generated"], table["target"]))
    assert same / 9 == last["validation/test/exact_match"]
    assert all(
        text.split()[1:] == target.split()[::-1] for text, target in zip(table["text"], table["target"], strict=True)
    )


def test_a_run_that_was_killed_ends_bit_for_bit_as_one_that_was_not(
    place: Path, uninterrupted: Path, tmp_path: Path
) -> None:
    copied(place, tmp_path)
    run = killed_and_resumed(tmp_path, saved=80)
    assert arrays(run, 160) == arrays(uninterrupted, 160)
    assert evaluations(run) == evaluations(uninterrupted)


def test_eight_devices_train_and_evaluate_as_one(place: Path, uninterrupted: Path, tmp_path: Path) -> None:
    copied(place, tmp_path)
    arguments = ("--set", "train.micro_batch_size=2", "--set", "train.steps=4", "--set", "schedule.type=constant")
    single = trainkit(place, "run", "tiny.toml", "--plain", *arguments, "--set", "run.name=single")
    several = trainkit(tmp_path, "run", "tiny.toml", "--plain", *arguments, devices=8)
    assert single.returncode == several.returncode == 0, single.stderr + several.stderr
    one, eight = place / "runs" / "single", tmp_path / "runs" / "tiny"
    assert losses(eight) == pytest.approx(losses(one), rel=1e-4)
    assert evaluations(eight)[4] == pytest.approx(evaluations(one)[4], rel=1e-4)


@pytest.fixture(scope="module")
def exported(uninterrupted: Path) -> Path:
    place = uninterrupted.parent.parent
    done = trainkit(place, "export", "tiny", "out")
    assert done.returncode == 0, done.stderr
    return place / "out"


def test_an_export_writes_the_same_targets_in_transformers(exported: Path, reference: Reference) -> None:
    place = exported.parent
    rows = [json.loads(line) for line in (place / "test.jsonl").read_text().splitlines()[:8]]
    sources = [f"reverse {row['text']}" for row in rows]
    settings = [{"max_new_tokens": 6}, {"max_new_tokens": 6, "num_beams": 3}]
    theirs = reference.write(exported, sources=sources, settings=settings)
    for model, options, wanted in (
        ("tiny", ("--temperature", "0"), theirs["ids"][0]),
        ("out", ("--temperature", "0"), theirs["ids"][0]),
        ("out", ("--beams", "3"), theirs["ids"][1]),
    ):
        done = trainkit(place, "generate", model, *sources, "--max-tokens", "6", *options)
        assert done.returncode == 0, done.stderr
        words = ["<pad>", "</s>", "<unk>", "reverse", *LETTERS]
        assert done.stdout.splitlines() == [" ".join(words[token] for token in row if token > 1) for row in wanted]
    assert sum(text.split() == row["answer"].split() for text, row in zip(theirs["texts"], rows, strict=True)) >= 5


def test_a_conversation_and_options_that_change_nothing_are_refused(uninterrupted: Path) -> None:
    place = uninterrupted.parent.parent
    done = trainkit(place, "chat", "tiny")
    assert done.returncode != 0 and "trainkit generate" in done.stderr
    done = trainkit(place, "generate", "tiny", "reverse a b", "--beams", "2", "--top-k", "3")
    assert done.returncode != 0 and "--top-k changes nothing with --beams 2" in done.stderr


def test_lm_eval_gets_the_likelihoods_and_targets_of_transformers(
    uninterrupted: Path, exported: Path, reference: Reference
) -> None:
    from lm_eval.api.instance import Instance  # importing lm-eval takes seconds

    from trainkit.evaluation.harness_model import HarnessModel
    from trainkit.infer.trained_model import open_run

    model = HarnessModel(open_run(uninterrupted), rows=3, warn=pytest.fail)
    pairs = [("reverse a b", "b a"), ("reverse c", "d"), ("", "a b"), ("reverse e f g  ", "h"), ("reverse g h", "h g")]
    requests = [Instance("loglikelihood", {}, pair, number) for number, pair in enumerate(pairs)]
    found = model.loglikelihood(requests, disable_tqdm=True)
    theirs = reference.score_targets(exported, pairs)
    assert [one for one, _ in found] == pytest.approx([one for one, _ in theirs], rel=1e-5)
    assert [greedy for _, greedy in found] == [greedy for _, greedy in theirs]
    sources = [source for source, _ in pairs if source]
    how = [{"max_gen_toks": 6}, {"max_gen_toks": 6, "num_beams": 3}]
    asked = [(source, one) for one in how for source in sources]
    written = model.generate_until([Instance("generate_until", {}, one, n) for n, one in enumerate(asked)])
    settings = [{"max_new_tokens": 6}, {"max_new_tokens": 6, "num_beams": 3}]
    ids = reference.write(exported, sources=sources, settings=settings)["ids"]
    words = ["<pad>", "</s>", "<unk>", "reverse", *LETTERS]
    assert written == [" ".join(words[token] for token in row if token > 1) for rows in ids for row in rows]


def test_a_task_of_lm_eval_that_scores_whole_texts_is_refused_before_anything_is_computed(uninterrupted: Path) -> None:
    place = uninterrupted.parent.parent
    (place / "tasks").mkdir(exist_ok=True)
    task = "dataset_path: json\ndataset_kwargs: {data_files: {test: test.jsonl}}\ntest_split: test\n"
    (place / "tasks" / "all.yaml").write_text(
        f"task: whole\n{task}output_type: loglikelihood_rolling\ndoc_to_text: ''\ndoc_to_target: '{{{{answer}}}}'\n"
    )
    done = trainkit(place, "eval", "tiny", "--lm-eval", "whole", "--lm-eval-path", "tasks")
    assert done.returncode == 2 and "--lm-eval whole" in done.stderr
    assert "loglikelihood_rolling" in done.stderr and "encoder-decoder" in done.stderr
