"""BART (Lewis et al. 2020)."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

from pydantic import model_validator

from trainkit.recipe.families.encoder_decoder import EncoderDecoder
from trainkit.recipe.families.hugging_face import (
    Config,
    Family,
    HeadTable,
    Part,
    TensorName,
    Unsupported,
    linear_names,
    norm_names,
)
from trainkit.recipe.families.sizes import check_heads
from trainkit.recipe.spec import Count, Rate


class Bart(EncoderDecoder):
    """BART (Lewis et al. 2020): learned positions, norms after each sublayer, exact GELU."""

    type: Literal["bart"] = "bart"
    context_length: Count | None = None
    """Number of learned positions of the source, and of the target. If absent, `data.sequence_length`."""
    tied: Literal[True] = True
    """The output matrix is the token embedding."""
    attention_dropout: Rate = 0.0
    """Share of attention's probabilities that training drops. Above 0, attention computes all of them at once, without
    flash attention."""
    activation_dropout: Rate = 0.0
    """Share of the numbers inside the MLP that training drops."""
    scale_embedding: bool = False
    """Whether token embeddings are multiplied by the root of `hidden`."""

    changeable: ClassVar[frozenset[str]] = EncoderDecoder.changeable - {"context_length"} | {"activation_dropout"}
    embedding_norms: ClassVar[bool] = True
    first_position: ClassVar[int | None] = 2
    output_biased: ClassVar[bool] = True

    @model_validator(mode="after")
    def _heads_divide_hidden(self) -> Bart:
        check_heads(self.heads, self.hidden)
        return self

    @property
    def key_width(self) -> int:
        return self.hidden // self.heads

    @property
    def probability_dropout(self) -> float:
        return self.attention_dropout

    @property
    def inner_dropout(self) -> float:
        return self.activation_dropout

    @property
    def embedding_scale(self) -> float | None:
        return self.hidden**0.5 if self.scale_embedding else None


def _same(ours: str, theirs: str, *, usual: int) -> Part:
    """Return the part of a size that both stacks have, and that must be the same in both."""
    keys = (f"encoder_{theirs}", f"decoder_{theirs}")

    def read(config: Config) -> dict[str, Any]:
        first, second = (config.get(key, usual) for key in keys)
        if first != second:
            raise Unsupported(keys[1], second, f"only that of {keys[0]}, {first}, is supported")
        return {ours: first}

    def write(values: dict[str, Any]) -> Config:
        return dict.fromkeys(keys, values[ours] or 4 * values["hidden"])

    return Part(keys, read, write)


#: What configs of early checkpoints say of parts that BART has in one form only.
_EARLY = {
    "normalize_before": False,
    "normalize_embedding": True,
    "add_final_layer_norm": False,
    "add_bias_logits": False,
    "static_position_embeddings": False,
    "do_blenderbot_90_layernorm": False,
    "extra_pos_embeddings": 2,
}


def _read_early(config: Config) -> dict[str, Any]:
    for key, only in _EARLY.items():
        if config.get(key, only) != only:
            raise Unsupported(key, config[key], f"only {only} is supported")
    layers = config.get("encoder_layers")
    if config.get("num_hidden_layers", layers) != layers:
        raise Unsupported("num_hidden_layers", config["num_hidden_layers"], f"encoder_layers = {layers} contradicts it")
    return {}


def _stack_names(side: str) -> tuple[TensorName, ...]:
    ours, theirs = f"blocks.{side}", f"model.{side}.layers.{{layer}}"
    return (
        TensorName(f"{side}.position_embedding", f"model.{side}.embed_positions.weight"),
        *norm_names(f"{side}.embedding_norm", f"model.{side}.layernorm_embedding", bias=True),
        *_attention_names(f"{ours}.attention", f"{theirs}.self_attn"),
        *linear_names(f"{ours}.mlp_in", f"{theirs}.fc1", bias=True),
        *linear_names(f"{ours}.mlp_out", f"{theirs}.fc2", bias=True),
        *norm_names(f"{ours}.mlp_norm", f"{theirs}.final_layer_norm", bias=True),
    )


def _attention_names(ours: str, theirs: str) -> tuple[TensorName, ...]:
    called = {"query": "q_proj", "key": "k_proj", "value": "v_proj", "output": "out_proj"}
    matrices = [
        name for own, other in called.items() for name in linear_names(f"{ours}.{own}", f"{theirs}.{other}", bias=True)
    ]
    return (*matrices, *norm_names(f"{ours}_norm", f"{theirs}_layer_norm", bias=True))


FAMILY = Family(
    spec=Bart,
    model_type="bart",
    architecture="BartForConditionalGeneration",
    base="BartModel",
    keys={
        "encoder_layers": "layers",
        "d_model": "hidden",
        "max_position_embeddings": "context_length",
        "scale_embedding": "scale_embedding",
        "init_std": "initializer_range",
        "dropout": "dropout",
        "attention_dropout": "attention_dropout",
        "activation_dropout": "activation_dropout",
        "classifier_dropout": "classifier_dropout",
        "vocab_size": "vocab_size",
        "pad_token_id": "pad_token_id",
        "decoder_start_token_id": "decoder_start",
    },
    defaults={
        "encoder_layers": 12,
        "decoder_layers": 12,
        "d_model": 1024,
        "max_position_embeddings": 1024,
        "scale_embedding": False,
        "tie_word_embeddings": True,
        "init_std": 0.02,
        "dropout": 0.1,
        "attention_dropout": 0.0,
        "activation_dropout": 0.0,
        "classifier_dropout": 0.0,
        "pad_token_id": 1,
        "decoder_start_token_id": 2,
        "num_labels": 3,
    },
    fixed={
        "activation_function": ("gelu",),
        "is_encoder_decoder": (True,),
        "is_decoder": (False,),
        # untied, transformers has a table for each stack too
        "tie_word_embeddings": (True,),
    },
    noise={"encoder_layerdrop": 0.0, "decoder_layerdrop": 0.0},
    parts=(
        Part(
            ("decoder_layers",),
            lambda config: {"decoder_layers": config["decoder_layers"]},
            lambda values: {"decoder_layers": values["decoder_layers"] or values["layers"]},
        ),
        _same("heads", "attention_heads", usual=16),
        _same("intermediate", "ffn_dim", usual=4096),
        Part((*_EARLY, "num_hidden_layers", "classif_dropout"), _read_early, lambda values: {}),
    ),
    names=(
        TensorName("token_embedding", "model.shared.weight"),
        *_stack_names("encoder"),
        *_attention_names("blocks.decoder.cross", "model.decoder.layers.{layer}.encoder_attn"),
        *_stack_names("decoder"),
        TensorName("output", "lm_head.weight"),
        TensorName("output_bias", "final_logits_bias", optional=True),
    ),
    heads={
        "sequence": HeadTable(
            "BartForSequenceClassification",
            (
                *linear_names("classifier.dense", "classification_head.dense", bias=True),
                *linear_names("classifier.output", "classification_head.out_proj", bias=True),
            ),
        )
    },
    prefix="model.",
    # copies of the embedding, and numbers of versions
    ignored=r"(model\.)?(encoder|decoder)\.(embed_tokens\.weight|version)",
)
