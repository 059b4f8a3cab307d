"""What a recipe may say of its model: beside a checkpoint, of adapters, of precision."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError
from small_families import SPECS

from trainkit.errors import TrainkitError
from trainkit.recipe import Recipe
from trainkit.recipe.families.gpt2 import Gpt2
from trainkit.recipe.families.llama import Llama
from trainkit.recipe.families.qwen3 import Qwen3
from trainkit.recipe.sections.adapter import Lora, adapter_parameters, linear_shapes, targeted_layers
from trainkit.recipe.toml.pretrained import PretrainedCheckpoint

RECIPE: dict[str, Any] = {
    "schema": 1,
    "model": SPECS["llama"].model_dump(),
    "tokenizer": {"path": "tokenizer.json"},
    "data": {"sequence_length": 16, "train": ({"type": "python-stdlib"},)},
    "train": {"steps": 1, "batch_size": 1},
    "optimizer": {"type": "adamw", "learning_rate": 1e-3},
}
SCALED = {"type": "llama3", "factor": 8.0, "low_frequency_factor": 1.0, "original_context": 8192}


def checkpoint(family: type[Any], **values: Any) -> PretrainedCheckpoint:
    return PretrainedCheckpoint(values, "base", None, "base/config.json", family.changeable)


@pytest.mark.parametrize("said", [{"factor": 16.0}, {"type": "llama3", "factor": 16.0}])
def test_the_same_kind_of_rope_scaling_may_be_given_in_part(said: dict[str, Any]) -> None:
    values = checkpoint(Llama, type="llama", rope_scaling=SCALED)
    assert values.values_for({"rope_scaling": said})["rope_scaling"] == SCALED


def test_learned_positions_are_as_many_as_the_checkpoint_has() -> None:
    with pytest.raises(TrainkitError, match="context_length = 512: the checkpoint has 1024"):
        checkpoint(Gpt2, type="gpt2", context_length=1024).values_for({"context_length": 512})
    assert checkpoint(Llama, type="llama", context_length=1024).values_for({"context_length": 512})


@pytest.mark.parametrize("targets", ["all-linear", ("*",)])
def test_no_adapter_is_for_a_router(targets: Any) -> None:
    mixtral, adapter = SPECS["mixtral"], Lora(targets=targets)
    names = [*linear_shapes(mixtral), "mlp.router"]
    assert targeted_layers(adapter, names) == list(linear_shapes(mixtral))
    assert adapter_parameters(adapter, mixtral) > 0


def test_a_name_that_means_two_layers_here_is_answered_with_both() -> None:
    with pytest.raises(TrainkitError) as raised:
        targeted_layers(Lora(targets=("c_proj",)), list(linear_shapes(SPECS["gpt2"])))
    assert raised.value.hint is not None and raised.value.hint.startswith("it is called 'output' and 'mlp_out' here; ")


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"model": SPECS["mixtral"].model_dump()}, "leaves experts"),
        ({"adapter": {"base": "nf4"}}, 'does not work with adapter.base = "nf4"'),
    ],
    ids=["experts", "nf4"],
)
def test_fp8_that_would_hardly_be_used_is_refused(more: dict[str, Any], words: str) -> None:
    with pytest.raises(ValidationError, match=words):
        Recipe.model_validate(RECIPE | {"precision": {"compute": "fp8"}} | more)


def test_a_faster_second_matrix_is_refused_where_one_rate_is_for_all() -> None:
    free = {"type": "schedule-free", "learning_rate": 1e-3}
    Recipe.model_validate(RECIPE | {"optimizer": free, "adapter": {}})
    with pytest.raises(ValidationError, match='learning_rate_ratio = 16 cannot scale "schedule-free"'):
        Recipe.model_validate(RECIPE | {"optimizer": free, "adapter": {"learning_rate_ratio": 16}})


def test_fewer_layers_than_none_cannot_do_without_a_window() -> None:
    with pytest.raises(ValidationError, match="layers_without_window"):
        Qwen3(layers=2, hidden=32, heads=4, intermediate=48, layers_without_window=-1)


@pytest.mark.parametrize(
    ("values", "words"),
    [({"layers_without_window": 1}, "goes with a window"), ({"layers_without_window": 2, "window": 8}, "no window to")],
    ids=["no window", "no layers"],
)
def test_layers_do_without_a_window_that_others_have(values: dict[str, Any], words: str) -> None:
    with pytest.raises(ValidationError, match=words):
        Qwen3(layers=2, hidden=32, heads=4, intermediate=48, **values)


@pytest.mark.parametrize(
    ("name", "key", "value"), [("mpt", "expansion_ratio", 2), ("gemma2", "query_scale", 24.5)], ids=["mpt", "gemma2"]
)
def test_an_export_of_what_transformers_does_not_load_is_refused_before_training(
    name: str, key: str, value: float
) -> None:
    recipe = RECIPE | {"model": SPECS[name].model_dump() | {key: value}}
    Recipe.model_validate(recipe)
    Recipe.model_validate(recipe | {"export": {}, "adapter": {}})  # PEFT's is the adapter alone
    for more in ({"export": {}}, {"export": {"format": "hf"}, "adapter": {}}):
        with pytest.raises(ValidationError, match=f"model.{key} = {value}"):
            Recipe.model_validate(recipe | more)
