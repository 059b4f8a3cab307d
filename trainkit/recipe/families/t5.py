"""T5 (Raffel et al. 2020), T5 1.1 and Flan-T5."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, model_validator

from trainkit.recipe.families.encoder_decoder import DistanceBuckets, EncoderDecoder
from trainkit.recipe.families.hugging_face import (
    Config,
    Family,
    HeadTable,
    Part,
    TensorName,
    Unsupported,
    linear_names,
    mlp_width,
    norm_names,
    whole,
)
from trainkit.recipe.families.sizes import check_heads
from trainkit.recipe.spec import Count, NormEps, Rate, Ratio, Width


class T5(EncoderDecoder):
    """T5 (Raffel et al. 2020): root-mean-square norms, biases by distance, no other biases; 1.1 and Flan gate the
    MLP."""

    type: Literal["t5"] = "t5"
    head_width: Width | None = None
    """Width of one head. If absent, hidden / heads."""
    gated: bool = False
    """Whether the MLP is gated by a GELU, as in T5 1.1 and Flan-T5; otherwise it has a ReLU."""
    tied: bool = True
    """Whether the output matrix is the token embedding; hidden states are then divided by the root of `hidden`."""
    position_buckets: Annotated[int, Field(ge=4, le=1 << 20)] = 32
    """Biases of each head by the distance of two positions."""
    position_distance: Count = 128
    """All distances from here on share a bias."""
    rms_norm_eps: NormEps = 1e-6
    """Added to the mean square in the norms."""
    dropout: Rate = 0.0
    """Share that training drops of the embeddings, of attention's probabilities, of the outputs of attention and MLP,
    of the numbers inside the MLP, and of the last hidden states."""
    initializer_range: Ratio = 1.0
    """Scale of random weights. It is the standard deviation of embeddings; that of matrices is divided by the square
    root of their inputs, and that of queries is smaller still, because scores are not divided by anything."""

    norms: ClassVar[Literal["before", "after"]] = "before"
    mean_norms: ClassVar[bool] = False
    biased: ClassVar[bool] = False

    @model_validator(mode="after")
    def _sizes_fit(self) -> T5:
        if self.head_width is None:
            check_heads(self.heads, self.hidden)
        if self.position_distance <= self.position_buckets // 2:
            raise ValueError(
                f"position_distance = {self.position_distance} must be more than half of"
                f" position_buckets = {self.position_buckets}"
            )
        return self

    @property
    def key_width(self) -> int:
        return self.head_width or self.hidden // self.heads

    @property
    def score_scale(self) -> float | None:
        return 1.0

    @property
    def gated_mlp(self) -> bool:
        return self.gated

    @property
    def activation(self) -> Literal["relu", "gelu", "exact-gelu"]:
        return "gelu" if self.gated else "relu"

    @property
    def norm_epsilon(self) -> float:
        return self.rms_norm_eps

    @property
    def distances(self) -> DistanceBuckets | None:
        return DistanceBuckets(self.position_buckets, self.position_distance)

    @property
    def output_scale(self) -> float | None:
        return self.hidden**-0.5 if self.tied else None

    def weight_scale(self, inputs: int) -> float:
        return self.initializer_range * inputs**-0.5

    @property
    def query_scale(self) -> float:
        return self.weight_scale(self.hidden * self.key_width)

    @property
    def head_range(self) -> float:
        return self.weight_scale(self.hidden)


#: Forms of the MLP by `feed_forward_proj`, with the names of their function and whether it gates.
_MLPS = {"relu": ("relu", False), "gated-gelu": ("gelu_new", True)}


def _read_mlp(config: Config) -> dict[str, Any]:
    said = config.get("feed_forward_proj", "relu")
    if not isinstance(said, str) or said not in _MLPS:
        raise Unsupported("feed_forward_proj", said, f"only {' or '.join(_MLPS)} is supported")
    for key, value in zip(("dense_act_fn", "is_gated_act"), _MLPS[said], strict=True):
        if config.get(key, value) != value:
            raise Unsupported(key, config[key], f"with feed_forward_proj = {said} it must be {value}")
    return {"gated": _MLPS[said][1]}


def _write_mlp(values: dict[str, Any]) -> Config:
    return {"feed_forward_proj": "gated-gelu" if values["gated"] else "relu"}


def _tied(config: Config) -> bool:
    """Return whether the output matrix is the embedding: newer configs say so by `scale_decoder_outputs` alone."""
    said = config.get("scale_decoder_outputs")
    return config.get("tie_word_embeddings") is not False if said is None else bool(said)


def _read_width(config: Config) -> dict[str, Any]:
    return {"head_width": whole(config, "d_kv", 64)}


def _write_width(values: dict[str, Any]) -> Config:
    return {"d_kv": values["head_width"] or values["hidden"] // values["heads"]}


def _attention_names(ours: str, theirs: str) -> tuple[TensorName, ...]:
    called = {"query": "q", "key": "k", "value": "v", "output": "o"}
    return tuple(name for own, other in called.items() for name in linear_names(f"{ours}.{own}", f"{theirs}.{other}"))


def _stack_names(side: str, *, mlp: int) -> tuple[TensorName, ...]:
    """Return the names of a stack whose blocks have the MLP as their layer of this number."""
    ours, theirs = f"blocks.{side}", f"{side}.block.{{layer}}.layer"
    return (
        TensorName(
            f"{side}.distance_embedding", f"{side}.block.0.layer.0.SelfAttention.relative_attention_bias.weight"
        ),
        *_attention_names(f"{ours}.attention", f"{theirs}.0.SelfAttention"),
        *norm_names(f"{ours}.attention_norm", f"{theirs}.0.layer_norm"),
        *linear_names(f"{ours}.mlp_in", f"{theirs}.{mlp}.DenseReluDense.wi"),
        *linear_names(f"{ours}.mlp_gate", f"{theirs}.{mlp}.DenseReluDense.wi_0"),
        *linear_names(f"{ours}.mlp_up", f"{theirs}.{mlp}.DenseReluDense.wi_1"),
        *linear_names(f"{ours}.mlp_out", f"{theirs}.{mlp}.DenseReluDense.wo"),
        *norm_names(f"{ours}.mlp_norm", f"{theirs}.{mlp}.layer_norm"),
        *norm_names(f"{side}.final_norm", f"{side}.final_layer_norm"),
    )


FAMILY = Family(
    spec=T5,
    model_type="t5",
    architecture="T5ForConditionalGeneration",
    base="T5Model",
    keys={
        "num_layers": "layers",
        "num_decoder_layers": "decoder_layers",
        "d_model": "hidden",
        "num_heads": "heads",
        "relative_attention_num_buckets": "position_buckets",
        "relative_attention_max_distance": "position_distance",
        "layer_norm_epsilon": "rms_norm_eps",
        "initializer_factor": "initializer_range",
        "dropout_rate": "dropout",
        "classifier_dropout": "classifier_dropout",
        "vocab_size": "vocab_size",
        "pad_token_id": "pad_token_id",
        "decoder_start_token_id": "decoder_start",
    },
    defaults={
        "d_ff": 2048,
        "relative_attention_num_buckets": 32,
        "relative_attention_max_distance": 128,
        "layer_norm_epsilon": 1e-6,
        "initializer_factor": 1.0,
        "dropout_rate": 0.1,
        "classifier_dropout": 0.0,
        "pad_token_id": 0,
        "decoder_start_token_id": 0,
    },
    fixed={"is_encoder_decoder": (True,), "is_decoder": (False,)},
    parts=(
        mlp_width("d_ff"),
        Part(("d_kv",), _read_width, _write_width),
        Part(("feed_forward_proj", "dense_act_fn", "is_gated_act"), _read_mlp, _write_mlp),
        Part(
            ("tie_word_embeddings", "scale_decoder_outputs"),
            lambda config: {"tied": _tied(config)},
            lambda values: {"tie_word_embeddings": values["tied"]},
        ),
        # the length of the first T5's training: distances have no end
        Part(("n_positions",), lambda config: {}, lambda values: {}),
    ),
    names=(
        TensorName("token_embedding", "shared.weight"),
        *_stack_names("encoder", mlp=1),
        *_attention_names("blocks.decoder.cross", "decoder.block.{layer}.layer.1.EncDecAttention"),
        *norm_names("blocks.decoder.cross_norm", "decoder.block.{layer}.layer.1.layer_norm"),
        *_stack_names("decoder", mlp=2),
        TensorName("output", "lm_head.weight"),
    ),
    heads={
        "sequence": HeadTable(
            "T5ForSequenceClassification",
            (
                *linear_names("classifier.dense", "classification_head.dense", bias=True),
                *linear_names("classifier.output", "classification_head.out_proj", bias=True),
            ),
            prefix="transformer.",
        )
    },
    prefix="",
    tied=_tied,
    # copies of the embedding, and biases of the first checkpoints that nothing uses
    ignored=r"(transformer\.)?((encoder|decoder)\.embed_tokens|"
    r"decoder\.block\.0\.layer\.1\.EncDecAttention\.relative_attention_bias)\.weight",
)
