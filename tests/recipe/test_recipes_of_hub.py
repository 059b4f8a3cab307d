"""The recipes that read the hub make their first batch of what is in the form of the data sets that they name."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import likeness
import pyarrow as pa
import pytest
from places import ROOT
from published import CHECKPOINTS, look_up
from pyarrow import parquet

from trainkit.data.batches.dataset import TrainSet
from trainkit.data.cache import build as caches
from trainkit.data.checks import find_problems
from trainkit.recipe.sections.tokenizer import Tokenizer
from trainkit.recipe.toml.load import load

RECIPES = sorted(ROOT.glob("recipes/hub/*.toml"))
WORDS = likeness.CORPUS[1].split()


def words(count: int, number: int) -> str:
    return " ".join(random.Random(number).choices(WORDS, k=count)) + f" {number}"


def turns(*said: str) -> list[dict[str, str]]:
    return [{"content": text, "role": role} for role, text in zip(("user", "assistant"), said, strict=True)]


def question(number: int) -> dict[str, Any]:
    context = words(60, number)
    answer = context.split()[number % 50]
    answers = {"text": [answer], "answer_start": [context.index(answer)]}
    return {"id": str(number), "title": "", "context": context, "question": f" {words(5, number)}?", "answers": answers}


def preference(number: int) -> dict[str, Any]:
    prompt, chosen, rejected = words(9, number), words(20, number + 1), words(20, number + 2)
    rejected = chosen if number == 3 else rejected
    about = {"prompt": prompt, "prompt_id": str(number), "messages": turns(prompt, chosen)}
    return about | {"chosen": turns(prompt, chosen), "rejected": turns(prompt, rejected), "score_chosen": 8.0}


def tagged(number: int) -> dict[str, Any]:
    tokens = [*words(9, number).split(), ".", "-DOCSTART-"]
    tags = [(number + place) % 9 for place in range(len(tokens))]
    return {"id": str(number), "tokens": tokens, "pos_tags": tags, "chunk_tags": tags, "ner_tags": tags}


class DataSet(NamedTuple):
    """The form of a data set on the hub, by its card."""

    row: Callable[[int], dict[str, Any]]
    splits: tuple[str, ...] = ("train", "validation", "test")
    config: str = "default"
    by_script: bool = False
    """Whether the repository has a script: what is read is then the branch that the hub converted, without a card."""


DATA_SETS = {
    "tatsu-lab/alpaca": DataSet(
        lambda n: {
            "instruction": words(9, n),
            "input": "" if n % 2 else words(5, n),
            "output": words(9, n) if n else "",
        },
        ("train",),
    ),
    "eriktks/conll2003": DataSet(tagged, by_script=True),
    "allenai/c4": DataSet(lambda n: {"text": words(99, n), "timestamp": "", "url": ""}, ("train", "validation"), "en"),
    "HuggingFaceFW/fineweb-edu": DataSet(
        lambda n: {"text": words(99, n), "id": "", "score": 3.0}, ("train",), "sample-10BT"
    ),
    "rajpurkar/squad": DataSet(question, ("train", "validation"), "plain_text"),
    "stanfordnlp/sst2": DataSet(lambda n: {"idx": n, "sentence": words(9, n) + " ", "label": n % 2}),
    "HuggingFaceH4/ultrafeedback_binarized": DataSet(preference, ("train_prefs", "train_sft", "test_prefs")),
    "Salesforce/wikitext": DataSet(
        lambda n: {"text": f" {words(99, n)} \n" if n % 3 else ""}, config="wikitext-103-raw-v1"
    ),
    "EdinburghNLP/xsum": DataSet(
        lambda n: {"document": words(50, n) if n else "", "summary": words(9, n), "id": ""}, by_script=True
    ),
}


def write(directory: Path, data: DataSet) -> Path:
    """Return the directory, after writing a data set as it is on the hub."""
    rows, files = [data.row(number) for number in range(300)], {}
    for split in data.splits:
        files[split] = f"{data.config}/{split}/0000.parquet"
        (directory / files[split]).parent.mkdir(parents=True)
        parquet.write_table(pa.Table.from_pylist(rows), directory / files[split])
    found = [{"split": split, "path": path} for split, path in files.items()]
    configs = [{"config_name": data.config, "data_files": found}]
    if not data.by_script:
        (directory / "README.md").write_text(f"---\nconfigs: {json.dumps(configs)}\n---\n# A card\n")
    return directory


@pytest.fixture(autouse=True)
def own_cache_of_datasets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    import datasets

    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "datasets")
    yield


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_its_first_batch_and_its_sets_can_be_made(path: Path, tmp_path: Path) -> None:
    first = load(path, look_up=look_up).recipe
    few = ["data.held_out=0.1"] if first.data.held_out else []
    few += ["data.shuffle={window=64}"] if not isinstance(first.data.shuffle, str) else []
    recipe = load(path, [*few, "train.batch_size=8"], look_up=look_up).recipe
    made = {one: tmp_path / one for one in {source.id for source in (*recipe.data.train, *recipe.data.validation)}}
    for name, directory in made.items():
        write(directory, DATA_SETS[name])
        if DATA_SETS[name].by_script:
            assert {s.revision for s in (*recipe.data.train, *recipe.data.validation)} == {"refs/convert/parquet"}

    def here(sources: Any) -> Any:
        return tuple(source.model_copy(update={"id": str(made[source.id])}) for source in sources)

    data = {
        "train": here(recipe.data.train),
        "validation": here(recipe.data.validation),
        "cache": str(tmp_path / "cache"),
    }
    assert recipe.tokenizer is not None and recipe.tokenizer.path is not None
    alike = likeness.write(CHECKPOINTS[recipe.tokenizer.path].tokenizer, tmp_path / "tokenizer")
    data = recipe.data.model_copy(update=data)
    recipe = recipe.model_copy(update={"data": data, "tokenizer": Tokenizer(path=str(alike))})
    cache = caches.build(recipe)
    try:
        batch = TrainSet(cache, recipe).batch(0)
        assert {len(array) for array in batch.values()} == {8}
        assert not [problem for problem in find_problems(cache, recipe) if problem.level == "error"]
        assert all(stream.documents for stream in cache.validation.values())
    finally:
        cache.close()
