"""config.json ↔ the spec of a family. What a checkpoint asks for and is not to be had is refused by name.

A family is a table (`families/*.py`): which keys are ours by another name, what their library takes where a key is
absent, which values alone are possible, and parts for what is not one key to one. A key that no part of the table knows
is refused too, since it may change what is computed; `HARMLESS` are those that do not. Noise in training, such as
dropout, is not applied here: `untrained` lists what a config asks for, and an export writes it as 0.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from trainkit.data.json_files import read_object
from trainkit.errors import TrainkitError
from trainkit.hub.names import Name
from trainkit.recipe.families.pretrained import Pretrained
from trainkit.recipe.spec import with_tuples

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
    max_length min_length do_sample early_stopping num_beams num_beam_groups diversity_penalty temperature top_k top_p
    typical_p repetition_penalty length_penalty no_repeat_ngram_size encoder_no_repeat_ngram_size bad_words_ids
    num_return_sequences chunk_size_feed_forward output_scores forced_bos_token_id forced_eos_token_id
    remove_invalid_values exponential_decay_length_penalty suppress_tokens begin_suppress_tokens is_decoder
    pretraining_tp attn_implementation _attn_implementation _attn_implementation_autoset cache_implementation
    unsloth_version unsloth_fixed n_ctx init_device init_config attn_impl verbose tokenizer_name
    is_llama_config transformers.js_config
    """.split()  # noqa: SIM905
)
#: Keys that act in the training of some families and that the libraries of all others pass over: a family that acts on
#: one has it in its table.
OF_OTHERS = frozenset(
    """
    attention_dropout attn_pdrop embd_pdrop resid_pdrop emb_pdrop hidden_dropout router_jitter_noise
    output_router_logits initializer_range pad_token_id
    """.split()  # noqa: SIM905
)
#: Keys that say nothing where they are false.
OFF = frozenset({"is_encoder_decoder", "tie_encoder_decoder", "add_cross_attention", "use_mrope", "rope_interleaved"})
#: Keys that ask for what is never done, and why. A family may have said of a value what it comes to.
NEVER = {
    "auto_map": "it brings code of its own (trust_remote_code), which is never run",
    "quantization_config": "its weights are quantised",
}


@dataclass(frozen=True)
class Part:
    """Keys of a config that belong together: what they say, and how it is written."""

    keys: tuple[str, ...]
    read: Callable[[Config], dict[str, Any]]
    """Values of the spec. Raises `Unsupported`."""
    write: Callable[[dict[str, Any]], Config]


@dataclass(frozen=True, kw_only=True)
class Family:
    """A family's checkpoints."""

    spec: type[Pretrained]
    model_type: str
    architecture: str
    keys: Mapping[str, str]
    """Theirs → ours."""
    defaults: Mapping[str, Any] = field(default_factory=dict)
    """By their keys, what their library takes where config.json says nothing."""
    fixed: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    """By their keys, the values that can be had, the first of which is written; absent, a key has one of them."""
    parts: tuple[Part, ...] = ()
    names: tuple[Name, ...] = ()
    base: str = ""
    """The class of the model without its head, which `AutoModel` saves; where not given, `architecture` says it."""
    noise: Mapping[str, float] = field(default_factory=dict)
    """By their keys, the noise that their library adds in training and trainkit does not, such as dropout, and how much
    the library adds where config.json does not say. A key may be in a table: `table.key`."""
    prefix: str = "model."
    """Of their names; a checkpoint may leave it out."""
    ignored: str = r"(?!)"
    """A pattern of tensors in older checkpoints that are no parameters."""

    @property
    def type(self) -> str:
        return self.spec.model_fields["type"].default


class Unsupported(Exception):
    """A key of a config, and why its value cannot be had."""

    def __init__(self, key: str, value: Any, why: str = "") -> None:
        super().__init__(f"{key} = {json.dumps(value)}" + (f": {why}" if why else ""))


