"""Configs of published checkpoints are read as they are; what a config leaves out, and what ours leaves out in an
export, means what its library takes it for; what is no config is an error in words, whatever it holds.

The files in `fixtures/configs` are facts of the published checkpoints.
"""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from places import FIXTURES
from small_families import SPECS

from trainkit.errors import TrainkitError
from trainkit.hub.config import config_of, family_of, family_of_spec, read_config, spec_of, spec_values
from trainkit.recipe.families import families, llama, mpt
from trainkit.recipe.families.bart import Bart
from trainkit.recipe.families.bert import Bert
from trainkit.recipe.families.deberta_v3 import Deberta
from trainkit.recipe.families.distilbert import DistilBert
from trainkit.recipe.families.gemma2 import Gemma2
from trainkit.recipe.families.gemma3 import Gemma3
from trainkit.recipe.families.gpt2 import Gpt2
from trainkit.recipe.families.llama import Llama
from trainkit.recipe.families.mistral import Mistral
from trainkit.recipe.families.mixtral import Mixtral
from trainkit.recipe.families.modernbert import ModernBert
from trainkit.recipe.families.mpt import Mpt
from trainkit.recipe.families.olmo2 import Olmo2
from trainkit.recipe.families.qwen2 import Qwen2
from trainkit.recipe.families.qwen3 import Qwen3
from trainkit.recipe.families.qwen3_moe import Qwen3Moe
from trainkit.recipe.families.roberta import Roberta
from trainkit.recipe.families.rope import Llama3
from trainkit.recipe.families.t5 import T5
from trainkit.recipe.families.transformer import Pretrained

CONFIGS = FIXTURES / "configs"
_7B: dict[str, Any] = {"layers": 32, "hidden": 4096, "heads": 32}
_DROPPED: dict[str, Any] = {"dropout": 0.1, "attention_dropout": 0.1}
_MISTRAL: dict[str, Any] = {**_7B, "kv_heads": 8, "intermediate": 14336, "context_length": 32768}

