"""A small configuration or two of every family; `scripts/parity_fixtures.py` keeps what the reference makes of them."""

from __future__ import annotations

from typing import NamedTuple

from family_configs import MOST_POSITIONS, Config


class Fixed(NamedTuple):
    """A configuration that has as much of its family as can be."""

    options: str
    """What of it, in words."""
    config: Config


_SMALL: Config = {
    "vocab_size": 41,
    "hidden_size": 24,
    "intermediate_size": 20,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": MOST_POSITIONS,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": False,
    "pad_token_id": None,
}
_LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
_YARN = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 16}
_LINEAR = {"rope_type": "linear", "rope_theta": 1e4, "factor": 4.0}
_SHORT = {"sliding_window": 5}
_LATE_LAYERS = {**_SHORT, "use_sliding_window": True, "max_window_layers": 1}

#: By the names of their files; the length of the text is 20.
FIXED: dict[str, Fixed] = {
    "gpt2": Fixed(
        "tied",
        {
            "model_type": "gpt2",
            "vocab_size": 41,
            "n_positions": MOST_POSITIONS,
            "n_embd": 24,
            "n_layer": 2,
            "n_head": 3,
        },
    ),
    "gpt2-untied": Fixed(
        "not tied, a narrow MLP",
        {
            "model_type": "gpt2",
            "vocab_size": 41,
            "n_positions": MOST_POSITIONS,
            "n_embd": 16,
            "n_layer": 3,
            "n_head": 2,
            "n_inner": 20,
            "tie_word_embeddings": False,
        },
    ),
    "llama": Fixed(
        "llama3 scaling, biases, grouped queries, wide heads",
        {
            **_SMALL,
            "model_type": "llama",
            "rope_parameters": _LLAMA3,
            "attention_bias": True,
            "mlp_bias": True,
            "head_dim": 8,
        },
    ),
    "llama-yarn": Fixed(
        "yarn scaling, tied",
        {**_SMALL, "model_type": "llama", "rope_parameters": _YARN, "tie_word_embeddings": True},
    ),
    "mistral": Fixed(
        "a window of 5, linear scaling, one head of keys",
        {
            **_SMALL,
            **_SHORT,
            "model_type": "mistral",
            "rope_parameters": _LINEAR,
            "num_key_value_heads": 1,
            "head_dim": 8,
        },
    ),
    "qwen2": Fixed(
        "a window of 5 from the second of 3 layers on, yarn scaling, tied",
        {
            **_SMALL,
            **_LATE_LAYERS,
            "model_type": "qwen2",
            "rope_parameters": _YARN,
            "num_hidden_layers": 3,
            "tie_word_embeddings": True,
        },
    ),
    "qwen3": Fixed(
        "a window of 5 from the second of 3 layers on, biases, wide heads",
        {
            **_SMALL,
            **_LATE_LAYERS,
            "model_type": "qwen3",
            "rope_parameters": {"rope_type": "default", "rope_theta": 1e6},
            "num_hidden_layers": 3,
            "attention_bias": True,
            "head_dim": 8,
        },
    ),
    "olmo2": Fixed(
        "biases, linear scaling, grouped queries",
        {**_SMALL, "model_type": "olmo2", "rope_parameters": _LINEAR, "attention_bias": True},
    ),
    "gemma2": Fixed(
        "soft-caps of 2 and 5, every other of 3 layers with a window of 5, biases, a query scale, wide heads",
        {
            **_SMALL,
            **_SHORT,
            "model_type": "gemma2",
            "rope_parameters": {"rope_type": "default", "rope_theta": 1e4},
            "num_hidden_layers": 3,
            "tie_word_embeddings": True,
            "attention_bias": True,
            "head_dim": 8,
            "query_pre_attn_scalar": 20,
            "attn_logit_softcapping": 2.0,
            "final_logit_softcapping": 5.0,
        },
    ),
    "gemma3": Fixed(
        "every third of 4 layers global with linear scaling, windows of 5, a soft-cap of 5, a query scale, wide heads",
        {
            **_SMALL,
            **_SHORT,
            "model_type": "gemma3_text",
            "rope_parameters": {
                "full_attention": {"rope_type": "linear", "rope_theta": 1e6, "factor": 8.0},
                "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
            },
            "layer_types": ["sliding_attention", "sliding_attention", "full_attention", "sliding_attention"],
            "num_hidden_layers": 4,
            "tie_word_embeddings": True,
            "head_dim": 8,
            "query_pre_attn_scalar": 20,
            "final_logit_softcapping": 5.0,
        },
    ),
    "mpt": Fixed(
        "3 heads, clipped queries, keys and values, a scale of scores",
        {
            "model_type": "mpt",
            "vocab_size": 41,
            "d_model": 24,
            "n_heads": 3,
            "n_layers": 2,
            "max_seq_len": MOST_POSITIONS,
            "attn_config": {"clip_qkv": 1.0, "softmax_scale": 0.5},
        },
    ),
    "mixtral": Fixed(
        "2 of 4 experts, a window of 5",
        {
            **_SMALL,
            **_SHORT,
            "model_type": "mixtral",
            "rope_parameters": {"rope_type": "default", "rope_theta": 1e6},
            "num_local_experts": 4,
            "num_experts_per_tok": 2,
        },
    ),
    "qwen3-moe": Fixed(
        "2 of 4 experts whose weights do not add up to 1, biases, wide heads, yarn scaling",
        {
            **_SMALL,
            "model_type": "qwen3_moe",
            "rope_parameters": _YARN,
            "attention_bias": True,
            "head_dim": 8,
            "num_experts": 4,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 20,
            "norm_topk_prob": False,
        },
    ),
}

