"""Whether a token begins every document is the recipe's to say, and the tokenizer's own with a pretrained model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import data_room as room
import likeness
import numpy as np
import pytest

from trainkit.cli.plan_table import texts
from trainkit.data.batches.dataset import TrainSet
from trainkit.data.cache import build
from trainkit.data.tokenizer.load import begins
from trainkit.data.tokenizer.vocabulary import load
from trainkit.errors import TrainkitError
from trainkit.infer.text_format import begin_of
from trainkit.recipe import Recipe

TEXTS = ["key: value", "the cat sat on the mat"]
PUTTING = {"llama-2", "mistral", "gemma", "llama-3", "wordpiece"}


def recipe_with(directory: Path, name: str, *, pretrained: bool = True, **encoding: Any) -> Recipe:
    """A recipe with a family's tokenizer and two documents."""
    likeness.write(name, directory / "made")
    rows = room.write_jsonl(directory / "rows.jsonl", TEXTS)
    made = room.recipe(directory, rows, tokenizer={"path": str(directory / "made")}, encoding=encoding, shuffle=False)
    model = made.model.model_copy(update={"pretrained": "them/base" if pretrained else None})
    return made.model_copy(update={"model": model})


@pytest.mark.parametrize("name", likeness.FAMILIES)
def test_with_a_pretrained_model_documents_begin_as_its_tokenizer_begins_a_text_by_itself(tmp_path, name):
    recipe = recipe_with(tmp_path, name)
    built = build.build(recipe)
    one, tokens = likeness.FAMILIES[name](), room.tokens_of(built.train).tolist()
    own = one.tokenizer.encode(TEXTS[0]).ids
    assert tokens[: len(own) - (own[-1] == built.tokenizer.end_of_text)] == [
        id_ for id_ in own if id_ != built.tokenizer.end_of_text
    ]
    begin = begin_of(recipe, built.tokenizer)
    assert begin == ((one.id(one.begin),) if name in PUTTING else ())
    assert tokens.count(begin[0]) == len(TEXTS) if begin else True


@pytest.mark.parametrize("bos", [True, False])
def test_what_the_recipe_says_goes_before_what_the_tokenizer_does(tmp_path, bos):
    for name in ("gpt2", "llama-2"):
        recipe = recipe_with(tmp_path / name, name, bos=bos)
        codec = load(tmp_path / name / "made" / "tokenizer.json")
        assert begins(recipe, codec) is bos
        assert begin_of(recipe, codec) == ((codec.beginning_of_text,) if bos else ())


def test_a_new_model_s_documents_begin_with_no_token_unless_the_recipe_says_so(tmp_path):
    recipe = recipe_with(tmp_path, "llama-2", pretrained=False)
    assert not begins(recipe, load(tmp_path / "made" / "tokenizer.json"))


def test_a_begin_that_is_asked_for_and_is_not_there_is_reported(tmp_path):
    with pytest.raises(TrainkitError, match="no beginning-of-text token"):
        build.build(recipe_with(tmp_path, "qwen", bos=True))


@pytest.mark.parametrize("name", ["llama-2", "gpt2"])
def test_separate_documents_begin_where_their_own_first_token_is_whoever_said_that_there_is_one(tmp_path, name):
    batches = []
    for place, bos in (("auto", "auto"), ("said", name == "llama-2")):
        recipe = recipe_with(tmp_path / place, name, type="concatenate", separate=True, bos=bos)
        batches.append(TrainSet(build.build(recipe), recipe).batch(0, np.arange(1)))
    for key, values in batches[0].items():
        np.testing.assert_array_equal(values, batches[1][key], err_msg=key)


def test_the_plan_says_how_documents_begin_and_end_and_who_said_so(tmp_path):
    codec = load(likeness.write("llama-2", tmp_path / "made"))
    told = {
        how: texts(recipe_with(tmp_path, "llama-2", **options), codec)
        for how, options in {"own": {}, "new": {"pretrained": False}, "said": {"bos": False, "eos": False}}.items()
    }
    assert told == {
        "own": "begin with <s> (as the tokenizer itself does), end with </s>",
        "new": "begin with no special token (the default for a new model), end with </s>",
        "said": "begin with no special token (set by data.encoding.bos), end with no special token",
    }