#: What each says, and how many parameters its makers' weights have.
PUBLISHED: dict[str, tuple[Pretrained, int]] = {
    "gpt2": (
        Gpt2(vocab_size=50257, layers=12, hidden=768, heads=12, context_length=1024, **_DROPPED, embedding_dropout=0.1),
        124_439_808,
    ),
    "deberta-v3-base": (
        Deberta(vocab_size=128100, layers=12, hidden=768, heads=12, intermediate=3072, context_length=512, **_DROPPED),
        184_551_780,
    ),
    "modernbert-base": (
        ModernBert(
            vocab_size=50368,
            layers=22,
            hidden=768,
            heads=12,
            intermediate=1152,
            context_length=8192,
            pooling="mean",
            pad_token_id=50283,
        ),
        149_655_232,
    ),
    "llama-2-7b": (
        Llama(vocab_size=32000, **_7B, kv_heads=32, intermediate=11008, context_length=4096),
        6_738_415_616,
    ),
    "llama-3.2-1b": (
        Llama(
            vocab_size=128256,
            layers=16,
            hidden=2048,
            heads=32,
            kv_heads=8,
            head_width=64,
            intermediate=8192,
            context_length=131072,
            tied=True,
            rope_theta=500000.0,
            rope_scaling=Llama3(
                factor=32.0, low_frequency_factor=1.0, high_frequency_factor=4.0, original_context=8192
            ),
        ),
        1_235_814_400,
    ),
    "smollm2-135m-instruct": (
        Llama(
            vocab_size=49152,
            layers=30,
            hidden=576,
            heads=9,
            kv_heads=3,
            intermediate=1536,
            context_length=8192,
            tied=True,
            rope_theta=100000,
            initializer_range=1 / 24,
            pad_token_id=2,
        ),
        134_515_008,
    ),
    "mistral-7b-v0.1": (Mistral(vocab_size=32000, **_MISTRAL, window=4096), 7_241_732_096),
    "mistral-7b-v0.3": (Mistral(vocab_size=32768, **_MISTRAL, rope_theta=1e6), 7_248_023_552),
    "mixtral-8x7b-v0.1": (
        Mixtral(vocab_size=32000, **_MISTRAL, experts=8, experts_per_token=2, router_loss=0.0),
        46_702_792_704,
    ),
    "qwen2.5-0.5b": (
        Qwen2(
            vocab_size=151936,
            layers=24,
            hidden=896,
            heads=14,
            kv_heads=2,
            intermediate=4864,
            context_length=32768,
            tied=True,
        ),
        494_032_768,
    ),
    "qwen3-0.6b": (
        Qwen3(
            vocab_size=151936,
            layers=28,
            hidden=1024,
            heads=16,
            kv_heads=8,
            head_width=128,
            intermediate=3072,
            context_length=40960,
            tied=True,
        ),
        596_049_920,
    ),
    "qwen3-30b-a3b": (
        Qwen3Moe(
            vocab_size=151936,
            layers=48,
            hidden=2048,
            heads=32,
            kv_heads=4,
            head_width=128,
            moe_intermediate=768,
            experts=128,
            router_loss=0.0,
            context_length=40960,
        ),
        30_532_122_624,
    ),
    "olmo-2-1124-7b": (
        Olmo2(vocab_size=100352, **_7B, kv_heads=32, intermediate=11008, context_length=4096, pad_token_id=100277),
        7_298_617_344,
    ),
    "gemma-2-2b": (
        Gemma2(
            vocab_size=256000,
            layers=26,
            hidden=2304,
            heads=8,
            kv_heads=4,
            head_width=256,
            intermediate=9216,
            context_length=8192,
            window=4096,
            query_scale=256,
            pad_token_id=0,
        ),
        2_614_341_888,
    ),
    "gemma-3-1b": (
        Gemma3(
            vocab_size=262144,
            layers=26,
            hidden=1152,
            heads=4,
            kv_heads=1,
            head_width=256,
            intermediate=6912,
            context_length=32768,
            window=512,
            query_scale=256,
            pad_token_id=0,
        ),
        999_885_952,
    ),
    "bert-base-uncased": (
        Bert(
            vocab_size=30522,
            layers=12,
            hidden=768,
            heads=12,
            intermediate=3072,
            context_length=512,
            pad_token_id=0,
            **_DROPPED,
        ),
        109_514_298,
    ),
    "roberta-base": (
        Roberta(
            vocab_size=50265,
            layers=12,
            hidden=768,
            heads=12,
            intermediate=3072,
            context_length=512,
            first_position=2,
            pad_token_id=1,
            **_DROPPED,
        ),
        124_697_433,
    ),
    "distilbert-base-uncased": (
        DistilBert(
            vocab_size=30522,
            layers=6,
            hidden=768,
            heads=12,
            intermediate=3072,
            context_length=512,
            pad_token_id=0,
            **_DROPPED,
            classifier_dropout=0.2,
        ),
        66_985_530,
    ),
    "t5-small": (
        T5(
            vocab_size=32128,
            layers=6,
            hidden=512,
            heads=8,
            head_width=64,
            intermediate=2048,
            pad_token_id=0,
            decoder_start=0,
            dropout=0.1,
        ),
        60_506_624,
    ),
    "flan-t5-base": (
        T5(
            vocab_size=32128,
            layers=12,
            decoder_layers=12,
            hidden=768,
            heads=12,
            head_width=64,
            intermediate=2048,
            gated=True,
            tied=False,
            pad_token_id=0,
            decoder_start=0,
            dropout=0.1,
        ),
        247_577_856,
    ),
    "bart-base": (
        Bart(
            vocab_size=50265,
            layers=6,
            decoder_layers=6,
            hidden=768,
            heads=12,
            intermediate=3072,
            context_length=1024,
            pad_token_id=1,
            decoder_start=2,
            dropout=0.1,
            attention_dropout=0.1,
            activation_dropout=0.1,
        ),
        # with the bias of the logits
        139_470_681,
    ),
    "mpt-7b": (Mpt(vocab_size=50432, **_7B, context_length=2048), 6_649_286_656),
}


def read(config: dict[str, Any]) -> Pretrained:
    return spec_of(config, family_of(config, where="config.json"), where="config.json")


def refusal(config: dict[str, Any]) -> str:
    with pytest.raises(TrainkitError) as caught:
        read(config)
    return str(caught.value)


def changed(name: str, **keys: Any) -> dict[str, Any]:
    return {**published(name), **keys}


def published(name: str) -> dict[str, Any]:
    return read_config_of(CONFIGS / f"{name}.json")


def read_config_of(path: Path) -> dict[str, Any]:
    found = json.loads(path.read_text())
    assert isinstance(found, dict)
    return found


def means(spec: Any) -> dict[str, Any]:
    """All that a model is made of: two specs that differ in words only are the same here."""
    asked = (
        "type layers hidden heads groups key_width mlp_width tied biased windows ropes norms qk_norm activation"
        " score_scale softcap_of_scores softcap_of_logits scaled_embedding norm_offset rms_norm_eps norm_epsilon clip"
        " experts experts_per_token normalised initializer_range pad_token_id"
    )
    found = {key: getattr(spec, key) for key in asked.split() if hasattr(spec, key)}
    # what divides scores where nothing is said
    found["score_scale"] = found.get("score_scale") or spec.key_width**-0.5
    found["parameters"] = spec.parameter_count(vocab_size=spec.vocab_size, sequence_length=64)
    return found


# as their makers published them