def read_config(directory: Path) -> Config:
    """The config.json of a checkpoint's directory. Raises TrainkitError."""
    return read_object(
        directory / "config.json",
        hint="a checkpoint is a directory with config.json and model.safetensors, as transformers saves it",
    )


def family_of(config: Config, *, where: str) -> Family:
    """Raises TrainkitError where the architecture is none of ours; names those that are."""
    from trainkit.hub.families import FAMILIES

    said = _architectures(config, where)
    for family in FAMILIES:
        if config.get("model_type") == family.model_type:
            _check_architecture(said, family, where)
            return family
    found = ", ".join(said) or "not said"
    supported = ", ".join(f"{family.model_type} ({family.architecture})" for family in FAMILIES)
    raise TrainkitError(
        f"model_type = {json.dumps(config.get('model_type'))} (architecture {found}) is not supported",
        where=where,
        hint=f"supported: {supported}",
    )


def spec_values(config: Config, family: Family, *, where: str) -> dict[str, Any]:
    """The keys of `[model]` that a config.json says, `type` and `vocab_size` among them.

    Raises:
        TrainkitError: it asks for what is not to be had, or has keys that are not known; names all of them.
    """
    wrong = [
        f"{key} = {json.dumps(config[key])}: {why}"
        for key, why in NEVER.items()
        if config.get(key) is not None and key not in family.fixed
    ]
    for key, possible in family.fixed.items():
        if key in config and config[key] not in possible:
            can = " or ".join(map(json.dumps, possible))
            wrong.append(f"{key} = {json.dumps(config[key])}: only {can} can be had")
    known = known_keys(family)
    wrong += [
        f"{key} = {json.dumps(value)}: not known, and it may change what is computed"
        for key, value in config.items()
        if not (key in known or means_nothing(key, value))
    ]
    said = {**family.defaults, **config}
    values: dict[str, Any] = {"type": family.type}
    for theirs, ours in family.keys.items():
        values[ours] = said.get(theirs)
        if values[ours] is None and (problem := _without(theirs, ours, said, family)):
            wrong.append(problem)
    for part in family.parts:
        try:
            values |= part.read(said)
        except Unsupported as error:
            wrong.append(str(error))
    if wrong:
        raise TrainkitError(
            "the checkpoint asks for what cannot be had:\n" + "\n".join(f"  {line}" for line in wrong),
            where=where,
            hint="take another checkpoint; a key that means nothing for the logits may be taken out of its config.json",
        )
    return {key: value for key, value in values.items() if value is not None}


def known_keys(family: Family) -> set[str]:
    """The keys that the table of a family has: each is read, refused, or listed by `untrained`."""
    return {*NEVER, *family.keys, *family.fixed, *family.noise, *(key for part in family.parts for key in part.keys)}


def untrained(config: Config, family: Family) -> list[str]:
    """The noise that the library of a family would add in training, each as `key = value`; trainkit adds none."""

    def value(key: str) -> Any:
        *tables, last = key.split(".")
        found: Any = config
        for name in tables:
            found = found.get(name) or {}
        return found.get(last, family.noise[key])

    return [f"{key} = {json.dumps(value(key))}" for key in family.noise if value(key)]


def spec_of(config: Config, family: Family, *, where: str) -> Pretrained:
    """The spec of the model that a config.json speaks of. Raises TrainkitError as `spec_values`, or if it is none."""
    values = spec_values(config, family, where=where)
    try:
        return family.spec.model_validate(with_tuples(values))
    except ValidationError as error:
        lines = [f"  {'.'.join(map(str, found['loc'])) or family.type}: {found['msg']}" for found in error.errors()]
        raise TrainkitError("what the checkpoint says is no model:\n" + "\n".join(lines), where=where) from error


def _without(theirs: str, ours: str, said: Config, family: Family) -> str | None:
    """What is wrong about a key that is null or missing, if anything is."""
    field = family.spec.model_fields[ours]
    # of the model of a checkpoint these two are known, whatever a recipe may leave open
    if field.is_required() or ours in ("vocab_size", "context_length"):
        return f"{theirs} is missing"
    return f"{theirs} = null: it must say something" if theirs in said and field.default is not None else None


