"""Which data an evaluation reads instead of the validation sets."""

from __future__ import annotations

from pathlib import Path

import data_room as room
import pytest

from trainkit.errors import TrainkitError
from trainkit.evaluation.other_data import set_names, sources_to_evaluate
from trainkit.recipe.sections.source import Files, HuggingFace


def test_files_are_read_as_the_data_set_that_the_model_was_trained_on_was(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    room.write_jsonl(tmp_path / "own.jsonl", ["one", "two"])
    about = {"type": "huggingface", "id": "them/rows", "config": "en", "revision": "a-branch", "limit": 1}
    prompt = {"type": "prompt", "prompt": "{q}", "response": "{a}"}
    recipe = room.recipe(tmp_path, {**about, "document": prompt}, encoding={"type": "pad"})
    document = recipe.data.train[0].document

    def found(*data: str, split: str | None = None):
        return sources_to_evaluate(recipe, data, split)

    files = [Files(path=path, name=name, document=document) for path, name in (
        (str(tmp_path / "own.jsonl"), "own"), ("https://host/more.jsonl", "more")
    )]  # fmt: skip
    assert found("own.jsonl", "https://host/more.jsonl") == files
    same = HuggingFace(**about, document=document).model_copy(update={"limit": None})
    assert found("them/rows", split="test") == [same.model_copy(update={"split": "test", "name": "test"})]
    assert found(split="test") == [same.model_copy(update={"split": "test", "name": "test"})]
    others = {"id": "them/others", "name": "others", "config": None, "revision": None}
    assert found("them/others") == [same.model_copy(update=others)]
    with pytest.raises(TrainkitError, match=r"--split test is for data sets, and --data own\.jsonl is a file"):
        found("own.jsonl", split="test")


def test_sets_that_an_evaluation_would_call_alike_have_names_of_their_own() -> None:
    paths = ["a/test.jsonl", "b/test.v1.jsonl", "other.jsonl.gz", "held-out.csv", ".hidden"]
    assert set_names(paths, None, taken=["held-out"]) == {
        "a/test.jsonl": "a/test.jsonl",
        "b/test.v1.jsonl": "b/test.v1.jsonl",
        "other.jsonl.gz": "other",
        "held-out.csv": "held-out.csv",
        ".hidden": ".hidden",
    }
    assert set_names(["glue", "imdb"], "test", taken=()) == {"glue": "glue", "imdb": "imdb"}
