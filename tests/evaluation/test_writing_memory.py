"""Texts that are written for an evaluation: where memory runs out, and which settings count."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import numpy as np
import pytest

from trainkit.errors import TrainkitError
from trainkit.evaluation.targets import Item, TargetWriter, unused_settings
from trainkit.parallel.mesh import make_mesh
from trainkit.recipe.sections.evaluate import Generate


class Set:
    """Two batches of four rows; the one token of each source is its number."""

    def __len__(self) -> int:
        return 2

    def batch(self, index: int) -> dict[str, np.ndarray]:
        return {"tokens": np.arange(4).reshape(4, 1) + 4 * index}

    def places(self, index: int) -> list[None]:
        return [None] * 4


def writer_of(alerts: list[str], *, most: int) -> TargetWriter:
    """A writer that copies its sources, on a device that has memory for `most` rows."""

    def write(params: Any, frozen: Any, batch: dict[str, Any]) -> np.ndarray:
        rows = batch["tokens"][0]
        if len(rows) > most:
            raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 1 bytes.")
        return np.asarray(rows)

    writer = object.__new__(TargetWriter)
    writer._items = lambda batch, places: (Item(None, [n], [n]) for n in batch["tokens"][:, 0].tolist())  # type: ignore
    writer._write, writer._alert, writer._interrupted = write, alerts.append, lambda: False  # type: ignore[assignment]
    writer._mesh, writer._parts, writer._max_items, writer._context = make_mesh(data=1, fsdp=1), 1, 7, None
    return writer


@pytest.mark.parametrize(("most", "warned"), [(4, 0), (2, 1), (1, 2)])
def test_without_memory_fewer_texts_are_written_at_once_and_each_one_once(most: int, warned: int) -> None:
    alerts: list[str] = []
    state = SimpleNamespace(params=None, frozen=None)
    written = list(writer_of(alerts, most=most)._write_items(state, Set()))  # type: ignore[arg-type]
    assert [(item.target, tokens) for item, tokens in written] == [([n], [n]) for n in range(7)]
    assert len(alerts) == warned and all("no memory to write" in alert for alert in alerts)


def test_without_memory_for_a_single_text_the_setting_is_named() -> None:
    state = SimpleNamespace(params=None, frozen=None)
    with pytest.raises(TrainkitError, match="no memory to write 1 texts at once") as told:
        list(writer_of([], most=0)._write_items(state, Set()))  # type: ignore[arg-type]
    assert told.value.where == "evaluate.generate"


def test_settings_of_the_model_that_the_recipe_overrides_are_named(tmp_path: Path) -> None:
    assert not unused_settings(Generate(), tmp_path)
    said = {"num_beams": 4, "length_penalty": 2.0, "max_new_tokens": 128}
    (tmp_path / "generation_config.json").write_text(json.dumps(said))
    assert "has num_beams = 4: " in unused_settings(Generate(), tmp_path)
    assert "has length_penalty = 2.0: " in unused_settings(Generate(beams=4), tmp_path)
    assert not unused_settings(Generate(beams=4, length_penalty=2.0), tmp_path)
