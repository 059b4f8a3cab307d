"""BERT's checkpoints, with the head that predicts masked tokens."""

from trainkit.hub.config import Family
from trainkit.hub.names import Name, matrix, norm
from trainkit.recipe.families.bert import Bert

_BLOCK = "bert.encoder.layer.{layer}"

BERT = Family(
    spec=Bert,
    model_type="bert",
    architecture="BertForMaskedLM",
    base="BertModel",
    keys={
        "num_hidden_layers": "layers",
        "hidden_size": "hidden",
        "num_attention_heads": "heads",
        "intermediate_size": "intermediate",
        "max_position_embeddings": "context_length",
        "type_vocab_size": "token_types",
        "layer_norm_eps": "layer_norm_eps",
        "vocab_size": "vocab_size",
        "initializer_range": "initializer_range",
        "pad_token_id": "pad_token_id",
    },
    defaults={
        "max_position_embeddings": 512,
        "type_vocab_size": 2,
        "layer_norm_eps": 1e-12,
        "intermediate_size": 3072,
    },
    fixed={
        "hidden_act": ("gelu",),
        # untied, transformers reads a second bias
        "tie_word_embeddings": (True,),
        "position_embedding_type": ("absolute",),
        "add_cross_attention": (False,),
        "is_decoder": (False,),
    },
    noise={"attention_probs_dropout_prob": 0.1, "hidden_dropout_prob": 0.1},
    names=(
        Name("token_embedding", "bert.embeddings.word_embeddings.weight"),
        Name("position_embedding", "bert.embeddings.position_embeddings.weight"),
        Name("type_embedding", "bert.embeddings.token_type_embeddings.weight"),
        *norm("embedding_norm", "bert.embeddings.LayerNorm", bias=True),
        *matrix("blocks.attention.query", f"{_BLOCK}.attention.self.query", bias=True),
        *matrix("blocks.attention.key", f"{_BLOCK}.attention.self.key", bias=True),
        *matrix("blocks.attention.value", f"{_BLOCK}.attention.self.value", bias=True),
        *matrix("blocks.attention.output", f"{_BLOCK}.attention.output.dense", bias=True),
        *norm("blocks.attention_norm", f"{_BLOCK}.attention.output.LayerNorm", bias=True),
        *matrix("blocks.mlp_in", f"{_BLOCK}.intermediate.dense", bias=True),
        *matrix("blocks.mlp_out", f"{_BLOCK}.output.dense", bias=True),
        *norm("blocks.mlp_norm", f"{_BLOCK}.output.LayerNorm", bias=True),
        *matrix("head", "cls.predictions.transform.dense", bias=True),
        *norm("head_norm", "cls.predictions.transform.LayerNorm", bias=True),
        Name("output", "cls.predictions.decoder.weight"),
        Name("output_bias", "cls.predictions.bias"),
    ),
    prefix="bert.",
    # what masked-token prediction does not use: the pooler, the head of BERT's second task, and copies of tied tensors
    ignored=r"(bert\.)?(pooler\..*|embeddings\.position_ids)|cls\.seq_relationship\..*|cls\.predictions\.decoder\.bias",
)
