"""What a person probably meant: keys by the names of other trainers, misspelt keys and values, values in words."""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass
from typing import Any

from trainkit.recipe import Recipe
from trainkit.recipe.toml.positions import Key, dotted_key
from trainkit.recipe.toml.schema import Node, branches, has_list, leaves, table
from trainkit.recipe.toml.values import toml_value
from trainkit.text import shorten


@dataclass(frozen=True)
class Foreign:
    """Our dotted `key`, empty if there is none, and a `note` on what differs."""

    key: str = ""
    note: str = ""


_SAME = {
    "model.dropout": "dropout hidden_dropout_prob hidden_dropout resid_pdrop",
    "model.attention_dropout": "attention_dropout attention_probs_dropout_prob attn_pdrop",
    "model.embedding_dropout": "embd_pdrop",
    "adapter.dropout": "lora_dropout",
    "optimizer.learning_rate": "lr max_lr peak_lr base_lr learning_rate",
    "optimizer.betas": "adam_betas",
    "optimizer.eps": "adam_epsilon adam_eps epsilon",
    "optimizer.weight_decay": "weight_decay decay wd",
    "optimizer.type": "optim optimizer_type optimizer_name",
    "schedule.type": "lr_scheduler_type lr_scheduler lr_schedule scheduler_type scheduler",
    "schedule.warmup": "warmup_steps num_warmup_steps warmup_iters lr_warmup_steps warmup_ratio warmup_fraction",
    "train.steps": "num_train_steps max_steps max_iters num_steps total_steps n_steps max_train_steps iterations",
    "train.epochs": "num_epochs num_train_epochs max_epochs n_epochs",
    "train.tokens": "max_tokens_total total_tokens num_tokens train_tokens",
    "train.batch_size": "train_batch_size global_batch_size total_batch_size",
    "task.label_smoothing": "label_smoothing_factor label_smoothing",
    "task.embedding_noise": "neftune_noise_alpha neftune_alpha",
    "task.z_loss": "z_loss_weight z_loss_coefficient",
    "task.centring": "center_rewards_coefficient",
    "train.max_grad_norm": "grad_clip gradient_clip_val clip_grad_norm gradient_clipping max_norm",
    "data.sequence_length": "seq_length seq_len block_size max_seq_len max_seq_length sequence_len max_length",
    "model.layers": "n_layer n_layers num_layers num_hidden_layers depth",
    "model.heads": "n_head n_heads num_heads num_attention_heads",
    "model.hidden": "n_embd d_model hidden_size hidden_dim embed_dim dim width",
    "model.intermediate": "intermediate_size d_ff n_inner ffn_dim intermediate_dim mlp_dim",
    "model.context_length": "n_positions max_position_embeddings n_ctx",
    "model.pretrained": "model_name_or_path pretrained_model_name_or_path base_model model_id init_from hf_model",
    "model.revision": "model_revision",
    "model.resize_vocabulary": "resize_token_embeddings resize_vocab",
    "model.tied": "tie_word_embeddings tie_embeddings weight_tying",
    "model.type": "model_type architecture arch",
    "tokenizer.path": "tokenizer_name tokenizer_path tokenizer_name_or_path",
    "tokenizer.train.vocab_size": "vocab_size",
    "tokenizer.new_tokens": "add_tokens added_tokens additional_special_tokens extra_special_tokens",
    "run.seed": "random_seed data_seed",
    "run.name": "run_name name",
    "run.directory": "output_dir out_dir log_dir logging_dir run_dir",
    "data.train.0.text_key": "text_column text_field dataset_text_field content_field",
    "data.cache": "cache_dir dataset_prepared_path",
    "data.held_out": "val_set_size validation_split test_size val_split",
    "evaluate.every": "eval_steps eval_interval eval_every steps_per_eval evaluation_steps val_every",
    "evaluate.max_batches": "eval_iters max_eval_batches",
    "evaluate.batch_size": "eval_batch_size per_device_eval_batch_size",
    "checkpoint.every_minutes": "save_interval_minutes",
    "sample.max_tokens": "max_new_tokens",
    "parallel.fsdp": "fsdp_size fsdp_axis_size",
    "precision.params": "param_dtype params_dtype",
    "precision.compute": "compute_dtype dtype",
    "adapter.pretrained": "adapter_name_or_path lora_model_dir lora_name_or_path adapter_path lora_path",
    "adapter.rank": "lora_r lora_rank r",
    "adapter.alpha": "lora_alpha",
    "adapter.learning_rate_ratio": "loraplus_lr_ratio",
    # whole sections
    "adapter": "lora peft peft_config lora_config",
    "train": "training trainer training_arguments",
    "data": "dataset datasets",
    "optimizer": "optim",
    "evaluate": "eval evaluation evaluator",
    "checkpoint": "checkpointer checkpointing save",
    "track": "tracker logging logger wandb tensorboard aim",
    "parallel": "mesh distributed sharding",
    "sample": "sampling generate generation",
}

