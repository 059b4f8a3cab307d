"""Preferences as data: what a row becomes, what a batch holds, and which rows and recipes are refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import data_room as room
import numpy as np
import pytest

from trainkit.data.batches.dataset import TrainSet, counts_of
from trainkit.data.batches.evaluation_set import EvalSet
from trainkit.data.batches.layout import longest_layout
from trainkit.data.batches.pairs import pair_spans
from trainkit.data.cache import build as caches
from trainkit.data.cache.shards import LEARNED, SECOND
from trainkit.data.checks import find_problems
from trainkit.data.export import export
from trainkit.data.show import show
from trainkit.errors import TrainkitError
from trainkit.recipe.sections.data import Pad
from trainkit.recipe.sections.preference_tasks import Reward
from trainkit.recipe.toml.load import load

DOCUMENT = {"type": "preference", "chosen": " {chosen}", "rejected": " {rejected}"}


def row(seed: int, **changes: str) -> dict[str, str]:
    return {"prompt": f"alpha {seed}", "chosen": "beta " * (1 + seed % 5), "rejected": f"gamma {seed} delta"} | changes


def recipe_of(directory: Path, rows: list[dict[str, str]], **changes: Any):
    room.write_rows(directory / "pairs.jsonl", rows)
    source = {"path": str(directory / "pairs.jsonl"), "document": DOCUMENT}
    return room.recipe(directory, source, **{"encoding": {"type": "pad"}, "batch_size": 4, **changes})


@pytest.mark.parametrize("buckets", [(), (12, 24)], ids=["one length", "buckets"])
def test_a_batch_has_both_answers_behind_their_prompt_and_learns_the_answers_alone(tmp_path: Path, buckets) -> None:
    rows = [row(seed) for seed in range(10)]
    recipe = recipe_of(tmp_path, rows, sequence_length=64, encoding={"type": "pad", "buckets": buckets})
    cache = caches.build(recipe)
    data, codec, seen = TrainSet(cache, recipe), cache.tokenizer, set()
    if not buckets:
        assert data.layouts()[64] == longest_layout(recipe.data, batch_size=4, vocab_size=codec.vocab_size)
    for step in range(data.batches or 2):
        batch = data.batch(step)
        shown = list(show(cache, data, step))
        for number in range(4):
            if not batch["filled"][number].any():
                continue
            texts = []
            for side, answer in enumerate(("chosen", "rejected")):
                used = int(batch["filled"][number, side])
                tokens, targets = (batch[name][number, side, :used].tolist() for name in ("tokens", "targets"))
                assert tokens[1:] == targets[:-1] and targets[-1] == codec.end_of_text
                learned = batch["weights"][number, side] > 0
                assert not learned[used:].any() and learned[used - 1]
                texts.append(codec.decode([*tokens, targets[-1]]).removesuffix(room.END))
                its_row = rows[int(batch["example"][number])]
                answered = codec.decode(batch["targets"][number, side][learned].tolist())
                assert answered == f" {its_row[answer]}{room.END}"
                assert texts[-1] == f"{its_row['prompt']} {its_row[answer]}"
            if number < len(shown):
                assert [
                    "".join(text for text, _ in piece.runs).removesuffix(room.END) for piece in shown[number].pieces
                ] == texts
                assert [piece.part for piece in shown[number].pieces] == ["chosen", "rejected"]
            seen.add(tuple(texts))
    assert len(seen) >= 8


def test_a_pair_of_which_nothing_learned_is_left_is_dropped_and_counted() -> None:
    # (prompt, answer) tokens of the chosen and of the rejected sequence
    made = [((2, 3), (2, 2)), ((9, 1), (1, 1)), ((2, 9), (2, 1)), ((1, 1), (8, 2))]
    marks = np.concatenate(
        [
            np.array([0] * prompt + [LEARNED] * answer, np.uint8) | side * SECOND
            for sequences in made
            for side, (prompt, answer) in enumerate(sequences)
        ]
    )
    ends = np.cumsum([sum(map(sum, sequences)) for sequences in made])
    found = pair_spans(Pad(type="pad"), 8, ends, marks)
    assert found.lengths.tolist() == [4, 3, 8, 2, 1, 8], (
        "the second answer of all is cut off, but not all of it is lost"
    )
    assert (found.counts.documents, found.counts.dropped, found.counts.truncated) == (4, 1, 2)
    assert found.counts.targets - found.counts.lost == found.lengths.sum()
    whole = pair_spans(Pad(type="pad", too_long="drop"), 8, ends, marks)
    assert whole.lengths.tolist() == [4, 3] and whole.counts.dropped == 3


def test_where_no_next_token_is_predicted_a_batch_has_every_token_of_both_sequences(tmp_path: Path) -> None:
    recipe = recipe_of(tmp_path, [row(seed) for seed in range(4)], encoding={"type": "pad", "eos": False})
    recipe = recipe.model_copy(update={"task": Reward(type="reward")})
    cache = caches.build(recipe)
    data = TrainSet(cache, recipe)
    expected = longest_layout(recipe.data, batch_size=4, vocab_size=cache.tokenizer.vocab_size, shifted=False)
    assert data.layouts()[recipe.data.positions] == expected
    batch = data.batch(0)
    for number, which in enumerate(batch["example"].tolist()):
        for side, answer in enumerate(("chosen", "rejected")):
            used, made = int(batch["filled"][number, side]), row(which)
            tokens, learned = batch["tokens"][number, side], batch["weights"][number, side] > 0
            assert cache.tokenizer.decode(tokens[:used].tolist()) == f"{made['prompt']} {made[answer]}"
            assert cache.tokenizer.decode(tokens[learned].tolist()) == f" {made[answer]}" and not tokens[used:].any()
    assert ["".join(text for text, _ in piece.runs) for shown in show(cache, data, 0) for piece in shown.pieces]


def test_margins_are_in_the_batch_and_may_all_be_the_same(tmp_path: Path) -> None:
    rows = [row(seed) | {"gap": 0.5} for seed in range(4)]
    room.write_rows(tmp_path / "pairs.jsonl", rows)
    encoding = {"type": "pad", "eos": False}
    for margin in ({"margin": "gap"}, {}):
        source = {"path": str(tmp_path / "pairs.jsonl"), "document": DOCUMENT | margin}
        recipe = room.recipe(tmp_path, source, encoding=encoding, batch_size=4)
        recipe = recipe.model_copy(update={"task": Reward(type="reward")})
        cache = caches.build(recipe)
        assert not [p for p in find_problems(cache, recipe) if p.level == "error"]
        data = TrainSet(cache, recipe)
        expected = longest_layout(recipe.data, batch_size=4, vocab_size=cache.tokenizer.vocab_size, shifted=False)
        assert data.layouts()[recipe.data.positions] == expected
        assert ("labels" in data.batch(0)) == bool(margin)
        if margin:
            assert data.batch(0)["labels"].tolist() == [0.5] * 4
    room.write_rows(tmp_path / "pairs.jsonl", [row(1) | {"gap": "wide"}])
    source = {"path": str(tmp_path / "pairs.jsonl"), "document": DOCUMENT | {"margin": "gap"}}
    with pytest.raises(TrainkitError, match="'wide', not a finite number") as told:
        caches.build(room.recipe(tmp_path, source, encoding=encoding))
    assert "pairs.jsonl:1" in str(told.value.where)


def test_a_limit_of_characters_counts_the_prompt_of_a_pair_once(tmp_path: Path) -> None:
    lengths = [(10, 3, 4), (1, 2, 3), (30, 1, 2)]  # 19, 8 and 35 characters, with the spaces before the answers
    rows = [{"prompt": "p" * p, "chosen": "c" * c, "rejected": "r" * r} for p, c, r in lengths]
    path = room.write_rows(tmp_path / "pairs.jsonl", rows)
    for limit, documents in (({"max_characters": 19}, 2), ({"max_characters": 18}, 1), ({"min_characters": 20}, 1)):
        source = {"path": str(path), "document": DOCUMENT, **limit}
        cache = caches.build(room.recipe(tmp_path, source, encoding={"type": "pad"}))
        assert (cache.train.documents, cache.left_out.filtered) == (documents, 3 - documents)


def test_what_is_cut_off_or_dropped_is_counted_for_a_whole_set(tmp_path: Path) -> None:
    rows = [row(0), row(1, prompt="alpha " * 40), row(2, rejected="gamma " * 40)]
    recipe = recipe_of(tmp_path, rows, sequence_length=24)
    cache = caches.build(recipe)
    counts = counts_of(cache.train, recipe.data.train[0], recipe, cache.directory)
    assert counts is not None and (counts.documents, counts.dropped, counts.truncated) == (3, 1, 1)
    assert TrainSet(cache, recipe).examples == 2


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"rejected": "beta "}, "the same answer"),
        ({"chosen": "  "}, "empty chosen"),
        ({"rejected": ""}, "empty rejected"),
    ],
    ids=["equal", "no chosen", "no rejected"],
)
def test_a_row_without_a_preference_is_reported_with_its_place_or_skipped_and_counted(
    tmp_path, changes, problem
) -> None:
    rows = [row(1), row(0, chosen="beta ") | changes]
    with pytest.raises(TrainkitError, match=problem) as told:
        caches.build(recipe_of(tmp_path, rows))
    assert "pairs.jsonl:2" in str(told.value.where)
    cache = caches.build(recipe_of(tmp_path, rows, on_error="skip"))
    assert cache.train.documents == 1 and cache.left_out.refused == 1


def test_answers_that_differ_only_behind_where_they_are_cut_off_are_reported_with_their_row(tmp_path: Path) -> None:
    long = row(1, chosen="beta " * 40 + "one", rejected="beta " * 40 + "two")
    other = row(2, chosen="beta " * 40, rejected="gamma " * 40)
    recipe = recipe_of(tmp_path, [row(0), long, other], sequence_length=24)
    found = [p.message for p in find_problems(caches.build(recipe), recipe) if "equal sequences" in p.message]
    assert len(found) == 1 and "1 pair has" in found[0] and "pairs.jsonl:2" in found[0]


def test_one_answer_may_be_the_same_in_every_pair(tmp_path: Path) -> None:
    recipe = recipe_of(tmp_path, [row(seed) for seed in range(8)])
    source = recipe.data.train[0]
    constant = source.document.model_copy(update={"rejected": " I do not know"})
    data = recipe.data.model_copy(update={"train": (source.model_copy(update={"document": constant}),)})
    assert caches.build(recipe.model_copy(update={"data": data})).train.documents == 8


def test_pairs_are_not_exported_as_plain_token_ids(tmp_path: Path) -> None:
    recipe = recipe_of(tmp_path, [row(1)])
    with pytest.raises(TrainkitError, match=r"--export.*preference.*sequences") as told:
        export(caches.build(recipe), recipe.data, tmp_path / "out")
    assert told.value.where == "data.train.0.document" and not (tmp_path / "out").exists()


def test_a_set_without_an_example_is_named_in_the_error(tmp_path: Path) -> None:
    recipe = recipe_of(tmp_path, [row(1, prompt="alpha " * 90)], sequence_length=24)
    cache = caches.build(recipe)
    source = recipe.data.train[0]
    pairs = EvalSet(cache.train, source, recipe.data, cache.directory, batch_size=2, name="data.train (pairs)")
    with pytest.raises(TrainkitError, match="makes no example") as told:
        len(pairs)
    assert told.value.where == "data.train (pairs)"


RECIPE = """
schema = 1
[model]
type = "gpt2"
layers = 1
hidden = 16
heads = 2
[tokenizer]
train = { vocab_size = 300 }
[task]
type = "preference"
[data]
sequence_length = 32
encoding = { type = "pad" }
[[data.train]]
path = "pairs.jsonl"
document = { type = "preference" }
[train]
steps = 4
batch_size = 8
[optimizer]
learning_rate = 1e-3
"""


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (('document = { type = "preference" }\n', ""), ["preference", "does not learn", "text"]),
        (('type = "preference"\n[data]', 'type = "causal-lm"\n[data]'), ["causal-lm", "preference", "chat"]),
        (('type = "preference"\n[data]', 'type = "sft"\n[data]'), ["sft", "preference", "chat, prompt"]),
        (('type = "gpt2"\nlayers = 1', 'type = "bert"\nlayers = 1'), ["preference", "bert", "encoder", "gpt2"]),
        (('encoding = { type = "pad" }', 'encoding = { type = "pack" }'), ["pad"]),
        (('type = "preference"\n[data]', 'type = "reward"\n[data]'), ["last token", "eos = false"]),
        (('{ type = "pad" }', '{ type = "pad", too_long = "split" }'), ["truncate", "drop"]),
        (('type = "preference"\n[data]', 'type = "preference"\nmargin = 1.0\n[data]'), ["margin", "dpo", "simpo"]),
        (('{ type = "preference" }', '{ type = "preference", margin = "gap" }'), ["document.margin", "reward"]),
        (('type = "preference"\n[data]', 'type = "preference"\nloss = "dop"\n[data]'), ["dop", "dpo"]),
        (
            ('{ type = "preference" }', '{ type = "preference", prompt = "p", chosen = "x", rejected = "y" }'),
            ["prompt", "braces"],
        ),
    ],
    ids=["documents", "task", "sft", "model", "encoding", "reward", "split", "margin", "margins", "loss", "template"],
)
def test_what_does_not_fit_is_reported_before_anything_is_tokenised(tmp_path, monkeypatch, change, words) -> None:
    monkeypatch.chdir(tmp_path)
    room.write_rows(tmp_path / "pairs.jsonl", [row(1)])
    (tmp_path / "wrong.toml").write_text(RECIPE.replace(*change))
    with pytest.raises(TrainkitError) as told:
        caches.build(load(tmp_path / "wrong.toml").recipe)
    said = told.value.problem + told.value.hint
    assert all(word in said for word in words), said
    assert not list(tmp_path.glob("cache/shards/*"))


def test_sft_is_causal_lm_for_documents_of_which_a_part_is_learned(tmp_path: Path) -> None:
    text = RECIPE.replace('type = "preference"\n[data]', 'type = "sft"\nlabel_smoothing = 0.1\n[data]')
    prompt = 'document = { type = "prompt", prompt = "{prompt}", response = " {chosen}" }'
    (tmp_path / "a.toml").write_text(text.replace('document = { type = "preference" }', prompt))
    assert load(tmp_path / "a.toml").recipe.task.label_smoothing == 0.1
    (tmp_path / "a.toml").write_text(text.replace('document = { type = "preference" }', ""))
    with pytest.raises(TrainkitError, match="sft does not learn from documents of type text"):
        load(tmp_path / "a.toml")


def test_a_recipe_of_preferences_that_names_no_task_can_be_loaded_to_be_cached(tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_text(RECIPE.replace('[task]\ntype = "preference"\n', ""))
    assert load(tmp_path / "a.toml").recipe.task.type == "causal-lm"
    assert json.dumps(row(1))
