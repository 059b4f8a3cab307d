"""Adapters as PEFT keeps them: what is written is read back to the last bit, and what is not to be had is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from test_adapters import GPT2, LLAMA, MIXTRAL, adapted, hidden, model, trained

from trainkit.errors import TrainkitError
from trainkit.hub import peft
from trainkit.hub.safetensors import Tensors, read_header
from trainkit.models.adapters import adapt
from trainkit.recipe.adapter import Lora


def saved(directory: Path, spec: Any, adapter: Lora) -> Any:
    """The model whose adapter it is."""
    ours = trained(adapted(spec, adapter))
    peft.save(directory, ours, spec, adapter)
    return ours


@pytest.mark.parametrize("spec", [GPT2, LLAMA, MIXTRAL], ids=lambda spec: spec.type)
@pytest.mark.parametrize(
    "adapter",
    [Lora(rank=4, alpha=6.5), Lora(rank=2, variant="dora", targets=("attention.*",)), Lora(rank=2, variant="rslora")],
    ids=lambda adapter: adapter.variant,
)
def test_what_is_written_is_read_back_to_the_last_bit(tmp_path: Path, spec: Any, adapter: Lora) -> None:
    ours = saved(tmp_path, spec, adapter)
    found = peft.read_adapter(tmp_path, spec)
    assert (found.rank, found.alpha, found.variant) == (adapter.rank, adapter.alpha, adapter.variant)
    back = peft.load(tmp_path, adapt(model(spec), found, key=jax.random.key(99)), spec)
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


@pytest.mark.parametrize(
    ("spec", "targets", "modules"),
    [
        (GPT2, ("attention.output",), ["attn.c_proj"]),  # c_proj alone would be the MLP's as well
        (GPT2, ("qkv", "mlp_in"), ["c_attn", "c_fc"]),
        (LLAMA, ("query", "value"), ["q_proj", "v_proj"]),
    ],
)
def test_the_config_names_the_adapted_layers_and_no_others(
    tmp_path: Path, spec: Any, targets: tuple[str, ...], modules: list[str]
) -> None:
    saved(tmp_path, spec, Lora(rank=2, targets=targets))
    config = json.loads((tmp_path / peft.CONFIG).read_text())
    assert config["target_modules"] == modules
    assert config["fan_in_fan_out"] == (spec is GPT2)


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"peft_type": "IA3"}, 'peft_type = "IA3"'),
        ({"bias": "all", "modules_to_save": ["lm_head"]}, 'bias = "all"; modules_to_save = ["lm_head"]'),
        ({"rank_pattern": {"q_proj": 8}}, "rank_pattern"),
        ({"use_dora": True, "use_rslora": True}, "use_rslora and use_dora together"),
    ],
)
def test_what_is_not_to_be_had_is_refused_by_name(tmp_path: Path, changes: dict[str, Any], told: str) -> None:
    saved(tmp_path, LLAMA, Lora(rank=2))
    path = tmp_path / peft.CONFIG
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    with pytest.raises(TrainkitError) as raised:
        peft.read_adapter(tmp_path, LLAMA)
    assert told in raised.value.problem


def test_an_adapter_for_another_model_or_another_shape_is_refused(tmp_path: Path) -> None:
    saved(tmp_path, LLAMA, Lora(rank=2))
    with pytest.raises(TrainkitError, match="it has no tensor of this model"):
        peft.read_adapter(tmp_path, GPT2)
    wider = LLAMA.model_copy(update={"hidden": 64})
    with pytest.raises(TrainkitError, match=r"lora_A\.weight \[2, 32\], the model has \[2, 64\]"):
        peft.load(tmp_path, adapted(wider, peft.read_adapter(tmp_path, wider)), wider)


def test_pickled_adapters_are_not_read(tmp_path: Path) -> None:
    saved(tmp_path, LLAMA, Lora(rank=2))
    (tmp_path / peft.WEIGHTS).rename(tmp_path / "adapter_model.bin")
    with pytest.raises(TrainkitError, match="may run any code"):
        peft.read_adapter(tmp_path, LLAMA)


def test_an_adapter_that_is_read_computes_what_it_did(tmp_path: Path) -> None:
    ours = saved(tmp_path, LLAMA, Lora(rank=2, variant="dora"))
    back = peft.load(tmp_path, adapted(LLAMA, peft.read_adapter(tmp_path, LLAMA)), LLAMA)
    assert jnp.array_equal(hidden(back), hidden(ours)) and not jnp.array_equal(hidden(back), hidden(model(LLAMA)))
