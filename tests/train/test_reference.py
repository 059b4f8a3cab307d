"""What the reference of a run is known by, and when its numbers are used again."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import data_room as room
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from trainkit.checkpoint.leaves import digest
from trainkit.data.cache import build as caches
from trainkit.data.cache.columns import read_columns, read_progress, write_progress
from trainkit.errors import TrainkitError
from trainkit.events.log import EventLog
from trainkit.models.nf4 import quantise
from trainkit.parallel.mesh import make_mesh
from trainkit.recipe import Recipe
from trainkit.recipe.sections.adapter import Lora
from trainkit.recipe.sections.preference_tasks import Preference
from trainkit.train.reference import FILE, Reference, attach_reference, key_of, settings_of


def recipe_of(directory: Path, **model: Any) -> Recipe:
    pairs = {"path": str(directory / "pairs.jsonl"), "document": {"type": "preference"}}
    recipe = room.recipe(directory, pairs, encoding={"type": "pad"})
    values = {"task": Preference(type="preference"), "model": recipe.model.model_copy(update=model)}
    return recipe.model_copy(update={**values, "adapter": Lora(base="nf4")})


def reference_of(directory: Path, recipe: Recipe, model: Any, *, step: int) -> Reference:
    built: Any = None  # beside an adapter the model is in the state
    state: Any = SimpleNamespace(params=jax.tree.map(lambda _: None, model), frozen=model, step=jnp.int32(step))
    return Reference(directory, recipe, built, state, EventLog(directory, attempt=1))


WEIGHTS = {"w": jnp.arange(4.0)}
OTHERS = {"w": jnp.arange(4.0) + 1}


def test_models_that_differ_in_a_setting_alone_have_references_of_their_own(tmp_path: Path) -> None:
    stream: Any = SimpleNamespace(sections=[])

    def key(**model: Any) -> str:
        recipe = recipe_of(tmp_path, **model)
        return key_of(recipe, stream, "float32", reference_of(tmp_path, recipe, WEIGHTS, step=0).identity)

    assert key() != key(heads=4), "the same arrays, in other heads"
    assert key() == key(pretrained="a") == key(pretrained="b", revision="1"), "where arrays come from does not matter"
    kept = json.loads((tmp_path / FILE).read_text())
    assert kept["settings"]["model.heads"] == 2 and kept["settings"]["adapter.base"] == "nf4"


def test_before_the_first_step_the_present_model_is_the_reference_and_after_it_the_recorded_one(tmp_path: Path) -> None:
    recipe = recipe_of(tmp_path)
    first = reference_of(tmp_path, recipe, WEIGHTS, step=0).identity
    assert reference_of(tmp_path, recipe, OTHERS, step=3).identity == first
    second = reference_of(tmp_path, recipe, OTHERS, step=0).identity
    assert second.parameters != first.parameters
    assert json.loads((tmp_path / FILE).read_text())["parameters"] == second.parameters


def test_after_the_first_step_a_reference_of_other_weights_or_settings_is_refused(tmp_path: Path) -> None:
    recipe = recipe_of(tmp_path, pretrained="base")
    assert reference_of(tmp_path, recipe, WEIGHTS, step=0).identity
    assert reference_of(tmp_path, recipe, WEIGHTS, step=3).model
    with pytest.raises(TrainkitError, match="pretrained weights have changed"):
        _ = reference_of(tmp_path, recipe, OTHERS, step=3).model
    with pytest.raises(TrainkitError, match=r"other values of model\.heads"):
        _ = reference_of(tmp_path, recipe_of(tmp_path, pretrained="base", heads=4), WEIGHTS, step=3).model


def test_a_base_in_4_bit_is_known_by_what_it_was_packed_from(tmp_path: Path) -> None:
    recipe, packed = recipe_of(tmp_path, pretrained="base"), quantise(jax.random.normal(jax.random.key(0), (16, 16)))
    otherwise_rounded = replace(packed, codes=packed.codes.at[0, 0].add(1))
    identity = reference_of(tmp_path, recipe, {"w": packed}, step=0).identity
    assert reference_of(tmp_path, recipe, {"w": otherwise_rounded}, step=0).identity == identity
    assert reference_of(tmp_path, recipe, {"w": otherwise_rounded}, step=3).model
    with pytest.raises(TrainkitError, match="pretrained weights have changed"):
        _ = reference_of(tmp_path, recipe, {"w": replace(packed, source=packed.source + 1)}, step=3).model


def test_a_record_of_the_first_format_is_still_known(tmp_path: Path) -> None:
    recipe = recipe_of(tmp_path, pretrained="base")
    (tmp_path / FILE).write_text(json.dumps({"format": 1, "parameters": digest(WEIGHTS)}))
    found = reference_of(tmp_path, recipe, WEIGHTS, step=3)
    assert found.model and found.identity.settings == settings_of(recipe)


def test_a_reference_that_a_kill_cut_off_continues_with_the_next_batch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    computed: list[int] = []

    class Killed(BaseException):
        pass

    class Examples:
        killed_at = 3

        def __len__(self) -> int:
            return 5

        def examples(self, index: int) -> np.ndarray:
            return np.arange(9)[8 - 2 * index :: -1][:2]  # pairs from the end; the last one is alone

        def batch(self, index: int) -> dict[str, np.ndarray]:
            if index == self.killed_at:
                raise Killed
            computed.append(index)
            which = self.examples(index)
            return {"x": np.resize(which, 2).astype(np.float32)}

    monkeypatch.setattr("trainkit.train.reference.REPORT_SECONDS", -1.0)
    task = SimpleNamespace(reference=lambda model, batch: {"reference": jnp.stack([batch["x"], -batch["x"]], axis=1)})
    built: Any = SimpleNamespace(task=task, compute=jnp.dtype("float32"), mesh=make_mesh(data=1, fsdp=1))
    path, examples = tmp_path / "key.f32", Examples()

    def compute() -> Any:
        reference = replace(reference_of(tmp_path, recipe_of(tmp_path), WEIGHTS, step=0), built=built)
        return reference.compute(examples, path, "set", rows=2)  # type: ignore[arg-type]

    with pytest.raises(Killed):
        compute()
    assert not path.exists()
    examples.killed_at = -1
    columns = compute()
    assert computed == [0, 1, 2, 3, 4], "no batch is computed twice"
    np.testing.assert_array_equal(columns["reference"], np.stack([np.arange(9), -np.arange(9)], axis=1))
    np.testing.assert_array_equal(read_columns(path, {"reference": (2,)})["reference"], columns["reference"])
    assert sorted(found.suffix for found in tmp_path.glob("key*")) == [".f32", ".json"]
    write_progress(path, columns, rows=4, batches=2)
    assert read_progress(path, {"reference": (2,)}, examples=9, rows=2)[1] == 0, "batches of another size"
    (tmp_path / "key.partial.npz").write_bytes(b"damaged")
    assert read_progress(path, {"reference": (2,)}, examples=9, rows=4)[1] == 0


def test_the_data_is_checked_before_a_reference_is_computed(tmp_path: Path) -> None:
    recipe = recipe_of(tmp_path)
    room.write_rows(tmp_path / "pairs.jsonl", [{"prompt": "alpha", "chosen": " beta", "rejected": " gamma"}])
    cache, nothing = caches.build(recipe), SimpleNamespace()

    def check() -> None:
        raise TrainkitError("nothing is learned")

    log = EventLog(tmp_path, attempt=1)
    with pytest.raises(TrainkitError, match="nothing is learned"):
        attach_reference(tmp_path, recipe, cache, nothing, nothing, nothing, check=check, log=log)  # type: ignore[arg-type]
    assert not (tmp_path / FILE).exists()
