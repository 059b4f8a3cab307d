"""No key of a family's config is passed over in silence: it is read, refused by name, listed as what training leaves
out, or has no effect on logits in training.

`fixtures/config_keys.json` holds the keys of the config classes of transformers with their defaults; a test compares
it with the library where that is installed.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fixed_configs import ENCODER_DECODERS, ENCODERS, FIXED
from places import FIXTURES
from reference import Reference
from small_families import LENGTH, SPECS, VOCAB, model

from trainkit.errors import TrainkitError
from trainkit.hub.config import config_of, family_of, known_keys, spec_values, untrained_noise
from trainkit.hub.save import save
from trainkit.recipe.families import families
from trainkit.recipe.families.hugging_face import HARMLESS, OFF, Config, Family
from trainkit.recipe.families.rope import Yarn

KEYS: dict[str, dict[str, Any]] = json.loads((FIXTURES / "config_keys.json").read_text())
BY_TYPE = {family.model_type: family for family in families()}
#: Keys of a config that its table reads, and what makes them count.
SMALL = {
    config["model_type"]: config
    for config in (*(fixed.config for fixed in FIXED.values()), *ENCODERS.values(), *ENCODER_DECODERS.values())
}
ON: Config = {"use_sliding_window": True, "output_router_logits": True, "max_window_layers": 1, "sliding_window": 5}
#: Values that differ from the default in another way than in number.
OTHER: dict[str, Any] = {
    "rope_parameters": {"rope_type": "default", "rope_theta": 3.0},
    "attn_config": {"clip_qkv": 2.0},
    "layer_types": ["chunked_attention"],
    "mlp_only_layers": [1],
    "bos_token_id": 3,
    "eos_token_id": 4,
    "pad_token_id": 5,
    "id2label": {"0": "a", "1": "b", "2": "c"},
    "label2id": {"a": 0, "b": 1, "c": 2},
    "problem_type": "regression",
    "summary_type": "mean",
    "classifier_dropout": 0.5,
    "hidden_act": "relu",
    "hidden_activation": "relu",
    "num_attention_heads": 2,
    "n_head": 1,
    "n_heads": 1,
    "num_experts_per_tok": 1,
    "head_dim": 4,
    "max_relative_positions": 32,
    "tie_last_hidden_states": True,
}
#: Read and without effect, and why.
READ_FOR_NOTHING = {
    ("qwen3_moe", "intermediate_size"): "the width of layers without experts, of which there are none",
    ("gpt2", "reorder_and_upcast_attn"): "the same but for rounding",
    ("deberta-v2", "legacy"): "names of tensors of the same numbers",
    ("modernbert", "sparse_prediction"): "which logits are made; the loss is the same",
    ("mpt", "learned_pos_emb"): "there are none beside ALiBi, whatever it says",
}
#: Names, the dtype and the form of results, which say nothing of what is computed from the weights.
NAMES = {"architectures", "dtype", "transformers_version", "return_dict"}


def other(key: str, value: Any) -> Any:
    if key in OTHER:
        return OTHER[key]
    if isinstance(value, bool):
        return not value
    return {int: lambda: value * 2 or 2, float: lambda: value * 2 or 0.5}.get(type(value), lambda: "another")()


def base(family: Family) -> Config:
    config = {**SMALL[family.model_type], "architectures": [family.architecture]}
    config.pop("layer_types", None)
    if family.model_type == "mpt":
        config["attn_config"] = {**config["attn_config"], "alibi": True}
    return config | {key: value for key, value in ON.items() if key in KEYS[family.model_type]}


def values(config: Config, family: Family) -> dict[str, Any]:
    return spec_values(config, family, where="config.json")


EVERY = [
    (family.model_type, key)
    for family in families()
    for key in KEYS[family.model_type]
    if (family.model_type, key) not in READ_FOR_NOTHING
]


@pytest.mark.parametrize(("model_type", "key"), EVERY, ids=lambda value: value)
def test_every_key_of_a_config_class_is_read_or_refused_or_listed_or_has_no_effect(model_type: str, key: str) -> None:
    family = BY_TYPE[model_type]
    config = base(family)
    default = config.get(key, KEYS[model_type][key])
    changed = config | {key: other(key, default)}
    if key in family.noise:
        assert f"{key} = {other(key, default)}" in untrained_noise(changed, family)
        assert values(changed, family) == values(config, family)
    elif key in known_keys(family):
        try:
            assert values(changed, family) != values(config, family)
        except TrainkitError as error:
            assert key in str(error)
    else:
        assert key in HARMLESS | OFF, f"{key} is in no table"


def test_keys_of_mpts_attention_are_read_or_refused_or_listed() -> None:
    family, own = BY_TYPE["mpt"], KEYS["mpt.attn_config"].keys() - KEYS["llama"].keys()
    for key in sorted(own):
        attention = {"alibi": True, key: other(key, KEYS["mpt.attn_config"][key])}
        config = base(family)
        changed = config | {"attn_config": {**config["attn_config"], **attention}}
        if f"attn_config.{key}" in family.noise:
            assert f"attn_config.{key} = {attention[key]}" in untrained_noise(changed, family)
            continue
        try:
            assert values(changed, family) != values(config, family) or key in HARMLESS
        except TrainkitError as error:
            assert f"attn_config.{key}" in str(error)


def test_what_configs_of_early_berts_say_of_their_pooler_has_no_effect() -> None:
    early = {
        "directionality": "bidi",
        "output_past": True,
        "pooler_fc_size": 768,
        "pooler_num_attention_heads": 12,
        "pooler_num_fc_layers": 3,
        "pooler_size_per_head": 128,
        "pooler_type": "first_token_transform",
    }
    family = BY_TYPE["bert"]
    assert values(base(family) | early, family) == values(base(family), family)


def test_a_key_that_no_table_has_is_refused() -> None:
    for family in families():
        with pytest.raises(TrainkitError, match="key_of_tomorrow"):
            values(base(family) | {"key_of_tomorrow": 1}, family)


def test_the_keys_are_those_of_the_installed_library(reference: Reference) -> None:
    assert reference.keys([family.model_type for family in families()]) == KEYS


@pytest.mark.parametrize("model_type", BY_TYPE)
def test_keys_without_effect_do_not_change_logits_in_training(model_type: str, reference: Reference) -> None:
    family, config = BY_TYPE[model_type], {**SMALL[model_type]}
    free = [key for key in KEYS[model_type] if key not in known_keys(family) | NAMES | OFF]
    config |= {key: 0.0 for key in family.noise if "." not in key}
    config |= {key: 0.0 for key, ours in family.keys.items() if ours.endswith("dropout")}
    changes = {key: other(key, KEYS[model_type][key]) for key in free}
    kind = family.spec.kind
    assert reference.inert(config, changes, kind=kind) == 0.0
    # modernbert calls its norms otherwise, distilbert and bart have no key for their norms
    others = {"rms_norm_eps": 0.1, "layer_norm_epsilon": 0.1, "layer_norm_eps": 0.1, "activation": "relu"}
    others |= {"activation_function": "relu", "norm_eps": 0.1}
    assert reference.inert(config, others, kind=kind) > 0.0


# the auxiliary loss


@pytest.mark.parametrize("model_type", ["mixtral", "qwen3_moe"])
def test_the_loss_of_the_router_is_as_its_library_adds_it(model_type: str) -> None:
    family = BY_TYPE[model_type]
    config = {**base(family), "router_aux_loss_coef": 0.02}
    assert values(config | {"output_router_logits": True}, family)["router_loss"] == 0.02
    assert values(config | {"output_router_logits": False}, family)["router_loss"] == 0.0
    del config["output_router_logits"]
    assert values(config, family)["router_loss"] == 0.0


# what an export says


@pytest.mark.parametrize("name", SPECS)
def test_an_export_says_that_training_had_no_noise(name: str) -> None:
    config = config_of(SPECS[name], vocab_size=VOCAB, sequence_length=LENGTH, dtype="float32")
    family = family_of(config, where="")
    rates = [key for key, ours in family.keys.items() if ours in ("dropout", "attention_dropout", "embedding_dropout")]
    assert not untrained_noise(config, family)
    assert all(config[key] == 0.0 for key in (*family.noise, *rates))
    assert rates or config["attn_config"]["attn_pdrop"] == 0.0


@pytest.mark.parametrize("name", SPECS)
def test_how_a_model_began_and_is_padded_comes_back_from_its_export(name: str) -> None:
    spec = SPECS[name].model_copy(update={"initializer_range": 0.01, "pad_token_id": 7})
    config = config_of(spec, vocab_size=VOCAB, sequence_length=LENGTH, dtype="float32")
    found = values(config, family_of(config, where=""))
    assert (found["initializer_range"], found["pad_token_id"]) == (0.01, 7)
    bare = config_of(SPECS[name], vocab_size=VOCAB, sequence_length=LENGTH, dtype="float32")
    assert bare["pad_token_id"] is None  # absent, some libraries take a token of their own


def exports() -> dict[str, Any]:
    """Small models of all families, and what might not load: heads that do not divide, scaling, windows."""
    more = {"heads": 3, "kv_heads": 3, "head_width": 8}
    odd = {name: SPECS[name].model_copy(update=more) for name in ("mistral", "qwen2", "qwen3", "olmo2", "mixtral")}
    odd["qwen3-moe"] = SPECS["qwen3-moe"].model_copy(update=more)
    yarn = {
        name: SPECS[name].model_copy(update={"rope_scaling": Yarn(factor=4.0, original_context=16)})
        for name in ("mistral", "qwen2", "qwen3", "olmo2", "gemma2", "gemma3", "mixtral", "qwen3-moe")
    }
    return (
        SPECS
        | {f"{name}-odd": spec for name, spec in odd.items()}
        | {f"{name}-scaled": spec for name, spec in yarn.items()}
    )


@pytest.mark.parametrize("name", exports())
def test_transformers_loads_what_an_export_writes_and_computes_the_same(
    name: str,
    reference: Reference,
    tmp_path: Path,
) -> None:
    spec = exports()[name]
    ours = model(spec)
    save(tmp_path, ours, spec, dtype="float32", sequence_length=LENGTH)
    tokens = np.random.default_rng(0).integers(0, VOCAB, (2, 12))
    theirs, config = reference.loads(tmp_path, tokens)
    wanted = np.asarray(ours.logits(ours.hidden_states(tokens)[0]))
    assert np.abs(theirs - wanted).max() <= 1e-4 * np.abs(wanted).max()
    family = BY_TYPE[config["model_type"]]
    assert all(config[key] == 0 for key in family.noise if "." not in key)
    assert config["pad_token_id"] is None and not config.get("output_router_logits")


@pytest.mark.parametrize("name", ["llama", "gemma2", "gemma3"])
def test_what_transformers_refuses_to_load_is_not_written(name: str, tmp_path: Path) -> None:
    spec = SPECS[name].model_copy(update={"heads": 3, "kv_heads": 3, "head_width": 8})
    with pytest.raises(
        TrainkitError, match="hidden = 32 with heads = 3: transformers supports only multiples of heads"
    ):
        save(tmp_path, model(spec), spec, dtype="float32", sequence_length=LENGTH)
    assert not list(tmp_path.iterdir())
