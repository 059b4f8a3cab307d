"""What Hugging Face checkpoints of BERT and of families like it share: keys, dropout, tensor names, heads."""

from __future__ import annotations

from trainkit.recipe.families.hugging_face import HeadTable, TensorName, linear_names, norm_names
from trainkit.recipe.families.model import HeadKind

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
#: The defaults of transformers for keys that config.json lacks.
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
    return (
        TensorName("token_embedding", f"{prefix}.embeddings.word_embeddings.weight"),
        TensorName("position_embedding", f"{prefix}.embeddings.position_embeddings.weight"),
        TensorName("type_embedding", f"{prefix}.embeddings.token_type_embeddings.weight"),
        *norm_names("embedding_norm", f"{prefix}.embeddings.LayerNorm", bias=True),
        *block_names(f"{prefix}.encoder.layer.{{layer}}"),
    )


def block_names(block: str, *, projection: str = "") -> tuple[TensorName, ...]:
    """Return the names of a block, whose tensors begin with `block`; those of its query, key and value end with
    `projection`."""
    return (
        *linear_names("blocks.attention.query", f"{block}.attention.self.query{projection}", bias=True),
        *linear_names("blocks.attention.key", f"{block}.attention.self.key{projection}", bias=True),
        *linear_names("blocks.attention.value", f"{block}.attention.self.value{projection}", bias=True),
        *linear_names("blocks.attention.output", f"{block}.attention.output.dense", bias=True),
        *norm_names("blocks.attention_norm", f"{block}.attention.output.LayerNorm", bias=True),
        *linear_names("blocks.mlp_in", f"{block}.intermediate.dense", bias=True),
        *linear_names("blocks.mlp_out", f"{block}.output.dense", bias=True),
        *norm_names("blocks.mlp_norm", f"{block}.output.LayerNorm", bias=True),
    )


#: The names of BERT's head that predicts tokens.
TOKEN_HEAD = (
    *linear_names("head", "cls.predictions.transform.dense", bias=True),
    *norm_names("head_norm", "cls.predictions.transform.LayerNorm", bias=True),
    TensorName("output", "cls.predictions.decoder.weight"),
    TensorName("output_bias", "cls.predictions.bias"),
)


def class_heads(family: str, *, dense: str, output: str = "classifier") -> dict[HeadKind, HeadTable]:
    """Return the heads with classes of a family whose classes in transformers begin with `family`; `dense` and `output`
    are the layers of the head of a sequence."""
    sequence = (
        *linear_names("classifier.dense", dense, bias=True),
        *linear_names("classifier.output", output, bias=True),
    )
    token = linear_names("classifier.output", "classifier", bias=True)
    return {
        "sequence": HeadTable(f"{family}ForSequenceClassification", sequence),
        "token": HeadTable(f"{family}ForTokenClassification", token),
        "span": HeadTable(f"{family}ForQuestionAnswering", linear_names("classifier.output", "qa_outputs", bias=True)),
    }
