"""ModernBERT (Warner et al. 2024), with the head that predicts masked tokens."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from pydantic import model_validator

from trainkit.recipe.families import decoder_checkpoints
from trainkit.recipe.families.encoder import TextEncoder
from trainkit.recipe.families.hugging_face import (
    Config,
    Family,
    HeadTable,
    Part,
    TensorName,
    Unsupported,
    layer_types,
    linear_names,
    mlp_width,
    norm_names,
    table,
    whole,
)
from trainkit.recipe.families.model import HeadKind, HeadLayers
from trainkit.recipe.families.rope import Rope
from trainkit.recipe.families.sizes import Remat, Shape, kept_numbers, linear, norm, stack, visible
from trainkit.recipe.spec import Count, NormEps, Rate, Theta


class ModernBert(TextEncoder):
    """ModernBERT (Warner et al. 2024): rotary positions, norms before sublayers, gated GELU, windows in most layers, no
    biases."""

    type: Literal["modernbert"] = "modernbert"
    window: Count = 128
    """Width of the window of a local layer: half of it back and half of it ahead."""
    global_every: Count = 3
    """Every how many layers, from the first on, a layer sees all positions."""
    rope_theta: Theta = 160_000.0
    """Base of the wave lengths of layers that see all positions."""
    local_theta: Theta = 10_000.0
    """Base of the wave lengths of local layers."""
    norm_eps: NormEps = 1e-5
    """Added to the variance in the norms."""
    pooling: Literal["cls", "mean"] = "cls"
    """What predicts the class of a text: the first position, or the mean of all."""
    embedding_dropout: Rate = 0.0
    """Share of the embeddings' numbers that training drops."""
    mlp_dropout: Rate = 0.0
    """Share of the numbers inside the MLP that training drops."""
    classifier_dropout: Rate = 0.0
    """Share of the numbers that training drops before the last layer of a head with classes."""

    implementation: ClassVar[str] = "trainkit.models.modernbert"
    biased: ClassVar[bool] = False
    class_heads: ClassVar[Mapping[HeadKind, HeadLayers]] = {
        "sequence": HeadLayers("first", dense="gelu", dense_bias=False, norm=1e-5),
        "token": HeadLayers("each", dense="gelu", dense_bias=False, norm=1e-5),
        "span": HeadLayers("each", dense="gelu", dense_bias=False, norm=1e-5),
    }
    changeable: ClassVar[frozenset[str]] = TextEncoder.changeable | {"pooling", "mlp_dropout"}

    @model_validator(mode="after")
    def _several_layers(self) -> ModernBert:
        if self.layers < 2:
            raise ValueError("layers = 1: ModernBERT has at least 2, since its first has no norm before attention")
        if self.key_width % 2:
            made = f"hidden = {self.hidden} over heads = {self.heads} makes heads of {self.key_width}"
            raise ValueError(f"{made}: rotary positions need an even width")
        return self

    @property
    def norm_epsilon(self) -> float:
        return self.norm_eps

    @property
    def embedding_rate(self) -> float:
        return self.embedding_dropout

    @property
    def own_kernel_attention(self) -> str | None:
        return "windows in both directions" if any(self.windows) else None

    @property
    def windows(self) -> tuple[int | None, ...]:
        """Return how many positions each layer sees in either direction, its own included; None for all."""
        half = self.window // 2 + 1
        return tuple(None if layer % self.global_every == 0 else half for layer in range(self.layers))

    @property
    def ropes(self) -> tuple[Rope, ...]:
        """Return the rotary positions of each layer."""
        return tuple(Rope(self.rope_theta if window is None else self.local_theta, None) for window in self.windows)

    def head_dropout(self, kind: HeadKind) -> float:
        return self.classifier_dropout

    def head_layers(self, kind: HeadKind) -> HeadLayers:
        layers = super().head_layers(kind)._replace(norm=self.norm_eps)
        return layers._replace(at="mean") if kind == "sequence" and self.pooling == "mean" else layers

    def leaf_shapes(self, *, vocab_size: int, sequence_length: int) -> dict[str, Shape]:
        d, f = self.hidden, self.mlp_width
        block = {
            **linear("attention.qkv", d, 3 * d),
            **linear("attention.output", d, d),
            **norm("mlp_norm", d),
            **linear("mlp_in", d, 2 * f),
            **linear("mlp_out", f, d),
        }
        norms: dict[str, Shape] = {"attention_norm.weight": (self.layers - 1, d), **norm("final_norm", d)}
        outer = self.outer_shapes(vocab_size=vocab_size, sequence_length=sequence_length)
        return outer | norms | stack(self.layers, block)

    def matmul_parameters(self, *, vocab_size: int) -> int:
        # the gate is a third matrix of the MLP
        gates = self.layers * self.hidden * self.mlp_width
        return super().matmul_parameters(vocab_size=vocab_size) + gates

    def attention_flops_per_token(self, *, sequence_length: int) -> int:
        # two products of 2 x hidden FLOPs with each position that is seen: itself, those before it and those after it
        before = (visible(sequence_length=sequence_length, window=window) for window in self.windows)
        seen = sum(2 * pairs - sequence_length for pairs in before)
        return 2 * 2 * self.hidden * seen // sequence_length

    def activation_floats_per_token(
        self, *, sequence_length: int, remat: Remat | Literal["auto"], flash: bool = False
    ) -> int:
        d, f = self.hidden, self.mlp_width
        probabilities = self.heads * sequence_length * (3 if self.attention_dropout else 1)
        # as in other blocks with a GELU; then the gate, and its product with the output of the GELU
        everything = 9 * d + 4 * f + probabilities
        return kept_numbers(layers=self.layers, hidden=d, everything=everything, dots=6 * d + 2 * f, remat=remat)