_TARGETS = "layers are query, key, value, output, gate, up, down; in GPT-2 and MPT qkv, output, mlp_in, mlp_out"
_DIFFERENT = {
    "per_device_train_batch_size": Foreign(
        "train.batch_size",
        "that one counts sequences of one device in one pass; batch_size is global: per device x devices x accumulation"
        " (train.micro_batch_size is per device and pass)",
    ),
    "gradient_accumulation_steps": Foreign(
        "train.micro_batch_size",
        "accumulation is not a key: it follows from batch_size / (micro_batch_size x devices)",
    ),
    "save_steps": Foreign(
        "checkpoint.keep_every",
        "keep_every keeps all of them; what the run resumes from is saved by the clock: checkpoint.every_minutes",
    ),
    "save_total_limit": Foreign(
        "checkpoint.keep_last", "this many rolling checkpoints are kept; those of checkpoint.keep_every are always kept"
    ),
    "bf16": Foreign("precision.compute", 'write compute = "bfloat16"'),
    "fp16": Foreign("precision.compute", 'write compute = "float16", or "bfloat16", which needs no loss scale'),
    "mixed_precision": Foreign("precision.compute", 'write compute = "bfloat16" or "float32"'),
    "target_modules": Foreign("adapter.targets", _TARGETS),
    "lora_target_modules": Foreign("adapter.targets", _TARGETS),
    "lora_target_linear": Foreign("adapter.targets", 'write targets = "all-linear"'),
    "use_rslora": Foreign("adapter.variant", 'write variant = "rslora"'),
    "use_dora": Foreign("adapter.variant", 'write variant = "dora"'),
    "load_in_4bit": Foreign("adapter.base", 'write base = "nf4"'),
    "load_in_8bit": Foreign("adapter.base", 'a base can be in 4 bit, but not in 8: base = "nf4"'),
    "bnb_4bit_quant_type": Foreign("adapter.base", 'write base = "nf4"; its scales are always quantised twice'),
    "bnb_4bit_use_double_quant": Foreign("adapter.base", 'write base = "nf4"; its scales are always quantised twice'),
    "logging_steps": Foreign("", "every step is logged"),
    "log_interval": Foreign("", "every step is logged"),
    "report_to": Foreign("track.aim", "write aim = true or false; likewise tensorboard and wandb"),
    "min_lr": Foreign("schedule.min_ratio", "min_ratio is a share of the peak: min_lr / learning_rate"),
    "adam_beta1": Foreign("optimizer.betas", "both in one list: betas = [0.9, 0.95]"),
    "adam_beta2": Foreign("optimizer.betas", "both in one list: betas = [0.9, 0.95]"),
    "beta1": Foreign("optimizer.betas", "both in one list: betas = [0.9, 0.95]"),
    "beta2": Foreign("optimizer.betas", "both in one list: betas = [0.9, 0.95]"),
    "resume_from_checkpoint": Foreign("", "resuming is a command: trainkit resume RUN"),
    "num_workers": Foreign("", "batches need no worker processes; trainkit cache-data has --workers"),
    "trust_remote_code": Foreign("", "code that comes with a checkpoint is never run"),
    "train_file": Foreign("data.train", 'write [[data.train]] with path = "…"'),
    "validation_file": Foreign("data.validation", 'write [[data.validation]] with path = "…"'),
    "dataset_name": Foreign("data.train", 'write [[data.train]] with path = "…"'),
}
#: Other trainers' names -> ours. `warmup_steps` and `warmup_ratio` both become `warmup`, which takes an integer for
#: steps and a float for a fraction.
FOREIGN: dict[str, Foreign] = {name: Foreign(key) for key, names in _SAME.items() for name in names.split()}
FOREIGN.update(_DIFFERENT)


