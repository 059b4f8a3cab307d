"""The Hugging Face table of a family: the keys of its config.json and the names of its tensors.

A table maps keys to ours, gives the defaults of transformers for absent keys and the only supported values of others,
and has parts for keys that do not map one to one. `hub/config.py` uses it to read and write config.json,
`hub/source.py` and `hub/save.py` use it for the tensors. Nothing here opens a file.

A leaf of the blocks holds all layers, and a leaf of experts all experts: it is stacked from one tensor for each. torch
keeps matrices (out, in), trainkit keeps them (in, out). Nothing else differs.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Any

from trainkit.recipe.families.model import HeadKind
from trainkit.recipe.families.sizes import Shape
from trainkit.recipe.families.transformer import Transformer

Config = dict[str, Any]

#: Keys that change neither logits nor training: names, how results are given back, generation (which is read from
#: generation_config.json), begin and end tokens (which are read with the tokenizer), and heads that a language model
#: does not have. A test holds each that transformers knows to this.
HARMLESS = frozenset(
    """
    architectures model_type torch_dtype dtype transformers_version _name_or_path use_cache bos_token_id eos_token_id
    sep_token_id decoder_start_token_id unk_token_id initializer_factor gradient_checkpointing
    output_attentions output_hidden_states return_dict return_dict_in_generate torchscript
    use_bfloat16 tf_legacy_loss problem_type id2label label2id num_labels finetuning_task task_specific_params prefix
    tokenizer_class summary_type summary_use_proj summary_activation summary_first_dropout summary_proj_to_labels
    classifier_dropout
    max_length min_length do_sample early_stopping num_beams num_beam_groups diversity_penalty temperature top_k top_p
    typical_p repetition_penalty length_penalty no_repeat_ngram_size encoder_no_repeat_ngram_size bad_words_ids
    num_return_sequences chunk_size_feed_forward output_scores forced_bos_token_id forced_eos_token_id
    remove_invalid_values exponential_decay_length_penalty suppress_tokens begin_suppress_tokens is_decoder
    pretraining_tp attn_implementation _attn_implementation _attn_implementation_autoset cache_implementation
    unsloth_version unsloth_fixed n_ctx init_device init_config attn_impl verbose tokenizer_name
    is_llama_config transformers.js_config output_past
    directionality pooler_fc_size pooler_num_attention_heads pooler_num_fc_layers pooler_size_per_head pooler_type
    sparse_pred_ignore_index deterministic_flash_attn reference_compile repad_logits_with_grad
    initializer_cutoff_factor cls_token_id force_bos_token_to_be_generated save_step _num_labels replacing_rate
    """.split()  # noqa: SIM905
)
#: Keys that some families use in training and transformers ignores for all others: a family that uses one has it in
#: its table.
OF_OTHERS = frozenset(
    """
    attention_dropout attn_pdrop embd_pdrop resid_pdrop emb_pdrop hidden_dropout router_jitter_noise
    output_router_logits initializer_range pad_token_id
    """.split()  # noqa: SIM905
)
#: Keys that have no effect if they are false.
OFF = frozenset({"is_encoder_decoder", "tie_encoder_decoder", "add_cross_attention", "use_mrope", "rope_interleaved"})


@dataclass(frozen=True)
class TensorName:
    """Our name of a leaf and the name of its tensors, which may hold {layer} and {expert}: leading axes of the leaf."""

    ours: str
    theirs: str
    transposed: bool = False
    optional: bool = False
    """Whether a checkpoint may lack it; it is then 0."""
    first: int = 0
    """The number of the first layer that has one."""

    @property
    def stacked(self) -> int:
        """Return how many leading axes of the leaf number its tensors."""
        return ("{layer}" in self.theirs) + ("{expert}" in self.theirs)

    def places(self, shape: Shape) -> Iterator[tuple[tuple[int, ...], str]]:
        """Yield (index into the leaf's leading axes, name of the tensor) for a leaf of this shape."""
        for index in product(*map(range, shape[: self.stacked])):
            yield index, self.at(index)

    def at(self, index: tuple[int, ...]) -> str:
        """Return the name of the tensor for an index into the leading axes."""
        counted = dict(zip(("layer", "expert"), index, strict=False))
        if self.first:
            counted["layer"] += self.first
        return self.theirs.format(**counted)

    def tensor_shape(self, shape: Shape) -> Shape:
        """Return the shape of one tensor of a leaf of this shape."""
        own = shape[self.stacked :]
        return own[::-1] if self.transposed else own


def linear_names(ours: str, theirs: str, *, transposed: bool = True, bias: bool = False) -> tuple[TensorName, ...]:
    """Return the names of a linear layer's tensors: its weight and, where it has one, its bias."""
    names = (TensorName(f"{ours}.weight", f"{theirs}.weight", transposed),)
    return (*names, TensorName(f"{ours}.bias", f"{theirs}.bias")) if bias else names


def norm_names(ours: str, theirs: str, *, bias: bool = False) -> tuple[TensorName, ...]:
    """Return the names of a norm's tensors."""
    return linear_names(ours, theirs, transposed=False, bias=bias)


@dataclass(frozen=True)
class Part:
    """Keys of a config.json that belong together, and how they are read and written."""

    keys: tuple[str, ...]
    read: Callable[[Config], dict[str, Any]]
    """Return values of the spec. Raises `Unsupported`."""
    write: Callable[[dict[str, Any]], Config]


def mlp_width(key: str) -> Part:
    """Return the part of an encoder's width inside the MLP. Where a config lacks it, transformers takes a number that
    does not follow from the hidden width, so it is always written."""
    return Part(
        (key,),
        lambda config: {"intermediate": config[key]},
        lambda values: {key: values["intermediate"] or 4 * values["hidden"]},
    )


@dataclass(frozen=True)
class HeadTable:
    """A head with classes, as checkpoints have it."""

    architecture: str
    names: tuple[TensorName, ...]
    """Of its layers, which are `classifier.dense` and `classifier.output`."""
    prefix: str = ""
    """The prefix of the names of all other tensors; a checkpoint without this head does not have it."""


def scoring_heads(architecture: str) -> dict[HeadKind, HeadTable]:
    """Return the heads of a decoder: a matrix without bias for the last token that is no padding."""
    return {"sequence": HeadTable(architecture, linear_names("classifier.output", "score"))}


@dataclass(frozen=True, kw_only=True)
class Family:
    """A family: its spec and its Hugging Face table."""

    spec: type[Transformer]
    model_type: str
    architecture: str
    keys: Mapping[str, str]
    """Theirs → ours."""
    defaults: Mapping[str, Any] = field(default_factory=dict)
    """What transformers takes for keys that config.json lacks."""
    fixed: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    """The supported values of keys. An export writes the first; an absent key has one of them."""
    parts: tuple[Part, ...] = ()
    names: tuple[TensorName, ...] = ()
    """Of the model with the head that predicts tokens."""
    heads: Mapping[HeadKind, HeadTable] = field(default_factory=dict)
    """Those with classes."""
    base: str = ""
    """The class of the model without its head, which `AutoModel` saves; empty where it follows from `architecture`."""
    noise: Mapping[str, float] = field(default_factory=dict)
    """Keys of noise that transformers adds in training and trainkit does not, each with how much transformers adds if
    config.json lacks the key. A key may be in a table: `table.key`."""
    prefix: str = "model."
    """Prefix of tensor names; a checkpoint may lack it."""
    tied: Callable[[Config], bool] | None = None
    """Return whether a config.json says that the output matrix is the embedding, where not by `tie_word_embeddings`."""
    aliases: Mapping[str, str] = field(default_factory=dict)
    """Other beginnings of tensor names, which checkpoints may have in place of those here."""
    ignored: str = r"(?!)"
    """A pattern of names of tensors that are not parameters, in older checkpoints."""
    notes: Callable[[Any, Config], list[str]] = lambda model, config: []
    """Return what a person should know before training `model`, a spec of this family, from a checkpoint with this
    config.json, which has the defaults for absent keys."""

    def names_of(self, head: HeadKind) -> dict[str, TensorName]:
        """Return the names of the tensors by leaf, of a model with such a head."""
        table = self.heads.get(head, HeadTable("", ()))
        names = (replace(name, theirs=table.prefix + name.theirs) for name in self.names)
        return {name.ours: name for name in (*names, *table.names)}

    def prefix_of(self, head: HeadKind) -> str:
        """Return what names of tensors begin with, which a checkpoint may lack."""
        return (self.heads[head].prefix if head in self.heads else "") + self.prefix

    def is_tied(self, config: Config) -> bool:
        """Return whether the output matrix of the checkpoint with this config.json is the embedding."""
        if self.tied is not None:
            return self.tied(config)
        return bool(config.get("tie_word_embeddings", self.defaults.get("tie_word_embeddings")))

    def architecture_of(self, head: HeadKind) -> str:
        """Return the class of a model with such a head."""
        return self.heads[head].architecture if head in self.heads else self.architecture

    @property
    def base_architecture(self) -> str:
        """The class of the model without a head."""
        return self.base or self.architecture.removesuffix("ForCausalLM").removesuffix("LMHeadModel") + "Model"

    @property
    def type(self) -> str:
        """Its `type` in `[model]`."""
        return self.spec.model_fields["type"].default


class Unsupported(Exception):
    """A key of a config, and why its value is not supported."""

    def __init__(self, key: str, value: Any, why: str = "") -> None:
        super().__init__(f"{key} = {json.dumps(value)}" + (f": {why}" if why else ""))


def whole(config: Config, key: str, usual: int, *, least: int = 1) -> int:
    """Return a whole number of a config.json, `usual` if it is absent. Raises `Unsupported` if it is something else."""
    value = config.get(key)
    if value is None:
        return usual
    if type(value) is not int or value < least:
        raise Unsupported(key, value, f"it must be a whole number of at least {least}")
    return value


def table(config: Config, key: str) -> dict[str, Any]:
    """Return an object of a config.json, empty if absent or null. Raises `Unsupported` if it is something else."""
    value = config.get(key)
    if value is not None and not isinstance(value, dict):
        raise Unsupported(key, value, "it must be an object")
    return value or {}


def layer_types(config: Config) -> list[str] | None:
    """Return `layer_types` of a config.json, None if absent. Raises `Unsupported` if it does not fit the layers."""
    said = config.get("layer_types")
    if said is None:
        return None
    if not isinstance(said, list) or len(said) != config.get("num_hidden_layers"):
        raise Unsupported("layer_types", said, "it must have an entry for each of num_hidden_layers")
    return said


def means_nothing(key: str, value: Any) -> bool:
    """Return whether a key that is in no table has no effect on the logits."""
    # by convention null means switched off
    return value is None or key in HARMLESS or key in OF_OTHERS or (key in OFF and value is False)
