"""Evaluations over several devices."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

import data_room as room
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import get_abstract_mesh

from trainkit.data.batches.evaluation_set import EvalSet
from trainkit.data.cache import build as caches
from trainkit.evaluation.evaluator import Evaluator
from trainkit.evaluation.results import PredictionTable, RowOrigin
from trainkit.events.log import EventLog
from trainkit.events.tail import read
from trainkit.parallel import mesh
from trainkit.recipe.sections.classification_tasks import TokenClassification
from trainkit.recipe.sections.metric import Auroc, F1Score, SpanF1
from trainkit.tasks import Loss, Task
from trainkit.tasks.metric import build_metrics
from trainkit.tasks.statistics import Ratio, Statistic
from trainkit.tasks.token_classification import TokenClassificationTask
from trainkit.train.compilations import Compilations
from trainkit.train.state import State, initial_live


class Set:
    targets, bytes = 8 * 4, 0

    def ready(self, seconds: float) -> bool:
        return True

    def __len__(self) -> int:
        return 3

    def batch(self, index: int) -> dict[str, np.ndarray]:
        return {"x": np.arange(8, dtype=np.float32).reshape(8, 1) + 8 * index}


class SumTask(Task):
    """Notes the size of the mesh whenever its loss is traced."""

    def __init__(self) -> None:
        self.meshes: list[int] = []

    def loss(self, model, batch, *, key):
        self.meshes.append(0 if get_abstract_mesh().empty else get_abstract_mesh().size)
        return Loss(batch["x"].sum(), jnp.float32(batch["x"].size))


class Growing(Set):
    """Still being tokenised."""

    def ready(self, seconds: float) -> bool:
        return False


def test_an_evaluation_that_waits_for_its_set_hears_that_the_run_is_to_end(tmp_path: Path) -> None:
    log, asked = EventLog(tmp_path, attempt=1), []
    evaluator = Evaluator(
        {"one": Growing()},
        batch_size=8,
        task=SumTask(),
        compute=np.dtype(np.float32),
        mesh=mesh.make_mesh(data=1, fsdp=1),
        log=log,
        interrupted=lambda: asked.append(None) or len(asked) > 2,
    )
    evaluator(State(None, None, (), jnp.int32(3), jax.random.key(0), initial_live()), 3)
    log.close()
    assert [event["type"] for event in read(tmp_path)] == ["evaluation_started"]


def test_an_evaluation_knows_the_mesh_and_is_compiled_once_for_all_its_batches(tmp_path: Path) -> None:
    device_mesh, log, task = mesh.make_mesh(data=2, fsdp=2), EventLog(tmp_path, attempt=1), SumTask()
    evaluator = Evaluator(
        {"one": Set(), "two": Set()},
        batch_size=8,
        task=task,
        compute=np.dtype(np.float32),
        mesh=device_mesh,
        log=log,
        interrupted=lambda: False,
    )
    whole = mesh.replicated_sharding(device_mesh)
    state = jax.device_put(State(None, None, (), jnp.int32(3), jax.random.key(0), initial_live()), whole)
    compilations = Compilations(log)
    for step in (3, 4):
        with compilations.record("evaluation", step):
            evaluator(state, step)
    compilations.close()
    log.close()
    assert [event["count"] for event in read(tmp_path) if event["type"] == "compiled"] == [1]
    assert task.meshes == [4]
    losses = {event["metrics"][f"validation/{event['name']}/loss"] for event in read(tmp_path) if "metrics" in event}
    assert losses == {11.5}


class NothingCounts(SumTask):
    """No position of any batch is a target."""

    def loss(self, model, batch, *, key):
        return Loss(jnp.float32(0), jnp.float32(0))


def test_a_set_in_which_nothing_counts_has_no_loss_and_is_an_alert(tmp_path: Path) -> None:
    log = EventLog(tmp_path, attempt=1)
    evaluator = Evaluator(
        {"one": Set()},
        batch_size=8,
        task=NothingCounts(),
        compute=np.dtype(np.float32),
        mesh=mesh.make_mesh(data=1, fsdp=1),
        log=log,
        interrupted=lambda: False,
    )
    evaluator(State(None, None, (), jnp.int32(3), jax.random.key(0), initial_live()), 3)
    log.close()
    events = read(tmp_path)
    assert [event["metrics"] for event in events if event["type"] == "evaluated"] == [{}]
    assert any(event["type"] == "alert" and "one has nothing to predict" in event["message"] for event in events)


class Labelled(Set):
    """Items of two classes with scores: `batches` of four batches, from the batch `first` on."""

    def __init__(self, first: int, batches: int) -> None:
        self._first, self._batches = first, batches

    def __len__(self) -> int:
        return self._batches

    def batch(self, index: int) -> dict[str, np.ndarray]:
        chance = np.random.default_rng(self._first + index)
        return {
            "scores": chance.normal(size=(8, 2)).astype(np.float32),
            "label": chance.integers(0, 2, 8, dtype=np.int32),
            "weights": (np.arange(8) < 8 - 3 * (self._first + index == 2)).astype(np.float32),
        }


class LabelledTask(Task):
    metrics: ClassVar[Mapping[str, Statistic]] = {"accuracy": Ratio.zero()}

    def loss(self, model, batch, *, key):
        return self.predict(model, batch, key=key)[0]

    def predict(self, model, batch, *, key):
        correct = Ratio((batch["weights"] * batch["label"]).sum(), batch["weights"].sum())
        loss = Loss((batch["scores"][:, 0] * batch["weights"]).sum(), batch["weights"].sum(), {"accuracy": correct})
        return loss, {**batch, "predicted": batch["scores"].argmax(-1).astype(jnp.int32)}


def test_a_tag_has_the_values_of_its_sets_together_and_can_be_evaluated_by_itself(tmp_path: Path) -> None:
    log, state = EventLog(tmp_path, attempt=1), State(None, None, (), jnp.int32(3), jax.random.key(0), initial_live())

    def evaluator(sets: dict[str, Labelled], **tags: tuple[str, ...]) -> Evaluator:
        return Evaluator(
            sets,
            batch_size=8,
            task=LabelledTask(),
            compute=np.dtype(np.float32),
            mesh=mesh.make_mesh(data=1, fsdp=1),
            metrics=build_metrics([Auroc(type="auroc"), F1Score(type="f1", per_class=True)], ("no", "yes")),
            tags=tags,
            log=log,
            interrupted=lambda: False,
        )

    divided = evaluator({"a": Labelled(0, 1), "b": Labelled(1, 1), "c": Labelled(2, 2)}, all=("a", "b", "c"))
    found = divided(state, 3)
    assert list(found) == ["a", "b", "c", "all"] and divided(state, 3, {"all"}) == {"all": found["all"]}
    whole = evaluator({"all": Labelled(0, 4)})(state, 3)["all"]
    loss = "validation/all/loss"
    assert len(whole) == 6 and found["all"].pop(loss) == pytest.approx(whole.pop(loss), rel=1e-6)
    assert found["all"] == whole
    log.close()
    names = [event["name"] for event in read(tmp_path) if event["type"] == "evaluated"]
    assert names == ["a", "b", "c", "all", "all", "all"]


class ClassOfToken(eqx.Module):
    """A model by which the class of a token is its id modulo 5."""

    def hidden_and_penalty(self, tokens_BT, **_):
        return jax.nn.one_hot(tokens_BT % 5, 5), 0.0

    def scores(self, hidden_BTD, segments_BT):
        return hidden_BTD


def entities(directory: Path, length: int, encoding: dict[str, object]) -> tuple[dict[str, float], list[int]]:
    """Return the F1 of the entities of tagged texts whose examples are made in this way, and the rows in which a text
    begins, rising, by the table of predictions."""
    rows, begin = 4, []

    def keep(name: str, step: int, metrics: object, predictions: PredictionTable) -> None:
        table = predictions.columns(lambda place: RowOrigin("words", place.index), classes)
        begin.extend(row for row, begins in zip(table["row"], table["begins"], strict=True) if begins)

    classes = ("O", "B-PER", "I-PER", "B-LOC", "I-LOC")
    source = {"path": str(directory / "words.jsonl"), "document": {"type": "tagged", "classes": classes}}
    recipe = room.recipe(directory, source, sequence_length=length, encoding=encoding)
    cache = caches.build(recipe)
    data = EvalSet(
        cache.train, recipe.data.train[0], recipe.data, cache.directory, batch_size=rows, at_once=rows, shifted=False
    )
    log = EventLog(directory, attempt=1)
    evaluator = Evaluator(
        {"words": data},
        batch_size=rows,
        task=TokenClassificationTask(TokenClassification(type="token-classification", classes=classes)),
        compute=np.dtype(np.float32),
        mesh=mesh.make_mesh(data=2, fsdp=1),
        metrics=build_metrics([SpanF1(type="span-f1", per_type=True)], classes),
        results=keep,
        log=log,
        interrupted=lambda: False,
    )
    state = State(ClassOfToken(), ClassOfToken(), (), jnp.int32(3), jax.random.key(0), initial_live())
    found = evaluator(state, 3)["words"]
    log.close()
    return {name: value for name, value in found.items() if "span_f1" in name}, sorted(begin)


@pytest.mark.parametrize(
    "encoding",
    [
        {"type": "windows"},
        {"type": "windows", "stride": 5},
        {"type": "pad", "too_long": "split", "buckets": (3, 6)},
        {"type": "pack", "too_long": "split"},
    ],
    ids=["windows", "windows that overlap", "parts in buckets", "packed parts"],
)
def test_entities_of_divided_documents_are_those_of_whole_documents(tmp_path: Path, encoding) -> None:
    chance = np.random.default_rng(0)
    words = [chance.choice(["alpha", "beta", "42", "naïve"], chance.integers(1, 30)).tolist() for _ in range(20)]
    labels = [chance.choice([0, 1, 2, 2, 2, 4], len(each)).tolist() for each in words]
    room.write_rows(
        tmp_path / "words.jsonl", ({"words": w, "labels": each} for w, each in zip(words, labels, strict=True))
    )
    whole = entities(tmp_path, 256, {"type": "pad"})
    assert 0 < whole[0]["validation/words/span_f1"] < 1 and whole[1] == list(range(20))
    assert entities(tmp_path, 8, encoding) == whole