def _read_layers(config: Config) -> dict[str, Any]:
    every, layers = whole(config, "global_attn_every_n_layers", 3), whole(config, "num_hidden_layers", 22)
    kinds = layer_types(config)
    if kinds is None:
        return {"global_every": every}
    repeats = [n for n, kind in enumerate(kinds) if n and kind == "full_attention"]
    every = repeats[0] if repeats else layers
    if kinds != ["sliding_attention" if n % every else "full_attention" for n in range(layers)]:
        raise Unsupported("layer_types", kinds, "layers that see all positions must come at equal distances from 0 on")
    return {"global_every": every}


def _write_layers(values: dict[str, Any]) -> Config:
    every, layers = values["global_every"], range(values["layers"])
    kinds = ["sliding_attention" if n % every else "full_attention" for n in layers]
    return {"global_attn_every_n_layers": every, "layer_types": kinds}


def _read_ropes(config: Config) -> dict[str, Any]:
    both = table(config, "rope_parameters")
    found = {}
    for ours, kind, old in (
        ("rope_theta", "full_attention", "global_rope_theta"),
        ("local_theta", "sliding_attention", "local_rope_theta"),
    ):
        said = {
            "rope_theta": config[old],
            "rope_parameters": both.get(kind),
            "rope_scaling": config.get("rope_scaling"),
        }
        rope = decoder_checkpoints.read_rope(said)
        if rope["rope_scaling"] is not None:
            raise Unsupported(f"rope_parameters.{kind}", both.get(kind), "only default is supported")
        found[ours] = rope["rope_theta"]
    if unknown := sorted(both.keys() - {"full_attention", "sliding_attention"}):
        raise Unsupported(f"rope_parameters.{unknown[0]}", both[unknown[0]], "not a kind of layers")
    return found


def _write_ropes(values: dict[str, Any]) -> Config:
    return {"global_rope_theta": values["rope_theta"], "local_rope_theta": values["local_theta"]}


def _head(architecture: str) -> HeadTable:
    return HeadTable(
        architecture,
        (
            *linear_names("classifier.dense", "head.dense"),
            *norm_names("classifier.norm", "head.norm"),
            *linear_names("classifier.output", "classifier", bias=True),
        ),
    )


_LAYER = "model.layers.{layer}"

FAMILY = Family(
    spec=ModernBert,
    model_type="modernbert",
    architecture="ModernBertForMaskedLM",
    base="ModernBertModel",
    keys={
        "num_hidden_layers": "layers",
        "hidden_size": "hidden",
        "num_attention_heads": "heads",
        "max_position_embeddings": "context_length",
        "local_attention": "window",
        "norm_eps": "norm_eps",
        "classifier_pooling": "pooling",
        "vocab_size": "vocab_size",
        "initializer_range": "initializer_range",
        "pad_token_id": "pad_token_id",
        "attention_dropout": "attention_dropout",
        "embedding_dropout": "embedding_dropout",
        "mlp_dropout": "mlp_dropout",
        "classifier_dropout": "classifier_dropout",
    },
    defaults={
        "max_position_embeddings": 8192,
        "local_attention": 128,
        "global_rope_theta": 160_000.0,
        "local_rope_theta": 10_000.0,
        "norm_eps": 1e-5,
        "classifier_pooling": "cls",
        "intermediate_size": 1152,
        "attention_dropout": 0.0,
        "embedding_dropout": 0.0,
        "mlp_dropout": 0.0,
        "classifier_dropout": 0.0,
    },
    fixed={
        "hidden_activation": ("gelu",),
        "classifier_activation": ("gelu",),
        "tie_word_embeddings": (True,),
        "norm_bias": (False,),
        "attention_bias": (False,),
        "mlp_bias": (False,),
        "classifier_bias": (False,),
        "decoder_bias": (True,),
        "sparse_prediction": (False, True),  # the same loss
        # in published configs, and read by nothing
        "position_embedding_type": ("absolute",),
        "layer_norm_eps": (1e-5,),
    },
    parts=(
        mlp_width("intermediate_size"),
        Part(("layer_types", "global_attn_every_n_layers"), _read_layers, _write_layers),
        Part(("rope_parameters", "rope_scaling", "global_rope_theta", "local_rope_theta"), _read_ropes, _write_ropes),
    ),
    names=(
        TensorName("token_embedding", "model.embeddings.tok_embeddings.weight"),
        *norm_names("embedding_norm", "model.embeddings.norm"),
        *linear_names("blocks.attention.qkv", f"{_LAYER}.attn.Wqkv"),
        *linear_names("blocks.attention.output", f"{_LAYER}.attn.Wo"),
        TensorName("attention_norm.weight", f"{_LAYER}.attn_norm.weight", first=1),
        *norm_names("blocks.mlp_norm", f"{_LAYER}.mlp_norm"),
        *linear_names("blocks.mlp_in", f"{_LAYER}.mlp.Wi"),
        *linear_names("blocks.mlp_out", f"{_LAYER}.mlp.Wo"),
        *norm_names("final_norm", "model.final_norm"),
        *linear_names("head", "head.dense"),
        *norm_names("head_norm", "head.norm"),
        TensorName("output", "decoder.weight"),
        TensorName("output_bias", "decoder.bias"),
    ),
    heads={
        "sequence": _head("ModernBertForSequenceClassification"),
        "token": _head("ModernBertForTokenClassification"),
        "span": _head("ModernBertForQuestionAnswering"),
    },
)