def fit(node: Node, value: dict[str, Any], kind: str) -> int:
    """Return how well the keys of a table fit one of its types."""
    found = table(node, {"type": kind}) or {"properties": {}}
    missing = set(found.get("required", [])) - value.keys()
    return len(found["properties"].keys() & value.keys()) - 2 * len(missing)


def suggest(name: str, section: Key, known: list[str], language: type[Recipe] = Recipe) -> tuple[str, Key | None]:
    """Return (what to write instead, the key that is certainly meant) for an unknown key of a section."""
    close = difflib.get_close_matches(name, known, n=1)
    foreign = FOREIGN.get(name)
    if foreign and close and foreign.key.endswith(f".{name}"):  # a group has learning_rate_factor instead
        foreign = None
    if foreign and foreign.key != dotted_key((*section, name)):
        target: Key = tuple(foreign.key.split("."))
        called = f"it is called {foreign.key} here" if foreign.key else ""
        if foreign.key and target[:-1] == section:
            called = f"it is called {target[-1]} here"
        hint = "; ".join(part for part in (called, foreign.note) if part)
        return hint, target if foreign.key and not foreign.note else None
    keys = list(leaves(language))
    elsewhere = [path for path in keys if path[-1] == name and path[:-1] != section and name != "type"]
    if len(elsewhere) == 1 or (elsewhere and not close):
        return f"did you mean {' or '.join(map(dotted_key, elsewhere))}?", elsewhere[0] if len(elsewhere) == 1 else None
    if close:
        return f"did you mean {close[0]}?", (*section, close[0])
    names = {str(path[-1]): path for path in keys}
    far = difflib.get_close_matches(name, names, n=1, cutoff=0.8)
    return (f"did you mean {dotted_key(names[far[0]])}?", None) if far else ("", None)


def correction(key: Key, value: Any, node: Node, allowed: list[Any]) -> str:
    """Return how to write what was probably meant by a value; empty if that is unclear."""
    name = key[-1]
    if isinstance(value, str):
        words = [choice for choice in allowed if isinstance(choice, str)]
        if close := difflib.get_close_matches(value, words, n=1, cutoff=0.5):
            return f"did you mean {toml_value(close[0])}?"
        if value.lower() in ("true", "false", "yes", "no", "on", "off") and "boolean" in _kinds(node):
            return f"write {name} = {'true' if value.lower() in ('true', 'yes', 'on') else 'false'}"
        if _is_number(value) and _kinds(node) & {"integer", "number"}:
            return f"write the number without quotes: {name} = {value}"
        if has_list(node):
            return f"write a list: {name} = [{short(value)}]"
    if isinstance(value, float) and value.is_integer() and "integer" in _kinds(node):
        return f"write it without a point or exponent: {name} = {int(value)}"
    if isinstance(value, int | float) and _kinds(node) == {"string"} and not allowed:
        return f'write a string: {name} = "{toml_value(value)}"'
    if isinstance(value, dict) and has_list(node) and isinstance(name, str):
        return f"double the brackets: [[{dotted_key(key)}]]"
    return ""


def _kinds(node: Node) -> set[str]:
    return {str(branch.get("type")) for branch in branches(node)}


def is_kind(value: Any, node: Node) -> bool:
    """Return whether a node allows the kind of a value, within bounds or not."""
    kinds = _kinds(node)
    match value:
        case bool():
            return "boolean" in kinds
        case int():
            return bool(kinds & {"integer", "number"})
        case float():
            return "number" in kinds
        case str():
            return "string" in kinds
        case list() | tuple():
            return "array" in kinds
    return False


def kind_of(value: Any) -> str:
    """Return the kind of a value, in words."""
    match value:
        case bool():
            return "true or false"
        case int():
            return "a whole number"
        case float():
            return "a number with a fraction"
        case str():
            return "a string"
        case list() | tuple():
            return "a list"
        case dict():
            return "a table"
    return "a date or time"


def _is_number(text: str) -> bool:
    return re.fullmatch(r"[+-]?\d[\d_]*(\.\d+)?([eE][+-]?\d+)?", text.strip()) is not None


def short(value: Any, width: int = 60) -> str:
    """Return a value as TOML, cut to `width` characters."""
    return shorten(toml_value(value), width)
