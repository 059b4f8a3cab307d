"""Labelled documents and images from their files to batches; and what several hosts read of a batch."""

from __future__ import annotations

import io
from pathlib import Path

import data_room as room
import numpy as np
import pytest
from PIL import Image
from pyarrow import parquet

from trainkit.data.batches.dataset import TrainSet
from trainkit.data.batches.layout import Batch
from trainkit.data.cache import build as caches
from trainkit.data.export import export
from trainkit.data.show import show
from trainkit.errors import TrainkitError


def picture(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (4, 6, 3), dtype=np.uint8)


def encoded(pixels: np.ndarray) -> bytes:
    out = io.BytesIO()
    Image.fromarray(pixels).save(out, "PNG")
    return out.getvalue()


@pytest.mark.parametrize("stored", ["bytes", "path"])
def test_an_epoch_of_images_has_each_once_with_its_label(tmp_path: Path, stored: str) -> None:
    import pyarrow

    pictures = [picture(seed) for seed in range(11)]
    labels = [("cat", "dog", "owl")[number % 3] for number in range(11)]
    if stored == "bytes":
        table = pyarrow.table({"image": [encoded(p) for p in pictures], "label": labels})
        parquet.write_table(table, tmp_path / "rows.parquet")
        path = tmp_path / "rows.parquet"
    else:
        path = tmp_path / "rows.jsonl"
        rows = []
        for number, (pixels, label) in enumerate(zip(pictures, labels, strict=True)):
            (tmp_path / f"{number}.png").write_bytes(encoded(pixels))
            rows.append({"image": f"{number}.png", "label": label})
        room.write_rows(path, rows)
    document = {"type": "image", "size": (4, 6), "classes": ("cat", "dog", "owl")}
    recipe = room.recipe(tmp_path, {"path": str(path), "document": document}, batch_size=11)
    cache = caches.build(recipe)
    data = TrainSet(cache, recipe)
    assert data.examples == 11
    for epoch in (0, 1):
        batch = data.batch(epoch)
        assert set(batch) == {"images", "labels"} and batch["images"].shape == (11, 4, 6, 3)
        seen = {(image.tobytes(), int(label)) for image, label in zip(batch["images"], batch["labels"], strict=True)}
        assert seen == {(pixels.tobytes(), number % 3) for number, pixels in enumerate(pictures)}
    names = [document["classes"][number] for number in data.batch(0)["labels"].tolist()]
    assert [row.label for row in show(cache, data, 0)] == names
    with pytest.raises(TrainkitError, match="does not learn from documents of type image"):
        recipe.task.check_documents(recipe.data.train)


def test_an_image_that_does_not_decode_is_reported_with_its_row_or_skipped(tmp_path: Path) -> None:
    (tmp_path / "good.png").write_bytes(encoded(picture(0)))
    (tmp_path / "bad.png").write_bytes(encoded(picture(1))[:40])
    rows = [{"image": name, "label": 0} for name in ("good.png", "bad.png")]
    path = room.write_jsonl(tmp_path / "rows.jsonl", [])
    room.write_rows(path, rows)
    source = {"path": str(path), "document": {"type": "image", "size": (4, 6)}}
    with pytest.raises(TrainkitError) as told:
        caches.build(room.recipe(tmp_path, source))
    assert told.value.where == f"{path}:2" and "bad.png" in told.value.problem
    cache = caches.build(room.recipe(tmp_path, source, on_error="skip"))
    assert cache.left_out.refused == 1 and cache.train.tokens == 4 * 6 * 3


def test_a_pair_of_texts_has_its_label_and_says_which_is_the_second(tmp_path: Path) -> None:
    rows = [{"a": f"first {n}", "b": f"second {n}", "label": ["no", "yes"][n % 2]} for n in range(9)]
    path = tmp_path / "pairs.jsonl"
    room.write_rows(path, rows)
    document = {"type": "labelled", "texts": ("a", "b"), "classes": ("no", "yes")}
    source = {"path": str(path), "document": document}
    recipe = room.recipe(tmp_path, source, encoding={"type": "pad"}, sequence_length=64, batch_size=9)
    cache = caches.build(recipe)
    batch = TrainSet(cache, recipe).batch(0)
    found = set()
    for row in range(9):
        used = int((batch["tokens"][row] != cache.tokenizer.end_of_text).sum())
        tokens, second = batch["tokens"][row, :used], batch["second"][row, :used].astype(bool)
        first, other = (cache.tokenizer.decode(tokens[part].tolist()) for part in (~second, second))
        found.add((first, other, int(batch["labels"][row])))
    assert found == {(row["a"], row["b"], ["no", "yes"].index(row["label"])) for row in rows}
    (written,) = export(cache, recipe.data, tmp_path / "out")
    table, exported = parquet.read_table(written).to_pydict(), set()
    for tokens, second, label in zip(table["tokens"], table["second"], table["label"], strict=True):
        texts = (
            [token for token, mark in zip(tokens[:-1], second, strict=False) if mark is side] for side in (False, True)
        )
        exported.add((*map(cache.tokenizer.decode, texts), label))
    assert exported == found, "an export has the label of each document, and says which text is the second"


@pytest.mark.parametrize(
    "data",
    [{}, {"encoding": {"type": "pack"}}, {"encoding": {"type": "pad", "buckets": (8, 12)}}, {"shuffle": False}],
    ids=["concatenate", "pack", "buckets", "as stored"],
)
def test_what_hosts_read_of_a_batch_is_together_all_of_it(tmp_path: Path, data: dict[str, object]) -> None:
    room.write_texts(tmp_path / "text", 60)
    recipe = room.recipe(tmp_path, tmp_path / "text/**/*.txt", batch_size=8, **data)
    batches = TrainSet(caches.build(recipe), recipe)

    def interleaved(parts: list[Batch], name: str) -> np.ndarray:
        return np.stack([part[name] for part in parts], axis=1).reshape(8, *parts[0][name].shape[1:])

    for step in range(20):
        whole = batches.batch(step)
        parts = [batches.batch(step, np.arange(host, 8, 2)) for host in range(2)]
        for name, array in whole.items():
            np.testing.assert_array_equal(interleaved(parts, name), array)


def test_a_recipe_of_labelled_texts_that_names_no_task_can_be_loaded_to_be_cached(tmp_path):
    from trainkit.recipe.toml.load import load

    (tmp_path / "labelled.toml").write_text(
        "schema = 1\n[model]\nlayers = 1\nhidden = 8\nheads = 2\n[tokenizer]\ntrain = { vocab_size = 300 }\n"
        '[data]\nsequence_length = 8\nencoding = { type = "pad" }\n[[data.train]]\npath = "x.jsonl"\n'
        'document = { type = "labelled" }\n[train]\nsteps = 1\nbatch_size = 1\n[optimizer]\nlearning_rate = 1e-3\n'
    )
    assert load(tmp_path / "labelled.toml").recipe.task.type == "causal-lm"