#: Encoders, whose heads predict masked tokens.
ENCODERS: dict[str, Config] = {
    "bert": {
        "model_type": "bert", "vocab_size": 41, "hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4,
        "intermediate_size": 48, "max_position_embeddings": 64, "layer_norm_eps": 1e-9,
    },
    "bert-three-types": {
        "model_type": "bert", "vocab_size": 41, "hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 3,
        "intermediate_size": 40, "max_position_embeddings": 64, "type_vocab_size": 3,
    },
    "roberta": {
        "model_type": "roberta", "vocab_size": 41, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
        "intermediate_size": 48, "max_position_embeddings": 66, "type_vocab_size": 1, "layer_norm_eps": 1e-5,
    },
    "deberta-v3": {
        "model_type": "deberta-v2", "vocab_size": 41, "hidden_size": 32, "num_hidden_layers": 2,
        "num_attention_heads": 4, "intermediate_size": 48, "max_position_embeddings": 64, "type_vocab_size": 0,
        "relative_attention": True, "position_buckets": 8, "norm_rel_ebd": "layer_norm", "share_att_key": True,
        "pos_att_type": ["p2c", "c2p"], "position_biased_input": False,
    },
    "modernbert": {
        "model_type": "modernbert", "vocab_size": 41, "hidden_size": 32, "num_hidden_layers": 4,
        "num_attention_heads": 4, "intermediate_size": 24, "max_position_embeddings": 64, "local_attention": 6,
        "pad_token_id": 0,
    },
    "distilbert": {
        "model_type": "distilbert", "vocab_size": 41, "dim": 32, "n_layers": 3, "n_heads": 4, "hidden_dim": 48,
        "max_position_embeddings": 64,
    },
}  # fmt: skip

#: Encoder-decoders.
ENCODER_DECODERS: dict[str, Config] = {
    "t5": {
        "model_type": "t5", "vocab_size": 41, "d_model": 24, "num_layers": 2, "num_heads": 3, "d_kv": 8, "d_ff": 40,
        "relative_attention_num_buckets": 8, "relative_attention_max_distance": 20, "decoder_start_token_id": 0,
    },
    "t5-gated": {
        "model_type": "t5", "vocab_size": 41, "d_model": 16, "num_layers": 2, "num_heads": 2, "d_kv": 6, "d_ff": 24,
        "num_decoder_layers": 3, "feed_forward_proj": "gated-gelu", "tie_word_embeddings": False,
        "decoder_start_token_id": 0,
    },
    "bart": {
        "model_type": "bart", "vocab_size": 41, "d_model": 24, "encoder_layers": 2, "decoder_layers": 3,
        "encoder_attention_heads": 3, "decoder_attention_heads": 3, "encoder_ffn_dim": 40, "decoder_ffn_dim": 40,
        "max_position_embeddings": 64, "scale_embedding": True, "decoder_start_token_id": 2,
    },
}  # fmt: skip

#: What of their families those with an encoder have, in words.
OPTIONS = {
    "bert": "two types of tokens",
    "bert-three-types": "three types of tokens, 3 heads",
    "roberta": "one type of tokens, positions after that of the padding",
    "deberta-v3": "8 buckets of distances",
    "modernbert": "every third of 4 layers global, windows of 6",
    "distilbert": "no types of tokens",
    "t5": "relu, tied, 8 buckets of distances",
    "t5-gated": "a gated GELU, not tied, 3 blocks of the decoder, narrow heads",
    "bart": "scaled embeddings, 3 blocks of the decoder",
}