def test_there_is_a_published_config_of_every_family_and_each_is_looked_at():
    assert {path.stem for path in CONFIGS.glob("*.json")} == set(PUBLISHED)
    assert {family_of_spec(spec).model_type for spec, _ in PUBLISHED.values()} == {f.model_type for f in families()}


@pytest.mark.parametrize("name", ["pegasus", "mbart", "marian"])
def test_families_like_bart_that_are_not_supported_are_refused_by_name(name):
    config = {"model_type": name, "architectures": [f"{name.title()}ForConditionalGeneration"], "d_model": 8}
    with pytest.raises(TrainkitError, match=f'model_type = "{name}" .* is not supported') as error:
        family_of(config, where="config.json")
    assert "bart (BartForConditionalGeneration)" in error.value.hint


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_published_config_is_read_to_the_model_that_it_means(name):
    spec, parameters = PUBLISHED[name]
    found = read(published(name))
    assert found == spec
    counted: Any = found
    assert sum(counted.parameter_count(vocab_size=found.vocab_size, sequence_length=64).values()) == parameters


def test_a_model_that_is_exported_brings_no_code_though_it_began_with_some():
    spec = read(published("mpt-7b"))
    assert "auto_map" not in config_of(spec, vocab_size=50432, sequence_length=64, dtype="float32")
    assert "auto_map" in refusal(changed("mpt-7b", auto_map={"AutoModelForCausalLM": "other.Model"}))


@pytest.mark.parametrize(
    ("name", "key"), [("qwen2.5-0.5b", "use_mrope"), ("smollm2-135m-instruct", "rope_interleaved")]
)
def test_what_is_passed_over_where_it_is_off_is_refused_where_it_is_on(name, key):
    assert f"{key} = true" in refusal(changed(name, **{key: True}))


# what is left out


def _optional(spec: Pretrained) -> list[str]:
    return [key for key, field in type(spec).model_fields.items() if not field.is_required() and key != "type"]


@settings(deadline=None)
@given(st.data())
def test_what_a_spec_leaves_open_comes_back_from_its_export_as_the_same_model(data):
    spec = SPECS[data.draw(st.sampled_from(sorted(SPECS)))]
    left = set(data.draw(st.lists(st.sampled_from(_optional(spec))))) - {"vocab_size"}
    asked = spec.model_dump(exclude=left | {"pretrained", "revision", "resize_vocabulary"})
    try:
        spec = type(spec).model_validate(asked)
    except ValueError:
        return  # heads that do not divide
    config = config_of(spec, vocab_size=320, sequence_length=64, dtype="float32")
    again = read(json.loads(json.dumps(config)))
    assert means(again) == means(spec)
    context: Any = spec
    assert again.model_dump()["context_length"] == context.context_length or 64


@pytest.mark.parametrize("name", ["mistral", "qwen2", "qwen3", "gemma2", "gemma3", "mixtral", "qwen3-moe", "llama"])
def test_a_model_without_shared_keys_says_how_many_heads_it_has(name):
    # absent, each library takes a number of its own
    spec = type(SPECS[name]).model_validate({**SPECS[name].model_dump(), "kv_heads": None})
    assert config_of(spec, vocab_size=320, sequence_length=64, dtype="float32")["num_key_value_heads"] == 4


@pytest.mark.parametrize("name", [name for name in PUBLISHED if "t5" not in name])
def test_a_config_that_does_not_say_how_long_texts_may_be_is_read_with_its_librarys_length(name):
    lengths = {"gpt2": 1024, "llama": 2048, "mistral": 131072, "qwen2": 32768, "qwen3": 32768, "olmo2": 2048}
    lengths |= {"gemma2": 8192, "gemma3": 131072, "mixtral": 131072, "qwen3-moe": 32768, "mpt": 2048, "bert": 512}
    lengths |= {"roberta": 510, "distilbert": 512, "bart": 1024, "deberta-v3": 512, "modernbert": 8192}
    config = published(name)
    key = next(key for key in ("max_position_embeddings", "n_positions", "max_seq_len") if key in config)
    del config[key]
    found = read(config).model_dump()
    assert found["context_length"] == lengths[found["type"]]
    said = refusal({**config, key: None})
    assert f"{key} is missing" in said or f"{key} = null" in said


def test_null_is_not_what_a_library_takes_for_a_key_that_is_absent():
    assert read(changed("mistral-7b-v0.1", num_key_value_heads=None)).model_dump()["kv_heads"] is None
    assert "sliding_window = null" in refusal(changed("gemma-2-2b", sliding_window=None))
    assert "rms_norm_eps = null" in refusal(changed("llama-2-7b", rms_norm_eps=None))
    assert "rope_theta = null" in refusal(changed("llama-2-7b", rope_theta=None))


