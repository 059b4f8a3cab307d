"""What Hugging Face checkpoints of BERT and of families with the same body share: keys, dropout, tensor names."""

from __future__ import annotations

from trainkit.recipe.families.hugging_face import TensorName, linear_names, norm_names

#: Their name -> our name.
KEYS = {
    "num_hidden_layers": "layers",
    "hidden_size": "hidden",
    "num_attention_heads": "heads",
    "type_vocab_size": "token_types",
    "layer_norm_eps": "layer_norm_eps",
    "vocab_size": "vocab_size",
    "initializer_range": "initializer_range",
    "hidden_dropout_prob": "dropout",
    "attention_probs_dropout_prob": "attention_dropout",
    "classifier_dropout": "classifier_dropout",
}
#: What transformers takes for keys that config.json lacks.
DEFAULTS = {
    "max_position_embeddings": 512,
    "type_vocab_size": 2,
    "layer_norm_eps": 1e-12,
    "intermediate_size": 3072,
    "tie_word_embeddings": True,
    "hidden_dropout_prob": 0.1,
    "attention_probs_dropout_prob": 0.1,
}
FIXED = {
    "hidden_act": ("gelu",),
    # untied, transformers reads a second bias
    "tie_word_embeddings": (True,),
    "position_embedding_type": ("absolute",),
    "add_cross_attention": (False,),
    "is_decoder": (False,),
}


def body_names(prefix: str) -> tuple[TensorName, ...]:
    """Return the names of the embeddings and of the blocks; `prefix` is that of the body, such as `bert`."""
    block = f"{prefix}.encoder.layer.{{layer}}"
    return (
        TensorName("token_embedding", f"{prefix}.embeddings.word_embeddings.weight"),
        TensorName("position_embedding", f"{prefix}.embeddings.position_embeddings.weight"),
        TensorName("type_embedding", f"{prefix}.embeddings.token_type_embeddings.weight"),
        *norm_names("embedding_norm", f"{prefix}.embeddings.LayerNorm", bias=True),
        *linear_names("blocks.attention.query", f"{block}.attention.self.query", bias=True),
        *linear_names("blocks.attention.key", f"{block}.attention.self.key", bias=True),
        *linear_names("blocks.attention.value", f"{block}.attention.self.value", bias=True),
        *linear_names("blocks.attention.output", f"{block}.attention.output.dense", bias=True),
        *norm_names("blocks.attention_norm", f"{block}.attention.output.LayerNorm", bias=True),
        *linear_names("blocks.mlp_in", f"{block}.intermediate.dense", bias=True),
        *linear_names("blocks.mlp_out", f"{block}.output.dense", bias=True),
        *norm_names("blocks.mlp_norm", f"{block}.output.LayerNorm", bias=True),
    )
