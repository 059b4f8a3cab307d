"""A tokenizer that is trained sees a sample of all sources, the same everywhere, and holds no more than that."""

from __future__ import annotations

import tracemalloc
from collections import Counter
from pathlib import Path
from typing import Any

import data_room as room
import pytest

from trainkit.data.jobs import Reporter, Stop
from trainkit.data.sources import digests
from trainkit.data.tokenizer import train
from trainkit.data.tokenizer.train import PART, READ
from trainkit.recipe import Recipe

WORDS = ("alpha", "beta", "gamma", "delta")


def source(directory: Path, word: str, documents: int, *, size: int = 100, **options: Any) -> dict[str, Any]:
    """Documents of about `size` bytes of a word, each with its number."""
    texts = [f"{number:06d} " + f"{word} " * (size // (len(word) + 1)) for number in range(documents)]
    return {"path": str(room.write_jsonl(directory / f"{word}.jsonl", texts)), **options}


def recipe_of(directory: Path, *sources: dict[str, Any], max_bytes: int, seed: int = 0, **data: Any) -> Recipe:
    spec = {"vocab_size": 300, "max_bytes": max_bytes, "seed": seed}
    return room.recipe(directory, *sources, tokenizer={"train": spec}, **data)


def drawn(recipe: Recipe) -> list[train.Drawn]:
    listing = digests.survey(Path(recipe.data.cache), recipe.data.train, None)
    spec = recipe.tokenizer.train
    assert spec is not None
    return train.draw(recipe.data, spec, listing.files, listing.contents)


def sampled(recipe: Recipe) -> list[str]:
    spec = recipe.tokenizer.train
    assert spec is not None
    return list(train.sample_texts(recipe.data, spec, drawn(recipe), Reporter("tokenizer", 0, None), Stop(), []))


def bytes_by_word(texts: list[str]) -> Counter[str]:
    found: Counter[str] = Counter()
    for text in texts:
        found[next(word for word in WORDS if word in text)] += len(text.encode())
    return found


def test_a_source_is_seen_by_its_size_wherever_it_stands(tmp_path):
    sources = [source(tmp_path, word, 3000 if word == "alpha" else 1000) for word in WORDS]
    for order in (sources, sources[::-1]):
        found = bytes_by_word(sampled(recipe_of(tmp_path, *order, max_bytes=60_000)))
        assert found["alpha"] == pytest.approx(30_000, rel=0.05)
        assert all(found[word] == pytest.approx(10_000, rel=0.05) for word in WORDS[1:])
        assert 60_000 <= found.total() < 60_000 + 200


def test_a_source_is_seen_by_its_weight_and_a_small_one_leaves_the_others_its_room(tmp_path):
    weights = {"alpha": 1.0, "beta": 2.0, "gamma": ((0, 0.0), (9, 1.0)), "delta": ((0, 0.0),)}
    counts = {"alpha": 3000, "beta": 1000, "gamma": 20, "delta": 20}
    sources = [source(tmp_path, word, counts[word], weight=weight) for word, weight in weights.items()]
    found = bytes_by_word(sampled(recipe_of(tmp_path, *sources, max_bytes=60_000)))
    assert found["gamma"] == sum(len(f"{n:06d} " + "gamma " * 16) for n in range(20)), "all that it has"
    assert found["beta"] / found["alpha"] == pytest.approx(2, rel=0.05)
    assert found.total() >= 60_000 and "delta" not in found, "which is never trained on"


def test_the_documents_of_a_source_are_drawn_from_all_of_it_and_another_seed_draws_others(tmp_path):
    one = source(tmp_path, "alpha", 2000)
    first, again, other = (
        sampled(recipe_of(tmp_path / str(place), one, max_bytes=20_000, seed=seed))
        for place, seed in enumerate((0, 0, 1))
    )
    assert first == again != other
    places = [int(text[:6]) for text in first]
    assert len(set(places)) == len(places) and places != sorted(places)
    assert all(30 < sum(begin <= place < begin + 500 for place in places) < 65 for begin in range(0, 2000, 500))


@pytest.mark.parametrize("held_out", [0.0, 0.2])
def test_where_all_the_training_text_fits_all_of_it_is_seen_and_nothing_that_is_held_out(tmp_path, held_out):
    sources = [source(tmp_path, word, 50) for word in WORDS]
    found = sampled(recipe_of(tmp_path, *sources, max_bytes=10**6, held_out=held_out))
    assert len(set(found)) == len(found)
    assert len(found) == 200 if not held_out else 130 < len(found) < 190


def test_of_a_source_with_a_limit_no_later_document_is_seen(tmp_path):
    one = source(tmp_path, "alpha", 500, limit=100)
    assert sorted(int(text[:6]) for text in sampled(recipe_of(tmp_path, one, max_bytes=10**6))) == list(range(100))


def test_a_long_document_is_drawn_in_parts(tmp_path):
    (tmp_path / "long.txt").write_text("".join(f"{n:07d}\n" for n in range(200_000)), encoding="utf-8")
    found = sampled(recipe_of(tmp_path, {"path": str(tmp_path / "long.txt")}, max_bytes=320_000))
    assert 320_000 <= sum(map(len, found)) <= 320_000 + PART
    assert max(map(len, found)) == PART and len({text[:7] for text in found}) == len(found) == 10


def test_much_more_text_than_is_asked_for_is_neither_read_nor_held(tmp_path):
    one = source(tmp_path, "alpha", 3000, size=10_000)
    recipe = recipe_of(tmp_path, one, max_bytes=500_000)
    chosen = drawn(recipe)
    assert any(unit.span for unit in chosen[0].units) and room.open_tokenizer(recipe) is not None
    assert sum(unit.size for unit in chosen[0].units) <= READ * 500_000 + (9 << 20)
    tracemalloc.start()
    found = sampled(recipe)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert 500_000 <= sum(map(len, found)) <= 510_000
    assert peak < 8_000_000


def test_whatever_changes_the_sample_gives_the_tokenizer_another_name(tmp_path):
    one, other = source(tmp_path, "alpha", 100), source(tmp_path, "beta", 100)
    plain = {"max_bytes": 5000}

    def path(*sources: dict[str, Any], **options: Any) -> Path:
        return room.open_tokenizer(recipe_of(tmp_path, *sources, **plain | options)).path

    found = [
        path(one, other),
        path(other, one),
        path(one),
        path(one, other, seed=1),
        path(one, other, max_bytes=6000),
        path(one | {"weight": 1.0}, other | {"weight": 1.0}),
        path(one | {"weight": 2.0}, other | {"weight": 1.0}),
        path(one | {"limit": 10}, other),
    ]
    assert len(set(found)) == len(found)
    assert path(one, other) == found[0]
    source(tmp_path, "beta", 101)
    assert path(one, other) not in found