def whole(config: Config, key: str, usual: int, *, least: int = 1) -> int:
    """A whole number that a config says, `usual` where it does not. Raises `Unsupported` where it is none."""
    value = config.get(key)
    if value is None:
        return usual
    if type(value) is not int or value < least:
        raise Unsupported(key, value, f"it must be a whole number of at least {least}")
    return value


def table(config: Config, key: str) -> dict[str, Any]:
    """An object in a config, empty where it is absent or null. Raises `Unsupported` where it is none."""
    value = config.get(key)
    if value is not None and not isinstance(value, dict):
        raise Unsupported(key, value, "it must be an object")
    return value or {}


def layer_types(config: Config) -> list[str] | None:
    """What a config says of each layer, None where it says nothing. Raises `Unsupported` where it is no such list."""
    said = config.get("layer_types")
    if said is None:
        return None
    if not isinstance(said, list) or len(said) != config.get("num_hidden_layers"):
        raise Unsupported("layer_types", said, "it must have an entry for each of num_hidden_layers")
    return said


def means_nothing(key: str, value: Any) -> bool:
    """Whether a key that no table has says nothing of how logits are computed."""
    # by convention null is what has been switched off
    return value is None or key in HARMLESS or key in OF_OTHERS or (key in OFF and value is False)


def config_of(model: Pretrained, *, vocab_size: int, sequence_length: int, dtype: str) -> Config:
    """The config.json of a model: what transformers needs to build the same. `dtype` is that of its weights.

    Raises TrainkitError as `check_loads`.
    """
    check_loads(model)
    family = family_of_spec(model)
    values = {**model.model_dump(), "vocab_size": vocab_size}
    values["context_length"] = values["context_length"] or sequence_length
    config: Config = {"architectures": [family.architecture], "model_type": family.model_type, "torch_dtype": dtype}
    config |= {theirs: values[ours] for theirs, ours in family.keys.items()}
    config |= {theirs: possible[0] for theirs, possible in family.fixed.items()}
    # what was trained; absent, some libraries take 0.1
    config |= {key: 0.0 for key in family.noise if "." not in key}
    for part in family.parts:
        config |= part.write(values)
    # their libraries do not all take null for what is not given
    return {key: value for key, value in config.items() if value is not None or key in _WRITTEN_NULL}


#: Absent, these would be what the library has for a default.
_WRITTEN_NULL = ("sliding_window", "attn_logit_softcapping", "final_logit_softcapping", "n_inner", "pad_token_id")


def check_loads(model: Pretrained) -> None:
    """Raises TrainkitError where transformers loads no such model."""
    if model.not_in_transformers:
        raise TrainkitError(
            f"transformers loads no such model: {model.not_in_transformers}",
            where="model",
            hint="it can be used with trainkit, and not exported",
        )


def family_of_spec(model: Pretrained) -> Family:
    from trainkit.hub.families import FAMILIES

    return next(family for family in FAMILIES if isinstance(model, family.spec))


def _architectures(config: Config, where: str) -> list[str]:
    said = config.get("architectures") or []
    if not (isinstance(said, list) and all(isinstance(name, str) for name in said)):
        raise TrainkitError(f"architectures = {json.dumps(said)} are no names", where=where)
    return said


def _check_architecture(said: list[str], family: Family, where: str) -> None:
    base = family.base or family.architecture.removesuffix("ForCausalLM").removesuffix("LMHeadModel") + "Model"
    # MPT's own files write it in capitals
    known = {family.architecture.lower(), base.lower()}
    if said and not known & {name.lower() for name in said}:
        raise TrainkitError(
            f"its architecture is {', '.join(said)}, of which only {family.architecture} is supported",
            where=where,
            hint="a head for something else than the next token cannot be read",
        )