def test_a_window_that_no_layer_has_is_none():
    on = {"use_sliding_window": True, "sliding_window": 4096}
    for first in (24, 28):
        assert read(changed("qwen2.5-0.5b", **on, max_window_layers=first)) == PUBLISHED["qwen2.5-0.5b"][0]
    assert read(changed("qwen2.5-0.5b", **on, max_window_layers=23)).model_dump()["layers_without_window"] == 23


# rotary positions


@pytest.mark.parametrize(
    ("scaling", "named"),
    [
        ({"rope_type": "default", "partial_rotary_factor": 0.5}, "partial_rotary_factor = 0.5"),
        ({"rope_type": "default", "factor": 2.0}, "rope_scaling.factor = 2.0"),
        ({"factor": 2.0}, "rope_scaling.factor = 2.0"),
        ({"type": "linear", "rope_type": "llama3", "factor": 2.0}, "rope_scaling.type"),
        ({"type": "default", "rope_type": "linear", "factor": 2.0}, "rope_scaling.type"),
        ({"type": ["linear"]}, "only linear, llama3, yarn"),
        ({"rope_type": "yarn", "factor": 2.0, "truncate": False}, "truncate = false"),
        ({"rope_type": "yarn", "factor": 2.0, "mscale": 0.7}, "rope_scaling.mscale"),
        ("linear", "rope_scaling = "),
        ([], "rope_scaling = "),
    ],
)
def test_rotary_positions_that_are_unavailable_are_refused_by_name(scaling, named):
    assert named in refusal(changed("llama-2-7b", rope_scaling=scaling))


@pytest.mark.parametrize(
    "scaling",
    [
        None,
        {},
        {"rope_type": "default"},
        {"type": "default", "rope_type": "default", "partial_rotary_factor": 1.0, "rope_theta": 1e4},
    ],
)
def test_rotary_positions_as_they_are_may_be_said_in_many_ways(scaling):
    assert read(changed("llama-2-7b", rope_scaling=scaling)) == PUBLISHED["llama-2-7b"][0]


def test_two_tables_of_rotary_positions_must_not_differ():
    scaling, other = published("llama-3.2-1b")["rope_scaling"], {"rope_type": "default"}
    assert read(changed("llama-3.2-1b", rope_parameters=scaling)) == PUBLISHED["llama-3.2-1b"][0]
    assert "rope_parameters has another value" in refusal(changed("llama-3.2-1b", rope_parameters=other))


def test_the_length_of_the_first_training_is_the_models_where_scaling_does_not_say_it():
    for kind in ("llama3", "yarn"):
        found = read(changed("llama-2-7b", rope_scaling={"rope_type": kind, "factor": 2.0})).model_dump()
        assert found["rope_scaling"]["original_context"] == 4096


def test_a_kind_of_layers_without_rotary_positions_of_its_own_has_the_librarys():
    config = published("gemma-3-1b")
    whole, local = config.pop("rope_theta"), config.pop("rope_local_base_freq")
    for both in (
        {"full_attention": {"rope_theta": whole}},
        {"sliding_attention": {"rope_theta": local}},
        {"full_attention": {"rope_theta": whole}, "sliding_attention": None},
    ):
        assert read({**config, "rope_parameters": both}) == PUBLISHED["gemma-3-1b"][0]
    assert "rope_parameters.rope_theta" in refusal({**config, "rope_parameters": {"rope_theta": whole}})
    scaled = {"sliding_attention": {"rope_type": "linear", "factor": 2.0}}
    assert "sliding_attention" in refusal({**config, "rope_parameters": scaled})


# what is no config

_JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 10**12) | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


@settings(deadline=None)
@given(st.data())
def test_whatever_a_key_holds_it_is_read_or_refused_in_words(data):
    config = published(data.draw(st.sampled_from(sorted(PUBLISHED))))
    known = sorted({*config, "layer_types", "rope_parameters", "rope_scaling", "head_dim", "sliding_window_pattern"})
    holders: list[Any] = [config, *(config[key] for key in config if isinstance(config[key], dict))]
    holder = data.draw(st.sampled_from(holders))
    key = data.draw(st.sampled_from(known if holder is config else sorted(holder)))
    holder[key] = data.draw(_JSON)
    before = copy.deepcopy(config)
    try:
        read(config)
    except TrainkitError as error:
        assert str(error).startswith("config.json: ")
    assert json.dumps(config) == json.dumps(before)


def test_numbers_that_make_no_model_are_reported_by_their_keys(tmp_path):
    config = changed("llama-2-7b", num_attention_heads="32", hidden_size=-1)
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(TrainkitError) as caught:
        spec_of(read_config(tmp_path), llama.FAMILY, where=str(tmp_path))
    assert "  hidden: " in str(caught.value) and "  heads: " in str(caught.value)


def test_names_of_architectures_may_be_written_in_capitals_and_must_be_names():
    assert spec_values(changed("mpt-7b"), mpt.FAMILY, where="")
    assert "architectures" in refusal(changed("gpt2", architectures=7))
