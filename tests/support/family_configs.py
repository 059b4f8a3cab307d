"""Small random configurations of every family, as their `config.json` has them, drawn by hypothesis."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hypothesis import strategies as st

Config = dict[str, Any]
VOCAB = 97
#: Where the text of the tests stands at its latest: beyond it no table of positions reaches.
MOST_POSITIONS = 256


def _decoder(draw: st.DrawFn, model_type: str, **more: Any) -> Config:
    heads = draw(st.sampled_from([2, 4, 6]))
    return {
        "model_type": model_type,
        "vocab_size": VOCAB,
        "hidden_size": heads * 8,
        "intermediate_size": draw(st.sampled_from([24, 40])),
        "num_hidden_layers": draw(st.sampled_from([1, 2, 3])),
        "num_attention_heads": heads,
        "num_key_value_heads": draw(st.sampled_from([n for n in (1, 2, 3, 6) if heads % n == 0])),
        "max_position_embeddings": MOST_POSITIONS,
        "rms_norm_eps": draw(st.sampled_from([1e-5, 1e-6])),
        "tie_word_embeddings": draw(st.booleans()),
        "rope_parameters": _scaled(draw),
        "pad_token_id": None,  # of which torch would take the gradient for 0
        **more,
    }


def _scaled(draw: st.DrawFn) -> Config:
    theta = {"rope_theta": draw(st.sampled_from([1e4, 5e5]))}
    scaled: list[Config] = [
        {"rope_type": "default"},
        {"rope_type": "linear", "factor": 4.0},
        {
            "rope_type": "llama3",
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 32,
        },
        {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64},
        {
            "rope_type": "yarn",
            "factor": 8.0,
            "original_max_position_embeddings": 16,
            "beta_fast": 4.0,
            "beta_slow": 0.5,
            "attention_factor": 1.3,
        },
    ]
    return {**draw(st.sampled_from(scaled)), **theta}


def _window_of_late_layers(draw: st.DrawFn) -> Config:
    """Layers from `max_window_layers` on have a window, where it is on."""
    return {
        "use_sliding_window": draw(st.booleans()),
        "sliding_window": draw(st.sampled_from([5, 64])),
        "max_window_layers": draw(st.sampled_from([0, 1, 2])),
        "layer_types": None,
    }


@st.composite
def gpt2(draw: st.DrawFn) -> Config:
    heads = draw(st.sampled_from([1, 2, 4]))
    return {
        "model_type": "gpt2",
        "vocab_size": VOCAB,
        "n_positions": MOST_POSITIONS,
        "n_embd": heads * 8,
        "n_layer": draw(st.sampled_from([1, 2, 3])),
        "n_head": heads,
        "n_inner": draw(st.sampled_from([None, 24])),
        "tie_word_embeddings": draw(st.booleans()),
    }


@st.composite
def llama(draw: st.DrawFn) -> Config:
    biases = {"attention_bias": draw(st.booleans()), "mlp_bias": draw(st.booleans())}
    return _decoder(draw, "llama", **biases, head_dim=draw(st.sampled_from([8, 16])))


@st.composite
def mistral(draw: st.DrawFn) -> Config:
    return _decoder(draw, "mistral", sliding_window=draw(st.sampled_from([None, 5, 64])), head_dim=8)


@st.composite
def qwen2(draw: st.DrawFn) -> Config:
    return _decoder(draw, "qwen2", **_window_of_late_layers(draw))


@st.composite
def qwen3(draw: st.DrawFn) -> Config:
    more = {"head_dim": draw(st.sampled_from([8, 16])), "attention_bias": draw(st.booleans())}
    return _decoder(draw, "qwen3", **more, **_window_of_late_layers(draw))


@st.composite
def gemma2(draw: st.DrawFn) -> Config:
    return _decoder(
        draw,
        "gemma2",
        attention_bias=draw(st.booleans()),
        head_dim=draw(st.sampled_from([8, 16])),
        sliding_window=draw(st.sampled_from([5, 64])),
        query_pre_attn_scalar=draw(st.sampled_from([8, 24])),
        attn_logit_softcapping=draw(st.sampled_from([50.0, 2.0, None])),
        # no lower: what is bent until the largest logits are the same has no likeliest token
        final_logit_softcapping=draw(st.sampled_from([30.0, 10.0, None])),
    )


@st.composite
def gemma3(draw: st.DrawFn) -> Config:
    config = _decoder(
        draw,
        "gemma3_text",
        attention_bias=draw(st.booleans()),
        final_logit_softcapping=draw(st.sampled_from([None, 10.0])),
        head_dim=draw(st.sampled_from([8, 16])),
        sliding_window=draw(st.sampled_from([5, 64])),
        query_pre_attn_scalar=draw(st.sampled_from([8, 24])),
        num_hidden_layers=draw(st.sampled_from([2, 7])),
    )
    whole: Config = {"rope_type": "default", "rope_theta": 1e6}
    if draw(st.booleans()):
        whole |= {"rope_type": "linear", "factor": 8.0}
    local = {"rope_type": "default", "rope_theta": 1e4}
    return config | {"rope_parameters": {"full_attention": whole, "sliding_attention": local}}


@st.composite
def olmo2(draw: st.DrawFn) -> Config:
    return _decoder(draw, "olmo2", attention_bias=draw(st.booleans()))


@st.composite
def mpt(draw: st.DrawFn) -> Config:
    heads = draw(st.sampled_from([2, 3, 4, 6]))
    attention = {"clip_qkv": draw(st.sampled_from([None, 0.7])), "softmax_scale": draw(st.sampled_from([None, 0.2]))}
    return {
        "model_type": "mpt",
        "attn_config": attention,
        "vocab_size": VOCAB,
        "d_model": heads * 8,
        "n_heads": heads,
        "n_layers": draw(st.sampled_from([1, 2])),
        "max_seq_len": MOST_POSITIONS,
        "layer_norm_epsilon": draw(st.sampled_from([1e-5, 1e-4])),
        "tie_word_embeddings": draw(st.booleans()),
    }


@st.composite
def mixtral(draw: st.DrawFn) -> Config:
    chosen = {"num_local_experts": draw(st.sampled_from([2, 5])), "num_experts_per_tok": draw(st.sampled_from([1, 2]))}
    # transformers takes yarn for a mixtral only where it is told the width of a head
    return _decoder(draw, "mixtral", **chosen, head_dim=8, sliding_window=draw(st.sampled_from([None, 5])))


@st.composite
def qwen3_moe(draw: st.DrawFn) -> Config:
    return _decoder(
        draw,
        "qwen3_moe",
        head_dim=8,
        attention_bias=draw(st.booleans()),
        use_sliding_window=draw(st.booleans()),
        sliding_window=5,
        num_experts=draw(st.sampled_from([2, 5])),
        num_experts_per_tok=draw(st.sampled_from([1, 2])),
        moe_intermediate_size=24,
        norm_topk_prob=draw(st.booleans()),
        decoder_sparse_step=1,
        mlp_only_layers=[],
    )


FAMILIES: dict[str, Callable[[], st.SearchStrategy[Config]]] = {
    "gpt2": gpt2,
    "llama": llama,
    "mistral": mistral,
    "qwen2": qwen2,
    "qwen3": qwen3,
    "gemma2": gemma2,
    "gemma3": gemma3,
    "olmo2": olmo2,
    "mpt": mpt,
    "mixtral": mixtral,
    "qwen3-moe": qwen3_moe,
}
