"""What a recipe may say of its model: beside a checkpoint, of adapters, of precision."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError
from small_families import SPECS

from trainkit.errors import TrainkitError
from trainkit.recipe import Recipe
from trainkit.recipe.adapter import Lora
from trainkit.recipe.families import Llama, Qwen3
from trainkit.recipe.gpt import Gpt2
from trainkit.recipe.linears import adapter_parameters, linears, matching
from trainkit.recipe.pretrained import Checkpoint

SCALED = {"type": "llama3", "factor": 8.0, "low_frequency_factor": 1.0, "original_context": 8192}


def checkpoint(family: type[Any], **values: Any) -> Checkpoint:
    return Checkpoint(values, "base", None, "base/config.json", family.changeable)


def test_another_kind_of_rope_scaling_keeps_nothing_of_the_checkpoints() -> None:
    values = checkpoint(Llama, type="llama", rope_scaling=SCALED)
    assert "rope_scaling" not in values.values_for({"rope_scaling": {"type": "yarn", "factor": 4.0}})


@pytest.mark.parametrize("said", [{"factor": 16.0}, {"type": "llama3", "factor": 16.0}])
def test_the_same_kind_of_rope_scaling_may_be_told_in_part(said: dict[str, Any]) -> None:
    values = checkpoint(Llama, type="llama", rope_scaling=SCALED)
    assert values.values_for({"rope_scaling": said})["rope_scaling"] == SCALED


def test_learned_positions_are_as_many_as_the_checkpoint_has() -> None:
    with pytest.raises(TrainkitError, match="context_length = 512: the checkpoint has 1024"):
        checkpoint(Gpt2, type="gpt2", context_length=1024).values_for({"context_length": 512})
    assert checkpoint(Llama, type="llama", context_length=1024).values_for({"context_length": 512})


@pytest.mark.parametrize("targets", ["all-linear", ("*",)])
def test_no_adapter_is_for_a_router(targets: Any) -> None:
    mixtral, adapter = SPECS["mixtral"], Lora(targets=targets)
    names = [*linears(mixtral), "mlp.router"]
    assert matching(adapter, names) == list(linears(mixtral))
    assert adapter_parameters(adapter, mixtral) > 0


def test_a_name_that_means_two_layers_here_is_answered_with_both() -> None:
    with pytest.raises(TrainkitError) as raised:
        matching(Lora(targets=("c_proj",)), list(linears(SPECS["gpt2"])))
    assert raised.value.hint is not None and raised.value.hint.startswith("it is called 'output' and 'mlp_out' here; ")


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"model": SPECS["mixtral"].model_dump()}, "leaves experts"),
        ({"model": SPECS["llama"].model_dump(), "adapter": {"base": "nf4"}}, "no matrix in 4 bit"),
    ],
    ids=["experts", "nf4"],
)
def test_fp8_that_would_hardly_be_used_is_refused(more: dict[str, Any], words: str) -> None:
    recipe = {
        "schema": 1,
        "tokenizer": {"path": "tokenizer.json"},
        "data": {"sequence_length": 16, "train": ({"type": "python-stdlib"},)},
        "train": {"steps": 1, "batch_size": 1},
        "optimizer": {"type": "adamw", "learning_rate": 1e-3},
        "precision": {"compute": "fp8"},
    }
    with pytest.raises(ValidationError, match=words):
        Recipe.model_validate(recipe | more)


def test_fewer_layers_than_none_cannot_do_without_a_window() -> None:
    with pytest.raises(ValidationError, match="layers_without_window"):
        Qwen3(layers=2, hidden=32, heads=4, intermediate=48, layers_without_window=-1)
