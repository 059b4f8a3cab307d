"""Adapters as PEFT keeps them: what is written is read back to the last bit, and what is not to be had is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from small_adapters import GPT2, LLAMA, MIXTRAL, adapted, hidden, model, trained
from small_families import SPECS

from trainkit.errors import TrainkitError
from trainkit.hub import adapter_config, peft
from trainkit.hub.safetensors import Tensors, read_header
from trainkit.models.adapters import adapt, with_numbers
from trainkit.recipe.sections.adapter import Lora


def saved(directory: Path, spec: Any, adapter: Lora) -> Any:
    """The model whose adapter it is."""
    ours = trained(adapted(spec, adapter))
    peft.save(directory, ours, spec, adapter)
    return ours


def loaded(directory: Path, spec: Any, key: int = 99) -> Any:
    """The model with the adapter in a directory, whose own random numbers are of another key."""
    fresh = adapt(model(spec), adapter_config.read(directory, spec), key=jax.random.key(key))
    return with_numbers(fresh, peft.read(directory, fresh, spec))


def change(directory: Path, changes: dict[str, Any]) -> None:
    path = directory / adapter_config.FILE
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


@pytest.mark.parametrize("spec", [GPT2, LLAMA, MIXTRAL], ids=lambda spec: spec.type)
@pytest.mark.parametrize(
    "adapter",
    [Lora(rank=4, alpha=6.5), Lora(rank=2, variant="dora", targets=("attention.*",)), Lora(rank=2, variant="rslora")],
    ids=lambda adapter: adapter.variant,
)
def test_what_is_written_is_read_back_to_the_last_bit(tmp_path: Path, spec: Any, adapter: Lora) -> None:
    ours = saved(tmp_path, spec, adapter)
    found = adapter_config.read(tmp_path, spec)
    assert (found.rank, found.alpha, found.variant) == (adapter.rank, adapter.alpha, adapter.variant)
    back = loaded(tmp_path, spec)
    assert jax.tree.structure(back) == jax.tree.structure(ours)
    assert all(map(jnp.array_equal, jax.tree.leaves(back), jax.tree.leaves(ours)))


def test_tensors_have_the_names_and_shapes_of_torch_s_layers(tmp_path: Path) -> None:
    ours = saved(tmp_path, LLAMA, Lora(rank=2, variant="dora", targets=("down",)))
    tensors = Tensors(read_header(tmp_path / peft.WEIGHTS))
    layer = "base_model.model.model.layers.1.mlp.down_proj"
    assert {name.split(".layers.")[1][0] for name in tensors} == {"0", "1"}
    down = ours.blocks.mlp.down
    np.testing.assert_array_equal(tensors.view(f"{layer}.lora_A.weight"), np.asarray(down.a)[1].T)
    np.testing.assert_array_equal(tensors.view(f"{layer}.lora_B.weight"), np.asarray(down.b)[1].T)
    np.testing.assert_array_equal(tensors.view(f"{layer}.lora_magnitude_vector"), np.asarray(down.magnitude.value)[1])


# the config


@given(data=st.data(), spec=st.sampled_from(list(SPECS.values())))
def test_the_config_means_the_adapted_layers_of_every_family_and_no_others(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject, spec: Any
) -> None:
    names = list(adapter_config.names(spec))
    layers = data.draw(st.lists(st.sampled_from(names), min_size=1, unique=True))
    directory = tmp_path_factory.mktemp("config")
    adapter_config.write(directory, layers, spec, Lora(targets=tuple(layers)))
    assert set(adapter_config.read(directory, spec).targets) == set(layers)


@pytest.mark.parametrize(
    ("spec", "targets", "modules"),
    [
        (GPT2, ("attention.output",), ["attn.c_proj"]),  # c_proj alone would be the MLP's as well
        (GPT2, ("qkv", "mlp_in"), ["c_attn", "c_fc"]),
        (LLAMA, ("query", "value"), ["q_proj", "v_proj"]),
    ],
)
def test_the_config_names_layers_as_people_do(
    tmp_path: Path, spec: Any, targets: tuple[str, ...], modules: list[str]
) -> None:
    saved(tmp_path, spec, Lora(rank=2, targets=targets))
    config = json.loads((tmp_path / adapter_config.FILE).read_text())
    assert config["target_modules"] == modules
    assert config["fan_in_fan_out"] == (spec is GPT2)


@pytest.mark.parametrize(
    ("changes", "layers"),
    [
        ({"target_modules": "all-linear"}, ["query", "key", "value", "output", "gate", "up", "down"]),
        ({"target_modules": r"model\.layers\.\d+\.self_attn\.(q|v)_proj"}, ["query", "value"]),
        ({"target_modules": ["self_attn.q_proj", "up_proj"]}, ["query", "up"]),
        ({"target_modules": "all-linear", "exclude_modules": ["q_proj", "mlp.up_proj", "mlp.down_proj"]},
         ["key", "value", "output", "gate"]),
        ({"target_modules": ["q_proj", "k_proj"], "exclude_modules": r".*\.k_proj"}, ["query"]),
    ],
    ids=["all-linear", "pattern", "ends", "excluded", "excluded by pattern"],
)  # fmt: skip
def test_layers_are_those_that_peft_would_take(tmp_path: Path, changes: dict[str, Any], layers: list[str]) -> None:
    adapter_config.write(tmp_path, ["attention.query"], LLAMA, Lora())
    change(tmp_path, changes)
    assert [name.rpartition(".")[2] for name in adapter_config.read(tmp_path, LLAMA).targets] == layers


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"peft_type": "IA3"}, 'peft_type = "IA3"'),
        ({"bias": "all", "modules_to_save": ["lm_head"]}, 'bias = "all"; modules_to_save = ["lm_head"]'),
        ({"rank_pattern": {"q_proj": 8}}, "rank_pattern"),
        ({"layers_to_transform": [0]}, "layers_to_transform = [0]"),
        ({"init_lora_weights": "pissa"}, 'init_lora_weights = "pissa"'),  # which takes something off the base
        ({"of_tomorrow": 2}, "of_tomorrow = 2"),
        ({"use_dora": True, "use_rslora": True}, "use_rslora and use_dora together"),
        ({"r": "8"}, 'r and lora_alpha are numbers above 0, found "8"'),
        ({"lora_alpha": 0}, "r and lora_alpha are numbers above 0"),
        ({"target_modules": ["q_proj", "lm_head"]}, "layers that trainkit does not adapt: lm_head"),
        ({"target_modules": ["lm_head"]}, "layers that trainkit does not adapt: lm_head"),
        ({"target_modules": r".*\.(embed_tokens|q_proj)"}, "layers that trainkit does not adapt: model.embed_tokens"),
        ({"base_quantization": {"load_in_8bit": True}}, "base_quantization"),
        ({"target_modules": None}, "target_modules names no layers: null"),
        ({"target_modules": "(q_proj"}, "is not a pattern"),
        ({"target_modules": r"model\.layers\.0\..*q_proj"}, "attention.query in 1 of the 2 blocks only"),
    ],
)
def test_what_is_unavailable_is_refused_by_name(tmp_path: Path, changes: dict[str, Any], told: str) -> None:
    saved(tmp_path, LLAMA, Lora(rank=2))
    change(tmp_path, changes)
    with pytest.raises(TrainkitError) as raised:
        adapter_config.read(tmp_path, LLAMA)
    assert told in raised.value.problem and raised.value.hint


def test_an_adapter_for_another_model_or_another_shape_is_refused(tmp_path: Path) -> None:
    saved(tmp_path, LLAMA, Lora(rank=2))
    change(tmp_path, {"base_model_name_or_path": "them/llama"})
    told = r"no layer of this model \(gpt2\), such as transformer\.h\.0\.attn"
    with pytest.raises(TrainkitError, match=told) as raised:
        adapter_config.read(tmp_path, GPT2)
    assert raised.value.hint == "it is for them/llama"
    wider = LLAMA.model_copy(update={"hidden": 64})
    with pytest.raises(TrainkitError, match=r"lora_A\.weight \[2, 32\], the model has \[2, 64\]") as raised:
        loaded(tmp_path, wider)
    assert raised.value.hint == "the adapter says that it is for them/llama"


def test_an_adapter_says_that_its_base_was_in_four_bit_and_is_put_on_such_a_base_again(tmp_path: Path) -> None:
    saved(tmp_path, LLAMA, Lora(rank=2, base="nf4"))
    config = json.loads((tmp_path / adapter_config.FILE).read_text())
    assert config["base_quantization"] == adapter_config.NF4
    assert adapter_config.read(tmp_path, LLAMA).base == adapter_config.trained_on(tmp_path) == "nf4"
    (tmp_path / "other").mkdir()
    saved(tmp_path / "other", LLAMA, Lora(rank=2))
    assert adapter_config.QUANTISED not in json.loads((tmp_path / "other" / adapter_config.FILE).read_text())
    assert adapter_config.read(tmp_path / "other", LLAMA).base == "none"


def test_pickled_adapters_are_not_read(tmp_path: Path) -> None:
    saved(tmp_path, LLAMA, Lora(rank=2))
    (tmp_path / peft.WEIGHTS).rename(tmp_path / "adapter_model.bin")
    with pytest.raises(TrainkitError, match="may run any code"):
        loaded(tmp_path, LLAMA)


def test_an_adapter_that_is_read_computes_what_it_did(tmp_path: Path) -> None:
    ours, back = saved(tmp_path, LLAMA, Lora(rank=2, variant="dora")), loaded(tmp_path, LLAMA)
    assert jnp.array_equal(hidden(back), hidden(ours)) and not jnp.array_equal(hidden(back), hidden(model(LLAMA)))
